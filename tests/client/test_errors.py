"""Errors: which are retriable, and which say that the call is wrong."""

from __future__ import annotations

import pytest

from mpbroker.client.errors import (
    ApiFailed,
    AuthenticationFailed,
    ClientConfigError,
    ClientError,
    ConnectionLost,
    FailedPrecondition,
    InvalidArgument,
    RequestTimedOut,
    UnsupportedByBroker,
    raise_all,
)
from mpbroker.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (ConnectionLost("gone"), True),
        (RequestTimedOut("late"), True),
        (ApiFailed("t-0", ErrorCode.NOT_LEADER_OR_FOLLOWER), True),
        (ApiFailed("t-0", ErrorCode.TOPIC_AUTHORIZATION_FAILED), False),
        (ApiFailed("t-0", 12345), False),
        (AuthenticationFailed("no"), False),
        (ClientConfigError("no"), False),
        (UnsupportedByBroker("no"), False),
    ],
)
def test_which_errors_pass(error: ClientError, retriable: bool) -> None:
    assert error.retriable == retriable


@pytest.mark.parametrize(
    ("what", "told", "text"),
    [
        ("topic orders", "Topic 'orders' already exists.", "Topic 'orders' already exists"),
        ("topic orders", "The topic orders is being deleted", "The topic orders is being deleted"),
        ("topic a b", "Topic name is invalid: 'a b' contains", "Topic name is invalid: 'a b' contains"),
        ("users", "users are '' or so", "users: users are '' or so"),
        ("topic orders", "no such thing", "topic orders: no such thing"),
        ("topic t", "it is too long", "topic t: it is too long"),
        ("topic a", "Topic 'a.b' collides", "topic a: Topic 'a.b' collides"),
        ("partition t-1", "partition t-10 is offline", "partition t-1: partition t-10 is offline"),
        ("partition t-1", "partition t-1 is offline", "partition t-1 is offline"),
        ("topic a+b", None, "topic a+b: Topic with this name already exists"),
    ],
)
def test_a_name_is_said_once(what: str, told: str | None, text: str) -> None:
    assert str(ApiFailed(what, ErrorCode.TOPIC_ALREADY_EXISTS, told)) == f"{text} (TOPIC_ALREADY_EXISTS)"


BUSY = FailedPrecondition("group g is active")
WRONG = InvalidArgument("no partition 7")
DENIED = ApiFailed("topic t", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
INVALID = ApiFailed("topic t", ErrorCode.INVALID_PARTITIONS)


def test_which_calls_are_wrong() -> None:
    wrong = [one for one in (BUSY, WRONG, DENIED, INVALID, ClientConfigError("no")) if one.is_wrong_call]
    assert [type(one) for one in wrong] == [InvalidArgument, ApiFailed, ClientConfigError]


@pytest.mark.parametrize(
    ("failed", "kind", "text"),
    [
        ([DENIED], ApiFailed, str(DENIED)),
        ([WRONG, INVALID], InvalidArgument, f"{WRONG}\n{INVALID}"),
        ([WRONG, BUSY], FailedPrecondition, f"{WRONG}\n{BUSY}"),
    ],
)
def test_one_error_keeps_its_kind_and_several_are_one(
    failed: list[ClientError], kind: type[ClientError], text: str
) -> None:
    raise_all([])
    with pytest.raises(kind) as caught:
        raise_all(failed)
    assert (type(caught.value), str(caught.value)) == (kind, text)
