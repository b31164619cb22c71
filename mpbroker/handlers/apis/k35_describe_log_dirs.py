"""DescribeLogDirs (key 35), versions 1-5: log directories, their file systems, and the sizes of partitions.

A partition's size is that of its segments, without their indexes and without files that are being deleted. It
is read from the files, not asked of the log process. If a partition moves, its future replica is described
too; only its log worker knows how far that is behind. (Kafka: KafkaApis.handleDescribeLogDirsRequest,
ReplicaManager.describeLogDirs; KIP-113, KIP-827 for the totals.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from mpbroker.handlers.api_parts.log_questions import ask_all
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc import calls
from mpbroker.log.format.names import FUTURE_SUFFIX
from mpbroker.log.read.reader import segment_bytes
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeLogDirsResponse

log = logging.getLogger("mpbroker.handlers")

# Directories whose files are counted at a time: about a millisecond.
COUNTED_AT_ONCE = 32

Result: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsResult
OfTopic: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsTopic
OfPartition: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsPartition


def described(exchange: ApiExchange, number: int) -> Result:
    """Describe a log directory without its partitions."""
    directory = Path(exchange.broker.config.log_dirs[number]).absolute()
    result = Result(log_dir=str(directory))
    if exchange.broker.failed_dirs() >> number & 1:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    try:
        system = os.statvfs(directory)
    except OSError as error:
        log.error("%s cannot be described: %s", directory, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.total_bytes = system.f_blocks * system.f_frsize
    result.usable_bytes = system.f_bavail * system.f_frsize
    return result


def asked_for(exchange: ApiExchange) -> Iterator[tuple[Topic, int]]:
    """Yield the partitions that exist; all of them if the request names none."""
    metadata = exchange.broker.metadata
    if exchange.body.topics is None:
        for topic in list(metadata.by_name.values()):
            yield from ((topic, number) for number in topic.partitions)
        return
    for wanted in exchange.body.topics:
        known = metadata.by_name.get(wanted.topic)
        if known is not None:
            yield from ((known, number) for number in wanted.partitions if number in known.partitions)


def pieces(exchange: ApiExchange) -> Iterator[None]:
    broker = exchange.broker
    results = [described(exchange, number) for number in range(len(broker.config.log_dirs))]
    topics: list[dict[str, OfTopic]] = [{} for _ in results]
    for count, (topic, number) in enumerate(asked_for(exchange), 1):
        if count % COUNTED_AT_ONCE == 0:
            exchange.takes_long = True
            yield
        found = broker.partition(topic, number)
        if isinstance(found, ErrorCode) or results[found[1].log_dir].error_code:
            continue
        now = found[1]
        try:
            size = segment_bytes(broker.readers.directory(topic.name, now))
        except OSError as error:
            # The directory has just gone, or the disk fails; the log process will find that out.
            log.warning("%s-%d is not described: %s", topic.name, number, error)
            continue
        named = topics[now.log_dir].setdefault(topic.name, OfTopic(topic.name))
        named.partitions.append(OfPartition(number, size))
    if not any(has_futures(result) for result in results):
        reply(exchange, results, topics)
        return
    wanted = {(topic.name, number) for topic, number in asked_for(exchange)}

    def told(answer: calls.Message) -> None:
        if isinstance(answer, calls.Moves):
            for one in answer.partitions:
                if (one.topic, one.partition) in wanted and not results[one.log_dir].error_code:
                    describe_future(topics[one.log_dir], one)

    ask_all(exchange, calls.TellMoves(), told, lambda: reply(exchange, results, topics))


def reply(exchange: ApiExchange, results: list[Result], topics: list[dict[str, OfTopic]]) -> None:
    for result, by_name in zip(results, topics, strict=True):
        result.topics = list(by_name.values())
    exchange.reply(DescribeLogDirsResponse(results=results))


def has_futures(result: Result) -> bool:
    """Return True if a partition moves to this directory."""
    if result.error_code:
        return False
    try:
        return any(name.endswith(FUTURE_SUFFIX) for name in os.listdir(result.log_dir))  # noqa: PTH208
    except OSError as error:
        log.error("%s cannot be described: %s", result.log_dir, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return False


def describe_future(by_name: dict[str, OfTopic], one: calls.MovingPartition) -> None:
    try:
        size = segment_bytes(Path(one.directory))
    except OSError:
        # The future replica has arrived or been given up since the log worker answered.
        return
    named = by_name.setdefault(one.topic, OfTopic(one.topic))
    named.partitions.append(OfPartition(one.partition, size, one.lag, True))


@api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, name="DescribeLogDirs")
def handle(exchange: ApiExchange) -> None:
    """The log directories, what is left of their file systems, sizes of partitions, which of them move."""
    exchange.work_off(pieces(exchange))
