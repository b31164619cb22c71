"""TLS and SASL on a processor's connections: the I/O around the sans-I/O parts.

(Kafka: SslTransportLayer, SaslServerAuthenticator, the authentication half of KafkaChannel and Selector.)

The native turn names the channels that need Python. Until a client is authenticated, Python reads its few
bytes into a small buffer of the connection. Then a plain connection becomes an ordinary one; the bytes of a
TLS connection go through OpenSSL into the turn's blocks and out of its answers (`tls_pipe`). Nothing here
blocks, and each channel gets a bounded share of a turn.
"""

from __future__ import annotations

import heapq
import logging
import socket
import ssl
import time
from collections.abc import Callable
from enum import Enum

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.meters import ClientKind
from mpbroker.ipc.session import ANONYMOUS
from mpbroker.ipc.session import Session as Connection
from mpbroker.network.acceptor.limit_notices import LimitNotices
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.login_pauses import LoginPauses
from mpbroker.network.processor.logins import LARGE_FRAME_BYTES, Logins
from mpbroker.network.processor.tls_pipe import MoreLater, TlsPipe
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.network.processor.turn_tls import TlsSaslTurn
from mpbroker.protocol.api_versions import Served
from mpbroker.security.audit import Event, Kind, Names
from mpbroker.security.audit_log import audit_of
from mpbroker.security.listener import ListenerSecurity, LookUp
from mpbroker.security.sasl import Failure, Offer, SaslServer, Session, State
from mpbroker.security.scram import TokenLookUp, no_tokens
from mpbroker.security.tls import IANA_NAMES, TlsError
from shm.clock import wall_ms
from shm.counters import CounterPage

SIZE_BYTES = 4
# Bytes that one channel may move in a turn, so that no channel starves another.
MOVED_PER_TURN_MAX = 1 << 20
# A handshake costs about a millisecond of signing. Further ones wait a turn, so that open connections go on.
HANDSHAKES_PER_TURN_MAX = 8
# Bound SASL too: channels per turn, and frames of each. A client may pipeline frames that lead nowhere.
TALKS_PER_TURN_MAX = 64
FRAMES_PER_TALK_MAX = 4
# Bytes read at once before authentication: nothing is set aside for a frame size that is only claimed.
RECEIVED_AT_ONCE = 16 << 10
REFRESH_NS = 1_000_000_000
DISCARD_BYTES = 16 << 10


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


class TlsSaslChannel:
    """A connection of a TLS or SASL listener. `sock` is None while the turn owns the descriptor."""

    __slots__ = (
        "begun_ns",
        "channel",
        "cipher",
        "connection",
        "due_ns",
        "ended",
        "frame",
        "listener",
        "out",
        "pipe",
        "renewed_ns",
        "sasl",
        "security",
        "session",
        "sock",
        "stage",
        "wanted",
        "was_answered",
    )

    def __init__(
        self, channel: int, connection: int, listener: int, security: ListenerSecurity, begun_ns: int
    ) -> None:
        self.begun_ns = begun_ns
        self.channel = channel
        self.connection = connection
        self.listener = listener
        self.security = security
        self.sock: socket.socket | None = None
        self.pipe: TlsPipe | None = None
        self.stage = Stage.TALKING
        self.sasl: SaslServer | None = None
        self.session: Session | None = None
        self.frame = bytearray()
        self.wanted = SIZE_BYTES
        self.out = bytearray()
        self.due_ns = 0
        self.ended = False  # closed, and the turn has not said so yet
        self.cipher = -1  # its number in the meters
        self.renewed_ns = 0  # when its re-authentication began
        self.was_answered = False  # our part of the handshake, and so our certificate, was sent

    @property
    def io(self) -> socket.socket | TlsPipe:
        """Return the transport of the SASL exchange."""
        found = self.pipe or self.sock
        assert found is not None
        return found


class TlsSaslChannels:
    """The TLS and SASL connections of a processor; `listeners`: by number, those that are not PLAINTEXT."""

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
        self.turn = turn
        self.native = TlsSaslTurn(turn)
        self.listeners: dict[int, ListenerSecurity] = {}
        self.counters = counters
        self.log = log
        self._served = served
        self._look_up = look_up
        self._look_up_token = look_up_token
        self._logins = Logins(0, 0)
        self._pauses = LoginPauses()
        self._notices = LimitNotices(log)
        self._audit = audit_of(config)
        self.follow(config)
        self._wall_ms = wall_ms
        self._now_ns = now_ns
        self._offers: dict[int, Offer] = {}
        for number, security in listeners.items():
            self.add_listener(number, security)
        self._peers: dict[int, TlsSaslChannel] = {}
        # Connections whose answers are held back, and a heap of when each is due.
        self._held: dict[int, TlsSaslChannel] = {}
        self._due: list[tuple[int, int]] = []
        # Channels that had their share of this turn.
        self._had_enough: list[int] = []
        # Ends of handshakes that were read in this turn.
        self._last_words = 0
        self._next_refresh_ns = 0

    # ---- what the processor calls

    def follow(self, config: BrokerConfig) -> None:
        """Apply the settings that are not a listener's. Each processor has its share of the connections."""
        self.delay_ns = config.connection_failed_authentication_delay_ms * 1_000_000
        self._logins.limit_ns = config.connections_max_login_ms * 1_000_000
        self._pauses.first_ns = self.delay_ns
        # The right password must get in before the connection is closed for other reasons.
        longest_ms = min(
            config.connection_failed_authentication_delay_max_ms, config.connections_max_login_ms // 2
        )
        if config.connections_max_idle_ms >= 0:
            longest_ms = min(longest_ms, config.connections_max_idle_ms // 2)
        self._pauses.longest_ns = longest_ms * 1_000_000
        share = config.max_unauthenticated_connections // config.num_network_threads
        self._logins.connections_max = max(1, share)

    def add_listener(self, number: int, security: ListenerSecurity) -> None:
        self.listeners[number] = security
        if security.uses_sasl:
            self._offers[number] = security.offer(
                self._served, self._look_up, self._wall_ms, self._look_up_token
            )

    def remove_listener(self, number: int) -> None:
        """Forget a listener: it gets no more connections."""
        self.listeners.pop(number, None)
        self._offers.pop(number, None)

    def add(self, fd: int, listener: int, channel: int, connection: int) -> None:
        """Take over a connection that the turn has just registered."""
        security = self.listeners[listener]
        peer = TlsSaslChannel(channel, connection, listener, security, self._now_ns())
        self._peers[connection] = peer
        self.native.begin(channel)
        if (excess := self._logins.add(peer)) is not None:
            self._end_login(excess.connection, CloseReason.CLOSED_LOGIN_EXCESS)
        peer.sock = socket.socket(fileno=fd)
        peer.sock.setblocking(False)
        if security.uses_sasl:
            peer.sasl = SaslServer(self._offers[listener])
        if security.keystore is None:
            return
        peer.stage = Stage.SHAKING
        peer.pipe = TlsPipe(fd, security.keystore.context)

    def serve(self) -> None:
        """Move what can be moved, for every channel that the turn has named."""
        handshakes = talks = self._last_words = 0
        timed = self.native.timed
        for channel, connection, has_answer in self.native.take():
            peer = self._peers.get(connection)
            if peer is None or peer.ended:
                continue
            if peer.stage is Stage.SHAKING:
                handshakes += 1
                if handshakes > HANDSHAKES_PER_TURN_MAX:
                    self.native.later(channel)
                    continue
            elif peer.stage is Stage.TALKING:
                talks += 1
                if talks > TALKS_PER_TURN_MAX:
                    self.native.later(channel)
                    continue
            begun_ns = time.monotonic_ns() if timed else 0
            try:
                self._serve(peer, channel, has_answer)
            except MoreLater:
                self._had_enough.append(channel)
            except OSError as error:
                self._broken(peer, error)
            except Exception:
                self._gone_wrong(peer)
            if timed:
                self.native.spent(channel, connection, time.monotonic_ns() - begun_ns)
        # They come after the channels that had no turn yet.
        for channel in self._had_enough:
            self.native.later(channel)
        self._had_enough.clear()
        self.native.done()

    def closed(self, session: Connection, reason: int) -> None:
        """Close the descriptor of a connection closed by the turn, after TLS's closing alert if possible."""
        self._held.pop(session.connection, None)
        peer = self._peers.pop(session.connection, None)
        if peer is not None:
            self._logins.remove(peer)
            self.turn.meters.client_gone(ClientKind.CLIENT_CIPHER, peer.cipher)
        if peer is None or peer.sock is None:
            return
        sock, peer.sock = peer.sock, None
        if peer.pipe is not None and peer.stage is not Stage.SHAKING:
            peer.pipe.close()
        elif peer.pipe is not None and peer.was_answered and reason == CloseReason.CLOSED_BY_PEER:
            self._hear_last_word(peer.pipe, session, peer)
        sock.close()

    def timeout_ms(self, most_ms: int) -> int:
        """Return how long the turn may sleep, `most_ms` at most."""
        if not self._due:
            return most_ms
        return max(0, min(most_ms, -(-(self._due[0][0] - self._now_ns()) // 1_000_000)))

    def work(self) -> None:
        """Do what is due: answer authentications that were held back, end late ones, load certificates."""
        now_ns = self._now_ns()
        for late in self._logins.overdue(now_ns):
            self._end_login(late.connection, CloseReason.CLOSED_LOGIN_TIMEOUT)
        while self._due and self._due[0][0] <= now_ns:
            due_ns, connection = heapq.heappop(self._due)
            held = self._held.get(connection)
            # Its connection may be closed, or it may have been held again.
            if held is not None and held.due_ns == due_ns:
                self._release(self._held.pop(connection))
        if now_ns >= self._next_refresh_ns:
            self._next_refresh_ns = now_ns + REFRESH_NS
            self._notices.follow(now_ns / 1e6)
            self._audit.follow(now_ns // 1_000_000)
            self._refresh()

    def _refresh(self) -> None:
        for security in self.listeners.values():
            if security.keystore is None:
                continue
            try:
                if security.keystore.refresh():
                    self.log.info("listener %s: new connections get the changed certificates", security.name)
            except TlsError as error:
                self.log.error(
                    "listener %s: the changed certificates cannot be used, the old ones stay: %s",
                    security.name,
                    error,
                )

    # ---- one channel

    def _serve(self, peer: TlsSaslChannel, channel: int, has_answer: bool) -> None:
        if peer.stage is Stage.OPEN and (begun := self.native.renewal(channel)) is not None:
            self._renew(peer, *begun)
            return
        match peer.stage:
            case Stage.OPEN:
                assert peer.pipe is not None
                if has_answer:
                    self.native.send(channel, peer.pipe, MOVED_PER_TURN_MAX)
                self._receive(peer, peer.pipe)
            case Stage.SHAKING:
                self._shake(peer)
            case Stage.TALKING:
                self._talk(peer)
            case Stage.FAILED:
                self._discard(peer)
            case Stage.HELD:
                pass  # what comes is read when the answer has gone out

    def _broken(self, peer: TlsSaslChannel, error: OSError) -> None:
        """Close an established connection on which a system call or OpenSSL failed."""
        if isinstance(error, ssl.SSLError) and not isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            self.log.info("connection %s: TLS failed: %s", self._name(peer), reason_of(error))
            self.native.close(peer.channel, CloseReason.CLOSED_TLS, 0)
        elif isinstance(error, ssl.SSLError):
            self.native.close(peer.channel, CloseReason.CLOSED_BY_PEER, 0)
        else:
            self.native.close(peer.channel, CloseReason.CLOSED_RESET, error.errno or 0)

    def _gone_wrong(self, peer: TlsSaslChannel) -> None:
        """Close a connection after an error of the processor, not of the client."""
        self.log.exception("connection %s: an error of the processor", self._name(peer))
        self.counters.add(Counter.COUNT_ERRORS)
        self.native.close(peer.channel, CloseReason.CLOSED_FAILED, 0)

    def _name(self, peer: TlsSaslChannel) -> str:
        return _name_of(self.turn.sessions.of(peer.channel, peer.connection), peer)

    # ---- TLS

    def _shake(self, peer: TlsSaslChannel) -> None:
        assert peer.pipe is not None
        self.native.active(peer.channel)
        try:
            if not peer.pipe.handshake():
                peer.was_answered = peer.pipe.has_begun
                return
        except ssl.SSLEOFError:
            self.native.close(peer.channel, CloseReason.CLOSED_BY_PEER, 0)
            return
        except ssl.SSLError as error:
            self._failed_handshake(peer, reason_of(error))
            return
        cipher, version = peer.pipe.cipher, peer.pipe.version
        self.turn.set_session(peer.channel, peer.connection, cipher=cipher, tls_version=version)
        peer.cipher = self.turn.meters.client(
            ClientKind.CLIENT_CIPHER, IANA_NAMES.get(cipher, cipher).encode(), version.encode()
        )
        if peer.sasl is not None:
            peer.stage = Stage.TALKING
            self._talk(peer)
            return
        try:
            principal = peer.security.principal(peer.pipe.peer_certificate)
            self.turn.set_session(peer.channel, peer.connection, principal=str(principal))
        except ValueError as error:
            # No rule fits, there is no certificate, or the name is no text that a session can keep.
            self._failed_handshake(peer, str(error))
            return
        self.counters.add(Counter.COUNT_AUTHENTICATIONS)
        if str(principal) != ANONYMOUS:
            self._tell_login(peer, "a certificate")
        self._logins.remove(peer)
        peer.stage = Stage.OPEN
        self.native.opened(peer.channel, False, 0)

    def _failed_handshake(self, peer: TlsSaslChannel, why: str) -> None:
        """Close after a failed handshake. OpenSSL has sent its alert already; nothing is held back."""
        self._tell_failed_handshake(self.turn.sessions.of(peer.channel, peer.connection), peer, why)
        self.native.close(peer.channel, CloseReason.CLOSED_TLS, 0)

    def _hear_last_word(self, pipe: TlsPipe, session: Connection, peer: TlsSaslChannel) -> None:
        """Log the alert of a client that does not trust our certificate: a reset may come with it."""
        if self._last_words >= HANDSHAKES_PER_TURN_MAX:
            return
        self._last_words += 1
        try:
            pipe.handshake()
        except (ssl.SSLEOFError, MoreLater):
            return
        except ssl.SSLError as error:
            self._tell_failed_handshake(session, peer, reason_of(error))
        except OSError:
            return  # a reset without an alert

    def _tell_failed_handshake(self, session: Connection, peer: TlsSaslChannel, why: str) -> None:
        self.counters.add(Counter.COUNT_AUTHENTICATIONS_FAILED)
        self._tell_refused_login(session, peer, why)
        # OpenSSL's text for a first byte that begins no TLS record.
        hint = " (a client without TLS?)" if "wrong version number" in why else ""
        self.log.info("connection %s: failed TLS handshake: %s%s", _name_of(session, peer), why, hint)

    def _receive(self, peer: TlsSaslChannel, pipe: TlsPipe) -> None:
        """Decrypt into the turn's blocks until no more may be read or nothing is left."""
        native, channel = self.native, peer.channel
        moved = 0
        while (room := native.room(channel)) is not None:
            if moved >= MOVED_PER_TURN_MAX or (moved and pipe.had_share):
                self._had_enough.append(channel)
                break
            try:
                n = pipe.recv_into(room[: MOVED_PER_TURN_MAX - moved])
            except BlockingIOError:
                native.nothing(channel)
                break
            except MoreLater:
                self._had_enough.append(channel)
                break
            if n == 0:
                native.ended(channel)
                break
            moved += n
            if not native.received(channel, n):
                break
        # Write TLS's own messages, to a change of keys for example; what does not fit goes with an answer.
        if not pipe.carries_answer:
            pipe.flush()

    # ---- SASL

    def _talk(self, peer: TlsSaslChannel) -> None:
        """Read a few frames and answer each. An answer must be flushed before the next frame is read."""
        self.native.active(peer.channel)
        answered = 0
        while peer.stage is Stage.TALKING and self._flush(peer):
            if peer.sasl is not None and peer.sasl.state is State.COMPLETE:
                self._complete(peer, peer.sasl)
                return
            if answered == FRAMES_PER_TALK_MAX:
                self._had_enough.append(peer.channel)
                return
            frame = self._read_frame(peer)
            if frame is None:
                return
            self._answer(peer, frame)
            answered += 1

    def _flush(self, peer: TlsSaslChannel) -> bool:
        """Write what is left; return whether all is written."""
        while peer.out:
            try:
                del peer.out[: peer.io.send(peer.out)]
            except BlockingIOError:
                return False
        return peer.pipe is None or peer.pipe.flush()

    def _read_frame(self, peer: TlsSaslChannel) -> bytes | None:
        """Read one frame and no byte behind it, which may be for the turn. None: not whole yet, or closed."""
        while True:
            missing = peer.wanted - len(peer.frame)
            if missing:
                try:
                    data = peer.io.recv(min(missing, RECEIVED_AT_ONCE))
                except BlockingIOError:
                    return None
                if not data:
                    self.native.close(peer.channel, CloseReason.CLOSED_BY_PEER, len(peer.frame))
                    return None
                peer.frame += data
                if (excess := self._logins.received(peer, len(data))) is not None:
                    self._end_login(excess.connection, CloseReason.CLOSED_LOGIN_EXCESS)
                    if excess is peer:
                        return None
                continue
            if peer.wanted > SIZE_BYTES:
                break
            size = int.from_bytes(peer.frame[:SIZE_BYTES], signed=True)
            if not 0 <= size <= self._frame_bytes_max(peer):
                self.native.close(peer.channel, CloseReason.CLOSED_SASL_FRAME_SIZE, size)
                return None
            if size == 0:
                break
            peer.wanted = SIZE_BYTES + size
        frame = bytes(peer.frame[SIZE_BYTES:])
        self._logins.frame_taken(peer)
        peer.frame.clear()
        peer.wanted = SIZE_BYTES
        return frame

    def _frame_bytes_max(self, peer: TlsSaslChannel) -> int:
        """Return how large the next frame may be; tokens alone may be large."""
        most = peer.security.settings.sasl_server_max_receive_size
        has_token = peer.sasl is not None and peer.sasl.state is State.AUTHENTICATE
        return most if has_token else min(most, LARGE_FRAME_BYTES)

    def _answer(self, peer: TlsSaslChannel, frame: bytes) -> None:
        assert peer.sasl is not None
        try:
            peer.out += peer.sasl.receive(frame)
        except Failure as failure:
            if peer.sasl.has_chosen:
                address = self._address(peer)
                held_ns = self._pauses.pause_ns(address, peer.sasl.claimed, self._now_ns())
                self._pauses.failed(address, peer.sasl.claimed, self._now_ns())
                self._fail(peer, str(failure), failure.answer, held_ns)
            else:
                self._fail(peer, str(failure), failure.answer)
            return
        if peer.sasl.state is State.COMPLETE:
            pause_ns = self._pauses.pause_ns(self._address(peer), peer.sasl.claimed, self._now_ns())
            if pause_ns:
                # It has proved who it is: strangers must not push it out meanwhile.
                self._logins.remove(peer)
                self._hold(peer, Stage.HELD, pause_ns)

    def _address(self, peer: TlsSaslChannel) -> str:
        return self.turn.sessions.of(peer.channel, peer.connection).client_host

    def _complete(self, peer: TlsSaslChannel, sasl: SaslServer) -> None:
        """Open the connection: the last token is written."""
        session = sasl.session
        assert session is not None
        expires_ns = 0
        if session.expires_ms is not None:
            expires_ns = self._now_ns() + max(0, session.expires_ms - self._wall_ms()) * 1_000_000
        try:
            self.turn.set_session(
                peer.channel,
                peer.connection,
                principal=str(session.principal),
                mechanism=session.mechanism,
                expires_ns=expires_ns,
                token_authenticated=session.is_by_token,
            )
        except ValueError as error:
            # The principal is too long, or no text that a session can keep.
            self._fail(peer, str(error), b"")
            return
        if sasl.software is not None:
            self.native.software(peer.channel, *(text.encode() for text in sasl.software))
        again = Counter.COUNT_REAUTHENTICATIONS if sasl.renews else Counter.COUNT_AUTHENTICATIONS
        self.counters.add(again)
        if sasl.renews:
            self.counters.record(Histogram.TIME_REAUTHENTICATION_NS, self._now_ns() - peer.renewed_ns)
        if expires_ns and not sasl.renews and not sasl.tells_lifetime:
            self.counters.add(Counter.COUNT_AUTHENTICATIONS_NO_REAUTH)
        how = f"{session.mechanism} with a delegation token" if session.is_by_token else session.mechanism
        self._tell_login(peer, f"{how}, again" if sasl.renews else how)
        self._logins.remove(peer)
        peer.session, peer.sasl, peer.stage = session, None, Stage.OPEN
        if peer.security.uses_tls:
            self.native.opened(peer.channel, False, expires_ns)
            return
        assert peer.sock is not None
        peer.sock.detach()
        peer.sock = None
        self.native.opened(peer.channel, True, expires_ns)
        if not expires_ns:
            # It is an ordinary connection now.
            del self._peers[peer.connection]

    def _renew(self, peer: TlsSaslChannel, fd: int, frame: bytes, behind: bytes) -> None:
        """Begin to authenticate an open connection again, with its SaslHandshake (KIP-368)."""
        assert peer.session is not None
        if peer.sock is None:
            peer.sock = socket.socket(fileno=fd)
            peer.sock.setblocking(False)
        peer.sasl = SaslServer(self._offers[peer.listener], peer.session)
        peer.stage = Stage.TALKING
        peer.renewed_ns = self._now_ns()
        if behind:
            self._fail(peer, "bytes behind a SaslHandshake, which nothing may follow before its answer", b"")
            return
        self._answer(peer, frame)
        self._talk(peer)

    # ---- the audit log

    def _tell_login(self, peer: TlsSaslChannel, how: str) -> None:
        session = self.turn.sessions.of(peer.channel, peer.connection)
        how = f"{how} ({session.tls_version})" if session.tls_version else how
        self._audit.tell(
            self._now_ns() // 1_000_000,
            Event(Kind.LOGIN, session.principal, session.client_host, peer.security.name, how),
        )

    def _tell_refused_login(self, session: Connection, peer: TlsSaslChannel, why: str) -> None:
        """Tell that a client is not let in. Whoever it claims to be may be somebody else."""
        claimed = peer.sasl.claimed if peer.sasl is not None else ""
        self._audit.tell(
            self._now_ns() // 1_000_000,
            Event(
                Kind.REFUSED_LOGIN,
                "",
                session.client_host,
                peer.security.name,
                "login",
                Names.of([(claimed,)]) if claimed else Names(),
                why=why,
            ),
        )

    def close(self) -> None:
        """Sum up what the audit log was not told, before the process ends."""
        self._audit.close()

    # ---- failures

    def _end_login(self, connection: int, reason: CloseReason) -> None:
        """Close a connection whose client has not logged in: it took too long, or there are too many."""
        peer = self._peers[connection]
        self.counters.add(Counter.COUNT_AUTHENTICATIONS_FAILED)
        self._held.pop(connection, None)
        peer.ended = True
        limit = _LOGIN_LIMITS[reason]
        session = self.turn.sessions.of(peer.channel, peer.connection)
        self._tell_refused_login(session, peer, f"its login was ended by {limit}")
        self._notices.tell(
            self._now_ns() / 1e6,
            logging.INFO,
            peer.security.name,
            limit,
            "connection %s is closed, its client is not authenticated (%s)",
            self._name(peer),
            limit,
        )
        self.native.close(peer.channel, reason, 0)

    def _fail(self, peer: TlsSaslChannel, why: str, answer: bytes, pause_ns: int = 0) -> None:
        """Hold back the answer and the close after a failure, to slow down guessing of passwords.

        `pause_ns`: what a right password would have had to wait, too.
        """
        renews = peer.sasl is not None and peer.sasl.renews
        failed = Counter.COUNT_REAUTHENTICATIONS_FAILED if renews else Counter.COUNT_AUTHENTICATIONS_FAILED
        self.counters.add(failed)
        what = "re-authentication" if renews else "authentication"
        session = self.turn.sessions.of(peer.channel, peer.connection)
        self.log.info("connection %s: failed %s: %s", _name_of(session, peer), what, why)
        self._tell_refused_login(session, peer, why)
        peer.out[:] = answer
        peer.stage = Stage.FAILED
        if not self.delay_ns:
            self._give_up(peer)
            return
        self._hold(peer, Stage.FAILED, max(self.delay_ns, pause_ns))

    def _hold(self, peer: TlsSaslChannel, stage: Stage, pause_ns: int) -> None:
        """Hold back the answer to an authentication."""
        peer.stage = stage
        peer.due_ns = self._now_ns() + pause_ns
        self._held[peer.connection] = peer
        heapq.heappush(self._due, (peer.due_ns, peer.connection))

    def _release(self, peer: TlsSaslChannel) -> None:
        """Send an answer that was held back: the last one, or that of a success."""
        if peer.stage is Stage.FAILED:
            self._give_up(peer)
            return
        peer.stage = Stage.TALKING
        try:
            self._talk(peer)
        except MoreLater:
            self.native.later(peer.channel)
        except OSError as error:
            self._broken(peer, error)
        except Exception:
            self._gone_wrong(peer)

    def _give_up(self, peer: TlsSaslChannel) -> None:
        """Try once to write the held answer, then close."""
        try:
            self._flush(peer)
        except OSError as error:
            self.log.debug("connection %s: the client did not wait: %s", self._name(peer), reason_of(error))
        self.native.close(peer.channel, CloseReason.CLOSED_AUTHENTICATION, 0)

    def _discard(self, peer: TlsSaslChannel) -> None:
        """Read and ignore what comes while an answer is held back; close at the end of the stream."""
        for _ in range(MOVED_PER_TURN_MAX // DISCARD_BYTES):
            try:
                data = peer.io.recv(DISCARD_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.native.close(peer.channel, CloseReason.CLOSED_BY_PEER, 0)
                return


def _name_of(session: Connection, peer: TlsSaslChannel) -> str:
    """Return the name of a connection in the processor's logs, with its listener."""
    return f"{session.connection_id} on {peer.security.name}"


def reason_of(error: OSError) -> str:
    """Return what went wrong, without a byte of what was sent."""
    reason = getattr(error, "reason", None)
    return str(reason or error.strerror or type(error).__name__)
