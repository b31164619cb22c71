"""What a Spark test has: the checkout, a session, a log directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Here = Callable[..., int]


ROOT = Path(__file__).parents[2]
