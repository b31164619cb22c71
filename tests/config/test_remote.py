"""Settings of tiered storage: where the object store is, and values that contradict each other."""

from __future__ import annotations

import pytest

from mpbroker.config.keys import ConfigError
from mpbroker.config.load import Loaded, load

ON = "remote.log.storage.system.enable=true"
URL = "mpbroker.remote.url"


def with_url(url: str, *more: str) -> Loaded:
    return load(None, [ON, f"{URL}={url}", *more])


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container/", "file:///var/tier"]
)
def test_stores(url: str) -> None:
    loaded = with_url(url)
    assert (loaded.config.mpbroker_remote_url, loaded.warnings) == (url, ())


@pytest.mark.parametrize(
    "url", ["s3:bucket", "s3:///prefix", "/var/tier", "file://host/var", "file:///", "hdfs://a/b", "s3://[/x"]
)
def test_what_names_no_store(url: str) -> None:
    with pytest.raises(ConfigError, match=rf"{URL}: it must be s3://bucket/prefix, gs://.* or file:///path"):
        with_url(url)


@pytest.mark.parametrize("url", ["s3://key:hush@bucket/a", "s3://bucket/a?secret=hush"])
def test_credentials_are_neither_taken_nor_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="credentials come from the environment") as raised:
        with_url(url)
    assert "hush" not in str(raised.value)


def test_tiered_storage_needs_a_store() -> None:
    with pytest.raises(ConfigError, match=rf"-o: remote.log.storage.system.enable=true needs .*: set {URL}"):
        load(None, [ON])


def test_a_store_without_the_switch_has_no_effect() -> None:
    (warning,) = load(None, [f"{URL}=s3://bucket"]).warnings
    assert str(warning) == f"-o: {URL} has no effect: remote.log.storage.system.enable is false"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["log.retention.bytes=5", "log.local.retention.bytes=6"], "more than retention.bytes property"),
        (["log.retention.minutes=1", "log.local.retention.ms=60001"], "more than retention.ms property"),
        (["log.local.retention.ms=-1"], "must not be -1 as retention.ms value is set as 604800000"),
    ],
)
def test_local_retention_beyond_the_whole_one(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_url("file:///b", *settings)
    assert load(None, settings).warnings == ()


def test_acknowledgements_from_a_store_need_one_and_disks() -> None:
    acks = "mpbroker.remote.acks=ledger"
    assert load(None, [ON, f"{URL}=s3://bucket", acks]).config.ships_rounds
    assert not load(None, [ON, f"{URL}=s3://bucket"]).config.ships_rounds
    with pytest.raises(ConfigError, match=f"{acks} needs an object store"):
        load(None, [acks])
    with pytest.raises(ConfigError, match="nothing can be acknowledged"):
        load(None, [ON, f"{URL}=s3://bucket", acks, "mpbroker.remote.read.only=true"])
    with pytest.raises(ConfigError, match=f"log.flush.policy=os contradicts {acks}"):
        load(None, [ON, f"{URL}=s3://bucket", acks, "log.flush.policy=os"])


def test_kafkas_plug_ins_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"Java plug-ins cannot be loaded; set {URL}"):
        load(None, ["remote.log.storage.manager.class.name=io.aiven.Manager"])
    (warning,) = load(None, ["remote.log.manager.copier.thread.pool.size=3"]).warnings
    assert "one process copies" in str(warning)
