"""`mpbroker group reset-offsets` and `delete-offsets`: the committed offsets of groups without members."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mpbroker.cli.cluster import group_requests
from mpbroker.cli.cluster.client import Client
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.cluster.offset_resets import INACTIVE, Place, Reset, parse_scope, target, within
from mpbroker.cli.errors import USAGE_ERROR, CliError, raise_all
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_json, print_table, say_each
from mpbroker.client.consumer_protocol import TopicPartition
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, LATEST
from mpbroker.protocol.printable import printable

# Headings of kafka-consumer-groups.sh, and the names in --json.
COLUMNS = {
    "GROUP": "group",
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "committed",
    "NEW-OFFSET": "new_offset",
}


class Scope:
    """The partitions that a command is about. Raises CliError unless they are named in one way."""

    def __init__(self, topics: Sequence[str], *, all_topics: bool) -> None:
        if bool(topics) == all_topics:
            raise CliError("say of which topics: --topic TOPIC[:0,1] or --all-topics", USAGE_ERROR)
        self.named = None if all_topics else parse_scope(topics)

    def of_offsets(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return those that have a committed offset."""
        return sorted(committed if self.named is None else within(self.named, committed))

    def of_topics(self, client: Client, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return all that are named, whether an offset is committed or not."""
        if self.named is None:
            return sorted(committed)
        places = []
        for name, numbers in self.named.items():
            topic = client.topic(name)
            there = [partition.index for partition in topic.partitions]
            if strange := [number for number in numbers or [] if number not in there]:
                raise CliError(
                    f"topic {name} has no partition {strange[0]}, only 0 to {len(there) - 1}", USAGE_ERROR
                )
            places += [(name, number) for number in (there if numbers is None else numbers)]
        return places


def reset(
    where: ClusterAddress, names: Sequence[str], scope: Scope, wanted: Reset, *, execute: bool, as_json: bool
) -> None:
    """Set offsets of groups, or print what would be set. A group that is refused does not hide the others."""
    failed: list[Exception] = []
    rows: list[dict[str, Any]] = []
    with Client(where) as client:
        for name in names:
            try:
                offsets = _planned(client, name, scope, wanted, rows)
                if execute and offsets:
                    failed += [
                        _explained(name, error) for error in group_requests.commit(client, name, offsets)
                    ]
            except (ApiFailed, CliError) as error:
                failed.append(error)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in rows])
    if not execute and rows:
        _say("nothing was set: this is what --execute would do")
    raise_all(failed)


def _planned(
    client: Client, name: str, scope: Scope, wanted: Reset, rows: list[dict[str, Any]]
) -> dict[TopicPartition, int]:
    """Return the new offsets of a group, and add a row for each. Raises CliError for an active group."""
    _check_inactive(client, name)
    committed = group_requests.committed(client, name)
    places = scope.of_topics(client, committed)
    if not places:
        raise CliError(f"group {name} has no committed offsets: name topics with --topic")
    offsets = {}
    for place, known in _known(client, places, committed, wanted).items():
        offset, said = target(wanted, known)
        if said:
            _say(f"group {name}, {place[0]}-{place[1]}: {said}")
        if offset is not None:
            offsets[place] = offset
            rows.append(dict(zip(COLUMNS.values(), (name, *place, known.committed, offset), strict=True)))
    return offsets


def _known(
    client: Client, places: list[TopicPartition], committed: Mapping[TopicPartition, int], wanted: Reset
) -> dict[TopicPartition, Place]:
    found = {}
    for name in dict.fromkeys(topic for topic, _ in places):
        topic = client.topic(name)
        numbers = [number for one, number in places if one == name]
        starts, ends = client.offsets(topic, EARLIEST, numbers), client.offsets(topic, LATEST, numbers)
        times = client.offsets(topic, wanted.number, numbers) if wanted.is_by_time else {}
        for number in numbers:
            at_time = times.get(number, -1)
            found[name, number] = Place(
                starts[number],
                ends[number],
                committed.get((name, number)),
                at_time if at_time >= 0 else None,
            )
    return found


def _check_inactive(client: Client, name: str) -> None:
    """Refuse a group whose members would commit over what is set. One that does not exist yet is fine."""
    try:
        group = group_requests.describe(client, name)
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.state not in INACTIVE:
        raise CliError(
            f"group {name} is active ({group.state}, {len(group.members)} member(s)): "
            f"stop its consumers first, and wait until mpbroker group describe {name} shows it Empty"
        )


def _explained(name: str, error: ApiFailed) -> Exception:
    if error.code in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    ):
        return CliError(f"group {name} has got members meanwhile, nothing was set: stop its consumers first")
    return error


def delete(where: ClusterAddress, name: str, scope: Scope, *, is_sure: bool, as_json: bool) -> None:
    """Delete committed offsets of a group. Raises CliError if it has none of these topics."""
    with Client(where) as client:
        group_requests.describe(client, name)
        places = scope.of_offsets(group_requests.committed(client, name))
        if not places:
            raise CliError(f"group {name} has no committed offsets of these topics")
        confirm(f"delete {len(places)} committed offset(s) of group {name}?", is_sure=is_sure)
        codes = group_requests.delete_offsets(client, name, places)
    deleted = [place for place in places if not codes.get(place)]
    say_each(
        [
            (f"deleted the offset of {topic}-{number}", {"group": name, "topic": topic, "partition": number})
            for topic, number in deleted
        ],
        as_json=as_json,
    )
    raise_all([_refused(name, place, codes[place]) for place in places if codes.get(place)])


def _refused(name: str, place: TopicPartition, code: int) -> Exception:
    error = ApiFailed(f"group {name}, {place[0]}-{place[1]}", code)
    if error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return CliError(f"{error}: stop its consumers first")
    return error


def _say(text: str) -> None:
    print(f"mpbroker: {printable(text)}", file=sys.stderr)
