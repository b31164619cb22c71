"""`mpbroker why`: reads facts about a topic or a group, and prints the causes of a delay.

The cluster reports all facts except damage, which the supervisor of a broker on this host reports.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.cluster.quota import describe_quotas, entity_text
from mpbroker.cli.cluster.txn import producers
from mpbroker.cli.errors import CliError
from mpbroker.cli.flags import ClusterAddress, Json, option
from mpbroker.cli.host.local_broker import by_address
from mpbroker.cli.host.why_checks import (
    Damage,
    DirectoryFacts,
    Facts,
    OpenTransaction,
    PartitionFacts,
    Quota,
    findings,
)
from mpbroker.cli.text.numbers import SECONDS
from mpbroker.cli.text.output import print_json
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed
from mpbroker.client.group_descriptions import Group
from mpbroker.client.log_dirs import described
from mpbroker.client.topics import Topic
from mpbroker.config import known
from mpbroker.ipc.control_client import ControlError
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.numbers import LATEST, READ_COMMITTED
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import TopicPartition

_CLIENT_ID: Final = "client-id"
# A coordinator that does not answer must not hide the other facts for long.
_PATIENCE_MS: Final = 5_000
_NO_SUCH_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)


def why(
    name: Annotated[str, typer.Argument(metavar="TOPIC|GROUP", hidden=True)],
    look: Annotated[
        float, option("--look", "SECONDS", "Time between two reads of offsets.", min=0, callback=SECONDS)
    ] = 6.0,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print what holds up a topic or group, and what to do.

    The offsets of a group with lag are read twice, to see whether they move.
    """
    with open_admin(where) as client:
        there = client.topics()
        topics = [one for one in there if one.name == name]
        group, refused = _group(client, name)
        if not topics and group is None and refused is None:
            names = [one.name for one in there] + [one.group_id for one in groups.list_groups(client)]
            raise CliError(f"{name}: there is no such topic, and no such group{known.hint([name], names)}")
        about = {}
        if topics:
            about["topic"] = _of_topics(client, where, topics, None)
            if refused is not None:
                about["topic"].unseen.append(f"group {name}: {refused.code.name}")
        elif refused is not None:
            about["group"] = _of_topics(client, where, [], None, refused=refused)
        if group is not None:
            before = groups.committed(client, name)
            facts = _of_group(client, where, group, before)
            if group.members and facts.lagging():
                time.sleep(look)
                facts = _of_group(client, where, group, before)
            about["group"] = facts
    found = {kind: findings(facts) for kind, facts in about.items()}
    if json:
        print_json(
            [
                {"kind": kind, "name": name, "findings": found[kind], "not_checked": facts.unseen}
                | _lag(facts)
                for kind, facts in about.items()
            ]
        )
        return
    for kind, facts in about.items():
        lag = f", lag {_lag(facts)['lag']:,}" if facts.group is not None else ""
        print(printable(f"{kind} {name}{lag}"))
        for one in found[kind]:
            print(printable(f"* {one.what}"))
            print(printable(f"  {one.do}"))
        if not found[kind]:
            print("  No cause was found.")
        if facts.unseen:
            print(printable(f"  Not checked: {'; '.join(facts.unseen)}."))


def _lag(facts: Facts) -> dict[str, int]:
    return {} if facts.group is None else {"lag": facts.ends().lag(facts.committed) or 0}


def _group(client: Admin, name: str) -> tuple[Group | None, ApiFailed | None]:
    """Return (group or None, the coordinator's retriable error or None). Raises other ApiFailed errors."""
    try:
        return groups.describe(client, name, _PATIENCE_MS), None
    except ApiFailed as error:
        if error.code in _NO_SUCH_GROUP:
            return None, None
        if error.retriable:
            return None, error
        raise


def _of_group(
    client: Admin, where: ClusterAddress, group: Group, before: Mapping[TopicPartition, int]
) -> Facts:
    committed = groups.committed(client, group.name)
    places = {*committed, *(place for one in group.members for place in one.partitions)}
    names = sorted({topic for topic, _ in places})
    # Read whole topics: some of their partitions may have neither an owner nor an offset.
    topics = [one for one in client.topics(names) if not one.error_code] if names else []
    return _of_topics(client, where, topics, group, committed, before)


def _of_topics(
    client: Admin,
    where: ClusterAddress,
    topics: list[Topic],
    group: Group | None,
    committed: Mapping[TopicPartition, int] | None = None,
    before: Mapping[TopicPartition, int] | None = None,
    refused: ApiFailed | None = None,
) -> Facts:
    partitions = {place: one for topic in topics for place, one in _partitions(client, topic).items()}
    unseen: list[str] = []
    directories = [one for node in client.broker_ids() for one in _directories(client, node, unseen)]
    # A partition that is not open is in no directory, and any of them may have the group's offsets.
    waits = bool(group or refused) or not all(one.has_leader for one in partitions.values())
    here = [
        one
        for one in directories
        if waits or one.error is not None or not one.partitions.isdisjoint(partitions)
    ]
    return Facts(
        partitions,
        here,
        _damages(where, partitions, unseen),
        _quotas(client, unseen),
        group,
        committed or {},
        before or {},
        unseen,
        None if refused is None else refused.code.name,
    )


def _partitions(client: Admin, topic: Topic) -> dict[TopicPartition, PartitionFacts]:
    led = [one.index for one in topic.partitions if one.leader >= 0]
    ends = client.ends(topic, led)
    stable = client.list_offsets(topic, dict.fromkeys(led, LATEST), READ_COMMITTED)
    held = [number for number in led if stable[number].offset < ends[number].end]
    open_ones = {
        number: [
            OpenTransaction(one.producer_id, one.current_txn_start_offset, one.last_timestamp)
            for one in found
            if one.current_txn_start_offset >= 0
        ]
        for number, found in producers(client, topic, held).items()
    }
    return {
        (topic.name, one.index): (
            PartitionFacts(
                True,
                ends[one.index].start,
                ends[one.index].end,
                stable[one.index].offset,
                open_ones.get(one.index, ()),
            )
            if one.leader >= 0
            else PartitionFacts(has_leader=False)
        )
        for one in topic.partitions
    }


def _directories(client: Admin, node: int, unseen: list[str]) -> list[DirectoryFacts]:
    """Return the log directories of a broker; add a line to `unseen` if the broker refuses the request."""
    try:
        found = described(client.cluster, node, None)
        return [
            DirectoryFacts(
                one.log_dir,
                error_code(one.error_code).name if one.error_code else None,
                one.usable_bytes if one.usable_bytes >= 0 else None,
                frozenset(
                    (topic.name, part.partition_index) for topic in one.topics for part in topic.partitions
                ),
                has_others=len(found) > 1,
            )
            for one in found
        ]
    except ApiFailed as error:
        unseen.append(f"log directories of broker {node}: {error.code.name}")
        return []


def _damages(
    where: ClusterAddress, partitions: Iterable[TopicPartition], unseen: list[str]
) -> dict[TopicPartition, list[Damage]]:
    """Return the damage that the scrubber has found; add a line to `unseen` if no supervisor answers."""
    found: dict[TopicPartition, list[Damage]] = {}
    wanted = {f"{topic}-{number}": (topic, number) for topic, number in partitions}
    try:
        for one in by_address(where.bootstrap).call("scrub")["findings"]:
            if (place := wanted.get(one["partition"])) is not None:
                found.setdefault(place, []).append(Damage(one["first"], one["behind"]))
    except (CliError, ControlError) as error:
        unseen.append(f"damage: {error}")
    return found


def _quotas(client: Admin, unseen: list[str]) -> list[Quota]:
    """Return all quotas; add a line to `unseen` if the broker refuses the request."""
    try:
        return [
            Quota(entity_text(list(entity.items())), entity.get(_CLIENT_ID), key, value)
            for entity, values in describe_quotas(client)
            for key, value in values.items()
        ]
    except ApiFailed as error:
        unseen.append(f"quotas: {error.code.name}")
        return []
