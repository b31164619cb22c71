from __future__ import annotations

from unittest.mock import Mock

import pytest

from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol.messages import ListConfigResourcesResponse
from mpbroker.protocol.numbers import ConfigResourceType


def test_a_broker_that_lists_only_subscriptions_lists_no_groups() -> None:
    resource = ListConfigResourcesResponse.ConfigResource
    subscription = resource("s", ConfigResourceType.CLIENT_METRICS)
    cluster = Mock()
    cluster.ask_any.return_value = ListConfigResourcesResponse(config_resources=[subscription])
    with pytest.raises(ApiFailed, match=r"the broker is older than Kafka 4\.1"):
        Admin(cluster).config_resources([ConfigResourceType.GROUP])
    cluster.ask_any.return_value.config_resources.append(resource("1", ConfigResourceType.BROKER))
    assert Admin(cluster).config_resources([ConfigResourceType.CLIENT_METRICS]) == [(16, "s")]
