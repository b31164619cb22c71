"""How workers end that Spark no longer needs."""

from __future__ import annotations

import socket

import pytest

from pyspark_mpbroker import daemon


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_connection_that_spark_has_closed_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def writes(_socket: socket.socket, _authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "_worker", writes)
    with socket.socket() as connection:
        assert daemon.worker(connection, authenticated=True) == daemon.CLOSED


def test_everything_else_is_as_the_worker_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_socket: socket.socket, _authenticated: bool) -> int:
        raise OSError("disk")

    with socket.socket() as connection:
        monkeypatch.setattr(daemon, "_worker", lambda _socket, authenticated: 7 if authenticated else 0)
        assert daemon.worker(connection, authenticated=True) == 7
        monkeypatch.setattr(daemon, "_worker", fails)
        with pytest.raises(OSError, match="disk"):
            daemon.worker(connection, authenticated=True)
