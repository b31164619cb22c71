"""WriteTxnMarkers (key 27), versions 1-2: ends transactions in partitions, by markers in the log.

The transaction coordinator writes its markers itself. `kafka-transactions.sh abort` asks for a marker for a
transaction that was left open: until it ends, read_committed consumers get no later records. The response
comes when the markers are durable. Partitions of internal topics are refused. A partition gets a marker once,
however often it is named. Other requests are served while many markers are being made. (Kafka:
KafkaApis.handleWriteTxnMarkersRequest; KIP-98, KIP-664.)
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.produce.slow_appends import Append
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from mpbroker.records.batch import NO_SEQUENCE, scan_batch
from mpbroker.records.builder import build_transaction_marker
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.validation import ValidatedBatch

ALL_IN_SYNC = -1
# The request has no timeout of its own. (Kafka: request.timeout.ms)
TIMEOUT_MS = 30_000
# Batches made before other requests get their turn: about a millisecond.
MADE_AT_ONCE = 100

Marker: TypeAlias = WriteTxnMarkersRequest.WritableTxnMarker
OfMarker: TypeAlias = WriteTxnMarkersResponse.WritableTxnMarkerResult
OfTopic: TypeAlias = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
OfPartition: TypeAlias = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def partitions_of(marker: Marker) -> dict[str, dict[int, None]]:
    named: dict[str, dict[int, None]] = {}
    for topic in marker.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return named


def response_of(context: RequestContext, code: ErrorCode) -> WriteTxnMarkersResponse:
    """Return a response with the same error for each partition."""
    return WriteTxnMarkersResponse(
        [
            OfMarker(
                marker.producer_id,
                [
                    OfTopic(name, [OfPartition(number, code) for number in numbers])
                    for name, numbers in partitions_of(marker).items()
                ],
            )
            for marker in context.body.markers
        ]
    )


def failed(context: RequestContext, code: ErrorCode) -> WriteTxnMarkersResponse:
    return response_of(context, code)


def batch_of(marker: Marker, now_ms: int) -> ValidatedBatch:
    data = build_transaction_marker(
        COMMIT if marker.transaction_result else ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now_ms,
    )
    return ValidatedBatch(
        data=memoryview(data),
        record_count=1,
        max_timestamp=now_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        base_sequence=NO_SEQUENCE,
        attributes=scan_batch(data).attributes,
        rebuilt=True,
    )


def append_of(context: RequestContext, marker: Marker, name: str, partition: int) -> Append | ErrorCode:
    topic = context.broker.metadata.by_name.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    found = context.broker.partition(topic, partition)
    if isinstance(found, ErrorCode):
        return found
    if marker.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    batch = batch_of(marker, context.broker.wall_clock_ms())
    return Append(found[0].slot, found[0].slot_generation, topic.config_version, batch)


@api(ApiKey.WRITE_TXN_MARKERS, 1, 2, name="WriteTxnMarkers", failed=failed, elements_max=CHANGES_MAX)
def handle(context: RequestContext) -> Generator[None, None, WriteTxnMarkersResponse]:
    """Ends transactions that were left open in partitions, for administrators."""
    response = response_of(context, ErrorCode.NONE)
    appends: list[Append] = []
    waiting: list[OfPartition] = []
    for marker, of_marker in zip(context.body.markers, response.markers, strict=True):
        for of_topic in of_marker.topics:
            for result in of_topic.partitions:
                found = append_of(context, marker, of_topic.name, result.partition_index)
                if isinstance(found, ErrorCode):
                    result.error_code = found
                    continue
                appends.append(found)
                waiting.append(result)
                if len(appends) % MADE_AT_ONCE == 0:
                    context.takes_long = True
                    yield
    if not appends:
        return response
    batches: list[Batch] | None = yield from context.wait(
        partial(context.broker.log.append, context.slot, ALL_IN_SYNC, TIMEOUT_MS, appends)
    )
    for number, result in enumerate(waiting):
        # The marker may have been written or not; a retry does no harm.
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if batches is None else batches[number].error
    return response
