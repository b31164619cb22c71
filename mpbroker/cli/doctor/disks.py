"""Checks of the log directories: permissions, kind of file system, free space, and time of a sync."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mpbroker.cli.text.sizes import binary_size
from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.process import FatalError
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from shm.region import file_system_of
from spark_integration.check import NOTE, OK, PROBLEM, Check, failed

SYNCS: Final = 20
SYNC_BYTES: Final = 4096
SLOW_SYNC_MS: Final = 20.0
UNLIKELY_SYNC_MS: Final = 0.02
"""A faster disk ignores syncs: even one whose cache survives a power cut takes longer."""
READ_AHEAD_KB: Final = 128
LITTLE_ROOM: Final = 0.05
# A start always writes some files.
START_BYTES: Final = 1 << 20
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OVER_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "virtiofs"}
)
_IN_CONTAINER: Final = frozenset({"overlay", "aufs"})
_OTHERS: Final = 0o007


def checks(config: BrokerConfig, *, is_running: bool) -> Iterator[Check]:
    """Check each log directory. `is_running`: the broker of these directories runs."""
    for name in config.log_dirs:
        path = Path(name).absolute()
        there = next(one for one in (path, *path.parents) if one.exists())
        permission = permissions(path, there)
        yield permission
        if permission.state == PROBLEM:
            continue
        yield file_system(path, file_system_of(path))
        yield room(path, there, config, is_running=is_running)
        yield sync_time(path, there)
        yield read_ahead(path, there)
    if not is_running:
        yield metadata(config)


def permissions(path: Path, there: Path) -> Check:
    """Check that this user may write to the directory, or make it.

    `there`: the directory, or its nearest existing parent.
    """
    name = f"log.dirs {path}"
    user = f"uid {os.getuid()}"
    if not there.is_dir():
        return Check(
            name, PROBLEM, f"{there} is no directory", "name another one in log.dirs, or move it away"
        )
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        what = "cannot be used" if there == path else f"cannot be made in {there}"
        return Check(
            name, PROBLEM, f"it {what} by this user ({user})", f"chown it, or run as the owner of {there}"
        )
    if there != path:
        return Check(name, OK, "not there yet; a start makes it")
    status = path.stat()
    if status.st_uid != os.getuid() and os.getuid() != 0:
        return Check(name, PROBLEM, f"it belongs to uid {status.st_uid}, this is {user}", "run as its owner")
    if status.st_mode & _OTHERS:
        return Check(name, NOTE, "other users may read it", f"chmod -R g-w,o= {path}")
    return Check(name, OK, f"this user's ({user})")


def file_system(path: Path, kind: str) -> Check:
    """Check the kind of the file system that holds the directory."""
    name = "file system"
    if kind in _IN_MEMORY:
        return Check(
            name, NOTE, f"{path} is in memory ({kind})", "all records are lost with the power: use a disk"
        )
    if kind in _OVER_NETWORK:
        advice = "use a disk of this host: a lock, and a sync, are worth what the server makes of them"
        return Check(name, NOTE, f"{path} is on another host ({kind})", advice)
    if kind in _IN_CONTAINER:
        return Check(
            name,
            NOTE,
            f"{path} is part of a container ({kind})",
            "mount a volume: it goes with the container",
        )
    return Check(name, OK, kind)


def room(path: Path, there: Path, config: BrokerConfig, *, is_running: bool) -> Check:
    """Check that the disk has room for journals and log.reserve.bytes, and is not almost full."""
    system = os.statvfs(there)
    free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    journals = config.log_journal_bytes * config.log_workers if config.log_flush_policy == "group" else 0
    needed = 0 if is_running else journals + config.log_reserve_bytes
    found = f"{binary_size(free)} of {binary_size(total)} free"
    # With less space no start succeeds, and a running broker will soon refuse produces.
    state = PROBLEM if free < START_BYTES else NOTE
    if free < needed:
        advice = f"free {binary_size(needed)}: a start makes do with less of a journal and reserve in {path}"
        return Check("disk space", state, found, advice)
    if total and free < total * LITTLE_ROOM:
        advice = (
            "shorten retention (retention.bytes, retention.ms), or move partitions to another log directory"
        )
        return Check("disk space", state, found, advice)
    return Check("disk space", OK, found)


def sync_time(path: Path, there: Path) -> Check:
    """Measure the time of a 4 KiB sync. Each acknowledgement with acks=all waits for such a sync."""
    name = "sync"
    try:
        took_ms = sorted(_syncs(there))
    except OSError as error:
        return Check(name, PROBLEM, f"{there}: {error.strerror}", "look at the disk and the kernel's log")
    median, slowest = statistics.median(took_ms), took_ms[-1]
    found = f"{median:.2f} ms, the slowest of {SYNCS} {slowest:.2f} ms"
    if median > SLOW_SYNC_MS:
        advice = "acks=all waits for it: use a faster disk, or log.flush.policy=os, which risks records"
        return Check(name, NOTE, found, advice)
    if median < UNLIKELY_SYNC_MS and file_system_of(path) not in _IN_MEMORY:
        advice = "see that the disk's write cache survives a power cut, and that no layer ignores syncs"
        return Check(name, NOTE, f"{found}: that is too fast for a disk", advice)
    return Check(name, OK, found)


def _syncs(directory: Path) -> Iterator[float]:
    """Write and sync a temporary file several times; yield the duration of each write and sync in ms."""
    with tempfile.TemporaryFile(dir=directory) as file:
        block = os.urandom(SYNC_BYTES)
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), block, 0)
            os.fdatasync(file.fileno())
            yield (time.perf_counter() - began) * 1000


def read_ahead(path: Path, there: Path, devices: Path = Path("/sys/dev/block")) -> Check:
    """Check the size of the kernel's read-ahead. Commits wait while the device carries out large reads."""
    name, device = "read-ahead", there.stat().st_dev
    place = devices / f"{os.major(device)}:{os.minor(device)}"
    for queue in (place / "queue", place.resolve().parent / "queue"):
        setting = queue / "read_ahead_kb"
        if setting.exists():
            kilobytes = int(setting.read_text("ascii"))
            if kilobytes <= READ_AHEAD_KB:
                return Check(name, OK, f"{kilobytes} KiB")
            advice = f"echo {READ_AHEAD_KB} > {setting.resolve()}: consumers that catch up hold up commits"
            return Check(name, NOTE, f"{kilobytes} KiB", advice)
    return Check(name, OK, f"{path} is on no block device of this host")


def metadata(config: BrokerConfig) -> Check:
    """Check that the log directories are new or mpbroker's, and not Apache Kafka's."""
    try:
        refuse_foreign_metadata(config.log_dirs)
    except FatalError as error:
        return failed("topics", error)
    except OSError as error:
        return Check("topics", PROBLEM, f"{error.filename}: {error.strerror}", "run as the broker's user")
    return Check("topics", OK, "the directories are mpbroker's, or new")
