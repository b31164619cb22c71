"""Flags that name a broker of this host."""

from typing import Annotated

import typer

from mpbroker.config.environment import BOOTSTRAP_SERVER

LogDirs = Annotated[
    str | None,
    typer.Option("--log-dirs", metavar="DIR,…", help="Data directories of the broker (default: ./data)."),
]
# The commands read the environment variable themselves: other flags come before it.
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
        "--port", metavar="N", help="The broker of this host that listens on this port.", min=1, max=65535
    ),
]
