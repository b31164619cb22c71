"""The status of each failure."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.client import errors
from mpbroker.console.broker_listener import NoListener
from mpbroker.console.queries import BadQuery
from mpbroker.console.statuses import FAILURES, status_of
from mpbroker.console.workers import Busy
from mpbroker.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 404),
        (ErrorCode.GROUP_ID_NOT_FOUND, 404),
        (ErrorCode.TOPIC_ALREADY_EXISTS, 409),
        (ErrorCode.NON_EMPTY_GROUP, 409),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 403),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, 403),
        (ErrorCode.INVALID_CONFIG, 400),
        (ErrorCode.INVALID_PARTITIONS, 400),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 503),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 500),
    ],
)
def test_what_the_broker_answers(code: ErrorCode, status: int) -> None:
    assert status_of(errors.ApiFailed("topic t", code.value)) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadQuery("topic is missing"), 400),
        (msgspec.ValidationError("no such field"), 400),
        (errors.InvalidArgument("-p is a number"), 400),
        (errors.FailedPrecondition("group g is active"), 409),
        (Busy("try again"), 503),
        (NoListener("every listener asks for a login"), 503),
        (errors.ClientConfigError("no such file"), 503),
        (errors.AuthenticationFailed("wrong password"), 403),
        (errors.UnsupportedByBroker("no such API"), 501),
        (errors.ConnectionLost("it is gone"), 502),
        (errors.RequestTimedOut("it does not answer"), 502),
    ],
)
def test_other_failures(error: Exception, status: int) -> None:
    assert isinstance(error, FAILURES)
    assert status_of(error) == status
