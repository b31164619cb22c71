"""Changes topics and committed offsets for the page, by the requests that the commands make.

Each change is one JSON object with its name in `change`. The broker decides about it as about any client's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from mpbroker.cli.cluster import group_requests
from mpbroker.cli.cluster.client import Client
from mpbroker.cli.cluster.group_offsets import ResetPlan, TopicScope, explained, planned
from mpbroker.cli.cluster.offset_resets import Reset, by_duration, parse_topic, to_datetime
from mpbroker.cli.cluster.topic_changes import alter_settings, create_partitions
from mpbroker.cli.errors import USAGE_ERROR, BadText, CliError, raise_all
from mpbroker.protocol.topic_names import INTERNAL_TOPICS

TIMEOUT_S: Final = 30.0
# What requests have room for: 32,767 bytes of UTF-8. The broker says what it takes of that.
_INT32_MAX: Final = (1 << 31) - 1
_Text = Annotated[str, msgspec.Meta(max_length=8_000)]


class CreateTopic(msgspec.Struct, tag_field="change", tag="create-topic", forbid_unknown_fields=True):
    """A new topic. -1 partitions: the broker's default."""

    topic: _Text
    partitions: Annotated[int, msgspec.Meta(ge=-1, le=_INT32_MAX)] = -1
    settings: dict[_Text, _Text] = {}


class DeleteTopic(msgspec.Struct, tag_field="change", tag="delete-topic", forbid_unknown_fields=True):
    topic: _Text


class AlterTopic(msgspec.Struct, tag_field="change", tag="alter-topic", forbid_unknown_fields=True):
    """Settings of a topic; null takes one back."""

    topic: _Text
    settings: dict[_Text, _Text | None]


class AddPartitions(msgspec.Struct, tag_field="change", tag="add-partitions", forbid_unknown_fields=True):
    """How many partitions a topic shall have in all."""

    topic: _Text
    partitions: Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]


class ResetOffsets(msgspec.Struct, tag_field="change", tag="reset-offsets", forbid_unknown_fields=True):
    """Committed offsets of a group: of one topic (TOPIC or TOPIC:0,1) or of all, to one place.

    `to` is a flag of `mpbroker group reset-offsets` without its dashes (not to-current, which changes
    nothing), and `value` what it takes. Without `execute` the answer only says what would be set.
    """

    group: _Text
    to: str
    value: str = ""
    topic: _Text = ""
    execute: bool = False


Change = CreateTopic | DeleteTopic | AlterTopic | AddPartitions | ResetOffsets
_DECODER: Final[msgspec.json.Decoder[Change]] = msgspec.json.Decoder(Change)


def decode(body: bytes) -> Change:
    """Return the change of a request. Raises msgspec.DecodeError."""
    try:
        return _DECODER.decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the change is nested too deeply") from error


def name_of(change: Change) -> str:
    """Return the name of a change, as requests have it."""
    return str(change.__struct_config__.tag)


def work_of(change: Change, now_ms: int) -> Callable[[Client], dict[str, Any]]:
    """Return what makes the change with a client. Raises MsgspecError if it is none."""
    match change:
        case CreateTopic():
            return partial(_create, change)
        case DeleteTopic():
            return partial(_delete, change)
        case AlterTopic():
            return partial(_alter, change)
        case AddPartitions():
            return partial(_add_partitions, change)
        case ResetOffsets():
            plan = ResetPlan(_reset_to(change, now_ms), _scope(change))
            return partial(_reset, change, plan)


def _create(change: CreateTopic, client: Client) -> dict[str, Any]:
    got, _ = client.create_topic(change.topic, change.partitions, -1, change.settings, TIMEOUT_S)
    return {"said": f"created topic {change.topic} with {got} partition(s)"}


def _delete(change: DeleteTopic, client: Client) -> dict[str, Any]:
    failed = client.delete_topics([change.topic], TIMEOUT_S)
    _raise([error for error in failed.values() if error is not None])
    return {"said": f"deleted topic {change.topic}"}


def _alter(change: AlterTopic, client: Client) -> dict[str, Any]:
    settings = {key: value for key, value in change.settings.items() if value is not None}
    deleted = [key for key, value in change.settings.items() if value is None]
    alter_settings(client, change.topic, settings, deleted)
    return {"said": f"altered topic {change.topic}"}


def _add_partitions(change: AddPartitions, client: Client) -> dict[str, Any]:
    if change.topic in INTERNAL_TOPICS:
        raise CliError(
            f"{change.topic} is the broker's own topic: where groups and transactions have their records "
            "depends on its partitions. Nothing was changed",
            USAGE_ERROR,
        )
    create_partitions(client, change.topic, change.partitions, TIMEOUT_S)
    return {"said": f"topic {change.topic} has {change.partitions} partition(s)"}


def _reset_to(change: ResetOffsets, now_ms: int) -> Reset:
    """Return the place that the change names. Raises msgspec.ValidationError for one of no kind."""
    match change.to:
        case "to-earliest" | "to-latest":
            return Reset(change.to)
        case "to-datetime" | "by-duration":
            parse = to_datetime if change.to == "to-datetime" else by_duration
            try:
                return parse(change.value, now_ms)
            except BadText as error:
                raise msgspec.ValidationError(f"{change.value!r}: {error}") from error
        case "to-offset" | "shift-by":
            try:
                return Reset(change.to, int(change.value))
            except ValueError:
                raise msgspec.ValidationError(f"{change.to} takes a number, not {change.value!r}") from None
        case _:
            raise msgspec.ValidationError(f"there is no way {change.to!r} to reset offsets")


def _scope(change: ResetOffsets) -> TopicScope:
    """Return the partitions that the change names. Raises msgspec.ValidationError."""
    try:
        return TopicScope(dict([parse_topic(change.topic)]) if change.topic else None)
    except BadText as error:
        raise msgspec.ValidationError(f"topic {change.topic!r}: {error}") from error


def _reset(change: ResetOffsets, plan: ResetPlan, client: Client) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    offsets = planned(client, change.group, plan, rows, remarks.append)
    if offsets is None:
        raise CliError(f"group {change.group} has no committed offsets: choose a topic")
    if change.execute and offsets:
        errors = group_requests.commit(client, change.group, offsets)
        _raise([explained(change.group, error) for error in errors])
    done = f"set {len(offsets)} offset(s) of group {change.group}" if change.execute else ""
    return {"said": done, "rows": rows, "remarks": remarks}


def _raise(failed: Sequence[Exception]) -> None:
    """Raise what has failed. A single error keeps its kind, which says what status the answer has."""
    if len(failed) == 1:
        raise failed[0]
    raise_all(failed)
