"""TLS and SASL on a processor's connections: chooses the stage that serves a channel (Kafka: Selector).

The native turn names the channels that need Python. Until a client is authenticated, Python reads its few
bytes into a small buffer of the connection (`tls_handshake`, `sasl_exchange`). Then the turn alone serves a
connection without TLS. For a connection with TLS, Python decrypts into the turn's blocks and encrypts answers
(`tls_pipe`). No call blocks, and each channel gets a bounded share of a turn.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.meters import ClientKind
from mpbroker.ipc.session import Session as Connection
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.sasl_exchange import SaslExchanges
from mpbroker.network.processor.secure_channel import (
    MOVED_PER_TURN_MAX,
    SecureChannels,
    Stage,
    TlsSaslChannel,
)
from mpbroker.network.processor.tls_handshake import HANDSHAKES_PER_TURN_MAX, TlsHandshakes
from mpbroker.network.processor.tls_pipe import MoreLater, TlsPipe
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.protocol.api_versions import Served
from mpbroker.security.listener import ListenerSecurity, LookUp
from mpbroker.security.sasl import SaslServer
from mpbroker.security.scram import TokenLookUp, no_tokens
from mpbroker.security.tls import TlsError
from shm.clock import wall_ms
from shm.counters import CounterPage

# SASL exchanges in a turn, as HANDSHAKES_PER_TURN_MAX.
TALKS_PER_TURN_MAX = 64
REFRESH_NS = 1_000_000_000


class TlsSaslChannels:
    """The TLS and SASL connections of a processor. `listeners` has the TLS and SASL listeners by number."""

    def __init__(
        self,
        turn: ProcessorTurn,
        config: BrokerConfig,
        listeners: dict[int, ListenerSecurity],
        served: tuple[Served, ...],
        look_up: LookUp,
        counters: CounterPage,
        log: logging.Logger,
        *,
        look_up_token: TokenLookUp = no_tokens,
        wall_ms: Callable[[], int] = wall_ms,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.listeners: dict[int, ListenerSecurity] = {}
        self.channels = channels = SecureChannels(turn, config, counters, log, now_ns)
        self.sasl = SaslExchanges(channels, wall_ms)
        self.tls = TlsHandshakes(channels, self.sasl.talk)
        self.stages: dict[Stage, Callable[[TlsSaslChannel], None]] = {
            Stage.SHAKING: self.tls.shake,
            Stage.TALKING: self.sasl.talk,
            Stage.OPEN: self.tls.receive,
            Stage.FAILED: self.sasl.discard,
            Stage.HELD: lambda _: None,  # its bytes are read after the answer was sent
        }
        self._served = served
        self._look_up = look_up
        self._look_up_token = look_up_token
        self._next_refresh_ns = 0
        self.follow(config)
        for number, security in listeners.items():
            self.add_listener(number, security)

    def follow(self, config: BrokerConfig) -> None:
        """Apply the settings of the broker. Processors share max.unauthenticated.connections equally."""
        self.sasl.follow(config)
        logins = self.channels.logins
        logins.limit_ns = config.connections_max_login_ms * 1_000_000
        share = config.max_unauthenticated_connections // config.num_network_threads
        logins.connections_max = max(1, share)

    def add_listener(self, number: int, security: ListenerSecurity) -> None:
        self.listeners[number] = security
        if security.uses_sasl:
            self.sasl.offers[number] = security.offer(
                self._served, self._look_up, self.sasl.wall_ms, self._look_up_token
            )

    def remove_listener(self, number: int) -> None:
        """Forget a listener, which gets no more connections."""
        self.listeners.pop(number, None)
        self.sasl.offers.pop(number, None)

    def add(self, fd: int, listener: int, channel: int, connection: int) -> None:
        """Add a connection that the turn has just registered."""
        security = self.listeners[listener]
        peer = TlsSaslChannel(channel, connection, listener, security, self.channels.now_ns())
        self.channels.peers[connection] = peer
        self.channels.native.begin(channel)
        if (excess := self.channels.logins.add(peer)) is not None:
            self.channels.end_login(excess, CloseReason.CLOSED_LOGIN_EXCESS)
        peer.sock = socket.socket(fileno=fd)
        peer.sock.setblocking(False)
        if security.uses_sasl:
            peer.sasl = SaslServer(self.sasl.offers[listener])
        if security.keystore is None:
            return
        peer.stage = Stage.SHAKING
        peer.pipe = TlsPipe(fd, security.keystore.context)

    def serve(self) -> None:
        """Serve every channel that the turn has marked for Python, each for a bounded share of the turn."""
        channels, native = self.channels, self.channels.native
        shares = {Stage.SHAKING: HANDSHAKES_PER_TURN_MAX, Stage.TALKING: TALKS_PER_TURN_MAX}
        self.tls.last_alerts = 0
        timed = native.timed
        for channel, connection, has_answer in native.take():
            peer = channels.peers.get(connection)
            if peer is None or peer.ended:
                continue
            if peer.stage in shares:
                shares[peer.stage] -= 1
                if shares[peer.stage] < 0:
                    native.later(channel)
                    continue
            begun_ns = time.monotonic_ns() if timed else 0
            try:
                self._serve(peer, has_answer)
            except MoreLater:
                channels.had_share.append(channel)
            except OSError as error:
                channels.close_broken(peer, error)
            except Exception as error:  # noqa: BLE001 - a bug ends the connection, not the processor
                channels.close_after_fault(peer, error)
            if timed:
                native.spent(channel, connection, time.monotonic_ns() - begun_ns)
        # They come after the channels that had no turn yet.
        for channel in channels.had_share:
            native.later(channel)
        channels.had_share.clear()
        native.done()

    def _serve(self, peer: TlsSaslChannel, has_answer: bool) -> None:
        if peer.stage is Stage.OPEN:
            if (begun := self.channels.native.renewal(peer.channel)) is not None:
                self.sasl.renew(peer, *begun)
                return
            assert peer.pipe is not None
            if has_answer:
                self.channels.native.send(peer.channel, peer.pipe, MOVED_PER_TURN_MAX)
        self.stages[peer.stage](peer)

    def closed(self, session: Connection, reason: int) -> None:
        """Send TLS's closing alert, then close the socket; the turn has closed the connection's channel.

        At the end of a lease no alert is sent, because the rest of an answer would go before it.
        """
        self.sasl.held.pop(session.connection, None)
        peer = self.channels.peers.pop(session.connection, None)
        if peer is not None:
            self.channels.logins.remove(peer)
            self.channels.turn.meters.client_gone(ClientKind.CLIENT_CIPHER, peer.cipher)
        if peer is None or peer.sock is None:
            return
        sock, peer.sock = peer.sock, None
        if peer.pipe is not None and peer.stage is not Stage.SHAKING:
            if reason != CloseReason.CLOSED_LEASE:
                peer.pipe.close()
        elif peer.pipe is not None and peer.was_answered and reason == CloseReason.CLOSED_BY_PEER:
            self.tls.read_last_alert(peer.pipe, session, peer)
        sock.close()

    def timeout_ms(self, most_ms: int) -> int:
        """Return how many ms the turn may sleep until an answer is due, `most_ms` at most."""
        if (due_ns := self.sasl.next_due_ns()) is None:
            return most_ms
        return max(0, min(most_ms, -(-(due_ns - self.channels.now_ns()) // 1_000_000)))

    def work(self) -> None:
        """End logins that take too long, send held answers that are due, and load changed certificates."""
        now_ns = self.channels.now_ns()
        for late in self.channels.logins.overdue(now_ns):
            self.channels.end_login(late, CloseReason.CLOSED_LOGIN_TIMEOUT)
        self.sasl.release_due(now_ns)
        if now_ns >= self._next_refresh_ns:
            self._next_refresh_ns = now_ns + REFRESH_NS
            self.channels.notices.follow(now_ns / 1e6)
            self.channels.audit.follow(now_ns // 1_000_000)
            self._refresh()

    def _refresh(self) -> None:
        log = self.channels.log
        for security in self.listeners.values():
            if security.keystore is None:
                continue
            try:
                if security.keystore.refresh():
                    log.info("listener %s: new connections get the changed certificates", security.name)
            except TlsError as error:
                text = "listener %s: the changed certificates cannot be used, the old ones stay: %s"
                log.error(text, security.name, error)

    def close(self) -> None:
        """Log how many audit events were suppressed so far. Call it before the process ends."""
        self.channels.audit.close()
