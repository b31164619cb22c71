"""FindCoordinator (key 10), versions 0-6: which broker coordinates a group or a transactional id.

The coordinator is the broker that leads: this one, or the one that it stands by for. Kafka creates
`__consumer_offsets` or `__transaction_state` in this API, and answers COORDINATOR_NOT_AVAILABLE until the
topic exists. Here each topic is created for the first record to be stored in it; the request for that record
waits for the topic.

For share groups the response is UNSUPPORTED_VERSION, which no client retries. (Kafka:
KafkaApis.handleFindCoordinatorRequest; KIP-699 for v4.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from mpbroker.handlers.api_parts.cluster_nodes import leader_node
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_GROUP, DESCRIBE_TRANSACTION, Need
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
FIRST_VERSION_WITH_KEYS = 4
NEEDS = {GROUP: DESCRIBE_GROUP, TRANSACTION: DESCRIBE_TRANSACTION}
NO_NODE = -1
NO_SHARE_GROUPS = (
    ErrorCode.UNSUPPORTED_VERSION,
    "Share groups are not built in this version of the broker.",
)


def keys_of(context: RequestContext) -> Iterable[str]:
    """Return each key of the request once."""
    return dict.fromkeys(context.body.coordinator_keys)


def found(context: RequestContext, need: Need) -> Generator[None, None, FindCoordinatorResponse]:
    leader = leader_node(context)
    if leader is None:
        return failed(context, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    node, host, port, _ = leader
    if context.version < FIRST_VERSION_WITH_KEYS:
        if not context.allows(need, context.body.key):
            return failed(context, need.denied)
        return FindCoordinatorResponse(error_message=ErrorCode.NONE.name, node_id=node, host=host, port=port)
    coordinators: list[FindCoordinatorResponse.Coordinator] = []
    for done, key in enumerate(keys_of(context), start=1):
        coordinators.append(
            FindCoordinatorResponse.Coordinator(key, node, host, port)
            if context.allows(need, key)
            else refused_key(key, need.denied, need.denied.message)
        )
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return FindCoordinatorResponse(coordinators=coordinators)


def refused_key(key: str, code: ErrorCode, message: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(key, NO_NODE, "", -1, code, message)


def refused(context: RequestContext, code: ErrorCode, message: str) -> FindCoordinatorResponse:
    if context.version < FIRST_VERSION_WITH_KEYS:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=NO_NODE, host="", port=-1
        )
    return FindCoordinatorResponse(coordinators=[refused_key(key, code, message) for key in keys_of(context)])


def failed(context: RequestContext, code: ErrorCode) -> FindCoordinatorResponse:
    return refused(context, code, code.message)


@api(ApiKey.FIND_COORDINATOR, 0, 6, name="FindCoordinator", failed=failed, elements_max=GROUP_IDS_MAX)
def handle(
    context: RequestContext,
) -> FindCoordinatorResponse | Generator[None, None, FindCoordinatorResponse]:
    """Returns the broker that leads for groups and transactional ids, for share groups a final error."""
    kind = context.body.key_type
    if kind in NEEDS:
        return found(context, NEEDS[kind])
    if kind == SHARE:
        return refused(context, *NO_SHARE_GROUPS)
    return refused(context, ErrorCode.INVALID_REQUEST, f"Unknown coordinator type {kind}.")
