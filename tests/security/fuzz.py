"""Damaged bytes for every layer in front of a handler, over real sockets: frames and headers, TLS, SASL.

python -m tests.security.fuzz [--inputs N] [--seed S]

Afterwards the broker must be as it was: the same processes, no more descriptors, no request memory in use, no
connection counted, and it must still serve who behaves.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.scram import ScramClient, ScramType
from ops.bench.brokers import HOST
from tests.chaos.leaks import complaints
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.secure_broker import PLAIN_PASSWORD, Closed, RawClient, SecureBroker
from tests.support.tls_key_changes import TLS_1_2, TLS_1_3, KeyChanger

SEED = 20240117


class Fuzz:
    def __init__(self, broker: SecureBroker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.context = broker.tls_context()
        self.own_context = broker.tls_context(own=True)
        self.outcomes: Counter[str] = Counter()
        self.layers: dict[str, Callable[[], None]] = {
            "frame": self.frame,
            "tls": self.tls,
            "tls handshake": self.tls_handshake,
            "tls record": self.tls_record,
            "below tls": self.below_tls,
            "sasl": lambda: self.sasl("SASL"),
            "sasl over tls": lambda: self.sasl("BOTH"),
            "renewal": self.renewal,
            "endless": self.endless,
        }

    def run(self, rounds: int) -> None:
        names = list(self.layers)
        for number in range(rounds):
            name = names[number % len(names)]
            try:
                self.layers[name]()
            except (OSError, Closed) as error:
                if isinstance(error, TimeoutError):
                    raise TimeoutError(
                        f"input {number} ({name}) gets neither an answer nor a close"
                    ) from error
                self.outcomes[f"{name}: closed"] += 1
            else:
                self.outcomes[f"{name}: served"] += 1

    # ---- what is sent

    def damaged(self, data: bytes) -> bytes:
        """A few bytes changed, left out, doubled or cut off."""
        out = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(out) + 1) if out else 0
            match self.random.randrange(5):
                case 0 if out:
                    out[min(at, len(out) - 1)] = self.random.randrange(256)
                case 1:
                    del out[at : at + self.random.randint(1, 8)]
                case 2:
                    out[at:at] = self.random.randbytes(self.random.randint(1, 8))
                case 3:
                    out[at:at] = out[at : at + 16]
                case _:
                    del out[at:]
        return bytes(out)

    def sized(self, data: bytes) -> bytes:
        """Mostly with a size that is right, so that the damage gets past the first four bytes."""
        if self.random.random() < 0.8:
            return struct.pack(">i", len(data)) + data
        return struct.pack(">i", self.random.choice([-1, 0, 1, len(data) + 1, 1 << 30])) + data

    def dial(self, listener: str) -> socket.socket:
        return socket.create_connection((HOST, self.broker.ports[listener]), timeout=PATIENCE_S)

    def end(self, sock: socket.socket) -> None:
        """No more will come; reads until the broker closes too."""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass

    def frame(self) -> None:
        with self.dial("OPEN") as sock:
            client = RawClient(sock)
            body = client.frame(ApiKey.METADATA, 12, MetadataRequest())[4:]
            sock.sendall(self.sized(self.damaged(body)))
            self.end(sock)

    def tls(self) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        data = self.random.choice([self.damaged, lambda d: self.random.randbytes(len(d))])(hello)
        with self.dial(self.random.choice(["TLS", "MUTUAL", "BOTH"])) as sock:
            sock.sendall(data)
            self.end(sock)

    def tls_record(self) -> None:
        with self.dial("TLS") as sock, self.context.wrap_socket(sock, server_hostname="localhost") as secure:
            client = RawClient(secure)
            if self.random.random() < 0.5:
                body = client.frame(ApiKey.METADATA, 12, MetadataRequest())[4:]
                secure.sendall(self.sized(self.damaged(body)))
            else:
                record = b"\x17\x03\x03" + struct.pack(">H", 40) + self.random.randbytes(40)
                with socket.socket(fileno=secure.fileno()) as below:
                    try:
                        below.sendall(self.damaged(record))
                        below.shutdown(socket.SHUT_WR)
                    finally:
                        below.detach()
            self.end(secure)

    def tls_handshake(self) -> None:
        """One of the flights is damaged, the one with the client's certificate too."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.own_context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        wrong, flight = self.random.randrange(3), 0
        with self.dial(self.random.choice(["TLS", "MUTUAL", "BOTH"])) as sock:
            for _ in range(20):
                try:
                    client.do_handshake()
                    client.write(b"no frame")
                except ssl.SSLWantReadError:
                    pass
                data = outgoing.read()
                if data:
                    sock.sendall(self.damaged(data) if flight == wrong else data)
                    if flight == wrong:
                        break
                    flight += 1
                incoming.write(sock.recv(65536))
            self.end(sock)

    def below_tls(self) -> None:
        """Changes of keys, new handshakes, goodbyes, data and damage in any order, and any way to leave."""
        version = self.random.choice([TLS_1_2, TLS_1_3])
        with (
            self.dial("TLS") as sock,
            contextlib.closing(KeyChanger(sock, self.broker.client_pem, version)) as client,
        ):
            while not client.shake():
                pass
            frame = RawClient(sock).frame(ApiKey.METADATA, 12, MetadataRequest())
            says: list[Callable[[], bytes]] = [
                lambda: client.says(frame),
                lambda: client.says(frame[: self.random.randrange(1, len(frame))]),
                lambda: self.damaged(client.says(frame)),
                lambda: struct.pack(">BHHBB", 21, 0x303, 2, *self.random.randbytes(2)),
            ]
            if version == TLS_1_3:
                says.append(lambda: client.changes(self.random.randint(1, 50), asks=True))
            for _ in range(self.random.randint(1, 6)):
                sock.sendall(self.random.choice(says)())
            ends = client.renegotiation if version == TLS_1_2 else client.goodbye
            sock.sendall(self.random.choice([ends, bytes])())
            if self.random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            self.end(sock)

    def sasl(self, listener: str) -> None:
        with self.dial(listener) as plain:
            sock = (
                self.context.wrap_socket(plain, server_hostname="localhost") if listener == "BOTH" else plain
            )
            try:
                self._talk(RawClient(sock), sock)
            finally:
                sock.close()

    def _talk(self, client: RawClient, sock: socket.socket) -> None:
        mechanism = self.random.choice(["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
        version = self.random.randrange(2)
        tokens = {
            "PLAIN": f"\0ann\0{PLAIN_PASSWORD}".encode(),
            "SCRAM-SHA-512": ScramClient(ScramType.SCRAM_SHA_512, "ann", "x").first(),
            "OAUTHBEARER": b"n,,\x01auth=Bearer e30.e30.\x01\x01",
        }
        token = tokens[mechanism]
        last = (
            struct.pack(">i", len(token)) + token
            if version == 0
            else client.frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(token))
        )
        steps = [
            client.frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("fuzz", "1")),
            client.frame(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism)),
            last,
            client.frame(ApiKey.METADATA, 12, MetadataRequest()),
        ]
        wrong = self.random.randrange(len(steps))
        for number, step in enumerate(steps):
            sock.sendall(self.sized(self.damaged(step[4:])) if number == wrong else step)
        self.end(sock)

    def renewal(self) -> None:
        with self.broker.connect("SHORT", timeout_s=PATIENCE_S) as client:
            if client.plain().error_code:
                raise AssertionError("the right password is refused")
            again = client.frame(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
            token = SaslAuthenticateRequest(f"\0ann\0{PLAIN_PASSWORD}".encode())
            tail = client.frame(ApiKey.SASL_AUTHENTICATE, 2, token)
            client.send(self.sized(self.damaged(again[4:])) + tail)
            self.end(client.sock)

    def endless(self) -> None:
        """More frames that lead nowhere than a turn answers, then damage."""
        with self.dial("SASL") as sock:
            client = RawClient(sock)
            known = client.frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("fuzz", "1"))
            unknown = known[:6] + struct.pack(">h", self.random.randrange(5, 1 << 15)) + known[8:]
            sock.sendall(unknown * self.random.randint(1, 200) + self.sized(self.damaged(known[4:])))
            self.end(sock)


def state_of(broker: SecureBroker) -> dict[int, int]:
    """Process -> open descriptors."""
    return {member.pid: member.num_fds() for member in broker.tree().members()}


def run(broker: SecureBroker, rounds: int, seed: int = SEED) -> Counter[str]:
    """Send all inputs. Raises AssertionError if the broker is not what it was before."""
    for listener in ("OPEN", "TLS"):
        with broker.connect(listener) as client:
            assert client.ask(ApiKey.METADATA, 12, MetadataRequest()).brokers
    assert complaints(broker) == []
    before = state_of(broker)
    fuzz = Fuzz(broker, seed)
    fuzz.run(rounds)
    for listener in ("OPEN", "TLS"):
        with broker.connect(listener) as client:
            assert client.ask(ApiKey.METADATA, 12, MetadataRequest()).brokers
    assert complaints(broker) == []
    until(
        lambda: state_of(broker) == before,
        lambda: f"processes and descriptors are {state_of(broker)}, not {before} as they were",
    )
    assert "Traceback" not in broker.output()
    return fuzz.outcomes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    rounds: int = arguments.inputs
    with tempfile.TemporaryDirectory() as directory:
        made = SecureBroker(Path(directory) / "broker", failed_delay_ms=5, longest_delay_ms=6)
        with served(made) as broker:
            begun = time.monotonic()
            outcomes = run(broker, rounds, arguments.seed)
            took_s = time.monotonic() - begun
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")
    print(f"{rounds} inputs in {took_s:.0f} s: no process, descriptor, byte or connection was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
