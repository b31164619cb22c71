"""What TLS costs a fetch: `python -m ops.bench.tls [--kafka]`, `make bench-tls`.

Fetches of 1 MiB over a plain and an encrypted listener of one broker. One connection and one client take
turns on both, so the ratio is that of the encryption alone, the client's included.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from mpbroker.security import openssl
from ops.bench import frames
from ops.bench.brokers import HOST, Broker, BrokerError, Kafka, Mpbroker, free_port, running
from ops.bench.scenarios import (
    FETCH_BYTES,
    Door,
    Result,
    Scenario,
    build_generator,
    merged,
    prepare,
    run_load,
)

TOPIC = "tls"


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

    def endpoint(self) -> Door:
        return Door(self.port, self.certificate)


@dataclass
class Pair:
    """A broker with its two listeners, and how fetches of each round went: plain, and over TLS."""

    listener: SecureListener
    broker: Broker
    request: frames.Request
    rounds: list[tuple[Result, Result]] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        plain, secure = (
            run_load(self.broker, self.request, 1, seconds, door=door)
            for door in (None, self.listener.endpoint())
        )
        self.rounds.append((plain, secure))

    def report(self) -> None:
        plain, secure = (merged(results) for results in zip(*self.rounds, strict=True))
        rates = [median(one.mb_per_s for one in results) for results in zip(*self.rounds, strict=True)]
        each = ", ".join(f"{secure.mb_per_s / plain.mb_per_s:.2f}" for plain, secure in self.rounds)
        # Kafka encrypts with the JDK.
        whose = "client with " if isinstance(self.broker, Kafka) else ""
        print(
            f"{self.broker.name}, {whose}{openssl.VERSION}: fetches of 1 MiB on one connection, "
            f"plain {rates[0] / 1e3:.2f} GB/s, TLS {rates[1] / 1e3:.2f} GB/s, "
            f"that is {rates[1] / rates[0]:.2f} times plain ({each}); "
            f"{plain.broker_cpu_us:.0f} and {secure.broker_cpu_us:.0f} us of the broker's CPU each"
        )


def started(stack: contextlib.ExitStack, *, kafka: bool = False) -> Pair:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    listener = SecureListener(directory)
    listener.make_certificate()
    broker = listener.kafka() if kafka else listener.mpbroker()
    stack.enter_context(running(broker))
    return Pair(listener, broker, prepare(Scenario("tls", "fetch", FETCH_BYTES, 1), broker, TOPIC))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka beside it, in turns")
    options = parser.parse_args()
    build_generator()
    with contextlib.ExitStack() as stack:
        pairs = [started(stack)]
        if options.kafka:
            pairs.append(started(stack, kafka=True))
        for _ in range(options.rounds):
            for pair in pairs:
                pair.turn(options.seconds)
    for pair in pairs:
        pair.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
