"""A client for programs that send one request, or a few at once, and wait for the responses.

Methods raise AuthenticationFailed, ConnectionLost, InvalidReceive and UnsupportedByBroker; the errors' texts
name the broker's address. Only `patiently` retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, TypeVar

from mpbroker.client.backoff import ExponentialBackoff, monotonic_ms
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import ClientRequest, ClientResponse
from mpbroker.client.errors import (
    AdvertisedUnreachable,
    ApiFailed,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    without_leader,
)
from mpbroker.client.metadata import Metadata, Node, metadata_request
from mpbroker.client.network_client import NetworkClient
from mpbroker.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Message,
    MetadataResponse,
)

_Value = TypeVar("_Value")


class CoordinatorType(IntEnum):
    """The kinds of names that have a coordinator (Kafka: FindCoordinatorRequest.CoordinatorType)."""

    GROUP = 0
    TRANSACTION = 1


class Asked:
    """A request that was sent to `node`. `response` is None until the request has succeeded or failed."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.response: ClientResponse | None = None

    def completed(self, response: ClientResponse) -> None:
        self.response = response


class Cluster:
    """A client of a cluster. The first request connects. `advice` is added to connection errors."""

    def __init__(
        self, servers: list[tuple[str, int]], config: ClientConfig, advice: str = "does the broker run there?"
    ) -> None:
        self.config = config
        self.retry_backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.client = NetworkClient(servers, config, advice)

    @property
    def metadata(self) -> Metadata:
        return self.client.metadata

    def close(self) -> None:
        self.client.close()

    def ask(self, node_id: int, body: Message, timeout_ms: float | None = None) -> Any:
        """Send a request to one node and return the response, None if the request has none."""
        return self.finish(self.start(node_id, body, timeout_ms))

    def ask_any(self, body: Message, timeout_ms: float | None = None) -> Any:
        """Send a request to any node that can be reached; return the response."""
        failed: ClientError = ConnectionLost("no bootstrap server")
        for node in self._candidates():
            try:
                asked = self._start(node, body, timeout_ms)
            except ConnectionLost as error:
                failed = error
                continue
            return self.finish(asked)
        raise failed

    def refresh(
        self, topics: Iterable[str] | None = (), *, auto_create: bool = False, timeout_ms: float | None = None
    ) -> MetadataResponse:
        """Request metadata of these topics (None: all) from any node; store and return the response."""
        request = metadata_request(topics, auto_create=auto_create)
        response: MetadataResponse = self.ask_any(request, timeout_ms)
        self.metadata.updated(response, monotonic_ms())
        return response

    def leader(self, topic: str, partition: int, look_up: Callable[[], object]) -> int:
        """Return a leader's id; `look_up` refreshes the metadata if no leader is known. Raises ApiFailed."""
        node = self.metadata.leader(topic, partition)
        if node is None:
            look_up()
            node = self.metadata.leader(topic, partition)
        if node is None:
            raise without_leader(topic, partition)
        return node.id

    def coordinator(self, kind: CoordinatorType, key: str, timeout_ms: float | None = None) -> int:
        """Refresh the nodes; return the coordinator's node id for a group or transactional id."""
        self.refresh(timeout_ms=timeout_ms)
        found: FindCoordinatorResponse = self.ask_any(FindCoordinatorRequest(key, kind, [key]), timeout_ms)
        # One answer for each key since version 4.
        place = found.coordinators[0] if found.coordinators else found
        if place.error_code:
            what = f"group {key}" if kind is CoordinatorType.GROUP else f"coordinator of {key}"
            raise ApiFailed(what, place.error_code, place.error_message)
        return place.node_id

    def start(self, node_id: int, body: Message, timeout_ms: float | None = None) -> Asked:
        """Send a request as soon as the node accepts one. Do not wait for the response."""
        node = self.metadata.node(node_id)
        if node is None:
            # Forgotten, if it could not be reached.
            raise self.client.failure(node_id) or ConnectionLost(f"no broker with id {node_id} is known")
        return self._start(node, body, timeout_ms)

    def finish(self, asked: Asked) -> Any:
        """Wait for the response and return its body. The request's timeout runs from the call of `start`."""
        while asked.response is None:
            self.client.poll(self.config.request_timeout_ms)
        if asked.response.error is not None:
            raise asked.response.error
        return asked.response.body

    def patiently(
        self,
        ask: Callable[[], _Value],
        *,
        timeout_ms: float | None = None,
        tries: int | None = None,
        backoff: ExponentialBackoff | None = None,
        before_retry: Callable[[], object] | None = None,
    ) -> _Value:
        """Call `ask` until it returns a value. After a retriable ClientError, pause and call it again.

        An error that is not retriable is raised at once. A retriable error is raised after `tries` calls, or
        if `tries` is None, after `timeout_ms` (by default delivery.timeout.ms). `before_retry` runs before
        every further call. Pauses follow `backoff`, by default retry.backoff.ms.
        """
        backoff = backoff or self.retry_backoff
        deadline_ms = monotonic_ms() + (self.config.delivery_timeout_ms if timeout_ms is None else timeout_ms)
        attempts = 0
        while True:
            try:
                if attempts and before_retry is not None:
                    before_retry()
                return ask()
            except ClientError as error:
                is_last = monotonic_ms() >= deadline_ms if tries is None else attempts + 1 >= tries
                if not error.retriable or is_last:
                    raise
            self.rest(backoff.after(attempts))
            attempts += 1

    def rest(self, rest_ms: float) -> None:
        """Wait `rest_ms` milliseconds; the connections send and receive meanwhile."""
        until_ms = monotonic_ms() + rest_ms
        while (left_ms := until_ms - monotonic_ms()) > 0:
            self.client.poll(left_ms)

    def _start(self, node: Node, body: Message, timeout_ms: float | None) -> Asked:
        timeout_ms = timeout_ms or self.config.request_timeout_ms
        deadline_ms = monotonic_ms() + timeout_ms
        self._await_ready(node, timeout_ms)
        asked = Asked(node)
        left_ms = max(1.0, deadline_ms - monotonic_ms())
        self.client.send(ClientRequest(node.id, body, left_ms, asked.completed))
        return asked

    def _await_ready(self, node: Node, timeout_ms: float) -> None:
        """Wait until a node is ready.

        If its last error is an AdvertisedUnreachable that is not retriable, raise that error without waiting.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        known = self.client.failure(node.id)
        if isinstance(known, AdvertisedUnreachable) and not known.retriable:
            raise known
        while not self.client.ready(node):
            failure = self.client.failure(node.id)
            if failure is not None and failure is not known:
                if not self.client.has_untried_address(node.id):
                    raise failure
                known = failure
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                raise RequestTimedOut(
                    f"{node.address} was not ready for a request within {timeout_ms / 1000:g} s"
                )
            delay_ms = self.client.connection_delay_ms(node.id)
            self.client.poll(min(left_ms, delay_ms) if delay_ms else left_ms)

    def _candidates(self) -> Iterator[Node]:
        """Yield all known nodes, beginning with those ready for a request; then the bootstrap servers."""
        nodes = self.metadata.nodes()
        nodes.sort(key=lambda node: not self.client.is_ready(node.id))
        yield from nodes
        self.metadata.rebootstrap()
        known = {(node.host, node.port) for node in nodes}
        yield from (node for node in self.metadata.nodes() if (node.host, node.port) not in known)
