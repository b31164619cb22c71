"""`mpbroker remote` on a running broker: what its tier has done and waits for, and a collection on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import without_secrets
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import lease_left_ms
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.standby_lag import read_lag
from mpbroker.ipc.topology import SharedMemory
from mpbroker.storage.names import REMOTE_OWNER
from shm.counters import CounterPage

# Reported as they are.
COUNTS = {
    "segments": Counter.COUNT_REMOTE_SEGMENTS,
    "bytes": Counter.COUNT_REMOTE_BYTES,
    "copied_segments": Counter.COUNT_REMOTE_COPIED_SEGMENTS,
    "copied_bytes": Counter.COUNT_REMOTE_COPIED_BYTES,
    "pending_segments": Counter.COUNT_REMOTE_PENDING_SEGMENTS,
    "pending_bytes": Counter.COUNT_REMOTE_PENDING_BYTES,
    "removed_segments": Counter.COUNT_REMOTE_REMOVED_SEGMENTS,
    "removed_bytes": Counter.COUNT_REMOTE_REMOVED_BYTES,
    "deleted_segments": Counter.COUNT_REMOTE_DELETED_SEGMENTS,
    "cuts": Counter.COUNT_REMOTE_CUTS,
    "cuts_skipped": Counter.COUNT_REMOTE_CUTS_SKIPPED,
    "last_cut_pause_us": Counter.COUNT_REMOTE_CUT_PAUSE_US,
    "errors": Counter.COUNT_REMOTE_ERRORS,
    "fetches": Counter.COUNT_REMOTE_FETCHES,
    "fetched_bytes": Counter.COUNT_REMOTE_FETCHED_BYTES,
    "fetch_errors": Counter.COUNT_REMOTE_FETCH_ERRORS,
    "cache_bytes": Counter.COUNT_REMOTE_CACHE_BYTES,
    "cache_hits": Counter.COUNT_REMOTE_CACHE_HITS,
}
# Times by the wall clock; None in place of 0.
TIMES = {
    "pending_since_ms": Counter.COUNT_REMOTE_PENDING_SINCE_MS,
    "last_commit_ms": Counter.COUNT_REMOTE_COMMITTED_MS,
    "down_since_ms": Counter.COUNT_REMOTE_DOWN_SINCE_MS,
    "last_cut_ms": Counter.COUNT_REMOTE_CUT_MS,
}


def report(memory: SharedMemory, config: BrokerConfig) -> dict[str, Any]:
    """Return what the tier's counters say, and where the object store is."""
    page, lag = memory.counters(topology.TIER), read_lag(Path(config.log_dirs[0]))
    if lag is None and not config.remote_log_storage_system_enable:
        return {"enabled": False}
    return {
        "enabled": True,
        "standby": None if lag is None else {"behind_s": lag.behind_s, **structs.asdict(lag)},
        "state": "reads only" if config.mpbroker_remote_read_only else _state(page),
        "url": without_secrets(config.mpbroker_remote_url) if lag is None else lag.url,
        "request_timeout_ms": config.mpbroker_remote_request_timeout_ms,
        "cache_limit_bytes": config.mpbroker_remote_cache_bytes,
        "cut_interval_ms": config.mpbroker_remote_checkpoint_interval_ms,
        "task_interval_ms": config.remote_log_manager_task_interval_ms,
        "log_dirs": list(config.log_dirs),
        "status": page.status,
        "last_error": page.last_error,
        "fenced": bool(page.get(Counter.COUNT_REMOTE_FENCED)),
        "leads": memory.leading().leads(),
        "lease_left_ms": lease_left_ms(page.get(Counter.COUNT_REMOTE_LEASE_UNTIL_MS)),
        **{name: page.get(counter) for name, counter in COUNTS.items()},
        **{name: page.get(counter) or None for name, counter in TIMES.items()},
    }


def has_lease(config: BrokerConfig) -> bool:
    """Return whether this broker leads only with a lease, which the tier has to get first.

    Raises FatalError if it needs one and has no tier, OSError.
    """
    directory = Path(config.log_dirs[0])
    if not (directory / REMOTE_OWNER).exists():
        return False
    # A broker that was never tiered does not keep these modules in memory.
    from mpbroker.remote.ledger.owner import OwnerDamaged, read_owner

    try:
        owner = read_owner(directory)
    except OwnerDamaged:
        # It may have named a standby. The tier reports the damage, and looks into the ledger.
        return config.remote_log_storage_system_enable
    if owner is None or not owner.standbys:
        return False
    if not config.remote_log_storage_system_enable:
        raise FatalError(
            f"{directory / REMOTE_OWNER} names standbys (brokers {', '.join(map(str, owner.standbys))}): one "
            "may take over while this broker runs without remote.log.storage.system.enable. Stop them, and "
            "start this broker with it until mpbroker remote status shows none"
        )
    return True


def _state(page: CounterPage) -> str:
    """Return the tier's state in one word: stopped, down, behind or ok."""
    if page.get(Counter.COUNT_REMOTE_FENCED):
        return "stopped"
    if page.get(Counter.COUNT_REMOTE_DOWN_SINCE_MS):
        return "down"
    return "behind" if page.get(Counter.COUNT_REMOTE_PENDING_SEGMENTS) else "ok"


def collect(memory: SharedMemory, config: BrokerConfig) -> None:
    """Ask the tier to delete in its next turn the objects that no ledger entry names. Raises FatalError."""
    if not config.remote_log_storage_system_enable:
        raise FatalError("remote.log.storage.system.enable=false: the broker has no object store")
    is_fenced = memory.counters(topology.TIER).get(Counter.COUNT_REMOTE_FENCED)
    if is_fenced or config.mpbroker_remote_read_only:
        raise FatalError("the tier does not write to the object store: mpbroker remote status says why")
    words = memory.words("remote_asked")
    words.store(0, words.load(0) + 1)
