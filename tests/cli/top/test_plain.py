"""`mpbroker top` as pipes, programs and hosts without Textual have it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from mpbroker.cli.top.columns import PARTITIONS
from mpbroker.cli.top.plain import show
from mpbroker.observe.model import Model
from mpbroker.observe.samples import BrokerSeen, Health, PartitionSeen, Sample
from mpbroker.testing import Broker
from tests.cli.conftest import Typed
from tests.support.polling import PATIENCE_S, is_readable, until
from tests.support.programs import loaded, ran

ROOT = Path(__file__).parents[3]


def run(*arguments: object, prelude: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{prelude}\nimport sys; from mpbroker.cli.entry import main; sys.argv[0] = 'mpbroker'; main()"
    done = ran([sys.executable, "-c", code, "top", *map(str, arguments)], cwd=ROOT)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_tables_and_json_of_a_running_and_of_a_stopped_broker(filled_broker: Broker, typed: Typed) -> None:
    def shown(*words: object) -> str:
        code, out, err = typed("top", *place, *words)
        assert (code, err) == (0, "")
        return out

    place = ("--log-dirs", filled_broker.log_dir, "--interval", "0.1")
    tables = shown("--once")
    assert tables.startswith("mpbroker: running, node 1")
    for title in ("Processes", "Requests", "Rings & arenas", "Partitions", "Groups"):
        assert f"\n{title}\n" in tables
    document = json.loads(shown("--json"))
    assert document["broker"]["health"] == "running"
    assert set(document) == {*("broker", "rates", "processes", "requests", "memory", "partitions", "groups")}
    assert document["rates"]["bytes_in_per_s"] == 0
    assert {row["name"] for row in document["processes"]} >= {"supervisor", "log 0"}
    assert [row["lag"] for row in document["groups"]] == [6]
    assert all("trend" not in row for row in document["partitions"])
    filled_broker.stop(keep=True)
    document = json.loads(shown("--json", "--view", "partitions"))
    assert set(document) == {"broker", "rates", "partitions"}
    assert document["broker"]["health"] == "stopped"
    assert {(row["topic"], row["log_end_offset"]) for row in document["partitions"]} >= {("orders", 10)}
    tables = shown("--once", "--view", "groups")
    assert tables.startswith("mpbroker: not running, node 1")
    assert "billing" in tables


def test_empty_partitions_of_the_broker_are_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    model, own = Model(), "__consumer_offsets"
    ends = {(own, 0): 0, (own, 1): 3, (own, 2): 0, ("a", 0): 0}
    seen = tuple(PartitionSeen(*place, 0, end, end) for place, end in ends.items())
    model.add(Sample(0, BrokerSeen(Health.RUNNING), partitions=seen))
    show(model, [PARTITIONS], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[-3:-1]] == [[own, "1"], ["a", "0"]]
    assert lines[-1] == "and 2 of the broker's own topics, without records"


def test_what_is_wrong_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    model = Model()
    model.add(Sample(0, BrokerSeen(Health.NOT_READY, "No space left on device: data\x1b")))
    show(model, [], as_json=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("mpbroker: ")
    assert second == "No space left on device: data\\x1b"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "add --once, or --json"),
        (("--once", "--view", "topics"), 2, "--view 'topics' is none of processes, requests, memory, "),
        (("--once", "--log-dirs", "/nonexistent"), 2, "/nonexistent is not there"),
        (("--once", "-b", "localhost:port"), 2, "is not HOST:PORT"),
        (("--once", "--interval", "0"), 2, "--interval"),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...], code: int, text: str, typed: Typed) -> None:
    ended, out, err = typed("top", *arguments)
    assert (ended, out) == (code, "")
    assert text in err


def test_without_textual_it_says_what_to_install(tmp_path: Path) -> None:
    """Tables need nothing of it."""
    prelude = "import sys; sys.modules['textual'] = None"
    code = f"{prelude}; from mpbroker.cli.entry import main; sys.argv[1:] = ['top']; main()"
    reader, terminal = pty.openpty()
    try:
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=PATIENCE_S, check=False, cwd=ROOT, **streams
        )
        said = os.read(reader, 65536)
    finally:
        os.close(reader)
        os.close(terminal)
    assert done.returncode == 1
    assert b"pip install 'mpbroker-server[top]'" in said
    done = run("--once", "--log-dirs", tmp_path, prelude=prelude)
    assert "no broker is running on" in done.stderr


def test_nothing_of_it_is_loaded_for_other_commands() -> None:
    code = "from mpbroker.cli.main import run; run(['ctl', '--help'])"
    assert loaded(code, "textual", "mpbroker.cli.top", "mpbroker.observe") == []


@pytest.mark.parametrize("term", ["xterm-256color", "vt100"])
def test_on_a_real_terminal_it_draws_and_goes(filled_broker: Broker, term: str) -> None:
    """With and without colours."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "mpbroker", "top", "--log-dirs", str(filled_broker.log_dir)]
    environ = {**os.environ, "TERM": term, "COLUMNS": "", "LINES": ""}
    environ.pop("COLORTERM", None)
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, env=environ
    ) as running:
        os.close(terminal)
        seen = b""
        try:

            def draws() -> bool:
                nonlocal seen
                if is_readable(reader):
                    seen += os.read(reader, 65536)
                return b"handler 0" in seen and b"Produce" in seen

            until(draws, "it draws")
            os.write(reader, b"q")
            # It may wait for room in the terminal until it is read.
            until(lambda: running.poll() is not None, "it goes", step=lambda: _drain(reader))
            assert running.returncode == 0, seen
        finally:
            running.kill()
            os.close(reader)


def _drain(reader: int) -> None:
    """Take what is there. The terminal ends with its last user."""
    with contextlib.suppress(OSError):
        if is_readable(reader, 0.05):
            os.read(reader, 65536)
