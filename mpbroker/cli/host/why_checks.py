"""Checks of facts about a topic or a group. Each check yields causes of a delay, with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mpbroker.client.group_descriptions import Group
from mpbroker.client.times import format_time
from mpbroker.config.broker import ROOM_BYTES
from mpbroker.observe.lag import Ends, lag_behind
from mpbroker.protocol.consumer_protocol import CONSUMER
from mpbroker.protocol.topic_names import TopicPartition

# Warn below this. Produces are refused only when a write finds no room.
_LOW_ROOM_BYTES: Final = 128 << 20
_REBALANCES: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
_EMPTY: Final = "Empty"
_ASSIGNING: Final = "Assigning"


class Finding(msgspec.Struct, frozen=True):
    """A cause of a delay (`what`) and the advice against it (`do`), in sentences."""

    what: str
    do: str


class OpenTransaction(msgspec.Struct, frozen=True):
    """An open transaction of a partition. `last_timestamp_ms`: when its producer wrote last."""

    producer_id: int
    first_offset: int
    last_timestamp_ms: int


class PartitionFacts(msgspec.Struct, frozen=True):
    """A partition. Offsets are -1 without a leader. Reads with read_uncommitted end at `high_watermark`."""

    has_leader: bool = True
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    transactions: Sequence[OpenTransaction] = ()


class DirectoryFacts(msgspec.Struct, frozen=True):
    """A log directory. `error`: why it is offline; `has_others`: the broker has other directories."""

    name: str
    error: str | None
    usable_bytes: int | None
    partitions: frozenset[TopicPartition]
    has_others: bool = False


class Damage(msgspec.Struct, frozen=True):
    """A damaged part of a partition: the offsets [first, end) cannot be read."""

    first: int
    end: int


class Quota(msgspec.Struct, frozen=True):
    """A quota of the owner `whose`. `client_id` is None if the quota is not for one client id."""

    whose: str
    client_id: str | None
    key: str
    value: float


class Facts(msgspec.Struct, frozen=True):
    """Facts about a topic or a group, for the checks.

    `before`: an earlier reading of `committed`. `unseen`: what could not be checked, and why. `refused`: the
    error with which the coordinator refused to describe the group.
    """

    partitions: Mapping[TopicPartition, PartitionFacts]
    directories: Sequence[DirectoryFacts] = ()
    damages: Mapping[TopicPartition, Sequence[Damage]] = {}
    quotas: Sequence[Quota] = ()
    group: Group | None = None
    committed: Mapping[TopicPartition, int] = {}
    before: Mapping[TopicPartition, int] = {}
    unseen: list[str] = []
    refused: str | None = None

    def ends(self) -> Ends:
        """Return the high watermarks of partitions that have a leader."""
        return Ends({place: one.high_watermark for place, one in self.partitions.items() if one.has_leader})

    def lagging(self) -> list[TopicPartition]:
        """Return the partitions with records that the group has not committed, and can still read."""
        starts = {place: one.log_start_offset for place, one in self.partitions.items()}
        ends = self.ends().of
        return [
            place
            for place in ends
            if lag_behind(ends[place], max(self.committed.get(place, 0), starts[place])) > 0
        ]

    def owners(self) -> dict[TopicPartition, str]:
        """Return the client id of the member that owns each assigned partition."""
        members = self.group.members if self.group is not None else []
        present = (one for one in members if one.state != "away")
        return {place: one.client for one in present for place in one.partitions}


Check = Callable[[Facts], Iterator[Finding]]


def offline(facts: Facts) -> Iterator[Finding]:
    lost = [place for place, one in facts.partitions.items() if not one.has_leader]
    if lost:
        yield Finding(
            f"{_names(lost)} cannot be served: produces and reads fail.",
            "An ERROR line of the broker's log names file and offset. If the disk is full, free some space: "
            "they open by themselves. Else repair the disk and restart the broker (mpbroker log verify).",
        )


def directories(facts: Facts) -> Iterator[Finding]:
    for one in facts.directories:
        if one.error is not None:
            yield Finding(
                f"The log directory {one.name} is offline ({one.error}).",
                "Repair or mount the disk, and restart the broker.",
            )
        elif one.usable_bytes is not None and one.usable_bytes < ROOM_BYTES:
            yield Finding(
                f"The disk of {one.name} is full, {one.usable_bytes:,} bytes are left: produces, new "
                "partitions, joins and commits of groups are refused.",
                "Free some space, delete topics, or shorten retention.ms: then they resume by themselves.",
            )
        elif one.usable_bytes is not None and one.usable_bytes < _LOW_ROOM_BYTES:
            yield Finding(
                f"The disk of {one.name} has only {one.usable_bytes:,} bytes left: produces are refused when "
                "it is full.",
                "Free some space, shorten retention.ms, or move partitions: mpbroker log-dirs move."
                if one.has_others
                else "Free some space, or shorten retention.ms.",
            )


def coordinator(facts: Facts) -> Iterator[Finding]:
    if facts.refused is not None:
        yield Finding(
            f"The coordinator is not available ({facts.refused}): members can neither join nor commit.",
            "The broker's log has the reason (__consumer_offsets). Members wait and retry by themselves.",
        )


def transactions(facts: Facts) -> Iterator[Finding]:
    for place, one in facts.partitions.items():
        if not 0 <= one.last_stable_offset < one.high_watermark:
            continue
        held = [each for each in one.transactions if each.first_offset <= one.last_stable_offset]
        for each in held:
            yield Finding(
                f"read_committed consumers of {_name(place)} stop at offset {one.last_stable_offset:,}, of "
                f"{one.high_watermark:,}: producer {each.producer_id} has a transaction open there; its last "
                f"record is of {format_time(each.last_timestamp_ms)}.",
                "Let it commit or abort. It is aborted after its timeout; mpbroker txn list has its id, and "
                "mpbroker txn abort ends it. If mpbroker txn find-hanging lists it, nothing else will.",
            )


def damaged(facts: Facts) -> Iterator[Finding]:
    for place, damages in facts.damages.items():
        for one in damages:
            yield Finding(
                f"Offsets {one.first:,} to {one.end - 1:,} of {_name(place)} are damaged: reads of them "
                "fail.",
                "Let readers begin after them (mpbroker group reset-offsets), or repair them (mpbroker log "
                "repair).",
            )


def produce_quotas(facts: Facts) -> Iterator[Finding]:
    for one in facts.quotas:
        if one.key in ("producer_byte_rate", "request_percentage"):
            yield Finding(
                f"The quota {one.key}={one.value:g} of {one.whose} makes producers beyond it wait.",
                "Compare it with their rate (produce-throttle-time-avg of the client); mpbroker quota "
                "set changes it.",
            )


def consumer_quotas(facts: Facts) -> Iterator[Finding]:
    clients = {one.client for one in facts.group.members} if facts.group is not None else set()
    for one in facts.quotas:
        if one.key in ("consumer_byte_rate", "request_percentage") and one.client_id in (None, *clients):
            yield Finding(
                f"The quota {one.key}={one.value:g} of {one.whose} makes consumers beyond it wait.",
                "Compare it with their rate (fetch-throttle-time-avg of the client); mpbroker quota "
                "set changes it.",
            )


def no_members(facts: Facts) -> Iterator[Finding]:
    if facts.group is not None and facts.group.state == _EMPTY and facts.lagging():
        yield Finding(
            "The group has no members: its partitions are not read.",
            "Start its consumers. If they run, they were removed from the group: a poll that comes later "
            "than max.poll.interval.ms ends the membership, as the client's log reports. Consumers that "
            "assign partitions themselves never join, and only have to commit.",
        )


def rebalances(facts: Facts) -> Iterator[Finding]:
    if facts.group is None or facts.group.state not in _REBALANCES:
        return
    away = [one.instance or one.client for one in facts.group.members if one.state == "away"]
    missing = sum(one.state not in ("stable", "away") for one in facts.group.members)
    if away:
        yield Finding(
            f"{', '.join(away)} left and may come back: their partitions wait for these static members.",
            "Start them again, or wait until their sessions end (group.consumer.session.timeout.ms).",
        )
    if facts.group.type == CONSUMER and facts.group.state == _ASSIGNING:
        yield Finding(
            "The group has a new epoch, whose assignment is not computed yet.",
            "The next heartbeat of a member computes it, if group.consumer.assignment.interval.ms is over.",
        )
    elif facts.group.type == CONSUMER and missing:
        yield Finding(
            f"The group rebalances ({facts.group.state}): {missing} of {len(facts.group.members)} members do "
            "not have the partitions that they shall have.",
            "Find the members that hold up the others: mpbroker group describe --members shows them as "
            "revoking. They are removed after their max.poll.interval.ms.",
        )
    elif facts.group.type != CONSUMER:
        yield Finding(
            f"The group rebalances ({facts.group.state}): its members wait for each other.",
            "Find a member that does not poll, or comes and goes: mpbroker group describe --members. A "
            "rebalance waits for max.poll.interval.ms at most; static members (group.instance.id) need none.",
        )


def without_owner(facts: Facts) -> Iterator[Finding]:
    if facts.group is None or not facts.group.members or facts.group.state in _REBALANCES:
        return
    owners = facts.owners()
    free = [place for place in facts.lagging() if place not in owners]
    if free:
        yield Finding(
            f"No member has {_names(free)}, where the group has a lag.",
            "Its members have not subscribed to that topic, or have not seen its new partitions yet "
            "(metadata.max.age.ms).",
        )


def not_committing(facts: Facts) -> Iterator[Finding]:
    owners = facts.owners()
    for place in facts.lagging():
        client = owners.get(place)
        now = facts.committed.get(place)
        if client is None or now != facts.before.get(place):
            continue
        one = facts.partitions[place]
        if now is not None and 0 <= one.last_stable_offset <= now:
            continue  # a transaction holds it, which has a finding of its own
        state = (
            "has committed nothing" if now is None else f"stays at offset {now:,} of {one.high_watermark:,}"
        )
        yield Finding(
            f"{client} has {_name(place)} and {state}.",
            "It has paused the partition, works on a record for long, fails at one again and again, does not "
            "commit (enable.auto.commit), or was killed less than a session ago: read its log, and the "
            "record at that offset.",
        )


def slower(facts: Facts) -> Iterator[Finding]:
    moving = {
        place: facts.committed[place]
        for place in facts.lagging()
        if facts.committed.get(place, 0) > facts.before.get(place, 1 << 63)
    }
    if moving:
        yield Finding(
            f"The group reads {_names(list(moving))}, with a lag of {facts.ends().lag(moving) or 0:,}.",
            "Let it catch up, or give it more members, up to one for each partition.",
        )


def out_of_range(facts: Facts) -> Iterator[Finding]:
    for place, offset in facts.committed.items():
        one = facts.partitions.get(place)
        if one is None or not one.has_leader:
            continue
        start, end = one.log_start_offset, one.high_watermark
        if start <= offset <= end:
            continue
        where = (
            f"before the log start offset {start:,}: retention has removed records that were not read"
            if offset < start
            else f"above the high watermark {end:,}: the topic was deleted and created again, or restored "
            "from a copy"
        )
        yield Finding(
            f"The committed offset {offset:,} of {_name(place)} is {where}.",
            "auto.offset.reset decides where its consumer continues; see also mpbroker group reset-offsets.",
        )


def without_target(facts: Facts) -> Iterator[Finding]:
    """Find members of the consumer protocol whose subscription has no topic."""
    members = facts.group.members if facts.group is not None and facts.group.type == CONSUMER else []
    for one in members:
        if one.target or one.state == "away" or any(other.target for other in members if other is not one):
            continue
        if one.pattern:
            yield Finding(
                f"{one.client} subscribes to {one.pattern}, which matches no topic.",
                f"A regular expression matches whole names: perhaps {one.pattern}.* is meant.",
            )
        elif one.topics:
            yield Finding(
                f"{one.client} has no partition: {', '.join(one.topics)} may not exist.",
                "mpbroker topic list has the names. A topic that is made later is found by itself.",
            )


OF_TOPICS: Final[tuple[Check, ...]] = (
    *(coordinator, offline, directories, transactions, damaged, produce_quotas),
)
OF_GROUPS: Final[tuple[Check, ...]] = (
    *(no_members, rebalances, without_target, without_owner, not_committing, slower, out_of_range),
    *(offline, directories, transactions, damaged, consumer_quotas),
)


def findings(facts: Facts) -> list[Finding]:
    """Return the findings of all checks."""
    checks = OF_TOPICS if facts.group is None else OF_GROUPS
    return [found for check in checks for found in check(facts)]


def _name(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"


def _names(places: Sequence[TopicPartition], most: int = 5) -> str:
    rest = f" and {len(places) - most:,} more" if len(places) > most else ""
    return ", ".join(map(_name, places[:most])) + rest
