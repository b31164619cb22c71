"""The flags of `mpbroker quota`; what its commands do is in `quota`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Address,
    Bootstrap,
    ClientId,
    ClusterAddress,
    CommandConfig,
    Defaults,
    Json,
    User,
)

quota_app = App(no_args_is_help=True)


@quota_app.command("set")
def quota_set(
    quotas: Annotated[
        list[str],
        typer.Argument(metavar="QUOTA=NUMBER...", hidden=True),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Defaults = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Limit what clients may use.

    QUOTA is producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate, of
    addresses connection_creation_rate.
    """
    from mpbroker.cli.cluster import quota as command

    whom = command.QuotaEntity(user, client_id, ip, default or [])
    command.set_quotas(ClusterAddress(bootstrap, command_config), whom, quotas, as_json=json)


@quota_app.command("list")
def quota_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """All quotas that are set."""
    from mpbroker.cli.cluster import quota as command

    command.show_list(ClusterAddress(bootstrap, command_config), as_json=json)


@quota_app.command("delete")
def quota_delete(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA...", hidden=True)],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Defaults = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Take a limit away."""
    from mpbroker.cli.cluster import quota as command

    whom = command.QuotaEntity(user, client_id, ip, default or [])
    command.delete_quotas(ClusterAddress(bootstrap, command_config), whom, quotas, as_json=json)
