"""Parses the flags of `mpbroker serve` without Typer, which would stay in the broker's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Flags are texts here, so that a wrong number gets the same message wherever it was written.
FLAG_KEYS = {
    "--listeners": "listeners",
    "--log-dirs": "log.dirs",
    "--processors": "num.network.threads",
    "--handlers": "num.io.threads",
    "--log-workers": "log.workers",
    "--http": "http.listener",
}
_CHECK = "--check-config"
# What a standby starts: a broker on this directory that follows another one (`mpbroker.ipc.mirror`).
_FOLLOW = "--follow"
_STANDBY = "--standby"
_READ_ONLY = "--read-only"
_WITH_VALUE = {name: name for name in (*FLAG_KEYS, "--log-format", "--config", "-o", _FOLLOW)}
_WITH_VALUE["-c"] = "--config"


class ServeFlags(NamedTuple):
    """The arguments of `mpbroker.cli.host.serve.serve`."""

    config_file: Path | None
    overrides: Sequence[str]
    flags: Mapping[str, str | None]
    log_format: str | None
    check_only: bool
    follow: Path | None = None
    standby: bool = False
    read_only: bool = False


def parsed(words: Sequence[str]) -> ServeFlags | None:
    """Return the flags in a call of `mpbroker serve`; None for another command, for help and for mistakes.

    Typer parses the calls for which this returns None. -o is repeatable; other flags keep their last value.
    """
    if words[:1] != ["serve"]:
        return None
    values: dict[str, list[str]] = {}
    rest = iter(words[1:])
    for word in rest:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in (_CHECK, _STANDBY, _READ_ONLY):
            values[word] = [word]
            continue
        if not equals:
            value = next(rest, "-")
        if name not in _WITH_VALUE or value.startswith("-"):
            return None
        values.setdefault(_WITH_VALUE[name], []).append(value)
    last = {name: given[-1] for name, given in values.items()}
    return ServeFlags(
        Path(last["--config"]) if "--config" in last else None,
        values.get("-o", []),
        {name: last.get(name) for name in FLAG_KEYS},
        last.get("--log-format"),
        _CHECK in last,
        Path(last[_FOLLOW]) if _FOLLOW in last else None,
        _STANDBY in last,
        _READ_ONLY in last,
    )
