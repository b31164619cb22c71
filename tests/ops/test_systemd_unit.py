"""The unit file is one that systemd accepts, and says what the broker relies on."""

import configparser
import shutil
from pathlib import Path

import pytest

from mpbroker.cli.host.service import DATA, SETTINGS
from mpbroker.config.listeners import DEFAULT_PROTOCOL_MAP, parse_listeners
from tests.support.programs import ran

UNIT = Path(__file__).parents[2] / "ops/systemd/mpbroker.service"
SOCKET = UNIT.with_suffix(".socket")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.process
def test_systemd_accepts_it(tmp_path: Path) -> None:
    executable = shutil.which("true")
    assert executable is not None
    copy, socket_copy = tmp_path / UNIT.name, tmp_path / SOCKET.name
    copy.write_text(UNIT.read_text().replace("/opt/mpbroker/bin/mpbroker", executable))
    socket_copy.write_text(SOCKET.read_text())
    verified = ran(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy), str(socket_copy)]
    )
    complaints = [line for line in verified.stderr.splitlines() if UNIT.name in line or SOCKET.name in line]
    assert (verified.returncode, complaints) == (0, [])


def test_the_socket_is_a_listeners() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(SOCKET.read_text())
    assert unit["Socket"]["Service"] == UNIT.name
    name, port = unit["Socket"]["FileDescriptorName"], unit["Socket"]["ListenStream"]
    assert len(parse_listeners(f"{name}://:{port}", DEFAULT_PROTOCOL_MAP)) == 1


def test_what_the_broker_relies_on() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["RemoveIPC"] == "no"
    assert service["User"] != "root"
    assert service["Environment"] == f"MPBROKER_RUNTIME_DIR=/run/{service['RuntimeDirectory']}"
    # `mpbroker service install` writes settings with this directory, and replaces the command.
    assert f"/var/lib/{service['StateDirectory']}" == DATA
    assert service["ExecStart"] == f"/opt/mpbroker/bin/mpbroker serve --config {SETTINGS}"
    assert "AF_UNIX" in service["RestrictAddressFamilies"]
    assert not {"PrivateTmp", "MemoryDenyWriteExecute", "ProtectProc", "ProcSubset"} & set(service)
