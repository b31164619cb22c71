"""The producers of a partition for DescribeProducers (Kafka: UnifiedLog.activeProducers, KIP-664)."""

from __future__ import annotations

from collections.abc import Mapping

from mpbroker.ipc import calls
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.protocol.errors import ErrorCode

# An answer ends with the partition that reaches this number: appends wait while it is made.
PRODUCERS_AT_ONCE = 5_000


def describe_producers(logs: Mapping[int, PartitionLog], question: calls.TellProducers) -> calls.Producers:
    """Return the producers of the first partitions in `question`, until PRODUCERS_AT_ONCE is reached.

    `logs`: the partitions by slot.
    """
    answers, count = [], 0
    for one in question.partitions:
        answers.append(producers_of(logs.get(one.slot), one))
        count += len(answers[-1].producers)
        if count >= PRODUCERS_AT_ONCE:
            break
    return calls.Producers(answers)


def producers_of(log: PartitionLog | None, wanted: calls.PartitionProducers) -> calls.ProducersOfPartition:
    """Return the producers of partition `wanted`. `log`: the partition that now has the slot in `wanted`."""
    if log is None or log.state.generation != wanted.slot_generation:
        return calls.ProducersOfPartition(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if log.state.is_offline:
        return calls.ProducersOfPartition(ErrorCode.KAFKA_STORAGE_ERROR)
    producers = log.state.producers
    return calls.ProducersOfPartition(
        0,
        [
            calls.ActiveProducer(
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
