"""A cluster for a program that asks one thing after the other, or a few at once: the waiting.

Every method may raise AuthenticationFailed, ConnectionLost, InvalidReceive and UnsupportedByBroker, whose
texts name the address. What is retried, and for how long, is the caller's to decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.build import network_client
from mpbroker.client.clock import monotonic_ms
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    InvalidReceive,
    RequestTimedOut,
    UnsupportedByBroker,
)
from mpbroker.client.metadata import Metadata, Node
from mpbroker.client.network_client import NO_ANSWER, ClientRequest, ClientResponse, NetworkClient
from mpbroker.client.selector import ChannelState, Disconnect
from mpbroker.protocol.messages import Message, MetadataRequest, MetadataResponse


class Asked:
    """A question that is on its way."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.response: ClientResponse | None = None

    def completed(self, response: ClientResponse) -> None:
        self.response = response


class Cluster:
    """Connects when it is first asked something. `advice` ends the text of a failed connection."""

    def __init__(
        self, servers: list[tuple[str, int]], config: ClientConfig, advice: str = "does the broker run there?"
    ) -> None:
        self.config = config
        self.retry_backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._advice = advice
        self.client: NetworkClient = network_client(config, servers)

    @property
    def metadata(self) -> Metadata:
        return self.client.metadata

    def close(self) -> None:
        self.client.close()

    def ask(self, node_id: int, body: Message, timeout_ms: float | None = None) -> Any:
        """The response of one node; None to a request that has none."""
        return self.finish(self.start(node_id, body, timeout_ms))

    def ask_any(self, body: Message, timeout_ms: float | None = None) -> Any:
        """The response of whichever node can be reached."""
        failed: ClientError = ConnectionLost("no bootstrap server")
        for node in self._candidates():
            try:
                asked = self._start(node, body, timeout_ms)
            except ConnectionLost as error:
                failed = error
                continue
            return self.finish(asked)
        raise failed

    def refresh(self, request: MetadataRequest, timeout_ms: float | None = None) -> MetadataResponse:
        """Asks anybody for metadata and keeps what it says."""
        response: MetadataResponse = self.ask_any(request, timeout_ms)
        self.metadata.updated(response, monotonic_ms())
        return response

    def start(self, node_id: int, body: Message, timeout_ms: float | None = None) -> Asked:
        """Sends a request as soon as the node takes it, and waits for no more than that."""
        node = self.metadata.node(node_id)
        if node is None:
            raise ConnectionLost(f"no broker with id {node_id} is known")
        return self._start(node, body, timeout_ms)

    def finish(self, asked: Asked) -> Any:
        """Waits for the response. Its time began when it was sent."""
        while asked.response is None:
            self.client.poll(self.config.request_timeout_ms)
        response = asked.response
        if response.unsupported is not None:
            raise UnsupportedByBroker(f"{asked.node.address}: {response.unsupported}")
        if response.timed_out:
            seconds = response.request.timeout_ms / 1000
            raise RequestTimedOut(
                f"{asked.node.address} did not answer within {seconds:g} s (request.timeout.ms)"
            )
        if response.disconnect is not None:
            raise self.error(asked.node, response.disconnect)
        return response.body

    def drop(self, node_id: int) -> None:
        """Ends the connection to a node; whatever is asked next makes a new one."""
        self.client.disconnect(node_id, "dropped by the client")

    def error(self, node: Node, failure: Disconnect) -> ClientError:
        """The failure in words, with what to do about it."""
        match failure.state:
            case ChannelState.AUTHENTICATION_FAILED:
                return AuthenticationFailed(f"authentication with {node.address} failed: {failure.reason}")
            case ChannelState.INVALID_RECEIVE:
                return InvalidReceive(f"cannot talk to {node.address}: {failure.reason}")
            case ChannelState.NOT_CONNECTED:
                return ConnectionLost(f"cannot connect to {node.address}: {failure.reason}; {self._advice}")
        text = f"the connection to {node.address} was lost: {failure.reason}"
        if failure.reason == NO_ANSWER:
            return ConnectionLost(f"{text}; is the broker jammed, or at its max.connections?")
        is_early = failure.frames <= 1 and failure.state is not ChannelState.EXPIRED
        has_advice = "security.protocol" in failure.reason
        if is_early and not has_advice and (failure.frames == 0 or not self.config.uses_sasl):
            # A listener that wants SASL answers ApiVersions and nothing else; one with TLS not even that.
            text += (
                f"; security.protocol is {self.config.security_protocol}: does this listener want another?"
            )
        return ConnectionLost(text)

    def _start(self, node: Node, body: Message, timeout_ms: float | None) -> Asked:
        timeout_ms = timeout_ms or self.config.request_timeout_ms
        deadline = time.monotonic() + timeout_ms / 1000
        self._await_ready(node, timeout_ms)
        asked = Asked(node)
        left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
        self.client.send(ClientRequest(node.id, body, left_ms, asked.completed))
        # The send goes out now, also if nobody waits for its response soon.
        self.client.poll(0)
        return asked

    def _await_ready(self, node: Node, timeout_ms: float) -> None:
        """Connects if need be. A failure from before this call is not one yet: it is tried again."""
        deadline = time.monotonic() + timeout_ms / 1000
        known = self.client.failure(node.id)
        while not self.client.ready(node):
            failure = self.client.failure(node.id)
            if failure is not None and failure is not known:
                if not self.client.has_untried_address(node.id):
                    raise self.error(node, failure)
                known = failure
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                raise RequestTimedOut(
                    f"{node.address} was not ready for a request within {timeout_ms / 1000:g} s"
                )
            delay_ms = self.client.connection_delay_ms(node.id)
            self.client.poll(min(left_ms, delay_ms) if delay_ms else left_ms)

    def _candidates(self) -> Iterator[Node]:
        """Who is connected, then the others, then the bootstrap servers if all the others are gone."""
        nodes = self.metadata.nodes()
        nodes.sort(key=lambda node: not self.client.is_ready(node.id))
        yield from nodes
        self.metadata.rebootstrap()
        known = {(node.host, node.port) for node in nodes}
        yield from (node for node in self.metadata.nodes() if (node.host, node.port) not in known)
