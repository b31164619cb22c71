"""topic, produce and consume against a broker in memory, as a user types them."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from tests.support.fake_broker import FakeBroker

ROOT = Path(__file__).parents[2]


def run(
    broker: "FakeBroker", *arguments: str, lines: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """The command must end with this code, and never with a traceback."""
    said = OwnCli(broker.address)(*arguments, code=code, stdin=lines)
    return subprocess.CompletedProcess(arguments, code, said.out.encode(), said.err.encode())


def test_a_partition_that_is_offline_is_said_and_hides_no_other(broker: "FakeBroker", tmp_path: Path) -> None:
    run(broker, "topic", "create", "orders", "--partitions", "2")
    broker.offline.add(("orders", 0))
    run(broker, "produce", "orders", lines=b"x\n")
    assert run(broker, "consume", "orders", "-p", "1", "-o", "beginning", "-e").stdout == b"x\n"
    (topic,) = json.loads(run(broker, "topic", "describe", "--json").stdout)
    offline, served = topic["partitions"]
    assert (offline["leader"], offline["end_offset"], served["end_offset"]) == (None, None, 1)
    dry = run(broker, "topic", "delete", "orders", "--dry-run").stdout
    assert dry == b"would delete topic orders: 2 partition(s), 1 offset(s)\n"
    short = tmp_path / "client.properties"
    short.write_text("delivery.timeout.ms=1500\nrequest.timeout.ms=1000\nlinger.ms=0\n")
    why = b"mpbroker: partition orders-0: it has no leader: it is just being made, or it is offline"
    failed = run(broker, "produce", "orders", "-p", "0", "--command-config", str(short), lines=b"z\n", code=1)
    told, ended = [line for line in failed.stderr.splitlines() if b"orders-0" in line]
    assert told.startswith(why), told
    assert told.endswith(b"; trying again")
    assert b"not written within 1.5 s" in ended
    read = run(broker, "consume", "orders", "-o", "beginning", "-e", code=1)
    assert read.stderr.startswith(why), read.stderr


def test_an_advertised_address_that_cannot_be_reached(broker: "FakeBroker") -> None:
    """Commands end at once, and say where the address comes from."""
    run(broker, "topic", "create", "orders")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        broker.advertised_port = gone.getsockname()[1]
    told = (
        f"mpbroker: cannot connect to 127.0.0.1:{broker.advertised_port}: Connection refused; the broker at "
        f"{broker.address} tells clients to go there: set its advertised.listeners to an address that this "
        "host can reach"
    )
    for words in (["consume", "orders", "-e"], ["topic", "describe", "orders"], ["offsets"]):
        assert run(broker, *words, code=1).stderr.decode() == f"{told}\n", words
    sent = run(broker, "produce", "orders", lines=b"x\n", code=1).stderr.decode()
    assert sent == f"{told}; 0 records are written\n"
    assert b"orders" in run(broker, "topic", "list").stdout, "the address that was given serves"


def test_topics_from_creation_to_deletion(broker: "FakeBroker") -> None:
    created = run(broker, "topic", "create", "orders", "--partitions", "4", "-c", "retention.ms=5")
    assert created.stdout == b"created topic orders with 4 partition(s), 1 replica(s)\n"
    again = run(broker, "topic", "create", "orders", code=1)
    assert again.stderr == b"mpbroker: Topic 'orders' already exists (TOPIC_ALREADY_EXISTS)\n"
    run(broker, "topic", "create", "orders", "--if-not-exists")
    assert json.loads(run(broker, "topic", "list", "--json").stdout) == [
        {"name": "orders", "partitions": 4, "replicas": 1, "internal": False}
    ]
    run(broker, "produce", "orders", "-p", "2", lines=b"x\ny\n")
    (topic,) = json.loads(run(broker, "topic", "describe", "--json").stdout)
    assert topic["configs"] == {"retention.ms": "5"}
    assert [row["end_offset"] for row in topic["partitions"]] == [0, 0, 2, 0]
    table = run(broker, "topic", "describe", "orders").stdout.decode()
    assert "retention.ms=5" in table
    assert "END-OFFSET" in table
    dry = run(broker, "topic", "delete", "orders", "--dry-run").stdout
    assert dry == b"would delete topic orders: 4 partition(s), 2 offset(s)\n"
    deleted = run(broker, "topic", "delete", "orders", "nope", "--yes", code=1)
    assert (deleted.stdout, b"topic nope" in deleted.stderr) == (b"deleted topic orders\n", True)
    assert run(broker, "topic", "list").stdout == b"no topics\n"


def test_what_was_produced_is_consumed(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray(), bytearray(), bytearray()]
    run(broker, "produce", "t", "-K", ":", "-z", "gzip", lines=b"a:1\nb:2\na:3\nnokey\nlast:")
    out = run(broker, "consume", "t", "--from-beginning", "-e", "-f", r"%t|%k|%K|%v|%S\n").stdout
    # The last line had no end; its value is empty, not null.
    expected = [b"t|a|1|1|1", b"t|a|1|3|1", b"t|b|1|2|1", b"t|last|4||0", b"t||-1|nokey|5"]
    assert sorted(out.splitlines()) == sorted(expected)
    parsed = [
        json.loads(line)
        for line in run(broker, "consume", "t", "-o", "0", "-e", "--json").stdout.splitlines()
    ]
    of_a = [record for record in parsed if record["key"] == "a"]
    assert [record["value"] for record in of_a] == ["1", "3"]
    assert len({record["partition"] for record in of_a}) == 1


def test_a_key_separator_may_be_an_escape(broker: "FakeBroker") -> None:
    for separator, lines in ((r"\t", b"a\t1\nb\n"), (r"\x00", b"a\x001\nb\n"), ("\t", b"a\t1\nb\n")):
        broker.topics["t"] = [bytearray()]
        broker.next_sequence.clear()
        assert run(broker, "produce", "t", "-K", separator, lines=lines).stderr == b""
        out = run(broker, "consume", "t", "--from-beginning", "-e", "-f", r"%k|%K|%v\n").stdout
        assert out == b"a|1|1\n|-1|b\n"


def test_a_key_separator_that_no_line_has_is_said(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    said = run(broker, "produce", "t", "-K", ";", lines=b"a:1\nb:2\n").stderr
    assert said == b"mpbroker: no line had the key separator ';': their records have no key\n"
    assert broker.end_offset("t", 0) == 2
    assert run(broker, "produce", "t", "-K", ":", lines=b"").stderr == b""


def test_json_has_all_bytes(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    run(broker, "produce", "t", "-K", ":", lines=b"\xff:caf\xc3\xa9\nk:\x80\x00\nnone\n")
    out = run(broker, "consume", "t", "-o", "0", "-e", "--json").stdout
    about = ("key", "key_base64", "value", "value_base64")
    found = [{name: one[name] for name in about if name in one} for one in map(json.loads, out.splitlines())]
    assert found == [
        {"key_base64": "/w==", "value": "café"},
        {"key": "k", "value_base64": "gAA="},
        {"key": None, "value": "none"},
    ]


def test_topics_that_are_not_there_hide_no_other(broker: "FakeBroker") -> None:
    run(broker, "topic", "create", "orders")
    run(broker, "topic", "create", "kill")
    done = run(broker, "topic", "describe", "orders", "nope", "kill", "--json", code=1)
    assert [topic["name"] for topic in json.loads(done.stdout)] == ["orders", "kill"]
    assert done.stderr == b"mpbroker: topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n"
    table = run(broker, "topic", "describe", "orders", "nope", "kill", code=1).stdout.decode()
    assert [line for line in table.splitlines() if line in ("orders", "kill", "nope")] == ["orders", "kill"]


def test_a_topic_that_the_broker_makes_is_named(broker: "FakeBroker") -> None:
    said = run(broker, "produce", "new", lines=b"a\n").stderr
    assert said == b"mpbroker: topic new did not exist; the broker created it with 1 partition(s)\n"
    assert broker.end_offset("new", 0) == 1
    assert run(broker, "produce", "new", lines=b"b\n").stderr == b""


def test_without_a_line_no_topic_is_made(broker: "FakeBroker") -> None:
    done = run(broker, "produce", "new", lines=b"")
    assert (done.stdout, done.stderr, list(broker.topics)) == (b"", b"", [])


def test_a_damaged_batch_is_said_at_once(broker: "FakeBroker") -> None:
    run(broker, "topic", "create", "orders")
    run(broker, "produce", "orders", lines=b"x\n")
    broker.refuse[ApiKey.FETCH] = [ErrorCode.CORRUPT_MESSAGE]
    read = run(broker, "consume", "orders", "-o", "beginning", "-e", code=1)
    assert read.stderr.startswith(b"mpbroker: orders-0 at offset 0: the broker cannot read it")
    assert b"-o OFFSET reads on after" in read.stderr


def test_an_offset_that_is_not_there(broker: "FakeBroker") -> None:
    run(broker, "produce", "t", lines=b"x\n")
    broker.refuse[ApiKey.FETCH] = [ErrorCode.OFFSET_OUT_OF_RANGE]
    refused = run(broker, "consume", "t", "-o", "7", code=2).stderr.decode()
    assert refused.startswith("mpbroker: t-0 at offset 7: no such offset, it has 0 to 1; try -o beginning")


def test_topics_that_are_none(broker: "FakeBroker") -> None:
    for words in (("describe", "nope"), ("delete", "nope", "--yes")):
        refused = run(broker, "topic", *words, code=1).stderr
        assert refused == b"mpbroker: topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n"
    broker.refuse[ApiKey.METADATA] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
    refused = run(broker, "topic", "describe", "k*", code=2).stderr
    assert refused.startswith(b"mpbroker: Topic name is invalid: 'k*' contains")


def test_a_topic_that_is_not_there_is_guessed(broker: "FakeBroker") -> None:
    broker.topics["orders"] = [bytearray()]
    said = run(broker, "topic", "describe", "ordes", code=1).stderr
    assert (
        said == b"mpbroker: topic ordes: does not exist; did you mean orders? (UNKNOWN_TOPIC_OR_PARTITION)\n"
    )
    assert b"did you mean mpbroker topic create?" in run(broker, "create", "t", code=2).stderr
    refused = run(broker, "topic", "delete", "orders", code=2).stderr
    assert b"say --yes" in refused


def test_lines_without_a_key_use_all_partitions(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray() for _ in range(6)]
    run(broker, "produce", "t", lines=b"".join(b"%d\n" % number for number in range(1000)))
    counts = [broker.end_offset("t", number) for number in range(6)]
    assert (sum(counts), min(counts) > 100) == (1000, True), counts


def test_many_lines_keep_their_order(broker: "FakeBroker") -> None:
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    run(broker, "produce", "t", "-X", "compression.type=lz4", lines=lines)
    assert run(broker, "consume", "t", "--from-beginning", "-e").stdout == lines
    assert run(broker, "consume", "t", "--from-beginning", "-n", "3").stdout == b"0\n1\n2\n"
    assert run(broker, "consume", "t", "-o", "-2", "-e").stdout == b"99998\n99999\n"
    assert run(broker, "consume", "t", "-o", "99999", "-n", "1").stdout == b"99999\n"
    assert run(broker, "consume", "t", "-e").stdout == b""


def test_no_acks_means_no_answer(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    run(broker, "produce", "t", "--acks", "0", lines=b"x\n")
    assert run(broker, "consume", "t", "--from-beginning", "-n", "1").stdout == b"x\n"


def test_errors_that_pass_are_tried_again(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    broker.refuse[ApiKey.PRODUCE] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    broker.refuse[ApiKey.METADATA] = [ErrorCode.LEADER_NOT_AVAILABLE]
    run(broker, "produce", "t", lines=b"x\n")
    broker.refuse[ApiKey.FETCH] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    broker.faults[ApiKey.FETCH] = ["hang up"]
    assert run(broker, "consume", "t", "--from-beginning", "-e").stdout == b"x\n"
    assert [key for key, _version in broker.requests].count(ApiKey.FETCH) == 3


def test_errors_that_stay_end_the_command(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    broker.refuse[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
    assert b"(MESSAGE_TOO_LARGE)" in run(broker, "produce", "t", lines=b"x\n", code=1).stderr
    broker.faults[ApiKey.PRODUCE] = ["hang up"]
    lost = run(broker, "produce", "t", "--acks", "1", lines=b"x\n", code=1)
    assert b"was lost: closed by the broker" in lost.stderr
    assert b"0 records are written" in lost.stderr
    assert broker.end_offset("t", 0) == 0


def test_a_lost_connection_neither_loses_nor_doubles_a_record(broker: "FakeBroker") -> None:
    """Whether the batch had been written, or the connection broke before."""
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    for fault in ("hang up", "swallow"):
        broker.topics["t"] = [bytearray()]
        broker.next_sequence.clear()
        broker.faults[ApiKey.PRODUCE] = ["", fault, "", fault]
        stderr = run(broker, "produce", "t", lines=lines).stderr
        assert b" was lost: " in stderr
        assert run(broker, "consume", "t", "--from-beginning", "-e").stdout == lines


def test_an_old_broker_is_asked_again_in_version_0(broker: "FakeBroker") -> None:
    broker.only_api_versions_v0 = True
    run(broker, "topic", "list")
    assert [version for key, version in broker.requests if key is ApiKey.API_VERSIONS] == [4, 0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "nope"], 1, "topic nope: does not exist"),
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
        (["topic", "delete-records", "t", "--before", "-1"], 2, "--before is an offset or latest, not '-1'"),
        (["topic", "create", "u", "-c", "x"], 2, "-c x: this is not KEY=VALUE"),
        (["topic", "create", "u", "-c", "retention.ms="], 2, "retention.ms has no value"),
        (["topic", "list", "-b", "host"], 1, "cannot connect to host:9092"),
        (["topic", "list", "-b", "host:port"], 2, "is not HOST:PORT"),
    ],
)
def test_wrong_calls_get_one_line(
    broker: "FakeBroker", arguments: list[str], code: int, message: str
) -> None:
    broker.topics["t"] = [bytearray()]
    stderr = run(broker, *arguments, code=code).stderr.decode()
    assert message in stderr
    assert stderr.count("\n") == 1


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
    broker: "FakeBroker", arguments: list[str], error: ErrorCode, message: str
) -> None:
    broker.refuse[ApiKey.CREATE_TOPICS] = [error]
    stderr = run(broker, "topic", "create", "u", *arguments, code=2).stderr.decode()
    assert stderr.endswith(f"{message}\n")


def test_a_user_that_is_not_there(broker: "FakeBroker") -> None:
    stderr = run(broker, "user", "delete", "bob", code=1).stderr
    assert stderr == b"mpbroker: user bob: there is no such user; see mpbroker user list\n"


def test_nobody_there() -> None:
    class Nobody:
        address = "127.0.0.1:1"

    stderr = run(Nobody(), "topic", "list", code=1).stderr.decode()  # type: ignore[arg-type]
    assert stderr.startswith("mpbroker: cannot connect to 127.0.0.1:1: Connection refused")


def test_client_settings_from_a_file(broker: "FakeBroker", tmp_path: Path) -> None:
    broker.topics["t"] = [bytearray()]
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\ngroup.id=g\n")
    listed = run(broker, "topic", "list", "--command-config", str(file))
    assert listed.stderr == f"mpbroker: {file}:2: warning: group.id is ignored\n".encode()
    file.write_text("#\nreqest.timeout.ms=5000\n")
    hinted = run(broker, "topic", "list", "--command-config", str(file)).stderr.decode()
    assert hinted.startswith(f"mpbroker: {file}:2: warning: reqest.timeout.ms is ignored; did you")
    assert hinted.endswith("did you mean request.timeout.ms?\n")
    file.write_text("#\nsecurity.protocl=SSL\n")
    refused = run(broker, "topic", "list", "--command-config", str(file), code=2).stderr.decode()
    assert f"{file}:2: security.protocl is not supported" in refused
    assert "did you mean security.protocol?" in refused
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    for command in (["produce", "t"], ["consume", "t"], ["topic", "list"]):
        refused = run(broker, *command, "--command-config", str(file), code=2).stderr.decode()
        assert "needs username and password" in refused
    missing = run(broker, "topic", "list", "--command-config", "/nowhere", code=2).stderr
    assert missing == b"mpbroker: --command-config /nowhere: No such file or directory\n"


def test_ctrl_c_writes_what_was_read(broker: "FakeBroker") -> None:
    broker.topics["t"] = [bytearray()]
    environment = {**os.environ, "MPBROKER_BOOTSTRAP_SERVER": broker.address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mpbroker", "produce", "t"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    process.stdin.write(b"x\n")
    process.stdin.flush()
    broker.wait_for(ApiKey.PRODUCE)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b"mpbroker: interrupted; 1 record is written\n"
    process.stdin.close()
    process.stderr.close()
    assert broker.end_offset("t", 0) == 1


def test_ctrl_c_ends_consume_as_it_ends_produce(broker: "FakeBroker") -> None:
    """Without a word: what it was told to do is done, as far as it goes."""
    broker.topics["t"] = [bytearray()]
    run(broker, "produce", "t", lines=b"x\n")
    environment = {**os.environ, "MPBROKER_BOOTSTRAP_SERVER": broker.address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mpbroker", "consume", "t", "--from-beginning"]
    # What a shell starts in the background ignores it, and so would whatever these tests start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.communicate() == (b"", b"")


def test_a_timeout_is_kept(broker: "FakeBroker") -> None:
    broker.silent = [ApiKey.CREATE_TOPICS]
    late = run(broker, "topic", "create", "late", "--timeout", "0.3", code=1)
    assert late.stderr.decode().startswith(f"mpbroker: {broker.address} did not answer within 0.")
