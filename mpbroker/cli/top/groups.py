"""Looks at consumer groups through a client: three requests, however many groups there are."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from mpbroker.client.cluster import Cluster
from mpbroker.client.command_config import read_config
from mpbroker.client.committed_offsets import fetched_offsets
from mpbroker.client.config import parse_servers
from mpbroker.client.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.observe.lag import Place
from mpbroker.observe.samples import Groups, GroupSeen
from mpbroker.protocol import messages as m

REQUEST_TIMEOUT_MS: Final = 5_000
_ADVICE: Final = "name another listener with -b, and what it asks for with --command-config"


class GroupLooks:
    """A client that asks one broker for its groups. Use it as a context manager."""

    def __init__(self, address: str, command_config: Path | None) -> None:
        config = msgspec.structs.replace(read_config(command_config), request_timeout_ms=REQUEST_TIMEOUT_MS)
        self._cluster = Cluster(parse_servers(address), config, _ADVICE)

    def __enter__(self) -> GroupLooks:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    def look(self) -> Groups:
        """Return the groups, or why they are not known."""
        try:
            found = self._groups()
        except ClientError as error:
            return Groups(time.monotonic_ns(), problem=str(error))
        return Groups(time.monotonic_ns(), tuple(found))

    def _groups(self) -> list[GroupSeen]:
        listed: m.ListGroupsResponse = self._cluster.ask_any(m.ListGroupsRequest())
        if listed.error_code:
            raise ApiFailed("groups", listed.error_code)
        names = [one.group_id for one in listed.groups]
        if not names:
            return []
        described: m.DescribeGroupsResponse = self._cluster.ask_any(m.DescribeGroupsRequest(names))
        groups = {one.group_id: one for one in described.groups if not one.error_code}
        committed = self._committed(names)
        return [
            GroupSeen(
                one.group_id,
                one.group_state,
                len(groups[one.group_id].members) if one.group_id in groups else None,
                committed.get(one.group_id, {}),
                _assigned(groups.get(one.group_id)),
            )
            for one in listed.groups
        ]

    def _committed(self, names: list[str]) -> dict[str, dict[Place, int]]:
        """Return the committed offsets of the groups. One whose offsets may not be read has none."""
        wanted = [m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in names]
        response: m.OffsetFetchResponse = self._cluster.ask_any(m.OffsetFetchRequest(groups=wanted))
        return {group.group_id: fetched_offsets(group) for group in response.groups}


def _assigned(group: m.DescribeGroupsResponse.DescribedGroup | None) -> frozenset[Place]:
    """Return the partitions of a group's members; none of members that are no consumers."""
    if group is None or group.protocol_type != PROTOCOL_TYPE:
        return frozenset()
    return frozenset(place for one in group.members for place in decode_assignment(one.member_assignment))
