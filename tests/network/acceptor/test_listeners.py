"""Listeners, acceptors and connection limits of a whole broker, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mpbroker.ipc.control_client import ControlError
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from ops.bench import frames
from ops.bench.brokers import HOST, BrokerError, Mpbroker
from ops.bench.processes import title_of
from tests.support.acceptor_tools import (
    METADATA,
    TIMEOUT_S,
    Start,
    connect,
    control,
    is_answered,
    is_closed,
    listener,
    listening,
    options,
    port_of,
    port_of_both_families,
    processes,
)
from tests.support.client_tools import eventually

# What a service manager does: descriptor 3, and variables that name it and this process.
ACTIVATE = """
import os, sys
from tests.support.polling import PATIENCE_S
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="plaintext")
os.execv(sys.argv[2], sys.argv[2:])
"""


# ---- limits


def test_an_address_with_a_limit_of_its_own(start: Start) -> None:
    broker = start(*options(max_connections_per_ip=0, max_connections_per_ip_overrides="localhost:1"))
    with connect(broker) as first, connect(broker) as second:
        assert is_answered(first)
        assert is_closed(second)


def test_the_brokers_own_listener_gets_in_and_the_idlest_of_the_others_goes(start: Start) -> None:
    broker = start(
        *listening(INSIDE=f"{HOST}:0"),
        *options(inter_broker_listener_name="INSIDE", max_connections=3),
        *("--processors", "1"),
    )
    with connect(broker, port_of(broker, "INSIDE")) as idlest:
        assert is_answered(idlest)
        idle, busy = connect(broker), connect(broker)
        assert is_answered(idle)
        assert is_answered(busy)
        with connect(broker, port_of(broker, "INSIDE")) as inside:
            assert is_answered(inside)
            assert is_closed(idle)
            assert is_answered(busy)
        assert is_answered(idlest), "it is of the brokers' own listener"
    said = "the least recently active, to make room for another (max.connections)"
    eventually(lambda: said in broker.output(), "the log says why")
    busy.close()


# ---- the acceptor


def test_a_dead_acceptor_loses_nobody_in_the_backlog(start: Start) -> None:
    broker = start()
    (acceptor,) = processes(broker, "acceptor")
    acceptor.suspend()
    clients = [connect(broker) for _ in range(20)]
    acceptor.kill()
    assert all(is_answered(client) for client in clients)
    for client in clients:
        client.close()


def test_an_acceptor_that_cannot_start_fails_the_start(start: Start) -> None:
    with pytest.raises(BrokerError, match="exited with 1 at start") as failure:
        start(*options(max_connections_per_ip_overrides="no.such.host.invalid:1"))
    assert "host 'no.such.host.invalid' cannot be resolved" in str(failure.value)


def test_stopping_does_not_hang_on_an_acceptor_that_waits(start: Start) -> None:
    """Check it with a connection that waits for a slot, and more in the backlog."""
    broker = start(*options(max_connections=1))
    clients = [connect(broker) for _ in range(5)]
    assert is_answered(clients[0])
    assert broker.stop() == 0
    assert "ERROR" not in broker.output()
    for client in clients:
        client.close()


def test_stopping_does_not_hang_on_a_full_queue(start: Start) -> None:
    broker = start("--processors", "1")
    (processor,) = processes(broker, "processor")
    processor.suspend()
    before = listener(broker)["accepted"]
    clients = [connect(broker) for _ in range(40)]
    eventually(lambda: listener(broker)["accepted"] >= before + 20, "the queue of the processor is full")
    assert listener(broker)["accepted"] == before + 20
    assert broker.process is not None
    broker.process.terminate()
    eventually(lambda: "stopping: SIGTERM" in broker.output(), "it hears of the stop")
    processor.resume()
    assert broker.process.wait(TIMEOUT_S) == 0
    for client in clients:
        client.close()


# ---- listeners


def test_listeners_come_and_go_while_the_broker_runs(start: Start) -> None:
    broker = start()
    with connect(broker) as resident:
        assert is_answered(resident)
        added = control(broker).call(
            "listener-add",
            listener=f"MORE://{HOST}:0",
            protocol="PLAINTEXT",
            advertised="kafka.example:19092",
        )
        port = int(added["listener"].rpartition(":")[2])
        assert listener(broker, "MORE")["advertised"] == "MORE://kafka.example:19092"
        with connect(broker, port) as visitor:
            assert is_answered(visitor)
            assert b"kafka.example" in frames.exchange(visitor, METADATA)[1]
            assert b"kafka.example" not in frames.exchange(resident, METADATA)[1]
            processes(broker, "acceptor")[0].kill()
            with connect(broker, port) as late:
                assert is_answered(late), "a successor serves it too"
            control(broker).call("listener-remove", listener="more")
            assert is_closed(visitor)
        with pytest.raises(ConnectionRefusedError):
            connect(broker, port)
        assert is_answered(resident)
        control(broker).call("listener-add", listener=f"MORE://{HOST}:{port}")
        for handler in processes(broker, "handler"):
            handler.kill()  # its successor knows listeners from the configuration
        eventually(lambda: is_served(broker, port), "it is served again")
        with connect(broker, port) as again:
            assert b"kafka.example" not in frames.exchange(again, METADATA)[1]
            assert HOST.encode() in frames.exchange(again, METADATA)[1]


def test_titles_follow_listeners_that_come_and_go(start: Start) -> None:
    """Check that the acceptor's title changes at once, and a processor's with its first connection."""
    broker = start("--processors", "1")
    (acceptor,), (processor,) = processes(broker, "acceptor"), processes(broker, "processor")

    def titles() -> list[str]:
        return [title_of(each) for each in (acceptor, processor)]

    assert titles() == ["acceptor PLAINTEXT", "processor 0 PLAINTEXT"]
    added = control(broker).call("listener-add", listener=f"MORE://{HOST}:0", protocol="PLAINTEXT")
    # It accepts, and the supervisor says so, before it looks to its title.
    eventually(lambda: titles()[0] == "acceptor PLAINTEXT,MORE", "the acceptor's title has it")
    with connect(broker, int(added["listener"].rpartition(":")[2])) as visitor:
        assert is_answered(visitor)
        assert titles()[1] == "processor 0 PLAINTEXT,MORE"
    control(broker).call("listener-remove", listener="MORE")
    assert titles()[1] == "processor 0 PLAINTEXT"
    eventually(lambda: titles()[0] == "acceptor PLAINTEXT", "the acceptor's title has it no more")


def is_served(broker: Mpbroker, port: int) -> bool:
    try:
        with connect(broker, port) as client:
            return is_answered(client)
    except OSError:
        return False


REFUSED = [
    ("listener-add", {"listener": f"PLAINTEXT://{HOST}:0"}, "must have a different name"),
    ("listener-add", {"listener": f"NEW://{HOST}:0"}, "has no security protocol: give --protocol PROTOCOL"),
    (
        "listener-add",
        {"listener": f"NEW://{HOST}:0", "protocol": "SSL"},
        r"listener NEW \(SSL\) has no certificate",
    ),
    ("listener-add", {"listener": "nonsense", "protocol": "PLAINTEXT"}, "is not"),
    ("listener-add", {}, "needs a listener"),
    ("listener-remove", {"listener": "OTHER"}, "there is no listener OTHER; there are PLAINTEXT"),
    ("listener-remove", {"listener": "PLAINTEXT"}, "is the last one"),
]


def test_what_cannot_be_added_or_removed(start: Start) -> None:
    broker = start()
    for command, arguments, why in REFUSED:
        with pytest.raises(ControlError, match=why):
            control(broker).call(command, **arguments)
    with connect(broker) as client:
        assert is_answered(client)


def test_a_listener_with_a_role_of_its_own_stays(start: Start) -> None:
    broker = start(
        *listening(CONTROL=f"{HOST}:0", INTERNAL=f"{HOST}:0"),
        *options(control_plane_listener_name="CONTROL", inter_broker_listener_name="INTERNAL"),
    )
    for name in ("CONTROL", "INTERNAL"):
        with pytest.raises(ControlError, match=f"listener {name} cannot be removed: the configuration"):
            control(broker).call("listener-remove", listener=name)
        with connect(broker, port_of(broker, name)) as client:
            assert is_answered(client)


def test_a_unix_domain_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "kafka.sock"
    broker = start(*listening(LOCAL=f"unix:{path}"), *options(max_connections_per_ip=1))
    assert path.stat().st_mode & 0o777 == 0o660
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.connect(str(path))
                assert is_answered(client), "limits of addresses are not for who has none"
        assert broker.process is not None
        broker.process.kill()  # leaves the path behind
        broker.process.wait(TIMEOUT_S)
        broker.start()
    assert broker.stop() == 0
    assert not path.exists()


def test_ipv4_and_ipv6_on_one_port(start: Start) -> None:
    with port_of_both_families() as port:
        broker = start(
            *listening(SIX="[::1]:PORT"),
            port=port,
        )
    for host in (HOST, "::1"):
        with socket.create_connection((host, broker.port), timeout=TIMEOUT_S) as client:
            assert is_answered(client)
            assert host.encode() in frames.exchange(client, METADATA)[1]


def has_accepted_one(broker: Mpbroker, name: str) -> bool:
    return bool(listener(broker, name)["accepted"] == 1)


def test_a_port_is_shared_by_an_ipv4_listener_and_an_ipv6_one_that_comes_later(start: Start) -> None:
    broker = start()
    with port_of_both_families() as port:
        for listens in (f"FOUR://0.0.0.0:{port}", f"SIX://[::]:{port}"):
            control(broker).call("listener-add", listener=listens, protocol="PLAINTEXT")
    for host, name in ((HOST, "FOUR"), ("::1", "SIX")):
        assert port_of(broker, name) == port
        with socket.create_connection((host, port), timeout=TIMEOUT_S) as client:
            assert is_answered(client)
            # An acceptor counts a client after it has handed it over.
            eventually(partial(has_accepted_one, broker, name), "the listener counted the client")


def test_the_last_listener_is_not_protected(start: Start) -> None:
    """Check that the inter-broker listener may exceed max.connections only while there is another one."""
    broker = start(
        *listening(INSIDE=f"{HOST}:0"),
        "-o",
        "listener.name.inside.max.connections=5",
        *options(inter_broker_listener_name="INSIDE", max_connections=1),
    )
    clients = [connect(broker, port_of(broker, "INSIDE")) for _ in range(3)]
    assert all(is_answered(client) for client in clients)
    control(broker).call("listener-remove", listener="PLAINTEXT")
    assert is_closed(clients[0])
    assert is_closed(clients[1])
    assert is_answered(clients[2])
    clients[2].close()


def test_a_wildcard_advertises_the_address_that_the_client_connected_to(start: Start) -> None:
    broker = start("--listeners", "PLAINTEXT://:PORT")
    for host in (HOST, "127.0.0.2", "::1"):
        with socket.create_connection((host, broker.port), timeout=TIMEOUT_S) as client:
            answer = frames.exchange(client, METADATA)[1]
        # As a string of the protocol: its length, and nothing else such as ::ffff: before it.
        assert len(host).to_bytes(2) + host.encode() in answer
    assert "<the address that the client connected to>" in listener(broker)["advertised"]


def serve_twice(broker: Mpbroker, inherited: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Start the broker twice as systemd does with a .socket unit. A client connects before each start."""
    launch = [sys.executable, "-c", ACTIVATE, str(inherited.fileno()), *broker.command()]
    for _ in range(2):
        with connect() as client:
            process = subprocess.Popen(
                launch, env=broker.environment(), pass_fds=[inherited.fileno()], stderr=subprocess.PIPE
            )
            try:
                assert is_answered(client)
                process.terminate()
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()
                process.communicate()


def test_sockets_of_the_service_manager_are_served_and_outlive_the_broker(tmp_path: Path) -> None:
    """Check that connections wait while no broker runs."""
    with socket.create_server((HOST, 0)) as inherited:
        address = inherited.getsockname()
        broker = Mpbroker(tmp_path, flags=("--listeners", f"PLAINTEXT://{HOST}:{address[1]}"))
        try:
            serve_twice(broker, inherited, lambda: socket.create_connection(address, timeout=TIMEOUT_S))
        finally:
            broker.kill()


def test_a_path_of_the_service_manager_stays_when_the_broker_stops(tmp_path: Path) -> None:
    path = tmp_path / "kafka.sock"

    def connected() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        return client

    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(str(path))
        inherited.listen()
        broker = Mpbroker(tmp_path, flags=("--listeners", f"PLAINTEXT://unix:{path}"))
        serve_twice(broker, inherited, connected)
        broker.kill()


def beans(broker: Mpbroker, name: str) -> dict[str, dict[str, float]]:
    public = snapshot.attach(broker.runtime_dir / PUBLIC_NAME)
    found = catalogue.beans(snapshot.take(public), None, catalogue.matcher([name]))
    return {bean.name: bean.attributes for bean in found}


def test_metrics_tell_how_long_a_connection_waits_while_it_waits(start: Start) -> None:
    broker = start(*options(max_connections=1))
    name = "kafka.network:type=Acceptor,name=AcceptorBlockedPercent,listener=PLAINTEXT"
    assert beans(broker, name)[name]["Count"] == 0
    first, second = connect(broker), connect(broker)
    assert is_answered(first)
    eventually(lambda: beans(broker, name)[name]["Count"] > 0, "the acceptor counts what it waits")
    seen = beans(broker, name)[name]["Count"]
    eventually(lambda: beans(broker, name)[name]["Count"] > seen, "and goes on counting")
    assert 0 < beans(broker, name)[name]["MeanRate"] < 1
    first.close()
    assert is_answered(second)
    second.close()


def test_metrics_tell_the_rates_of_connections_and_their_delays(start: Start) -> None:
    broker = start(
        *listening(OTHER=f"{HOST}:0"),
        *options(max_connection_creation_rate=1, quota_window_num=2),
    )
    selector = "kafka.server:type=socket-server-metrics"
    for _ in range(3):
        with connect(broker) as client:
            assert is_answered(client)
    of_listener = f"{selector},listener=PLAINTEXT"
    eventually(lambda: beans(broker, selector)[of_listener]["connection-accept-rate"] > 0, "a rate is told")
    found = beans(broker, selector)
    assert found[selector]["broker-connection-accept-rate"] > 0
    assert 0 < found[of_listener]["connection-accept-throttle-time"] <= 1000
    assert found[of_listener]["ip-connection-accept-throttle-time"] == 0
    assert found[f"{selector},listener=OTHER"]["connection-accept-throttle-time"] == 0
    ours = beans(broker, "type=Listener")["mpbroker:type=Listener,name=PLAINTEXT"]
    assert ours["throttled-total"] == listener(broker)["throttled"] >= 1
    assert ours["accepted-total"] == listener(broker)["accepted"] >= 3
