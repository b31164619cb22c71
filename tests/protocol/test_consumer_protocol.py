from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    decode_topics,
    encode_assignment,
    encode_subscription,
    version_of,
)
from mpbroker.protocol.wire import MalformedMessage
from tests.support.mixed_group_rig import subscription

OWNED = {"t": frozenset({0, 3}), "u": frozenset({1})}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 7])
def test_subscriptions_of_all_versions(version: int) -> None:
    data = subscription(version, ["t", "ü"], {"t": [0, 3], "u": [1]}, 5)
    owned = OWNED if version else {}
    assert decode_subscription(data) == Subscription(frozenset({"t", "ü"}), owned, None)
    assert decode_subscription(data + b"of a later version") == decode_subscription(data)
    assert version_of(data) == version


def test_a_rack_is_read() -> None:
    data = subscription(3, ["t"], {}, -1)[:-2] + b"\0\1r"
    assert decode_subscription(data).rack_id == "r"


def test_user_data_is_skipped() -> None:
    data = subscription(1, ["t"], {"t": [2]}, -1)
    data = data.replace(b"\xff\xff\xff\xff", b"\0\0\0\3abc", 1)
    assert decode_subscription(data).owned == {"t": frozenset({2})}


@given(st.dictionaries(st.text(max_size=5), st.frozensets(st.integers(0, 2**31 - 1))), st.integers(0, 3))
def test_assignments_are_read_as_they_were_written(parts: dict[str, frozenset[int]], version: int) -> None:
    data = encode_assignment(version, parts)
    assert decode_assignment(data) == (parts, 0)
    assert version_of(data) == version


def test_the_size_of_user_data_is_told() -> None:
    assert decode_assignment(encode_assignment(0, OWNED)[:-4] + b"\0\0\0\2ab") == (OWNED, 2)


@given(st.binary(max_size=60) | st.integers(0, 40).map(lambda n: subscription(3, ["t"], {"t": [1]}, 1)[:n]))
def test_malformed_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_topics, decode_assignment):
        try:
            decode(data)
        except MalformedMessage:
            continue


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff"])
def test_what_is_cut_off_or_of_no_version_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_subscription(data)
    with pytest.raises(MalformedMessage):
        decode_topics(data)
    with pytest.raises(MalformedMessage):
        decode_assignment(data)


@given(st.lists(st.text(max_size=5)))
def test_topics_are_read_without_what_follows(topics: list[str]) -> None:
    data = encode_subscription(topics)
    assert decode_subscription(data) == Subscription(frozenset(topics), {}, None)
    assert decode_topics(data) == decode_topics(data[:-4], len(topics)) == topics
    for cut in range(len(data) - 4):
        with pytest.raises(MalformedMessage):
            decode_topics(data[:cut])


def test_topics_have_a_bound() -> None:
    assert decode_topics(encode_subscription(["t", "t"]), 2) == ["t", "t"]
    with pytest.raises(MalformedMessage, match="3 topics, more than 2"):
        decode_topics(encode_subscription(["t", "t", "t"]), 2)


@pytest.mark.parametrize("topics", [b"\xff\xff\xff\xff", b"\0\0\0\1" + b"\xff\xff"])
def test_topics_and_their_names_are_never_null(topics: bytes) -> None:
    data = b"\0\0" + topics + b"\xff\xff\xff\xff"
    for decode in (decode_subscription, decode_topics):
        with pytest.raises(MalformedMessage):
            decode(data)
