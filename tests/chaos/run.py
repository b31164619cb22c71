"""`make chaos`: kill -9 of every kind of process under load; what was acked stays, once, in order.

    python -m tests.chaos.run                         # two kills of each kind
    python -m tests.chaos.run --full                  # twenty
    python -m tests.chaos.run --roles log,handler --kills 5 --seed 7
    python -m tests.chaos.run --kills 0 --pairs 3     # the second in the fence of the first
    python -m tests.chaos.run --log-workers 3         # one of several dies
    python -m tests.chaos.run --broker kafka          # the same against Apache Kafka, to prove the test

On a violation the broker's directory and the history are kept.
"""

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.bench.brokers import Broker, BrokerError, Kafka, Mpbroker
from tests.chaos import leaks
from tests.chaos.crowd import Crowd
from tests.chaos.history import History, Violation, violations
from tests.chaos.killer import SUPERVISOR, HangError, at_work, await_progress, kill, roles_of
from tests.chaos.topics import Topics
from tests.chaos.workload import Workload, create_topic

QUICK_KILLS = 2
FULL_KILLS = 20
SHOWN = 20


def planned(roles: Sequence[str], kills: int, pairs: int) -> list[tuple[str, ...]]:
    """Each role alone, and each with each, itself too, one shortly after the other."""
    alone: list[tuple[str, ...]] = [(role,) for role in roles] * kills
    together = list(itertools.product([role for role in roles if role != SUPERVISOR], repeat=2))
    return alone + together * pairs


def torment(broker: Broker, roles: Sequence[str], kills: int, seed: int, pairs: int = 0) -> History:
    """The whole run: load, kills in random order, a clean restart, and the topic read back."""
    chance = random.Random(seed)
    broker.start()
    create_topic(broker.bootstrap)
    workload, topics = Workload(broker.bootstrap), Topics(broker.bootstrap)
    crowd = Crowd(broker.address)
    with at_work(workload, topics, crowd):
        await_progress(broker, workload.progress, "at the start")
        deaths = planned(roles, kills, pairs)
        for killed in chance.sample(deaths, len(deaths)):
            began = time.monotonic()
            kill(broker, killed, workload.progress, chance)
            acked, read = workload.progress()
            took_s = time.monotonic() - began
            names = " and ".join(killed)
            print(
                f"{names} killed, at work again {took_s:.2f} s later; {acked} acked, {read} read", flush=True
            )
    workload.history.complaints += crowd.complaints
    workload.history.complaints += leaks.complaints(broker)
    broker.stop()
    broker.start()
    workload.read_back()
    workload.history.complaints += topics.check()
    print(
        f"a crowd had {crowd.acked} batches acked, {crowd.refused} refused, {crowd.closed} connections closed"
    )
    print(f"{len(topics.there) + len(topics.gone)} topics, {topics.failures} times a client could not know")
    broker.stop()
    return workload.history


def keep(history: History, directory: Path) -> None:
    """Writes the history down, one line per event, for whoever looks for the cause."""
    with open(directory / "history.txt", "w") as out:
        out.writelines(f"acked {tuple(record)} {offset}\n" for record, offset in history.acked.items())
        out.writelines(f"live {tuple(record)} {offset}\n" for offset, record in history.live)
        out.writelines(f"final {tuple(record)} {offset}\n" for offset, record in history.final)


def parser_of(program: str, text: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all runs of chaos have."""
    parser = argparse.ArgumentParser(prog=program, description=text.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=0, help="deaths together of every two kinds (0)")
    parser.add_argument("--roles", help="comma-separated kinds of process (all)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1 << 32), help="of the order and the moments"
    )
    parser.add_argument("--log-workers", type=int, default=1, help="log processes (1)")
    parser.add_argument("--broker", choices=("mpbroker", "kafka"), default="mpbroker")
    return parser


def judge(broker: Broker, run: Callable[[], Sequence[Violation]]) -> int:
    """Run it, and print what it violates; return the exit code. The broker's directory is kept then."""
    try:
        found = run()
    except (HangError, BrokerError) as error:
        print(f"chaos: {error}\nkept: {broker.directory}", file=sys.stderr)
        return 1
    finally:
        broker.kill()
    for violation in found[:SHOWN]:
        print(f"  {violation}")
    if found:
        print(f"{len(found)} violations; kept: {broker.directory}")
        return 1
    shutil.rmtree(broker.directory)
    return 0


def main() -> int:
    parser = parser_of("tests.chaos.run", __doc__ or "")
    parser.add_argument("--full", action="store_true", help=f"{FULL_KILLS} kills of each kind")
    parser.add_argument("--kills", type=int, help=f"kills of each kind ({QUICK_KILLS})")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mpbroker-chaos-"))
    flags = ("--log-workers", str(chosen.log_workers))
    broker = Kafka(directory) if chosen.broker == "kafka" else Mpbroker(directory, flags=flags)
    roles = chosen.roles.split(",") if chosen.roles else roles_of(broker)
    kills = chosen.kills if chosen.kills is not None else FULL_KILLS if chosen.full else QUICK_KILLS
    print(
        f"seed {chosen.seed}: {kills} kills each of {', '.join(roles)}, {chosen.pairs} of every two",
        flush=True,
    )

    def run() -> list[Violation]:
        history = torment(broker, roles, kills, chosen.seed, chosen.pairs)
        counts = f"{len(history.sent)} sent, {len(history.acked)} acked, {len(history.live)} read meanwhile"
        print(f"{counts}, {len(history.final)} read at the end")
        if found := violations(history):
            keep(history, directory)
        return found

    return judge(broker, run)


if __name__ == "__main__":
    sys.exit(main())
