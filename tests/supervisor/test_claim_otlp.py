"""What a start says of metrics by OTLP that it cannot send."""

from __future__ import annotations

import logging
from importlib import metadata

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.extras import pip_install
from mpbroker.config.load import load
from mpbroker.ipc.process import FatalError
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED, Claim, otlp_destination

URL = "http://127.0.0.1:4318"
VARIABLE = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}
ADVICE = f"needs OpenTelemetry's exporter, which is not installed: {pip_install('otlp')}"


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def test_with_the_extra_both_ways_are_heard() -> None:
    interval = {**VARIABLE, "OTEL_METRIC_EXPORT_INTERVAL": "5000"}
    own = load(None, [f"otlp.endpoint={URL}", "otlp.export.interval.ms=7000"]).config
    for config, environ, interval_s in ((own, interval, 7), (BrokerConfig(), interval, 5)):
        found = otlp_destination(config, environ)
        assert found is not None
        assert (found.url, found.interval_s) == (f"{URL}/v1/metrics", interval_s)
    assert otlp_destination(BrokerConfig(), {}) is None


@pytest.mark.usefixtures("without_extra")
def test_our_own_setting_needs_the_extra() -> None:
    assert otlp_destination(BrokerConfig(), {}) is None
    with pytest.raises(FatalError, match=r"^otlp\.endpoint needs Open") as raised:
        otlp_destination(BrokerConfig(otlp_endpoint=URL), {})
    assert ADVICE in str(raised.value)


@pytest.mark.usefixtures("without_extra")
def test_variables_that_are_meant_for_others_are_no_reason_not_to_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert otlp_destination(BrokerConfig(), VARIABLE) is None
        assert otlp_destination(BrokerConfig(), {**VARIABLE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    first, second = caplog.messages
    assert first == f"metrics are not sent by OTLP: OTEL_EXPORTER_OTLP_ENDPOINT {ADVICE}"
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in second


def test_what_clients_push_needs_somebody_who_serves_it() -> None:
    with pytest.raises(FatalError, match=r"^client\.telemetry\.enable=true: nothing would serve") as raised:
        Claim(BrokerConfig(client_telemetry_enable=True))
    assert raised.value.status == EXIT_MISCONFIGURED
