"""Makes docs/console-dark.png and docs/console-light.png: the web console of a broker with some load.

python -m ops.docs.console               the two pictures of the docs
python -m ops.docs.console --all DIR     each view, light and dark, wide and on a phone, to look at
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from mpbroker.ipc import console_token
from mpbroker.ipc.pointer import read_pointer
from mpbroker.testing import Broker
from ops.docs.browser import Browser
from ops.docs.load import loaded

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = {"http.listener": "127.0.0.1:0", "http.console.write": "true"}
SIZE = (1280, 770)
PHONE = (390, 844)
THEMES = ("light", "dark")
LOAD_S = 70.0
# Where the view is, and what stands there when it has all that it shows.
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
    "new-group": ("groups/reporting", "has no commit"),
    "internal-topic": ("topics/__consumer_offsets", "internal"),
    "pipeline": ("pipeline", "processor → handler"),
    "access": ("access", "No users"),
    "settings": ("settings", "admin.listener.names"),
    "health": ("health", "Log directories"),
    "no-topic": ("topics/nope", "nope"),
    "no-group": ("groups/nope", "nope"),
}
JSON = '{"id": 12345678901234567890, "tags": ["a", "b"]}'


class Picture(NamedTuple):
    """A picture to be made. `whole`: the page down to its end, not only what fits."""

    path: Path
    view: str
    size: tuple[int, int]
    theme: str
    whole: bool


@contextmanager
def filled(broker: Broker) -> Iterator[None]:
    """Write records of each kind; have a group without members, and one that has committed little."""
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
    reporting = Consumer({**common, **own})
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


def make(broker: Broker, wanted: list[Picture]) -> None:
    """Make pictures of a broker's console, after somebody has watched it for a while."""
    pointer = read_pointer(broker.log_dir)
    assert pointer is not None
    token = console_token.read(Path(pointer.runtime_dir))
    with Browser(*SIZE) as browser:
        browser.open(f"http://{pointer.http}/#token={token}")
        browser.sees("running", "#health")
        # The history is kept while somebody watches.
        threading.Event().wait(LOAD_S)
        for one in wanted:
            place, seen = VIEWS[one.view]
            browser.resize(*one.size)
            browser.js(f"document.documentElement.dataset.theme = '{one.theme}'; location.hash = '#/{place}'")
            browser.sees(seen, "main")
            browser.js("new Promise((done) => setTimeout(done, 300))")
            browser.picture(one.path, whole=one.whole)
            print(one.path)
        for said in browser.said:
            print(f"the page said: {said}")


def everything(where: Path) -> Iterator[Picture]:
    """Yield a picture of each view in both themes, wide and on a phone."""
    for name, size in (("wide", SIZE), ("phone", PHONE)):
        for theme in THEMES:
            for view in VIEWS:
                yield Picture(where / f"{view}-{name}-{theme}.png", view, size, theme, whole=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", type=Path, metavar="DIR", help="each view, to look at")
    where: Path | None = parser.parse_args().all
    if where is None:
        wanted = [Picture(DOCS / f"console-{one}.png", "overview", SIZE, one, whole=False) for one in THEMES]
    else:
        where.mkdir(parents=True, exist_ok=True)
        wanted = list(everything(where))
    with loaded(SETTINGS) as broker, filled(broker):
        make(broker, wanted)


if __name__ == "__main__":
    main()
