"""The console of a running broker: what it answers to whom, and what deaths of processes do to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from mpbroker.config.broker import BROKER_KEYS
from mpbroker.console.record_view import WHOLE_BYTES
from mpbroker.console.tails import TAILS_MAX
from mpbroker.console.workers import WAITING_MAX
from mpbroker.ipc import console_token
from mpbroker.testing import Broker
from ops.bench.brokers import ROOT
from tests.console.conftest import HOSTILE, Api, produce, transact
from tests.support.group_members import commit, member
from tests.support.http_broker import pids, replace
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S, until
from tests.support.programs import loaded

JSON = {"content_type": "application/json"}


@contextmanager
def tail(api: Api, topic: str, **params: object) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(*api.place, timeout=PATIENCE_S)
    query = "&".join(f"{name}={value}" for name, value in {"topic": topic, **params}.items())
    connection.request("GET", f"/api/tail?{query}")
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def next_records(answer: http.client.HTTPResponse) -> list[dict[str, Any]]:
    while line := answer.readline():
        if found := json.loads(line).get("records"):
            return list(found)
    return []


# ---- what it shows


def test_records_of_every_kind_are_shown_as_text(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    produce(
        broker,
        topic,
        {"value": HOSTILE, "key": "<b>k</b>", "headers": [("<i>", b"<u>"), ("none", None)]},
        {"value": None, "key": "tombstone"},
        {"value": b"\xff\xfe\x00"},
        {"value": '{"n": 12345678901234567890}'},
    )
    records = api.found("records", topic=topic, **{"from": "beginning"})["records"]
    assert [one["offset"] for one in records] == [0, 1, 2, 3]
    assert records[0]["value"] == {"n": len(HOSTILE), "text": HOSTILE}
    assert records[0]["headers"] == [["<i>", {"n": 3, "text": "<u>"}], ["none", None]]
    assert records[1]["value"] is None
    assert records[2]["value"] == {"n": 3, "b64": "//4A"}
    answer = api.get("records", topic=topic)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_forwards_from_a_place_and_on(broker: Broker, api: Api) -> None:
    topic = broker.create_topic(partitions=2)
    for number in range(12):
        produce(broker, topic, {"value": str(number), "partition": number % 2, "timestamp": 1000 + number})
    seen, positions = [], ""
    for _ in range(20):
        found = api.found("records", topic=topic, limit=5, positions=positions, **{"from": "beginning"})
        seen += [one["value"]["text"] for one in found["records"]]
        positions = ",".join(f"{number}:{at}" for number, at in found["positions"].items())
        if found["is_end"]:
            break
    assert seen == [str(number) for number in range(12)]
    from_time = api.found("records", topic=topic, partition=1, **{"from": "@1007"})
    assert [one["value"]["text"] for one in from_time["records"]] == ["7", "9", "11"]
    from_offset = api.found("records", topic=topic, partition=0, **{"from": "4"})
    assert [one["offset"] for one in from_offset["records"]] == [4, 5]


def test_transactions_by_both_levels_of_isolation(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    transact(broker, topic, "kept", commits=True)
    transact(broker, topic, "dropped", commits=False)

    def kinds(isolation: str) -> list[str]:
        found = api.found("records", topic=topic, isolation=isolation, **{"from": "beginning"})["records"]
        return [one.get("marker") or one["value"]["text"] for one in found]

    everything = ["kept", "commit", "dropped", "abort"]
    # A transaction has ended when that is decided; its markers come a moment later.
    until(lambda: kinds("read_uncommitted") == everything, "the markers are there")
    assert kinds("read_committed") == ["kept", "commit", "abort"]
    assert api.found("records", topic=topic, markers=0)["records"][0]["transactional"]


def test_topics_groups_and_their_lag(broker: Broker, api: Api) -> None:
    topic = broker.create_topic(partitions=2)
    produce(broker, topic, *({"value": "v"} for _ in range(10)))
    commit(broker.bootstrap_servers, f"of-{topic}", topic, {0: 4})
    (row,) = api.found("topics", q=topic)["rows"]
    assert row["partitions"] == 2
    until(lambda: api.found("topics", q=topic)["rows"][0]["records"] == 10, "the records are counted")
    assert [one["partition"] for one in api.found("topic", topic=topic)["rows"]] == [0, 1]

    def lag() -> int | None:
        rows = api.found("groups", q=f"of-{topic}")["rows"]
        return rows[0]["lag"] if rows else None

    until(lambda: lag() == 6, "the lag is told")
    found = api.found("group", group=f"of-{topic}")
    assert found["group"]["state"] == "Empty"
    assert found["may_reset"]
    assert found["offsets"][0] == {"topic": topic, "partition": 0, "committed": 4, "end": 10, "lag": 6}
    # Nobody has partition 1, and the group has committed nothing of it.
    assert [one["committed"] for one in found["offsets"]] == [4, None]
    assert found["history"][-1][1] == 6
    assert {one["name"] for one in api.found("topic-settings", topic=topic)} >= {"retention.ms"}


def test_rates_processes_and_rings_are_told_as_they_change(broker: Broker, api: Api) -> None:
    first = api.found("live", after=0)
    topic = broker.create_topic()
    produce(broker, topic, *({"value": "v"} for _ in range(100)))

    def grown() -> bool:
        data = api.found("live", after=first["number"])
        at = data["series"].index("messages_in_per_s") + 1
        return any((one[at] or 0) > 0 for one in data["samples"])

    until(grown, "the rate is told")
    data = api.found("live", after=0)
    assert {"supervisor", "acceptor", "coordinator", "log 0", "handler 0", "processor 0"} <= {
        one["name"] for one in data["processes"]
    }
    assert {("processor", "handler"), ("handler", "log")} <= {
        (one["from"], one["to"]) for one in data["rings"]
    }
    assert data["broker"]["health"] == "running"
    assert data["problems"] == []
    assert "last_error" not in data["processes"][0]


@pytest.mark.parametrize(
    ("name", "params", "status"),
    [
        ("records", {"topic": "no-such-topic"}, 404),
        ("topic", {"topic": "no-such-topic"}, 404),
        ("topic-settings", {"topic": "no-such-topic"}, 404),
        ("records", {"topic": "__consumer_offsets", "partition": 99}, 404),
        ("records", {}, 400),
        ("group", {"group": "no-such-group"}, 404),
        ("nothing", {}, 404),
        ("tail", {"topic": "no-such-topic"}, 404),
    ],
)
def test_what_is_not_there_is_said(
    broker: Broker, api: Api, name: str, params: dict[str, str], status: int
) -> None:
    # So that there are groups, and their topic.
    commit(broker.bootstrap_servers, "someone", broker.create_topic(), {0: 0})
    answer = api.get(name, **params)
    assert answer.status == status
    assert answer.error


# ---- whom it answers


def test_the_page_comes_with_a_strict_policy(api: Api) -> None:
    answer = api.ask("GET", "/")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    again = api.ask("GET", "/", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert api.ask("HEAD", "/").body == b""
    assert api.ask("POST", "/", b"").status == 405
    assert api.ask("GET", "/../../etc/passwd").status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # no origin
        ({"origin": "OWN"}, 401),
        ({"origin": "OWN", "authorization": "Bearer wrong"}, 401),
        ({"origin": "http://evil.example", "authorization": "TOKEN"}, 403),
        ({"origin": "OWN", "authorization": "TOKEN", "content_type": "text/plain"}, 415),
        ({"origin": "OWN", "authorization": "TOKEN", **JSON}, 400),  # it gets as far as its body
    ],
)
def test_a_change_needs_origin_token_and_type(api: Api, headers: dict[str, str], status: int) -> None:
    own = {"OWN": f"http://{api.address}", "TOKEN": f"Bearer {api.token}"}
    named = {name: own.get(value, value) for name, value in headers.items()}
    assert api.ask("POST", "/api/change", b'{"change":"delete-topic"}', **named).status == status


def test_garbage_is_refused_and_the_console_lives(api: Api) -> None:
    for garbage in (
        b"GET /api/records?topic=%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%00/api HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection(api.place, timeout=PATIENCE_S) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            assert sock.makefile("rb").readline()[9:10] == b"4", garbage
    assert api.found("about")["node_id"] == 1


def test_the_token_is_a_file_of_the_brokers_user(broker: Broker, api: Api) -> None:
    path = Path(api.pointer.runtime_dir) / console_token.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = OwnCli(broker.bootstrap_servers)("ctl", "--log-dirs", str(broker.log_dir), "console")
    assert said.out == f"http://{api.address}/#token={api.token}\n"
    assert "console.token" not in broker.logs()
    assert api.token not in broker.logs()


# ---- changes


def test_topics_are_made_altered_and_deleted(api: Api) -> None:
    name = "made-by-the-console"
    made = api.change("create-topic", topic=name, partitions=2, settings={"retention.ms": "5000"})
    assert made.json["said"] == f"created topic {name} with 2 partitions"
    assert api.change("create-topic", topic=name).status == 409
    assert api.change("add-partitions", topic=name, partitions=5).status == 200
    assert (
        api.change("alter-topic", topic=name, settings={"retention.ms": None, "segment.ms": "7000"}).status
        == 200
    )
    settings = {one["name"]: one for one in api.found("topic-settings", topic=name)}
    assert (settings["segment.ms"]["value"], settings["segment.ms"]["is_own"]) == ("7000", True)
    assert not settings["retention.ms"]["is_own"]
    wrong = api.change("alter-topic", topic=name, settings={"retention.ms": "soon"})
    assert (wrong.status, "retention.ms" in wrong.error) == (400, True)
    assert api.change("add-partitions", topic=name, partitions=2).status == 400
    assert api.change("delete-topic", topic=name).status == 200
    assert api.get("records", topic=name).status == 404
    for gone in (
        api.change("delete-topic", topic=name),
        api.change("add-partitions", topic=name, partitions=9),
        api.change("alter-topic", topic=name, settings={"segment.ms": "7000"}),
    ):
        assert gone.status == 404, gone.error


def said(broker: Broker, text: str) -> list[str]:
    return [line.partition("audit: ")[2] for line in broker.logs().splitlines() if text in line]


def test_the_audit_log_has_each_change_with_the_browsers_address(broker: Broker, api: Api) -> None:
    api.change("create-topic", topic="told", partitions=1, settings={"retention.ms": "1234567"})
    api.change("alter-topic", topic="told", settings={"retention.ms": None})
    api.change("delete-topic", topic="not-there")
    api.change("reset-offsets", group="nobody", to="to-earliest")
    who = "a client from 127.0.0.1 on HTTP asked for console"
    lines = [line.removeprefix(f"{who} ") for line in said(broker, who)]
    assert "create-topic of 'told', 'retention.ms': ok" in lines
    assert "alter-topic of 'told', 'retention.ms': ok" in lines
    assert any(line.startswith("delete-topic of 'not-there': failed: ") for line in lines)
    assert any(line.startswith("reset-offsets of 'nobody', '(only checked)': ") for line in lines)
    assert not any("1234567" in line for line in lines)


def test_the_audit_log_has_who_tried_to_change_something(broker: Broker, api: Api) -> None:
    origin = f"http://{api.address}"
    who = "a client from 127.0.0.1 on HTTP"
    body = b'{"change":"delete-topic","topic":"t"}'
    for headers in ({"origin": origin}, {"origin": origin, "authorization": "Bearer a-guess"}):
        assert api.ask("POST", "/api/change", body, **headers, **JSON).status == 401
    assert api.ask("POST", "/api/change", body, origin="http://evil.example", **JSON).status == 403
    assert f"{who} has failed to log in: the token is missing" in said(broker, who)
    assert f"{who} has failed to log in: the token is wrong" in said(broker, who)
    assert f"{who} is denied console change: a page of another origin asks for this" in said(broker, who)
    assert "a-guess" not in broker.logs()


def test_the_brokers_own_topics_are_neither_deleted_nor_enlarged(broker: Broker, api: Api) -> None:
    commit(broker.bootstrap_servers, "someone", broker.create_topic(), {0: 0})
    until(lambda: api.get("topic", topic="__consumer_offsets").status == 200, "the topic is seen")
    assert api.found("topic", topic="__consumer_offsets")["topic"]["is_internal"]
    mine = broker.create_topic("__mine")
    until(lambda: api.get("topic", topic=mine).status == 200, "the client's topic is seen")
    assert not api.found("topic", topic=mine)["topic"]["is_internal"]
    for change in ("delete-topic", "add-partitions"):
        more = {"partitions": 99} if change == "add-partitions" else {}
        answer = api.change(change, topic="__consumer_offsets", **more)
        assert (answer.status, "the broker's own topic" in answer.error) == (400, True)


def test_offsets_are_reset_after_a_look_at_what_would_be_set(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    produce(broker, topic, *({"value": "v"} for _ in range(10)))
    commit(broker.bootstrap_servers, f"reset-{topic}", topic, {0: 9})
    fields = {"group": f"reset-{topic}", "to": "to-offset", "value": "3"}
    dry = api.change("reset-offsets", **fields)
    assert [(one["committed"], one["new_offset"]) for one in dry.json["rows"]] == [(9, 3)]

    def committed() -> list[int]:
        return [one["committed"] for one in api.found("group", group=f"reset-{topic}")["offsets"]]

    until(lambda: committed() == [9], "nothing is set yet")
    assert api.change("reset-offsets", **fields, execute=True).json["said"].startswith("set 1 offset")
    until(lambda: committed() == [3], "it is set in the log")
    beyond = api.change("reset-offsets", **{**fields, "value": "99"})
    assert "beyond the log end offset" in beyond.json["remarks"][0]


def test_records_are_produced_and_deleted_up_to_an_offset(broker: Broker, api: Api) -> None:
    topic = broker.create_topic(partitions=2)
    wanted = {"topic": topic, "key": "k", "value": "Grüße", "headers": [["h", "1"], ["n", None]]}
    for _ in range(3):
        assert api.change("produce", **wanted, partition=1).json["said"] == f"produced a record to {topic}-1"
    assert api.change("produce", topic=topic, key="gone", value=None).status == 200
    (found,) = api.found("records", topic=topic, partition=1, **{"from": "0"}, limit=1)["records"]
    assert (found["key"]["text"], found["value"]["text"]) == ("k", "Grüße")
    assert [[name, value and value["text"]] for name, value in found["headers"]] == [["h", "1"], ["n", None]]
    refused = api.change("produce", topic=topic, value="x", partition=7)
    assert (refused.status, "has no partition 7" in refused.error) == (400, True)
    assert api.change("produce", topic="__consumer_offsets", value="x").status == 400
    assert api.change("produce", topic="not-there", value="x").status == 404
    deleted = api.change("delete-records", topic=topic, before="2", partition=1)
    assert deleted.json["said"] == f"{topic}-1 begins at 2"
    beyond = api.change("delete-records", topic=topic, before="77", partition=1)
    assert (beyond.status, "no such offset 77" in beyond.error) == (400, True)
    assert api.change("delete-records", topic=topic, before="soon").status == 400
    assert api.change("delete-records", topic=topic, before="latest").status == 200
    assert api.found("records", topic=topic)["records"] == []


def test_a_large_value_is_saved_whole(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    values = [b"\xff\x00" * (WHOLE_BYTES // 2 + 7), ("ä" * WHOLE_BYTES).encode()]
    produce(broker, topic, *({"value": value} for value in values), {"key": "k", "value": None})
    for offset, value in enumerate(values):
        answer = api.get("value", topic=topic, partition=0, offset=offset)
        assert (answer.status, answer.body == value) == (200, True)
        assert answer.headers["content-type"] == "application/octet-stream"
    for offset in (2, 3):
        assert api.get("value", topic=topic, partition=0, offset=offset).status == 404


def test_groups_users_and_acls_are_changed(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    commit(broker.bootstrap_servers, f"of-{topic}", topic, {0: 0})
    assert api.change("delete-group", group=f"of-{topic}").json["said"] == f"deleted group of-{topic}"
    assert api.change("delete-group", group=f"of-{topic}").status == 404
    user = {"user": f"u-{topic}", "mechanism": "SCRAM-SHA-256"}
    added = api.change("add-user", **user, password="secret").json["said"]
    assert added == f"user u-{topic} can log in with SCRAM-SHA-256, but no listener asks for a login"
    assert user in [{name: one[name] for name in user} for one in api.found("access")["users"]]
    assert api.change("add-user", user="x", mechanism="PLAIN", password="secret").status == 400
    assert api.change("delete-user", **user).status == 200
    assert api.change("delete-user", **user).status == 409
    found = api.found("access")
    assert "the broker has no authorizer" in found["acls_problem"]
    acl = dict.fromkeys(("resource", "name", "pattern", "principal", "host", "operation", "permission"), "*")
    assert api.change("add-acl", acl=acl).error == "'*' is not a resource"


def test_durations_are_taken_as_people_write_them(broker: Broker, api: Api) -> None:
    name = f"durations-{broker.create_topic()}"
    assert api.change("create-topic", topic=name, settings={"retention.ms": "7d"}).status == 200
    assert api.change("alter-topic", topic=name, settings={"segment.ms": "1h"}).status == 200
    assert api.change("alter-topic", topic=name, settings={"segment.ms": "soon"}).status == 400
    values = {row["name"]: row["value"] for row in api.found("topic-settings", topic=name)}
    assert (values["retention.ms"], values["segment.ms"]) == ("604800000", "3600000")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_of_members_without_a_commit_are_told_and_no_part_of_the_lag(
    broker: Broker, api: Api, protocol: str
) -> None:
    topic = broker.create_topic(partitions=2)
    group = f"young-{topic}"
    produce(broker, topic, *({"value": "v"} for _ in range(10)))
    with member(broker.bootstrap_servers, group, topic, group_protocol=protocol) as consumer:
        found = api.found("group", group=group)
        assert not found["may_reset"]
        assert found["group"]["type"] == protocol
        (one,) = found["group"]["members"]
        places = [[topic, 0], [topic, 1]]
        assert (one["partitions"], one["target"]) == (places, places if protocol == "consumer" else None)
        assert [(one["committed"], one["lag"]) for one in found["offsets"]] == [(None, None)] * 2

        def is_listed() -> bool:
            rows = api.found("groups", q=group)["rows"]
            return bool(rows) and rows[0]["partitions"] == 2

        until(is_listed, "the group is listed, and its topic is known")
        (row,) = api.found("groups", q=group)["rows"]
        assert (row["type"], row["members"]) == (protocol, 1)
        assert (row["uncommitted"], row["lag"]) == (2, None)
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        until(lambda: api.found("groups", q=group)["rows"][0]["lag"] == 6, "what is committed counts")
        (row,) = api.found("groups", q=group)["rows"]
        assert (row["partitions"], row["uncommitted"]) == (2, 1)
        found = api.found("group", group=group)
        assert [(one["partition"], one["lag"]) for one in found["offsets"]] == [(0, 6), (1, None)]
        refused = api.change("reset-offsets", group=group, to="to-earliest")
        assert (refused.status, "stop its consumers first" in refused.error) == (409, True)
    until(lambda: api.found("group", group=group)["may_reset"], "its last member has left")


# ---- tails, deaths and the end


def test_a_tail_has_what_comes_and_what_is_wanted(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    produce(broker, topic, {"value": "before"})
    with tail(api, topic, text="needle") as answer:
        assert answer.status == 200
        assert json.loads(answer.readline()) == {"positions": {"0": 1}}
        produce(broker, topic, {"value": "hay"}, {"value": "a Needle"})
        assert [one["value"]["text"] for one in next_records(answer)] == ["a Needle"]


def test_tails_are_few(broker: Broker, api: Api) -> None:
    topic = broker.create_topic()
    tails = [tail(api, topic) for _ in range(TAILS_MAX)]
    opened = [one.__enter__() for one in tails]
    try:
        for answer in opened:
            answer.readline()
        refused = api.get("tail", topic=topic)
        assert (refused.status, "live tails" in refused.error) == (503, True)
    finally:
        for one in tails:
            one.__exit__(None, None, None)

    def is_free() -> bool:
        with tail(api, topic) as answer:
            return answer.status == 200

    until(is_free, "who closes a tail makes room for another")


def test_an_exporter_that_dies_ends_tails_and_its_successor_goes_on(own_broker: Broker) -> None:
    api = Api(own_broker)
    topic = own_broker.create_topic()
    with tail(api, topic) as answer:
        answer.readline()
        replace(own_broker, "exporter")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
    assert Api(own_broker).token == api.token
    with tail(api, topic) as answer:
        answer.readline()
        produce(own_broker, topic, {"value": "after"})
        assert [one["value"]["text"] for one in next_records(answer)] == ["after"]
    assert api.change("create-topic", topic="with-the-same-token").status == 200


def test_a_stop_ends_an_open_tail_cleanly(own_broker: Broker) -> None:
    api = Api(own_broker)
    topic = own_broker.create_topic()
    with tail(api, topic) as answer:
        answer.readline()
        own_broker.stop(keep=True)
        answer.read()
    assert not (Path(api.pointer.runtime_dir) / console_token.NAME).exists()
    own_broker.stop()


@pytest.mark.parametrize("name", ["log 0", "coordinator", "handler 0", "processor 0"])
def test_the_page_is_told_whoever_dies(own_broker: Broker, name: str) -> None:
    api = Api(own_broker)
    replace(own_broker, name)
    api.found("live", after=0)
    api.found("health")
    topic = own_broker.create_topic()
    produce(own_broker, topic, {"value": "v"})
    until(
        lambda: len(api.get("records", topic=topic).json.get("records", ())) == 1, "records are shown again"
    )


def test_whoever_waits_for_the_broker_keeps_nobody_from_looking_at_it(own_broker: Broker) -> None:
    api = Api(own_broker)
    api.found("health")
    handlers = [pid for name, pid in pids(own_broker).items() if name.startswith("handler")]
    for pid in handlers:
        os.kill(pid, signal.SIGSTOP)
    statuses: list[int] = []
    asking = [
        threading.Thread(target=lambda n=n: statuses.append(api.get("group", group=f"g{n}").status))
        for n in range(WAITING_MAX + 4)
    ]
    try:
        for thread in asking:
            thread.start()
        until(lambda: statuses.count(503) == 4, "all that wait for the broker do")
        assert api.get("health").status == 200
        before = api.found("live")["number"]
        until(lambda: api.found("live")["number"] > before, "it looks on")
    finally:
        for pid in handlers:
            os.kill(pid, signal.SIGCONT)
        for thread in asking:
            thread.join()
    assert "never retrieved" not in own_broker.logs()


def test_while_it_recovers_the_page_says_so(own_broker: Broker) -> None:
    own_broker.create_topic()
    api = Api(own_broker)
    os.kill(pids(own_broker)["log 0"], signal.SIGSTOP)
    os.kill(pids(own_broker)["coordinator"], signal.SIGKILL)
    try:
        until(lambda: api.found("health")["problems"], "it says what does not serve")
        assert api.found("live", after=0)["problems"]
        assert api.ask("GET", "/").status == 200
    finally:
        os.killpg(os.getpgid(own_broker.pid), signal.SIGCONT)
    until(lambda: not api.found("health")["problems"], "it is ready again")


def test_it_may_be_off() -> None:
    with Broker({"http.listener": "127.0.0.1:0", "http.console.enable": "false"}) as quiet:
        api = Api(quiet)
        assert b"http.console.enable=false" in api.ask("GET", "/").body
        assert api.ask("GET", "/api/live").status == 404
        assert api.ask("GET", "/metrics").status == 200


def test_it_changes_nothing_unless_a_setting_says_so() -> None:
    with Broker({"http.listener": "127.0.0.1:0"}) as quiet:
        answer = Api(quiet).change("create-topic", topic="t")
        assert (answer.status, "http.console.write=true" in answer.error) == (403, True)


def test_nothing_of_it_is_loaded_before_somebody_asks() -> None:
    code = "from mpbroker.exporter import process; from mpbroker.supervisor import main"
    assert loaded(code, "mpbroker.console", "mpbroker.client") == []


def test_the_commands_and_settings_of_its_page(broker: Broker) -> None:
    """Run what docs/CONSOLE.md tells, and find the settings that it names."""
    page = (ROOT / "docs" / "CONSOLE.md").read_text()
    serve, console = re.findall(r"^    mpbroker (.*)$", page, re.MULTILINE)
    cli = OwnCli(broker.bootstrap_servers)
    assert "is valid" in cli(*serve.split(), "--check-config").err
    assert "#token=" in cli(*console.split(), "--log-dirs", str(broker.log_dir)).out
    named = set(re.findall(r"`(http\.console[\w.]*)`", page))
    assert named == {name for name in BROKER_KEYS if name.startswith("http.console")}
