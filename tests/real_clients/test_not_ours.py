"""Log directories that Apache Kafka has made, or has been started on: mpbroker changes nothing in them.

Neither starts on a directory that the other one has open.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import all_apis
from mpbroker.ipc.process import FatalError
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.from_kafka import import_
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.storage.directory_lock import lock_log_dirs
from ops.bench.brokers import Broker, BrokerError, Kafka, Mpbroker, running
from ops.bench.frames import advertised_apis
from ops.docs import not_served
from tests.real_clients.test_groups import poll_until, shares
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import Stored, sample_records
from tests.support.client_tools import SMALL_JVM
from tests.support.committed_offsets import offset_of
from tests.support.file_trees import tree
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, stop_cleanly

TOPIC = "orders"
RECORDS = sample_records(1, 50, seed=1)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def refused(broker: Mpbroker) -> str:
    """What the broker says that does not start, and leaves the directory as it is."""
    before = tree(broker.log_dir)
    with pytest.raises(BrokerError, match="exited with 1 at start"):
        broker.start()
    assert tree(broker.log_dir) == before
    return broker.output()


def filled(broker: Broker) -> list[Stored]:
    """Makes a topic of records; returns how they read."""
    create_topic(broker.bootstrap, TOPIC, 1)
    confluent_write(broker.bootstrap, TOPIC, RECORDS, "none")
    return read(broker)


def read(broker: Broker) -> list[Stored]:
    return confluent_read(broker.bootstrap, TOPIC, 1, len(RECORDS))


def test_kafkas_directory_stays_as_it_is(tmp_path: Path) -> None:
    kafka = Kafka(made(tmp_path / "kafka"), jvm=SMALL_JVM)
    with running(kafka):
        filled(kafka)
        check_our_command_on_groups_of_the_consumer_protocol(kafka)
        check_that_each_api_is_served_or_explained(kafka)
    ours = Mpbroker(kafka.directory)
    said = refused(ours)
    assert f"{ours.log_dir} belongs to Apache Kafka: its controller wrote the record at offset 1 of" in said
    assert f"take everything over with: mpbroker import {ours.log_dir}." in said


def check_our_command_on_groups_of_the_consumer_protocol(kafka: Kafka) -> None:
    """Of KIP-848, as Apache Kafka answers."""
    cli = OwnCli(kafka.bootstrap)
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "group.protocol": "consumer"}
    with closing(Consumer(settings)) as reader:
        reader.subscribe([TOPIC])
        poll_until(lambda: shares(reader) == [{0}], reader)
        reader.commit(offsets=[TopicPartition(TOPIC, 0, 4)], asynchronous=False)
        (row,) = cli("group", "list", "--json").json
        assert row == {"group": "g", "type": "consumer", "state": "Stable", "protocol_type": "consumer"}
        (seen,) = cli("group", "describe", "--json").json
        assert (seen["type"], seen["state"], seen["protocol"]) == ("consumer", "Stable", "uniform")
        assert seen["members"][0]["partitions"] == [[TOPIC, 0]]
        (part,) = seen["partitions"]
        assert (part["committed"], part["lag"]) == (4, part["end_offset"] - 4)
        refused = cli("group", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute", code=1)
        assert "group g is active (Stable, 1 member(s))" in refused.err
    cli("group", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute")
    assert offset_of(kafka, "g", TOPIC) == 0
    assert cli("group", "delete-offsets", "g", "--topic", TOPIC).out == f"deleted the offset of {TOPIC}-0\n"
    assert cli("group", "delete", "g").out == "deleted group g\n"


def check_that_each_api_is_served_or_explained(kafka: Kafka) -> None:
    """COMPATIBILITY counts the APIs of Kafka's brokers, and names those that are not served."""
    theirs = advertised_apis(kafka.address)
    ours = {api.key: (api.advertised_from, api.latest) for api in all_apis().values()}
    # Kafka needs a plug-in for these.
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    assert theirs.keys() | telemetry == set(ApiKey) - not_served.OF_CONTROLLERS
    differ = {key for key, versions in ours.items() if theirs.get(key, versions) != versions}
    assert differ == {ApiKey.ADD_PARTITIONS_TO_TXN}


def test_kafka_on_our_directory_is_told_and_taken_back(tmp_path: Path) -> None:
    """Without an export too: the metadata log begins with what Kafka's controller asks for."""
    ours = Mpbroker(made(tmp_path / "ours"))
    ours.start()
    written = filled(ours)
    kafka = Kafka(ours.directory, jvm=SMALL_JVM)
    with pytest.raises(BrokerError, match=r"exited with 1 at start(.|\n)*Failed to acquire lock on file"):
        kafka.start()
    assert read(ours) == written
    stop_cleanly(ours)
    with running(kafka):
        assert read(kafka) == written
        assert kafka.process is not None
        locked = rf"locked by another broker \(Apache Kafka, pid {kafka.process.pid}\)"
        with pytest.raises(FatalError, match=locked):
            lock_log_dirs(structs.replace(BrokerConfig(), log_dirs=(str(kafka.log_dir),)))
        with pytest.raises(CannotMove, match=r"open \(Apache Kafka, pid"):
            import_([kafka.log_dir], is_dry=False)
    said = refused(ours)
    assert f"Apache Kafka has used {ours.log_dir} since mpbroker" in said
    advice = re.search(r"take everything over with: (mpbroker import .*)\. Nothing", said)
    assert advice is not None, said
    command = [sys.executable, "-m", *shlex.split(advice[1])]
    subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    with running(ours):
        assert read(ours) == written
