"""What TLS costs a fetch: `python -m ops.bench.tls [--kafka]`.

Fetches of 1 MiB over a plain and an encrypted listener of one broker. One connection and one client for both,
in turns, so the ratio is that of the encryption alone, the client's included.
"""

from __future__ import annotations

import argparse
import contextlib
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ops.bench import frames
from ops.bench.brokers import HOST, Broker, BrokerError, Kafka, Mpbroker, free_port, running
from ops.bench.scenarios import FETCH_BYTES, Scenario, TlsPort, build_generator, prepare, run_load

TOPIC = "tls"
SHARE_MIN = 0.5


@dataclass
class SecureListener:
    """Of a broker: its port, and a certificate that nobody else trusts."""

    directory: Path
    port: int = field(default_factory=free_port)

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def keystore(self) -> Path:
        return self.directory / "keystore.pem"

    @property
    def settings(self) -> tuple[str, str]:
        return f"ssl.keystore.location={self.keystore}", "ssl.keystore.type=PEM"

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

    def mpbroker(self) -> Mpbroker:
        broker = Mpbroker(self.directory)
        plain = f"PLAINTEXT://{HOST}:{{port}}"
        broker.template = broker.template.replace(plain, f"{plain},SSL://{HOST}:{self.port}")
        broker.flags = [part for setting in self.settings for part in ("-o", setting)]
        return broker

    def kafka(self) -> Kafka:
        broker = Kafka(self.directory)
        listeners = {"PLAINTEXT": broker.port, "CONTROLLER": broker.controller_port, "SSL": self.port}
        addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
        protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL"
        broker.properties = [f"listeners={addresses}", protocols, *self.settings]
        return broker

    def endpoint(self) -> TlsPort:
        return TlsPort(self.port, self.certificate)


@dataclass
class Pair:
    """A broker with its two listeners, and what they moved in each round in MB/s."""

    listener: SecureListener
    broker: Broker
    request: frames.Request
    rounds: list[tuple[float, float]] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        plain, secure = (
            run_load(self.broker, self.request, 1, seconds, tls=tls).mb_per_s
            for tls in (None, self.listener.endpoint())
        )
        self.rounds.append((plain, secure))

    def report(self) -> float:
        """TLS's share of plain."""
        plain, secure = (median(rates) for rates in zip(*self.rounds, strict=True))
        share: float = secure / plain
        print(
            f"{self.broker.name}, fetches of 1 MiB on one connection: plain {plain / 1e3:.2f} GB/s, "
            f"TLS {secure / 1e3:.2f} GB/s, that is {share:.2f} times plain"
        )
        return share


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka beside it, in turns")
    options = parser.parse_args()
    build_generator()
    with contextlib.ExitStack() as stack:
        pairs = []
        for kafka in (False, True) if options.kafka else (False,):
            listener = SecureListener(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            listener.make_certificate()
            broker = listener.kafka() if kafka else listener.mpbroker()
            stack.enter_context(running(broker))
            request = prepare(Scenario("tls", "fetch", FETCH_BYTES, 1), broker, TOPIC)
            pairs.append(Pair(listener, broker, request))
        for _ in range(options.rounds):
            for pair in pairs:
                pair.turn(options.seconds)
    print(ssl.OPENSSL_VERSION)
    shares = [pair.report() for pair in pairs]
    return 0 if shares[0] >= SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
