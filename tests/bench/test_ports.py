"""Processes that take ports side by side never get the same one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ops.bench import ports
from ops.bench.brokers import ROOT
from ops.bench.ports import BLOCK_PORTS, Ports, free_port

TAKE = "from ops.bench.ports import free_port\nprint(*(free_port() for _ in range(%d)), flush=True)\ninput()"


def block_of(port: int) -> int:
    return (port - ports.LOWEST_PORT) // BLOCK_PORTS


@pytest.mark.process
def test_processes_side_by_side_share_no_block() -> None:
    mine = [free_port()]
    command = [sys.executable, "-c", TAKE % (BLOCK_PORTS + 1)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        taken = [list(map(int, process.stdout.readline().split())) for process in running if process.stdout]
    finally:
        for process in running:
            process.communicate("\n")
    blocks = [{block_of(port) for port in each} for each in (*taken, mine)]
    assert [len(each) for each in blocks] == [2, 2, 1]
    assert len(set.union(*blocks)) == 5


def test_a_fork_takes_ports_of_its_own() -> None:
    mine = Ports()
    mine.take()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(mine.take()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = int(os.read(reader, 16))
    os.close(reader)
    os.close(writer)
    assert block_of(theirs) != block_of(mine.take())
