"""Changes as the page sends them: what is none is refused before anybody is asked."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.client.acls import document
from mpbroker.client.errors import InvalidArgument
from mpbroker.client.offset_resets import Reset
from mpbroker.console import access, changes_audit
from mpbroker.console.changes import CreateTopic, ResetOffsets, decode

NOW_MS = 1_800_000_000_000


def test_a_change_is_what_it_says() -> None:
    assert decode(b'{"change":"create-topic","topic":"t","settings":{"a":"b"}}') == CreateTopic(
        "t", -1, {"a": "b"}
    )


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"[]",
            b"{}",
            b'{"change":"format-disk"}',
            b'{"change":"create-topic"}',
            b"\xff",
            b"[" * 100_000,
            b'{"a":' + b"[" * 100_000,
        ),
        b'{"change":"create-topic","topic":1}',
        b'{"change":"create-topic","topic":"t","partitions":1.5}',
        b'{"change":"delete-topic","topic":"t","force":true}',
        b'{"change":"produce","topic":"t","value":"v","headers":[["a"]]}',
        b'{"change":"produce","topic":"t"}',
        b'{"change":"delete-records","topic":"t","before":5}',
        b'{"change":"add-user","user":"u","mechanism":"SCRAM-SHA-256","password":""}',
        b'{"change":"alter-topic","topic":"t","settings":{"a":1}}',
        b'{"change":"reset-offsets","group":"g"}',
        b'{"change":"create-topic","topic":"t","partitions":99999999999}',
        b'{"change":"create-topic","topic":"t","partitions":-2}',
        b'{"change":"add-partitions","topic":"t","partitions":2147483648}',
        b'{"change":"add-partitions","topic":"t","partitions":-7}',
        b'{"change":"delete-topic","topic":"%s"}' % (b"t" * 40_000),
        b'{"change":"create-topic","topic":"t","settings":{"%s":""}}' % (b"t" * 40_000),
        b'{"change":"alter-topic","topic":"t","settings":{"a":"%s"}}' % (b"t" * 40_000),
        b'{"change":"reset-offsets","group":"%s","to":"to-latest"}' % (b"t" * 40_000),
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(body)


@pytest.mark.parametrize(
    ("to", "value", "reset"),
    [
        ("to-earliest", "", Reset("to-earliest")),
        ("to-latest", "", Reset("to-latest")),
        ("to-offset", "7", Reset("to-offset", 7)),
        ("shift-by", "-3", Reset("shift-by", -3)),
        ("to-datetime", "2026-01-31", Reset("to-datetime", 1_769_817_600_000)),
        ("by-duration", "2h", Reset("to-datetime", NOW_MS - 7_200_000)),
    ],
)
def test_places(to: str, value: str, reset: Reset) -> None:
    assert ResetOffsets("g", to, value).place(NOW_MS) == reset


@pytest.mark.parametrize(
    ("to", "value"),
    [
        ("nowhere", ""),
        ("to-current", ""),
        ("to-offset", ""),
        ("to-offset", "x"),
        ("shift-by", "1.5"),
        ("--to-offset", "1"),
    ],
)
def test_places_that_are_none(to: str, value: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        ResetOffsets("g", to, value).work(0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (ResetOffsets("g", "to-datetime", "soon"), "'soon': not a time"),
        (ResetOffsets("g", "by-duration", "1w"), "'1w': not a duration"),
        (ResetOffsets("g", "to-latest", "", ":x"), "topic ':x': this is not TOPIC or TOPIC:0,1,2"),
    ],
)
def test_times_and_topics_are_checked_as_the_command_does(change: ResetOffsets, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said) as caught:
        change.work(0)
    assert "--" not in str(caught.value)
    assert "UTC" not in str(caught.value)


ROW = {
    "resource": "Topic",
    "name": "orders",
    "pattern": "Prefixed",
    "principal": "User:ann",
    "host": "*",
    "operation": "Read",
    "permission": "Allow",
}


def test_an_acl_is_what_its_row_says() -> None:
    """Check that a row of the list names the entry that it shows."""
    entry = access.entry_of(ROW)
    assert document(entry) == ROW
    assert access.entry_of({**ROW, "resource": "Cluster"}).resource_name == "kafka-cluster"


@pytest.mark.parametrize(
    "wrong",
    [
        {"principal": "ann"},
        {"host": "a.host"},
        {"operation": "Reed"},
        {"permission": "May"},
        {"resource": "x"},
    ],
)
def test_an_acl_that_can_be_none_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        access.entry_of({**ROW, **wrong})


def test_the_audit_log_has_users_without_their_passwords() -> None:
    change = decode(b'{"change":"add-user","user":"u","mechanism":"SCRAM-SHA-256","password":"secret"}')
    assert list(changes_audit._names(change)) == ["u", "SCRAM-SHA-256"]
