"""A connection of a TLS or SASL listener, and the state that its stages share."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.session import Session as Connection
from mpbroker.network.acceptor.limit_notices import LimitNotices
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.tls_pipe import TlsPipe
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.network.processor.turn_tls import TlsSaslTurn
from mpbroker.security.audit import Event, Kind, Names
from mpbroker.security.audit_log import audit_of
from mpbroker.security.listener import ListenerSecurity
from mpbroker.security.sasl import SaslServer, Session
from shm.counters import CounterPage

SIZE_BYTES = 4
# Bytes that one channel may move in a turn, so that no channel starves another.
MOVED_PER_TURN_MAX = 1 << 20
# Frames before authentication are small. Tokens may be larger (sasl.server.max.receive.size), but not all
# at once.
LARGE_FRAME_BYTES = 16 << 10
LARGE_FRAMES_BYTES_MAX = 16 << 20
_LOGIN_LIMITS = {
    CloseReason.CLOSED_LOGIN_TIMEOUT: "connections.max.login.ms",
    CloseReason.CLOSED_LOGIN_EXCESS: "max.unauthenticated.connections",
}


class Stage(Enum):
    SHAKING = 0  # the TLS handshake
    TALKING = 1  # SASL
    OPEN = 2  # authenticated
    FAILED = 3  # failed; its answer is held back, to slow down guessing
    HELD = 4  # succeeded; its answer is held back, since its address or user has failed often


@dataclass(slots=True, eq=False)
class TlsSaslChannel:
    """A connection of a TLS or SASL listener. `sock` is None while the turn owns the descriptor."""

    channel: int
    connection: int
    listener: int
    security: ListenerSecurity
    begun_ns: int
    sock: socket.socket | None = None
    pipe: TlsPipe | None = None
    stage: Stage = Stage.TALKING
    sasl: SaslServer | None = None
    session: Session | None = None
    frame: bytearray = field(default_factory=bytearray)
    wanted: int = SIZE_BYTES
    out: bytearray = field(default_factory=bytearray)
    due_ns: int = 0
    ended: bool = False  # closed by us; the turn has not reported it yet
    cipher: int = -1  # its number in the meters
    renewed_ns: int = 0  # when its re-authentication began
    was_answered: bool = False  # our part of the handshake, and so our certificate, was sent

    @property
    def io(self) -> socket.socket | TlsPipe:
        """Return the transport of the SASL exchange."""
        found = self.pipe or self.sock
        assert found is not None
        return found


class Logins:
    """The unauthenticated connections of one processor, and limits for them, since any host can open some.

    The methods return connections that the caller must close. (Kafka has no such limits: it closes the
    connections when they are idle. OpenSSH has LoginGraceTime and MaxStartups.)
    """

    def __init__(self, limit_ns: int, connections_max: int) -> None:
        self.limit_ns = limit_ns
        self.connections_max = connections_max
        self._open: dict[int, TlsSaslChannel] = {}
        self._large: dict[int, TlsSaslChannel] = {}
        self._large_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, login: TlsSaslChannel) -> TlsSaslChannel | None:
        """Add a connection. If there were too many, remove and return the oldest one, else return None."""
        oldest = next(iter(self._open.values())) if len(self._open) >= self.connections_max else None
        if oldest is not None:
            self.remove(oldest)
        self._open[login.connection] = login
        return oldest

    def remove(self, login: TlsSaslChannel) -> None:
        """Remove a connection that is authenticated or closed, if it is still here."""
        if self._open.pop(login.connection, None) is not None:
            self.frame_taken(login)

    def received(self, login: TlsSaslChannel, count: int) -> TlsSaslChannel | None:
        """Count `count` bytes that were added to the frame of `login`.

        If all large frames together take too much memory, remove and return the connection with the oldest
        large frame; else return None.
        """
        if login.connection not in self._open or len(login.frame) <= LARGE_FRAME_BYTES:
            return None
        self._large_bytes += count if login.connection in self._large else len(login.frame)
        self._large[login.connection] = login
        if self._large_bytes <= LARGE_FRAMES_BYTES_MAX:
            return None
        oldest = next(iter(self._large.values()))
        self.remove(oldest)
        return oldest

    def frame_taken(self, login: TlsSaslChannel) -> None:
        """Subtract the frame of `login` from what large logins hold. Call it before the frame is cleared."""
        if self._large.pop(login.connection, None) is not None:
            self._large_bytes -= len(login.frame)

    def overdue(self, now_ns: int) -> Iterator[TlsSaslChannel]:
        """Remove and yield the connections whose time for the login is over."""
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.begun_ns + self.limit_ns > now_ns:
                return
            self.remove(oldest)
            yield oldest


class SecureChannels:
    """The TLS and SASL channels of one processor, with the functions that report on them and close them."""

    def __init__(
        self,
        turn: ProcessorTurn,
        config: BrokerConfig,
        counters: CounterPage,
        log: logging.Logger,
        now_ns: Callable[[], int],
    ) -> None:
        self.turn = turn
        self.native = TlsSaslTurn(turn)
        self.counters = counters
        self.log = log
        self.now_ns = now_ns
        self.peers: dict[int, TlsSaslChannel] = {}
        self.logins = Logins(0, 0)
        # Channels that had their share of this turn.
        self.had_share: list[int] = []
        self.notices = LimitNotices(log)
        self.audit = audit_of(config)

    # ---- reports

    def session_of(self, peer: TlsSaslChannel) -> Connection:
        return self.turn.sessions.of(peer.channel, peer.connection)

    def name_of(self, peer: TlsSaslChannel, session: Connection | None = None) -> str:
        """Return the connection's id and listener for a log line."""
        return f"{(session or self.session_of(peer)).connection_id} on {peer.security.name}"

    def record_login(self, peer: TlsSaslChannel, how: str) -> None:
        session = self.session_of(peer)
        how = f"{how} ({session.tls_version})" if session.tls_version else how
        self.audit.tell(
            self.now_ns() // 1_000_000,
            Event(Kind.LOGIN, session.principal, session.client_host, peer.security.name, how),
        )

    def record_refusal(self, session: Connection, peer: TlsSaslChannel, why: str) -> None:
        """Record a refused login in the audit log, with the user name that the client has claimed, if any."""
        claimed = peer.sasl.claimed if peer.sasl is not None else ""
        names = Names.of([(claimed,)]) if claimed else Names()
        self.audit.tell(
            self.now_ns() // 1_000_000,
            Event(Kind.REFUSED_LOGIN, "", session.client_host, peer.security.name, "login", names, why=why),
        )

    # ---- closing

    def close(self, peer: TlsSaslChannel, reason: CloseReason, detail: int = 0) -> None:
        self.native.close(peer.channel, reason, detail)

    def end_login(self, peer: TlsSaslChannel, reason: CloseReason) -> None:
        """Close an unauthenticated connection because of its age or because there are too many."""
        self.counters.add(Counter.COUNT_AUTHENTICATIONS_FAILED)
        peer.ended = True
        limit = _LOGIN_LIMITS[reason]
        self.record_refusal(self.session_of(peer), peer, f"its login was ended by {limit}")
        self.notices.report(
            self.now_ns() / 1e6,
            logging.INFO,
            peer.security.name,
            limit,
            "connection %s is closed, its client is not authenticated (%s)",
            self.name_of(peer),
            limit,
        )
        self.close(peer, reason)

    def close_broken(self, peer: TlsSaslChannel, error: OSError) -> None:
        """Close an established connection on which a system call or OpenSSL failed."""
        if isinstance(error, ssl.SSLError) and not isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            self.log.info("connection %s: TLS failed: %s", self.name_of(peer), reason_of(error))
            self.close(peer, CloseReason.CLOSED_TLS)
        elif isinstance(error, ssl.SSLError):
            self.close(peer, CloseReason.CLOSED_BY_PEER)
        else:
            self.close(peer, CloseReason.CLOSED_RESET, error.errno or 0)

    def close_after_fault(self, peer: TlsSaslChannel, error: Exception) -> None:
        """Close a connection after an error of the processor, not of the client."""
        self.log.error("connection %s: an error of the processor", self.name_of(peer), exc_info=error)
        self.counters.add(Counter.COUNT_ERRORS)
        self.close(peer, CloseReason.CLOSED_FAILED)


def reason_of(error: OSError) -> str:
    """Return the reason of a failure as a text that contains no data of the client."""
    reason = getattr(error, "reason", None)
    return str(reason or error.strerror or type(error).__name__)
