"""Builds the native modules and the jar of the JVM reader, and adds to a wheel the files that messages name.

All other settings are in pyproject.toml.

Variables of the environment change the build:

* `MPBROKER_NATIVE=0` leaves the native modules out of an editable install. The Makefile uses it: it compiles
  them in place afterwards, once, instead of once in a temporary directory and again after the first change.
* `CFLAGS` with an optimisation level, such as `-O0`, replaces `-O2`; with `-g` it replaces `-g0`.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# For the modules of ops/setup: who builds by pyproject.toml does not have it there.
sys.path.insert(0, str(ROOT))
from ops.setup import native, stubs  # noqa: E402

PACKAGES = ("shm", "mpbroker")
# Only an unpacked sdist has it.
SDIST_METADATA = ROOT / "PKG-INFO"
SDIST_FILES = ROOT / "mpbroker_server.egg-info" / "SOURCES.txt"
JVM_READER = Path("spark_integration", "jvm")
# What mpbroker.cli.host.shipped finds: a wheel has it below SHARE, under the names of the checkout.
SHARE = Path("mpbroker", "share")
SHIPPED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Containerfile"),
    *("docs/*.md", "docs/*.ipynb", "docs/decisions/*.md"),
    *("ops/grafana/*.json", "ops/prometheus/*.yml", "ops/systemd/*.*"),
)
# None about code that Cython itself writes.
WARNINGS = ("-Wall", "-Wno-unused-function", "-Wno-enum-compare", "-Wno-sign-compare")


def main() -> None:
    refuse_incomplete_sdist()
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative, "build_py": BuildPython})


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
    shared = Extension(
        native.SHARED, [str(native.SHARED_SOURCE)], extra_compile_args=flags(), depends=["setup.py"]
    )
    return [shared, *(extension(path, headers) for path in relative)]


def extension(path: Path, headers: list[str]) -> Extension:
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=[str(ROOT)],
        depends=[*headers, "setup.py"],
        # Descriptors are filled as one struct and copied as another: they may be the same bytes.
        extra_compile_args=[*flags(), "-fno-strict-aliasing", *WARNINGS],
    )


def flags() -> list[str]:
    """List the flags that CFLAGS may replace. Debugging information would be four fifths of each module."""
    given = os.environ.get("CFLAGS", "")
    return ([] if "-O" in given else ["-O2"]) + ([] if "-g" in given else ["-g0"])


class BuildNative(build_ext):
    """Translates and compiles as many modules at a time as there are CPUs."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = len(os.sched_getaffinity(0))

    def run(self) -> None:
        stubs.write()
        if not self.inplace:
            # Installed modules need no names of what only they use.
            for ext in self.extensions:
                ext.extra_link_args.append("-Wl,-s")
        super().run()

    def build_extensions(self) -> None:
        native.build(self)

    def build_extension(self, ext: Extension) -> None:
        native.translate(ext, self.force)
        super().build_extension(ext)


class BuildPython(build_py):
    """Adds files that no package has: those that commands show or install, and the jar of the JVM reader."""

    def run(self) -> None:
        # A wheel has them, and its Python modules are collected before its native ones are compiled.
        stubs.write()
        super().run()
        if not self.editable_mode:
            self._copy_shipped()
            self._build_jar()

    def _copy_shipped(self) -> None:
        for pattern in SHIPPED:
            for file in sorted(ROOT.glob(pattern)):
                copy = Path(self.build_lib) / SHARE / file.relative_to(ROOT)
                self.mkpath(str(copy.parent))
                self.copy_file(str(file), str(copy))

    def _build_jar(self) -> None:
        """Build the jar for the PySpark of the environment that builds.

        Without a JDK, Maven or PySpark, take the jar in the checkout, if there is one.
        """
        from ops.setup import jvm_reader

        into = Path(self.build_lib) / JVM_READER
        try:
            print(f"setup.py: built {jvm_reader.build(into)}", file=sys.stderr)
        except (jvm_reader.CannotBuild, PackageNotFoundError) as reason:
            if not (into / jvm_reader.NAME).exists():
                print(
                    f"setup.py: going on without the JVM reader of Spark sessions: {reason}", file=sys.stderr
                )


main()
