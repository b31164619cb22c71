"""A directory as an object store: whole objects or none, names, listings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.remote.store import directory
from mpbroker.remote.store.directory import LEFTOVER_S, STEP_BYTES, UNFINISHED, DirectoryStore
from mpbroker.remote.store.object_store import ObjectMissing, StoreError
from mpbroker.remote.store.self_test import check_store


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def names(store: DirectoryStore, prefix: str = "", after: str = "") -> list[str]:
    return [found.name for found in store.list(prefix, after)]


def test_it_keeps_the_promises_of_a_store(store: DirectoryStore, tmp_path: Path) -> None:
    check_store(store)
    assert names(store) == []
    assert list((tmp_path / UNFINISHED).iterdir()) == []


def test_names_are_in_order_where_one_is_the_beginning_of_another(store: DirectoryStore) -> None:
    wanted = sorted(["a-b/1", "a/1", "a/2/x", "a/2/y", "a0", ".hidden-topic/0", "c"])
    for name in reversed(wanted):
        assert store.create(name, name.encode())
    assert names(store) == wanted
    assert names(store, "a/") == ["a/1", "a/2/x", "a/2/y"]
    assert names(store, "absent/") == []
    for at, name in enumerate(wanted):
        assert names(store, after=name) == wanted[at + 1 :]
    found = next(iter(store.list("a/2/")))
    assert (found.name, found.size) == ("a/2/x", 5)
    assert found.modified_ms == (store._root / "a/2/x").stat().st_mtime_ns // 1_000_000


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "a/", "../a", "a/./b", f"{UNFINISHED}/a", "a\0", "x" * 256]
)
def test_names_that_leave_the_directory_are_refused(store: DirectoryStore, name: str) -> None:
    for use in (lambda: store.create(name, b""), lambda: store.get(name), lambda: store.delete([name])):
        with pytest.raises(StoreError):
            use()


def test_pieces_that_fail_leave_the_object_as_it_was(store: DirectoryStore, tmp_path: Path) -> None:
    def torn(error: Exception) -> Iterator[bytes]:
        yield b"half"
        raise error

    store.put("a/b", [b"old"], 3)
    # One that the disk may raise as well is not taken for an error of the store.
    for error in (FileNotFoundError("a segment"), ValueError("a bad batch")):
        with pytest.raises(type(error), match=str(error)):
            store.put("a/b", torn(error), 8)
    with pytest.raises(ValueError, match="have 4 bytes, 8 were announced"):
        store.put("a/b", [b"four"], 8)
    assert store.get("a/b") == b"old"
    assert list((tmp_path / UNFINISHED).iterdir()) == []


def test_what_is_done_was_synced_first(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after any step: the file is synced before it has its name, each directory after that."""
    steps: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        steps.append("unfinished" if path.parent.name == UNFINISHED else path.name)
        real_fsync(fd)

    def link(source: Path, target: Path) -> None:
        steps.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(directory.os, "link", link)
    root = store._root.name
    assert store.create("a/b/c", b"1")
    assert steps == [root, root, "a", "unfinished", "link", "b"]
    steps.clear()
    # The other one may have been cut off before it came to sync.
    assert not store.create("a/b/c", b"2")
    assert steps == ["unfinished", "link", "c", "b"]


def test_a_thread_in_the_background_gives_the_disk_little_at_a_time(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits may wait for this disk."""
    steps: list[tuple[int, int]] = []

    def write_back(fd: int, position: int, count: int) -> None:
        assert os.fstat(fd).st_size >= position + count, "what is not there yet"
        steps.append((position, count))

    monkeypatch.setattr(directory, "write_back", write_back)
    body = [b"a" * 1000, b"", b"b" * STEP_BYTES, b"c" * 3 * STEP_BYTES]
    size = sum(map(len, body))
    store.put("a", body, size)
    assert steps == [], "a thread that somebody waits for"
    monkeypatch.setattr(directory, "is_in_background", lambda: True)
    store.put("b", body, size)
    assert steps == [(number * STEP_BYTES, STEP_BYTES) for number in range(4)]
    assert store.get("a") == store.get("b") == b"".join(body)


def test_a_directory_that_was_removed_is_made_again(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/b", b"")
    (tmp_path / "a/b").unlink()
    (tmp_path / "a").rmdir()
    with pytest.raises(StoreError):
        store.create("a/b", b"")
    assert store.create("a/b", b"1")


def test_a_root_that_is_gone_is_no_empty_store(tmp_path: Path) -> None:
    """A mount that is missing: nothing may be taken for absent."""
    root = tmp_path / "mount"
    root.mkdir()
    store = DirectoryStore(root)
    store.create("a", b"")
    (root / "a").unlink()
    (root / UNFINISHED).rmdir()
    root.rmdir()
    for use in (lambda: store.get("a"), lambda: store.size("a"), lambda: list(store.list(""))):
        with pytest.raises(StoreError, match="is it mounted") as caught:
            use()
        assert not isinstance(caught.value, ObjectMissing)


def test_leftovers_of_a_killed_process_go_after_a_day(store: DirectoryStore, tmp_path: Path) -> None:
    store.remove_leftovers()
    store.create("a", b"")
    old, new = tmp_path / UNFINISHED / "old", tmp_path / UNFINISHED / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, new.stat().st_mtime - LEFTOVER_S - 60))
    assert names(store) == ["a"]
    store.remove_leftovers()
    assert [path.name for path in (tmp_path / UNFINISHED).iterdir()] == ["new"]
