"""DescribeDelegationToken (key 41), versions 1-3: tokens of some principals, or of all, with their HMACs.

A client sees the tokens that it owns, has requested or may renew, and others by permission. The coordinator
gives them in pieces. (Kafka: KafkaApis.handleDescribeTokensRequest, DelegationTokenManager.filterToken;
KIP-48, KIP-373.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.api_parts.token_requests import may_ask_for_tokens
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import MEMBERS_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_TOKEN, DESCRIBE_TOKENS
from mpbroker.ipc.calls import DescribedTokens, DescribeTokens, TokenDetails
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import DescribeDelegationTokenResponse as Response
from mpbroker.security.delegation import token_macs
from mpbroker.security.principals import Principal, principal_of

# About what a token takes in a response, beside its principals.
TOKEN_BYTES = 160


class Description:
    """The tokens that were found for one request. One that comes again, after a change, counts once."""

    def __init__(self, exchange: ApiExchange, owners: list[str] | None) -> None:
        self._exchange = exchange
        self._owners = owners
        self._found: dict[str, TokenDetails] = {}

    def ask(self, after: str = "") -> None:
        ask_coordinator(self._exchange, DescribeTokens(self._owners, after), DescribedTokens, self._answered)

    def _answered(self, answer: DescribedTokens | Unanswered) -> None:
        if isinstance(answer, Unanswered):
            self._exchange.fail(answer.code)
            return
        if answer.error:
            self._exchange.fail(error_code(answer.error))
            return
        for token in answer.tokens:
            if token.token_id in self._found or not self._is_shown(token):
                continue
            self._found[token.token_id] = token
            names = (token.owner, token.requester, *token.renewers)
            if self._exchange.answers_too_much(TOKEN_BYTES + sum(map(len, names))):
                return
        if not answer.are_all:
            self.ask(answer.tokens[-1].token_id)
            return
        self._exchange.reply(Response(tokens=[_described(token) for token in self._found.values()]))

    def _is_shown(self, token: TokenDetails) -> bool:
        exchange = self._exchange
        if exchange.session.principal in (token.owner, token.requester, *token.renewers):
            return True
        allows = exchange.broker.authorization.allows
        return allows(exchange, DESCRIBE_TOKEN, token.token_id, is_told=False) or allows(
            exchange, DESCRIBE_TOKENS, token.owner, is_told=False
        )


def _described(token: TokenDetails) -> Response.DescribedDelegationToken:
    owner, requester = principal_of(token.owner), principal_of(token.requester)
    renewers = [principal_of(one) for one in token.renewers]
    return Response.DescribedDelegationToken(
        owner.type,
        owner.name,
        requester.type,
        requester.name,
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.token_id,
        token.hmac,
        [Response.DescribedDelegationTokenRenewer(one.type, one.name) for one in renewers],
    )


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, name="DescribeDelegationToken", elements_max=MEMBERS_MAX)
def handle(exchange: ApiExchange) -> Response | None:
    """Tokens of some owners or of all, as far as the client may see them."""
    if not may_ask_for_tokens(exchange):
        return Response(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if token_macs(exchange.broker.config.delegation_token_secret_key) is None:
        return Response(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = exchange.body.owners
    if owners is not None and not owners:
        return Response()
    names = None if owners is None else [str(Principal(o.principal_name, o.principal_type)) for o in owners]
    Description(exchange, names).ask()
    return None
