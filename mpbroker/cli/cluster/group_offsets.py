"""`mpbroker group reset-offsets` and `delete-offsets`: the committed offsets of groups without members."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mpbroker.cli.cluster import offset_plans
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.cluster.group import group_app as group_app
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import ClusterAddress, GroupName, Json, Yes, flag, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.numbers import LONG
from mpbroker.cli.text.output import print_json, print_table, say_each
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, ClientError, FailedPrecondition, InvalidArgument, raise_all
from mpbroker.client.offset_resets import (
    Reset,
    ResetPlan,
    TopicScope,
    by_duration,
    explained,
    parse_topic,
    plan_resets,
    to_datetime,
)
from mpbroker.protocol.consumer_protocol import CLASSIC, CONSUMER, CONSUMER_PROTOCOL
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import TopicPartition

# Headings of kafka-consumer-groups.sh, and the names in --json.
COLUMNS = {
    "GROUP": "group",
    "TOPIC": "topic",
    "PARTITION": "partition",
    "CURRENT-OFFSET": "committed",
    "NEW-OFFSET": "new_offset",
}
# Flags that say where to, in the order of their parameters.
PLACES = (
    *("to-earliest", "to-latest", "to-current", "to-offset"),
    *("to-datetime", "by-duration", "shift-by", "from-file"),
)

Topics = Annotated[
    list[str] | None, option("--topic", "TOPIC[:0,1…]", "A topic, or some of its partitions; repeatable.")
]


@group_app.command("reset-offsets")
def group_reset_offsets(
    names: Annotated[list[str] | None, typer.Argument(metavar="GROUP...", hidden=True)] = None,
    all_groups: Annotated[
        bool, flag("--all-groups", "All groups that there are, instead of GROUP...")
    ] = False,
    topic: Topics = None,
    all_topics: Annotated[bool, flag("--all-topics", "All that the group has committed offsets of.")] = False,
    to_earliest: Annotated[bool, flag("--to-earliest", "To the first record.")] = False,
    to_latest: Annotated[bool, flag("--to-latest", "After the last record.")] = False,
    to_current: Annotated[
        bool, flag("--to-current", "To the committed offset; without one after the last record.")
    ] = False,
    to_offset: Annotated[int | None, option("--to-offset", "N", "To this offset.", callback=LONG)] = None,
    to_datetime: Annotated[
        str | None, option("--to-datetime", "TIME", "To the first record from 2026-01-31T12:00:00 on.")
    ] = None,
    by_duration: Annotated[
        str | None, option("--by-duration", "DURATION", "As far back as PT1H30M, or 90s, 2h, 7d.")
    ] = None,
    shift_by: Annotated[
        int | None, option("--shift-by", "N", "Forward by N; back with -N.", callback=LONG)
    ] = None,
    from_file: Annotated[
        Path | None,
        option(
            "--from-file",
            "FILE",
            "Its lines are topic,partition,offset or group,topic,partition,offset.",
            readable=False,
        ),
    ] = None,
    export: Annotated[
        bool, flag("--export", "Print the new offsets as such lines instead of a table.")
    ] = False,
    execute: Annotated[bool, flag("--execute", "Set them; without this flag they are only printed.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Only print them: the default.")] = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Set the committed offsets of groups without members.

    Without --execute it prints what would be set. An offset that a partition does not have becomes the
    nearest one. A group that does not exist is created.
    """
    places = (to_earliest, to_latest, to_current, to_offset, to_datetime, by_duration, shift_by, from_file)
    plan = _plan(dict(zip(PLACES, places, strict=True)), names or [], topic or [], all_topics=all_topics)
    if bool(names) == all_groups:
        raise CliError("say of which groups: name them, or --all-groups", USAGE_ERROR)
    if execute and dry_run:
        raise CliError("these exclude each other: --execute, --dry-run", USAGE_ERROR)
    if export and json:
        raise CliError("these exclude each other: --export, --json", USAGE_ERROR)
    _reset(where, names, plan, is_dry=not execute, as_csv=export, as_json=json)


@group_app.command("delete-offsets")
def group_delete_offsets(
    name: GroupName,
    topic: Topics = None,
    all_topics: Annotated[bool, flag("--all-topics", "All that it has committed.")] = False,
    yes: Yes = False,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Delete committed offsets of topics that no member reads."""
    scope = _scope(topic or [], all_topics=all_topics)
    with open_admin(where) as client:
        groups.describe(client, name)
        places = scope.of_offsets(groups.committed(client, name))
        if not places:
            raise CliError(f"group {name} has no committed offsets of these topics")
        confirm(f"delete {len(places)} committed offset(s) of group {name}?", is_sure=yes)
        codes = groups.delete_offsets(client, name, places)
    deleted = [place for place in places if not codes.get(place)]
    say_each(
        [
            (f"deleted the offset of {one}-{number}", {"group": name, "topic": one, "partition": number})
            for one, number in deleted
        ],
        as_json=json,
    )
    raise_all([_refused(name, place, codes[place]) for place in places if codes.get(place)])


def _reset(
    where: ClusterAddress,
    names: Sequence[str] | None,
    plan: ResetPlan,
    *,
    is_dry: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print the new offsets of groups (`names` None: of all groups) and, unless `is_dry`, commit them.

    Errors of single groups are raised after all groups are done.
    """
    failed: list[ClientError] = []
    rows: list[dict[str, Any]] = []
    with open_admin(where) as client:
        named = names or _of_consumers(client)
        for strange in sorted((plan.offsets or {}).keys() - set(named)):
            _warn(f"{plan.file}: group {strange} is left out: it is not named, or not there")
        for name in named:
            try:
                offsets = plan_resets(client, name, plan, rows, _warn)
                if offsets is None and names:
                    raise _nothing(plan, name)
                if offsets and not is_dry:
                    failed += [explained(name, error) for error in groups.commit(client, name, offsets)]
            except (ApiFailed, InvalidArgument, FailedPrecondition) as error:
                failed.append(error)
    if as_json:
        print_json(rows)
    elif as_csv:
        entries = ((one["group"], one["topic"], one["partition"], one["new_offset"]) for one in rows)
        sys.stdout.write(offset_plans.text_of(entries, with_groups=len(named) != 1 or not names))
    elif rows:
        print_table(list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in rows])
    if is_dry and rows:
        _warn("nothing was set: this is what --execute would do")
    raise_all(failed)


def _plan(
    places: Mapping[str, Any], named: Sequence[str], topics: Sequence[str], *, all_topics: bool
) -> ResetPlan:
    """Return the plan that the flags describe. Raises CliError unless exactly one flag of `places` is set."""
    given = {name: value for name, value in places.items() if value is not None and value is not False}
    if len(given) != 1:
        why = "these exclude each other:" if given else "say where to, with one of"
        raise CliError(f"{why} {', '.join(f'--{name}' for name in given or places)}", USAGE_ERROR)
    ((kind, value),) = given.items()
    now_ms = time.time_ns() // 1_000_000
    if kind == "from-file":
        return _plan_of_file(value, named, has_topics=bool(topics) or all_topics)
    if kind in ("to-datetime", "by-duration"):
        parse = to_datetime if kind == "to-datetime" else by_duration
        reset = of_flag(f"--{kind}", value, parse, now_ms)
    else:
        reset = Reset(kind, int(value))
    return ResetPlan(reset, _scope(topics, all_topics=all_topics))


def _plan_of_file(path: Path, named: Sequence[str], *, has_topics: bool) -> ResetPlan:
    if has_topics:
        raise CliError("--from-file names topics itself: leave out --topic and --all-topics", USAGE_ERROR)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise CliError(f"--from-file {path}: {error.strerror}", USAGE_ERROR) from error
    except UnicodeDecodeError as error:
        raise CliError(f"--from-file {path}: it is not text in UTF-8", USAGE_ERROR) from error
    return ResetPlan(Reset("from-file"), offsets=offset_plans.parse(text, str(path), named), file=str(path))


def _scope(topics: Sequence[str], *, all_topics: bool) -> TopicScope:
    """Return the topics of --topic or --all-topics. Raises CliError unless exactly one flag is given."""
    if bool(topics) == all_topics:
        raise CliError("say of which topics: --topic TOPIC[:0,1] or --all-topics", USAGE_ERROR)
    scope: dict[str, list[int] | None] = {}
    for text in topics:
        topic, numbers = of_flag("--topic", text, parse_topic)
        before = scope.get(topic, [])
        scope[topic] = None if numbers is None or before is None else sorted({*before, *numbers})
    return TopicScope(None if all_topics else scope)


def _nothing(plan: ResetPlan, group: str) -> ClientError:
    """Return the error about a group for which the plan has no offsets."""
    if plan.scope is None:
        return InvalidArgument(f"{plan.file} has no offsets of group {group}")
    return FailedPrecondition(f"group {group} has no committed offsets: name topics with --topic")


def _of_consumers(client: Admin) -> list[str]:
    """Return the names of all consumer groups. Other groups, such as those of Connect, commit no offsets."""
    return [
        one.group_id
        for one in groups.list_groups(client)
        if one.protocol_type in ("", CONSUMER_PROTOCOL) and groups.type_of(one) in ("", CLASSIC, CONSUMER)
    ]


def _refused(name: str, place: TopicPartition, code: int) -> ClientError:
    error = ApiFailed(f"group {name}, {place[0]}-{place[1]}", code)
    if error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return error.advised(": stop its consumers first")
    return error


def _warn(text: str) -> None:
    print(f"mpbroker: {printable(text)}", file=sys.stderr)
