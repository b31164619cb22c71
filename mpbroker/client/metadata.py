"""A client's knowledge of a cluster: nodes, and leaders of partitions (Kafka: Metadata). Sans-I/O.

Metadata begins with the bootstrap servers, which have negative ids. The client requests new metadata when its
metadata is wrong or old, but not before the back-off after the last request is over. If no node can be
reached, the client begins again with the bootstrap servers (KIP-899).
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.config import UNIX
from mpbroker.protocol.errors import error_code
from mpbroker.protocol.messages import MetadataRequest, MetadataResponse

NO_NODE = -1
NEVER_MS = float("inf")


class Node(NamedTuple):
    """A broker and its address."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        if self.host.startswith(UNIX):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def metadata_request(topics: Iterable[str] | None, *, auto_create: bool) -> MetadataRequest:
    """Return a request for the nodes and these topics; None means all topics."""
    wanted = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=None if topics is None else [wanted(name=name) for name in topics],
        allow_auto_topic_creation=auto_create,
    )


def bootstrap_nodes(servers: Iterable[tuple[str, int]]) -> list[Node]:
    """Return the servers as nodes with the ids -2, -3 and so on. (In metadata -1 means "no leader".)"""
    return [Node(-2 - index, host, port) for index, (host, port) in enumerate(servers)]


class Metadata:
    """Metadata of the topics that a client tracks or has requested."""

    def __init__(
        self, servers: Iterable[tuple[str, int]], backoff: ExponentialBackoff, max_age_ms: float
    ) -> None:
        self._bootstrap = bootstrap_nodes(servers)
        self._nodes = {node.id: node for node in self._bootstrap}
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._topics: set[str] = set()
        self._auto_create = False
        self._leaders: dict[str, dict[int, int]] = {}
        self._errors: dict[str, int] = {}
        self._wanted = False
        self._attempts = 0
        self._tried_ms = -NEVER_MS
        self._updated_ms = -NEVER_MS

    def track(self, topic: str, *, auto_create: bool = False) -> None:
        """Include this topic in all further updates."""
        self._topics.add(topic)
        self._auto_create = self._auto_create or auto_create
        if topic not in self._leaders:
            self.request_update()

    def nodes(self) -> list[Node]:
        return [*self._nodes.values()]

    def node_ids(self) -> Collection[int]:
        return self._nodes.keys()

    def node(self, node_id: int) -> Node | None:
        return self._nodes.get(node_id)

    def partitions(self, topic: str) -> list[int]:
        """Return the known partitions of a topic, in order."""
        return sorted(self._leaders.get(topic, ()))

    def leader(self, topic: str, partition: int) -> Node | None:
        """Return the partition's leader; None if there is no leader, or the partition is unknown."""
        return self._nodes.get(self._leaders.get(topic, {}).get(partition, NO_NODE))

    def error(self, topic: str) -> int:
        """Return the topic's error code in the last response about the topic, 0 if there was no error."""
        return self._errors.get(topic, 0)

    def request_update(self) -> None:
        """Request new metadata as soon as the back-off allows, because the metadata was wrong."""
        self._wanted = True

    def time_to_next_update_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the next update; infinite while no topic is tracked."""
        if not self._topics:
            return NEVER_MS
        due = 0.0 if self._wanted else self._updated_ms + self._max_age_ms - now_ms
        rest = self._tried_ms + self._backoff.after(self._attempts) - now_ms
        return max(0.0, due, rest)

    def request(self) -> MetadataRequest:
        """Return a request for all topics that are tracked."""
        return metadata_request(sorted(self._topics), auto_create=self._auto_create)

    def updated(self, response: MetadataResponse, now_ms: float) -> None:
        """Store a response. If it lacks a topic or leader, request metadata again after the back-off."""
        if response.brokers:
            self._nodes = {
                broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in response.brokers
            }
        settled = self._topics <= {topic.name for topic in response.topics}
        for topic in response.topics:
            name = topic.name or ""
            self._errors[name] = topic.error_code
            leaders = {part.partition_index: part.leader_id for part in topic.partitions}
            if not topic.error_code or leaders:
                self._leaders[name] = leaders
            settled = (
                settled
                and not error_code(topic.error_code).retriable
                and min(leaders.values(), default=0) >= 0
            )
        self._tried_ms = now_ms
        if settled:
            self._wanted = False
            self._attempts = 0
            self._updated_ms = now_ms
        else:
            self._wanted = True
            self._attempts += 1

    def failed(self, now_ms: float) -> None:
        """Begin the back-off after a failed request for metadata. The next request is due when it is over."""
        self._tried_ms = now_ms
        self._attempts += 1
        self._wanted = True

    def rebootstrap(self) -> None:
        """Forget the nodes and begin again with the bootstrap servers."""
        self._nodes = {node.id: node for node in self._bootstrap}
        self.request_update()
