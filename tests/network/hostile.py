"""Sends well-formed requests that mean harm to a real broker, of every API and version it tells.

`python -m tests.network.hostile --inputs 100000 --seed 1` starts brokers of its own, one without and one with
an authorizer; `--first N --inputs 1` sends one request alone. Every answer must decode, no process may die,
grow without bound or keep others waiting, nothing may be an error in the log, and a client that behaves is
served beside it.
"""

from __future__ import annotations

import argparse
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from ops.bench import frames
from ops.bench.brokers import Mpbroker, running
from tests.chaos.leaks import complaints
from tests.support.hostile_requests import KNOWN, LARGE_SHARE, Hostile, hostile, versions_of
from tests.support.polling import PATIENCE_S
from tests.support.socket_client import SocketClient
from tests.support.watched import Watch

AT_ONCE = 6
BESIDE = "beside"
# The administrator looks after the topics behind so many requests.
TIDY_EVERY = 300
TOPICS_MAX = 100
# A request that may wait by right is left alone after a while.
WAITS_BY_RIGHT = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.PRODUCE}
WAITED_FOR_S = 0.1
# A request during which a process had a long piece is sent so often again.
SENT_AGAIN = 3
MEGABYTE = 1 << 20
# What a process may have at most beside what it had, and what it may keep.
GROWS_AT_MOST_BYTES = 256 * MEGABYTE
KEEPS_AT_MOST_BYTES = 64 * MEGABYTE
LOG_LINE_MAX = 20_000
ERROR = re.compile(r"^\S+ \S+ (ERROR|CRITICAL) ", re.MULTILINE)
SETTINGS = (
    *("-o", "group.initial.rebalance.delay.ms=0"),
    *("-o", "offsets.topic.num.partitions=4"),
    *("-o", "transaction.state.log.num.partitions=4"),
    *("-o", "log.segment.bytes=16777216"),
    *("-o", "log.retention.bytes=33554432"),
    *("-o", "log.index.size.max.bytes=65536"),
)
WITH_AUTHORIZER = (
    *("-o", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    *("-o", "super.users=User:ANONYMOUS"),
)


class Unanswered(Exception):
    """A request has neither an answer nor a closed connection."""


class Undecodable(Exception):
    """An answer is not what its version says."""


@dataclass
class Attack:
    """Some clients that send requests from `first` on, one at a time each."""

    broker: Mpbroker
    seed: int
    first: int
    requests: int
    large_share: float = LARGE_SHARE
    clients: int = AT_ONCE
    outcomes: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    failures: list[Exception] = field(default_factory=list)
    # Numbers of requests, by client.
    under_way: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.versions = versions_of(frames.advertised_apis(self.broker.address))
        self.known_id = tidy(self.broker)
        self._numbers = count(self.first)
        self._lock = threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def doing(self) -> tuple[int, ...]:
        return (*self.under_way.values(),)

    def request(self, number: int) -> Hostile:
        return hostile(self.seed, number, self.versions, self.known_id, self.large_share)

    def alone(self, number: int) -> Attack:
        """Return an attack with one of the requests."""
        return Attack(self.broker, self.seed, number, 1, self.large_share, clients=1)

    def _next(self) -> int | None:
        with self._lock:
            number = next(self._numbers)
        if number >= self.first + self.requests or self.failures:
            return None
        if number % TIDY_EVERY == 0:
            self.known_id = tidy(self.broker)
        return number

    def _client(self, which: int) -> None:
        sock = number = given = None
        try:
            while (number := self._next()) is not None:
                given = self.request(number)
                self.under_way[which] = number
                if sock is None:
                    sock = socket.create_connection(self.broker.address, timeout=PATIENCE_S)
                outcome = self.exchange(sock, given, number)
                del self.under_way[which]
                self.outcomes[outcome] += 1
                if outcome != "answered":
                    sock.close()
                    sock = None
        except Exception as error:  # noqa: BLE001 - the test fails with it
            error.add_note(f"number {number} of seed {self.seed}: {given!r}")
            self.failures.append(error)
        finally:
            if sock is not None:
                sock.close()

    def exchange(self, sock: socket.socket, given: Hostile, number: int) -> str:
        """Send a request, and say what came of it. Raises Unanswered and Undecodable."""
        waits_by_right = given.key in WAITS_BY_RIGHT
        try:
            sock.settimeout(PATIENCE_S)
            sock.sendall(given.frame)
            sock.settimeout(WAITED_FOR_S if waits_by_right else PATIENCE_S)
            (size,) = struct.unpack(">i", frames.receive(sock, 4))
            sock.settimeout(PATIENCE_S)
            answer = frames.receive(sock, size)
        except TimeoutError as error:
            if waits_by_right:
                return "left"
            raise Unanswered(f"within {PATIENCE_S} s") from error
        except (OSError, EOFError):
            self.closed[f"{ApiKey(given.key).name} {given.mood.name}"] += 1
            return "closed"
        try:
            correlation, _ = decode_response_frame(given.key, given.version, answer)
        except Exception as error:
            raise Undecodable(f"{error!r}: {answer[:200].hex()}") from error
        if correlation != number & 0x7FFFFFFF:
            raise Undecodable(f"the answer of {correlation}, not of {number}")
        return "answered"


def tidy(broker: Mpbroker) -> bytes:
    """See to it that the known topics are there and few others, and return the id of the known one."""
    with SocketClient(broker) as client:
        found = client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        names = {topic.name for topic in found.topics}
        if len(names) > TOPICS_MAX:
            others = [
                DeleteTopicsRequest.DeleteTopicState(name)
                for name in sorted(names - {KNOWN, BESIDE})
                if not name.startswith("__")
            ]
            client.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(others, timeout_ms=30_000))
        wanted = [CreateTopicsRequest.CreatableTopic(name, 3, 1) for name in (KNOWN, BESIDE)]
        client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(wanted, timeout_ms=30_000))
        known = [MetadataRequest.MetadataRequestTopic(name=KNOWN)]
        (topic,) = client.ask(ApiKey.METADATA, 12, MetadataRequest(known)).topics
        topic_id: bytes = topic.topic_id
        return topic_id


@dataclass
class Behaved:
    """A client that produces and reads back what it has produced, for as long as the attack lasts."""

    broker: Mpbroker
    served: int = 0
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Behaved:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(socket.create_connection(self.broker.address, timeout=PATIENCE_S)) as sock:
                while not self._ended.wait(0.01):
                    self._once(sock)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.failure = error

    def _once(self, sock: socket.socket) -> None:
        value = b"%015d" % self.served
        code, _ = frames.exchange(sock, frames.produce_value(BESIDE, value))
        assert code == 0, f"produce: error {code}"
        code, answer = frames.exchange(sock, frames.fetch(BESIDE, self.served, 10_000))
        assert code == 0, f"fetch: error {code}"
        assert value in answer, f"what was produced at {self.served} is not there: {answer[:200].hex()}"
        self.served += 1


def attacked(attack: Attack, pause_ms: float | None, shown: int = 1) -> list[str]:
    """Return what is wrong during and after the attack. `pause_ms` bounds a piece of work, if given."""
    broker = attack.broker
    watch = Watch(broker, attack.doing)
    processes, before, logged = watch.status(), watch.bytes_now(), len(broker.output())
    with Behaved(broker) as behaved, watch:
        attack.run()
    output = broker.output()[logged:]
    wrong = [] if behaved.failure is None else [f"a client that behaves: {behaved.failure!r}"]
    if not behaved.served:
        wrong.append("no client that behaves was served")
    for was, now in zip(processes, watch.status(), strict=True):
        if (was["pid"], was["incarnation"]) != (now["pid"], now["incarnation"]):
            wrong.append(f"{was['name']} was replaced")
    wrong += grown(watch, before)
    wrong += said(output)
    print(f"{attack.requests} requests: {dict(attack.outcomes)}; beside them {behaved.served} were served")
    print(f"closed: {dict(attack.closed.most_common())}; {len(output)} characters of log")
    print(watch.summary(shown, attack.request))
    if pause_ms is not None:
        wrong += paused(attack, watch, pause_ms)
    return [*wrong, *complaints(broker)]


def paused(attack: Attack, watch: Watch, pause_ms: float) -> list[str]:
    """Name the requests on which a process works for longer in one piece, each time that they are sent alone.

    What took long once may have been slowed down by others on this machine.
    """
    long = {asked for one in watch.processes for asked, ns in one.pieces.items() if ns > pause_ms * 1e6}
    found = []
    for number in sorted({number for asked in long for number in asked}):
        least: dict[str, int] = {}
        for _ in range(SENT_AGAIN):
            again = attack.alone(number)
            with Watch(attack.broker, again.doing) as watch:
                again.run()
            for one in watch.processes:
                longest = max(one.pieces.values(), default=0)
                least[one.name] = min(least.get(one.name, longest), longest)
        found += [
            f"{name} works {ns / 1e6:.0f} ms in one piece on number {number}: {attack.request(number)!r}"
            for name, ns in least.items()
            if ns > pause_ms * 1e6
        ]
    return found


def grown(watch: Watch, before: dict[str, int]) -> list[str]:
    """Name the processes that had, or have kept, too much memory."""
    found = []
    after = watch.bytes_now()
    for one in watch.processes:
        if one.most_bytes - before[one.name] > GROWS_AT_MOST_BYTES:
            found.append(f"{one.name} had {(one.most_bytes - before[one.name]) >> 20} MiB more")
        if after[one.name] - before[one.name] > KEEPS_AT_MOST_BYTES:
            found.append(f"{one.name} keeps {(after[one.name] - before[one.name]) >> 20} MiB more")
    return found


def said(output: str) -> list[str]:
    """Return what the log should not have: errors, tracebacks, lines without end."""
    lines = output.splitlines()
    found = [line[:400] for line in lines if ERROR.match(line) or "Traceback" in line]
    return found + [f"a line of {len(line)}: {line[:200]}" for line in lines if len(line) > LOG_LINE_MAX]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--pause-ms", type=float, default=50)
    parser.add_argument("--large-share", type=float, default=LARGE_SHARE)
    parser.add_argument("--clients", type=int, default=AT_ONCE)
    parser.add_argument("--shown", type=int, default=1, help="so many of the longest pieces of each process")
    given = parser.parse_args(arguments)
    wrong = []
    half = (given.inputs + 1) // 2
    for flags, first in ((SETTINGS, given.first), ((*SETTINGS, *WITH_AUTHORIZER), given.first + half)):
        requests = min(half, given.first + given.inputs - first)
        if requests <= 0:
            continue
        with tempfile.TemporaryDirectory() as directory:
            broker = Mpbroker(Path(directory), flags=flags)
            with running(broker):
                begun = time.monotonic()
                attack = Attack(broker, given.seed, first, requests, given.large_share, given.clients)
                found = attacked(attack, given.pause_ms, given.shown)
                took_s = time.monotonic() - begun
            if found:
                print(broker.output()[-20_000:], file=sys.stderr)
        print(f"{requests} hostile requests of seed {given.seed} in {took_s:.0f} s: {found or 'all is well'}")
        wrong += found
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
