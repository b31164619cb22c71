"""topic, produce and consume against a broker in memory, as a user types them."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from tests.support.fake_broker import FakeBroker
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S

NOT_THERE = "topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
NUMBERS = [str(number) for number in range(100_000)]


@pytest.fixture(name="cli")
def _cli(broker: FakeBroker) -> OwnCli:
    return OwnCli(broker.address)


def read(cli: OwnCli, topic: str = "t", *words: str) -> list[str]:
    return cli("consume", topic, "-o", "beginning", "-e", *words).out.splitlines()


def test_a_partition_that_is_offline_is_said_and_hides_no_other(
    cli: OwnCli, broker: FakeBroker, tmp_path: Path
) -> None:
    cli("topic", "create", "orders", "--partitions", "2")
    broker.offline.add(("orders", 0))
    cli.produce("orders", ["x"])
    assert read(cli, "orders", "-p", "1") == ["x"]
    (topic,) = cli("topic", "describe", "--json").json
    offline, served = topic["partitions"]
    assert (offline["leader"], offline["end_offset"], served["end_offset"]) == (None, None, 1)
    assert "2 partition(s), 1 offset(s)" in cli("topic", "delete", "orders", "--dry-run").out
    short = tmp_path / "client.properties"
    short.write_text("delivery.timeout.ms=300\nrequest.timeout.ms=200\nlinger.ms=0\n")
    why = "mpbroker: partition orders-0: it has no leader: it is being created, or it is offline"
    failed = cli.produce("orders", ["z"], "-p", "0", "--command-config", str(short), code=1)
    *_, ended = [line for line in failed.err.splitlines() if "orders-0" in line]
    assert "not written within 0.3 s" in ended
    assert ended.endswith("; mpbroker why orders says what holds them up")
    assert cli("consume", "orders", "-o", "beginning", "-e", code=1).err.startswith(why)


def test_an_advertised_address_that_cannot_be_reached(cli: OwnCli, broker: FakeBroker) -> None:
    """Commands end at once, and say where the address comes from."""
    cli("topic", "create", "orders")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        broker.advertised_port = gone.getsockname()[1]
    told = (
        f"mpbroker: cannot connect to 127.0.0.1:{broker.advertised_port}: Connection refused; the broker at "
        f"{broker.address} advertises that address: set its advertised.listeners to an address that this "
        "host can reach"
    )
    for words in (["consume", "orders", "-e"], ["topic", "describe", "orders"], ["offsets"]):
        assert cli(*words, code=1).err == f"{told}\n", words
    assert cli.produce("orders", ["x"], code=1).err == f"{told}; 0 records are written\n"
    assert "orders" in cli("topic", "list").out, "the address that was given serves"


def test_topics_from_creation_to_deletion(cli: OwnCli) -> None:
    cli("topic", "create", "orders", "--partitions", "4", "-c", "retention.ms=5")
    assert "(TOPIC_ALREADY_EXISTS)" in cli("topic", "create", "orders", code=1).err
    cli("topic", "create", "orders", "--if-not-exists")
    assert cli("topic", "list", "--json").json == [
        {"name": "orders", "partitions": 4, "replicas": 1, "internal": False}
    ]
    cli.produce("orders", ["x", "y"], "-p", "2")
    (topic,) = cli("topic", "describe", "--json").json
    assert topic["configs"] == {"retention.ms": "5"}
    assert [row["end_offset"] for row in topic["partitions"]] == [0, 0, 2, 0]
    table = cli("topic", "describe", "orders").out
    assert "retention.ms=5" in table
    assert "END-OFFSET" in table
    assert "4 partition(s), 2 offset(s)" in cli("topic", "delete", "orders", "--dry-run").out
    assert "add --yes" in cli("topic", "delete", "orders", code=2).err
    deleted = cli("topic", "delete", "orders", "nope", "--yes", code=1)
    assert (deleted.out, "topic nope" in deleted.err) == ("deleted topic orders\n", True)
    assert cli("topic", "list").out == "no topics\n"


def test_what_was_produced_is_consumed(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray(), bytearray(), bytearray()]
    # The last line has no end; its value is empty, not null.
    cli.feed("t", b"a:1\nb:2\na:3\nnokey\nlast:", "-K", ":", "-z", "gzip")
    expected = ["t|a|1|1|1", "t|a|1|3|1", "t|b|1|2|1", "t|last|4||0", "t||-1|nokey|5"]
    assert sorted(read(cli, "t", "-f", r"%t|%k|%K|%v|%S\n")) == sorted(expected)
    of_a = [one for one in map(json.loads, read(cli, "t", "--json")) if one["key"] == "a"]
    assert [record["value"] for record in of_a] == ["1", "3"]
    assert len({record["partition"] for record in of_a}) == 1


def test_a_key_separator_may_be_an_escape(cli: OwnCli, broker: FakeBroker) -> None:
    for separator, line in ((r"\t", "a\t1"), (r"\x00", "a\0001"), ("\t", "a\t1")):
        broker.topics["t"] = [bytearray()]
        broker.next_sequence.clear()
        assert cli.produce("t", [line, "b"], "-K", separator).err == ""
        assert read(cli, "t", "-f", r"%k|%K|%v\n") == ["a|1|1", "|-1|b"]


def test_a_key_separator_that_no_line_has_is_said(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray()]
    said = cli.produce("t", ["a:1", "b:2"], "-K", ";").err
    assert said == "mpbroker: no line had the key separator ';': their records have no key\n"
    assert broker.end_offset("t", 0) == 2
    assert cli.produce("t", [], "-K", ":").err == ""


def test_json_has_all_bytes(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray()]
    cli.feed("t", b"\xff:caf\xc3\xa9\nk:\x80\x00\nnone\n", "-K", ":")
    about = ("key", "key_base64", "value", "value_base64")
    found = map(json.loads, read(cli, "t", "--json"))
    assert [{name: one[name] for name in about if name in one} for one in found] == [
        {"key_base64": "/w==", "value": "café"},
        {"key": "k", "value_base64": "gAA="},
        {"key": None, "value": "none"},
    ]


def test_topics_that_are_not_there_hide_no_other(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics.update(orders=[bytearray()], kill=[bytearray()])
    done = cli("topic", "describe", "orders", "nope", "kill", "--json", code=1)
    assert [topic["name"] for topic in done.json] == ["orders", "kill"]
    assert done.err == f"mpbroker: {NOT_THERE}\n"
    table = cli("topic", "describe", "orders", "nope", "kill", code=1).out
    assert [line for line in table.splitlines() if line in ("orders", "kill", "nope")] == ["orders", "kill"]
    for words in (["topic", "describe"], ["topic", "delete", "--yes"]):
        assert "did you mean orders?" in cli(*words, "ordes", code=1).err


def test_a_topic_that_the_broker_makes_is_named(cli: OwnCli, broker: FakeBroker) -> None:
    done = cli.produce("new", [])
    assert (done, list(broker.topics)) == (("", ""), []), "without a line no topic is made"
    said = cli.produce("new", ["a"]).err
    assert said == "mpbroker: topic new did not exist; the broker created it with 1 partition(s)\n"
    assert broker.end_offset("new", 0) == 1
    assert cli.produce("new", ["b"]).err == ""


@pytest.mark.parametrize(
    ("error", "offset", "code", "said"),
    [
        (ErrorCode.CORRUPT_MESSAGE, "beginning", 1, "t-0 at offset 0: the broker cannot read it"),
        (ErrorCode.OFFSET_OUT_OF_RANGE, "7", 2, "t-0 at offset 7: no such offset, it has 0 to 1; try -o"),
    ],
)
def test_an_offset_that_cannot_be_read_is_said_at_once(
    cli: OwnCli, broker: FakeBroker, error: ErrorCode, offset: str, code: int, said: str
) -> None:
    cli.produce("t", ["x"])
    broker.refuse[ApiKey.FETCH] = [error]
    assert cli("consume", "t", "-o", offset, "-e", code=code).err.startswith(f"mpbroker: {said}")


def test_lines_without_a_key_use_all_partitions(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray() for _ in range(6)]
    cli.produce("t", NUMBERS[:1000])
    counts = [broker.end_offset("t", number) for number in range(6)]
    assert (sum(counts), min(counts) > 100) == (1000, True), counts


def test_many_lines_keep_their_order(cli: OwnCli) -> None:
    cli.produce("t", NUMBERS, "-X", "compression.type=lz4")
    assert read(cli) == NUMBERS
    assert cli("consume", "t", "--from-beginning", "-n", "3").out == "0\n1\n2\n"
    assert cli("consume", "t", "-o", "-2", "-e").out == "99998\n99999\n"
    assert cli("consume", "t", "-o", "99999", "-n", "1").out == "99999\n"
    assert cli("consume", "t", "-e").out == ""


def test_errors_that_pass_are_tried_again(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray()]
    broker.refuse[ApiKey.PRODUCE] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    broker.refuse[ApiKey.METADATA] = [ErrorCode.LEADER_NOT_AVAILABLE]
    cli.produce("t", ["x"])
    broker.refuse[ApiKey.FETCH] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    broker.faults[ApiKey.FETCH] = ["hang up"]
    assert read(cli) == ["x"]
    assert [key for key, _version in broker.requests].count(ApiKey.FETCH) == 3


def test_errors_that_stay_end_the_command(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray()]
    broker.refuse[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
    assert "(MESSAGE_TOO_LARGE)" in cli.produce("t", ["x"], code=1).err
    broker.faults[ApiKey.PRODUCE] = ["hang up"]
    lost = cli.produce("t", ["x"], "--acks", "1", code=1)
    assert "was lost: closed by the broker" in lost.err
    assert "0 records are written" in lost.err
    assert broker.end_offset("t", 0) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "nope"], 1, NOT_THERE),
        (["topic", "describe", "nope"], 1, NOT_THERE),
        (["topic", "delete", "nope", "--yes"], 1, NOT_THERE),
        (["create", "t"], 2, "did you mean mpbroker topic create?"),
        (["consume", "t", "-o", "middle"], 2, "-o middle: write beginning, end"),
        (["consume", "t", "-f", "%q"], 2, "-f knows no %q"),
        (["consume", "t", "-p", "5"], 2, "topic t has no partition 5"),
        (["produce", "t", "-X", "batch.size=1"], 2, "-X knows no batch.size"),
        (["produce", "t", "--acks", "2"], 2, "acks is one of"),
        (["produce", "t", "-z", "rar"], 2, "compression is one of"),
        (["produce", "t", "-H", "=x"], 2, "-H =x: this is not NAME=VALUE"),
        (["topic", "alter", "t"], 2, "nothing to alter: give -c KEY=VALUE, --delete-config KEY or -p N"),
        (["topic", "alter", "t", "-c", "a=b", "--delete-config", "a"], 2, "--delete-config a: -c sets it"),
        (
            ["topic", "delete", "t", "__consumer_offsets", "--yes"],
            2,
            "__consumer_offsets is the broker's own",
        ),
        (["topic", "delete-records", "t", "--before", "-1"], 2, "--before -1: write an offset, or latest"),
        (["topic", "create", "u", "-c", "x"], 2, "-c x: this is not KEY=VALUE"),
        (["topic", "create", "u", "-c", "retention.ms="], 2, "retention.ms has no value"),
        (["topic", "list", "-b", "127.0.0.1:1"], 1, "cannot connect to 127.0.0.1:1: Connection refused"),
        (["topic", "list", "-b", "host:port"], 2, "is not HOST:PORT"),
        (["user", "delete", "bob"], 1, "user bob does not exist"),
    ],
)
def test_wrong_calls_get_one_line(
    cli: OwnCli, broker: FakeBroker, arguments: list[str], code: int, message: str
) -> None:
    broker.topics["t"] = [bytearray()]
    said = cli.produce("t", ["x"], *arguments[2:], code=code) if arguments[0] == "produce" else None
    said = said or cli(*arguments, code=code)
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ["--replication-factor", "3"],
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "; use 1, or start the broker with mpbroker.replication.factor.clamp=true",
        ),
        (["-c", "retenton.ms=1"], ErrorCode.INVALID_CONFIG, "; did you mean retention.ms?"),
        (["-c", "retention.ms=-7"], ErrorCode.INVALID_CONFIG, "(INVALID_CONFIG)"),
    ],
)
def test_refused_topics_get_advice(
    cli: OwnCli, broker: FakeBroker, arguments: list[str], error: ErrorCode, message: str
) -> None:
    broker.refuse[ApiKey.CREATE_TOPICS] = [error]
    assert cli("topic", "create", "u", *arguments, code=2).err.endswith(f"{message}\n")


def test_a_name_that_no_topic_can_have(cli: OwnCli, broker: FakeBroker) -> None:
    broker.refuse[ApiKey.METADATA] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
    refused = cli("topic", "describe", "k*", code=2).err
    assert refused.startswith("mpbroker: Topic name is invalid: 'k*' contains")


def test_client_settings_from_a_file(cli: OwnCli, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"

    def told(text: str, code: int = 0) -> str:
        file.write_text(text)
        return cli("topic", "list", "--command-config", str(file), code=code).err.removeprefix("mpbroker: ")

    assert told("security.protocol=PLAINTEXT\ngroup.id=g\n") == f"{file}:2: warning: group.id is ignored\n"
    hinted = told("#\nreqest.timeout.ms=5000\n")
    assert hinted.startswith(f"{file}:2: warning: reqest.timeout.ms is ignored; did you")
    assert hinted.endswith("did you mean request.timeout.ms?\n")
    refused = told("#\nsecurity.protocl=SSL\n", code=2)
    assert f"{file}:2: security.protocl is not supported" in refused
    assert "did you mean security.protocol?" in refused
    told("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n", code=2)
    for words in (("produce", "t"), ("consume", "t"), ("topic", "list")):
        refused = cli(*words, "--command-config", str(file), code=2).err
        assert "needs username and password" in refused
    missing = cli("topic", "list", "--command-config", "/nowhere", code=2).err
    assert missing == "mpbroker: --command-config /nowhere: No such file or directory\n"


@pytest.mark.process
def test_ctrl_c_writes_what_was_read(cli: OwnCli, broker: FakeBroker) -> None:
    broker.topics["t"] = [bytearray()]
    with cli.running("produce", "t") as process:
        process.stdin.write(b"x\n")
        process.stdin.flush()
        broker.wait_for(ApiKey.PRODUCE)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read() == b"mpbroker: interrupted; 1 record is written\n"
    assert broker.end_offset("t", 0) == 1


@pytest.mark.process
@pytest.mark.parametrize("at_end", [False, True])
def test_a_signal_ends_the_wait_for_what_the_broker_refuses(
    cli: OwnCli, broker: FakeBroker, at_end: bool
) -> None:
    """Check it before and after the end of the input. A full disk refuses produces like that."""
    broker.topics["t"] = [bytearray()]
    broker.refuse[ApiKey.PRODUCE] = [ErrorCode.KAFKA_STORAGE_ERROR] * 10_000
    with cli.running("produce", "t") as process:
        process.stdin.write(b"x\ny\n")
        process.stdin.flush()
        if at_end:
            process.stdin.close()
        said = process.stderr.readline()
        assert said.endswith(b"; trying again. Its disk is full or broken: mpbroker why t says which\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
        assert process.stderr.readlines()[-1] == (
            b"mpbroker: interrupted; 0 records are written, 2 not acknowledged; mpbroker why t says what "
            b"holds them up\n"
        )


@pytest.mark.process
def test_ctrl_c_ends_consume_as_it_ends_produce(cli: OwnCli) -> None:
    """Check that it prints nothing: the caller has asked for the end."""
    cli.produce("t", ["x"])
    with cli.running("consume", "t", "--from-beginning") as process:
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.communicate() == (b"", b"")


def test_a_timeout_is_kept(cli: OwnCli, broker: FakeBroker) -> None:
    broker.silent = [ApiKey.CREATE_TOPICS]
    late = cli("topic", "create", "late", "--timeout", "0.3", code=1)
    assert late.err.startswith(f"mpbroker: {broker.address} did not answer within 0.")
