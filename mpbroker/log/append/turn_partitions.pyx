"""Which partitions the turn appends to, and which rest.

Of a partition that rests nothing is open, and all of it is durable; little is kept of it (`state.pyx`), and the turn has no core to
append to: the next batch for it goes by way of Python, which wakes it first. A producer does not notice.
"""
import gc

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.ipc.table cimport PARTITION_LIVE, PARTITION_OFFLINE
from mpbroker.log.append.commit cimport drop_core
from mpbroker.log.partition.state cimport PartitionCore, PartitionState, nothing_waits
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
    """From now on the turn appends to it, and it is in the partition table."""
    cdef PartitionCore *core = state.own()
    turn.meters.name_topic(core.table_slot, core.slot.generation, (<uint8_t *>core.slot.topic_id)[:16], topic)
    turn.states[core.table_slot] = state
    wake(turn, state)
    state.publish(turn.table)


def wake(Turn turn, PartitionState state) -> None:
    """The turn appends to it again, if it rested, unless its log directory has failed."""
    cdef PartitionCore *core = state.own()
    turn.answers.cores[core.table_slot] = core
    turn.answers.resting[core.table_slot] = 0
    if turn.commit.failed_dirs >> core.slot.log_dir & 1 and core.slot.flags != PARTITION_OFFLINE:
        state.flags = PARTITION_OFFLINE
        state.publish(turn.table)


def rest(Turn turn, PartitionState state) -> None:
    """If nothing of it is open or waits, it rests from now on."""
    cdef PartitionCore *core = state.core
    cdef uint32_t generation
    cdef uint64_t slot
    if core == NULL or core.fd >= 0 or core.moved or core.slot.flags != PARTITION_LIVE or not nothing_waits(core):
        return
    slot, generation = core.table_slot, core.slot.generation
    if turn.states[slot] is not state:
        return
    drop_core(&turn.commit, core)
    if state.rest():
        turn.answers.cores[slot] = NULL
        turn.answers.resting[slot] = generation


def detach(Turn turn, PartitionState state) -> None:
    """It is appended to no more; what it had open is synced with the next commit round and closed. All of its topic goes."""
    cdef PartitionCore *core = state.own()
    turn.meters.forget_topic((<uint8_t *>core.slot.topic_id)[:16])
    drop_core(&turn.commit, core)
    turn.answers.cores[core.table_slot] = NULL
    turn.answers.resting[core.table_slot] = 0
    turn.states[core.table_slot] = None
    for fd in (core.fd, core.index.fd, core.time_index.fd):
        if fd >= 0:
            turn.retire(fd, core.slot.log_dir)
    state.forget_files()
