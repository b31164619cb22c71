"""`mpbroker serve`: reads and checks the settings and reports problems; then the supervisor takes over."""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import ConfigError
from mpbroker.config.load import Flag, load
from mpbroker.security.listener import SecurityError, secure_listeners
from mpbroker.supervisor import logs

# Flags are texts here, so that a wrong number gets the same message wherever it was written.
FLAG_KEYS = {
    "--listeners": "listeners",
    "--log-dirs": "log.dirs",
    "--processors": "num.network.threads",
    "--handlers": "num.io.threads",
    "--log-workers": "log.workers",
    "--http": "http.listener",
}


def serve(
    config_file: Path | None, overrides: Sequence[str], flags: Mapping[str, str | None], *, check_only: bool
) -> int:
    """Run the broker and return its exit code. Raises CliError."""
    config = read_config(config_file, overrides, flags)
    try:
        logs.wanted_level(os.environ)
    except ValueError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    if check_only:
        try:
            secure_listeners(config)
        except SecurityError as error:
            raise CliError(str(error), USAGE_ERROR) from error
        print("mpbroker: the configuration is valid", file=sys.stderr)
        return 0
    refuse_other_platforms(sys.platform)
    # Off until the supervisor forks: imports leave no garbage.
    gc.disable()
    from mpbroker.supervisor.main import run

    file = config_file.absolute() if config_file is not None else None
    given = _given(flags)
    return run(config, (lambda: load(file, overrides, given)) if file is not None else None)


def read_config(
    config_file: Path | None, overrides: Sequence[str], flags: Mapping[str, str | None]
) -> BrokerConfig:
    """Return the configuration. Warnings go to standard error. Raises CliError for problems."""
    try:
        loaded = load(config_file, overrides, _given(flags))
    except ConfigError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    for warning in loaded.warnings:
        print(f"mpbroker: warning: {warning}", file=sys.stderr)
    return loaded.config


def _given(flags: Mapping[str, str | None]) -> list[Flag]:
    return [Flag(name, FLAG_KEYS[name], text) for name, text in flags.items() if text is not None]


def refuse_other_platforms(platform: str) -> None:
    if platform != "linux":
        raise CliError(
            f"the broker runs on Linux only, this is {platform}: it needs eventfd, epoll and pidfd; "
            "run it in a Linux container or virtual machine"
        )
