"""A broker on a disk that takes its time: clients are told after their own timeout, and nothing is lost."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S, is_readable
from tests.support.real_brokers import create_topic, stop_cleanly

SOURCE = Path(__file__).parents[1] / "support" / "native" / "slow_disk.c"
TIMED_OUT = 7
TIMEOUT_AT = struct.calcsize(">i hhi h") + len(frames.CLIENT_ID) + struct.calcsize(">hh")
TIMEOUT_MS, LONG_MS = 300, 600_000


class SlowDisk(Mpbroker):
    @property
    def switch(self) -> Path:
        return self.directory / "slow"

    def environment(self) -> Mapping[str, str]:
        preload = str(self.directory / "slow_disk.so")
        return {**super().environment(), "LD_PRELOAD": preload, "SLOW_DISK": str(self.switch)}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SlowDisk]:
    made = SlowDisk(tmp_path)
    library = str(tmp_path / "slow_disk.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, str(SOURCE), "-ldl"], check=True)
    try:
        made.start()
        yield made
    finally:
        made.switch.unlink(missing_ok=True)
        made.kill()


def with_timeout(request: frames.Request, timeout_ms: int) -> frames.Request:
    frame = bytearray(request.frame)
    assert struct.unpack_from(">i", frame, TIMEOUT_AT) == (frames.TIMEOUT_MS,)
    struct.pack_into(">i", frame, TIMEOUT_AT, timeout_ms)
    return frames.Request(bytes(frame), request.error_at)


def test_a_produce_is_answered_after_its_own_timeout(broker: SlowDisk) -> None:
    create_topic(broker.bootstrap, "t", 1)
    request = frames.produce("t", 1, 10)
    with (
        frames.connected(broker.address, timeout_s=PATIENCE_S) as connection,
        frames.connected(broker.address, timeout_s=PATIENCE_S) as patient,
    ):
        assert frames.exchange(connection, request)[0] == 0
        broker.switch.touch()
        patient.sendall(with_timeout(request, LONG_MS).frame)
        error, response = frames.exchange(connection, with_timeout(request, TIMEOUT_MS))
        assert error == TIMED_OUT
        assert struct.unpack_from(">q", response, request.error_at + 2)[0] in (1, 2), "its offset is told"
        assert not is_readable(patient), "the time of the other request is not over"
        # The connection is not muted, the broker serves, and nobody sees what is not durable.
        assert frames.exchange(connection, with_timeout(request, TIMEOUT_MS))[0] == TIMED_OUT
        assert high_watermark(connection) == 1
        broker.switch.unlink()
        assert frames.exchange(connection, request)[0] == 0
        assert frames.answer(patient, request)[0] == 0
        assert high_watermark(connection) == 5, "what timed out was appended, once"
    assert "killed" not in broker.output()
    os.sync()
    stop_cleanly(broker)


def high_watermark(connection: frames.socket.socket) -> int:
    """Return the high watermark that a fetch from offset 0 tells."""
    request = frames.fetch("t", 0, 1 << 16)
    error, response = frames.exchange(connection, request)
    assert error == 0
    (mark,) = struct.unpack_from(">q", response, request.error_at + 2)
    return int(mark)
