"""The HTTP port of a running broker: what Prometheus scrapes, and what deaths of processes do to it."""

from __future__ import annotations

import gzip
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from mpbroker.exporter import mpbroker_metrics, partition_metrics
from mpbroker.ipc.control_client import ControlClient
from mpbroker.observe.live import LiveBroker
from mpbroker.observe.samples import Health
from mpbroker.testing import Broker
from tests.exporter.conftest import SETTINGS, Answer, Http
from tests.support import client_tools
from tests.support.group_members import commit, member
from tests.support.http_broker import pids, replace
from tests.support.polling import PATIENCE_S, until
from tests.support.produced import produce
from tests.support.programs import loaded, ran, stopped
from tests.support.threads import concurrently

# Names that Kafka's and kafka_exporter's users know, which promtool would choose otherwise.
INHERITED = {
    "kafka_consumergroup_current_offset_sum",
    "kafka_consumergroup_lag_sum",
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "kafka_server_group_coordinator_metrics_consumer_group_count",
    "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count",
    "kafka_server_group_coordinator_metrics_group_count",
    "kafka_server_socket_server_metrics_connection_count",
    "kafka_server_socket_server_metrics_expired_connections_killed_count",
}
TOPICS = "kafka_server_brokertopicmetrics_"


def test_a_scrape_has_what_was_done(broker: Broker, http: Http) -> None:
    topic = broker.create_topic()
    produce(broker.bootstrap_servers, topic, ["v"] * 7)
    until(lambda: http.value(f"{TOPICS}messagesin_total", topic=topic) == 7, "the records are counted")
    found = http.samples()

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value(f"{TOPICS}bytesin_total", topic=topic) > 14
    assert value("kafka_topic_partition_current_offset", topic=topic, partition="0") == 7
    assert value("kafka_topic_partition_leader", topic=topic, partition="0") == 1
    assert value("kafka_log_log_logendoffset", topic=topic, partition="0") == 7
    assert value("kafka_network_requestmetrics_totaltimems_count", request="Produce") > 0
    assert value("mpbroker_request_duration_seconds_count", request="Produce") > 0
    assert value("mpbroker_log_commit_duration_seconds_count") > 0
    assert value("mpbroker_process_up", process="log 0") == 1
    assert value("mpbroker_process_pss_bytes", process="exporter") > 0
    assert value("mpbroker_process_cpu_seconds_total", process="supervisor") > 0
    assert value("mpbroker_ring_waiting", process="handler 0") >= 0
    assert value("mpbroker_ready") == 1


def test_every_family_has_a_word_about_it_and_promtool_is_content(broker: Broker, http: Http) -> None:
    topic = broker.create_topic()
    produce(broker.bootstrap_servers, topic, ["v"] * 1)
    commit(broker.bootstrap_servers, "lint", topic, {0: 1})
    page = http.get("/metrics")
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    promtool = client_tools.program("promtool")
    found = subprocess.run([promtool, "check", "metrics"], input=page.body, capture_output=True, check=False)
    assert found.returncode in (0, 3), found.stderr
    complaints = (found.stdout + found.stderr).decode().splitlines()
    assert [line for line in complaints if line.split()[0] not in INHERITED] == []
    page_of_docs = (Path(__file__).parents[2] / "docs" / "MONITORING.md").read_text()
    assert {name for name in INHERITED if f"`{name}`" not in page_of_docs} == set()


def test_all_families_that_are_documented_are_there(broker: Broker, http: Http) -> None:
    topic = broker.create_topic()
    produce(broker.bootstrap_servers, topic, ["v"] * 1)
    wanted = {one.name for one in (*mpbroker_metrics.declared(), *partition_metrics.FAMILIES)}
    # Sizes are measured twice a minute, and when the broker starts.
    late = {"kafka_log_log_size", "kafka_log_log_numlogsegments"}
    others = {name for name in wanted if name.startswith(("mpbroker_standby_", "mpbroker_table_"))}

    def missing() -> set[str]:
        page = http.get("/metrics").text
        return wanted - late - others - set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))

    with member(broker.bootstrap_servers, "documented", topic) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        until(lambda: not missing(), "all of them are there")


def test_the_lag_of_a_group_follows_its_commits(broker: Broker, http: Http) -> None:
    topic = broker.create_topic()
    produce(broker.bootstrap_servers, topic, ["v"] * 10)
    lag = {"consumergroup": "follows", "topic": topic, "partition": "0"}
    for offset in (3, 9):
        commit(broker.bootstrap_servers, "follows", topic, {0: offset})
        until(
            lambda wanted=10 - offset: http.value("kafka_consumergroup_lag", **lag) == wanted,
            "the lag is told",
        )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_consumer_groups(["follows"])["follows"].result()
    until(lambda: http.value("kafka_consumergroup_lag", **lag) is None, "a group that is gone has no lag")


def test_members_and_rebalances_of_the_consumer_protocol_are_told(broker: Broker, http: Http) -> None:
    topic = broker.create_topic()
    rebalances = "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count"
    before = http.value(rebalances)
    with member(broker.bootstrap_servers, "modern", topic, group_protocol="consumer"):
        until(lambda: http.value("kafka_consumergroup_members", consumergroup="modern") == 1, "a member")
        assert (http.value(rebalances) or 0) > (before or 0)


def test_pages_are_zipped_for_those_who_ask(http: Http) -> None:
    answer = http.get("/metrics", accept_encoding="deflate, gzip;q=0.8")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body).startswith(b"# HELP ")
    assert http.get("/metrics", accept_encoding="gzip;q=0").body.startswith(b"# HELP ")


def test_paths_and_methods(http: Http) -> None:
    assert http.get("/").status == 200
    assert http.get("/nothing").status == 404
    assert http.get("/metrics?x=1").status == 200
    with socket.create_connection(http.place) as sock:
        sock.sendall(b"DELETE /metrics HTTP/1.0\r\n\r\n")
        assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 405")
    with socket.create_connection(http.place) as sock:
        sock.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        answer = sock.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\n")


def test_a_running_broker_is_ready_and_healthy(http: Http) -> None:
    for path, name in (("/readyz", "ready"), ("/healthz", "healthy")):
        assert http.get(path).text == "ok\n"
        answer = http.get(path, accept="application/json")
        assert answer.text == f'{{"{name}":true,"problems":[]}}\n'


@contextmanager
def asking(http: Http) -> Iterator[list[Answer | Exception]]:
    """Scrape without a pause in another thread; yields the answers, which grow."""
    answers: list[Answer | Exception] = []

    def ask(ends: threading.Event) -> None:
        while not ends.is_set():
            try:
                answers.append(http.get("/metrics"))
            except (OSError, HTTPException) as error:
                answers.append(error)

    with concurrently(ask):
        yield answers


@pytest.mark.parametrize(
    "name", ["log 0", "coordinator", "handler 0", "processor 0", "acceptor", "scrubber", "cleaner"]
)
def test_a_scrape_is_clean_whoever_dies(own_broker: Broker, name: str) -> None:
    http = Http(own_broker)
    topic = own_broker.create_topic()
    produce(own_broker.bootstrap_servers, topic, ["v"] * 5)
    commit(own_broker.bootstrap_servers, "stays", topic, {0: 2})
    lag = {"consumergroup": "stays", "topic": topic, "partition": "0"}
    with asking(http) as answers:
        replace(own_broker, name)
        seen = len(answers)
        until(lambda: len(answers) > seen + 3, "scrapes go on")
    for answer in answers:
        assert isinstance(answer, Answer), answer
        assert answer.status == 200, answer.text
        assert answer.body.endswith(b"\n")
    until(lambda: http.value("mpbroker_process_up", process=name) == 1, "its successor is up")
    assert http.value("kafka_consumergroup_lag", **lag) == 3
    until(lambda: http.get("/readyz").status == 200, "the broker is ready again")


def test_a_broker_that_dies_answers_whole_or_not_at_all(own_broker: Broker) -> None:
    http = Http(own_broker)
    with asking(http) as answers:
        until(lambda: len(answers) > 1, "scrapes are answered")
        os.kill(own_broker.pid, signal.SIGKILL)
        until(lambda: isinstance(answers[-1], Exception), "nobody answers any more")
    for answer in answers:
        if isinstance(answer, Answer):
            assert (answer.status, answer.body[-1:]) == (200, b"\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(http.place)
    own_broker.kill()


def test_an_exporter_that_dies_is_replaced_and_nobody_else_notices(own_broker: Broker) -> None:
    http = Http(own_broker)
    topic = own_broker.create_topic()
    produce(own_broker.bootstrap_servers, topic, ["v"] * 5)
    commit(own_broker.bootstrap_servers, "again", topic, {0: 2})
    with asking(http) as answers:
        for _ in range(3):
            replace(own_broker, "exporter")
            seen = len(answers)
            until(lambda n=seen: len(answers) > n + 2, "scrapes go on")
    # One that was being answered is cut off, the others have waited for the successor.
    assert sum(isinstance(answer, Exception) for answer in answers) <= 3, answers
    assert all(answer.status == 200 for answer in answers if isinstance(answer, Answer))
    assert http.value("kafka_consumergroup_lag", consumergroup="again", topic=topic, partition="0") == 3
    assert "connection closed" not in own_broker.logs()


def test_a_broker_lives_on_with_an_exporter_that_cannot_live(own_broker: Broker) -> None:
    http = Http(own_broker)
    killed: set[int] = set()

    def kill_next() -> bool:
        pid = pids(own_broker)["exporter"]
        if pid and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return len(killed) == 3

    until(kill_next, "it is killed again and again")
    produce(own_broker.bootstrap_servers, own_broker.create_topic(), ["v"] * 1)
    until(lambda: http.get("/healthz").status == 200, "it is back")


@pytest.fixture
def patient_broker() -> Iterator[Broker]:
    """A broker that replaces no process that hangs."""
    with Broker({**SETTINGS, "handler.hang.timeout.ms": "3600000"}) as running:
        yield running


def test_nobody_waits_for_an_exporter_that_stands_still(patient_broker: Broker) -> None:
    """Settings change and a dead handler is replaced while it does."""
    before = pids(patient_broker)
    exporter = psutil.Process(before["exporter"])
    with stopped(exporter.pid):
        admin = AdminClient({"bootstrap.servers": patient_broker.bootstrap_servers})
        entry = ConfigEntry("log.retention.ms", "77", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        (altered,) = admin.incremental_alter_configs([resource]).values()
        altered.result(PATIENCE_S)

        def killed() -> int:
            pid = pids(patient_broker)["handler 0"]
            # The change replaces handlers: this one may have gone since it was asked for, and be 0 until
            # its successor is there.
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    return pid
            return 0

        handler = until(killed, "a handler is killed")
        until(lambda: pids(patient_broker)["handler 0"] not in (handler, 0), "it is replaced")
        assert pids(patient_broker)["exporter"] == exporter.pid
        assert exporter.status() == psutil.STATUS_STOPPED
    until(lambda: Http(patient_broker).get("/readyz").status == 200, "it goes on")


def test_a_stopped_broker_says_so_until_the_end(own_broker: Broker) -> None:
    http = Http(own_broker)
    os.kill(pids(own_broker)["log 0"], signal.SIGSTOP)
    try:
        os.kill(own_broker.pid, signal.SIGTERM)
        until(lambda: http.get("/readyz").status == 503, "it is not ready any more")
        assert "does not serve" in http.get("/readyz").text
        assert http.get("/metrics").status == 200
    finally:
        _continue(own_broker)


def _continue(broker: Broker) -> None:
    group = os.getpgid(broker.pid)
    os.killpg(group, signal.SIGCONT)
    until(lambda: not broker.is_running, "it stops")


def test_nothing_of_it_is_loaded_when_it_is_off() -> None:
    code = "from mpbroker.supervisor import main, roles; from mpbroker.cli import main as cli\n"
    code += "roles.prepare(has_exporter=False)"
    assert loaded(code, "h11", "prometheus_client", "mpbroker.exporter") == []


def test_a_name_that_was_led_here_reads_nothing(http: Http) -> None:
    for path in ("/metrics", "/readyz", "/healthz", "/", "/api/about"):
        answer = http.get(path, host="evil.example")
        assert answer.status == 421
        assert answer.text == (
            "this broker is not called 'evil.example': use its address, or add the name to http.hosts\n"
        ), path
    for path in ("/metrics", "/readyz", "/healthz", "/api/live"):
        assert http.get(path, origin="http://evil.example").status == 403
        assert http.get(path, sec_fetch_site="cross-site").status == 403
        assert http.get(path, host=socket.gethostname()).status == 200
    assert http.get("/", sec_fetch_site="cross-site").status != 403, "a link to the console"


def test_a_port_that_is_taken_refuses_the_start(http: Http, tmp_path: Path) -> None:
    found = ran(
        [sys.executable, "-m", "mpbroker", "serve", "--http", http.address, "--listeners", "PLAINTEXT://:0"],
        cwd=tmp_path,
    )
    assert found.returncode == 1
    assert f"cannot listen on HTTP://{http.address}: the port is in use" in found.stderr
    assert "choose another port with --http" in found.stderr
    assert not list(tmp_path.iterdir())


def test_the_kernel_ends_it_before_the_brokers_other_processes(broker: Broker) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    there = pids(broker)
    assert score(there["exporter"]) == min(score(there["coordinator"]) + 500, 1000)


def test_a_full_disk_is_seen_wherever_one_looks_and_so_is_its_end(own_broker: Broker) -> None:
    """Check that readiness alone goes by it: a restart would not help. Nobody has to produce for its end."""
    http, log = Http(own_broker), pids(own_broker)["log 0"]
    control = ControlClient(Path(http.pointer.runtime_dir))
    own_broker.create_topic("t")
    producer = Producer({"bootstrap.servers": own_broker.bootstrap_servers, "retries": 0, "log_level": 0})
    errors: list[Any] = []

    def try_it() -> None:
        errors.clear()
        producer.produce("t", bytes(100_000), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE_S) == 0

    def refuses() -> str:
        found = re.search(
            r"^mpbroker_log_dir_refuses_produces\{.*\} (.*)$", http.get("/metrics").text, re.MULTILINE
        )
        assert found
        return found[1]

    live = LiveBroker(control)
    try_it()
    assert errors[0] is None
    assert refuses() == "0.0"
    assert live.sample().broker.health is Health.RUNNING
    unlimited = resource.prlimit(log, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try_it()
    assert errors[0] is not None
    until(lambda: http.get("/readyz").status == 503, "it is not ready")
    said = http.get("/readyz").text
    assert "produces are refused until there is room" in said
    assert "Make the file system larger" in said
    assert http.get("/healthz").status == 200
    status, seen, page = control.call("status"), live.sample().broker, http.get("/api/live").json
    assert (status["log_dirs"][0]["state"], seen.health) == ("refuses produces", Health.NOT_READY)
    problems = [control.call("ready")["problems"], status["problems"], [seen.note], page["problems"]]
    # How much is free changes from look to look.
    assert [one.partition(" (free")[0] for (one,) in problems] == [said.partition(" (free")[0]] * 4
    health = http.get("/api/health").json
    assert [one["state"] for one in health["log_dirs"]] == ["refuses produces"]
    until(lambda: refuses() == "1.0", "the metric says so")
    # Its partition can be read, and has its leader.
    assert status["offline_partitions"] == health["offline_partitions"] == 0
    resource.prlimit(log, resource.RLIMIT_FSIZE, unlimited)
    until(lambda: http.get("/readyz").status == 200, "it is ready again")
    assert live.sample().broker.health is Health.RUNNING
    assert control.call("status")["problems"] == []
    try_it()
    assert errors[0] is None
