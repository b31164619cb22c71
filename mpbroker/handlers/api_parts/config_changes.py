"""Common code of AlterConfigs and IncrementalAlterConfigs.

Changes of settings go to the coordinator, which stores them. Changes of loggers' levels are made here and
last until the broker stops. (Kafka: ConfigAdminManager.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from mpbroker.handlers.api_parts import broker_loggers
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, try_ask_coordinator
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests import permissions
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import Need
from mpbroker.ipc.calls import AlteredResources, AlterSettings, ConfigAlteration, ConfigChange
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import AlterConfigsResponse, IncrementalAlterConfigsResponse, Message
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType
from mpbroker.security.acls import CLUSTER_NAME

# Resources that the coordinator is asked to alter at a time: others wait for it meanwhile, some 60 us each.
ALTERED_AT_ONCE = 250
_OPERATIONS = frozenset(map(int, ConfigOperation))
_TYPES = frozenset(map(int, ConfigResourceType))

# The permission that a client needs to read the settings of a resource, by the resource's type.
DESCRIBING: dict[int, Need] = {
    ConfigResourceType.TOPIC: permissions.DESCRIBE_TOPIC_CONFIGS,
    ConfigResourceType.GROUP: permissions.DESCRIBE_GROUP_CONFIGS,
    ConfigResourceType.BROKER: permissions.DESCRIBE_CLUSTER_CONFIGS,
}
ALTERING: dict[int, Need] = {
    ConfigResourceType.TOPIC: permissions.ALTER_TOPIC_CONFIGS,
    ConfigResourceType.GROUP: permissions.ALTER_GROUP_CONFIGS,
    ConfigResourceType.BROKER: permissions.ALTER_CLUSTER_CONFIGS,
}


class Outcome(NamedTuple):
    """The result of altering one resource."""

    error: int
    message: str | None


# Both have the same fields.
Response: TypeAlias = type[AlterConfigsResponse] | type[IncrementalAlterConfigsResponse]


def response_of(response: Response, context: RequestContext, outcomes: list[Outcome]) -> Message:
    """Build the response from `outcomes`, which are in the order of the request's resources."""
    result = response.AlterConfigsResourceResponse
    responses: list[Any] = [
        result(outcome.error, outcome.message, resource.resource_type, resource.resource_name)
        for resource, outcome in zip(context.body.resources, outcomes, strict=True)
    ]
    return response(responses=responses)


def failing(response: Response) -> Callable[[RequestContext, ErrorCode], Message]:
    """Return a function that builds a response with the same error for each resource of a request."""

    def failed(context: RequestContext, code: ErrorCode) -> Message:
        return response_of(response, context, [Outcome(code, code.message)] * len(context.body.resources))

    return failed


def alter(
    context: RequestContext,
    changes_of: Callable[[Any], list[ConfigChange]],
    response: Response,
    *,
    replaces: bool,
) -> Generator[None, None, Message]:
    """Alter the requested resources. `replaces`: reset the settings that a resource's changes do not name."""
    resources = context.body.resources
    times = Counter((r.resource_type, r.resource_name) for r in resources)
    outcomes: list[Outcome | None] = []
    alterations = []
    for done, resource in enumerate(resources, start=1):
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            check_permission(context, resource, ALTERING)
            changes = changes_of(resource)
            _check(context, resource, changes)
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                _alter_loggers(context, resource.resource_name, changes, replaces=replaces)
                outcomes.append(Outcome(ErrorCode.NONE, None))
                continue
        except ApiError as error:
            outcomes.append(Outcome(error.code, error.message))
            continue
        outcomes.append(None)
        kind = resource.resource_type
        alterations.append(ConfigAlteration(resource.resource_name, changes, replaces, kind))
    results: list[Outcome] = []
    while alterations:
        question = AlterSettings(alterations[:ALTERED_AT_ONCE], context.body.validate_only)
        answer = yield from try_ask_coordinator(context, question, AlteredResources)
        if isinstance(answer, Unanswered):
            results += [Outcome(answer.code, answer.message)] * len(alterations)
            break
        results += [Outcome(*one) for one in answer.results]
        del alterations[:ALTERED_AT_ONCE]
    following = iter(results)
    return response_of(response, context, [next(following) if one is None else one for one in outcomes])


def _check(context: RequestContext, resource: Any, changes: list[ConfigChange]) -> None:
    """Raise ApiError if the resource or one of its changes is not valid."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in changes if c.operation != ConfigOperation.DELETE and c.value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if any(change.operation not in _OPERATIONS for change in changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown operation.")
    kind = resource.resource_type
    if kind == ConfigResourceType.BROKER:
        check_broker(context, resource.resource_name)
    elif kind not in _TYPES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _alter_loggers(
    context: RequestContext, broker: str, changes: list[ConfigChange], *, replaces: bool
) -> None:
    """Alter levels of loggers. Raises ApiError; AlterConfigs (`replaces`) is always refused."""
    if replaces:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Resources of type BROKER_LOGGER can be altered by IncrementalAlterConfigs only",
        )
    broker_loggers.alter(context, broker, changes, validate_only=context.body.validate_only)


def check_permission(context: RequestContext, resource: Any, needs: dict[int, Need]) -> None:
    """Raise ApiError if the client lacks the permission that `needs` has for the type of the resource."""
    if resource.resource_type not in _TYPES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    need = needs.get(resource.resource_type, needs[ConfigResourceType.BROKER])
    of_cluster = need == needs[ConfigResourceType.BROKER]
    if not context.allows(need, CLUSTER_NAME if of_cluster else resource.resource_name):
        raise ApiError(need.denied)


def check_broker(context: RequestContext, name: str) -> None:
    """Raise ApiError unless `name` is the id of this broker, or "" for all brokers."""
    node = context.broker.metadata.node_id
    if name not in ("", str(node)):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node} or empty string, but received {name}",
        )
