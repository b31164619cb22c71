"""The stubs of the native modules say what the modules have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# What Cython adds to every module and class, which no caller is meant to see.
CYTHON_ADDS = r""".*\.__reduce_cython__
.*\.__setstate_cython__
.*\.__reduce__
.*\.__test__
.*\.__pyx_.*
"""


def test_stubs_agree_with_the_modules(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    modules = [f"shm.{stub.stem}" for stub in sorted((root / "shm").glob("*.pyi"))]
    assert len(modules) >= 8
    allowed = tmp_path / "allowed"
    allowed.write_text(CYTHON_ADDS)
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
