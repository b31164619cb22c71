"""Limits of the system on the broker's processes, such as open files, and advice about them."""

from __future__ import annotations

import errno
import resource

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology

# Of the supervisor: standard streams, memory, locks, signals, its own sockets, and pipes for a moment.
_OTHERS = 32
# Of a log directory: its lock, its journal, and checkpoints, some of them for a moment.
_OF_A_LOG_DIR = 8
# For connections, partitions and segments: with fewer a process could do no work.
_FOR_WORK = 96

_ADVICE = {
    errno.EMFILE: "Raise the limit of open files (LimitNOFILE)",
    errno.ENFILE: "Raise fs.file-max (sysctl)",
    errno.EAGAIN: "Raise the limits of processes (ulimit -u; LimitNPROC, TasksMax)",
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f; LimitFSIZE)",
}


def raise_file_limit(config: BrokerConfig) -> None:
    """Raise the soft limit of open files to the hard limit. Raises ValueError if the hard limit is too low.

    A log worker has three open files per partition, a processor one socket per connection. The usual soft
    limit of 1024 is meant for programs that use select().
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(config)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"each process of this broker needs {needed} open files or more, and may have {hard}. Raise the "
            "limit before the start, such as by `ulimit -n 65536`, or LimitNOFILE=1048576 in the service"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_needed(config: BrokerConfig) -> int:
    """Return the number of open files that each process of the broker must be allowed.

    The supervisor needs the most: every doorbell, the pairs of sockets by which acceptors hand over
    connections, the listening sockets, and a descriptor for each child.
    """
    pairs = len(topology.PROCESSORS) + len(topology.ACCEPTORS)
    children = config.num_io_threads + config.num_network_threads + config.log_workers
    return (
        topology.PROCESSES
        + 2 * pairs
        + children
        + len(config.listeners)
        + _OF_A_LOG_DIR * len(config.log_dirs)
        + _OTHERS
        + _FOR_WORK
    )


def advice(error: OSError) -> str:
    """Return advice to append to an error's text: which limit to raise, "" if no limit was the cause."""
    found = _ADVICE.get(error.errno or 0)
    return f". {found}" if found else ""
