"""Common code of AlterConfigs and IncrementalAlterConfigs: where changes go, and which are refused at once.

The coordinator keeps all settings. Nobody keeps levels of loggers. (Kafka:
ConfigAdminManager.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from mpbroker.handlers.api_parts import broker_loggers
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests import permissions
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import Need
from mpbroker.ipc.calls import AlteredResources, AlterSettings, ConfigAlteration, ConfigChange
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import AlterConfigsResponse, IncrementalAlterConfigsResponse, Message
from mpbroker.protocol.numbers import ConfigOperation, ResourceType
from mpbroker.security.acls import CLUSTER_NAME

# Resources that the coordinator is asked to alter at a time: others wait for it meanwhile, some 60 us each.
ALTERED_AT_ONCE = 250
_OPERATIONS = frozenset(map(int, ConfigOperation))
_TYPES = frozenset(map(int, ResourceType))

# What a client needs for the settings of a topic or a group; those of all else are the cluster's.
DESCRIBING: dict[int, Need] = {
    ResourceType.TOPIC: permissions.DESCRIBE_TOPIC_CONFIGS,
    ResourceType.GROUP: permissions.DESCRIBE_GROUP_CONFIGS,
    ResourceType.BROKER: permissions.DESCRIBE_CLUSTER_CONFIGS,
}
ALTERING: dict[int, Need] = {
    ResourceType.TOPIC: permissions.ALTER_TOPIC_CONFIGS,
    ResourceType.GROUP: permissions.ALTER_GROUP_CONFIGS,
    ResourceType.BROKER: permissions.ALTER_CLUSTER_CONFIGS,
}


class Outcome(NamedTuple):
    """The result for one resource."""

    error: int
    message: str | None


# Both have the same fields.
Response: TypeAlias = type[AlterConfigsResponse] | type[IncrementalAlterConfigsResponse]


def response_of(response: Response, exchange: ApiExchange, outcomes: list[Outcome]) -> Message:
    """Build the response from `outcomes`, which are in the order of the request's resources."""
    result = response.AlterConfigsResourceResponse
    responses: list[Any] = [
        result(outcome.error, outcome.message, resource.resource_type, resource.resource_name)
        for resource, outcome in zip(exchange.body.resources, outcomes, strict=True)
    ]
    return response(responses=responses)


def failing(response: Response) -> Callable[[ApiExchange, ErrorCode], Message]:
    """Return a function that answers a request by failing all of its resources."""

    def failed(exchange: ApiExchange, code: ErrorCode) -> Message:
        return response_of(response, exchange, [Outcome(code, code.message)] * len(exchange.body.resources))

    return failed


def alter(
    exchange: ApiExchange,
    changes_of: Callable[[Any], list[ConfigChange]],
    response: Response,
    *,
    replaces: bool,
) -> Generator[None, None, Message | None]:
    """Alter the resources of a request. `replaces`: reset settings that a resource's changes do not name."""
    resources = exchange.body.resources
    times = Counter((r.resource_type, r.resource_name) for r in resources)
    outcomes: list[Outcome | None] = []
    alterations = []
    for done, resource in enumerate(resources, start=1):
        if exchange.has_had_its_share(done, LOOKUPS_PER_PIECE):
            yield
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            check_permission(exchange, resource, ALTERING)
            changes = changes_of(resource)
            _check(exchange, resource, changes)
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                _alter_loggers(exchange, resource.resource_name, changes, replaces=replaces)
                outcomes.append(Outcome(ErrorCode.NONE, None))
                continue
        except ApiError as error:
            outcomes.append(Outcome(error.code, error.message))
            continue
        outcomes.append(None)
        kind = resource.resource_type
        alterations.append(ConfigAlteration(resource.resource_name, changes, replaces, kind))
    if not alterations:
        return response_of(response, exchange, [one for one in outcomes if one is not None])

    _Alteration(exchange, response, outcomes, alterations).ask()
    return None


class _Alteration:
    """The alterations that the coordinator does for a request, some at a time, as Kafka each by itself.

    `outcomes` are those of the request's resources, None for what is among `alterations`.
    """

    def __init__(
        self,
        exchange: ApiExchange,
        response: Response,
        outcomes: list[Outcome | None],
        alterations: list[ConfigAlteration],
    ) -> None:
        self._exchange = exchange
        self._response = response
        self._outcomes = outcomes
        self._left = alterations
        self._results: list[Outcome] = []

    def ask(self) -> None:
        ask_coordinator(
            self._exchange,
            AlterSettings(self._left[:ALTERED_AT_ONCE], self._exchange.body.validate_only),
            AlteredResources,
            self._answered,
        )

    def _answered(self, answer: AlteredResources | Unanswered) -> None:
        if isinstance(answer, AlteredResources):
            self._results += [Outcome(*one) for one in answer.results]
            self._left = self._left[ALTERED_AT_ONCE:]
            if self._left:
                self.ask()
                return
        else:
            self._results += [Outcome(answer.code, answer.message)] * len(self._left)
        results = iter(self._results)
        outcomes = [next(results) if one is None else one for one in self._outcomes]
        self._exchange.reply(response_of(self._response, self._exchange, outcomes))


def _check(exchange: ApiExchange, resource: Any, changes: list[ConfigChange]) -> None:
    """Check the changes of a resource. Raises ApiError if they are not allowed."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in changes if c.operation != ConfigOperation.DELETE and c.value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if any(change.operation not in _OPERATIONS for change in changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown operation.")
    kind = resource.resource_type
    if kind == ResourceType.BROKER:
        check_broker(exchange, resource.resource_name)
    elif kind not in _TYPES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _alter_loggers(
    exchange: ApiExchange, broker: str, changes: list[ConfigChange], *, replaces: bool
) -> None:
    """Alter levels of loggers at once; nobody else keeps them. Raises ApiError if that is not possible."""
    if replaces:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Resources of type BROKER_LOGGER can be altered by IncrementalAlterConfigs only",
        )
    broker_loggers.alter(exchange, broker, changes, validate_only=exchange.body.validate_only)


def check_permission(exchange: ApiExchange, resource: Any, needs: dict[int, Need]) -> None:
    """Check that the client may see or alter the settings of a resource. Raises ApiError if it may not."""
    if resource.resource_type not in _TYPES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    need = needs.get(resource.resource_type, needs[ResourceType.BROKER])
    of_cluster = need == needs[ResourceType.BROKER]
    if not exchange.allows(need, CLUSTER_NAME if of_cluster else resource.resource_name):
        raise ApiError(need.denied)


def check_broker(exchange: ApiExchange, name: str) -> None:
    """Check that a resource names this broker, or all of them (""). Raises ApiError if it names another."""
    node = exchange.broker.metadata.node_id
    if name not in ("", str(node)):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node} or empty string, but received {name}",
        )
