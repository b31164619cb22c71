"""Executors on another host, which come after the plan: a network namespace that has none of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench.brokers import HOST, Mpbroker, free_port
from spark_integration.jvm.jar import add_to
from tests.support.forms import long_only
from tests.support.produced import produce
from tests.support.real_brokers import create_topic, served
from tests.support.spark_cluster import hidden, may_unshare, other_host, running_cluster, session_on

pytestmark = [
    pytest.mark.skipif(not may_unshare(), reason="namespaces: only root has them"),
    long_only("executors in a network of their own"),
]

RECORDS = 1_000


def test_executors_that_come_after_the_plan_fetch(tmp_path: Path, no_spark: None) -> None:  # noqa: ARG001
    with other_host() as network:
        broker = Mpbroker(tmp_path / "broker")
        outside = f"{network.here}:{free_port()}"
        broker.flags = [
            *("--listeners", f"PLAINTEXT://{HOST}:{broker.port},OUTSIDE://{outside}"),
            *("-o", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT"),
        ]
        settings = {
            "driver_host": network.here,
            "driver_bindAddress": network.here,
            "scheduler_minRegisteredResourcesRatio": "0",
        }
        with (
            served(broker),
            running_cluster(tmp_path / "cluster", [], host=network.here) as cluster,
            session_on(cluster, tmp_path / "warehouse", **settings) as spark,
        ):
            create_topic(broker.bootstrap, "t", 2)
            produce(broker.bootstrap, "t", [b"%d" % number for number in range(RECORDS)], 2)
            add_to(spark)
            options = {"log.dir": broker.log_dir, "subscribe": "t", "kafka.bootstrap.servers": outside}
            frame = spark.read.format("mpbroker").options(**options).load()
            assert (
                "from files where a task finds them, else fetching"
                in frame._jdf.queryExecution().executedPlan().toString()
            )
            rows = frame.select("partition", "value").rdd
            assert rows.getNumPartitions() == 2
            cluster.add_worker("far", [*network.prefix, *hidden(broker.log_dir)], 1, network.there)
            found = sorted((int(row.value), row.partition) for row in rows.collect())
            assert found == [(number, number % 2) for number in range(RECORDS)]
