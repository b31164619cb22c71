"""`mpbroker topic alter` and `delete-records`: change settings, add partitions, and delete records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.cluster.topic import parse_setting
from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.output import say, say_each
from mpbroker.client.errors import ClientError, raise_all
from mpbroker.client.positions import parse_before
from mpbroker.client.topics import partitions_of


class Changes(NamedTuple):
    """Changes to a topic.

    `settings` are KEY=VALUE, `deleted` keys to remove, `partitions` how many in all.
    """

    settings: Sequence[str]
    deleted: Sequence[str]
    partitions: int | None


def alter(where: ClusterAddress, name: str, changes: Changes, timeout_s: float, *, as_json: bool) -> None:
    """Alter the settings at once, all or none, and then the partitions. Raises CliError."""
    settings = dict(parse_setting(setting) for setting in changes.settings)
    if both := settings.keys() & set(changes.deleted):
        raise CliError(f"--delete-config {min(both)}: -c sets it, too", USAGE_ERROR)
    if not (settings or changes.deleted or changes.partitions):
        raise CliError("nothing to alter: give -c KEY=VALUE, --delete-config KEY or -p N", USAGE_ERROR)
    texts = []
    with open_admin(where) as client:
        if settings or changes.deleted:
            client.alter_topic(name, {**settings, **dict.fromkeys(changes.deleted)})
            said = [f"{key}={value}" for key, value in settings.items()]
            said += [f"{key} reset to the broker's default" for key in changes.deleted]
            texts.append(f"altered topic {name}: {', '.join(said)}")
        if changes.partitions:
            client.create_partitions(name, changes.partitions, timeout_s)
            texts.append(f"topic {name} has {changes.partitions} partition(s)")
    document = {
        "name": name,
        "configs": settings,
        "unset": [*changes.deleted],
        "partitions": changes.partitions,
    }
    say("\n".join(texts), document, as_json=as_json)


def delete_records(
    where: ClusterAddress,
    name: str,
    partition: int,
    before: str,
    timeout_s: float,
    *,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Delete the records before an offset, or all (latest), in one partition or in all (-1).

    A refusal of one partition does not keep the others from deletion. Raises InvalidArgument, ApiFailed.
    """
    failed: list[ClientError] = []
    offset = parse_before(before)
    with open_admin(where) as client:
        topic = client.topic(name)
        numbers = partitions_of(topic, [partition] if partition >= 0 else None)
        confirm(f"delete the records of {name} before {before}?", is_sure=is_sure)
        starts = client.delete_records(topic, dict.fromkeys(numbers, offset), timeout_s, failed)
    done = [
        (
            f"{name}-{number}: log start offset {start:,}",
            {"topic": name, "partition": number, "start_offset": start},
        )
        for number, start in starts.items()
    ]
    say_each(done, as_json=as_json)
    raise_all(failed)
