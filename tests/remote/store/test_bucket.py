"""A bucket of a real server of S3, by real requests. Each test uses obstore in a child of its own."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpbroker.remote.store import bucket as bucket_module
from mpbroker.remote.store.bucket import PART_BYTES
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError
from mpbroker.remote.store.opening import open_store
from mpbroker.remote.store.self_test import check_store
from ops.bench.brokers import HOST
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, ledger_of, opened_ledger, read, segment
from tests.support.losing_proxy import LosingProxy
from tests.support.object_store_servers import BUCKET, ObjectStoreServer, in_a_fork, object_store_server

pytestmark = pytest.mark.process
TIMEOUT_MS = 20_000
URL = f"s3://{BUCKET}/a/prefix"
MIB = 1 << 20


@contextmanager
def served(directory: Path) -> Iterator[ObjectStoreServer]:
    """A server that this process knows by its environment."""
    with object_store_server(directory) as server, pytest.MonkeyPatch.context() as patched:
        for name, value in server.environment.items():
            patched.setenv(name, value)
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStoreServer]:
    with served(tmp_path) as server:
        yield server


def names(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [found.name for found in store.list(prefix, after)]


def test_it_keeps_the_promises_of_a_store(server: ObjectStoreServer) -> None:
    def work() -> None:
        store = open_store(URL, TIMEOUT_MS)
        check_store(store)
        assert names(store) == []
        assert store.create("mpbroker/log/1", b"one")
        assert names(store) == ["mpbroker/log/1"]
        # All is below the prefix.
        assert names(open_store(f"s3://{BUCKET}", TIMEOUT_MS)) == ["a/prefix/mpbroker/log/1"]

    in_a_fork(work)
    assert (server.bucket / "a/prefix/mpbroker/log/1").read_bytes() == b"one"


def test_ranges_and_what_is_missing(server: ObjectStoreServer) -> None:
    def work() -> None:
        store = open_store(URL, TIMEOUT_MS)
        store.put("x", [b"01", b"23456789"], 10)
        store.put("empty", [], 0)
        assert store.get("empty") == b""
        for position, length in ((0, None), (3, None), (3, 4), (8, 5), (10, 1), (10, None), (99, 5), (3, 0)):
            wanted = b"0123456789"[position:][:length]
            assert store.get("x", position, length) == wanted
        assert (store.size("x"), store.size("empty"), store.size("absent")) == (10, 0, None)
        for read_it in (lambda: store.get("absent"), lambda: store.get("absent", 3, 4)):
            with pytest.raises(ObjectMissing, match=f"{URL}/absent"):
                read_it()
        store.delete(["x", "absent"])
        store.delete([])
        assert names(store) == ["empty"]

    in_a_fork(work)
    assert server.port


def test_more_objects_than_a_page_of_a_listing(server: ObjectStoreServer) -> None:
    directory = server.bucket / "a/prefix/many"
    directory.mkdir(parents=True)
    for at in range(1_100):
        (directory / f"{at:05d}").touch()

    def work() -> None:
        store = open_store(URL, TIMEOUT_MS)
        wanted = [f"many/{at:05d}" for at in range(1_100)]
        assert names(store, "many/") == wanted
        assert names(store, "many/", wanted[50]) == wanted[51:]
        store.delete(wanted)
        assert names(store) == []

    in_a_fork(work)


def test_a_large_object_goes_in_parts_and_takes_little_memory(server: ObjectStoreServer) -> None:
    size = 8 * PART_BYTES + 5

    def pieces() -> Iterator[bytes]:
        for at in range(size // MIB):
            yield bytes([at % 251]) * MIB
        yield b"-tail"[: size % MIB]

    def work() -> None:
        store = open_store(URL, TIMEOUT_MS)
        store.put("warm", [b"1"], 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store.put("t/0/x.log", pieces(), size)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert grown < size * 3 // 4, f"{grown >> 20} MiB for an object of {size >> 20} MiB"
        assert store.size("t/0/x.log") == size
        assert store.get("t/0/x.log", 70 * MIB - 1, 3) == bytes([69, 70, 70])

    in_a_fork(work)
    path = server.bucket / "a/prefix/t/0/x.log"
    with open(path, "rb") as file:
        for piece in pieces():
            assert file.read(len(piece)) == piece


@pytest.mark.parametrize("size", [100, 2 * PART_BYTES])
def test_pieces_that_fail_make_no_object(server: ObjectStoreServer, size: int) -> None:
    def torn(error: Exception) -> Iterator[bytes]:
        yield bytes(size // 2)
        raise error

    def work() -> None:
        store = open_store(URL, TIMEOUT_MS)
        # An error of the pieces may look like one of the store.
        for error in (FileNotFoundError("a segment"), ValueError("a bad batch")):
            with pytest.raises(type(error), match=str(error)):
                store.put("x", torn(error), size)
        with pytest.raises(ValueError, match=f"have 1 bytes, {size} were announced"):
            store.put("x", [b"1"], size)
        assert names(store) == []

    in_a_fork(work)
    assert [path for path in server.bucket.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("setting", "value", "url", "why"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", URL, "SignatureDoesNotMatch: give credentials"),
        ("AWS_ACCESS_KEY_ID", "unknown", URL, "give credentials"),
        (
            "AWS_REGION",
            "us-east-1",
            "s3://absent/x",
            "NoSuchBucket: create the bucket, or correct",
        ),
    ],
)
def test_a_store_that_refuses_says_what_to_do(
    server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, url: str, why: str
) -> None:
    monkeypatch.setenv(setting, value)

    def work() -> None:
        store = open_store(url, TIMEOUT_MS)
        for use in (lambda: store.create("x", b""), lambda: store.get("x"), lambda: names(store)):
            with pytest.raises(StoreError, match=why) as caught:
                use()
            # A bucket that is absent has no absent objects.
            assert not isinstance(caught.value, ObjectMissing)
            assert "testtest" not in str(caught.value)
            assert "<" not in str(caught.value)
            assert "\n" not in str(caught.value)

    in_a_fork(work)
    assert server.port


def test_what_to_do_comes_first_where_the_store_names_no_reason(
    server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A HEAD has no body, and a host without credentials asks its cloud's metadata service."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    def work() -> None:
        with pytest.raises(StoreError, match=rf"^{URL}/x: give credentials .*403"):
            open_store(URL, TIMEOUT_MS).size("x")

    in_a_fork(work)
    assert server.port


def test_requests_end_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are accepted by the kernel, and nobody reads."""
    with socket.create_server((HOST, 0)) as mute:
        port = mute.getsockname()[1]
        for name, value in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "x",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")

        def work() -> None:
            store = open_store(URL, 400)
            for use in (
                lambda: store.create("x", b""),
                lambda: store.put("x", [bytes(PART_BYTES + 1)], PART_BYTES + 1),
                lambda: store.get("x"),
                lambda: store.size("x"),
                lambda: names(store, "x/"),
                lambda: store.delete(["x"]),
            ):
                with pytest.raises(StoreError, match=f"{URL}/x"):
                    use()

        in_a_fork(work)


@contextmanager
def losing(server: ObjectStoreServer) -> Iterator[LosingProxy]:
    with LosingProxy(server.port) as proxy, pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{proxy.port}")
        yield proxy


def test_a_lost_answer_to_a_create(server: ObjectStoreServer, tmp_path: Path) -> None:
    """The request is repeated, and finds its own object; the ledger knows it by its bytes."""

    def work() -> None:
        with losing(server) as proxy:
            store = open_store(URL, TIMEOUT_MS)
            proxy.loses = 1
            assert not store.create("x", b"mine")
            assert proxy.loses == 0
            assert store.get("x") == b"mine"
            ledger = opened_ledger(store, tmp_path)
            proxy.loses = 1
            ledger.append([TOPIC, segment(0)])
            assert proxy.loses == 0
            assert ledger.seq == 2

    in_a_fork(work)


def test_a_ledger_lives_through_the_death_of_its_store(tmp_path: Path) -> None:
    store_directory = tmp_path / "store"
    store_directory.mkdir()

    def write() -> None:
        with served(store_directory) as server:
            ledger = opened_ledger(open_store(URL, 2_000), tmp_path)
            ledger.append([TOPIC, segment(0)])
            server.kill()
            with pytest.raises(StoreError):
                ledger.append([segment(10)])
            server.start()
            ledger.append([segment(20)])
            ledger.check_fence()

    def go_on() -> None:
        with served(store_directory):
            store = open_store(URL, TIMEOUT_MS)
            ledger = ledger_of(store, tmp_path)
            ledger.start(STARTED)
            ledger.append([segment(30)])
            assert [found.base for found in read(store).state.segments_of(TOPIC_ID, 0)] == [0, 10, 20, 30]

    in_a_fork(write)
    in_a_fork(go_on)


def test_a_child_of_a_process_that_has_used_it_is_refused(server: ObjectStoreServer) -> None:
    def child() -> None:
        # It would hang.
        with pytest.raises(AssertionError, match="before this process was forked"):
            open_store(URL, TIMEOUT_MS).get("x")

    def work() -> None:
        # Opening makes no request.
        store = open_store(URL, TIMEOUT_MS)
        in_a_fork(lambda: store.size("x"))
        assert bucket_module._user is None
        with pytest.raises(ObjectMissing):
            store.get("x")
        assert bucket_module._user == os.getpid()
        in_a_fork(child)

    in_a_fork(work)
    assert server.port
