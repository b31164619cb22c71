"""Builds the native modules and the jar of the JVM reader. Everything else stands in pyproject.toml.

Two variables of the environment change the build:

* `MPBROKER_NATIVE=0` leaves the native modules out of an editable install. `make setup` uses it: it compiles
  them in place afterwards, once, instead of once in a temporary directory and again after the first change.
* `CFLAGS` with an optimisation level, such as `-O0`, replaces `-O2`.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from Cython.Build import cythonize
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
    return [extension(path.relative_to(ROOT), headers) for path in sources]


def extension(path: Path, headers: list[str]) -> Extension:
    optimisation = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O2"]
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=[str(ROOT)],
        depends=headers,
        # Descriptors are filled as one struct and copied as another: they may be the same bytes.
        extra_compile_args=[*optimisation, "-fno-strict-aliasing", *WARNINGS],
    )


class BuildNative(build_ext):
    """Translates and compiles as many modules at a time as there are CPUs."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = len(os.sched_getaffinity(0))

    def run(self) -> None:
        """Translates here, since most commands need the list of the modules alone."""
        translated = cythonize(
            list(self.extensions), nthreads=self.parallel, quiet=True, compiler_directives=DIRECTIVES
        )
        by_name = {one.name: one for one in translated}
        for ext in self.extensions:
            vars(ext).update(vars(by_name[ext.name]))
            if not self.inplace:
                # Installed modules need neither debugging information, which is four fifths of them, nor
                # names of what only they use.
                ext.extra_compile_args.append("-g0")
                ext.extra_link_args.append("-Wl,-s")
        super().run()


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
