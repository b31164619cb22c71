"""Which partitions the turn appends to, from their beginning to their end.

It appends by itself where the files are open. Those of a partition that rests are not, and all of it is durable: the next batch for it
goes by way of Python, which opens them first. A producer does not notice.
"""
import gc

from libc.stdint cimport uint8_t

from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.log.append.commit cimport drop_core
from mpbroker.log.partition.state cimport PartitionCore, PartitionState
from mpbroker.log.append.turn cimport Turn


cdef extern from "<malloc.h>" nogil:
    int malloc_trim(size_t pad)


def give_back_memory() -> None:
    """To the system: what a start needed for a moment."""
    # Python keeps thousands of tuples for the next ones, until it collects.
    gc.collect()
    with nogil:
        malloc_trim(0)


def attach(Turn turn, PartitionState state, str topic) -> None:
    """From now on the turn knows it, and it is in the partition table; offline, if its log directory has failed."""
    cdef PartitionCore *core = &state.core
    turn.meters.name_topic(core.table_slot, core.slot.generation, (<uint8_t *>core.slot.topic_id)[:16], topic)
    turn.states[core.table_slot] = state
    turn.answers.cores[core.table_slot] = core
    if turn.commit.failed_dirs >> core.slot.log_dir & 1:
        state.flags = PARTITION_OFFLINE
    state.publish(turn.table)


def detach(Turn turn, PartitionState state) -> None:
    """It is appended to no more; what it had open is synced with the next commit round and closed. All of its topic goes."""
    cdef PartitionCore *core = &state.core
    turn.meters.forget_topic((<uint8_t *>core.slot.topic_id)[:16])
    drop_core(&turn.commit, core)
    turn.answers.cores[core.table_slot] = NULL
    turn.states[core.table_slot] = None
    for fd in (core.fd, core.index.fd, core.time_index.fd):
        if fd >= 0:
            turn.retire(fd, core.slot.log_dir)
    state.forget_files()
