"""A virtual environment with the built wheel, packed for executors that have nothing installed.

It is made of what this environment has: no registry is asked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.spark_cluster import ROOT

PACKAGES = ("mpbroker", "shm", "spark_integration", "pyspark_mpbroker")
# What docs/SPARK.md installs beside the wheel; PySpark itself is on every host of a cluster.
BESIDE = ("pyarrow", "pandas")


def build_wheel(directory: Path) -> Path:
    """The project's wheel, with the native modules that are compiled in this checkout."""
    built, dist = directory / "build", directory / "dist"
    library = built / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for package in PACKAGES:
        for module in (ROOT / package).rglob("*.so"):
            target = library / module.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Newer than its source: it is not compiled again.
            shutil.copy(module, target)
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    words = ["egg_info", "--egg-base", str(directory), "build", "--build-base", str(built)]
    words += ["bdist_wheel", "--dist-dir", str(dist)]
    run([sys.executable, "setup.py", "--quiet", *words], source)
    (wheel,) = dist.glob("*.whl")
    return wheel


def make_environment(directory: Path, wheel: Path) -> Path:
    """A virtual environment in the directory, with the wheel and what it needs."""
    environment = directory / "env"
    run([sys.executable, "-m", "venv", str(environment)], directory)
    python = environment / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", str(wheel)], directory)
    (site,) = environment.glob("lib/python*/site-packages")
    for one in _with_requirements("mpbroker", *BESIDE):
        for file in one.files or ():
            # Not the programs, which lie elsewhere.
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    return environment


def _with_requirements(package: str, *others: str) -> Iterator[Distribution]:
    """Yields what the package requires, and the others with what they require, as they are installed here."""
    wanted, seen = [*_required_by(distribution(package)), *others], {package}
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


def pack(environment: Path, archive: Path) -> None:
    """As `venv-pack -p ENVIRONMENT -o ARCHIVE` does."""
    words = ["-p", str(environment), "-o", str(archive), "--compress-level", "1", "--quiet"]
    run([sys.executable, "-m", "venv_pack", *words], archive.parent)


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
