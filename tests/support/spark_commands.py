"""Commands that start Spark, as processes that tests watch, stop and end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.polling import is_readable
from tests.support.spark_here import PYTHON_PATH

JOB_PATIENCE_S = 300


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`mpbroker …` in a process group of its own, which does not outlive a test that fails."""
    job = subprocess.Popen(
        [sys.executable, "-m", "mpbroker", *arguments, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def goes_on(job: subprocess.Popen[str], holds: Callable[[], object], what: str) -> None:
    """Until it holds, and the job runs meanwhile; a JVM on a busy machine takes its time."""
    hangs = time.monotonic() + JOB_PATIENCE_S
    descriptor = os.pidfd_open(job.pid)
    try:
        while not holds():
            assert not is_readable(descriptor, 0.05), job.communicate()
            assert time.monotonic() < hangs, f"{what}: not within {JOB_PATIENCE_S} s"
    finally:
        os.close(descriptor)


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=JOB_PATIENCE_S)
    # A worker of Spark that is killed says so itself, of its own frames.
    assert not re.search(r"spark_integration|mpbroker/cli|py4j", err), err
    assert "\tat " not in err, err
    return job.returncode, out, err
