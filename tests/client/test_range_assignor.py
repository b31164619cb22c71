"""How a member reads what other members have written, and divides partitions."""

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.client.range_assignor import assign_ranges, assigned_partitions, subscribed_topics
from mpbroker.protocol.consumer_protocol import encode_subscription

ASSIGNMENT = b"\0\1" + b"\0\0\0\1" + b"\0\3abc" + b"\0\0\0\2" + b"\0\0\0\6\0\0\0\5" + b"\xff" * 4


@given(st.integers(0, len(ASSIGNMENT)), st.binary(max_size=40))
def test_what_any_client_may_have_written(at: int, other: bytes) -> None:
    assert assigned_partitions(ASSIGNMENT) == [("abc", 5), ("abc", 6)]
    assert isinstance(assigned_partitions(ASSIGNMENT[:at] + other), list)
    assert isinstance(subscribed_topics(ASSIGNMENT[:at] + other), list)


def test_what_is_malformed_counts_as_empty() -> None:
    assert assigned_partitions(b"") == assigned_partitions(ASSIGNMENT[:-5]) == []
    assert subscribed_topics(encode_subscription(["a", "b"])) == ["a", "b"]
    assert subscribed_topics(encode_subscription(["a", "b"])[:-5]) == []


def test_ranges_are_those_of_kafka() -> None:
    """RangeAssignorTest: the first members have what is left over."""
    wanted = {"b": ["t", "u"], "a": ["t"], "c": ["t", "missing"]}
    assert assign_ranges(wanted, {"t": 7, "u": 2, "missing": 0}) == {
        "a": {"t": range(3)},
        "b": {"t": range(3, 5), "u": range(2)},
        "c": {"t": range(5, 7)},
    }
