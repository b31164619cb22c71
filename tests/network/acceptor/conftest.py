"""A broker for each test, with the flags that it wants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Mpbroker
from tests.support.acceptor_tools import Start, listener
from tests.support.client_tools import eventually


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def begin(*flags: str, port: int | None = None) -> Mpbroker:
            """PORT in a flag is the port that the broker is expected at."""
            made = Mpbroker(tmp_path) if port is None else Mpbroker(tmp_path, port)
            made.flags = [flag.replace("PORT", str(made.port)) for flag in flags]
            stack.callback(made.kill)
            made.start()
            eventually(lambda: listener(made)["connections"] == 0, "the look whether it is ready is over")
            return made

        yield begin
