"""`mpbroker topic`: create, list, describe, delete and alter topics, delete their records."""

from typing import Annotated, Any

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag, with_advice
from mpbroker.cli.flags import COMPLETE_TOPICS, ClusterAddress, DryRun, Json, Timeout, TopicName, Yes, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.numbers import INT, PARTITION_OR_ALL, SHORT
from mpbroker.cli.text.output import print_json, print_rows, print_table, say, say_each
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.positions import parse_before
from mpbroker.client.times import in_ms
from mpbroker.client.topics import Topic, partitions_of, refuse_internal
from mpbroker.config import known
from mpbroker.config.describe import ConfigSource
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.protocol.errors import ErrorCode

topic_app = App(no_args_is_help=True)
TopicSettings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic setting; repeatable."),
]


@topic_app.command("create")
def topic_create(
    name: TopicName,
    partitions: Annotated[
        int,
        typer.Option("--partitions", "-p", callback=INT, metavar="N", help="-1: the broker's default."),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", callback=SHORT, metavar="N", help="-1: the broker's default."
        ),
    ] = -1,
    config: TopicSettings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is fine.")
    ] = False,
    timeout: Timeout = 30.0,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Create a topic."""
    configs = dict(parse_setting(setting) for setting in config or ())
    with open_admin(where) as client:
        try:
            got, replicas = client.create_topic(name, partitions, replication_factor, configs, timeout)
        except ApiFailed as error:
            if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                say(f"topic {name} exists already", {"name": name, "created": False}, as_json=json)
                return
            if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                clamp = "mpbroker.replication.factor.clamp=true"
                raise with_advice(error, f"; use 1, or start the broker with {clamp}") from error
            if error.code is ErrorCode.INVALID_CONFIG:
                raise with_advice(error, known.hint(configs, TOPIC_KEYS)) from error
            raise
    document = {"name": name, "created": True, "partitions": got, "replicas": replicas}
    say(f"created topic {name} with {got} partition(s), {replicas} replica(s)", document, as_json=json)


def parse_setting(text: str, flag: str = "-c ") -> tuple[str, str]:
    """Parse KEY=VALUE; neither part may be empty. Raises CliError, which names `flag`."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise CliError(f"{flag}{text}: this is not KEY=VALUE", USAGE_ERROR)
    if not value:
        raise CliError(f"{flag}{text}: {key} has no value; leave it out to have the broker's", USAGE_ERROR)
    return key, in_ms(key, value)


@topic_app.command("list")
def topic_list(*, where: ClusterAddress, json: Json = False) -> None:
    """List all topics."""
    with open_admin(where) as client:
        topics = client.topics()
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(partition.replicas) for partition in topic.partitions), default=0),
            "internal": topic.internal,
        }
        for topic in topics
    ]
    print_rows(rows, as_json=json, nothing="no topics")


@topic_app.command("describe")
def topic_describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ] = None,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Partitions, offsets and changed settings of topics. Default: of all."""
    failed: list[ClientError] = []
    with open_admin(where) as client:
        documents = []
        for name in names or ():
            # A topic that cannot be described does not hide the others.
            try:
                documents.append(_describe(client, client.topic(name)))
            except ApiFailed as error:
                failed.append(error)
        if not names:
            documents = [_describe(client, topic) for topic in client.topics()]
    if json:
        print_json(documents)
    else:
        _print(documents)
    raise_all(failed)


def _print(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        settings = ", ".join(f"{key}={value}" for key, value in document["configs"].items())
        rows = document["partitions"]
        title = f"{document['name']}{'  ' + settings if settings else ''}"
        print_table(list(rows[0]), [list(row.values()) for row in rows], title=title)


@topic_app.command("delete")
def topic_delete(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", hidden=True, autocompletion=COMPLETE_TOPICS)
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout: Timeout = 30.0,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Delete topics and all their records."""
    if dry_run:
        _show_deletion(where, names, as_json=json)
        return
    confirm(f"delete {', '.join(names)} with all records?", is_sure=yes, scripts_need_yes=True)
    refuse_internal(names)
    with open_admin(where) as client:
        results = client.delete_topics(names, timeout)
    deleted = [name for name, error in results.items() if error is None]
    say_each([(f"deleted topic {name}", {"name": name, "deleted": True}) for name in deleted], as_json=json)
    # A failure does not keep the others from deletion.
    raise_all([error for error in results.values() if error is not None])


def _show_deletion(where: ClusterAddress, names: list[str], *, as_json: bool) -> None:
    """Print what would be deleted. Raises ApiFailed if a topic does not exist."""
    done = []
    with open_admin(where) as client:
        for topic in [client.topic(name) for name in names]:
            rows = [row for row in _partitions(client, topic) if row["leader"] is not None]
            records = sum(row["end_offset"] - row["start_offset"] for row in rows)
            count = len(topic.partitions)
            text = f"would delete topic {topic.name}: {count} partition(s), {records} offset(s)"
            done.append(
                (text, {"name": topic.name, "deleted": False, "partitions": count, "offsets": records})
            )
    say_each(done, as_json=as_json)


@topic_app.command("alter")
def topic_alter(
    name: TopicName,
    config: TopicSettings = None,
    delete_config: Annotated[
        list[str] | None, option("--delete-config", "KEY", "Reset it to the broker's default; repeatable.")
    ] = None,
    partitions: Annotated[
        int | None, option("--partitions -p", "N", "How many in all; never fewer.", min=1, callback=INT)
    ] = None,
    timeout: Timeout = 30.0,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Change settings of a topic, or give it more partitions."""
    settings = dict(parse_setting(setting) for setting in config or ())
    deleted = delete_config or []
    if both := settings.keys() & set(deleted):
        raise CliError(f"--delete-config {min(both)}: -c sets it, too", USAGE_ERROR)
    if not (settings or deleted or partitions):
        raise CliError("nothing to alter: give -c KEY=VALUE, --delete-config KEY or -p N", USAGE_ERROR)
    texts = []
    with open_admin(where) as client:
        if settings or deleted:
            client.alter_topic(name, {**settings, **dict.fromkeys(deleted)})
            changes = [f"{key}={value}" for key, value in settings.items()]
            changes += [f"{key} reset to the broker's default" for key in deleted]
            texts.append(f"altered topic {name}: {', '.join(changes)}")
        if partitions:
            client.create_partitions(name, partitions, timeout)
            texts.append(f"topic {name} has {partitions} partition(s)")
    document = {"name": name, "configs": settings, "unset": deleted, "partitions": partitions}
    say("\n".join(texts), document, as_json=json)


@topic_app.command("delete-records")
def topic_delete_records(
    name: TopicName,
    before: Annotated[str, option("--before", "OFFSET|latest", "Delete the records below it; latest: all.")],
    partition: Annotated[int, option("--partition", "N", "-1: all.", callback=PARTITION_OR_ALL)] = -1,
    yes: Yes = False,
    timeout: Timeout = 30.0,
    *,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Delete the records of a topic below an offset."""
    failed: list[ClientError] = []
    offset = of_flag("--before", before, parse_before)
    with open_admin(where) as client:
        topic = client.topic(name)
        numbers = partitions_of(topic, [partition] if partition >= 0 else None)
        confirm(f"delete the records of {name} before {before}?", is_sure=yes)
        starts = client.delete_records(topic, dict.fromkeys(numbers, offset), timeout, failed)
    done = [
        (
            f"{name}-{number}: log start offset {start:,}",
            {"topic": name, "partition": number, "start_offset": start},
        )
        for number, start in starts.items()
    ]
    say_each(done, as_json=json)
    raise_all(failed)


def _describe(client: Admin, topic: Topic) -> dict[str, Any]:
    configs = client.topic_configs(topic.name)
    return {
        "name": topic.name,
        "internal": topic.internal,
        "configs": {
            entry.name: entry.value
            for entry in configs
            if entry.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        },
        "partitions": _partitions(client, topic),
    }


def _partitions(client: Admin, topic: Topic) -> list[dict[str, Any]]:
    """Return a row per partition. The offsets of a partition without a leader are None."""
    indexes = [partition.index for partition in topic.partitions if partition.leader >= 0]
    ends = client.ends(topic, indexes)
    return [
        {
            "partition": partition.index,
            "leader": partition.leader if partition.leader >= 0 else None,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "start_offset": ends[partition.index].start if partition.index in ends else None,
            "end_offset": ends[partition.index].end if partition.index in ends else None,
        }
        for partition in topic.partitions
    ]
