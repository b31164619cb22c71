"""The unit file is one that systemd accepts, and says what the broker relies on."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from mpbroker.config.listeners import DEFAULT_PROTOCOL_MAP, parse_listeners
from tests.support.polling import PATIENCE_S

UNIT = Path(__file__).parents[2] / "ops/systemd/mpbroker.service"
SOCKET = UNIT.with_suffix(".socket")
# What systemd knows from this version on; an older one ignores the line, and says so.
RELOADS, RELOADS_FROM = "Type=notify-reload\n", 253


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.process
def test_systemd_accepts_it(tmp_path: Path) -> None:
    executable = shutil.which("true")
    assert executable is not None
    copy, socket_copy = tmp_path / UNIT.name, tmp_path / SOCKET.name
    said = subprocess.check_output(["systemd-analyze", "--version"], text=True)
    text = UNIT.read_text().replace("/opt/mpbroker/bin/mpbroker", executable)
    copy.write_text(text if int(said.split()[1]) >= RELOADS_FROM else text.replace(RELOADS, ""))
    socket_copy.write_text(SOCKET.read_text())
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy), str(socket_copy)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
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
    # The last one wins, where it is known.
    types = [line for line in UNIT.read_text().splitlines() if line.startswith("Type=")]
    assert types == ["Type=notify", "Type=notify-reload"]
    assert service["RemoveIPC"] == "no"
    assert service["User"] != "root"
    assert service["Environment"] == f"MPBROKER_RUNTIME_DIR=/run/{service['RuntimeDirectory']}"
    assert f"--log-dirs /var/lib/{service['StateDirectory']}" in service["ExecStart"]
    assert "AF_UNIX" in service["RestrictAddressFamilies"]
    assert not {"PrivateTmp", "MemoryDenyWriteExecute", "ProtectProc", "ProcSubset"} & set(service)
