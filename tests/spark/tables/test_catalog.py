"""A catalog that is only a bucket: of two commits one wins, and none is made twice or lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from mpbroker.remote.store.opening import open_store
from spark_integration.tables import store_io
from spark_integration.tables.catalog import LakeSettings, open_catalog
from tests.support.fault_store import Fault, FaultStore, MemoryStore

HINT = "shop/orders/metadata/version-hint.text"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultStore:
    store = FaultStore(MemoryStore())
    monkeypatch.setattr(store_io, "open_store", lambda *_: store)
    store_io.store_of.cache_clear()
    return store


def made() -> Any:
    return open_catalog(LakeSettings("s3://bucket/lake")).create_table(
        "shop.orders", pa.schema([("n", pa.int64())])
    )


def add(table: Any, number: int) -> None:
    table.metadata.properties["commit.retry.num-retries"] = "0"
    table.append(pa.table({"n": [number]}))


def numbers(table: Any) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["n"].to_pylist())


def versions(store: FaultStore) -> list[str]:
    return [name for one in store.list("shop/") if (name := one.name.rpartition("/")[2]).startswith("v")]


def test_of_two_commits_one_wins(store: FaultStore) -> None:
    table = made()
    other = table.catalog.load_table("shop.orders")
    add(table, 1)
    with pytest.raises(CommitFailedException):
        add(other, 2)
    assert numbers(other) == [1]
    assert versions(store) == ["v1.metadata.json", "v2.metadata.json", "version-hint.text"]


def test_two_that_load_the_same_table(store: FaultStore) -> None:
    """Both have looked for the newest version before either creates the next one: the store decides."""
    table = made()
    other = table.catalog.load_table("shop.orders")
    create = store.create

    def beside(name: str, body: bytes) -> bool:
        store.create = create  # type: ignore[method-assign]
        add(other, 1)
        return create(name, body)

    store.create = beside  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException, match="another commit has made version 2"):
        add(table, 2)
    assert numbers(table) == [1]


def test_a_lost_answer_is_no_failure(store: FaultStore) -> None:
    table = made()
    store.plan("create", Fault.LOST)
    add(table, 1)
    assert numbers(table) == [1]


def test_an_unknown_outcome_says_so(store: FaultStore) -> None:
    table = made()
    store.plan("create", Fault.LATE)
    with pytest.raises(CommitStateUnknownException):
        add(table, 1)
    assert numbers(table) == []
    assert store.deliver()
    assert numbers(table) == [1], "what it wrote was kept"


def removed(store: FaultStore) -> None:
    store.delete([HINT])


def torn(store: FaultStore) -> None:
    store.put(HINT, [b""], 0)


def behind(store: FaultStore) -> None:
    store.put(HINT, [b"9"], 1)


@pytest.mark.parametrize("change", [removed, torn, behind])
def test_the_hint_is_a_hint(store: FaultStore, change: Callable[[FaultStore], None]) -> None:
    """Also where upkeep has deleted the oldest versions."""
    table = made()
    for number in range(11):
        add(table, number)
    change(store)
    store.delete([f"shop/orders/metadata/v{number}.metadata.json" for number in (1, 2, 3)])
    add(table.refresh(), 11)
    assert numbers(table) == list(range(12))
    assert store.get(HINT) == b"13"


def test_a_process_that_stood_still_for_days(store: FaultStore) -> None:
    """It creates a version that was deleted as an old one: that is no commit, and nobody reads it."""
    table = made()
    other = table.catalog.load_table("shop.orders")
    create = store.create

    def days_later(name: str, body: bytes) -> bool:
        store.create = create  # type: ignore[method-assign]
        for number in range(3):
            add(other, number)
        store.delete(["shop/orders/metadata/v2.metadata.json"])
        return create(name, body)

    store.create = days_later  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknownException, match="version 2"):
        add(table, 9)
    assert numbers(table) == [0, 1, 2]


def test_others_commit_before_the_hint_is_set(store: FaultStore) -> None:
    """The commit is made: had it failed, pyiceberg would delete the manifests that the table has now."""
    table = made()
    other = table.catalog.load_table("shop.orders")
    create = store.create

    def overtaken(name: str, body: bytes) -> bool:
        store.create = create  # type: ignore[method-assign]
        created = create(name, body)
        add(other.refresh(), 1)
        return created

    store.create = overtaken  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknownException, match="version 2"):
        add(table, 9)
    assert numbers(table) == [1, 9]


def test_tables_that_are_there_and_are_not(store: FaultStore) -> None:
    catalog = made().catalog
    with pytest.raises(TableAlreadyExistsError):
        made()
    with pytest.raises(NoSuchTableError):
        catalog.load_table("shop.payments")
    with pytest.raises(ValueError, match="lies at s3://bucket/lake/shop/x"):
        catalog.create_table("shop.x", pa.schema([]), location="s3://elsewhere/x")
    with pytest.raises(NotImplementedError):
        catalog.drop_table("shop.orders")
    assert versions(store) == ["v1.metadata.json", "version-hint.text"]


def test_a_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_io, "open_store", open_store)
    store_io.store_of.cache_clear()
    catalog = open_catalog(LakeSettings(f"file://{tmp_path}/"))
    add(catalog.create_table("shop.orders", pa.schema([("n", pa.int64())])), 1)
    assert numbers(catalog.load_table("shop.orders")) == [1]
    assert (tmp_path / HINT).read_text() == "2"
    # Iceberg's Java names the table and its files like this.
    newest = tmp_path / "shop/orders/metadata/v2.metadata.json"
    newest.write_text(newest.read_text().replace("file:///", "file:/"))
    add(catalog.load_table("shop.orders"), 2)
    assert numbers(catalog.load_table("shop.orders")) == [1, 2]


def test_a_sql_catalog_beside_the_bucket(tmp_path: Any, store: FaultStore) -> None:
    """The catalog decides; the files are the lake's."""
    lake = LakeSettings("s3://bucket/lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    catalog = open_catalog(lake)
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table(
        "shop.orders", pa.schema([("n", pa.int64())]), location=lake.url(("shop", "orders"))
    )
    add(table, 1)
    assert numbers(catalog.load_table("shop.orders")) == [1]
    assert any(one.name.endswith(".parquet") for one in store.list("shop/orders/"))
    catalog.close()
