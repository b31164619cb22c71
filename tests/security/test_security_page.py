"""The commands of docs/SECURITY.md do what stands there, line by line, in one shell, as readers run them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ops.bench.brokers import free_port
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "SECURITY.md"
PORT = "9094"
END = "--- end of a command:"


class Step(NamedTuple):
    """A command of the page, and what the page says that it prints; `…` stands for anything."""

    command: str
    printed: str


def steps() -> list[Step]:
    section = PAGE.read_text().partition("\n## In five minutes\n")[2].partition("\n## ")[0]
    found: list[Step] = []
    for line in "\n".join(re.findall(r"```console\n(.*?)\n```", section, re.DOTALL)).split("\n"):
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


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


@pytest.mark.process
def test_five_minutes(tmp_path: Path) -> None:
    port = str(free_port())
    secure = tmp_path / "secure"
    with shell(tmp_path) as sh:
        for step in steps():
            printed = sh.run(step.command.replace(PORT, port)).replace(port, PORT)
            assert re.fullmatch(pattern(step.printed), printed, re.DOTALL), f"{step}\n{printed}"
            if step.command.endswith("&"):
                eventually(lambda: accepts(secure / "admin.sock"), "the broker serves")
    assert "stopped with status 0" in (secure / "broker.log").read_text()
    said = (secure / "audit.log").read_text() + (secure / "broker.log").read_text()
    for user in ("shop", "billing"):
        assert (secure / f"{user}.password").read_text().strip() not in said
    open_to_others = [one.name for one in secure.iterdir() if one.stat().st_mode & 0o007]
    assert open_to_others == []


@pytest.mark.parametrize(("printed", "real"), [("a…c\n", "abc\n"), ("…\nb\n", "x\ny\nb\n")])
def test_an_ellipsis_stands_for_anything(printed: str, real: str) -> None:
    assert re.fullmatch(pattern(printed), real, re.DOTALL)
    assert not re.fullmatch(pattern(printed), f"{real}more", re.DOTALL)


def test_there_are_commands() -> None:
    programs = {step.command.split()[0] for step in steps()}
    assert {"mkdir", "openssl", "mpbroker"} <= programs
    assert len(steps()) > 20
