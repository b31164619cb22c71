"""ctl speaks with a supervisor's socket: one message there, one back, and every way that can fail."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import ctl, scrub
from mpbroker.cli.host.local_broker import LocalBroker
from tests.support.fake_supervisor import FakeSupervisor

Printed = Callable[..., str]


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


@pytest.fixture
def printed(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Returns what a command prints, whose messages get these replies."""

    def call(command: Callable[..., None], replies: list[object], **how: object) -> str:
        supervisor.replies = [msgspec.json.encode(reply) for reply in replies]
        command(**{"here": LocalBroker(), "as_json": False, **how})
        return capsys.readouterr().out

    return call


def test_status_as_tables_and_as_json(supervisor: FakeSupervisor, printed: Printed) -> None:
    status = {
        "cluster_id": "abc",
        "processes": [{"name": "handler 0", "pid": 12}, {"name": "log", "cpu": 0.5}],
    }
    assert json.loads(printed(ctl.status, replies=[status], as_json=True)) == status
    table = printed(ctl.status, replies=[status])
    assert all(word in table for word in ("cluster_id", "abc", "processes", "handler 0", "12", "0.5", "-"))
    assert supervisor.requests == [{"command": "status"}] * 2


def test_status_names_no_unit_twice(printed: Printed) -> None:
    status = {
        "records_appended": 1200,
        "log_dirs": [{"log_dir": "data", "size_bytes": 0, "total_bytes": None}],
    }
    plain, *_, heads, row = printed(ctl.status, replies=[status]).splitlines()
    assert plain.split(maxsplit=1) == ["records_appended", "1,200, with the broker's own"]
    assert (heads.split(), row.split()) == (["LOG-DIR", "SIZE", "TOTAL"], ["data", "0", "B", "-"])


def test_status_says_what_is_offline_if_something_is(printed: Printed) -> None:
    well = printed(ctl.status, replies=[{"offline_partitions": 0}])
    assert well.split()[:3] == ["offline_partitions", "0", "processes"]
    partitions, *_ = printed(ctl.status, replies=[{"offline_partitions": 2}]).splitlines()
    assert partitions.split(maxsplit=1)[1].startswith("2, see the broker's log")


def test_log_levels(supervisor: FakeSupervisor, printed: Printed) -> None:
    replies = [{"loggers": {"mpbroker.log": "DEBUG", "root": "INFO"}}]
    everything = printed(ctl.log_level, replies=replies)
    assert everything == "mpbroker.log DEBUG\nroot INFO\n"
    assert printed(ctl.log_level, replies, logger="mpbroker.log", level="debug") == "mpbroker.log DEBUG\n"
    document = printed(ctl.log_level, replies, logger="root", level="default", as_json=True)
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


def test_errors_stand_below_the_table_and_do_not_widen_it(printed: Printed) -> None:
    why = "ValueError: " + "x" * 300
    processes = [
        {"name": "log", "last_error": f"Traceback\n  line\n{why}\n"},
        {"name": "handler 0", "last_error": ""},
        {"name": "handler 1", "last_error": "log.dirs: /data is gone"},
    ]
    status = {"version": "0.1.0", "pid": 7, "up_s": 90061.5, "processes": processes}
    table, errors = printed(ctl.status, replies=[status]).split("\n\n")[-2:]
    assert max(map(len, table.splitlines())) < 40
    assert errors.splitlines() == [
        f"last error of log: {why}",
        "last error of handler 1: log.dirs: /data is gone",
    ]
    assert json.loads(printed(ctl.status, replies=[status], as_json=True)) == status


def test_status_says_which_broker_it_is(printed: Printed) -> None:
    status = {"version": "0.1.0", "pid": 7, "up_s": 90061.5, "processes": []}
    lines = [line.split(maxsplit=1) for line in printed(ctl.status, replies=[status]).splitlines()]
    assert lines[:3] == [["version", "0.1.0"], ["pid", "7"], ["up", "1 day, 1:01:01"]]


SCRUB = {"running": False, "pass_bytes": 0, "pass_total_bytes": 0, "damaged_ranges": 0, "findings": []}
NEVER = {"directories": [{"directory": "data"}]}
ONCE = {
    "directories": [{"directory": "data", "last_ended_ms": 0, "last_batches": 1500, "last_bytes": 70_000}]
}
SEALED = "Only sealed segments are scrubbed: each partition's last one is still written."


def test_a_scrub_says_that_it_has_begun_and_how_much_there_is(
    supervisor: FakeSupervisor, printed: Printed
) -> None:
    begun, goes_on = {"running": True}, {"running": True, "pass_total_bytes": 70_000}
    replies = [SCRUB | NEVER, SCRUB | NEVER | begun, SCRUB | NEVER | begun, SCRUB | NEVER | goes_on]
    assert printed(scrub.scrub, replies=replies, only_status=False).splitlines() == [
        "scrub begun: 0 of 70,000 bytes",
        SEALED,
        "data: no complete scrub yet",
        "No damage is known.",
    ]
    look, begin = {"command": "scrub"}, {"command": "scrub", "on": True}
    assert supervisor.requests == [look, begin, look, look]


def test_a_scrub_that_goes_on_or_rests(printed: Printed) -> None:
    goes_on = SCRUB | ONCE | {"running": True, "pass_bytes": 1000, "pass_total_bytes": 70_000}
    for only_status, replies, said in (
        (False, [goes_on, goes_on], "scrubbing: 1,000 of 70,000 bytes"),
        (True, [SCRUB | ONCE], "not scrubbing now"),
    ):
        first, second, third, _ = printed(scrub.scrub, replies=replies, only_status=only_status).splitlines()
        assert (first, second) == (said, SEALED)
        last = "1970-01-01T00:00:00.000Z, 1,500 batches, 70,000 bytes"
        assert third == f"data: last complete scrub: {last}"
    done = printed(scrub.scrub, replies=[SCRUB | NEVER, SCRUB | ONCE], only_status=False)
    assert done.startswith("scrub done: there was little to read\n")


def test_listeners_fit_a_terminal(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listener = {"listener": "PLAINTEXT://broker-1.example:9092", "protocol": "PLAINTEXT", "refused_per_ip": 0}
    other = {"listener": "SSL://broker-1.example:9093", "protocol": "SSL", "refused_per_ip": 3}
    document = {"listeners": [listener, other]}
    assert printed(ctl.list_listeners, replies=[document]).splitlines() == [
        "PLAINTEXT://broker-1.example:9092",
        "  protocol        PLAINTEXT",
        "  refused_per_ip  0",
        "SSL://broker-1.example:9093",
        "  protocol        SSL",
        "  refused_per_ip  3",
    ]
    assert json.loads(printed(ctl.list_listeners, replies=[document], as_json=True)) == document


def test_piped_tables_have_no_blanks_at_the_end(printed: Printed) -> None:
    processes = [{"name": "log", "state": "recovering"}, {"name": "handler", "state": "ok"}]
    lines = printed(ctl.status, replies=[{"node_id": 1, "processes": processes}]).splitlines()
    assert "handler  ok" in lines
    assert lines == [line.rstrip() for line in lines]


def test_resize_sends_what_was_given(supervisor: FakeSupervisor, printed: Printed) -> None:
    assert "handlers" in printed(ctl.resize, replies=[{"handlers": 4}], handlers=4)
    assert supervisor.requests == [{"command": "resize", "handlers": 4}]


def test_reload_says_what_changed(supervisor: FakeSupervisor, printed: Printed) -> None:
    reply = {
        "changed": ["max.connections", "num.partitions"],
        "at_next_start": ["node.id"],
        "replaced": ["handler 0", "handler 1"],
        "warnings": ["node.id cannot change while the broker runs: restart the broker"],
    }
    assert printed(ctl.reload, replies=[reply]).splitlines() == [
        "warning: node.id cannot change while the broker runs: restart the broker",
        "changed max.connections, num.partitions",
        "replaced handler 0, handler 1",
    ]
    assert supervisor.requests == [{"command": "reload"}]
    assert printed(ctl.reload, replies=[{name: [] for name in reply}]) == "the configuration is as it was\n"


GUESTS = "GUESTS://127.0.0.1:9192"


@pytest.mark.parametrize(
    ("command", "how", "reply", "said"),
    [
        (
            ctl.add_listener,
            {"listener": GUESTS, "protocol": "PLAINTEXT"},
            {"listener": GUESTS},
            f"added listener {GUESTS}\n",
        ),
        (ctl.remove_listener, {"name": "GUESTS"}, {"listener": GUESTS}, f"removed listener {GUESTS}\n"),
        (ctl.request_log, {"switch": "on"}, {"request_log": True}, "the request log is on\n"),
        (ctl.request_log, {}, {"request_log": False}, "the request log is off\n"),
    ],
)
def test_what_was_done_is_said(
    printed: Printed, command: Callable[..., None], how: dict[str, object], reply: object, said: str
) -> None:
    assert printed(command, [reply], **how) == said


def test_resize_to_nothing_is_a_wrong_call() -> None:
    with pytest.raises(CliError, match="nothing to resize") as raised:
        ctl.resize(here=LocalBroker(), as_json=False)
    assert raised.value.exit_code == 2
