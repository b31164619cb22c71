"""Decides at the start whether metrics are sent by OTLP, and says why not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.extras import pip_install
from mpbroker.config.otlp import OWN_SETTING, Destination, NotServed, destination
from mpbroker.ipc.process import FatalError

_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-http"

log = logging.getLogger("mpbroker.supervisor")


def wanted(config: BrokerConfig, environ: Mapping[str, str]) -> Destination | None:
    """Return where metrics are sent; None: nowhere.

    Variables may be meant for others on this host: of what they ask for and is not there a warning tells.
    Raises FatalError if our own setting asks for it.
    """
    is_set = "otlp.export.interval.ms" in config.origins
    interval_ms = config.otlp_export_interval_ms if is_set else None
    try:
        found = destination(config.otlp_endpoint, interval_ms, environ)
    except NotServed as error:
        log.warning("metrics are not sent by OTLP: %s", error)
        return None
    if found is None or _is_installed():
        return found
    problem = f"{found.said_by} needs OpenTelemetry's exporter, which is not installed: {pip_install('otlp')}"
    if found.said_by == OWN_SETTING:
        raise FatalError(problem)
    log.warning("metrics are not sent by OTLP: %s", problem)
    return None


def _is_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(_PACKAGE)
    except PackageNotFoundError:
        return False
    return True
