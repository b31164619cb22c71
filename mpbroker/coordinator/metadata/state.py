"""The metadata state machine: the state that the log describes, and decisions that add records to the log.

No I/O; time and ids are parameters.

`MetadataState` is the result of all records of `__cluster_metadata`, applied in order. `decide` takes a state
and a call, and returns the answer and the records that must be durable before the caller gets the answer.
`decide` does not change the state. Records that are not durable yet are applied to a `draft`, a copy of the
state. The draft becomes the state when its records are durable, and is dropped if they are refused.

Kafka: ReplicationControlManager, ProducerIdControlManager, ControllerApis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata import (
    acl_rules,
    broker_rules,
    config_rules,
    quota_rules,
    resource_rules,
    scram_rules,
    token_rules,
    topic_rules,
)
from mpbroker.coordinator.metadata.acl_rules import AclTable
from mpbroker.coordinator.metadata.automatic_topics import AutomaticTopics
from mpbroker.coordinator.metadata.image_sizes import (
    PARTITION_BYTES,
    acl_bytes,
    config_bytes,
    quota_bytes,
    topic_bytes,
)
from mpbroker.coordinator.metadata.metadata_records import KeptRecord, MetadataRecord
from mpbroker.coordinator.metadata.scram_rules import Credentials
from mpbroker.coordinator.metadata.token_rules import TokenTable
from mpbroker.coordinator.metadata.topic_rules import Refused
from mpbroker.coordinator.waiting import Change
from mpbroker.ipc import calls
from mpbroker.protocol import messages
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import GROUP_TOPIC, METADATA_TOPIC, TRANSACTION_TOPIC, collision_key
from mpbroker.protocol.uuids import may_be_given_out, uuid_text
from mpbroker.quotas.entities import Entity, QuotaTable
from mpbroker.quotas.mutations import Mutation, Mutations
from mpbroker.security.acls import Acl
from mpbroker.security.authorizer import super_users_in
from mpbroker.security.delegation import token_macs
from shm.clock import wall_ms

PRODUCER_IDS_PER_BLOCK: Final = 1000
# The part of the partitions that is kept for super users, if there are permissions.
SUPER_USERS_SHARE: Final = 64
ZERO_ID: Final = bytes(16)
MIGRATING_DIRECTORY: Final = bytes(16)
"""Kafka's DirectoryId.MIGRATING: a log directory was selected, and only the log process knows which."""
IMAGE_BYTES_MAX: Final = 64 << 20
PRODUCER_ID_MAX: Final = (1 << 63) - 1
EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class InconsistentMetadata(Exception):
    """A record contradicts earlier records: the log is damaged, or this program has a bug."""


@dataclass(frozen=True)
class Topic:
    """A topic that exists. `config_version` grows with each record that changes its settings."""

    name: str
    topic_id: bytes
    partitions: int = 0
    configs: dict[str, str] = field(default_factory=dict)
    config_version: int = 0


@dataclass
class MetadataState:
    """The state that the log describes. `next_offset` is one above the last record that was applied.

    `image_bytes`: an upper bound of the state's size in the handlers' bulletin. `brokers`: altered settings
    by node id ("" for all brokers); `brokers_version` grows with each record of these settings. `settings`:
    altered settings of groups and of subscriptions to client metrics; `image_bytes` does not count them.
    """

    topics: dict[bytes, Topic] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)
    next_producer_id: int = 0
    next_offset: int = 0
    partitions: int = 0
    image_bytes: int = 0
    quotas: QuotaTable = field(default_factory=QuotaTable)
    credentials: Credentials = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers_version: int = 0
    settings: resource_rules.Settings = field(default_factory=dict)
    acls: AclTable = field(default_factory=dict)
    acls_by_id: dict[bytes, Acl] = field(default_factory=dict)
    tokens: TokenTable = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    _colliding: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _newest_topic: int = -1

    def draft(self) -> MetadataState:
        """Return a copy to which records can be applied before they are durable. Both share Topic objects."""
        return replace(
            self,
            topics=self.topics.copy(),
            ids=self.ids.copy(),
            quotas=self.quotas.copy(),
            credentials=self.credentials.copy(),
            brokers=self.brokers.copy(),
            settings=self.settings.copy(),
            acls=self.acls.copy(),
            acls_by_id=self.acls_by_id.copy(),
            tokens=self.tokens.copy(),
            features=self.features.copy(),
            _colliding=self._colliding.copy(),
        )

    def colliding_with(self, name: str) -> str | None:
        """Return an existing topic whose name differs only in dots and underscores, or None."""
        key = collision_key(name)
        names = self._colliding.get(key, ()) if key is not None else ()
        return names[0] if names else None

    def has_topics_since(self, version: int) -> bool:
        """Return whether topics were created after the state in which `next_offset` was `version`.

        A `version` above `next_offset` comes from another log with unknown topics: return True.
        """
        return not self._newest_topic < version <= self.next_offset

    def apply_all(self, records: list[MetadataRecord]) -> None:
        """Apply records, the first of which has offset `next_offset`. Raises InconsistentMetadata."""
        for record in records:
            self._apply(record)
            self.next_offset += 1

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case messages.TopicRecord():
                if record.name in self.ids or record.topic_id in self.topics:
                    self._inconsistent(f"topic {record.name} is there already")
                self.ids[record.name] = record.topic_id
                self.topics[record.topic_id] = Topic(record.name, record.topic_id)
                self._newest_topic = self.next_offset
                self.image_bytes += topic_bytes(record.name, 0, {})
                if key := collision_key(record.name):
                    self._colliding[key] = (*self._colliding.get(key, ()), record.name)
            case messages.PartitionRecord():
                self._add_partition(record)
            case messages.ConfigRecord():
                self._set_config(record)
            case messages.RemoveTopicRecord():
                self._remove(record.topic_id)
            case messages.ClientQuotaRecord():
                entity = quota_rules.entity_in(record)
                self.image_bytes -= quota_bytes(entity, self.quotas.of(entity))
                self.quotas.change(entity, record.key, None if record.remove else record.value)
                self.image_bytes += quota_bytes(entity, self.quotas.of(entity))
            case messages.UserScramCredentialRecord():
                self.credentials[record.name, record.mechanism] = scram_rules.credential_in(record)
            case messages.RemoveUserScramCredentialRecord():
                if self.credentials.pop((record.name, record.mechanism), None) is None:
                    self._inconsistent("a credential is to be removed and does not exist")
            case messages.AccessControlEntryRecord():
                self._add_acl(record.id, acl_rules.acl_in(record))
            case messages.RemoveAccessControlEntryRecord():
                self._remove_acl(record.id)
            case messages.DelegationTokenRecord():
                self.tokens[record.token_id] = token_rules.token_in(record)
            case messages.RemoveDelegationTokenRecord():
                if self.tokens.pop(record.token_id, None) is None:
                    self._inconsistent(f"token {record.token_id} is to be removed and does not exist")
            case messages.FeatureLevelRecord():
                self.features[record.name] = record.feature_level
            case KeptRecord():
                pass
            case messages.ProducerIdsRecord():
                if record.next_producer_id < self.next_producer_id:
                    self._inconsistent(f"producer ids go back to {record.next_producer_id}")
                self.next_producer_id = record.next_producer_id

    def _add_partition(self, record: messages.PartitionRecord) -> None:
        topic = self.topics.get(record.topic_id)
        if topic is None:
            self._inconsistent(f"a partition of topic id {record.topic_id.hex()}, which does not exist")
        if record.partition_id != topic.partitions:
            self._inconsistent(f"partition {record.partition_id} of {topic.name} is not its next one")
        self.topics[record.topic_id] = replace(topic, partitions=topic.partitions + 1)
        self.partitions += 1
        self.image_bytes += PARTITION_BYTES

    def _set_config(self, record: messages.ConfigRecord) -> None:
        if record.resource_type == ConfigResourceType.BROKER:
            self._set_broker_config(record)
            return
        if record.resource_type in resource_rules.KINDS:
            resource_rules.apply(self.settings, record)
            return
        topic_id = self.ids.get(record.resource_name)
        if record.resource_type != ConfigResourceType.TOPIC or topic_id is None:
            self._inconsistent(f"a setting of resource {record.resource_type} {record.resource_name!r}")
        topic = self.topics[topic_id]
        self.image_bytes += config_bytes(record.name, record.value)
        self.image_bytes -= config_bytes(record.name, topic.configs.get(record.name))
        configs = {name: value for name, value in topic.configs.items() if name != record.name}
        if record.value is not None:
            configs[record.name] = record.value
        self.topics[topic_id] = replace(topic, configs=configs, config_version=topic.config_version + 1)

    def _set_broker_config(self, record: messages.ConfigRecord) -> None:
        configs = dict(self.brokers.get(record.resource_name, {}))
        configs.pop(record.name, None)
        if record.value is not None:
            configs[record.name] = record.value
        self.brokers[record.resource_name] = configs
        self.brokers_version += 1

    def _add_acl(self, acl_id: bytes, acl: Acl) -> None:
        if acl in self.acls or acl_id in self.acls_by_id:
            self._inconsistent(f"the access control entry {acl_id.hex()} is there already")
        self.acls[acl] = acl_id
        self.acls_by_id[acl_id] = acl
        self.image_bytes += acl_bytes(acl)

    def _remove_acl(self, acl_id: bytes) -> None:
        acl = self.acls_by_id.pop(acl_id, None)
        if acl is None:
            self._inconsistent(f"access control entry {acl_id.hex()} is to be removed and does not exist")
        del self.acls[acl]
        self.image_bytes -= acl_bytes(acl)

    def _remove(self, topic_id: bytes) -> None:
        topic = self.topics.pop(topic_id, None)
        if topic is None:
            self._inconsistent(f"topic id {topic_id.hex()} is to be removed and does not exist")
        del self.ids[topic.name]
        self.partitions -= topic.partitions
        self.image_bytes -= topic_bytes(topic.name, topic.partitions, topic.configs)
        if key := collision_key(topic.name):
            left = tuple(name for name in self._colliding[key] if name != topic.name)
            if left:
                self._colliding[key] = left
            else:
                del self._colliding[key]

    def _inconsistent(self, what: str) -> NoReturn:
        raise InconsistentMetadata(f"{METADATA_TOPIC} offset {self.next_offset}: {what}")


@dataclass
class Decision:
    """The outcome of a call.

    The caller gets `answer` once all this has happened: `records` are durable; topics in `awaits` (ids) are
    usable; topics in `removes` are removed; handlers have read `changes`, `quotas`, `acls` and
    `subscriptions` (to client metrics, by name); processors have read `credentials` and `tokens` (ids); the
    supervisor has applied the brokers' settings of `brokers_version`. If the decision is dropped, `mutation`
    is refunded.
    """

    answer: calls.Message
    records: list[MetadataRecord] = field(default_factory=list)
    awaits: list[bytes] = field(default_factory=list)
    removes: list[Topic] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    quotas: list[Entity] = field(default_factory=list)
    mutation: Mutation | None = None
    credentials: list[tuple[str, int]] = field(default_factory=list)
    brokers_version: int = 0
    acls: list[Acl] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)


def _check_partitions(state: MetadataState, more: int, most: int) -> None:
    """Raise Refused if the broker would have more than `most` partitions after adding `more`."""
    if state.partitions + more > most:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The broker has room for {most} partitions and has {state.partitions}.",
        )


class Decider:
    """Decides calls: computes the answer and the records from a state.

    `new_id` returns 16 random bytes. `partition_limit`: the most partitions of the broker. `image_bytes_max`:
    the most bytes that the whole state may take in the handlers' bulletin. `now_ms` is the wall clock, for
    delegation tokens. `mutations` has the clients' use of the controller mutation quota, which is not
    part of the state.
    """

    def __init__(
        self,
        config: BrokerConfig,
        partition_limit: int,
        new_id: Callable[[], bytes],
        mutations: Mutations | None = None,
        image_bytes_max: int = IMAGE_BYTES_MAX,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._config = config
        self._now_ms = now_ms
        self.macs = token_macs(config.delegation_token_secret_key)
        self._mutations = mutations
        self._partition_limit = partition_limit
        self._automatic = AutomaticTopics(partition_limit)
        self._new_id = new_id
        self._image_bytes_max = image_bytes_max

    def decide(self, state: MetadataState, call: calls.Message) -> Decision:
        """Return the answer to a call and the records to write. Does not change the state."""
        match call:
            case calls.CreateTopics():
                return self._create_topics(state.draft(), call)
            case calls.DeleteTopics():
                return self._delete_topics(state, call)
            case calls.AlterSettings():
                return self._alter(state.draft(), call)
            case calls.CreatePartitions():
                return self._create_partitions(state.draft(), call)
            case calls.AlterQuotas():
                answer, changes = quota_rules.alter(
                    state.quotas, call, self._image_bytes_max - state.image_bytes
                )
                entities = list(dict.fromkeys(map(quota_rules.entity_in, changes)))
                return Decision(answer, list(changes), quotas=entities)
            case calls.AlterScram():
                users, altered = scram_rules.alter(state.credentials, call)
                return Decision(users, list(altered), credentials=[(r.name, r.mechanism) for r in altered])
            case calls.ReadSettings():
                return Decision(resource_rules.read(state.settings, call))
            case calls.DescribeScram():
                return Decision(scram_rules.describe(state.credentials, call))
            case calls.CreateAcls():
                room = self._image_bytes_max - state.image_bytes
                made, created = acl_rules.create(state.acls, call, room, self._new_id)
                return Decision(made, list(created), acls=[acl_rules.acl_in(one) for one in created])
            case calls.DeleteAcls():
                deleted, removed = acl_rules.delete(state.acls, call)
                return Decision(deleted, list(removed), acls=[state.acls_by_id[one.id] for one in removed])
            case (
                calls.CreateToken()
                | calls.ChangeToken()
                | calls.DescribeTokens()
                | calls.RemoveExpiredTokens()
            ):
                return self._decide_token(state, call)
            case calls.AllocateProducerIds():
                return self._allocate_producer_ids(state)
            case _:
                text = f"{type(call).__name__} is not a call to the coordinator"
                return Decision(calls.Failed(ErrorCode.UNKNOWN_SERVER_ERROR, text))

    def _decide_token(
        self,
        state: MetadataState,
        call: calls.CreateToken | calls.ChangeToken | calls.DescribeTokens | calls.RemoveExpiredTokens,
    ) -> Decision:
        tokens, macs, now_ms, config = state.tokens, self.macs, self._now_ms(), self._config
        match call:
            case calls.CreateToken():
                while (token_id := uuid_text(self._new_id())).startswith("-"):
                    pass  # a leading dash begins a flag of a command (Kafka: Uuid.randomUuid)
                made, records = token_rules.create(tokens, call, macs, token_id, now_ms, config)
                return Decision(made, list(records), tokens=[one.token_id for one in records])
            case calls.ChangeToken():
                changed, records = token_rules.change(tokens, call, macs, now_ms, config)
                return Decision(changed, list(records), tokens=[one.token_id for one in records])
            case calls.DescribeTokens():
                return Decision(token_rules.describe(tokens, call, macs))
            case calls.RemoveExpiredTokens():
                expired = token_rules.expired(tokens, now_ms)
                names = [one.token_id for one in expired]
                return Decision(calls.RemovedTokens(names), list(expired), tokens=names)

    def _begin_mutation(self, state: MetadataState, account: calls.Account | None) -> Mutation | None:
        if self._mutations is None or account is None:
            return None
        return self._mutations.begin(state.quotas, account.user, account.client_id, strict=account.strict)

    def _create_topics(self, draft: MetadataState, call: calls.CreateTopics) -> Decision:
        """Decide CreateTopics. Each new topic is added to `draft`; later topics are checked against it."""
        mutation = self._begin_mutation(draft, call.account)
        decision = Decision(answers := calls.CreatedTopics([]), mutation=mutation)
        default = self._config.num_partitions
        asked = call.beside + sum(topic.partitions_asked(default) for topic in call.topics)
        if asked > topic_rules.PARTITIONS_PER_REQUEST_MAX:
            text = topic_rules.too_many_text(asked)
            answers.topics = [
                calls.CreatedTopic(t.name, ErrorCode.POLICY_VIOLATION, text) for t in call.topics
            ]
            return decision
        times = Counter(topic.name for topic in call.topics)
        duplicates = [name for name, count in times.items() if count > 1]
        answers.topics = [
            calls.CreatedTopic(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            for name in duplicates
        ]
        most = self._most_partitions(call.account)
        # The coordinator's own topics count for no principal.
        payer = call.account if call.automatic else None
        share = self._config.max_auto_created_partitions_per_principal
        used = self._automatic.used(payer.user, draft.topics) if payer is not None else 0
        for topic in call.topics:
            if times[topic.name] > 1:
                continue
            existing = draft.ids.get(topic.name)
            if call.automatic and existing is not None:
                decision.awaits.append(existing)
                answers.topics.append(_created(draft.topics[existing]))
                continue
            try:
                if payer is not None:
                    more = topic.partitions_asked(default)
                    self._automatic.check(payer.user, more, used, draft.partitions, share)
                records = self._create_topic(draft, topic, mutation, most)
            except Refused as refused:
                answers.topics.append(calls.CreatedTopic(topic.name, refused.error, refused.message))
                continue
            draft.apply_all(records)
            made = draft.topics[draft.ids[topic.name]]
            if payer is not None:
                self._automatic.created(payer.user, made.topic_id, draft.topics, share)
                used += made.partitions
            answer = _created(made)
            if call.validate_only:
                answer.topic_id = ZERO_ID
            else:
                decision.records += records
                decision.awaits.append(made.topic_id)
            answers.topics.append(answer)
        answers.throttle_ms = mutation.throttle_ms() if mutation else 0
        return decision

    def _create_topic(
        self, state: MetadataState, topic: calls.CreateTopic, mutation: Mutation | None, most: int
    ) -> list[MetadataRecord]:
        """Return the records of a new topic. Raises Refused with the error that Kafka reports."""
        if topic.name == METADATA_TOPIC:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
            )
        if topic.name in state.ids:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        topic_rules.check_name(topic.name)
        if other := state.colliding_with(topic.name):
            raise Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{topic.name}' collides with existing topic: {other}",
            )
        configs = topic_rules.check_configs(topic.name, topic.configs, self._config)
        partitions = topic_rules.check_placement(topic, self._config)
        _check_partitions(state, partitions, most)
        self._check_room(state, topic_bytes(topic.name, partitions, configs))
        if mutation and not mutation.allows(partitions):
            raise Refused(EXCEEDED, EXCEEDED.message)
        topic_id = topic.topic_id or self._fresh_id(state)
        if topic_id in state.topics:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"Its id is that of topic {state.topics[topic_id].name}."
            )
        node = self._config.node_id
        return [
            messages.TopicRecord(topic.name, topic_id),
            *(
                messages.ConfigRecord(ConfigResourceType.TOPIC, topic.name, name, value)
                for name, value in configs.items()
            ),
            *(lone_partition(number, topic_id, node) for number in range(partitions)),
        ]

    def _fresh_id(self, state: MetadataState) -> bytes:
        """Return a new random topic id."""
        while True:
            topic_id = self._new_id()
            if may_be_given_out(topic_id) and topic_id not in state.topics:
                return topic_id

    def _alter(self, draft: MetadataState, call: calls.AlterSettings) -> Decision:
        """Decide AlterSettings. Each alteration is applied to `draft`, so that later alterations see it."""
        decision = Decision(answers := calls.AlteredResources([]))
        for alteration in call.alterations:
            try:
                if alteration.kind == ConfigResourceType.BROKER:
                    self._alter_broker(draft, alteration, decision, call.validate_only)
                elif alteration.kind in resource_rules.KINDS:
                    changes = resource_rules.altered(draft.settings, alteration, self._config)
                    draft.apply_all([*changes])
                    if changes and not call.validate_only:
                        decision.records += changes
                        if alteration.kind == ConfigResourceType.CLIENT_METRICS:
                            decision.subscriptions.append(alteration.name)
                else:
                    records = self._alter_topic(draft, alteration)
                    self._note_change(draft, alteration.name, records, decision, call.validate_only)
            except Refused as refused:
                answers.results.append((refused.error, refused.message))
            else:
                answers.results.append((ErrorCode.NONE, None))
        return decision

    def _alter_broker(
        self,
        draft: MetadataState,
        alteration: calls.ConfigAlteration,
        decision: Decision,
        validate_only: bool,
    ) -> None:
        """Decide one alteration of a broker's settings; add its records to `decision`. Raises Refused."""
        records = broker_rules.altered(draft.brokers, alteration, self._config)
        draft.apply_all([*records])
        if records and not validate_only:
            decision.records += records
            decision.brokers_version = draft.brokers_version

    def _alter_topic(self, state: MetadataState, alteration: calls.ConfigAlteration) -> list[MetadataRecord]:
        """Return the records of one alteration of a topic's settings. Raises Refused."""
        topic = state.topics.get(state.ids.get(alteration.name, ZERO_ID))
        if topic is None:
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{alteration.name}' does not exist."
            )
        after = config_rules.altered(topic.configs, alteration, self._config)
        self._check_room(state, config_rules.growth(topic.configs, after))
        return [*config_rules.records(ConfigResourceType.TOPIC, topic.name, topic.configs, after)]

    def _create_partitions(self, draft: MetadataState, call: calls.CreatePartitions) -> Decision:
        mutation = self._begin_mutation(draft, call.account)
        decision = Decision(answers := calls.AlteredResources([]), mutation=mutation)
        most = self._most_partitions(call.account)
        for more in call.topics:
            try:
                records = self._add_partitions(draft, more, mutation, most)
            except Refused as refused:
                answers.results.append((refused.error, refused.message))
                continue
            answers.results.append((ErrorCode.NONE, None))
            self._note_change(draft, more.name, records, decision, call.validate_only)
        answers.throttle_ms = mutation.throttle_ms() if mutation else 0
        return decision

    def _add_partitions(
        self, state: MetadataState, more: calls.MorePartitions, mutation: Mutation | None, most: int
    ) -> list[MetadataRecord]:
        """Return the records that add partitions to a topic. Raises Refused."""
        topic = state.topics.get(state.ids.get(more.name, ZERO_ID))
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise Refused(code, code.message)
        added = topic_rules.check_more(more, topic.partitions, self._config)
        if topic.name in (GROUP_TOPIC, TRANSACTION_TOPIC):
            kept = "a group's offsets" if topic.name == GROUP_TOPIC else "a transactional id"
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"The partition of {topic.name} that has {kept} follows from their number.",
            )
        if added > topic_rules.PARTITIONS_PER_REQUEST_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, topic_rules.too_many_text(added))
        _check_partitions(state, added, most)
        self._check_room(state, added * PARTITION_BYTES)
        if mutation and not mutation.allows(added):
            raise Refused(EXCEEDED, EXCEEDED.message)
        numbers = range(topic.partitions, more.count)
        return [lone_partition(number, topic.topic_id, self._config.node_id) for number in numbers]

    def _note_change(
        self,
        draft: MetadataState,
        name: str,
        records: list[MetadataRecord],
        decision: Decision,
        validate_only: bool,
    ) -> None:
        draft.apply_all(records)
        if validate_only or not records:
            return
        topic = draft.topics[draft.ids[name]]
        decision.records += records
        decision.changes.append(Change(topic.topic_id, topic.config_version, topic.partitions))

    def _most_partitions(self, account: calls.Account | None) -> int:
        """Return the partition limit for this client. With an authorizer, super users have a higher limit."""
        if account is None or not self._config.authorizer_class_name:
            return self._partition_limit
        if f"User:{account.user}" in super_users_in(self._config.super_users):
            return self._partition_limit
        return self._partition_limit - self._partition_limit // SUPER_USERS_SHARE

    def _check_room(self, state: MetadataState, more_bytes: int) -> None:
        """Raise Refused if the bulletin has no room for `more_bytes`. A decrease always fits."""
        if more_bytes > 0 and state.image_bytes + more_bytes > self._image_bytes_max:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"The broker has {self._image_bytes_max} bytes for the names and settings of all topics and "
                f"quotas and has used {state.image_bytes}.",
            )

    def _delete_topics(self, state: MetadataState, call: calls.DeleteTopics) -> Decision:
        """Decide DeleteTopics. As in Kafka's ControllerApis, the whole request is checked first."""
        mutation = self._begin_mutation(state, call.account)
        decision = Decision(answers := calls.DeletedTopics([]), mutation=mutation)
        names, ids = Counter(call.names), Counter(call.ids)
        wanted: dict[bytes, str | None] = {}
        for topic_id, times in ids.items():
            if times > 1:
                refusal = calls.DeletedTopic(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
                answers.topics.append(refusal)
            else:
                wanted[topic_id] = None
        for name, times in names.items():
            found = state.ids.get(name, ZERO_ID)
            if times > 1:
                wrong = (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            elif found == ZERO_ID:
                wrong = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message)
            elif found in ids:
                text = "The provided topic name maps to an ID that was already supplied."
                wrong = (ErrorCode.INVALID_REQUEST, text)
                wanted.pop(found, None)
                answers.topics.append(calls.DeletedTopic(name, found, *wrong))
                continue
            else:
                wanted[found] = name
                continue
            answers.topics.append(calls.DeletedTopic(name, ZERO_ID, *wrong))
        for topic_id, asked_name in wanted.items():
            self._delete_topic(state, topic_id, asked_name, decision, answers)
        answers.throttle_ms = mutation.throttle_ms() if mutation else 0
        return decision

    def _delete_topic(
        self,
        state: MetadataState,
        topic_id: bytes,
        asked_name: str | None,
        decision: Decision,
        answers: calls.DeletedTopics,
    ) -> None:
        answer = calls.DeletedTopic(asked_name, topic_id)
        answers.topics.append(answer)
        topic = state.topics.get(topic_id)
        if topic_id == ZERO_ID:
            answer.error = ErrorCode.INVALID_REQUEST
            answer.message = f"Attempt to find topic with invalid topicId {uuid_text(topic_id)}"
        elif topic is None:
            answer.error = ErrorCode.UNKNOWN_TOPIC_ID
            answer.message = ErrorCode.UNKNOWN_TOPIC_ID.message
        elif decision.mutation and not decision.mutation.allows(topic.partitions):
            answer.error, answer.message = EXCEEDED, EXCEEDED.message
        else:
            answer.name = topic.name
            decision.records.append(messages.RemoveTopicRecord(topic_id))
            decision.removes.append(topic)

    def _allocate_producer_ids(self, state: MetadataState) -> Decision:
        first = state.next_producer_id
        if first > PRODUCER_ID_MAX - PRODUCER_IDS_PER_BLOCK:
            text = (
                "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type "
                "limit"
            )
            return Decision(calls.Failed(ErrorCode.UNKNOWN_SERVER_ERROR, text))
        record = messages.ProducerIdsRecord(
            broker_id=self._config.node_id, next_producer_id=first + PRODUCER_IDS_PER_BLOCK
        )
        return Decision(calls.ProducerIds(first, PRODUCER_IDS_PER_BLOCK), [record])


def lone_partition(
    number: int, topic_id: bytes, node: int, leader_epoch: int = 0
) -> messages.PartitionRecord:
    """Return the record of a partition whose leader and only replica is the broker `node`."""
    return messages.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=[node],
        isr=[node],
        leader=node,
        leader_epoch=leader_epoch,
        partition_epoch=0,
        directories=[MIGRATING_DIRECTORY],
    )


def _created(topic: Topic) -> calls.CreatedTopic:
    return calls.CreatedTopic(
        topic.name,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=1,
        configs=topic.configs,
    )
