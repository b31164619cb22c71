"""The store of a URL, and sentences about URLs that name none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpbroker.remote.store.bucket import BucketStore
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.opening import StoreRefused, open_store
from tests.support.programs import loaded

TIMEOUT_MS = 1000


def test_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", TIMEOUT_MS)
    assert isinstance(store, DirectoryStore)
    store.create("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b/", "gs://bucket/a", "az://container/a"])
def test_a_bucket_is_opened_without_a_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert isinstance(open_store(url, TIMEOUT_MS), BucketStore)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "names no store: it is empty"),
        ("http://bucket/prefix", "names no store: it must be s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "credentials come from the environment"),
        ("s3://bucket:9000/prefix", "an endpoint comes from the environment"),
        ("s3://bucket/a b", "other characters"),
        ("s3://bucket/a//b", "other characters"),
        ("file:///not/there", "/not/there is no directory: mount it, or make it"),
    ],
)
def test_what_names_no_store_is_refused(url: str, why: str) -> None:
    with pytest.raises(StoreRefused) as caught:
        open_store(url, TIMEOUT_MS)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreRefused, match=r"needs obstore: .*install 'mpbroker-server\[tier\]'"):
        open_store("s3://bucket/prefix", TIMEOUT_MS)


@pytest.mark.process
def test_a_directory_imports_no_obstore(tmp_path: Path) -> None:
    code = f"from mpbroker.remote.store.opening import open_store; open_store('file://{tmp_path}', 1)"
    assert loaded(code, "obstore") == []
