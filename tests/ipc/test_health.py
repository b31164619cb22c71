"""Ready and alive, as shared words tell it."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc import health
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.process import Order, ProcessContext, State
from mpbroker.ipc.progress import Progress, write_progress
from mpbroker.ipc.topology import (
    ACCEPTOR,
    CONTROL_ACCEPTOR,
    CONTROL_HANDLER,
    CONTROL_PROCESSOR,
    COORDINATOR,
    LOG,
    SCRUBBER,
    SUPERVISOR,
    SharedMemory,
    handler,
    processor,
)

CONFIG = BrokerConfig(log_dirs=("/data",))
SERVING = (ACCEPTOR, COORDINATOR, LOG, processor(1), handler(2))


@dataclass
class Tree:
    memory: SharedMemory

    def serve(self, *roles: int) -> None:
        for role in roles:
            self.memory.words("roles").store(role, 1)
            self.memory.words("states").store(role, State.READY)
            self.memory.words("pids").store(role, os.getpid())
            self.memory.counters(role).beat()

    def accept(self, number: int = 0) -> None:
        self.memory.listener_counts(number).set(ListenerCount.STATE, ListenerState.ACCEPTING)


@pytest.fixture
def tree(memory: SharedMemory) -> Tree:
    found = Tree(memory)
    found.serve(SUPERVISOR, *SERVING)
    found.accept()
    return found


def test_one_process_of_each_kind_is_enough(tree: Tree) -> None:
    assert health.reasons_not_ready(CONFIG, tree.memory) == []
    assert health.unresponsive_processes(CONFIG, tree.memory) == []


@pytest.mark.parametrize(
    ("role", "why"),
    [
        (ACCEPTOR, "the acceptor does not serve"),
        (COORDINATOR, "the coordinator does not serve"),
        (LOG, "log 0 does not serve"),
        (processor(1), "no processor serves for the acceptor"),
        (handler(2), "no handler serves for the acceptor"),
    ],
)
@pytest.mark.parametrize(
    ("words", "word"), [("roles", 0), ("states", State.STARTING), ("orders", Order.STOP)]
)
def test_a_role_that_does_not_serve_is_named(tree: Tree, role: int, why: str, words: str, word: int) -> None:
    tree.memory.words(words).store(role, word)
    assert health.reasons_not_ready(CONFIG, tree.memory) == [why]


@pytest.mark.parametrize(
    ("role", "why"),
    [
        (ACCEPTOR, "the acceptor does not serve: acceptor has"),
        (LOG, "log 0 does not serve: log 0 has"),
        (processor(1), "no processor serves for the acceptor: processor 1 has"),
        (handler(2), "no handler serves for the acceptor: handler 2 has"),
    ],
)
def test_who_stands_still_does_not_serve(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, role: int, why: str
) -> None:
    monkeypatch.setattr(health, "look_at", lambda _: ("T", 0))
    tree.memory.counters(role).clear()
    (found,) = health.reasons_not_ready(CONFIG, tree.memory)
    assert found.startswith(f"{why} not moved for ")


def test_another_that_moves_or_work_that_takes_long_is_enough(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "look_at", lambda _: ("T", 0))
    tree.serve(processor(0))
    tree.memory.counters(processor(1)).clear()
    tree.memory.counters(handler(2)).clear()
    tree.memory.words("heavy").store(2, 1)
    assert health.reasons_not_ready(CONFIG, tree.memory) == []
    tree.memory.counters(LOG).clear()
    assert health.reasons_not_ready(CONFIG, tree.memory) != []
    for state in ("D", "R"):
        monkeypatch.setattr(health, "look_at", lambda _, state=state: (state, 0))
        assert health.reasons_not_ready(CONFIG, tree.memory) == []


def test_a_recovery_is_told_with_what_is_left(tree: Tree) -> None:
    words = tree.memory.words("recovery")
    write_progress(words, 0, Progress(0, True, 5, 2, 100, 30, 1.0))
    assert health.reasons_not_ready(CONFIG, tree.memory) == [
        "recovering /data: 3 partitions and 70 bytes left"
    ]


def test_each_listener_has_to_accept(memory: SharedMemory) -> None:
    tree = Tree(memory)
    tree.serve(SUPERVISOR, *SERVING)
    inside = Listener("IN", "PLAINTEXT", "127.0.0.1", 1)
    config = BrokerConfig(listeners=(*CONFIG.listeners, inside), log_dirs=("/data",))
    tree.accept(0)
    assert health.reasons_not_ready(config, memory) == ["listener IN://127.0.0.1:1 does not accept yet"]
    # One that was removed while the broker ran is missed by nobody.
    memory.listener_counts(1).set(ListenerCount.STATE, ListenerState.REMOVED)
    assert health.reasons_not_ready(config, memory) == []


def test_a_control_plane_has_processes_of_its_own(tree: Tree) -> None:
    inside = Listener("IN", "PLAINTEXT", "127.0.0.1", 1)
    listeners = (*CONFIG.listeners, inside)
    config = BrokerConfig(listeners=listeners, log_dirs=("/data",), control_plane_listener_name="IN")
    tree.accept(1)
    assert health.reasons_not_ready(config, tree.memory) == [
        "the control-plane acceptor does not serve",
        "no processor serves for the control-plane acceptor",
        "no handler serves for the control-plane acceptor",
    ]
    tree.serve(CONTROL_ACCEPTOR, CONTROL_PROCESSOR, CONTROL_HANDLER)
    assert health.reasons_not_ready(config, tree.memory) == []


def test_who_has_never_moved_is_silent_unless_it_starts_or_waits_for_its_disk(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = handler(4)
    tree.serve(silent)
    tree.memory.counters(silent).clear()
    assert [one.partition(" has")[0] for one in health.unresponsive_processes(CONFIG, tree.memory)] == [
        "handler 4"
    ]
    monkeypatch.setattr(health, "look_at", lambda _pid: ("D", 0))
    assert health.unresponsive_processes(CONFIG, tree.memory) == []
    monkeypatch.undo()
    tree.memory.words("states").store(silent, State.STARTING)
    assert health.unresponsive_processes(CONFIG, tree.memory) == []


def test_a_process_that_has_just_become_ready_is_not_silent(tree: Tree) -> None:
    context = ProcessContext(SCRUBBER, tree.memory, CONFIG)
    context.counters.restart()
    tree.memory.words("roles").store(SCRUBBER, 1)
    context.ready()
    assert health.unresponsive_processes(CONFIG, tree.memory) == []


FULL = f"{os.strerror(errno.ENOSPC)}: produces are refused until there is room"


def test_what_is_wrong_with_a_disk_is_said_and_ends(tree: Tree) -> None:
    """Check that a disk has a say in readiness, and none in whether the broker lives."""
    dirs = tree.memory.dir_sizes()
    for number, name in enumerate(("/a", "/b")):
        dirs.introduce(number, name, 2, failed=False)
    dirs.put_volume(1, 100 << 20, 3 << 20)
    assert health.reasons_not_ready(CONFIG, tree.memory) == []
    dirs.put_error(1, 1, errno.ENOSPC)
    (why,) = health.reasons_not_ready(CONFIG, tree.memory)
    assert why.startswith(FULL)
    assert "(free: /b 3 MiB). Make the file system larger" in why
    assert health.unresponsive_processes(CONFIG, tree.memory) == []
    dirs.put_error(1, 1, 0)
    assert health.reasons_not_ready(CONFIG, tree.memory) == []


def test_a_directory_that_is_offline_is_named_with_the_error_of_who_has_met_it(tree: Tree) -> None:
    dirs = tree.memory.dir_sizes()
    dirs.introduce(0, "/a", 2, failed=True)
    dirs.introduce(1, "/b", 2, failed=False)
    dirs.put_error(0, 0, errno.EIO)
    dirs.put_error(0, 1, errno.EROFS)
    assert health.reasons_not_ready(CONFIG, tree.memory) == [
        f"log directory /a is offline ({os.strerror(errno.EROFS)}): its partitions can be neither read nor "
        "written. Mend or replace the disk, then restart the broker"
    ]


def test_a_disk_that_does_not_end_a_sync_is_slow(tree: Tree) -> None:
    dirs = tree.memory.dir_sizes()
    dirs.introduce(0, "/a", 1, failed=False)
    dirs.put_wait(0, 0, time.monotonic_ns())
    assert health.reasons_not_ready(CONFIG, tree.memory) == []
    dirs.put_wait(0, 0, time.monotonic_ns() - 60_000_000_000)
    (why,) = health.reasons_not_ready(CONFIG, tree.memory)
    assert why.startswith("the disk of /a has not finished a sync for 6")
    dirs.put_wait(0, 0, 0)
    assert health.reasons_not_ready(CONFIG, tree.memory) == []
