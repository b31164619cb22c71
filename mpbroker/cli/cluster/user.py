"""`mpbroker user`: SCRAM users of a broker, by DescribeUserScramCredentials and AlterUserScramCredentials.

A password comes from a prompt, standard input or a file, never from the command line, which everybody on the
host can read. It is sent salted and hashed (KIP-554).
"""

from __future__ import annotations

import getpass
import secrets
import sys
from pathlib import Path
from typing import Any

from mpbroker.cli.cluster.client import Client
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_rows, say
from mpbroker.client.errors import ApiFailed
from mpbroker.config.listeners import parse_listeners, parse_protocol_map
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ResourceType
from mpbroker.security.scram import SALT_BYTES, TYPES, ScramType, salted_password

STDIN = Path("-")
_LISTENERS = ("listeners", "listener.security.protocol.map")


def mechanism_of(name: str) -> ScramType:
    if (kind := TYPES.get(name.upper())) is None:
        raise CliError(f"'{name}' is not one of {', '.join(TYPES)}", USAGE_ERROR)
    return kind


def read_password(user: str, source: Path | None) -> str:
    """Return the first line of a file or of standard input ("-"), or ask twice on a terminal.

    Raises CliError.
    """
    if source is None:
        if not sys.stdin.isatty():
            raise CliError("there is no terminal to ask for the password: use --password-file", USAGE_ERROR)
        password = getpass.getpass(f"Password for {user}: ")
        if password != getpass.getpass("Confirm password: "):
            raise CliError("the two passwords differ", USAGE_ERROR)
    else:
        try:
            text = sys.stdin.read() if source == STDIN else source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is not UTF-8 text"
            raise CliError(f"--password-file {source}: {why}", USAGE_ERROR) from error
        password = text.split("\n", 1)[0].removesuffix("\r")
    if not password:
        raise CliError("the password is empty", USAGE_ERROR)
    return password


def add(
    where: ClusterAddress, user: str, mechanism: str, iterations: int, source: Path | None, *, as_json: bool
) -> None:
    """Set a user's password for one mechanism, whether there is one already or not."""
    kind = mechanism_of(mechanism)
    password = read_password(user, source)
    with Client(where) as client:
        upsert(client, user, kind, iterations, password)
        said = can_log_in(client, user, kind)
    document = {"user": user, "mechanism": kind.mechanism, "iterations": iterations}
    say(said, document, as_json=as_json)


def upsert(client: Client, user: str, kind: ScramType, iterations: int, password: str) -> None:
    """Have the broker keep a credential, which it gets salted and hashed. Raises ApiFailed, CliError."""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(kind, password, salt, iterations)
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        user, kind, iterations, salt, salted
    )
    _alter(client, m.AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def can_log_in(client: Client, user: str, kind: ScramType) -> str:
    """Say that a user can log in, and if so that no listener asks for a login."""
    nobody_asks = ", but no listener asks for a login" if _serves_without_logins(client) else ""
    return f"user {user} can log in with {kind.mechanism}{nobody_asks}"


def _serves_without_logins(client: Client) -> bool:
    """Return whether no listener of the broker has SASL; False also if it does not say."""
    node = client.cluster.refresh(m.MetadataRequest(topics=[])).brokers[0].node_id
    asked = m.DescribeConfigsRequest.DescribeConfigsResource(ResourceType.BROKER, str(node), list(_LISTENERS))
    response: m.DescribeConfigsResponse = client.cluster.ask(node, m.DescribeConfigsRequest([asked]))
    found = {entry.name: entry.value or "" for result in response.results for entry in result.configs}
    listeners, protocols = (found.get(key, "") for key in _LISTENERS)
    try:
        served = parse_listeners(listeners, parse_protocol_map(protocols), unique_ports=False)
    except ValueError:
        # What other brokers take, or a user who may not see it.
        return False
    return not any(one.protocol.startswith("SASL") for one in served)


def remove(client: Client, user: str, kinds: list[int]) -> None:
    """Have the broker forget credentials. Raises ApiFailed, CliError."""
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion
    for kind in kinds:
        # A request alters one credential of a user.
        _alter(client, m.AlterUserScramCredentialsRequest([deletion(user, kind)]))


def delete(where: ClusterAddress, user: str, mechanism: str | None, *, is_sure: bool, as_json: bool) -> None:
    """Remove a user's credential for one mechanism, or all of them."""
    with Client(where) as client:
        if mechanism is not None:
            kinds = [int(mechanism_of(mechanism))]
        else:
            kinds = [number for _, number, _ in _described(client, [user])]
        confirm(f"delete the credentials of user {user}?", is_sure=is_sure)
        remove(client, user, kinds)
    mechanisms = [ScramType(kind).mechanism for kind in kinds]
    document = {"user": user, "mechanisms": mechanisms}
    say(f"deleted {', '.join(mechanisms)} of user {user}", document, as_json=as_json)


def show_list(where: ClusterAddress, *, as_json: bool) -> None:
    """Print all users with SCRAM credentials."""
    with Client(where) as client:
        rows = listed(client)
    print_rows(rows, as_json=as_json, nothing="no users")


def listed(client: Client) -> list[dict[str, Any]]:
    """Return a row for each credential. Raises ApiFailed."""
    return [
        {"user": user, "mechanism": ScramType(number).mechanism, "iterations": iterations}
        for user, number, iterations in _described(client, None)
    ]


def _alter(client: Client, request: m.AlterUserScramCredentialsRequest) -> None:
    response: m.AlterUserScramCredentialsResponse = client.cluster.ask_any(request)
    for result in response.results:
        _raise_failure(result)


def _described(client: Client, users: list[str] | None) -> list[tuple[str, int, int]]:
    """Return (user, mechanism, iterations) of each credential. Raises ApiFailed."""
    name = m.DescribeUserScramCredentialsRequest.UserName
    wanted = None if users is None else [name(user) for user in users]
    response: m.DescribeUserScramCredentialsResponse = client.cluster.ask_any(
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
        raise CliError(f"user {result.user}: there is no such user; see mpbroker user list")
    if result.error_code:
        raise ApiFailed(f"user {result.user}", result.error_code, result.error_message)
