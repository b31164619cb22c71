"""A broker and its standby change places under load, whatever makes the one that leads go, or stand still."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence

from mpbroker.protocol.errors import ErrorCode
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.chaos.killer import Progress, await_progress
from tests.support.broker_pair import Pair
from tests.support.polling import random_moment, until
from tests.support.real_brokers import pid_of

# What happens to the broker that leads.
KILLED, STOPPED, HANDED_OVER, TIER_KILLED = "killed", "stopped for a while", "handed over", "without its tier"
STORE_AWAY = "without the store"
FAULTS = (KILLED, STOPPED, HANDED_OVER, TIER_KILLED, STORE_AWAY)


def begin(pair: Pair) -> None:
    """Start both brokers: the first one leads."""
    pair.start(1)
    pair.start(2, "--standby")
    pair.stands_by(2)


def change_places(pair: Pair, faults: Sequence[str], progress: Progress, chance: random.Random) -> None:
    """Let these faults happen one after the other. Return when clients go on after the last one."""
    await_progress(pair.brokers[1], progress, "at the start")
    for fault in faults:
        random_moment(chance, 0.5)
        began, leader, generation = time.monotonic(), pair.leader, pair.generation
        other = 3 - leader
        pair.stands_by(other)
        _do(pair, fault, leader, other)
        if fault in (KILLED, STOPPED, HANDED_OVER):
            assert (pair.leader, pair.generation) == (other, generation + 1)
        await_progress(pair.brokers[pair.leader], progress, f"broker {leader} {fault}")
        print(f"broker {leader} {fault}, at work again {time.monotonic() - began:.2f} s later", flush=True)


def _do(pair: Pair, fault: str, leader: int, other: int) -> None:
    broker, generation = pair.brokers[leader], pair.generation
    if fault == STOPPED:
        # It wakes up in the middle of what it did, and another one leads.
        broker.tree().pause()
        pair.leads(other, generation + 1)
        broker.tree().resume()
    elif fault == TIER_KILLED:
        os.kill(pid_of(broker, "tier"), signal.SIGKILL)
    elif fault == STORE_AWAY:
        away = pair.store_dir.with_name("away")
        pair.store_dir.rename(away)
        until(lambda: not leads(broker), "its lease ends")
        away.rename(pair.store_dir)
    else:
        broker.kill() if fault == KILLED else broker.stop()
        pair.leads(other, generation + 1)
        pair.start(leader)


def leads(broker: Mpbroker) -> bool:
    """Return whether a broker coordinates groups, asked on a new connection."""
    try:
        with frames.connected(broker.address) as connection:
            error, _ = frames.exchange(connection, frames.offset_commit("no topic"))
    except ConnectionError:
        return False  # its lease has ended meanwhile
    return error != ErrorCode.NOT_COORDINATOR
