"""What may help when it is asked again."""

from __future__ import annotations

import pytest

from mpbroker.client.errors import (
    ApiFailed,
    AuthenticationFailed,
    ClientError,
    ConfigError,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
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
        (ConfigError("no"), False),
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
