"""Measure what permissions, logins and encryption cost: `make bench-security`.

The loads of `make bench-kafka`, with security setups (forms) that take turns in one run:

* plain: a listener without authentication, of a broker without an authorizer;
* plain again: the same at another broker, which shows how far two equal brokers differ;
* ACLs: StandardAuthorizer, with one entry that allows the load;
* ACLs among others: the same entry, and 1,000 entries about other topics and users;
* SCRAM + ACLs: every connection logs in with SCRAM-SHA-256;
* TLS + SCRAM + ACLs.

Figures are ratios to plain in the same turn. A connect load makes a connection for each request. Login
(SCRAM) and handshake (TLS) count in its rate, but its percentiles are those of the request after them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mpbroker.config.broker import STANDARD_AUTHORIZER
from ops.bench import scenarios
from ops.bench.brokers import HOST, Broker, BrokerError, Kafka, Mpbroker, free_port
from ops.bench.frames import Request
from ops.bench.run import KAFKA_PATIENCE, KAFKA_WARMUP_S, circumstances, data_directory, progress, warm_up
from ops.bench.scenarios import SCENARIOS, Door, LoadError, Result, Scenario
from ops.docs import security
from ops.docs.security import AGAIN, COSTS, OUR_NAME
from ops.setup.maven import MissingToolError

PREFIX = "bench-"
USER, PASSWORD = "bench", "b3nch-Pa55word"
ADMIN, ADMIN_PASSWORD = "admin", "4dm1n-Pa55word"
ITERATIONS = 4096
PATIENCE_S = 60
OTHERS = 1000
KAFKA_NAME = "Apache Kafka"
# The other forms are compared with this form.
PLAIN = "plain"
SHORT_WARMUP_S = 1.0
SHORT = "produce-100B-8$|fetch-1MiB-1$|connect-1$"
PLAIN_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{ADMIN}" password="{ADMIN_PASSWORD}" user_{ADMIN}="{ADMIN_PASSWORD}";'
)
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
SETTINGS = {
    "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
    "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.scram.plain.sasl.jaas.config": PLAIN_LOGIN,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN}",
}
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SCRAM:SASL_PLAINTEXT,TLS:SASL_SSL"
# Its broker and its controller speak to each other as the administrator.
KAFKA_SETTINGS = {
    "listener.security.protocol.map": f"{PROTOCOLS},CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SCRAM",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": PLAIN_LOGIN,
    "listener.name.scram.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
    "listener.name.tls.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
}
# The data of a turn are deleted before the next one fills the disk.
SOON = "log.segment.delete.delay.ms=1000"
OURS = ("-o", "log.flush.policy=os", "-o", SOON)
KAFKAS = (*KAFKA_PATIENCE, SOON)


@dataclass
class SecureListener:
    """The TLS listener of a broker: its port, and a certificate that only this program trusts."""

    directory: Path
    port: int = field(default_factory=free_port)

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def keystore(self) -> Path:
        return self.directory / "keystore.pem"

    @property
    def settings(self) -> dict[str, str]:
        return {"ssl.keystore.location": str(self.keystore), "ssl.keystore.type": "PEM"}

    def make_certificate(self) -> None:
        command = ["openssl", "req", "-x509", "-nodes", "-days", "1"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-subj", "/CN=bench", "-addext", f"subjectAltName=IP:{HOST}"]
        command += ["-keyout", str(self.keystore), "-out", str(self.certificate)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise BrokerError("a certificate needs the openssl command: apt-get install openssl") from error
        if done.returncode:
            raise BrokerError(f"openssl makes no certificate:\n{done.stderr}")
        with open(self.keystore, "ab") as keystore:
            keystore.write(self.certificate.read_bytes())


@dataclass
class GuardedBroker:
    """A broker with authentication and permissions, and three listeners."""

    directory: Path
    kafka: bool = False
    scram: int = field(default_factory=free_port)
    secure: SecureListener = field(init=False)
    broker: Broker = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.secure = SecureListener(self.directory)
        self.secure.make_certificate()
        self.broker = self._kafka() if self.kafka else self._mpbroker()

    @property
    def _settings(self) -> Mapping[str, str]:
        return SETTINGS | self.secure.settings

    def _addresses(self, ports: Mapping[str, int]) -> str:
        ports = {**ports, "SCRAM": self.scram, "TLS": self.secure.port}
        return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())

    def _mpbroker(self) -> Mpbroker:
        broker = mpbroker(self.directory)
        settings = {**self._settings, "listener.security.protocol.map": PROTOCOLS}
        # Passwords do not stand in a command line.
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        addresses = self._addresses({"PLAINTEXT": broker.port})
        broker.template = broker.template.replace(f"PLAINTEXT://{HOST}:{{port}}", addresses)
        broker.template += f" --config {properties}"
        return broker

    def _kafka(self) -> Kafka:
        broker = Kafka(self.directory)
        ports = {"PLAINTEXT": broker.port, "CONTROLLER": broker.controller_port}
        settings = {**self._settings, **KAFKA_SETTINGS, "listeners": self._addresses(ports)}
        broker.properties = [*KAFKAS, *(f"{name}={value}" for name, value in settings.items())]
        return broker

    def admin(self) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": f"{HOST}:{self.scram}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": ADMIN,
                "sasl.password": ADMIN_PASSWORD,
            }
        )

    def let_in(self, others: int) -> None:
        """Create the user, an ACL entry for each principal of the load, and `others` unrelated entries."""
        admin = self.admin()
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
        upsertion = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        for made in admin.alter_user_scram_credentials([upsertion]).values():
            made.result(PATIENCE_S)
        entries = [entry(PREFIX, f"User:{name}", is_prefix=True) for name in ("ANONYMOUS", USER)]
        entries += [other(number) for number in range(others)]
        for asked in admin.create_acls(entries).values():
            asked.result(PATIENCE_S)

    def doors(self) -> list[Door]:
        """Return the listeners: without a login, with a login, and with login and encryption."""
        login = (USER, PASSWORD)
        return [
            Door(self.broker.port),
            Door(self.scram, login=login),
            Door(self.secure.port, self.secure.certificate, login),
        ]


def entry(name: str, principal: str, *, is_prefix: bool) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
    allow = AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, name, pattern, principal, "*", AclOperation.ALL, allow)


def other(number: int) -> AclBinding:
    """Return an ACL entry that does not match the load: it is for another user.

    Every third entry is for the topics of the load, so that the authorizer has to read it.
    """
    kind = number % 3
    name = (f"orders-{number}", f"team-{number}-", PREFIX)[kind]
    return entry(name, f"User:user-{number}", is_prefix=kind > 0)


def mpbroker(directory: Path) -> Mpbroker:
    """Return a broker whose appends are as durable as Kafka's, since this program does not measure disks."""
    return Mpbroker(directory, flags=OURS)


@dataclass
class Form:
    """A security setup: a broker, the listener that gets the loads, and each load's results, one per turn."""

    title: str
    broker: Broker
    door: Door
    results: dict[str, list[Result]] = field(default_factory=dict)


@dataclass
class Field:
    """All security setups of one kind of broker, mpbroker or Kafka. The setup "plain" is the first."""

    name: str
    forms: list[Form]


@dataclass(frozen=True)
class Cost:
    """The results of a load in a form: medians of its turns, and of their ratios to plain in the same turn.

    `rates`: the least and the largest ratio of requests a second.
    """

    load: str
    form: str
    requests_per_s: float
    p99_us: float
    broker_cpu_us: float
    rate_ratio: float
    rates: tuple[float, float]
    p99_ratio: float
    cpu_ratio: float


def of_one_kind(directory: Path, stack: contextlib.ExitStack, others: int, *, kafka: bool) -> list[Form]:
    """Start the brokers of one kind; return its security setups. The stack kills the brokers."""
    if kafka:
        some = [Form(PLAIN, plain := Kafka(directory / "kafka", properties=KAFKAS), Door(plain.port))]
    else:
        plains = [(title, mpbroker(directory / title.replace(" ", "-"))) for title in (PLAIN, AGAIN)]
        some = [Form(title, broker, Door(broker.port)) for title, broker in plains]
    alone, crowded = (
        GuardedBroker(directory / f"{'kafka-' if kafka else ''}guarded-{count}", kafka=kafka)
        for count in (0, others)
    )
    for broker in (*(form.broker for form in some), alone.broker, crowded.broker):
        progress.print(f"[dim]{broker.name}: starting")
        stack.callback(broker.kill)
        broker.start()
    alone.let_in(0)
    crowded.let_in(others)
    anonymous, login, encrypted = alone.doors()
    return [
        *some,
        Form("ACLs", alone.broker, anonymous),
        Form(f"ACLs among {others:,} others", crowded.broker, crowded.doors()[0]),
        Form("SCRAM + ACLs", alone.broker, login),
        Form("TLS + SCRAM + ACLs", alone.broker, encrypted),
    ]


@contextlib.contextmanager
def fields(
    directory: Path, *, kafka: bool = False, others: int = OTHERS, kafka_warmup_s: float = KAFKA_WARMUP_S
) -> Iterator[list[Field]]:
    """Start the brokers; yield the forms of mpbroker and, with `kafka`, those of Apache Kafka."""
    with contextlib.ExitStack() as stack:
        found = [Field(OUR_NAME, of_one_kind(directory, stack, others, kafka=False))]
        if kafka:
            found.append(Field(KAFKA_NAME, of_one_kind(directory, stack, others, kafka=True)))
            for number, form in enumerate(found[-1].forms):
                progress.print(f"[dim]{form.broker.name}, {form.title}: warm-up")
                warm_up(form.broker, kafka_warmup_s, f"{PREFIX}warm-up-{number}", form.door)
        every = [form for one in found for form in one.forms]
        for form in every:
            form.broker.tree().pause()
        yield found
        for form in every:
            form.broker.tree().resume()


class Topics:
    """The topics of a load, one on each broker: plain, TLS and SASL listeners of a broker share it.

    For a load of large produces, each round makes a new topic and deletes it, or the disk would fill up.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._is_short_lived = scenario.bulk and scenario.kind == "produce"
        self._made = 0
        self._requests: dict[int, tuple[Broker, str, Request]] = {}

    def request(self, broker: Broker) -> Request:
        """Return the request to send. The broker must be running."""
        if id(broker) not in self._requests:
            topic = f"{PREFIX}{self._scenario.name}-{self._made}"
            self._made += 1
            self._requests[id(broker)] = broker, topic, scenarios.prepare(self._scenario, broker, topic)
        return self._requests[id(broker)][2]

    def end_turn(self, broker: Broker) -> None:
        if self._is_short_lived:
            self._delete(broker)

    def _delete(self, broker: Broker) -> None:
        _, topic, _ = self._requests.pop(id(broker))
        scenarios.delete_topic(broker, topic)

    def end(self) -> None:
        for broker, _, _ in list(self._requests.values()):
            with broker.awake():
                self._delete(broker)


def turn(form: Form, scenario: Scenario, topics: Topics, directory: Path, seconds: float) -> Result:
    """Run the load of a scenario once on a form's broker, and return its result."""
    if scenario.bulk and scenario.kind == "produce":
        scenarios.settle_memory(directory, seconds)
    with form.broker.awake():
        result = scenarios.run_load(
            form.broker,
            topics.request(form.broker),
            scenario.connections,
            seconds,
            partitions=scenario.partitions,
            reconnect=scenario.kind == "connect",
            door=form.door,
        )
        topics.end_turn(form.broker)
    progress.print(
        f"[dim]{scenario.name}  {form.broker.name}, {form.title}: {result.requests_per_s:,.0f} requests/s"
    )
    return result


def measure(
    field_of: Sequence[Form], wanted: Sequence[Scenario], directory: Path, seconds: float, rounds: int
) -> None:
    """Let the forms take turns, in reverse order in every second round."""
    for scenario in wanted:
        topics = Topics(scenario)
        for number in range(rounds):
            for form in field_of if number % 2 == 0 else reversed(field_of):
                result = turn(form, scenario, topics, directory, seconds)
                form.results.setdefault(scenario.name, []).append(result)
        topics.end()


def ratios(form: Form, plain: Form, load: str, figure: str) -> list[float]:
    """Return, for each turn, a form's `figure` divided by plain's; 0 if plain's figure is 0."""
    pairs = zip(form.results[load], plain.results[load], strict=True)
    return [
        getattr(one, figure) / getattr(other, figure) if getattr(other, figure) else 0.0
        for one, other in pairs
    ]


def cost(form: Form, plain: Form, load: str) -> Cost:
    results = form.results[load]
    rates = ratios(form, plain, load, "requests_per_s")
    return Cost(
        load,
        form.title,
        requests_per_s=round(median(one.requests_per_s for one in results), 1),
        p99_us=round(median(one.p99_us for one in results), 1),
        broker_cpu_us=round(median(one.broker_cpu_us for one in results), 1),
        rate_ratio=round(median(rates), 3),
        rates=(round(min(rates), 3), round(max(rates), 3)),
        p99_ratio=round(median(ratios(form, plain, load, "p99_us")), 3),
        cpu_ratio=round(median(ratios(form, plain, load, "broker_cpu_us")), 3),
    )


def costs(some: Sequence[Form], wanted: Sequence[Scenario]) -> list[Cost]:
    return [cost(form, some[0], scenario.name) for scenario in wanted for form in some]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="only loads whose name matches")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each form (%(default)s)")
    parser.add_argument("--short", action="store_true", help="three loads, two rounds of half a second")
    parser.add_argument("--kafka", action="store_true", help="and Apache Kafka in the same forms")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/security.json, and from it the tables of docs/SECURITY.md",
    )
    chosen = parser.parse_args()
    chosen.warmup_s = KAFKA_WARMUP_S
    if chosen.short:
        chosen.only, chosen.seconds, chosen.rounds = chosen.only or SHORT, 0.5, 2
        chosen.warmup_s = SHORT_WARMUP_S
    if chosen.seconds <= 0 or chosen.rounds < 1:
        parser.error("--seconds and --rounds must be positive")
    return chosen


def run(chosen: argparse.Namespace) -> None:
    wanted = [scenario for scenario in SCENARIOS if re.search(chosen.only, scenario.name)]
    if not wanted:
        raise LoadError(f"no load matches {chosen.only!r}; there are {', '.join(s.name for s in SCENARIOS)}")
    scenarios.build_generator()
    with (
        data_directory(chosen.directory) as directory,
        fields(directory, kafka=chosen.kafka, kafka_warmup_s=chosen.warmup_s) as found,
    ):
        where, before = circumstances(directory), os.getloadavg()[0]
        every = [form for one in found for form in one.forms]
        measure(every, wanted, directory, chosen.seconds, chosen.rounds)
        where += (
            f"; load average {before:.1f} before, {os.getloadavg()[0]:.1f} after; "
            f"{chosen.rounds} turns of {chosen.seconds:g} s"
        )
    brokers = {one.name: [asdict(cost) for cost in costs(one.forms, wanted)] for one in found}
    measured = {"circumstances": where, "brokers": brokers}
    print(*security.costs(measured), sep="\n")
    if chosen.write:
        COSTS.write_text(json.dumps(measured, indent=1) + "\n")
        security.write()


def main() -> int:
    try:
        run(arguments())
    except (BrokerError, LoadError, MissingToolError, OSError) as error:
        print(f"bench-security: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
