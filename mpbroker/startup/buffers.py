"""Limits the memory of requests and answers: queued.max.request.bytes, or a share of the machine's memory.

The memory for requests is divided among processors (Kafka: the MemoryPool of SocketServer, one for all
processors). Each processor has an arena with a limit. The sum of the limits never exceeds the total: before
processors are added, the limits of the others are reduced; after processors have ended, they are raised. The
control plane's processor has a small share that no load on the data plane can take.
"""

from __future__ import annotations

from mpbroker.config.broker import LARGEST_REQUEST_BYTES, BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.topology import SharedMemory, Sizes
from shm import procfs

# Share of the machine's memory for all request buffers together when queued.max.request.bytes is -1.
REQUEST_MEMORY_SHARE = 0.25
CONTROL_SHARE = 16
CONTROL_BYTES_MAX = 64 << 20
REPLY_BYTES_MIN = 256 << 20
# Address space costs nothing: this much lets the sizes of blocks change freely.
EXTENT_PER_LIMIT = 16
EXTENT_BYTES_MIN = 16 << 30
EXTENT_BYTES_MAX = 1 << 40


def request_bytes(config: BrokerConfig) -> int:
    """Return how many bytes the requests of all processors may take together."""
    if config.queued_max_request_bytes > 0:
        return config.queued_max_request_bytes
    return int(procfs.memory_bytes() * REQUEST_MEMORY_SHARE)


def shares(total: int, processors: int, *, has_control: bool) -> tuple[int, int]:
    """Return (bytes for each of the data plane's `processors`, bytes for the control plane's processor)."""
    control = max(1, min(total // CONTROL_SHARE, CONTROL_BYTES_MAX)) if has_control else 0
    return max(1, (total - control) // processors), max(1, control)


def sizes(config: BrokerConfig) -> Sizes:
    """Return the sizes of the shared memory that a start allocates. `give_out` sets request limits later."""
    total = request_bytes(config)
    reply_limit = max(total, REPLY_BYTES_MIN)
    extent = (reply_limit + LARGEST_REQUEST_BYTES) * EXTENT_PER_LIMIT
    spare = topology.SPARE_SLOTS if config.log_workers > 1 else 1
    return Sizes(
        partition_slots=Sizes.partition_slots * spare,
        request_limit_bytes=1,
        reply_limit_bytes=reply_limit,
        arena_extent_bytes=min(max(extent, EXTENT_BYTES_MIN), EXTENT_BYTES_MAX) // 4096 * 4096,
        log_workers=config.log_workers,
        quota_samples=config.quota_window_num,
        quota_window_ms=config.quota_window_size_seconds * 1000,
    )


def give_out(memory: SharedMemory, config: BrokerConfig, processors: int) -> None:
    """Set the request limit of each processor. `processors`: how many the data plane has or will have."""
    each, control = shares(request_bytes(config), processors, has_control=config.control_plane is not None)
    limits = memory.words("request_limits")
    for role in topology.PROCESSORS:
        limits.store(role, control if role == topology.CONTROL_PROCESSOR else each)
