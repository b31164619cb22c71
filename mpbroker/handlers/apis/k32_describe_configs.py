"""DescribeConfigs (key 32), versions 1-4: every setting of a topic or of the broker, and its source.

The broker named "" has the settings that clients have altered for all brokers. As in Kafka, a group or a
client metrics subscription need not exist; the coordinator returns its settings. (Kafka:
ConfigHelper.describeConfigs; KIP-226, KIP-412 for loggers, KIP-569 for types and documentation.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.config import resource_config
from mpbroker.config.describe import Entry, describe_all_brokers, describe_broker, describe_topic
from mpbroker.handlers.api_parts import broker_loggers
from mpbroker.handlers.api_parts.config_changes import DESCRIBING, check_broker, check_permission
from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.calls import ReadSettings, SettingsRead
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import problem_with

Resource: TypeAlias = DescribeConfigsRequest.DescribeConfigsResource
# Resource types whose settings the coordinator has, and what their names are called.
NAMED: dict[int, str] = {
    ConfigResourceType.CLIENT_METRICS: "Client metrics subscription name",
    ConfigResourceType.GROUP: "Group name",
}
# An entry without its texts, with what one has of synonyms.
SMALLEST_CONFIG_BYTES = 32
Settings: TypeAlias = dict[tuple[int, str], dict[str, str]]
Result: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult


def refused(resource: Resource, code: int, message: str) -> Result:
    return Result(code, message, resource.resource_type, resource.resource_name, [])


def failed(context: RequestContext, code: ErrorCode) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[refused(r, code, code.message) for r in context.body.resources])


def topic_entries(context: RequestContext, name: str, keys: list[str] | None) -> list[Entry]:
    problem = problem_with(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = context.broker.metadata.by_name.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return describe_topic(context.broker.config, topic.overrides, keys)


def broker_entries(context: RequestContext, name: str, keys: list[str] | None) -> list[Entry]:
    check_broker(context, name)
    config = context.broker.config
    return describe_broker(config, keys) if name else describe_all_brokers(config.altered, keys)


def entries(context: RequestContext, resource: Resource, settings: Settings) -> list[Entry]:
    """Return the settings of a resource. Raises ApiError if it is unknown or the client lacks permission."""
    check_permission(context, resource, DESCRIBING)
    # An empty list means every setting, as in Kafka.
    keys = resource.configuration_keys or None
    if resource.resource_type == ConfigResourceType.TOPIC:
        return topic_entries(context, resource.resource_name, keys)
    if resource.resource_type == ConfigResourceType.BROKER:
        return broker_entries(context, resource.resource_name, keys)
    if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
        return broker_loggers.entries(context, resource.resource_name, keys)
    if resource.resource_type in NAMED:
        if not resource.resource_name:
            what = NAMED[resource.resource_type]
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must not be empty")
        own = settings.get((resource.resource_type, resource.resource_name), {})
        return resource_config.describe(resource.resource_type, own, context.broker.config, keys)
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def on_the_wire(
    context: RequestContext, entry: Entry
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    request = context.body
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(s.name, s.value, s.source)
            for s in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def describe(context: RequestContext, resource: Resource, settings: Settings) -> Result:
    try:
        found = [on_the_wire(context, entry) for entry in entries(context, resource, settings)]
    except ApiError as error:
        return refused(resource, error.code, error.message)
    return Result(ErrorCode.NONE, "", resource.resource_type, resource.resource_name, found)


def size_of(result: Result) -> int:
    """Return the approximate size of a resource's result in the response, in bytes."""
    texts = (text for c in result.configs for text in (c.name, c.value, c.documentation))
    return SMALLEST_CONFIG_BYTES * len(result.configs) + sum(len(text or "") for text in texts)


@api(ApiKey.DESCRIBE_CONFIGS, 1, 4, name="DescribeConfigs", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, DescribeConfigsResponse | None]:
    """Returns every setting of a resource, with default, synonyms and documentation; also log levels."""
    # Each once, however often it is named: responses can be much longer than the request.
    resources = {(one.resource_type, one.resource_name): one for one in context.body.resources}
    settings: Settings = {}
    if named := [key for key in resources if key[0] in NAMED]:
        answer = yield from ask_coordinator(context, ReadSettings(sorted(named)), SettingsRead)
        settings = {(kind, name): own for kind, name, own in answer.resources}
    results: list[Result] = []
    for resource in resources.values():
        results.append(describe(context, resource, settings))
        if context.exceeds_response_limit(size_of(results[-1])):
            return None
        if context.should_yield(len(results)):
            yield
    return DescribeConfigsResponse(results=results)
