"""Checks of the machine: descriptors, memory, the runtime directory's tmpfs, the clock, OpenSSL."""

from __future__ import annotations

import ctypes
import os
import resource
import ssl
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from mpbroker.cli.text.sizes import binary_size
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.version import VERSION
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import public_blocks
from mpbroker.security.listener import SecurityError, secure_listeners
from mpbroker.startup import buffers, runtime_dir
from shm.region import RegionUnavailable, file_system_of
from spark_integration.check import NOTE, OK, PROBLEM, Check, failed

FOREIGN_PACKAGE: Final = "mpbroker"
"""The name of this project's modules, and of another project's distribution on PyPI."""
DESCRIPTORS_MIN: Final = 4096
DESCRIPTORS_WANTED: Final = 65536
"""Each connection takes a descriptor, and so does each segment that is read."""
_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_NEVER_OVERCOMMIT: Final = 2
_NOT_SYNCHRONIZED: Final = 5
"""TIME_ERROR of adjtimex(2)."""
_TIMEX_BYTES: Final = 1024
"""More than a struct timex has on any architecture."""


def checks(config: BrokerConfig, *, is_running: bool) -> Iterator[Check]:
    """Check whether the machine suits a broker. `is_running`: the broker has its shared memory already."""
    yield platform()
    yield packages()
    yield descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from memory(config)
    yield shared_memory(config, is_running=is_running)
    yield clock(_is_synchronized())
    yield openssl(config)


def platform() -> Check:
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.platform != "linux":
        return Check(
            "system", PROBLEM, sys.platform, "run the broker on Linux, in a container or virtual machine"
        )
    return Check("system", OK, f"Linux {os.uname().release}, Python {python}")


def packages() -> Check:
    """Check that another project's package `mpbroker` is not installed. (Ours is mpbroker-server.)"""
    try:
        foreign = version(FOREIGN_PACKAGE)
    except PackageNotFoundError:
        return Check("package", OK, f"mpbroker-server {VERSION}")
    found = (
        f"{FOREIGN_PACKAGE} {foreign} is installed here, too: another project's, with a command of that name"
    )
    advice = f"pip uninstall {FOREIGN_PACKAGE}, then pip install --force-reinstall mpbroker-server"
    return Check("package", PROBLEM, found, advice)


def descriptors(hard: int) -> Check:
    """Check `hard`, the hard limit of open files. The broker raises its soft limit to this number."""
    name = "open files"
    if hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS_WANTED:
        return Check(name, OK, "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}")
    advice = f"LimitNOFILE={DESCRIPTORS_WANTED * 16} in the service, or ulimit -Hn (limits.conf: nofile)"
    found = f"{hard:,} for each process; each connection and each segment that is read takes one"
    return Check(name, PROBLEM if hard < DESCRIPTORS_MIN else NOTE, found, advice)


def memory(config: BrokerConfig) -> Iterator[Check]:
    """Check that there is memory for the requests in progress, and that the kernel allows overcommit."""
    wanted = buffers.request_bytes(config)
    there, limit = psutil.virtual_memory().available, _cgroup_limit()
    name, found = (
        "memory",
        f"{binary_size(there)} available; requests under way take up to {binary_size(wanted)}",
    )
    advice = "set queued.max.request.bytes to less"
    if limit is not None and wanted > limit * 0.8:
        found += f", and this control group may have {binary_size(limit)}"
        yield Check(
            name, PROBLEM, found, f"{advice}, or give the group more: the kernel kills what exceeds it"
        )
    elif wanted > there:
        yield Check(name, NOTE, found, f"{advice}, or free some")
    else:
        yield Check(name, OK, found)
    if _number_in(_OVERCOMMIT) == _NEVER_OVERCOMMIT:
        advice = "sysctl vm.overcommit_memory=0: the broker maps address space that it never touches"
        yield Check("overcommit", PROBLEM, "vm.overcommit_memory is 2", advice)


def _cgroup_limit() -> int | None:
    return _number_in(_CGROUP_LIMIT)


def _number_in(path: Path) -> int | None:
    """Return the number in a file of the kernel; None if the file is missing or contains `max`."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def shared_memory(config: BrokerConfig, *, is_running: bool) -> Check:
    """Check that the runtime directory is in memory and has room for the counters and the partition table."""
    name = "runtime directory"
    try:
        directory = runtime_dir.check(config)
    except (FatalError, RegionUnavailable) as error:
        return failed(name, error)
    there = next(one for one in (directory, *directory.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "give it to the broker's user, or name another tmpfs in MPBROKER_RUNTIME_DIR"
        return Check(name, PROBLEM, f"{there} cannot be written", advice)
    # Sparse blocks grow with topics and clients. Mostly they take less than half as much as the others.
    blocks = public_blocks(buffers.sizes(config).partition_slots)
    needed = sum(block.size for block in blocks if not block.sparse) * 3 // 2
    found = f"{directory} on {file_system_of(directory)}, {binary_size(_free(there))} free"
    if not is_running and _free(there) < needed:
        advice = f"mount -o remount,size=1G {there}; with Docker --shm-size=1g"
        return Check(name, PROBLEM, f"{found}, {binary_size(needed)} wanted", advice)
    return Check(name, OK, found)


def _free(path: Path) -> int:
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize


def clock(is_synchronized: bool | None) -> Check:
    """Check that the clock is synchronized: retention, transactions and tokens depend on it."""
    if is_synchronized is None:
        return Check("clock", NOTE, "the kernel does not say whether it is synchronized")
    if is_synchronized:
        return Check("clock", OK, "synchronized")
    advice = "run chrony or systemd-timesyncd; retention by time, and logins with tokens, go by the clock"
    return Check("clock", NOTE, "the kernel reports that it is not synchronized", advice)


def _is_synchronized() -> bool | None:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _NOT_SYNCHRONIZED


def openssl(config: BrokerConfig) -> Check:
    """Check OpenSSL, and the files and packages that listeners with TLS or SASL need."""
    version = ssl.OPENSSL_VERSION
    try:
        secure = secure_listeners(config)
    except SecurityError as error:
        return failed("OpenSSL", error)
    names = ", ".join(config.listeners[number].name for number in secure)
    return Check(
        "OpenSSL", OK, f"{version}; {f'keys and logins of {names} are usable' if names else 'no TLS'}"
    )
