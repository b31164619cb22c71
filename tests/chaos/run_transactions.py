"""`make chaos`, transactions: processes die, hang and pause under copiers; what they copy is there once.

    python -m tests.chaos.run_transactions                    # one death of each kind
    python -m tests.chaos.run_transactions --kills 20
    python -m tests.chaos.run_transactions --roles coordinator,log --kills 5 --seed 7
    python -m tests.chaos.run_transactions --kills 0 --pairs 1  # the second in the fence of the first
    python -m tests.chaos.run_transactions --log-workers 3
    python -m tests.chaos.run_transactions --broker kafka     # against Apache Kafka, to prove the test

Kafka 4.3 loses an abort where it was killed: what its coordinator finds open at the start it ends before its
metadata has the partitions, and takes them for deleted. On a violation the broker's directory is kept.
"""

import itertools
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.chaos import leaks
from tests.chaos.copiers import OFFSETS_PARTITIONS, Copiers, create_topics
from tests.chaos.exactly_once import Copies, Outcome, violations
from tests.chaos.killer import SUPERVISOR, WHOLE, at_work, await_progress, kill, pause, roles_of
from tests.chaos.run import judge, parser_of
from tests.chaos.under_way import under_way

SETTINGS = {
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
# Of mpbroker: whoever stands still for so long is replaced.
HANG_MS = 2000
KILLED, HUNG, PAUSED = "killed", "hung", "paused"

# What is done, and to whom.
Step = tuple[str, ...]


def broker_of(kind: str, directory: Path, log_workers: int) -> Broker:
    if kind == "kafka":
        return Kafka(directory, properties=[f"{name}={value}" for name, value in SETTINGS.items()])
    settings = {**SETTINGS, "handler.hang.timeout.ms": str(HANG_MS)}
    flags = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    return Mpbroker(directory, flags=["--log-workers", str(log_workers), *flags])


def planned(roles: Sequence[str], kills: int, pairs: int) -> list[Step]:
    """Plan the death of each role; children of the supervisor also hang, pause, and die in pairs."""
    children = [role for role in roles if role not in (SUPERVISOR, WHOLE)]
    deaths = [(KILLED, role) for role in roles]
    others = [(what, role) for role in children for what in (HUNG, PAUSED)]
    together = [(KILLED, *both) for both in itertools.product(children, repeat=2)]
    return [*deaths, *others] * kills + together * pairs


def torment(broker: Broker, plan: Sequence[Step], seed: int) -> Copies:
    """The whole run: copiers, everything that is planned, a clean restart, and the target read back."""
    chance = random.Random(seed)
    broker.start()
    create_topics(broker.bootstrap)
    copiers = Copiers(broker.bootstrap, seed, partial(under_way, broker))
    with at_work(copiers):
        await_progress(broker, copiers.progress, "at the start")
        for what, *roles in chance.sample(plan, len(plan)):
            do(broker, what, roles, copiers, chance)
    copiers.copies.complaints += leaks.complaints(broker)
    broker.stop()
    broker.start()
    copiers.read_back()
    broker.stop()
    report(copiers)
    return copiers.copies


def do(broker: Broker, what: str, roles: Sequence[str], copiers: Copiers, chance: random.Random) -> None:
    """Returns when all are at work again."""
    began = time.monotonic()
    if what == PAUSED:
        (role,) = roles
        pause(broker, role, copiers.progress, chance)
    else:
        sent = signal.SIGSTOP if what == HUNG else signal.SIGKILL
        kill(broker, roles, copiers.progress, chance, sent)
    copied, read = copiers.progress()
    took_s = time.monotonic() - began
    names = " and ".join(roles)
    print(f"{names} {what}, at work again {took_s:.2f} s later; {copied} copied, {read} read", flush=True)


def report(copiers: Copiers) -> None:
    transactions = copiers.copies.transactions.values()
    counts = {outcome: sum(each.outcome is outcome for each in transactions) for outcome in Outcome}
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()), end=" transactions; ")
    print(f"{copiers.fenced} zombies fenced, {len(copiers.copies.final)} records read at the end")


def main() -> int:
    parser = parser_of("tests.chaos.run_transactions", __doc__ or "")
    parser.add_argument("--kills", type=int, default=1, help="deaths of each kind and role (1)")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mpbroker-chaos-"))
    broker = broker_of(chosen.broker, directory, chosen.log_workers)
    everybody = (WHOLE,) if isinstance(broker, Kafka) else (*roles_of(broker), WHOLE)
    roles = chosen.roles.split(",") if chosen.roles else everybody
    print(f"seed {chosen.seed}: {chosen.kills} of each of {', '.join(roles)}", flush=True)
    plan = planned(roles, chosen.kills, chosen.pairs)
    return judge(broker, lambda: violations(torment(broker, plan, chosen.seed)))


if __name__ == "__main__":
    sys.exit(main())
