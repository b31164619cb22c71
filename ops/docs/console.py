"""Makes docs/console-*.png: the web console of a broker with some load, and of one whose disk is full.

python -m ops.docs.console               the pictures of the docs
python -m ops.docs.console --all DIR     each view, light and dark, wide and on a phone, for a check by eye
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from mpbroker.ipc import console_token
from mpbroker.ipc.pointer import PUBLIC_NAME, read_pointer
from mpbroker.metrics import snapshot
from mpbroker.testing import Broker, BrokerFailed
from ops.docs.browser import Browser
from ops.docs.load import loaded

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = {"http.listener": "127.0.0.1:0", "http.console.write": "true"}
# So that there may be ACLs.
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SIZE = (1280, 770)
PHONE = (390, 844)
THEMES = ("light", "dark")
LOAD_S = 70.0
# Where the view is, and the text in it once it is complete.
VIEWS = {
    "overview": ("overview", "handler 0"),
    "topics": ("topics", "orders"),
    "records": ("topics/orders", "customer-"),
    "partitions": ("topics/orders/partitions", "Log end"),
    "topic-settings": ("topics/orders/settings", "retention.ms"),
    "mixed": ("topics/mixed", "tombstone"),
    "groups": ("groups", "warehouse"),
    "group": ("groups/warehouse", "Stable"),
    "idle-group": ("groups/audit", "Empty"),
    "new-group": ("groups/reporting", "without a commit"),
    "internal-topic": ("topics/__consumer_offsets", "internal"),
    "pipeline": ("pipeline", "processor → handler"),
    "produce": ("topics/orders", "customer-"),
    "access": ("access", "User:billing"),
    "settings": ("settings", "admin.listener.names"),
    "health": ("health", "Log directories"),
    "full-disk": ("health", "have no leader"),
    "no-topic": ("topics/nope", "nope"),
    "no-group": ("groups/nope", "nope"),
}
# The pictures of the docs, by the part of their names after `console`. The last is of a full disk.
PICTURES = {
    "": ("overview", SIZE),
    "-produce": ("produce", (1280, 700)),
    "-access": ("access", (1280, 620)),
    "-full-disk": ("full-disk", (1280, 700)),
}
JSON = '{"id": 12345678901234567890, "tags": ["a", "b"]}'
ORDER = '{\n  "id": 4711,\n  "city": "Bologna",\n  "amount": 99.5\n}'
DISK_BYTES = 64 << 20
RECORDS, RECORD_BYTES = 20_000, 1000
JOURNAL_BYTES = 8 << 20
# No reserve, which would be lent to the next checkpoint: partitions that wait would find room then.
ON_FULL_DISK = {"log.journal.bytes": str(JOURNAL_BYTES), "log.reserve.bytes": "0"}
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


class Picture(NamedTuple):
    """A picture to be made. `whole`: the page down to its end, not only what fits."""

    path: Path
    view: str
    size: tuple[int, int]
    theme: str
    whole: bool


@contextmanager
def filled(broker: Broker) -> Iterator[None]:
    """Write records of several formats. Make a group without members, and one with few commits."""
    broker.create_topic("mixed", partitions=2)
    common = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**common, "transactional.id": "pictures"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("mixed", key="json", value=JSON, partition=0)
    producer.produce("mixed", key="text", value="of a name that is long " * 20, partition=1)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce("mixed", key=b"\x00\x00\x00\x2a", value=b"\xff\xfe\x00\x01", partition=0)
    producer.produce("mixed", key="tombstone", partition=0, timestamp=1_700_000_000_000)
    producer.flush()
    producer.abort_transaction()
    consumer = Consumer({**common, "group.id": "audit"})
    _commit(consumer, ("payments", 0, 40), ("mixed", 0, 1))
    consumer.close()
    own = {"group.id": "reporting", "client.id": "reporting-app", "enable.auto.commit": False}
    reporting = Consumer({**common, **own, "group.protocol": "consumer"})
    reporting.subscribe(["payments", "mixed"])
    while not reporting.assignment():
        reporting.poll(0.1)
    _commit(reporting, ("payments", 1, 10))
    try:
        yield
    finally:
        reporting.close()


def _commit(consumer: Consumer, *offsets: tuple[str, int, int]) -> None:
    consumer.commit(offsets=[TopicPartition(*one) for one in offsets], asynchronous=False)


def let_in(broker: Broker) -> None:
    """Add the users and ACLs of an imaginary shop."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, info, b"secret") for name in ("billing", "shop")
    ]
    any_name, literal, prefixed = "*", ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    rows = (
        ("shop", ResourceType.TOPIC, "orders", literal, AclOperation.WRITE, AclPermissionType.ALLOW),
        ("billing", ResourceType.TOPIC, "orders", literal, AclOperation.READ, AclPermissionType.ALLOW),
        ("billing", ResourceType.GROUP, "billing-", prefixed, AclOperation.READ, AclPermissionType.ALLOW),
        ("billing", ResourceType.TOPIC, "inventory", literal, AclOperation.ALL, AclPermissionType.DENY),
    )
    acls = [
        AclBinding(kind, name, pattern, f"User:{user}", any_name, operation, permission)
        for user, kind, name, pattern, operation, permission in rows
    ]
    done = [*admin.alter_user_scram_credentials(users).values(), *admin.create_acls(acls).values()]
    for one in done:
        one.result(60)


def write_record(browser: Browser) -> None:
    """Open the form for a record, and fill it in."""
    browser.click("button", "Produce")
    browser.fill("dialog textarea[name=value]", ORDER)
    browser.fill("dialog input[name=key]", "customer-1")
    browser.fill("dialog textarea[name=headers]", "source=shop")


def make(broker: Broker, wanted: list[Picture], watched_s: float = LOAD_S) -> None:
    """Make pictures of a broker's console, after watching it for `watched_s` to fill its history."""
    pointer = read_pointer(broker.log_dir)
    assert pointer is not None
    token = console_token.read(Path(pointer.runtime_dir))
    with Browser(*SIZE) as browser:
        browser.open(f"http://{pointer.http}/#token={token}")
        browser.until("document.getElementById('health').textContent.trim()", "the broker's state is shown")
        # The history is kept while a client watches.
        threading.Event().wait(watched_s)
        for one in wanted:
            place, seen = VIEWS[one.view]
            browser.resize(*one.size)
            browser.js(f"document.documentElement.dataset.theme = '{one.theme}'; location.hash = '#/{place}'")
            browser.sees(seen, "main")
            if one.view == "produce":
                write_record(browser)
            browser.js("new Promise((done) => setTimeout(done, 300))")
            browser.picture(one.path, whole=one.whole)
            browser.press("Escape")
            print(one.path)
        for error in browser.errors:
            print(f"an error of the page: {error}")


def everything(where: Path) -> Iterator[Picture]:
    """Yield a picture of each view in both themes, wide and on a phone."""
    for name, size in (("wide", SIZE), ("phone", PHONE)):
        for theme in THEMES:
            for view in sorted(VIEWS.keys() - {"full-disk"}):
                yield Picture(where / f"{view}-{name}-{theme}.png", view, size, theme, whole=True)


def of_docs(names: Iterable[str]) -> list[Picture]:
    """Return the pictures of the docs with these names, in both themes."""
    return [
        Picture(DOCS / f"console{name}-{theme}.png", *PICTURES[name], theme, whole=False)
        for name in names
        for theme in THEMES
    ]


def on_full_disk(wanted: list[Picture]) -> None:
    """Make pictures of a broker whose disk is full. Mounts a file system: call it in a mount namespace."""
    with tempfile.TemporaryDirectory(prefix="mpbroker-pictures-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", name], check=True)
        try:
            with Broker({**SETTINGS, **ON_FULL_DISK}, log_dir=Path(name, "data")) as broker:
                broker.create_topic("orders", partitions=4)
                _produce(broker)
                while _kept_bytes(broker) < JOURNAL_BYTES:
                    threading.Event().wait(0.1)
                _fill(Path(name, "of-others"))
                # It exists, and its partitions wait for room.
                with suppress(BrokerFailed):
                    broker.create_topic("returns", partitions=12)
                _fill(Path(name, "more-of-others"))
                make(broker, wanted, watched_s=5)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def _produce(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce("orders", key=str(number), value=bytes(RECORD_BYTES))
    producer.flush()


def _kept_bytes(broker: Broker) -> int:
    """Return the bytes that the broker's journal and reserve take now."""
    pointer = read_pointer(broker.log_dir)
    assert pointer is not None
    public = snapshot.attach(Path(pointer.runtime_dir, PUBLIC_NAME))
    return snapshot.take(public).log_dirs[0].kept_bytes


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", type=Path, metavar="DIR", help="each view, for a check by eye")
    parser.add_argument("--full-disk", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    where: Path | None = arguments.all
    *named, full = PICTURES
    wanted, of_full = of_docs(named), of_docs([full])
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
        wanted = list(everything(where))
        of_full = [one._replace(path=where / one.path.name, whole=True) for one in of_full]
    if arguments.full_disk:
        on_full_disk(of_full)
        return
    with loaded({**SETTINGS, **AUTHORIZED}) as broker, filled(broker):
        let_in(broker)
        make(broker, wanted)
    subprocess.run(
        [*OWN_MOUNTS, sys.executable, "-m", "ops.docs.console", "--full-disk", *sys.argv[1:]], check=True
    )


if __name__ == "__main__":
    main()
