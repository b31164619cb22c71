"""The unit file is one that systemd accepts, and says what the broker relies on."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "ops/systemd/mpbroker.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_it(tmp_path: Path) -> None:
    executable = shutil.which("true")
    assert executable is not None
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/mpbroker/bin/mpbroker", executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert (verified.returncode, complaints) == (0, [])


def test_what_the_broker_relies_on() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["RemoveIPC"] == "no"
    assert service["User"] != "root"
    assert service["Environment"] == f"MPBROKER_RUNTIME_DIR=/run/{service['RuntimeDirectory']}"
    assert f"--log-dirs /var/lib/{service['StateDirectory']}" in service["ExecStart"]
    assert "AF_UNIX" in service["RestrictAddressFamilies"]
    assert "PrivateTmp" not in service
