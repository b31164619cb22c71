"""The cache: what is put in place is whole, is found after a restart, and goes in the order of its use."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.tier.cache import KEPT_MS, Cached, IndexesKey, PartitionKey, RemoteCache, WindowKey

PARTITION = PartitionKey(bytes(range(16)), 3)
SEGMENT_ID = bytes(range(16, 32))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 50_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def cache_in(directory: Path, clock: Clock, limit: int = 1 << 20) -> RemoteCache:
    made = RemoteCache(directory / "remote-cache", lambda: limit, clock)
    made.open()
    return made


def put(cache: RemoteCache, position: int, size: int = 100) -> Cached | None:
    """Put a window of offsets [position, position + 10) there, of this size; None if there is no room."""
    if not cache.promise(size):
        return None
    path = cache.new_path()
    path.mkdir()
    (path / f"{position:020d}.log").write_bytes(bytes(size))
    return cache.put(key(position), path, size, position, position + 10)


def key(position: int) -> WindowKey:
    return WindowKey(PARTITION, 0, SEGMENT_ID, position)


def test_what_was_put_is_found_now_and_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock)
    made = put(cache, 20)
    assert made is not None
    assert made.file.read_bytes() == bytes(100)
    indexes = cache.new_path()
    indexes.write_bytes(b"indexes")
    assert cache.promise(7)
    at = cache.put(IndexesKey(PARTITION, 0, SEGMENT_ID), indexes, 7)
    for one in (cache, cache_in(tmp_path, clock)):
        assert (one.find(key(20)), one.peek(IndexesKey(PARTITION, 0, SEGMENT_ID))) == (made, at)
        assert (made.base, made.end, made.size, one.bytes) == (20, 30, 100, 107)
        assert one.find(key(30)) is None
        assert key(20) in one


def test_half_written_and_foreign_files_are_removed_at_the_start(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock)
    made = put(cache, 0)
    assert made is not None
    (cache.new_path()).write_bytes(b"half")
    partition = made.path.parent
    # A window without its records, and what nobody here has written.
    (partition / f"{0:020d}.{SEGMENT_ID.hex()}.500.20.30").mkdir()
    (partition / "notes.txt").write_text("?")
    again = cache_in(tmp_path, clock)
    assert again.find(key(0)) == made
    assert [path.name for path in partition.iterdir()] == [made.path.name]
    assert list((again.directory / "new").iterdir()) == []


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock, limit=300)
    for position in (0, 10, 20):
        put(cache, position)
    clock.now_ms += KEPT_MS
    cache.find(key(0))
    clock.now_ms += KEPT_MS
    assert put(cache, 30) is not None
    assert [position for position in (0, 10, 20, 30) if key(position) in cache] == [0, 20, 30]
    assert cache.bytes == 300
    assert not list(tmp_path.glob(f"*/{PARTITION.directory}/*.10.*"))


def test_what_was_just_handed_out_stays(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock, limit=300)
    for position in (0, 10, 20):
        put(cache, position)
    assert put(cache, 30) is None
    clock.now_ms += KEPT_MS
    assert put(cache, 30) is not None


def test_one_window_fits_however_large_it_is_and_only_alone(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock, limit=50)
    assert put(cache, 0) is not None
    assert not cache.promise(10)
    clock.now_ms += KEPT_MS
    assert put(cache, 10) is not None
    assert key(0) not in cache


def test_a_promise_takes_room_until_it_is_given_up(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock, limit=100)
    assert cache.promise(80)
    assert not cache.promise(30)
    path = cache.new_path()
    path.mkdir()
    (path / "half").write_bytes(b"half")
    cache.give_up(80, path)
    assert not path.exists()
    assert cache.promise(30)


def test_a_window_that_somebody_removed_is_not_there(tmp_path: Path, clock: Clock) -> None:
    cache = cache_in(tmp_path, clock)
    made = put(cache, 0)
    assert made is not None
    made.file.unlink()
    assert cache.find(key(0)) is None
    assert cache.bytes == 0
