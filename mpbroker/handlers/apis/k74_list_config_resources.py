"""ListConfigResources (key 74), versions 0-1: the names of resources with settings, of all types or of some.

Version 0 lists only subscriptions to client metrics, for which the API was made (KIP-714). A group is
listed if it has settings; it need not exist. (Kafka: KafkaApis.handleListConfigResources; KIP-1142.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.calls import ReadSettings, SettingsRead
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListConfigResourcesResponse
from mpbroker.protocol.numbers import ConfigResourceType

FIRST_VERSION_WITH_KINDS = 1
# Those whose resources the coordinator has.
KEPT = {ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP}

Resource: TypeAlias = ListConfigResourcesResponse.ConfigResource


def failed(_: RequestContext, code: ErrorCode) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=code)


def found(context: RequestContext, kinds: set[int]) -> Iterator[Resource]:
    metadata = context.broker.metadata
    for kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.BROKER):
        if kind in kinds:
            yield Resource(str(metadata.node_id), kind)
    if ConfigResourceType.TOPIC in kinds:
        yield from (Resource(name, ConfigResourceType.TOPIC) for name in metadata.by_name)


@api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, name="ListConfigResources", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, ListConfigResourcesResponse]:
    """Lists the names of topics, broker and loggers, and of groups and client metrics that have settings."""
    has_kinds = context.version >= FIRST_VERSION_WITH_KINDS
    supported: set[int] = set(ConfigResourceType) if has_kinds else {ConfigResourceType.CLIENT_METRICS}
    kinds: set[int] = set(context.body.resource_types) or supported
    if not kinds <= supported:
        return failed(context, ErrorCode.UNSUPPORTED_VERSION)
    here = list(found(context, kinds))
    if kinds & KEPT:
        answer = yield from ask_coordinator(context, ReadSettings(), SettingsRead)
        here += [Resource(name, kind) for kind, name, _ in answer.resources if kind in kinds]
    return ListConfigResourcesResponse(config_resources=here)
