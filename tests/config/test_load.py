"""Files, overrides and flags become one struct, or one error that names every problem and its place."""

import re
from pathlib import Path

import pytest

from mpbroker.config import known
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.keys import ConfigError, field_name, format_value
from mpbroker.config.known import ALIASES, is_known
from mpbroker.config.load import Flag, load
from mpbroker.config.topic_config import TOPIC_KEYS

ROOT = Path(__file__).parents[2]
PROTOCOLS = "group.coordinator.rebalance.protocols"
ASSIGNOR_CLASS = "org.apache.kafka.coordinator.group.assignor"
# What Kafka has no key for.
OUR_OWN = {
    "admin.listener.names",
    "audit.log.file",
    "audit.log.format",
    "audit.log.level",
    "client.telemetry.enable",
    "group.max.members.bytes",
    "connection.failed.authentication.delay.max.ms",
    "connections.max.login.ms",
    "max.auto.created.partitions.per.principal",
    "max.unauthenticated.connections",
    "http.console.client.config",
    "http.console.enable",
    "http.console.schema.registry.config",
    "http.console.write",
    "http.hosts",
    "http.listener",
    "otlp.endpoint",
    "otlp.export.interval.ms",
    "log.workers",
    "log.flush.policy",
    "log.journal.bytes",
    "log.journal.direct.bytes",
    "log.reserve.bytes",
    "log.scrub.interval.ms",
    "log.scrub.max.bytes.per.second",
    "handler.hang.timeout.ms",
    "max.in.flight.requests.per.connection",
    "max.parked.bytes",
    "max.parked.bytes.per.connection",
    "max.parked.bytes.per.principal",
    "max.producer.ids.per.partition",
    "mpbroker.replication.factor.clamp",
    "mpbroker.ssl.crl.location",
    "mpbroker.sasl.oauthbearer.required.scope",
    "mpbroker.remote.acks",
    "mpbroker.remote.cache.bytes",
    "mpbroker.remote.checkpoint.interval.ms",
    "mpbroker.remote.checkpoint.retention.ms",
    "mpbroker.remote.commit.interval.ms",
    "mpbroker.remote.delete.delay.ms",
    "mpbroker.remote.lease.ms",
    "mpbroker.remote.read.only",
    "mpbroker.remote.request.timeout.ms",
    "mpbroker.remote.url",
}


def problems(*overrides: str, path: Path | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load(path, overrides)
    return str(raised.value)


def test_defaults() -> None:
    loaded = load()
    assert loaded.warnings == ()
    assert loaded.config.log_dirs == (str(Path("data").absolute()),)
    assert str(loaded.config.listeners[0]) == "PLAINTEXT://127.0.0.1:9092"
    assert loaded.config.origins == {}


def test_later_sources_beat_earlier_ones_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.io.threads=3\nnum.partitions=5\nnum.network.threads=7\n")
    loaded = load(path, ["num.partitions=6", "num.io.threads=4"], [Flag("--handlers", "num.io.threads", "5")])
    config = loaded.config
    assert (config.num_io_threads, config.num_partitions, config.num_network_threads) == (5, 6, 7)
    assert config.origins["num.io.threads"] == "--handlers"
    assert config.origins["num.network.threads"] == f"{path}:3"
    assert [str(warning) for warning in loaded.warnings] == [
        f"-o: num.partitions given here beats the one given in {path}:2",
        f"-o: num.io.threads given here beats the one given in {path}:1",
        "--handlers: num.io.threads given here beats the one given in -o",
    ]


def test_every_problem_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# comment\nnum.partition=3\nnum.io.threads=none\n\nlisteners=OTHER://:9093\n")
    assert problems(path=path).splitlines() == [
        f"{path}:2: unknown setting num.partition; did you mean num.partitions?",
        f"{path}:3: Invalid value none for configuration num.io.threads: Not a number of type INT",
        f"{path}:5: listeners: listener OTHER has no security protocol; map it in "
        "listener.security.protocol.map, for example OTHER:PLAINTEXT",
    ]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("confluent.metrics.reporter.topic.replicas=1", ""),
        ("my.plugin.key=1", ""),
        ("controller.quorum.voter=1@h:1", "; did you mean controller.quorum.voters?"),
        ("log.flush.interval=3", "; did you mean log.flush.interval.ms?"),
    ],
)
def test_a_key_that_nobody_has_is_a_warning_in_a_file_as_in_kafka(
    tmp_path: Path, line: str, hint: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"{line}\n")
    key = line.partition("=")[0]
    (warning,) = load(path).warnings
    has_none = "has no effect: neither Kafka nor mpbroker has such a setting"
    assert str(warning) == f"{path}:1: {key} {has_none}{hint}"
    assert f"-o: unknown setting {key}{hint}" in problems(line)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("log.flush.polcy", "log.flush.policy"),
        ("log.journal.size", "log.journal.bytes"),
        ("handler.hang.timeout", "handler.hang.timeout.ms"),
        ("nod.id", "node.id"),
        ("log_dirs", "log.dirs"),
        ("log.retention.hour", "log.retention.hours"),
        ("super.user", "super.users"),
        ("ssl.client.autth", "ssl.client.auth"),
    ],
)
def test_a_misspelt_key_is_an_error_wherever_it_stands(tmp_path: Path, key: str, meant: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"{key}=1\n")
    assert problems(path=path) == f"{path}:1: unknown setting {key}; did you mean {meant}?"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num.partitions", "'num.partitions' is not key=value"),
        ("num.partitions=0", "Value must be at least 1"),
        ("num.partitions=1_000", "Not a number of type INT"),
        ("num.partitions=2147483648", "Not a number of type INT"),
        ("num.partitions=" + "9" * 5000, "Not a number of type INT"),
        ("auto.create.topics.enable=yes", "Expected value to be either true or false"),
        ("compression.type=brotli", "String must be one of: uncompressed"),
        ("compression.gzip.level=0", "between 1 and 9, or equal to -1"),
        ("log.cleaner.min.cleanable.ratio=1.5", "Value must be no more than 1"),
        ("log.cleaner.min.cleanable.ratio=half", "Not a number of type DOUBLE"),
        ("log.cleanup.policy=delete,shred", "Values must be among: compact, delete"),
        ("log.flush.policy=never", "String must be one of: group, os"),
        ("num.io.threads=64", "no more than 32: here it is a number of processes"),
        ("num.network.threads=17", "no more than 16: here it is a number of processes"),
        ("log.retention.ms=0", "Value must be unlimited"),
        ("log.dirs=/a,/a", "must not be duplicated"),
        ("log.dirs=/a,,/b", "must not be empty"),
        ("log.dirs=", "must name a directory"),
        ("log.dirs=" + ",".join(f"/data/{n}" for n in range(65)), "a directory, and 64 at most"),
        ("log.dirs=~no.such.user/a", "~no.such.user/a is not in any user's home"),
        ("fetch.max.bytes=10", "Value must be at least 1024"),
        ("queued.max.request.bytes=5", "must be at least socket.request.max.bytes"),
        ("default.replication.factor=3", "mpbroker.replication.factor.clamp=true"),
        ("min.insync.replicas=2", "mpbroker.replication.factor.clamp=true"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", "clients cannot connect to 0.0.0.0"),
        ("advertised.listeners=SSL://h:1", "has SSL, which is not in listeners"),
        ("listeners=SSL://h:1", "SSL (SSL) has no certificate: set listener.name.ssl.ssl.keystore.location"),
        ("listeners=SASL_PLAINTEXT://h:1", "enables GSSAPI, which is not built"),
        ("process.roles=controller", "must contain broker"),
        ("ssl.client.auth=sometimes", "String must be one of: none, requested, required"),
        ("ssl.engine.factory.class=a.B", "cannot be honoured: TLS and SASL here have no such setting"),
        ("listener.name.internal.ssl.client.auth=none", "listener INTERNAL does not exist"),
        ("listener.name.plaintext.num.network.threads=1", "cannot be given for a single listener"),
        ("ssl.keystore.password=changeit", "a command line can be read by everybody"),
        ("listener.name.x.plain.sasl.jaas.config=a", "a command line can be read by everybody"),
        ("connection.failed.authentication.delay.ms=600000", "must be below connections.max.idle.ms"),
        ("authorizer.class.name=kafka.Foo", "the only authorizer is org.apache.kafka.metadata"),
        ("super.users=ann", "ann is not of the form Type:name"),
        (
            "admin.listener.names=INSIDE",
            "admin.listener.names: listener INSIDE does not exist; there are PLAINTEXT",
        ),
        ("admin.listener.names=PLAINTEXT,", "Configuration values must not be empty"),
        ("audit.log.level=DEBUG", "String must be one of: INFO, WARN, OFF"),
        ("audit.log.format=xml", "String must be one of: text, json"),
        ("audit.log.file=~nobody-of-this-name/audit.log", "is not in any user's home"),
        ("completely.unlike.anything=1", "unknown setting completely.unlike.anything"),
    ],
)
def test_refused(override: str, message: str) -> None:
    assert message in problems(override)


def test_listeners_for_administration() -> None:
    two = "listeners=PLAINTEXT://h:1,LOCAL://unix:/run/x"
    names = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT"
    config = load(None, [two, names, "admin.listener.names= local ,Local"]).config
    assert config.admin_listener_names == ("LOCAL",)
    assert (config.may_administer("LOCAL"), config.may_administer("PLAINTEXT")) == (True, False)
    everywhere = load(None, [two, names, "admin.listener.names="]).config
    assert everywhere.may_administer("PLAINTEXT")


def test_the_audit_log_is_where_the_broker_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, ["audit.log.file=a.log"]).config.audit_log_file == str(tmp_path / "a.log")
    assert load(None, ["audit.log.file="]).config.audit_log_file == ""


def test_the_clamp_allows_settings_of_clusters() -> None:
    overrides = ["default.replication.factor=3", "min.insync.replicas=2"]
    config = load(None, [*overrides, "mpbroker.replication.factor.clamp=true"]).config
    assert (config.default_replication_factor, config.min_insync_replicas) == (3, 2)


def test_a_broker_has_so_many_listeners_and_no_more() -> None:
    def overrides(count: int) -> list[str]:
        numbers = range(1, count + 1)
        listeners = ",".join(f"A{n}://h:{n}" for n in numbers)
        protocols = ",".join(f"A{n}:PLAINTEXT" for n in numbers)
        return [f"listeners={listeners}", f"listener.security.protocol.map={protocols}"]

    assert len(load(None, overrides(256)).config.listeners) == 256
    assert "listeners has 257 entries; a broker serves at most 256" in problems(*overrides(257))


def test_names_of_the_protocol_map_have_settings_before_they_are_listeners() -> None:
    config = load(
        None,
        [
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LATER:SSL",
            "listener.name.later.ssl.keystore.location=/etc/later.pem",
            "listener.name.later.max.connections=7",
        ],
    ).config
    assert config.security_of("LATER").ssl_keystore_location == "/etc/later.pem"
    assert config.listener_limits["LATER"].max_connections == 7


def test_advertised_name_must_be_a_listener() -> None:
    overrides = ["listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT", "listeners=A://:1"]
    assert "has B, which is not in listeners" in problems(*overrides, "advertised.listeners=B://h:1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("group.share.max.size=1", "share groups are not built yet"),
        (f"{PROTOCOLS}=classic,consumer,streams", f"streams in {PROTOCOLS} has no effect"),
        ("ssl.protocol=TLSv1.3", "ssl.enabled.protocols lists the accepted versions"),
        ("replica.lag.time.max.ms=1", "single node"),
        ("background.threads=4", "no such setting"),
        ("log.preallocate=true", "segments grow as they are written"),
        ("unclean.leader.election.enable=true", "never lags"),
        ("log.flush.start.offset.checkpoint.interval.ms=1", "written whenever they move"),
        ("security.inter.broker.protocol=SSL", "single node without replicas"),
    ],
)
def test_warned(override: str, message: str) -> None:
    (warning,) = load(None, [override]).warnings
    assert message in str(warning)


CONSUMER = "group.consumer."


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("session.timeout.ms=44999", "group.consumer.session.timeout.ms=44999 must be greater than or equal"),
        ("max.session.timeout.ms=44999", "greater than or equal to group.consumer.min.session.timeout.ms=45"),
        (
            "max.session.timeout.ms=44999",
            ".session.timeout.ms=45000 must be less than or equal to group.cons",
        ),
        ("heartbeat.interval.ms=15001", "less than or equal to group.consumer.max.heartbeat.interval.ms=150"),
        (
            "assignment.interval.ms=15001",
            "less than or equal to group.consumer.max.assignment.interval.ms=15",
        ),
        ("min.assignment.interval.ms=1001", "assignment.interval.ms=1000 must be greater than or equal to"),
        ("min.session.timeout.ms=0", "Value must be at least 1"),
        ("max.size=0", "Value must be at least 1"),
        ("regex.refresh.interval.ms=9999", "Value must be at least 10000"),
        ("assignors=", "Configuration must not be empty"),
        ("assignors=uniform,sticky", "Java plug-ins cannot be loaded; sticky is none of uniform, range"),
        ("assignors=range,range", "must not be duplicated"),
        (f"assignors=range,{ASSIGNOR_CLASS}.RangeAssignor", "An assignor is named twice"),
        ("migration.policy=sideways", "must be one of (case insensitive): bidirectional, upgrade"),
    ],
)
def test_settings_of_the_consumer_protocol_that_kafka_refuses(override: str, message: str) -> None:
    assert message in problems(CONSUMER + override)


def test_a_session_of_the_consumer_protocol_outlasts_a_heartbeat() -> None:
    least = f"{CONSUMER}min.session.timeout.ms=1"
    equal = problems(least, f"{CONSUMER}session.timeout.ms=5000")
    assert "heartbeat.interval.ms=5000 must be less than group.consumer.session.timeout.ms=5000" in equal
    assert load(None, [least, f"{CONSUMER}session.timeout.ms=5001"])


def test_the_rebalance_protocols() -> None:
    assert load().config.group_coordinator_rebalance_protocols == ("classic", "consumer")
    assert "Disabling the 'classic' protocol is not supported" in problems(f"{PROTOCOLS}=consumer")
    assert "must be among: consumer, classic" in problems(f"{PROTOCOLS}=classic,CONSUMER")


@pytest.mark.parametrize(
    ("policy", "upgrade", "downgrade"),
    [
        ("Bidirectional", True, True),
        ("UPGRADE", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_a_policy_of_migration_in_any_case(policy: str, upgrade: bool, downgrade: bool) -> None:
    config = load(None, [f"{CONSUMER}migration.policy={policy}"]).config
    assert (config.is_upgrade_enabled, config.is_downgrade_enabled) == (upgrade, downgrade)


def test_assignors_have_one_name_and_that_of_their_class() -> None:
    assert load().config.consumer_assignors == ("uniform", "range")
    classes = f"{ASSIGNOR_CLASS}.RangeAssignor,{ASSIGNOR_CLASS}.UniformAssignor"
    config = load(None, [f"{CONSUMER}assignors={classes}"]).config
    assert config.consumer_assignors == ("range", "uniform")
    assert format_value(config.group_consumer_assignors) == classes


def test_the_file_that_comes_with_kafka_starts(tmp_path: Path) -> None:
    """A KRaft broker-and-controller file is usable as it is; what it cannot have here is said."""
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\nlog.dirs=/tmp/logs\noffsets.topic.replication.factor=1\n"
    )
    loaded = load(path)
    assert [str(listener) for listener in loaded.config.listeners] == ["PLAINTEXT://:9092"]
    assert loaded.config.advertised_listeners is not None
    assert [str(listener) for listener in loaded.config.advertised_listeners] == [
        "PLAINTEXT://localhost:9092"
    ]
    found = [warning.key for warning in loaded.warnings]
    assert found == ["controller.quorum.bootstrap.servers", "listeners", "offsets.topic.replication.factor"]


def test_log_dirs_beats_log_dir_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/a,/b\nlog.dir=/c\n")
    loaded = load(path)
    assert loaded.config.log_dirs == ("/a", "/b")
    assert len(loaded.warnings) == 1


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.properties"
    assert problems(path=missing) == f"{missing}: cannot be read: No such file or directory"
    binary = tmp_path / "binary"
    binary.write_bytes(b"a=\xff")
    assert problems(path=binary) == f"{binary}: is not UTF-8 text (byte 2)"
    escape = tmp_path / "escape"
    escape.write_text("\na=\\uzzzz")
    assert problems(path=escape).startswith(f"{escape}:2: ")


def test_problems_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("num.partitions=none\nnum.partitons=1\nlog.workers=0\n")
    said = problems("nothing", path=path).splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{path}:1", f"{path}:2", f"{path}:3", "-o"]


@pytest.mark.parametrize(
    ("overrides", "retention_ms", "roll_ms"),
    [
        ([], 604_800_000, 604_800_000),
        (["log.retention.minutes=2", "log.roll.hours=1"], 120_000, 3_600_000),
        (["log.retention.ms=5", "log.retention.minutes=2", "log.roll.ms=7"], 5, 7),
        (["log.retention.hours=-5"], -1, 604_800_000),
    ],
)
def test_units(overrides: list[str], retention_ms: int, roll_ms: int) -> None:
    config = load(None, overrides).config
    assert (config.retention_ms, config.roll_ms) == (retention_ms, roll_ms)


def test_supported_and_unsupported_keys_do_not_overlap() -> None:
    kafka_own = [key for key in BROKER_KEYS if is_known(key)]
    assert len(kafka_own) > 40
    assert set(BROKER_KEYS) - set(kafka_own) == OUR_OWN
    assert not set(ALIASES) & set(BROKER_KEYS)


def test_our_own_keys_are_documented() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    _, _, section = page.partition("## Settings of its own")
    assert set(re.findall(r"`([a-z.]+)`", section.partition("\n## ")[0])) >= OUR_OWN


# Settings that have done their work when the configuration is checked, and how.
CHECKED_AT_START = {
    "ssl.keystore.type": "there is one type",
    "ssl.truststore.type": "there is one type",
    "min.insync.replicas": "more than the one replica is refused",
}


# Settings that others read by another name alone: that of a property, or of a field of GroupSettings.
READ_AS = {
    **{
        f"group.consumer.{limit}{name}": field_name(name)
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
        for limit in ("", "min.", "max.")
    },
    "group.consumer.assignors": "consumer_assignors",
    "group.consumer.migration.policy": "is_upgrade_enabled",
}
# Settings whose readers are not merged yet.
BEING_BUILT = {
    "group.consumer.migration.policy",
}


def used_outside_config() -> set[str]:
    """Fields that some module of the broker reads. The client's and the commands' settings are others."""
    rooms = [path for path in (ROOT / "mpbroker").iterdir() if path.name not in ("config", "client", "cli")]
    sources = [path for room in rooms for suffix in ("py", "pyx") for path in room.rglob(f"*.{suffix}")]
    return {name for path in sources for name in re.findall(r"\.([a-z][a-z0-9_]*)\b", path.read_text())}


def test_every_key_is_used_or_says_that_it_is_not() -> None:
    """A setting that is taken, shown and forgotten is the worst kind: it looks as if it worked."""
    used = used_outside_config()
    inherited = {name for key in TOPIC_KEYS.values() if field_name(key.name) in used for name in key.synonyms}
    idle = [
        name
        for name, key in BROKER_KEYS.items()
        if READ_AS.get(name, field_name(name)) not in used and name not in inherited and not key.pending
    ]
    assert set(idle) - BEING_BUILT == set(CHECKED_AT_START)
    assert not used & set(map(field_name, READ_AS)), "a group may have its own, a class its own name"


@pytest.mark.parametrize("table", [known.REFUSED, known.HARMLESS, known.WARNED])
def test_every_reason_is_reachable(table: dict[str, str]) -> None:
    foreign = [key for key in known.kafka_defaults() if key not in BROKER_KEYS]
    foreign.append("listener.name.internal.num.network.threads")
    assert [prefix for prefix in table if not any(key.startswith(prefix) for key in foreign)] == []


def test_every_key_is_documented_and_its_default_is_valid() -> None:
    for key in BROKER_KEYS.values():
        assert key.doc.endswith("."), key.name
        if isinstance(key.default, (bool, int, float)):
            assert key.parse(str(key.default)) == key.default
    assert BrokerConfig().num_io_threads >= 2
