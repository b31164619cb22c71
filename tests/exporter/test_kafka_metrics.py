"""Names as jmx_exporter's usual configuration makes them of Kafka's beans."""

from __future__ import annotations

import pytest

from mpbroker.exporter.exposition import Page
from mpbroker.exporter.kafka_metrics import _write_bean
from mpbroker.metrics.families import Bean

HISTOGRAM = {"Count": 4.0, "Mean": 2.5, "Max": 9.0, "Min": 1.0, "StdDev": 1.0}
QUANTILES = {"50thPercentile": 2.0, "99thPercentile": 8.0, "999thPercentile": 9.0}


def lines(name: str, attributes: dict[str, float]) -> list[str]:
    page = Page()
    _write_bean(Bean(name, attributes), "Meaning.", page)
    return [line for line in page.text().decode().splitlines() if not line.startswith("# HELP")]


@pytest.mark.parametrize(
    ("name", "attributes", "wanted"),
    [
        (
            "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=a.b",
            {"Count": 7.0, "MeanRate": 1.0},
            [
                "# TYPE kafka_server_brokertopicmetrics_messagesin_total counter",
                'kafka_server_brokertopicmetrics_messagesin_total{topic="a.b"} 7.0',
            ],
        ),
        (
            "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=9",
            {"Count": 3.0, "MeanRate": 1.0},
            [
                "# TYPE kafka_network_requestmetrics_requests_total counter",
                'kafka_network_requestmetrics_requests_total{request="Produce",version="9"} 3.0',
            ],
        ),
        (
            "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Fetch",
            HISTOGRAM | QUANTILES,
            [
                "# TYPE kafka_network_requestmetrics_totaltimems summary",
                'kafka_network_requestmetrics_totaltimems{quantile="0.50",request="Fetch"} 2.0',
                'kafka_network_requestmetrics_totaltimems{quantile="0.99",request="Fetch"} 8.0',
                'kafka_network_requestmetrics_totaltimems{quantile="0.999",request="Fetch"} 9.0',
                'kafka_network_requestmetrics_totaltimems_count{request="Fetch"} 4.0',
                'kafka_network_requestmetrics_totaltimems_sum{request="Fetch"} 10.0',
            ],
        ),
        (
            "kafka.server:type=ReplicaManager,name=PartitionCount",
            {"Value": 5.0},
            [
                "# TYPE kafka_server_replicamanager_partitioncount gauge",
                "kafka_server_replicamanager_partitioncount 5.0",
            ],
        ),
        (
            "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
            {"Value": 0.5},
            [
                "# TYPE kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent gauge",
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent 0.5",
                "# TYPE kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent gauge",
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent 0.5",
            ],
        ),
        (
            "kafka.server:type=socket-server-metrics,networkProcessor=0",
            {"connection-count": 2.0, "io-wait-time-ns-avg": 9.0},
            [
                "# TYPE kafka_server_socket_server_metrics_connection_count gauge",
                'kafka_server_socket_server_metrics_connection_count{networkprocessor="0"} 2.0',
            ],
        ),
        (
            'kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory="/a,b\\"c\\?"',
            {"Value": 0.0},
            [
                "# TYPE kafka_log_logmanager_logdirectoryoffline gauge",
                'kafka_log_logmanager_logdirectoryoffline{logdirectory="/a,b\\"c?"} 0.0',
            ],
        ),
    ],
)
def test_beans_have_the_names_that_dashboards_know(
    name: str, attributes: dict[str, float], wanted: list[str]
) -> None:
    assert lines(name, attributes) == wanted
