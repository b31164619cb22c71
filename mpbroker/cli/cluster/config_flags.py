"""The flags of `mpbroker config`; what its commands do is in `config`."""

from typing import Annotated, NamedTuple

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    ClusterAddress,
    DryRun,
    Json,
    complete_settings,
    flag,
    option,
)
from mpbroker.cli.text.numbers import INT

config_app = App(no_args_is_help=True)


class ConfigTarget(NamedTuple):
    """Whose settings: at most one of topic, broker and defaults."""

    topic: Annotated[str | None, option("--topic", "NAME", "Of this topic.")] = None
    broker: Annotated[
        int | None,
        option("--broker", "ID", "Of this broker; default, without --topic: of the only one.", callback=INT),
    ] = None
    defaults: Annotated[
        bool, flag("--broker-defaults", "Of all brokers: what is set for the whole cluster.")
    ] = False
    loggers: Annotated[bool, flag("--loggers", "Levels of the broker's loggers.")] = False


@config_app.command("get")
def config_get(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ] = None,
    *,
    target: ConfigTarget,
    all_settings: Annotated[bool, typer.Option("--all", help="Those that have their default, too.")] = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print settings and where each value comes from.

    One KEY prints its value alone; none prints what is set. --json has type, synonyms and documentation.
    """
    from mpbroker.cli.cluster import config as command

    command.get(where, target, keys or [], every=all_settings, as_json=json)


@config_app.command("set")
def config_set(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", hidden=True, autocompletion=complete_settings)
    ],
    *,
    target: ConfigTarget,
    dry_run: DryRun = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Set settings, all or none."""
    from mpbroker.cli.cluster import config as command

    changes = command.settings(settings)
    command.alter(where, target, changes, is_dry=dry_run, as_json=json)


@config_app.command("unset")
def config_unset(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ],
    *,
    target: ConfigTarget,
    dry_run: DryRun = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Take settings back: they have their default again."""
    from mpbroker.cli.cluster import config as command

    changes = dict.fromkeys(keys)
    command.alter(where, target, changes, is_dry=dry_run, as_json=json)


@config_app.command("sample")
def config_sample() -> None:
    """Print a server.properties with all settings, commented out.

    Each that has an effect has its default and what it does: mpbroker config sample > server.properties
    """
    from mpbroker.config.sample import sample

    print(sample(), end="")
