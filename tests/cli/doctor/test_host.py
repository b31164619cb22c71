"""Checks of the machine, each in the states that it tells apart."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from msgspec import structs

from mpbroker.cli.doctor import host
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import load
from mpbroker.config.version import VERSION
from spark_integration.check import OK, PROBLEM, Check


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return load(None, [f"log.dirs={tmp_path / 'data'}"]).config


def test_a_package_of_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FOREIGN_PACKAGE", "no-such-package-of-others")
    assert host.packages() == Check("package", OK, f"mpbroker-server {VERSION}")
    metadata = tmp_path / "no_such_package_of_others-1.3.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: no-such-package-of-others\nVersion: 1.3.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = host.packages()
    assert (found.state, found.found.split(" is ")[0]) == (PROBLEM, "no-such-package-of-others 1.3.0")
    assert found.advice.startswith("pip uninstall no-such-package-of-others, then pip install")


@pytest.mark.parametrize(
    ("hard", "state"), [(1024, "problem"), (4096, "note"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_open_files(hard: int, state: str) -> None:
    found = host.descriptors(hard)
    assert found.state == state
    assert ("LimitNOFILE" in found.advice) == (state != "ok")


@pytest.mark.parametrize(
    ("available", "limit", "state", "said"),
    [
        (8 << 30, None, "ok", "8.0 GiB available"),
        (1 << 20, None, "note", "free some"),
        (8 << 30, 1 << 30, "problem", "this control group may have 1.0 GiB"),
        (8 << 30, 64 << 30, "ok", "available"),
    ],
)
def test_memory(
    config: BrokerConfig,
    monkeypatch: pytest.MonkeyPatch,
    available: int,
    limit: int | None,
    state: str,
    said: str,
) -> None:
    seen = SimpleNamespace(total=16 << 30, available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: seen)
    monkeypatch.setattr(host, "_cgroup_limit", lambda: limit)
    found = next(iter(host.memory(structs.replace(config, queued_max_request_bytes=1 << 30))))
    assert found.state == state
    assert said in f"{found.found} {found.advice}"


def test_a_kernel_that_reserves_all_that_is_mapped(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = tmp_path / "overcommit_memory"
    monkeypatch.setattr(host, "_OVERCOMMIT", setting)
    for text, expected in (("0\n", []), ("1\n", []), ("2\n", ["overcommit"])):
        setting.write_text(text)
        assert [one.name for one in host.memory(config)][1:] == expected


def test_the_runtime_directory(config: BrokerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPBROKER_RUNTIME_DIR", "/dev/shm/mpbroker-doctor-test")
    assert host.shared_memory(config, is_running=False).state == "ok"
    monkeypatch.setattr(host, "_free", lambda _path: 1 << 20)
    found = host.shared_memory(config, is_running=False)
    assert found.state == "problem"
    assert "--shm-size" in found.advice
    # A running broker has what it needs.
    assert host.shared_memory(config, is_running=True).state == "ok"
    # Not tmp_path, which is in memory.
    monkeypatch.setenv("MPBROKER_RUNTIME_DIR", str(Path(__file__).parent))
    found = host.shared_memory(config, is_running=False)
    assert (found.state, found.advice) == ("problem", "Name a directory below /run or /dev/shm")
    assert not Path("/dev/shm/mpbroker-doctor-test").exists()


@pytest.mark.parametrize(("synchronized", "state"), [(True, "ok"), (False, "note"), (None, "note")])
def test_the_clock(synchronized: bool | None, state: str) -> None:
    assert host.clock(synchronized).state == state
    assert host._is_synchronized() in (True, False, None)


def test_openssl_with_and_without_usable_keys(tmp_path: Path) -> None:
    settings = [f"log.dirs={tmp_path}", "listeners=SSL://127.0.0.1:0", "ssl.keystore.type=PEM"]
    config = load(None, [*settings, f"ssl.keystore.location={tmp_path / 'none.pem'}"]).config
    found = host.openssl(config)
    assert found.state == "problem"
    assert "none.pem" in found.found
    assert host.openssl(load(None, [f"log.dirs={tmp_path}"]).config).found.endswith("no TLS")
