"""A login by a relay: what is sent first, and what the answer means."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import NotConnected
from mpbroker.client.errors import AuthenticationFailed, ClientError
from mpbroker.client.relay import logged_in

# The settings fit no buffer of a socket.
CONFIG = ClientConfig(relay="/relay", relay_settings=(("sasl.mechanism", "GSSAPI"), ("x", "y" * 300_000)))


def log_in(answer: bytes) -> None:
    """Log in at a relay that gives this answer."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as relay:
        ours.setblocking(False)

        def play() -> dict[str, str]:
            with theirs.makefile("rb") as frames:
                wanted = json.loads(frames.read(int.from_bytes(frames.read(4))))
            theirs.sendall(answer)
            theirs.shutdown(socket.SHUT_WR)
            return dict(wanted)

        played = relay.submit(play)
        transport = logged_in(CONFIG, "host:9092", ours)
        assert played.result() == {**dict(CONFIG.relay_settings), "bootstrap.servers": "host:9092"}
        assert not ours.getblocking()
        assert transport.ready


def test_an_empty_answer_makes_it_ready() -> None:
    log_in(bytes(4))


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"\0\0\0\x0erefused no KDC", AuthenticationFailed, "^no KDC$"),
        (b"\0\0\0\x0clost no host", NotConnected, "^no host$"),
        (b"", NotConnected, "by the JVM"),
        (b"\0\0", NotConnected, "by the JVM"),
    ],
)
def test_an_answer_that_is_an_error(answer: bytes, error: type[ClientError | OSError], text: str) -> None:
    with pytest.raises(error, match=text):
        log_in(answer)
