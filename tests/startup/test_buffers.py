"""The memory of requests: its limits never add up to more than what is configured, also during a resize."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.config.broker import LARGEST_REQUEST_BYTES, BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.topology import SharedMemory
from mpbroker.startup import buffers
from mpbroker.supervisor.changing import Resize

TOTAL = 1000 << 20


@given(
    total=st.integers(1 << 20, 1 << 50),
    processors=st.integers(1, topology.MAX_PROCESSORS),
    control=st.booleans(),
)
def test_shares_add_up_to_no_more_than_there_is(total: int, processors: int, control: bool) -> None:
    each, of_control = buffers.shares(total, processors, has_control=control)
    assert each * processors + (of_control if control else 0) <= total
    assert each * processors * 1.1 > total * 15 / 16 - processors
    assert 0 < of_control <= 64 << 20


@pytest.mark.parametrize("total", [1 << 20, 1 << 30, 1 << 36, 1 << 45])
def test_an_extent_has_room_for_the_limit_and_one_more_request(total: int) -> None:
    made = buffers.sizes(BrokerConfig(queued_max_request_bytes=total))
    assert made.arena_extent_bytes % 4096 == 0
    assert made.arena_extent_bytes >= min(1 << 40, 2 * (total + LARGEST_REQUEST_BYTES))


class FakeTree:
    """Processors serve as soon as they are launched, and leave when the test says so."""

    def __init__(self, memory: SharedMemory, config: BrokerConfig, fails: bool = False) -> None:
        self.memory, self.config, self.fails = memory, config, fails
        self.children: dict[int, Any] = {
            topology.processor(n): SimpleNamespace(serves=True) for n in range(config.num_network_threads)
        }

    def check(self) -> None:
        limits = self.memory.words("request_limits")
        assert sum(limits.load(role) for role in self.children) <= TOTAL

    def launch(self, role: int) -> None:
        if self.fails:
            raise OSError(11, "no more processes")
        self.children[role] = SimpleNamespace(serves=True)
        self.check()

    def retire(self, _roles: list[int]) -> None:
        self.check()


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 3)])
@pytest.mark.parametrize("fails", [False, True])
def test_at_no_moment_of_a_resize_is_more_given_out(
    memory: SharedMemory, before: int, after: int, fails: bool
) -> None:
    config = BrokerConfig(queued_max_request_bytes=TOTAL, num_network_threads=before)
    buffers.give_out(memory, config, before)
    tree: Any = FakeTree(memory, config, fails)
    tree.check()
    make: Any = int  # a worker is its role here
    steps = Resize(config, None, after).check().steps(tree, make, make)
    done = next(steps, "done")
    tree.check()
    if before > after:
        assert not done, "those that go still have theirs"
        for number in range(after, before):
            del tree.children[topology.processor(number)]
        done = next(steps, "done")
    assert done
    tree.check()
    left = before if fails and after > before else after
    assert memory.words("request_limits").load(topology.processor(0)) == TOTAL // left


def test_an_arena_begins_with_what_was_given_out(memory: SharedMemory) -> None:
    config = BrokerConfig(queued_max_request_bytes=TOTAL, num_network_threads=4)
    buffers.give_out(memory, config, 4)
    assert memory.arena(topology.processor(1)).limit_bytes == TOTAL // 4
    assert memory.arena(topology.handler(1)).limit_bytes == 1 << 30
