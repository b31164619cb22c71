"""`mpbroker token`: delegation tokens (KIP-48).

Commands name a token by its id. Requests need the token's HMAC, which the commands get from the broker. The
HMAC is a password, so it is printed only when a token is created. It is never an argument, since all users of
the host can read arguments.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress, Json, option
from mpbroker.cli.text.numbers import LONG
from mpbroker.cli.text.output import print_json, print_rows, say
from mpbroker.client.errors import ApiFailed
from mpbroker.client.times import LAST_MS, format_time
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.security.principals import USER

token_app = App(no_args_is_help=True)
OWNER: Final = "--owner-principal"
RENEWER: Final = "--renewer-principal"
# Periods with a meaning: as long as the broker allows, and at once.
BROKERS_MS: Final = -1
NOW_MS: Final = -1
HINTS: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the broker has no delegation tokens: set "
    "delegation.token.secret.key there",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "a connection without a login, or with one by a token, "
    "may not ask for tokens: name a listener with TLS or SASL, and a user with --command-config",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "that needs the permission CreateTokens on its owner",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may do that",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "it has expired: create another one",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "owner and renewers are users: User:NAME",
    ErrorCode.POLICY_VIOLATION: "there are too many tokens, of this owner or of all: expire some first",
}
TokenId = Annotated[str, typer.Argument(metavar="TOKEN-ID", hidden=True)]


@token_app.command("create")
def token_create(
    owner: Annotated[str | None, option(OWNER, "User:NAME", "Default: the user of this command.")] = None,
    renewer: Annotated[
        list[str] | None, option(RENEWER, "User:NAME", "May renew and expire it, too; repeatable.")
    ] = None,
    max_life_time_period: Annotated[
        int | None,
        option(
            "--max-life-time-period",
            "MS",
            "However often it is renewed; default: the broker's delegation.token.max.lifetime.ms.",
            min=1,
            callback=LONG,
        ),
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Create a token and print it, with the HMAC that is its password."""
    renewing = m.CreateDelegationTokenRequest.CreatableRenewers
    request = m.CreateDelegationTokenRequest(
        *(_principal(owner, OWNER) if owner is not None else ("", "")),
        [renewing(*_principal(one, RENEWER)) for one in renewer or []],
        BROKERS_MS if max_life_time_period is None else max_life_time_period,
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
    if json:
        print_json(row)
        return
    for name, value in row.items():
        print(f"{name}: {value}")
    print(
        "Clients log in with SCRAM by sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="<token_id>" password="<hmac>" tokenauth="true";'
    )


@token_app.command("list")
def token_list(
    owner: Annotated[
        list[str] | None, option(OWNER, "User:NAME", "Only what it owns, created or may renew; repeatable.")
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """List the tokens that you may see, without their HMACs."""
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
        for token in _described(where, owner)
    ]
    print_rows(rows, as_json=json, nothing="no tokens")


@token_app.command("renew")
def token_renew(
    token_id: TokenId,
    renew_time_period: Annotated[
        int | None,
        option(
            "--renew-time-period",
            "MS",
            "From now on; default: the broker's delegation.token.expiry.time.ms.",
            min=1,
            callback=LONG,
        ),
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Let a token live longer."""
    period_ms = BROKERS_MS if renew_time_period is None else renew_time_period
    request = m.RenewDelegationTokenRequest(_hmac_of(where, token_id), period_ms)
    with open_admin(where) as client:
        done: m.RenewDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure(f"token {token_id}", done.error_code)
    expires = _time(done.expiry_timestamp_ms)
    say(f"token {token_id} expires {expires}", {"token_id": token_id, "expires": expires}, as_json=json)


@token_app.command("expire")
def token_expire(
    token_id: TokenId,
    expiry_time_period: Annotated[
        int | None, option("--expiry-time-period", "MS", "From now on; default: now.", min=0, callback=LONG)
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Remove a token, or have it expire soon."""
    period_ms = NOW_MS if expiry_time_period is None else expiry_time_period
    request = m.ExpireDelegationTokenRequest(_hmac_of(where, token_id), period_ms)
    with open_admin(where) as client:
        done: m.ExpireDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure(f"token {token_id}", done.error_code)
    expires = None if expiry_time_period is None else _time(done.expiry_timestamp_ms)
    text = f"token {token_id} {'is removed' if expires is None else f'expires {expires}'}"
    say(text, {"token_id": token_id, "expires": expires}, as_json=json)


def _principal(text: str, flag: str) -> tuple[str, str]:
    """Split `User:NAME` into type and name. Raises CliError, which names `flag`."""
    kind, colon, name = text.partition(":")
    if kind != USER or not colon or not name:
        raise CliError(f"{flag} {text!r} is not {USER}:NAME", USAGE_ERROR)
    return kind, name


def _described(
    where: ClusterAddress, owners: list[str] | None
) -> list[m.DescribeDelegationTokenResponse.DescribedDelegationToken]:
    owner = m.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = None if owners is None else [owner(*_principal(one, OWNER)) for one in owners]
    request = m.DescribeDelegationTokenRequest(named)
    with open_admin(where) as client:
        found: m.DescribeDelegationTokenResponse = client.cluster.ask_any(request)
    _raise_failure("tokens", found.error_code)
    return found.tokens


def _hmac_of(where: ClusterAddress, token_id: str) -> bytes:
    """Return the HMAC of a token that this user may see. Raises CliError."""
    for token in _described(where, None):
        if token.token_id == token_id:
            return token.hmac
    raise CliError(f"token {token_id} does not exist, or you may not see it; see mpbroker token list")


def _raise_failure(what: str, code: int) -> None:
    if code in HINTS:
        raise CliError(f"{what}: {HINTS[error_code(code)]}")
    if code:
        raise ApiFailed(what, code)


def _time(at_ms: int) -> str:
    return "never" if at_ms > LAST_MS else format_time(at_ms)
