"""The HTTP status for each kind of failure of a request.

The status is 502 only if the broker sends no valid response.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from mpbroker.client.errors import (
    ApiFailed,
    AuthenticationFailed,
    ClientConfigError,
    ClientError,
    FailedPrecondition,
    InvalidArgument,
    UnsupportedByBroker,
)
from mpbroker.console.broker_listener import NoListener
from mpbroker.console.queries import BadQuery
from mpbroker.console.workers import Busy
from mpbroker.protocol.errors import ErrorCode

# The failures of requests of the page.
FAILURES: Final = (BadQuery, msgspec.MsgspecError, Busy, ClientError, NoListener)
_NOT_THERE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)
_CONFLICTS: Final = frozenset(
    {
        *(ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
        *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS),
        *(ErrorCode.REASSIGNMENT_IN_PROGRESS, ErrorCode.TOPIC_DELETION_DISABLED),
    }
)


def status_of(error: Exception) -> HTTPStatus:
    """Return the HTTP status for an error of a type in FAILURES."""
    match error:
        case ApiFailed():
            return _of_code(error)
        case Busy() | NoListener() | ClientConfigError():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case BadQuery() | msgspec.MsgspecError() | InvalidArgument():
            return HTTPStatus.BAD_REQUEST
        case FailedPrecondition():
            return HTTPStatus.CONFLICT
        case AuthenticationFailed():
            return HTTPStatus.FORBIDDEN
        case UnsupportedByBroker():
            return HTTPStatus.NOT_IMPLEMENTED
        case _:
            return HTTPStatus.BAD_GATEWAY


def _of_code(error: ApiFailed) -> HTTPStatus:
    if error.code in _NOT_THERE:
        return HTTPStatus.NOT_FOUND
    if error.code in _CONFLICTS:
        return HTTPStatus.CONFLICT
    if error.code.name.endswith("AUTHORIZATION_FAILED"):
        return HTTPStatus.FORBIDDEN
    if error.is_wrong_call:
        return HTTPStatus.BAD_REQUEST
    # The broker has answered: it is not ready for this, or has failed.
    return HTTPStatus.SERVICE_UNAVAILABLE if error.retriable else HTTPStatus.INTERNAL_SERVER_ERROR
