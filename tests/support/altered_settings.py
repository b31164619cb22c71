"""A client that alters settings of brokers and reads them back, with everything that the answers say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    Message,
)
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType
from ops.bench.brokers import Mpbroker
from tests.support.socket_client import SocketClient

OF_BROKER, OF_ALL = "1", ""
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Told:
    """One setting as DescribeConfigs has it. `synonyms`: (name, value, source)."""

    value: str | None
    source: int
    read_only: bool
    synonyms: list[tuple[str, str | None, int]]


def ask(broker: Mpbroker, key: ApiKey, version: int, body: Message) -> Any:
    with SocketClient(broker) as client:
        return client.ask(key, version, body)


def alter(
    broker: Mpbroker, name: str, *, validate_only: bool = False, **values: str | None
) -> tuple[int, str | None]:
    """Keys with underscores; None takes one back. -> error code and message"""
    of = IncrementalAlterConfigsRequest
    changes = [
        of.AlterableConfig(
            key.replace("_", "."), ConfigOperation.DELETE if value is None else ConfigOperation.SET, value
        )
        for key, value in values.items()
    ]
    body = of([of.AlterConfigsResource(ConfigResourceType.BROKER, name, changes)], validate_only)
    (answer,) = ask(broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return answer.error_code, answer.error_message


def settings_of(
    broker: Mpbroker, name: str, kind: ConfigResourceType = ConfigResourceType.BROKER
) -> dict[str, Told]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(kind, name, None)
    body = DescribeConfigsRequest([resource], include_synonyms=True)
    (answer,) = ask(broker, ApiKey.DESCRIBE_CONFIGS, 4, body).results
    assert answer.error_code == 0, answer.error_message
    return {
        one.name: Told(
            one.value, one.config_source, one.read_only, [(s.name, s.value, s.source) for s in one.synonyms]
        )
        for one in answer.configs
    }
