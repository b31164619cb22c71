"""Produce (key 0), versions 3-13, advertised from 0.

This is the slow path: what the native turn (produce.pyx) hands back, which is every error, compressed
batches, topics that change what they store, and requests without room for their answer. Both must do the same
to the same request. 0-2 are advertised because librdkafka turns compression off for brokers that do not list
them (KAFKA-18659); using them closes the connection. (Kafka: KafkaApis.handleProduceRequest,
ReplicaManager.appendRecords, ProduceRequest.validateRecords.)
"""

from __future__ import annotations

import time
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.jobs import Append
from mpbroker.handlers.metadata import Topic
from mpbroker.handlers.topic_meters import batch_appended, partition_checked
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ProduceRequest, ProduceResponse
from mpbroker.records.batch import TRANSACTIONAL_BIT
from mpbroker.records.errors import INVALID_RECORD, INVALID_TIMESTAMP, InvalidRecords
from mpbroker.records.validation import ValidatedBatch, validate

FIRST_ZSTD_VERSION = 7
FIRST_TOPIC_ID_VERSION = 13

Answer: TypeAlias = ProduceResponse.PartitionProduceResponse
Problem: TypeAlias = ErrorCode | InvalidRecords


def refused(index: int, problem: Problem) -> Answer:
    """The answer for a partition to which nothing was appended."""
    if isinstance(problem, InvalidRecords):
        answer = Answer(index=index, error_code=problem.code, base_offset=-1)
        # As in Kafka, only what record validation found is told record by record.
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


def failed(exchange: Exchange, code: ErrorCode) -> ProduceResponse | None:
    """With acks=0 there is no answer: the connection is closed, so that the client notices."""
    return None if exchange.body.acks == 0 else all_refused(exchange.body, code)


def find_topic(exchange: Exchange, data: ProduceRequest.TopicProduceData) -> Topic | ErrorCode:
    metadata = exchange.broker.metadata
    if exchange.version >= FIRST_TOPIC_ID_VERSION:
        topic = metadata.by_id.get(data.topic_id)
        return ErrorCode.UNKNOWN_TOPIC_ID if topic is None else topic
    topic = metadata.by_name.get(data.name)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic


def find_partition(exchange: Exchange, topic: Topic, index: int) -> PartitionImage | ErrorCode:
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not exchange.broker.log.log_is_up:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    image = topic.partitions.get(index)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if image is None else image


def check(
    exchange: Exchange, topic: Topic | ErrorCode, data: ProduceRequest.PartitionProduceData
) -> Append | Problem:
    """What is to be appended for a partition, or why nothing is."""
    if isinstance(topic, ErrorCode):
        return topic
    image = find_partition(exchange, topic, data.index)
    if isinstance(image, ErrorCode):
        return image
    if data.records is None or not len(data.records):
        return InvalidRecords(INVALID_RECORD, "There is no record batch.")
    try:
        batch: ValidatedBatch = validate(
            data.records,
            topic.policy,
            now_ms=exchange.broker.wall_clock_ms(),
            zstd_allowed=exchange.version >= FIRST_ZSTD_VERSION,
        )
    except InvalidRecords as problem:
        return problem
    if batch.attributes & TRANSACTIONAL_BIT:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Append(image.slot, image.slot_generation, topic.config_version, batch)


class Production:
    """A request on its way: one answer per partition, of which some wait for the log process."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.response = ProduceResponse()
        self.appends: list[Append] = []
        self.waiting: list[Answer] = []
        for data in exchange.body.topic_data:
            self._add(data)

    def _add(self, data: ProduceRequest.TopicProduceData) -> None:
        topic = find_topic(self.exchange, data)
        answers = []
        for partition in data.partition_data:
            started_ns = time.monotonic_ns()
            found = check(self.exchange, topic, partition)
            self._count(topic, partition, found, time.monotonic_ns() - started_ns)
            if isinstance(found, Append):
                answer = Answer(index=partition.index)
                self.appends.append(found)
                self.waiting.append(answer)
            else:
                answer = refused(partition.index, found)
            answers.append(answer)
        self.response.responses.append(
            ProduceResponse.TopicProduceResponse(
                name=data.name, topic_id=data.topic_id, partition_responses=answers
            )
        )

    def _count(
        self,
        topic: Topic | ErrorCode,
        data: ProduceRequest.PartitionProduceData,
        found: Append | Problem,
        spent_ns: int,
    ) -> None:
        image = topic.partitions.get(data.index) if isinstance(topic, Topic) else None
        if image is not None:
            size = len(data.records or b"")
            meters = self.exchange.broker.meters
            partition_checked(meters, self.exchange.version, image, size, found, spent_ns)

    def start(self) -> None:
        request = self.exchange.body
        if not self.appends:
            self.finish()
            return
        self.exchange.broker.log.append(
            self.exchange.slot,
            request.acks,
            request.timeout_ms,
            self.appends,
            self.exchange.later(self.appended),
        )

    def appended(self, batches: list[Batch] | None) -> None:
        if batches is None:
            # Nobody knows whether the dead log process wrote it; the client asks again on a new connection.
            self.exchange.close()
            return
        for answer, batch in zip(self.waiting, batches, strict=True):
            answer.error_code, answer.base_offset = batch.error, batch.base_offset
            answer.log_append_time_ms, answer.log_start_offset = batch.append_time_ms, batch.log_start_offset
            batch_appended(self.exchange.broker.meters, batch)
        self.finish()

    def finish(self) -> None:
        if self.exchange.body.acks != 0:
            self.exchange.reply(self.response)
        elif any(p.error_code for t in self.response.responses for p in t.partition_responses):
            self.exchange.count_errors(self.response)
            self.exchange.close()
        else:
            self.exchange.reply_nothing()


@api(ApiKey.PRODUCE, 3, 13, name="Produce", failed=failed, advertised_from=0)
def handle(exchange: Exchange) -> ProduceResponse | None:
    """Appends record batches; versions 0-2 are advertised for librdkafka's sake and refused."""
    request = exchange.body
    if request.transactional_id is not None:
        # Transactions are not built: nobody may write under a transactional id.
        return failed_or_closed(exchange, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.acks not in (-1, 0, 1):
        return all_refused(request, ErrorCode.INVALID_REQUIRED_ACKS)
    Production(exchange).start()
    return None


def failed_or_closed(exchange: Exchange, code: ErrorCode) -> ProduceResponse | None:
    response = failed(exchange, code)
    if response is None:
        exchange.close()
    return response
