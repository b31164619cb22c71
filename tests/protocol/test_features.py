"""The levels of Kafka's features."""

from __future__ import annotations

import pytest

from mpbroker.protocol import features
from mpbroker.protocol.features import GROUP_VERSION, is_consumer_protocol_enabled


def test_the_consumer_protocol_needs_the_level_and_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_consumer_protocol_enabled(("classic", "consumer"))
    assert not is_consumer_protocol_enabled(("classic", "streams"))
    monkeypatch.delitem(features.FINALIZED, GROUP_VERSION)
    assert not is_consumer_protocol_enabled(("classic", "consumer"))
