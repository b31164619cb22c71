"""The HTTP session with which OpenTelemetry's exporter sends; it limits a response's time and size.

Redirects are errors, while the exporter itself would count them as success. A whole request has one deadline,
while the library's timeout restarts with each byte. At most ANSWER_BYTES_MAX of a response are read.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, Final
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from mpbroker.config.otlp import without_secrets

ANSWER_BYTES_MAX: Final = 64 << 10
# The specification's, for versions of the exporter that do not name it.
TIMEOUT_S: Final = 10.0
_CUT_EVERY_S: Final = 0.5
_LOCATION_SHOWN_MAX: Final = 200


class NotTaken(requests.RequestException):
    """The endpoint has answered, but has not accepted the metrics."""


class BoundedSession(requests.Session):
    """A session for one thread. `problem` says why a request failed; "" if the raised exception says it."""

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""
        self._adapter = _Adapter()
        self.mount("http://", self._adapter)
        self.mount("https://", self._adapter)

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Send a request and read the response. Raises requests.RequestException, also for a redirect."""
        self.problem = ""
        timeout_s = float(options.get("timeout") or TIMEOUT_S)
        is_cut = threading.Event()
        try:
            with self._deadline(timeout_s, is_cut):
                answer = super().request(*args, **{**options, "allow_redirects": False, "stream": True})
                _read(answer)
        except requests.RequestException as error:
            if is_cut.is_set() or isinstance(error, requests.ReadTimeout):
                self.problem = f"no answer for {timeout_s:.2g} s"
            raise
        if is_cut.is_set():
            self.problem = f"no answer for {timeout_s:.2g} s"
            raise requests.ReadTimeout(self.problem)
        if 300 <= answer.status_code < 400:
            where = without_secrets(answer.headers.get("location", ""))[:_LOCATION_SHOWN_MAX]
            self.problem = f"it answers {answer.status_code}, a redirect to {where!r}, which is not followed"
            raise NotTaken(self.problem)
        return answer

    @contextmanager
    def _deadline(self, timeout_s: float, is_cut: threading.Event) -> Iterator[None]:
        """Shut down the session's connections and set `is_cut` if the with statement exceeds the timeout."""
        is_over = threading.Event()

        def watch() -> None:
            wait_s = timeout_s
            while not is_over.wait(wait_s):
                is_cut.set()
                self._adapter.cut()
                wait_s = _CUT_EVERY_S

        thread = threading.Thread(target=watch, name="otlp-deadline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


class _Adapter(HTTPAdapter):
    """An adapter that knows its open connections, so that another thread can close them."""

    def __init__(self) -> None:
        self._opened: WeakSet[HTTPConnection] = WeakSet()
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self._know(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        self._know(manager)
        return manager

    def _know(self, manager: PoolManager) -> None:
        opened = self._opened

        class Plain(HTTPConnection):
            def connect(self) -> None:
                opened.add(self)
                super().connect()

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                opened.add(self)
                super().connect()

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def cut(self) -> None:
        """Shut down all connections. May be called while another thread uses them."""
        for one in list(self._opened):
            # With TLS to a proxy, too, it is not a socket itself.
            sock = getattr(one.sock, "socket", one.sock)
            if isinstance(sock, socket.socket):
                # Not the `shutdown` of a TLS socket, which would change objects that the other thread uses.
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _read(answer: requests.Response) -> None:
    """Read at most ANSWER_BYTES_MAX of the response, undecoded; close the connection if it is longer."""
    try:
        data = answer.raw.read(ANSWER_BYTES_MAX + 1, decode_content=False)
    except Exception as error:
        answer.close()
        raise requests.ConnectionError(error) from error
    if len(data) > ANSWER_BYTES_MAX:
        answer.raw.close()
    answer.raw = BytesIO(data[:ANSWER_BYTES_MAX])
