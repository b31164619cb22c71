"""Ids as text: Kafka's alphabet, no padding, and nothing that is not an id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.protocol.uuids import uuid_bytes, uuid_text


def test_kafkas_text() -> None:
    assert uuid_text(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_text(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"


@given(st.binary(min_size=16, max_size=16))
def test_there_and_back(value: bytes) -> None:
    assert uuid_bytes(uuid_text(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAA"])
def test_not_an_id(text: str) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        uuid_bytes(text)
