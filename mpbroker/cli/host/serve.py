"""`mpbroker serve`: reads and checks the settings and reports problems; then the supervisor takes over."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.serve_flags import FLAG_KEYS
from mpbroker.config.keys import ConfigError
from mpbroker.config.load import Flag, Loaded, load
from mpbroker.config.remote import ACKS, REMOTE_URL, SYSTEM_ENABLE
from mpbroker.ipc.mirror import MIRROR_FILE
from mpbroker.ipc.process import EXIT_STANDBY
from mpbroker.security.listener import SecurityError, secure_listeners
from mpbroker.supervisor import logs

# A face keeps nothing: all that it has of its own is an empty metadata log.
_FACE_SETTINGS = (
    f"{SYSTEM_ENABLE}=false",
    f"{REMOTE_URL}=",
    f"{ACKS}=local",
    "log.cleaner.enable=false",
    "log.journal.bytes=1048576",
    "log.reserve.bytes=0",
)


def serve(
    config_file: Path | None,
    overrides: Sequence[str],
    flags: Mapping[str, str | None],
    *,
    log_format: str | None = None,
    check_only: bool,
    follow: Path | None = None,
    standby: bool = False,
    read_only: bool = False,
) -> int:
    """Run the broker and return its exit code. Raises CliError.

    A standby becomes a broker when it has taken over, and an owner that was followed by another one becomes a
    standby: in this process, by the same command line. `follow` is the directory of a standby's face. If the
    log is in JSON or goes to journald, warnings and errors before the first line of the log have the same
    format.
    """
    words = _words(config_file, overrides, flags, log_format)
    if read_only and not standby:
        raise CliError("--read-only needs --standby: it follows another broker", USAGE_ERROR)
    # The standby that has started a face has warned already.
    warns = follow is None
    if follow is not None:
        overrides, flags = [*overrides, *_FACE_SETTINGS], {**flags, "--log-dirs": str(_face(follow))}
    try:
        logs.wanted_level(os.environ)
        wanted = logs.wanted_format(os.environ, log_format)
    except ValueError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    say, is_text = _print, wanted is logs.LogFormat.TEXT and not logs.is_journal(os.environ, 2)
    if not is_text:
        out = logs.handler(wanted)

        def say(level: int, text: str) -> None:
            out.handle(logging.LogRecord("mpbroker.supervisor", level, "", 0, "%s", (text,), None))

    try:
        code = _serve(
            *(config_file, overrides, flags, say, wanted),
            check_only=check_only,
            warns=warns,
            words=words if standby else None,
            read_only=read_only,
        )
    except CliError as error:
        if is_text:
            raise
        for line in str(error).splitlines():
            say(logging.ERROR, line)
        return error.exit_code
    if code == EXIT_STANDBY:
        _become([*words, "--standby"])
    return code


def _words(
    config_file: Path | None,
    overrides: Sequence[str],
    flags: Mapping[str, str | None],
    log_format: str | None,
) -> list[str]:
    """Return the words of a plain `mpbroker serve` with these arguments."""
    named = {"--config": None if config_file is None else str(config_file), "--log-format": log_format}
    given = [f"{name}={value}" for name, value in {**named, **flags}.items() if value is not None]
    return ["serve", *given, *(word for one in overrides for word in ("-o", one))]


def _become(words: Sequence[str]) -> NoReturn:
    """Run `mpbroker` with these words in this process, in place of this program."""
    command = [sys.executable, "-m", "mpbroker", *words]
    os.execv(command[0], command)


def _face(directory: Path) -> Path:
    """Return the directory if it is that of a face. Raises CliError: another broker must not lead there."""
    if not (directory / MIRROR_FILE).exists():
        raise CliError(f"--follow: {directory} has no {MIRROR_FILE}: mpbroker serve --standby makes it")
    return directory


def _print(level: int, text: str) -> None:
    print(f"mpbroker: {'warning: ' if level == logging.WARNING else ''}{text}", file=sys.stderr)


def _serve(
    config_file: Path | None,
    overrides: Sequence[str],
    flags: Mapping[str, str | None],
    say: Callable[[int, str], None],
    log_format: logs.LogFormat,
    *,
    check_only: bool,
    warns: bool,
    words: Sequence[str] | None,
    read_only: bool,
) -> int:
    """Run the broker; if `words` are given, after it was a standby whose face has these words.

    Return the exit code. Raises CliError.
    """
    if not check_only:
        # A SIGHUP from now on waits for the supervisor, since the file may be read before its next change.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    loaded = read_config(config_file, overrides, flags)
    config = loaded.config
    for warning in loaded.warnings if warns else ():
        say(logging.WARNING, str(warning))
    if check_only or words is not None:
        # A standby checks this now: a take-over must not fail of it.
        try:
            secure_listeners(config)
        except SecurityError as error:
            raise CliError(str(error), USAGE_ERROR) from error
    if check_only:
        say(logging.INFO, "the configuration is valid")
        return 0
    refuse_other_platforms(sys.platform)
    # Garbage collection is off until the supervisor forks: imports leave no garbage.
    gc.disable()
    if words is not None:
        from mpbroker.standby.process import run as stand_by

        if (code := stand_by(config, words, log_format, read_only=read_only)) is not None:
            return code
        # It leads with the settings that it has followed with: a take-over is no time for new ones.
    from mpbroker.supervisor.main import run

    file = config_file.absolute() if config_file is not None else None
    given = _given(flags)
    read_again = (lambda: load(file, overrides, given)) if file is not None else None
    return run(config, read_again, log_format=log_format)


def read_config(
    config_file: Path | None, overrides: Sequence[str], flags: Mapping[str, str | None]
) -> Loaded:
    """Return the configuration and warnings about it. Raises CliError if it is wrong."""
    try:
        return load(config_file, overrides, _given(flags))
    except ConfigError as error:
        raise CliError(str(error), USAGE_ERROR) from error


def _given(flags: Mapping[str, str | None]) -> list[Flag]:
    return [Flag(name, FLAG_KEYS[name], text) for name, text in flags.items() if text is not None]


def refuse_other_platforms(platform: str) -> None:
    if platform != "linux":
        raise CliError(
            f"the broker runs on Linux only, this is {platform}: it needs eventfd, epoll and pidfd; "
            "run it in a Linux container or virtual machine"
        )
