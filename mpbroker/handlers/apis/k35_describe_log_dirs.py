"""DescribeLogDirs (key 35), versions 1-5: log directories, their file systems, and the sizes of partitions.

A partition's size is the size of its segments, without indexes and without files that are being deleted. The
handler reads it from the files. The future replica of a moving partition is described, too. Its lag comes
from the log worker, which does not know the lag shortly after a start. (Kafka:
KafkaApis.handleDescribeLogDirsRequest, ReplicaManager.describeLogDirs; KIP-113, KIP-827 for the totals.)
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeAlias

from mpbroker.handlers.api_parts.log_questions import ask_all
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc import calls
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeLogDirsResponse
from mpbroker.storage.names import FUTURE_SUFFIX, NotAPartition, parse_partition, partition_name
from mpbroker.storage.reader import segment_bytes

log = logging.getLogger("mpbroker.handlers")

# Directories whose files are counted at a time: about a millisecond.
COUNTED_AT_ONCE = 32
# Kafka: DescribeLogDirsResponse.INVALID_OFFSET_LAG.
UNKNOWN_LAG = -1

Result: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsResult
OfTopic: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsTopic
OfPartition: TypeAlias = DescribeLogDirsResponse.DescribeLogDirsPartition


def described(context: RequestContext, number: int) -> Result:
    """Describe a log directory without its partitions."""
    directory = Path(context.broker.config.log_dirs[number]).absolute()
    result = Result(log_dir=str(directory))
    if context.broker.failed_dirs() >> number & 1:
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


def asked_for(context: RequestContext) -> Iterator[tuple[Topic, int]]:
    """Yield (topic, number) of each requested partition that exists; of all if the request has no list."""
    metadata = context.broker.metadata
    if context.body.topics is None:
        for topic in list(metadata.by_name.values()):
            yield from ((topic, number) for number in topic.partitions)
        return
    for wanted in context.body.topics:
        known = metadata.by_name.get(wanted.topic)
        if known is not None:
            yield from ((known, number) for number in wanted.partitions if number in known.partitions)


@api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, name="DescribeLogDirs")
def handle(context: RequestContext) -> Generator[None, None, DescribeLogDirsResponse]:
    """Describes log directories: space of their file systems, sizes of partitions, and moves under way."""
    # A client that follows a move must not get the old directory without a future replica: it would regard
    # the move as abandoned.
    moves: list[calls.MovingPartition] = []
    if len(context.broker.config.log_dirs) > 1:
        for answer in (yield from ask_all(context, calls.TellMoves())):
            moves += answer.partitions if isinstance(answer, calls.Moves) else ()
    broker = context.broker
    results = [described(context, number) for number in range(len(broker.config.log_dirs))]
    topics: list[dict[str, OfTopic]] = [{} for _ in results]
    found = [*futures_in(context, results), *moves] if len(results) > 1 else []
    futures = {(one.topic, one.partition): one for one in found}
    for count, (topic, number) in enumerate(asked_for(context), 1):
        if count % COUNTED_AT_ONCE == 0:
            context.takes_long = True
            yield
        current, log_dir = current_replica(context, topic, number, results)
        move = futures.get((topic.name, number))
        if current is not None:
            topics[log_dir].setdefault(topic.name, OfTopic(topic.name)).partitions.append(current)
        if move is not None and move.log_dir != log_dir and not results[move.log_dir].error_code:
            named = topics[move.log_dir].setdefault(topic.name, OfTopic(topic.name))
            named.partitions.append(OfPartition(number, future_bytes(move), move.lag, True))
    for result, by_name in zip(results, topics, strict=True):
        result.topics = list(by_name.values())
    return DescribeLogDirsResponse(results=results)


def current_replica(
    context: RequestContext, topic: Topic, number: int, results: list[Result]
) -> tuple[OfPartition | None, int]:
    """Return a description of the replica that clients use, and the number of its log directory.

    The description is None for a failed log directory, whose disk may hang. Without a replica the result is
    (None, -1).
    """
    broker, tried = context.broker, -1
    while True:
        found = broker.partition(topic, number)
        if isinstance(found, ErrorCode):
            return None, -1
        now = found[1]
        if results[now.log_dir].error_code:
            return None, now.log_dir
        try:
            return OfPartition(number, segment_bytes(broker.readers.directory(topic.name, now))), now.log_dir
        except OSError as error:
            if now.log_dir == tried:
                # The topic is being deleted, or the disk fails; the log process will find that out.
                log.warning("%s-%d is not described: %s", topic.name, number, error)
                return None, now.log_dir
            # A move that has just ended has taken the files along.
            tried = now.log_dir


def futures_in(context: RequestContext, results: list[Result]) -> Iterator[calls.MovingPartition]:
    """Yield the future replicas that are on disk. A log worker that has just started may not know them."""
    for number, result in enumerate(results):
        directory = Path(context.broker.config.log_dirs[number])
        with contextlib.suppress(OSError):
            for name in [] if result.error_code else os.listdir(directory):  # noqa: PTH208 - thousands
                with contextlib.suppress(NotAPartition):
                    if name.endswith(FUTURE_SUFFIX):
                        topic, partition, _ = parse_partition(name)
                        yield calls.MovingPartition(
                            topic, partition, number, str(directory / name), UNKNOWN_LAG
                        )


def future_bytes(move: calls.MovingPartition) -> int:
    """Return the bytes of a future replica's segments, even if it has just become the current replica."""
    future = Path(move.directory)
    for directory in (future, future.with_name(partition_name(move.topic, move.partition))):
        with contextlib.suppress(OSError):
            return segment_bytes(directory)
    return 0
