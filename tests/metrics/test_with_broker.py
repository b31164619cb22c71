"""Counters against what a client really did, and the stages of a request against its total."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partial

import psutil
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import metrics
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.ipc.meters import ApiHistogram
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics.snapshot import Distribution
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench.brokers import ROOT, Mpbroker
from tests.support.client_tools import eventually
from tests.support.handler_rig import for_python
from tests.support.metered_client import Client, Meter
from tests.support.polling import PATIENCE_S, TRIES
from tests.support.programs import ran, stopped
from tests.support.real_brokers import control
from tests.support.threads import concurrently

REQUESTS = "kafka.network:type=RequestMetrics,name="
TOPICS = "kafka.server:type=BrokerTopicMetrics,name="
STAGES = (
    ApiHistogram.REQUEST_QUEUE_NS,
    ApiHistogram.LOCAL_NS,
    ApiHistogram.REMOTE_NS,
    ApiHistogram.RESPONSE_QUEUE_NS,
    ApiHistogram.RESPONSE_SEND_NS,
)
PRODUCE_VERSION, FETCH_VERSION = 7, 12
PARKED_MS = 120


def create(client: Client, name: str, partitions: int = 1, **config: str) -> None:
    of = m.CreateTopicsRequest
    settings = [of.CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()]
    wanted = of.CreatableTopic(name, partitions, 1, [], settings)
    answer = client.call(ApiKey.CREATE_TOPICS, 5, of([wanted], 10_000))
    assert answer.topics[0].error_code == 0


def test_a_partition_that_is_damaged_is_counted_as_offline(own_broker: Mpbroker) -> None:
    with Client(own_broker) as client:
        create(client, "t", partitions=2)
        assert in_use(own_broker) == (2, 2)  # at once
        for partition in (0, 1):
            client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("t", batch(), partition=partition))
    assert offline(own_broker) == (0, 0, 0)
    assert own_broker.stop() == 0, own_broker.output()
    (segment,) = (own_broker.log_dir / "t-1").glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    own_broker.start()
    assert offline(own_broker) == (1, 1, 1)
    assert in_use(own_broker) == (1, 1)


def in_use(broker: Mpbroker) -> tuple[float, int]:
    """Partitions of the log directory, as metrics and as the status have it."""
    (bean,) = Meter(broker).beans("mpbroker:type=LogDir,").values()
    (directory,) = control(broker).call("status")["log_dirs"]
    return bean["partitions"], directory["partitions"]


def offline(broker: Mpbroker) -> tuple[float, float, int]:
    """Return what the metrics and what the status say is offline."""
    beans = Meter(broker).beans("Offline")
    replicas, partitions = (
        beans[name]["Value"]
        for name in (
            "kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
            "kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
        )
    )
    status = control(broker).call("status")
    return replicas, partitions, status["offline_partitions"]


def batch(count: int = 1, value: bytes = b"x" * 100, codec: Codec = Codec.NONE) -> bytes:
    return bytes(build_batch([NewRecord(value) for _ in range(count)], codec=codec))


def produce(topic: str, data: bytes, acks: int = -1, partition: int = 0) -> m.ProduceRequest:
    of = m.ProduceRequest
    sent = of.TopicProduceData(topic, partition_data=[of.PartitionProduceData(partition, data)])
    return of(None, acks, 10_000, [sent])


def fetch(topic: str, offset: int, wait_ms: int = 0) -> m.FetchRequest:
    wanted = m.FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[m.FetchRequest.FetchTopic(topic, partitions=[wanted])],
    )


def stages(meter: Meter, key: int) -> tuple[int, dict[int, Distribution]]:
    """(requests that ended, histograms) of an API."""
    found = meter.take().apis.get(key)
    if found is None:
        return 0, {}
    return sum(found.versions.values()), dict(enumerate(found.histograms))


def took(meter: Meter, key: int, request: Callable[[], object]) -> dict[int, int]:
    """Make a request; return its nanoseconds by stage, which add up to its total."""
    count, before = stages(meter, key)
    request()
    eventually(lambda: stages(meter, key)[0] > count, "the request has ended")
    now, after = stages(meter, key)
    assert now == count + 1
    empty = Distribution([0] * 252, 0, 0)
    spent = {h: d.total - before.get(h, empty).total for h, d in after.items()}
    assert sum(spent[stage] for stage in STAGES) == spent[ApiHistogram.TOTAL_NS] > 0
    return spent


# ---- the stages


def test_stages_of_a_durable_produce(client: Client, meter: Meter, topic: str) -> None:
    request = partial(client.call, ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, batch()))
    spent = took(meter, ApiKey.PRODUCE, request)
    assert spent[ApiHistogram.REMOTE_NS] > 0, "the log process and the disk took time"
    assert spent[ApiHistogram.RESPONSE_SEND_NS] > 0
    assert spent[ApiHistogram.REQUEST_QUEUE_NS] > 0


def test_stages_of_the_slow_path(client: Client, meter: Meter, topic: str) -> None:
    slow = produce(topic, for_python(batch(50, codec=Codec.GZIP)))
    spent = took(meter, ApiKey.PRODUCE, partial(client.call, ApiKey.PRODUCE, PRODUCE_VERSION, slow))
    assert spent[ApiHistogram.LOCAL_NS] > 10_000, "decompressing is the handler's own time"
    assert spent[ApiHistogram.REMOTE_NS] > 0
    assert spent[ApiHistogram.TEMPORARY_BYTES] > 50 * 100


def test_stages_of_a_parked_fetch(client: Client, meter: Meter, topic: str) -> None:
    request = partial(client.call, ApiKey.FETCH, FETCH_VERSION, fetch(topic, 0, wait_ms=PARKED_MS))

    def mostly_remote() -> bool:
        spent = took(meter, ApiKey.FETCH, request)
        assert spent[ApiHistogram.TOTAL_NS] > PARKED_MS * 900_000, "the response came after max.wait"
        return spent[ApiHistogram.REMOTE_NS] > spent[ApiHistogram.TOTAL_NS] / 2

    # A handler may lose its processor at any moment, but not each time.
    assert any(mostly_remote() for _ in range(TRIES)), "a parked fetch waits in the purgatory"


def test_stages_of_an_admin_request(client: Client, meter: Meter) -> None:
    spent = took(meter, ApiKey.CREATE_TOPICS, lambda: create(client, f"t-{uuid.uuid4().hex[:8]}"))
    assert spent[ApiHistogram.REMOTE_NS] > 0, "the coordinator decided"
    spent = took(meter, ApiKey.METADATA, lambda: client.call(ApiKey.METADATA, 9, m.MetadataRequest([])))
    assert spent[ApiHistogram.LOCAL_NS] > 0
    assert spent[ApiHistogram.REMOTE_NS] == 0, "nobody else was asked"


def test_stages_without_acks(client: Client, meter: Meter, topic: str) -> None:
    request = partial(client.send, ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, batch(), acks=0))
    spent = took(meter, ApiKey.PRODUCE, request)
    assert spent[ApiHistogram.RESPONSE_SEND_NS] == 0, "nothing was sent"


# ---- counts


def test_a_topic_counts_until_it_is_deleted(client: Client, meter: Meter) -> None:
    name, every = f"t-{uuid.uuid4().hex[:8]}", f"{TOPICS}MessagesInPerSec"
    of_topic = f"{every},topic={name}"
    for _ in range(2):
        create(client, name, partitions=2)
        before = meter.get(every)
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(name, batch(3)))
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(name, batch(2), partition=1))
        assert (meter.get(of_topic), meter.get(every)) == (5, before + 5)
        gone = client.call(
            ApiKey.DELETE_TOPICS, 4, m.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        )
        assert [one.error_code for one in gone.responses] == [0]
        assert not [bean for bean in meter.beans(TOPICS) if bean.endswith(f",topic={name}")]
        assert meter.get(every) == before + 5


def test_requests_bytes_and_errors(client: Client, meter: Meter, topic: str) -> None:
    def counted() -> tuple[float, ...]:
        prefix, request = f"{REQUESTS}ErrorsPerSec,request=Produce,error=", f"version={PRODUCE_VERSION}"
        return (
            meter.get(f"{REQUESTS}RequestsPerSec,request=Produce,{request}"),
            meter.get(prefix + "NONE"),
            meter.get(prefix + "UNKNOWN_TOPIC_OR_PARTITION"),
            meter.get(prefix + "CORRUPT_MESSAGE"),
            meter.get(f"{TOPICS}TotalProduceRequestsPerSec,topic={topic}"),
            meter.get(f"{TOPICS}MessagesInPerSec,topic={topic}"),
            meter.get(f"{TOPICS}BytesInPerSec,topic={topic}"),
            meter.get(f"{TOPICS}InvalidMessageCrcRecordsPerSec,topic={topic}"),
            meter.get(f"{TOPICS}MessagesInPerSec"),
            meter.get(f"{TOPICS}BytesInPerSec"),
        )

    def request_bytes() -> float:
        found = meter.take().apis[ApiKey.PRODUCE].histograms[ApiHistogram.REQUEST_BYTES]
        return found.total

    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("nowhere", batch()))
    ended = stages(meter, ApiKey.PRODUCE)[0]
    eventually(lambda: stages(meter, ApiKey.PRODUCE)[0] >= ended, "the first request has ended")
    before, body_before, sent_before = counted(), request_bytes(), client.body_bytes
    good, three = batch(), batch(3)
    broken = bytearray(good)
    broken[-1] ^= 1
    for _ in range(20):
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, good))
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, three, acks=1))
    for _ in range(4):
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("nowhere", good))
    refused = client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, bytes(broken)))
    assert refused.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
    eventually(lambda: counted()[0] >= before[0] + 26, "all requests have ended")
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [
        26,
        21,
        4,
        1,
        22,
        23,
        20 * len(good) + len(three),
        1,
        23,
        20 * len(good) + len(three),
    ]
    assert request_bytes() - body_before == client.body_bytes - sent_before


def test_fetched_bytes_and_failures(client: Client, meter: Meter, topic: str) -> None:
    data = batch(2)
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data))
    before = stages(meter, ApiKey.FETCH)[0]
    for _ in range(3):
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 0))
    answer = client.call(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 999))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    eventually(lambda: stages(meter, ApiKey.FETCH)[0] >= before + 4, "all fetches have ended")
    assert meter.get(f"{TOPICS}BytesOutPerSec,topic={topic}") == 3 * len(data)
    assert meter.get(f"{TOPICS}TotalFetchRequestsPerSec,topic={topic}") == 4
    assert meter.get(f"{TOPICS}FailedFetchRequestsPerSec,topic={topic}") == 0
    assert meter.get(f"{REQUESTS}ErrorsPerSec,request=Fetch,error=OFFSET_OUT_OF_RANGE") >= 1
    assert meter.get(f"{REQUESTS}TotalTimeMs,request=FetchConsumer") == meter.get(
        f"{REQUESTS}TotalTimeMs,request=Fetch"
    )


def test_an_error_without_acks_is_counted_though_nobody_is_told(broker: Mpbroker, meter: Meter) -> None:
    name = f"{REQUESTS}ErrorsPerSec,request=Produce,error=UNKNOWN_TOPIC_OR_PARTITION"
    before = meter.get(name)
    with Client(broker) as client:
        client.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce("nowhere", batch(), acks=0))
        assert client.is_closed()
    assert meter.get(name) == before + 1


def test_records_refused_and_rebuilt(client: Client, meter: Meter) -> None:
    compacted, squeezed = f"c-{uuid.uuid4().hex[:8]}", f"z-{uuid.uuid4().hex[:8]}"
    create(client, compacted, cleanup_policy="compact")
    create(client, squeezed, compression_type="zstd")
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(compacted, batch(3)))
    assert meter.get(f"{TOPICS}NoKeyCompactedTopicRecordsPerSec,topic={compacted}") == 3
    assert meter.get(f"{TOPICS}FailedProduceRequestsPerSec,topic={compacted}") == 1
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(squeezed, batch(7)))
    assert meter.get(f"{TOPICS}ProduceMessageConversionsPerSec,topic={squeezed}") == 7
    assert meter.get(f"{REQUESTS}MessageConversionsTimeMs,request=Produce", "Max") > 0


def test_clients_by_their_software(broker: Mpbroker, meter: Meter) -> None:
    version = uuid.uuid4().hex[:8]

    def connections() -> float:
        found = meter.beans(f"clientSoftwareName=teststrument,clientSoftwareVersion={version}")
        return sum(attributes["connections"] for attributes in found.values())

    clients = [Client(broker) for _ in range(3)]
    for client in clients:
        client.call(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("teststrument", version))
    assert connections() == 3
    clients.pop().close()
    eventually(lambda: connections() == 2, "one has gone")
    for client in clients:
        client.close()
    eventually(lambda: connections() == 0, "all have gone")


# ---- the command


def metrics_command(broker: Mpbroker, *arguments: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "mpbroker", "ctl", "metrics", "--json", *arguments]
    done = ran(command, env=broker.environment(), cwd=ROOT, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def test_the_command_reads_a_broker_of_which_every_process_stands_still(own_broker: Mpbroker) -> None:
    with Client(own_broker) as client:
        create(client, "jam")
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("jam", batch()))
    with stopped(*(one.pid for one in own_broker.tree().members())):
        found = metrics_command(own_broker, "-f", "BrokerTopicMetrics", "--interval", "0")
    assert found[f"{TOPICS}MessagesInPerSec,topic=jam"]["Count"] == 1
    assert all(name.startswith("kafka.server:type=BrokerTopicMetrics") for name in found)


def test_the_command_reads_what_a_dead_broker_has_left(own_broker: Mpbroker) -> None:
    client = Client(own_broker)
    create(client, "dead")
    for _ in range(3):
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("dead", batch()))
    meter = Meter(own_broker)
    eventually(lambda: stages(meter, ApiKey.PRODUCE)[0] == 3, "an answer is counted when it is written")
    members = own_broker.tree().members()
    for member in members:
        member.kill()
    assert own_broker.process is not None
    own_broker.process.wait()
    psutil.wait_procs(members, timeout=PATIENCE_S)
    file = str(own_broker.runtime_dir / "public")
    found = metrics_command(own_broker, "--file", file)
    assert found[f"{TOPICS}MessagesInPerSec,topic=dead"]["Count"] == 3
    assert found[f"{REQUESTS}RequestsPerSec,request=Produce,version={PRODUCE_VERSION}"]["Count"] == 3


def test_rates_of_an_interval(broker: Mpbroker, client: Client, meter: Meter, topic: str) -> None:
    def load(ends: threading.Event) -> None:
        while not ends.is_set():
            client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, batch()))

    def agrees() -> bool:
        """Not if the load stood still, or nearly so."""
        found = metrics_command(broker, "--interval", "0.5")
        name = f"{TOPICS}MessagesInPerSec,topic={topic}"
        rate, count = found[name]["IntervalRate"], meter.get(name)
        idle = found["kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent"]["Value"]
        assert 0 < idle <= 1
        selector = found["kafka.server:type=socket-server-metrics,networkProcessor=0"]
        return 0 < rate * 0.4 < count and selector["response-rate"] == pytest.approx(rate, rel=0.2)

    with concurrently(load):
        assert any(agrees() for _ in range(TRIES))


def test_counts_outlive_the_processes_that_counted(own_broker: Mpbroker) -> None:
    meter, client = Meter(own_broker), Client(own_broker)
    create(client, "kept")
    for _ in range(5):
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("kept", batch()))
    count = f"{REQUESTS}RequestsPerSec,request=Produce,version={PRODUCE_VERSION}"
    eventually(lambda: meter.get(count) == 5, "all five have ended")
    victims = [p for p in own_broker.tree().members() if "processor" in " ".join(p.cmdline())]
    assert victims
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    assert client.is_closed()

    with Client(own_broker) as again:
        again.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("kept", batch()))
    eventually(lambda: meter.get(count) == 6, "the successor goes on counting")
    connections = "kafka.server:type=socket-server-metrics,networkProcessor=0"
    eventually(lambda: meter.get(connections, "connection-count") == 0, "the dead one's are gone")


def test_log_directories_and_logs(client: Client, meter: Meter, topic: str) -> None:
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, batch()))
    where = f",topic={topic},partition=0"
    assert meter.get(f"kafka.log:type=Log,name=LogEndOffset{where}", "Value") > 0
    assert meter.get(f"kafka.log:type=Log,name=LogStartOffset{where}", "Value") == 0
    manager = "kafka.log:type=LogManager,name="
    assert meter.beans(f"{manager}OfflineLogDirectoryCount") == {
        f"{manager}OfflineLogDirectoryCount": {"Value": 0}
    }
    (named,) = meter.beans(f"{manager}LogDirectoryOffline")
    directory = named.partition("logDirectory=")[2]
    assert os.path.isabs(directory.strip('"'))  # noqa: PTH117 - a text
    room = f"mpbroker:type=LogDir,name={directory}"
    eventually(lambda: meter.get(room, "total-bytes") >= meter.get(room, "usable-bytes") > 0, "a look")


def test_the_command_for_people(broker: Mpbroker, capsys: pytest.CaptureFixture[str]) -> None:
    """A name on a line of its own, its attributes below; a filter finds attributes too."""
    file = broker.runtime_dir / PUBLIC_NAME
    metrics.show(LocalBroker(), ["TotalProduceRequestsPerSec", "MeanRate"], 0.0, file, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"{TOPICS}TotalProduceRequestsPerSec")
    assert [line.split()[0] for line in lines[at + 1 : at + 3]] == ["Count", "MeanRate"]
    assert all(line.startswith(("kafka.", "mpbroker:", "  ")) and line == line.rstrip() for line in lines)
    others = lines[lines.index(f"{TOPICS}BytesInPerSec") + 1 :]
    assert others[0].startswith("  MeanRate ")
    assert others[1].startswith("kafka.")
    with pytest.raises(CliError, match="no metric's name contains 'zzzz'"):
        metrics.show(LocalBroker(), ["zzzz"], 0.0, file, as_json=False)
    assert capsys.readouterr().out == ""
