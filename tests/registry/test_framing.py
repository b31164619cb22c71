"""The framing of values: ids and GUIDs before them or in a header, the paths of Protobuf's messages."""

from __future__ import annotations

from uuid import UUID

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.registry import framing

GUID = UUID("095d71cf-1255-6b9d-5e33-0ad575b3df5d")


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ((0,), "00"),
        ((1,), "0202"),
        ((0, 0), "040000"),
        ((1, 0), "040200"),
        ((2, 1, 3), "06040206"),
        ((64,), "028001"),
    ],
)
def test_paths_are_those_of_confluent(path: framing.Path, encoded: str) -> None:
    assert framing.prefix(7, path) == b"\0\0\0\0\7" + bytes.fromhex(encoded)
    whole = framing.prefix(7, path) + b"data"
    framed = framing.read(whole)
    assert (framed.schema_id, framed.path()) == (7, (path, len(whole) - 4))


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=100).map(tuple))
def test_any_path_is_read_as_it_was_written(path: framing.Path) -> None:
    assert framing.read_path(framing.prefix(1, path), framing.ID_PREFIX_BYTES)[0] == path


def test_confluent_writes_the_same_paths() -> None:
    """Check that only the path of the first message is shortened."""
    from io import BytesIO

    for path in ([0], [1], [0, 0], [2, 1, 3], [64]):
        buffer = BytesIO()
        ProtobufSerializer._encode_varints(buffer, path)
        assert framing.prefix(1, tuple(path))[5:] == buffer.getvalue()


@pytest.mark.parametrize("data", ["", "02", "ff", "ffffffffff01", "01", "9003" + "00" * 400, "0280"])
def test_paths_that_are_none_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"path|32 bits|within a number"):
        framing.read_path(bytes.fromhex(data), 0)


def test_a_guid_may_stand_before_the_value_or_in_a_header() -> None:
    mark = b"\1" + GUID.bytes
    framed = framing.read(mark + b"data")
    assert (framed.schema_id, framed.data_start) == (GUID, 17)
    headers = [
        ("__value_schema_id", b"\1" + bytes(16)),
        ("__value_schema_id", mark + b"\2\2"),
        ("__key_schema_id", None),
    ]
    header = framing.header_of(headers, is_key=False)
    framed = framing.read(b"\0\0\0\0\1data", header)
    assert (framed.schema_id, framed.data_start, framed.path()) == (GUID, 0, ((1,), 0))
    assert framing.header_of(headers, is_key=True) is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\1", b"\1" + bytes(15), b"\2\0\0\0\1", b"{}"])
def test_bytes_that_name_no_schema_are_said_to(data: bytes) -> None:
    with pytest.raises(framing.NotFramed, match="does not begin with a zero"):
        framing.read(data)
    with pytest.raises(framing.NotFramed):
        framing.read(data, b"\0\0\0\0\1")
