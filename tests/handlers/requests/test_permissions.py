"""The table of permissions: every API has its row, and the APIs go by it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.config.keys import Secret
from mpbroker.config.listeners import Listener
from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.requests.permissions import ADMINISTRATION, RULES, Rule
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import SettingsRead
from mpbroker.ipc.session import SecurityProtocol
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import REQUESTS, Message
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.filled_requests import filled
from tests.support.forwarded_requests import errors_in
from tests.support.handler_rig import Rig, topic_image
from tests.support.handler_rig import rig as make_rig

APIS = all_apis()
ROOT = Path(__file__).parents[3]
ORDERS = topic_image("orders", 1)
DENIALS = {29, 30, 31, 53, 65}
# Kinds of resources that hold everything.
EVERYTHING = [
    AclImage(
        kind,
        "kafka-cluster" if kind == ResourceType.CLUSTER else "*",
        PatternType.LITERAL,
        "User:*",
        "*",
        Operation.ALL,
        Permission.ALLOW,
    )
    for kind in ResourceType
    if kind not in (ResourceType.UNKNOWN, ResourceType.ANY)
]
# These leave out what the client may not see, or have something to tell everybody.
SILENT = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_DELEGATION_TOKEN}
# These answer clients without a name before they look at permissions.
NEED_A_NAME = {ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN}


@pytest.fixture(name="guarded")
def _guarded() -> Iterator[Rig]:
    config = BrokerConfig(
        authorizer_class_name=STANDARD_AUTHORIZER,
        delegation_token_secret_key=Secret("secret"),
        client_telemetry_enable=True,
    )
    with make_rig(config) as made:
        yield made


def request_of(key: int) -> Any:
    body: Any = filled(REQUESTS[key])
    match key:
        case ApiKey.PRODUCE:
            body.acks = -1
            body.topic_data[0].topic_id = ORDERS.topic_id
        case ApiKey.FETCH:
            body.session_epoch = -1
            body.topics[0].topic_id = ORDERS.topic_id
        case ApiKey.OFFSET_COMMIT:
            body.topics[0].topic_id = ORDERS.topic_id
        case ApiKey.DELETE_TOPICS:
            body.topics[0].name = "orders"
        case ApiKey.INIT_PRODUCER_ID:
            body.transactional_id = "x"
        case ApiKey.CREATE_DELEGATION_TOKEN:
            body.owner_principal_type, body.owner_principal_name = "User", "bob"
            body.renewers[0].principal_type, body.renewers[0].principal_name = "User", "eve"
        case ApiKey.METADATA:
            body.topics[0].name = "orders"
        case ApiKey.DESCRIBE_CONFIGS | ApiKey.ALTER_CONFIGS | ApiKey.INCREMENTAL_ALTER_CONFIGS:
            body.resources[0].resource_type = 2
    return body


def sent(guarded: Rig, key: int) -> tuple[list[Any], Any]:
    """Return what the coordinator was asked, and the answer if there is one already."""
    latest = APIS[key].latest
    if key in NEED_A_NAME:
        guarded.processor.open_session(7, SecurityProtocol.SASL_SSL)
    guarded.send(key, latest, request_of(key))
    asked = guarded.coordinator.take()
    return asked, None if asked else guarded.answer(key, latest)


def test_every_api_has_its_rule() -> None:
    assert {*APIS} == {*RULES}


@pytest.mark.parametrize(
    "key", [key for key in APIS if RULES[ApiKey(key)] != Rule()], ids=lambda k: APIS[k].name
)
def test_who_may_nothing_is_refused(guarded: Rig, key: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    guarded.publish(ORDERS)
    rule = RULES[ApiKey(key)]
    asked, answer = sent(guarded, key)
    if key in SILENT:
        assert asked
    elif rule.request or rule.resource:
        assert asked == []
        expected = {need.denied for need in (*rule.request, *rule.resource)}
        assert set(errors_in(answer)) & expected, answer
        said = "audit: User:ANONYMOUS from unix on PLAINTEXT is denied "
        assert [one for one in caplog.messages if one.startswith(said) and ApiKey(key).name in one]
    else:
        assert not set(errors_in(answer)) & DENIALS


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_who_may_everything_is_served(guarded: Rig, key: int) -> None:
    guarded.publish(ORDERS, acls=EVERYTHING)
    _, answer = sent(guarded, key)
    assert answer is None or not set(errors_in(answer)) & DENIALS


@pytest.mark.parametrize("operation", [Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS])
def test_settings_of_a_group_have_permissions_of_the_group(guarded: Rig, operation: Operation) -> None:
    allow = (ResourceType.GROUP, "g", PatternType.LITERAL, "User:*", "*", operation, Permission.ALLOW)
    guarded.publish(ORDERS, acls=[AclImage(*allow)])
    kind = ConfigResourceType.GROUP
    may_alter = operation == Operation.ALTER_CONFIGS
    for name, is_own in (("g", True), ("h", False)):
        described = m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, None)
        call, _ = guarded.asked(ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest([described]))
        guarded.reply(call, SettingsRead([(kind, name, {})]))
        (result,) = guarded.answer(ApiKey.DESCRIBE_CONFIGS, 4).results
        assert result.error_code == (0 if is_own else ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for key, request in (
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, m.IncrementalAlterConfigsRequest),
            (ApiKey.ALTER_CONFIGS, m.AlterConfigsRequest),
        ):
            body: Any = request([request.AlterConfigsResource(kind, name)])
            guarded.send(key, APIS[key].latest, body)
            is_asked = bool(guarded.coordinator.take())
            assert is_asked == (is_own and may_alter)
            if not is_asked:
                errors = set(errors_in(guarded.answer(key, APIS[key].latest)))
                assert errors == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


LISTENERS = tuple(
    Listener(name, "PLAINTEXT", "127.0.0.1", port) for port, name in enumerate(("CLIENTS", "INSIDE"), 1)
)
CLIENTS, INSIDE = range(2)
TOKEN_KEYS = range(38, 42)
# Whoever needs one of these changes what others rely on.
CHANGES = {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}


@pytest.fixture(name="confined")
def _confined() -> Iterator[Rig]:
    config = BrokerConfig(listeners=LISTENERS, admin_listener_names=("INSIDE",), client_telemetry_enable=True)
    with make_rig(config) as made:
        made.publish(ORDERS)
        yield made


def on(made: Rig, listener: int, key: int, version: int, body: Any) -> Any:
    """Return the response, None if the handler asks others first."""
    made.send(key, version, body, connection=100 + key, listener=listener)
    taken = (made.coordinator.take(), made.log.take())
    replies = [one for one in made.processor.replies() if one.kind != SlotKind.PARKED]
    if not replies:
        assert any(taken), "somebody is asked"
        return None
    (reply,) = replies
    return decode_response_frame(key, version, made.processor.frame_of(reply)[4:])[1]


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_each_api_on_a_listener_for_clients_and_on_one_for_administration(confined: Rig, key: int) -> None:
    for version in {APIS[key].oldest, APIS[key].latest}:
        refused = on(confined, CLIENTS, key, version, request_of(key))
        if RULES[ApiKey(key)].is_admin:
            # ElectLeaders 0 has no error for the whole request.
            found = set(errors_in(refused)) - ({0} if key == ApiKey.ELECT_LEADERS else set())
            assert found == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}, refused
        else:
            assert refused is None or not set(errors_in(refused)) & DENIALS
        served = on(confined, INSIDE, key, version, request_of(key))
        assert served is None or not set(errors_in(served)) & DENIALS


def test_what_changes_what_others_rely_on_is_administration() -> None:
    changing = {
        key
        for key, rule in RULES.items()
        if any(n.operation in CHANGES for n in (*rule.request, *rule.resource))
    }
    assert changing <= ADMINISTRATION
    assert {key for key in RULES if key in TOKEN_KEYS} <= ADMINISTRATION, "a token is a way to log in"
    # Clients send these all the time.
    assert not ADMINISTRATION & {key for key in RULES if key < ApiKey.CREATE_TOPICS}


@pytest.mark.parametrize("key", sorted(ADMINISTRATION), ids=lambda key: APIS[key].name)
def test_a_refusal_names_the_listeners_that_are_for_it(confined: Rig, key: int) -> None:
    answer = on(confined, CLIENTS, key, APIS[key].latest, request_of(key))
    assert messages_in(answer) <= {
        f"{APIS[key].name} is refused: listener CLIENTS is for clients alone: the broker is administered on "
        "INSIDE (admin.listener.names)"
    }


def messages_in(value: object) -> set[str]:
    """Every error message in a response, however deep."""
    if isinstance(value, list):
        return {text for each in value for text in messages_in(each)}
    if not isinstance(value, Message):
        return set()
    texts = {text for name in value.__struct_fields__ for text in messages_in(getattr(value, name))}
    own = getattr(value, "error_message", "none here")
    return texts if own == "none here" else texts | {own}


def test_a_refused_request_gets_no_further(confined: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    body = m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic("new", 1, 1)])
    confined.send(ApiKey.CREATE_TOPICS, 7, body, listener=CLIENTS)
    assert confined.coordinator.take() == []
    confined.processor.replies()
    assert caplog.messages == [
        "audit: User:ANONYMOUS from unix on CLIENTS is denied CREATE_TOPICS of 'new': listener CLIENTS is "
        "for clients alone: the broker is administered on INSIDE (admin.listener.names)"
    ]


def test_topics_that_clients_name_are_made_on_each_listener(confined: Rig) -> None:
    """Kafka's clients cannot work without it where it is on; it has a setting of its own."""
    body = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="automatic")], True)
    _, asked = confined.asked(ApiKey.METADATA, 12, body, listener=CLIENTS)
    assert [topic.name for topic in asked.topics] == ["automatic"]


def test_acts_are_told_with_their_results(confined: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    who = "audit: User:ANONYMOUS from unix on INSIDE asked for"
    on(confined, INSIDE, ApiKey.DELETE_RECORDS, 2, request_of(ApiKey.DELETE_RECORDS))
    assert caplog.messages == [f"{who} DELETE_RECORDS of '-0': UNKNOWN_TOPIC_OR_PARTITION"]
    caplog.clear()
    assert on(confined, INSIDE, ApiKey.OFFSET_DELETE, 0, request_of(ApiKey.OFFSET_DELETE)) is None
    assert caplog.messages == []
    confined.processor.cancel(100 + ApiKey.OFFSET_DELETE)
    confined.turn()
    assert caplog.messages == [f"{who} OFFSET_DELETE of ' -0': no answer"]


def test_a_reload_confines_the_next_request(confined: Rig) -> None:
    body = request_of(ApiKey.DELETE_GROUPS)
    config = confined.context.config
    for names, is_refused in (((), False), (("CLIENTS",), False), (("INSIDE",), True)):
        structs.force_setattr(config, "admin_listener_names", names)
        answer = on(confined, CLIENTS, ApiKey.DELETE_GROUPS, 2, body)
        assert (answer is not None) == is_refused


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/SECURITY.md").read_text()
    found = re.findall(r"^\| ((?:\w+ \(\d+\)(?:, )?)+) \| (.*) \|$", page, re.MULTILINE)
    rows = {name: cells for names, cells in found for name in names.split(", ")}
    assert rows == {f"{APIS[key].name} ({int(key)})": written(rule) for key, rule in RULES.items()}


def written(rule: Rule) -> str:
    """Return the cell of a rule: needs, a star for administration, and what is to be said of them."""
    needs = [f"{need}" for need in (*rule.request, *rule.resource)]
    text = ", ".join(needs) or "nothing"
    if rule.alternative is not None:
        text += f"; or {rule.alternative}"
    remark = f". {rule.remark[0].upper()}{rule.remark[1:]}" if rule.remark else ""
    return f"{text}{'*' if rule.is_admin else ''}{remark}"
