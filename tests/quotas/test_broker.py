"""Quotas of a whole broker: by our own command, and when the processes that measure them die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ops.bench import frames
from ops.bench.brokers import ROOT, Broker, Mpbroker
from ops.bench.processes import title_of
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.quota_client import alter, assert_pause, described, produced
from tests.support.real_brokers import create_topic, served

LARGE_BYTES, LARGE_FETCHES = 40_000_000, 8
# At ten GB a second; a handler needs a tenth of it.
LARGE_NS_MIN = (LARGE_FETCHES - 1) * LARGE_BYTES // 10


@pytest.fixture(name="broker", scope="module")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("quotas"))) as running:
        yield running


def command(broker: Broker, *arguments: str, code: int = 0) -> str:
    environment = {**os.environ, "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", "quota", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_command(broker: Broker) -> None:
    assert command(broker, "list") == "no quotas\n"
    said = command(broker, "set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "alice")
    assert said == "user 'alice': producer_byte_rate=1048576, request_percentage=12.5\n"
    command(broker, "set", "consumer_byte_rate=2048", "--user", "alice", "--default", "client-id")
    command(broker, "set", "connection_creation_rate=500", "--default", "ip")
    assert described(broker) == {
        frozenset({("user", "alice")}): {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
        frozenset({("user", "alice"), ("client-id", None)}): {"consumer_byte_rate": 2048.0},
        frozenset({("ip", None)}): {"connection_creation_rate": 500.0},
    }
    table = command(broker, "list")
    assert "user 'alice'" in table
    assert "1048576" in table
    assert "12.5" in table
    assert {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 500.0}} in json.loads(
        command(broker, "list", "--json")
    )
    command(broker, "delete", "producer_byte_rate", "request_percentage", "--user", "alice")
    command(broker, "delete", "consumer_byte_rate", "--user", "alice", "--default", "client-id")
    command(broker, "delete", "connection_creation_rate", "--default", "ip")
    assert command(broker, "list") == "no quotas\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("set", "producer_byte_rate=1"), 2, "say whose quota"),
        (("set", "producer_byte_rate", "--user", "a"), 2, "not KEY=NUMBER"),
        (("set", "producer_byte_rate=fast", "--user", "a"), 2, "not KEY=NUMBER"),
        (("set", "producer_byte_rate=1", "--default", "group"), 2, "one of user, client-id, ip"),
        (("set", "producer_byte_rate=1", "--user", "a", "--default", "user"), 2, "named already"),
        (("set", "producer_byte_rate=0", "--user", "a"), 2, "must be greater than 0"),
        (
            ("set", "speed=1", "--user", "a"),
            2,
            "key speed (INVALID_REQUEST); a client has producer_byte_rate, ",
        ),
        (("set", "connection_creation_rate=1", "--user", "a"), 2, "; a client has producer_byte_rate, "),
        (
            ("set", "request_percentage=1", "--ip", "10.0.0.1"),
            2,
            "; an address has connection_creation_rate\n",
        ),
        (("set", "producer_byte_rte=1", "--user", "a"), 2, "did you mean producer_byte_rate?"),
        (("delete", "producer_byte_rate", "--user", "a"), 1, "user 'a' has no producer_byte_rate\n"),
        (("delete", "producer_byte_rte", "--user", "a"), 1, "did you mean producer_byte_rate?"),
    ],
)
def test_what_the_command_refuses(broker: Broker, arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in command(broker, *arguments, code=code)


def titled(broker: Broker, role: str) -> set[int]:
    """Process ids of a role."""
    found = set()
    for member in broker.tree().members():
        if title_of(member).startswith(role):
            found.add(member.pid)
    return found


def is_served(broker: Broker, topic: str) -> bool:
    """By a client that has no quota."""
    try:
        return produced(broker, "probe", topic, 10)[1] == 0
    except (AssertionError, ConnectionError):
        return False


def may_be_altered(broker: Broker) -> bool:
    try:
        alter(broker, [("client-id", "probe")], consumer_byte_rate=None)
    except (AssertionError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize("role", ["handler 0", "handler 1", "coordinator", "log 0"])
def test_budgets_outlive_every_process(broker: Broker, role: str) -> None:
    """What was used before the death is still paid for after it, and the quotas are still there."""
    topic, client = f"deaths-{role.replace(' ', '-')}", f"client-{role}"
    create_topic(broker.bootstrap, topic, 1)
    alter(broker, [("client-id", client)], producer_byte_rate=1000.0)
    began = time.monotonic()
    used = sum(produced(broker, client, topic, 8000)[0] for _ in range(4))
    (victim,) = titled(broker, role)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: titled(broker, role) not in (set(), {victim}), f"a new {role}")
    eventually(lambda: is_served(broker, topic), "somebody is served")
    for _ in range(2):
        size, throttle_ms = produced(broker, client, topic, 8000)
        used += size
        assert_pause(throttle_ms, used, 1000.0, began)
    eventually(lambda: may_be_altered(broker), "a coordinator serves")
    alter(broker, [("client-id", client)], producer_byte_rate=None)


def request_time_ns(broker: Mpbroker, client: str) -> int:
    """Of a client's quota on time, as a reader of the broker's memory sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", "ctl", "metrics", "--json", "--log-dirs", str(broker.log_dir)],
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return int(
        json.loads(done.stdout)[f"kafka.server:type=Request,client-id={client}"]["request-time-ns-total"]
    )


def test_sending_large_answers_is_paid_for(broker: Mpbroker) -> None:
    """No handler works for long on a fetch, but the processor does on what it sends."""
    client = "glutton"
    create_topic(broker.bootstrap, "large", 1)
    alter(broker, [("client-id", client)], request_percentage=100_000.0)
    fill, fetch = (
        frames.produce("large", 1, 1_000_000),
        frames.fetch("large", 0, LARGE_BYTES, client_id=client),
    )
    with frames.connected(broker.address) as connection:
        for _ in range(LARGE_BYTES // 1_000_000):
            assert frames.exchange(connection, fill)[0] == 0
        for _ in range(LARGE_FETCHES):
            # The last one brings what the one before has cost.
            code, response = frames.exchange(connection, fetch)
            assert (code, len(response) > LARGE_BYTES // 2) == (0, True)
    assert request_time_ns(broker, client) > LARGE_NS_MIN
    alter(broker, [("client-id", client)], request_percentage=None)
