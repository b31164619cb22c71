"""Default numbers of processes for this machine: the usable CPUs, limited by the control group's quota.

`os.cpu_count` is the wrong answer in a container: affinity (cpuset) and the CFS quota (cgroup v1
`cpu.cfs_quota_us`, v2 `cpu.max`) both bound what the broker can use.
"""

import math
import os
from pathlib import Path

import msgspec

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")
# The most workers of each kind, for which shared memory is reserved before the first of them starts.
MAX_PROCESSORS = 16
MAX_HANDLERS = 32
MAX_LOG_WORKERS = 7
# The most log directories: each has a bit and a journal's place set aside.
MAX_LOG_DIRS = 64

# Workers whose numbers change while the broker runs: their name here, and the most there may be.
RESIZABLE = {
    "num.io.threads": ("handlers", MAX_HANDLERS),
    "num.network.threads": ("processors", MAX_PROCESSORS),
}
RESIZE_FACTOR = 2
# Kafka's defaults. A step may go to the double of these, too: clients know them, not what fits this machine.
KAFKA_WORKERS = {"handlers": 8, "processors": 3}


def resize_problem(kind: str, old: int, new: int, most: int) -> str | None:
    """Return why the number of workers may not change from `old` to `new` in one step, or None.

    `new` must be from 1 to `most`, at least half of `old` (rounded down), and at most twice the larger of
    `old` and Kafka's default (DynamicThreadPool.validateReconfiguration, SocketServer.resizeThreadPool).
    """
    if new < 1 or new > most:
        return f"cannot resize {kind} from {old} to {new}: the number must lie in 1..{most}"
    highest = min(most, max(old, KAFKA_WORKERS[kind]) * RESIZE_FACTOR)
    if new < old // RESIZE_FACTOR or new > highest:
        return (
            f"cannot resize {kind} from {old} to {new}: one step may go from half of that "
            f"({max(1, old // RESIZE_FACTOR)}) to {highest}"
        )
    return None


class Workers(msgspec.Struct, frozen=True):
    """Default numbers of processors and handlers. They depend on the number of CPUs."""

    processors: int
    handlers: int


def default_workers(cpus: int | None = None) -> Workers:
    """Return one processor per two CPUs and one handler per CPU.

    The bounds are 1 and MAX_PROCESSORS for processors, 2 and MAX_HANDLERS for handlers.
    """
    count = usable_cpus() if cpus is None else cpus
    return Workers(
        processors=min(max(1, count // 2), MAX_PROCESSORS), handlers=min(max(2, count), MAX_HANDLERS)
    )


def usable_cpus(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> int:
    """Return the number of CPUs that this process may use, rounded up, at least one."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(root, self_cgroup)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def cgroup_quota(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> float | None:
    """Return the smallest CPU quota of our control group and its ancestors, in CPUs; None without a quota."""
    quotas = []
    for hierarchy, path in _memberships(self_cgroup):
        for group in _upwards(path):
            if hierarchy == "":
                quotas.append(_quota_v2(root / group / "cpu.max"))
            elif "cpu" in hierarchy.split(","):
                for name in {hierarchy, "cpu", "cpu,cpuacct"}:
                    quotas.append(_quota_v1(root / name / group))
    return min((quota for quota in quotas if quota is not None), default=None)


def _memberships(self_cgroup: Path) -> list[tuple[str, str]]:
    """Return (controllers, path) of each hierarchy of control groups; controllers is "" for version 2."""
    text = _read(self_cgroup)
    if text is None:
        return []
    parts = [line.split(":", 2) for line in text.splitlines()]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _upwards(path: str) -> list[str]:
    """Return the paths of a group and of all its ancestors, relative to the mount; "" is the mount itself."""
    names = [name for name in path.split("/") if name and name != ".."]
    return ["/".join(names[:depth]) for depth in range(len(names), -1, -1)]


def _quota_v2(path: Path) -> float | None:
    words = (_read(path) or "").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(group: Path) -> float | None:
    quota_us = int(_read(group / "cpu.cfs_quota_us") or -1)
    period_us = int(_read(group / "cpu.cfs_period_us") or 0)
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read(path: Path) -> str | None:
    """Return the content of a file of a cgroup; None if it cannot be read, which means no limit."""
    try:
        return path.read_text()
    except OSError:
        return None
