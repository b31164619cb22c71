"""`mpbroker remote undelete`: brings a deleted topic back, with what the object store has of it."""

from __future__ import annotations

from typing import Final

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.host.local_broker import by_address
from mpbroker.cli.remote.place import answered, said_of_store
from mpbroker.cli.text.output import print_json, print_table
from mpbroker.client.times import format_time
from mpbroker.config.remote import UNDELETED
from mpbroker.protocol.printable import printable
from mpbroker.protocol.uuids import uuid_text
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState, RemoteTopic
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.tier.undeletion import end_of, start_of

# Each partition's directory needs a request to the store.
TIMEOUT_S: Final = 300.0


def undelete(where: ClusterAddress, name: str, topic_id: str | None, *, as_json: bool) -> None:
    """Have the broker create the topic, and print where its partitions begin and end. Raises CliError."""
    found = answered(by_address(where.bootstrap).call("remote"))
    with said_of_store():
        try:
            reader = LedgerReader(open_store(found["url"], found["request_timeout_ms"]))
        except StoreRefused as error:
            raise CliError(str(error)) from error
        reader.read_to_end()
    with open_admin(where) as client:
        if any(one.name == name for one in client.topics()):
            raise CliError(f"topic {name} exists: its name is taken")
        topic = _chosen(reader.state, name, topic_id)
        configs = {**topic.settings, UNDELETED: uuid_text(topic.topic_id)}
        client.create_topic(name, topic.partitions, 1, configs, TIMEOUT_S)
    rows = _rows(reader.state, topic)
    if as_json:
        print_json([dict(zip(("partition", "start", "end", "bytes"), row, strict=True)) for row in rows])
        return
    print(printable(f"topic {name} is back, as it was in the object store:"))
    print_table(["partition", "log start", "log end", "bytes"], rows)
    print("Records from the log ends on were not uploaded, and are gone. So are committed offsets of groups.")


def _chosen(state: RemoteState, name: str, topic_id: str | None) -> RemoteTopic:
    found = [
        one
        for one in state.topics.values()
        if one.name == name and topic_id in (None, uuid_text(one.topic_id))
    ]
    if not found:
        which = f"{name} with id {topic_id}" if topic_id else name
        raise CliError(
            f"the object store has no deleted topic {which}: it was not tiered, nothing of it was uploaded, "
            "or it was deleted more than a day ago"
        )
    if len(found) > 1:
        choices = ", ".join(f"{uuid_text(one.topic_id)} ({_when(one)})" for one in found)
        raise CliError(f"several topics {name} were deleted, so name one with --topic-id: {choices}")
    return found[0]


def _when(topic: RemoteTopic) -> str:
    return "just now" if topic.deleted_ms is None else f"deleted {format_time(topic.deleted_ms)}"


def _rows(state: RemoteState, topic: RemoteTopic) -> list[list[int]]:
    rows = []
    for number in range(topic.partitions):
        key = topic.topic_id, number
        size = sum(one.size for one in state.segments_of(*key))
        rows.append([number, start_of(state, *key), end_of(state, *key), size])
    return rows
