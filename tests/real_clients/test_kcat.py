"""kcat as people use it in a shell."""

import json
import os
import time
from pathlib import Path

from ops.bench.brokers import HOST, Broker
from tests.support import client_adapters, client_tools
from tests.support.real_brokers import TopicMaker


def kcat(broker: Broker, *arguments: str, stdin: bytes = b"") -> bytes:
    return client_tools.run([client_tools.program("kcat"), "-q", "-b", broker.bootstrap, *arguments], stdin)


def test_lines_with_keys_and_headers(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    lines = b"".join(b"k%d:value %d\n" % (number, number) for number in range(100))
    before_ms = int(time.time() * 1000)
    kcat(broker, "-P", "-t", topic, "-p", "0", "-K", ":", "-H", "from=kcat", "-z", "lz4", stdin=lines)
    after_ms = int(time.time() * 1000)
    stored = client_adapters.kcat_read(broker.bootstrap, topic, 1, 100)
    for number, each in enumerate(stored):
        assert (each.offset, each.record.key, each.record.value) == (
            number,
            b"k%d" % number,
            b"value %d" % number,
        )
        assert each.record.headers == (("from", b"kcat"),)
        assert before_ms <= each.record.timestamp_ms <= after_ms


def test_a_file_is_one_record(broker: Broker, new_topic: TopicMaker, tmp_path: Path) -> None:
    topic, content = new_topic(1), bytes(range(256)) * 1000
    path = tmp_path / "content"
    path.write_bytes(content)
    kcat(broker, "-P", "-t", topic, "-p", "0", str(path))
    assert kcat(broker, "-C", "-t", topic, "-e", "-D", "") == content


def test_offsets_and_the_tail(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    kcat(broker, "-P", "-t", topic, "-p", "0", stdin=b"a\nb\nc\nd\n")
    read = ("-C", "-t", topic, "-p", "0", "-e")
    assert kcat(broker, *read, "-o", "2") == b"c\nd\n"
    assert kcat(broker, *read, "-o", "-1") == b"d\n"
    assert kcat(broker, *read, "-o", "beginning", "-c", "1") == b"a\n"
    assert kcat(broker, "-Q", "-t", f"{topic}:0:-1").split() == [topic.encode(), b"[0]", b"offset", b"4"]


def test_metadata(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(3)
    metadata = json.loads(kcat(broker, "-L", "-J"))
    assert [each["name"] for each in metadata["brokers"]] == [f"{HOST}:{broker.port}"]
    node_id = metadata["brokers"][0]["id"]
    (found,) = [each for each in metadata["topics"] if each["topic"] == topic]
    partitions = sorted(found["partitions"], key=lambda partition: partition["partition"])
    assert [partition["partition"] for partition in partitions] == [0, 1, 2]
    assert all(partition["leader"] == node_id for partition in partitions)


def test_writing_creates_the_topic(broker: Broker) -> None:
    kcat(broker, "-P", "-t", "made-by-writing", stdin=b"hello\n")
    assert kcat(broker, "-C", "-t", "made-by-writing", "-e") == b"hello\n"


def test_a_client_id_that_is_no_utf_8(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    client_id = os.fsdecode(b"client.id=caf\xe9")
    metadata = json.loads(kcat(broker, "-X", client_id, "-L", "-J"))
    assert topic in [each["topic"] for each in metadata["topics"]]
    kcat(broker, "-X", client_id, "-P", "-t", topic, "-p", "0", stdin=b"a\n")
    assert kcat(broker, "-X", client_id, "-C", "-t", topic, "-e") == b"a\n"
