"""`mpbroker group reset-offsets` and `delete-offsets`: the committed offsets of groups without members."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpbroker.cli.cluster import offset_plans
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_json, print_table, say_each
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.consumer_protocol import PROTOCOL_TYPE, TopicPartition
from mpbroker.client.errors import ApiFailed, ClientError, FailedPrecondition, InvalidArgument, raise_all
from mpbroker.client.offset_resets import (
    Reset,
    ResetPlan,
    TopicScope,
    by_duration,
    explained,
    parse_topic,
    planned,
    to_datetime,
)
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


class Flags(NamedTuple):
    """The flags that say where to; exactly one of them is given."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    shift_by: int | None = None
    from_file: Path | None = None


def parse_flags(flags: Flags, now_ms: int) -> Reset:
    """Return what the flags ask for. Raises CliError unless it is one thing."""
    given = [name for name, value in flags._asdict().items() if value is not None and value is not False]
    names = [f"--{name.replace('_', '-')}" for name in (given or Flags._fields)]
    if len(given) != 1:
        why = "say where to, with one of" if not given else "these exclude each other:"
        raise CliError(f"{why} {', '.join(names)}", USAGE_ERROR)
    if flags.to_datetime is not None:
        return of_flag("--to-datetime", flags.to_datetime, to_datetime, now_ms)
    if flags.by_duration is not None:
        return of_flag("--by-duration", flags.by_duration, by_duration, now_ms)
    return Reset(names[0][2:], flags.to_offset or flags.shift_by or 0)


def parse_scope(texts: Sequence[str]) -> dict[str, list[int] | None]:
    """Return partitions by topic from what --topic was given. Raises CliError."""
    scope: dict[str, list[int] | None] = {}
    for text in texts:
        topic, numbers = of_flag("--topic", text, parse_topic)
        before = scope.get(topic, [])
        scope[topic] = None if numbers is None or before is None else sorted({*before, *numbers})
    return scope


def scope_of(topics: Sequence[str], *, all_topics: bool) -> TopicScope:
    """Return what --topic and --all-topics name. Raises CliError unless it is one of both."""
    if bool(topics) == all_topics:
        raise CliError("say of which topics: --topic TOPIC[:0,1] or --all-topics", USAGE_ERROR)
    return TopicScope(None if all_topics else parse_scope(topics))


def reset_plan(
    flags: Flags, groups: Sequence[str], topics: Sequence[str], now_ms: int, all_topics: bool
) -> ResetPlan:
    """Return what the flags ask for. Raises CliError."""
    reset = parse_flags(flags, now_ms)
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
    failed: list[ClientError] = []
    rows: list[dict[str, Any]] = []
    with open_admin(where) as client:
        if all_groups:
            names = _of_consumers(client)
        for strange in sorted((plan.offsets or {}).keys() - set(names)):
            _say(f"{plan.file}: group {strange} is left out: it is not named, or not there")
        for name in names:
            try:
                offsets = planned(client, name, plan, rows, _say)
                if offsets is None and not all_groups:
                    raise _nothing(plan, name)
                if how.execute and offsets:
                    failed += [explained(name, error) for error in groups.commit(client, name, offsets)]
            except (ApiFailed, InvalidArgument, FailedPrecondition) as error:
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


def _nothing(plan: ResetPlan, group: str) -> ClientError:
    """Say that nothing is known of a group that was named."""
    if plan.scope is None:
        return InvalidArgument(f"{plan.file} has no offsets of group {group}")
    return FailedPrecondition(f"group {group} has no committed offsets: name topics with --topic")


def _of_consumers(client: Admin) -> list[str]:
    """Return all groups that have offsets of consumers; those of Connect's workers have none."""
    return [
        one.group_id
        for one in groups.list_groups(client)
        if one.protocol_type in ("", PROTOCOL_TYPE)
        and one.group_type.lower() in ("", groups.CLASSIC, groups.CONSUMER)
    ]


def delete(where: ClusterAddress, name: str, scope: TopicScope, *, is_sure: bool, as_json: bool) -> None:
    """Delete committed offsets of a group. Raises CliError if it has none of these topics."""
    with open_admin(where) as client:
        groups.describe(client, name)
        places = scope.of_offsets(groups.committed(client, name))
        if not places:
            raise CliError(f"group {name} has no committed offsets of these topics")
        confirm(f"delete {len(places)} committed offset(s) of group {name}?", is_sure=is_sure)
        codes = groups.delete_offsets(client, name, places)
    deleted = [place for place in places if not codes.get(place)]
    say_each(
        [
            (f"deleted the offset of {topic}-{number}", {"group": name, "topic": topic, "partition": number})
            for topic, number in deleted
        ],
        as_json=as_json,
    )
    raise_all([_refused(name, place, codes[place]) for place in places if codes.get(place)])


def _refused(name: str, place: TopicPartition, code: int) -> ClientError:
    error = ApiFailed(f"group {name}, {place[0]}-{place[1]}", code)
    if error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return error.advised(": stop its consumers first")
    return error


def _say(text: str) -> None:
    print(f"mpbroker: {printable(text)}", file=sys.stderr)
