"""Where metrics are sent: settings go before OpenTelemetry's variables."""

from __future__ import annotations

import pytest

from mpbroker.config import otlp
from mpbroker.config.keys import ConfigError
from mpbroker.config.load import load
from mpbroker.config.otlp import Destination

BASE, METRICS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
OWN = "http://[::1]:4318/"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"


@pytest.mark.parametrize(
    ("endpoint", "interval_ms", "environ", "expected"),
    [
        ("", None, {}, None),
        ("", None, {INTERVAL: "5000"}, None),
        (OWN, None, {}, Destination("http://[::1]:4318/v1/metrics", 60, "otlp.endpoint")),
        (OWN, None, {BASE: "http://other"}, Destination("http://[::1]:4318/v1/metrics", 60, "otlp.endpoint")),
        ("", None, {BASE: "https://c/base"}, Destination("https://c/base/v1/metrics", 60, BASE)),
        ("", None, {BASE: "http://b", METRICS: "http://m/own"}, Destination("http://m/own", 60, METRICS)),
        ("", None, {BASE: "http://b", "OTEL_SDK_DISABLED": "true"}, None),
        ("", None, {BASE: "http://b", "OTEL_METRICS_EXPORTER": "none"}, None),
        ("", None, {BASE: "http://b", INTERVAL: "5000"}, Destination("http://b/v1/metrics", 5, BASE)),
        ("", None, {BASE: "http://b", INTERVAL: "1"}, Destination("http://b/v1/metrics", 1, BASE)),
        ("", None, {BASE: "http://b", INTERVAL: "often"}, Destination("http://b/v1/metrics", 60, BASE)),
        ("", 7000, {BASE: "http://b", INTERVAL: "5000"}, Destination("http://b/v1/metrics", 7, BASE)),
        (
            "",
            None,
            {BASE: "http://b", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            Destination("http://b/v1/metrics", 60, BASE),
        ),
    ],
)
def test_settings_and_variables(
    endpoint: str, interval_ms: int | None, environ: dict[str, str], expected: Destination | None
) -> None:
    assert otlp.destination(endpoint, interval_ms, environ) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({BASE: "collector:4317"}, f"{BASE}=collector:4317: it must be a URL, such as http://127.0.0.1:4318"),
        ({METRICS: "http://u:p@c"}, "put that into OTEL_EXPORTER_OTLP_HEADERS"),
        (
            {BASE: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: metrics are sent by http/protobuf only; set otlp.endpoint",
        ),
    ],
)
def test_variables_that_ask_for_something_else(environ: dict[str, str], message: str) -> None:
    with pytest.raises(otlp.NotServed) as raised:
        otlp.destination("", None, environ)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("127.0.0.1:4318", "it must be a URL"),
        ("grpc://c:4317", "it must be a URL"),
        ("http://", "it must be a URL"),
        ("http://c:0", "it must be a URL"),
        ("http://c:99999", "a port from 1 to 65535"),
        ("http://user:word@c", "without a password"),
        ("http://c/?key=1", "without a query"),
    ],
)
def test_settings_that_are_no_endpoint(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, [f"otlp.endpoint={text}"])
    assert "otlp.endpoint" in str(raised.value)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:s3cret@c:4318/base", "http://c:4318/base"),
        ("http://c/v1?api-key=s3cret", "http://c/v1"),
        ("http://c/#s3cret", "http://c/"),
        ("user:s3cret@c:4318", "c:4318"),
        ("http://user:s3c?ret@c", "http://…"),
        ("http://c?key=s3c@ret", "http://…"),
        ("grpc://user:s@3cret@c:x", "grpc://c:x"),
        ("http://[::1]:4318", "http://[::1]:4318"),
        ("", ""),
    ],
)
def test_secrets_of_a_url_are_not_shown(url: str, shown: str) -> None:
    assert otlp.without_secrets(url) == shown


@pytest.mark.parametrize("url", ["http://u:s3cret@c", "http://c?api-key=s3cret", "http://u:s3cret@c:x"])
def test_no_message_has_a_secret(url: str) -> None:
    with pytest.raises(otlp.NotServed) as by_variable:
        otlp.destination("", None, {BASE: url})
    with pytest.raises(ConfigError) as by_setting:
        load(None, [f"otlp.endpoint={url}"])
    for error in (by_variable, by_setting):
        assert "s3cret" not in str(error.value)
