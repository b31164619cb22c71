"""Pauses and resumes produce jobs, and switches a partition to the log directory that it was moved to."""
from libc.stdint cimport int32_t
from libc.stdlib cimport realloc
from libc.string cimport memmove

from mpbroker.ipc.table cimport PARTITION_OFFLINE
from mpbroker.log.append.commit cimport forget_behind
from mpbroker.log.append.paused_jobs cimport PausedJob
from mpbroker.log.partition.state cimport PartitionCore, PartitionState
from mpbroker.log.append.turn cimport AppendTurn
from shm.ring cimport Slot


def pause_job(AppendTurn turn) -> None:
    """Pause the job at which the round has stopped with BATCH_FOR_PYTHON. `resume_jobs` makes it run again.

    A job is paused if its partition is being moved, if the job has used its share of Python's time, or if
    an earlier job of its connection is paused, to keep the jobs' order. Raises MemoryError.
    """
    cdef PausedJob *grown
    if turn.paused.count == turn.paused.room:
        grown = <PausedJob *>realloc(turn.paused.jobs, (turn.paused.room * 2 + 64) * sizeof(PausedJob))
        if grown == NULL:
            raise MemoryError("no memory for a job that has to wait")
        turn.paused.jobs, turn.paused.room = grown, turn.paused.room * 2 + 64
    turn.paused.jobs[turn.paused.count].slot = turn.jobs[turn.job]
    turn.paused.jobs[turn.paused.count].batch = turn.batch
    turn.paused.count += 1
    turn.job_count -= 1
    memmove(&turn.jobs[turn.job], &turn.jobs[turn.job + 1], (turn.job_count - turn.job) * sizeof(Slot))
    turn.batch = 0


def resume_jobs(AppendTurn turn) -> int:
    """Have the next rounds retry the paused jobs, one a round, before any new job. Return their number.

    The jobs are retried in the order of their arrival. Jobs that were retried and paused again are
    older than jobs still to be retried, so they go first.
    """
    cdef PausedJob first
    cdef int32_t _
    for _ in range(turn.paused.retrying):
        first = turn.paused.jobs[0]
        memmove(turn.paused.jobs, turn.paused.jobs + 1, (turn.paused.count - 1) * sizeof(PausedJob))
        turn.paused.jobs[turn.paused.count - 1] = first
    turn.paused.retrying = turn.paused.count
    return turn.paused.count


def relocate(AppendTurn turn, PartitionState state, int log_dir) -> None:
    """Append to the partition in log directory `log_dir` from now on. Its copied files must be synced.

    Raises ValueError if a file of the partition is open, unsynced or part of a commit round.
    """
    cdef PartitionCore *core = &state.core
    if core.unsynced or core.in_flight or core.fd >= 0:
        raise ValueError("something of the partition is still under way in its old log directory")
    forget_behind(&turn.commit, core)
    core.slot.log_dir = log_dir
    if turn.commit.failed_dirs >> log_dir & 1:
        state.flags = PARTITION_OFFLINE
    core.synced = core.log_end
    state.publish(turn.table)
