"""The coordinator process: the metadata state machine between handlers, log process and bulletin.

Calls that came while a round was under way are decided together on a draft of the state and appended as one
batch: a round is in the log as a whole or not at all. When it is durable the draft becomes the state, topics
are opened or removed, and the bulletin announces the change. Only then the calls are answered.

At most one round is under way, so its outcome can always be read from the end of the log. After a death of
the log process the log is read again, and a round that is not in it is decided anew. The loop sleeps in one
place; nothing else here waits.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.bulletins.bulletin_set import Bulletins
from mpbroker.coordinator.bulletins.news import (
    CredentialKey,
    broker_news,
    credential_news,
    limit_news,
    limited,
)
from mpbroker.coordinator.delays import Delays, Now
from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.metadata_records import (
    MetadataRecord,
    build_metadata_batch,
    encode_record,
    feature_records,
)
from mpbroker.coordinator.metadata.replay import replay
from mpbroker.coordinator.metadata.state import Decider, Decision, InconsistentMetadata, MetadataState, Topic
from mpbroker.coordinator.metadata.token_sweep import TokenSweep
from mpbroker.coordinator.metadata.topic_lines import topic_lines
from mpbroker.coordinator.services import Services
from mpbroker.coordinator.waiting import Awaited, Caller, Change, Token, WaitingCallers
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.calls import (
    Abandon,
    CheckTransaction,
    EndHold,
    EnsuredTopic,
    Failed,
    ForwardedRequest,
    HoldsEnded,
    Message,
)
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import METADATA_SLOT, PartitionImage, Places
from mpbroker.ipc.process import IDLE_SLEEP_MS, MAX_SLEEP_MS, ExitCode, FatalError, Fence, ProcessContext
from mpbroker.ipc.rings import RingPair, any_waits
from mpbroker.ipc.rpc import RpcServer
from mpbroker.ipc.slots import SlotKind, kind_of, unpack_call, unpack_return
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition, read_partition_surely
from mpbroker.ipc.topology import (
    COORDINATOR,
    HANDLERS,
    is_handler,
    is_log_worker,
    log_worker_number,
    name_of,
    slots_given,
)
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.quotas.meters import MutationMeters
from mpbroker.quotas.mutations import Mutations
from shm.clock import monotonic_ms, wall_ms
from shm.table import SlotBusy

# A round of this size takes no more calls, so that its batch stays small enough for every reader.
ROUND_BYTES = 512 << 10
# Records encoded, or made true, in a step: some milliseconds. A new topic may have 10,000 partitions.
RECORDS_AT_ONCE = 1_000
# How often to look at words of other processes that ring no doorbell.
POLL_MS = 5
RETRY_OPEN_SECONDS = 1.0
STOP_SECONDS = 5.0
# The log process does not know whether the batch was appended, or that we own the log. Its log will tell.
UNKNOWN_OUTCOME = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER)


# Requests that wait for other members, perhaps for half an hour.
WAIT_FOR_OTHERS = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


class Phase(Enum):
    """The coordinator's progress with the current log process."""

    LOG_AWAY = 0  # at least one log worker is not there
    GREETING = 1
    READING = 2
    OPENING = 3
    SERVING = 4


STATUS = {
    Phase.LOG_AWAY: "waiting for a log process",
    Phase.GREETING: "waiting for the log process to answer",
    Phase.READING: "waiting for all of the metadata log to be durable",
    Phase.OPENING: "waiting for the topics to be opened",
    Phase.SERVING: "serving",
}


@dataclass
class Round:
    """Decisions that are appended together."""

    draft: MetadataState
    decided: list[tuple[Caller, Message, Decision]] = field(default_factory=list)

    def refund(self) -> None:
        """Give back to the clients' quotas what a round that comes to nothing took from them."""
        for _, _, decision in self.decided:
            if decision.mutation:
                decision.mutation.refund()


class Coordinator:
    """The coordinator without its loop. `now_ms` stamps records, `new_id` makes topic ids."""

    # A round that is not appended yet, and the rest of the work on it.
    _draft: Round | None = None
    _drafting: Generator[None, None, None] | None = None

    def __init__(
        self,
        context: ProcessContext,
        cluster_id: str,
        now_ms: Callable[[], int],
        new_id: Callable[[], bytes],
    ) -> None:
        memory, config = context.memory, context.config
        self._context = context
        self._now_ms = now_ms
        self._table = memory.table()
        arena = memory.arena(COORDINATOR)
        arena.reset()
        self._lender = Lender(arena, COORDINATOR)
        self._log = LogLink(context, self._lender, self)
        self._server = RpcServer(
            self._lender, memory.arena, lambda handler, slot: self._rings(handler).push(slot)
        )
        self._handlers: dict[int, RingPair] = {}
        self._lives = dict.fromkeys(HANDLERS, 0)
        # Handlers that died and were not welcomed anew: `roles` may name a successor whose rings are not
        # bound.
        self._fenced: set[int] = set()
        self._bound: tuple[tuple[int, ...] | None, list[RingPair]] = (None, [])
        burst_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        measured = MutationMeters(memory.meters(COORDINATOR), memory.quota_secret)
        mutations = Mutations(burst_s, monotonic_ms, measured)
        # A base takes half of the bulletin; this is half of that half.
        room = memory.BULLETIN_BYTES // 4
        self._decider = Decider(config, memory.sizes.most_partitions, new_id, mutations, room, now_ms)
        self._bulletins = bulletins = Bulletins(memory, context.is_alive)
        quotas = memory.words("request_quotas")
        self._announcer = Announcer(bulletins.topics, quotas, cluster_id, config.node_id)
        self._credentials = credential_news(bulletins.credentials, self._decider.macs)
        self._limits = limit_news(bulletins.limits)
        self._brokers = broker_news(bulletins.brokers)
        self._brokers_done = memory.words("brokers_done")
        self._token_sweep = TokenSweep(
            config.delegation_token_expiry_check_interval_ms, monotonic_ms, self._ask_ourselves, context.log
        )
        self._followed = 0
        self._state = MetadataState()
        self._slot: Partition | None = None
        self._calls: deque[tuple[Caller, Message]] = deque()
        # Calls that our own state machines have made, and who takes the answer.
        self._our_calls: dict[Caller, Callable[[Message], None]] = {}
        self._our_numbers = itertools.count()
        self._round: Round | None = None
        self._waiting = WaitingCallers(self._answer)
        self._delays = Delays(self._log, self._waiting, bulletins.behind)
        self._to_open: set[bytes] = set()
        self._failed: set[bytes] = set()
        # By topic, the first partition that was made in the life of this log process, as long as one lacks a
        # slot: nothing can have been appended to it or to later ones.
        self._new: dict[bytes, int] = {}
        self._retry_at = 0.0
        self._is_ready = False
        self._services = Services(
            config,
            self._table,
            self._log,
            self._announcer,
            lambda: self._state,
            self._ask_ourselves,
            self._answer,
            filter(context.is_alive, HANDLERS),
        )
        self.phase = Phase.LOG_AWAY
        if self._log.is_up:
            self._greet()

    # --- the loop's view

    def step(self) -> None:
        """Do everything that can be done now."""
        while (fence := self._context.pending_fence()) is not None:
            self._mend(fence)
            self._context.acknowledge_fence()
        self._log.receive()
        # What has become durable is answered before anything new is begun.
        self._flush_to_handlers()
        for rings in self._bound_handlers():
            self._receive(rings)
        if self.phase is Phase.READING:
            self._read_log()
        if self.phase is Phase.SERVING:
            self._serve()
        self._services.step(self.phase is Phase.SERVING)
        self._delays.look(self._now)
        self._log.flush()
        self._flush_to_handlers()
        counters, timers = self._context.counters, self._services.groups.coordinator.timers
        counters.set(Counter.COUNT_ARENA_BYTES, self._lender.in_use_bytes)
        counters.set(Counter.COUNT_REBALANCES_DELAYED, timers.count("join") + timers.count("sync"))
        counters.set(Counter.COUNT_HEARTBEATS_DELAYED, timers.count("member"))

    def _flush_to_handlers(self) -> None:
        for rings in self._handlers.values():
            rings.flush()

    def something_waits(self) -> bool:
        """Return whether something waits; the last look before sleeping."""
        if self._context.pending_fence() is not None:
            return True
        if self._drafting is not None and self.phase is Phase.SERVING:
            return True
        return self._log.waiting() or any_waits(self._bound_handlers())

    @property
    def sleep_ms(self) -> int:
        blocked_base = self.phase is Phase.SERVING and self._has_news
        polls = blocked_base or self.phase is Phase.READING or self._log.waits_for_room
        most_ms = POLL_MS if polls else IDLE_SLEEP_MS if self.idle else MAX_SLEEP_MS
        return self._services.sleep_ms(most_ms)

    @property
    def _has_news(self) -> bool:
        """Return whether something is to be announced."""
        return (
            self._announcer.has_news
            or self._credentials.has_news
            or self._limits.has_news
            or self._brokers.has_news
        )

    @property
    def idle(self) -> bool:
        """Return whether nobody waits for anything, so that the process may stop."""
        rounds = self._calls or self._draft or self._round
        if rounds or self._waiting or not (self._services.is_idle and self._log.idle):
            return False
        return not any(rings.has_unsent for rings in self._handlers.values())

    # --- handlers

    def _now(self) -> Now:
        """Describe the moment for `Delays`."""
        current = self._round or self._draft
        decided = current.decided if current is not None else []
        written = [type(call).__name__ for _, call, _ in decided]
        away = None if self.phase is Phase.SERVING else STATUS[self.phase]
        return Now(self._state.topics, written, len(self._calls), away)

    def _bound_handlers(self) -> list[RingPair]:
        """Return the rings of the handlers that are there, from memory while they are the same ones."""
        incarnations = self._context.incarnations(HANDLERS[0], len(HANDLERS))
        if incarnations != self._bound[0]:
            there = [index for index, one in zip(HANDLERS, incarnations, strict=True) if one]
            self._bound = incarnations, [self._rings(one) for one in there if one not in self._fenced]
        return self._bound[1]

    def _rings(self, index: int) -> RingPair:
        if index not in self._handlers:
            self._handlers[index] = RingPair(self._context, index)
        return self._handlers[index]

    def _receive(self, rings: RingPair) -> None:
        for slot in rings.take():
            match kind_of(slot):
                case SlotKind.CALL:
                    call = unpack_call(slot)
                    caller = Caller(rings.other, self._lives[rings.other], call.request)
                    if (message := self._server.message_of(call)) is not None:
                        if isinstance(message, ForwardedRequest) and message.api_key in WAIT_FOR_OTHERS:
                            self._server.give_back(call)
                        self._called(caller, message)
                case SlotKind.RETURN:
                    returned = unpack_return(slot)
                    self._lender.end(returned.block, returned.generation)
                case kind:
                    raise ValueError(f"{name_of(rings.other)} sent a descriptor of kind {kind}")

    def _called(self, caller: Caller, call: Message) -> None:
        match call:
            case ForwardedRequest() | CheckTransaction() | EndHold() | HoldsEnded() | Abandon():
                self._services.receive(caller, call)
            case _:
                self._calls.append((caller, call))

    def _answer(self, caller: Caller, answer: Message) -> bool:
        """Answer a caller. Return False if the handler died, or if there is no memory for the answer."""
        if caller.handler == COORDINATOR:
            self._our_calls.pop(caller)(answer)
            return True
        if caller.life != self._lives[caller.handler]:
            return False
        return self._server.answer(caller.handler, caller.request, answer)

    def _ask_ourselves(self, call: Message, then: Callable[[Message], None]) -> None:
        """Take a call of one of our own state machines; it is decided like those of handlers."""
        caller = Caller(COORDINATOR, 0, next(self._our_numbers))
        self._our_calls[caller] = then
        self._calls.append((caller, call))

    # --- deaths and successors

    def _mend(self, fence: Fence) -> None:
        if fence.settings_changed:
            self._context.follow_settings()
        elif is_log_worker(fence.role):
            worker = log_worker_number(fence.role)
            if fence.alive:
                self._log.welcome(worker)
                if self._log.is_up:
                    self._greet()
            else:
                self._enter(Phase.LOG_AWAY)
                self._log.forget(worker)
                self._new.clear()
                self._services.log_died()
        elif is_handler(fence.role):
            rings = self._rings(fence.role)
            if fence.alive:
                rings.rebind()
                self._fenced.discard(fence.role)
                self._bound = (None, [])
                return
            self._fenced.add(fence.role)
            self._bound = (None, [])
            self._lives[fence.role] += 1
            self._calls = deque(entry for entry in self._calls if entry[0].handler != fence.role)
            rings.drop()
            self._lender.reclaim(fence.role)
            self._services.handler_died(fence.role)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._context.counters.set_status(STATUS[phase])

    def _greet(self) -> None:
        self._enter(Phase.GREETING)
        self._log.greet()

    def log_answers(self) -> None:
        self._enter(Phase.READING)

    def _read_log(self) -> None:
        """Read our log once all of it is durable: what lies above the durable end may yet become durable."""
        if self._log.is_appending:
            return
        try:
            end = read_partition(self._table, METADATA_SLOT)
        except SlotBusy:
            return
        log_dirs = self._context.config.log_dirs
        if end.topic_id == METADATA_TOPIC_ID and end.flags & PartitionFlag.PARTITION_OFFLINE:
            raise FatalError(
                f"log directory {log_dirs[end.log_dir]} is offline and holds the metadata of all topics; "
                "repair the disk or restore the directory"
            )
        is_open = end.topic_id == METADATA_TOPIC_ID and end.flags & PartitionFlag.PARTITION_LIVE
        if not is_open or end.high_watermark != end.log_end_offset:
            return
        state, removed = replay(log_dirs, end)
        self._slot = end
        self._enter(Phase.OPENING)
        self._log.resume()
        self._resolve_round(state)
        self._remove_leftovers(removed)
        self._credentials.replaced()
        self._limits.replaced()
        self._brokers.replaced()
        self._to_open = set(state.topics)
        for topic in state.topics.values():
            self._log.open(topic)
        self._opened_all_if_so()

    def _resolve_round(self, state: MetadataState) -> None:
        """Find out whether an interrupted round was appended: only we write to the log, so its end tells."""
        self._drop_draft()
        unknown, self._round = self._round, None
        if unknown is None:
            self._state = state
        elif state.next_offset == self._state.next_offset:
            self._state = state
            unknown.refund()
            self._calls.extendleft((caller, call) for caller, call, _ in reversed(unknown.decided))
        elif state.next_offset == unknown.draft.next_offset:
            self._complete(unknown, state)
        else:
            raise InconsistentMetadata(f"the log ends at {state.next_offset}, where no round of ours ends")

    def _remove_leftovers(self, removed: dict[bytes, str]) -> None:
        """Remove topics removed in our log and still served, because a predecessor died in between."""
        for slot in slots_given(self._table, len(self._log.workers)):
            partition = read_partition_surely(self._table, slot)
            if partition.flags & PartitionFlag.PARTITION_LIVE and partition.topic_id in removed:
                self._log.remove(removed[partition.topic_id], partition.topic_id)

    # --- rounds

    def _serve(self) -> None:
        if self._failed and time.monotonic() >= self._retry_at:
            for topic_id in self._failed & self._state.topics.keys():
                self._open(self._state.topics[topic_id])
            self._failed.clear()
        self._token_sweep.step(has_tokens=self._decider.macs is not None and bool(self._state.tokens))
        if self._round is None and self._drafting is None and self._calls:
            self._drafting = self._drafted()
        if self._drafting is not None and next(self._drafting, self) is self:
            self._drafting = None
        self._credentials.publish(self._state)
        if self._limits.publish(self._state):
            self._ring(self._bulletins.limits)
        if self._brokers.publish(self._state):
            self._ring(self._bulletins.brokers)
        if (followed := self._brokers_done.load(0)) != self._followed:
            self._followed = followed
            self._settle_announced()
        if self._announcer.publish(self._state):
            self._ring(self._bulletins.topics)
            self._settle_announced()
            self._context.counters.set(Counter.COUNT_TOPICS, len(self._state.topics))
            self._context.counters.set(Counter.COUNT_PARTITIONS, self._state.partitions)
        if not self._announcer.has_news:
            self._announcer.run_actions()

    def _ring(self, publisher: BulletinPublisher) -> None:
        for reader in publisher.live_readers():
            self._context.ring(reader)

    def _drafted(self) -> Generator[None, None, None]:
        """Decide the calls that wait, each on top of those before it, and append the round.

        Others are served at each `yield`, and the log may die: then `_drop_draft`.
        """
        current = self._draft = Round(self._state.draft())
        values: list[bytes] = []
        size = 0
        while self._calls and size < ROUND_BYTES and len(values) < RECORDS_AT_ONCE:
            caller, call = self._calls.popleft()
            try:
                decision = self._decider.decide(current.draft, call)
                current.decided.append((caller, call, decision))
                encoded = yield from _encoded(decision.records)
            except Exception as error:
                self._context.log.exception("%s from %s failed", type(call).__name__, caller)
                text = f"the coordinator failed: {error}"
                decision = Decision(Failed(ErrorCode.UNKNOWN_SERVER_ERROR, text))
                current.decided = [one for one in current.decided if one[1] is not call]
                current.decided.append((caller, call, decision))
                encoded = []
            for at in range(0, len(decision.records), RECORDS_AT_ONCE):
                if at:
                    yield
                current.draft.apply_all(decision.records[at : at + RECORDS_AT_ONCE])
            values += encoded
            size += sum(map(len, encoded))
        self._draft = None
        if not values:
            self._complete(current, self._state)
            return
        if not self._state.features:
            # A new log, or one of before there were levels in it.
            levels = feature_records()
            values = [*map(encode_record, levels), *values]
            current.draft.apply_all([*levels])
        assert self._slot is not None
        self._round = current
        batch = build_metadata_batch(values, self._now_ms())
        self._log.append(bytes(batch), len(values), self._slot)

    def _drop_draft(self) -> None:
        """Drop what was decided and not appended: it is decided anew on the state that is read."""
        draft, self._draft, self._drafting = self._draft, None, None
        if draft is not None:
            draft.refund()
            self._calls.extendleft((caller, call) for caller, call, _ in reversed(draft.decided))

    def appended(self, error: int, base_offset: int) -> None:
        """Take the log process's report: the round is durable (`error` 0), or refused."""
        done = self._round
        assert done is not None
        code = error_code(error)
        if code in UNKNOWN_OUTCOME:
            self._context.log.warning("append to the metadata log: %s; reading it again", code.name)
            if self._log.is_up:
                self._greet()
            return
        self._round = None
        if error:
            self._context.log.error("append to the metadata log was refused: %s", code.name)
            done.refund()
            for caller, _, _ in done.decided:
                self._answer(caller, Failed(code, code.message))
            return
        if base_offset != self._state.next_offset:
            raise InconsistentMetadata(f"a round got offset {base_offset}, not {self._state.next_offset}")
        self._complete(done, done.draft)

    def _complete(self, done: Round, state: MetadataState) -> None:
        """Make the records of a durable round true, and note what each caller's answer waits for."""
        self._note_new(done, state)
        records = [record for _, _, decision in done.decided for record in decision.records]
        for line in topic_lines(records, self._state.topics):
            self._context.log.info("%s", line)
        self._state = state
        for caller, _, decision in done.decided:
            missing: set[Token] = set()
            by_call = caller.handler.to_bytes(2) + caller.request.to_bytes(4)
            for topic in decision.removes:
                missing.add((Awaited.GONE, topic.topic_id))
                remove = partial(self._log.remove, topic.name, topic.topic_id)
                self._announcer.gone(topic.topic_id, remove)
                self._failed.discard(topic.topic_id)
                self._new.pop(topic.topic_id, None)
            if decision.removes:
                self._services.topics_deleted([topic.name for topic in decision.removes])
            for topic_id in decision.awaits:
                if topic_id not in self._announcer.announced and topic_id in state.topics:
                    missing.add((Awaited.USABLE, topic_id))
                    if topic_id not in self._announcer.slots:
                        self._open(state.topics[topic_id])
            for change in decision.changes:
                missing.add(change)
                if change.topic_id in state.topics:
                    self._open(state.topics[change.topic_id])
            if decision.quotas:
                missing.add(token := (Awaited.QUOTAS, by_call))
                self._announcer.quotas_changed(decision.quotas)
                self._announcer.then(partial(self._waiting.settle, {token}))
                if addresses := limited(decision.quotas):
                    missing.add(token := (Awaited.RATES, by_call))
                    self._limits.changed(addresses, partial(self._waiting.settle, {token}))
            if decision.acls:
                missing.add(token := (Awaited.ACLS, by_call))
                self._announcer.acls_changed(decision.acls)
                self._announcer.then(partial(self._waiting.settle, {token}))
            if decision.credentials or decision.tokens:
                missing.add(token := (Awaited.CREDENTIALS, by_call))
                logins: list[CredentialKey] = [*decision.credentials, *decision.tokens]
                self._credentials.changed(logins, partial(self._waiting.settle, {token}))
            if decision.brokers_version:
                missing.add((Awaited.SETTINGS, decision.brokers_version.to_bytes(8)))
                self._brokers.changed(state.brokers, lambda: None)
            self._waiting.add(caller, decision.answer, missing)
        self._settle_announced()

    def _note_new(self, done: Round, state: MetadataState) -> None:
        """Note the partitions that cannot have had records. Call it before the state is replaced."""
        made = [topic_id for _, _, decision in done.decided for topic_id in decision.awaits]
        changed = [change.topic_id for _, _, decision in done.decided for change in decision.changes]
        for topic_id in (*made, *changed):
            before = self._state.topics.get(topic_id)
            known = 0 if before is None else before.partitions
            if topic_id in state.topics and known < state.topics[topic_id].partitions:
                self._new.setdefault(topic_id, known)

    def _open(self, topic: Topic) -> None:
        self._log.open(topic, self._new.get(topic.topic_id))

    # --- what the log process did, and what handlers can see

    def opened(self, topic: Topic, answer: Message) -> None:
        if topic.topic_id in self._state.topics:
            self._note_partitions(topic, answer)
        self._to_open.discard(topic.topic_id)
        self._opened_all_if_so()
        self._settle_announced()

    def _note_partitions(self, topic: Topic, answer: Message) -> None:
        """Note where the partitions of a topic are.

        An offline partition has a slot that says so. One without a slot is tried again; until then it is
        announced with generation 0, which no slot ever has.
        """
        name, topic_id = topic.name, topic.topic_id
        images = {number: PartitionImage(number, 0, 0) for number in range(topic.partitions)}
        problem = ""
        if isinstance(answer, EnsuredTopic):
            # The log worker has logged why a partition is offline.
            for ensured in answer.partitions:
                images[ensured.partition] = PartitionImage(
                    ensured.partition, ensured.slot, ensured.slot_generation
                )
        else:
            problem = f"topic {name} cannot be opened: {answer}"
        if not all(image.slot_generation for image in images.values()):
            self._failed.add(topic_id)
            self._retry_at = time.monotonic() + RETRY_OPEN_SECONDS
        elif topic.partitions == self._state.topics[topic_id].partitions:
            self._new.pop(topic_id, None)
        if self._announcer.opened(topic, Places.of(images.values())) and problem:
            self._context.log.error("%s", problem)

    def _opened_all_if_so(self) -> None:
        if self.phase is not Phase.OPENING or self._to_open:
            return
        self._log.recovered(self._state.topics.values())
        self._enter(Phase.SERVING)
        if not self._is_ready:
            self._is_ready = True
            self._announcer.then(self._context.ready)

    def removed(self, topic_id: bytes, answer: Message) -> None:
        if isinstance(answer, Failed):
            self._context.log.error("files of topic id %s stay behind: %s", topic_id.hex(), answer.message)
        self._waiting.settle({(Awaited.GONE, topic_id)})

    def _settle_announced(self) -> None:
        """Settle waits for topics that handlers can see now, or that were deleted unseen."""
        if self._waiting:
            self._waiting.settle_if(self._is_seen)

    def _is_seen(self, token: Token) -> bool:
        if isinstance(token, Change):
            seen = self._announcer.announced.get(token.topic_id)
            if seen is not None:
                return seen.config_version >= token.config_version and seen.partitions >= token.partitions
            return token.topic_id not in self._state.topics
        if token[0] is Awaited.SETTINGS:
            return int.from_bytes(token[1]) <= self._followed
        is_there = token[1] in self._announcer.announced or token[1] not in self._state.topics
        return token[0] is Awaited.USABLE and is_there


def _encoded(records: Sequence[MetadataRecord]) -> Generator[None, None, list[bytes]]:
    """Encode records, some at a time."""
    encoded: list[bytes] = []
    for at in range(0, len(records), RECORDS_AT_ONCE):
        if at:
            yield
        encoded += [encode_record(record) for record in records[at : at + RECORDS_AT_ONCE]]
    return encoded


def run(context: ProcessContext, cluster_id: str) -> int:
    """Run the coordinator, from replay to stop. Return the exit code."""
    coordinator = Coordinator(context, cluster_id, wall_ms, lambda: uuid.uuid4().bytes)
    stop_by: float | None = None
    while True:
        coordinator.step()
        if context.must_stop():
            stop_by = stop_by or time.monotonic() + STOP_SECONDS
            alone = context.orphaned or coordinator.phase is Phase.LOG_AWAY
            if coordinator.idle or alone or time.monotonic() > stop_by:
                context.stopped()
                return ExitCode.STOPPED
        context.wait(coordinator.something_waits, coordinator.sleep_ms if stop_by is None else POLL_MS)
