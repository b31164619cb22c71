"""kill -9 for one process of a broker, two or all, and the wait until the broker is whole and at work again.

SIGSTOP does the same to a process that nobody wakes up: the supervisor declares that it hangs.
"""

import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import psutil

from ops.bench.brokers import Broker, Kafka
from ops.bench.processes import title_of
from tests.chaos.under_way import under_way
from tests.support.polling import PATIENCE_S, comes, random_moment

# Process titles begin with these; the supervisor is the process that was started.
ROLES = ("handler", "processor", "log", "coordinator", "acceptor", "cleaner", "scrubber")
SUPERVISOR = "supervisor"
# All of its processes at once.
WHOLE = "broker"

# A death is mended in some milliseconds, a role started in some tens.
SECOND_AFTER_MAX_S = 0.08
PAUSE_MAX_S = 0.5

# So many records must be acknowledged and read after each kill before the next one.
PROGRESS_RECORDS = 100

Progress = Callable[[], tuple[int, int]]


class HangError(AssertionError):
    """The broker did not come back."""


def started(complain: Callable[[str], object], work: Callable[..., object], *given: int) -> threading.Thread:
    """Start a client's work in a thread; where it fails, that is a complaint."""

    def run() -> None:
        try:
            work(*given)
        except Exception as error:
            complain("a client broke off: " + "".join(traceback.format_exception_only(error)))
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class Client(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abandon(self) -> None:
        """End it when there is no broker left that could answer."""


@contextmanager
def at_work(*clients: Client) -> Iterator[None]:
    """Let clients work meanwhile."""
    for client in clients:
        client.start()
    try:
        yield
    except BaseException:
        for client in clients:
            client.abandon()
        raise
    for client in clients:
        client.stop()


def roles_of(broker: Broker) -> Sequence[str]:
    """Apache Kafka is one process, which makes it a broker with a supervisor only."""
    return (SUPERVISOR,) if isinstance(broker, Kafka) else (*ROLES, SUPERVISOR)


def members(broker: Broker, role: str) -> list[psutil.Process]:
    return [process for process in broker.tree().members() if title_of(process).startswith(role)]


def _wait(holds: Callable[[], bool], complaint: Callable[[], str]) -> None:
    if not comes(holds):
        raise HangError(complaint())


def _kill_supervisor(broker: Broker) -> None:
    """The children must notice and go; then an operator starts the broker again."""
    assert broker.process is not None
    children = broker.tree().members()[1:]
    broker.process.kill()
    broker.process.wait()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    if alive:
        raise HangError(f"{PATIENCE_S} s after the supervisor's death there are still {alive}")
    broker.start()


def _await_member(broker: Broker, role: str, chance: random.Random) -> psutil.Process:
    """One of the role; there may be none for the moment."""
    found: list[psutil.Process] = []

    def there_is_one() -> bool:
        found[:] = members(broker, role)
        return bool(found)

    _wait(there_is_one, lambda: f"no process has a title that begins with {role!r}")
    return chance.choice(found)


def _kill_members(broker: Broker, roles: Sequence[str], chance: random.Random, sent: signal.Signals) -> None:
    """One of each role, shortly after each other: a second one dies while the first one's death is mended."""
    whole = sorted(title_of(process) for role in set(roles) for process in members(broker, role))
    victims: list[psutil.Process] = []
    for role in roles:
        victims.append(_await_member(broker, role, chance))
        victims[-1].send_signal(sent)
        if len(victims) < len(roles):
            random_moment(chance, SECOND_AFTER_MAX_S)

    def replaced() -> bool:
        now = [process for role in set(roles) for process in members(broker, role)]
        return sorted(map(title_of, now)) == whole and not any(victim in now for victim in victims)

    def complaint() -> str:
        killed = " and ".join(roles)
        return f"{killed} have no successors {PATIENCE_S} s later:\n{broker.output()[-4000:]}"

    _wait(replaced, complaint)


def least_progress(awaited: int) -> int:
    """Return how many records are written and read at least once progress was awaited `awaited` times."""
    return PROGRESS_RECORDS * awaited


def await_progress(broker: Broker, progress: Progress, after: str) -> None:
    """Writers and reader must both get on."""
    start = progress()

    def moved() -> bool:
        return all(now >= then + PROGRESS_RECORDS for now, then in zip(progress(), start, strict=True))

    def complaint() -> str:
        now = f"{start} records were acknowledged and read, now {progress()}"
        state = f"{under_way(broker)}\n{broker.output()[-4000:]}"
        return f"{after}: no progress within {PATIENCE_S} s ({now}):\n{state}"

    _wait(moved, complaint)


def kill(
    broker: Broker,
    roles: Sequence[str],
    progress: Progress,
    chance: random.Random,
    sent: signal.Signals = signal.SIGKILL,
) -> None:
    """Kills one process of each role at a random moment, and returns when all goes on."""
    random_moment(chance, 0.5)
    if WHOLE in roles:
        broker.kill()
        broker.start()
    elif SUPERVISOR in roles:
        _kill_supervisor(broker)
    else:
        _kill_members(broker, roles, chance, sent)
    await_progress(broker, progress, f"{' and '.join(roles)} killed")


def pause(broker: Broker, role: str, progress: Progress, chance: random.Random) -> None:
    """One process of the role stands still for a moment, which is no death."""
    stopped = _await_member(broker, role, chance)
    stopped.suspend()
    random_moment(chance, PAUSE_MAX_S)
    stopped.resume()
    await_progress(broker, progress, f"{role} paused")
