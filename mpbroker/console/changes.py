"""Changes topics, records, groups, users and ACLs for the page, by the same requests as the commands.

A change is a JSON object whose member `change` names it. The broker authorizes it like any client's request.
"""

from __future__ import annotations

import random
import re
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
    plan_resets,
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
from mpbroker.security.scram import ITERATIONS_MIN

TIMEOUT_S: Final = 30.0
_NAMED_MAX: Final = 3
_INT32_MAX: Final = (1 << 31) - 1
# Strings of requests have at most 32,767 bytes of UTF-8; the broker decides about shorter ones.
_Text = Annotated[str, msgspec.Meta(max_length=8_000)]
_LongText = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Partition = Annotated[int, msgspec.Meta(ge=-1, le=_INT32_MAX)]
Answer = dict[str, Any]
Work = Callable[[Admin], Answer]


def _done(text: str, **more: Any) -> Answer:
    """Return an answer to the page: a sentence for the user, and the members `more`."""
    return {"said": text, **more}


def _tag(name: str) -> str:
    """Return the name of a change, made from the name of its class: create-topic from CreateTopic."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower()


class _Change(msgspec.Struct, tag_field="change", tag=_tag, forbid_unknown_fields=True):
    """A change that a request asks for. `make` carries it out and returns the answer to the page."""

    def work(self, _now_ms: int) -> Work:
        """Return a function that makes the change. Raises MsgspecError, InvalidArgument for wrong values."""
        return self.make

    def make(self, client: Admin) -> Answer:
        raise NotImplementedError


class CreateTopic(_Change):
    """A new topic. If `partitions` is -1, it gets the broker's default number of partitions."""

    topic: _Text
    partitions: _Partition = -1
    settings: dict[_Text, _Text] = {}

    def make(self, client: Admin) -> Answer:
        settings = {key: in_ms(key, value) for key, value in self.settings.items()}
        got, _ = client.create_topic(self.topic, self.partitions, -1, settings, TIMEOUT_S)
        return _done(f"created topic {self.topic} with {counted(got, 'partition')}")


class DeleteTopic(_Change):
    topic: _Text

    def make(self, client: Admin) -> Answer:
        refuse_internal([self.topic])
        failed = client.delete_topics([self.topic], TIMEOUT_S)
        raise_all([error for error in failed.values() if error is not None])
        return _done(f"deleted topic {self.topic}")


class AlterTopic(_Change):
    """New settings of a topic. The value null resets a setting to its default."""

    topic: _Text
    settings: dict[_Text, _Text | None]

    def make(self, client: Admin) -> Answer:
        client.alter_topic(
            self.topic, {key: value and in_ms(key, value) for key, value in self.settings.items()}
        )
        return _done(f"altered topic {self.topic}")


class AddPartitions(_Change):
    """The new number of partitions of a topic."""

    topic: _Text
    partitions: Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]

    def make(self, client: Admin) -> Answer:
        _refuse_internal(self.topic, "the places of groups and transactions depend on its partitions")
        client.create_partitions(self.topic, self.partitions, TIMEOUT_S)
        return _done(f"topic {self.topic} has {counted(self.partitions, 'partition')}")


class ResetOffsets(_Change):
    """A reset of a group's committed offsets, in one topic (TOPIC or TOPIC:0,1) or in all its topics.

    `to` is a flag of `mpbroker group reset-offsets` without leading dashes (not to-current, which changes
    nothing), and `value` its argument. Without `execute` the answer is only the plan.
    """

    group: _Text
    to: str
    value: str = ""
    topic: _Text = ""
    execute: bool = False

    def work(self, now_ms: int) -> Work:
        return partial(self._reset, ResetPlan(self.place(now_ms), self._scope()))

    def place(self, now_ms: int) -> Reset:
        match self.to:
            case "to-earliest" | "to-latest":
                return Reset(self.to)
            case "to-datetime" | "by-duration":
                parse = to_datetime if self.to == "to-datetime" else by_duration
                try:
                    return parse(self.value, now_ms)
                except BadText as error:
                    raise msgspec.ValidationError(f"{self.value!r}: {error}") from error
            case "to-offset" | "shift-by":
                try:
                    return Reset(self.to, int(self.value))
                except ValueError:
                    raise msgspec.ValidationError(f"{self.to} takes a number, not {self.value!r}") from None
            case _:
                raise msgspec.ValidationError(f"offsets cannot be reset by {self.to!r}")

    def _scope(self) -> TopicScope:
        try:
            return TopicScope(dict([parse_topic(self.topic)]) if self.topic else None)
        except BadText as error:
            raise msgspec.ValidationError(f"topic {self.topic!r}: {error}") from error

    def _reset(self, plan: ResetPlan, client: Admin) -> Answer:
        rows: list[dict[str, Any]] = []
        remarks: list[str] = []
        offsets = plan_resets(client, self.group, plan, rows, remarks.append)
        if offsets is None:
            raise FailedPrecondition(f"group {self.group} has no committed offsets: choose a topic")
        if self.execute and offsets:
            errors = groups.commit(client, self.group, offsets)
            raise_all([explained(self.group, error) for error in errors])
        done = f"set {counted(len(offsets), 'offset')} of group {self.group}" if self.execute else ""
        return _done(done, rows=rows, remarks=remarks)


class DeleteRecords(_Change):
    """A deletion of the records before an offset, or of all (latest), in one partition or in all (-1)."""

    topic: _Text
    before: _Text
    partition: _Partition = -1

    def make(self, client: Admin) -> Answer:
        _refuse_internal(self.topic, "its records are the broker's")
        failed: list[ClientError] = []
        try:
            offset = parse_before(self.before)
        except BadText as error:
            raise InvalidArgument(f"before {self.before[:50]!r}: {error}") from error
        topic = client.topic(self.topic)
        numbers = partitions_of(topic, [self.partition] if self.partition >= 0 else None)
        starts = client.delete_records(topic, dict.fromkeys(numbers, offset), TIMEOUT_S, failed)
        raise_all(failed)
        text = ", ".join(f"{self.topic}-{number} begins at {start:,}" for number, start in starts.items())
        many = f"{counted(len(starts), 'partition')} shortened"
        return _done(text if len(starts) <= _NAMED_MAX else many)


class Produce(_Change):
    """A record to produce. Partition -1 means the partition of its key, or a random one without a key."""

    topic: _Text
    value: _LongText | None
    key: _LongText | None = None
    headers: list[tuple[_Text, _LongText | None]] = []
    partition: _Partition = -1

    def work(self, now_ms: int) -> Work:
        return partial(self._produce, now_ms)

    def _produce(self, now_ms: int, client: Admin) -> Answer:
        _refuse_internal(self.topic, "its records are the broker's")
        topic = client.topic(self.topic)
        key = _encoded(self.key)
        partition = self.partition
        if partition < 0:
            anyone = random.choice([one.index for one in topic.partitions if one.leader >= 0] or [0])
            partition = anyone if key is None else partition_for(key, len(topic.partitions))
        partitions_of(topic, [partition])
        headers = tuple((name, _encoded(value)) for name, value in self.headers)
        producer = Producer(
            client.cluster,
            acks=-1,
            codec=Codec.NONE,
            delivery_timeout_ms=TIMEOUT_S * 1000,
            trouble=lambda _text: None,
        )
        producer.append(topic.name, partition, [NewRecord(_encoded(self.value), key, now_ms, headers)])
        producer.flush()
        return _done(f"produced a record to {topic.name}-{partition}", partition=partition)


class DeleteGroup(_Change):
    group: _Text

    def make(self, client: Admin) -> Answer:
        groups.delete(client, self.group)
        return _done(f"deleted group {self.group}")


class AddUser(_Change):
    """A new or changed password of a user, for one SCRAM mechanism."""

    user: _Text
    mechanism: _Text
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]

    def make(self, client: Admin) -> Answer:
        kind = users.mechanism_of(self.mechanism)
        users.upsert(client, self.user, kind, ITERATIONS_MIN, self.password)
        return _done(users.can_log_in(client, self.user, kind))


class DeleteUser(_Change):
    user: _Text
    mechanism: _Text

    def make(self, client: Admin) -> Answer:
        kind = users.mechanism_of(self.mechanism)
        users.remove(client, self.user, [kind])
        return _done(f"deleted {kind.mechanism} of user {self.user}")


class AddAcl(_Change):
    """A new ACL entry; the members of `acl` are the columns of `mpbroker acl list`."""

    acl: dict[str, _Text]

    def make(self, client: Admin) -> Answer:
        entry = access.entry_of(self.acl)
        acls.create(client, [entry])
        return _done(f"added: {entry}")


class RemoveAcl(_Change):
    acl: dict[str, _Text]

    def make(self, client: Admin) -> Answer:
        entry = access.entry_of(self.acl)
        if not acls.delete(client, [acls.filter_of(entry)]):
            raise FailedPrecondition(f"ACL not found: {entry}")
        return _done(f"removed: {entry}")


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
    """Parse the body of a request for a change. Raises msgspec.DecodeError."""
    try:
        return _DECODER.decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the change is nested too deeply") from error


def name_of(change: Change) -> str:
    """Return a change's name, such as create-topic. Requests have the name in the member `change`."""
    return str(change.__struct_config__.tag)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _refuse_internal(topic: str, why: str) -> None:
    if topic in INTERNAL_TOPICS:
        raise InvalidArgument(f"{topic} is the broker's own topic: {why}. Nothing was changed")
