"""The metadata state machine between the log workers and the bulletins (Kafka: QuorumController).

Calls are decided in rounds, on a draft of the state. The records of a round are appended as one batch, so a
round is in the log as a whole or not at all. When the batch is durable, the draft becomes the state, topics
are opened or removed, and the bulletins announce the change. Then the calls are answered.

At most one round is under way, so its outcome can always be read from the end of the log. If a log worker
dies, the log is read again. If the round's batch is not in the log, its calls are decided again.

In a face (`mpbroker.ipc.mirror`) the state is read from the mirror of the leader's log, each time that has
changed; there are no rounds.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from mpbroker.config.resource_config import TELEMETRY_IS_OFF
from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.bulletins.bulletin_writer import Bulletins
from mpbroker.coordinator.bulletins.news import (
    CredentialKey,
    broker_news,
    credential_news,
    limit_news,
    limited,
)
from mpbroker.coordinator.delays import Delays, Progress
from mpbroker.coordinator.following import Following
from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.metadata_records import (
    MetadataRecord,
    build_metadata_batch,
    encode_record,
    feature_records,
)
from mpbroker.coordinator.metadata.permissions import Permissions
from mpbroker.coordinator.metadata.replay import refuse_tiered_topics, replay
from mpbroker.coordinator.metadata.state import Decider, Decision, InconsistentMetadata, MetadataState, Topic
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.coordinator.waiting import Awaited, Change, Token, WaitingCallers
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.calls import EnsuredTopic, Failed, Message, RemovedTokens, RemoveExpiredTokens
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import METADATA_SLOT, PartitionImage, PartitionSlots
from mpbroker.ipc.process import FatalError, ProcessContext
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition, read_partition_surely
from mpbroker.ipc.topology import COORDINATOR, slots_given
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import PartitionRecord, RemoveTopicRecord, TopicRecord
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.protocol.uuids import uuid_text
from mpbroker.quotas.meters import MutationMeters
from mpbroker.quotas.mutations import Mutations
from shm.clock import monotonic_ms
from shm.table import SlotBusy

# A round of this size takes no more calls, so that its batch stays small enough for every reader.
ROUND_BYTES = 512 << 10
# Records encoded, or applied, in a step: some milliseconds. A new topic may have 10,000 partitions.
RECORDS_AT_ONCE = 1_000
RETRY_OPEN_SECONDS = 1.0
# The log process may not know whether the batch was appended, or that we own the log: the log has the answer.
UNKNOWN_OUTCOME = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_log = logging.getLogger("mpbroker.coordinator")


class Phase(Enum):
    """The coordinator's progress from its start, or from the death of a log worker, until it serves."""

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
    """Decisions whose records are appended together, as one batch."""

    draft: MetadataState
    decided: list[tuple[Caller, Message, Decision]] = field(default_factory=list)

    def refund(self) -> None:
        """Give back the tokens that a dropped round took from the clients' mutation quotas."""
        for _, _, decision in self.decided:
            if decision.mutation:
                decision.mutation.refund()


@dataclass
class TokenSweep:
    """Removes expired delegation tokens (Kafka: QuorumController.sweepExpiredDelegationTokens).

    The sweep runs at the start, every `interval_ms`, and again at once while expired tokens remain.
    `ask(call, then)` makes the metadata controller decide a call and pass the answer to `then`.
    """

    interval_ms: int
    now_ms: Callable[[], int]
    ask: Callable[[Message, Callable[[Message], None]], None]
    _is_under_way: bool = False

    def __post_init__(self) -> None:
        self._due_ms = self.now_ms()

    def step(self, *, has_tokens: bool) -> None:
        if has_tokens and not self._is_under_way and self.now_ms() >= self._due_ms:
            self._is_under_way = True
            self.ask(RemoveExpiredTokens(), self._removed)

    def _removed(self, answer: Message) -> None:
        """Log the removed tokens, and schedule the next sweep."""
        self._is_under_way = False
        removed = answer.token_ids if isinstance(answer, RemovedTokens) else []
        for token_id in removed:
            _log.info("delegation token %s has expired and is removed", token_id)
        if not removed:
            self._due_ms = self.now_ms() + self.interval_ms


class MetadataController:
    """Decides calls round by round. `answer_handler` sends the answer to a handler's call."""

    # A round that is not appended yet, and the rest of the work on it.
    _draft: Round | None = None
    _drafting: Generator[None, None, None] | None = None
    _round: Round | None = None
    _slot: Partition | None = None
    _phase = Phase.LOG_AWAY
    _followed = 0
    _retry_at = 0.0
    _is_ready = False
    # Whether a face has read the metadata in its mirror.
    _has_followed = False
    # Whether an earlier version wrote the log, which lacks feature levels of this one.
    _levels_due = False

    def __init__(
        self,
        context: ProcessContext,
        lender: Lender,
        cluster_id: str,
        now_ms: Callable[[], int],
        new_id: Callable[[], bytes],
        answer_handler: Callable[[Caller, Message], bool],
    ) -> None:
        memory, config = context.memory, context.config
        self._context = context
        self._now_ms = now_ms
        self._answer_handler = answer_handler
        self.table = memory.table()
        self.link = LogLink(context, lender, self)
        burst_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        measured = MutationMeters(memory.meters(COORDINATOR), memory.quota_secret)
        mutations = Mutations(burst_s, monotonic_ms, measured)
        # A base takes half of the bulletin; this is half of that half.
        room = memory.BULLETIN_BYTES // 4
        self._decider = Decider(config, memory.sizes.most_partitions, new_id, mutations, room, now_ms)
        self._bulletins = bulletins = Bulletins(memory, context.is_alive)
        quotas = memory.words("request_quotas")
        self.announcer = Announcer(bulletins.topics, quotas, cluster_id, config.node_id)
        self._credentials = credential_news(bulletins.credentials, self._decider.macs)
        self._limits = limit_news(bulletins.limits)
        self._brokers = broker_news(bulletins.brokers)
        self._brokers_done = memory.words("brokers_done")
        self._token_sweep = TokenSweep(
            config.delegation_token_expiry_check_interval_ms, monotonic_ms, self.ask
        )
        self.state = MetadataState()
        self.permissions = Permissions(config)
        self.following = Following(config)
        self._calls: deque[tuple[Caller, Message]] = deque()
        # Calls of the state machines in this process, and the receivers of the answers.
        self._our_calls: dict[Caller, Callable[[Message], None]] = {}
        self._our_numbers = itertools.count()
        self._waiting = WaitingCallers(self._answer)
        self._delays = Delays(self.link, self._waiting, bulletins.lagging)
        self._to_open: set[bytes] = set()
        self._failed: set[bytes] = set()
        # By topic, the first partition that was made in the life of this log process, as long as one lacks a
        # slot: nothing can have been appended to it or to later ones.
        self._new: dict[bytes, int] = {}
        # Called with the names of topics that were deleted, or created, deleted or enlarged.
        self.topics_deleted: Callable[[list[str]], None] = lambda _names: None
        self.topics_changed: Callable[[set[str]], None] = lambda _names: None
        self.greet_if_up()

    # --- calls

    def call(self, caller: Caller, call: Message) -> None:
        """Queue a call of a handler. The next round decides it."""
        self._calls.append((caller, call))

    def ask(self, call: Message, then: Callable[[Message], None]) -> None:
        """Queue a call from within this process. The answer is passed to `then`."""
        caller = Caller(COORDINATOR, 0, next(self._our_numbers))
        self._our_calls[caller] = then
        self._calls.append((caller, call))

    def _answer(self, caller: Caller, answer: Message) -> bool:
        """Answer a caller. Return False if the caller's handler has died or the arena is full."""
        if caller.handler == COORDINATOR:
            self._our_calls.pop(caller)(answer)
            return True
        return self._answer_handler(caller, answer)

    def drop_calls_of(self, handler: int) -> None:
        self._calls = deque(entry for entry in self._calls if entry[0].handler != handler)

    # --- the loop's view

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        is_face = phase is Phase.SERVING and self.following.is_face
        self._context.counters.set_status("following the leader's metadata" if is_face else STATUS[phase])

    @property
    def is_serving(self) -> bool:
        return self.phase is Phase.SERVING

    def step(self) -> None:
        """Read the metadata log or serve calls, as far as possible without waiting. Log long delays."""
        if self.phase is Phase.READING:
            self._read_log()
        if self.is_serving:
            self._serve()
        self._delays.check(self._progress)

    @property
    def has_work(self) -> bool:
        """Return whether a round is being drafted."""
        return self._drafting is not None and self.is_serving

    @property
    def polls(self) -> bool:
        """Return whether the controller waits for an event that rings no doorbell, so that it must poll."""
        announcers = (self.announcer, self._credentials, self._limits, self._brokers)
        has_news = self.is_serving and any(one.has_news for one in announcers)
        return has_news or self.phase is Phase.READING or self.link.waits_for_room

    @property
    def is_idle(self) -> bool:
        """Return whether no call is under way."""
        return not (self._calls or self._draft or self._round or self._waiting) and self.link.idle

    def _progress(self) -> Progress:
        """Return the calls under way, for `Delays`."""
        current = self._round or self._draft
        decided = current.decided if current is not None else []
        written = [type(call).__name__ for _, call, _ in decided]
        away = None if self.is_serving else STATUS[self.phase]
        return Progress(self.state.topics, written, len(self._calls), away)

    # --- the log workers' lives

    def log_worker_up(self, worker: int) -> None:
        self.link.peer_up(worker)
        self.greet_if_up()

    def log_worker_died(self, worker: int) -> None:
        self.phase = Phase.LOG_AWAY
        self.link.peer_down(worker)
        self._new.clear()

    def greet_if_up(self) -> None:
        if self.link.is_up:
            self.phase = Phase.GREETING
            self.link.greet()

    def log_answers(self) -> None:
        self.phase = Phase.READING

    def _read_log(self) -> None:
        """Read the metadata log and open its topics, as soon as all of the log is durable."""
        if self.link.is_appending:
            return
        try:
            end = read_partition(self.table, METADATA_SLOT)
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
        if self.following.is_face:
            self._follow()
            if self._has_followed:
                self.phase = Phase.OPENING
                self._opened_all_if_so()
            return
        state, removed = replay(log_dirs, end)
        refuse_tiered_topics(state, self._context.config)
        self._slot = end
        self.phase = Phase.OPENING
        self.link.resume()
        self._resolve_round(state)
        self._levels_due = bool(self.state.next_offset and feature_records(self.state.features))
        self._replaced()
        self._remove_leftovers(removed)
        self._to_open = set(state.topics)
        for topic in state.topics.values():
            self.link.open(topic)
        self._opened_all_if_so()

    def _replaced(self) -> None:
        """Publish the state as a whole, because it was read from a log."""
        self.permissions.replace(self.state.acls)
        self._credentials.replaced()
        self._limits.replaced()
        self._brokers.replaced()

    def _follow(self) -> None:
        """Publish the state in the mirror, if it is new, and what consumers may read of it."""
        if (state := self.following.new_state()) is not None:
            self.state = state
            self._has_followed = True
            self._replaced()
            self.announcer.follow(state.topics)
        if (slots := self.following.new_partitions(self.table)) is not None:
            self.announcer.follow_slots(slots)

    def _resolve_round(self, state: MetadataState) -> None:
        """Set the state read from the log. Complete the interrupted round if it is there, else requeue it."""
        self._drop_draft()
        unknown, self._round = self._round, None
        if unknown is None:
            self.state = state
        elif state.next_offset == self.state.next_offset:
            self.state = state
            unknown.refund()
            self._calls.extendleft((caller, call) for caller, call, _ in reversed(unknown.decided))
        elif state.next_offset == unknown.draft.next_offset:
            self._complete(unknown, state)
        else:
            raise InconsistentMetadata(f"the log ends at {state.next_offset}, where no round of ours ends")

    def _remove_leftovers(self, removed: dict[bytes, str]) -> None:
        """Remove topics that the log says are removed but that log workers still serve."""
        for slot in slots_given(self.table, len(self.link.workers)):
            partition = read_partition_surely(self.table, slot)
            if partition.flags & PartitionFlag.PARTITION_LIVE and partition.topic_id in removed:
                self.link.remove(removed[partition.topic_id], partition.topic_id)

    # --- rounds

    def _serve(self) -> None:
        if self._failed and time.monotonic() >= self._retry_at:
            for topic_id in self._failed & self.state.topics.keys():
                self._open(self.state.topics[topic_id])
            self._failed.clear()
        self._follow()
        self._token_sweep.step(has_tokens=self._decider.macs is not None and bool(self.state.tokens))
        if self._round is None and self._drafting is None and (self._calls or self._levels_due):
            self._drafting = self._drafted()
        if self._drafting is not None and next(self._drafting, self) is self:
            self._drafting = None
        self._credentials.publish(self.state)
        if self._limits.publish(self.state):
            self._ring(self._bulletins.limits)
        if self._brokers.publish(self.state):
            self._ring(self._bulletins.brokers)
        if (followed := self._brokers_done.load(0)) != self._followed:
            self._followed = followed
            self._settle_announced()
        if self.following.new_nodes():
            self.announcer.nodes = self.following.nodes
            self.announcer.replaced()
        if self.announcer.publish(self.state):
            self._ring(self._bulletins.topics)
            self._settle_announced()
            self._context.counters.set(Counter.COUNT_TOPICS, len(self.state.topics))
            self._context.counters.set(Counter.COUNT_PARTITIONS, self.state.partitions)
        if not self.announcer.has_news:
            self.announcer.run_actions()

    def _ring(self, publisher: BulletinPublisher) -> None:
        for reader in publisher.live_readers():
            self._context.ring(reader)

    def _drafted(self) -> Generator[None, None, None]:
        """Decide the waiting calls, each on a draft with the earlier decisions, and append the round.

        A generator, so that the process can do other work at each `yield`.
        """
        current = self._draft = Round(self.state.draft())
        values: list[bytes] = []
        size = 0
        while self._calls and size < ROUND_BYTES and len(values) < RECORDS_AT_ONCE:
            caller, call = self._calls.popleft()
            try:
                decision = self._decider.decide(current.draft, call)
                if self.following.is_face and decision.records:
                    code = ErrorCode.NOT_CONTROLLER
                    decision = Decision(Failed(code, code.message), mutation=decision.mutation)
                current.decided.append((caller, call, decision))
                encoded = yield from _encoded(decision.records)
            except Exception as error:  # noqa: BLE001 - one call's failure must not affect the others
                _log.exception("%s from %s failed", type(call).__name__, caller)
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
        are_due, self._levels_due = self._levels_due, False
        if not (values or are_due):
            self._complete(current, self.state)
            return
        levels = feature_records(self.state.features)
        values = [*map(encode_record, levels), *values]
        current.draft.apply_all([*levels])
        assert self._slot is not None
        self._round = current
        batch = build_metadata_batch(values, self._now_ms())
        self.link.append(bytes(batch), len(values), self._slot)

    def _drop_draft(self) -> None:
        """Drop the decisions that were not appended. Queue their calls again."""
        draft, self._draft, self._drafting = self._draft, None, None
        if draft is not None:
            draft.refund()
            self._calls.extendleft((caller, call) for caller, call, _ in reversed(draft.decided))

    def appended(self, error: int, base_offset: int) -> None:
        """Handle the outcome of the round's append: durable if `error` is 0, else refused or unknown."""
        done = self._round
        assert done is not None
        code = error_code(error)
        if code in UNKNOWN_OUTCOME:
            _log.warning("append to the metadata log: %s; reading it again", code.name)
            self.greet_if_up()
            return
        self._round = None
        if error:
            _log.error("append to the metadata log was refused: %s", code.name)
            done.refund()
            for caller, _, _ in done.decided:
                self._answer(caller, Failed(code, code.message))
            return
        if base_offset != self.state.next_offset:
            raise InconsistentMetadata(f"a round got offset {base_offset}, not {self.state.next_offset}")
        self._complete(done, done.draft)

    def _complete(self, done: Round, state: MetadataState) -> None:
        """Replace the state after a durable round. Answer each call when its effects are visible."""
        self._note_new(done, state)
        records = [record for _, _, decision in done.decided for record in decision.records]
        for line in topic_lines(records, self.state.topics):
            _log.info("%s", line)
        changed = changed_topics(records, self.state.topics, state.topics)
        self.state = state
        if changed:
            self.topics_changed(changed)
        for caller, _, decision in done.decided:
            missing: set[Token] = set()
            by_call = caller.handler.to_bytes(2) + caller.request.to_bytes(4)
            for topic in decision.removes:
                missing.add((Awaited.REMOVED, topic.topic_id))
                remove = partial(self.link.remove, topic.name, topic.topic_id)
                self.announcer.removed(topic.topic_id, remove)
                self._failed.discard(topic.topic_id)
                self._new.pop(topic.topic_id, None)
            if decision.removes:
                self.topics_deleted([topic.name for topic in decision.removes])
            for topic_id in decision.awaits:
                if topic_id not in self.announcer.announced and topic_id in state.topics:
                    missing.add((Awaited.USABLE, topic_id))
                    if topic_id not in self.announcer.slots:
                        self._open(state.topics[topic_id])
            for change in decision.changes:
                missing.add(change)
                if change.topic_id in state.topics:
                    self._open(state.topics[change.topic_id])
            if decision.quotas:
                missing.add(token := (Awaited.QUOTAS, by_call))
                self.announcer.quotas_changed(decision.quotas)
                self.announcer.then(partial(self._waiting.settle, {token}))
                if addresses := limited(decision.quotas):
                    missing.add(token := (Awaited.RATES, by_call))
                    self._limits.changed(addresses, partial(self._waiting.settle, {token}))
            if decision.acls:
                missing.add(token := (Awaited.ACLS, by_call))
                self.permissions.update(decision.acls, state.acls)
                self.announcer.acls_changed(decision.acls)
                self.announcer.then(partial(self._waiting.settle, {token}))
            if decision.subscriptions:
                missing.add(token := (Awaited.SUBSCRIPTIONS, by_call))
                self._warn_if_unserved(decision.subscriptions)
                self.announcer.subscriptions_changed(decision.subscriptions)
                self.announcer.then(partial(self._waiting.settle, {token}))
            if decision.credentials or decision.tokens:
                missing.add(token := (Awaited.CREDENTIALS, by_call))
                logins: list[CredentialKey] = [*decision.credentials, *decision.tokens]
                self._credentials.changed(logins, partial(self._waiting.settle, {token}))
            if decision.brokers_version:
                missing.add((Awaited.SETTINGS, decision.brokers_version.to_bytes(8)))
                self._brokers.changed(state.brokers, lambda: None)
            self._waiting.add(caller, decision.answer, missing)
        self._settle_announced()

    def _warn_if_unserved(self, subscriptions: list[str]) -> None:
        """Log a warning about each subscription to client metrics if clients push none to this broker."""
        for name in subscriptions:
            is_there = (ConfigResourceType.CLIENT_METRICS, name) in self.state.settings
            if is_there and not self._context.config.client_telemetry_enable:
                _log.warning("client metrics %s: %s", printable(name), TELEMETRY_IS_OFF)

    def _note_new(self, done: Round, state: MetadataState) -> None:
        """Note for `_open` which partitions the round creates. Call this before `self.state` is replaced."""
        made = [topic_id for _, _, decision in done.decided for topic_id in decision.awaits]
        changed = [change.topic_id for _, _, decision in done.decided for change in decision.changes]
        for topic_id in (*made, *changed):
            before = self.state.topics.get(topic_id)
            known = 0 if before is None else before.partitions
            if topic_id in state.topics and known < state.topics[topic_id].partitions:
                self._new.setdefault(topic_id, known)

    def _open(self, topic: Topic) -> None:
        self.link.open(topic, self._new.get(topic.topic_id))

    # --- what the log process did, and what handlers can see

    def opened(self, topic: Topic, answer: Message) -> None:
        if topic.topic_id in self.state.topics:
            self._note_partitions(topic, answer)
        self._to_open.discard(topic.topic_id)
        self._opened_all_if_so()
        self._settle_announced()

    def _note_partitions(self, topic: Topic, answer: Message) -> None:
        """Note the slots of a topic's partitions, from the log workers' answer.

        A partition without a slot could not be opened. Its opening is retried; until then the partition is
        announced with slot generation 0, which no slot has. (An offline partition has a slot.)
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
        elif topic.partitions == self.state.topics[topic_id].partitions:
            self._new.pop(topic_id, None)
        if self.announcer.opened(topic, PartitionSlots.of(images.values())) and problem:
            _log.error("%s", problem)

    def _opened_all_if_so(self) -> None:
        if self.phase is not Phase.OPENING or self._to_open:
            return
        self.link.recovered(self.state.topics.values())
        self.phase = Phase.SERVING
        if not self._is_ready:
            self._is_ready = True
            self.announcer.then(self._context.ready)

    def removed(self, topic_id: bytes, answer: Message) -> None:
        if isinstance(answer, Failed):
            _log.error("files of topic id %s are not removed: %s", topic_id.hex(), answer.message)
        self._waiting.settle({(Awaited.REMOVED, topic_id)})

    def _settle_announced(self) -> None:
        """Answer the calls whose effects are visible now: topics announced or deleted, settings applied."""
        if self._waiting:
            self._waiting.settle_if(self._is_seen)

    def _is_seen(self, token: Token) -> bool:
        if isinstance(token, Change):
            seen = self.announcer.announced.get(token.topic_id)
            if seen is not None:
                return seen.config_version >= token.config_version and seen.partitions >= token.partitions
            return token.topic_id not in self.state.topics
        if token[0] is Awaited.SETTINGS:
            return int.from_bytes(token[1]) <= self._followed
        is_there = token[1] in self.announcer.announced or token[1] not in self.state.topics
        return token[0] is Awaited.USABLE and is_there


def _encoded(records: Sequence[MetadataRecord]) -> Generator[None, None, list[bytes]]:
    """Return the encoded records. A generator, which yields after each RECORDS_AT_ONCE records."""
    encoded: list[bytes] = []
    for at in range(0, len(records), RECORDS_AT_ONCE):
        if at:
            yield
        encoded += [encode_record(record) for record in records[at : at + RECORDS_AT_ONCE]]
    return encoded


def topic_lines(records: Iterable[MetadataRecord], before: dict[bytes, Topic]) -> Iterator[str]:
    """Yield a log line for each created, extended or deleted topic. `before`: the topics before `records`."""
    made: dict[bytes, str] = {}
    added: Counts[bytes] = Counts()
    removed: dict[bytes, None] = {}
    for record in records:
        match record:
            case TopicRecord():
                made[record.topic_id] = record.name
            case PartitionRecord():
                added[record.topic_id] += 1
            case RemoveTopicRecord():
                removed[record.topic_id] = None
    for topic_id, name in made.items():
        yield f"topic {name} is created: {_partitions(added.pop(topic_id))}, id {uuid_text(topic_id)}"
    for topic_id, more in added.items():
        topic = before[topic_id]
        yield f"topic {topic.name} has {_partitions(topic.partitions + more)}, {more} of them new"
    for topic_id in removed:
        name = made[topic_id] if topic_id in made else before[topic_id].name
        yield f"topic {name} is deleted: id {uuid_text(topic_id)}"


def changed_topics(
    records: Iterable[MetadataRecord], before: dict[bytes, Topic], after: dict[bytes, Topic]
) -> set[str]:
    """Return the names of topics that the records create, delete or enlarge."""
    kinds = (TopicRecord, PartitionRecord, RemoveTopicRecord)
    ids = {record.topic_id for record in records if isinstance(record, kinds)}
    return {topics[topic_id].name for topics in (before, after) for topic_id in ids if topic_id in topics}


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
