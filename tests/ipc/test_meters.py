"""Pages per API, topic and client: counted exactly, sparse until touched, kept when their writer dies."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.meters import (
    CLIENTS_MAX,
    OTHER_ERROR,
    OTHER_VERSION,
    QUOTA_IDLE_MS,
    ApiHistogram,
    ApiPage,
    ClientKind,
    Meters,
    QuotaKind,
    QuotaWord,
    Reader,
    TopicMeter,
)
from mpbroker.ipc.topology import (
    LAYOUT_VERSION,
    LOG,
    PUBLIC_MAGIC,
    SharedMemory,
    Sizes,
    handler,
    meter_reader,
    processor,
)
from shm.region import Region

SLOTS = 100
PRODUCE, FETCH = 0, 1


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    directory = Path(tempfile.mkdtemp(prefix="mpbroker-test-", dir="/dev/shm"))
    made = SharedMemory(directory / "public", Sizes(partition_slots=SLOTS, arena_extent_bytes=1 << 20))
    yield made
    made.close()
    shutil.rmtree(directory)


@pytest.fixture
def reader(memory: SharedMemory) -> Reader:
    return meter_reader(Region.attach(memory.public_path, PUBLIC_MAGIC, LAYOUT_VERSION))


def test_requests_by_version_and_histograms(memory: SharedMemory, reader: Reader) -> None:
    meters = memory.meters(processor(1))
    for version, value in ((3, 10), (3, 1000), (99, 5)):
        meters.request(FETCH, version, ApiHistogram.TOTAL_NS, value)
    meters.request(FETCH, 3, ApiHistogram.REQUEST_BYTES, 77)
    versions, histograms = reader.apis(processor(1))[FETCH]
    assert versions == {3: 2, OTHER_VERSION: 1}
    counts, total, largest = histograms[ApiHistogram.TOTAL_NS]
    assert (sum(counts), total, largest) == (3, 1015, 1000)
    assert histograms[ApiHistogram.REQUEST_BYTES][1:] == (77, 77)
    assert reader.apis(processor(0)) == {}


def test_errors_by_code(memory: SharedMemory, reader: Reader) -> None:
    meters = memory.meters(handler(2))
    for code, times in ((-1, 1), (0, 5), (3, 2), (0, 1), (5000, 4), (-700, 1)):
        meters.error(PRODUCE, code, times)
    assert reader.errors(handler(2)) == {PRODUCE: {-1: 1, 0: 6, 3: 2, OTHER_ERROR: 5}}


def test_a_cell_given_to_another_partition_starts_at_zero_and_nothing_is_forgotten(
    memory: SharedMemory, reader: Reader
) -> None:
    meters = memory.meters(LOG)
    meters.topic(SLOTS - 1, 1, TopicMeter.MESSAGES_IN, 40)
    meters.topic(SLOTS - 1, 1, TopicMeter.BYTES_IN, 400)
    meters.topic(0, 7, TopicMeter.MESSAGES_IN, 2)
    meters.topic(SLOTS - 1, 2, TopicMeter.MESSAGES_IN, 3)
    cells = reader.topics(LOG)
    assert {place: cell[TopicMeter.MESSAGES_IN] for place, cell in cells.items()} == {
        (0, 7): 2,
        (SLOTS - 1, 2): 3,
    }
    assert cells[SLOTS - 1, 2][TopicMeter.BYTES_IN] == 0
    retired = reader.retired(LOG)
    assert (retired[TopicMeter.MESSAGES_IN], retired[TopicMeter.BYTES_IN]) == (40, 400)


def test_names_of_topics(memory: SharedMemory, reader: Reader) -> None:
    meters = memory.meters(LOG)
    orders, long, short = (bytes([number]) * 16 for number in range(3))
    meters.name_topic(3, 1, orders, "orders")
    meters.name_topic(SLOTS - 1, 4, long, "x" * 249)
    meters.name_topic(4, 1, orders, "orders")
    meters.name_topic(0, 9, long, "x" * 249)
    there = {(SLOTS - 1, 4): "x" * 249, (0, 9): "x" * 249}
    assert reader.names() == there | {(3, 1): "orders", (4, 1): "orders"}
    meters.forget_topic(orders)
    meters.name_topic(3, 2, short, "o")
    assert reader.names() == there | {(3, 2): "o"}, "what had its name there is gone as well"
    meters.forget_topic(short)
    meters.name_topic(4, 2, short, "o")
    assert reader.names() == there | {(3, 2): "o", (4, 2): "o"}


def test_a_successor_names_topics_anew(memory: SharedMemory, reader: Reader) -> None:
    for _ in range(2):
        meters = memory.meters(LOG)
        for slot in (5, 3, 4):
            meters.name_topic(slot, 1, bytes(16), "t")
            assert reader.names()[slot, 1] == "t"
    assert reader.names() == {(slot, 1): "t" for slot in (3, 4, 5)}


@pytest.mark.parametrize("kind", [ClientKind.CLIENT_SOFTWARE, ClientKind.CLIENT_CIPHER])
def test_clients_by_their_kind(memory: SharedMemory, reader: Reader, kind: ClientKind) -> None:
    meters = memory.meters(processor(0))
    java = meters.client(kind, b"apache-kafka-java", b"4.1.0")
    rd = meters.client(kind, b"librdkafka", b"2.12.0")
    assert meters.client(kind, b"apache-kafka-java", b"4.1.0") == java != rd
    meters.client_gone(kind, java)
    assert reader.clients(processor(0), kind) == [
        ("apache-kafka-java", "4.1.0", 1, 2),
        ("librdkafka", "2.12.0", 1, 1),
    ]
    assert not reader.clients(processor(0), 1 - kind)
    found = {meters.client(kind, b"client", str(number).encode()) for number in range(CLIENTS_MAX)}
    assert len(found) == CLIENTS_MAX - 1
    assert -1 in found, "more of them than there is room for are not counted"
    meters.client_gone(kind, -1)


def used_by(reader: Reader, process: int) -> dict[tuple[str, str], int]:
    return {(user, name): words[QuotaWord.QUOTA_USED] for user, name, words in reader.quotas(process)[1]}


def test_what_clients_use_of_their_quotas(memory: SharedMemory, reader: Reader) -> None:
    meters, kind, key = memory.meters(handler(0)), QuotaKind.QUOTA_FETCH, 0xABC00000007
    meters.quota_used(kind, key, 10, 1000)
    assert not reader.quotas(handler(0))[1], "it has no name yet"
    assert meters.name_quota(kind, key, "ann", "app", 1000)
    assert meters.name_quota(kind, key, "ann", "app", 1000), "it has one already"
    meters.quota_used(kind, key, 100, 2000)
    meters.quota_used(kind, key, -40, 3000)
    meters.quota_pause(kind, key, 25)
    meters.quota_exempt(QuotaKind.QUOTA_REQUEST, 77)
    alls, clients = reader.quotas(handler(0))
    ((user, client_id, words),) = clients
    assert (user, client_id) == ("ann", "app")
    for row, used in ((words, 60), (alls[kind], 70)):
        assert row[QuotaWord.QUOTA_USED] == used
        assert (row[QuotaWord.QUOTA_PAUSES], row[QuotaWord.QUOTA_PAUSES_MS]) == (1, 25)
    assert (words[QuotaWord.QUOTA_OF], words[QuotaWord.QUOTA_LAST_MS]) == (kind, 3000)
    assert alls[QuotaKind.QUOTA_REQUEST][QuotaWord.QUOTA_EXEMPT] == 77
    assert not any(alls[QuotaKind.QUOTA_PRODUCE])


def test_a_full_group_gives_a_row_of_who_is_idle_to_the_next(memory: SharedMemory, reader: Reader) -> None:
    """All of these keys belong to one group."""
    meters, kind, now_ms = memory.meters(handler(1)), QuotaKind.QUOTA_PRODUCE, 10 * QUOTA_IDLE_MS
    for number in range(8):
        assert meters.name_quota(kind, 1 + number, "", f"client-{number}", now_ms)
        meters.quota_used(kind, 1 + number, 5, now_ms + number)
    assert not meters.name_quota(kind, 9, "", "another", now_ms + QUOTA_IDLE_MS - 1)
    meters.quota_used(kind, 9, 5, now_ms)
    assert meters.name_quota(kind, 9, "u" * 500, "another", now_ms + QUOTA_IDLE_MS)
    meters.quota_used(kind, 1, 5, now_ms)
    found = used_by(reader, handler(1))
    assert found == {("", f"client-{n}"): 5 for n in range(1, 8)} | {("u" * 212, "another"): 0}
    assert reader.quotas(handler(1))[0][kind][QuotaWord.QUOTA_USED] == 50, "nothing of all together is lost"


def test_what_a_killed_handler_counted_of_quotas_stays(memory: SharedMemory, reader: Reader) -> None:
    """Killed at any instruction: its successor adds to the row, or the row is free."""
    for moment_s in (0.0, 0.0003, 0.001, 0.003):
        pid = os.fork()
        if pid == 0:
            meters = memory.meters(handler(2))
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, 0.01 + moment_s)
            now_ms = 0
            while True:
                now_ms += QUOTA_IDLE_MS
                for key in range(1, 12):
                    meters.name_quota(QuotaKind.QUOTA_PRODUCE, key, f"user-{key}", f"app-{key}", now_ms)
                    meters.quota_used(QuotaKind.QUOTA_PRODUCE, key, key, now_ms)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        for user, client_id, words in reader.quotas(handler(2))[1]:
            key = words[QuotaWord.QUOTA_KEY]
            assert (user, client_id) == (f"user-{key}", f"app-{key}")
            assert words[QuotaWord.QUOTA_USED] % key == 0
        before = reader.quotas(handler(2))[0][QuotaKind.QUOTA_PRODUCE][QuotaWord.QUOTA_USED]
        memory.meters(handler(2)).quota_used(QuotaKind.QUOTA_PRODUCE, 3, 3, 1)
        assert reader.quotas(handler(2))[0][QuotaKind.QUOTA_PRODUCE][QuotaWord.QUOTA_USED] == before + 3


def test_untouched_pages_cost_nothing(memory: SharedMemory, reader: Reader) -> None:
    def used() -> int:
        return memory.public_path.stat().st_blocks * 512

    before = used()
    meters = [memory.meters(process) for process in (processor(0), processor(15), handler(31))]
    for process in range(56):
        assert not reader.apis(process)
        assert not reader.errors(process)
        assert not reader.topics(process)
        assert not reader.clients(process, ClientKind.CLIENT_SOFTWARE)
        assert not reader.quotas(process)[1]
    assert used() == before, "reading makes no pages"
    meters[1].request(PRODUCE, 3, ApiHistogram.TOTAL_NS, 1)
    meters[1].request(ApiPage.FETCH_FOLLOWER, 3, ApiHistogram.TOTAL_NS, 1)
    meters[2].error(PRODUCE, 3)
    assert 0 < used() - before <= 2 * 24576 + 4096


def test_a_killed_writer_leaves_its_counts_to_its_successor(memory: SharedMemory, reader: Reader) -> None:
    pid = os.fork()
    if pid == 0:
        meters = memory.meters(processor(3))
        for number in range(1000):
            meters.request(PRODUCE, 3, ApiHistogram.TOTAL_NS, number)
            meters.error(PRODUCE, 0)
            meters.topic(number % SLOTS, 1, TopicMeter.BYTES_OUT, 2)
        meters.client(ClientKind.CLIENT_SOFTWARE, b"gone", b"1")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    successor = memory.meters(processor(3))
    successor.request(PRODUCE, 3, ApiHistogram.TOTAL_NS, 5)
    successor.error(PRODUCE, 0)
    successor.topic(7, 1, TopicMeter.BYTES_OUT, 2)
    assert reader.apis(processor(3))[PRODUCE][0] == {3: 1001}
    assert reader.errors(processor(3)) == {PRODUCE: {0: 1001}}
    assert sum(cell[TopicMeter.BYTES_OUT] for cell in reader.topics(processor(3)).values()) == 2002
    assert reader.clients(processor(3), ClientKind.CLIENT_SOFTWARE) == [("gone", "1", 0, 1)]


def test_what_cannot_be_reserved_is_a_lost_count(memory: SharedMemory, reader: Reader) -> None:
    # A device has no space to reserve, like a full tmpfs.
    full = Meters(memory.public, Path("/dev/full"), processor(6), SLOTS)
    full.request(PRODUCE, 3, ApiHistogram.TOTAL_NS, 1)
    full.topic(3, 1, TopicMeter.BYTES_IN)
    full.error(PRODUCE, 0)
    assert full.client(ClientKind.CLIENT_SOFTWARE, b"a", b"1") == -1
    assert not full.name_quota(QuotaKind.QUOTA_FETCH, 5, "a", "b", 1)
    full.quota_used(QuotaKind.QUOTA_FETCH, 5, 1, 1)
    assert full.lost == reader.lost(processor(6)) == 5
    assert not reader.apis(processor(6))
    assert not reader.topics(processor(6))
