"""Copiers blame a broker for none of their own faults."""

from __future__ import annotations

import random

import confluent_kafka
import pytest
from confluent_kafka import Message, TopicPartition

from ops.bench.ports import HOST, free_port
from tests.chaos import copiers
from tests.chaos.copiers import Copier, Copiers
from tests.support.polling import until
from tests.support.transactional_clients import Confluent, Refused, Transactional


class _Disconnected(confluent_kafka.Producer):
    """Between its flush and whatever is asked next, it finds that its broker is gone."""

    def init_transactions(self, *_patience: float) -> None:
        """Raise, since nobody is there to ask."""

    def flush(self, *patience: float) -> int:
        left = super().flush(*patience)
        until(lambda: len(self), "the library says that the broker is down")
        return left


def test_news_of_a_lost_broker_are_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka counts them in the length of its queue, beside records that are not acknowledged."""
    monkeypatch.setattr(confluent_kafka, "Producer", _Disconnected)
    Confluent(f"{HOST}:{free_port()}", "nobody").flush()


def test_records_that_are_left_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Disconnected, "flush", lambda *_: 7)
    monkeypatch.setattr(confluent_kafka, "Producer", _Disconnected)
    with pytest.raises(AssertionError, match="7 records are not acknowledged"):
        Confluent(f"{HOST}:{free_port()}", "nobody").flush()


class _Source:
    """A consumer with one record after the other."""

    is_closed = False

    def committed(self, asked: list[TopicPartition], **_within: float) -> list[TopicPartition]:
        return asked

    def assign(self, _: list[TopicPartition]) -> None: ...

    def consume(self, _: int, **_within: float) -> list[Message]:
        return [Message(topic=copiers.SOURCE, partition=0, offset=0)]

    def close(self) -> None:
        self.is_closed = True


class _Writer(Transactional):
    """A producer that its copier's end finds in the middle of a transaction."""

    def __init__(self, everybody: Copiers, raised: Exception | None) -> None:
        self._everybody = everybody
        self._raised = raised
        self.is_closed = False

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: str) -> None: ...

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def flush(self) -> None:
        self._everybody.stopping.set()
        if self._raised is not None:
            raise self._raised

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class _Vanishing(random.Random):
    """Every transaction is left open by a producer that stays connected."""

    def choices(self, population: tuple[str, ...], *_weights: object) -> list[str]:  # type: ignore[override]
        return [one for one in population if one == "vanish"]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> _Source:
    made = _Source()
    monkeypatch.setattr(copiers, "consumer_of", lambda *_: made)
    return made


@pytest.mark.parametrize("raised", [None, Refused("in time")])
def test_nothing_of_a_copier_stays_connected(source: _Source, raised: Exception | None) -> None:
    """Check that its connections are closed: others would be taken for the broker's leaks."""
    copier, writer = _copier(raised)
    copier.run()
    assert (source.is_closed, writer.is_closed, copier.zombie) == (True, True, None)


def test_who_hangs_tells_where_requests_are(source: _Source) -> None:
    copier, writer = _copier(AssertionError("it hangs"))
    with pytest.raises(AssertionError) as raised:
        copier.run()
    assert raised.value.__notes__ == ["where requests are, the writer connected: True"]
    assert (source.is_closed, writer.is_closed) == (True, True)


def _copier(raised: Exception | None) -> tuple[Copier, _Writer]:
    def under_way() -> str:
        return f"where requests are, the writer connected: {not writer.is_closed}"

    everybody = Copiers(f"{HOST}:{free_port()}", 1, under_way)
    writer = _Writer(everybody, raised)
    return Copier(everybody, 0, lambda *_: writer, _Vanishing()), writer
