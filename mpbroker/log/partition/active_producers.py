"""The producers of a partition for DescribeProducers (Kafka: UnifiedLog.activeProducers, KIP-664)."""

from __future__ import annotations

from collections.abc import Mapping

from mpbroker.ipc.calls import (
    ActiveProducer,
    PartitionProducers,
    Producers,
    ProducersOfPartition,
    TellProducers,
)
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.protocol.errors import ErrorCode

# An answer ends behind the partition with which it has so many: appends wait while it is made.
PRODUCERS_AT_ONCE = 5_000


def tell_producers(logs: Mapping[int, PartitionLog], question: TellProducers) -> Producers:
    """Answer for as many partitions as fit, at least one. `logs`: the worker's partitions by slot."""
    told, count = [], 0
    for one in question.partitions:
        told.append(producers_of(logs.get(one.slot), one))
        count += len(told[-1].producers)
        if count >= PRODUCERS_AT_ONCE:
            break
    return Producers(told)


def producers_of(log: PartitionLog | None, wanted: PartitionProducers) -> ProducersOfPartition:
    """Answer a request for a partition's producers. `log`: the partition in the wanted slot now."""
    if log is None or log.state.generation != wanted.slot_generation:
        return ProducersOfPartition(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if log.state.is_offline:
        return ProducersOfPartition(ErrorCode.KAFKA_STORAGE_ERROR)
    producers = log.state.producers
    return ProducersOfPartition(
        0,
        [
            ActiveProducer(
                producer_id,
                epoch,
                batches[-1][0] if batches else -1,
                producers.last_ms(producer_id),
                coordinator_epoch,
                open_from,
            )
            for producer_id, epoch, coordinator_epoch, open_from, batches in producers.entries()
        ],
    )
