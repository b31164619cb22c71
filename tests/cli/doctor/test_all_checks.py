"""`mpbroker doctor` as it is called: exit codes, JSON, beside a running broker."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from mpbroker.testing import Broker
from tests.cli.conftest import Typed


@pytest.fixture
def doctor(typed: Typed) -> Typed:
    return partial(typed, "doctor")


def test_where_nothing_is_missing_it_says_so(doctor: Typed, tmp_path: Path) -> None:
    code, out, err = doctor("--log-dirs", tmp_path / "data", "--listeners", "PLAINTEXT://127.0.0.1:0")
    assert (code, err) == (0, ""), out
    assert out.splitlines()[-1] == "No problems: a broker with these settings can run here."
    assert list(tmp_path.iterdir()) == []


def test_problems_are_counted_and_have_advice(doctor: Typed, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, _ = doctor("--json", "--log-dirs", tmp_path / "file", "--listeners", "PLAINTEXT://192.0.2.1:1")
    document = json.loads(out)
    problems = [row for row in document["checks"] if row["state"] == "problem"]
    assert (code, document["problems"]) == (1, len(problems))
    assert {f"log.dirs {tmp_path / 'file'}", "listener PLAINTEXT"} <= {row["name"] for row in problems}
    assert all(row["advice"] for row in problems)


def test_nothing_about_spark_is_a_problem_of_the_broker(
    doctor: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, out, _ = doctor("--json", "--log-dirs", tmp_path, "--listeners", "PLAINTEXT://127.0.0.1:0")
    found = {row["name"]: row for row in json.loads(out)["checks"]}
    assert (code, found["Java"]["state"]) == (0, "note")
    assert "doctor spark" in found["Java"]["advice"]


def test_a_running_broker_has_its_ports(doctor: Typed, mpbroker_broker: Broker) -> None:
    listener = f"PLAINTEXT://{mpbroker_broker.bootstrap_servers}"
    code, out, _ = doctor("--json", "--log-dirs", mpbroker_broker.log_dir, "--listeners", listener)
    found = {row["name"]: row for row in json.loads(out)["checks"]}
    assert code == 0, out
    assert found["broker"]["found"].startswith("runs on")
    assert "is served by the broker" in found["listener PLAINTEXT"]["found"]
    assert found["advertised PLAINTEXT"]["found"].endswith("answers")
    assert "topics" not in found
    assert mpbroker_broker.is_running


def test_a_running_broker_tells_its_listeners(doctor: Typed) -> None:
    """The doctor checks a running broker's listeners, unless the settings name some."""
    settings = {
        "listeners": "A://127.0.0.1:0,B://127.0.0.1:0,C://0.0.0.0:0",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
        "advertised.listeners": "B://127.0.0.1:1,A://nowhere.invalid:9092",
    }
    with Broker(settings) as broker:
        code, out, _ = doctor("--json", "--log-dirs", broker.log_dir)
        found = {row["name"]: row for row in json.loads(out)["checks"]}
        _, out, _ = doctor("--json", "--log-dirs", broker.log_dir, "--listeners", "PLAINTEXT://127.0.0.1:0")
        given = {row["name"] for row in json.loads(out)["checks"]}
    assert code == 1
    for name in "ABC":
        assert "is served by the broker" in found[f"listener {name}"]["found"]
    assert "listener PLAINTEXT" not in found
    assert found["advertised A"]["found"].startswith("nowhere.invalid cannot be resolved")
    assert found["advertised B"]["found"] == "127.0.0.1:1 (127.0.0.1) does not answer"
    assert "advertised C" in found
    assert "listener PLAINTEXT" in given
    assert "listener A" not in given


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "num.partitions=none"), "num.partitions"),
        (("--config", "/nonexistent.properties"), "/nonexistent.properties"),
        (("--json", "spark"), "options go after spark"),
    ],
)
def test_wrong_calls(doctor: Typed, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = doctor(*arguments)
    assert (code, out) == (2, "")
    assert said in err
