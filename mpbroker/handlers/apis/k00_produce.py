"""Produce (key 0), versions 3-13, advertised from 0.

This is the slow path, for what the native turn (produce.pyx) hands back: all errors, compressed batches that
are too large for the turn when decompressed, batches that are to be recompressed, requests whose block of
memory is too small for the answer, and transactions (`handlers/produce/transaction_checks.py`). Both paths
must do the same to the same request. Versions 0-2 are advertised because librdkafka turns compression off for
brokers that do not list them (KAFKA-18659); a request of such a version closes the connection. (Kafka:
KafkaApis.handleProduceRequest, ReplicaManager.handleProduceAppend, ProduceRequest.validateRecords.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from mpbroker.handlers.api_parts.topic_meters import batch_appended, partition_checked
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.produce.marker_holds import Hold
from mpbroker.handlers.produce.slow_appends import Append
from mpbroker.handlers.produce.transaction_checks import (
    FIRST_VERSION_THAT_ADDS,
    Part,
    Verification,
    client_error,
)
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import WRITE_TOPIC, WRITE_TRANSACTION
from mpbroker.handlers.requests.request import Outcome
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ProduceRequest, ProduceResponse
from mpbroker.protocol.wire import Buffer
from mpbroker.records.batch import ATTRIBUTES_AT, CODEC_MASK, CURRENT_MAGIC, MAGIC_AT, TRANSACTIONAL_BIT
from mpbroker.records.compression import Codec
from mpbroker.records.errors import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    CompressionError,
    InvalidRecords,
)
from mpbroker.records.validation import Pieces, at_once, validate_in_pieces

FIRST_ZSTD_VERSION = 7
FIRST_TOPIC_ID_VERSION = 13
# Bytes that a request may decompress while others wait for it: some ms of work. The size of its frame is no
# measure: a few bytes can unpack to megabytes.
AT_ONCE_BYTES = 1 << 20
# Compressing takes this many times as long as decompressing, with the slowest codec and level.
REBUILDING_COSTS = 16
# The batches of one request that are recompressed stay in memory until all are checked.
REBUILT_BYTES_MAX = 64 << 20

log = logging.getLogger("mpbroker.handlers")

Answer: TypeAlias = ProduceResponse.PartitionProduceResponse
Problem: TypeAlias = ErrorCode | InvalidRecords


def refused(index: int, problem: Problem) -> Answer:
    """Return the error answer for a partition to which nothing was appended."""
    if isinstance(problem, InvalidRecords):
        answer = Answer(index=index, error_code=problem.code, base_offset=-1)
        # As in Kafka, only errors of record validation are reported record by record.
        if problem.code in (INVALID_RECORD, INVALID_TIMESTAMP):
            answer.error_message = problem.message
            answer.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(e.batch_index, e.message)
                for e in problem.record_errors
            ]
        return answer
    return Answer(index=index, error_code=problem, base_offset=-1)


def all_refused(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=t.name,
                topic_id=t.topic_id,
                partition_responses=[refused(p.index, code) for p in t.partition_data],
            )
            for t in request.topic_data
        ]
    )


def failed(context: RequestContext, code: ErrorCode) -> ProduceResponse | None:
    """Return a response that refuses all partitions; None with acks=0: the caller closes the connection."""
    return None if context.body.acks == 0 else all_refused(context.body, code)


def codec_of(records: Buffer) -> int:
    """Return the codec that an unchecked batch claims for its records."""
    view = memoryview(records)
    return view[ATTRIBUTES_AT + 1] & CODEC_MASK if len(view) > ATTRIBUTES_AT + 1 else Codec.NONE


def is_transactional(records: Buffer | None) -> bool:
    """Return True if an unchecked batch claims to be transactional."""
    view = memoryview(records or b"")
    if len(view) <= ATTRIBUTES_AT + 1 or view[MAGIC_AT] != CURRENT_MAGIC:
        return False
    return bool(view[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT)


def has_transactional_records(request: ProduceRequest) -> bool:
    return any(is_transactional(p.records) for t in request.topic_data for p in t.partition_data)


def may_be_transactional(context: RequestContext) -> bool:
    """Return True if no records are transactional, or the client may write with the transactional id."""
    transaction = context.body.transactional_id
    if transaction is not None and not context.broker.authorization.is_on:
        return True
    if not has_transactional_records(context.body):
        return True
    return transaction is not None and context.allows(WRITE_TRANSACTION, transaction)


def find_topic(context: RequestContext, data: ProduceRequest.TopicProduceData) -> Topic | ErrorCode:
    metadata = context.broker.metadata
    if context.version >= FIRST_TOPIC_ID_VERSION:
        topic = metadata.by_id.get(data.topic_id)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = metadata.by_name.get(data.name)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and not context.allows(WRITE_TOPIC, data.name):
            return WRITE_TOPIC.denied
    if topic is None:
        return unknown
    return (
        topic
        if context.broker.authorization.allows_topic(context, WRITE_TOPIC, topic)
        else WRITE_TOPIC.denied
    )


def find_partition(context: RequestContext, topic: Topic, index: int) -> PartitionImage | ErrorCode:
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    image = topic.partitions.get(index)
    if image is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return image if context.broker.log.is_up(image.slot) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check(
    context: RequestContext,
    topic: Topic | ErrorCode,
    data: ProduceRequest.PartitionProduceData,
    most_bytes: int | None = None,
) -> Pieces[Append | Problem]:
    """Validate the batch of a partition; return the append for the log worker, or the error.

    At most `most_bytes` are decompressed.
    """
    if isinstance(topic, ErrorCode):
        return topic
    image = find_partition(context, topic, data.index)
    if isinstance(image, ErrorCode):
        return image
    if data.records is None or not len(data.records):
        return InvalidRecords(INVALID_RECORD, "There is no record batch.")
    policy = topic.policy
    if most_bytes is not None:
        policy = msgspec.structs.replace(policy, max_decompressed_bytes=most_bytes)
    try:
        batch = yield from validate_in_pieces(
            data.records,
            policy,
            now_ms=context.broker.wall_clock_ms(),
            zstd_allowed=context.version >= FIRST_ZSTD_VERSION,
        )
    except InvalidRecords as problem:
        return problem
    return Append(image.slot, image.slot_generation, topic.config_version, batch)


class Checked(NamedTuple):
    """The result of `check`, and the time that the check took, in ns."""

    found: Append | Problem
    spent_ns: int


def check_in_pieces(
    context: RequestContext, topic: Topic | ErrorCode, data: ProduceRequest.PartitionProduceData
) -> Pieces[Checked]:
    """Do what `check` does, and measure its time, without the time in which other requests are served."""
    pieces, spent_ns = check(context, topic, data), 0
    while True:
        started_ns = time.monotonic_ns()
        try:
            next(pieces)
        except StopIteration as end:
            return Checked(end.value, spent_ns + time.monotonic_ns() - started_ns)
        spent_ns += time.monotonic_ns() - started_ns
        yield


class Wanted(NamedTuple):
    """A validated append, the answer that gets its result, and its partition."""

    append: Append
    answer: Answer
    part: Part


def part_of(topic: Topic, partition: int, append: Append) -> Part:
    return Part(topic.name, partition, (append.slot, append.slot_generation))


class Production:
    """A Produce request under way, with one answer per partition.

    Batches in a transaction wait for the coordinator first. Then all batches wait for the log process.
    """

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.response = ProduceResponse()
        self.wanted: list[Wanted] = []
        self.hold: Hold | None = None
        # Bytes that may still be decompressed while others wait.
        self.room_bytes = AT_ONCE_BYTES
        self.rebuilt_bytes = 0

    def pieces(self) -> Generator[None]:
        """Validate the batches, at most one in each piece, then call `start`."""
        for data in self.context.body.topic_data:
            yield from self._add(data)
            if self.context.has_response:
                return
        self.start()

    def _add(self, data: ProduceRequest.TopicProduceData) -> Generator[None]:
        topic = find_topic(self.context, data)
        answers = []
        for partition in data.partition_data:
            started_ns = time.monotonic_ns()
            found = self._check_at_once(topic, partition)
            spent_ns = time.monotonic_ns() - started_ns
            if found is None:
                if not self.context.takes_long:
                    self.context.takes_long = True
                    yield
                found, spent_ns = yield from check_in_pieces(self.context, topic, partition)
            self._count(topic, partition, found, spent_ns)
            if isinstance(found, Append):
                assert isinstance(topic, Topic)
                self.rebuilt_bytes += len(found.batch.data) if found.batch.rebuilt else 0
                if self.rebuilt_bytes > REBUILT_BYTES_MAX:
                    text = "%s: its recompressed batches would take more than %d bytes"
                    log.warning(text, self.context, REBUILT_BYTES_MAX)
                    self.context.fail(ErrorCode.MESSAGE_TOO_LARGE)
                    return
                answer = Answer(index=partition.index)
                self.wanted.append(Wanted(found, answer, part_of(topic, partition.index, found)))
            else:
                answer = refused(partition.index, found)
                answer.log_start_offset = self._log_start(topic, partition.index, found)
            answers.append(answer)
            yield
        self.response.responses.append(
            ProduceResponse.TopicProduceResponse(
                name=data.name, topic_id=data.topic_id, partition_responses=answers
            )
        )

    def _log_start(self, topic: Topic | ErrorCode, index: int, problem: Problem) -> int:
        """Return the log start offset for errors of record validation, as in Kafka; -1 for other errors."""
        if isinstance(topic, ErrorCode) or not isinstance(problem, InvalidRecords):
            return -1
        if problem.code not in (INVALID_RECORD, INVALID_TIMESTAMP):
            return -1
        found = self.context.broker.partition(topic, index)
        return -1 if isinstance(found, ErrorCode) else found[1].log_start_offset

    def _check_at_once(
        self, topic: Topic | ErrorCode, data: ProduceRequest.PartitionProduceData
    ) -> Append | Problem | None:
        """Check a batch; return None if the check would take longer than other requests should wait.

        Also return None if decompression fails, since the cause may be the size limit of this check.
        """
        if isinstance(topic, ErrorCode) or data.records is None:
            return at_once(check(self.context, topic, data))
        codec, wanted = codec_of(data.records), topic.policy.compression
        rebuilt = wanted is not None and wanted != codec
        if codec == Codec.NONE and not rebuilt:
            return at_once(check(self.context, topic, data))
        cost = REBUILDING_COSTS if rebuilt else 1
        room_bytes = self.room_bytes // cost
        if self.context.takes_long or len(data.records) > room_bytes:
            return None
        found = at_once(check(self.context, topic, data, room_bytes))
        if isinstance(found, InvalidRecords) and isinstance(found.__cause__, CompressionError):
            return None
        if isinstance(found, Append):
            self.room_bytes -= found.batch.decompressed_bytes * cost
        return found

    def _count(
        self,
        topic: Topic | ErrorCode,
        data: ProduceRequest.PartitionProduceData,
        found: Append | Problem,
        spent_ns: int,
    ) -> None:
        image = topic.partitions.get(data.index) if isinstance(topic, Topic) else None
        if image is not None:
            if isinstance(found, Append):
                self.context.temporary_bytes += found.batch.decompressed_bytes
                self.context.conversion_ns += spent_ns if found.batch.rebuilt else 0
            size = len(data.records or b"")
            meters = self.context.broker.meters
            partition_checked(meters, self.context.version, image, size, found, spent_ns)

    def start(self) -> None:
        """Append the validated batches. The coordinator is asked first about batches in a transaction."""
        inside = [one for one in self.wanted if one.append.batch.attributes & TRANSACTIONAL_BIT]
        producers = {(one.append.batch.producer_id, one.append.batch.producer_epoch) for one in inside}
        if len(producers) > 1:
            self.context.fail(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif inside and self.is_asked_for:
            parts = [one.part for one in inside]
            asked = Verification(self.context.body.transactional_id, *producers.pop(), self.adds, parts)
            transactions = self.context.broker.transactions
            transactions.check(self.context, asked, partial(self.checked, inside))
        else:
            self.append()

    @property
    def adds(self) -> bool:
        """True if a request of this version adds its partitions to the transaction."""
        return self.context.version >= FIRST_VERSION_THAT_ADDS

    @property
    def is_asked_for(self) -> bool:
        return self.adds or self.context.broker.config.transaction_partition_verification_enable

    def checked(self, inside: list[Wanted], errors: list[ErrorCode], hold: Hold) -> None:
        """Put the coordinator's `errors` into the answers to `inside`, and append all batches not refused."""
        self.hold = hold
        for one, code in zip(inside, errors, strict=True):
            if code != ErrorCode.NONE:
                one.answer.error_code, one.answer.base_offset = client_error(self.context.version, code), -1
                one.answer.error_message = f"The coordinator of the transaction says {code.name}."
        self.wanted = [one for one in self.wanted if not one.answer.error_code]
        self.append()

    def append(self) -> None:
        request = self.context.body
        if not self.wanted:
            self.end_hold()
            self.finish()
            return
        self.context.broker.log.append(
            self.context.slot,
            request.acks,
            request.timeout_ms,
            [one.append for one in self.wanted],
            self.context.later(self.appended),
        )

    def end_hold(self) -> None:
        if self.hold is not None:
            self.hold.end()

    def appended(self, batches: list[Batch] | None) -> None:
        self.end_hold()
        if batches is None:
            # The dead log process may have written it or not; the client retries on a new connection.
            self.context.close()
            return
        for one, batch in zip(self.wanted, batches, strict=True):
            answer = one.answer
            answer.error_code, answer.base_offset = batch.error, batch.base_offset
            answer.log_append_time_ms, answer.log_start_offset = batch.append_time_ms, batch.log_start_offset
            batch_appended(self.context.broker.meters, batch)
        self.finish()

    def finish(self) -> None:
        if self.context.body.acks != 0:
            self.context.respond(self.response)
        elif any(p.error_code for t in self.response.responses for p in t.partition_responses):
            self.context.count_errors(error_counts(self.response))
            self.context.close()
        else:
            self.context.respond_nothing()


@api(ApiKey.PRODUCE, 3, 13, name="Produce", failed=failed, advertised_from=0)
def handle(context: RequestContext) -> Outcome:
    """Appends record batches; versions 0-2 are advertised for librdkafka's sake and refused."""
    request = context.body
    if not may_be_transactional(context):
        return failed_or_closed(context, WRITE_TRANSACTION.denied)
    if request.acks not in (-1, 0, 1):
        return all_refused(request, ErrorCode.INVALID_REQUIRED_ACKS)
    return Production(context).pieces()


def failed_or_closed(context: RequestContext, code: ErrorCode) -> ProduceResponse | None:
    response = failed(context, code)
    if response is None:
        context.close()
    return response
