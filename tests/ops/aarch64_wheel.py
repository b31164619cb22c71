"""The wheel for aarch64 in dist/, on an emulated processor: `make test-aarch64` runs this on x86-64.

It is installed by pip in a root directory of Debian's arm64 packages, with what it requires from the
registry. There units run, and a broker whose supervisor is killed. QEMU runs each instruction of aarch64,
but its memory is this processor's, which reorders less: what is only wrong on a real one is not seen here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mpbroker.config.version import VERSION
from ops.setup import debian_root, wheels
from tests.ops.dist_files import DIST, GLIBC_MINOR_MAX, look_into, named
from tests.support.distributions import ROOT
from tests.support.emulated_root import FETCHING, TOOLS, EmulatedRoot

PLACE = ROOT / "build" / "aarch64"
PACKAGES = ("bash", "ca-certificates", "coreutils", "dash", "kcat", "libssl3", "procps", "python3.11-venv")
# The release itself has 7.2, which takes memory for each page of address space, of which a broker has much.
QEMU = {"packages": ("qemu-user",), "architecture": "amd64", "release": "bookworm-backports"}
# What the tests import, with the versions of uv.lock.
IMPORTED = (
    *("aiokafka", "confluent-kafka", "crc32c", "cryptography", "hypothesis", "kafka-python", "kio", "lz4"),
    *("packaging", "pyarrow", "pyjwt", "pytest", "pytest-timeout", "pytest-xdist", "python-snappy", "pyyaml"),
    "zstandard",
)
# They want what the root does not have: sources, other users, and of the kernel what QEMU does not pass on.
LEFT_OUT = (
    "test_the_schema_is_what_extract_writes",
    "test_the_classes_are_what_emit_writes",
    "test_another_user_owns_it",
    "test_large_blocks_give_their_pages_back",
    "test_the_warm_reserve_is_kept_and_bounded",
    "test_reset_gives_everything_back_and_makes_old_leases_stale",
    "test_pages_that_cannot_be_given_back_count_as_warm",
    "test_address_space_that_is_refused_is_named",
    "test_out_of_memory_ends_the_process_instead_of_an_answer",
    "test_what_clients_sent_is_in_no_core_dump",
    "test_it_sees_what_psutil_sees",
    # It kills by a filter of system calls.
    "test_killed_rounds",
)
ROOMS = ("shm", "records", "protocol", "handlers", "network", "storage", "log")
FOLDERS = tuple(f"tests/{room}" for room in ROOMS)
PYTHON = "/opt/env/bin/python"
# Emulated, it takes ten times as long.
HOUR_S = 3600

pytestmark = [pytest.mark.process, pytest.mark.timeout(HOUR_S)]


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = sorted(DIST.glob("*_aarch64.whl"))
    assert len(found) == 1, f"there are {len(found)} wheels for aarch64 in {DIST}: make dist-aarch64"
    return found[0]


def test_the_wheel_is_for_old_systems_and_stripped(wheel: Path, tmp_path: Path) -> None:
    tag = named(wheel)
    assert (tag["version"], tag["minor"], tag["machine"]) == (VERSION, "11", "aarch64")
    assert int(tag["glibc"]) <= GLIBC_MINOR_MAX
    look_into(wheel, tmp_path)


@pytest.fixture(scope="module")
def root(wheel: Path) -> EmulatedRoot:
    """Make the root, or go on with the one of an earlier run; install this wheel in it."""
    debian_root.require(TOOLS)
    qemu = debian_root.make(PLACE / "qemu", **QEMU) / "usr/bin/qemu-aarch64"
    made = EmulatedRoot(debian_root.make(PLACE / "root", PACKAGES), qemu)
    for name in FETCHING:
        if Path(name).exists():
            (made.path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, made.path / name.lstrip("/"))
    if not (made.path / "usr/bin/sh").exists():
        (made.path / "usr/bin/sh").symlink_to("dash")
    if not (made.path / "opt/env/bin/pip").exists():
        made.run(["python3.11", "-m", "venv", "/opt/env"])
    install(made, wheel)
    bring_tests(made)
    return made


def install(root: EmulatedRoot, wheel: Path) -> None:
    """Have pip of the root install the wheel, what it requires, and what the tests import."""
    wheels.lock(root.path / "srv/locked.txt", "--all-groups", "--all-extras")
    shutil.copy(wheel, root.path / "srv")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    # A directory of this host.
    settings.pop("PIP_FIND_LINKS", None)
    pip = [PYTHON, "-m", "pip"]
    root.run([*pip, "uninstall", "--yes", "--quiet", "mpbroker-server"])
    command = ["install", "--quiet", "--only-binary=:all:", "--constraint=/srv/locked.txt"]
    file = f"/srv/{wheel.name}"
    root.run([*pip, *command, file, *IMPORTED], environment=settings, has_network=True)


def bring_tests(root: EmulatedRoot) -> None:
    """Copy the tests, without the sources: what they import is what is installed."""
    work = root.path / "srv/checkout"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copy(ROOT / "pyproject.toml", work)
    for name in ("docs", "ops", "tests"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))


def run_tests(root: EmulatedRoot, *words: str) -> str:
    pytest_ = f"{PYTHON} -m pytest -p no:cacheprovider --timeout={HOUR_S}"
    return root.run(["/bin/sh", "-c", f"cd /srv/checkout && exec {pytest_} {' '.join(words)}"])


def test_it_says_its_version(root: EmulatedRoot) -> None:
    assert root.run(["/opt/env/bin/mpbroker", "--version"]).split()[-1] == VERSION


def test_a_broker_of_it_survives_kills(root: EmulatedRoot) -> None:
    assert "5 passed" in run_tests(root, "-v", "tests/ops/emulated_broker.py")


@pytest.mark.parametrize("folder", FOLDERS)
def test_units(root: EmulatedRoot, folder: str) -> None:
    left_out = " and ".join(f"not {name}" for name in LEFT_OUT)
    chosen = ["-m", "'unit and not soak'", "-k", f"'{left_out}'"]
    run_tests(root, *chosen, f"--numprocesses={os.cpu_count()}", "--dist=loadfile", folder)
