"""A broker of a test's own: from its start to the removal of all that it wrote, however the test ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer

from mpbroker.ipc.pointer import read_pointer
from mpbroker.testing.broker import MEMORY, Broker, _kill_group
from mpbroker.testing.errors import BrokerFailed
from tests.support.polling import PATIENCE_S, is_readable, until
from tests.support.produced import produce
from tests.support.programs import Piped, ran


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users start them: a program for each, which is our child."""
    monkeypatch.setattr(Broker, "_popen", subprocess.Popen)


# What a test's process says of its broker before it waits for its end.
OWNER = """
import os, sys
from mpbroker.testing import Broker
broker = Broker()
{start}
    print(broker.pid, broker._memory, broker._directory, flush=True)
    sys.stdin.read()
    {then}
"""
# One that is killed while its broker does not run.
KILLED_OWNER = """
import os, signal
from mpbroker.testing import Broker
broker = Broker().start()
broker.kill()
print(broker._memory, broker._directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

# A fork that leaves by way of its parent's with statements and exit functions.
FORKING_OWNER = """
import os, sys
from mpbroker.testing import Broker, BrokerFailed
with Broker() as broker, broker.topic() as topic, broker.fault("Heartbeat", delay_ms=1) as fault:
    child = os.fork()
    if child == 0:
        calls = {name: getattr(broker, name) for name in ("start", "kill", "restart")}
        calls["fault"] = lambda: broker.fault("Fetch", close=True)
        for name, call in calls.items():
            try:
                call()
            except BrokerFailed as error:
                assert f"{name}: process {os.getppid()} started the broker" in str(error)
            else:
                os._exit(9)
        assert broker.bootstrap_servers
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(broker.is_running, (broker.log_dir / f"{topic}-0").is_dir(), os.path.exists(fault.spec.hits))
    broker.kill()
    broker.start()
"""

# One whose children are waited for by somebody else, who is told what to do before the broker ends.
CARELESS_OWNER = """
import os, signal, sys
from mpbroker.testing import Broker
{before}
broker = Broker().start()
print(broker._memory, broker._directory, flush=True)
{end}
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    messages = consumer.consume(count, PATIENCE_S)
    consumer.close()
    return [message.value() for message in messages]


def test_clients_use_it(broker: Broker) -> None:
    with broker.topic(partitions=2) as topic:
        produce(broker.bootstrap_servers, topic, ["a", "b", "c"], partitions=2)
        assert sorted(consume(broker, topic, 3)) == [b"a", b"b", b"c"]


def test_two_run_side_by_side(broker: Broker) -> None:
    with Broker() as other:
        assert other.bootstrap_servers != broker.bootstrap_servers
        assert other.log_dir != broker.log_dir


def test_its_ports_stand_in_the_pointer(broker: Broker) -> None:
    pointer = read_pointer(broker.log_dir)
    assert pointer is not None
    assert pointer.pid == broker.pid
    assert pointer.listeners == broker.listeners == {"PLAINTEXT": broker.bootstrap_servers}


def test_the_pointer_follows_the_listeners(broker: Broker) -> None:
    def known() -> dict[str, str]:
        return msgspec.json.decode((broker.log_dir / "mpbroker.json").read_bytes())["listeners"]

    added = broker.control("listener-add", listener="MORE://127.0.0.1:0", protocol="PLAINTEXT")
    until(lambda: "MORE" in known(), "the added listener stands in mpbroker.json")
    assert known()["MORE"] in str(added)
    broker.control("listener-remove", listener="MORE")
    until(lambda: "MORE" not in known(), "the removed listener is gone from it")


def test_topics_have_names_and_settings(broker: Broker) -> None:
    name = broker.create_topic("orders", 3, {"retention.ms": 5_000, "preallocate": True})
    assert name == "orders"
    assert sorted(path.name for path in broker.log_dir.glob("orders-*")) == [
        "orders-0",
        "orders-1",
        "orders-2",
    ]
    broker.delete_topic("orders")
    with pytest.raises(BrokerFailed, match="delete topic orders: UNKNOWN_TOPIC_OR_PARTITION"):
        broker.delete_topic("orders")
    broker.delete_topics(["orders"], missing_ok=True)
    with pytest.raises(BrokerFailed, match=r"create topic bad: INVALID_CONFIG: .*retention\.ms"):
        broker.create_topic("bad", config={"retention.ms": "soon"})


def test_a_crash_and_a_restart_keep_port_and_data() -> None:
    with Broker() as broker:
        topic, address = broker.create_topic(), broker.bootstrap_servers
        produce(broker.bootstrap_servers, topic, ["kept"])
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert broker.bootstrap_servers == address
        broker.restart()
        assert broker.bootstrap_servers == address
        assert consume(broker, topic, 1) == [b"kept"]


def test_a_directory_that_is_given_stays(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path / "data") as broker:
        topic = broker.create_topic()
    assert (tmp_path / "data" / f"{topic}-0").is_dir()


def test_topics_of_a_broker_that_asks_who_it_is() -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    listener = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        listener: f'{login} user_admin="secret";',
    }
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{login} username="admin" password="secret";',
    }
    with Broker(settings, client=client) as broker:
        assert list(broker.listeners) == ["SASL_PLAINTEXT"]
        broker.create_topic("t")
        broker.client["colour"] = "blue"
        with pytest.raises(BrokerFailed, match="no Kafka client has colour"):
            broker.create_topic("u")


def test_it_keeps_bytecode_where_tests_keep_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that not each start compiles what the one before it compiled."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    with Broker():
        kept = {path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert {"messages", "log_manager", "k00_produce"} <= kept


def test_a_listener_on_all_addresses_is_reached() -> None:
    with Broker({"listeners": "PLAINTEXT://:0"}) as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
        broker.create_topic()


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(BrokerFailed, match=r"ended with status 2\n(.*\n)*.*num\.io\.threads.*many"):
        Broker({"num.io.threads": "many"}).start()


def test_the_directory_of_the_data_is_no_setting() -> None:
    with pytest.raises(ValueError, match=r"name the directory with Broker\(log_dir="):
        Broker({"log.dirs": "/tmp/x"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a,b", r"log\.dirs cannot name '.*/a,b': name a directory without commas"),
        ("a ", r"log\.dirs cannot name '.*/a ': .* without blanks at the end"),
        (os.fsdecode(b"\xff"), r"'.*/\\udcff' is not UTF-8: name another directory"),
    ],
    ids=["comma", "blank", "no UTF-8"],
)
def test_a_directory_that_no_setting_can_name_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=f"^log_dir: {why}"):
        Broker(log_dir=tmp_path / name).start()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a,b", os.fsdecode(b"\xff")], ids=["comma", "no UTF-8"])
def test_a_temporary_directory_that_no_setting_can_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with pytest.raises(BrokerFailed, match=r"^in the temporary directory \(TMPDIR\): "):
        Broker().start()
    with Broker(log_dir=tmp_path / "data"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {name, "data"}
    assert not list((tmp_path / name).iterdir())


@pytest.mark.parametrize("name", [" a", "b ", "c #$'\"\\=é"])
def test_names_that_are_odd_but_fine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with Broker() as broker:
        assert broker.log_dir.is_relative_to(tmp_path / name)
        assert (broker.log_dir / "mpbroker.json").exists()
    assert not list((tmp_path / name).iterdir())


def test_a_broker_that_died_fails_the_test() -> None:
    broker = Broker().start()
    memory = broker._memory
    os.kill(broker.pid, signal.SIGKILL)
    until(lambda: not broker.is_running, "the supervisor has ended")
    with pytest.raises(BrokerFailed, match="the broker has ended by SIGKILL"):
        broker.stop()
    assert memory is not None
    assert not memory.exists()
    with pytest.raises(BrokerFailed, match="does not run"):
        _ = broker.pid


def fail_after(end: Callable[[Broker], object]) -> None:
    with Broker() as broker:
        end(broker)
        raise ZeroDivisionError


def test_the_error_of_a_test_comes_first() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fail_after(lambda broker: os.kill(broker.pid, signal.SIGKILL))
    assert "the broker has ended by SIGKILL" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as caught:
        fail_after(Broker.kill)
    assert not hasattr(caught.value, "__notes__")


def test_a_stopped_broker_says_so() -> None:
    with pytest.raises(BrokerFailed, match="no ports yet"):
        _ = Broker().bootstrap_servers
    with pytest.raises(BrokerFailed, match="does not run"):
        Broker().fault("Produce", close=True)
    Broker().stop()


@pytest.mark.parametrize(
    ("start", "then", "end"),
    [
        ("if broker.start():", "broker.kill(); sys.exit(5)", lambda owner: owner.stdin.close()),
        ("if broker.start():", "broker.stop(keep=True); sys.exit(6)", lambda owner: owner.stdin.close()),
        ("with broker:", "", lambda owner: owner.kill()),
        ("with broker:", "", lambda owner: owner.send_signal(signal.SIGINT)),
        ("with broker:", "raise ValueError", lambda owner: owner.stdin.close()),
        ("if broker.start():", "sys.exit(3)", lambda owner: owner.stdin.close()),
        ("if broker.start():", "os._exit(4)", lambda owner: owner.stdin.close()),
    ],
    ids=[
        "after kill",
        "after stop(keep=True)",
        "SIGKILL",
        "KeyboardInterrupt",
        "an error",
        "exit without stop",
        "abrupt exit",
    ],
)
def test_a_broker_ends_with_its_test(start: str, then: str, end: Callable[..., object]) -> None:
    source = OWNER.format(start=start, then=then)
    with Piped(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as owner:
        pid, memory, directory = owner.stdout.readline().decode().split()
        group = _group(int(pid))
        assert len(group) > 5, "supervisor, log worker, coordinator, handler, processor, acceptor …"
        end(owner)
        assert owner.wait(PATIENCE_S) != 0
    for pidfd in group:
        assert is_readable(pidfd, PATIENCE_S), "a process outlives the test"
        os.close(pidfd)
    assert Path(memory).parent == MEMORY
    assert not Path(memory).exists()
    assert not Path(directory).exists()


def test_the_next_start_removes_what_a_killed_owner_has_left() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_OWNER], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    memory, directory = done.stdout.decode().split()
    assert Path(memory).is_dir()
    assert Path(directory).is_dir()
    with Broker():
        assert not Path(memory).exists()
        assert not Path(directory).exists()


def test_a_fork_leaves_the_broker_to_its_owner() -> None:
    done = ran([sys.executable, "-c", FORKING_OWNER])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["7", "True", "True", "True"], done.stderr


@pytest.mark.parametrize(
    ("before", "end"),
    [
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "broker.stop()"),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "broker.kill(); broker.restart(); sys.exit()"),
        ("", "os.kill(broker.pid, signal.SIGKILL); os.waitpid(-1, 0); broker.stop()"),
        ("", "os.kill(broker.pid, signal.SIGTERM); os.waitpid(-1, 0)"),
    ],
    ids=["ignored SIGCHLD", "ignored SIGCHLD and kill", "waitpid and stop", "waitpid and exit"],
)
def test_somebody_else_may_wait_for_it(before: str, end: str) -> None:
    source = CARELESS_OWNER.format(before=before, end=end)
    done = ran([sys.executable, "-c", source])
    assert (done.returncode, done.stderr) == (0, "")
    for directory in done.stdout.split():
        assert not Path(directory).exists()


def test_a_group_of_the_same_number_is_not_killed() -> None:
    ended = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(ended.pid)
    ended.wait()
    with Piped(["cat"], stdin=subprocess.PIPE, start_new_session=True) as stranger:
        _kill_group(stranger.pid, pidfd)
        stranger.stdin.close()
        assert stranger.wait() == 0, "by SIGKILL"
    os.close(pidfd)


def _group(leader: int) -> list[int]:
    """A pidfd of each process of the broker; the process of a test may be gone already."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == leader:
                found.append(os.pidfd_open(int(entry.name)))
        except ProcessLookupError:
            continue
    return found
