"""What members of a group tell each other."""

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.client.consumer_protocol import (
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

ASSIGNMENT = b"\0\1" + b"\0\0\0\1" + b"\0\3abc" + b"\0\0\0\2" + b"\0\0\0\5\0\0\0\6" + b"\xff" * 4
NAMES = st.text(max_size=9)


@given(st.integers(0, len(ASSIGNMENT)), st.binary(max_size=40))
def test_what_any_client_may_have_written(at: int, other: bytes) -> None:
    assert decode_assignment(ASSIGNMENT) == [("abc", 5), ("abc", 6)]
    assert isinstance(decode_assignment(ASSIGNMENT[:at] + other), list)
    assert isinstance(decode_subscription(ASSIGNMENT[:at] + other), list)


@given(st.lists(NAMES, unique=True), st.sets(st.tuples(NAMES, st.integers(0, 1 << 20))))
def test_what_is_written_is_read(topics: list[str], places: set[tuple[str, int]]) -> None:
    assert decode_subscription(encode_subscription(topics)) == topics
    assert decode_assignment(encode_assignment(places)) == sorted(places)


def test_ranges_are_those_of_kafka() -> None:
    """RangeAssignorTest: the first members have what is left over."""
    wanted = {"b": ["t", "u"], "a": ["t"], "c": ["t", "missing"]}
    assert assign_ranges(wanted, {"t": 7, "u": 2, "missing": 0}) == {
        "a": [("t", 0), ("t", 1), ("t", 2)],
        "b": [("t", 3), ("t", 4), ("u", 0), ("u", 1)],
        "c": [("t", 5), ("t", 6)],
    }
