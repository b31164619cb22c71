"""`mpbroker user`: SCRAM users of a broker, by DescribeUserScramCredentials and AlterUserScramCredentials.

A password comes from a prompt, standard input or a file, never from the command line, which everybody on the
host can read. It is sent salted and hashed (KIP-554).
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_rows, say
from mpbroker.client.users import can_log_in, describe, listed, mechanism_of, remove, upsert
from mpbroker.security.scram import ScramType

STDIN = Path("-")


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
    with open_admin(where) as client:
        upsert(client, user, kind, iterations, password)
        said = can_log_in(client, user, kind)
    document = {"user": user, "mechanism": kind.mechanism, "iterations": iterations}
    say(said, document, as_json=as_json)


def delete(where: ClusterAddress, user: str, mechanism: str | None, *, is_sure: bool, as_json: bool) -> None:
    """Remove a user's credential for one mechanism, or all of them."""
    with open_admin(where) as client:
        if mechanism is not None:
            kinds = [int(mechanism_of(mechanism))]
        else:
            kinds = [number for _, number, _ in describe(client, [user])]
        confirm(f"delete the credentials of user {user}?", is_sure=is_sure)
        remove(client, user, kinds)
    mechanisms = [ScramType(kind).mechanism for kind in kinds]
    document = {"user": user, "mechanisms": mechanisms}
    say(f"deleted {', '.join(mechanisms)} of user {user}", document, as_json=as_json)


def show_list(where: ClusterAddress, *, as_json: bool) -> None:
    """Print all users with SCRAM credentials."""
    with open_admin(where) as client:
        rows = listed(client)
    print_rows(rows, as_json=as_json, nothing="no users")
