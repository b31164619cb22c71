"""`mpbroker token`: delegation tokens, by the four APIs that are about them (KIP-48).

A token is named by its id. Requests name it by its HMAC, which is a password: it is asked of the broker, and
shown once, when the token is made. Never is it on a command line, which everybody on the host can read.
"""

from __future__ import annotations

import base64
from typing import Final

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.output import print_json, print_rows, say
from mpbroker.client.errors import ApiFailed
from mpbroker.client.times import LAST_MS, format_time
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.security.principals import USER

OWNER: Final = "--owner-principal"
RENEWER: Final = "--renewer-principal"
# Periods with a meaning: as long as the broker allows, and at once.
BROKERS_MS: Final = -1
NOW_MS: Final = -1
HINTS: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the broker has no delegation tokens: set "
    "delegation.token.secret.key there",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "a connection may not ask for tokens if it has not "
    "logged in, or has by a token: name a listener with TLS or SASL, and with --command-config who you are",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "that needs the permission CreateTokens on its owner",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may do that",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "it has expired: create another one",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "owner and renewers are users: User:NAME",
    ErrorCode.POLICY_VIOLATION: "there are too many tokens, of this owner or of all: expire some first",
}


def principal(text: str, flag: str) -> tuple[str, str]:
    """Split `User:NAME`. Raises CliError."""
    kind, colon, name = text.partition(":")
    if kind != USER or not colon or not name:
        raise CliError(f"{flag} {text!r} is not {USER}:NAME", USAGE_ERROR)
    return kind, name


def create(
    where: ClusterAddress, owner: str | None, renewers: list[str], lifetime_ms: int | None, *, as_json: bool
) -> None:
    """Create a token and print it."""
    owner_type, owner_name = principal(owner, OWNER) if owner is not None else ("", "")
    renewer = m.CreateDelegationTokenRequest.CreatableRenewers
    request = m.CreateDelegationTokenRequest(
        owner_type,
        owner_name,
        [renewer(*principal(one, RENEWER)) for one in renewers],
        BROKERS_MS if lifetime_ms is None else lifetime_ms,
    )
    with open_admin(where) as client:
        made: m.CreateDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure("token", made.error_code)
    row = {
        "token_id": made.token_id,
        "hmac": base64.b64encode(made.hmac).decode(),
        "owner": f"{made.principal_type}:{made.principal_name}",
        "expires": _time(made.expiry_timestamp_ms),
        "renewable_until": _time(made.max_timestamp_ms),
    }
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        print(f"{name}: {value}")
    print(
        "Clients log in with SCRAM by sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="<token_id>" password="<hmac>" tokenauth="true";'
    )


def show_list(where: ClusterAddress, owners: list[str] | None, *, as_json: bool) -> None:
    """Print tokens, but not their HMACs."""
    rows = [
        {
            "token_id": token.token_id,
            "owner": f"{token.principal_type}:{token.principal_name}",
            "requester": f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            "renewers": ",".join(f"{one.principal_type}:{one.principal_name}" for one in token.renewers),
            "issued": _time(token.issue_timestamp),
            "expires": _time(token.expiry_timestamp),
            "renewable_until": _time(token.max_timestamp),
        }
        for token in _described(where, owners)
    ]
    print_rows(rows, as_json=as_json, nothing="no tokens")


def renew(where: ClusterAddress, token_id: str, period_ms: int | None, *, as_json: bool) -> None:
    """Move a token's expiry."""
    mac = _hmac_of(where, token_id)
    request = m.RenewDelegationTokenRequest(mac, BROKERS_MS if period_ms is None else period_ms)
    with open_admin(where) as client:
        done: m.RenewDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure(f"token {token_id}", done.error_code)
    expires = _time(done.expiry_timestamp_ms)
    say(f"token {token_id} expires {expires}", {"token_id": token_id, "expires": expires}, as_json=as_json)


def expire(where: ClusterAddress, token_id: str, period_ms: int | None, *, as_json: bool) -> None:
    """Remove a token, or have it expire later."""
    mac = _hmac_of(where, token_id)
    request = m.ExpireDelegationTokenRequest(mac, NOW_MS if period_ms is None else period_ms)
    with open_admin(where) as client:
        done: m.ExpireDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure(f"token {token_id}", done.error_code)
    expires = None if period_ms is None else _time(done.expiry_timestamp_ms)
    text = f"token {token_id} {'is removed' if expires is None else f'expires {expires}'}"
    say(text, {"token_id": token_id, "expires": expires}, as_json=as_json)


def _described(
    where: ClusterAddress, owners: list[str] | None
) -> list[m.DescribeDelegationTokenResponse.DescribedDelegationToken]:
    owner = m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = None if owners is None else [owner(*principal(one, OWNER)) for one in owners]
    with open_admin(where) as client:
        found: m.DescribeDelegationTokenResponse = client.cluster.ask_any(
            m.DescribeDelegationTokenRequest(named)
        )
    _raise_failure("tokens", found.error_code)
    return found.tokens


def _hmac_of(where: ClusterAddress, token_id: str) -> bytes:
    """Return the HMAC of a token that this user may see. Raises CliError if there is none."""
    for token in _described(where, None):
        if token.token_id == token_id:
            return token.hmac
    raise CliError(f"token {token_id}: there is no such token that you may see; see mpbroker token list")


def _raise_failure(what: str, code: int) -> None:
    if code in HINTS:
        raise CliError(f"{what}: {HINTS[error_code(code)]}")
    if code:
        raise ApiFailed(what, code)


def _time(at_ms: int) -> str:
    return "never" if at_ms > LAST_MS else format_time(at_ms)
