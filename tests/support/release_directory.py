"""Makes the data directories that later versions must open: python -m tests.support.release_directory 0.1.0

`releases/<version>.tar.xz` has two log directories of that version, and `releases/<version>.json` what is in
them. The broker of `stopped` was stopped, with a transaction open. That of `killed` was killed, and its
topic's segments have lost everything, as a power cut may leave them: the records are in the journal alone.
Run it on the commit of a release, once, and commit what it makes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mpbroker.ipc.pointer import POINTER_NAME
from ops.bench.brokers import Mpbroker

RELEASES = Path(__file__).with_name("releases")
PATIENCE_S = 60
SETTINGS = {
    # Records and offsets are as old as the release.
    "log.retention.ms": "-1",
    "offsets.retention.minutes": str(2**31 - 1),
    "transactional.id.expiration.ms": str(2**31 - 1),
    "producer.id.expiration.ms": str(2**31 - 1),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.journal.bytes": str(1 << 20),
    "log.reserve.bytes": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.segment.bytes": str(1 << 20),
}
ANY_RULE = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
KEYS, ROUNDS, GONE = 10, 5, 3
"""Of topic compacted: keys, values of each, and keys whose last value is a tombstone."""
DELETED_BELOW = 7


def flags() -> list[str]:
    return [word for name, value in SETTINGS.items() for word in ("-o", f"{name}={value}")]


def done(futures: Iterable[Any]) -> None:
    for future in futures:
        future.result(PATIENCE_S)


def fill(bootstrap: str) -> Producer:
    """Write everything. Return the producer whose transaction is open."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    compacted = {"cleanup.policy": "compact", "min.compaction.lag.ms": "1000"}
    topics = [NewTopic(codec, PARTITIONS, 1) for codec in CODECS]
    topics += [NewTopic("compacted", 1, 1, config=compacted), NewTopic("cut", 1, 1), NewTopic("paid", 2, 1)]
    done(admin.create_topics(topics).values())
    for codec in CODECS:
        _write_codec(bootstrap, codec)
    _write_compacted(bootstrap)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        plain.produce("cut", b"%d" % number)
    plain.flush(PATIENCE_S)
    done(admin.delete_records([TopicPartition("cut", 0, DELETED_BELOW)]).values())
    _commit_offsets(bootstrap)
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    done(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("ann", scram, b"secret")]).values())
    rule = (ResourceType.TOPIC, "paid", ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ)
    done(admin.create_acls([AclBinding(*rule, AclPermissionType.ALLOW)]).values())
    return _transactions(bootstrap)


def _write_codec(bootstrap: str, codec: str) -> None:
    """Write some batches with headers, and one record so large that a segment ends."""
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True}
    producer = Producer({**settings, "message.max.bytes": 2_000_000})
    for number in range(60):
        large = b"x" * 700_000 if number in (20, 40) else b""
        value = None if number % 10 == 9 else b"value %d " % number + large
        headers: list[tuple[str, str | bytes | None]] = [("n", str(number)), ("none", None)]
        producer.produce(codec, value, b"key %d" % number, number % PARTITIONS, headers=headers)
        if number % 7 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def _write_compacted(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for version in range(ROUNDS):
        for key in range(KEYS):
            is_last = version == ROUNDS - 1
            producer.produce("compacted", None if is_last and key < GONE else b"%d" % version, b"%d" % key)
        assert producer.flush(PATIENCE_S) == 0


def _commit_offsets(bootstrap: str) -> None:
    for group, offset in (("billing", 5), ("audit", 30)):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        offsets = [TopicPartition("none", part, offset - part, metadata=f"at {offset}") for part in range(2)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def _transactions(bootstrap: str) -> Producer:
    producer = None
    for name, end in (("committed", "commit"), ("aborted", "abort"), ("open", "")):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for number in range(4):
            producer.produce("paid", f"{name} {number}".encode(), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        if end == "commit":
            producer.commit_transaction(PATIENCE_S)
        elif end == "abort":
            producer.abort_transaction(PATIENCE_S)
    assert producer is not None
    return producer


# ---- what is there


def contents(bootstrap: str) -> dict[str, Any]:
    """Read everything, as it is to be found again."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    groups = ("billing", "audit")
    users = admin.describe_user_scram_credentials(["ann"])
    found = {
        "records": {
            f"{topic}-{partition}": summary(read(bootstrap, topic, partition))
            for topic, partition in [(codec, part) for codec in CODECS for part in range(PARTITIONS)]
        },
        "cut": summary(read(bootstrap, "cut", 0)),
        "compacted": latest(read(bootstrap, "compacted", 0)),
        "committed": sorted(value for part in range(2) for *_, value, _ in read(bootstrap, "paid", part)),
        "groups": {group: offsets_of(bootstrap, group) for group in groups},
        "users": [
            [info.mechanism.name, info.iterations]
            for info in users["ann"].result(PATIENCE_S).scram_credential_infos
        ],
        "rules": [
            [rule.principal, rule.restype.name, rule.name, rule.operation.name]
            for rule in admin.describe_acls(ANY_RULE).result(PATIENCE_S)
        ],
        "settings": {
            name: configs[name].value
            for configs in [config_of(admin, "compacted")]
            for name in ("cleanup.policy", "min.compaction.lag.ms")
        },
    }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def config_of(admin: AdminClient, topic: str) -> dict[str, Any]:
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return future.result(PATIENCE_S)  # type: ignore[no-any-return]


Row = tuple[int, str | None, str | None, list[Any]]


def read(bootstrap: str, topic: str, partition: int) -> list[Row]:
    """Read offset, key, value and headers of the committed records of a partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        return list(_rows(consumer))
    finally:
        consumer.close()


def _rows(consumer: Consumer) -> Iterator[Row]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return
        offset, headers = message.offset(), message.headers() or []
        assert offset is not None
        decoded = [(name, None if value is None else value.decode()) for name, value in headers]
        yield offset, _text(message.key()), _text(message.value()), decoded
    raise AssertionError(f"the end of a partition has not come within {PATIENCE_S} s")


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return {"first": rows[0][0], "last": rows[-1][0], "records": len(rows), "sha256": digest}


def latest(rows: Sequence[Row]) -> dict[str, str]:
    """Return what a reader of a compacted topic keeps."""
    values = {key: value for _, key, value, _ in rows if key is not None}
    return {key: value for key, value in sorted(values.items()) if value is not None}


def offsets_of(bootstrap: str, group: str) -> dict[str, list[Any]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition("none", part) for part in range(PARTITIONS)], PATIENCE_S)
    consumer.close()
    return {str(one.partition): [one.offset, one.metadata] for one in found}


# ---- the archive


def make(version: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        stopped, killed = Mpbroker(Path(name, "one")), Mpbroker(Path(name, "two"))
        expected: dict[str, Any] = {}
        for broker in (stopped, killed):
            broker.directory.mkdir()
            broker.flags = flags()
        try:
            stopped.start()
            _open = fill(stopped.bootstrap)
            stopped.stop()
            # What is open is aborted while it is read, so a copy is read.
            expected["stopped"] = contents_of_copy(stopped, Path(name, "copy"))
            killed.start()
            expected["killed"] = fill_journal(killed.bootstrap)
        finally:
            stopped.kill()
            killed.kill()
        for segment in (killed.log_dir / "journalled-0").glob("*.log"):
            os.truncate(segment, 0)
        RELEASES.mkdir(exist_ok=True)
        with tarfile.open(RELEASES / f"{version}.tar.xz", "w:xz", preset=9) as archive:
            for label, broker in (("stopped", stopped), ("killed", killed)):
                archive.add(broker.log_dir, label, filter=_anonymous)
        (RELEASES / f"{version}.json").write_text(json.dumps(expected) + "\n")


def contents_of_copy(broker: Mpbroker, directory: Path) -> dict[str, Any]:
    copy = Mpbroker(directory, flags=broker.flags)
    shutil.copytree(broker.log_dir, copy.log_dir)
    copy.start()
    try:
        return contents(copy.bootstrap)
    finally:
        copy.kill()


def fill_journal(bootstrap: str) -> dict[str, Any]:
    """Write what fits into the journal, so that no segment is synced."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    done(admin.create_topics([NewTopic("journalled", 1, 1)]).values())
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce("journalled", b"value %d" % number, b"key %d" % number)
    assert producer.flush(PATIENCE_S) == 0
    return {"journalled": summary(read(bootstrap, "journalled", 0))}


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is of the host that made it."""
    if Path(entry.name).name == POINTER_NAME:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the data directories that later versions must open.")
    parser.add_argument("version")
    make(parser.parse_args().version)


if __name__ == "__main__":
    main()
