"""`mpbroker serve` as a whole: what it refuses to start on, how it stops, what it leaves behind."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, Message, Producer

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.version import VERSION
from mpbroker.ipc.control_client import ControlError
from mpbroker.ipc.process import FatalError
from mpbroker.supervisor.main import SAME_STOP_S, Supervisor, run
from ops.bench import frames
from ops.bench.brokers import HOST, MPBROKER_COMMAND, Broker, Mpbroker, free_port
from ops.bench.processes import title_of
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import sample_records, stored_in
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, create_topic, kill_process, stop_cleanly

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
IN_FLIGHT_MAX = 50
FAILED, WRONG_SETTINGS = 1, 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    yield from started(tmp_path / "broker")


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Mpbroker]:
    yield from started(tmp_path / "neighbour")


def started(directory: Path, **options: str) -> Iterator[Mpbroker]:
    directory.mkdir()
    running = Mpbroker(directory, **options)  # type: ignore[arg-type]
    try:
        running.start()
        yield running
    finally:
        running.kill()


def processes(broker: Broker) -> list[psutil.Process]:
    """The supervisor first."""
    return broker.tree().members()


def titled(broker: Broker, title: str) -> psutil.Process:
    (found,) = [each for each in processes(broker) if title_of(each) == title]
    return found


def all_end(members: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    return not alive


def refused(tmp_path: Path, *flags: str, runtime_dir: str | None = None) -> tuple[int, str]:
    """Exit code and the one line that a broker says which may not start."""
    made = Mpbroker(tmp_path / "refused", flags=flags)
    environment = {**made.environment(), "MPBROKER_RUNTIME_DIR": runtime_dir or str(made.runtime_dir)}
    try:
        done = subprocess.run(
            made.command(),
            capture_output=True,
            text=True,
            env=environment,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        made.kill()
    if made.runtime_dir.exists():
        made.runtime_dir.rmdir()
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def test_a_busy_port_names_its_holder(broker: Mpbroker, tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--listeners", f"PLAINTEXT://{broker.bootstrap}")
    assert code == FAILED
    holder = re.search(r"in use by process (\d+) \(mpbroker \d+: ", said)
    assert holder, said
    assert int(holder[1]) == processes(broker)[0].pid  # who can be stopped: the supervisor


def test_a_reload_that_is_asked_for_at_once_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the supervisor is there, nor while it looks whether it may start."""

    told, tell = os.pipe()

    def hang_up(_: Supervisor) -> None:
        os.write(tell, b"once ")

    def claim(_: BrokerConfig) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        raise FatalError("that is all")

    monkeypatch.setattr(Supervisor, "_hang_up", hang_up)
    monkeypatch.setattr("mpbroker.supervisor.main.Claim", claim)
    if (pid := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        os.kill(os.getpid(), signal.SIGHUP)
        os._exit(run(BrokerConfig()))
    os.close(tell)
    with open(told) as text:
        assert text.read() == "once once "
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FAILED


def test_a_second_broker_on_the_same_directory(broker: Mpbroker, tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--log-dirs", str(broker.log_dir))
    holder = f"{broker.log_dir} is locked by another broker (mpbroker, pid {processes(broker)[0].pid})"
    assert (code, holder in said, "--log-dirs" in said) == (FAILED, True, True), said


def test_a_second_broker_in_the_same_runtime_directory(broker: Mpbroker, tmp_path: Path) -> None:
    code, said = refused(tmp_path, runtime_dir=str(broker.runtime_dir))
    assert (code, "is in use by another broker" in said) == (FAILED, True), said
    told = control(broker).call("status")
    assert (told["node_id"], told["version"], told["pid"]) == (1, VERSION, processes(broker)[0].pid)
    assert told["up_s"] > 0
    assert [(one["log_dir"], one["state"]) for one in told["log_dirs"]] == [(str(broker.log_dir), "online")]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    code, said = refused(tmp_path, "--log-dirs", str(file / "data"))
    assert (code, f"cannot use {file}/data: {file} is not a directory" in said) == (FAILED, True), said
    code, said = refused(tmp_path, "--log-dirs", str(file))
    assert (code, f"cannot use {file}: it is not a directory. Name one" in said) == (FAILED, True), said


@pytest.mark.parametrize(
    ("protocol", "why"), [("SSL", "has no certificate"), ("SASL_PLAINTEXT", "GSSAPI, which is not built")]
)
def test_what_has_no_certificate_or_users_is_never_served(tmp_path: Path, protocol: str, why: str) -> None:
    code, said = refused(tmp_path, "--listeners", f"{protocol}://{HOST}:{free_port()}")
    assert (code, why in said) == (WRONG_SETTINGS, True), said


@pytest.mark.parametrize("is_first", [True, False])
def test_a_start_that_is_refused_leaves_no_path_of_a_socket(
    broker: Mpbroker, tmp_path: Path, is_first: bool
) -> None:
    """Of the second broker in a runtime directory, or where another listener cannot be bound."""
    path = tmp_path / "socket"
    taken = [f"PLAINTEXT://{broker.bootstrap}"] if is_first else []
    listeners = ",".join([f"CLIENTS://unix:{path}", *taken])
    code, said = refused(
        tmp_path,
        *(
            "--listeners",
            listeners,
            "-o",
            "listener.security.protocol.map=CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        ),
        *("-o", "inter.broker.listener.name=CLIENTS"),
        runtime_dir=None if is_first else str(broker.runtime_dir),
    )
    assert (code, ("the port is in use" if is_first else "by another broker") in said) == (FAILED, True), said
    assert not path.exists()


@pytest.mark.parametrize("why", ["port", "runtime directory"])
def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path, why: str) -> None:
    """An empty directory with a lock in it would be in the way of whoever moves a backup there."""
    with socket.create_server((HOST, 0)) as busy:
        port = busy.getsockname()[1] if why == "port" else free_port()
        runtime = None if why == "port" else str(tmp_path / "disk" / "runtime")
        new = tmp_path / "new" / "data"
        flags = ("--log-dirs", str(new), "--listeners", f"PLAINTEXT://{HOST}:{port}")
        code, said = refused(tmp_path, *flags, runtime_dir=runtime)
    assert (code, ("in use" if why == "port" else "not on a tmpfs") in said) == (FAILED, True), said
    assert not new.parent.exists()
    assert not (tmp_path / "disk").exists()


def test_a_runtime_directory_below_one_that_others_may_write(tmp_path: Path) -> None:
    """Another user could rename it, and put a region of their own in its place."""
    above = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        above.chmod(0o777)
        code, said = refused(tmp_path, runtime_dir=str(above / "runtime"))
        assert code == FAILED
        assert f"{above} can be written by all users (mode 0777), who can replace the files in it" in said
        assert not any(above.iterdir())
        (above / "runtime").symlink_to(tmp_path)
        code, said = refused(tmp_path, runtime_dir=str(above / "runtime"))
        assert (code, "is on" in said or "is a symbolic link" in said) == (FAILED, True), said
    finally:
        shutil.rmtree(above)


def test_nobody_else_may_read_what_a_broker_writes(tmp_path: Path) -> None:
    """Directories have mode 0750 and files 0640, whatever the umask is."""
    running = Mpbroker(tmp_path / "broker")
    new = tmp_path / "broker" / "new"
    running.flags = ("--log-dirs", f"{running.log_dir},{new}", "-o", "offsets.topic.num.partitions=2")
    before = os.umask(0)
    try:
        running.log_dir.mkdir(parents=True)
        running.start()
        create_topic(running.bootstrap, "topic", 4)
        confluent_write(running.bootstrap, "topic", sample_records(4, 10, 1), "none")
        modes = modes_below(running.log_dir, new, running.runtime_dir)
        assert running.stop() == 0
        modes |= modes_below(running.log_dir, new)
    finally:
        os.umask(before)
        running.kill()
    # The tests have made it, and a hole in the way of others is told.
    assert modes.pop(running.log_dir) == 0o777
    assert f"other users may write {running.log_dir} (mode 0777). Run chmod -R g-w,o= " in running.output()
    assert f"users may read {new}" not in running.output()
    sockets = {running.runtime_dir / "control.sock": 0o600}
    assert {path: mode for path, mode in modes.items() if mode not in (0o750, 0o640)} == sockets
    assert {0o750, 0o640} <= set(modes.values())


def modes_below(*directories: Path) -> dict[Path, int]:
    paths = [path for directory in directories for path in (directory, *directory.rglob("*"))]
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in paths}


def test_a_runtime_directory_with_too_long_a_name(tmp_path: Path) -> None:
    code, said = refused(tmp_path, runtime_dir=f"/dev/shm/{'x' * 100}")
    assert (code, "too long a name for a socket" in said) == (FAILED, True), said


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--listeners", f"PLAINTEXT://192.0.2.1:{free_port()}")
    assert (code, "Cannot assign requested address. Name an address of this" in said) == (FAILED, True), said


def test_several_brokers_on_one_host(broker: Mpbroker, neighbour: Mpbroker) -> None:
    both = [(each, sample_records(1, 10, seed)) for seed, each in enumerate((broker, neighbour))]
    for each, records in both:
        create_topic(each.bootstrap, "same-name", 1)
        confluent_write(each.bootstrap, "same-name", records, "none")
    for each, records in both:
        assert [s.record for s in confluent_read(each.bootstrap, "same-name", 1, 10)] == records
    assert control(broker).call("status")["cluster_id"] != control(neighbour).call("status")["cluster_id"]


class Load:
    """An idempotent producer that goes on until it is told to stop; `acked` are the numbers it was told."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked: list[int] = []
        self.enough = threading.Event()
        self._topic = topic
        self._ending = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        number = 0
        while not self._ending.is_set():
            self._producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._told)
            number += 1
            self._producer.poll(0.01 if len(self._producer) > IN_FLIGHT_MAX else 0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked.append(int(message.value() or b""))
        if len(self.acked) >= 500:
            self.enough.set()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        self._producer.purge()
        self._producer.poll(0)


def exit_code(broker: Mpbroker) -> int:
    assert broker.process is not None
    return broker.process.wait(PATIENCE_S)


@pytest.mark.parametrize("whole_group", [False, True], ids=["supervisor", "process-group"])
def test_sigterm_stops_gracefully_under_load(broker: Mpbroker, whole_group: bool) -> None:
    """Also when every process of the tree gets the signal, as `timeout` and some init programs do it."""
    create_topic(broker.bootstrap, "loaded", 1)
    load = Load(broker.bootstrap, "loaded")
    try:
        assert load.enough.wait(PATIENCE_S)
        members = processes(broker)
        if whole_group:
            os.killpg(members[0].pid, signal.SIGTERM)
        else:
            members[0].terminate()
        assert exit_code(broker) == 0, broker.output()
        assert all_end(members)
    finally:
        load.end()
    assert (broker.log_dir / CLEAN_SHUTDOWN).exists()
    assert "ERROR" not in broker.output()
    assert "was replaced" not in broker.output()
    assert not any(broker.runtime_dir.iterdir())

    broker.start()
    read = confluent_read(broker.bootstrap, "loaded", 1, len(load.acked))
    assert [int(s.record.value or b"") for s in read] == list(range(len(load.acked)))
    stop_cleanly(broker)


def test_a_signal_that_comes_twice_is_one(broker: Mpbroker) -> None:
    """`kill %1` on `make run`: the shell signals the whole job, and make passes its own on."""
    members = processes(broker)
    members[0].suspend()  # however busy this machine is, both come at once
    members[0].terminate()
    members[0].send_signal(signal.SIGINT)  # two of a kind could become one on their way
    members[0].resume()
    assert exit_code(broker) == 0, broker.output()
    assert "ERROR" not in broker.output()


def test_a_second_signal_ends_it_at_once(broker: Mpbroker) -> None:
    members = processes(broker)
    titled(broker, "log 0").suspend()  # so that the first signal is not enough
    members[0].terminate()
    eventually(lambda: "stopping: SIGTERM" in broker.output(), "the first signal is heard")
    heard = time.monotonic()
    eventually(lambda: time.monotonic() > heard + SAME_STOP_S, "another signal is another stop")
    members[0].terminate()
    assert exit_code(broker) == FAILED
    assert all_end(members)
    assert "second stop signal" in broker.output()
    assert not (broker.log_dir / CLEAN_SHUTDOWN).exists()


def test_a_stop_does_not_wait_for_who_does_not_acknowledge(broker: Mpbroker) -> None:
    """While a fence waits for a handler that hangs, the first signal is obeyed, and so is the second."""
    members = processes(broker)
    titled(broker, "handler 0").suspend()
    titled(broker, "processor 0 PLAINTEXT").kill()
    eventually(lambda: "processor 0 (pid" in broker.output(), "the death is noticed, its fence begins")
    members[0].terminate()
    eventually(lambda: "stopping: SIGTERM" in broker.output(), "the first signal is obeyed")
    heard = time.monotonic()
    eventually(lambda: time.monotonic() > heard + SAME_STOP_S, "another signal is another stop")
    members[0].terminate()
    assert exit_code(broker) == FAILED
    assert all_end(members)
    assert "does not acknowledge" not in broker.output(), "nobody waited until that"


def test_children_end_with_the_supervisor_and_the_next_start_works(broker: Mpbroker) -> None:
    create_topic(broker.bootstrap, "kept", 1)
    records = sample_records(1, 100, seed=1)
    confluent_write(broker.bootstrap, "kept", records, "none")
    members = processes(broker)
    members[0].kill()
    assert all_end(members)

    broker.start()
    assert {0: confluent_read(broker.bootstrap, "kept", 1, 100)} == stored_in(records)
    assert confluent_write(broker.bootstrap, "kept", records, "none") == list(range(100, 200))
    stop_cleanly(broker)


def test_the_port_of_http_is_free_for_the_next_start_at_once(tmp_path: Path) -> None:
    """Nobody waits for the exporter, which may stand still and have a client that does not go."""
    port = free_port()
    exporters = []
    broker = Mpbroker(tmp_path / "broker", flags=("--http", f"{HOST}:{port}"))
    with contextlib.ExitStack() as left:
        left.callback(broker.kill)
        broker.start()
        for _ in range(2):
            client = left.enter_context(socket.create_connection((HOST, port)))
            client.sendall(b"GET ")
            members = processes(broker)
            (exporter,) = [each for each in members if title_of(each).startswith("exporter")]
            exporters.append(exporter)
            left.callback(kill_if_there, exporter)
            exporter.suspend()
            members[0].kill()
            assert broker.process is not None
            broker.process.wait()
            broker.start()
        assert all_end(exporters)
        stop_cleanly(broker)


def kill_if_there(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def test_handlers_are_resized_by_signal_and_by_command(broker: Mpbroker) -> None:
    def handlers() -> int:
        names = [each["name"] for each in control(broker).call("status")["processes"]]
        return sum(name.startswith("handler ") for name in names)

    before = handlers()
    processes(broker)[0].send_signal(signal.SIGTTIN)
    eventually(lambda: handlers() == before + 1, "one more handler after SIGTTIN")
    processes(broker)[0].send_signal(signal.SIGTTOU)
    eventually(lambda: handlers() == before, "one less after SIGTTOU")
    answers: list[object] = []

    def is_taken() -> bool:
        """Not while the step before goes on: the one less has gone before all have heard of it."""
        with contextlib.suppress(ControlError):
            answers.append(control(broker).call("resize", handlers=before * 2, processors=2))
        return bool(answers)

    eventually(is_taken, "the command is taken")
    assert answers == [{"handlers": before * 2, "processors": 2}]
    assert handlers() == before * 2


def test_the_pointer_names_the_broker_while_it_runs(broker: Mpbroker) -> None:
    path = broker.log_dir / "mpbroker.json"
    pointer = json.loads(path.read_text())
    assert (pointer["runtime_dir"], pointer["pid"]) == (str(broker.runtime_dir), processes(broker)[0].pid)
    stop_cleanly(broker)
    assert not path.exists()


def test_a_log_directory_that_is_gone_stays_behind_a_clean_stop(tmp_path: Path) -> None:
    """Nothing below it can be asked for or removed; all else is as behind any other stop."""
    directory, other = tmp_path / "broker", tmp_path / "other"
    template = MPBROKER_COMMAND.replace("{log_dir}", f"{{log_dir}},{other}")
    with contextlib.contextmanager(started)(directory, template=template) as running:
        shutil.rmtree(other)
        other.touch()
        stop_cleanly(running)
        assert not any(running.runtime_dir.glob("*"))
        assert not (running.log_dir / "mpbroker.json").exists()
        assert (running.log_dir / CLEAN_SHUTDOWN).exists()


def test_port_0_is_a_free_port(tmp_path: Path) -> None:
    directory = tmp_path / "any-port"
    directory.mkdir()
    made = Mpbroker(directory, flags=("--listeners", f"PLAINTEXT://{HOST}:0"))
    process = subprocess.Popen(made.command(), env=made.environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        pattern = rf"serving on PLAINTEXT://{HOST}:(\d+)"
        found = next(filter(None, (re.search(pattern, line) for line in process.stderr)), None)
        assert found
        socket.create_connection((HOST, int(found[1])), timeout=PATIENCE_S).close()
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        made.kill()


def test_titles_say_plane_listeners_and_number(tmp_path: Path) -> None:
    directory, inside = tmp_path / "planes", free_port()
    directory.mkdir()
    made = Mpbroker(directory)
    made.flags = (
        *("--processors", "2", "--handlers", "1"),
        *("--listeners", f"PLAINTEXT://{HOST}:{made.port},CONTROL://{HOST}:{inside}"),
        *("-o", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT"),
        *("-o", "control.plane.listener.name=CONTROL"),
    )
    wanted = {
        "supervisor",
        "acceptor PLAINTEXT",
        "control-plane acceptor CONTROL",
        "processor 0 PLAINTEXT",
        "processor 1 PLAINTEXT",
        "control-plane processor CONTROL",
        "handler 0",
        "control-plane handler",
        "log 0",
        "coordinator",
        "cleaner",
        "scrubber",
    }

    def titles() -> set[str]:
        return {title_of(each) for each in processes(made)}

    try:
        made.start()
        assert all(" ".join(each.cmdline()).startswith(f"mpbroker {made.port}: ") for each in processes(made))
        # Clients are served before the cleaner and the scrubber have begun.
        eventually(lambda: titles() == wanted, "all have their titles")
    finally:
        made.kill()


def test_a_log_for_programs_is_json_from_its_first_line(tmp_path: Path) -> None:
    """The time until it serves counts from the process's start: what comes before its first line, too."""
    made = Mpbroker(tmp_path, flags=("--log-format", "json", "-o", "log.cleaner.threads=2"))
    before = time.monotonic()
    try:
        made.start()
        eventually(lambda: "serving on" in made.output(), "it says that it serves")
        passed_s = time.monotonic() - before
        supervisor = control(made)
        now = supervisor.call("log-level", logger="mpbroker.network.processor", level="DEBUG")["loggers"]
        assert (now["mpbroker.network.processor"], now["mpbroker.network"]) == ("DEBUG", "INFO")
        frames.advertised_apis(made.address, timeout_s=PATIENCE_S)
        eventually(lambda: '"level": "DEBUG"' in made.output(), "a processor logs at DEBUG")
    finally:
        made.kill()
    first, *others = [json.loads(line) for line in made.output().splitlines()]
    assert (first["level"], "log.cleaner.threads has no effect" in first["message"]) == ("WARNING", True)
    (serves,) = [one for one in others if one["message"].startswith("serving on")]
    age = re.search(r" after (\d+) ms$", serves["message"])
    assert age
    known = datetime.fromisoformat(serves["time"]) - datetime.fromisoformat(first["time"])
    assert known.total_seconds() <= int(age[1]) / 1000 <= passed_s + 1 / os.sysconf("SC_CLK_TCK")
    assert {one["logger"] for one in others if one["level"] == "DEBUG"} == {"mpbroker.network.processor"}


def test_a_wrong_setting_is_json_too(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--log-format", "json", "-o", "num.partitons=4")
    told = json.loads(said)
    assert (code, told["level"]) == (WRONG_SETTINGS, "ERROR")
    assert told["message"] == "-o: unknown setting num.partitons; did you mean num.partitions?"


def test_a_log_that_cannot_be_written_keeps_nobody_from_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk of what it says is full from the start to the end, also when a process is replaced."""
    # What is kept in a buffer fails again when it is flushed: before a fork, and when a process ends.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    silent = f"sh -c 'exec \"$@\" 2>/dev/full' sh {MPBROKER_COMMAND}"
    for broker in started(tmp_path / "broker", template=silent):
        assert control(broker).call("log-level", logger="root", level="DEBUG")
        create_topic(broker.bootstrap, "t", 1)
        records = sample_records(1, 3, seed=1)
        confluent_write(broker.bootstrap, "t", records, "none")
        kill_process(broker, "handler 0")
        assert len(confluent_read(broker.bootstrap, "t", 1, 3)) == 3
        stop_cleanly(broker)
        assert (broker.log_dir / CLEAN_SHUTDOWN).exists()
