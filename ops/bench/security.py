"""Measure what permissions, logins and encryption cost: `make bench-security`.

The loads of `make bench-kafka`, in forms that take turns in one run:

* plain: a listener without authentication, of a broker without an authorizer;
* plain again: the same at another broker, which says how far two brokers differ that are alike;
* ACLs: StandardAuthorizer, with one entry that lets the load do what it does;
* ACLs among others: beside 1,000 entries about other topics and users;
* SCRAM + ACLs: every connection logs in with SCRAM-SHA-256;
* TLS + SCRAM + ACLs.

Figures are ratios to plain in the same turn. A connect load makes a connection for each request: with SCRAM
it logs in, with TLS it shakes hands, and its percentiles are those of the request behind that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
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
from ops.bench.maven import MissingToolError
from ops.bench.point import load_average
from ops.bench.run import KAFKA_PATIENCE, circumstances, data_directory, progress
from ops.bench.scenarios import SCENARIOS, Door, LoadError, Result, Scenario
from ops.bench.tls import SecureListener

PREFIX = "bench-"
USER, PASSWORD = "bench", "b3nch-Pa55word"
ADMIN, ADMIN_PASSWORD = "admin", "4dm1n-Pa55word"
ITERATIONS = 4096
PATIENCE_S = 60
OTHERS = 1000
# Issue 19: produces and fetches with ACLs stay within 2 % of those without.
BOUND = 0.02
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
# Of each broker of ours; what a turn has written is gone before the next one fills the disk.
OURS = ("-o", "log.flush.policy=os", "-o", "log.segment.delete.delay.ms=1000")


@dataclass
class Guarded:
    """A broker that asks who somebody is and what he may do, with three listeners."""

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
        return SETTINGS | dict(one.split("=", 1) for one in self.secure.settings)

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
        broker.properties = [*KAFKA_PATIENCE, *(f"{name}={value}" for name, value in settings.items())]
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
        """Make the user, and the entries: one for each principal of the load, and so many about others."""
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
        """Return the ways in: as nobody, by a login, by one that is encrypted."""
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
    """Return an entry that is not about the load: of a topic, of topics with a prefix, or of another user.

    Every third one is about the topics of the load, so that a decision has to look at it.
    """
    kind = number % 3
    name = (f"orders-{number}", f"team-{number}-", PREFIX)[kind]
    return entry(name, f"User:user-{number}", is_prefix=kind > 0)


def mpbroker(directory: Path) -> Mpbroker:
    """Return a broker whose appends are as durable as Kafka's: nobody measures the disk here."""
    return Mpbroker(directory, flags=OURS)


@dataclass
class Form:
    """One way to send the same load, and what came of it in each turn."""

    title: str
    broker: Broker
    door: Door
    results: dict[str, list[Result]] = field(default_factory=dict)


@contextlib.contextmanager
def forms(directory: Path, *, kafka: bool = False, others: int = OTHERS) -> Iterator[list[list[Form]]]:
    """Start the brokers; yield the forms of ours, and of Apache Kafka if it is asked for: plain first."""
    plains: list[list[tuple[str, Broker]]] = [
        [(title, mpbroker(directory / title.replace(" ", "-"))) for title in ("plain", "plain again")]
    ]
    if kafka:
        plains.append([("Kafka, plain", Kafka(directory / "kafka", properties=KAFKA_PATIENCE))])
    with contextlib.ExitStack() as stack:
        found = []
        for number, kind in enumerate(plains):
            of_kafka = number > 0
            some = [Form(title, broker, Door(broker.port)) for title, broker in kind]
            guarded = {
                count: Guarded(directory / f"guarded-{number}-{count}", kafka=of_kafka)
                for count in (0, others)
            }
            for broker in (*(form.broker for form in some), *(one.broker for one in guarded.values())):
                progress.print(f"[dim]{broker.name}: starting")
                stack.callback(broker.kill)
                broker.start()
            for count, one in guarded.items():
                one.let_in(count)
            name = "Kafka, " if of_kafka else ""
            nobody, login, encrypted = guarded[0].doors()
            of, crowded = guarded[0].broker, guarded[others]
            some += [
                Form(f"{name}ACLs", of, nobody),
                Form(f"{name}ACLs among {others:,} others", crowded.broker, crowded.doors()[0]),
                Form(f"{name}SCRAM + ACLs", of, login),
                Form(f"{name}TLS + SCRAM + ACLs", of, encrypted),
            ]
            for form in some:
                form.broker.tree().pause()
            found.append(some)
        yield found
        for form in (form for some in found for form in some):
            form.broker.tree().resume()


def turn(form: Form, scenario: Scenario, directory: Path, seconds: float) -> Result:
    """Take the load once, on a topic of its own."""
    if scenario.bulk and scenario.kind == "produce":
        scenarios.settle_memory(directory, seconds)
    topic = f"{PREFIX}{scenario.name}-{len(form.results.get(scenario.name, ()))}"
    form.broker.tree().resume()
    try:
        request = scenarios.prepare(scenario, form.broker, topic)
        result = scenarios.run_load(
            form.broker,
            request,
            scenario.connections,
            seconds,
            partitions=scenario.partitions,
            reconnect=scenario.kind == "connect",
            door=form.door,
        )
        scenarios.delete_topic(form.broker, topic)
    finally:
        form.broker.tree().pause()
    progress.print(f"[dim]{scenario.name}  {form.title}: {result.requests_per_s:,.0f} requests/s")
    return result


def measure(
    field_of: Sequence[Form], wanted: Sequence[Scenario], directory: Path, seconds: float, rounds: int
) -> None:
    """Let the forms take turns, in the other direction every other round."""
    for scenario in wanted:
        for number in range(rounds):
            for form in field_of if number % 2 == 0 else reversed(field_of):
                result = turn(form, scenario, directory, seconds)
                form.results.setdefault(scenario.name, []).append(result)


def ratios(form: Form, plain: Form, scenario: str, figure: str) -> list[float]:
    """Return the ratio to plain of each round. Zero: too little was measured for one."""
    pairs = zip(form.results[scenario], plain.results[scenario], strict=True)
    return [
        getattr(one, figure) / getattr(other, figure) if getattr(other, figure) else 0.0
        for one, other in pairs
    ]


def rows(some: Sequence[Form], wanted: Sequence[Scenario]) -> Iterator[str]:
    """Yield the lines of a table: figures of a form, and in brackets the median of its ratios to plain."""
    yield "| load | form | requests/s | in each turn | p99, µs | broker's CPU a request, µs |"
    yield "|---|---|---:|---|---:|---:|"
    plain = some[0]
    for scenario in wanted:
        for form in some:
            name, cells = scenario.name, []
            for figure in ("requests_per_s", "p99_us", "broker_cpu_us"):
                value = median(getattr(one, figure) for one in form.results[name])
                ratio = median(ratios(form, plain, name, figure))
                text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
                cells.append(text if form is plain else f"{text} ({ratio:.3f})")
            rates = sorted(ratios(form, plain, name, "requests_per_s"))
            cells.insert(1, "" if form is plain else f"{rates[0]:.3f} to {rates[-1]:.3f}")
            yield f"| `{name}` | {form.title} | {' | '.join(cells)} |"


def verdict(some: Sequence[Form], wanted: Sequence[Scenario]) -> Iterator[str]:
    """Yield what is to be said of the bound: rates of produces and fetches with ACLs alone."""
    plain = some[0]
    for form in some:
        if (" again" not in form.title and "ACLs" not in form.title) or "SCRAM" in form.title:
            continue
        found = {
            scenario.name: median(ratios(form, plain, scenario.name, "requests_per_s"))
            for scenario in wanted
            if scenario.kind in ("produce", "fetch")
        }
        below = [f"`{name}` {ratio:.3f}" for name, ratio in found.items() if ratio < 1 - BOUND]
        says = (
            f"below it: {', '.join(below)}"
            if below
            else f"all {len(found)} produce and fetch loads within it"
        )
        yield f"{form.title}, bound {1 - BOUND:.2f} of plain: {says}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="only loads whose name matches")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each form (%(default)s)")
    parser.add_argument("--short", action="store_true", help="three loads, two rounds of half a second")
    parser.add_argument("--kafka", action="store_true", help="and Apache Kafka in the same forms")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.only, chosen.seconds, chosen.rounds = chosen.only or SHORT, 0.5, 2
    if chosen.seconds <= 0 or chosen.rounds < 1:
        parser.error("--seconds and --rounds must be positive")
    return chosen


def run(chosen: argparse.Namespace) -> None:
    wanted = [scenario for scenario in SCENARIOS if re.search(chosen.only, scenario.name)]
    if not wanted:
        raise LoadError(f"no load matches {chosen.only!r}; there are {', '.join(s.name for s in SCENARIOS)}")
    scenarios.build_generator()
    with data_directory(chosen.directory) as directory, forms(directory, kafka=chosen.kafka) as found:
        where, before = circumstances(directory), load_average()
        measure([form for some in found for form in some], wanted, directory, chosen.seconds, chosen.rounds)
        print(
            f"{where}; {chosen.rounds} turns of {chosen.seconds:g} s each; load average of the machine "
            f"{before:.1f} before, {load_average():.1f} after\n"
        )
        for some in found:
            print(*rows(some, wanted), "", *verdict(some, wanted), "", sep="\n")
        if chosen.json:
            told = {
                form.title: {name: [asdict(one) for one in results] for name, results in form.results.items()}
                for some in found
                for form in some
            }
            chosen.json.write_text(json.dumps(told, indent=1) + "\n")


def main() -> int:
    try:
        run(arguments())
    except (BrokerError, LoadError, MissingToolError, OSError) as error:
        print(f"bench-security: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
