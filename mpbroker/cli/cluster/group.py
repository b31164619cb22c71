"""`mpbroker group`: list, describe and delete consumer groups (Kafka: ConsumerGroupCommand)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import counted, print_json, print_rows, print_table, say_each
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.consumer_protocol import TopicPartition
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.groups import Group, Member
from mpbroker.client.topics import Topic
from mpbroker.protocol.numbers import LATEST
from mpbroker.protocol.printable import printable

# Headings of kafka-consumer-groups.sh, and the names in --json.
PARTITIONS = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "committed",
    "LOG-END-OFFSET": "end_offset",
    "LAG": "lag",
    "CONSUMER-ID": "member",
    "HOST": "host",
    "CLIENT-ID": "client",
}
MEMBERS = ("CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")


def show_list(
    where: ClusterAddress, states: Collection[str], types: Collection[str], *, as_json: bool
) -> None:
    """Print the groups of all brokers; with `states` or `types` only those, whatever their case."""
    with open_admin(where) as client:
        listed = groups.list_groups(client)
    rows = [
        {
            "group": one.group_id,
            "type": one.group_type.lower() or None,
            "state": one.group_state,
            "protocol_type": one.protocol_type,
        }
        for one in listed
        if _is_among(one.group_state, states) and _is_among(one.group_type, types)
    ]
    print_rows(rows, as_json=as_json, nothing="no groups")


def _is_among(name: str, wanted: Collection[str]) -> bool:
    return not wanted or name.lower() in {one.lower() for one in wanted}


def describe(where: ClusterAddress, names: Sequence[str], *, with_members: bool, as_json: bool) -> None:
    """Print groups with their lag in each partition, or with their members; all groups if none is named.

    JSON has both. A group that cannot be described does not hide the others.
    """
    failed: list[ClientError] = []
    documents = []
    with open_admin(where) as client:
        for name in names or [one.group_id for one in groups.list_groups(client)]:
            try:
                documents.append(_document(client, groups.describe(client, name)))
            except ApiFailed as error:
                failed.append(error)
    if as_json:
        print_json(documents)
    elif not documents and not failed:
        print("no groups")
    else:
        for index, document in enumerate(documents):
            if index:
                print()
            _print(document, with_members=with_members)
    raise_all(failed)


def _print(document: dict[str, Any], *, with_members: bool) -> None:
    about = [document["state"], document["protocol"], f"{len(document['members'])} member(s)"]
    title = f"{document['group']}  {', '.join(filter(None, about))}"
    if with_members:
        print_table(MEMBERS, map(_row_of_member, document["members"]), title=title)
        return
    rows = [[row[name] for name in PARTITIONS.values()] for row in document["partitions"]]
    print_table(list(PARTITIONS), rows, title=title)
    if document["uncommitted"]:
        print(lag_text(document["lag"], document["committed_partitions"], document["uncommitted"]))
    if idle := [one["member"] for one in document["members"] if not one["partitions"]]:
        print(printable(f"without a partition: {', '.join(idle)}"))


def lag_text(lag: int | None, committed: int, uncommitted: int) -> str:
    """Say of how many partitions a lag is the sum, and how many have none since nothing is committed."""
    known = f"lag {lag:,} in {counted(committed, 'partition')}" if lag is not None else "no lag is known"
    missing = f"{counted(uncommitted, 'partition has', 'partitions have')} no commit"
    return f"{known}; {missing}" if uncommitted else known


def _row_of_member(member: dict[str, Any]) -> list[Any]:
    """Return a row about a member, with its assignment as topic(0,1), topic(2)."""
    places: dict[str, list[str]] = {}
    for topic, number in member["partitions"]:
        places.setdefault(topic, []).append(str(number))
    assignment = ", ".join(f"{topic}({','.join(numbers)})" for topic, numbers in places.items())
    who = [member[name] for name in ("member", "instance", "host", "client")]
    return [*who, len(member["partitions"]), assignment or None]


def delete(where: ClusterAddress, names: Sequence[str], *, is_sure: bool, as_json: bool) -> None:
    """Delete groups without members, and their offsets. A failure does not keep the others from deletion."""
    confirm(f"delete {', '.join(names)} and all committed offsets?", is_sure=is_sure)
    failed: list[ClientError] = []
    done = []
    with open_admin(where) as client:
        for name in names:
            try:
                groups.delete(client, name)
            except ApiFailed as error:
                failed.append(error)
            else:
                done.append((f"deleted group {name}", {"group": name, "deleted": True}))
    say_each(done, as_json=as_json)
    raise_all(failed)


def _document(client: Admin, group: Group) -> dict[str, Any]:
    owners = {place: member for member in group.members for place in member.partitions}
    committed = groups.committed(client, group.name)
    names = sorted({topic for topic, _ in {*committed, *owners}})
    topics = client.topics(names) if names else []
    partitions = list(_partitions(client, topics, committed, owners))
    lags = [row["lag"] for row in partitions if row["lag"] is not None]
    there = {(topic.name, one.index) for topic in topics for one in topic.partitions}
    return {
        "group": group.name,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.assignor,
        "members": [
            {
                "member": one.id,
                "instance": one.instance,
                "client": one.client,
                "host": one.host,
                "partitions": one.partitions,
            }
            for one in group.members
        ],
        "lag": sum(lags) if lags else None,
        "committed_partitions": len(committed),
        "uncommitted": len(there - committed.keys()),
        "partitions": partitions,
    }


def _partitions(
    client: Admin,
    topics: Sequence[Topic],
    committed: dict[TopicPartition, int],
    owners: dict[TopicPartition, Member],
) -> Iterator[dict[str, Any]]:
    """Yield the partitions that have a committed offset or an owner, in order. None is a missing offset."""
    places = sorted({*committed, *owners})
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        there = {partition.index for partition in topic.partitions if partition.leader >= 0}
        asked = [number for name, number in places if name == topic.name and number in there]
        found = client.list_offsets(topic, dict.fromkeys(asked, LATEST))
        ends |= {(topic.name, number): one.offset for number, one in found.items()}
    for place in places:
        offset, end, owner = committed.get(place), ends.get(place), owners.get(place)
        yield {
            "topic": place[0],
            "partition": place[1],
            "committed": offset,
            "end_offset": end,
            "lag": None if offset is None or end is None else max(end - offset, 0),
            "client": owner.client if owner else None,
            "host": owner.host if owner else None,
            "member": owner.id if owner else None,
        }
