"""`mpbroker ctl ready`, before, while and after a broker runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.host import ready
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.main import app
from ops.bench.brokers import HOST, ROOT, Mpbroker, free_port
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served


def ask(broker: Mpbroker, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["ctl", "ready", *arguments], env={"MPBROKER_RUNTIME_DIR": str(broker.runtime_dir)}
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_ready_from_the_start_to_the_end(tmp_path: Path) -> None:
    broker = Mpbroker(tmp_path / "b")
    waits = [sys.executable, "-m", "mpbroker", "ctl", "ready", "--json", "--wait", str(PATIENCE_S)]
    environment = {**os.environ, "MPBROKER_RUNTIME_DIR": str(broker.runtime_dir)}
    waiting = subprocess.Popen(waits, env=environment, stdout=subprocess.PIPE, text=True)
    with waiting, served(broker):
        assert json.loads(waiting.communicate(timeout=PATIENCE_S)[0]) == {"ready": True, "problems": []}
        assert waiting.returncode == 0
        assert ask(broker) == (0, "ready\n")
        assert ask(broker, "--wait") == (0, "ready\n")
        assert ask(broker, "--wait", "--json") == ask(broker, "--json")
    code, said = ask(broker, "--wait", "0.1", "--json")
    assert code == 1
    assert json.loads(said)["ready"] is False
    code, said = ask(broker)
    assert code == 1
    assert said.startswith("not ready: no broker is running")


def test_a_wrong_directory_is_a_usage_error_unless_it_may_come(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    with pytest.raises(CliError) as raised:
        ready.ready(LocalBroker(nothing), None, as_json=False)
    assert raised.value.exit_code == USAGE_ERROR
    assert ready.ready(LocalBroker(nothing), 0, as_json=False) == 1


def test_a_wait_names_one_cause_and_its_end_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ready, "PRINTS_AFTER_S", 0)
    assert ready.ready(LocalBroker(str(tmp_path)), 0.05, as_json=False) == 1
    said = capsys.readouterr()
    assert said.err == f"mpbroker: waiting 0 s more: no broker is running on {tmp_path}\n"
    assert f"no broker is running on {tmp_path} (it has no " in said.out


def test_while_it_recovers_it_lives_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    http = f"http://{HOST}:{free_port()}"
    broker = Mpbroker(tmp_path / "b", flags=("--http", http.removeprefix("http://")))
    command = broker.command()
    with subprocess.Popen(
        command, env=broker.environment(), stderr=subprocess.DEVNULL, start_new_session=True
    ) as starting:
        try:
            recovering = _stopped_log_process(starting.pid)
            until(lambda: ask(broker)[1].startswith("not ready: log 0 does not serve"), "it says why")
            status, said = get(f"{http}/readyz")
            assert status == 503
            # A log process that stands still for some seconds is named as hanging, too.
            assert said.startswith(("log 0 does not serve\n", "log 0 does not serve: log 0 has not moved"))
            assert get(f"{http}/healthz") == (200, "ok\n")
            status, said = get(f"{http}/metrics")
            assert status == 200
            assert "mpbroker_ready 0.0\n" in said
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(broker.address)
            os.kill(recovering, signal.SIGCONT)
            assert ask(broker, "--wait", str(PATIENCE_S)) == (0, "ready\n")
            socket.create_connection(broker.address).close()
            assert get(f"{http}/readyz") == (200, "ok\n")
        finally:
            os.killpg(starting.pid, signal.SIGKILL)
            starting.wait()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _stopped_log_process(supervisor: int) -> int:
    """Stop the log process, which is the first child, before it serves; return its pid."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    until(children.read_text, "the log process begins")
    pid = int(children.read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_the_probes_of_the_pages_are_commands(tmp_path: Path) -> None:
    """Run what OPERATING and CONTAINERS tell operators, on another directory and other ports."""
    page = (ROOT / "docs" / "CONTAINERS.md").read_text()
    (typed,) = re.findall(
        r"^\$ mpbroker (ctl ready .*)$", (ROOT / "docs/OPERATING.md").read_text(), re.MULTILINE
    )
    (compose,) = re.findall(r"test: \[CMD, /opt/mpbroker/bin/mpbroker, (.*)\]", page)
    with served(Mpbroker(tmp_path / "b")) as broker:
        for words in (typed.split(), compose.split(", ")):
            words = [str(broker.log_dir) if word in ("data", "/var/lib/mpbroker") else word for word in words]
            assert CliRunner().invoke(app, words, env={"MPBROKER_RUNTIME_DIR": None}).output == "ready\n"
    # Paths of its probes are those that are served.
    assert set(re.findall(r"path: (/\w+), port: 9644", page)) == {"/healthz", "/readyz"}


def test_what_the_page_gives_containers_are_settings() -> None:
    """Check it behind what the image itself has."""
    page = (ROOT / "docs" / "CONTAINERS.md").read_text()
    (pod,) = re.findall(r"args: \[(.*)\]", page)
    (command,) = re.findall(r"command:\n((?: +- .*\n)+)", page)
    (properties,) = re.findall(r"```properties\n(.*?)```", page, re.DOTALL)
    config = str(ROOT / "ops/container/server.properties")
    image = ["serve", "--config", config, "--log-dirs", "/var/lib/mpbroker"]
    for words in (
        [word.strip('"') for word in pod.split(", ")],
        re.findall(r"- (.*)", command),
        [word for line in properties.splitlines() for word in ("-o", line)],
    ):
        checked = CliRunner().invoke(app, [*image, *words, "--check-config"])
        assert (checked.exit_code, "no effect" in checked.output) == (0, False), checked.output
    assert "0.0.0.0:9644" in pod
