"""The handler process: the loop around the native turn, and the requests that the turn hands back.

Each pass of the loop obeys the supervisor's fences, takes a turn, reads the coordinator's news, serves the
slow requests, looks after the parked ones and publishes all answers. Then, if there is a heavy request, it
does one piece of it. So nothing waits longer than a piece takes, and heavy work goes on however much else
there is. (Kafka: KafkaRequestHandler.run, RequestHandlerHelper.)
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial

from mpbroker.handlers.api_parts.offset_commits import surely_small
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.calls.patient_client import NEVER_MS
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.hot_path.turn import ANY_PROCESSOR, HandlerTurn
from mpbroker.handlers.produce.produce_order import ProduceOrder
from mpbroker.handlers.requests.exchange import Exchange
from mpbroker.handlers.requests.faults import Faults
from mpbroker.handlers.requests.limits import UNCOUNTED_BODY_BYTES
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
    FatalError,
    Fence,
    ProcessContext,
)
from mpbroker.ipc.rings import Outbox
from mpbroker.ipc.slots import (
    Request,
    SlotFlag,
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
    is_log_worker,
    is_processor,
    log_worker,
    log_worker_number,
    name_of,
    processors_of,
)
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import unsupported
from mpbroker.protocol.headers import encode_response_frame
from mpbroker.records.unpack import LIBRARIES
from shm.arena import ArenaFull
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.handlers")

# Look again at a ring that was full after at most this time. Its consumer rings the bell when there is room,
# but perhaps just before this process sleeps.
RETRY_FULL_RING_MS = 2
# A processor that gives blocks back does not ring the bell.
RETRY_FULL_ARENA_MS = 5
# How long a stopping handler waits for the log processes and the coordinator to answer what it took.
STOP_PATIENCE_MS = 5_000
LEAVING_SLEEP_MS = 5
# Interval between checks for deleted files: some of the open files, and all that the turn reads.
FILES_LOOK_MS = 100


class Handler:
    """One handler process. Its parent calls only `run`."""

    def __init__(self, context: ProcessContext) -> None:
        memory = context.memory
        self.context = context
        self.number = context.index - FIRST_HANDLER
        self.arena = memory.arena(context.index)
        self.unsent: set[Outbox] = set()
        processors = processors_of(context.index)
        rings = {p: memory.ring(context.index, p) for p in (COORDINATOR, *processors)}
        self.outboxes = {p: Outbox(ring, partial(context.ring, p), self.unsent) for p, ring in rings.items()}
        self.request_arenas = {p: memory.arena(p) for p in processors}
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
        self.open: dict[Exchange, None] = {}
        # Heavy requests that wait, oldest first, and the one that is being worked on; see `long_work`, too.
        self.heavy: deque[Request] = deque()
        self.working: Exchange | None = None
        # The long request that is being worked on, and whether the last piece was one of such a request.
        self.long: Exchange | None = None
        self.worked_on_long = False
        self.next_files_look_ms = 0
        self.is_ready = False
        self.acls_version = 0
        # Numbers of log workers that died and have no welcomed successor yet.
        self.fenced_logs: set[int] = set()
        self.coordinator_was_fenced = False
        self.faults = Faults(memory.private.block("faults"), monotonic_ms)
        self._watch_words()
        self.broker = make_broker(context, self.number, self.arena, self.turn, self.outboxes, self.produces)
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
        # Shorter bodies need no look into them before they are passed on.
        self.turn.forwarded_bytes_max = min(UNCOUNTED_BODY_BYTES, surely_small(config.message_max_bytes))

    def _choose_leaving(self) -> None:
        """Have the turn leave every request to Python if somebody here has to see all of them."""
        self.turn.leaves_all = self.turn.tells_all or bool(self.faults)

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
        self.obey_fences()
        if not self.turn.log_is_up or not self.broker.coordinator.server_is_up:
            self.notice_peers()
        self.take_and_serve(timeout_ms)
        if self.has_heavy():
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
            self.turn.tells_all = self.broker.log_levels.logs_requests
            self._choose_leaving()
        if self.turn.changed(self.bulletin_word) or not self.is_ready:
            self.read_news()
        if slots:
            self.serve(slots)
        if self._have_marks_moved() or not slots:
            self.broker.fetches.look()
        if self.broker.cold_reads:
            self.broker.cold_reads.take_in()
        now_ms = monotonic_ms()
        if self.broker.waiting:
            self.broker.waiting.retry(now_ms)
        self.broker.transactions.ask_again(now_ms)
        if self.broker.transactions.holds.has_news:
            self.broker.transactions.holds.look()
        while self.produces.ready:
            self.begin(self.produces.ready.popleft())
        self.broker.fetches.expire(now_ms)
        self.broker.coordinator.expire(now_ms)
        if self.faults.has_delayed:
            self.serve_delayed()
        if now_ms >= self.next_files_look_ms:
            self.forget_deleted_files(now_ms)
        self.flush()

    def _have_marks_moved(self) -> bool:
        """Return True if a log worker has changed this handler's word.

        All words are read: a change that was seen once must not end the next sleep.
        """
        moved = False
        for word in self.dirty_words:
            moved |= self.turn.changed(word)
        return moved

    def forget_deleted_files(self, now_ms: int) -> None:
        self.next_files_look_ms = now_ms + FILES_LOOK_MS
        self.broker.audit.follow(now_ms)
        if not self.broker.readers.forget_deleted():
            self.broker.places.forget_deleted()

    def has_heavy(self) -> bool:
        return bool(self.working or self.heavy or self.long or self.broker.long_work)

    def work(self) -> None:
        """Do one piece of a heavy request or of a long one, by turns.

        Call it when everything else has been served and published. One of each kind is under way at a time,
        so that what they have gathered does not add up.
        """
        is_long_next = bool(self.long or self.broker.long_work)
        if is_long_next and not (self.worked_on_long and (self.working or self.heavy)):
            self.worked_on_long = True
            self._work_on_long()
        else:
            self.worked_on_long = False
            self._work_on_heavy()
        self.turn.works(self.has_heavy())
        self.flush()

    def _work_on_heavy(self) -> None:
        if self.working is None:
            self.working = self.request(self.heavy.popleft())
        else:
            self.working.work()
        if self.working is not None and self.working.pieces is None:
            self.working = None

    def _work_on_long(self) -> None:
        if self.long is None:
            self.long = self.broker.long_work.popleft()
        exchange, pieces = self.long, self.long.pieces
        if exchange.work() and exchange.pieces is pieces:
            return
        self.long = None
        if exchange.pieces is not None:
            # It goes on with other work: a fetch that looks again, or an answer that is encoded.
            self.broker.long_work.append(exchange)

    def sleep_ms(self) -> int:
        if self.has_heavy() or self.produces.ready:
            return 0
        if self.unsent:
            return RETRY_FULL_RING_MS
        if self.broker.waiting or self.broker.transactions.holds.has_news:
            return RETRY_FULL_ARENA_MS
        next_ms = NEVER_MS
        for waited_for in (
            self.broker.fetches,
            self.broker.coordinator,
            self.broker.transactions,
            self.faults,
        ):
            due_ms = waited_for.next_deadline_ms()
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
            # A topic that came or went concerns the fetches that wait for it.
            self.broker.fetches.look_at_all()
        if not self.is_ready and self.broker.metadata.version >= 0:
            self.is_ready = True
            self.context.ready()

    def notice_peers(self) -> None:
        """Note peers that are up: at the first start they may be younger than this process.

        After a fence only a welcome counts.
        """
        for worker in self.log_workers:
            if worker not in self.fenced_logs and self.context.is_alive(log_worker(worker)):
                self.set_log_up(worker, True)
        is_awaited = not (self.coordinator_was_fenced or self.broker.coordinator.server_is_up)
        if is_awaited and self.context.is_alive(COORDINATOR):
            self.broker.coordinator.arrived()

    # ---- what the turn hands back ----

    def serve(self, slots: list[bytes]) -> None:
        for slot in slots:
            kind = kind_of(slot)
            if kind == SlotKind.REQUEST:
                request = unpack_request(slot)
                if request.api_key == ApiKey.PRODUCE:
                    self.begin_produce(request)
                else:
                    self.begin(request)
            elif kind == SlotKind.RETURN:
                returned = unpack_return(slot)
                self.broker.answers.returned(returned.block, returned.generation)
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
                else:
                    self.take_over(answer.request)
                client.answered(answer)
            elif kind in (SlotKind.SEND, SlotKind.NOOP, SlotKind.CLOSE):
                # An answer of the turn that found the processor's ring full.
                self.outboxes[unpack_reply(slot).owner].push(slot)
            else:
                log.error("slot of kind %d is not for a handler; it is dropped", kind)
                self.context.counters.add(Counter.COUNT_ERRORS)
        self.count_arena()

    def count_arena(self) -> None:
        self.context.counters.set(Counter.COUNT_ARENA_BYTES, self.arena.in_use_bytes)

    def begin_produce(self, request: Request) -> None:
        """Serve a produce when those before it on its connection are passed on, unless one has closed it."""
        if self.produces.refuses(request):
            self.broker.answers.close(request)
        elif self.produces.begin(request):
            self.begin(request)

    def begin(self, request: Request) -> None:
        """Serve a request now, or in pieces between other work if it is heavy."""
        if request.flags & SlotFlag.HEAVY:
            self.heavy.append(request)
        else:
            self.serve_light(request)

    def serve_light(self, slot: Request) -> None:
        exchange = self.request(slot)
        if exchange is not None and exchange.pieces is not None:
            self.broker.long_work.append(exchange)

    def request(self, slot: Request) -> Exchange | None:
        """Serve a request. An error, here or in the API, ends that request and must not affect the others."""
        try:
            return self.serve_request(slot)
        except FatalError:
            raise
        except Exception as error:
            log.exception("closing %s: its request failed", self.context.whose(slot))
            self.context.counters.add(Counter.COUNT_ERRORS)
            self.context.counters.set_last_error(f"API key {slot.api_key}: {type(error).__name__}: {error}")
            self.broker.answers.close(slot)
        return None

    def serve_request(self, slot: Request) -> Exchange | None:
        arena = self.request_arenas[slot.processor]
        if not arena.check(slot.block, slot.generation):
            whose = name_of(slot.processor)
            log.error("request %d of %s names a stale block; its connection is closed", slot.request, whose)
            self.context.counters.add(Counter.COUNT_ERRORS)
            self.broker.answers.close(slot)
            return None
        api = self.broker.apis.get(slot.api_key)
        if api is None or not api.serves(slot.api_version):
            self.refuse(slot)
            return None
        frame = arena.view(slot.block, slot.length)
        exchange = ApiExchange(slot, frame, api, self.broker)
        if exchange.can_be_served():
            self.open[exchange] = None
            exchange.on_end = partial(self.ended, exchange)
            if not (self.faults and self.faults.meets(exchange)):
                exchange.run()
        return exchange

    def take_over(self, number: int | None = None) -> None:
        """Take over a request that the turn has forwarded, or all: what comes now is not for the turn."""
        for call in self.turn.take_forwarded(number):
            slot = unpack_request(call.request)
            api, arena = self.broker.apis[slot.api_key], self.request_arenas[slot.processor]
            if call.is_dropped or not arena.check(slot.block, slot.generation):
                self.broker.forwarding.take_over_dropped(call)
                continue
            exchange = ApiExchange(slot, arena.view(slot.block, slot.length), api, self.broker)
            if exchange.can_be_served():
                self.open[exchange] = None
                exchange.on_end = partial(self.ended, exchange)
                self.broker.forwarding.take_over(exchange, call)
            else:
                self.broker.forwarding.take_over_dropped(call)

    def serve_delayed(self, *, all_of_them: bool = False) -> None:
        """Serve the requests that a fault has delayed for long enough."""
        for exchange in self.faults.take_due(all_of_them=all_of_them):
            if exchange.pieces is None:
                exchange.run()
            if exchange.pieces is not None:
                self.broker.long_work.append(exchange)

    def ended(self, exchange: Exchange) -> None:
        self.open.pop(exchange, None)
        self.broker.parked_memory.release(exchange)
        self.produces.end(exchange.slot)

    def refuse(self, slot: Request) -> None:
        """Refuse an API or version that is not served. Only ApiVersions has an answer for that."""
        if slot.api_key == ApiKey.API_VERSIONS:
            frame = encode_response_frame(slot.api_key, 0, slot.correlation, unsupported())
            try:
                self.broker.answers.send(slot, frame)
            except ArenaFull as error:
                log.error("closing %s: no memory for an answer: %s", self.context.whose(slot), error)
                self.broker.answers.close(slot)
            return
        log.warning(
            "closing %s: API key %d version %d is not served",
            self.context.whose(slot),
            slot.api_key,
            slot.api_version,
        )
        self.broker.answers.close(slot)

    # ---- orders ----

    def obey_fences(self) -> None:
        fence = self.context.pending_fence()
        if fence is None:
            return
        if fence.settings_changed:
            # Settings derived from the defaults of topics need a successor: see supervisor/changing.py.
            self.context.follow_settings()
            self._take_limits()
            self.faults.refresh()
            self._choose_leaving()
            self.broker.fetch_sessions.resize(session_slots(self.context.config))
        elif is_processor(fence.role):
            self.fence_processor(fence)
        elif is_log_worker(fence.role):
            self.fence_log(fence)
        elif fence.role == COORDINATOR:
            self.fence_coordinator(fence)
        self.context.counters.add(Counter.COUNT_FENCES)
        self.flush()
        # The dead process's loans of our blocks have ended. It may be long before a request counts them anew.
        self.count_arena()
        self.context.acknowledge_fence()

    def fence_processor(self, fence: Fence) -> None:
        if fence.alive:
            self.turn.rebind(fence.role)
            self.outboxes[fence.role].rebind()
            return
        self.turn.drop_inbox(fence.role)
        self.produces.forget_processor(fence.role)
        self.turn.forget_produces(fence.role)
        self.heavy = deque(slot for slot in self.heavy if slot.processor != fence.role)
        for exchange in [e for e in self.open if e.slot.processor == fence.role]:
            exchange.drop()
        self.forget_ended_work()
        self.broker.fetches.forget_processor(fence.role)
        self.broker.forwarding.forget_processor(fence.role)
        self.turn.forget_forwarded(fence.role)
        self.outboxes[fence.role].clear()
        self.broker.answers.reclaim(fence.role)
        self.broker.waiting.forget_processor(fence.role)
        self.turn.forget_shared(fence.role)
        for worker in self.log_workers:
            # The jobs lie in the processor's arena, which is about to be emptied.
            self.turn.drop_jobs(worker, fence.role)

    def forget_ended_work(self) -> None:
        """Stop work on ended exchanges: their requests may lie in an arena that is about to be emptied."""
        long_work = self.broker.long_work
        still = [exchange for exchange in long_work if not exchange.done]
        long_work.clear()
        long_work.extend(still)
        if self.working is not None and self.working.done:
            self.working = None
        if self.long is not None and self.long.done:
            self.long = None
        self.turn.works(self.has_heavy())

    def fence_log(self, fence: Fence) -> None:
        worker = log_worker_number(fence.role)
        if fence.alive:
            self.turn.rebind_log(worker)
            # The successor may have truncated files, or recovered them into others.
            self.broker.readers.forget_all()
            self.turn.places.forget_all()
            self.broker.fetches.look_at_all()
            self.fenced_logs.discard(worker)
            self.turn.paused = False
            self.set_log_up(worker, True)
            return
        self.fenced_logs.add(worker)
        self.set_log_up(worker, False)
        if fence.stage == LOG_FENCE_CLOSE:
            self.turn.paused = True
            self.close_produces(worker)
        elif fence.stage == LOG_FENCE_ANSWER:
            self.answer_finished()
        elif fence.stage == LOG_FENCE_RESUME:
            self.turn.paused = False

    def answer_finished(self) -> None:
        """Answer the jobs that the other workers have returned, and close the connections of all other jobs.

        A job that no worker has taken, or that could not be returned because a ring was full, counts like
        those of the dead worker: nothing more is done for requests that processors take for lost.
        """
        self.take_and_serve(0)
        self.turn.forget_shared(ANY_PROCESSOR)
        for worker in self.log_workers:
            for job in self.turn.drop_jobs(worker, ANY_PROCESSOR):
                self.broker.answers.close_produce(unpack_produce(job))

    def close_produces(self, worker: int) -> None:
        """Close the produces that a dead log worker had; nobody knows whether it appended them."""
        self.turn.drop_inbox(log_worker(worker))
        self.turn.lose_shared(worker)
        for job in self.turn.drop_jobs(worker):
            if kind_of(job) == SlotKind.PRODUCE:
                self.broker.answers.close_produce(unpack_produce(job))
        self.broker.log.worker_died(worker)
        self.broker.log_calls[worker].server_died()
        # Nothing becomes durable before there is a successor.
        self.broker.fetches.look_at_all()
        # Processors take every produce that was taken and is not answered for lost, also those that no log
        # worker has been asked for yet.
        for slot in self.produces.take_waiting():
            self.broker.answers.close(slot)
        for slot in [slot for slot in self.heavy if slot.api_key == ApiKey.PRODUCE]:
            self.heavy.remove(slot)
            self.broker.answers.close(slot)
        for exchange in (*self.broker.long_work, *filter(None, (self.working, self.long))):
            if exchange.slot.api_key == ApiKey.PRODUCE:
                exchange.close()
        self.faults.close_delayed(ApiKey.PRODUCE)
        self.broker.transactions.close_waiting()
        self.forget_ended_work()

    def fence_coordinator(self, fence: Fence) -> None:
        if fence.alive:
            self.turn.rebind(COORDINATOR)
            self.coordinator_was_fenced = False
            self.broker.coordinator.welcome()
        else:
            self.coordinator_was_fenced = True
            self.turn.drop_inbox(COORDINATOR)
            self.broker.transactions.holds.coordinator_died()
            self.take_over()
            self.broker.coordinator.server_died()

    def finish(self) -> None:
        """Answer what this handler still has, waiting for log processes and coordinator."""
        self.serve_delayed(all_of_them=True)
        self.run_once(0)
        # A long one would look again and again, as long as others write.
        self.broker.fetches.expire_all()
        while self.has_heavy() and not self.context.orphaned:
            self.run_once(0)
        until_ms = monotonic_ms() + (0 if self.context.orphaned else STOP_PATIENCE_MS)
        while self.has_unfinished() and monotonic_ms() < until_ms:
            self.broker.fetches.expire_all()
            self.broker.forwarding.release()
            self.run_once(LEAVING_SLEEP_MS)
        for slot in self.produces.take_waiting():
            self.broker.answers.close(slot)
        self.take_over()
        for exchange in list(self.open):
            exchange.close()
        self.broker.waiting.give_up()
        self.broker.audit.close()
        self.flush()

    def has_unfinished(self) -> bool:
        jobs = self.turn.waiting_jobs or self.turn.shared_jobs or self.turn.forwarded_count
        waits = self.unsent or self.broker.waiting or self.produces
        return bool(self.open or self.heavy or jobs or waits)

    def await_returns(self) -> None:
        """Wait until processors have sent the answers in this handler's arena, which ends with the process.

        Slow clients may take long; the supervisor decides how long they may. A processor that dies or leaves
        is fenced, which returns its blocks.
        """
        while (self.unsent or self.broker.answers.lent_blocks) and not self.context.orphaned:
            self.run_once(LEAVING_SLEEP_MS)


def run(context: ProcessContext) -> int:
    """Run a handler process until it stops; return its exit code."""
    return Handler(context).run()
