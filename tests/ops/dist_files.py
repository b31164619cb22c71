"""A broker from each file in dist/, in virtual environments of their own. `make test-dist` runs this.

Each wheel runs the unit tests, too: there has to be one for each Python that `pyproject.toml` names.
What they require comes from the registry, also what the sdist needs to be compiled, which takes minutes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from mpbroker.config.version import VERSION
from ops.setup.wheels import OUTSIDE, interpreters, lock
from tests.ops.test_dist import NATIVE, try_out
from tests.support.distributions import ROOT, install, outside, run, without_compiler

DIST = ROOT / "dist"
# One for another processor has tests of its own (aarch64_wheel).
WHEELS = sorted(DIST.glob(f"*_{platform.machine()}.whl"))
# Of what a base install adds to an empty environment, bytecode apart, and of a wheel as it is downloaded.
INSTALLED_BYTES_MAX = 40_000_000
WHEEL_BYTES_MAX = 8_000_000
# What a new environment of Python 3.11 has before anything is installed.
OF_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
# Of glibc. The dynamic linker has what guards stacks on aarch64.
LIBRARIES = ("libc.so.6", "ld-linux-aarch64.so.1")
WHEEL = re.compile(
    r"mpbroker_server-(?P<version>[^-]+)-cp3(?P<minor>\d+)-cp3\d+-manylinux_2_(?P<glibc>\d+)_(?P<machine>\w+)\.whl"
)
# RHEL 9, Ubuntu 22.04, Debian 12: the first with OpenSSL 3 have it, or a newer one.
GLIBC_MINOR_MAX = 34

pytestmark = pytest.mark.process


def named(wheel: Path) -> re.Match[str]:
    found = WHEEL.fullmatch(wheel.name)
    assert found, wheel.name
    return found


def test_each_python_has_a_wheel() -> None:
    """Both those that are promised and those that are here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {(3, int(minor)) for minor in re.findall(r":: 3\.(\d+)", "".join(project["classifiers"]))}
    missing = promised - set(interpreters())
    assert not missing, f"install CPython {missing}, for example with: uv python install"
    assert {(3, int(named(wheel)["minor"])) for wheel in WHEELS} == set(interpreters())
    assert {named(wheel)["version"] for wheel in WHEELS} == {VERSION}
    assert all(int(named(wheel)["glibc"]) <= GLIBC_MINOR_MAX for wheel in WHEELS)


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: str(path.name))
def test_a_wheel_is_small_and_has_no_debugging_information(wheel: Path, tmp_path: Path) -> None:
    look_into(wheel, tmp_path)


def look_into(wheel: Path, directory: Path) -> None:
    """Look whether a wheel is small, and its modules are stripped and need little."""
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    modules = sorted(directory.rglob("*.so*"))
    assert len(modules) == len(NATIVE) + 1, "there is a library besides the modules"
    for module in modules:
        said = run(["readelf", "--sections", "--dynamic", "--wide", str(module)], directory)
        assert not re.search(r"\.debug_|\.symtab", said), module
        assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", said)) <= {*LIBRARIES, *OUTSIDE}, module


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: str(path.name))
def test_the_metadata_are_whole(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("mpbroker-server", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "mpbroker/protocol/schema/NOTICE"]
    assert {"arrow", "iceberg", "otlp", "security", "spark", "testing"} <= set(
        metadata.get_all("Provides-Extra") or ()
    )
    minor = named(wheel)["minor"]
    assert f"Programming Language :: Python :: 3.{minor}" in (metadata.get_all("Classifier") or ())
    assert str(metadata.get_payload()).startswith("# mpbroker\n")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


@pytest.fixture(scope="module", params=WHEELS, ids=lambda path: str(path.name))
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with a wheel, where no compiler is to be found."""
    directory = tmp_path_factory.mktemp("installed")
    python = interpreters()[(3, int(named(request.param)["minor"]))]
    return install(request.param, python, directory, {**outside(), "PATH": without_compiler(directory)})


@pytest.mark.timeout(900)
def test_a_broker_starts_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    try_out(installed, tmp_path / "broker")


@pytest.mark.timeout(900)
def test_a_base_install_is_small(installed: Path) -> None:
    sizes = sizes_of(installed)
    listed = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sizes[:8])
    print(f"base install: {sum(size for _, size in sizes) / 1e6:.1f} MB: {listed}")
    assert sum(size for name, size in sizes if name != "bytecode") < INSTALLED_BYTES_MAX, listed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wheel", WHEELS, ids=lambda path: str(path.name))
def test_units_pass(wheel: Path, tmp_path: Path) -> None:
    """Unit tests pass in a copy of the checkout with the wheel's native modules and uv.lock's versions."""
    checkout = tmp_path / "checkout"
    for name in run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).splitlines():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(checkout, [name for name in archive.namelist() if name.endswith(".so")])
    made = install(wheel, interpreters()[(3, int(named(wheel)["minor"]))], tmp_path, outside())
    locked = lock(tmp_path / "locked.txt", "--all-groups", "--all-extras")
    run([str(made / "bin/pip"), "install", "--quiet", "--requirement", str(locked)], tmp_path, outside())
    run(["make", "--old-file=setup", "test-fast", f"BIN={made}/bin", "ARGS="], checkout, outside())


@pytest.mark.timeout(1800)
def test_a_broker_starts_from_the_sdist(tmp_path: Path) -> None:
    (sdist,) = DIST.glob("*.tar.gz")
    try_out(install(sdist, sys.executable, tmp_path, outside()), tmp_path / "broker")


def sizes_of(environment: Path) -> list[tuple[str, int]]:
    """Return what was installed into site-packages with its sizes, the largest first.

    What pip compiles of it there is `bytecode`.
    """
    (site,) = environment.glob("lib/python*/site-packages")
    sizes: dict[str, int] = {}
    for path in site.rglob("*"):
        name = path.relative_to(site).parts[0]
        if path.is_file() and not name.startswith(OF_VENV):
            name = "bytecode" if path.suffix == ".pyc" else name
            sizes[name] = sizes.get(name, 0) + os.lstat(path).st_size
    return sorted(sizes.items(), key=lambda one: -one[1])
