"""Checks of the object store of tiered storage: it answers, and keeps what the ledger rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import without_secrets
from mpbroker.config.remote import BUCKETS
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.store.self_test import StoreUnfit, check_store
from spark_integration.check import NOTE, OK, PROBLEM, Check

REQUEST_TIMEOUT_MS: Final = 10_000
NAME: Final = "object store"


def checks(config: BrokerConfig) -> Iterator[Check]:
    """Check the store, if there is one. Objects that are written for that are deleted again."""
    if not config.remote_log_storage_system_enable:
        return
    url = config.mpbroker_remote_url
    try:
        store = open_store(url, min(config.mpbroker_remote_request_timeout_ms, REQUEST_TIMEOUT_MS))
        check_store(store)
    except (StoreRefused, StoreError, StoreUnfit) as error:
        advice = "correct mpbroker.remote.url or the environment; the broker copies nothing until it succeeds"
        yield Check(NAME, PROBLEM, str(error), advice)
        return
    yield Check(NAME, OK, f"{without_secrets(url)} creates objects once, reads, lists and deletes them")
    yield ledger(store)
    if url.partition(":")[0] in BUCKETS:
        yield Check(
            "lifecycle rules",
            NOTE,
            "they cannot be seen from here",
            "have no rule that deletes or moves objects of this prefix: without one entry of mpbroker/log/ "
            "the ledger cannot be read. A rule that aborts unfinished uploads after a day is welcome",
        )


def ledger(store: ObjectStore) -> Check:
    """Check that the ledger can be read to its end."""
    reader = LedgerReader(store)
    try:
        found = reader.read_format()
        reader.read_to_end()
    except (StoreError, LedgerDamaged) as error:
        return Check("ledger", PROBLEM, str(error), "mpbroker remote verify names all that is wrong")
    if found is None:
        return Check("ledger", OK, "missing: the first start makes it")
    segments = sum(map(len, reader.state.segments.values()))
    said = f"of cluster {found.cluster_id}: entry {reader.seq:,}, {segments:,} segments"
    if (leader := reader.state.leader) is not None:
        standbys = [f"broker {one.broker_id} on {one.host}" for one in reader.state.standbys.values()]
        said += (
            f"; leader: broker {leader.broker_id} on {leader.host}, standby: {', '.join(standbys) or 'none'}"
        )
    return Check("ledger", OK, said)
