"""`mpbroker group reset-offsets` and `delete-offsets`: the committed offsets of groups without members."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mpbroker.cli.cluster import group_requests, offset_plans
from mpbroker.cli.cluster.client import Client, partitions_of
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.cluster.offset_plans import GroupOffsets
from mpbroker.cli.cluster.offset_resets import INACTIVE, Flags, Reset, parse, parse_scope, target, within
from mpbroker.cli.errors import USAGE_ERROR, CliError, raise_all
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_json, print_table, say_each
from mpbroker.client.consumer_protocol import PROTOCOL_TYPE, TopicPartition
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.printable import printable

# Headings of kafka-consumer-groups.sh, and the names in --json.
COLUMNS = {
    "GROUP": "group",
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "committed",
    "NEW-OFFSET": "new_offset",
}


class TopicScope(NamedTuple):
    """Partitions by topic, where None stands for all of them; None for all topics."""

    named: Mapping[str, list[int] | None] | None

    def of_offsets(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return those that have a committed offset."""
        return sorted(committed if self.named is None else within(self.named, committed))

    def of_topics(self, client: Client, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return all that are named, whether an offset is committed or not."""
        return sorted(committed) if self.named is None else _there(client, self.named)


def scope_of(topics: Sequence[str], *, all_topics: bool) -> TopicScope:
    """Return what --topic and --all-topics name. Raises CliError unless it is one of both."""
    if bool(topics) == all_topics:
        raise CliError("say of which topics: --topic TOPIC[:0,1] or --all-topics", USAGE_ERROR)
    return TopicScope(None if all_topics else parse_scope(topics))


def _there(client: Client, named: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    """Return partitions that are named; None stands for all of a topic. Raises CliError, ApiFailed."""
    places = []
    for name, numbers in named.items():
        places += [(name, number) for number in partitions_of(client.topic(name), numbers)]
    return places


class ResetPlan(NamedTuple):
    """Where offsets are to be set: everywhere in `scope` in one way, or by `offsets`, which `file` has."""

    reset: Reset
    scope: TopicScope | None = None
    offsets: GroupOffsets | None = None
    file: str = ""

    def resets(
        self, client: Client, group: str, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Reset]:
        """Return where each partition of a group is to be set. Raises CliError, ApiFailed."""
        if self.scope is not None:
            return dict.fromkeys(self.scope.of_topics(client, committed), self.reset)
        offsets = (self.offsets or {}).get(group, {})
        named: dict[str, list[int] | None] = {
            topic: sorted(number for one, number in offsets if one == topic) for topic, _ in sorted(offsets)
        }
        return {place: Reset("to-offset", offsets[place]) for place in _there(client, named)}

    def nothing(self, group: str) -> CliError:
        """Say that nothing is known of a group that was named."""
        if self.scope is None:
            return CliError(f"{self.file} has no offsets of group {group}", USAGE_ERROR)
        return CliError(f"group {group} has no committed offsets: name topics with --topic")


def reset_plan(
    flags: Flags, groups: Sequence[str], topics: Sequence[str], now_ms: int, all_topics: bool
) -> ResetPlan:
    """Return what the flags ask for. Raises CliError."""
    reset = parse(flags, now_ms)
    if flags.from_file is None:
        return ResetPlan(reset, scope_of(topics, all_topics=all_topics))
    if topics or all_topics:
        raise CliError("--from-file names topics itself: leave out --topic and --all-topics", USAGE_ERROR)
    file = str(flags.from_file)
    try:
        text = flags.from_file.read_text("utf-8-sig")
    except OSError as error:
        raise CliError(f"--from-file {file}: {error.strerror}", USAGE_ERROR) from error
    except UnicodeDecodeError as error:
        raise CliError(f"--from-file {file}: this is no text in UTF-8", USAGE_ERROR) from error
    return ResetPlan(reset, offsets=offset_plans.parse(text, file, groups), file=file)


class ResetFlags(NamedTuple):
    """Say what is to become of the new offsets. `check` raises CliError unless that is one thing."""

    export: bool
    execute: bool
    dry_run: bool
    as_json: bool

    def check(self, groups: Sequence[str], *, all_groups: bool) -> None:
        if bool(groups) == all_groups:
            raise CliError("say of which groups: name them, or --all-groups", USAGE_ERROR)
        for one, other, is_both in (
            ("--execute", "--dry-run", self.execute and self.dry_run),
            ("--export", "--json", self.export and self.as_json),
        ):
            if is_both:
                raise CliError(f"these exclude each other: {one}, {other}", USAGE_ERROR)


def reset(
    where: ClusterAddress, names: Sequence[str], plan: ResetPlan, how: ResetFlags, *, all_groups: bool
) -> None:
    """Set offsets of groups, or print what would be set. A group that is refused does not hide the others."""
    how.check(names, all_groups=all_groups)
    failed: list[Exception] = []
    rows: list[dict[str, Any]] = []
    with Client(where) as client:
        if all_groups:
            names = _of_consumers(client)
        for strange in sorted((plan.offsets or {}).keys() - set(names)):
            _say(f"{plan.file}: group {strange} is left out: it is not named, or not there")
        for name in names:
            try:
                offsets = planned(client, name, plan, rows, _say)
                if offsets is None and not all_groups:
                    raise plan.nothing(name)
                if how.execute and offsets:
                    failed += [
                        explained(name, error) for error in group_requests.commit(client, name, offsets)
                    ]
            except (ApiFailed, CliError) as error:
                failed.append(error)
    if how.as_json:
        print_json(rows)
    elif how.export:
        entries = ((one["group"], one["topic"], one["partition"], one["new_offset"]) for one in rows)
        sys.stdout.write(offset_plans.text_of(entries, with_groups=len(names) != 1 or all_groups))
    elif rows:
        print_table(list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in rows])
    if not how.execute and rows:
        _say("nothing was set: this is what --execute would do")
    raise_all(failed)


def _of_consumers(client: Client) -> list[str]:
    """Return all groups that have offsets of consumers; those of Connect's workers have none."""
    return [
        one.group_id
        for one in group_requests.list_groups(client)
        if one.protocol_type in ("", PROTOCOL_TYPE)
        and one.group_type.lower() in ("", group_requests.CLASSIC, group_requests.CONSUMER)
    ]


def planned(
    client: Client, name: str, plan: ResetPlan, rows: list[dict[str, Any]], say: Callable[[str], None]
) -> dict[TopicPartition, int] | None:
    """Return the new offsets of a group, and add a row for each; None if nothing is known of it.

    `say` is told where an offset is not the one that was wanted. Raises CliError for an active group.
    """
    _check_inactive(client, name)
    committed = group_requests.committed(client, name)
    resets = plan.resets(client, name, committed)
    if not resets:
        return None
    offsets = {}
    for topic_name in dict.fromkeys(topic for topic, _ in resets):
        numbers = [number for topic, number in resets if topic == topic_name]
        found = client.ends(client.topic(topic_name), numbers, plan.reset.time_ms)
        for number, ends in found.items():
            place = topic_name, number
            offset, said = target(resets[place], ends, committed.get(place))
            if said:
                say(f"group {name}, {topic_name}-{number}: {said}")
            if offset is not None:
                offsets[place] = offset
                cells = (name, *place, committed.get(place), offset)
                rows.append(dict(zip(COLUMNS.values(), cells, strict=True)))
    return offsets


def _check_inactive(client: Client, name: str) -> None:
    """Refuse a group whose members would commit over what is set. One that does not exist yet is fine."""
    try:
        group = group_requests.describe(client, name)
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.state not in INACTIVE:
        raise CliError(
            f"group {name} is active ({group.state}, {len(group.members)} member(s)): "
            f"stop its consumers first, and wait until mpbroker group describe {name} shows it Empty"
        )


def explained(name: str, error: ApiFailed) -> Exception:
    if error.code in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
    ):
        return CliError(f"group {name} has got members meanwhile, nothing was set: stop its consumers first")
    return error


def delete(where: ClusterAddress, name: str, scope: TopicScope, *, is_sure: bool, as_json: bool) -> None:
    """Delete committed offsets of a group. Raises CliError if it has none of these topics."""
    with Client(where) as client:
        group_requests.describe(client, name)
        places = scope.of_offsets(group_requests.committed(client, name))
        if not places:
            raise CliError(f"group {name} has no committed offsets of these topics")
        confirm(f"delete {len(places)} committed offset(s) of group {name}?", is_sure=is_sure)
        codes = group_requests.delete_offsets(client, name, places)
    deleted = [place for place in places if not codes.get(place)]
    say_each(
        [
            (f"deleted the offset of {topic}-{number}", {"group": name, "topic": topic, "partition": number})
            for topic, number in deleted
        ],
        as_json=as_json,
    )
    raise_all([_refused(name, place, codes[place]) for place in places if codes.get(place)])


def _refused(name: str, place: TopicPartition, code: int) -> Exception:
    error = ApiFailed(f"group {name}, {place[0]}-{place[1]}", code)
    if error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return CliError(f"{error}: stop its consumers first")
    return error


def _say(text: str) -> None:
    print(f"mpbroker: {printable(text)}", file=sys.stderr)
