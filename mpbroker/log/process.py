"""The log worker: the Python program around a native turn, and the only writer of its partitions' files.

It appends batches for handlers and the coordinator, serves the coordinator's calls, follows the supervisor's
orders, and does periodic work. It inherits the supervisor's locks on the log directories.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from mpbroker.ipc import calls, topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.disk_problems import refusal_text
from mpbroker.ipc.hangs import Patience
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import IDLE_SLEEP_MS, LOG_FENCE_FINISH, MAX_SLEEP_MS, PeerOrder, ProcessContext
from mpbroker.ipc.rpc import RpcServer
from mpbroker.ipc.slots import Call, SlotKind, kind_of, unpack_call, unpack_return
from mpbroker.log.append.append_batch import append_batch
from mpbroker.log.append.relocation import pause_job, resume_jobs
from mpbroker.log.append.turn import AppendTurn, Pause
from mpbroker.log.append.turn_partitions import give_back_memory
from mpbroker.log.compaction.cleaner_manager import Compaction
from mpbroker.log.directories.log_directory import LogWorker, StartupState
from mpbroker.log.directories.reserve import keep_room_at_end
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.manager.measuring import Measuring
from mpbroker.log.manager.refusals import RefusedProduces, room_of, without_room
from mpbroker.log.manager.size_metrics import SizeMetrics
from mpbroker.log.manager.topic_work import TopicWork
from mpbroker.log.partition.active_producers import describe_producers
from mpbroker.log.partition.producer_snapshots import snapshotting
from mpbroker.log.recovery.scheduler import RecoveryScheduler
from mpbroker.log.recovery.workers import Recovery, fork_pools
from mpbroker.log.replica_move.replica_mover import ReplicaMover
from mpbroker.log.retention.deletion import Deletion
from mpbroker.protocol.errors import ErrorCode
from mpbroker.storage.disk_errors import PASSING
from mpbroker.storage.producer_state import bound_producers
from shm.ring import Ring

HIGH_WATERMARK_CHECKPOINT_MS = 5_000
PRODUCER_EXPIRATION_CHECK_MS = 600_000
# Batches that Python appends in a round: some 60 us each where it opens files. A job may have thousands. Jobs
# that go on share as many, and each gets the smaller number at least.
BATCHES_AT_ONCE, BATCHES_OF_A_JOB = 200, 8
# After this many bytes recovery points are written early: a recovery checks all bytes after them.
POINTS_EVERY_BYTES = 256 << 20
PUBLISH_WAITS_EVERY_S = 1.0
# A fence and a stop do not wait longer for the object store.
SHIP_AT_FENCE_S = 2.0
SHIP_AT_STOP_S = 10.0

_Steps: TypeAlias = Generator[None, None, calls.Message | None]


def run(context: ProcessContext) -> int:
    """Serve until ordered to stop; return the exit code. Raises FatalError."""
    if not await_first(context):
        context.stopped()
        return 0
    process = LogProcess(context)
    process.start()
    return process.serve()


def await_first(context: ProcessContext) -> bool:
    """Wait until log worker 0 has recovered the state of the last run. Return False if told to stop."""
    startup_state = StartupState(context.memory.words("taken_over"))
    is_first = topology.log_worker_number(context.index) == 0
    context.counters.set_status("waiting for the first log worker to recover the last run")
    while not is_first and not startup_state.is_done:
        if context.must_stop():
            return False
        context.wait(lambda: startup_state.is_done)
    return True


class LogProcess:
    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        memory = context.memory
        arena = memory.arena(context.index)
        arena.reset()
        self.lender = Lender(arena, context.index)
        self.server = RpcServer(
            self.lender, context.memory.arena, lambda client, slot: self.turn.send(client, slot)
        )
        self.worker = LogWorker(topology.log_worker_number(context.index), memory.sizes.log_workers)
        self.recovery_scheduler = self._fork_workers()
        self._closed_dirs = memory.words("closed_dirs")
        self._closed_dirs.store(self.worker.number, 0)
        self.meters = memory.meters(context.index)
        self.turn = self._make_turn()
        # A ring of the bell may be missed by a loop about to sleep; its sleep reads this event itself.
        self.io_thread = IoThread(self._wake)
        self.manager = LogManager(
            context.config,
            memory.table(),
            self.turn,
            self.io_thread,
            self.say,
            self.recovery_scheduler,
            StartupState(memory.words("taken_over")),
            self.worker,
            is_first_life=context.incarnation == 1,
        )
        if self.turn.ships:
            first_cut = memory.words("first_cut")
            self.manager.checkpoints.marks_wait = lambda: not first_cut.load(0)
        measuring = Measuring(self.manager, memory.words("remote"))
        self.deletion = Deletion(self.manager, measuring)
        self.size_metrics = SizeMetrics(self.manager, measuring, memory.dir_sizes(), memory.partition_sizes())
        self.compaction = Compaction(self.manager, measuring, context.counters)
        workers = topology.LOG_WORKERS[: self.worker.count]
        self.replica_mover = ReplicaMover(
            self.manager, self._wake, [memory.counters(index) for index in workers]
        )
        self.rings: dict[int, list[Ring]] = {}
        self._fence_tails: list[int] | None = None
        self._fence_patience = Patience(SHIP_AT_FENCE_S)
        self.topics = TopicWork(self.manager, self._send_answer)
        # Generators that wait for the I/O thread or give way to appends, each with the call to answer (None:
        # no caller).
        self._tasks: list[tuple[Call | None, _Steps]] = []
        self._share = self._shares_left = self._batches_left = 0
        self._has_cut_jobs = False
        self._refused = RefusedProduces()
        self._awaits_too_much = False
        self._is_snapshotting = False
        self._plan_housekeeping()

    def _plan_housekeeping(self) -> None:
        now, config = time.monotonic(), self.context.config
        # When each work is due, on the monotonic clock.
        self.due = {
            "waits": now,
            "high watermarks": now + HIGH_WATERMARK_CHECKPOINT_MS / 1000,
            "recovery points": now + config.log_flush_offset_checkpoint_interval_ms / 1000,
            "log starts": math.inf,
            "expiration": now + PRODUCER_EXPIRATION_CHECK_MS / 1000,
            "sizes": math.inf,
            "retention": now + config.log_initial_task_delay_ms / 1000,
        }
        self._round_seen, self._round_seen_ns = -1, 0
        self._next_points_bytes = self._appended_bytes + POINTS_EVERY_BYTES

    @property
    def _appended_bytes(self) -> int:
        return self.context.counters.get(Counter.COUNT_BYTES_APPENDED)

    def _wake(self) -> None:
        """Wake the loop from another thread, so that the loop takes that thread's results."""
        os.eventfd_write(self.context.bell.fd, 1)

    def _make_turn(self) -> AppendTurn:
        memory, number = self.context.memory, self.worker.number
        own = slice(number * topology.DIRTY_BYTES, (number + 1) * topology.DIRTY_BYTES)
        return AppendTurn(
            memory.sizes.partition_slots,
            memory.table(),
            memory.marks(),
            memory.private.block("dirty")[own],
            memory.private.block("failed_dirs")[8 * number :],
            self.context.counters,
            self.meters,
            self.context.bell,
            self.context.config.log_flush_policy == "group",
            self.context.index,
            number,
            self.worker.count,
            memory.failed_dirs(),
            memory.unshipped(number, self.context.incarnation) if self.context.config.ships_rounds else None,
        )

    def _fork_workers(self) -> RecoveryScheduler:
        """Fork the recovery workers; call it before this process has a thread."""
        context = self.context
        bound_producers(context.config.max_producer_ids_per_partition)
        pools = fork_pools(
            [Path(name) for name in context.config.log_dirs],
            context.config.num_recovery_threads_per_data_dir,
            context.memory.failed_dirs(),
            context.index,
        )
        recovery = Recovery(pools, context.config.handler_hang_timeout_ms / 1000)
        return RecoveryScheduler(recovery, context.memory.words("recovery"), self.worker)

    def say(self, text: str) -> None:
        """Show `text` as the process's status during long work."""
        self.context.counters.set_status(text)
        self.context.counters.beat()

    def start(self) -> None:
        for role in self._parties():
            self._bind(role)
        if self.worker.is_first:
            self.manager.open_metadata()
        self._keep_room()
        self._count_partitions()
        self.say("running")
        self.context.ready()

    def _parties(self) -> list[int]:
        return [role for role in range(topology.PROCESSES) if self._takes_part(role)]

    def _bind(self, role: int) -> None:
        memory = self.context.memory
        outbox = memory.ring(self.context.index, role)
        inbox = None if topology.is_processor(role) else memory.ring(role, self.context.index)
        self.turn.bind(role, inbox, outbox, memory.doorbell(role), memory.arena(role))

    # ---- the loop ----

    def serve(self) -> int:
        while True:
            self.obey_order()
            if self.context.must_stop() and (self._fence_tails is None or self.context.orphaned):
                return self._stop()
            self.work(self.sleep_ms)
            self._fail_broken_dirs()
            self.topics.advance()
            self.advance_tasks()
            self._do_housekeeping()

    @property
    def sleep_ms(self) -> int:
        """Return how long the loop may sleep: not at all while this thread opens or removes topics."""
        if self.topics and not self.topics.only_awaits_threads:
            return 0
        return IDLE_SLEEP_MS if self._is_idle else MAX_SLEEP_MS

    @property
    def _is_idle(self) -> bool:
        """Return whether the loop may sleep longer: no task, deletion, move or sync is pending."""
        if self.topics or self._tasks or self.manager.open_partitions.awaits_flush:
            return False
        manager = self.manager
        is_deleting = manager.removal.deletions.next_due_s < math.inf
        return self.replica_mover.is_at_rest and not is_deleting and not manager.journals.awaited

    def work(self, timeout_ms: int) -> None:
        """Run rounds until one needs Python, then do Python's part of that round.

        If there are tasks, run only one round, because the caller advances the tasks between two calls. A
        job that has used its share of Python's time continues after a round of other jobs.
        """
        turn = self.turn
        has_tasks = bool(self._tasks) or not self.replica_mover.is_at_rest
        if self._has_cut_jobs:
            timeout_ms = 0
        self._batches_left = BATCHES_AT_ONCE
        self._finish_round(turn.run(timeout_ms) if has_tasks else turn.serve(timeout_ms))
        if self._has_cut_jobs:
            self._has_cut_jobs = False
            jobs = resume_jobs(turn)
            self._share = self._batches_left = max(BATCHES_OF_A_JOB, BATCHES_AT_ONCE // max(jobs, 1))
            self._shares_left = jobs - 1
            for _ in range(jobs):
                self._finish_round(turn.run(0))
            self._shares_left = 0
        self._take_failures()

    def _finish_round(self, pause: int) -> None:
        """Do Python's part of a round."""
        turn = self.turn
        while pause != Pause.ROUND_DONE:
            if pause == Pause.BATCH_FOR_PYTHON:
                self._append()
            else:
                self._serve_slot(turn.current_slot())
                turn.skip_slot()
            pause = turn.run(0)

    def _fail_broken_dirs(self) -> None:
        """Take each log directory offline that another worker has found broken."""
        if self.worker.is_alone:
            return
        found = self.context.memory.failed_dirs() & ~self.turn.failed_dirs
        for number in range(len(self.manager.dirs)):
            if found >> number & 1:
                self.turn.storage_failed(number, errno.EIO)

    def _append(self) -> None:
        batch, data = self.turn.current_batch()
        log = self.manager.logs.get(batch.slot)
        if (log is not None and log.is_paused) or self.turn.must_wait:
            pause_job(self.turn)
            return
        if self._batches_left == 0:
            pause_job(self.turn)
            self._has_cut_jobs = True
            if self._shares_left:
                # The turn takes the next of the jobs that go on.
                self._shares_left -= 1
                self._batches_left = self._share
            return
        self._batches_left -= 1
        number = log.state.log_dir if log is not None else 0
        before = log.state.segment_base if log is not None else 0
        if log is not None and log.state.fd < 0:
            self.manager.open_partitions.note(log)
        done = append_batch(log, batch, data, self.turn.clock_ms(), lambda fd: self.turn.retire(fd, number))
        self.turn.finish_batch(
            done.error, done.base_offset, done.append_time_ms, done.log_start_offset, done.was_appended
        )
        if done.failure:
            self.turn.storage_failed(number, done.failure)
        if done.no_room:
            self._report_no_room(done.no_room)
        if log is not None and log.state.segment_base != before:
            self.context.counters.add(Counter.COUNT_SEGMENTS_ROLLED)
            self.manager.note_roll(log)

    def _take_failures(self) -> None:
        # One job may have failed for each partition of a directory.
        failed_jobs = ((number, problem.errno or 0) for number, problem in self.io_thread.failures())
        for number, code in dict.fromkeys(failed_jobs):
            if code in PASSING:
                log_dir, why = self.manager.dirs[number], os.strerror(code)
                self.context.log.error(
                    "checkpoints in %s are not written: %s; trying again", log_dir.path, why
                )
                log_dir.write_again()
            else:
                self.turn.storage_failed(number, code)
        failed, error = self.turn.failures()
        for number in failed:
            self.context.counters.set_last_error(f"{self.manager.dirs[number].path}: {os.strerror(error)}")
            self.size_metrics.dir_failed(number, error)
            self.manager.dir_failed(number, error)
        if error and not failed:
            self._report_no_room(error)
        if waiting := self.manager.waiting.take_no_room():
            # They are logged where they are opened. Readiness and the console are to know it as well.
            self._refused.note(time.monotonic())
            self._publish_refusals(waiting)

    def _report_no_room(self, error: int) -> None:
        if not self._refused.must_log(time.monotonic()):
            return
        delay_ms = self.manager.config.log_segment_delete_delay_ms
        self.context.log.error("%s", refusal_text(error, room_of(self._log_dirs()), delay_ms))
        self._publish_refusals(error)
        self._measure_soon()

    def _log_dirs(self) -> list[Path]:
        return [log_dir.path for log_dir in self.manager.dirs if not log_dir.failed]

    def _publish_refusals(self, error: int) -> None:
        """Publish why each log directory refuses produce requests: `error`, or 0 if it does not refuse them.

        `error` is published for the directories without room, or for all directories if none lacks room.
        """
        paths = self._log_dirs() if error else []
        paths = without_room(paths) or paths
        for log_dir in self.manager.dirs:
            if not log_dir.failed:
                self.size_metrics.put_error(log_dir.number, error if log_dir.path in paths else 0)

    def _report_unshipped(self) -> None:
        if self._awaits_too_much:
            self.context.log.error(
                "produce requests are refused: too much waits for the object store. Producers try again, and "
                "with acks=0 their connections are closed. mpbroker remote status says what the store lacks"
            )
        else:
            self.context.log.info("produce requests are accepted again: the object store has what waited")

    def _report_room(self) -> None:
        self.context.log.info("produce requests are accepted again")
        self._publish_refusals(0)
        self._measure_soon()

    def _measure_soon(self) -> None:
        """Make the next measurement of sizes due now, because a log directory has changed."""
        if self.due["sizes"] != math.inf:
            self.due["sizes"] = 0.0

    def _do_housekeeping(self) -> None:
        now = time.monotonic()
        if not self.topics.is_removing:
            # After many removals the checkpoints are written once.
            self.manager.checkpoints.write_stale()
        self.manager.removal.deletions.begin_due(now)
        self.manager.open_partitions.ease()
        self.manager.open_partitions.flush_due(now)
        if self.manager.journals.awaited:
            self.manager.journals.use()
        if self._refused.is_on and self._refused.is_over(now, self._log_dirs()):
            self._report_room()
        if self.turn.awaits_too_much != self._awaits_too_much:
            self._awaits_too_much = not self._awaits_too_much
            self._report_unshipped()
        if self._appended_bytes >= self._next_points_bytes:
            self.due["recovery points"] = now
        points_s = self.context.config.log_flush_offset_checkpoint_interval_ms / 1000
        self._work_if_due(now, "waits", PUBLISH_WAITS_EVERY_S, self._publish_waits)
        # Each of these reads all partitions: one of them is enough between two rounds.
        for name, every_s, work in (
            ("high watermarks", HIGH_WATERMARK_CHECKPOINT_MS / 1000, self._write_high_watermarks),
            ("recovery points", points_s, self._write_recovery_points),
            ("log starts", math.inf, self.manager.checkpoints.write_all_log_starts),
            ("expiration", PRODUCER_EXPIRATION_CHECK_MS / 1000, self._expire_producers),
        ):
            if self._work_if_due(now, name, every_s, work):
                break
        # These set the time when they are due again at their end.
        if self.manager.awaits_retention and self.due["retention"] != math.inf:
            self.manager.awaits_retention, self.due["retention"] = False, now
        self._work_if_due(now, "sizes", math.inf, lambda: self._tasks.append((None, self._measure())))
        self._work_if_due(now, "retention", math.inf, lambda: self._tasks.append((None, self._retain())))

    def _work_if_due(self, now: float, name: str, every_s: float, work: Callable[[], None]) -> bool:
        """Do the work if it is due, and schedule it again. Return whether it was due."""
        if now < self.due[name]:
            return False
        self.due[name] = now + every_s
        work()
        return True

    def _write_high_watermarks(self) -> None:
        self.manager.checkpoints.write_high_watermarks()
        # After the checkpoints, which may need the reserve.
        self._keep_room()

    def _write_recovery_points(self) -> None:
        self._next_points_bytes = self._appended_bytes + POINTS_EVERY_BYTES
        self.manager.checkpoints.write_recovery_points()
        self.due["log starts"] = time.monotonic()
        self.manager.open_partitions.prepare_segments()
        if not self._is_snapshotting:
            self._is_snapshotting = True
            self._tasks.append((None, self._snapshot()))

    def _expire_producers(self) -> None:
        bound_producers(self.context.config.max_producer_ids_per_partition)
        before_ms = self.turn.clock_ms() - self.context.config.producer_id_expiration_ms
        for log in self.manager.logs.values():
            log.state.producers.expire(before_ms)

    def _publish_waits(self) -> None:
        """Publish the time (ns) at which an earlier call of this method first saw the present commit round.

        Publish 0 if this call is the first that sees the round, or if no round waits for the disk.
        """
        round_now = self.turn.commit_rounds if self.turn.awaits_disk else -1
        if round_now != self._round_seen:
            self._round_seen, since_ns = round_now, 0
            self._round_seen_ns = time.monotonic_ns()
        else:
            since_ns = self._round_seen_ns if round_now >= 0 else 0
        self.size_metrics.put_wait(since_ns)

    def _keep_room(self) -> None:
        for log_dir in self.manager.dirs:
            if not log_dir.failed and not log_dir.reserve.is_whole:
                self.io_thread.submit(log_dir.reserve.take, log_dir.number)
        metadata = self.manager.logs.get(METADATA_SLOT)
        if metadata is not None:
            keep_room_at_end(metadata)

    def _snapshot(self) -> Generator[None, None, None]:
        yield from snapshotting(self.manager.logs.values, self.io_thread)
        self._is_snapshotting = False

    def _measure(self) -> Generator[None, None, None]:
        began = time.monotonic()
        yield from self.size_metrics.measuring()
        now = time.monotonic()
        self.due["sizes"] = now + self.size_metrics.rest_s(now - began)

    def _retain(self) -> Generator[None, None, None]:
        yield from self.deletion.deleting_expired()
        every_s = self.context.config.log_retention_check_interval_ms / 1000
        self.due["retention"] = time.monotonic() + every_s

    def advance_tasks(self) -> None:
        """Advance each task by one step."""
        self.replica_mover.step()
        for task in list(self._tasks):
            call, steps = task
            try:
                next(steps)
            except StopIteration as end:
                self._tasks.remove(task)
                if call is not None:
                    self._send_answer(call, end.value)

    # ---- the coordinator's calls ----

    def _serve_slot(self, slot: bytes) -> None:
        kind = kind_of(slot)
        if kind == SlotKind.RETURN:
            returned = unpack_return(slot)
            self.lender.end(returned.block, returned.generation)
        elif kind == SlotKind.CALL:
            self._serve_call(unpack_call(slot))
        else:
            self.context.counters.add(Counter.COUNT_ERRORS)
            self.context.log.error("a descriptor of kind %d reached the log process; it is dropped", kind)
        self.context.counters.set(Counter.COUNT_ARENA_BYTES, self.lender.in_use_bytes)

    def _serve_call(self, call: Call) -> None:
        answer: calls.Message | None = None  # it comes later
        match message := self.server.message_of(call):
            case None:
                pass
            case calls.EnsureTopic():
                self.topics.open(call, message)
            case calls.RemoveTopic():
                self.topics.remove(call, message, self.replica_mover.topic_goes())
            case calls.Recovered():
                self.topics.follow(call, self._settling(message))
            case calls.DeleteRecords():
                self._tasks.append((call, self.deletion.deleting(message)))
            case calls.MovePartitions():
                self._tasks.append((call, self.replica_mover.ordering(message)))
            case calls.FindToClean():
                self._tasks.append((call, self.compaction.choosing()))
            case calls.SwapSegments():
                self._tasks.append((call, self.compaction.swapping(message)))
            case calls.TellMoves():
                answer = self.replica_mover.moves()
            case calls.CleaningEnded():
                self.compaction.ended(message)
                answer = calls.Acknowledged()
            case calls.TellProducers():
                answer = describe_producers(self.manager.logs, message)
            case _:
                text = f"the log process does not serve {type(message).__name__}"
                answer = calls.Failed(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        if answer is not None:
            self._send_answer(call, answer)

    def _settling(self, message: calls.Recovered) -> Generator[None, None, calls.Message]:
        """Finish the start after all topics have been opened."""
        self.recovery_scheduler.end()
        self.due["sizes"] = time.monotonic()
        yield from self.manager.removal.setting_strays_aside(message.topics)
        give_back_memory()
        yield
        self.replica_mover.resume(message.topics)
        return calls.Acknowledged()

    def _count_partitions(self) -> None:
        """Count all partitions but the metadata log's, which Kafka's ReplicaManager does not count either."""
        ours = METADATA_SLOT in self.manager.logs
        self.context.counters.set(Counter.COUNT_PARTITIONS, len(self.manager.logs) - ours)
        self.context.counters.set(Counter.COUNT_PARTITIONS_WAITING, self.manager.waiting.count)

    def _send_answer(self, call: Call, answer: calls.Message) -> None:
        self._count_partitions()
        self.server.answer(call.owner, call.request, answer, call.connection)

    # ---- orders ----

    def obey_order(self) -> None:
        """Obey a pending order. The death of a role is acknowledged when its published jobs are answered."""
        order = self.context.pending_order()
        if order is None:
            return
        if order.settings_changed:
            self.context.follow_settings()
            self.manager.follow_settings()
            self.context.acknowledge_order()
            return
        if order.alive or (topology.is_log_worker(order.role) and order.stage != LOG_FENCE_FINISH):
            self._bind(order.role) if self._takes_part(order.role) else None
            self.context.acknowledge_order()
            return
        if self._fence_tails is None:
            self._fence_tails, self._fence_patience = self.turn.tails(), Patience(SHIP_AT_FENCE_S)
            self.turn.forget(order.role)
        if self.turn.awaits_tier and self._fence_patience.is_over():
            self.turn.give_up_waiting(order.role, not topology.is_log_worker(order.role))
        if topology.is_log_worker(order.role):
            # A process that waits for both workers needs our part first: the rest is the dead one's.
            if self.turn.has_answered(self._fence_tails):
                self._fence_tails = None
                self.context.acknowledge_order()
            return
        if self.turn.consumed(self._fence_tails) and not self.turn.owes(order.role):
            self._finish_fence(order)

    def _without(self, role: int, call: Call | None, steps: _Steps) -> tuple[Call | None, _Steps] | None:
        """Return the call and steps with which a task continues after `role` died; None if the task ends.

        A task ends if `role` was its caller, but a task of the cleaner continues without a caller.
        """
        if call is None or call.owner != role:
            return call, steps
        return (None, steps) if role == topology.CLEANER else None

    def _takes_part(self, role: int) -> bool:
        return (
            role in (topology.COORDINATOR, topology.CLEANER)
            or topology.is_handler(role)
            or topology.is_processor(role)
        )

    def _finish_fence(self, order: PeerOrder) -> None:
        self._fence_tails = None
        self.turn.stop_listening(order.role)
        self.topics.drop(order.role)
        self._tasks = [
            entry
            for call, steps in self._tasks
            if (entry := self._without(order.role, call, steps)) is not None
        ]
        self.lender.reclaim(order.role)
        self.context.counters.set(Counter.COUNT_ARENA_BYTES, self.lender.in_use_bytes)
        self.context.counters.add(Counter.COUNT_FENCES)
        self.context.acknowledge_order()

    def _stop(self) -> int:
        """Append and answer published jobs; then flush, close, and mark the directories clean."""
        if self.context.orphaned:
            # Dead processes are no longer fenced: descriptors for a full ring would be kept, and the locks.
            for role in self._parties():
                self.turn.forget(role)
        self.replica_mover.stop()
        self.topics.stop_opening()
        patience = Patience(SHIP_AT_STOP_S)
        while self.topics.is_removing or not (self.turn.is_settled and self.replica_mover.is_at_rest):
            if self.turn.awaits_tier and patience.is_over():
                # The next start ships it. Nobody was told that it is safe.
                self.context.log.warning(
                    "the object store does not answer: the last records are not in it yet"
                )
                break
            self.work(0 if self.topics.is_removing else 10)
            self.replica_mover.step()
            self.topics.advance_removals()
        self.replica_mover.close()
        self.recovery_scheduler.end()
        closed = self.manager.close_cleanly()
        self._closed_dirs.store(self.worker.number, closed)
        if self.worker.is_first:
            # The supervisor stops the first worker last. Without a supervisor others may still be busy: then
            # they have closed no directory.
            for other in range(1, self.worker.count):
                closed &= self._closed_dirs.load(other)
            self.manager.mark_clean(closed)
        self.turn.close()
        self.say("stopped")
        self.context.stopped()
        return 0
