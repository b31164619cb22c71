"""What TLS costs a fetch: `python -m ops.bench.tls`.

Fetches of 1 MiB over a plain and an encrypted listener of one broker. One connection and one client for both,
in turns, so the ratio is that of the encryption alone, the client's included.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from ops.bench import frames
from ops.bench.brokers import HOST, BrokerError, Mpbroker, free_port, running
from ops.bench.scenarios import FETCH_BYTES, Scenario, prepare

TOPIC = "tls"
SHARE_MIN = 0.5
CORRELATION_AND_SIZE_BYTES = 8


class SecureMpbroker(Mpbroker):
    """With a second listener, whose certificate nobody else trusts."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "certificate.pem"
        self.keystore = directory / "keystore.pem"
        self.secure_port = free_port()
        super().__init__(directory)
        plain = f"PLAINTEXT://{HOST}:{{port}}"
        self.template = self.template.replace(plain, f"{plain},SSL://{HOST}:{self.secure_port}")
        self.flags = ("-o", f"ssl.keystore.location={self.keystore}", "-o", "ssl.keystore.type=PEM")

    def make_certificate(self) -> None:
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        command += ["-days", "1", "-subj", "/CN=bench", "-addext", f"subjectAltName=IP:{HOST}"]
        command += ["-keyout", str(self.keystore), "-out", str(self.certificate)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise BrokerError("a certificate needs the openssl command: apt-get install openssl") from error
        if done.returncode:
            raise BrokerError(f"openssl makes no certificate:\n{done.stderr}")
        with open(self.keystore, "ab") as keystore:
            keystore.write(self.certificate.read_bytes())

    def connect(self, secure: bool) -> socket.socket:
        port = self.secure_port if secure else self.port
        connection = socket.create_connection((HOST, port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not secure:
            return connection
        context = ssl.create_default_context(cafile=str(self.certificate))
        return context.wrap_socket(connection, server_hostname=HOST)


def fetch_once(connection: socket.socket, request: frames.Request, scratch: bytearray) -> int:
    """Bytes of one response; it is dropped, but for its head."""
    connection.sendall(request.frame)
    view, received, size = memoryview(scratch), 0, CORRELATION_AND_SIZE_BYTES
    while received < size:
        n = connection.recv_into(view[received:] if received < CORRELATION_AND_SIZE_BYTES else view)
        if not n:
            raise BrokerError("the broker closed the connection")
        if received < CORRELATION_AND_SIZE_BYTES <= received + n:
            size = 4 + int.from_bytes(scratch[:4])
            if int.from_bytes(scratch[4:8]) != frames.CORRELATION_ID:
                raise BrokerError("a response has another request's correlation id")
        received += n
    if received < request.response_bytes_min:
        raise BrokerError(f"a response has {received} bytes, not {request.response_bytes_min}")
    return received


def bytes_per_s(broker: SecureMpbroker, secure: bool, request: frames.Request, seconds: float) -> float:
    scratch = bytearray(1 << 18)
    with closing(broker.connect(secure)) as connection:
        fetch_once(connection, request, scratch)
        moved, start = 0, time.monotonic()
        while (took := time.monotonic() - start) < seconds:
            moved += fetch_once(connection, request, scratch)
    return moved / took


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = SecureMpbroker(Path(directory))
        broker.make_certificate()
        with running(broker):
            request = prepare(Scenario("tls", "fetch", FETCH_BYTES, 1), broker, TOPIC)
            pairs = [
                (
                    bytes_per_s(broker, False, request, options.seconds),
                    bytes_per_s(broker, True, request, options.seconds),
                )
                for _ in range(options.rounds)
            ]
    plain, secure = (median(rates) for rates in zip(*pairs, strict=True))
    share = secure / plain
    print(f"fetches of 1 MiB, one connection: plain {plain / 1e9:.2f} GB/s, TLS {secure / 1e9:.2f} GB/s")
    print(f"that is {share:.2f} times plain")
    return 0 if share >= SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
