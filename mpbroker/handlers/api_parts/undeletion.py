"""Brings a deleted topic back that has records in the object store: CreateTopics with the setting UNDELETED.

The value of the setting is the id of the deleted topic; the topic does not keep it. First the coordinator is
asked whether it would create the topic. Then the tier makes the partitions' directories. Then the coordinator
creates the topic as any other, but with that id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from mpbroker.config.remote import SYSTEM_ENABLE, UNDELETED
from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ApiError, ErrorCode, error_code
from mpbroker.protocol.uuids import uuid_bytes


def undeletion(
    context: RequestContext, topic: calls.CreateTopic, *, validate_only: bool
) -> Generator[None, None, None]:
    """Have the tier make a deleted topic's directories, and set the topic's id. Raises ApiError."""
    tier, text = context.broker.remote.tier, topic.configs.pop(UNDELETED)
    if tier is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{UNDELETED} needs {SYSTEM_ENABLE}=true.")
    try:
        topic_id = uuid_bytes(text or "")
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{UNDELETED} is no id of a topic: {error}") from error
    topic.topic_id = topic_id
    question = calls.CreateTopics([topic], validate_only=True)
    (found,) = (yield from ask_coordinator(context, question, calls.CreatedTopics)).topics
    if found.error:
        raise ApiError(error_code(found.error), found.message)
    if validate_only:
        return
    connection = context.slot.connection

    def ask(then: Callable[[calls.Message], None]) -> None:
        tier.call(calls.UndeleteTopic(topic.name, topic_id, topic.partitions), then, connection)

    answer: calls.Message = yield from context.wait(ask)
    if isinstance(answer, calls.Failed):
        raise ApiError(error_code(answer.error), f"The topic does not come back: {answer.message}.")
