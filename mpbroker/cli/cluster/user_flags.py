"""The flags of `mpbroker user`; what its commands do is in `user`."""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClusterAddress,
    CommandConfig,
    Json,
    UserName,
    Yes,
)

user_app = App(no_args_is_help=True)


@user_app.command("add")
def user_add(
    name: UserName,
    mechanism: Annotated[
        str, typer.Option(metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = "SCRAM-SHA-512",
    iterations: Annotated[
        int,
        typer.Option(min=4096, max=16384, metavar="N", help="Iterations of PBKDF2 for the SCRAM credential."),
    ] = 8192,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its first line is the password; - is standard input.", readable=False
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Set a user's password; it is asked for if no file has it."""
    from mpbroker.cli.cluster import user as command

    where = ClusterAddress(bootstrap, command_config)
    command.add(where, name, mechanism, iterations, password_file, as_json=json)


@user_app.command("list")
def user_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """List users and their mechanisms."""
    from mpbroker.cli.cluster import user as command

    command.show_list(ClusterAddress(bootstrap, command_config), as_json=json)


@user_app.command("delete")
def user_delete(
    name: UserName,
    mechanism: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this one; default: all.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete a user's credentials."""
    from mpbroker.cli.cluster import user as command

    command.delete(ClusterAddress(bootstrap, command_config), name, mechanism, is_sure=yes, as_json=json)
