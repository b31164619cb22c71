"""ctl speaks with a supervisor's socket: one message there, one back, and every way that can fail."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import ctl, scrub
from mpbroker.cli.host.local_broker import LocalBroker
from tests.support.fake_supervisor import FakeSupervisor


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As long as a path may be: longer than a socket's address."""
    path = tmp_path / ("d" * 100) / "run"
    path.mkdir(parents=True)
    monkeypatch.setenv("MPBROKER_RUNTIME_DIR", str(path))
    return path


@pytest.fixture
def supervisor(runtime_dir: Path) -> Iterator[FakeSupervisor]:
    fake = FakeSupervisor(runtime_dir)
    yield fake
    fake.close()


def test_status_as_tables_and_as_json(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    status = {
        "cluster_id": "abc",
        "processes": [{"name": "handler 0", "pid": 12}, {"name": "log", "cpu": 0.5}],
    }
    supervisor.replies = [msgspec.json.encode(status)] * 2
    ctl.status(LocalBroker(), as_json=True)
    assert json.loads(capsys.readouterr().out) == status
    ctl.status(LocalBroker(), as_json=False)
    table = capsys.readouterr().out
    assert all(word in table for word in ("cluster_id", "abc", "processes", "handler 0", "12", "0.5", "-"))
    assert supervisor.requests == [{"command": "status"}] * 2


def test_status_says_what_is_offline_if_something_is(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    well, ill = {"offline_partitions": 0}, {"offline_partitions": 2}
    supervisor.replies = [msgspec.json.encode(status) for status in (well, ill)]
    ctl.status(LocalBroker(), as_json=False)
    assert capsys.readouterr().out.split()[:3] == ["offline_partitions", "0", "processes"]
    ctl.status(LocalBroker(), as_json=False)
    partitions = capsys.readouterr().out.splitlines()[0]
    assert partitions.split(maxsplit=1)[1].startswith("2, see the broker's log")


def test_log_levels(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    reply = {"loggers": {"mpbroker.log": "DEBUG", "root": "INFO"}}
    supervisor.replies = [msgspec.json.encode(reply)] * 4
    ctl.log_level(LocalBroker(), None, None, as_json=False)
    ctl.log_level(LocalBroker(), "mpbroker.log", "debug", as_json=False)
    ctl.log_level(LocalBroker(), "root", "default", as_json=True)
    said = capsys.readouterr().out
    *lines, document = said.split("\n", 3)
    assert lines == ["mpbroker.log DEBUG", "root INFO", "mpbroker.log DEBUG"]
    assert json.loads(document) == {"loggers": {"root": "INFO"}}
    assert supervisor.requests == [
        {"command": "log-level"},
        {"command": "log-level", "logger": "mpbroker.log", "level": "DEBUG"},
        {"command": "log-level", "logger": "root", "level": ""},
    ]
    with pytest.raises(CliError, match="which level shall root have"):
        ctl.log_level(LocalBroker(), "root", None, as_json=False)


def test_what_is_going_on_with_the_log_in_a_line() -> None:
    scrub = {"running": False, "pass_bytes": 0, "pass_total_bytes": 0, "damaged_ranges": 0}
    assert ctl.scrub_text(scrub) == "no damage is known"
    scrub |= {"running": True, "pass_bytes": 1000, "pass_total_bytes": 20_000, "damaged_ranges": 2}
    said = "1,000 of 20,000 bytes, 2 damaged range(s), see mpbroker log scrub --status"
    assert ctl.scrub_text(scrub) == said


def test_a_process_is_shown_in_short() -> None:
    process = {
        "name": "log",
        "incarnation": 4,
        "restarts": 1,
        "state": "running",
        "status": "recovering",
        "last_error": "Traceback\nValueError: x\n",
        "turns": 7,
        "heartbeat_age_ms": 5,
        "rss_bytes": 37_486_592,
        "pid": os.getpid(),
    }
    (row,) = ctl.short([process])
    assert list(row)[:2] == ["name", "state"]
    assert [row] == [
        {
            "name": "log",
            "state": "recovering",
            "restarts": 1,
            "heartbeat_ms": 5,
            "pid": os.getpid(),
            "pss": row["pss"],
        }
    ]
    assert re.fullmatch(r"[\d.]+ MB", row["pss"])


def test_errors_stand_below_the_table_and_do_not_widen_it(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "ValueError: " + "x" * 300
    processes = [
        {"name": "log", "last_error": f"Traceback\n  line\n{why}\n"},
        {"name": "handler 0", "last_error": ""},
        {"name": "handler 1", "last_error": "log.dirs: /data is gone"},
    ]
    status = {"version": "0.1.0", "pid": 7, "up_s": 90061.5, "processes": processes}
    supervisor.replies = [msgspec.json.encode(status)] * 2
    ctl.status(LocalBroker(), as_json=False)
    table, errors = capsys.readouterr().out.split("\n\n")[-2:]
    assert max(map(len, table.splitlines())) < 40
    assert errors.splitlines() == [
        f"last error of log: {why}",
        "last error of handler 1: log.dirs: /data is gone",
    ]
    ctl.status(LocalBroker(), as_json=True)
    assert json.loads(capsys.readouterr().out) == status


def test_status_says_which_broker_it_is(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"version": "0.1.0", "pid": 7, "up_s": 90061.5, "processes": []}
    supervisor.replies = [msgspec.json.encode(status)]
    ctl.status(LocalBroker(), as_json=False)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["version", "0.1.0"], ["pid", "7"], ["up", "1 day, 1:01:01"]]


SCRUB = {"running": False, "pass_bytes": 0, "pass_total_bytes": 0, "damaged_ranges": 0, "findings": []}
NEVER = {"directories": [{"directory": "data"}]}
ONCE = {
    "directories": [{"directory": "data", "last_ended_ms": 0, "last_batches": 1500, "last_bytes": 70_000}]
}
SEALED = "Only sealed segments are scrubbed: each partition's last one is still written."


def test_a_scrub_says_that_it_has_begun_and_how_much_there_is(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, goes_on = {"running": True}, {"running": True, "pass_total_bytes": 70_000}
    replies = [SCRUB | NEVER, SCRUB | NEVER | begun, SCRUB | NEVER | begun, SCRUB | NEVER | goes_on]
    supervisor.replies = [msgspec.json.encode(reply) for reply in replies]
    scrub.scrub(LocalBroker(), only_status=False, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "scrub begun: 0 of 70,000 bytes",
        SEALED,
        "data: no complete scrub yet",
        "No damage is known.",
    ]
    look, begin = {"command": "scrub"}, {"command": "scrub", "on": True}
    assert supervisor.requests == [look, begin, look, look]


def test_a_scrub_that_goes_on_or_rests(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on = SCRUB | ONCE | {"running": True, "pass_bytes": 1000, "pass_total_bytes": 70_000}
    replies = [goes_on, goes_on, SCRUB | ONCE, SCRUB | NEVER, SCRUB | ONCE]
    supervisor.replies = [msgspec.json.encode(reply) for reply in replies]
    for only_status, said in ((False, "scrubbing: 1,000 of 70,000 bytes"), (True, "not scrubbing now")):
        scrub.scrub(LocalBroker(), only_status=only_status, as_json=False)
        first, second, third, _ = capsys.readouterr().out.splitlines()
        assert (first, second) == (said, SEALED)
        last = "1970-01-01T00:00:00.000Z, 1,500 batches, 70,000 bytes"
        assert third == f"data: last complete scrub: {last}"
    scrub.scrub(LocalBroker(), only_status=False, as_json=False)
    assert capsys.readouterr().out.startswith("scrub done: there was little to read\n")


def test_listeners_fit_a_terminal(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listener = {"listener": "PLAINTEXT://broker-1.example:9092", "protocol": "PLAINTEXT", "refused_per_ip": 0}
    other = {"listener": "SSL://broker-1.example:9093", "protocol": "SSL", "refused_per_ip": 3}
    supervisor.replies = [msgspec.json.encode({"listeners": [listener, other]})] * 2
    ctl.list_listeners(LocalBroker(), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "PLAINTEXT://broker-1.example:9092",
        "  protocol        PLAINTEXT",
        "  refused_per_ip  0",
        "SSL://broker-1.example:9093",
        "  protocol        SSL",
        "  refused_per_ip  3",
    ]
    ctl.list_listeners(LocalBroker(), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"listeners": [listener, other]}


def test_piped_tables_have_no_blanks_at_the_end(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = [{"name": "log", "state": "recovering"}, {"name": "handler", "state": "ok"}]
    supervisor.replies = [msgspec.json.encode({"node_id": 1, "processes": processes})]
    ctl.status(LocalBroker(), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "handler  ok" in lines
    assert lines == [line.rstrip() for line in lines]


def test_resize_sends_what_was_given(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor.replies = [b'{"handlers": 4}']
    ctl.resize(4, here=LocalBroker(), as_json=False)
    assert supervisor.requests == [{"command": "resize", "handlers": 4}]
    assert "handlers" in capsys.readouterr().out


def test_reload_says_what_changed(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    reply = {
        "changed": ["max.connections", "num.partitions"],
        "at_next_start": ["node.id"],
        "replaced": ["handler 0", "handler 1"],
        "warnings": ["node.id cannot change while the broker runs: restart the broker"],
    }
    supervisor.replies = [msgspec.json.encode(reply), msgspec.json.encode({name: [] for name in reply})]
    ctl.reload(LocalBroker(), as_json=False)
    assert supervisor.requests == [{"command": "reload"}]
    assert capsys.readouterr().out.splitlines() == [
        "warning: node.id cannot change while the broker runs: restart the broker",
        "changed max.connections, num.partitions",
        "replaced handler 0, handler 1",
    ]
    ctl.reload(LocalBroker(), as_json=False)
    assert capsys.readouterr().out == "the configuration is as it was\n"


def test_what_was_done_is_said(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    guests = b'{"listener": "GUESTS://127.0.0.1:9192"}'
    supervisor.replies = [guests, guests, b'{"request_log": true}', b'{"request_log": false}']
    ctl.add_listener("GUESTS://127.0.0.1:9192", "PLAINTEXT", here=LocalBroker(), as_json=False)
    ctl.remove_listener(LocalBroker(), "GUESTS", as_json=False)
    ctl.request_log(LocalBroker(), "on", as_json=False)
    ctl.request_log(LocalBroker(), None, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "added listener GUESTS://127.0.0.1:9192",
        "removed listener GUESTS://127.0.0.1:9192",
        "the request log is on",
        "the request log is off",
    ]


def test_resize_to_nothing_is_a_wrong_call() -> None:
    with pytest.raises(CliError, match="nothing to resize") as raised:
        ctl.resize(here=LocalBroker(), as_json=False)
    assert raised.value.exit_code == 2
