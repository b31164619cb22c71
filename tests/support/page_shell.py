"""Commands of a page of the docs, run line by line in one shell, as readers run them."""

from __future__ import annotations

import io
import json
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

import mpbroker.cli
from mpbroker.cli.entry import main
from tests.support.polling import PATIENCE_S

ROOT = Path(__file__).parents[2]
# What starts brokers runs as it is: signals reach it, and they take no import along.
PROGRAM = """\
#!{python} -SEs
import json, os, socket, sys
if {{"serve", "run"}} & {{*sys.argv}}:
    os.execv("{python}", ["{python}", "-m", "mpbroker", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as forking:
    forking.connect("{programs}/socket")
    order = json.dumps([os.getcwd(), dict(os.environ), sys.argv])
    socket.send_fds(forking, [order.encode()], [0, 1, 2])
    ended = forking.recv(1)
sys.exit(ended[0] if ended else 1)
"""
END = "--- end of a command:"


class Step(NamedTuple):
    """A command of the page, and what the page says that it prints; `…` stands for anything."""

    command: str
    printed: str


def steps(text: str) -> list[Step]:
    """The commands of a page's console blocks, in their order."""
    found: list[Step] = []
    for line in "\n".join(re.findall(r"```console\n(.*?)\n```", text, re.DOTALL)).split("\n"):
        if line.startswith("$ "):
            found.append(Step(line[2:], ""))
        elif line.startswith("> "):
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
        else:
            found[-1] = found[-1]._replace(printed=f"{found[-1].printed}{line}\n")
    return found


def pattern(printed: str) -> str:
    return ".*".join(re.escape(part) for part in printed.split("…"))


class Shell:
    """A shell that reads commands and tells what each has printed.

    Most of what a command costs is Python's imports: its `mpbroker` is forked from a process that has them.
    """

    def __init__(self, directory: Path, programs: Path) -> None:
        self.forking = subprocess.Popen(
            [sys.executable, "-m", __name__, str(programs)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self.forking.stdout is not None
        with self.forking.stdout as ready:
            assert ready.read() == b""
        program = programs / "mpbroker"
        program.write_text(PROGRAM.format(python=sys.executable, programs=programs))
        program.chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\necho '{END}'\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if line.startswith(END):
                return printed
            # `ctl ready --wait` reports every five seconds; no page shows the lines of a busy machine.
            if not line.startswith("mpbroker: waiting "):
                printed += line
        raise AssertionError(f"the shell ended with {command!r}: {printed}")


@contextmanager
def shell(directory: Path) -> Iterator[Shell]:
    with tempfile.TemporaryDirectory() as programs:
        running = Shell(directory, Path(programs))
        there = psutil.Process(running.process.pid)
        try:
            yield running
        finally:
            for one in (*there.children(recursive=True), there):
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
            running.process.communicate(timeout=PATIENCE_S)
            running.forking.kill()
            running.forking.wait(PATIENCE_S)


# ---- in the process that forks


def serve(programs: Path) -> None:
    """Be each command that is asked for, in a fork, until this process is killed."""
    for one in pkgutil.walk_packages(mpbroker.cli.__path__, "mpbroker.cli."):
        import_module(one.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(programs / "socket"))
        listener.listen()
        os.dup2(0, 1)
        while True:
            asking, _ = listener.accept()
            with asking:
                if os.fork() == 0:
                    become(asking)


def become(asking: socket.socket) -> NoReturn:
    """Be the command of a client, with its directory, environment and standard streams."""
    code = 1
    try:
        order, fds, _, _ = socket.recv_fds(asking, 1 << 20, 3)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        directory, environment, sys.argv = json.loads(order)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        # As with -u: what is printed stands in the order in which it was.
        streams = [io.TextIOWrapper(io.FileIO(fd, mode), write_through=True) for fd, mode in enumerate("rww")]
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.__stdout__ = sys.stdout
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - the fork exits in any case
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        asking.send(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
