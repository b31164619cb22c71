"""The flags of `mpbroker config`; what its commands do is in `config`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClusterAddress,
    CommandConfig,
    DryRun,
    Json,
    complete_settings,
)
from mpbroker.cli.text.numbers import INT

config_app = App(no_args_is_help=True)

Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Of this topic.")]
Broker = Annotated[
    int | None,
    typer.Option(
        "--broker",
        callback=INT,
        metavar="ID",
        help="Of this broker; default, without --topic: of the only one.",
    ),
]
Defaults = Annotated[
    bool, typer.Option("--broker-defaults", help="Of all brokers: what is set for the whole cluster.")
]
Loggers = Annotated[bool, typer.Option("--loggers", help="Levels of the broker's loggers.")]


@config_app.command("get")
def config_get(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ] = None,
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: Defaults = False,
    loggers: Loggers = False,
    all_settings: Annotated[bool, typer.Option("--all", help="Those that have their default, too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Print settings and where each value comes from.

    One KEY prints its value alone; none prints what is set. --json has type, synonyms and documentation.
    """
    from mpbroker.cli.cluster import config as command

    target = command.ConfigTarget(topic, broker, broker_defaults, loggers)
    command.get(
        ClusterAddress(bootstrap, command_config), target, keys or [], every=all_settings, as_json=json
    )


@config_app.command("set")
def config_set(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", hidden=True, autocompletion=complete_settings)
    ],
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: Defaults = False,
    loggers: Loggers = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Set settings, all or none."""
    from mpbroker.cli.cluster import config as command

    target = command.ConfigTarget(topic, broker, broker_defaults, loggers)
    changes = command.settings(settings)
    command.alter(ClusterAddress(bootstrap, command_config), target, changes, is_dry=dry_run, as_json=json)


@config_app.command("unset")
def config_unset(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ],
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: Defaults = False,
    loggers: Loggers = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Take settings back: they have their default again."""
    from mpbroker.cli.cluster import config as command

    target = command.ConfigTarget(topic, broker, broker_defaults, loggers)
    changes = dict.fromkeys(keys)
    command.alter(ClusterAddress(bootstrap, command_config), target, changes, is_dry=dry_run, as_json=json)


@config_app.command("sample")
def config_sample() -> None:
    """Print a server.properties with all settings, commented out.

    Each that has an effect has its default and what it does: mpbroker config sample > server.properties
    """
    from mpbroker.config.sample import sample

    print(sample(), end="")
