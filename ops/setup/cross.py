"""Builds a wheel for aarch64 on another processor, from an sdist: python -m ops.setup.cross dist/*.tar.gz

GCC's cross compiler gets headers and libraries from Debian's arm64 packages. sysconfig reads the build data
of Debian's arm64 Python instead of the running Python's. So the wheel is only for Debian's version of Python,
and this program has to run on the same version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ops.setup import debian_root, wheels
from ops.setup.debian_root import FetchFailed, MissingTools

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "aarch64"
PYTHON = (3, 11)
TRIPLET = "aarch64-linux-gnu"
COMPILER = f"{TRIPLET}-gcc"
TOOLS = {COMPILER: f"gcc-{TRIPLET}"}
PACKAGES = ("libpython3.11-dev", "libssl-dev")
NATIVE = ("shm", "mpbroker")


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds a wheel for aarch64 by cross compiling.")
    parser.add_argument("sdist", type=Path)
    sdist: Path = parser.parse_args().sdist
    if sys.version_info[:2] != PYTHON:
        ours, theirs = (".".join(map(str, version)) for version in (sys.version_info[:2], PYTHON))
        raise SystemExit(
            f"dist-aarch64: .venv has Python {ours}, Debian {debian_root.RELEASE} has {theirs} for arm64: "
            f"rm -r .venv && PYTHON=python{theirs} make setup"
        )
    try:
        debian_root.require(TOOLS)
        sysroot = debian_root.make(PLACE / "sysroot", PACKAGES)
    except (FetchFailed, MissingTools) as error:
        raise SystemExit(f"dist-aarch64: {error}") from None
    with tempfile.TemporaryDirectory() as directory:
        sources = wheels.unpack(sdist, Path(directory))
        wheels.add_jar(sources)
        add_translated(sources)
        built = build(sources, sysroot)
        repaired = wheels.repair(built, sdist.parent, libraries=sysroot / "usr/lib" / TRIPLET)
        print(f"dist-aarch64: {repaired}")


def add_translated(sources: Path) -> None:
    """Copy Cython's C files from the checkout to `sources`: they are the same for every processor."""
    for package in NATIVE:
        for made in (ROOT / package).rglob("*.c"):
            shutil.copyfile(made, sources / made.relative_to(ROOT))


def build(sources: Path, sysroot: Path) -> Path:
    """Build a wheel with the setuptools and Cython of .venv, whose versions uv.lock has. Return its path."""
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--plat-name=linux_aarch64"]
    subprocess.run(command, cwd=sources, env={**os.environ, **target(sources, sysroot)}, check=True)
    (wheel,) = (sources / "dist").glob("*.whl")
    return wheel


def target(sources: Path, sysroot: Path) -> dict[str, str]:
    """Return the environment in which Python builds for another processor. Adds a directory to `sources`."""
    data = f"_sysconfigdata__{TRIPLET}"
    about = sources / "build" / "target"
    about.mkdir(parents=True)
    shutil.copy(sysroot / "usr/lib/python3.11" / f"{data}.py", about)
    # Before the headers of the Python that runs this: setuptools names its directory in any case.
    compiler = f"{COMPILER} --sysroot={sysroot} -I{sysroot}/usr/include/python3.11"
    return {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "_PYTHON_SYSCONFIGDATA_NAME": data,
        "PYTHONPATH": str(about),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -Wl,-O1 -Wl,-Bsymbolic-functions",
    }


if __name__ == "__main__":
    main()
