"""Groups of the consumer protocol (KIP-848), compared with Apache Kafka: `python -m ops.bench.groups`.

The members are raw connections that behave as Kafka's clients do (`group_members`). The brokers take turns
and have the same settings: --heartbeat-ms is the interval of heartbeats, --interval-ms is
group.consumer.assignment.interval.ms. A group is stable when each partition has one owner, members have
equally many partitions, and the broker knows that they have them.

* idle: 10,000 members, in ten groups, that only heartbeat: the broker's CPU, and its memory per member
* join: 1,000 members join a group with a topic of 1,000 partitions: time until stable, requests
* restart: 100 members of such a topic leave, and others come, ten a second: time until stable after the last
  one, requests, partitions that members had to give up, how long each partition had no owner
* commit: 100 members commit offsets, each when its last commit is answered

The durable variant of mpbroker answers when the group's records are on the disk, `os` and Kafka when they are
in the page cache. The run fails if mpbroker (`os`) needs more than CPU_MAX of Kafka's CPU, IDLE_CPU_MAX where
members are idle, or more than STABLE_MAX of its time until stable.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Final, NamedTuple, Self

from ops.bench import frames, run
from ops.bench.brokers import Broker, BrokerError
from ops.bench.group_members import Fleet, Member, MemberError, are_stable
from ops.bench.scenarios import LoadError
from ops.setup.maven import MissingToolError

TOPIC: Final = "shared-out"
PARTITIONS: Final = 1_000
IDLE_GROUPS: Final = 10
RESTARTS_PER_S: Final = 10
RESTARTED, COMMITTING = 100, 100
PATIENCE_S = 120.0
SETTLE_S = 1.0
WARMUP_MEMBERS = 100
# The goals are half of Kafka's CPU and no more time; runs on a shared machine differ by some percent.
CPU_MAX, IDLE_CPU_MAX, STABLE_MAX = 0.6, 1.6, 1.1

Figures = dict[str, float]


class Unit(NamedTuple):
    """How a figure is shown. `bound`: the largest ratio to Kafka's that is allowed, if any."""

    text: str
    bound: float | None = None


UNITS: Final[Mapping[str, Unit]] = {
    "CPU, % of a core": Unit("{:,.1f}", CPU_MAX),
    "CPU, µs a request": Unit("{:,.0f}", CPU_MAX),
    "CPU, s": Unit("{:,.2f}", CPU_MAX),
    "stable after, s": Unit("{:,.2f}", STABLE_MAX),
    "requests": Unit("{:,.0f}"),
    "requests/s": Unit("{:,.0f}"),
    "p50, ms": Unit("{:,.2f}"),
    "p99, ms": Unit("{:,.2f}"),
    "memory, bytes a member": Unit("{:,.0f}"),
    "given up": Unit("{:,.0f}"),
    "without owner, ms a partition": Unit("{:,.0f}"),
    "generator's CPU, s": Unit("{:,.2f}"),
}


@dataclass(frozen=True)
class Scale:
    """Numbers of members, and for how long idle ones are measured."""

    idle: int = 10_000
    joining: int = 1_000
    restarted: int = RESTARTED
    committing: int = COMMITTING
    seconds: float = 15.0

    def times(self, factor: float) -> Self:
        numbers = (self.idle, self.joining, self.restarted, self.committing)
        idle, joining, restarted, committing = (max(1, int(factor * number)) for number in numbers)
        return replace(self, idle=idle, joining=joining, restarted=restarted, committing=committing)


class Costs:
    """The CPU time that the broker's processes and this process have used since this object was made."""

    def __init__(self, broker: Broker) -> None:
        self._tree = broker.tree()
        self._ours, self._theirs, self.began = time.process_time(), self._tree.run_seconds(), time.monotonic()

    def figures(self, fleet: Fleet, requests: int) -> Figures:
        cpu_s, took_s = self._tree.run_seconds() - self._theirs, time.monotonic() - self.began
        times = sorted(fleet.commits or fleet.latencies)[-requests:] or [0.0]
        return {
            "requests": requests,
            "requests/s": requests / took_s,
            "CPU, s": cpu_s,
            "CPU, µs a request": 1e6 * cpu_s / max(1, requests),
            "CPU, % of a core": 100 * cpu_s / took_s,
            "p50, ms": 1000 * times[len(times) // 2],
            "p99, ms": 1000 * times[len(times) * 99 // 100],
            "generator's CPU, s": time.process_time() - self._ours,
        }


@contextmanager
def fleet_of(broker: Broker, count: int, groups: int = 1) -> Iterator[Fleet]:
    """Connect members of new groups, whose joins are due at once; let them leave afterwards."""
    with Fleet(broker.address) as fleet:
        for number in range(count):
            fleet.add(Member(f"group-{id(fleet)}-{number % groups}", TOPIC))
        yield fleet
        fleet.remove_all([*fleet.members])


def until_stable(fleet: Fleet) -> None:
    fleet.run(lambda: are_stable(fleet.members, PARTITIONS), PATIENCE_S)


def forget(fleet: Fleet) -> None:
    """Forget the times of requests so far."""
    fleet.latencies.clear()
    fleet.commits.clear()


def for_seconds(fleet: Fleet, seconds: float) -> None:
    until = time.monotonic() + seconds
    fleet.run(lambda: time.monotonic() >= until, seconds + PATIENCE_S)


def idle(scale: Scale, broker: Broker) -> Figures:
    before = broker.tree().pss_bytes()
    with fleet_of(broker, scale.idle, IDLE_GROUPS) as fleet:
        spread(fleet)
        until_stable(fleet)
        for_seconds(fleet, SETTLE_S)
        bytes_each = (broker.tree().pss_bytes() - before) / scale.idle
        forget(fleet)
        costs = Costs(broker)
        for_seconds(fleet, scale.seconds)
        found = costs.figures(fleet, fleet.requests)
    return found | {"memory, bytes a member": bytes_each}


def spread(fleet: Fleet, over_s: float = 5.0) -> None:
    """Spread the joins of members evenly over `over_s` seconds, and so their later heartbeats."""
    members, now = [*fleet.members], time.monotonic()
    for number, member in enumerate(members):
        member.due = now + over_s * number / len(members)
        fleet.schedule(member)


def join(scale: Scale, broker: Broker) -> Figures:
    with fleet_of(broker, scale.joining) as fleet:
        costs = Costs(broker)
        until_stable(fleet)
        stable_s = time.monotonic() - costs.began
        return costs.figures(fleet, fleet.requests) | {"stable after, s": stable_s}


def restart(scale: Scale, broker: Broker) -> Figures:
    with fleet_of(broker, scale.restarted) as fleet:
        until_stable(fleet)
        forget(fleet)
        members = [*fleet.members]
        for member in members:
            member.lost = 0
        costs, unowned = Costs(broker), Unowned(fleet)
        for number, member in enumerate(members):
            fleet.run(partial(unowned.is_over, costs.began + number / RESTARTS_PER_S), PATIENCE_S)
            fleet.remove(member)
            fleet.add(Member(member.group, TOPIC, due=time.monotonic()))
        last = time.monotonic()
        fleet.run(lambda: unowned.is_over() and are_stable(fleet.members, PARTITIONS), PATIENCE_S)
        return costs.figures(fleet, fleet.requests) | {
            "stable after, s": time.monotonic() - last,
            "given up": sum(member.lost for member in fleet.members) + sum(member.lost for member in members),
            "without owner, ms a partition": 1000 * unowned.seconds / PARTITIONS,
        }


class Unowned:
    """Adds up for how long partitions of a group have no owner."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._at = time.monotonic()
        self.seconds = 0.0

    def is_over(self, moment: float = 0.0) -> bool:
        """Add, for each unowned partition, the time since the last call; return whether `moment` has come."""
        now = time.monotonic()
        missing = PARTITIONS - sum(len(member.owned) for member in self._fleet.members)
        self.seconds += missing * (now - self._at)
        self._at = now
        return now >= moment


def commit(scale: Scale, broker: Broker) -> Figures:
    with fleet_of(broker, scale.committing) as fleet:
        until_stable(fleet)
        fleet.start_commits()
        for_seconds(fleet, SETTLE_S)
        forget(fleet)
        costs = Costs(broker)
        for_seconds(fleet, min(scale.seconds, 5.0))
        found = costs.figures(fleet, fleet.requests)
        fleet.stop_commits()
    return found


Take = Callable[[Scale, Broker], Figures]
EXPERIMENTS: Final[Mapping[str, tuple[Take, Sequence[str]]]] = {
    "join": (
        join,
        ("stable after, s", "requests", "CPU, s", "CPU, µs a request", "p50, ms", "p99, ms"),
    ),
    "restart": (
        restart,
        (
            *("stable after, s", "without owner, ms a partition", "given up", "requests", "CPU, s"),
            *("CPU, µs a request", "p99, ms"),
        ),
    ),
    "commit": (commit, ("requests/s", "CPU, µs a request", "p50, ms", "p99, ms")),
    "idle": (
        idle,
        (
            *("requests/s", "CPU, % of a core", "CPU, µs a request", "memory, bytes a member"),
            *("p50, ms", "p99, ms"),
        ),
    ),
}


def warm_up(broker: Broker) -> None:
    """Make the topic of groups, and let a JVM compile what it will run."""
    with frames.connected(broker.address) as connection:
        until = time.monotonic() + PATIENCE_S
        while frames.exchange(connection, frames.find_coordinator("any"))[0]:
            if time.monotonic() > until:
                raise BrokerError(f"{broker.name} has no coordinator of groups")
            time.sleep(0.1)
    scale = Scale(restarted=WARMUP_MEMBERS, committing=WARMUP_MEMBERS)
    for take in (restart, commit):
        take(scale, broker)


def lines_of(name: str, found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each figure: the medians of each broker, ratios to Kafka's in brackets."""
    *_, last = found
    yield f"{name}:"
    for figure in (*EXPERIMENTS[name][1], "generator's CPU, s"):
        medians = {title: median(one[figure] for one in rounds) for title, rounds in found.items()}
        cells = [f"{title} {UNITS[figure].text.format(value)}" for title, value in medians.items()]
        for place, (title, value) in enumerate(medians.items()):
            if title != last and last.startswith(run.YARDSTICK) and medians[last]:
                cells[place] += f" ({value / medians[last]:.2f})"
        yield f"  {figure}: {', '.join(cells)}"


def missed(name: str, found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line for each bound that mpbroker (`os`) misses."""
    theirs, ours = (next((r for t, r in found.items() if t.endswith(end)), ()) for end in ("4.3", "os"))
    if not theirs or not ours:
        return
    for figure in EXPERIMENTS[name][1]:
        if (bound := UNITS[figure].bound) is None:
            continue
        if name == "idle" and bound == CPU_MAX:
            bound = IDLE_CPU_MAX
        ratio = median(one[figure] for one in ours) / median(one[figure] for one in theirs)
        if ratio > bound:
            yield f"{name}, {figure}: {ratio:.2f} of Kafka's, more than {bound:g}"


def settings(given: argparse.Namespace) -> list[str]:
    return [
        f"group.consumer.min.heartbeat.interval.ms={min(given.heartbeat_ms, 5000)}",
        f"group.consumer.heartbeat.interval.ms={given.heartbeat_ms}",
        f"group.consumer.assignment.interval.ms={given.interval_ms}",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; all if none")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of members")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="that idle members are measured")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--heartbeat-ms", type=int, default=5000)
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    parser.add_argument("--kafka-alone", action="store_true", help="without mpbroker")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in EXPERIMENTS]:
        parser.error(f"there is no {unknown[0]}: {', '.join(EXPERIMENTS)}")
    return given


def main() -> int:
    given = arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    scale = Scale(seconds=given.seconds).times(given.scale)
    misses: list[str] = []
    try:
        with run.started(
            kafka=not given.alone,
            ours=not given.kafka_alone,
            topic=TOPIC,
            partitions=PARTITIONS,
            settings=settings(given),
        ) as (brokers, _):
            for contender in brokers:
                with contender.broker.awake() as broker:
                    warm_up(broker)
            for name in given.names or EXPERIMENTS:
                take = partial(EXPERIMENTS[name][0], scale)
                found = run.in_turns(brokers, given.rounds, name, take)
                print(*lines_of(name, found), sep="\n", flush=True)
                misses += missed(name, found)
    except (BrokerError, LoadError, MemberError, MissingToolError, OSError) as error:
        print(f"bench-groups: {error}", file=sys.stderr)
        return 2
    for miss in misses:
        print(f"missed: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
