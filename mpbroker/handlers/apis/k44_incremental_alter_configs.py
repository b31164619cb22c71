"""IncrementalAlterConfigs (key 44), versions 0-1: alters settings one by one, also items of a list.

The response comes when the alteration is durable and is applied by the log process and all handlers; for
settings of the broker, by all processes. (Kafka: KafkaApis.handleIncrementalAlterConfigsRequest,
ConfigAdminManager, ConfigurationControlManager; KIP-339.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from mpbroker.handlers.api_parts.config_changes import alter, failing
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.calls import ConfigChange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import IncrementalAlterConfigsResponse, Message


def changes_of(resource: Any) -> list[ConfigChange]:
    return [ConfigChange(c.name, c.config_operation, c.value) for c in resource.configs]


@api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    0,
    1,
    name="IncrementalAlterConfigs",
    failed=failing(IncrementalAlterConfigsResponse),
    elements_max=CHANGES_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, Message | None]:
    """Alters single settings of topics and the broker, items of lists, and levels of the broker's loggers."""
    return alter(context, changes_of, IncrementalAlterConfigsResponse, replaces=False)
