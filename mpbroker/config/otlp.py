"""The URL to which metrics are sent by OTLP, from our settings and OpenTelemetry's environment variables.

(OpenTelemetry specification: Environment Variable Specification; OTLP Exporter Configuration)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PATH: Final = "v1/metrics"
PROTOCOL: Final = "http/protobuf"
OWN_SETTING: Final = "otlp.endpoint"
DEFAULT_INTERVAL_MS: Final = 60_000
"""OTEL_METRIC_EXPORT_INTERVAL has this default."""
_NO: Final = "none"
_QUERY: Final = re.compile("[?#]")


class Destination(NamedTuple):
    """The whole URL, the interval, and the setting or environment variable that has the URL."""

    url: str
    interval_s: float
    said_by: str


class NotServed(ValueError):
    """The environment variables request an unsupported feature; the message also names the remedy."""


def destination(endpoint: str, interval_ms: int | None, environ: Mapping[str, str]) -> Destination | None:
    """Return the destination of metrics, None if metrics are not to be sent. Raises NotServed.

    `endpoint` ("" if not set) and `interval_ms` (None if not set) are our settings. They override the
    variables in `environ`.
    """
    if interval_ms is None:
        interval_ms = _interval_ms(environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
    interval_s = interval_ms / 1000
    if endpoint:
        return Destination(_under(endpoint), interval_s, OWN_SETTING)
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == _NO:
        return None
    for name in ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        if url := environ.get(name, "").strip():
            if problem := problem_of(url):
                raise NotServed(f"{name}={without_secrets(url)}: {problem}")
            _check_protocol(environ)
            return Destination(url if "METRICS" in name else _under(url), interval_s, name)
    return None


def problem_of(url: str) -> str:
    """Return the problem with the URL of an OTLP endpoint, or ""."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        # The reason quotes what may be a part of a password.
        return "it must be a URL with a port from 1 to 65535, such as http://127.0.0.1:4318"
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        return "it must be a URL, such as http://127.0.0.1:4318"
    if parts.username is not None:
        return "it must be without a password: put that into OTEL_EXPORTER_OTLP_HEADERS"
    if parts.query or parts.fragment:
        return "it must be without a query"
    return ""


def without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment, for logs. The URL may be invalid."""
    scheme, separator, rest = url.rpartition("://")
    place, *query = _QUERY.split(rest, maxsplit=1)
    if "@" in "".join(query):
        # The @ may belong to a password that has a "?", or to the query. Show neither.
        return f"{scheme}{separator}…"
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := environ.get(name, "").strip():
            if protocol != PROTOCOL:
                raise NotServed(f"{name}={protocol}: metrics are sent by {PROTOCOL} only; set otlp.endpoint")
            return


def _under(url: str) -> str:
    return f"{url.rstrip('/')}/{PATH}"


def _interval_ms(text: str) -> int:
    """Return the interval (ms) in the text of an environment variable, at least 1000.

    For an empty or invalid text return the default, as the specification requires.
    """
    return max(int(text), 1000) if text.strip().isdecimal() and int(text) > 0 else DEFAULT_INTERVAL_MS
