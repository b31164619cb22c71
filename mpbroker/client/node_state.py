"""The state of a node, kept from one connection to the next (Kafka: ClusterConnectionStates). Sans-I/O.

With each failure in a row, both the back-off before the next attempt and the set-up timeout grow. An attempt
uses the next address of the host. After the loss of an established connection the host is resolved again
(KIP-302, KIP-601).

Difference from Kafka: the set-up timeout includes TLS and SASL, not only TCP's handshake, so that it ends a
connection whose peer stops answering during TLS or SASL.
"""

from collections.abc import Callable

from mpbroker.client.addresses import Address
from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.connection import Connection
from mpbroker.client.errors import ClientError
from mpbroker.client.metadata import Node

Resolve = Callable[[str, int], list[Address]]


class NodeState:
    """A node's connection and back-off. `failure` is the last error, None once a connection is ready."""

    def __init__(self, node: Node, reconnect: ExponentialBackoff, setup_timeout: ExponentialBackoff) -> None:
        self.node = node
        self.connection: Connection | None = None
        # The events of the connection that epoll watches.
        self.watched = 0
        self.failure: ClientError | None = None
        # A connection was ready for requests once.
        self.was_ready = False
        self.last_attempt_ms = -1.0
        self.setup_deadline_ms = 0.0
        self._reconnect = reconnect
        self._setup_timeout = setup_timeout
        self._rests_until_ms = 0.0
        self._failed_attempts = 0
        self._failed_setups = 0
        self._addresses: list[Address] = []
        self._next_address = 0

    def rest_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the back-off after a failure is over, 0 without a back-off."""
        return max(0.0, self._rests_until_ms - now_ms) if self.connection is None else 0.0

    def can_connect(self, now_ms: float) -> bool:
        return self.connection is None and self._rests_until_ms <= now_ms

    @property
    def is_connecting(self) -> bool:
        return self.connection is not None and self.connection.versions is None

    @property
    def has_untried_address(self) -> bool:
        """Return whether the host has an address that was not tried since the last connection."""
        return bool(self._addresses) and self._next_address % len(self._addresses) > 0

    def next_address(self, resolve: Resolve, now_ms: float) -> Address:
        """Begin an attempt; return the address to connect to. Raises OSError if the host has no address."""
        self.watched = 0
        self.last_attempt_ms = now_ms
        self.setup_deadline_ms = now_ms + self._setup_timeout.after(self._failed_setups)
        if not self._addresses:
            self._addresses = resolve(self.node.host, self.node.port)
            self._next_address = 0
        address = self._addresses[self._next_address % len(self._addresses)]
        self._next_address += 1
        return address

    def progressed(self) -> None:
        """Reset the set-up timeout if the connection is established, and the back-off if it is ready."""
        assert self.connection is not None
        if self.connection.established:
            self._failed_setups = 0
        if self.connection.versions is not None:
            self.failure = None
            self.was_ready = True
            self._failed_attempts = 0

    def failed(self, failure: ClientError, now_ms: float) -> None:
        """Drop the connection, which was lost or could not be set up, and begin the back-off."""
        if self.connection is not None and self.connection.established:
            self._addresses = []
        else:
            self._failed_setups += 1
        self.connection = None
        self.failure = failure
        self.last_attempt_ms = now_ms
        self._rests_until_ms = now_ms + self._reconnect.after(self._failed_attempts)
        self._failed_attempts += 1
