"""Builds the native modules and the jar of the JVM reader. Everything else stands in pyproject.toml.

Variables of the environment change the build:

* `MPBROKER_NATIVE=0` leaves the native modules out of an editable install. The Makefile uses it: it compiles
  them in place afterwards, once, instead of once in a temporary directory and again after the first change.
* `CFLAGS` with an optimisation level, such as `-O0`, replaces `-O2`; with `-g` it replaces `-g0`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError
from multiprocessing import get_context
from pathlib import Path

import Cython
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# For the modules of ops/setup: who builds by pyproject.toml does not have it there.
sys.path.insert(0, str(ROOT))
PACKAGES = ("shm", "mpbroker")
# Only an unpacked sdist has it.
SDIST_METADATA = ROOT / "PKG-INFO"
SDIST_FILES = ROOT / "mpbroker.egg-info" / "SOURCES.txt"
JVM_READER = Path("spark_integration", "jvm")
# Has what Cython adds to every module, once: that takes half of the time and size of the others away.
SHARED = "shm._cyutility"
SHARED_SOURCE = Path("shm", "_cyutility.c")
# None about code that Cython itself writes.
WARNINGS = ("-Wall", "-Wno-unused-function", "-Wno-enum-compare", "-Wno-sign-compare")
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": False,
    "show_performance_hints": False,
}


def main() -> None:
    refuse_incomplete_sdist()
    setup(
        version=version(),
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    )


def version() -> str:
    """Find the version, and leave it for the program. Raises SystemExit if nothing says it."""
    from ops.setup import version as versions

    try:
        found = versions.find(ROOT)
    except versions.NoVersion as error:
        raise SystemExit(f"setup.py: {error}") from error
    versions.write(ROOT, found)
    return found


def refuse_incomplete_sdist() -> None:
    """Raises SystemExit if an unpacked sdist lacks a file that it was made of."""
    if not SDIST_METADATA.exists():
        return
    missing = [name for name in SDIST_FILES.read_text("utf-8").splitlines() if not (ROOT / name).exists()]
    if missing:
        raise SystemExit(
            f"setup.py: {len(missing)} of the files that {SDIST_FILES} names are missing, the first is "
            f"{missing[0]}. Unpack the sdist again"
        )


def extensions() -> list[Extension]:
    """Finds every Cython module below the packages. Raises SystemExit if there is none to be built."""
    if os.environ.get("MPBROKER_NATIVE") == "0":
        if "bdist_wheel" in sys.argv:
            raise SystemExit(
                "setup.py: MPBROKER_NATIVE=0 is for editable installs; a wheel without native modules does "
                "not work. Unset the variable"
            )
        return []
    headers = sorted(str(h.relative_to(ROOT)) for package in PACKAGES for h in (ROOT / package).rglob("*.h"))
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.pyx"))]
    if not sources:
        raise SystemExit(
            f"setup.py: there is no .pyx file below {' or '.join(PACKAGES)} in {ROOT}, so nothing to build. "
            "Use a whole checkout, or an sdist that make dist made"
        )
    relative = [path.relative_to(ROOT) for path in sources]
    shared = Extension(SHARED, [str(SHARED_SOURCE)], extra_compile_args=flags())
    return [shared, *(extension(path, headers) for path in relative)]


def extension(path: Path, headers: list[str]) -> Extension:
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=[str(ROOT)],
        depends=headers,
        # Descriptors are filled as one struct and copied as another: they may be the same bytes.
        extra_compile_args=[*flags(), "-fno-strict-aliasing", *WARNINGS],
    )


def flags() -> list[str]:
    """List the flags that CFLAGS may replace. Debugging information would be four fifths of each module."""
    given = os.environ.get("CFLAGS", "")
    return ([] if "-O" in given else ["-O2"]) + ([] if "-g" in given else ["-g0"])


class BuildNative(build_ext):
    """Translates and compiles one module on each CPU, the largest first, and prints each that is done."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = len(os.sched_getaffinity(0))
        self.cython_directives = DIRECTIVES
        self.shared_utility_qualified_name = SHARED

    def build_extensions(self) -> None:
        # Modules of another Cython would not find in the shared one what they expect there.
        self.force = write_shared() or self.force
        self.by_name = {one.name: one for one in self.extensions}
        names = sorted(self.by_name, key=lambda name: source_bytes(self.by_name[name].sources[0]), reverse=True)
        started, done = time.monotonic(), 0
        # Forked: a command of setuptools cannot be pickled.
        with ProcessPoolExecutor(int(self.parallel), get_context("fork"), inherit, (self,)) as pool:
            jobs = {pool.submit(build_one, name): name for name in names}
            try:
                for job in as_completed(jobs):
                    done += 1
                    if job.result():
                        spent = time.monotonic() - started
                        print(f"compiled {done:2}/{len(jobs)} {spent:4.0f} s  {jobs[job]}", flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def build_extension(self, ext: Extension) -> None:
        if not self.inplace:
            # Installed modules need no names of what only they use.
            ext.extra_link_args.append("-Wl,-s")
        super().build_extension(ext)


def write_shared() -> bool:
    """Have Cython write the shared module. Return False if this version of it has written it before."""
    source = ROOT / SHARED_SOURCE
    if source.exists():
        with source.open(encoding="utf-8") as text:
            if f"Cython {Cython.__version__} " in text.readline():
                return False
    subprocess.run(
        [sys.executable, "-m", "cython", f"--generate-shared={source}", "--module-name", SHARED], check=True
    )
    return True


def source_bytes(path: str) -> int:
    """Return the size of a module's source, with what it includes textually."""
    text = Path(path).read_text("utf-8")
    parts = re.findall(r'^ *include "(.*)"', text, re.MULTILINE)
    return len(text) + sum((Path(path).parent / part).stat().st_size for part in parts)


_command: BuildNative


def inherit(command: BuildNative) -> None:
    global _command
    _command = command


def build_one(name: str) -> bool:
    """Translate and compile a module in a child process. Return False if it was up to date."""
    path = Path(_command.get_ext_fullpath(name))
    before = path.stat().st_mtime_ns if path.exists() else None
    _command.build_extension(_command.by_name[name])
    return path.stat().st_mtime_ns != before


class BuildPython(build_py):
    """Adds the jar of the JVM reader, for the PySpark of the environment that builds.

    Without a JDK or PySpark the jar that lies in the checkout is taken, if there is one.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._build_jar()

    def _build_jar(self) -> None:
        from ops.setup import jvm_reader

        into = Path(self.build_lib) / JVM_READER
        try:
            print(f"setup.py: built {jvm_reader.build(into)}", file=sys.stderr)
        except (jvm_reader.NoCompiler, PackageNotFoundError) as reason:
            if not list(into.glob("*.jar")):
                print(
                    f"setup.py: going on without the JVM reader of Spark sessions: {reason}", file=sys.stderr
                )


main()
