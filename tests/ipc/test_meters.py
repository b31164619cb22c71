"""Pages per API, topic and client: counted exactly, sparse until touched, kept when their writer dies."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.meters import (
    MOST_CLIENTS,
    OTHER_ERROR,
    OTHER_VERSION,
    ApiHistogram,
    ApiPage,
    Meters,
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
    meters.name_topic(3, 1, "orders")
    meters.name_topic(SLOTS - 1, 4, "x" * 249)
    meters.name_topic(3, 2, "o")
    assert reader.names(LOG) == {(3, 2): "o", (SLOTS - 1, 4): "x" * 249}


def test_clients_by_software(memory: SharedMemory, reader: Reader) -> None:
    meters = memory.meters(processor(0))
    java, rd = meters.client(b"apache-kafka-java", b"4.1.0"), meters.client(b"librdkafka", b"2.12.0")
    assert meters.client(b"apache-kafka-java", b"4.1.0") == java != rd
    meters.client_gone(java)
    assert reader.clients(processor(0)) == [
        ("apache-kafka-java", "4.1.0", 1, 2),
        ("librdkafka", "2.12.0", 1, 1),
    ]
    kinds = {meters.client(b"client", str(number).encode()) for number in range(MOST_CLIENTS)}
    assert len(kinds) == MOST_CLIENTS - 1
    assert -1 in kinds, "more kinds than there is room for are not counted"
    meters.client_gone(-1)


def test_untouched_pages_cost_nothing(memory: SharedMemory, reader: Reader) -> None:
    def used() -> int:
        return memory.public_path.stat().st_blocks * 512

    before = used()
    meters = [memory.meters(process) for process in (processor(0), processor(15), handler(31))]
    for process in range(56):
        assert not reader.apis(process)
        assert not reader.errors(process)
        assert not reader.topics(process)
        assert not reader.clients(process)
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
        meters.client(b"gone", b"1")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    successor = memory.meters(processor(3))
    successor.request(PRODUCE, 3, ApiHistogram.TOTAL_NS, 5)
    successor.error(PRODUCE, 0)
    successor.topic(7, 1, TopicMeter.BYTES_OUT, 2)
    assert reader.apis(processor(3))[PRODUCE][0] == {3: 1001}
    assert reader.errors(processor(3)) == {PRODUCE: {0: 1001}}
    assert sum(cell[TopicMeter.BYTES_OUT] for cell in reader.topics(processor(3)).values()) == 2002
    assert reader.clients(processor(3)) == [("gone", "1", 0, 1)]


def test_what_cannot_be_reserved_is_a_lost_count(memory: SharedMemory, reader: Reader) -> None:
    # A device has no space to reserve, like a full tmpfs.
    full = Meters(memory.public, Path("/dev/full"), processor(6), SLOTS)
    full.request(PRODUCE, 3, ApiHistogram.TOTAL_NS, 1)
    full.topic(3, 1, TopicMeter.BYTES_IN)
    full.error(PRODUCE, 0)
    assert full.client(b"a", b"1") == -1
    assert full.lost == reader.lost(processor(6)) == 4
    assert not reader.apis(processor(6))
    assert not reader.topics(processor(6))
