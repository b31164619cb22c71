"""DescribeDelegationToken (key 41), versions 1-3: tokens of some principals, or of all, with their HMACs.

A client sees the tokens that it owns, has requested or may renew, and tokens that it has a permission for.
The coordinator returns many tokens in several answers. (Kafka: KafkaApis.handleDescribeTokensRequest,
DelegationTokenManager.filterToken; KIP-48, KIP-373.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.api_parts.token_requests import fields_of, may_ask_for_tokens
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import MEMBERS_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_TOKEN, DESCRIBE_TOKENS
from mpbroker.ipc.calls import DescribedTokens, DescribeTokens, TokenDetails
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode, error_code
from mpbroker.protocol.messages import DescribeDelegationTokenResponse as Response
from mpbroker.security.delegation import token_macs
from mpbroker.security.principals import Principal, principal_of

# Approximate size of a token in a response, without its principals.
TOKEN_BYTES = 160


def is_shown(context: RequestContext, token: TokenDetails) -> bool:
    if context.session.principal in (token.owner, token.requester, *token.renewers):
        return True
    allows = context.broker.authorization.allows
    return allows(context, DESCRIBE_TOKEN, token.token_id, is_logged=False) or allows(
        context, DESCRIBE_TOKENS, token.owner, is_logged=False
    )


def described(token: TokenDetails) -> Response.DescribedDelegationToken:
    renewers = [principal_of(one) for one in token.renewers]
    return Response.DescribedDelegationToken(
        *fields_of(token), [Response.DescribedDelegationTokenRenewer(one.type, one.name) for one in renewers]
    )


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, name="DescribeDelegationToken", elements_max=MEMBERS_MAX)
def handle(context: RequestContext) -> Generator[None, None, Response | None]:
    """Returns the tokens of some owners or of all, as far as the client may see them."""
    if not may_ask_for_tokens(context):
        return Response(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if token_macs(context.broker.config.delegation_token_secret_key) is None:
        return Response(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = context.body.owners
    if owners is not None and not owners:
        return Response()
    names = None if owners is None else [str(Principal(o.principal_name, o.principal_type)) for o in owners]
    # A token that comes again, after a change, counts once.
    found: dict[str, TokenDetails] = {}
    after, are_all = "", False
    while not are_all:
        answer = yield from ask_coordinator(context, DescribeTokens(names, after), DescribedTokens)
        if answer.error:
            raise ApiError(error_code(answer.error))
        for token in answer.tokens:
            if token.token_id in found or not is_shown(context, token):
                continue
            found[token.token_id] = token
            texts = (token.owner, token.requester, *token.renewers)
            if context.exceeds_response_limit(TOKEN_BYTES + sum(map(len, texts))):
                return None
        are_all = answer.are_all
        after = "" if are_all else answer.tokens[-1].token_id
    return Response(tokens=[described(token) for token in found.values()])
