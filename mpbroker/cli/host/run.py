"""`mpbroker run`: a command with a broker of its own, for tests in any language.

`mpbroker.testing` starts the broker, on free ports and with directories that are removed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from mpbroker.cli.errors import RUNTIME_ERROR, USAGE_ERROR, CliError
from mpbroker.cli.flags import Overrides, flag, option
from mpbroker.cli.host.serve import read_config
from mpbroker.cli.text.interrupt import Interrupt
from mpbroker.config.environment import BOOTSTRAP_SERVER
from mpbroker.ipc.process import die_with_parent
from mpbroker.protocol.topic_names import problem_with
from mpbroker.testing.broker import Broker
from mpbroker.testing.errors import BrokerFailed

# The variable that other vendors' programs read.
KAFKA_BOOTSTRAP_SERVERS: Final = "KAFKA_BOOTSTRAP_SERVERS"
# Signals for the command. A terminal sends the first two to it by itself.
_FOR_COMMAND: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
_AWAITED: Final = (*_FOR_COMMAND, signal.SIGCHLD)


def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] CMD...", hidden=True)],
    topics: Annotated[
        list[str] | None, option("--topic", "NAME[:PARTITIONS]", "Create this topic before; repeatable.")
    ] = None,
    options: Overrides = None,
    verbose: Annotated[bool, flag("--verbose -v", "Print the broker's log at the end.")] = False,
) -> None:
    """Run a command with a broker of its own, which ends with it.

    CMD finds the broker in MPBROKER_BOOTSTRAP_SERVER and KAFKA_BOOTSTRAP_SERVERS. The exit code is CMD's, or
    128 + n if signal n ended it.
    """
    wanted = [_topic(text) for text in topics or ()]
    settings = dict(option.partition("=")[::2] for option in options or ())
    read_config(None, options or (), {})
    program = shutil.which(command[0])
    if program is None:
        raise CliError(f"{command[0]}: no such command", USAGE_ERROR)
    try:
        broker = Broker(settings)
    except ValueError as error:
        raise CliError(f"-o: {error}", USAGE_ERROR) from error
    # The broker ends with this process: an interrupt before the command begins only has to leave.
    with Interrupt(lambda: None) as interrupt:
        interrupt.raises = True
        try:
            with broker:
                for name, partitions in wanted:
                    broker.create_topic(name, partitions)
                code = _run(program, command, broker)
        except BrokerFailed as error:
            raise CliError(str(error)) from error
        finally:
            if verbose:
                sys.stderr.write(broker.logs())
    raise typer.Exit(code)


def _topic(text: str) -> tuple[str, int]:
    """Parse NAME or NAME:PARTITIONS. Raises CliError."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isascii() and count.isdigit() and int(count))):
        raise CliError(f"--topic {text}: write NAME, or NAME:PARTITIONS such as orders:3", USAGE_ERROR)
    if problem := problem_with(name):
        raise CliError(f"--topic {text}: {problem}", USAGE_ERROR)
    return name, int(count) if colon else -1


def _run(program: str, command: Sequence[str], broker: Broker) -> int:
    """Run the command, then stop the broker. Return the command's exit code. Raises BrokerFailed."""
    address = broker.bootstrap_servers
    environment = {**os.environ, BOOTSTRAP_SERVER: address, KAFKA_BOOTSTRAP_SERVERS: address}
    code = _exit_code(program, command, environment)
    try:
        broker.stop()
    except BrokerFailed as error:
        if not code:
            raise
        print(f"mpbroker: {error}", file=sys.stderr)
    return code


def _exit_code(program: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program, forward signals to it, and return its exit code.

    The program is killed when this process ends. A terminal sends its signals to the program, too, so only
    a signal from a process (`si_code` <= 0) is forwarded.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)

    def begin() -> None:
        die_with_parent(parent, signal.SIGKILL)
        for number in _FOR_COMMAND:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        try:
            running = subprocess.Popen(
                command, executable=program, env=environment, preexec_fn=begin, close_fds=False
            )
        except OSError as error:
            raise CliError(f"{program}: {error.strerror}", RUNTIME_ERROR) from error
        while (code := running.poll()) is None:
            came = signal.sigwaitinfo(_AWAITED)
            if came.si_signo != signal.SIGCHLD and came.si_code <= 0:
                running.send_signal(came.si_signo)
        return code if code >= 0 else 128 - code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
