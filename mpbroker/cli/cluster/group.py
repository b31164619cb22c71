"""`mpbroker group`: lists, describes and deletes consumer groups (Kafka: ConsumerGroupCommand).

`group_offsets` has the commands that set and delete committed offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import of_flag
from mpbroker.cli.flags import ClusterAddress, GroupNames, Json, Yes, flag, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import counted, print_json, print_rows, print_table, say_each
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.group_descriptions import Group, Member, places_text, subscription_text
from mpbroker.client.topics import Topic
from mpbroker.observe.lag import Ends, lag_behind
from mpbroker.protocol.consumer_protocol import CONSUMER
from mpbroker.protocol.numbers import LATEST
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import TopicPartition

group_app = App(no_args_is_help=True)
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
# Of groups of the consumer protocol.
CONSUMER_MEMBERS = (
    *(*MEMBERS[:-1], "CURRENT-EPOCH", "STATE", "CURRENT-ASSIGNMENT", "TARGET-ASSIGNMENT"),
    *("UPGRADED", "SUBSCRIPTION"),
)


@group_app.command("list")
def group_list(
    state: Annotated[
        list[str] | None, option("--state", "STATE", "Only those that are Stable, Empty …; repeatable.")
    ] = None,
    kind: Annotated[
        list[str] | None, option("--type", "TYPE", "Only those that are classic, consumer …; repeatable.")
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """List all groups."""
    states = {of_flag("--state", text, groups.parse_state) for text in state or ()}
    types = {of_flag("--type", text, groups.parse_type) for text in kind or ()}
    with open_admin(where) as client:
        listed = groups.list_groups(client)
    rows = [
        {
            "group": one.group_id,
            "type": groups.type_of(one) or None,
            "state": one.group_state,
            "protocol_type": one.protocol_type,
        }
        for one in listed
        if (not states or one.group_state in states) and (not types or groups.type_of(one) in types)
    ]
    print_rows(rows, as_json=json, nothing="no groups")


@group_app.command("describe")
def group_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="GROUP...", hidden=True)] = None,
    members: Annotated[bool, flag("--members", "Who they are, what each has, and shall have.")] = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Committed offsets, lag and members of groups. Default: of all."""
    failed: list[ClientError] = []
    documents = []
    with open_admin(where) as client:
        types = dict.fromkeys(names or (), "")
        types = types or {one.group_id: groups.type_of(one) for one in groups.list_groups(client)}
        for name, kind in types.items():
            try:
                documents.append(_document(client, groups.describe(client, name, kind=kind)))
            except ApiFailed as error:
                failed.append(error)
    if json:
        print_json(documents)
    elif not documents and not failed:
        print("no groups")
    else:
        for index, document in enumerate(documents):
            if index:
                print()
            _print(document, with_members=members)
    raise_all(failed)


@group_app.command("delete")
def group_delete(names: GroupNames, yes: Yes = False, *, where: ClusterAddress, json: Json = False) -> None:
    """Delete groups without members, and their offsets."""
    confirm(f"delete {', '.join(names)} and all committed offsets?", is_sure=yes)
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
    say_each(done, as_json=json)
    raise_all(failed)


def _print(document: dict[str, Any], *, with_members: bool) -> None:
    about = [document["state"], document["type"], document["protocol"]]
    is_consumer_group = document["type"] == CONSUMER
    if is_consumer_group:
        about += [f"epoch {document['epoch']}", f"target epoch {document['target_epoch']}"]
    about += [f"{len(document['members'])} member(s)"]
    title = f"{document['group']}  {', '.join(filter(None, about))}"
    if with_members:
        columns, row_of = (
            (CONSUMER_MEMBERS, _row_of_consumer) if is_consumer_group else (MEMBERS, _row_of_member)
        )
        print_table(columns, map(row_of, document["members"]), title=title)
        return
    rows = [[row[name] for name in PARTITIONS.values()] for row in document["partitions"]]
    print_table(list(PARTITIONS), rows, title=title)
    if document["uncommitted"]:
        print(lag_text(document["lag"], document["committed_partitions"], document["uncommitted"]))
    if idle := [one["member"] for one in document["members"] if not one["partitions"]]:
        print(printable(f"without a partition: {', '.join(idle)}"))


def lag_text(lag: int | None, committed: int, uncommitted: int) -> str:
    """Return a text: the lag, the number of partitions with a commit, and the number without one."""
    known = f"lag {lag:,} in {counted(committed, 'partition')}" if lag is not None else "no lag is known"
    missing = f"{counted(uncommitted, 'partition has', 'partitions have')} no commit"
    return f"{known}; {missing}" if uncommitted else known


def _row_of_member(member: dict[str, Any]) -> list[Any]:
    """Return a row about a member, with its assignment as topic(0,1), topic(2)."""
    who = [member[name] for name in ("member", "instance", "host", "client")]
    return [*who, len(member["partitions"]), places_text(member["partitions"])]


def _row_of_consumer(member: dict[str, Any]) -> list[Any]:
    """Return a row about a member of a group of the consumer protocol."""
    *who, assignment = _row_of_member(member)
    row = [*who, member["epoch"], member["state"], assignment, places_text(member["target"])]
    return [*row, member["upgraded"], subscription_text(member["topics"], member["pattern"])]


def _document(client: Admin, group: Group) -> dict[str, Any]:
    owners = {place: member for member in group.members for place in member.partitions}
    committed = groups.committed(client, group.name)
    places = sorted({*committed, *owners})
    names = sorted({topic for topic, _ in places})
    topics = client.topics(names) if names else []
    ends = _ends(client, topics, places)
    there = {(topic.name, one.index) for topic in topics for one in topic.partitions}
    return {
        "group": group.name,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.assignor,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "members": [_member(one) for one in group.members],
        "lag": Ends(ends).lag(committed),
        "committed_partitions": len(committed),
        "uncommitted": len(there - committed.keys()),
        "partitions": [
            _row(place, committed.get(place), ends.get(place), owners.get(place)) for place in places
        ],
    }


def _member(one: Member) -> dict[str, Any]:
    return {
        "member": one.id,
        "instance": one.instance,
        "client": one.client,
        "host": one.host,
        "partitions": one.partitions,
        "epoch": one.epoch,
        "state": one.state,
        "target": one.target,
        "topics": one.topics,
        "pattern": one.pattern,
        "upgraded": one.is_upgraded,
    }


def _ends(
    client: Admin, topics: Sequence[Topic], places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the high watermarks of those `places` that have a leader."""
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        there = {partition.index for partition in topic.partitions if partition.leader >= 0}
        asked = [number for name, number in places if name == topic.name and number in there]
        found = client.list_offsets(topic, dict.fromkeys(asked, LATEST))
        ends |= {(topic.name, number): one.offset for number, one in found.items()}
    return ends


def _row(
    place: TopicPartition, committed: int | None, end: int | None, owner: Member | None
) -> dict[str, Any]:
    """Return a row about a partition. Values that depend on a missing offset or owner are None."""
    return {
        "topic": place[0],
        "partition": place[1],
        "committed": committed,
        "end_offset": end,
        "lag": None if committed is None or end is None else lag_behind(end, committed),
        "client": owner.client if owner else None,
        "host": owner.host if owner else None,
        "member": owner.id if owner else None,
    }
