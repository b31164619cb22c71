"""The broker's loggers, whose levels clients can read and change until the next restart.

Each part of the broker has a logger, which inherits the level of `root` if it has no level of its own. Only
the request log does not inherit that level (ipc.log_levels).
(Kafka: LoggingController.)
"""

from __future__ import annotations

import logging

from mpbroker.config.describe import ConfigSource, Entry
from mpbroker.config.keys import ConfigType
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.calls import ConfigChange
from mpbroker.ipc.log_levels import LEVELS, ROOT
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.numbers import ConfigOperation

log = logging.getLogger("mpbroker.handlers")


def entries(context: RequestContext, broker: str, names: list[str] | None) -> list[Entry]:
    """Return the levels of loggers, of all if `names` is None. Raises ApiError for another broker's id."""
    if not broker:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    _check_node(context, broker)
    return [
        Entry(
            name,
            level,
            ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            ConfigType.STRING,
            read_only=False,
            is_sensitive=False,
            documentation="",
            synonyms=(),
        )
        for name, level in context.broker.log_levels.all().items()
        if names is None or name in names
    ]


def alter(context: RequestContext, broker: str, changes: list[ConfigChange], *, validate_only: bool) -> None:
    """Change levels of loggers. Raises ApiError, and changes none, if one of the changes is not allowed."""
    _check_node(context, broker)
    levels = context.broker.log_levels
    there = levels.all()
    for change in changes:
        _check(change, there)
    if validate_only:
        return
    for change in changes:
        levels.put(change.name, change.value if change.operation == ConfigOperation.SET else None)
        log.info("a client has set the log level of %s to %s", change.name, levels.all()[change.name])


def _check_node(context: RequestContext, broker: str) -> None:
    """Raise ApiError if `broker`, the node id in a request, is not the id of this broker."""
    node = context.broker.metadata.node_id
    if broker != str(node):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node}, but received {broker}"
        )


def _check(change: ConfigChange, there: dict[str, str]) -> None:
    """Raise ApiError, with Kafka's message, if the change is not allowed. `there`: all levels by logger."""
    operation = ConfigOperation(change.operation)
    if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{operation.name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if change.name not in there:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Logger {change.name} does not exist! Loggers here: {', '.join(there)}",
        )
    if operation == ConfigOperation.SET and change.value not in LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log "
            f"level. Valid log levels are {', '.join(sorted(LEVELS))}",
        )
    if operation == ConfigOperation.DELETE and change.name == ROOT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed"
        )
