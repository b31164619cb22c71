"""Changes topics, records, groups, users and ACLs for the page, by the requests that the commands make.

Each change is one JSON object with its name in `change`. The broker decides about it as about any client's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from mpbroker.client import acls, groups, users
from mpbroker.client.admin import Admin
from mpbroker.client.errors import BadText, ClientError, FailedPrecondition, InvalidArgument, raise_all
from mpbroker.client.offset_resets import (
    Reset,
    ResetPlan,
    TopicScope,
    by_duration,
    explained,
    parse_topic,
    planned,
    to_datetime,
)
from mpbroker.client.positions import parse_before
from mpbroker.client.producer import Producer
from mpbroker.client.times import in_ms
from mpbroker.client.topics import partition_for, partitions_of, refuse_internal
from mpbroker.console import access
from mpbroker.protocol.printable import counted
from mpbroker.protocol.topic_names import INTERNAL_TOPICS
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from mpbroker.security.acls import Acl
from mpbroker.security.scram import ITERATIONS_MIN, ScramType

TIMEOUT_S: Final = 30.0
_NAMED_MAX: Final = 3
# What requests have room for: 32,767 bytes of UTF-8. The broker says what it takes of that.
_INT32_MAX: Final = (1 << 31) - 1
_Text = Annotated[str, msgspec.Meta(max_length=8_000)]
_LongText = Annotated[str, msgspec.Meta(max_length=1 << 20)]


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


class DeleteRecords(msgspec.Struct, tag_field="change", tag="delete-records", forbid_unknown_fields=True):
    """Delete records before an offset, or all (latest), of one partition or of all (-1)."""

    topic: _Text
    before: _Text
    partition: Annotated[int, msgspec.Meta(ge=-1, le=_INT32_MAX)] = -1


class Produce(msgspec.Struct, tag_field="change", tag="produce", forbid_unknown_fields=True):
    """A record of texts; null is null. Partition -1: the one of its key, without a key any."""

    topic: _Text
    value: _LongText | None
    key: _LongText | None = None
    headers: list[tuple[_Text, _LongText | None]] = []
    partition: Annotated[int, msgspec.Meta(ge=-1, le=_INT32_MAX)] = -1


class DeleteGroup(msgspec.Struct, tag_field="change", tag="delete-group", forbid_unknown_fields=True):
    group: _Text


class AddUser(msgspec.Struct, tag_field="change", tag="add-user", forbid_unknown_fields=True):
    """A user's password for one mechanism, whether there is one already or not."""

    user: _Text
    mechanism: _Text
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class DeleteUser(msgspec.Struct, tag_field="change", tag="delete-user", forbid_unknown_fields=True):
    user: _Text
    mechanism: _Text


class AddAcl(msgspec.Struct, tag_field="change", tag="add-acl", forbid_unknown_fields=True):
    """An entry, with the columns of `mpbroker acl list`."""

    acl: dict[str, _Text]


class RemoveAcl(msgspec.Struct, tag_field="change", tag="remove-acl", forbid_unknown_fields=True):
    acl: dict[str, _Text]


Change = (
    CreateTopic
    | DeleteTopic
    | AlterTopic
    | AddPartitions
    | ResetOffsets
    | DeleteRecords
    | Produce
    | DeleteGroup
    | AddUser
    | DeleteUser
    | AddAcl
    | RemoveAcl
)
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


def work_of(change: Change, now_ms: int) -> Callable[[Admin], dict[str, Any]]:
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
        case DeleteRecords():
            return partial(_delete_records, change)
        case Produce():
            return partial(_produce, change, now_ms)
        case DeleteGroup():
            return partial(_delete_group, change)
        case AddUser():
            return partial(_add_user, change, users.mechanism_of(change.mechanism))
        case DeleteUser():
            return partial(_delete_user, change, users.mechanism_of(change.mechanism))
        case AddAcl():
            return partial(_add_acl, access.entry_of(change.acl))
        case RemoveAcl():
            return partial(_remove_acl, access.entry_of(change.acl))


def _create(change: CreateTopic, client: Admin) -> dict[str, Any]:
    settings = {key: in_ms(key, value) for key, value in change.settings.items()}
    got, _ = client.create_topic(change.topic, change.partitions, -1, settings, TIMEOUT_S)
    return {"said": f"created topic {change.topic} with {counted(got, 'partition')}"}


def _delete(change: DeleteTopic, client: Admin) -> dict[str, Any]:
    refuse_internal([change.topic])
    failed = client.delete_topics([change.topic], TIMEOUT_S)
    raise_all([error for error in failed.values() if error is not None])
    return {"said": f"deleted topic {change.topic}"}


def _alter(change: AlterTopic, client: Admin) -> dict[str, Any]:
    settings = {key: value and in_ms(key, value) for key, value in change.settings.items()}
    client.alter_topic(change.topic, settings)
    return {"said": f"altered topic {change.topic}"}


def _add_partitions(change: AddPartitions, client: Admin) -> dict[str, Any]:
    _refuse_internal(
        change.topic, "where groups and transactions have their records depends on its partitions"
    )
    client.create_partitions(change.topic, change.partitions, TIMEOUT_S)
    return {"said": f"topic {change.topic} has {counted(change.partitions, 'partition')}"}


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


def _reset(change: ResetOffsets, plan: ResetPlan, client: Admin) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    offsets = planned(client, change.group, plan, rows, remarks.append)
    if offsets is None:
        raise FailedPrecondition(f"group {change.group} has no committed offsets: choose a topic")
    if change.execute and offsets:
        errors = groups.commit(client, change.group, offsets)
        raise_all([explained(change.group, error) for error in errors])
    done = f"set {counted(len(offsets), 'offset')} of group {change.group}" if change.execute else ""
    return {"said": done, "rows": rows, "remarks": remarks}


def _delete_records(change: DeleteRecords, client: Admin) -> dict[str, Any]:
    _refuse_internal(change.topic, "its records are the broker's")
    failed: list[ClientError] = []
    offset = parse_before(change.before)
    topic = client.topic(change.topic)
    numbers = partitions_of(topic, [change.partition] if change.partition >= 0 else None)
    starts = client.delete_records(topic, dict.fromkeys(numbers, offset), TIMEOUT_S, failed)
    raise_all(failed)
    said = ", ".join(f"{change.topic}-{number} begins at {start:,}" for number, start in starts.items())
    return {"said": said if len(starts) <= _NAMED_MAX else f"{counted(len(starts), 'partition')} shortened"}


def _produce(change: Produce, now_ms: int, client: Admin) -> dict[str, Any]:
    _refuse_internal(change.topic, "its records are the broker's")
    topic = client.topic(change.topic)
    key = None if change.key is None else change.key.encode()
    partition = change.partition
    if partition < 0:
        anyone = random.choice([one.index for one in topic.partitions if one.leader >= 0] or [0])
        partition = anyone if key is None else partition_for(key, len(topic.partitions))
    partitions_of(topic, [partition])
    headers = tuple((name, None if value is None else value.encode()) for name, value in change.headers)
    record = NewRecord(None if change.value is None else change.value.encode(), key, now_ms, headers)
    producer = Producer(
        client.cluster,
        acks=-1,
        codec=Codec.NONE,
        delivery_timeout_ms=TIMEOUT_S * 1000,
        trouble=lambda _text: None,
    )
    producer.append(topic.name, partition, [record])
    producer.flush()
    return {"said": f"produced a record to {topic.name}-{partition}", "partition": partition}


def _refuse_internal(topic: str, why: str) -> None:
    if topic in INTERNAL_TOPICS:
        raise InvalidArgument(f"{topic} is the broker's own topic: {why}. Nothing was changed")


def _delete_group(change: DeleteGroup, client: Admin) -> dict[str, Any]:
    groups.delete(client, change.group)
    return {"said": f"deleted group {change.group}"}


def _add_user(change: AddUser, kind: ScramType, client: Admin) -> dict[str, Any]:
    users.upsert(client, change.user, kind, ITERATIONS_MIN, change.password)
    return {"said": users.can_log_in(client, change.user, kind)}


def _delete_user(change: DeleteUser, kind: ScramType, client: Admin) -> dict[str, Any]:
    users.remove(client, change.user, [kind])
    return {"said": f"deleted {kind.mechanism} of user {change.user}"}


def _add_acl(entry: Acl, client: Admin) -> dict[str, Any]:
    acls.create(client, [entry])
    return {"said": f"added: {entry}"}


def _remove_acl(entry: Acl, client: Admin) -> dict[str, Any]:
    if not acls.delete(client, [acls.filter_of(entry)]):
        raise FailedPrecondition(f"there is no such ACL: {entry}")
    return {"said": f"removed: {entry}"}
