"""`mpbroker topic`: create, list, describe, delete."""

from typing import Any, NamedTuple

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, with_advice
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import print_json, print_rows, print_table, say, say_each
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, ClientError, raise_all
from mpbroker.client.times import in_ms
from mpbroker.client.topics import Topic, refuse_internal
from mpbroker.config import known
from mpbroker.config.describe import ConfigSource
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.protocol.errors import ErrorCode


class NewTopic(NamedTuple):
    """A topic to create. Numbers of -1 stand for the broker's defaults, `settings` are KEY=VALUE."""

    name: str
    partitions: int
    replication_factor: int
    settings: list[str]


def create(
    where: ClusterAddress, new: NewTopic, timeout_s: float, *, if_not_exists: bool, as_json: bool
) -> None:
    """Create one topic and print its partitions and settings. Raises CliError."""
    configs = dict(parse_setting(setting) for setting in new.settings)
    with open_admin(where) as client:
        try:
            got, replicas = client.create_topic(
                new.name, new.partitions, new.replication_factor, configs, timeout_s
            )
        except ApiFailed as error:
            if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                say(f"topic {new.name} exists already", {"name": new.name, "created": False}, as_json=as_json)
                return
            if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                clamp = "mpbroker.replication.factor.clamp=true"
                raise with_advice(error, f"; use 1, or start the broker with {clamp}") from error
            if error.code is ErrorCode.INVALID_CONFIG:
                raise with_advice(error, known.hint(configs, TOPIC_KEYS)) from error
            raise
    document = {"name": new.name, "created": True, "partitions": got, "replicas": replicas}
    say(f"created topic {new.name} with {got} partition(s), {replicas} replica(s)", document, as_json=as_json)


def parse_setting(text: str, flag: str = "-c ") -> tuple[str, str]:
    """Parse KEY=VALUE with both parts present; `flag` stood before it. Raises CliError."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise CliError(f"{flag}{text}: this is not KEY=VALUE", USAGE_ERROR)
    if not value:
        raise CliError(f"{flag}{text}: {key} has no value; leave it out to have the broker's", USAGE_ERROR)
    return key, in_ms(key, value)


def show_list(where: ClusterAddress, *, as_json: bool) -> None:
    """Print all topics the broker shows, internal ones marked."""
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
    print_rows(rows, as_json=as_json, nothing="no topics")


def describe(where: ClusterAddress, names: list[str], *, as_json: bool) -> None:
    """Print partitions with their offsets, and the settings a topic has of its own.

    A topic that cannot be described does not hide the others.
    """
    failed: list[ClientError] = []
    with open_admin(where) as client:
        documents = []
        for name in names:
            try:
                documents.append(_describe(client, client.topic(name)))
            except ApiFailed as error:
                failed.append(error)
        if not names:
            documents = [_describe(client, topic) for topic in client.topics()]
    if as_json:
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


def show_deletion(where: ClusterAddress, names: list[str], *, as_json: bool) -> None:
    """Print what `delete` would delete. Raises ApiFailed if a topic does not exist."""
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


def delete(
    where: ClusterAddress, names: list[str], timeout_s: float, *, is_sure: bool, as_json: bool
) -> None:
    """Delete topics. A failure does not keep the others from deletion. Raises CliError."""
    confirm(f"delete {', '.join(names)} with all records?", is_sure=is_sure, scripts_need_yes=True)
    refuse_internal(names)
    with open_admin(where) as client:
        results = client.delete_topics(names, timeout_s)
    deleted = [name for name, error in results.items() if error is None]
    say_each(
        [(f"deleted topic {name}", {"name": name, "deleted": True}) for name in deleted], as_json=as_json
    )
    raise_all([error for error in results.values() if error is not None])


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
    """Return a row per partition; one without a leader has no offsets."""
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
