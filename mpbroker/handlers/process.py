"""The handler process: the loop around the native turn, and the requests that the turn hands back.

Each pass of the loop obeys the supervisor's fences, runs the turn, reads the coordinator's bulletin, serves
the slow requests, polls the parked requests and publishes all responses. Then it does one piece of a heavy
request, if there is one. So no other request waits longer than a piece takes, and heavy requests proceed
under any load. (Kafka: KafkaRequestHandler.run, RequestHandlerHelper.)
"""

from __future__ import annotations

import logging
from functools import partial

from mpbroker.handlers.api_parts.offset_commits import inline_bytes_max
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.hot_path.turn import ANY_PROCESSOR, HandlerTurn
from mpbroker.handlers.intake import Intake
from mpbroker.handlers.produce.produce_order import ProduceOrder
from mpbroker.handlers.requests.faults import Faults
from mpbroker.handlers.requests.limits import UNCOUNTED_BODY_BYTES
from mpbroker.handlers.requests.purgatory import NEVER_MS
from mpbroker.handlers.wiring import make_broker, session_slots
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import (
    IDLE_SLEEP_MS,
    LOG_FENCE_ANSWER,
    LOG_FENCE_CLOSE,
    LOG_FENCE_RESUME,
    MAX_SLEEP_MS,
    ExitCode,
    PeerOrder,
    ProcessContext,
)
from mpbroker.ipc.rings import Outbox
from mpbroker.ipc.slots import (
    SlotKind,
    kind_of,
    unpack_call,
    unpack_produce,
    unpack_reply,
    unpack_request,
    unpack_return,
)
from mpbroker.ipc.topology import (
    COORDINATOR,
    DIRTY_BYTES,
    FIRST_HANDLER,
    TIER,
    is_log_worker,
    is_processor,
    log_worker,
    log_worker_number,
    processors_of,
)
from mpbroker.records.unpack import LIBRARIES
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.handlers")

# Retry a ring that was full after at most this time. Its consumer rings the bell when there is room,
# but perhaps just before this process sleeps.
RETRY_FULL_RING_MS = 2
# A processor that gives blocks back does not ring the bell.
RETRY_FULL_ARENA_MS = 5
# How long a stopping handler waits for answers of the log processes and the coordinator.
STOP_PATIENCE_MS = 5_000
LEAVING_SLEEP_MS = 5
# Interval between checks for deleted files: some of the open files, and all that the turn reads.
FILES_LOOK_MS = 100


class Handler:
    """One handler process. `run` runs it until it stops."""

    def __init__(self, context: ProcessContext) -> None:
        memory = context.memory
        self.context = context
        self.number = context.index - FIRST_HANDLER
        self.arena = memory.arena(context.index)
        self.unsent: set[Outbox] = set()
        processors = processors_of(context.index)
        peers = [COORDINATOR, *processors]
        if context.config.remote_log_storage_system_enable:
            peers.append(TIER)
        rings = {p: memory.ring(context.index, p) for p in peers}
        self.outboxes = {p: Outbox(ring, partial(context.ring, p), self.unsent) for p, ring in rings.items()}
        self.log_workers = range(memory.sizes.log_workers)
        self.turn = HandlerTurn(
            context.index, memory, context.counters, TopicTable(len(self.log_workers)), rings
        )
        self.to_coordinator = self.outboxes[COORDINATOR]
        self.produces = ProduceOrder(self.turn)
        if missing := LIBRARIES.missing():
            log.info(
                "%s: there is no %s here, so batches of that codec are decompressed more slowly, each at "
                "once. Install it (Debian and Ubuntu: apt-get install zlib1g liblz4-1 libzstd1; RHEL: dnf "
                "install zlib lz4-libs libzstd) and start the broker again",
                self,
                " and no ".join(missing),
            )
        self._take_limits()
        self.next_files_look_ms = 0
        self.is_ready = False
        self.acls_version = 0
        # Numbers of log workers that died and have no welcomed successor yet.
        self.fenced_logs: set[int] = set()
        # The two roles that get calls, if they died and have no welcomed successor yet.
        self.fenced_servers: set[int] = set()
        self._watch_words()
        self.broker = make_broker(context, self.number, self.arena, self.turn, self.outboxes, self.produces)
        self.servers = {COORDINATOR: self.broker.coordinator}
        if self.broker.remote.tier is not None:
            self.servers[TIER] = self.broker.remote.tier
        arenas = {p: memory.arena(p) for p in processors}
        faults = Faults(memory.private.block("faults"), monotonic_ms)
        self.intake = Intake(self.broker, self.turn, arenas, self.produces, faults)
        self.scheduler = self.intake.scheduler
        for worker in self.log_workers:
            self.set_log_up(worker, context.is_alive(log_worker(worker)))
        self._choose_leaving()

    def _watch_words(self) -> None:
        memory, index = self.context.memory, self.context.index
        private = memory.private
        self.news = BulletinReader(private.block("bulletin"), memory.words("bulletin_acks"), index)
        self.bulletin_word = self.turn.watch(private.block("bulletin"), 0)
        self.turn.permissions_word = self.bulletin_word
        self.dirty_words = [
            self.turn.watch(private.block("dirty"), worker * DIRTY_BYTES + 8 * self.number)
            for worker in self.log_workers
        ]
        self.request_log_word = self.turn.watch(private.block("request_log"), 0)
        self.order_words = [
            self.turn.watch(private.block(name), 8 * index) for name in ("fence_orders", "orders")
        ]

    def _take_limits(self) -> None:
        config = self.context.config
        self.turn.fetch_bytes_max = config.fetch_max_bytes
        # Shorter bodies are passed on without being counted.
        self.turn.forwarded_bytes_max = min(UNCOUNTED_BODY_BYTES, inline_bytes_max(config.message_max_bytes))

    def _choose_leaving(self) -> None:
        """Have the turn leave all requests to Python while requests are logged or a test injects faults."""
        self.turn.leaves_all = self.turn.logs_requests or bool(self.intake.faults)

    def set_log_up(self, worker: int, up: bool) -> None:
        self.turn.set_log_up(worker, up)
        self.broker.log.set_up(worker, up)
        self.broker.log_calls[worker].server_is_up = up

    # ---- the loop ----

    def run(self) -> int:
        while not self.context.must_stop():
            self.run_once(self.sleep_ms())
        self.finish()
        self.await_returns()
        self.context.stopped()
        return ExitCode.STOPPED

    def run_once(self, timeout_ms: int) -> None:
        self.obey_order()
        if not self.turn.log_is_up or not all(one.server_is_up for one in self.servers.values()):
            self.notice_peers()
        self.take_and_serve(timeout_ms)
        if self.scheduler.has_work():
            self.turn.works(True)
            # Requests that have arrived meanwhile would otherwise wait for the whole next piece.
            self.take_and_serve(0)
            self.work()

    def take_and_serve(self, timeout_ms: int) -> None:
        self.turn.forwards = self.broker.coordinator.server_is_up and not self.to_coordinator
        slots = self.turn.serve(timeout_ms)
        for word in self.order_words:
            self.turn.changed(word)
        if self.turn.changed(self.request_log_word):
            self.turn.logs_requests = self.broker.log_levels.logs_requests
            self._choose_leaving()
        if self.turn.changed(self.bulletin_word) or not self.is_ready:
            self.read_news()
        if slots:
            self.serve(slots)
        if self._have_marks_moved() or not slots:
            self.broker.fetches.poll()
        if self.broker.prefetch:
            self.broker.prefetch.reap()
        now_ms = monotonic_ms()
        if self.broker.waiting:
            self.broker.waiting.retry(now_ms)
        self.broker.transactions.ask_again(now_ms)
        if self.broker.transactions.holds.has_unsent:
            self.broker.transactions.holds.flush()
        while self.produces.ready:
            self.intake.begin(self.produces.ready.popleft(), is_in_order=True)
        self.broker.fetches.expire(now_ms)
        for server in self.servers.values():
            server.expire(now_ms)
        if self.intake.faults.has_delayed:
            self.intake.serve_delayed()
        if now_ms >= self.next_files_look_ms:
            self.forget_deleted_files(now_ms)
        self.flush()

    def _have_marks_moved(self) -> bool:
        """Return True if a log worker has changed its dirty word for this handler.

        The words of all workers are read, since a change that is not read here would end the next sleep.
        """
        moved = False
        for word in self.dirty_words:
            moved |= self.turn.changed(word)
        return moved

    def forget_deleted_files(self, now_ms: int) -> None:
        self.next_files_look_ms = now_ms + FILES_LOOK_MS
        self.broker.audit.follow(now_ms)
        self.broker.remote.forget_deleted()
        if not self.broker.readers.forget_deleted():
            self.broker.fetch_positions.forget_deleted()

    def work(self) -> None:
        """Do one piece of a heavy or long request. Call this after all other requests were served."""
        self.scheduler.work()
        self.flush()

    def sleep_ms(self) -> int:
        if self.scheduler.has_work() or self.produces.ready:
            return 0
        if self.unsent:
            return RETRY_FULL_RING_MS
        if self.broker.waiting or self.broker.transactions.holds.has_unsent:
            return RETRY_FULL_ARENA_MS
        next_ms = NEVER_MS
        for due_ms in (
            self.broker.fetches.next_deadline_ms(),
            self.broker.transactions.next_deadline_ms(),
            self.intake.faults.next_deadline_ms(),
            *[server.next_deadline_ms() for server in self.servers.values()],
        ):
            if due_ms is not None and due_ms < next_ms:
                next_ms = due_ms
        if next_ms == NEVER_MS:
            return IDLE_SLEEP_MS
        return max(0, min(MAX_SLEEP_MS, next_ms - monotonic_ms()))

    def flush(self) -> None:
        self.turn.flush()
        for outbox in list(self.unsent):
            before = outbox.times_full
            if not outbox.flush():
                self.context.counters.add(Counter.COUNT_RING_FULL, outbox.times_full - before)

    def read_news(self) -> None:
        news = self.news.poll()
        if news:
            self.broker.metadata.apply(news)
            self.broker.throttling.refresh()
            if self.broker.metadata.acls_version != self.acls_version:
                self.acls_version = self.broker.metadata.acls_version
                self.broker.authorization.refresh()
            # A topic that was created or deleted affects the fetches that wait for it.
            self.broker.fetches.poll_all()
        if not self.is_ready and self.broker.metadata.version >= 0:
            self.is_ready = True
            self.context.ready()

    def notice_peers(self) -> None:
        """Note log workers, the coordinator and the tier as up if the supervisor says that they are alive.

        They may have started after this process. A fenced peer is skipped: it is noted as up when the
        supervisor announces its successor.
        """
        for worker in self.log_workers:
            if worker not in self.fenced_logs and self.context.is_alive(log_worker(worker)):
                self.set_log_up(worker, True)
        for role, server in self.servers.items():
            is_awaited = not (role in self.fenced_servers or server.server_is_up)
            if is_awaited and self.context.is_alive(role):
                server.arrived()

    # ---- what the turn hands back ----

    def serve(self, slots: list[bytes]) -> None:
        for slot in slots:
            kind = kind_of(slot)
            if kind == SlotKind.REQUEST:
                self.intake.begin(unpack_request(slot))
            elif kind == SlotKind.RETURN:
                returned = unpack_return(slot)
                self.broker.responses.returned(returned.block, returned.generation)
            elif kind == SlotKind.CANCEL:
                connection = unpack_request(slot).connection
                self.broker.fetches.cancel(connection)
                self.broker.forwarding.cancel(connection)
            elif kind == SlotKind.PRODUCED:
                self.broker.log.produced(unpack_produce(slot))
            elif kind == SlotKind.TAKEN:
                self.broker.forwarding.taken(unpack_call(slot))
            elif kind == SlotKind.ANSWER:
                # The coordinator publishes its changes before it answers.
                self.read_news()
                answer = unpack_call(slot)
                client = self.broker.coordinator
                if is_log_worker(answer.owner):
                    client = self.broker.log_calls[log_worker_number(answer.owner)]
                elif answer.owner == TIER:
                    client = self.servers[TIER]
                else:
                    # A call of the turn, whose answer it left to Python, becomes one of Python's first.
                    self.intake.take_over_forwarded(answer.request)
                client.answered(answer)
            elif kind in (SlotKind.SEND, SlotKind.NOOP, SlotKind.CLOSE):
                # A response of the turn that found the processor's ring full.
                self.outboxes[unpack_reply(slot).owner].push(slot)
            else:
                log.error("slot of kind %d is not for a handler; it is dropped", kind)
                self.context.counters.add(Counter.COUNT_ERRORS)
        self.count_arena()

    def count_arena(self) -> None:
        self.context.counters.set(Counter.COUNT_ARENA_BYTES, self.arena.in_use_bytes)

    # ---- orders ----

    def obey_order(self) -> None:
        order = self.context.pending_order()
        if order is None:
            return
        if order.settings_changed:
            # Settings derived from the defaults of topics need a successor: see supervisor/changing.py.
            self.context.follow_settings()
            self._take_limits()
            self.intake.faults.refresh()
            self._choose_leaving()
            self.broker.fetch_sessions.resize(session_slots(self.context.config))
        elif is_processor(order.role):
            self.fence_processor(order)
        elif is_log_worker(order.role):
            self.fence_log(order)
        elif order.role in self.servers:
            self.fence_server(order)
        self.context.counters.add(Counter.COUNT_FENCES)
        self.flush()
        # The dead process's loans of our blocks have ended; the next request may take long to come.
        self.count_arena()
        self.context.acknowledge_order()

    def fence_processor(self, order: PeerOrder) -> None:
        if order.alive:
            self.turn.rebind(order.role)
            self.outboxes[order.role].rebind()
            return
        self.turn.drop_inbox(order.role)
        self.produces.forget_processor(order.role)
        self.turn.forget_produces(order.role)
        self.intake.drop_processor(order.role)
        self.broker.fetches.forget_processor(order.role)
        self.broker.forwarding.forget_processor(order.role)
        self.turn.forget_forwarded(order.role)
        self.outboxes[order.role].clear()
        self.broker.responses.reclaim(order.role)
        self.broker.waiting.forget_processor(order.role)
        self.turn.forget_shared(order.role)
        for worker in self.log_workers:
            # The jobs lie in the processor's arena, which is about to be emptied.
            self.turn.drop_jobs(worker, order.role)

    def fence_log(self, order: PeerOrder) -> None:
        worker = log_worker_number(order.role)
        if order.alive:
            self.turn.rebind_log(worker)
            # The successor may have truncated files, or recovered them into others.
            self.broker.readers.forget_all()
            self.turn.fetch_positions.forget_all()
            self.broker.fetches.poll_all()
            self.fenced_logs.discard(worker)
            self.turn.paused = False
            self.set_log_up(worker, True)
            return
        self.fenced_logs.add(worker)
        self.set_log_up(worker, False)
        if order.stage == LOG_FENCE_CLOSE:
            self.turn.paused = True
            self.close_produces(worker)
        elif order.stage == LOG_FENCE_ANSWER:
            self.answer_finished()
        elif order.stage == LOG_FENCE_RESUME:
            self.turn.paused = False

    def answer_finished(self) -> None:
        """Answer the jobs that live log workers have returned; close the connections of the jobs left over.

        Call this after the death of a log worker. A job is left over also if no worker has taken it, or if it
        could not be returned because a ring was full: processors count the requests of such jobs as lost.
        """
        self.take_and_serve(0)
        self.turn.forget_shared(ANY_PROCESSOR)
        for worker in self.log_workers:
            for job in self.turn.drop_jobs(worker, ANY_PROCESSOR):
                self.broker.responses.close_produce(unpack_produce(job))

    def close_produces(self, worker: int) -> None:
        """Close the connections of a dead log worker's produces: whether they are appended is unknown."""
        self.turn.drop_inbox(log_worker(worker))
        self.turn.lose_shared(worker)
        for job in self.turn.drop_jobs(worker):
            if kind_of(job) == SlotKind.PRODUCE:
                self.broker.responses.close_produce(unpack_produce(job))
        self.broker.log.worker_died(worker)
        self.broker.log_calls[worker].server_died()
        # Nothing becomes durable before there is a successor.
        self.broker.fetches.poll_all()
        self.intake.close_produces()

    def fence_server(self, order: PeerOrder) -> None:
        """Obey an order about the coordinator or the tier."""
        if order.alive:
            self.turn.rebind(order.role)
            self.fenced_servers.discard(order.role)
            self.servers[order.role].welcome()
            return
        self.fenced_servers.add(order.role)
        self.turn.drop_inbox(order.role)
        if order.role == COORDINATOR:
            self.broker.transactions.holds.coordinator_died()
            self.intake.take_over_forwarded()
        self.servers[order.role].server_died()

    def finish(self) -> None:
        """Answer the requests that this handler still has, waiting for log workers and coordinator."""
        self.intake.serve_delayed(all_of_them=True)
        self.run_once(0)
        # A long one would poll repeatedly, as long as others write.
        self.broker.fetches.expire_all()
        while self.scheduler.has_work() and not self.context.orphaned:
            self.run_once(0)
        until_ms = monotonic_ms() + (0 if self.context.orphaned else STOP_PATIENCE_MS)
        while self.has_unfinished() and monotonic_ms() < until_ms:
            self.broker.fetches.expire_all()
            self.broker.forwarding.release()
            self.run_once(LEAVING_SLEEP_MS)
        self.intake.close_all()
        self.broker.waiting.give_up()
        self.broker.audit.close()
        self.flush()

    def has_unfinished(self) -> bool:
        jobs = self.turn.waiting_jobs or self.turn.shared_jobs or self.turn.forwarded_count
        waits = self.unsent or self.broker.waiting or self.produces
        return bool(self.intake.open or self.scheduler.heavy or jobs or waits)

    def await_returns(self) -> None:
        """Wait until processors have sent the responses in this handler's arena, which ends with the process.

        Slow clients may take long; the supervisor limits the time. A processor that dies or leaves is fenced,
        which returns its blocks.
        """
        while (self.unsent or self.broker.responses.lent_blocks) and not self.context.orphaned:
            self.run_once(LEAVING_SLEEP_MS)


def run(context: ProcessContext) -> int:
    """Run a handler process until it stops; return its exit code."""
    return Handler(context).run()
