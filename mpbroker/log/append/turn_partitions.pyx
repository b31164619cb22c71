"""Attaches partitions to the turn, which then appends to them, and detaches them.

The turn appends to a partition by itself while the partition's files are open. A dormant partition has no
open files, and all its records are durable. Its next batch goes through Python, which opens the files first.
"""
import gc

from libc.stdint cimport int64_t, uint8_t

from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.log.append.commit cimport coming_round, drop_core, join_round
from mpbroker.log.partition.state cimport PartitionCore, PartitionState
from mpbroker.log.append.turn cimport AppendTurn


cdef extern from "<malloc.h>" nogil:
    int malloc_trim(size_t pad)


def give_back_memory() -> None:
    """Return to the operating system the memory that only the start needed."""
    # Python keeps thousands of tuples for reuse until it collects.
    gc.collect()
    with nogil:
        malloc_trim(0)


def attach(AppendTurn turn, PartitionState state, str topic) -> None:
    """Add the partition to the turn and the partition table, as offline if its log directory has failed."""
    cdef PartitionCore *core = &state.core
    turn.meters.name_topic(core.table_slot, core.slot.generation, (<uint8_t *>core.slot.topic_id)[:16], topic)
    turn.states[core.table_slot] = state
    turn.answers.cores[core.table_slot] = core
    if turn.commit.failed_dirs >> core.slot.log_dir & 1:
        state.flags = PARTITION_OFFLINE
    state.publish(turn.table)


def ship_rest(AppendTurn turn, PartitionState state) -> None:
    """Ship with the next commit round what the partition has above its high watermark, and raise that then.

    (`PartitionState.is_shipped_below`.)
    """
    state.core.commit_number = coming_round(&turn.commit)
    join_round(&turn.commit, &state.core)


def ship_log_start(AppendTurn turn, PartitionState state, int64_t offset) -> int:
    """Have the next commit round ship a log start offset that is to be; return the round's number."""
    state.core.coming_start = max(state.core.coming_start, offset)
    join_round(&turn.commit, &state.core)
    return coming_round(&turn.commit)


def detach(AppendTurn turn, PartitionState state) -> None:
    """Remove the partition of a removed topic from the turn.

    Its open files are synced with the next commit round and closed.
    """
    cdef PartitionCore *core = &state.core
    turn.meters.forget_topic((<uint8_t *>core.slot.topic_id)[:16])
    drop_core(&turn.commit, core)
    turn.answers.cores[core.table_slot] = NULL
    turn.states[core.table_slot] = None
    for fd in (core.fd, core.index.fd, core.time_index.fd):
        if fd >= 0:
            turn.retire(fd, core.slot.log_dir)
    state.forget_files()
