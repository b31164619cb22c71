"""Arguments and flags that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mpbroker.cli.text.numbers import SECONDS
from mpbroker.config.environment import BOOTSTRAP_SERVER, DEFAULT_BOOTSTRAP


class ClusterAddress(NamedTuple):
    """The flags that name a cluster: its address, and a file with settings for the client."""

    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
    command_config: CommandConfig = None


def option(names: str, metavar: str, help: str, **settings: Any) -> Any:  # noqa: A002 (as Typer names it)
    """Declare an option that takes a value. `names`: all its names in one text, as in "--partition -p"."""
    return typer.Option(*names.split(), metavar=metavar, help=help, **settings)


def flag(names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    """Declare an option without a value. `names`: as in "--yes -y" or "--by-key/--keep-partitions"."""
    return typer.Option(*names.split(), help=help, **settings)


def _of_data(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return the address that the user gave, else that of the broker on ./data, else the default `value`.

    Raises CliError if ./data is a log directory and no broker runs on it.
    """
    source = context.get_parameter_source(parameter.name or "")
    if source is None or source.name != "DEFAULT" or not Path("data").is_dir():
        return value
    if context.params.get("log_dirs") is not None:
        # Files are read, and no broker is asked.
        return value
    from mpbroker.cli.host.local_broker import bootstrap_of_data

    return bootstrap_of_data() or value


def topic_names(where: ClusterAddress) -> list[str]:
    from mpbroker.cli.cluster.client import open_admin

    with open_admin(where) as client:
        return [topic.name for topic in client.topics()]


def group_names(where: ClusterAddress) -> list[str]:
    from mpbroker.cli.cluster.client import open_admin
    from mpbroker.client import groups

    with open_admin(where) as client:
        return [one.group_id for one in groups.list_groups(client)]


def _names(of: Callable[[ClusterAddress], list[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return a shell completion of the names that `of` reads; it finds none if the cluster is down."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        given = context.params
        address = given.get("bootstrap") or os.environ.get(BOOTSTRAP_SERVER) or DEFAULT_BOOTSTRAP
        # An error must not appear in the middle of a command line that is being typed.
        with suppress(Exception):
            found = of(ClusterAddress(address, given.get("command_config")))
            return [name for name in found if name.startswith(incomplete)]
        return []

    return complete


def complete_settings(incomplete: str) -> list[str]:
    """Return the names of settings of all resources that begin with `incomplete`."""
    from mpbroker.config.broker import BROKER_KEYS
    from mpbroker.config.resource_config import CLIENT_METRICS_KEYS, GROUP_KEYS
    from mpbroker.config.topic_config import TOPIC_KEYS

    names = {*TOPIC_KEYS, *GROUP_KEYS, *CLIENT_METRICS_KEYS, *BROKER_KEYS}
    return sorted(name for name in names if name.startswith(incomplete))


COMPLETE_TOPICS = _names(topic_names)
COMPLETE_GROUPS = _names(group_names)

# Arguments are hidden if the usage line is enough: a list of them would also show Python's types.
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", hidden=True, autocompletion=COMPLETE_TOPICS)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", hidden=True, autocompletion=COMPLETE_GROUPS)]
GroupNames = Annotated[
    list[str], typer.Argument(metavar="GROUP...", hidden=True, autocompletion=COMPLETE_GROUPS)
]
ListenerName = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
UserName = Annotated[str, typer.Argument(metavar="USER", hidden=True)]
Bootstrap = Annotated[
    str,
    option(
        "--bootstrap-server -b",
        "HOST:PORT",
        "Where the broker is; or unix:/path. Without it that of ./data, if this is a log directory.",
        envvar=BOOTSTRAP_SERVER,
        callback=_of_data,
    ),
]
CommandConfig = Annotated[
    Path | None,
    option(
        "--command-config",
        "FILE",
        "Properties of Kafka's clients: security.protocol, sasl.*, ssl.*, timeouts.",
    ),
]
IsolationLevel = Annotated[str, option("--isolation-level", "LEVEL", "read_uncommitted or read_committed.")]
Timeout = Annotated[
    float, option("--timeout", "SECONDS", "How long to wait for the broker.", min=0.1, callback=SECONDS)
]
Json = Annotated[bool, flag("--json", "JSON instead of a table.")]
DryRun = Annotated[bool, flag("--dry-run", "Only print the changes.")]
Yes = Annotated[bool, flag("--yes -y", "Do not ask; scripts are asked for it where records would be lost.")]
ServerProperties = Annotated[
    Path | None, option("--config -c", "FILE", "A server.properties file.", readable=False)
]
Overrides = Annotated[list[str] | None, option("-o", "KEY=VALUE", "Set any key of the file; repeatable.")]
