"""The log process with all it touches: shared memory, arenas, jobs of handlers, answers to processors."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.process import ExitCode, FatalError, Order, ProcessContext, State
from mpbroker.ipc.slots import (
    SlotKind,
    job_bytes,
    pack_call,
    pack_produce,
    pack_return,
    read_job_batch,
    unpack_call,
    unpack_produce,
    unpack_reply,
    write_job_batch,
    write_job_header,
)
from mpbroker.ipc.table import Partition, read_partition
from mpbroker.ipc.topology import COORDINATOR, LOG, SUPERVISOR, SharedMemory, Sizes, handler, processor
from mpbroker.log.process import LogProcess, run
from mpbroker.records.batch import scan_batch
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from tests.support.polling import until

TOPIC_ID = bytes(range(16))
SIZES = Sizes(partition_slots=64, arena_extent_bytes=1 << 30)
HOLE = struct.Struct(">hqqq")


@dataclass(frozen=True)
class Result:
    """What a response says of one batch."""

    error: int
    base_offset: int
    append_time: int
    log_start: int


@dataclass
class Reply:
    kind: int
    request: int
    results: list[Result]


@dataclass
class Rig:
    """One handler, one processor and the coordinator, played by the test."""

    directory: Path
    public: Path
    options: dict[str, object] = field(default_factory=dict)
    workers: int = 1

    def __post_init__(self) -> None:
        self.config = msgspec.structs.replace(
            BrokerConfig(),
            **{"log_dirs": (str(self.directory),), "log_journal_bytes": 1 << 20, **self.options},
        )
        name_log_dirs(self.config, check_log_dirs(self.config))
        self.memory = SharedMemory(self.public, replace(SIZES, log_workers=self.workers))
        self.handler, self.processor = handler(0), processor(0)
        self.replies_arena = self.memory.arena(self.handler)
        self.requests_arena = self.memory.arena(self.processor)
        self.calls_arena = self.memory.arena(COORDINATOR)
        self.bind()
        self.sent: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        self.request = 0
        self.pid = 0
        self.processes: list[LogProcess] = []

    def bind(self) -> None:
        self.to_log = self.memory.ring(self.handler, LOG)
        self.from_log = self.memory.ring(LOG, self.processor)
        self.produced = self.memory.ring(LOG, self.handler)
        self.call_ring = self.memory.ring(COORDINATOR, LOG)
        self.answer_ring = self.memory.ring(LOG, COORDINATOR)
        self.bell = self.memory.doorbell(LOG)

    # ---- the process ----

    def in_process(self) -> LogProcess:
        """The process object itself, to be stepped by the test."""
        process = LogProcess(ProcessContext(LOG, self.memory, self.config))
        self.processes.append(process)
        process.start()
        return process

    def fork(self) -> None:
        """A real child; returns when it says it is ready."""
        states = self.memory.words("states")
        states.store(LOG, State.STARTING)
        self.memory.reset_rings_of(LOG)
        self.bind()
        self.pid = os.fork()
        if self.pid == 0:
            code = ExitCode.FATAL
            try:
                code = run(ProcessContext(LOG, self.memory, self.config))
            except FatalError as error:
                os.write(2, f"{error}\n".encode())
            finally:
                os._exit(code)
        self.until(SUPERVISOR, lambda: states.load(LOG) == State.READY)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0
        self.sent.clear()

    def stop(self) -> int:
        self.memory.words("orders").store(LOG, Order.STOP)
        self.bell.ring()
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        self.memory.words("orders").store(LOG, Order.RUN)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            self.kill()
        for process in self.processes:
            _close_files(process)
        self.processes.clear()
        self.memory.close()

    def until(self, role: int, condition: Callable[[], bool]) -> None:
        """Waits at the role's doorbell; it may have been rung for something else before."""
        bell = self.memory.doorbell(role)
        until(condition, f"process {role} is rung for it", lambda: bell.wait(1000, condition))

    # ---- what the others do ----

    def call(self, message: calls.Message) -> None:
        data = calls.encode(message)
        block = self.calls_arena.allocate(len(data))
        self.calls_arena.view(block, len(data))[:] = data
        self.request += 1
        generation = self.calls_arena.lend(block, LOG)
        assert self.call_ring.push(
            pack_call(SlotKind.CALL, COORDINATOR, self.request, block, generation, len(data))
        )
        self.bell.ring()

    def take_answer(self) -> calls.Message | None:
        taken, _ = self.answer_ring.take(1)
        if not taken:
            return None
        answer = unpack_call(taken)
        arena = self.memory.arena(LOG)
        message = calls.decode(arena.view(answer.block, answer.length))
        self.call_ring.push(pack_return(LOG, answer.block, answer.generation))
        return message

    def await_answer(self) -> calls.Message:
        """Wait for the answer of a forked process."""
        self.until(COORDINATOR, lambda: self.answer_ring.waiting() > 0)
        answer = self.take_answer()
        assert answer is not None
        return answer

    def job(
        self,
        batches: list[tuple[Partition | tuple[int, int, int], bytes]],
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        back: bool = False,
        connection: int = 77,
    ) -> int:
        """Pushes a produce job of (slot, generation, config version) batches. Returns its request number."""
        head = job_bytes(len(batches))
        hole_at = head + 8
        length = head + 8 + HOLE.size * len(batches)
        block = self.replies_arena.allocate(length)
        view = self.replies_arena.view(block, length)
        view[head : head + 8] = b"response"
        write_job_header(view, len(batches), head, length - head)
        data_blocks: list[tuple[int, int]] = []
        for i, ((slot, generation, version), data) in enumerate(batches):
            at = self.requests_arena.allocate(len(data))
            data_blocks.append((at, len(data)))
            self.requests_arena.view(at, len(data))[:] = data
            scan = scan_batch(data)
            write_job_batch(
                view,
                i,
                slot,
                generation,
                at,
                self.processor,
                len(data),
                scan.record_count,
                scan.producer_id,
                scan.producer_epoch,
                scan.base_sequence,
                scan.max_timestamp,
                version,
                scan.attributes,
                hole_at + HOLE.size * i,
                1,
            )
        self.request += 1
        generation = self.replies_arena.lend(block, LOG)
        kind = SlotKind.PRODUCE_BACK if back else SlotKind.PRODUCE
        assert self.to_log.push(
            pack_produce(
                kind,
                acks,
                self.processor,
                3,
                connection,
                block,
                generation,
                0,
                self.handler,
                self.handler,
                timeout_ms,
                self.request,
            )
        )
        self.sent[self.request] = (block, len(batches), data_blocks)
        return self.request

    def replies(self) -> list[Reply]:
        """Return what processor and handler have got since the last call."""
        out = []
        while True:
            taken, _ = self.from_log.take(1)
            if not taken:
                break
            reply = unpack_reply(taken)
            assert (reply.channel, reply.owner) == (3, self.handler)
            out.append(self._reply(reply.kind, reply.request))
        while True:
            taken, _ = self.produced.take(1)
            if not taken:
                return out
            out.append(self._reply(SlotKind.PRODUCED, unpack_produce(taken).request))

    def _reply(self, kind: int, request: int) -> Reply:
        block, count, data_blocks = self.sent.pop(request)
        head = job_bytes(count)
        length = head + 8 + HOLE.size * count
        view = self.replies_arena.view(block, length)
        if kind == SlotKind.SEND:
            assert bytes(view[head : head + 8]) == b"response"
            results = [Result(*HOLE.unpack_from(view, head + 8 + HOLE.size * i)) for i in range(count)]
        else:
            filled = [read_job_batch(view, i) for i in range(count)]
            results = [Result(b.error, b.base_offset, b.append_time_ms, b.log_start_offset) for b in filled]
        del view
        for at, size in data_blocks:
            self.requests_arena.free(at, size)
        assert self.replies_arena.take_back(block, self.replies_arena.generation(block))
        self.replies_arena.free(block, length)
        return Reply(kind, request, results)

    def await_replies(self, count: int) -> list[Reply]:
        """Wait for replies of a forked process."""
        self.bell.ring()
        out = self.replies()
        while len(out) < count:
            self.until(self.processor, lambda: self.from_log.waiting() > 0)
            out += self.replies()
        return out

    def partition(self, slot: int) -> Partition:
        return read_partition(self.memory.table(), slot)


MakeRig = Callable[..., Rig]


def ensure(partitions: int = 1, **configs: str) -> calls.EnsureTopic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return calls.EnsureTopic("t", TOPIC_ID, list(range(partitions)), named, 5)


def end(process: LogProcess) -> None:
    """End as by a signal.

    Threads end first: none may find another file under a number that it was given. Its recovery's workers are
    waited for, as the successor of a real process does.
    """
    process.recovery_scheduler._recovery.close()
    process.replica_mover.stop()
    process.replica_mover.close()
    process.io_thread.close()
    process.turn.close()
    for log in process.manager.logs.values():
        log.close_files()


def _close_files(process: LogProcess) -> None:
    """Close what the end of a real process would close."""
    end(process)
    for log_dir in process.manager.dirs:
        if log_dir.journal.file is not None:
            log_dir.journal.file.close()
