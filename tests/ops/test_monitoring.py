"""Dashboard and alerts, with the real Prometheus: what they name is there, and it scrapes a broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.pointer import read_pointer
from mpbroker.protocol.table_progress import TableNote, group_of
from mpbroker.reading.group_progress import GroupProgress
from mpbroker.reading.options import parse_options
from mpbroker.testing import Broker
from ops.bench.ports import HOST, free_port
from ops.docs import dashboard
from tests.support import client_tools
from tests.support.group_members import member
from tests.support.polling import PATIENCE_S, until
from tests.support.produced import produce

OPS = Path(__file__).parents[2] / "ops"
PAGE = OPS.parent / "docs" / "MONITORING.md"
SHARED_MEMORY = Path("/dev/shm")
RULES = OPS / "prometheus" / "mpbroker.rules.yml"
METRIC = re.compile(r"\b(?:mpbroker|kafka)_\w+(?!\w*\()")
ALERT = re.compile(r"^ +- alert: (\w+)$", re.MULTILINE)
EXPRESSION = re.compile(r"^ +expr: (.+)$", re.MULTILINE)
# Variables of Grafana, as it fills them in.
FILLED = {"$__rate_interval": "1m", "$instance": ".*", "$topic": ".*", "$consumergroup": ".*"}
# A standby's, and not there before something has failed, or log directories are measured, twice a minute.
LATE = {
    "mpbroker_standby_behind_seconds",
    "kafka_log_log_size",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
}
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: mpbroker, scrape_timeout: 1s, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def expressions() -> list[str]:
    """All expressions of dashboard and alerts."""
    shown = [
        target["expr"] for panel in dashboard.dashboard()["panels"] for target in panel.get("targets", [])
    ]
    for name, text in FILLED.items():
        shown = [expression.replace(name, text) for expression in shown]
    return [*shown, *EXPRESSION.findall(RULES.read_text())]


class Prometheus:
    """The real one, which scrapes a broker every second."""

    def __init__(self, directory: Path, target: str) -> None:
        self.place = f"{HOST}:{free_port()}"
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=target))
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    client_tools.program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self.place}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(
            f"http://{self.place}/api/v1/{path}?{query}", timeout=PATIENCE_S
        ) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression. Raises HTTPError: it is no good expression."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def is_scraping(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return [one["value"][1] for one in self.query('up{job="mpbroker"}')] == ["1"]
        except OSError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    tiered = {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": tmp_path_factory.mktemp("store").as_uri(),
    }
    with Broker({"http.listener": f"{HOST}:0"} | tiered) as running:
        topic = running.create_topic("orders", 3)
        produce(running.bootstrap_servers, topic, ["v"] * 20, partitions=3)
        with member(running.bootstrap_servers, "readers", topic) as consumer:
            assert consumer.consume(1, timeout=PATIENCE_S)
            consumer.commit(asynchronous=False)
            options = {"subscribe": topic, "kafka.bootstrap.servers": running.bootstrap_servers}
            progress = GroupProgress(group_of("lake.orders"), parse_options(options))
            progress.reached({(topic, 0): 3}, metadata=TableNote(rows=3, committed_ms=1).text())
            yield running


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    pointer = read_pointer(broker.log_dir)
    assert pointer is not None
    return pointer.http


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), address)
    try:
        until(running.is_scraping, "Prometheus scrapes the broker")
        yield running
    finally:
        running.stop()


def test_every_metric_of_dashboard_and_alerts_is_served(address: str) -> None:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        page = answer.read().decode()
    there = set(re.findall(r"^([a-z_]+)[{ ]", page, re.MULTILINE))
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) > 30
    assert named - there <= LATE


def test_prometheus_takes_the_scrape_and_every_expression(prometheus: Prometheus) -> None:
    found = {expression: prometheus.query(expression) for expression in expressions()}
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    lag = prometheus.query('sum(kafka_consumergroup_lag{consumergroup="readers"})')
    committed = prometheus.query('sum(kafka_consumergroup_current_offset{consumergroup="readers"})')
    assert committed[0]["value"][1] == "1"
    assert lag
    assert prometheus.query('mpbroker_table_rows{table="lake.orders"}')[0]["value"][1] == "3"
    # What needs no history has an answer at once.
    assert found['min(mpbroker_ready{instance=~".*"})'][0]["value"][1] == "1"
    warnings = prometheus.ask("targets/metadata", metric="mpbroker_ready")
    assert warnings[0]["type"] == "gauge"


def test_prometheus_loads_the_alerts_and_none_fires(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = prometheus.ask("rules")["groups"][0]["rules"]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    until(evaluated, "the alerts are evaluated")
    rules = evaluated()
    assert {rule["name"] for rule in rules} == set(ALERT.findall(RULES.read_text()))
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert [
        rule["name"] for rule in rules if rule["state"] == "firing" and rule["name"] != "MpbrokerDiskFull"
    ] == []


def test_alerts_fire_where_they_should() -> None:
    promtool = client_tools.program("promtool")
    tests = RULES.with_suffix(".test.yml")
    for arguments in (("check", "rules", RULES), ("test", "rules", tests)):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r'alertname="(\w+)"', tests.read_text()))
    assert tested == set(ALERT.findall(RULES.read_text()))


def test_the_example_configuration_is_one() -> None:
    promtool = client_tools.program("promtool")
    done = subprocess.run(
        [promtool, "check", "config", OPS / "prometheus" / "prometheus.yml"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_page_can_be_typed_from(tmp_path: Path) -> None:
    """Run all commands of docs/MONITORING.md, on other ports and from another directory."""
    kafka, http, prometheus = (f"{HOST}:{free_port()}" for _ in range(3))
    commands = re.findall(r"^    (\S.*)$", PAGE.read_text(), re.MULTILINE)
    programs = [command.split()[0] for command in commands]
    assert programs == ["mpbroker", "curl", "curl", "prometheus", "promtool", "mpbroker"]
    bin_directory = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "MPBROKER_RUNTIME_DIR": str(SHARED_MEMORY / f"mpbroker-page-{os.getpid()}"),
        "MPBROKER_BOOTSTRAP_SERVER": kafka,
    }
    shutil.copytree(OPS / "prometheus", tmp_path / "ops" / "prometheus")
    config = tmp_path / "ops" / "prometheus" / "prometheus.yml"
    config.write_text(config.read_text().replace("127.0.0.1:9644", http))
    more = {
        "mpbroker": f" --listeners PLAINTEXT://{kafka} -o log.journal.bytes=1048576",
        "prometheus": f" --web.listen-address={prometheus} --storage.tsdb.path={tmp_path / 'tsdb'}",
    }
    serving: list[subprocess.Popen[bytes]] = []
    try:
        for program, command in zip(programs, commands, strict=True):
            serves = program in more and f"{program} config" not in command
            line = command.replace("127.0.0.1:9644", http) + (more[program] if serves else "")
            with (tmp_path / f"{program}.log").open("ab") as log:
                if serves:
                    run = ["sh", "-c", f"exec {line}"]
                    serving.append(subprocess.Popen(run, cwd=tmp_path, env=environment, stderr=log))
                    url = {"mpbroker": f"http://{http}/readyz", "prometheus": f"http://{prometheus}/-/ready"}
                    until(lambda there=url[program]: _answers(there), f"{program} is ready")
                    continue
                done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout
    finally:
        for process in serving:
            process.terminate()
        codes = [process.wait(PATIENCE_S) for process in serving]
        shutil.rmtree(environment["MPBROKER_RUNTIME_DIR"])
    assert codes == [0, 0]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
