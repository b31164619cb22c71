"""What a start says of an object store that it cannot reach."""

from __future__ import annotations

from importlib import metadata

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.extras import pip_install
from mpbroker.ipc.process import FatalError
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED, Claim, check_object_store


@pytest.fixture(autouse=True)
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def config(url: str, *, is_on: bool = True) -> BrokerConfig:
    return BrokerConfig(remote_log_storage_system_enable=is_on, mpbroker_remote_url=url)


def test_a_bucket_needs_the_extra() -> None:
    with pytest.raises(FatalError) as raised:
        Claim(config("s3://bucket/a"))
    assert str(raised.value) == (
        f"mpbroker.remote.url=s3://bucket/a needs obstore, which is not installed: {pip_install('tier')}"
    )
    assert raised.value.status == EXIT_MISCONFIGURED


def test_a_directory_needs_no_extra() -> None:
    check_object_store(config("file:///b"))
    check_object_store(config("s3://bucket", is_on=False))
