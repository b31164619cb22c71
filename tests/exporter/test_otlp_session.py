"""What an endpoint may do to the thread that sends metrics: answer badly, for ever, or far too much."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import requests

from mpbroker.exporter.otlp_session import ANSWER_BYTES_MAX, BoundedSession, NotTaken

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SHORT_S = 0.3


@contextmanager
def endpoint(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Serve an answer to the head of each request, and then close the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    answer(connection, is_over)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/metrics"
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def dripping(before: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Send a byte now and then, more often than the library's timeout, without an end."""

    def answer(connection: socket.socket, is_over: threading.Event) -> None:
        connection.sendall(before)
        while not is_over.wait(SHORT_S / 10):
            connection.sendall(b"x")

    return answer


def test_an_answer_is_an_answer() -> None:
    with endpoint(lambda connection, _: connection.sendall(OK)) as url:
        session = BoundedSession()
        answer = session.request("POST", url, data=b"metrics", timeout=10)
        assert (answer.status_code, answer.content, session.problem) == (200, b"ok", "")


@pytest.mark.parametrize("status", [301, 302, 304, 307])
def test_a_redirect_is_no_success_and_is_not_followed(status: int) -> None:
    asked: list[str] = []

    def elsewhere(connection: socket.socket, _: threading.Event) -> None:
        asked.append("followed")
        connection.sendall(OK)

    with endpoint(elsewhere) as other:
        head = f"HTTP/1.1 {status} x\r\nLocation: {other}?key=s3cret\r\nContent-Length: 0\r\n\r\n"
        with endpoint(lambda connection, _: connection.sendall(head.encode())) as url:
            session = BoundedSession()
            with pytest.raises(NotTaken):
                session.request("POST", url, data=b"metrics", timeout=10)
    assert session.problem == f"it answers {status}, a redirect to '{other}', which is not followed"
    assert asked == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(dripping(b""), id="status"),
        pytest.param(dripping(b"HTTP/1.1 200 OK\r\nX: "), id="headers"),
        pytest.param(dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"), id="body"),
        pytest.param(lambda _, is_over: is_over.wait(), id="silence"),
    ],
)
def test_an_answer_without_an_end_is_none(answer: Callable[[socket.socket, threading.Event], None]) -> None:
    with endpoint(answer) as url:
        session = BoundedSession()
        with pytest.raises(requests.RequestException):
            session.request("POST", url, data=b"metrics", timeout=SHORT_S)
    assert session.problem == "no answer for 0.3 s"


def test_of_a_large_answer_a_piece_is_read() -> None:
    sent: list[int] = []

    def flood(connection: socket.socket, is_over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 400 x\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not is_over.is_set():
            connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent.append(65536)

    with endpoint(flood) as url:
        session = BoundedSession()
        answer = session.request("POST", url, data=b"metrics", timeout=10)
        assert (answer.status_code, len(answer.content)) == (400, ANSWER_BYTES_MAX)
        # The connection of an answer that was not read to its end is closed, and another one opened.
        assert session.request("POST", url, data=b"metrics", timeout=10).status_code == 400
