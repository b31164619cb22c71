"""Five batches of each producer are known again although a snapshot, Kafka's too, holds one."""

from __future__ import annotations

import pytest

from mpbroker.log.recovery import producer_history as recall_module
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.storage.names import segment_name
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.segments import segments_of
from tests.support.log_writer import MakeWriter, topic_config

DUPLICATE, OUT_OF_ORDER = -1, 45


def reopened(writer: MakeWriter, known: Known = Known(clean=True)):  # noqa: B008
    writer.log.close_cleanly()
    return load(writer.log.directory, "t", 0, bytes(range(16)), topic_config(), known, lambda _: None)


def known_batches(log, producer: int) -> list[tuple[int, int]]:
    """(first sequence, base offset), oldest first."""
    for entry in log.state.producers.entries():
        if entry[0] == producer:
            return [(last - delta, offset - delta) for last, offset, delta, _ in entry[4]]
    return []


def test_duplicates_of_the_second_to_fifth_last_batch_are_known(writer: MakeWriter) -> None:
    w = writer()
    for i in range(9):
        w.append(2, producer=(7, 0, 2 * i))
    log = reopened(w)
    for i in range(4, 9):
        assert log.state.producers.check(7, 0, 2 * i, 2)[:2] == (DUPLICATE, 2 * i)
    assert log.state.producers.check(7, 0, 6, 2)[0] == OUT_OF_ORDER
    assert log.state.producers.check(7, 0, 18, 2)[0] == 0


@pytest.mark.parametrize("piece_bytes", [1, 500, 1 << 20])
def test_each_producer_has_its_own_five(writer: MakeWriter, monkeypatch, piece_bytes: int) -> None:
    """Check producers that wrote long ago, in another segment, or little, between others that wrote much."""
    monkeypatch.setattr(recall_module, "PIECE_BYTES", piece_bytes)
    w = writer(segment_bytes="1048576", index_interval_bytes="4096")
    expected: dict[int, list[tuple[int, int]]] = {}
    sequences: dict[int, int] = {}
    for i in range(400):
        producer = 1 + (i * i) % 7 if i < 300 else 1 + i % 2
        sequence = sequences.get(producer, 0)
        base = w.append(1 + i % 3, producer=(producer, 0, sequence), size=3000)
        expected.setdefault(producer, []).append((sequence, base))
        sequences[producer] = sequence + 1 + i % 3
    assert len(segments_of(w.log.directory)) >= 2
    log = reopened(w)
    for producer, batches in expected.items():
        assert known_batches(log, producer) == batches[-5:], producer


def test_an_earlier_epoch_and_a_gap_are_no_part_of_it(writer: MakeWriter) -> None:
    w = writer()
    for i in range(5):
        w.append(producer=(7, 0, i))
    w.append(producer=(7, 1, 0))
    w.append(producer=(7, 1, 1))
    # Sequence 2 is missing: its batch was compacted away.
    w.append(producer=(7, 1, 3))
    assert known_batches(reopened(w), 7) == [(3, 7)]


def test_what_is_far_back_is_not_looked_for(writer: MakeWriter, monkeypatch) -> None:
    monkeypatch.setattr(recall_module, "RECALL_BYTES_MAX", 200_000)
    w = writer(index_interval_bytes="4096")
    for i in range(3):
        w.append(producer=(7, 0, i + 1))
    for _ in range(100):
        w.append(size=10_000)
    w.append(producer=(7, 0, 4))
    assert known_batches(reopened(w), 7) == [(4, 103)]


def test_without_an_index_the_segment_is_walked(writer: MakeWriter) -> None:
    w = writer()
    for i in range(6):
        w.append(producer=(7, 0, i))
    w.log.close_cleanly()
    snapshot = (w.log.directory / segment_name(6, ".snapshot")).read_bytes()
    (w.log.directory / segment_name(0, ".index")).unlink()
    producers = Producers()
    producers.load(snapshot)
    recall_module.recall(w.log.directory, [0], producers)
    assert [batch[0] for batch in producers.entries()[0][4]] == [1, 2, 3, 4, 5]
