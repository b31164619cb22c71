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
