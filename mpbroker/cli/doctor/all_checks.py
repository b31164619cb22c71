"""All checks of a host for a broker with given settings: machine, disks, addresses, and then Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mpbroker.cli.doctor import addresses, disks, host, store
from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import by_log_dirs
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener, parse_listeners
from mpbroker.ipc.control_client import ControlError
from spark_integration.check import NOTE, OK, Check

_ONLY_SPARK = "only Spark needs it; mpbroker doctor spark has all that Spark needs"


def checks(config: BrokerConfig) -> Iterator[Check]:
    """Run all checks. They start no process and leave no files.

    If the settings name no listeners, check the listeners of the broker that runs on the log directories.
    """
    described = _running(config)
    running = None if described is None else tuple(one["listener"] for one in described)
    if described is not None and "listeners" not in config.origins:
        config = _with_listeners(config, described)
    if running is not None:
        yield Check(
            "broker",
            OK,
            f"runs on {', '.join(config.log_dirs)}; what it has is not checked as if it were new",
        )
    yield from host.checks(config, is_running=running is not None)
    yield from disks.checks(config, is_running=running is not None)
    yield from addresses.checks(config, running)
    yield from store.checks(config)
    yield from _for_spark()


def _running(config: BrokerConfig) -> list[dict[str, Any]] | None:
    """Return the listeners as the broker on the log directories describes them; None if no broker runs."""
    try:
        listeners: list[dict[str, Any]] = by_log_dirs(",".join(config.log_dirs)).call("listeners")[
            "listeners"
        ]
    except (CliError, ControlError):
        return None
    return listeners


def _with_listeners(config: BrokerConfig, described: Sequence[Mapping[str, Any]]) -> BrokerConfig:
    """Return the configuration with the listeners and advertised addresses of the running broker."""
    protocols = {one["listener"].partition("://")[0]: one["protocol"] for one in described}
    found: dict[str, tuple[Listener, ...]] = {}
    for key in ("listener", "advertised"):
        # A listener on all addresses advertises the one that each client connected to.
        named = (one["listener" if "<" in one[key] else key] for one in described)
        found[key] = parse_listeners(",".join(named), protocols, unique_ports=False)
    return msgspec.structs.replace(
        config, listeners=found["listener"], advertised_listeners=found["advertised"]
    )


def _for_spark() -> Iterator[Check]:
    """Check Java and PySpark. A failed check is only a note here, since a broker needs neither."""
    from mpbroker.spark import java_check, spark_check

    for one in (java_check(), spark_check()):
        if one.state == OK:
            yield one
        else:
            advice = f"{_ONLY_SPARK}. {one.advice}" if one.advice else _ONLY_SPARK
            yield Check(one.name, NOTE, one.found, advice)
