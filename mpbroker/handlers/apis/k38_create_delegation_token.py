"""CreateDelegationToken (key 38), versions 1-3: makes a token with which clients log in as its owner.

The response comes when the token is durable and every processor knows it. Owners and renewers must be users.
Kafka accepts owners of other types, but a client with their token logs in as a user. (Kafka:
KafkaApis.handleCreateTokenRequest, DelegationTokenControlManager; KIP-48, KIP-373.)
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.api_parts.token_requests import NO_TIME_MS, fields_of, may_ask_for_tokens
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.permissions import CREATE_TOKENS
from mpbroker.ipc.calls import CreatedToken, CreateToken
from mpbroker.ipc.session import PRINCIPAL_BYTES_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode, error_code
from mpbroker.protocol.messages import CreateDelegationTokenResponse as Response
from mpbroker.security.principals import USER, Principal, principal_of, why_nobody

log = logging.getLogger("mpbroker.handlers")


def failed(context: RequestContext, code: ErrorCode) -> Response:
    owner, requester = owner_of(context), principal_of(context.session.principal)
    principals = owner.type, owner.name, requester.type, requester.name
    return Response(code, *principals, NO_TIME_MS, NO_TIME_MS, NO_TIME_MS)


def owner_of(context: RequestContext) -> Principal:
    """Return the owner that the request names, or else the client's own principal."""
    body = context.body
    if not body.owner_principal_name:
        return principal_of(context.session.principal)
    return Principal(body.owner_principal_name, body.owner_principal_type or "")


def refusal(context: RequestContext, owner: Principal) -> ErrorCode | None:
    """Return the error if the client may not create the requested token, else None."""
    if not may_ask_for_tokens(context):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if str(owner) != context.session.principal and not context.allows(CREATE_TOKENS, str(owner)):
        return CREATE_TOKENS.denied
    renewers = [Principal(one.principal_name, one.principal_type) for one in context.body.renewers]
    if any(one.type != USER for one in (owner, *renewers)):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    for one in (owner, *renewers):
        # No user could log in, or renew it, by such a name.
        if why_nobody(one.name) or len(str(one).encode()) > PRINCIPAL_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
    return None


@api(
    ApiKey.CREATE_DELEGATION_TOKEN,
    1,
    3,
    name="CreateDelegationToken",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, Response]:
    """Creates a token with which a client logs in as the token's owner."""
    body, owner = context.body, owner_of(context)
    if (code := refusal(context, owner)) is not None:
        return failed(context, code)
    renewers = [str(Principal(one.principal_name, one.principal_type)) for one in body.renewers]
    call = CreateToken(str(owner), context.session.principal, renewers, body.max_lifetime_ms)
    answer = yield from ask_coordinator(context, call, CreatedToken)
    if (token := answer.token) is None:
        raise ApiError(error_code(answer.error))
    log.info("%s has created delegation token %s of %s", token.requester, token.token_id, token.owner)
    return Response(ErrorCode.NONE, *fields_of(token))
