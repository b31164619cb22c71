"""What attacks cost a broker, as the table of docs/SECURITY.md.

python -m tests.security.attack_table [--only REGEX] [--write]

Each attack comes over sockets to a broker of its own, with one handler, which everybody shares. Memory is
what the process that grew most has of its own (RssAnon): before, at its peak, and when the attacker has gone.
Requests themselves lie in memory that processes share (RssShmem), whose peak is told as well. Meanwhile
another client asks a handler, the coordinator and a log worker by turns, from a process of its own: its
longest wait is told, and that before the attack, which says what the machine does to it anyway.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    Message,
    OffsetFetchRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from ops.bench import frames
from ops.bench.brokers import HOST, ROOT
from ops.docs import security as page
from tests.support import attacks
from tests.support.attacks import MEGABYTE, TOPIC, Protocol, join
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import create_topic
from tests.support.secure_broker import AUDIENCE, RawClient, SecureBroker
from tests.support.socket_client import SocketClient, frame_of, resident
from tests.support.tokens import signed
from tests.support.worker_load import pids

WATCHED_EVERY_S = 0.003
ASKED_EVERY_MS = 2
QUIET_S = 1.0
SETTLING_S = 2.0
# So many requests on the way at once.
WINDOW = 100
CLOSED = "connection closed"
SETTINGS = {
    "log.flush.policy": "os",
    "group.initial.rebalance.delay.ms": "0",
    # Kafka's default, where the broker of other tests has less.
    "sasl.server.max.receive.size": str(512 << 10),
}


class Attacker:
    """Sends on plain connections, and counts what it sends and how it is answered."""

    def __init__(self, broker: SecureBroker, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self.sent_bytes = 0
        self.answers: Counter[str] = Counter()
        self._stack = stack
        self._frames: dict[int, bytes] = {}

    def client(self) -> SocketClient:
        """Return a connection that stays until the attack is over."""
        return self._stack.enter_context(SocketClient(self.broker))

    def dial(self, listener: str) -> socket.socket:
        address = HOST, self.broker.ports[listener]
        return self._stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))

    def secure(self, listener: str) -> RawClient:
        """Return a connection to a listener with TLS."""
        return self._stack.enter_context(self.broker.connect(listener))

    def send(self, connection: socket.socket, frame: bytes) -> None:
        self.sent_bytes += len(frame)
        connection.sendall(frame)

    def ask(self, client: SocketClient, key: ApiKey, version: int, body: Message, **answer: Any) -> Any:
        """Send one request and count its answer; None if the connection is closed instead."""
        return self.ask_frame(client, key, version, frame_of(key, version, body), **answer)

    def ask_frame(
        self,
        client: SocketClient,
        key: ApiKey,
        version: int,
        frame: bytes,
        code: Callable[[Any], int] = lambda answer: answer.error_code,
    ) -> Any:
        try:
            self.send(client.socket, frame)
            received = client.receive()
        except ConnectionError:
            self.answers[CLOSED] += 1
            return None
        answer = decode_response_frame(key, version, received)[1]
        self.answers[name_of(code(answer), len(received))] += 1
        return answer

    def told(self) -> str:
        few = (+self.answers).most_common(3)
        return "; ".join(f"{count:,} x {what}" if count > 1 else what for what, count in few)


def name_of(code: int, size: int) -> str:
    name = ErrorCode(code).name
    return f"{name}, {size:,} bytes" if size > 2000 else name


class Attack(NamedTuple):
    """`prepare` makes what the attack needs, before anything is measured; `run` returns nothing."""

    name: str
    run: Callable[[Attacker], None]
    settings: tuple[tuple[str, str], ...] = ()
    prepare: Callable[[Attacker], None] = lambda _: None


# ---- attacks


def large_joins(attacker: Attacker) -> None:
    client, frame = attacker.client(), frame_of(ApiKey.JOIN_GROUP, 9, attacks.LARGE_JOIN)
    for _ in range(60):
        attacker.ask_frame(client, ApiKey.JOIN_GROUP, 9, frame)


def long_id(attacker: Attacker) -> None:
    init = InitProducerIdRequest(transactional_id=attacks.LONG_ID, transaction_timeout_ms=60_000)
    with SocketClient(attacker.broker) as client:
        until(lambda: client.ask(ApiKey.INIT_PRODUCER_ID, 4, init).error_code == 0, "a producer id")


def slow_pattern(attacker: Attacker, pattern: str = attacks.SLOW_PATTERN, count: int = 1) -> None:
    client = attacker.client()
    for _ in range(count):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        attacker.ask(client, ApiKey.LIST_TRANSACTIONS, 2, request)


def allowed_pattern(attacker: Attacker) -> None:
    """The longest of its kind that is accepted."""
    slow_pattern(attacker, "[ab]*a" + "[ab]" * 200, 20)


def produced(attacker: Attacker, *batches: bytes) -> None:
    client = attacker.client()
    for batch in batches:
        attacker.ask(
            client,
            ApiKey.PRODUCE,
            9,
            attacks.produce(TOPIC, batch),
            code=lambda answer: answer.responses[0].partition_responses[0].error_code,
        )


def offsets(attacker: Attacker) -> None:
    with SocketClient(attacker.broker) as client:

        def is_committed() -> bool:
            try:
                attacks.commit_of_all(client, "named")
            except AssertionError:
                return False
            return True

        until(is_committed, "offsets are committed")


def one_group_often(attacker: Attacker) -> None:
    group = OffsetFetchRequest.OffsetFetchRequestGroup("named", topics=None)
    request = OffsetFetchRequest(groups=[group] * 400)
    attacker.ask(
        attacker.client(), ApiKey.OFFSET_FETCH, 8, request, code=lambda answer: answer.groups[0].error_code
    )


def many_keys(attacker: Attacker) -> None:
    keys = [f"key-{number:07}" for number in range(83_000)]
    attacker.ask(
        attacker.client(),
        ApiKey.FIND_COORDINATOR,
        6,
        FindCoordinatorRequest(coordinator_keys=keys),
        code=lambda answer: answer.coordinators[0].error_code,
    )


def chosen_ids(attacker: Attacker) -> None:
    """60,000 of them, a window on the way at a time."""
    client = attacker.client()
    for start in range(0, 60_000, WINDOW):
        ids = [number << 20 for number in range(start + 1, start + WINDOW + 1)]
        attacker.send(
            client.socket,
            b"".join(
                frame_of(ApiKey.PRODUCE, 9, attacks.produce(TOPIC, attacks.batch_of(one))) for one in ids
            ),
        )
        for _ in ids:
            answer = decode_response_frame(ApiKey.PRODUCE, 9, client.receive())[1]
            attacker.answers[name_of(answer.responses[0].partition_responses[0].error_code, 0)] += 1


def names(attacker: Attacker) -> None:
    for key, version, make in attacks.NAMING:
        attacker.ask(attacker.client(), key, version, make(200_000))


def parked_joins(attacker: Attacker, count: int = 600) -> None:
    """A member that never comes back, and so many that wait for it with half a megabyte each."""
    first = SocketClient(attacker.broker)
    assert first.ask(ApiKey.JOIN_GROUP, 3, join(Protocol("range", b""), group="waited")).error_code == 0
    frame = frame_of(
        ApiKey.JOIN_GROUP, 3, join(Protocol("range", bytes(MEGABYTE // 2)), group="waited", session_ms=6000)
    )
    clients = [attacker.client() for _ in range(count)]
    for client in clients:
        attacker.send(client.socket, frame)
    _count_answers(attacker, [client.socket for client in clients], ApiKey.JOIN_GROUP, 3)
    first.socket.close()


def _count_answers(
    attacker: Attacker, connections: Sequence[socket.socket], key: ApiKey, version: int
) -> None:
    """Count what has come when nothing more comes for a while; the others wait."""
    waiting = _silent(connections)
    for connection in set(connections) - waiting:
        try:
            size = int.from_bytes(frames.receive(connection, 4))
            answer = decode_response_frame(key, version, frames.receive(connection, size))[1]
        except ConnectionError:
            attacker.answers[CLOSED] += 1
        else:
            attacker.answers[name_of(answer.error_code, size)] += 1
    attacker.answers["waits"] += len(waiting)


def _silent(connections: Sequence[socket.socket]) -> set[socket.socket]:
    """Return those on which nothing has come when nothing more comes for a while."""
    left, poll = {one.fileno(): one for one in connections}, select.poll()
    for number in left:
        poll.register(number, select.POLLIN)
    while left and (ready := poll.poll(1000 * QUIET_S)):
        for number, _ in ready:
            poll.unregister(number)
            del left[number]
    return set(left.values())


def parked_fetches(attacker: Attacker) -> None:
    """1,000 that wait, and name a partition a thousand times each."""
    wanted = [FetchRequest.FetchPartition(partition=number, fetch_offset=0) for number in range(100)] * 10
    topic = FetchRequest.FetchTopic(TOPIC, partitions=wanted)
    request = FetchRequest(max_wait_ms=600_000, min_bytes=1 << 30, max_bytes=1 << 20, topics=[topic])
    frame = frame_of(ApiKey.FETCH, 4, request)
    clients = [attacker.client() for _ in range(1000)]
    for client in clients:
        attacker.send(client.socket, frame)
    waiting = len(_silent([client.socket for client in clients]))
    attacker.answers.update({"answered at once": len(clients) - waiting, "waits": waiting})


def forged_names(attacker: Attacker) -> None:
    """Join groups whose names would be lines of the log."""
    client = attacker.client()
    for number in range(1000):
        attacker.ask(client, ApiKey.JOIN_GROUP, 3, attacks.forged_join(group=str(number)))
    lines = attacker.broker.output().split("\n")
    forged = sum(line.startswith("2026-01-01 00:00:00,000") for line in lines)
    attacker.answers[f"{forged} forged lines of the log"] += 1


def automatic_topics(attacker: Attacker) -> None:
    client = attacker.client()
    for request in range(2):
        asked = attacks.creating([f"asked-{request}-{number}" for number in range(8_191)])
        attacker.send(client.socket, frame_of(ApiKey.METADATA, 9, asked))
        answer = decode_response_frame(ApiKey.METADATA, 9, client.receive())[1]
        attacker.answers.update(name_of(topic.error_code, 0) for topic in answer.topics)


def strangers(attacker: Attacker) -> None:
    """Agree on a mechanism, announce 512 KiB, send all but the last byte, and wait."""
    size = 512 << 10
    start = frame_of(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    token = frame_of(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(bytes(size - 100)))[:-1]
    connections = [attacker.dial("SASL") for _ in range(200)]
    for connection in connections:
        attacker.send(connection, start)
        frames.receive(connection, int.from_bytes(frames.receive(connection, 4)))
    for connection in connections:
        with contextlib.suppress(ConnectionError):
            attacker.send(connection, token)
    closed = len(connections) - len(_silent(connections))
    attacker.answers.update({CLOSED: closed, "waits to log in": len(connections) - closed})


def protocols_twice(attacker: Attacker) -> None:
    """Each in a group of its own, which has to choose the protocol of most members."""
    client, twice = attacker.client(), [Protocol("range", b""), Protocol("range", b"")]
    for number in range(1000):
        attacker.ask(client, ApiKey.JOIN_GROUP, 3, join(*twice, group=f"twice-{number}"))


def bad_tokens(attacker: Attacker) -> None:
    """Half of them demand an extension, half name a key that nobody knows; the claims are long."""
    broker, clients = attacker.broker, []
    claims = {"sub": "carol", "aud": AUDIENCE, "exp": time.time() + 600, "long": "x" * 40_000}
    for header in ({"kid": "e", "crit": ["exp"]}, {"kid": "unknown"}):
        token = signed("ES256", broker.signer.ec, claims, {"alg": "ES256", **header})
        for _ in range(100):
            client = attacker.secure("SIGNED")
            assert client.handshake("OAUTHBEARER").error_code == 0
            # As in Kafka, the first answer says why, without an error code; the second ends the login.
            for text in (f"n,,\x01auth=Bearer {token}\x01\x01".encode(), b"\x01"):
                frame = client.frame(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(text))
                attacker.send(client.sock, frame)
            clients.append(client)
    for client in clients:
        refused = client.answer(ApiKey.SASL_AUTHENTICATE, 2)
        assert b"invalid_token" in refused.auth_bytes
        code = client.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code
        attacker.answers[name_of(code, 0)] += 1


ATTACKS = (
    Attack("60 JoinGroups of 40 MB", large_joins),
    Attack(
        "ListTransactions: `[ab]*a` + 3,980 times `[ab]` on an id of 32,000", slow_pattern, prepare=long_id
    ),
    Attack("the same with `[ab]` 200 times, 20 times", allowed_pattern, prepare=long_id),
    Attack(
        "zstd that unpacks to 20 MB of empty records, 20 times",
        # More than once, so that a look meets its peak.
        lambda attacker: produced(attacker, *[attacks.zstd_bomb(20_000_000)] * 20),
    ),
    Attack(
        "gzip of 250,000 empty members",
        lambda attacker: produced(attacker, attacks.empty_members(250_000)),
        (("message.max.bytes", str(8 * MEGABYTE)),),
    ),
    Attack("OffsetFetch: one group 400 times", one_group_often, prepare=offsets),
    Attack("FindCoordinator: 83,000 keys", many_keys, prepare=offsets),
    Attack("60,000 producer ids of one's choice", chosen_ids),
    Attack("200,000 names or partitions in each of seven APIs", names),
    Attack("600 JoinGroups of 512 KiB that wait", parked_joins, prepare=offsets),
    Attack("1,000 Fetches of 1,000 partitions that wait", parked_fetches),
    Attack("1,000 JoinGroups with control characters in their names", forged_names, prepare=offsets),
    Attack("2 Metadata requests that create 8,191 topics each", automatic_topics),
    Attack("1,000 JoinGroups that name a protocol twice", protocols_twice, prepare=offsets),
    Attack("200 connections that send 512 KiB before they log in", strangers),
    Attack("200 tokens of 53 KB: unknown keys, extensions that must be understood", bad_tokens),
)


# ---- measuring


class Memory:
    """Looks at all processes of a broker again and again, from a thread."""

    def __init__(self, broker: SecureBroker) -> None:
        self._pids = pids(broker)
        looked = self._look()
        self.before = {name: sizes["RssAnon"] for name, sizes in looked.items()}
        self.peak = dict(self.before)
        # The most that a process has resident of what all share.
        self.shared_before = self.shared_peak = self._shared(looked)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _shared(looked: dict[str, dict[str, int]]) -> int:
        return max((sizes["RssShmem"] for sizes in looked.values()), default=0)

    def _look(self) -> dict[str, dict[str, int]]:
        """Return what each process that still lives has resident."""
        found = {}
        for name, pid in self._pids.items():
            with contextlib.suppress(OSError):
                # Empty for one that has ended and is not waited for yet.
                if sizes := resident(pid):
                    found[name] = sizes
        return found

    def now(self) -> dict[str, int]:
        return {name: sizes["RssAnon"] for name, sizes in self._look().items()}

    def _run(self) -> None:
        while not self._ending.wait(WATCHED_EVERY_S):
            looked = self._look()
            for name, sizes in looked.items():
                self.peak[name] = max(self.peak[name], sizes["RssAnon"])
            self.shared_peak = max(self.shared_peak, self._shared(looked))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def worst(self) -> str:
        return max(self.peak, key=lambda name: self.peak[name] - self.before[name])


def another_client(port: int) -> None:
    """Ask by turns, pause a moment; at each line of standard input print the longest wait since the last."""
    longest, asked_for = (0.0, ""), select.poll()
    asked_for.register(0, select.POLLIN)
    heartbeat = frame_of(ApiKey.HEARTBEAT, 4, HeartbeatRequest("other", 1, "m"))
    asked = {
        "Metadata": frames.metadata().frame,
        "Heartbeat": heartbeat,
        "Produce": frames.produce("other", 1, 100).frame,
    }
    with frames.connected((HOST, port), PATIENCE_S) as connection:
        while True:
            for name, frame in asked.items():
                begun = time.monotonic()
                connection.sendall(frame)
                frames.receive(connection, int.from_bytes(frames.receive(connection, 4)))
                longest = max(longest, (1000 * (time.monotonic() - begun), name))
            if asked_for.poll(ASKED_EVERY_MS):
                if not os.read(0, 100):
                    return
                print(*longest, flush=True)
                longest = 0.0, ""


class Other:
    """Another client, in a process of its own."""

    def __init__(self, broker: SecureBroker) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.attack_table", "--another-client", str(broker.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def longest(self) -> tuple[float, str]:
        """Return the longest wait since this was asked last, and what for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        wait_ms, name = self._process.stdout.readline().split()
        return round(float(wait_ms), 1), name

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Row:
    """What an attack cost."""

    attack: str
    sent_bytes: int
    answer: str
    process: str
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    shared_before_bytes: int
    shared_peak_bytes: int
    quiet_ms: float
    longest_ms: float
    longest_of: str


def broker_for(directory: Path, attack: Attack) -> SecureBroker:
    settings = {**SETTINGS, **dict(attack.settings)}
    flags = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    return SecureBroker(directory / "broker", flags=["--handlers", "1", *flags])


@contextlib.contextmanager
def attacked(broker: SecureBroker) -> Iterator[None]:
    try:
        broker.start()
        create_topic(broker.bootstrap, TOPIC, attacks.PARTITIONS)
        create_topic(broker.bootstrap, "other", 1)
        yield
        broker.stop()
    finally:
        broker.kill()


def measured(broker: SecureBroker, attack: Attack, process: str = "") -> Row:
    """Run an attack against a broker of its own. Tell what a process grows by, that which grows most if none
    is named.
    """
    with attacked(broker), contextlib.ExitStack() as stack:
        connections = stack.enter_context(contextlib.ExitStack())
        attacker = Attacker(broker, connections)
        attack.prepare(attacker)
        other = Other(broker)
        stack.callback(other.end)
        other.longest()
        time.sleep(QUIET_S)  # noqa: TID251 - it measures
        quiet_ms, _ = other.longest()
        members = pids(broker)
        memory = Memory(broker)
        stack.callback(memory.end)
        attack.run(attacker)
        longest_ms, longest_of = other.longest()
        connections.close()
        time.sleep(SETTLING_S)  # noqa: TID251
        after = memory.now()
        replaced = sorted(name for name, pid in pids(broker).items() if members.get(name) != pid)
        worst = process or memory.worst()
    told = attacker.told() + "".join(f"; {name} was replaced" for name in replaced)
    return Row(
        attack.name,
        attacker.sent_bytes,
        told,
        worst,
        memory.before[worst],
        memory.peak[worst],
        after.get(worst, 0),
        memory.shared_before,
        memory.shared_peak,
        quiet_ms,
        longest_ms,
        longest_of,
    )


def circumstances() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="only attacks whose name matches")
    parser.add_argument(
        "--write", action="store_true", help="write docs/attacks.json and the table of docs/SECURITY.md"
    )
    parser.add_argument("--another-client", type=int, default=0, metavar="PORT", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.another_client:
        another_client(chosen.another_client)
        return 0
    wanted = [attack for attack in ATTACKS if re.search(chosen.only, attack.name)]
    if not wanted or (chosen.write and len(wanted) < len(ATTACKS)):
        parser.error("--write needs all attacks, and --only one that is known")
    where, rows = circumstances(), []
    for attack in wanted:
        with tempfile.TemporaryDirectory() as directory:
            row = measured(broker_for(Path(directory), attack), attack)
        rows.append(asdict(row))
        print(page.attack(rows[-1]), flush=True)
    found = {"circumstances": where, "attacks": rows}
    if chosen.write:
        page.ATTACKS.write_text(json.dumps(found, indent=1) + "\n")
        page.write()
    else:
        print("", *page.attacks(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
