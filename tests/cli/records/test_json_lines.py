"""Records as lines of JSON: what is written is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.cli.errors import CliError
from mpbroker.cli.records.json_lines import parse, render
from mpbroker.records.record import Record

BYTES = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)


@given(BYTES, BYTES, HEADERS, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9))
def test_what_is_written_is_read(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    timestamp: int,
    partition: int,
) -> None:
    line = render("t", partition, Record(7, timestamp, 0, key, value, headers))
    assert line.count(b"\n") == 1
    parsed = parse(line.rstrip(), 1, now_ms=0)
    record = parsed.record
    assert (parsed.partition, record.timestamp) == (partition, timestamp)
    assert (record.key, record.value, record.headers) == (key, value, headers)


def test_a_line_of_somebody_else_needs_a_value_only() -> None:
    parsed = parse(b'{"value": null}', 1, now_ms=5)
    record = parsed.record
    assert (record.value, record.key, record.timestamp, parsed.partition) == (None, None, 5, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "line 7: Input data was truncated"),
        (b"[]", "line 7: Expected `object`"),
        (b'{"value": "c", "timestamp": 9223372036854775808}', "line 7: Expected `int` <= 92233720"),
        (b'{"value": "c", "timestamp": -99999999999999999999}', "line 7: Expected `int` >= -92233720"),
        (b'{"value": "c", "timestamp": ' + b"9" * 5000 + b"}", "line 7: Integer value out of range"),
        (b'{"key": "k"}', "line 7: there is neither value nor value_base64; a tombstone has the value null"),
        (b'{"value": {"a": 1}}', "line 7: Expected `str | null`, got `object`"),
        (b'{"vlaue": "v"}', "line 7: Object contains unknown field `vlaue`"),
        (b'{"value": "v", "value_base64": "/w=="}', "line 7: it has both value and value_base64"),
        (b'{"value_base64": "?"}', "line 7: Invalid base64"),
        (b'{"value": "v", "headers": [["a"]]}', "line 7: Expected `array` of length 2"),
    ],
)
def test_wrong_lines_are_named(line: bytes, message: str) -> None:
    with pytest.raises(CliError) as caught:
        parse(line, 7, now_ms=0)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


def test_headers_that_are_no_text() -> None:
    record = Record(9, 5, 0, None, b"v", (("text", b"x"), ("none", None), ("bytes", b"\xff")))
    assert json.loads(render("t", 0, record))["headers"] == [
        ["text", "x"],
        ["none", None],
        ["bytes", {"base64": "/w=="}],
    ]
