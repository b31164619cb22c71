"""A broker in memory for the commands to talk to: one thread, our codec on the other side of the wire."""

import sys
from collections.abc import Callable, Iterator

import pytest

from mpbroker.cli.entry import main
from mpbroker.testing import Broker
from tests.support.fake_broker import FakeBroker
from tests.support.own_cli import OwnCli

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands look for brokers as they do where nobody has named a runtime directory."""
    monkeypatch.delenv("MPBROKER_RUNTIME_DIR", raising=False)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs `mpbroker` with these words here; returns its exit code, and what it prints."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mpbroker", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


@pytest.fixture(scope="module")
def cli(mpbroker_broker: Broker) -> OwnCli:
    return OwnCli(mpbroker_broker.bootstrap_servers)
