"""InitProducerId (key 22), versions 0-5: the id of an idempotent or transactional producer.

An idempotent producer gets epoch 0 and an id from the handler's block of ids, which the coordinator has made
durable before. When the handler ends, ids left in its block are never used. For a transactional id the
coordinator returns id and epoch, fences the earlier producer, and aborts that producer's open transaction.
(Kafka: TransactionCoordinator.handleInitProducerId; KIP-98, KIP-360, KIP-588, KIP-730.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.permissions import IDEMPOTENT_WRITE
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import InitProducerIdResponse
from mpbroker.security.acls import Operation

NONE = -1


def failed(_context: RequestContext, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)


def may_be_idempotent(context: RequestContext) -> bool:
    """Return True if the client has Write on any topic, or IdempotentWrite on the cluster (KIP-679)."""
    authorization = context.broker.authorization
    # In this order, since the second one writes a refusal to the audit log.
    return authorization.allows_any_topic(context, Operation.WRITE) or authorization.allows_cluster(
        context, IDEMPOTENT_WRITE
    )


@api(
    ApiKey.INIT_PRODUCER_ID,
    0,
    5,
    name="InitProducerId",
    failed=failed,
    is_forwarded=True,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, InitProducerIdResponse | None]:
    """Returns a new id for an idempotent producer, or id and epoch of a transactional producer."""
    context.raw_body()  # kept because a transactional producer's request is passed on as it came
    request = context.body
    if request.transactional_id == "" or (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return failed(context, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        context.broker.forwarding.pass_on(context)
        return None
    if not may_be_idempotent(context):
        return failed(context, IDEMPOTENT_WRITE.denied)
    found = yield from context.wait(context.broker.producer_ids.take)
    if found is None:
        # Java's idempotent producer retries this error; on NOT_COORDINATOR it would search for a coordinator.
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=found, producer_epoch=0)
