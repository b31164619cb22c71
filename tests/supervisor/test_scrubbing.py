"""A flipped bit in a running broker: found, told, refused, remembered, and forgotten when it is mended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from typer.testing import CliRunner

from mpbroker.cli.main import app
from ops.bench import frames, scenarios
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.flipped_bits import flip
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import served, stop_cleanly
from tests.support.worker_load import pids

RECORDS = 12
VALUE_BYTES = 300_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path / "b", flags=["-o", "log.segment.bytes=1048576"])) as made:
        scenarios.create_topic(made, "t")
        request = frames.produce("t", records=1, value_bytes=VALUE_BYTES)
        with frames.connected(made.address) as connection:
            for _ in range(RECORDS):
                assert frames.exchange(connection, request)[0] == 0
        yield made


def ask(broker: Mpbroker, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        app,
        ["log", "scrub", "--log-dirs", str(broker.log_dir), "--json", *arguments],
        env={"MPBROKER_RUNTIME_DIR": str(broker.runtime_dir)},
    )
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.output)
    return answer


def scrub(broker: Mpbroker) -> dict[str, Any]:
    """A whole pass."""
    ask(broker)
    eventually(lambda: not ask(broker, "--status")["running"], "the scrub ends")
    return ask(broker, "--status")


def read(broker: Mpbroker, offset: int) -> int | None:
    """The offset of the first record that comes; None if it is refused as damaged."""
    consumer = Consumer(
        {
            "bootstrap.servers": "{}:{}".format(*broker.address),
            "group.id": "g",
            "log_level": 0,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition("t", 0, offset)])
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is None:
                found: int = message.offset()
                return found
            if error.code() in (KafkaError.INVALID_MSG, KafkaError._BAD_MSG):
                return None
    finally:
        consumer.close()


def test_the_life_of_a_finding(broker: Mpbroker) -> None:
    path = sorted((broker.log_dir / "t-0").glob("*.log"))[1]
    base = int(path.stem)
    answer = scrub(broker)
    assert (answer["findings"], answer["damaged_ranges"]) == ([], 0)
    assert answer["directories"][0]["last_batches"] > 0

    flip(path, 1000)
    (found,) = scrub(broker)["findings"]
    assert (found["partition"], found["base"], found["position"]) == ("t-0", base, 0)
    assert (found["first"], found["behind"]) == (base, base + 1)
    assert read(broker, base) is None
    assert read(broker, base + 1) == base + 1
    assert read(broker, base - 1) == base - 1
    said = f"{path.parent.name}/{path.name} is damaged from byte 0"
    eventually(lambda: said in broker.output(), "the log says it")

    # Whoever dies: the words stay, and the successor goes on with the file.
    scrubber = pids(broker)["scrubber"]
    os.kill(scrubber, signal.SIGKILL)
    assert read(broker, base) is None
    eventually(lambda: pids(broker)["scrubber"] not in (scrubber, 0), "the scrubber is replaced")
    assert read(broker, base) is None
    assert scrub(broker)["damaged_ranges"] == 1

    stop_cleanly(broker)
    broker.start()
    assert read(broker, base) is None
    assert [one["first"] for one in ask(broker, "--status")["findings"]] == [base]
    flip(path, 1000)
    assert scrub(broker)["findings"] == []
    assert read(broker, base) == base


def test_asking_for_what_is_turned_off_is_an_error(tmp_path: Path) -> None:
    with served(Mpbroker(tmp_path / "b", flags=["-o", "log.scrub.max.bytes.per.second=0"])) as broker:
        result = CliRunner().invoke(
            app, ["log", "scrub"], env={"MPBROKER_RUNTIME_DIR": str(broker.runtime_dir)}
        )
        assert "log.scrub.max.bytes.per.second=0: nothing is scrubbed" in str(result.exception)
        assert ask(broker, "--status")["running"] is False
