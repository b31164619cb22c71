"""Worker counts from affinity and both generations of control groups."""

from pathlib import Path

import pytest

from mpbroker.config import workers


@pytest.mark.parametrize(
    ("cpus", "expected"), [(1, (1, 2)), (2, (1, 2)), (3, (1, 3)), (8, (4, 8)), (200, (16, 32))]
)
def test_defaults(cpus: int, expected: tuple[int, int]) -> None:
    found = workers.default_workers(cpus)
    assert (found.processors, found.handlers) == expected


def _group(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    root = tmp_path / "cgroup"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    own = tmp_path / "self"
    own.write_text(membership)
    return root, own


def test_v2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    files = {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "150000 100000\n", "cpu.max": "max 100000\n"}
    assert workers.cgroup_quota(*_group(tmp_path, "0::/a/b\n", files)) == 1.5


def test_v2_without_a_quota(tmp_path: Path) -> None:
    assert workers.cgroup_quota(*_group(tmp_path, "0::/a\n", {"a/cpu.max": "max 100000\n"})) is None


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_v1(tmp_path: Path, mount: str) -> None:
    files = {f"{mount}/docker/cpu.cfs_quota_us": "50000", f"{mount}/docker/cpu.cfs_period_us": "100000"}
    membership = "5:memory:/docker\n4:cpu,cpuacct:/docker\n"
    assert workers.cgroup_quota(*_group(tmp_path, membership, files)) == 0.5


def test_v1_without_a_quota(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert workers.cgroup_quota(*_group(tmp_path, "4:cpu:/\n", files)) is None


def test_usable_cpus_are_bounded_by_affinity_and_never_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _pid: set(range(4)))
    root, own = _group(tmp_path, "0::/a\n", {"a/cpu.max": "10000 100000\n"})
    assert workers.usable_cpus(root, own) == 1
    (root / "a/cpu.max").write_text("900000 100000")
    assert workers.usable_cpus(root, own) == 4
    assert workers.usable_cpus(root, tmp_path / "missing") == 4


def test_shared_memory_has_room_for_as_many() -> None:
    from mpbroker.ipc import topology

    assert (workers.MAX_PROCESSORS, workers.MAX_HANDLERS) == (topology.MAX_PROCESSORS, topology.MAX_HANDLERS)
