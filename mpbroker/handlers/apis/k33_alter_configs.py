"""AlterConfigs (key 33), versions 0-2: sets the named settings of a resource, and resets all its others.

A resource is a topic, this broker or all brokers. The response comes when the alteration is durable and is
applied by the log process and all handlers; for settings of the broker, by all processes. (Kafka:
KafkaApis.handleAlterConfigsRequest, ConfigurationControlManager.)
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
from mpbroker.protocol.messages import AlterConfigsResponse, Message
from mpbroker.protocol.numbers import ConfigOperation


def changes_of(resource: Any) -> list[ConfigChange]:
    return [ConfigChange(c.name, ConfigOperation.SET, c.value) for c in resource.configs]


@api(
    ApiKey.ALTER_CONFIGS,
    0,
    2,
    name="AlterConfigs",
    failed=failing(AlterConfigsResponse),
    elements_max=CHANGES_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, Message | None]:
    """Sets the named settings of topics or of the broker, and resets all their others."""
    return alter(context, changes_of, AlterConfigsResponse, replaces=True)
