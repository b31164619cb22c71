"""What a Spark test has: the checkout, a session, a log directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Here = Callable[..., int]


ROOT = Path(__file__).parents[2]
# What is here Spark's Python processes run when they start.
WORKERS = Path(__file__).with_name("spark_workers")
# Of programs that run the checkout and are not given the path of the tests.
PYTHON_PATH = os.pathsep.join([str(WORKERS), str(ROOT)])
