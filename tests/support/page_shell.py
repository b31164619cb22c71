"""Commands of a page of the docs, run line by line in one shell, as readers run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.polling import PATIENCE_S

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
    """A shell that reads commands and tells what each has printed."""

    def __init__(self, directory: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
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
            printed += line
        raise AssertionError(f"the shell ended with {command!r}: {printed}")


@contextmanager
def shell(directory: Path) -> Iterator[Shell]:
    running = Shell(directory)
    there = psutil.Process(running.process.pid)
    try:
        yield running
    finally:
        for one in (*there.children(recursive=True), there):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        running.process.communicate(timeout=PATIENCE_S)
