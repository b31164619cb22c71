"""`mpbroker service`: what it would do, does, leaves alone, and takes back; systemd's programs are stand-ins.

They keep what was called in a file, and the unit's state in another.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import service
from mpbroker.config.load import load
from tests.support.own_cli import OwnCli
from tests.support.programs import ran

COMMAND = "/opt/here/bin/mpbroker"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> OwnCli:
    """The command of an installation that a service can see."""
    monkeypatch.setattr(service, "own_command", lambda: [COMMAND])
    monkeypatch.setattr(service, "hidden_from_service", lambda _: None)
    return OwnCli("nobody:1")


class Here(service.Host):
    """A host whose root is a directory, where systemd runs."""

    @property
    def is_this(self) -> bool:
        return True


class Systemd:
    """Stands in for systemd's programs: keeps what was called, and answers what the unit's state is."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = Here(root)
        self.calls: list[str] = []
        self.states = {
            "LoadState": "not-found",
            "NeedDaemonReload": "no",
            "UnitFileState": "",
            "ActiveState": "inactive",
        }
        self.fails = ""
        self.user: object = None
        # What was given to the user and the group, -1: not given.
        self.given: dict[str, tuple[int, int]] = {}
        monkeypatch.setattr(os, "chown", self.chown)
        monkeypatch.setattr(service, "BOOTED", root.parent)
        monkeypatch.setattr(service, "_call", self.call)
        monkeypatch.setattr(service, "account", lambda: self.user)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def chown(self, path: Path, uid: int, gid: int) -> None:
        name = f"/{path.relative_to(self.host.at('/'))}"
        self.given[name] = (uid, gid)

    def call(self, *command: str) -> str:
        line = " ".join(command)
        if command[:2] == ("systemctl", "show"):
            return f"{self.states[command[4]]}\n"
        if self.fails and self.fails in line:
            raise CliError(f"{line} failed: for this test")
        self.calls.append(line)
        if command[0] == "systemd-sysusers":
            self.user = SimpleNamespace(pw_uid=os.getuid(), pw_gid=os.getgid())
        elif "daemon-reload" in command:
            is_there = self.host.at(service.UNIT_FILE).exists()
            self.states["LoadState"] = "loaded" if is_there else "not-found"
        elif "enable" in command:
            self.states |= {"UnitFileState": "enabled", "ActiveState": "active"}
        elif "disable" in command:
            self.states |= {"UnitFileState": "disabled", "ActiveState": "inactive"}
        return ""

    def install(self, *, is_dry: bool = False, starts: bool = False) -> None:
        service.install(host=self.host, is_dry=is_dry, is_sure=True, starts=starts, as_json=False)

    def uninstall(self) -> None:
        service.uninstall(host=self.host, is_dry=False, is_sure=True, as_json=False)


@pytest.fixture
def systemd(cli: OwnCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    del cli
    return Systemd(tmp_path / "root", monkeypatch)


def files(root: Path) -> dict[str, str]:
    """Modes of all files and directories below a root."""
    return {f"/{path.relative_to(root)}": stat.filemode(path.stat().st_mode) for path in root.rglob("*")}


def test_a_dry_run_changes_nothing(cli: OwnCli, tmp_path: Path) -> None:
    said = cli("service", "install", "--root", str(tmp_path), "--dry-run").out
    assert said.splitlines()[:4] == [
        f"{tmp_path}/etc/sysusers.d/mpbroker.conf: would be written",
        f"{tmp_path}/etc/mpbroker/server.properties: would be written",
        f"{tmp_path}/var/lib/mpbroker: would be created, mode 0750",
        f"{tmp_path}/etc/systemd/system/mpbroker.service: would be written",
    ]
    assert files(tmp_path) == {}


def test_below_a_root_it_writes_files(cli: OwnCli, tmp_path: Path) -> None:
    cli("service", "install", "--root", str(tmp_path))
    modes = files(tmp_path)
    assert modes["/etc/mpbroker"] == "drwxr-x---"
    assert modes["/etc/mpbroker/server.properties"] == "-rw-r-----"
    assert modes["/var/lib/mpbroker"] == "drwxr-x---"
    assert modes["/etc/systemd/system/mpbroker.service"] == "-rw-r--r--"
    unit = (tmp_path / "etc/systemd/system/mpbroker.service").read_text()
    assert f"\nExecStart={COMMAND} serve --config /etc/mpbroker/server.properties\n" in unit
    loaded = load(tmp_path / "etc/mpbroker/server.properties")
    assert (loaded.warnings, loaded.config.log_dirs) == ((), ("/var/lib/mpbroker",))


def test_again_there_is_nothing_to_do(cli: OwnCli, tmp_path: Path) -> None:
    cli("service", "install", "--root", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert (
        "the service is installed: nothing is to be done"
        in cli("service", "install", "--root", str(tmp_path)).out
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_settings_that_are_there_stay_and_say_what_the_unit_may_write(cli: OwnCli, tmp_path: Path) -> None:
    settings = tmp_path / "etc/mpbroker/server.properties"
    settings.parent.mkdir(parents=True)
    settings.write_text("log.dirs=/var/lib/mpbroker/a,/srv/b\n")
    cli("service", "install", "--root", str(tmp_path))
    assert settings.read_text() == "log.dirs=/var/lib/mpbroker/a,/srv/b\n"
    assert (tmp_path / "srv/b").is_dir()
    assert (tmp_path / "var/lib/mpbroker/a").is_dir()
    assert "\nReadWritePaths=/srv/b\n" in (tmp_path / "etc/systemd/system/mpbroker.service").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num.partitions=2\n", "has no log.dirs: add log.dirs=/var/lib/mpbroker"),
        ("num.partitons=2\n", "unknown setting num.partitons; did you mean num.partitions?"),
        ("log.dirs=/run/user/1/data\n", "(ProtectHome): move /run/user/1/data elsewhere"),
        ("log.dirs=/srv/a b\n", "/srv/a b: a path in the unit may have only"),
    ],
)
def test_settings_that_no_service_could_use_are_refused(
    cli: OwnCli, tmp_path: Path, text: str, says: str
) -> None:
    settings = tmp_path / "etc/mpbroker/server.properties"
    settings.parent.mkdir(parents=True)
    settings.write_text(text)
    assert says in cli("service", "install", "--root", str(tmp_path), code=2).err
    assert not (tmp_path / "etc/systemd").exists()


def test_json_has_the_steps(cli: OwnCli, tmp_path: Path) -> None:
    done = cli("service", "install", "--root", str(tmp_path), "--json").json
    assert done["dry_run"] is False
    outcomes = [step["outcome"] for step in done["steps"]]
    assert outcomes == ["written", "written", "created, mode 0750", "written"]


def test_on_a_host_it_makes_the_user_and_starts(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.install(starts=True)
    assert systemd.calls == [
        "systemd-sysusers /etc/sysusers.d/mpbroker.conf",
        "systemctl daemon-reload",
        "systemctl enable --now mpbroker.service",
    ]
    assert "mpbroker.service: enabled and started" in capsys.readouterr().out
    systemd.calls.clear()
    systemd.install(starts=True)
    assert systemd.calls == []


def test_the_service_may_write_data_and_read_settings(systemd: Systemd) -> None:
    systemd.host.at(service.DATA).mkdir(parents=True)
    systemd.user = SimpleNamespace(pw_uid=os.getuid() + 1, pw_gid=7)
    systemd.install()
    assert systemd.given == {
        "/etc/mpbroker": (-1, 7),
        "/etc/mpbroker/.server.properties.part": (-1, 7),
        "/var/lib/mpbroker": (os.getuid() + 1, 7),
    }


def test_without_now_it_says_how_to_start(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.install()
    assert not any("enable" in call for call in systemd.calls)
    assert "systemctl enable --now mpbroker starts it" in capsys.readouterr().out


@pytest.mark.parametrize("fails", ["systemd-sysusers", "daemon-reload", "enable"])
def test_an_install_that_was_broken_off_goes_on(systemd: Systemd, fails: str) -> None:
    systemd.fails = fails
    with pytest.raises(CliError, match=f"{fails}.* failed: for this test"):
        systemd.install(starts=True)
    systemd.fails = ""
    systemd.install(starts=True)
    assert systemd.states["ActiveState"] == "active"
    assert len([call for call in systemd.calls if "systemd-sysusers" in call]) == 1
    assert len([call for call in systemd.calls if "daemon-reload" in call]) == 1


def test_another_version_changes_the_unit_alone(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.install(starts=True)
    unit = systemd.host.at(service.UNIT_FILE)
    unit.write_text(unit.read_text().replace("WatchdogSec=120s", "WatchdogSec=60s"))
    systemd.calls.clear()
    capsys.readouterr()
    systemd.install()
    assert systemd.calls == ["systemctl daemon-reload"]
    assert capsys.readouterr().out.splitlines() == [
        f"{unit}: written",
        "systemd: reloaded",
        "to apply this to the running broker: systemctl restart mpbroker",
    ]


def test_files_of_others_stay_theirs(systemd: Systemd) -> None:
    data = systemd.host.at(service.DATA)
    data.mkdir(parents=True)
    systemd.user = SimpleNamespace(pw_uid=os.getuid() + 1, pw_gid=os.getgid())
    (data / "meta.properties").touch()
    with pytest.raises(CliError, match="has files, and belongs to another user"):
        systemd.install(is_dry=True)


def test_uninstall_keeps_data_and_settings(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.install(starts=True)
    (systemd.host.at(service.DATA) / "meta.properties").touch()
    systemd.calls.clear()
    capsys.readouterr()
    systemd.uninstall()
    assert systemd.calls == ["systemctl disable --now mpbroker.service", "systemctl daemon-reload"]
    left = {path for path, mode in files(systemd.host.at("/")).items() if not mode.startswith("d")}
    assert left == {"/etc/mpbroker/server.properties", "/var/lib/mpbroker/meta.properties"}
    settings, data = systemd.host.at(service.SETTINGS), systemd.host.at(service.DATA)
    assert capsys.readouterr().out.splitlines()[-1] == f"kept: {settings}, {data} and the user mpbroker"
    # Settings of which nothing can be made, and some that name other directories.
    settings.write_text("log.dirs\n=")
    systemd.uninstall()
    assert f"kept: {settings}, {data} and" in capsys.readouterr().out
    settings.write_text("log.dirs=/srv/a,/srv/none\n")
    systemd.host.at("/srv/a").mkdir(parents=True)
    systemd.uninstall()
    assert f"kept: {settings}, {systemd.host.at('/srv/a')} and" in capsys.readouterr().out
    systemd.calls.clear()
    systemd.uninstall()
    assert systemd.calls == []
    assert "the service is uninstalled: nothing is to be done" in capsys.readouterr().out


def test_uninstall_below_a_root(cli: OwnCli, tmp_path: Path) -> None:
    cli("service", "install", "--root", str(tmp_path))
    wanted = tmp_path / "etc/systemd/system/multi-user.target.wants/mpbroker.service"
    wanted.parent.mkdir()
    wanted.symlink_to("../mpbroker.service")
    cli("service", "uninstall", "--root", str(tmp_path))
    assert not wanted.is_symlink()
    assert not (tmp_path / "etc/systemd/system/mpbroker.service").exists()


def test_without_root_it_says_what_to_run(cli: OwnCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    # Which others may not read, once it is there.
    monkeypatch.setattr(service, "_log_dirs", lambda _: pytest.fail("it has read settings"))
    for verb in ("install", "uninstall"):
        said = cli("service", verb, code=1).err
        assert f"only root may {verb} a service of this host: sudo {COMMAND} service {verb}" in said


def test_a_root_has_no_systemd_to_start_it(cli: OwnCli, tmp_path: Path) -> None:
    said = cli("service", "install", "--root", str(tmp_path), "--now", code=2).err
    assert "--now: the systemd of --root cannot be asked" in said


def test_an_installation_that_the_service_cannot_see_is_refused(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a dry run prints its plan first, and that --root only warns: a packager may move files."""
    says = f"{COMMAND}: the service cannot see it"
    monkeypatch.setattr(service, "hidden_from_service", lambda _: says)
    with pytest.raises(CliError, match=f"^this would be refused: {says}$"):
        systemd.install(is_dry=True)
    assert f"{systemd.host.at(service.UNIT_FILE)}: would be written\n" in capsys.readouterr().out
    with pytest.raises(CliError, match=f"^{says}$"):
        systemd.install()
    assert not systemd.host.at("/etc").exists()
    root = tmp_path / "image"
    for more in (["--dry-run"], []):
        done = OwnCli("nobody:1")("service", "install", "--root", str(root), *more)
        assert done.err == f"mpbroker: warning: {says}\n"
    assert (root / "etc/systemd/system/mpbroker.service").exists()


def test_what_the_service_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    says = "the service's user cannot read files below"
    assert says in (service.hidden_from_service([str(closed / "bin/mpbroker")]) or "")
    monkeypatch.setattr(service, "_HIDDEN", ("/",))
    assert f"{says} /;" in (service.hidden_from_service(["/usr/bin/env"]) or "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.process
def test_systemd_accepts_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "own_command", lambda: [str(shutil.which("true"))])
    OwnCli("nobody:1")("service", "install", "--root", str(tmp_path))
    unit = tmp_path / "etc/systemd/system/mpbroker.service"
    verified = ran(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)])
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if unit.name in line]) == (
        0,
        [],
    )


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
@pytest.mark.process
def test_systemd_accepts_the_user(tmp_path: Path) -> None:
    OwnCli("nobody:1")("service", "install", "--root", str(tmp_path))
    done = ran(["systemd-sysusers", "--dry-run", f"--root={tmp_path}", "mpbroker.conf"])
    assert done.returncode == 0, done.stderr
