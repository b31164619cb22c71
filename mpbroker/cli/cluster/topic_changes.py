"""`mpbroker topic alter` and `delete-records`: change settings, add partitions, and delete records."""

from __future__ import annotations

from typing import Annotated

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.cluster.topic import TopicSettings, parse_setting
from mpbroker.cli.cluster.topic import topic_app as topic_app
from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.flags import ClusterAddress, Json, Timeout, TopicName, Yes, option
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.numbers import INT, PARTITION_OR_ALL
from mpbroker.cli.text.output import say, say_each
from mpbroker.client.errors import ClientError, raise_all
from mpbroker.client.positions import parse_before
from mpbroker.client.topics import partitions_of


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
