"""Compiles the native modules, in as many jobs as there are CPUs. A job translates and compiles a module.

setup.py calls this for a checkout, for wheels and for sanitizers alike.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from Cython import __version__ as cython_version  # type: ignore[attr-defined]
from Cython.Build import cythonize

# The module with code that Cython would otherwise add to each module: half of their build time and size.
SHARED = "shm._cyutility"
SHARED_SOURCE = Path("shm", "_cyutility.c")
DIRECTIVES: Mapping[str, Any] = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": False,
    "show_performance_hints": False,
}
_command: Any = None


def build(command: Any) -> None:
    """Build the extensions of a `build_ext` command, the largest first. Print each one that is compiled."""
    global _command
    # Modules of another Cython would not find their functions in the shared one.
    command.force = write_shared() or command.force
    names = [one.name for one in sorted(command.extensions, key=_source_bytes, reverse=True)]
    _command = command
    started, done = time.monotonic(), 0
    # Forked, since a command cannot be pickled.
    with ProcessPoolExecutor(int(command.parallel), get_context("fork")) as pool:
        jobs = {pool.submit(_build_one, name): name for name in names}
        try:
            for job in as_completed(jobs):
                done += 1
                if job.result():
                    spent = time.monotonic() - started
                    print(f"compiled {done:2}/{len(jobs)} {spent:4.0f} s  {jobs[job]}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _build_one(name: str) -> bool:
    """Build a module, in a child process. Return False if it was up to date."""
    (found,) = (one for one in _command.extensions if one.name == name)
    path = Path(_command.get_ext_fullpath(name))
    before = path.stat().st_mtime_ns if path.exists() else None
    _command.build_extension(found)
    return path.stat().st_mtime_ns != before


def translate(extension: Any, force: bool) -> None:
    """Have Cython write an extension's C source if that is older than its sources."""
    (translated,) = cythonize(  # type: ignore[no-untyped-call]
        [extension],
        force=force,
        quiet=True,
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=SHARED,
    )
    # The .pyx files say which libraries they need.
    vars(extension).update(vars(translated))


def write_shared() -> bool:
    """Have Cython write its module of utility code; return False if this Cython version already wrote it."""
    if SHARED_SOURCE.exists():
        with SHARED_SOURCE.open(encoding="utf-8") as text:
            if f"Cython {cython_version} " in text.readline():
                return False
    command = [sys.executable, "-m", "cython", f"--generate-shared={SHARED_SOURCE}", "--module-name", SHARED]
    subprocess.run(command, check=True)
    return True


def _source_bytes(extension: Any) -> int:
    path = Path(str(extension.sources[0]))
    return path.stat().st_size if path.suffix == ".pyx" else sys.maxsize
