"""The flags of `mpbroker group`; what its commands do is in `group` and `group_offsets`."""

from pathlib import Path
from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClusterAddress,
    CommandConfig,
    GroupName,
    GroupNames,
    Json,
    Yes,
)
from mpbroker.cli.text.numbers import LONG

group_app = App(no_args_is_help=True)

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1…]", help="A topic, or some of its partitions; repeatable."),
]


@group_app.command("list")
def group_list(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only those that are Stable, Empty …; repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only those that are classic, consumer …; repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List all groups."""
    from mpbroker.cli.cluster import group as command

    command.show_list(ClusterAddress(bootstrap, command_config), state or [], kind or [], as_json=json)


@group_app.command("describe")
def group_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="GROUP...", hidden=True)] = None,
    members: Annotated[
        bool, typer.Option("--members", help="Who they are, and which partitions each has.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Committed offsets, lag and members of groups. Default: of all."""
    from mpbroker.cli.cluster import group as command

    command.describe(
        ClusterAddress(bootstrap, command_config), names or [], with_members=members, as_json=json
    )


@group_app.command("delete")
def group_delete(
    names: GroupNames,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete groups without members, and their offsets."""
    from mpbroker.cli.cluster import group as command

    command.delete(ClusterAddress(bootstrap, command_config), names, is_sure=yes, as_json=json)


@group_app.command("reset-offsets")
def group_reset_offsets(
    names: Annotated[list[str] | None, typer.Argument(metavar="GROUP...", hidden=True)] = None,
    all_groups: Annotated[
        bool, typer.Option("--all-groups", help="All groups that there are, instead of GROUP...")
    ] = False,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All that the group has committed offsets of.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To what is committed; without it after the last record.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", callback=LONG, metavar="N", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record from 2026-01-31T12:00:00 on."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="As far back as PT1H30M, or 90s, 2h, 7d."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", callback=LONG, metavar="N", help="Forward by N; back with -N."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            help="As lines of topic,partition,offset or group,topic,partition,offset say.",
            readable=False,
        ),
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Print the new offsets as such lines instead of a table.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Set them; without this flag they are only printed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print them: the default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Set the committed offsets of groups without members.

    Without --execute it prints what would be set. An offset that a partition does not have becomes the
    nearest one. A group that does not exist is made.
    """
    import time

    from mpbroker.cli.cluster import group_offsets

    flags = group_offsets.Flags(
        to_earliest, to_latest, to_current, to_offset, to_datetime, by_duration, shift_by, from_file
    )
    plan = group_offsets.reset_plan(flags, names or [], topic or [], time.time_ns() // 1_000_000, all_topics)
    how = group_offsets.ResetFlags(export, execute, dry_run, json)
    where = ClusterAddress(bootstrap, command_config)
    group_offsets.reset(where, names or [], plan, how, all_groups=all_groups)


@group_app.command("delete-offsets")
def group_delete_offsets(
    name: GroupName,
    topic: Topics = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that it has committed.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Delete committed offsets of topics that no member reads."""
    from mpbroker.cli.cluster import group_offsets

    scope = group_offsets.scope_of(topic or [], all_topics=all_topics)
    group_offsets.delete(ClusterAddress(bootstrap, command_config), name, scope, is_sure=yes, as_json=json)
