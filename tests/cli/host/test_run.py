"""`mpbroker run`: a command with a broker of its own, its exit code, its signals, and nothing left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.run import _topic
from tests.support.page_shell import pattern, shell, steps
from tests.support.polling import PATIENCE_S, is_readable
from tests.support.programs import Piped, ran

pytestmark = pytest.mark.process
PAGE = (Path(__file__).parents[3] / "docs" / "TESTING.md").read_text()
MPBROKER = [sys.executable, "-m", "mpbroker"]
# It says where it is, waits, and says by which signals it was asked to end.
WAITING = """
import os, signal, sys
came = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: came.append(number))
print(os.environ["KAFKA_BOOTSTRAP_SERVERS"], flush=True)
while not came:
    signal.pause()
sys.exit(int(came[0]) + 40)
"""


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return ran([*MPBROKER, "run", *words], input=stdin)


def test_the_command_has_topics_streams_and_flags_of_its_own() -> None:
    script = (
        '[ "$MPBROKER_BOOTSTRAP_SERVER" = "$KAFKA_BOOTSTRAP_SERVERS" ] || exit 1; '
        f"{sys.executable} -m mpbroker "
        'topic describe orders --json; cat; echo "$0 $@" >&2; exit 7'
    )
    words = ("--topic", "orders:3", "-o", "num.io.threads=1", "sh", "-c", script, "one", "--topic", "--wait")
    done = run(*words, stdin="lines\n")
    assert done.returncode == 7
    assert done.stdout.count('"partition"') == 3
    assert done.stdout.endswith("lines\n")
    # Nothing of the broker's log.
    assert done.stderr == "one --topic --wait\n"


def test_a_signal_of_the_command_and_of_the_broker() -> None:
    done = run("--verbose", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "stopped with status 0" in done.stderr
    script = (
        "import os,signal; from mpbroker.cli.host.local_broker import by_address\n"
        "os.kill(by_address(os.environ['MPBROKER_BOOTSTRAP_SERVER']).call('status')['pid'], signal.SIGKILL)"
    )
    done = run("--", sys.executable, "-c", script)
    assert done.returncode == 1
    assert "mpbroker: the broker has ended by SIGKILL" in done.stderr
    assert "serving on" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_on_to_the_command(number: signal.Signals) -> None:
    with Piped([*MPBROKER, "run", sys.executable, "-c", WAITING], stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        running.send_signal(number)
        assert running.wait(PATIENCE_S) == 40 + number


def test_the_command_is_killed_with_it() -> None:
    script = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with Piped([*MPBROKER, "run", sys.executable, "-c", script], stdout=subprocess.PIPE) as running:
        command = os.pidfd_open(int(running.stdout.readline()))
        try:
            running.kill()
            assert is_readable(command, PATIENCE_S), "it outlives mpbroker run"
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(command, signal.SIGKILL)
            os.close(command)


def test_ctrl_c_of_a_terminal_reaches_the_command_once() -> None:
    """Both stand before the terminal, which sends the signal to each of them."""
    pid, terminal = pty.fork()
    if pid == 0:
        twice = WAITING.replace(
            "sys.exit(int(came[0]) + 40)", "signal.sigtimedwait([], 1); sys.exit(len(came))"
        )
        os.execv(sys.executable, [*MPBROKER, "run", "--", sys.executable, "-c", twice])
    try:
        read = b""
        while b":" not in read:
            read += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    finally:
        os.close(terminal)


def test_wrong_calls_start_nothing() -> None:
    for words, text in (
        (["no-such-command"], "no-such-command: no such command"),
        (["-o", "no.such=1", "true"], "unknown setting no.such"),
        (["-o", "log.dirs=x", "true"], "name the directory with Broker(log_dir=…)"),
        (["--topic", "a b", "true"], "--topic a b: Topic name is invalid"),
        ([], "CMD"),
    ):
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr


@pytest.mark.parametrize("text", ["", ":3", "orders:", "orders:0", "orders:x", "orders:-1"])
def test_topics_that_are_none(text: str) -> None:
    with pytest.raises(CliError, match="write NAME, or NAME:PARTITIONS"):
        _topic(text)


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    section = PAGE.partition("\n## Any language\n")[2].partition("\n## ")[0]
    with shell(tmp_path) as sh:
        for step in steps(section):
            assert re.fullmatch(pattern(step.printed), sh.run(step.command), re.DOTALL)
