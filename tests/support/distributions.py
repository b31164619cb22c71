"""The sdist, the wheel, and virtual environments with the wheel. No registry is asked.

The wheel is built from the unpacked sdist by setup.py, as pip does it, but for one thing: it gets the modules
that `make setup` has compiled in this checkout, and so nothing is compiled again. `make dist` compiles.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NATIVE_PACKAGES = ("shm", "mpbroker")
PACKAGES = (*NATIVE_PACKAGES, "spark_integration", "pyspark_mpbroker")
METADATA = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    "Containerfile",
)
# What a wheel has besides packages.
SHIPPED = ("docs", "ops/grafana", "ops/man", "ops/prometheus", "ops/systemd")
UV = (sys.executable, "-m", "uv", "--offline", "--quiet")
BUILD = (*UV, "build", "--no-build-isolation", "--python", sys.executable)


def build_sdist(directory: Path) -> Path:
    """The sdist of a copy of this checkout, in which setuptools leaves its own files."""
    copy = directory / "checkout"
    for name in (*PACKAGES, *SHIPPED, "ops/setup"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in METADATA:
        shutil.copy2(ROOT / name, copy)
    run([*BUILD, "--sdist", "--out-dir", str(directory), str(copy)], copy)
    (sdist,) = directory.glob("*.tar.gz")
    return sdist


def unpack(sdist: Path, into: Path) -> Path:
    """Returns the directory that pip would build a wheel in."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
    (unpacked,) = into.iterdir()
    return unpacked


def build_wheel(sdist: Path, directory: Path) -> Path:
    """The wheel, built of this checkout's sdist with the modules that are compiled in the checkout."""
    unpacked = unpack(sdist, directory / "unpacked")
    _add_compiled(unpacked)
    run([*BUILD, "--wheel", "--out-dir", str(directory), str(unpacked)], unpacked)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _add_compiled(unpacked: Path) -> None:
    """Copies what Cython has written, then what was compiled of it: each is newer than its sources.

    Modules of a checkout have debugging information, those of a wheel have none.
    """
    compiled = unpacked / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for suffix, target in ((".c", unpacked), (".so", compiled)):
        for package in NATIVE_PACKAGES:
            for file in (ROOT / package).rglob(f"*{suffix}"):
                copy = target / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
    run(["strip", "--strip-debug", *map(str, compiled.rglob("*.so"))], unpacked)


def without_compiler(directory: Path) -> str:
    """Return a PATH where there is a shell, and no compiler."""
    programs = directory / "bin"
    programs.mkdir()
    for name in ("env", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return str(programs)


def install(file: Path, python: str, directory: Path, environment: dict[str, str]) -> Path:
    """Make a virtual environment with a distribution, and what it requires of the registry."""
    made = directory / "env"
    run([python, "-m", "venv", str(made)], directory, outside())
    run([str(made / "bin" / "pip"), "install", "--quiet", str(file)], directory, environment)
    return made


def make_environment(directory: Path, wheel: Path, beside: Sequence[str] = ()) -> Path:
    """A virtual environment in the directory, with the wheel, what it requires, and these other packages."""
    environment = directory / "env"
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], directory)
    python = environment / "bin" / "python"
    run([*UV, "pip", "install", "--no-deps", "--python", str(python), str(wheel)], directory)
    (site,) = environment.glob("lib/python*/site-packages")
    (installed,) = site.glob("mpbroker_server-*.dist-info")
    for one in _with_requirements(PathDistribution(installed), *beside):
        for file in one.files or ():
            # Not the programs, which lie elsewhere.
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    return environment


def _with_requirements(package: Distribution, *others: str) -> Iterator[Distribution]:
    """Yields what the package requires, and the others with what they require, as they are installed here."""
    wanted, seen = [*_required_by(package), *others], {package.name}
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            found = distribution(name)
            wanted += _required_by(found)
            yield found


def _required_by(one: Distribution) -> Iterator[str]:
    for text in one.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def outside() -> dict[str, str]:
    """The variables of somebody who has never seen this checkout."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }


def run(command: Sequence[str], directory: Path, environment: dict[str, str] | None = None) -> str:
    """The standard output of a command that has to end well."""
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
