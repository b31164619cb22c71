"""Brokers that are forked from a process which has imported everything already.

Those of `python -m mpbroker`, and those of mpbroker.testing. Most of what a start costs is Python's imports,
and tests start hundreds of brokers. The supervisor that a fork becomes is that of the command line from
`main` on: arguments, environment, session and files are its own. Tests of the start itself run the command.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn
from unittest.mock import patch

import msgspec
import setproctitle

from mpbroker.cli.entry import main
from mpbroker.supervisor import roles
from mpbroker.testing import serve as testing_serve
from ops.bench.brokers import ROOT, Mpbroker, Process, execute

COMMAND = [sys.executable, "-m", "mpbroker"]
# Such variables count before `main`: in Python itself, the loader and the C library.
EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "TZ", "LANG", "LC_")
LONGEST_ORDER = 1 << 20


class Start(msgspec.Struct):
    """An order to start a broker; its output and the socket that waits for its end come along.

    `owner` is the process of a test that starts a broker of mpbroker.testing; its input comes along, too.
    """

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    owner: int = 0


class Forked:
    """A process that another one has forked: what of `subprocess.Popen` tests use."""

    stdin: BinaryIO

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end

    def __del__(self) -> None:
        self._end.close()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._end, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
            # Another thread may have taken the code meanwhile; it stays to be read until then.
            told = self._end.recv(4, socket.MSG_PEEK)
            assert len(told) == 4, "the process that forks brokers has died"
            self.returncode = int.from_bytes(told, sys.byteorder, signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that forks. It ends when the last socket to it is closed."""

    def __init__(self, environment: Mapping[str, str], module: str = __name__, *words: str) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (self._orders, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_ORDER)
        self._early = early(environment)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *words],
                cwd=ROOT,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is not for brokers.
                start_new_session=module == __name__,
            )

    def can_start(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        return list(command[:3]) == COMMAND and early(environment) == self._early

    def start(self, command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> Forked:
        return self.fork(Start(list(command[3:]), dict(environment), str(Path.cwd())), output.fileno())

    def fork(self, order: Start, *streams: int) -> Forked:
        """Fork a process with an output, and perhaps an input."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            fds = [theirs.fileno(), *streams]
            socket.send_fds(self._orders, [msgspec.json.encode(order)], fds)
        pid = mine.recv(4)
        assert len(pid) == 4, f"nothing was forked; the exit code is {self._process.poll()}"
        return Forked(int.from_bytes(pid, sys.byteorder), mine)


@cache
def usual_environment() -> Mapping[str, str]:
    """The environment of most brokers; called first before any test has altered that of its process."""
    return Mpbroker(Path()).environment()


@cache
def preloaded() -> Preloaded:
    """The process that forks for this process of tests."""
    return Preloaded(usual_environment())


def launch(command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> Process:
    """Fork a broker, or run its command where Python or the loader would see another environment."""
    if preloaded().can_start(command, environment):
        return preloaded().start(command, output, environment)
    return execute(command, output, environment)


def popen(command: Sequence[str], *, stdout: BinaryIO, env: Mapping[str, str], **others: Any) -> Any:
    """Start a broker of mpbroker.testing as `launch` does one of the command line."""
    if not preloaded().can_start(COMMAND, Mpbroker(Path()).environment()):
        return subprocess.Popen(command, stdout=stdout, env=env, **others)
    reader, writer = os.pipe()
    forked = preloaded().fork(Start([], dict(env), str(Path.cwd()), os.getpid()), stdout.fileno(), reader)
    os.close(reader)
    forked.stdin = os.fdopen(writer, "wb")
    return forked


def early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(EARLY)}


# ---- in the process that forks


def serve(orders: socket.socket, become: Callable[..., NoReturn]) -> None:
    """Fork processes, and tell of their ends, until nobody can order any more and none is left."""
    ends: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    is_open = True
    while is_open or ends:
        for fd, _ in poll.poll():
            if fd in ends:
                pid, end = ends.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                tell(end, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                end.close()
                continue
            data, fds, _, _ = socket.recv_fds(orders, LONGEST_ORDER, 3)
            if not data:
                is_open = False
                poll.unregister(orders)
                continue
            end, streams = socket.socket(fileno=fds[0]), fds[1:]
            if (pid := os.fork()) == 0:
                for other, (_, told) in ends.items():
                    os.close(other)
                    told.close()
                end.close()
                orders.close()
                become(msgspec.json.decode(data, type=Start), *streams)
            for fd in streams:
                os.close(fd)
            pidfd = os.pidfd_open(pid)
            ends[pidfd] = pid, end
            poll.register(pidfd, select.POLLIN)
            tell(end, pid)


def tell(end: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # A test that has ended asks no longer.
        end.send(number.to_bytes(4, sys.byteorder, signed=True))


def become(start: Start, output: int, *inputs: int) -> NoReturn:
    """Be the command or what mpbroker.testing starts, with nothing of the process that forked it."""
    code = 1
    try:
        os.setsid()
        for fd in inputs:
            os.dup2(fd, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1 << 10)
        os.chdir(start.directory)
        os.environ.clear()
        os.environ.update(start.environment)
        sys.argv = [str(Path(ROOT, "mpbroker/__main__.py")), *start.arguments]
        gc.enable()
        if start.owner:
            # It makes sure that its owner is its parent. Those that it forks ask for theirs.
            parent = partial(next, iter([start.owner]))
            with patch.object(testing_serve, "os", SimpleNamespace(**vars(os) | {"getppid": parent})):
                testing_serve.main()
        main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001 - the fork exits in any case
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def preload() -> None:
    """Import what a supervisor imports before it forks."""
    gc.disable()
    for name in ("cli.main", "cli.host.serve", "supervisor.main"):
        import_module(f"mpbroker.{name}")
    roles.prepare(has_exporter=False)
    # It looks for its place among arguments and environment once, as they were at the exec.
    setproctitle.getproctitle()
    gc.freeze()


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])), become)
