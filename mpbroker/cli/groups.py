"""`mpbroker group`: list, describe and delete consumer groups (Kafka: ConsumerGroupCommand)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from mpbroker.cli.client import PATIENCE_MS, Client, only
from mpbroker.cli.errors import CliError
from mpbroker.cli.output import print_json, print_table
from mpbroker.cli.where import Where
from mpbroker.client.cluster import CoordinatorType
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import LATEST
from mpbroker.protocol.printable import printable

# Kafka's protocol of consumers. Assignments of other members (Connect's workers) have formats of their own.
CONSUMER = "consumer"
DEAD = "Dead"
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

_Value = TypeVar("_Value")
Place = tuple[str, int]


def show_list(where: Where, *, as_json: bool) -> None:
    """Print the groups of all brokers."""
    with Client(where) as client:
        brokers = client.cluster.refresh(m.MetadataRequest(topics=[])).brokers
        listed = [
            one for broker in brokers for one in _patiently(client, partial(_list, client, broker.node_id))
        ]
    listed.sort(key=lambda group: group.group_id)
    rows = [{"group": g.group_id, "state": g.group_state, "protocol_type": g.protocol_type} for g in listed]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        print("no groups")


def describe(where: Where, names: list[str], *, with_members: bool, as_json: bool) -> None:
    """Print groups with their lag in each partition, or with their members. JSON has both."""
    with Client(where) as client:
        documents = [_patiently(client, partial(_describe, client, name)) for name in names]
    if as_json:
        print_json(documents)
        return
    for document in documents:
        about = [document["state"], document["protocol"], f"{len(document['members'])} member(s)"]
        title = f"{document['group']}  {', '.join(filter(None, about))}"
        if with_members:
            print_table(MEMBERS, map(_row_of_member, document["members"]), title=title)
            continue
        rows = [[row[name] for name in PARTITIONS.values()] for row in document["partitions"]]
        print_table(list(PARTITIONS), rows, title=title)
        if idle := [one["member"] for one in document["members"] if not one["partitions"]]:
            print(printable(f"without a partition: {', '.join(idle)}"))


def _row_of_member(member: dict[str, Any]) -> list[Any]:
    """Return a row about a member, with its assignment as topic(0,1), topic(2)."""
    places: dict[str, list[str]] = {}
    for topic, number in member["partitions"]:
        places.setdefault(topic, []).append(str(number))
    assignment = ", ".join(f"{topic}({','.join(numbers)})" for topic, numbers in places.items())
    who = [member[name] for name in ("member", "instance", "host", "client")]
    return [*who, len(member["partitions"]), assignment or None]


def delete(where: Where, names: list[str]) -> None:
    """Delete groups without members, and their offsets. A failure does not keep the others from deletion."""
    failed = []
    with Client(where) as client:
        for name in names:
            try:
                _patiently(client, partial(_delete, client, name))
            except ApiFailed as error:
                failed.append(str(error))
            else:
                print(f"deleted group {name}")
    if failed:
        raise CliError("\n".join(failed))


def _patiently(client: Client, ask: Callable[[], _Value]) -> _Value:
    """Ask again after a retriable error: coordinators move, and load their groups before they answer."""
    return client.cluster.patiently(ask, timeout_ms=PATIENCE_MS)


def _check(name: str, code: int) -> None:
    message = "does not exist" if code == ErrorCode.GROUP_ID_NOT_FOUND else None
    if code:
        raise ApiFailed(f"group {name}", code, message)


def _list(client: Client, node: int) -> list[m.ListGroupsResponse.ListedGroup]:
    response: m.ListGroupsResponse = client.cluster.ask(node, m.ListGroupsRequest())
    if response.error_code:
        raise ApiFailed(f"groups of broker {node}", response.error_code)
    return response.groups


def _ask(client: Client, name: str, request: m.Message) -> Any:
    """Ask the broker that coordinates the group."""
    return client.cluster.ask(client.cluster.coordinator(CoordinatorType.GROUP, name), request)


def _delete(client: Client, name: str) -> None:
    response: m.DeleteGroupsResponse = _ask(client, name, m.DeleteGroupsRequest([name]))
    for result in response.results:
        _check(name, result.error_code)


def _describe(client: Client, name: str) -> dict[str, Any]:
    response: m.DescribeGroupsResponse = _ask(client, name, m.DescribeGroupsRequest([name]))
    group = only(response.groups, f"group {name}")
    _check(name, ErrorCode.GROUP_ID_NOT_FOUND if group.group_state == DEAD else group.error_code)
    members = [_member(one, group.protocol_type) for one in group.members]
    owners = {place: member for member in members for place in member["partitions"]}
    committed = _committed(client, name)
    return {
        "group": name,
        "state": group.group_state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_data,
        "members": members,
        "partitions": list(_partitions(client, committed, owners)),
    }


def _member(member: m.DescribeGroupsResponse.DescribedGroupMember, protocol_type: str) -> dict[str, Any]:
    readable = protocol_type == CONSUMER and member.member_assignment
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host.removeprefix("/"),
        "partitions": sorted(partitions_in(member.member_assignment)) if readable else [],
    }


def partitions_in(assignment: bytes) -> list[Place]:
    """Return the partitions in a ConsumerProtocolAssignment; none if the member's bytes are malformed.

    version i16 | topics: count i32, each: name (i16, bytes), partitions: count i32, i32 … | …
    """
    found: list[Place] = []
    try:
        (topics,) = struct.unpack_from(">i", assignment, 2)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, at)
            (name,) = struct.unpack_from(f">{length}s", assignment, at + 2)
            (count,) = struct.unpack_from(">i", assignment, at + 2 + length)
            at += 6 + length
            found += [(name.decode(), number) for number in struct.unpack_from(f">{count}i", assignment, at)]
            at += 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def _committed(client: Client, name: str) -> dict[Place, int]:
    every = m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None)
    response: m.OffsetFetchResponse = _ask(client, name, m.OffsetFetchRequest(name, None, [every]))
    # Since version 8 there is one answer for each group.
    group = response.groups[0] if response.groups else response
    _check(name, group.error_code)
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in group.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def _partitions(
    client: Client, committed: dict[Place, int], owners: dict[Place, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the partitions that have a committed offset or an owner, in order.

    -1 and None stand for a missing offset.
    """
    places = sorted({*committed, *owners})
    ends: dict[Place, int] = {}
    names = sorted({topic for topic, _ in places})
    for topic in client.topics(names) if names else []:
        there = {partition.index for partition in topic.partitions if partition.leader >= 0}
        asked = [number for name, number in places if name == topic.name and number in there]
        found = client.offsets(topic, LATEST, asked) if asked else {}
        ends |= {(topic.name, number): offset for number, offset in found.items()}
    for place in places:
        offset, end, owner = committed.get(place), ends.get(place), owners.get(place, {})
        yield {
            "topic": place[0],
            "partition": place[1],
            "committed": offset,
            "end_offset": end,
            "lag": None if offset is None or end is None else max(end - offset, 0),
            "client": owner.get("client"),
            "host": owner.get("host"),
            "member": owner.get("member"),
        }
