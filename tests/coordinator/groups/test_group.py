"""The topics of a group's subscriptions."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.group import topics_in
from mpbroker.protocol.wire import MalformedMessage
from tests.support.group_rig import subscription


def test_the_topics_of_a_subscription() -> None:
    assert topics_in(subscription("a", "topic")) == ["a", "topic"]
    assert topics_in(subscription()) == []
    for cut in range(len(subscription("ab")) - 4):
        with pytest.raises(MalformedMessage):
            topics_in(subscription("ab")[:cut])
