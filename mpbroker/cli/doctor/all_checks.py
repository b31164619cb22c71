"""All checks of a host for a broker with given settings, in the order in which a start needs them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from mpbroker.cli.doctor import addresses, disks, host
from mpbroker.cli.doctor.check import NOTE, OK, Check
from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import by_log_dirs
from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.control_client import ControlError

_ONLY_SPARK = "only Spark needs it; mpbroker doctor spark has all that Spark needs"


def checks(config: BrokerConfig) -> Iterator[Check]:
    """Check everything. Starts nothing, and leaves nothing behind."""
    running = _running(config)
    if running is not None:
        yield Check(
            "broker",
            OK,
            f"runs on {', '.join(config.log_dirs)}; what it has is not checked as if it were new",
        )
    yield from host.checks(config, is_running=running is not None)
    yield from disks.checks(config, is_running=running is not None)
    yield from addresses.checks(config, running)
    yield from _for_spark()


def _running(config: BrokerConfig) -> tuple[str, ...] | None:
    """Return the listeners of the broker that runs on the log directories; None if none does."""
    try:
        status = by_log_dirs(",".join(config.log_dirs)).call("status")
    except (CliError, ControlError):
        return None
    return tuple(status.get("listeners", ()))


def _for_spark() -> Iterator[Check]:
    """Check Java and PySpark. A broker needs neither, so that nothing about them is a problem here."""
    from mpbroker.spark import examine

    for one in islice(examine(), 2):
        if one.state == OK:
            yield Check(one.name, OK, one.found)
        else:
            advice = f"{_ONLY_SPARK}. {one.advice}" if one.advice else _ONLY_SPARK
            yield Check(one.name, NOTE, one.found, advice)
