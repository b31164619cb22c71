"""Records of consumer groups as Apache Kafka 4.3 writes them."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer.records import ClassicMember, MemberKey, MemberMetadata, encode
from mpbroker.coordinator.groups.records import decode

KEY = b"\x00\x05\x00\x01g\x00\x01m"
BEFORE = b"\x00\x00\x02b\x00\x08rdkafka\x0b/127.0.0.1\x02\x06moved\x01\x00\x04\x93\xe0\x00"
PROTOCOL = ("range", b"\0\1")
MEMBER = MemberMetadata("b", None, "rdkafka", "/127.0.0.1", frozenset({"moved"}), "", 300_000, None, None)


@pytest.mark.parametrize(
    ("tags", "classic"),
    [
        (b"\x01\x00\x01\x00", None),
        (
            b"\x01\x00\x11\x01\x00\x00\x17\x70\x02\x06range\x03\x00\x01\x00\x00",
            ClassicMember(6000, (PROTOCOL,)),
        ),
        # What is not there is not null: Kafka has a member of the classic protocol.
        (b"\x00", ClassicMember(0, ())),
    ],
)
def test_members_are_of_the_protocol_that_kafka_says(tags: bytes, classic: ClassicMember | None) -> None:
    member = MEMBER._replace(classic=classic)
    assert decode(KEY, BEFORE + tags) == (MemberKey("g", "m"), member)
    assert encode(MemberKey("g", "m"), member) == (KEY, BEFORE + tags)
