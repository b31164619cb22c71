"""The SASL stages of a connection (Kafka: SaslServerAuthenticator, KafkaChannel's authentication)."""

from __future__ import annotations

import heapq
import socket
from collections.abc import Callable

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.login_pauses import LoginPauses
from mpbroker.network.processor.secure_channel import (
    LARGE_FRAME_BYTES,
    MOVED_PER_TURN_MAX,
    SIZE_BYTES,
    SecureChannels,
    Stage,
    TlsSaslChannel,
    reason_of,
)
from mpbroker.network.processor.tls_pipe import MoreLater
from mpbroker.security.sasl import Failure, Offer, SaslServer, State

# Frames of a channel in a turn: a client may pipeline frames that never end its login.
FRAMES_PER_TALK_MAX = 4
# Bytes read at once before authentication: no memory is reserved for a frame size that is only claimed.
RECEIVED_AT_ONCE = 16 << 10
DISCARD_BYTES = 16 << 10


class SaslExchanges:
    """The SASL exchanges of a processor's connections. `offers`: offered mechanisms by listener number."""

    def __init__(self, channels: SecureChannels, wall_ms: Callable[[], int]) -> None:
        self.offers: dict[int, Offer] = {}
        self.held: dict[int, TlsSaslChannel] = {}
        self.wall_ms = wall_ms
        self._channels = channels
        self._pauses = LoginPauses()
        # When each answer that is held back is due, and its connection.
        self._due: list[tuple[int, int]] = []

    def follow(self, config: BrokerConfig) -> None:
        self.delay_ns = config.connection_failed_authentication_delay_ms * 1_000_000
        self._pauses.first_ns = self.delay_ns
        # The right password must get in before the connection is closed for other reasons.
        longest_ms = min(
            config.connection_failed_authentication_delay_max_ms, config.connections_max_login_ms // 2
        )
        if config.connections_max_idle_ms >= 0:
            longest_ms = min(longest_ms, config.connections_max_idle_ms // 2)
        self._pauses.longest_ns = longest_ms * 1_000_000

    # ---- frames

    def talk(self, peer: TlsSaslChannel) -> None:
        """Read and answer a few frames. The next frame is read when the answer to the last one is written."""
        channels = self._channels
        channels.native.active(peer.channel)
        answered = 0
        while peer.stage is Stage.TALKING and self._flush(peer):
            if peer.sasl is not None and peer.sasl.state is State.COMPLETE:
                self._complete(peer, peer.sasl)
                return
            if answered == FRAMES_PER_TALK_MAX:
                channels.had_share.append(peer.channel)
                return
            frame = self._read_frame(peer)
            if frame is None:
                return
            self._answer(peer, frame)
            answered += 1

    def _flush(self, peer: TlsSaslChannel) -> bool:
        """Write the bytes of the answer that remain; return whether all are written."""
        while peer.out:
            try:
                del peer.out[: peer.io.send(peer.out)]
            except BlockingIOError:
                return False
        return peer.pipe is None or peer.pipe.flush()

    def _read_frame(self, peer: TlsSaslChannel) -> bytes | None:
        """Read one frame, and leave the bytes after it unread, since the native turn may have to read them.

        Return None if the frame is incomplete or the connection was closed.
        """
        channels, logins = self._channels, self._channels.logins
        while True:
            missing = peer.wanted - len(peer.frame)
            if missing:
                try:
                    data = peer.io.recv(min(missing, RECEIVED_AT_ONCE))
                except BlockingIOError:
                    return None
                if not data:
                    channels.close(peer, CloseReason.CLOSED_BY_PEER, len(peer.frame))
                    return None
                peer.frame += data
                if (excess := logins.received(peer, len(data))) is not None:
                    channels.end_login(excess, CloseReason.CLOSED_LOGIN_EXCESS)
                    if excess is peer:
                        return None
                continue
            if peer.wanted > SIZE_BYTES:
                break
            size = int.from_bytes(peer.frame[:SIZE_BYTES], signed=True)
            if not 0 <= size <= _frame_bytes_max(peer):
                channels.close(peer, CloseReason.CLOSED_SASL_FRAME_SIZE, size)
                return None
            if size == 0:
                break
            peer.wanted = SIZE_BYTES + size
        frame = bytes(peer.frame[SIZE_BYTES:])
        logins.frame_taken(peer)
        peer.frame.clear()
        peer.wanted = SIZE_BYTES
        return frame

    def _answer(self, peer: TlsSaslChannel, frame: bytes) -> None:
        assert peer.sasl is not None
        now_ns = self._channels.now_ns()
        try:
            peer.out += peer.sasl.receive(frame)
        except Failure as failure:
            pause_ns = 0
            if peer.sasl.has_chosen:
                pause_ns = self._pause_ns(peer, peer.sasl)
                address = self._channels.session_of(peer).client_host
                self._pauses.failed(address, peer.sasl.claimed, now_ns)
            self._fail(peer, str(failure), failure.answer, pause_ns)
            return
        if peer.sasl.state is State.COMPLETE and (pause_ns := self._pause_ns(peer, peer.sasl)):
            # It is authenticated: unauthenticated connections must not displace it meanwhile.
            self._channels.logins.remove(peer)
            self._hold(peer, Stage.HELD, pause_ns)

    def _pause_ns(self, peer: TlsSaslChannel, sasl: SaslServer) -> int:
        channels = self._channels
        return self._pauses.pause_ns(channels.session_of(peer).client_host, sasl.claimed, channels.now_ns())

    def _complete(self, peer: TlsSaslChannel, sasl: SaslServer) -> None:
        """Let an authenticated client send requests. Call this when its last SASL token is written."""
        channels, session = self._channels, sasl.session
        assert session is not None
        expires_ns = 0
        if session.expires_ms is not None:
            expires_ns = channels.now_ns() + max(0, session.expires_ms - self.wall_ms()) * 1_000_000
        try:
            channels.turn.set_session(
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
            channels.native.software(peer.channel, *(text.encode() for text in sasl.software))
        counters = channels.counters
        counters.add(Counter.COUNT_REAUTHENTICATIONS if sasl.renews else Counter.COUNT_AUTHENTICATIONS)
        if sasl.renews:
            counters.record(Histogram.TIME_REAUTHENTICATION_NS, channels.now_ns() - peer.renewed_ns)
        if expires_ns and not sasl.renews and not sasl.tells_lifetime:
            counters.add(Counter.COUNT_AUTHENTICATIONS_NO_REAUTH)
        how = f"{session.mechanism} with a delegation token" if session.is_by_token else session.mechanism
        channels.record_login(peer, f"{how}, again" if sasl.renews else how)
        channels.logins.remove(peer)
        peer.session, peer.sasl, peer.stage = session, None, Stage.OPEN
        if peer.security.uses_tls:
            channels.native.opened(peer.channel, False, expires_ns)
            return
        assert peer.sock is not None
        peer.sock.detach()
        peer.sock = None
        channels.native.opened(peer.channel, True, expires_ns)
        if not expires_ns:
            # It is an ordinary connection now.
            del channels.peers[peer.connection]

    def renew(self, peer: TlsSaslChannel, fd: int, frame: bytes, after: bytes) -> None:
        """Begin to re-authenticate an open connection (KIP-368), which has sent the SaslHandshake `frame`.

        The re-authentication fails if bytes came `after` the frame.
        """
        assert peer.session is not None
        if peer.sock is None:
            peer.sock = socket.socket(fileno=fd)
            peer.sock.setblocking(False)
        peer.sasl = SaslServer(self.offers[peer.listener], peer.session)
        peer.stage = Stage.TALKING
        peer.renewed_ns = self._channels.now_ns()
        if after:
            self._fail(peer, "bytes after a SaslHandshake, before its response", b"")
            return
        self._answer(peer, frame)
        self.talk(peer)

    # ---- failures, and answers that are held back

    def _fail(self, peer: TlsSaslChannel, why: str, answer: bytes, pause_ns: int = 0) -> None:
        """Hold back the answer and the close after a failure, to slow down guessing of passwords.

        `pause_ns` is the pause that an answer to the right password would have had.
        """
        channels = self._channels
        renews = peer.sasl is not None and peer.sasl.renews
        failed = Counter.COUNT_REAUTHENTICATIONS_FAILED if renews else Counter.COUNT_AUTHENTICATIONS_FAILED
        channels.counters.add(failed)
        what = "re-authentication" if renews else "authentication"
        channels.log.info("connection %s: failed %s: %s", channels.name_of(peer), what, why)
        channels.record_refusal(channels.session_of(peer), peer, why)
        peer.out[:] = answer
        peer.stage = Stage.FAILED
        if not self.delay_ns:
            self._give_up(peer)
            return
        self._hold(peer, Stage.FAILED, max(self.delay_ns, pause_ns))

    def _hold(self, peer: TlsSaslChannel, stage: Stage, pause_ns: int) -> None:
        """Hold back the answer to an authentication for `pause_ns`."""
        peer.stage = stage
        peer.due_ns = self._channels.now_ns() + pause_ns
        self.held[peer.connection] = peer
        heapq.heappush(self._due, (peer.due_ns, peer.connection))

    def next_due_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def release_due(self, now_ns: int) -> None:
        while self._due and self._due[0][0] <= now_ns:
            due_ns, connection = heapq.heappop(self._due)
            peer = self.held.get(connection)
            # Its connection may be closed, or it may have been held again.
            if peer is not None and peer.due_ns == due_ns:
                del self.held[connection]
                if not peer.ended:
                    self._release(peer)

    def _release(self, peer: TlsSaslChannel) -> None:
        if peer.stage is Stage.FAILED:
            self._give_up(peer)
            return
        peer.stage = Stage.TALKING
        try:
            self.talk(peer)
        except MoreLater:
            self._channels.native.later(peer.channel)
        except OSError as error:
            self._channels.close_broken(peer, error)
        except Exception as error:  # noqa: BLE001 - a bug ends the connection, not the processor
            self._channels.close_after_fault(peer, error)

    def _give_up(self, peer: TlsSaslChannel) -> None:
        """Try once to write the answer that was held back, and close the connection."""
        channels = self._channels
        try:
            self._flush(peer)
        except OSError as error:
            name = channels.name_of(peer)
            channels.log.debug("connection %s: the client did not wait: %s", name, reason_of(error))
        channels.close(peer, CloseReason.CLOSED_AUTHENTICATION)

    def discard(self, peer: TlsSaslChannel) -> None:
        """Read and ignore bytes that come while an answer is held back. Close at the end of the stream."""
        for _ in range(MOVED_PER_TURN_MAX // DISCARD_BYTES):
            try:
                data = peer.io.recv(DISCARD_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._channels.close(peer, CloseReason.CLOSED_BY_PEER)
                return


def _frame_bytes_max(peer: TlsSaslChannel) -> int:
    """Return the largest size in bytes that the next frame may have. Only SASL tokens may be large."""
    most = peer.security.settings.sasl_server_max_receive_size
    has_token = peer.sasl is not None and peer.sasl.state is State.AUTHENTICATE
    return most if has_token else min(most, LARGE_FRAME_BYTES)
