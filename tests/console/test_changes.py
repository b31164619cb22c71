"""Changes as the page sends them: what is none is refused before anybody is asked."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.console import changes
from mpbroker.console.changes import CreateTopic, ResetOffsets, decode, work_of


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
        ),
        b'{"change":"create-topic","topic":1}',
        b'{"change":"create-topic","topic":"t","partitions":1.5}',
        b'{"change":"delete-topic","topic":"t","force":true}',
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
    with pytest.raises((msgspec.MsgspecError, RecursionError)):
        decode(body)


@pytest.mark.parametrize(
    ("to", "value", "field", "found"),
    [
        ("to-earliest", "", "to_earliest", True),
        ("to-latest", "", "to_latest", True),
        ("to-current", "", "to_current", True),
        ("to-offset", "7", "to_offset", 7),
        ("shift-by", "-3", "shift_by", -3),
        ("to-datetime", "2026-01-31", "to_datetime", "2026-01-31"),
        ("by-duration", "2h", "by_duration", "2h"),
    ],
)
def test_places_are_the_flags_of_the_command(to: str, value: str, field: str, found: object) -> None:
    change = ResetOffsets("g", to, value)
    assert getattr(changes._flags(change), field) == found
    work_of(change, now_ms=1_800_000_000_000)


@pytest.mark.parametrize(
    ("to", "value"),
    [("nowhere", ""), ("to-offset", ""), ("to-offset", "x"), ("shift-by", "1.5"), ("--to-offset", "1")],
)
def test_places_that_are_none(to: str, value: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        work_of(ResetOffsets("g", to, value), 0)


@pytest.mark.parametrize(
    "change", [ResetOffsets("g", "to-datetime", "soon"), ResetOffsets("g", "to-latest", "", ":x")]
)
def test_times_and_topics_are_checked_as_the_command_does(change: ResetOffsets) -> None:
    with pytest.raises(CliError):
        work_of(change, 0)
