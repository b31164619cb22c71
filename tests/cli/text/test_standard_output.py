"""Standard output that takes no more: a line that says so and an exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from tests.inspection import conftest as of_inspection
from tests.support.own_cli import OwnCli
from tests.support.programs import ran

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from tests.support.fake_broker import FakeBroker

ROOT = Path(__file__).parents[3]
FULL = Path("/dev/full")
SAID = b"mpbroker: standard output: No space left on device\n"
# But where -u says otherwise.
BUFFERED = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
directory = of_inspection.directory


def printed(to: int | BinaryIO, *arguments: object, **environment: str) -> subprocess.CompletedProcess[Any]:
    """Run Python whose standard output is this."""
    streams = {"capture_output": False, "text": False, "stdout": to, "stderr": subprocess.PIPE}
    return ran([sys.executable, *arguments], env=BUFFERED | environment, **streams)


def to_full(*arguments: str, options: tuple[str, ...] = (), **environment: str) -> bytes:
    """What is said when the output's device is full; the exit code is 1."""
    with FULL.open("wb") as full:
        done = printed(full, *options, "-m", "mpbroker", *arguments, **environment)
    assert done.returncode == 1, done.stderr.decode()
    return done.stderr


@pytest.mark.parametrize(("lines", "options"), [(1, ()), (10_000, ()), (1, ("-u",))])
def test_clients_of_a_broker(broker: FakeBroker, lines: int, options: tuple[str, ...]) -> None:
    """What is printed fails at once, or when all is done."""
    OwnCli(broker.address).produce("t", ["x"] * lines)
    commands = [["consume", "t", "-o", "beginning", "-e"], ["topic", "list"]]
    for command in commands:
        said = to_full(*command, options=options, MPBROKER_BOOTSTRAP_SERVER=broker.address)
        assert said == SAID, command


def test_help() -> None:
    assert to_full("--help") == to_full("--version") == SAID


def test_the_files_of_a_log(directory: Path) -> None:
    for command in (["verify"], ["dump"], ["dump", "--json"]):
        assert to_full("log", *command, str(directory / "t-0")) == SAID, command


def test_a_command_that_fails_says_both(broker: FakeBroker) -> None:
    broker.topics["orders"] = [bytearray()]
    said = to_full("topic", "delete", "--yes", "orders", "nope", MPBROKER_BOOTSTRAP_SERVER=broker.address)
    assert said == b"mpbroker: topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n" + SAID


def test_a_reader_that_has_gone(directory: Path) -> None:
    """As of `| head`: without a word."""
    for options in ((), ("-u",)):
        reader, writer = os.pipe()
        os.close(reader)
        done = printed(writer, *options, "-m", "mpbroker", "log", "dump", directory / "t-0")
        os.close(writer)
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
