"""Tests for the root of `make test-aarch64`: the installed wheel's instructions, and a broker that is killed.

`tests/ops/aarch64_wheel.py` runs this where mpbroker is installed from the wheel and QEMU runs everything.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import sys
from pathlib import Path

import psutil
import pytest

import mpbroker
from mpbroker.records import batch
from ops.bench.brokers import Broker, Mpbroker, execute, running
from tests.support.polling import until
from tests.support.programs import ran

PROGRAM = Path(sys.executable).with_name("mpbroker")
# <asm/hwcap.h> of arm64, and <elf.h>
AT_HWCAP, HWCAP_CRC32 = 16, 1 << 7
RECORDS = [f"key-{number}:value-{number}" for number in range(2000)]


class Emulated(Mpbroker):
    """The broker of the wheel. Nothing is forked from a process that has imported all of it."""

    launch = staticmethod(execute)
    always = ("-o", "log.journal.bytes=1048576")

    def __init__(self, directory: Path) -> None:
        serve = f"{sys.executable} -m tests.support.emulated_serve serve --processors 1 --handlers 2"
        where = "--listeners PLAINTEXT://127.0.0.1:{port} --log-dirs {log_dir}"
        super().__init__(directory, template=f"{serve} {where}")


def test_this_is_the_wheel_on_aarch64() -> None:
    assert platform.machine() == "aarch64"
    assert "site-packages" in str(mpbroker.__file__)
    assert str(batch.__file__).endswith("-aarch64-linux-gnu.so")


def test_checksums_come_from_the_crc_instruction() -> None:
    """That both ways agree is in tests/records; that this one is taken is not seen there."""
    assert ctypes.CDLL(None).getauxval(AT_HWCAP) & HWCAP_CRC32
    assert batch.checksum(b"123456789") == batch.checksum_in_software(b"123456789") == 0xE3069283


@pytest.fixture
def broker(tmp_path: Path) -> Emulated:
    return Emulated(tmp_path)


def printed(broker: Broker, command: list[object], stdin: str) -> str:
    done = ran(command, input=stdin, timeout=900)
    assert done.returncode == 0, done.stderr + broker.output()
    return done.stdout


def client(broker: Broker, *words: str, stdin: str = "") -> str:
    return printed(broker, [PROGRAM, *words, "-b", broker.bootstrap], stdin)


def kcat(broker: Broker, *words: str, stdin: str = "") -> str:
    return printed(broker, [shutil.which("kcat"), "-b", broker.bootstrap, *words], stdin)


def stored(broker: Broker, topic: str) -> list[str]:
    read = kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", "%k:%s\\n")
    assert sorted(client(broker, "consume", topic, "--from-beginning", "-e", "-f", "%k:%v\\n").split()) == (
        sorted(read.split())
    )
    return read.split()


def kill_supervisor(broker: Broker) -> None:
    """Kill the supervisor alone, and wait for the end of the processes that it leaves."""
    members = broker.tree().members()
    assert len(members) > 5
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait()
    until(lambda: not [one for one in members if is_running(one)], "all processes end")


def is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_nothing_acknowledged_is_lost_by_a_kill_of_the_supervisor(broker: Emulated, codec: str) -> None:
    with running(broker):
        client(broker, "topic", "create", "orders", "--partitions", "2")
        kcat(broker, "-P", "-t", "orders", "-K", ":", "-z", codec, stdin="\n".join(RECORDS))
        client(broker, "produce", "orders", "-K", ":", stdin="alice:1\nbob:2\n")
        wanted = sorted([*RECORDS, "alice:1", "bob:2"])
        assert sorted(stored(broker, "orders")) == wanted
        kill_supervisor(broker)
        broker.start()
        assert sorted(stored(broker, "orders")) == wanted
        client(broker, "produce", "orders", "-K", ":", stdin="carol:3\n")
        assert sorted(stored(broker, "orders")) == sorted([*wanted, "carol:3"])
        assert broker.stop() == 0, broker.output()
    assert not broker.runtime_dir.exists()
