"""Creations, renewals and expiries of delegation tokens.

(Kafka: DelegationTokenControlManager; KIP-48, KIP-373, KIP-900.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import dropwhile, islice
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.integers import LONG_MAX
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DelegationTokenRecord, RemoveDelegationTokenRecord
from mpbroker.security.delegation import Token, TokenMacs

TokenTable: TypeAlias = dict[str, Token]
"""All tokens by their ids, in the order of their creation."""
TokenRecord: TypeAlias = DelegationTokenRecord | RemoveDelegationTokenRecord

# These bounds are ours; Kafka has none, and every client that is authenticated may create tokens for itself.
TOKENS_BYTES_MAX: Final = 8 << 20
REQUESTER_BYTES_MAX: Final = 2 << 20
OWNER_BYTES_MAX: Final = 512 << 10
REMOVED_AT_ONCE: Final = 1000
"""The most expired tokens that are removed at once (Kafka: MAX_RECORDS_PER_EXPIRATION)."""
DESCRIBED_BYTES: Final = 256 << 10
"""The size in bytes at which an answer to DescribeTokens ends; the rest needs another call."""


def token_in(record: DelegationTokenRecord) -> Token:
    return Token(
        record.token_id,
        record.owner,
        record.requester,
        tuple(record.renewers),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )


def _record(token: Token) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        token.owner,
        token.requester,
        list(token.renewers),
        token.issued_ms,
        token.max_ms,
        token.expires_ms,
        token.token_id,
    )


def details(token: Token, mac: bytes) -> calls.TokenDetails:
    return calls.TokenDetails(
        token.token_id,
        token.owner,
        token.requester,
        list(token.renewers),
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        mac,
    )


def create(
    tokens: TokenTable,
    call: calls.CreateToken,
    macs: TokenMacs | None,
    token_id: str,
    now_ms: int,
    config: BrokerConfig,
) -> tuple[calls.CreatedToken, list[TokenRecord]]:
    """Return the answer to a creation, and the record to write, if any. Changes nothing."""
    if macs is None:
        return calls.CreatedToken(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED), []
    life_ms = config.delegation_token_max_lifetime_ms
    if call.max_lifetime_ms > 0:
        life_ms = min(life_ms, call.max_lifetime_ms)
    max_ms = min(LONG_MAX, now_ms + life_ms)
    expires_ms = min(max_ms, now_ms + config.delegation_token_expiry_time_ms)
    token = Token(token_id, call.owner, call.requester, tuple(call.renewers), now_ms, max_ms, expires_ms)
    if not _has_room(tokens, token):
        return calls.CreatedToken(ErrorCode.POLICY_VIOLATION), []
    return calls.CreatedToken(token=details(token, macs.of(token_id))), [_record(token)]


def _has_room(tokens: TokenTable, new: Token) -> bool:
    everybody, requester, owner = TOKENS_BYTES_MAX, REQUESTER_BYTES_MAX, OWNER_BYTES_MAX
    for token in (*tokens.values(), new):
        size = token.size_bytes
        everybody -= size
        requester -= size if token.requester == new.requester else 0
        owner -= size if token.owner == new.owner else 0
    return min(everybody, requester, owner) >= 0


def change(
    tokens: TokenTable, call: calls.ChangeToken, macs: TokenMacs | None, now_ms: int, config: BrokerConfig
) -> tuple[calls.ChangedToken, list[TokenRecord]]:
    """Return the answer to a renewal or an expiry, and the record to write, if any. Changes nothing."""
    if macs is None:
        return calls.ChangedToken(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED), []
    token = macs.find(call.hmac, tokens)
    if token is None:
        return calls.ChangedToken(ErrorCode.DELEGATION_TOKEN_NOT_FOUND), []
    # Kafka answers any renewal with the right HMAC that the token has expired.
    if not call.expires and token.has_expired(now_ms):
        return calls.ChangedToken(ErrorCode.DELEGATION_TOKEN_EXPIRED), []
    if not token.may_be_renewed_by(call.requester):
        return calls.ChangedToken(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH), []
    if call.expires and call.period_ms < 0:
        removal = RemoveDelegationTokenRecord(token.token_id)
        return calls.ChangedToken(expires_ms=now_ms, token_id=token.token_id), [removal]
    if token.has_expired(now_ms):
        return calls.ChangedToken(ErrorCode.DELEGATION_TOKEN_EXPIRED), []
    period_ms = call.period_ms
    if not call.expires:
        longest_ms = config.delegation_token_expiry_time_ms
        period_ms = min(longest_ms, period_ms) if period_ms > 0 else longest_ms
    renewed = replace(token, expires_ms=min(token.max_ms, now_ms + period_ms))
    return calls.ChangedToken(expires_ms=renewed.expires_ms, token_id=token.token_id), [_record(renewed)]


def expired(tokens: TokenTable, now_ms: int) -> list[RemoveDelegationTokenRecord]:
    """Return the records that remove expired tokens, at most REMOVED_AT_ONCE."""
    ids = (token.token_id for token in tokens.values() if token.has_expired(now_ms))
    return [RemoveDelegationTokenRecord(token_id) for token_id in islice(ids, REMOVED_AT_ONCE)]


def describe(tokens: TokenTable, call: calls.DescribeTokens, macs: TokenMacs | None) -> calls.DescribedTokens:
    """Return the tokens that have an owner, requester or renewer in `call.owners` (None: all tokens).

    Begin after the token with the id `call.after`. Return as many as fit into one answer.
    """
    if macs is None:
        return calls.DescribedTokens(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None if call.owners is None else frozenset(call.owners)
    found: list[calls.TokenDetails] = []
    left = DESCRIBED_BYTES
    for token in _from(tokens, call.after):
        if owners is not None and not token.concerns_any_of(owners):
            continue
        if left <= 0:
            return calls.DescribedTokens(tokens=found, are_all=False)
        left -= token.size_bytes
        found.append(details(token, macs.of(token.token_id)))
    return calls.DescribedTokens(tokens=found)


def _from(tokens: TokenTable, after: str) -> Iterator[Token]:
    """Iterate over the tokens after the token with id `after`; over all if no token has that id."""
    if after not in tokens:
        return iter(tokens.values())
    return islice(dropwhile(lambda token: token.token_id != after, tokens.values()), 1, None)
