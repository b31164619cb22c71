"""`mpbroker topic alter` and `delete-records`: change settings, add partitions, and delete records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpbroker.cli.cluster.client import Client, Topic, by_leader, only
from mpbroker.cli.cluster.cluster_address import ClusterAddress
from mpbroker.cli.cluster.topic import parse_setting
from mpbroker.cli.errors import USAGE_ERROR, CliError, raise_all, with_advice
from mpbroker.cli.text.confirm import confirm
from mpbroker.cli.text.numbers import parse_decimal
from mpbroker.cli.text.output import say, say_each
from mpbroker.client.errors import ApiFailed
from mpbroker.config import known
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import EARLIEST, HIGH_WATERMARK, LATEST, ConfigOperation, ResourceType


class Changes(NamedTuple):
    """Changes to a topic.

    `settings` are KEY=VALUE, `deleted` keys to remove, `partitions` how many in all.
    """

    settings: Sequence[str]
    deleted: Sequence[str]
    partitions: int | None


class Shortening(NamedTuple):
    """A deletion of the records before an offset, or of all (latest), in one partition or in all (-1)."""

    topic: str
    partition: int
    before: str


def alter(where: ClusterAddress, name: str, changes: Changes, timeout_s: float, *, as_json: bool) -> None:
    """Alter the settings at once, all or none, and then the partitions. Raises CliError."""
    settings = dict(parse_setting(setting) for setting in changes.settings)
    if both := settings.keys() & set(changes.deleted):
        raise CliError(f"--delete-config {min(both)}: -c sets it, too", USAGE_ERROR)
    if not (settings or changes.deleted or changes.partitions):
        raise CliError("nothing to alter: give -c KEY=VALUE, --delete-config KEY or -p N", USAGE_ERROR)
    texts = []
    with Client(where) as client:
        if settings or changes.deleted:
            alter_settings(client, name, settings, changes.deleted)
            said = [f"{key}={value}" for key, value in settings.items()]
            said += [f"{key} reset to the broker's default" for key in changes.deleted]
            texts.append(f"altered topic {name}: {', '.join(said)}")
        if changes.partitions:
            create_partitions(client, name, changes.partitions, timeout_s)
            texts.append(f"topic {name} has {changes.partitions} partition(s)")
    document = {
        "name": name,
        "configs": settings,
        "unset": [*changes.deleted],
        "partitions": changes.partitions,
    }
    say("\n".join(texts), document, as_json=as_json)


def alter_settings(client: Client, name: str, settings: dict[str, str], deleted: Sequence[str]) -> None:
    one = m.IncrementalAlterConfigsRequest.AlterableConfig
    wanted = [one(key, ConfigOperation.SET, value) for key, value in settings.items()]
    wanted += [one(key, ConfigOperation.DELETE, None) for key in dict.fromkeys(deleted)]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(ResourceType.TOPIC, name, wanted)
    response: m.IncrementalAlterConfigsResponse = client.cluster.ask_any(
        m.IncrementalAlterConfigsRequest([resource])
    )
    result = only(response.responses, f"topic {name}")
    if result.error_code == ErrorCode.INVALID_CONFIG:
        error = ApiFailed(f"topic {name}", result.error_code, result.error_message)
        raise with_advice(error, known.hint([*settings, *deleted], TOPIC_KEYS))
    _check(client, name, result.error_code, result.error_message)


def create_partitions(client: Client, name: str, count: int, timeout_s: float) -> None:
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name, count, None)
    timeout_ms = int(timeout_s * 1000)
    response: m.CreatePartitionsResponse = client.cluster.ask_any(
        m.CreatePartitionsRequest([topic], timeout_ms), timeout_ms
    )
    result = only(response.results, f"topic {name}")
    _check(client, name, result.error_code, result.error_message)


def _check(client: Client, name: str, code: int, message: str | None) -> None:
    if code:
        raise client.topic_failed(name, code, message)


def delete_records(
    where: ClusterAddress, wanted: Shortening, timeout_s: float, *, is_sure: bool, as_json: bool
) -> None:
    """Delete records. A refusal of one partition does not keep the others from deletion. Raises CliError."""
    failed: list[Exception] = []
    with Client(where) as client:
        shortened = Shortened(client, wanted)
        confirm(f"delete the records of {wanted.topic} before {wanted.before}?", is_sure=is_sure)
        starts = shortened.delete(timeout_s, failed)
    done = [
        (
            f"{wanted.topic}-{number}: log start offset {start:,}",
            {"topic": wanted.topic, "partition": number, "start_offset": start},
        )
        for number, start in starts.items()
    ]
    say_each(done, as_json=as_json)
    raise_all(failed)


class Shortened:
    """The partitions that a deletion of records is about. Raises CliError if there are no such."""

    def __init__(self, client: Client, wanted: Shortening) -> None:
        offset = HIGH_WATERMARK if wanted.before == "latest" else parse_decimal(wanted.before)
        if offset is None:
            raise CliError(f"--before is an offset or latest, not '{wanted.before}'", USAGE_ERROR)
        self._client = client
        self._offset = offset
        self._topic = client.topic(wanted.topic)
        of_all = [one.index for one in self._topic.partitions]
        numbers = [wanted.partition] if wanted.partition >= 0 else of_all
        self._split = by_leader(self._topic, dict.fromkeys(numbers, offset))

    def delete(self, timeout_s: float, failed: list[Exception]) -> dict[int, int]:
        """Delete the records; return the new log start offsets, and add what has failed."""
        starts: dict[int, int] = {}
        name = self._topic.name
        for leader, mine in self._split.items():
            for result in _delete_before(self._client, leader, self._topic, mine, timeout_s):
                number = result.partition_index
                if not result.error_code:
                    starts[number] = result.low_watermark
                elif result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    failed.append(_out_of_range(self._client, self._topic, number, self._offset))
                else:
                    failed.append(ApiFailed(f"records of {name}-{number}", result.error_code))
        return starts


def _delete_before(
    client: Client, leader: int, topic: Topic, offsets: dict[int, int], timeout_s: float
) -> list[m.DeleteRecordsResponse.DeleteRecordsPartitionResult]:
    one = m.DeleteRecordsRequest.DeleteRecordsPartition
    wanted = m.DeleteRecordsRequest.DeleteRecordsTopic(topic.name, [one(*each) for each in offsets.items()])
    timeout_ms = int(timeout_s * 1000)
    response: m.DeleteRecordsResponse = client.cluster.ask(
        leader, m.DeleteRecordsRequest([wanted], timeout_ms), timeout_ms
    )
    results = [result for answer in response.topics for result in answer.partitions]
    return sorted(results, key=lambda result: result.partition_index)


def _out_of_range(client: Client, topic: Topic, partition: int, offset: int) -> CliError:
    (start,) = client.offsets(topic, EARLIEST, [partition]).values()
    (end,) = client.offsets(topic, LATEST, [partition]).values()
    return CliError(
        f"{topic.name}-{partition}: no such offset {offset:,}, it has {start:,} to {end:,}", USAGE_ERROR
    )
