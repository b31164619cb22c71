"""ListConfigResources (key 74), versions 0-1: the names of resources with settings, of all types or of some.

Version 0 lists only subscriptions to client metrics, for which the API was made (KIP-714). Listed are groups
that have settings, which need not exist. (Kafka: KafkaApis.handleListConfigResources; KIP-1142.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.ipc.calls import ReadSettings, SettingsRead
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListConfigResourcesResponse
from mpbroker.protocol.numbers import ResourceType

FIRST_VERSION_WITH_KINDS = 1
# Those whose resources the coordinator has.
KEPT = {ResourceType.CLIENT_METRICS, ResourceType.GROUP}

Resource: TypeAlias = ListConfigResourcesResponse.ConfigResource


def failed(_: ApiExchange, code: ErrorCode) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=code)


def found(exchange: ApiExchange, kinds: set[int]) -> Iterator[Resource]:
    metadata = exchange.broker.metadata
    for kind in (ResourceType.BROKER_LOGGER, ResourceType.BROKER):
        if kind in kinds:
            yield Resource(str(metadata.node_id), kind)
    if ResourceType.TOPIC in kinds:
        yield from (Resource(name, ResourceType.TOPIC) for name in metadata.by_name)


@api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, name="ListConfigResources", failed=failed)
def handle(exchange: ApiExchange) -> ListConfigResourcesResponse | None:
    """The names of topics, broker and loggers, and of groups and client metrics that have settings."""
    has_kinds = exchange.version >= FIRST_VERSION_WITH_KINDS
    supported: set[int] = set(ResourceType) if has_kinds else {ResourceType.CLIENT_METRICS}
    kinds: set[int] = set(exchange.body.resource_types) or supported
    if not kinds <= supported:
        return failed(exchange, ErrorCode.UNSUPPORTED_VERSION)
    here = list(found(exchange, kinds))
    if not kinds & KEPT:
        return ListConfigResourcesResponse(config_resources=here)

    def read(answer: SettingsRead | Unanswered) -> None:
        if isinstance(answer, Unanswered):
            exchange.fail(answer.code)
            return
        kept = [Resource(name, kind) for kind, name, _ in answer.resources if kind in kinds]
        exchange.reply(ListConfigResourcesResponse(config_resources=[*here, *kept]))

    ask_coordinator(exchange, ReadSettings(), SettingsRead, read)
    return None
