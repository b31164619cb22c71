"""The flags of `mpbroker topic`; what its commands do is in `topic` and `topic_changes`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    COMPLETE_TOPICS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClusterAddress,
    CommandConfig,
    DryRun,
    Json,
    Timeout,
    TopicName,
    Yes,
)
from mpbroker.cli.text.numbers import INT, SHORT

topic_app = App(no_args_is_help=True)
TopicSettings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic setting; repeatable."),
]


@topic_app.command("create")
def topic_create(
    name: TopicName,
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", callback=INT, metavar="N", help="-1: the broker's default."),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", callback=SHORT, metavar="N", help="-1: the broker's default."
        ),
    ] = -1,
    config: TopicSettings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is fine.")
    ] = False,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Create a topic."""
    from mpbroker.cli.cluster import topic as command

    new = command.NewTopic(name, partitions, replication_factor, config or [])
    where = ClusterAddress(bootstrap, command_config)
    command.create(where, new, timeout, if_not_exists=if_not_exists, as_json=json)


@topic_app.command("list")
def topic_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, command_config: CommandConfig = None, json: Json = False
) -> None:
    """List all topics."""
    from mpbroker.cli.cluster import topic as command

    command.show_list(ClusterAddress(bootstrap, command_config), as_json=json)


@topic_app.command("describe")
def topic_describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Partitions, offsets and changed settings of topics. Default: of all."""
    from mpbroker.cli.cluster import topic as command

    command.describe(ClusterAddress(bootstrap, command_config), names or [], as_json=json)


@topic_app.command("delete")
def topic_delete(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout: Timeout = 30.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete topics and all their records."""
    from mpbroker.cli.cluster import topic as command

    where = ClusterAddress(bootstrap, command_config)
    if dry_run:
        command.show_deletion(where, names, as_json=json)
    else:
        command.delete(where, names, timeout, is_sure=yes, as_json=json)
