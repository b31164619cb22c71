"""`mpbroker service`: this installation as a service of systemd.

A command takes only the steps that are not done yet, so it can be repeated after a failure.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from mpbroker.cli.app import App
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import DryRun, Json, Yes, flag, option
from mpbroker.cli.host import shipped
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import counted, print_json
from mpbroker.config.keys import ConfigError
from mpbroker.config.load import load
from mpbroker.config.sample import sample

service_app = App(no_args_is_help=True)
USER = "mpbroker"
SETTINGS = "/etc/mpbroker/server.properties"
DATA = "/var/lib/mpbroker"
UNIT = "mpbroker.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
USER_FILE = "/etc/sysusers.d/mpbroker.conf"
# In the unit of the repository.
_COMMAND, _STATE = "/opt/mpbroker/bin/mpbroker", "StateDirectory=mpbroker\n"
# Characters that systemd and a shell read in the same way.
_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)
# The unit has ProtectHome.
_HIDDEN = tuple(f"/{name}" for name in ("home", "root", "run/user"))
_HOW_TO_INSTALL = (
    "install mpbroker where every user may read it, as with /usr/bin/python3 -m venv /opt/mpbroker and "
    "/opt/mpbroker/bin/pip install, and call /opt/mpbroker/bin/mpbroker"
)
# This directory exists on hosts that systemd has booted (sd_booted).
BOOTED = Path("/run/systemd/system")


class Step(NamedTuple):
    """A change of the host, made by `run`. `subject` (a file, user or unit) and `outcome` describe it."""

    subject: str
    outcome: str
    run: Callable[[], object]


class Host(NamedTuple):
    """The host of the service: this host, or an image whose root is the directory `root` of this host."""

    root: Annotated[
        Path | None,
        option(
            "--root",
            "DIR",
            "Only write files, below this directory, as for systemctl: for packages and images.",
            readable=False,
        ),
    ] = None

    @property
    def is_this(self) -> bool:
        return self.root is None

    def at(self, path: str) -> Path:
        """Return where this process finds a path of the service: below the host's root."""
        return Path(path) if self.root is None else self.root / path.lstrip("/")

    @property
    def has_systemd(self) -> bool:
        """Return whether the service's host is this host, and systemd runs on it."""
        return self.is_this and BOOTED.is_dir()


@service_app.command("install")
def install(
    *,
    starts: Annotated[bool, flag("--now", "Start it, and with each boot (systemctl enable --now).")] = False,
    host: Host,
    is_dry: DryRun = False,
    is_sure: Yes = False,
    as_json: Json = False,
) -> None:
    """Make this installation a service of systemd.

    Creates the user mpbroker, /etc/mpbroker/server.properties unless it exists, the log directories it names,
    and the unit. Repeat it after a failure, after a change of log.dirs, or from another installation. With
    --root, owners are not set.
    """
    if starts and not host.has_systemd:
        why = "of this host does not run" if host.is_this else "of --root cannot be asked"
        raise CliError(f"--now: the systemd {why}", USAGE_ERROR)
    _require_root(host, "install", is_dry=is_dry)
    command = own_command()
    problem = hidden_from_service(command)
    if problem and host.is_this and not is_dry:
        raise CliError(problem)
    steps = [*_install_steps(host, command), *(_starts() if starts else ())]
    if host.has_systemd and _property("ActiveState") == "active":
        hint = f"to apply this to the running broker: systemctl restart {USER}" if steps else ""
    elif not host.is_this:
        hint = f"systemctl --root={host.root} enable {USER} has it start with each boot"
    else:
        hint = "" if starts else f"systemctl enable --now {USER} starts it, now and with each boot"
    _carry_out("install", steps, hint, is_dry=is_dry, is_sure=is_sure, as_json=as_json)
    if problem and host.is_this:
        raise CliError(f"this would be refused: {problem}")
    if problem:
        # After the steps, also where both go to one file.
        sys.stdout.flush()
        print(f"mpbroker: warning: {problem}", file=sys.stderr)


@service_app.command("uninstall")
def uninstall(*, host: Host, is_dry: DryRun = False, is_sure: Yes = False, as_json: Json = False) -> None:
    """Stop the service and remove its unit.

    Keeps the log directories, the settings and the user mpbroker.
    """
    _require_root(host, "uninstall", is_dry=is_dry)
    kept = [str(path) for name in (SETTINGS, *_kept_dirs(host)) if (path := host.at(name)).exists()]
    hint = f"kept: {', '.join(kept)} and the user {USER}" if kept else ""
    steps = list(_uninstall_steps(host))
    _carry_out("uninstall", steps, hint, is_dry=is_dry, is_sure=is_sure, as_json=as_json)


def _require_root(host: Host, verb: str, *, is_dry: bool) -> None:
    if is_dry or not host.is_this:
        return
    if os.geteuid() != 0:
        call = shlex.join(["sudo", *own_command(), "service", verb])
        raise CliError(f"only root may {verb} a service of this host: {call}")
    if shutil.which("systemctl") is None:
        raise CliError("this host has no systemctl: the service is for hosts with systemd")


def _carry_out(
    verb: str, steps: Sequence[Step], hint: str, *, is_dry: bool, is_sure: bool, as_json: bool
) -> None:
    if steps and not is_dry:
        many = counted(len(steps), "step")
        confirm(f"{verb.capitalize()} the service {USER} ({many}; --dry-run lists them)?", is_sure=is_sure)
    for step in steps:
        if not is_dry:
            step.run()
        if not as_json:
            print(f"{step.subject}: {'would be ' if is_dry else ''}{step.outcome}")
    if as_json:
        done = [{"subject": step.subject, "outcome": step.outcome} for step in steps]
        print_json({"dry_run": is_dry, "steps": done})
        return
    if not steps:
        print(f"the service is {verb}ed: nothing is to be done")
    if hint:
        print(hint)


# ---- the steps


def _install_steps(host: Host, command: Sequence[str]) -> Iterator[Step]:
    yield from _file(host, USER_FILE, shipped.text("ops/systemd/mpbroker.sysusers.conf"))
    if host.is_this and account() is None:
        yield Step(f"user {USER}", "created", lambda: _call("systemd-sysusers", USER_FILE))
    settings = host.at(SETTINGS)
    if not settings.exists():
        yield Step(str(settings), "written", lambda: _write_settings(host))
    log_dirs = _log_dirs(settings)
    for directory in log_dirs:
        yield from _log_directory(host, directory)
    changes = list(_file(host, UNIT_FILE, unit(command, log_dirs)))
    yield from changes
    if host.has_systemd and (changes or not _is_loaded()):
        yield _reload()


def _starts() -> Iterator[Step]:
    if _property("UnitFileState") != "enabled" or _property("ActiveState") != "active":
        yield Step(UNIT, "enabled and started", lambda: _call("systemctl", "enable", "--now", UNIT))


def _uninstall_steps(host: Host) -> Iterator[Step]:
    is_known = host.has_systemd and _property("LoadState") == "loaded"
    if host.has_systemd:
        runs = _property("ActiveState") not in ("inactive", "failed")
        if runs or _property("UnitFileState") == "enabled":
            yield Step(UNIT, "stopped and disabled", lambda: _call("systemctl", "disable", "--now", UNIT))
    elif host.at(WANTED).is_symlink():
        yield Step(str(host.at(WANTED)), "removed", host.at(WANTED).unlink)
    for path in (host.at(UNIT_FILE), host.at(USER_FILE)):
        if path.exists():
            yield Step(str(path), "removed", path.unlink)
    if is_known:
        yield _reload()


def _reload() -> Step:
    return Step("systemd", "reloaded", lambda: _call("systemctl", "daemon-reload"))


def _is_loaded() -> bool:
    """Return whether systemd has loaded the current content of the unit's file."""
    return _property("LoadState") == "loaded" and _property("NeedDaemonReload") == "no"


def _file(host: Host, name: str, text: str) -> Iterator[Step]:
    path = host.at(name)
    if not path.exists() or path.read_text("utf-8") != text:
        yield Step(str(path), "written", lambda: _write(path, text, 0o644))


def _log_directory(host: Host, name: str) -> Iterator[Step]:
    path = host.at(name)
    if not path.exists():
        outcome = f"created, owner {USER}, mode 0750" if host.is_this else "created, mode 0750"
        yield Step(str(path), outcome, lambda: _give(host, path))
    elif host.is_this and not _is_owned(path):
        if account() is not None:
            _refuse_others_files(path)
        yield Step(str(path), f"given to {USER}", lambda: _give(host, path))


def _log_dirs(settings: Path) -> list[str]:
    """Return the log.dirs in a file of settings, or the default if there is no file yet. Raises CliError."""
    if not settings.exists():
        return [DATA]
    try:
        config = load(settings).config
    except ConfigError as error:
        raise CliError(str(error), USAGE_ERROR) from error
    if "log.dirs" not in config.origins:
        raise CliError(f"{settings} has no log.dirs: add log.dirs={DATA}", USAGE_ERROR)
    for path in config.log_dirs:
        if any(Path(path).is_relative_to(hidden) for hidden in _HIDDEN):
            raise CliError(
                f"{settings}: log.dirs: the unit hides {', '.join(_HIDDEN)} (ProtectHome): move {path} "
                "elsewhere",
                USAGE_ERROR,
            )
    return list(config.log_dirs)


def _kept_dirs(host: Host) -> list[str]:
    """Return the log directories that an uninstallation keeps; the default if the settings are wrong."""
    try:
        return _log_dirs(host.at(SETTINGS))
    except CliError:
        return [DATA]


def unit(command: Sequence[str], log_dirs: Sequence[str]) -> str:
    """Return the text of a unit that runs a command and lets it write to log directories. Raises CliError."""
    for path in (*command, *log_dirs):
        if not _PLAIN.fullmatch(path):
            raise CliError(
                f"{path}: a path in the unit may have only letters, digits and @+=:,._/-. Rename it, or "
                "install elsewhere",
                USAGE_ERROR,
            )
    text = shipped.text("ops/systemd/mpbroker.service").replace(_COMMAND, " ".join(command))
    elsewhere = [path for path in log_dirs if not Path(path).is_relative_to(DATA)]
    more = f"ReadWritePaths={' '.join(elsewhere)}\n" if elsewhere else ""
    return text.replace(_STATE, _STATE + more)


# ---- the installation


def own_command() -> list[str]:
    """Return the words that call this installation's command."""
    script = Path(sysconfig.get_path("scripts"), "mpbroker")
    return [str(script)] if script.exists() else [sys.executable, "-m", "mpbroker"]


def hidden_from_service(command: Sequence[str]) -> str | None:
    """Return why the service's user could not run the command; None if the user can run it."""
    for path in (Path(command[0]), Path(sys.executable).resolve(), shipped.PACKAGE):
        closed = [one for one in path.parents if not one.stat().st_mode & 0o001]
        closed += [one for one in path.parents if str(one) in _HIDDEN]
        if closed:
            return f"{path}: the service's user cannot read files below {closed[0]}; {_HOW_TO_INSTALL}"
    return None


# ---- the host


def account() -> pwd.struct_passwd | None:
    """Return the account of the service's user; None if it does not exist."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


def _is_owned(path: Path) -> bool:
    return (owner := account()) is not None and path.stat().st_uid == owner.pw_uid


def _refuse_others_files(path: Path) -> None:
    """Raise CliError if this log directory, which another user owns, is not empty."""
    if any(path.iterdir()):
        raise CliError(
            f"{path} has files, and belongs to another user. Make it {USER}'s, then call this again: "
            f"chown -R {USER}:{USER} {path}"
        )


def _give(host: Host, path: Path) -> None:
    """Make a log directory. If `host` is not an image, the service's user becomes the directory's owner.

    Raises CliError if the directory has files and another owner.
    """
    path.mkdir(parents=True, exist_ok=True)
    if host.is_this and not _is_owned(path):
        _refuse_others_files(path)
        _own(path)
    path.chmod(0o750)


def _own(path: Path, uid: int | None = None) -> None:
    """Set a path's owner (`uid`; None: the service's user; -1: no change) and group. Raises CliError."""
    owner = account()
    if owner is None:
        raise CliError(
            f"systemd-sysusers {USER_FILE} did not create the user {USER}: create it "
            f"(useradd --system {USER}) and call this again"
        )
    os.chown(path, owner.pw_uid if uid is None else uid, owner.pw_gid)


def _write_settings(host: Host) -> None:
    """Write the settings: only root may change them, and only the service may read their passwords."""
    path = host.at(SETTINGS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o750)
    if host.is_this:
        _own(path.parent, -1)
    _write(path, sample({"log.dirs": DATA}), 0o640, is_shared=host.is_this)


def _write(path: Path, text: str, mode: int, *, is_shared: bool = False) -> None:
    """Write a file atomically. `is_shared`: the file gets the group of the service."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, "utf-8")
    partial.chmod(mode)
    if is_shared:
        _own(partial, -1)
    partial.replace(path)


def _property(name: str) -> str:
    """Return the value of the unit's property `name`, as systemd reports it."""
    return _call("systemctl", "show", "--value", "--property", name, UNIT).strip()


def _call(*command: str) -> str:
    """Return the output of a program. Raises CliError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CliError(f"this host has no {command[0]}: the service is for hosts with systemd") from error
    if done.returncode:
        raise CliError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
