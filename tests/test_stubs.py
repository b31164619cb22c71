"""The stubs of the native modules say what the modules have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PACKAGES = ("shm", "mpbroker")

# What Cython adds to every module and class, which no caller is meant to see.
CYTHON_ADDS = r""".*\.__reduce_cython__
.*\.__setstate_cython__
.*\.__reduce__
.*\.__test__
.*\.__pyx_.*
"""
# What modules import or define for themselves alone.
FOR_THEMSELVES = (
    "mpbroker.handlers.hot_path.turn.COORDINATOR",
    "mpbroker.handlers.hot_path.turn.FIRST_HANDLER",
    "mpbroker.handlers.hot_path.turn.LOG",
    "mpbroker.storage.journal.NO_ROOM",
    "mpbroker.storage.fetch_positions.INDEX_SUFFIX",
    "mpbroker.storage.fetch_positions.LOG_SUFFIX",
    "mpbroker.storage.scan.ChunkBuffer",
    "mpbroker.network.acceptor.turn.COUNTS_BYTES",
    "mpbroker.network.processor.turn.Api",
    "mpbroker.network.processor.turn.LEVELS",
    "mpbroker.network.processor.turn.MAX_LISTENERS",
    "mpbroker.records.arrow.DEFAULT_LIMIT_BYTES",
    "mpbroker.records.arrow.HEADER_KEY_GROWTH",
)


def test_stubs_agree_with_the_modules(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    stubs = sorted(stub for package in PACKAGES for stub in (root / package).rglob("*.pyi"))
    modules = [".".join(stub.relative_to(root).with_suffix("").parts) for stub in stubs]
    assert len(modules) >= 25
    allowed = tmp_path / "allowed"
    allowed.write_text(CYTHON_ADDS + "\n".join(FOR_THEMSELVES))
    command = [sys.executable, "-m", "mypy.stubtest", "--allowlist", allowed, "--ignore-unused-allowlist"]
    run = subprocess.run(
        [*command, "--ignore-disjoint-bases", "--concise", *modules],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "MYPYPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
