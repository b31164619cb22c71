"""Requests that name very many things keep no process from what others want of it."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.requests import metadata as handlers_metadata
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol import topic_names
from mpbroker.protocol.messages import (
    REQUESTS,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    Message,
    MetadataRequest,
)
from tests.support.filled_requests import filled
from tests.support.handler_rig import Rig, delta, request_frame, topic_image

CONFIGS = 32
READY = (topic_image("t", 1),)


def test_names_that_collide_follow_the_topics(ready: Rig) -> None:
    dotted, other = topic_image("a.b", 1), topic_image("a_c", 2)
    ready.publish(dotted, other)
    metadata = ready.metadata
    found = [metadata.collides(name) for name in ("a_b", "a.b", "a.c", "ab", "x.y")]
    assert found == [True, False, True, False, False]
    again = topic_image("a.b", 3)
    ready.bulletin.publish_delta(delta(again, removed=(other.topic_id,)))
    ready.turn()
    assert (metadata.collides("a_b"), metadata.collides("a.c")) == (True, False)
    ready.bulletin.publish_delta(delta(removed=(again.topic_id,), version=3))
    ready.turn()
    assert not metadata.collides("a_b")


def test_names_that_are_not_there_are_not_compared_with_all_that_are(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it with thousands of each, which once kept a handler busy until it was killed as hanging."""
    ready.publish(*(topic_image(f"there.{n}", n + 1) for n in range(50)))
    looked_at: list[str] = []
    key_of = topic_names.collision_key
    monkeypatch.setattr(
        handlers_metadata, "collision_key", lambda name: looked_at.append(name) or key_of(name)
    )
    names = [f"new.{n}" for n in range(100)]
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    response = ready.ask(3, 9, MetadataRequest(asked, allow_auto_topic_creation=False))
    assert {topic.error_code for topic in response.topics} == {3}
    assert len(looked_at) <= 2 * len(names)


def test_others_are_served_while_many_settings_are_described(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.handlers.context.SEARCHES_PER_PIECE", 1)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    named = [resource(2, name) for name in ("t", "none", "t", "u", "t")]
    ready.send(CONFIGS, 4, DescribeConfigsRequest(named))
    assert ready.serve_others() >= 2
    results = ready.answer(CONFIGS, 4).results
    assert [result.resource_name for result in results] == ["t", "none", "u"]


def lists_in(request: Message) -> dict[str, list[Any]]:
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    return {name: value for name, value in values.items() if isinstance(value, list) and value}


@pytest.mark.parametrize("key", [key for key in all_apis() if lists_in(filled(REQUESTS[key]))])
def test_more_than_any_broker_has_closes_the_connection(
    ready: Rig, caplog: pytest.LogCaptureFixture, key: int
) -> None:
    """Check the limit, which protects the one coordinator that serves all clients."""
    request, most = filled(REQUESTS[key]), all_apis()[key].elements_max
    assert most <= GROUP_IDS_MAX
    for field, entries in lists_in(request).items():
        setattr(request, field, entries * (most + 1))
    ready.processor.send(request_frame(key, all_apis()[key].latest, request))
    ready.work_off()
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
    assert f"has more than {most} elements in its arrays" in caplog.text
    assert ready.coordinator.take() == []


def test_an_answer_that_grows_too_long_fails_its_request(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mpbroker.handlers.requests.response.RESPONSE_BYTES_MAX", 10_000)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    named = [resource(2, "t"), resource(4, "1"), resource(2, "u")]
    request = DescribeConfigsRequest(named, include_documentation=True)
    ready.send(CONFIGS, 4, request)
    results = ready.answer(CONFIGS, 4).results
    assert {(len(result.configs), result.error_code) for result in results} == {(0, 42)}
    assert "its answer would have more than 10000 bytes" in caplog.text


def test_a_connection_is_closed_if_even_the_error_is_too_long(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.handlers.requests.response.RESPONSE_BYTES_MAX", 10_000)
    request = FindCoordinatorRequest(coordinator_keys=[str(number) for number in range(1000)])
    ready.send(10, 6, request)
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
