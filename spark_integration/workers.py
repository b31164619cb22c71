"""Lets unneeded Python workers of Spark end in silence.

Spark closes the connection to a worker when a query with a limit has enough records, and to a planner after a
minute without queries. PySpark's daemon, which the worker was forked from, then prints a BrokenPipeError with
a traceback, as if something had failed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Final

Worker = Callable[[socket.socket, bool], int]
CLOSED: Final = 1
_DAEMON: Final = "pyspark.daemon"
# PySpark's worker prints an error of its last flush unless this is set; then it raises it. Spark sets it for
# workers of tasks only. (Spark: BasePythonRunner, spark.python.daemon.killWorkerOnFlushFailure.)
_RAISES: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"


def in_silence(worker: Worker) -> Worker:
    """Return a worker that calls `worker`, and returns CLOSED if Spark closes the connection meanwhile."""
    os.environ[_RAISES] = "true"

    def serve(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return CLOSED

    return serve


def end_in_silence() -> None:
    """Make this process end in silence once Spark needs it no more, if PySpark's daemon has forked it.

    Planners need this: Spark starts them by PySpark's daemon, whatever spark.python.daemon.module is.
    (Spark: SparkEnv.createPythonWorker, PythonPlannerRunner.)
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        # The daemon resolves the function for each task.
        vars(main)["worker"] = in_silence(vars(main)["worker"])
