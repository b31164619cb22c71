"""The supervisor's sans-I/O parts: stages of a death, restarts, resize limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.process import (
    LOG_FENCE_ANSWER,
    LOG_FENCE_CLOSE,
    LOG_FENCE_FINISH,
    LOG_FENCE_RESUME,
    FatalError,
)
from mpbroker.startup import runtime_dir
from mpbroker.storage.directory_lock import remove_empty
from mpbroker.supervisor.changing import Resize
from mpbroker.supervisor.child import DEATHS_IN_A_ROW_MAX, HEALTHY_AFTER_MS, LONGEST_DELAY_MS, RestartPolicy
from mpbroker.supervisor.plans import needed_to_start, peers_of, stages_of

ROLES = [
    topology.LOG,
    topology.log_worker(2),
    topology.COORDINATOR,
    topology.processor(0),
    topology.handler(3),
    topology.CONTROL_PROCESSOR,
    topology.CONTROL_HANDLER,
    topology.TIER,
]


@pytest.mark.parametrize("role", ROLES)
def test_everybody_with_a_ring_to_the_dead_acknowledges_its_death(role: int) -> None:
    asked = {member for stage in stages_of(role) for member in stage}
    talks_to = {
        a if b == role else b for a, b, _ in topology.ring_pairs(topology.MAX_LOG_WORKERS) if role in (a, b)
    }
    assert talks_to <= asked
    assert talks_to <= {*needed_to_start(role), *peers_of(role)}


def test_others_mend_a_handlers_death_only_after_the_log_process_has_answered_for_it() -> None:
    """The coordinator, too: a transaction must not end before the batches that the handler had published."""
    first, second, third = stages_of(topology.handler(0))
    assert first == topology.LOG_WORKERS
    assert second == (topology.COORDINATOR, topology.TIER)
    assert all(topology.is_processor(member) for member in third)


def test_the_log_process_lets_go_of_an_arena_after_no_handler_can_name_it() -> None:
    first, second = stages_of(topology.processor(0))
    assert all(topology.is_handler(member) for member in first)
    assert second == topology.LOG_WORKERS


@pytest.mark.parametrize("number", range(topology.MAX_LOG_WORKERS))
def test_handlers_pause_while_a_log_workers_death_is_mended(number: int) -> None:
    """Processors take every produce that is not answered for the dead one's: so the others answer first."""
    dead = topology.log_worker(number)
    stages = stages_of(dead)
    assert {m for m in stages[LOG_FENCE_CLOSE - 1] if topology.is_handler(m)} == set(topology.HANDLERS)
    assert {*stages[LOG_FENCE_FINISH - 1], dead} == set(topology.LOG_WORKERS)
    assert dead not in stages[LOG_FENCE_FINISH - 1]
    assert stages[LOG_FENCE_ANSWER - 1] == stages[LOG_FENCE_RESUME - 1] == topology.HANDLERS
    (between,) = stages[LOG_FENCE_ANSWER : LOG_FENCE_RESUME - 1]
    assert between == topology.PROCESSORS


def test_a_child_that_was_healthy_is_replaced_at_once_however_often() -> None:
    policy = RestartPolicy()
    assert [policy.died(HEALTHY_AFTER_MS) for _ in range(50)] == [0] * 50


def test_a_restart_loop_backs_off_and_ends() -> None:
    policy = RestartPolicy()
    delays = [policy.died(10) for _ in range(DEATHS_IN_A_ROW_MAX)]
    assert delays[-1] is None
    waits = [d for d in delays if d is not None]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_DELAY_MS


def test_one_healthy_life_forgives_the_young_deaths() -> None:
    policy = RestartPolicy()
    first = policy.died(10)
    policy.died(10)
    policy.died(HEALTHY_AFTER_MS + 1)
    assert policy.died(10) == first
    assert policy.deaths == 4


@pytest.mark.parametrize(("old", "new"), [(4, 1), (4, 17), (2, 0), (1, 17), (9, 19), (32, 33)])
def test_a_resize_beyond_half_and_double_is_refused(old: int, new: int) -> None:
    with pytest.raises(FatalError, match="cannot resize handlers"):
        Resize(BrokerConfig(num_io_threads=old), new, None).check()


@pytest.mark.parametrize(("old", "new"), [(4, 2), (4, 8), (1, 1), (1, 16), (9, 18), (5, 2)])
def test_a_resize_within_half_and_double_is_allowed(old: int, new: int) -> None:
    Resize(BrokerConfig(num_io_threads=old), new, None).check()


def test_the_runtime_directory_goes_if_it_was_made_here_and_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPBROKER_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    config = structs.replace(BrokerConfig(), log_dirs=(str(tmp_path / "data"),))
    own, _ = runtime_dir.make(config)
    (own / "of somebody").touch()
    runtime_dir.remove(own)
    assert own.is_dir()
    (own / "of somebody").unlink()
    runtime_dir.remove(own)
    assert not own.exists()
    monkeypatch.setenv("MPBROKER_RUNTIME_DIR", str(own / "named"))
    named, made = runtime_dir.make(config)
    runtime_dir.remove(named)
    assert named.is_dir()
    remove_empty(made)
    assert not own.exists()
