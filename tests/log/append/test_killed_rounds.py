"""A log process is killed in a round that it had offered: its flusher has taken it, and nobody hears of its
end.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from mpbroker.ipc.topology import LOG
from mpbroker.log.append.turn_journals import journal_ends
from mpbroker.storage import journal
from tests.log.append.test_offered_rounds import PARTITIONS, Held, MakeRig
from tests.support.full_disk import files_take
from tests.support.log_node import SEGMENT, records
from tests.support.log_rig import TOPIC_ID, Rig, end
from tests.support.log_writer import make_batch
from tests.support.stepped_log import settle

pytestmark = pytest.mark.usefixtures("tidy")
# What the last record on disk is written over with: records of a batch, bytes of each value.
OFFERED = (3, 400)
SMALLER, LARGER = (1, 20), (5, 900)
# The numbers of seccomp, pwrite64 and fdatasync.
CALLS = {"x86_64": (317, 18, 75), "aarch64": (277, 68, 83)}
FIRST_ARGUMENT, LAST_ARGUMENT = 0, 3


def ended_by(work: Callable[[], None]) -> int:
    """The signal that ends a process of its own that does it; 0: it lived on."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the fork exits in any case
            traceback.print_exc()
        finally:
            os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at(call: int, argument: int, value: int) -> None:
    """From now on this process, whichever of its threads it is, ends (SIGSYS) instead of making this call
    with that argument: as by kill -9, at a place of our own choice.
    """
    program = b"".join(
        struct.pack("=HBBI", *line)
        for line in (
            (0x20, 0, 0, 0),  # load the call's number
            (0x15, 0, 3, call),  # another one: four lines on
            (0x20, 0, 0, 16 + 8 * argument),
            (0x15, 0, 1, value),
            (0x06, 0, 0, 0x8000_0000),  # kill the process
            (0x06, 0, 0, 0x7FFF_0000),  # allow
        )
    )
    held = ctypes.create_string_buffer(program, len(program))
    libc = ctypes.CDLL(None, use_errno=True)
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges: who is not root may do this then
    for_all_threads = ctypes.c_long(1)
    filters = CALLS[platform.machine()][0]
    assert libc.syscall(ctypes.c_long(filters), ctypes.c_long(1), for_all_threads, described) == 0


def record_bytes(payload: int) -> int:
    """Return the size of a journal record with one extent; `journal.h` draws it."""
    return -(-(40 + 48 + payload) // journal.BLOCK_BYTES) * journal.BLOCK_BYTES


def die(made: Rig, where: str) -> None:
    """In the second of two rounds: it writes a record to the journal, then syncs a segment of another
    partition, then the journal.
    """
    held = Held(lambda: made)
    for number in (0, 1):
        held.append(make_batch(1), number)
        settle(held.process)
    assert held.errors() == [0, 0]
    _, end_of_journal = journal_ends(held.process.turn, 0)
    segment = held.fd_of(held.log(1).directory / SEGMENT, os.O_RDWR)
    held.stall()
    asked, (count, size) = make_batch(2), OFFERED
    held.append(asked)
    held.process.turn.flush(held.log(1).state)
    held.append(make_batch(count, size=size))
    at = journal.RING_AT + end_of_journal + record_bytes(len(asked))
    torn_at = at + journal.BLOCK_BYTES
    _, pwrite, fdatasync = CALLS[platform.machine()]
    if where == "behind the record":
        die_at(fdatasync, FIRST_ARGUMENT, segment)
    elif where != "behind the round":
        die_at(pwrite, LAST_ARGUMENT, torn_at if where == "within the record" else at)
    with files_take(torn_at if where == "within the record" else 1 << 30):
        held.let_flusher_go()
    os.kill(os.getpid(), signal.SIGKILL)


def succeed(made: Rig) -> Held:
    """Start a successor. Only the log process died, so memory stays."""
    made.memory.reset_rings_of(LOG)
    made.bind()
    return Held(lambda: made)


def journaled(held: Held) -> list[tuple[int, int, bool]]:
    """(partition, offset behind it, whether its process wrote none before) of each record of the topic."""
    return [
        (extent.partition, extent.end_offset, record.is_first)
        for record in records(held.journal)
        for extent in record.extents
        if extent.topic_id == TOPIC_ID
    ]


def marks(held: Held) -> list[int]:
    return [held.log(number).state.high_watermark for number in range(PARTITIONS)]


@pytest.mark.skipif(platform.machine() not in CALLS, reason="the kernel numbers its calls otherwise")
@pytest.mark.parametrize("over", [OFFERED, SMALLER, LARGER])
@pytest.mark.parametrize(
    "where", ["in front of the record", "within the record", "behind the record", "behind the round"]
)
def test_killed_in_an_offered_round(rig: MakeRig, where: str, over: tuple[int, int]) -> None:
    """Check that the successor continues behind whole records, and that no replay finds what it overwrote."""
    made = rig()
    ended = ended_by(partial(die, made, where))
    assert ended == (signal.SIGKILL if where == "behind the round" else signal.SIGSYS)
    held = succeed(made)
    # Each record of a process that is not its first says that the round in front of it was finished.
    whole = [(0, 1, True), (1, 1, False), (0, 3, False)]
    whole += [(0, 6, False)] if where in ("behind the record", "behind the round") else []
    assert journaled(held) == whole
    assert marks(held) == [6, 1, 0], "also what nobody was told of"
    segment = held.log().directory / SEGMENT
    synced = segment.stat().st_size
    count, size = over
    held.append(make_batch(count, size=size))
    settle(held.process)
    assert held.errors() == [0]
    assert journaled(held) == [*whole, (0, 6 + count, True)]
    had = segment.read_bytes()
    # The power is cut: what a successor finds it syncs before it goes on, and the rest is in the journal.
    end(held.process)
    made.processes.clear()
    os.truncate(segment, synced)
    held = Held(rig)
    assert marks(held) == [6 + count, 1, 0]
    assert segment.read_bytes() == had
