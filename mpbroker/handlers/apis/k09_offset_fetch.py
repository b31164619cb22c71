"""OffsetFetch (key 9), versions 1-10: committed offsets of a group, from v8 on of several groups.

Topics have ids from v10 on. A null list of topics means all topics of the group (v2); v10 then leaves out
deleted topics, which have no id. With `require_stable` (v7, KIP-447) the response waits for commits under
way. Long lists go to the coordinator in parts, so that heartbeats do not wait for a whole list. Each group is
answered once, however often it is named. (Kafka: KafkaApis.handleOffsetFetchRequest,
OffsetMetadataManager.fetchOffsets; KIP-709 for v8.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from msgspec.structs import astuple

from mpbroker.handlers.api_parts.allowed_topics import name_of
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import ZERO_UUID, OffsetFetchRequest, OffsetFetchResponse

FIRST_VERSION_WITH_GROUP_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10
NO_OFFSET = NO_EPOCH = -1
# Partitions and bytes of names asked for at once: some ms of the coordinator's work.
PARTITIONS_AT_ONCE = 5_000
NAME_BYTES_AS_PARTITION = 64
# Assumed number of a group's partitions if all are asked for; only the coordinator knows it.
ALL_COUNT_AS = 1_000

AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AskedTopic = OffsetFetchRequest.OffsetFetchRequestTopics

Group = OffsetFetchResponse.OffsetFetchResponseGroup
OfGroup = OffsetFetchResponse.OffsetFetchResponseTopics
OfPartition = OffsetFetchResponse.OffsetFetchResponsePartitions
Topic = OffsetFetchResponse.OffsetFetchResponseTopic
Partition = OffsetFetchResponse.OffsetFetchResponsePartition


def failed(context: RequestContext, code: ErrorCode) -> OffsetFetchResponse:
    request = context.body
    if context.version >= FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=[Group(g.group_id, error_code=code) for g in request.groups])
    if context.version >= FIRST_VERSION_WITH_GROUP_ERROR:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            Topic(t.name, [Partition(i, NO_OFFSET, NO_EPOCH, "", code) for i in t.partition_indexes])
            for t in request.topics or ()
        ]
    )


def shaped(context: RequestContext, response: OffsetFetchResponse) -> OffsetFetchResponse:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        group = response.groups[0]
        if group.error_code:
            return failed(context, error_code(group.error_code))
        return OffsetFetchResponse(
            topics=[Topic(t.name, [Partition(*astuple(p)) for p in t.partitions]) for t in group.topics]
        )
    if context.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        asked = {group.group_id: group.topics for group in context.body.groups}
        for group in response.groups:
            if asked[group.group_id] is None:
                group.topics = [topic for topic in group.topics if topic.topic_id != ZERO_UUID]
    return response


def slices(group: AskedGroup) -> Iterator[tuple[AskedGroup, int]]:
    """Split a group into copies with some of its topics each; yield each copy and its size in partitions."""
    if group.topics is None:
        yield group, ALL_COUNT_AS
        return
    topics: list[AskedTopic] = []
    first = size = size_of(group.group_id)
    for topic in group.topics:
        at = 0
        while True:
            room = PARTITIONS_AT_ONCE - size
            some = topic.partition_indexes[at : at + room]
            topics.append(AskedTopic(topic.name, topic.topic_id, some))
            at += len(some)
            size += size_of(topic.name) + len(some)
            if size >= PARTITIONS_AT_ONCE:
                yield copy_of(group, topics), size
                topics, size = [], first
            if at >= len(topic.partition_indexes):
                break
    if topics or not group.topics:
        yield copy_of(group, topics), size


def size_of(name: str) -> int:
    return 1 + len(name) // NAME_BYTES_AS_PARTITION


def each_once(context: RequestContext) -> Generator[None, None, list[AskedGroup]]:
    """Return each requested group once, without repeated topics and partitions.

    A group's `topics` are None (all topics) if they are None in any of its entries in the request.
    """
    groups, done = context.body.groups, 0
    topics: dict[str, dict[tuple[str, bytes], dict[int, None]] | None] = {}
    for group in groups:
        if group.topics is None:
            topics[group.group_id] = None
        elif (named := topics.setdefault(group.group_id, {})) is not None:
            for topic in group.topics:
                indexes = dict.fromkeys(topic.partition_indexes)
                named.setdefault((topic.name, topic.topic_id), {}).update(indexes)
                done += 1
                if context.should_yield(done, LOOKUPS_PER_PIECE):
                    yield
        done += 1
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    found = []
    last = {group.group_id: group for group in groups}
    for done, (group, named) in enumerate(zip(last.values(), topics.values(), strict=True), start=1):
        whole = None if named is None else [AskedTopic(*key, [*indexes]) for key, indexes in named.items()]
        found.append(copy_of(group, whole))
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return found


def copy_of(group: AskedGroup, topics: list[AskedTopic] | None) -> AskedGroup:
    return AskedGroup(group.group_id, group.member_id, group.member_epoch, topics)


def parts_of(groups: list[AskedGroup]) -> Iterator[list[tuple[int, AskedGroup]]]:
    """Yield a list of (index, group or a part of it) for each call to the coordinator, at least one list."""
    part: list[tuple[int, AskedGroup]] = []
    size = 0
    for number, group in enumerate(groups):
        for some, cost in slices(group):
            if part and size + cost > PARTITIONS_AT_ONCE:
                yield part
                part, size = [], 0
            part.append((number, some))
            size += cost
    yield part


def add(whole: Group, more: Group) -> None:
    """Add `more`, a part of a group's offsets, to `whole`. An error in one part fails the whole group."""
    if whole.error_code or more.error_code:
        whole.error_code = whole.error_code or more.error_code
        whole.topics = []
        return
    last, first = whole.topics[-1], more.topics[0]
    if (last.name, last.topic_id) == (first.name, first.topic_id):
        last.partitions += first.partitions
        del more.topics[0]
    whole.topics += more.topics


def readable(
    context: RequestContext, group: AskedGroup
) -> Generator[None, None, tuple[AskedGroup, list[OfGroup]]]:
    """Return the group with the topics that the client may describe, and answers for its other topics."""
    if group.topics is None:
        return group, []
    allowed, denied = yield from context.split(
        DESCRIBE_TOPIC, group.topics, lambda topic: name_of(context, topic)
    )
    code = DESCRIBE_TOPIC.denied
    refused = [
        OfGroup(
            topic.name,
            topic.topic_id,
            [OfPartition(i, NO_OFFSET, NO_EPOCH, "", code) for i in topic.partition_indexes],
        )
        for topic in denied
    ]
    return copy_of(group, allowed), refused


class Refused:
    """The requested groups and topics that the client may not describe, with their results.

    `groups` has the rest of the request, for the coordinator: the groups and topics that are not refused.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._names = [group.group_id for group in context.body.groups]
        self._denied: set[str] = set()
        self._topics: dict[str, list[OfGroup]] = {}
        self.groups: list[AskedGroup] = []

    def find(self) -> Generator[None]:
        context = self._context
        for done, group in enumerate(context.body.groups, start=1):
            if context.allows(DESCRIBE_GROUP, group.group_id):
                visible, self._topics[group.group_id] = yield from readable(context, group)
                self.groups.append(visible)
            else:
                self._denied.add(group.group_id)
            if context.should_yield(done, LOOKUPS_PER_PIECE):
                yield

    def add_to(self, response: OffsetFetchResponse) -> OffsetFetchResponse:
        """Add the refusals to the coordinator's response; return it, with groups in the request's order."""
        found = {group.group_id: group for group in response.groups}
        all_asked = {group.group_id for group in self.groups if group.topics is None}
        for name, group in found.items():
            if name in all_asked:
                group.topics = [topic for topic in group.topics if self._is_visible(topic)]
            if not group.error_code:
                group.topics += self._topics[name]
        response.groups = [
            Group(name, error_code=DESCRIBE_GROUP.denied) if name in self._denied else found[name]
            for name in self._names
        ]
        return response

    def _is_visible(self, topic: OfGroup) -> bool:
        name = name_of(self._context, topic)
        allows = self._context.broker.authorization.allows
        return name is None or allows(self._context, DESCRIBE_TOPIC, name, is_logged=False)


@api(ApiKey.OFFSET_FETCH, 1, 10, name="OffsetFetch", failed=failed, elements_max=GROUP_IDS_MAX)
def handle(context: RequestContext) -> Generator[None, None, OffsetFetchResponse]:
    """Returns the committed offsets of groups."""
    request = context.body
    if context.version < FIRST_VERSION_WITH_GROUPS:
        topics = request.topics
        request.groups = [
            OffsetFetchRequest.OffsetFetchRequestGroup(
                request.group_id,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(
                        topic.name, partition_indexes=topic.partition_indexes
                    )
                    for topic in topics
                ],
            )
        ]
    request.groups = yield from each_once(context)
    refused = Refused(context)
    yield from refused.find()
    if request.groups and not refused.groups:
        return shaped(context, refused.add_to(OffsetFetchResponse()))
    version = max(context.version, FIRST_VERSION_WITH_GROUPS)
    response = OffsetFetchResponse()
    for part in parts_of(refused.groups):
        asked = OffsetFetchRequest(groups=[group for _, group in part], require_stable=request.require_stable)
        found = yield from context.broker.forwarding.forward(context, version, asked)
        for (number, _), group in zip(part, found.groups, strict=True):
            if number == len(response.groups):
                response.groups.append(group)
            else:
                add(response.groups[number], group)
    return shaped(context, refused.add_to(response))
