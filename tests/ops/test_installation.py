"""What `make setup` installs is found from any directory, also by who lists modules as PySpark does."""

import json
import os
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.programs import ran

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
METADATA = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "ops/setup/native.py",
    "ops/setup/stubs.py",
    "mpbroker/config/version.py",
)
PACKAGES = ("mpbroker", "pyspark_mpbroker", "shm", "spark_integration")

# PySpark looks through pkgutil for pyspark_*, which a finder on sys.meta_path answers to nobody.
LIST_MODULES = """
import json, pkgutil, site, sys
site.addsitedir(sys.argv[1])
print(json.dumps([one.name for one in pkgutil.iter_modules()]))
"""


def test_an_editable_install_is_a_path(tmp_path: Path) -> None:
    clone, built, installed, elsewhere = (tmp_path / name for name in ("clone", "built", "installed", "else"))
    for directory in (clone, built, elsewhere):
        directory.mkdir()
    for name in (*METADATA, "mpbroker/protocol/schema/NOTICE"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for name in PACKAGES:
        (clone / name).mkdir(exist_ok=True)
        (clone / name / "__init__.py").touch()
    build = "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"
    environ = {**os.environ, "MPBROKER_NATIVE": "0"}
    run = ran([sys.executable, "-c", build, built], cwd=clone, env=environ, timeout=None)
    assert run.returncode == 0, run.stderr
    (wheel,) = built.iterdir()
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    listed = ran([sys.executable, "-I", "-c", LIST_MODULES, str(installed)], cwd=elsewhere, check=True)
    assert set(json.loads(listed.stdout)) >= set(PACKAGES)
