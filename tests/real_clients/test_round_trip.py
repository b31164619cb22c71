"""What one client writes, every client reads: byte for byte, with all that belongs to a record."""

import pytest

from ops.bench.brokers import Broker
from tests.support import client_adapters
from tests.support.client_adapters import CODECS, READERS, WRITERS, Reader, Writer
from tests.support.client_samples import by_partition, expected_offsets, sample_records, stored_in
from tests.support.real_brokers import TopicMaker

PARTITIONS = 3
COUNT = 150


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", [*WRITERS, "franz"], indirect=True)
def test_what_is_written_is_acked_with_its_offset_and_read_back(
    broker: Broker, new_topic: TopicMaker, writer: Writer, codec: str
) -> None:
    topic = new_topic(PARTITIONS)
    records = sample_records(PARTITIONS, COUNT, seed=CODECS.index(codec))
    assert writer(broker.bootstrap, topic, records, codec) == expected_offsets(records)
    stored = client_adapters.confluent_read(broker.bootstrap, topic, PARTITIONS, COUNT)
    assert by_partition(stored) == stored_in(records)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", [*READERS, "franz"], indirect=True)
def test_every_client_reads_the_same(
    broker: Broker, new_topic: TopicMaker, reader: Reader, codec: str
) -> None:
    topic = new_topic(PARTITIONS)
    records = sample_records(PARTITIONS, COUNT, seed=10 + CODECS.index(codec))
    client_adapters.confluent_write(broker.bootstrap, topic, records, codec, {"linger.ms": 20})
    assert by_partition(reader(broker.bootstrap, topic, PARTITIONS, COUNT)) == stored_in(records)


def test_many_small_batches_and_one_topic_written_by_several_clients(
    broker: Broker, new_topic: TopicMaker
) -> None:
    topic = new_topic(1)
    expected = []
    for seed, name in enumerate(WRITERS):
        records = sample_records(1, 40, seed=seed)
        expected += records
        offsets = WRITERS[name](broker.bootstrap, topic, records, "none")
        assert offsets == list(range(40 * seed, 40 * seed + 40))
    assert by_partition(client_adapters.kcat_read(broker.bootstrap, topic, 1, len(expected))) == stored_in(
        expected
    )
