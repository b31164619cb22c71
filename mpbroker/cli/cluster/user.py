"""`mpbroker user`: SCRAM users of a broker, by DescribeUserScramCredentials and AlterUserScramCredentials.

A password comes from a prompt, standard input or a file, never from the command line, which everybody on the
host can read. The password is sent salted and hashed (KIP-554).
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress, Json, UserName, Yes, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_rows, say
from mpbroker.client.users import can_log_in, describe, listed, mechanism_of, remove, upsert
from mpbroker.security.scram import ScramType

user_app = App(no_args_is_help=True)
STDIN = Path("-")


@user_app.command("add")
def user_add(
    name: UserName,
    mechanism: Annotated[
        str, option("--mechanism", "NAME", "SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = "SCRAM-SHA-512",
    iterations: Annotated[
        int,
        option("--iterations", "N", "Iterations of PBKDF2 for the SCRAM credential.", min=4096, max=16384),
    ] = 8192,
    password_file: Annotated[
        Path | None,
        option(
            "--password-file", "FILE", "Its first line is the password; - is standard input.", readable=False
        ),
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Set a user's password; asks for it unless a file has it."""
    kind = mechanism_of(mechanism)
    password = read_password(name, password_file)
    with open_admin(where) as client:
        upsert(client, name, kind, iterations, password)
        text = can_log_in(client, name, kind)
    document = {"user": name, "mechanism": kind.mechanism, "iterations": iterations}
    say(text, document, as_json=json)


@user_app.command("list")
def user_list(*, where: ClusterAddress, json: Json = False) -> None:
    """List users and their mechanisms."""
    with open_admin(where) as client:
        rows = listed(client)
    print_rows(rows, as_json=json, nothing="no users")


@user_app.command("delete")
def user_delete(
    name: UserName,
    mechanism: Annotated[str | None, option("--mechanism", "NAME", "Only this one; default: all.")] = None,
    yes: Yes = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Delete a user's credentials."""
    with open_admin(where) as client:
        if mechanism is not None:
            kinds = [int(mechanism_of(mechanism))]
        else:
            kinds = [number for _, number, _ in describe(client, [name])]
        confirm(f"delete the credentials of user {name}?", is_sure=yes)
        remove(client, name, kinds)
    mechanisms = [ScramType(kind).mechanism for kind in kinds]
    document = {"user": name, "mechanisms": mechanisms}
    say(f"deleted {', '.join(mechanisms)} of user {name}", document, as_json=json)


def read_password(user: str, source: Path | None) -> str:
    """Return the first line of `source` ("-": standard input), or ask for a password. Raises CliError."""
    if source is None:
        if not sys.stdin.isatty():
            raise CliError("no terminal to ask for the password: use --password-file", USAGE_ERROR)
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
