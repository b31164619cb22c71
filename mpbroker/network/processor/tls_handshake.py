"""The TLS stages of a connection: handshake, then decrypting of requests (Kafka: SslTransportLayer)."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import ClientKind
from mpbroker.ipc.session import ANONYMOUS
from mpbroker.ipc.session import Session as Connection
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.secure_channel import (
    MOVED_PER_TURN_MAX,
    SecureChannels,
    Stage,
    TlsSaslChannel,
    reason_of,
)
from mpbroker.network.processor.tls_pipe import MoreLater, TlsPipe
from mpbroker.security.tls import IANA_NAMES

# A handshake costs about a millisecond of signing. Further ones wait a turn, so open connections proceed.
HANDSHAKES_PER_TURN_MAX = 8


class TlsHandshakes:
    """TLS handshakes. `talk` begins the SASL exchange after the handshake of a SASL_SSL connection."""

    def __init__(self, channels: SecureChannels, talk: Callable[[TlsSaslChannel], None]) -> None:
        self._channels = channels
        self._talk = talk
        self.last_alerts = 0  # read in this turn, of connections that are closed

    def shake(self, peer: TlsSaslChannel) -> None:
        assert peer.pipe is not None
        channels, turn = self._channels, self._channels.turn
        channels.native.active(peer.channel)
        try:
            if not peer.pipe.handshake():
                peer.was_answered = peer.pipe.has_begun
                return
        except ssl.SSLEOFError:
            channels.close(peer, CloseReason.CLOSED_BY_PEER)
            return
        except ssl.SSLError as error:
            self._fail(peer, reason_of(error))
            return
        cipher, version = peer.pipe.cipher, peer.pipe.version
        turn.set_session(peer.channel, peer.connection, cipher=cipher, tls_version=version)
        peer.cipher = turn.meters.client(
            ClientKind.CLIENT_CIPHER, IANA_NAMES.get(cipher, cipher).encode(), version.encode()
        )
        if peer.sasl is not None:
            peer.stage = Stage.TALKING
            self._talk(peer)
            return
        try:
            principal = peer.security.principal(peer.pipe.peer_certificate)
            turn.set_session(peer.channel, peer.connection, principal=str(principal))
        except ValueError as error:
            # No rule fits, the certificate is missing, or a session cannot keep the name.
            self._fail(peer, str(error))
            return
        channels.counters.add(Counter.COUNT_AUTHENTICATIONS)
        if str(principal) != ANONYMOUS:
            channels.record_login(peer, "a certificate")
        channels.logins.remove(peer)
        peer.stage = Stage.OPEN
        channels.native.opened(peer.channel, False, 0)

    def _fail(self, peer: TlsSaslChannel, why: str) -> None:
        """Report a failed handshake and close the connection at once. OpenSSL has already sent its alert."""
        self._report_failure(self._channels.session_of(peer), peer, why)
        self._channels.close(peer, CloseReason.CLOSED_TLS)

    def read_last_alert(self, pipe: TlsPipe, session: Connection, peer: TlsSaslChannel) -> None:
        """Log the TLS alert, if any, of a client that has closed, such as a refusal of our certificate."""
        if self.last_alerts >= HANDSHAKES_PER_TURN_MAX:
            return
        self.last_alerts += 1
        try:
            pipe.handshake()
        except (ssl.SSLEOFError, MoreLater):
            return
        except ssl.SSLError as error:
            self._report_failure(session, peer, reason_of(error))
        except OSError:
            return  # a reset without an alert

    def _report_failure(self, session: Connection, peer: TlsSaslChannel, why: str) -> None:
        channels = self._channels
        channels.counters.add(Counter.COUNT_AUTHENTICATIONS_FAILED)
        channels.record_refusal(session, peer, why)
        # OpenSSL's text for a first byte that begins no TLS record.
        hint = " (a client without TLS?)" if "wrong version number" in why else ""
        name = channels.name_of(peer, session)
        channels.log.info("connection %s: failed TLS handshake: %s%s", name, why, hint)

    def receive(self, peer: TlsSaslChannel) -> None:
        """Decrypt requests into the turn's blocks, until the turn has no room or no bytes are left."""
        assert peer.pipe is not None
        native, channel, pipe = self._channels.native, peer.channel, peer.pipe
        moved = 0
        while (room := native.room(channel)) is not None:
            if moved >= MOVED_PER_TURN_MAX or (moved and pipe.had_share):
                self._channels.had_share.append(channel)
                break
            try:
                n = pipe.recv_into(room[: MOVED_PER_TURN_MAX - moved])
            except BlockingIOError:
                native.nothing(channel)
                break
            except MoreLater:
                self._channels.had_share.append(channel)
                break
            if n == 0:
                native.ended(channel)
                break
            moved += n
            if not native.received(channel, n):
                break
        # Write TLS's own messages, for example of a key update; bytes that do not fit go with an answer.
        if not pipe.carries_answer:
            pipe.flush()
