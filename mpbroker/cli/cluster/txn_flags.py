"""The flags of `mpbroker txn`; what its commands do is in `txn` and `txn_aborts`."""

from typing import Annotated

import typer

from mpbroker.cli.app import App
from mpbroker.cli.flags import (
    COMPLETE_TOPICS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClusterAddress,
    CommandConfig,
    Json,
    TopicName,
    Yes,
)
from mpbroker.cli.text.numbers import INT, LONG, PARTITION, SHORT

txn_app = App(no_args_is_help=True)

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", callback=PARTITION, metavar="N", help="Only this one; repeatable."),
]


@txn_app.command("list")
def txn_list(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only Ongoing, CompleteCommit, Empty …; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", callback=LONG, metavar="N", help="Only of this producer; repeatable."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--longer-than", metavar="DURATION", help="Only those that are open for longer: 15m, PT1H."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--transactional-id-pattern", metavar="RE", help="Only ids that match it as a whole."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Transactional ids, and the state of each."""
    from mpbroker.cli.cluster import txn as command

    filters = command.filters(state or [], producer_id or [], duration, pattern)
    command.show_list(ClusterAddress(bootstrap, command_config), filters, as_json=json)


@txn_app.command("describe")
def txn_describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="TRANSACTIONAL-ID...", hidden=True)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Producer, state and partitions of transactional ids.

    Default: of all.
    """
    from mpbroker.cli.cluster import txn as command

    command.describe(ClusterAddress(bootstrap, command_config), names or [], as_json=json)


@txn_app.command("describe-producers")
def txn_describe_producers(
    topic: TopicName,
    partition: Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """The producers that partitions remember."""
    from mpbroker.cli.cluster import txn as command

    command.describe_producers(
        ClusterAddress(bootstrap, command_config), topic, partition or [], as_json=json
    )


@txn_app.command("find-hanging")
def txn_find_hanging(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--max-transaction-timeout", metavar="DURATION", help="transaction.max.timeout.ms of the broker."
        ),
    ] = "15m",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Find transactions that no coordinator will end.

    Readers of committed records wait for them for ever. Default: in all topics.
    """
    from mpbroker.cli.cluster import txn as command

    command.find_hanging(ClusterAddress(bootstrap, command_config), topics or [], timeout, as_json=json)


@txn_app.command("abort")
def txn_abort(
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id", metavar="ID", help="The open transaction of this id; fences its producer."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="A hanging one, in a partition of this topic."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", callback=PARTITION, metavar="N", help="Which one."),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", callback=LONG, metavar="N", help="The one that begins there …"),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option("--producer-id", callback=LONG, metavar="N", help="… or the one of this producer;"),
    ] = None,
    producer_epoch: Annotated[
        int | None,
        typer.Option(
            "--producer-epoch", callback=SHORT, metavar="N", help="with it: default, as it is there;"
        ),
    ] = None,
    coordinator_epoch: Annotated[
        int | None,
        typer.Option("--coordinator-epoch", callback=INT, metavar="N", help="likewise."),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Abort an open transaction, or a hanging one.

    A marker is written into that partition alone; see find-hanging and describe-producers.
    """
    from mpbroker.cli.cluster import txn_aborts

    hanging = txn_aborts.Hanging(
        topic, partition, start_offset, producer_id, producer_epoch, coordinator_epoch
    )
    where = ClusterAddress(bootstrap, command_config)
    txn_aborts.abort(where, transactional_id, hanging, is_sure=yes, as_json=json)
