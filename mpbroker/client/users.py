"""SCRAM users of a broker, by DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

import secrets
from typing import Any, Final

from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, FailedPrecondition, InvalidArgument
from mpbroker.config.listeners import parse_listeners, parse_protocol_map
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.security.scram import SALT_BYTES, TYPES, ScramType, salted_password

_LISTENERS: Final = ("listeners", "listener.security.protocol.map")


def mechanism_of(name: str) -> ScramType:
    """Return a SCRAM mechanism by its name, in upper or lower case. Raises InvalidArgument."""
    if (kind := TYPES.get(name.upper())) is None:
        raise InvalidArgument(f"'{name}' is not one of {', '.join(TYPES)}")
    return kind


def upsert(admin: Admin, user: str, kind: ScramType, iterations: int, password: str) -> None:
    """Store a credential, which is sent salted and hashed. Raises ApiFailed, FailedPrecondition."""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(kind, password, salt, iterations)
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        user, kind, iterations, salt, salted
    )
    _alter(admin, m.AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def can_log_in(admin: Admin, user: str, kind: ScramType) -> str:
    """Return "user … can log in with …", with a remark if no listener of the broker uses SASL."""
    nobody_asks = ", but no listener asks for a login" if _serves_without_logins(admin) else ""
    return f"user {user} can log in with {kind.mechanism}{nobody_asks}"


def _serves_without_logins(admin: Admin) -> bool:
    """Return whether no listener of the broker uses SASL; False if the broker does not tell."""
    node = admin.cluster.refresh().brokers[0].node_id
    result = admin.describe_configs(ConfigResourceType.BROKER, str(node), _LISTENERS)
    found = {entry.name: entry.value or "" for entry in result.configs}
    listeners, protocols = (found.get(key, "") for key in _LISTENERS)
    try:
        served = parse_listeners(listeners, parse_protocol_map(protocols), unique_ports=False)
    except ValueError:
        # Another broker may have other values, or hide them from this user.
        return False
    return not any(one.protocol.startswith("SASL") for one in served)


def remove(admin: Admin, user: str, kinds: list[int]) -> None:
    """Delete a user's credentials for these mechanisms. Raises ApiFailed, FailedPrecondition."""
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
    for kind in kinds:
        # A request alters one credential of a user.
        _alter(admin, m.AlterUserScramCredentialsRequest([deletion(user, kind)]))


def listed(admin: Admin) -> list[dict[str, Any]]:
    """Return user, mechanism and iterations of each credential, as dicts. Raises ApiFailed."""
    return [
        {"user": user, "mechanism": ScramType(number).mechanism, "iterations": iterations}
        for user, number, iterations in describe(admin, None)
    ]


def _alter(admin: Admin, request: m.AlterUserScramCredentialsRequest) -> None:
    response: m.AlterUserScramCredentialsResponse = admin.cluster.ask_any(request)
    for result in response.results:
        _raise_failure(result)


def describe(admin: Admin, users: list[str] | None) -> list[tuple[str, int, int]]:
    """Return (user, mechanism, iterations) of each credential. Raises ApiFailed."""
    name = m.DescribeUserScramCredentialsRequest.UserName
    wanted = None if users is None else [name(user) for user in users]
    response: m.DescribeUserScramCredentialsResponse = admin.cluster.ask_any(
        m.DescribeUserScramCredentialsRequest(wanted)
    )
    if response.error_code:
        raise ApiFailed("users", response.error_code, response.error_message)
    for result in response.results:
        _raise_failure(result)
    return [(r.user, one.mechanism, one.iterations) for r in response.results for one in r.credential_infos]


def _raise_failure(
    result: m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    | m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult,
) -> None:
    if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        raise FailedPrecondition(f"user {result.user} does not exist")
    if result.error_code:
        raise ApiFailed(f"user {result.user}", result.error_code, result.error_message)
