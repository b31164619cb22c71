"""The names of a broker, by which its HTTP port answers."""

from __future__ import annotations

import socket

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.exporter.process import own_names


def test_the_names_of_a_broker_are_those_of_its_host_and_of_its_addresses() -> None:
    config = BrokerConfig(
        http_listener="Http.example:9644",
        listeners=(Listener("PLAINTEXT", "PLAINTEXT", "", 9092),),
        advertised_listeners=(Listener("PLAINTEXT", "PLAINTEXT", "mpbroker", 9092),),
        http_hosts=("Scraped.example.",),
    )
    here = socket.gethostname().lower()
    assert own_names(config) == {here, "http.example", "mpbroker", "scraped.example"}
