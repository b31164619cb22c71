"""Starts Spark's JVM without its usual lines about incubator modules, the host's name and native code.

Neither a setting nor a configuration of log4j suppresses all of these lines: the JVM itself writes some. So a
thread of this process reads the JVM's standard error. It holds back the lines that come before the session
exists, shows them only if the start fails or logs an error, and passes later lines on.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

_ERROR: Final = b" ERROR "
_PIECE_BYTES: Final = 64 << 10
_STDERR: Final = 2


@contextmanager
def started_quietly(settings: Mapping[str, str]) -> Iterator[None]:
    """Start the JVM with these settings of Spark; the caller makes the session within the context.

    Raises PySparkRuntimeError if the JVM does not start.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    reading, writing = os.pipe()
    held = _Held(reading)
    try:
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            os.close(writing)
        SparkContext._ensure_initialized(gateway=gateway)
        yield
    except KeyboardInterrupt:
        # The user stops the start: nothing failed that lines would explain.
        raise
    except BaseException:
        held.release(is_shown=True)
        raise
    held.release(is_shown=False)


class _Held:
    """Holds back the output of a pipe until it is released, and passes it on from then on."""

    def __init__(self, reading: int) -> None:
        os.set_blocking(reading, False)
        self._reading = reading
        self._lock = threading.Lock()
        self._pieces: list[bytes] | None = []
        threading.Thread(target=self._pump, name="stderr of Spark", daemon=True).start()
        # The thread does not outlive the interpreter; this passes the last lines on.
        atexit.register(self._take)

    def release(self, *, is_shown: bool) -> None:
        self._take()
        with self._lock:
            text, self._pieces = b"".join(self._pieces or ()), None
            if is_shown or _ERROR in text:
                _write(text)

    def _pump(self) -> None:
        readable = select.poll()
        readable.register(self._reading, select.POLLIN)
        while self._take():
            readable.poll()

    def _take(self) -> bool:
        """Take the bytes in the pipe now. Returns False once the JVM has ended."""
        with self._lock, suppress(BlockingIOError):
            while piece := os.read(self._reading, _PIECE_BYTES):
                if self._pieces is None:
                    _write(piece)
                else:
                    self._pieces.append(piece)
            return False
        return True


def _write(text: bytes) -> None:
    while text:
        text = text[os.write(_STDERR, text) :]
