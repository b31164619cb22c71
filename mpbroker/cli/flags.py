"""Arguments and flags that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.text.numbers import SECONDS
from mpbroker.config.environment import BOOTSTRAP_SERVER

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

# Arguments are hidden where the usage line says enough: a list of them would also show Python's types.
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", hidden=True)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", hidden=True)]
GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP...", hidden=True)]
ListenerName = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
UserName = Annotated[str, typer.Argument(metavar="USER", hidden=True)]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_SERVER,
        help="Where the broker is; or unix:/path.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties of Kafka's clients: security.protocol, sasl.*, ssl.*, timeouts.",
    ),
]
IsolationLevel = Annotated[
    str,
    typer.Option("--isolation-level", metavar="LEVEL", help="read_uncommitted or read_committed."),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.1, callback=SECONDS, metavar="SECONDS", help="How long to wait for the broker."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; only terminals are asked.")]
LogDirs = Annotated[
    str | None,
    typer.Option("--log-dirs", metavar="DIR,…", help="Data directories of the broker (default: ./data)."),
]
# Commands about a broker of this host read the environment variable themselves: other flags come before it.
LocalBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help=f"The broker of this host that listens there (default: ${BOOTSTRAP_SERVER}).",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", min=1, max=65535, metavar="N", help="The broker of this host that listens on this port."
    ),
]
ServerProperties = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.", readable=False),
]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", metavar="KEY=VALUE", help="Set any key of the file; repeatable.")
]

# The client whose quota it is.
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user.")]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="NAME", help="Of this client; with --user of that user's alone."),
]
Address = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Of this address.")]
Defaults = Annotated[
    list[str] | None,
    typer.Option(
        "--default",
        metavar="user|client-id|ip",
        help="Of everybody who has none of their own; repeatable, and beside --user.",
    ),
]
