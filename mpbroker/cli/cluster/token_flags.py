"""The flags of `mpbroker token`; what its commands do is in `token`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import DEFAULT_BOOTSTRAP, Bootstrap, ClusterAddress, CommandConfig, Json
from mpbroker.cli.text.numbers import LONG

token_app = App(no_args_is_help=True)

TokenId = Annotated[str, typer.Argument(metavar="TOKEN-ID", hidden=True)]


@token_app.command("create")
def token_create(
    owner: Annotated[
        str | None,
        typer.Option("--owner-principal", metavar="User:NAME", help="Default: whoever this command is."),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            "--renewer-principal", metavar="User:NAME", help="May renew and expire it, too; repeatable."
        ),
    ] = None,
    max_life_time_period: Annotated[
        int | None,
        typer.Option(
            "--max-life-time-period",
            min=1,
            callback=LONG,
            metavar="MS",
            help="However often it is renewed; default: the broker's delegation.token.max.lifetime.ms.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Create a token and print it, with the HMAC that is its password."""
    from mpbroker.cli.cluster import token as command

    where = ClusterAddress(bootstrap, command_config)
    command.create(where, owner, renewer or [], max_life_time_period, as_json=json)


@token_app.command("list")
def token_list(
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner-principal",
            metavar="User:NAME",
            help="Only what it owns, created or may renew; repeatable.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List the tokens that you may see, without their HMACs."""
    from mpbroker.cli.cluster import token as command

    command.show_list(ClusterAddress(bootstrap, command_config), owner, as_json=json)


@token_app.command("renew")
def token_renew(
    token_id: TokenId,
    renew_time_period: Annotated[
        int | None,
        typer.Option(
            "--renew-time-period",
            min=1,
            callback=LONG,
            metavar="MS",
            help="From now on; default: the broker's delegation.token.expiry.time.ms.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Let a token live longer."""
    from mpbroker.cli.cluster import token as command

    command.renew(ClusterAddress(bootstrap, command_config), token_id, renew_time_period, as_json=json)


@token_app.command("expire")
def token_expire(
    token_id: TokenId,
    expiry_time_period: Annotated[
        int | None,
        typer.Option(
            "--expiry-time-period", min=0, callback=LONG, metavar="MS", help="From now on; default: now."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Remove a token, or have it expire soon."""
    from mpbroker.cli.cluster import token as command

    command.expire(ClusterAddress(bootstrap, command_config), token_id, expiry_time_period, as_json=json)
