"""The leading word: a broker leads without a lease, and as long as its lease lasts, whoever is left of it."""

from __future__ import annotations

import os

from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.ipc.topology import SharedMemory
from shm.clock import boot_ns
from tests.support.polling import until

SECOND_NS = 1_000_000_000


def test_a_broker_leads_without_a_lease(memory: SharedMemory) -> None:
    assert memory.leading().until_ns == ALWAYS
    assert memory.leading().leads()


def test_a_broker_leads_until_its_lease_has_run_out(memory: SharedMemory) -> None:
    for until_ns in (boot_ns() + 3600 * SECOND_NS, boot_ns(), NEVER, ALWAYS):
        memory.leading().until_ns = until_ns
        assert memory.leading().leads() == (until_ns > boot_ns())


def test_a_lease_outlives_the_process_that_wrote_it_and_ends(memory: SharedMemory) -> None:
    ends_ns = boot_ns() + SECOND_NS // 20
    if (child := os.fork()) == 0:
        memory.leading().until_ns = ends_ns
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert memory.leading().until_ns == ends_ns
    until(lambda: not memory.leading().leads(), "the end of the lease")
    assert boot_ns() >= ends_ns
