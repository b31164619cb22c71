"""The steps of the demo, for its command and for the test that kills it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import pyarrow.dataset as ds  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ROOT: Final = Path(__file__).parents[3]
TEMPLATE: Final = Path(__file__).parent / "template"
SPARK_PIPELINES: Final = Path(sys.executable).parent / "spark-pipelines"
PARTITIONS: Final = 2
CUSTOMERS: Final = 3
LARGE: Final = 500
PATIENCE_S: Final = 600
POLL_S: Final = 0.05
CLIENT_PATIENCE_S: Final = 60
LOG_LINES: Final = 15
_STEP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.+?)\r?$")
_CATALOG: Final = "spark_catalog.default."


class PipelineFailed(Exception):
    """A run failed, or its results do not match the events."""


@dataclass(frozen=True)
class Results:
    """Ids of the cleaned orders (`cleaned`), ids in the sink's topic (`large`), rows of the view `totals`."""

    cleaned: list[int]
    large: list[int]
    totals: list[tuple[str, int, int]]


class Pipeline:
    """A directory with the pipeline's files, and runs of it."""

    def __init__(self, directory: Path, servers: str) -> None:
        """Write the pipeline's files. Replace those of an earlier run: the broker's port may have changed."""
        self.directory = directory
        self._output = directory / "output.log"
        for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
            target = directory / source.relative_to(TEMPLATE)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".py":
                shutil.copyfile(source, target)
                continue
            text = Template(source.read_text(encoding="utf-8"))
            target.write_text(text.substitute(DIRECTORY=directory, SERVERS=servers), encoding="utf-8")

    def run(self, say: Callable[[str], None]) -> None:
        """Run the pipeline to its end; call `say` with each step. Raises PipelineFailed."""
        process = self._started()
        hangs = time.monotonic() + PATIENCE_S
        try:
            with self._output.open(encoding="utf-8", errors="replace", newline="") as output:
                code, text = None, ""
                while code is None:
                    code = process.poll()
                    *lines, text = (text + output.read()).split("\n")
                    for step in filter(None, map(step_of, lines)):
                        say(step)
                    if time.monotonic() > hangs:
                        raise PipelineFailed(f"a run took more than {PATIENCE_S} s, see {self._output}")
                    time.sleep(POLL_S)
        finally:
            _end(process)
        if code != 0:
            lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()
            raise PipelineFailed(
                f"the run ended with {code}, see {self._output}\n" + "\n".join(lines[-LOG_LINES:])
            )

    def run_and_kill(self) -> None:
        """Run the pipeline, and kill it as soon as it has cleaned orders. Raises PipelineFailed."""
        before = self._batches()
        process = self._started()
        hangs = time.monotonic() + PATIENCE_S
        try:
            while self._batches() == before:
                if process.poll() is not None or time.monotonic() > hangs:
                    raise PipelineFailed(
                        f"the run that was to be killed did not come so far, see {self._output}"
                    )
                time.sleep(POLL_S)
        finally:
            _end(process)

    def _batches(self) -> int:
        return len(list((self.directory / "warehouse" / "cleaned" / "_spark_metadata").glob("[0-9]*")))

    def _started(self) -> subprocess.Popen[bytes]:
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [str(SPARK_PIPELINES), "run"],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        given = {
            "PATH": f"{SPARK_PIPELINES.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Spark's own way to have its Connect server on a free port, instead of 15002.
            "SPARK_TESTING": "1",
        }
        return {**os.environ, **given}


def step_of(line: str) -> str | None:
    """Return the step in a line that spark-pipelines printed, or None. A progress bar may precede it."""
    found = _STEP.search(line)
    return found[1].rstrip(".").replace(_CATALOG, "") if found else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started: Python, and the JVM."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def produce(servers: str, count: int) -> int:
    """Add `count` events to the topic `orders`, each tenth invalid. Return how many events the topic has."""
    admin = AdminClient({"bootstrap.servers": servers})
    for topic, partitions in (("orders", PARTITIONS), ("large-orders", 1)):
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(CLIENT_PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "orders"})
    try:
        first = sum(
            consumer.get_watermark_offsets(TopicPartition("orders", number), CLIENT_PATIENCE_S)[1]
            for number in range(PARTITIONS)
        )
    finally:
        consumer.close()
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce("orders", event(number), partition=number % PARTITIONS)
    if producer.flush(CLIENT_PATIENCE_S):
        raise PipelineFailed("the broker did not acknowledge all events")
    return first + count


def event(number: int) -> bytes:
    """Return an order, or an invalid event."""
    if not is_order(number):
        return b"not an order"
    return json.dumps({"id": number, "customer": f"c{number % CUSTOMERS}", "amount": amount(number)}).encode()


def is_order(number: int) -> bool:
    return number % 10 != 9


def amount(number: int) -> int:
    return 1 + number * 37 % 1000


def results(directory: Path, servers: str) -> Results:
    """Return the content of the tables and of the sink's topic."""
    cleaned = _files(directory / "warehouse" / "cleaned").to_table(columns=["id"])["id"].to_pylist()
    rows = _files(directory / "warehouse" / "totals").to_table().to_pylist()
    totals = sorted((row["customer"], row["orders"], row["amount"]) for row in rows)
    return Results(sorted(cleaned), sorted(_consumed(servers)), totals)


def _files(table: Path) -> ds.Dataset:
    """Return a table's valid files: those that its `_spark_metadata` lists, or all if it has none."""
    log = sorted((table / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.stem))
    if not log:
        return ds.dataset(table)
    whole = [path for path in log if path.suffix == ".compact"]
    wanted = log[log.index(whole[-1]) :] if whole else log
    lines = [line for path in wanted for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return ds.dataset([json.loads(line)["path"].removeprefix("file://") for line in lines])


def _consumed(servers: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "large",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition("large-orders", 0, 0)])
        while (message := consumer.poll(CLIENT_PATIENCE_S)) is not None:
            error = message.error()
            if error is None:
                found.append(int(json.loads(message.value() or b"")["id"]))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()
    raise PipelineFailed("topic large-orders cannot be read to its end")


def check(found: Results, events: int) -> None:
    """Check the results. Raises PipelineFailed if an order is missing or there twice."""
    orders = [number for number in range(events) if is_order(number)]
    if found.cleaned != orders:
        raise PipelineFailed(f"table cleaned has {len(found.cleaned)} rows, not each of {len(orders)} once")
    large = [number for number in orders if amount(number) >= LARGE]
    if found.large != large:
        raise PipelineFailed(
            f"topic large-orders has {len(found.large)} records, not each of {len(large)} once"
        )
    sums = []
    for customer in range(CUSTOMERS):
        mine = [amount(number) for number in orders if number % CUSTOMERS == customer]
        sums.append((f"c{customer}", len(mine), sum(mine)))
    if found.totals != sums:
        raise PipelineFailed(f"view totals is {found.totals}, not {sums}")
