"""docs/MIGRATING.md says what works: its commands are run in their order, with its files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import by_partition, sample_records
from tests.support.client_tools import SMALL_JVM, eventually, java_command
from tests.support.committed_offsets import commit_offset, ends, offset_of
from tests.support.forms import long_only
from tests.support.kafka_directory import KafkaDirectory
from tests.support.polling import PATIENCE_S
from tests.support.programs import ran
from tests.support.real_brokers import create_topic, served

PAGE = Path(__file__).parents[2] / "docs" / "MIGRATING.md"
MIRROR = "org.apache.kafka.connect.mirror.MirrorMaker"
COUNT = 40


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found


def commands() -> list[list[str]]:
    lines = "".join(blocks("console")).splitlines()
    return [shlex.split(line.strip().removeprefix("$ ")) for line in lines]


def run(words: list[str], places: dict[str, str]) -> str:
    """Run a command of ours with the places that are here."""
    assert words[0] == "mpbroker"
    here = [places.get(word, word) for word in words[1:]]
    done = ran([sys.executable, "-m", "mpbroker", *here])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_directories_change_hands_as_the_page_says(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path / "data").write()
    properties = tmp_path / "server.properties"
    places = {"/var/lib/kafka": str(kafka.path), "server.properties": str(properties)}
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:9093\n"
        "listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={kafka.path}\n"
    )
    ours = [words for words in commands() if words[1] in ("import", "serve", "export")]
    assert [words[1] for words in ours] == ["import", "import", "serve", "export", "export"]
    printed = [run(words, places) for words in ours]
    assert "would be imported: 1 topic with 2 partitions" in printed[0]
    assert "imported: 1 topic" in printed[1]
    assert "would be exported: 1 topic" in printed[3]
    assert "controller.quorum.bootstrap.servers=localhost:9093" in printed[4]


@contextmanager
def mirrored(source: Broker, target: Broker, directory: Path) -> Iterator[None]:
    """MirrorMaker by the page's file and command."""
    (text,) = blocks("properties")
    text = text.replace("localhost:9092", source.bootstrap).replace("localhost:9192", target.bootstrap)
    # What the page asks for every few seconds, and what MirrorMaker does every ten minutes.
    text = text.replace("seconds=5", "seconds=1")
    text += "refresh.topics.interval.seconds=1\nrefresh.groups.interval.seconds=1\n"
    (file := directory / "mm2.properties").write_text(text)
    (words,) = (words for words in commands() if words[0] == "connect-mirror-maker.sh")
    assert words[1] == "mm2.properties"
    log = directory / "mirror.log"
    with log.open("wb") as output:
        mirror = subprocess.Popen(
            java_command(MIRROR, str(file), *words[2:]), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
        assert mirror.poll() is None, log.read_text()
    finally:
        mirror.kill()
        mirror.wait()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(Kafka(tmp_path_factory.mktemp("kafka"), jvm=SMALL_JVM)) as running:
        create_topic(running.bootstrap, "orders", 2, {"retention.ms": "999999999"})
        confluent_write(running.bootstrap, "orders", sample_records(2, COUNT, seed=5), "none")
        commit_offset(running, "readers", TopicPartition("orders", 0, 7))
        yield running


@long_only("MirrorMaker 2 moves what a page says")
def test_kafka_has_what_is_mirrored(kafka: Broker) -> None:
    assert offset_of(kafka, "readers", "orders") == 7


@long_only("MirrorMaker 2 moves what a page says")
def test_mirrormaker_moves_topics_and_groups_as_the_page_says(kafka: Broker, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with served(Mpbroker(tmp_path / "ours")) as target:
        with mirrored(kafka, target, tmp_path):
            eventually(lambda: is_mirrored(target), "the topic and the group are mirrored")
        theirs, ours = (
            by_partition(confluent_read(one.bootstrap, "orders", 2, COUNT)) for one in (kafka, target)
        )
        assert ours == theirs
        offset = offset_of(target, "readers", "orders")
        assert offset is not None
        assert 0 <= offset <= 7
        places = {"localhost:9192": target.bootstrap}
        rest = [words for words in commands() if words[1] in ("topic", "group")]
        printed = [run(words, places) for words in rest]
        assert "retention.ms" in printed[0]
        assert "orders" in printed[1]
        assert topics_of(target) == {"orders", "__consumer_offsets"}


def topics_of(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE_S).topics)


def is_mirrored(broker: Broker) -> bool:
    """Tell whether all records are there, and the group."""
    if "orders" not in topics_of(broker):
        return False
    if sum(ends(broker, "orders", partition)[0] for partition in (0, 1)) < COUNT:
        return False
    return offset_of(broker, "readers", "orders") is not None
