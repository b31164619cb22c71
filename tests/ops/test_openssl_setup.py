"""`make openssl` takes no other bytes than those that were published, and shows nothing that is not whole."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.setup import openssl
from ops.setup.openssl import (
    LIBRARIES,
    LOCK,
    RELEASES,
    Release,
    SetupError,
    alone,
    complaints,
    download,
    in_use,
    install,
    missing,
    publish,
    recognised,
    try_out,
)

SOURCE = b"the source of OpenSSL 9.9.9\n"
NEW = Release("9.9.9", hashlib.sha256(SOURCE).hexdigest())
OLD = Release("9.9.8", "0" * 64)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "source.tar.gz"
    path.write_bytes(SOURCE)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def built_in(directory: Path, release: Release) -> Path:
    """A tree as a build makes it."""
    lib = directory / "built" / "lib"
    lib.mkdir(parents=True)
    for name in LIBRARIES:
        (lib / name).write_text(release.version)
    return lib.parent


def published(home: Path, release: Release) -> None:
    home.mkdir(exist_ok=True)
    (home / LOCK).touch()
    publish(built_in(home, release), home, release)


def builds(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[Path]:
    """Instead of the compiler; the archives it got."""
    seen: list[Path] = []

    def build(archive: Path, release: Release, _home: Path, work: Path) -> Path:
        seen.append(archive)
        tree = built_in(work, release)
        if fails:
            raise SetupError("the compiler stopped")
        return tree

    monkeypatch.setattr(openssl, "build", build)
    monkeypatch.setattr(openssl, "try_out", lambda *_: None)
    monkeypatch.setattr(openssl, "missing", lambda _: [])
    return seen


def test_pins_are_digests_of_different_releases_newest_first() -> None:
    assert all(len(bytes.fromhex(release.sha256)) == hashlib.sha256().digest_size for release in RELEASES)
    versions = [tuple(map(int, release.version.split("."))) for release in RELEASES]
    assert versions == sorted(set(versions), reverse=True)
    assert {version[:2] for version in versions} == {(3, 5)}


def test_an_archive_is_known_by_its_bytes_alone(archive: Path) -> None:
    assert recognised(archive, (OLD, NEW)) == NEW
    archive.write_bytes(SOURCE[:-1])
    with pytest.raises(SetupError, match="is not used") as refused:
        recognised(archive, (OLD, NEW))
    found = hashlib.sha256(SOURCE[:-1]).hexdigest()
    assert all(digest in str(refused.value) for digest in (found, OLD.sha256, NEW.sha256))
    archive.unlink()
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        recognised(archive, (OLD, NEW))


def test_a_download_is_looked_for_until_the_bytes_are_right(archive: Path, tmp_path: Path) -> None:
    wrong, absent, target = tmp_path / "wrong", tmp_path / "absent", tmp_path / "target"
    wrong.write_bytes(b"<html>moved</html>")
    download(NEW, target, [absent.as_uri(), wrong.as_uri(), archive.as_uri()])
    assert target.read_bytes() == SOURCE
    with pytest.raises(SetupError) as refused:
        download(NEW, target, [absent.as_uri(), wrong.as_uri()])
    told = str(refused.value)
    digest = hashlib.sha256(wrong.read_bytes()).hexdigest()
    assert "No such file" in told
    assert f"{wrong.as_uri()}: SHA-256 {digest}" in told
    assert "make openssl ARCHIVE=" in told


def test_a_disk_without_room_is_no_network_that_is_missing(
    archive: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        Path("/dev/full").write_bytes(SOURCE)

    builds(monkeypatch)
    monkeypatch.setattr(openssl, "URLS", [archive.as_uri(), "http://nobody.asks.here.invalid"])
    monkeypatch.setattr("shutil.copyfileobj", full)
    monkeypatch.setattr("sys.argv", ["openssl", "--into", str(home)])
    assert openssl.main() == 1
    said = capsys.readouterr()
    assert said.err == "openssl: [Errno 28] No space left on device\n"
    assert "nobody.asks" not in said.out


def test_a_release_is_in_use_when_it_is_whole_and_led_to(home: Path) -> None:
    assert not in_use(home, NEW)
    published(home, NEW)
    assert in_use(home, NEW)
    assert not in_use(home, OLD)
    (home / "lib" / LIBRARIES[1]).unlink()
    assert not in_use(home, NEW)


def test_another_release_takes_the_place_of_the_old_one(home: Path) -> None:
    published(home, OLD)
    # Left by somebody who was killed between the tree and the link.
    (home / NEW.name / "lib").mkdir(parents=True)
    (home / "lib.new").symlink_to("nowhere")
    published(home, NEW)
    assert in_use(home, NEW)
    assert sorted(path.name for path in home.iterdir()) == ["lib", LOCK, NEW.name]


def test_what_is_there_is_not_built_again(home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = builds(monkeypatch)
    for _ in range(2):
        assert install(home, archive, (OLD, NEW)) == NEW
    assert seen == [archive]
    assert in_use(home, NEW)
    assert not (home / "work").exists()
    # Nor is the one to download.
    monkeypatch.setattr(openssl, "download", lambda *_: pytest.fail("it is there"))
    assert install(home, None, (NEW, OLD)) == NEW


@pytest.mark.parametrize("reached", [True, False])
def test_where_only_a_distribution_is_reached_it_is_the_one_that_it_has(
    home: Path, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    tried: list[tuple[Release, tuple[str, ...]]] = []

    def downloaded(release: Release, target: Path, urls: tuple[str, ...]) -> None:
        tried.append((release, urls))
        if release is NEW or not reached:
            raise SetupError(f"{release.version} cannot be had")
        target.write_bytes(SOURCE)

    monkeypatch.setattr(openssl, "download", downloaded)
    builds(monkeypatch)
    if not reached:
        with pytest.raises(SetupError, match=f"{NEW.version} cannot be had"):
            install(home, None, (NEW, OLD))
        return
    assert install(home, None, (NEW, OLD)) == OLD
    assert in_use(home, OLD)
    assert tried == [(NEW, openssl.URLS), (OLD, openssl.DISTRIBUTED)]
    # The next one looks for the newer one again, and keeps what it has.
    assert install(home, None, (NEW, OLD)) == OLD
    assert tried[2:] == [(NEW, openssl.URLS)]


def test_a_build_that_fails_changes_nothing(
    home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(home, OLD)
    builds(monkeypatch, fails=True)
    with pytest.raises(SetupError, match="the compiler stopped"):
        install(home, archive, (NEW, OLD))
    assert in_use(home, OLD)
    assert not (home / NEW.name).exists()
    # What it left is no reason not to build, and gone when it is tried again.
    assert (home / "work").exists()
    with alone(home) as work:
        assert list(work.iterdir()) == []


def test_an_archive_that_is_refused_changes_nothing(
    home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = builds(monkeypatch)
    archive.write_bytes(b"something else")
    with pytest.raises(SetupError):
        install(home, archive, (NEW, OLD))
    assert seen == []
    assert not home.exists()


@pytest.mark.parametrize(
    ("there", "named"),
    [(["work"], "work"), (["openssl-1.1.1"], "openssl-1.1.1"), ([LOCK, "lib", "work", "notes"], "notes")],
)
def test_a_directory_of_somebody_else_is_left_alone(
    home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], named: str
) -> None:
    """It removes what it did not make: INTO may be a home directory, with a `work` in it."""
    home.mkdir()
    for name in there:
        (home / name).touch() if name == LOCK else (home / name).mkdir()
    seen = builds(monkeypatch)
    with pytest.raises(SetupError, match=f"{home} is no directory of make openssl: {named} is in it"):
        install(home, archive, (OLD, NEW))
    assert seen == []
    assert sorted(path.name for path in home.iterdir()) == sorted(there)


def test_what_a_build_needs_is_named_as_packages() -> None:
    def has_neither_perl_nor_compiler(command: Sequence[str], _: str) -> bool:
        return command[0] not in ("perl", *openssl.compiler())

    assert missing(has_neither_perl_nor_compiler) == ["perl", "gcc libc6-dev"]
    assert missing(lambda *_: True) == []


def test_a_python_that_does_not_take_the_libraries_is_refused(home: Path) -> None:
    (home / "lib").mkdir(parents=True)
    with pytest.raises(SetupError, match="has an OpenSSL of its own"):
        try_out(home, NEW)


def test_libraries_that_do_not_load_are_refused(home: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot use OpenSSL 9\.9\.9"):
        try_out(built_in(home, NEW), NEW)


def test_a_failed_build_is_told_by_its_errors() -> None:
    gone_on = [f"cc -c -o libcrypto-err_{n}.o err_{n}.c" for n in range(99)]
    error, stop = "aesni-x86_64.s:3829: Error: bad register", "make[1]: *** [Makefile:6600: aesni.o] Error 1"
    assert complaints("\n".join([error, *gone_on, stop, *gone_on])) == f"{error}\n{stop}"
    assert complaints("one\ntwo") == "one\ntwo"


def test_who_builds_has_the_directory_alone(home: Path) -> None:
    with alone(home), open(home / LOCK) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
