"""What processors hear of quotas (is request time limited?), and handlers of subscriptions to metrics."""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import CLIENT_METRICS, GROUP
from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.ipc.bulletin import BulletinPublisher, BulletinReader
from mpbroker.ipc.topology import HANDLERS, SharedMemory
from mpbroker.quotas.entities import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, entity_of

ANN, BOB = entity_of([("user", "ann")]), entity_of([("user", "bob")])


def announcer(memory: SharedMemory) -> Announcer:
    publisher = BulletinPublisher(memory.private.block("bulletin"), memory.words("bulletin_acks"), list)
    return Announcer(publisher, memory.words("request_quotas"), "cluster", 1)


def test_processors_hear_of_the_first_and_the_last_quota_on_time(memory: SharedMemory) -> None:
    state, told = MetadataState(), announcer(memory)

    def after(entity: tuple[tuple[str, str | None], ...], key: str, value: float | None) -> int:
        state.quotas.change(entity, key, value)
        told.quotas_changed([entity])
        assert told.publish(state)
        return memory.words("request_quotas").load(0)

    assert told.publish(state)
    assert memory.words("request_quotas").load(0) == 0
    assert after(ANN, PRODUCER_BYTE_RATE, 5.0) == 0
    assert after(ANN, REQUEST_PERCENTAGE, 5.0) == 1
    assert after(BOB, REQUEST_PERCENTAGE, 5.0) == 1
    assert after(ANN, REQUEST_PERCENTAGE, None) == 1
    assert after(BOB, REQUEST_PERCENTAGE, None) == 0


def test_handlers_hear_of_subscriptions_and_of_no_settings_of_groups(memory: SharedMemory) -> None:
    state, told, reader = MetadataState(), announcer(memory), Metadata(BrokerConfig(), TopicTable(1))
    news = BulletinReader(memory.private.block("bulletin"), memory.words("bulletin_acks"), HANDLERS[0])
    first, second = ({"metrics": "*"}, {"interval.ms": "1000", "match": "client_id=a"})

    def heard() -> dict[str, dict[str, str]]:
        assert told.publish(state)
        reader.apply(news.poll())
        return reader.subscriptions

    state.settings[CLIENT_METRICS, "first"] = first
    state.settings[GROUP, "g"] = {"consumer.session.timeout.ms": "50000"}
    assert heard() == {"first": first}
    version = reader.subscriptions_version
    state.settings[CLIENT_METRICS, "second"] = second
    told.subscriptions_changed(["second"])
    assert heard() == {"first": first, "second": second}
    del state.settings[CLIENT_METRICS, "first"]
    told.subscriptions_changed(["first"])
    assert heard() == {"second": second}
    assert reader.subscriptions_version == version + 2
    told.quotas_changed([ANN])
    assert heard() == {"second": second}
    assert reader.subscriptions_version == version + 2
    del state.settings[CLIENT_METRICS, "second"]
    told.replaced()
    assert heard() == {}


def test_a_successor_tells_it_anew(memory: SharedMemory) -> None:
    """Check that a successor announces everything, whatever its predecessor had announced."""
    state = MetadataState()
    state.quotas.change(ANN, REQUEST_PERCENTAGE, 5.0)
    for before, after in ((0, 1), (1, 0)):
        memory.words("request_quotas").store(0, before)
        assert announcer(memory).publish(state)
        assert memory.words("request_quotas").load(0) == after
        state.quotas.change(ANN, REQUEST_PERCENTAGE, None)
