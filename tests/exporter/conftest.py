"""A broker that serves HTTP, and what is scraped from there."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpbroker.testing import Broker
from tests.support.http_broker import HTTP, Answer, HttpClient, broker, own_broker

__all__ = ["broker", "own_broker"]
SETTINGS = {**HTTP, "num.io.threads": "2"}


class Http(HttpClient):
    """A client of a broker's metrics."""

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return a scrape as a dictionary: values by name and labels."""
        answer = self.get("/metrics")
        assert answer.status == 200, answer.text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def http_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("store").as_uri()
    return {**SETTINGS, "remote.log.storage.system.enable": "true", "mpbroker.remote.url": store}


@pytest.fixture(scope="module")
def http(broker: Broker) -> Http:
    return Http(broker)
