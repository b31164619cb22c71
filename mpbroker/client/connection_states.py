"""What is known of the connection to each node (Kafka: ClusterConnectionStates). Sans-I/O, without a clock.

A connection is being set up (CONNECTING) until TLS and SASL are over, so that a peer which goes silent in
the middle of a handshake meets the set-up timeout too; in Kafka that ends with TCP's handshake. Then the
versions are asked for, then it is ready. After a failure the node rests, longer each time; an attempt may
take longer each time, too. A host with several addresses is tried at the next one, and resolved anew once a
connection to it had been there (KIP-302, KIP-601).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.selector import Address, Disconnect
from mpbroker.client.versions import NodeApiVersions


class ConnectionState(Enum):
    """Kafka: ConnectionState."""

    DISCONNECTED = auto()
    CONNECTING = auto()
    CHECKING_API_VERSIONS = auto()
    READY = auto()
    AUTHENTICATION_FAILED = auto()


IDLE = (ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED)
CONNECTED = (ConnectionState.CHECKING_API_VERSIONS, ConnectionState.READY)


@dataclass
class NodeState:
    """Of one node; `reconnect_ms` and `setup_timeout_ms` are the waits that hold now."""

    host: str
    state: ConnectionState = ConnectionState.CONNECTING
    last_attempt_ms: float = 0.0
    failed_attempts: int = 0
    reconnect_ms: float = 0.0
    failed_setups: int = 0
    setup_timeout_ms: float = 0.0
    throttled_until_ms: float = 0.0
    versions: NodeApiVersions | None = None
    failure: Disconnect | None = None
    addresses: list[Address] = field(default_factory=list)
    next_address: int = 0


class ConnectionStates:
    """One state per node that was ever connected to."""

    def __init__(
        self,
        reconnect: ExponentialBackoff,
        setup_timeout: ExponentialBackoff,
        resolve: Callable[[str, int], list[Address]],
    ) -> None:
        self._reconnect = reconnect
        self._setup_timeout = setup_timeout
        self._resolve = resolve
        self._nodes: dict[int, NodeState] = {}

    def can_connect(self, node: int, now_ms: float) -> bool:
        """Not connected, and rested after the last failure."""
        known = self._nodes.get(node)
        return known is None or (known.state in IDLE and now_ms - known.last_attempt_ms >= known.reconnect_ms)

    def connection_delay_ms(self, node: int, now_ms: float) -> float:
        """Until the node may be connected to; 0 unless it rests."""
        known = self._nodes.get(node)
        if known is None or known.state not in IDLE:
            return 0.0
        return max(0.0, known.last_attempt_ms + known.reconnect_ms - now_ms)

    def connecting(self, node: int, host: str, port: int, now_ms: float) -> Address:
        """An attempt begins: where to. Raises OSError if the host has no address."""
        known = self._nodes.get(node)
        if known is None or known.host != host:
            known = self._nodes[node] = NodeState(host, reconnect_ms=self._reconnect.after(0))
            known.setup_timeout_ms = self._setup_timeout.after(0)
        known.state = ConnectionState.CONNECTING
        known.last_attempt_ms = now_ms
        known.versions = None
        if not known.addresses:
            known.addresses = self._resolve(host, port)
            known.next_address = 0
        address = known.addresses[known.next_address % len(known.addresses)]
        known.next_address += 1
        return address

    def checking_api_versions(self, node: int) -> None:
        known = self._nodes[node]
        known.state = ConnectionState.CHECKING_API_VERSIONS
        self._reset_setup(known)

    def ready(self, node: int, versions: NodeApiVersions) -> None:
        known = self._nodes[node]
        known.state = ConnectionState.READY
        known.versions = versions
        known.failure = None
        known.failed_attempts = 0
        known.reconnect_ms = self._reconnect.after(0)

    def disconnected(self, node: int, failure: Disconnect, now_ms: float) -> None:
        known = self._nodes[node]
        if known.state is ConnectionState.CONNECTING:
            known.failed_setups += 1
            known.setup_timeout_ms = self._setup_timeout.after(known.failed_setups)
        else:
            self._reset_setup(known)
            if known.state in CONNECTED:
                known.addresses = []
        self._failed(known, ConnectionState.DISCONNECTED, failure, now_ms)

    def authentication_failed(self, node: int, failure: Disconnect, now_ms: float) -> None:
        self._failed(self._nodes[node], ConnectionState.AUTHENTICATION_FAILED, failure, now_ms)

    def throttle(self, node: int, until_ms: float) -> None:
        known = self._nodes[node]
        known.throttled_until_ms = max(known.throttled_until_ms, until_ms)

    def throttle_delay_ms(self, node: int, now_ms: float) -> float:
        known = self._nodes.get(node)
        return 0.0 if known is None else max(0.0, known.throttled_until_ms - now_ms)

    def is_ready(self, node: int, now_ms: float) -> bool:
        """Connected, versions known, and not told to wait."""
        known = self._nodes.get(node)
        return (
            known is not None and known.state is ConnectionState.READY and known.throttled_until_ms <= now_ms
        )

    def is_connecting(self, node: int) -> bool:
        known = self._nodes.get(node)
        return known is not None and known.state in (
            ConnectionState.CONNECTING,
            ConnectionState.CHECKING_API_VERSIONS,
        )

    def is_idle(self, node: int) -> bool:
        """Not connected, and nobody tries."""
        known = self._nodes.get(node)
        return known is None or known.state in IDLE

    def has_untried_address(self, node: int) -> bool:
        known = self._nodes.get(node)
        return known is not None and bool(known.addresses) and known.next_address % len(known.addresses) > 0

    def setup_expired(self, now_ms: float) -> list[int]:
        """Nodes whose connection takes too long to make."""
        return [
            node
            for node, known in self._nodes.items()
            if known.state is ConnectionState.CONNECTING
            and now_ms - known.last_attempt_ms >= known.setup_timeout_ms
        ]

    def next_deadline_ms(self, nodes: Iterable[int], now_ms: float) -> float | None:
        """When an attempt will have taken too long, a rest or a throttle of these nodes is over."""
        times = [
            known.last_attempt_ms + known.setup_timeout_ms
            for known in self._nodes.values()
            if known.state is ConnectionState.CONNECTING
        ]
        for node in nodes:
            times += [
                now_ms + delay
                for delay in (self.connection_delay_ms(node, now_ms), self.throttle_delay_ms(node, now_ms))
                if delay > 0
            ]
        return min(times, default=None)

    def versions(self, node: int) -> NodeApiVersions | None:
        known = self._nodes.get(node)
        return None if known is None else known.versions

    def failure(self, node: int) -> Disconnect | None:
        """Why the last connection or attempt ended, until one is ready again."""
        known = self._nodes.get(node)
        return None if known is None else known.failure

    def last_attempt_ms(self, node: int) -> float:
        known = self._nodes.get(node)
        return -1.0 if known is None else known.last_attempt_ms

    def _reset_setup(self, known: NodeState) -> None:
        known.failed_setups = 0
        known.setup_timeout_ms = self._setup_timeout.after(0)

    def _failed(self, known: NodeState, state: ConnectionState, failure: Disconnect, now_ms: float) -> None:
        known.state = state
        known.failure = failure
        known.last_attempt_ms = now_ms
        known.throttled_until_ms = 0.0
        known.reconnect_ms = self._reconnect.after(known.failed_attempts)
        known.failed_attempts += 1
