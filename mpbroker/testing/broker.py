"""`Broker`: starts a broker for a test, and stops it and removes its files afterwards."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import msgspec

from mpbroker.config.environment import RUNTIME_DIR
from mpbroker.config.listeners import reachable
from mpbroker.ipc.pointer import read_pointer
from mpbroker.protocol.printable import spelt
from mpbroker.testing.errors import BrokerFailed
from mpbroker.testing.leftovers import new_name, sweep

if TYPE_CHECKING:
    from mpbroker.testing.faults import Fault
    from mpbroker.testing.topics import BrokerAddress

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LISTENER = "PLAINTEXT"
HOST = "127.0.0.1"
# The directory for the broker's shared memory; it must be a tmpfs.
MEMORY = Path("/dev/shm")
# Defaults for tests: a small broker, small internal topics, no waiting.
DEFAULTS = {
    "num.network.threads": "1",
    "num.io.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.journal.bytes": "4194304",
}
LOG_TAIL_LINES = 30
KEEP_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
# `sys.path` may lack the directory of this package in a new interpreter; `-P` keeps that of the test out.
COMMAND = (
    "import sys; sys.path.append(sys.argv.pop()); "
    "from mpbroker.testing.serve import main; main()"
)  # fmt: skip


class Broker:
    """A broker with its own processes, ports and directories. Any number of brokers can run at once.

    Use it as a context manager, or call `start` and `stop`. `settings` has settings of `server.properties` by
    Kafka's names; values may be numbers and bools. A given `log_dir` may have the data of an earlier broker
    and is never removed; without it the broker has a temporary directory. `client` has the Kafka client
    properties (`security.protocol`, `sasl.*`, `ssl.*`) that the topic methods need if the first listener is
    not PLAINTEXT.

    The process that starts a broker owns it. When that process has ended, even by SIGKILL, the broker stops
    by itself and removes its temporary directories. Forks of the owner can use the broker, but cannot stop or
    change it: the end of a with statement or of a fixture has no effect in them.
    """

    # Our own tests fork their brokers from a process that has imported everything.
    _popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        client: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.settings = {key: spelt(value) for key, value in (settings or {}).items()}
        for key in ("log.dirs", "log.dir"):
            if key in self.settings:
                raise ValueError(f"settings[{key!r}]: name the directory with Broker(log_dir=…)")
        self.client = dict(client or {})
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self._given_log_dir = Path(log_dir).absolute() if log_dir is not None else None
        # The pid of the process that started the broker; 0 while the broker has no directories.
        self._owner = 0
        # Names only: the process of `mpbroker.testing.serve` makes the directories.
        self._directory: Path | None = None  # of the data, unless `log_dir` was given
        self._memory: Path | None = None
        # Wait for it only after its whole process group was killed.
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._notices: socket.socket | None = None
        self._bound: dict[str, str] = {}
        self._faults: list[Fault] = []
        self._fault_number = 0
        # Without a name, so that nothing of it can stay.
        self._log: BinaryIO | None = None

    # ---- life

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BrokerFailed as failed:
            if error is None:
                raise
            # The first failure is the one that the test is about.
            error.add_note(str(failed))

    def start(self) -> Broker:
        """Start the broker, wait until its listeners answer, and return it. Raises BrokerFailed.

        After `kill` or `stop(keep=True)` the broker has the same ports and data as before.
        """
        self._check_owner("start")
        if self._process is not None:
            raise BrokerFailed("the broker was started already")
        self._name_directories()
        try:
            self._launch()
            self._await_ready()
        except BaseException as error:
            log = self.log_tail()
            self._end()
            if isinstance(error, BrokerFailed):
                raise BrokerFailed(f"{error}\n{log}") from None
            raise
        return self

    def stop(self, *, keep: bool = False) -> None:
        """Stop the broker by SIGTERM, and remove its temporary directories unless `keep` is true.

        Does nothing in a fork of the process that started the broker. Raises BrokerFailed if the broker has
        failed, or does not stop within `stop_timeout_s` and is killed.
        """
        if self._is_inherited():
            return
        failure = ""
        try:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
                if not _has_ended(self._pidfd, self.stop_timeout_s):
                    failure = f"the broker still runs {self.stop_timeout_s:g} s after SIGTERM; it was killed"
        finally:
            code = self._end(keep=keep)
        if code and not failure:
            failure = f"the broker has ended {_how(code)}"
        if failure:
            raise BrokerFailed(f"{failure}\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill all processes with SIGKILL, like a crash. `start` recovers the data. Raises BrokerFailed."""
        self._check_owner("kill")
        if self._process is None:
            raise BrokerFailed("the broker does not run")
        self._kill_processes()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it with the same ports and data. Raises BrokerFailed."""
        self._check_owner("restart")
        self.stop(keep=True)
        self.start()

    @property
    def is_running(self) -> bool:
        """Return whether the broker's supervisor process runs."""
        return self._process is not None and not _has_ended(self._pidfd)

    @property
    def pid(self) -> int:
        """Return the process id of the broker's supervisor. Raises BrokerFailed if it does not run."""
        if self._process is None:
            raise BrokerFailed("the broker does not run: start it, or use it in a with statement")
        return self._process.pid

    def _is_inherited(self) -> bool:
        """Return whether this process is a fork of the owner, which alone may stop the broker."""
        return self._owner not in (0, os.getpid())

    def _check_owner(self, call: str) -> None:
        if self._is_inherited():
            raise BrokerFailed(
                f"{call}: process {self._owner} started the broker, and this one is a fork of it: "
                f"{call} it there, or start another Broker here"
            )

    # ---- where it is

    @property
    def bootstrap_servers(self) -> str:
        """Return `host:port` of the first listener, for clients. Raises BrokerFailed before a start."""
        return next(iter(self.listeners.values()))

    @property
    def listeners(self) -> dict[str, str]:
        """Return each listener's address by name, as `host:port` or `unix:/path`. Raises BrokerFailed."""
        if not self._bound:
            raise BrokerFailed("the broker has no ports yet: start it, or use it in a with statement")
        return {name: reachable(at) for name, at in self._bound.items()}

    @property
    def log_dir(self) -> Path:
        """Return the broker's log directory (`log.dirs`). Raises BrokerFailed if it has none."""
        if self._given_log_dir is not None:
            return self._given_log_dir
        if self._directory is None:
            raise BrokerFailed("the broker has no directory: it was not started, or it was stopped")
        return self._directory / "data"

    def logs(self) -> str:
        """Return the broker's whole log, also after its end; "" if it was never started."""
        if self._log is None:
            return ""
        # The broker's processes share the position of the file.
        fd = self._log.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def log_tail(self) -> str:
        """Return the last lines of the broker's log, with a headline."""
        lines = self.logs().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(["the last lines of its log:", *lines]) if lines else "it has logged nothing"

    # ---- topics

    def create_topic(
        self, name: str | None = None, partitions: int = -1, config: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic and return its name, by default a unique name. Raises BrokerFailed.

        By default the topic has the broker's `num.partitions`. `config` has settings of the topic, by Kafka's
        names.
        """
        from mpbroker.testing.names import unique_name
        from mpbroker.testing.topics import create

        name = name or unique_name("topic")
        create(self._where, name, partitions, {key: spelt(value) for key, value in (config or {}).items()})
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises BrokerFailed."""
        self.delete_topics([name])

    def delete_topics(self, names: Iterable[str], *, missing_ok: bool = False) -> None:
        """Delete topics in one request; with `missing_ok` ignore unknown topics. Raises BrokerFailed."""
        from mpbroker.testing.topics import delete

        delete(self._where, list(names), missing_ok=missing_ok)

    @property
    def _where(self) -> BrokerAddress:
        from mpbroker.testing.topics import BrokerAddress

        return BrokerAddress(self.bootstrap_servers, self.client)

    @contextlib.contextmanager
    def topic(
        self, name: str | None = None, partitions: int = -1, config: Mapping[str, object] | None = None
    ) -> Iterator[str]:
        """Create a topic for a with statement, yield its name, and delete the topic at the end.

        In forks of the process that created the topic, the end of the with statement does not delete it.
        """
        made, owner = self.create_topic(name, partitions, config), os.getpid()
        try:
            yield made
        finally:
            if os.getpid() == owner:
                self.delete_topics([made], missing_ok=True)

    # ---- faults

    def fault(
        self,
        api: str | int,
        *,
        error: str | int | None = None,
        close: bool = False,
        delay_ms: int = 0,
        times: int = 0,
        client_id: str | None = None,
    ) -> Fault:
        """Make later requests of an API wait, fail with an error code, or lose their connection.

        The fault applies to the next `times` requests (0: to all), of one client or of all clients. The
        broker does not process a request that fails or loses its connection; it processes one that only
        waits. If several faults match a request, the oldest applies. The end of the broker clears its faults.

        Use the fault in a with statement, or call its `clear`. Raises ValueError, BrokerFailed.
        """
        from mpbroker.ipc import faults
        from mpbroker.testing.faults import Fault
        from mpbroker.testing.names import api_key, error_code

        if error is None and not close and not delay_ms:
            raise ValueError(
                f"fault({api!r}) has no effect: give error='NOT_LEADER_OR_FOLLOWER' or another error code, "
                "close=True, delay_ms=500, or a delay with one of the others"
            )
        self._check_owner("fault")
        pid = self.pid  # it must run
        self._fault_number += 1
        assert self._memory is not None
        hits = self._memory / f"fault-{pid}-{self._fault_number}"
        spec = faults.Fault(
            hits=str(hits),
            api_key=api_key(api),
            delay_ms=delay_ms,
            error_code=0 if error is None else error_code(error),
            closes=close,
            client_id=client_id,
            times=times,
        )
        fault = Fault(spec, self.clear_faults)
        hits.touch(mode=0o600)
        try:
            self._tell_faults([*self._faults, fault])
        except BaseException:
            hits.unlink()
            raise
        self._faults.append(fault)
        return fault

    def clear_faults(self, *faults: Fault) -> None:
        """Remove the given faults, or all faults of the broker if none are given. Raises BrokerFailed.

        Does nothing in a fork of the process that started the broker.
        """
        if self._is_inherited():
            return
        ended = [one for one in self._faults if not faults or one in faults]
        if ended:
            stay = [one for one in self._faults if one not in ended]
            if self.is_running:
                self._tell_faults(stay)
            self._faults = stay
            for one in ended:
                one.forget()

    def _tell_faults(self, faults: list[Fault]) -> None:
        self.control("faults", faults=[one.spec for one in faults])

    def control(self, command: str, **arguments: object) -> dict[str, object]:
        """Send a command of `mpbroker ctl` to the supervisor; return the answer. Raises BrokerFailed."""
        from mpbroker.ipc.control_client import ControlClient, ControlError

        assert self._memory is not None, "it runs"
        try:
            return ControlClient(self._memory, STOP_TIMEOUT_S).call(command, **arguments)
        except ControlError as error:
            raise BrokerFailed(f"{command}: {error}\n{self.log_tail()}") from error

    # ---- processes and directories

    def _launch(self) -> None:
        assert self._log is not None
        order = {
            "owner": os.getpid(),
            "settings": self._all_settings(),
            "own_directories": [str(path) for path in (self._memory, self._directory) if path is not None],
        }
        notices = f"mpbroker-testing-{secrets.token_hex(16)}"
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notices.bind(f"\0{notices}")
        environment = {**os.environ, RUNTIME_DIR: str(self._memory), "NOTIFY_SOCKET": f"@{notices}"}
        # It runs nothing of the test's. Without bytecode each start would compile six hundred modules.
        environment.pop(KEEP_NO_BYTECODE, None)
        # A session of its own: the keys of a terminal are for the test, and one signal reaches all of it.
        self._process = self._popen(
            [sys.executable, "-P", "-c", COMMAND, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(order))

    def _all_settings(self) -> dict[str, str]:
        settings = {**DEFAULTS, **self.settings, "log.dirs": str(self.log_dir)}
        settings.setdefault("listeners", f"{LISTENER}://{HOST}:0")
        if self._bound:
            # A client that knows the broker finds it again.
            settings["listeners"] = ",".join(f"{name}://{at}" for name, at in self._bound.items())
        return settings

    def _await_ready(self) -> None:
        """Wait for the broker's notification READY=1, as systemd does. Raises BrokerFailed."""
        assert self._process is not None
        assert self._notices is not None
        deadline = time.monotonic() + self.start_timeout_s
        poll = select.poll()
        poll.register(self._notices, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        while True:
            left_s = deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(max(0.0, left_s) * 1000)]
            if self._notices.fileno() in ready:
                if b"READY=1" in self._notices.recv(1 << 16).split(b"\n"):
                    break
            elif self._pidfd in ready:
                raise BrokerFailed(f"the broker did not start: it has ended {_how(self._process.wait())}")
            elif left_s <= 0:
                raise BrokerFailed(f"the broker is not ready after {self.start_timeout_s:g} s")
        pointer = read_pointer(self.log_dir)
        if pointer is None:
            raise BrokerFailed(f"the broker has written no mpbroker.json into {self.log_dir}")
        self._bound = pointer.listeners

    def _end(self, *, keep: bool = False) -> int:
        """Kill the remaining processes, and remove the directories unless `keep` is true.

        Return the exit code of the supervisor, 0 if it was not running.
        """
        try:
            return self._kill_processes()
        finally:
            if not keep:
                self._remove_directories()

    def _kill_processes(self) -> int:
        """Kill the remaining processes and wait for their end. Return the supervisor's exit code, or 0."""
        for fault in self._faults:
            fault.forget()
        self._faults = []
        code = 0
        if self._process is not None:
            try:
                if self._process.returncode is None:
                    _kill_group(self._process.pid, self._pidfd)
                code = self._process.wait()
            finally:
                os.close(self._pidfd)
                self._process, self._pidfd = None, -1
        if self._notices is not None:
            self._notices.close()
            self._notices = None
        return code

    def _at_exit(self) -> None:
        # A fork of the owner may leave by way of the same functions.
        if not self._is_inherited():
            self._end()

    def _name_directories(self) -> None:
        """Choose the directories' names and make the log file, unless an earlier start has done that.

        The directories are removed at the latest when this process ends. Raises BrokerFailed.
        """
        if self._memory is None:
            temporary = Path(tempfile.gettempdir())
            name = new_name()
            if self._given_log_dir is not None:
                _check_setting("log_dir", self._given_log_dir)
            else:
                _check_setting("in the temporary directory (TMPDIR)", temporary / name)
                self._directory = temporary / name
            sweep((temporary, MEMORY))
            self._memory = MEMORY / name
            self._owner = os.getpid()
            atexit.register(self._at_exit)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115

    def _remove_directories(self) -> None:
        for directory in (self._directory, self._memory):
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
        self._directory = self._memory = None
        self._bound = {}
        self._owner = 0
        atexit.unregister(self._at_exit)


def _check_setting(what: str, path: Path) -> None:
    """Raise BrokerFailed if the path cannot be a value of `log.dirs`, which is a comma-separated list."""
    from mpbroker.config.broker import BROKER_KEYS

    try:
        text = os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise BrokerFailed(f"{what}: {str(path)!r} is not UTF-8: name another directory") from None
    if BROKER_KEYS["log.dirs"].parse(text) != (text,):
        raise BrokerFailed(
            f"{what}: log.dirs cannot name {text!r}: name a directory without commas and without blanks "
            "at the end"
        )


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"


def _kill_group(leader: int, pidfd: int) -> None:
    """Kill all processes of a process group, and wait for the end of all except the leader.

    `pidfd` is the leader's. The leader may already have been reaped, by a `waitpid(-1)` or because SIGCHLD is
    ignored. Its pid may then belong to an unrelated process, unless the group still has members.
    """
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        if _has_ended(pidfd) and Path(f"/proc/{leader}").exists():
            return
    members = list(_open_members(leader))
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        for member in members:
            _has_ended(member, None)
    finally:
        for member in members:
            os.close(member)


def _open_members(group: int) -> Iterator[int]:
    """Yield a pidfd of each process of the group except its leader. The caller closes them."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == group:
            continue
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(entry.name)) == group:
                yield os.pidfd_open(int(entry.name))


def _has_ended(pidfd: int, patience_s: float | None = 0.0) -> bool:
    """Wait at most `patience_s` (None: without limit), and return whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if patience_s is None else patience_s * 1000))
