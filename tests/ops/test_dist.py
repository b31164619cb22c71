"""What `make dist` makes is whole: the sdist has each native source as it is in the checkout.

`.ci/run` builds a wheel from it and starts a broker there (first_minutes); `make test-dist` installs the
files that `make dist` has made, the sdist by compiling all of it.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpbroker.cli import pages
from mpbroker.config.version import VERSION
from ops.bench.brokers import Mpbroker, running
from ops.setup import jvm_reader
from tests.support.distributions import (
    METADATA,
    NATIVE_PACKAGES,
    PACKAGES,
    ROOT,
    build_sdist,
    outside,
    run,
    unpack,
)
from tests.support.programs import ran
from tests.support.real_brokers import stop_cleanly

SOURCES = (*(".pyx", ".pxd", ".h", ".java", ".json", ".typed", ".py"), *(".html", ".css", ".js", ".svg"))
NATIVE = sorted(
    str(path.relative_to(ROOT)) for name in NATIVE_PACKAGES for path in (ROOT / name).rglob("*.pyx")
)


@pytest.fixture(scope="module")
def sdist_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def sdist(sdist_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked."""
    return unpack(sdist_file, tmp_path_factory.mktemp("unpacked"))


def sources(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for package in PACKAGES
        for path in (directory / package).rglob("*")
        if path.suffix in SOURCES
    }


def test_the_sdist_has_every_source_and_nothing_built(sdist: Path) -> None:
    assert sources(sdist) == sources(ROOT)
    built = [path for path in sdist.rglob("*") if path.suffix in (".c", ".so", ".jar", ".pyc", ".pyi")]
    assert built == []


def look_into(wheel: Path) -> None:
    """Look whether a wheel has native modules, no source of them, and the JVM reader if it can be built."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel.name.startswith(f"mpbroker_server-{VERSION}-{tag}-{tag}-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"mpbroker_server-{VERSION}.dist-info/METADATA").decode()
    modules = {name.split(".", 1)[0] for name in names if name.endswith(".so")}
    assert modules == {name.removesuffix(".pyx") for name in NATIVE} | {"shm/_cyutility"}
    assert {Path(name).suffix for name in names} & {".c", ".pyx", ".pxd", ".h", ".java"} == set()
    schemas = {f"mpbroker/protocol/schema/{name}.json" for name in ("kafka", "coordinator-records")}
    wanted = schemas | {"shm/py.typed", "shm/ring.pyi"}
    assert wanted | {"mpbroker/console/static/index.html", "mpbroker/console/static/app.js"} <= set(names)
    assert "Requires-Dist: crc32c" not in metadata
    try:
        jvm_reader.javac(), jvm_reader.libraries()
        jars = [f"spark_integration/jvm/{jvm_reader.NAME}"]
    except jvm_reader.CannotBuild:
        jars = []
    assert [name for name in names if name.endswith(".jar")] == jars


# Pictures, and the figures they are made of: a page is read in a terminal.
LEFT_OUT = (".svg", ".png", ".json", "LICENSE")


def look_for_pages(wheel: Path, directory: Path) -> None:
    """Look whether a wheel has what messages and pages point at; `directory` gets its files."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    share = directory / "mpbroker/share"
    for file in (*(ROOT / "docs").glob("*.md"), *(ROOT / name for name, _ in pages.FILES.values())):
        assert (share / file.relative_to(ROOT)).read_bytes() == file.read_bytes()
    links = {page: re.findall(r"\]\(([^)\s#]+)", page.read_text()) for page in share.rglob("*.md")}
    assert sum(map(len, links.values())) > 100
    dead = {
        link
        for page in links
        for link in links[page]
        if "://" not in link and not link.endswith(LEFT_OUT) and not (page.parent / link).exists()
    }
    assert dead == set()
    assert not list(share.rglob("*.png"))
    assert list(directory.glob("*.data/data/share/man/man1/mpbroker.1"))


def refused(directory: Path, **variables: str) -> str:
    """Return what setup.py says when it refuses to build a wheel."""
    command = [sys.executable, "setup.py", "bdist_wheel"]
    done = ran(command, cwd=directory, env={**outside(), **variables})
    assert done.returncode == 1, done.stdout
    assert not (directory / "dist").exists()
    return done.stderr


def test_without_sources_there_is_no_wheel(tmp_path: Path) -> None:
    """As from a copy that has the Python modules alone, or an sdist that other programs made so."""
    for name in METADATA:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "ops/setup", tmp_path / "ops/setup")
    (tmp_path / "mpbroker/config").mkdir(parents=True)
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "__init__.py").touch()
    said = refused(tmp_path)
    assert "there is no .pyx file below shm or mpbroker in" in said
    (tmp_path / "shm" / "ring.pyx").touch()
    assert "MPBROKER_NATIVE=0 is for editable installs" in refused(tmp_path, MPBROKER_NATIVE="0")


def test_an_incomplete_sdist_builds_no_wheel(sdist: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sdist, copy)
    (copy / NATIVE[0]).unlink()
    said = refused(copy)
    assert "setup.py: 1 of the files that " in said
    assert f"SOURCES.txt names are missing, the first is {NATIVE[0]}. Unpack the sdist again" in said


@dataclass
class Installed(Mpbroker):
    """The broker of another environment, which does not know this checkout."""

    def environment(self) -> dict[str, str]:
        return {**outside(), "MPBROKER_RUNTIME_DIR": str(self.runtime_dir)}


def try_out(environment: Path, directory: Path) -> None:
    program = environment / "bin" / "mpbroker"
    directory.mkdir()
    assert run([str(program), "--version"], directory, outside()).split()[-1] == VERSION
    assert (environment / "share/man/man1/mpbroker.1").is_file()
    (share,) = environment.glob("lib/python*/site-packages/mpbroker/share")
    assert run([str(program), "docs", "--path", "upgrading"], directory, outside()).strip() == str(
        share / "docs/UPGRADING.md"
    )
    serve = f"{program} serve --listeners PLAINTEXT://127.0.0.1:{{port}} --log-dirs {{log_dir}}"
    broker = Installed(directory, template=serve)

    def client(*words: str, stdin: str = "") -> str:
        command = [program, *words, "-b", broker.bootstrap]
        return ran(command, cwd=directory, env=outside(), input=stdin, check=True).stdout

    with running(broker):
        assert "created topic orders with 2 partition(s)" in client(
            "topic", "create", "orders", "--partitions", "2"
        )
        client("produce", "orders", "-K", ":", stdin="alice:1\nbob:2\n")
        read = client("consume", "orders", "--from-beginning", "-e", "-f", "%k:%v\\n")
        assert sorted(read.splitlines()) == ["alice:1", "bob:2"]
        stop_cleanly(broker)
