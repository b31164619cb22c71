"""The parent of Python workers, in place of `pyspark.daemon`: unneeded ones end in silence.

A query with a limit has enough records before a worker has sent all of its own. Spark closes the connection
then, and PySpark's daemon prints the worker's BrokenPipeError with a traceback, as if something had failed.
"""

import socket

from pyspark import daemon

_worker = daemon.worker
CLOSED = 1


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task, as PySpark's own does; return CLOSED if Spark has closed the connection meanwhile."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return CLOSED


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
