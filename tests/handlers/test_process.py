"""A real handler process, forked, with the test as processor, log process, coordinator and supervisor."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.process import run
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.process import ExitCode, Order, ProcessContext, State
from mpbroker.ipc.topology import COORDINATOR, LOG, SharedMemory
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import (
    HANDLER,
    PROCESSOR,
    LogEnd,
    ProcessorEnd,
    base,
    partition_payload,
    request_frame,
    shared_memory,
    topic_image,
)
from tests.support.polling import PATIENCE_S

TOPIC = topic_image("t", 1)


class Forked:
    """The supervisor's side of one handler."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.roles = memory.words("roles")
        for role in (LOG, COORDINATOR, PROCESSOR):
            self.roles.store(role, 1)
        self.bulletin = BulletinPublisher(
            memory.private.block("bulletin"), memory.words("bulletin_acks"), lambda: [HANDLER]
        )
        memory.table().write(0, partition_payload(TOPIC))
        self.processor = ProcessorEnd(memory)
        self.log = LogEnd(memory)
        self.pid = 0

    def start(self, incarnation: int = 1) -> None:
        self.roles.store(HANDLER, incarnation)
        self.memory.words("states").store(HANDLER, State.STARTING)
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                code = run(ProcessContext(HANDLER, self.memory, BrokerConfig(), incarnation))
            except BaseException:  # noqa: BLE001 - the fork exits in any case
                traceback.print_exc()
            finally:
                os._exit(code)

    def publish(self) -> None:
        self.bulletin.publish_base(base(TOPIC))
        self.memory.doorbell(HANDLER).ring()

    def until(self, found: Callable[[], Any]) -> Any:
        """Looks again whenever the processor is rung, and in between: the test is the other peers too."""
        end = time.monotonic() + PATIENCE_S
        while not (result := found()):
            assert time.monotonic() < end, "the handler did not do it in time"
            self.memory.doorbell(PROCESSOR).wait(2, lambda: False)
        return result

    def ready(self) -> None:
        self.until(lambda: self.memory.words("states").load(HANDLER) == State.READY)

    def tell_to_stop(self) -> None:
        self.memory.words("orders").store(HANDLER, Order.STOP)
        self.memory.doorbell(HANDLER).ring()

    def stop(self) -> int:
        self.tell_to_stop()
        return self.reap()

    def reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


@pytest.fixture(name="forked")
def _forked() -> Iterator[Forked]:
    with shared_memory() as memory:
        made = Forked(memory)
        try:
            yield made
        finally:
            if made.pid:
                os.kill(made.pid, signal.SIGKILL)
                made.reap()


def produce() -> bytes:
    data = [ProduceRequest.PartitionProduceData(0, bytes(build_batch([NewRecord(b"k", b"v", -1)])))]
    return request_frame(
        0, 9, ProduceRequest(None, -1, 1000, [ProduceRequest.TopicProduceData("t", TOPIC.topic_id, data)])
    )


def test_ready_only_with_metadata_and_stops_when_told(forked: Forked) -> None:
    forked.start()
    forked.until(lambda: forked.memory.counters(HANDLER).turns > 0)
    assert forked.memory.words("states").load(HANDLER) == State.STARTING
    forked.publish()
    forked.ready()
    assert forked.stop() == ExitCode.STOPPED
    assert forked.memory.words("states").load(HANDLER) == State.STOPPED


def test_killed_in_the_middle_and_replaced(forked: Forked) -> None:
    forked.start()
    forked.publish()
    forked.ready()
    frame = produce()
    for round_number in range(6):
        for connection in range(400):
            forked.processor.send(frame, connection=connection)
        if round_number % 2:
            forked.until(lambda: forked.log.jobs.waiting())
        os.kill(forked.pid, signal.SIGKILL)
        assert forked.reap() == -signal.SIGKILL
        taken = [job.connection for job in forked.log.take()]
        untaken = len(forked.processor.to_handler.untaken())
        # What it published is whole and in order; what it had not taken is still there.
        assert taken == list(range(len(taken)))
        assert len(taken) + untaken <= 400
        forked.memory.reset_rings_of(HANDLER)
        forked.memory.arena(HANDLER).reset()
        for ring in (
            forked.processor.to_handler,
            forked.processor.from_handler,
            forked.log.jobs,
            forked.log.back,
        ):
            ring.rebind()
        forked.memory.marks().mark(0, 0)
        forked.start(incarnation=2 + round_number)
        forked.ready()
        # Its column of marks is its own from the start.
        assert forked.memory.marks().waiting(0) == 0
        forked.processor.send(frame, connection=999)
        (job,) = forked.until(forked.log.take)
        assert job.connection == 999
    assert forked.stop() == ExitCode.STOPPED
