"""Opens the object store that a command is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store

REQUEST_TIMEOUT_MS: Final = 30_000


def asked(here: LocalBroker, **arguments: Any) -> dict[str, Any]:
    """Return what the running broker says of its tier. Raises CliError if it has none."""
    return answered(here.control().call("remote", **arguments))


def answered(reply: dict[str, Any]) -> dict[str, Any]:
    """Return what a broker has said of its tier. Raises CliError if it has none."""
    if not reply["enabled"]:
        raise CliError(
            "the broker has no object store: set remote.log.storage.system.enable=true and "
            "mpbroker.remote.url, and start it again"
        )
    return reply


def opened(here: LocalBroker, url: str | None) -> tuple[str, ObjectStore]:
    """Open the store of a URL, or that of the running broker; return its URL, too. Raises CliError."""
    timeout_ms = REQUEST_TIMEOUT_MS
    code = USAGE_ERROR
    if url is None:
        reply = asked(here)
        url, timeout_ms, code = reply["url"], reply["request_timeout_ms"], 1
    try:
        return url, open_store(url, timeout_ms)
    except StoreRefused as error:
        raise CliError(str(error), code) from error


@contextmanager
def said_of_store() -> Iterator[None]:
    """Turn the errors of a store or of its ledger into CliError."""
    try:
        yield
    except StoreError as error:
        raise CliError(f"the object store fails: {error}") from error
    except LedgerDamaged as error:
        raise CliError(f"the ledger is damaged: {error}") from error
