"""The process tree with toy roles: real forks, real deaths, real fences; no broker in them."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.hangs import look_at
from mpbroker.ipc.process import LEAVING, ExitCode, FatalError, ProcessContext, State
from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.supervisor.changing import Resize
from mpbroker.supervisor.child import DEATHS_IN_A_ROW_MAX, Child, fork_child
from mpbroker.supervisor.tree import BrokerStops, Tree
from tests.support.polling import PATIENCE_S, until

HANDLER, PROCESSOR = topology.handler(0), topology.processor(0)


def obedient(context: ProcessContext) -> int:
    """Acknowledges every fence and says in its status text what it was told."""
    context.ready()
    told = []
    while not context.must_stop():
        order = context.pending_order()
        if order is not None:
            told.append(f"{order.role}.{order.stage}{'+' if order.alive else '-'}")
            context.counters.set_status(" ".join(told))
            context.acknowledge_order()
        context.wait(lambda: context.pending_order() is not None or context.must_stop())
    context.stopped()
    return ExitCode.STOPPED


def needs_the_log_process(context: ProcessContext) -> int:
    """As the coordinator: ready when the log process is there, and obedient before that."""
    there = context.is_alive(topology.LOG)

    def obey() -> None:
        nonlocal there
        order = context.pending_order()
        if order is not None:
            if order.role == topology.LOG:
                there = order.alive
            context.acknowledge_order()

    while not there:
        context.wait(lambda: context.pending_order() is not None)
        obey()
    context.ready()
    while not context.must_stop():
        obey()
        context.wait(lambda: context.pending_order() is not None or context.must_stop())
    context.stopped()
    return ExitCode.STOPPED


def recovers(context: ProcessContext) -> int:
    """As the log process: looks at nothing until it has recovered, which here is when it is told so."""
    while context.incarnation > 1 and context.memory.words("dirty").load(0) == 0:
        context.wait(lambda: False, timeout_ms=5)
    return obedient(context)


def opens_many_partitions(context: ProcessContext) -> int:
    """As the coordinator: alive, and ready only when the log process has opened everything."""
    while context.memory.words("dirty").load(0) == 0:
        context.wait(lambda: False, timeout_ms=5)
    return obedient(context)


def hangs_at_its_start(context: ProcessContext) -> int:
    while context.incarnation == 1:
        signal.pause()
    return obedient(context)


def dies_at_once(_: ProcessContext) -> int:
    return 7


def gives_up(_: ProcessContext) -> int:
    raise FatalError("log.dirs: /nowhere is gone. Mount it", status=4)


def deaf(context: ProcessContext) -> int:
    """Serves, but never looks at an order."""
    context.ready()
    while True:
        signal.pause()


@pytest.fixture
def tree(memory: SharedMemory) -> Iterator[Tree]:
    made = Tree(memory, BrokerConfig())
    yield made
    made.kill_all()


def start(tree: Tree, *roles: int) -> None:
    for role in roles:
        tree.start(Child(role, obedient))


def mended(tree: Tree, role: int, incarnation: int) -> bool:
    child = tree.children[role]
    return child.serves and child.incarnation >= incarnation


def step_until_mended(tree: Tree, role: int, incarnation: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while not mended(tree, role, incarnation):
        assert time.monotonic() < until, f"{topology.name_of(role)} was not replaced"
        tree.step(100)


def status_of(tree: Tree, role: int) -> list[str]:
    return tree.memory.counters(role).status.split()


def test_a_dead_handler_is_fenced_in_order_and_replaced(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    ring = tree.memory.ring(PROCESSOR, HANDLER)
    ring.push(b"left over".ljust(64, b"\0"))
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    step_until_mended(tree, HANDLER, 2)
    assert status_of(tree, topology.LOG)[-2:] == [f"{HANDLER}.1-", f"{HANDLER}.0+"]
    assert status_of(tree, topology.COORDINATOR)[-2:] == [f"{HANDLER}.2-", f"{HANDLER}.0+"]
    assert status_of(tree, PROCESSOR)[-2:] == [f"{HANDLER}.3-", f"{HANDLER}.0+"]
    assert tree.memory.ring(PROCESSOR, HANDLER).waiting() == 0
    assert tree.memory.words("roles").load(HANDLER) == 2


def test_handlers_let_go_of_a_dead_tier_and_the_tier_of_a_dead_handler(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR, topology.TIER)
    others = [status_of(tree, role) for role in (topology.LOG, topology.COORDINATOR, PROCESSOR)]
    os.kill(tree.children[topology.TIER].pid, signal.SIGKILL)
    step_until_mended(tree, topology.TIER, 2)
    assert status_of(tree, HANDLER)[-2:] == [f"{topology.TIER}.1-", f"{topology.TIER}.0+"]
    assert [status_of(tree, role) for role in (topology.LOG, topology.COORDINATOR, PROCESSOR)] == others
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    step_until_mended(tree, HANDLER, 2)
    assert status_of(tree, topology.TIER) == [f"{HANDLER}.2-", f"{HANDLER}.0+"]


def test_a_tier_that_dies_again_and_again_stops_nobody(tree: Tree) -> None:
    start(tree, topology.LOG, HANDLER, topology.TIER)
    tier = tree.children[topology.TIER]
    tier.restarts.young_deaths = DEATHS_IN_A_ROW_MAX
    os.kill(tier.pid, signal.SIGKILL)
    until(lambda: tier.restart_at is not None, "it waits for its next start", lambda: tree.step(100))
    assert tree.children[HANDLER].serves


@pytest.mark.parametrize("role", [topology.LOG, topology.COORDINATOR, PROCESSOR, HANDLER])
def test_every_role_is_replaced_many_times(tree: Tree, role: int) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    for incarnation in range(2, 8):
        tree.children[role].started -= 10  # it has lived long enough not to look like a restart loop
        os.kill(tree.children[role].pid, signal.SIGKILL)
        step_until_mended(tree, role, incarnation)
    found = {c.name for c in tree.children.values() if c.pid}
    assert found == {"log 0", "coordinator", "handler 0", "processor 0"}


def test_who_is_sent_requests_has_bound_the_rings_of_a_processor_before_that_runs(tree: Tree) -> None:
    """Connections wait for a successor, which reads them as soon as it serves."""

    def notes_who_knows_it(context: ProcessContext) -> int:
        peers = [context.memory.counters(role).status.split()[-1] for role in (HANDLER, topology.LOG)]
        context.counters.set_last_error(" ".join(peers))
        return obedient(context)

    start(tree, topology.LOG, HANDLER)
    tree.start(Child(PROCESSOR, notes_who_knows_it))
    assert tree.memory.counters(PROCESSOR).last_error == f"{PROCESSOR}.0+ {PROCESSOR}.0+"
    os.kill(tree.children[PROCESSOR].pid, signal.SIGKILL)
    step_until_mended(tree, PROCESSOR, 2)
    assert tree.memory.counters(PROCESSOR).last_error == f"{PROCESSOR}.0+ {PROCESSOR}.0+"
    assert status_of(tree, HANDLER) == [f"{PROCESSOR}.0+", f"{PROCESSOR}.1-", f"{PROCESSOR}.0+"]


def test_two_deaths_at_once_are_both_mended(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    os.kill(tree.children[topology.LOG].pid, signal.SIGKILL)
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    step_until_mended(tree, topology.LOG, 2)
    step_until_mended(tree, HANDLER, 2)


def test_the_log_process_is_replaced_while_a_successor_waits_for_it(tree: Tree) -> None:
    start(tree, topology.LOG)
    tree.start(Child(topology.COORDINATOR, needs_the_log_process))
    for role in (topology.COORDINATOR, topology.LOG):
        os.kill(tree.children[role].pid, signal.SIGKILL)
    while tree.children[topology.COORDINATOR].incarnation < 2:
        tree.step(100)
    os.kill(tree.children[topology.COORDINATOR].pid, signal.SIGKILL)
    step_until_mended(tree, topology.LOG, 2)
    step_until_mended(tree, topology.COORDINATOR, 3)


def test_a_log_process_that_recovers_holds_up_nobody_and_hears_afterwards_what_it_missed(tree: Tree) -> None:
    tree.start(Child(topology.LOG, recovers))
    start(tree, topology.COORDINATOR, HANDLER, PROCESSOR)
    os.kill(tree.children[topology.LOG].pid, signal.SIGKILL)
    while tree.children[topology.LOG].incarnation < 2:
        tree.step(100)
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    step_until_mended(tree, HANDLER, 2)
    assert not tree.children[topology.LOG].serves
    assert status_of(tree, PROCESSOR)[-2:] == [f"{HANDLER}.3-", f"{HANDLER}.0+"]
    tree.memory.words("dirty").store(0, 1)
    step_until_mended(tree, topology.LOG, 2)
    assert status_of(tree, topology.LOG) == [f"{HANDLER}.1-", f"{HANDLER}.0+"]
    assert status_of(tree, HANDLER)[-1] == f"{topology.LOG}.0+"


def test_a_coordinator_that_waits_for_recovery_is_not_killed_and_nobody_who_needs_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.supervisor.tree.READY_TIMEOUT_S", 1)
    start(tree, topology.LOG)
    waiting = [Child(topology.COORDINATOR, opens_many_partitions), Child(HANDLER, opens_many_partitions)]
    for child in waiting:
        tree.launch(child)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        tree.step(50)
    tree.memory.words("dirty").store(0, 1)
    for child in waiting:
        tree.await_serving(child)
        assert (child.serves, child.incarnation) == (True, 1)


@pytest.mark.parametrize("role", [topology.COORDINATOR, HANDLER])
def test_who_hangs_before_it_is_ready_is_killed_and_replaced(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    monkeypatch.setattr("mpbroker.supervisor.tree.READY_TIMEOUT_S", 0.2)
    start(tree, topology.LOG)
    tree.launch(Child(role, hangs_at_its_start))
    step_until_mended(tree, role, 2)


def test_a_welcome_to_one_that_died_again_changes_nothing(tree: Tree) -> None:
    """The successor dies between its first word and its peers' answers: they see a welcome, then a fence."""

    def dies_when_ready(context: ProcessContext) -> int:
        context.ready()
        return 7 if context.incarnation == 2 else obedient(context)

    start(tree, topology.LOG, topology.COORDINATOR, HANDLER)
    tree.start(Child(PROCESSOR, dies_when_ready))
    os.kill(tree.children[PROCESSOR].pid, signal.SIGKILL)
    step_until_mended(tree, PROCESSOR, 3)
    told = [order for order in status_of(tree, HANDLER) if order.startswith(f"{PROCESSOR}.")]
    assert told in (
        [f"{PROCESSOR}.{order}" for order in ("0+", "1-", "0+", "1-", "0+")],
        [f"{PROCESSOR}.{order}" for order in ("0+", "1-", "1-", "0+")],
    )
    assert tree.memory.words("roles").load(PROCESSOR) == 3


def test_a_role_that_always_dies_stops_the_broker_with_a_reason(tree: Tree) -> None:
    tree.start(Child(topology.LOG, dies_at_once))

    def wear_out() -> None:
        for _ in range(2000):
            for child in tree.children.values():
                if child.restart_at is not None:
                    child.restart_at = 0.0  # the back-off itself is tested without waiting
            tree.step(10)

    with pytest.raises(BrokerStops, match="log 0 process died 10 times in a row"):
        wear_out()


def test_a_fatal_error_stops_the_broker_at_once(tree: Tree) -> None:
    with pytest.raises(BrokerStops, match="log 0 process cannot go on") as stops:
        tree.start(Child(topology.LOG, gives_up))
    assert stops.value.code == 4
    assert tree.memory.counters(topology.LOG).last_error == "log.dirs: /nowhere is gone. Mount it"


def test_a_child_that_does_not_move_is_killed_and_replaced(tree: Tree) -> None:
    tree.config = structs.replace(tree.config, handler_hang_timeout_ms=2000)
    start(tree, topology.LOG, HANDLER)
    os.kill(tree.children[HANDLER].pid, signal.SIGSTOP)
    for _ in range(4):
        tree.judge_heartbeats()
    step_until_mended(tree, HANDLER, 2)


def test_an_exporter_that_does_not_move_is_replaced_before_a_probe_of_liveness_gives_up(tree: Tree) -> None:
    """The probe of docs/CONTAINERS.md asks three times, the last time after 20 s."""
    start(tree, topology.LOG, HANDLER, topology.EXPORTER)
    handler, exporter = (tree.children[role].pid for role in (HANDLER, topology.EXPORTER))
    for pid in (handler, exporter):
        os.kill(pid, signal.SIGSTOP)
        while look_at(pid)[0] != "T":
            continue
    for _ in range(8):
        tree.judge_heartbeats()
    step_until_mended(tree, topology.EXPORTER, 2)
    assert tree.children[HANDLER].pid == handler


def test_an_exporter_may_be_busy_for_a_while(tree: Tree) -> None:
    def main(context: ProcessContext) -> int:
        context.ready()
        while context.incarnation == 1:
            while context.pending_order() is not None:
                context.acknowledge_order()
        return obedient(context)

    tree.start(Child(topology.EXPORTER, main))
    pid = tree.children[topology.EXPORTER].pid
    cpu = look_at(pid)[1]
    for tick in range(15):
        while look_at(pid)[1] == cpu:
            continue
        cpu = look_at(pid)[1]
        assert tree.children[topology.EXPORTER].pulse.silent_ticks == max(tick - 8, 0)
        tree.judge_heartbeats()
    step_until_mended(tree, topology.EXPORTER, 2)


def announces_and(work: Callable[[], None]) -> Callable[[ProcessContext], int]:
    def main(context: ProcessContext) -> int:
        context.ready()
        if context.incarnation == 1:
            while context.pending_order() is not None:
                context.acknowledge_order()
            context.memory.words("heavy").store(0, 1)
            while not context.must_stop():
                work()
        return obedient(context)

    return main


def test_a_handler_at_a_heavy_request_works_as_long_as_it_uses_the_cpu(tree: Tree) -> None:
    tree.config = structs.replace(tree.config, handler_hang_timeout_ms=2000)
    start(tree, topology.LOG)
    tree.start(Child(HANDLER, announces_and(lambda: None)))
    pid = tree.children[HANDLER].pid
    cpu = look_at(pid)[1]
    for _ in range(10):
        while look_at(pid)[1] == cpu:
            continue
        cpu = look_at(pid)[1]
        tree.judge_heartbeats()
    assert tree.children[HANDLER].pid == pid
    os.kill(pid, signal.SIGSTOP)
    while look_at(pid)[0] != "T":
        continue
    for _ in range(4):
        tree.judge_heartbeats()
    step_until_mended(tree, HANDLER, 2)


def test_a_handler_that_sleeps_at_a_heavy_request_hangs(tree: Tree) -> None:
    tree.config = structs.replace(tree.config, handler_hang_timeout_ms=2000)
    start(tree, topology.LOG)
    tree.start(Child(HANDLER, announces_and(signal.pause)))
    while look_at(tree.children[HANDLER].pid)[0] != "S":
        continue
    for _ in range(4):
        tree.judge_heartbeats()
    step_until_mended(tree, HANDLER, 2)


def test_who_does_not_acknowledge_a_fence_is_killed_and_does_not_hold_up_the_others(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.supervisor.tree.ACKNOWLEDGE_TIMEOUT_S", 1)
    start(tree, topology.LOG)
    tree.start(Child(PROCESSOR, deaf))
    deaf_pid = tree.children[PROCESSOR].pid
    tree.start(Child(HANDLER, obedient))
    with pytest.raises(ProcessLookupError):
        os.kill(deaf_pid, 0)
    assert tree.memory.words("roles").load(HANDLER) == 1


def test_stopping_is_graceful_and_leaves_nobody(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    pids = [child.pid for child in tree.children.values()]
    tree.stop_all()
    assert tree.memory.words("states").load(topology.LOG) == State.STOPPED
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def looks_who_is_left(context: ProcessContext) -> int:
    """As the tier: notes at its end whether a log process is there."""
    code = obedient(context)
    context.counters.set_last_error(f"log: {context.memory.words('pids').load(topology.LOG)}")
    return code


def test_the_tier_stops_when_nobody_writes_any_more(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR)
    tree.start(Child(topology.TIER, looks_who_is_left))
    tree.stop_all()
    assert tree.memory.counters(topology.TIER).last_error == "log: 0"


def gone(tree: Tree, *roles: int) -> bool:
    return not set(roles) & set(tree.children)


def step_until_gone(tree: Tree, *roles: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while not gone(tree, *roles):
        assert time.monotonic() < until, f"{[topology.name_of(role) for role in roles]} are still there"
        tree.step(100)


def test_who_gives_work_hears_first_that_a_handler_leaves(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, topology.handler(1), PROCESSOR)
    stays = tree.children[HANDLER].pid
    role = topology.handler(1)
    tree.retire([role])
    assert status_of(tree, PROCESSOR)[-1] == f"{role}.{LEAVING}-"
    step_until_gone(tree, role)
    assert status_of(tree, PROCESSOR)[-1] == f"{role}.3-"
    assert status_of(tree, topology.LOG)[-1] == f"{role}.1-"
    assert tree.memory.words("roles").load(role) == 0
    assert tree.children[HANDLER].pid == stays


def test_the_acceptor_gives_nothing_to_a_processor_that_leaves(tree: Tree) -> None:
    role = topology.processor(1)

    def accepts(context: ProcessContext) -> int:
        context.ready()
        while not context.must_stop():
            order = context.pending_order()
            if order is not None:
                context.counters.set_status(f"{order.role} {order.stage} {context.is_alive(order.role)}")
                context.acknowledge_order()
            context.wait(lambda: context.pending_order() is not None or context.must_stop())
        context.stopped()
        return ExitCode.STOPPED

    start(tree, topology.LOG, HANDLER, PROCESSOR, role)
    tree.start(Child(topology.ACCEPTOR, accepts))
    tree.retire([role])
    assert status_of(tree, topology.ACCEPTOR) == [str(role), str(LEAVING), "False"]
    step_until_gone(tree, role)


def leaves_when_told(context: ProcessContext) -> int:
    """Stops only when the test says so, too: it has something to finish."""
    context.ready()
    while not context.must_stop() or context.memory.words("dirty").load(0) == 0:
        order = context.pending_order()
        if order is not None:
            context.acknowledge_order()
        context.wait(lambda: context.pending_order() is not None, timeout_ms=5)
    context.stopped()
    return ExitCode.STOPPED


def test_who_is_replaced_meanwhile_hears_that_a_handler_leaves(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    role = topology.handler(1)
    tree.start(Child(role, leaves_when_told))
    tree.retire([role])
    os.kill(tree.children[PROCESSOR].pid, signal.SIGKILL)
    step_until_mended(tree, PROCESSOR, 2)
    assert status_of(tree, PROCESSOR) == [f"{role}.{LEAVING}-"]
    tree.memory.words("dirty").store(0, 1)
    step_until_gone(tree, role)


def test_the_tree_hears_and_mends_while_one_takes_its_time_to_leave(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    role = topology.handler(1)
    tree.start(Child(role, leaves_when_told))
    reader, writer = os.pipe()
    heard: list[bytes] = []
    tree.watch(reader, lambda: heard.append(os.read(reader, 1)))
    tree.retire([role])
    os.kill(tree.children[HANDLER].pid, signal.SIGKILL)
    os.write(writer, b"!")
    step_until_mended(tree, HANDLER, 2)
    assert heard == [b"!"]
    assert tree.children[role].pid, "it has not finished"
    tree.memory.words("dirty").store(0, 1)
    step_until_gone(tree, role)
    tree.poll.unregister(reader)
    os.close(reader)
    os.close(writer)


def test_one_that_is_killed_while_it_leaves_is_not_replaced(tree: Tree) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    role = topology.handler(1)
    tree.start(Child(role, leaves_when_told))
    tree.retire([role])
    page = tree.memory.counters(role)
    for counter in (Counter.COUNT_STARTED_NS, Counter.COUNT_ARENA_BYTES, Counter.COUNT_CONNECTIONS_CREATED):
        page.set(counter, 7)
    os.kill(tree.children[role].pid, signal.SIGKILL)
    step_until_gone(tree, role)
    assert status_of(tree, PROCESSOR)[-1] == f"{role}.3-"
    # Whoever reads the counters takes it for gone.
    assert [page.get(c) for c in (Counter.COUNT_STARTED_NS, Counter.COUNT_ARENA_BYTES)] == [0, 0]
    assert page.get(Counter.COUNT_CONNECTIONS_CLOSED) == 7


def test_one_that_does_not_leave_is_killed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpbroker.supervisor.tree.LEAVE_TIMEOUT_S", 0.1)
    start(tree, topology.LOG)
    tree.start(Child(HANDLER, deaf))
    tree.retire([HANDLER])
    step_until_gone(tree, HANDLER)


def test_a_resize_that_gets_no_process_leaves_all_as_it_was(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    forked: list[str] = []

    def fork(child: Child, *others: Any) -> None:
        if len(forked) == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        forked.append(child.name)
        fork_child(child, *others)

    monkeypatch.setattr("mpbroker.supervisor.tree.fork_child", fork)
    config = structs.replace(tree.config, num_io_threads=2, num_network_threads=1)
    resize = Resize(config, 4, None).check()
    before = set(tree.children)
    for _ in resize.steps(tree, lambda role: Child(role, obedient), lambda role: Child(role, obedient)):
        tree.step(100)
    assert forked == ["handler 2"]
    assert set(tree.children) == before
    assert "Resource temporarily unavailable; the numbers are as they were" in resize.result["error"]
    assert resize.applied_to(config) == config


@pytest.mark.parametrize("call", ["fork", "pidfd_open"])
def test_a_start_that_fails_half_way_leaves_one_process_of_a_role_and_nobody_deaf(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The system had no process or no descriptor, for a moment."""
    start(tree, topology.LOG, topology.COORDINATOR, HANDLER, PROCESSOR)
    works = getattr(os, call)
    failed: list[int] = []

    def fails_once(*args: int) -> int:
        if not failed:
            failed.append(1)
            raise OSError(errno.ENFILE, "for a moment")
        return int(works(*args))

    monkeypatch.setattr(os, call, fails_once)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os.kill(tree.children[topology.LOG].pid, signal.SIGKILL)
    step_until_mended(tree, topology.LOG, 3)
    assert failed
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    children = {c.pid for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE}
    assert children == {c.pid for c in tree.children.values()}


def test_a_role_that_was_away_never_has_a_life_again(tree: Tree) -> None:
    """Ids of connections are made of it."""
    start(tree, topology.LOG, HANDLER, PROCESSOR)
    for life in (1, 2, 3):
        assert tree.memory.words("roles").load(PROCESSOR) == life
        tree.retire([PROCESSOR])
        step_until_gone(tree, PROCESSOR)
        start(tree, PROCESSOR)


def test_children_die_with_their_supervisor() -> None:
    reader, writer = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        try:
            os.close(reader)
            with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
                memory = SharedMemory(Path(directory) / "public", Sizes(partition_slots=16))
                tree = Tree(memory, BrokerConfig())
                # The pipe's end stays open in the children: it closes when the last of them is gone.
                for role in (topology.LOG, HANDLER):
                    tree.start(Child(role, obedient, (writer,)))
                memory.public_path.unlink()
                Path(directory).rmdir()
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(writer)
    os.waitpid(supervisor, 0)
    assert os.read(reader, 1) == b"", "end of file: nobody holds the other end any more"
    os.close(reader)
