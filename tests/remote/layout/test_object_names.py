"""Names of a segment's objects, as Aiven's plugin writes them."""

from __future__ import annotations

import pytest

from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.remote.layout.object_names import SegmentObjects, parse_object

# The example in the documentation of the plugin's ObjectKeyFactory.
TOPIC_ID, SEGMENT_ID = uuid_bytes("MWJ6FHTfRYy67jzwZdeqSQ"), uuid_bytes("tqimKeZwStOEOwRzT3L5oQ")
OBJECTS = SegmentObjects("topic", TOPIC_ID, 7, 1234, SEGMENT_ID)
STEM = "topic-MWJ6FHTfRYy67jzwZdeqSQ/7/00000000000000001234-tqimKeZwStOEOwRzT3L5oQ"


def test_names_are_those_of_the_plugin() -> None:
    assert OBJECTS.all == (f"{STEM}.log", f"{STEM}.indexes", f"{STEM}.rsm-manifest")
    assert OBJECTS.all == (OBJECTS.log, OBJECTS.indexes, OBJECTS.manifest)


@pytest.mark.parametrize(
    "objects",
    [
        OBJECTS,
        SegmentObjects("a-b.c_d-", bytes([255] * 16), 0, 0, bytes(16)),
        SegmentObjects(".x", bytes([251, 239] * 8), 2**31 - 1, 2**63 - 1, b"\xfb" * 16),
    ],
)
def test_what_was_named_is_found(objects: SegmentObjects) -> None:
    assert [parse_object(name) for name in objects.all] == [objects] * 3


@pytest.mark.parametrize(
    "other",
    [
        *("mpbroker/log/00000000000000000001", "mpbroker/format", STEM, f"{STEM}.log.tmp", f"x/{STEM}.log"),
        f"{STEM}.log".replace("/7/", "/07/"),
        # Bits that an id does not have.
        *(f"{STEM}.log".replace("qSQ/", "qSR/"), f"{STEM}.log".replace("5oQ.", "5oR.")),
    ],
)
def test_other_objects_belong_to_no_segment(other: str) -> None:
    assert parse_object(other) is None
