"""`mpbroker remote`: the object store of tiered storage, and what the broker's tier does with it."""

from __future__ import annotations

from typing import Annotated

import typer

from mpbroker.cli.app import App, Part
from mpbroker.cli.flags import COMPLETE_TOPICS, ClusterAddress, CommandConfig, Json, TopicName, flag, option
from mpbroker.cli.host.local_broker import LocalBroker

remote_app = App(no_args_is_help=True)
_MIGRATION = "mpbroker.cli.host.migration"
_EXPORT = "Turn a broker's directories and object store into Apache Kafka's."
_IMPORT = "Take over the directories and the object store of a stopped Apache Kafka."
remote_app.add_part(Part("export", _MIGRATION, "remote_export", _EXPORT))
remote_app.add_part(Part("import", _MIGRATION, "remote_import", _IMPORT))
Url = Annotated[
    str | None,
    option("--url", "URL", "Where the object store is, as mpbroker.remote.url; no broker is asked then."),
]


@remote_app.command("status")
def status(
    here: LocalBroker,
    *,
    topic: Annotated[
        str | None,
        option("--topic", "TOPIC", "The partitions of this topic.", autocompletion=COMPLETE_TOPICS),
    ] = None,
    json: Json = False,
) -> None:
    """Print what the object store has, what waits, and outages.

    With --topic where the partitions begin here, and where they end in the store.
    """
    from mpbroker.cli.remote import status as command

    if topic is None:
        command.status(here, as_json=json)
    else:
        command.of_topic(here, topic, as_json=json)


@remote_app.command("why")
def why(
    topic: TopicName, *, here: LocalBroker, command_config: CommandConfig = None, json: Json = False
) -> None:
    """Print what keeps the segments of a topic on this disk."""
    from mpbroker.cli.remote import why as command

    command.why(here, command_config, topic, as_json=json)


@remote_app.command("undelete")
def undelete(
    topic: TopicName,
    *,
    where: ClusterAddress,
    topic_id: Annotated[
        str | None, option("--topic-id", "ID", "Which one, if several topics of the name were deleted.")
    ] = None,
    json: Json = False,
) -> None:
    """Bring back a topic that was deleted within a day.

    It has what the object store has. What was not uploaded, and committed offsets of groups, are gone.
    """
    from mpbroker.cli.remote import undelete as command

    command.undelete(where, topic, topic_id, as_json=json)


@remote_app.command("verify")
def verify(
    here: LocalBroker,
    *,
    url: Url = None,
    deep: Annotated[
        bool, flag("--deep", "Read all segments: their checksums, and those of their batches.")
    ] = False,
    json: Json = False,
) -> None:
    """Check the ledger, and each object that it names.

    The exit code is 1 if something is wrong.
    """
    from mpbroker.cli.remote import verify as command

    if not command.verify(here, url, deep=deep, as_json=json):
        raise typer.Exit(1)


@remote_app.command("gc")
def gc(
    here: LocalBroker,
    *,
    url: Url = None,
    delete: Annotated[
        bool, flag("--delete", "Have the tier of the running broker delete them now, not once a day.")
    ] = False,
    json: Json = False,
) -> None:
    """List objects of given-up uploads, or delete them.

    They are at least a day old by the store's clock.
    """
    from mpbroker.cli.remote import gc as command

    command.gc(here, url, delete=delete, as_json=json)
