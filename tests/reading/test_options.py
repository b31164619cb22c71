"""Options: Kafka's rules, and complaints that name the option."""

from __future__ import annotations

import itertools

import pytest

from mpbroker.protocol.numbers import EARLIEST, LATEST
from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import (
    Assign,
    AtOffset,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Subscribe,
    SubscribePattern,
    check_options,
    chosen_columns,
    includes_headers,
    parse_options,
)
from mpbroker.reading.plan import by_offsets, parts_of

BASE = {"subscribe": "t", "log.dir": "/logs"}
COLUMNS = ("key", "value", "headers")


def test_defaults() -> None:
    options = parse_options({"subscribe": "a, b,a", "kafka.bootstrap.servers": "h:1"})
    assert options.strategy == Subscribe(("a", "b"))
    assert (options.starting, options.ending) == (AtOffset(EARLIEST), AtOffset(LATEST))
    assert (options.fail_on_data_loss, options.check_crcs, options.read_mode) == (True, True, "auto")
    assert options.min_partitions is None


def test_keys_in_any_case_and_unknown_ones() -> None:
    given = {
        "SubscribePattern": "a.*",
        "LOG.DIR": "/x , /y",
        "failOnDataLoss": "FALSE",
        "something.else": "1",
    }
    options = parse_options(given)
    assert isinstance(options.strategy, SubscribePattern)
    assert options.log_dirs == ("/x", "/y")
    assert not options.fail_on_data_loss


def test_a_misspelt_option_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and nothing of the options that Spark adds, or that only tune Kafka's clients."""
    given = {"startingOffset": "latest", "path": "x", "columns": "key", "kafka.max.poll.records": "1"}
    for _ in range(2):
        parse_options(BASE | given | {"kafka.x": "1", "kafka.max.poll.record": "1"})
    assert caplog.messages == [
        "option startingoffset is not known and ignored; did you mean startingOffsets?",
        "option kafka.max.poll.record is not known and ignored; did you mean kafka.max.poll.records?",
        "option kafka.x is not known and ignored",
    ]


def test_offsets_and_times() -> None:
    options = parse_options(
        BASE | {"startingOffsets": '{"t":{"0":23,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":99}}'}
    )
    assert options.starting == AtOffsets({("t", 0): 23, ("t", 1): EARLIEST})
    assert options.ending == AtOffsets({("t", 0): LATEST, ("t", 1): 99})
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":7}}'}
    assert parse_options(BASE | both).starting == AtTimestamps({("t", 0): 7})
    assert parse_options(BASE | both | {"startingTimestamp": "8"}).starting == AtTimestamp(8)


def test_assign() -> None:
    options = parse_options(
        {"assign": '{"t":[0,2]}', "log.dir": "/logs", "endingOffsets": '{"t":{"0":1,"2":-1}}'}
    )
    assert options.strategy == Assign((("t", 0), ("t", 2)))
    with pytest.raises(
        OptionError, match=r"endingOffsets .*specify all TopicPartitions.*Specified: t-0 Assigned: t-0, t-2"
    ):
        parse_options({"assign": '{"t":[0,2]}', "log.dir": "/logs", "endingOffsets": '{"t":{"0":1}}'})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"log.dir": "/x"}, "One of the following options must be specified .*subscribe, subscribePattern"),
        (BASE | {"assign": '{"t":[0]}'}, "Only one of the following options can be specified"),
        ({"subscribe": "t"}, "'log.dir' .* or 'kafka.bootstrap.servers' .*must be specified"),
        (BASE | {"subscribe": " , "}, "No topics to subscribe to .*'subscribe' is ' , '"),
        ({"log.dir": "/x", "subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({"log.dir": "/x", "subscribePattern": "("}, r"subscribePattern: missing \), .*in '\('"),
        ({"log.dir": "/x", "assign": "t"}, "No topicpartitions to assign .*'assign' is 't'"),
        ({"log.dir": "/x", "assign": "{}"}, "No topicpartitions to assign"),
        ({"log.dir": "/x", "assign": '{"t":[-1]}'}, "assign: Expected e.g."),
        ({"log.dir": "/x", "assign": '{"t":{"0":1}}'}, "assign: Expected e.g."),
        (BASE | {"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
        (BASE | {"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
        (BASE | {"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest"),
        (BASE | {"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest for batch"),
        (
            BASE | {"startingOffsets": "soon"},
            "startingOffsets: Expected e.g.*got soon; as a word it is earliest or latest",
        ),
        (BASE | {"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"startingOffsets": '{"t":{"x":1}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "endingOffsetsByTimestamp: Expected e.g."),
        (BASE | {"startingTimestamp": "now"}, "startingTimestamp: Expected a single long value, got now"),
        (BASE | {"startingTimestamp": "-5"}, "startingTimestamp: Expected a single long value, got -5"),
        (BASE | {"startingTimestamp": "\u0663"}, "Expected a single long value"),
        (
            BASE | {"startingOffsetsByTimestamp": '{"t":[1]}'},
            r'Expected e.g. \{"topicA": \{"0": 123456789, "1": 123456789\}, .*, got \{"t":\[1\]\}',
        ),
        (
            BASE | {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":5}}'},
            "should have the same topic-partitions.*start offset: t-0, .*end offset: t-1",
        ),
        (
            BASE | {"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":5}}'},
            "start offset 6 is greater than the end offset 5 for topic t partition 0",
        ),
        (
            BASE
            | {"startingOffsetsByTimestamp": '{"t":{"0":6}}', "endingOffsetsByTimestamp": '{"t":{"0":5}}'},
            "start timestamp 6 is greater than the end timestamp 5 for topic t partition 0",
        ),
        (BASE | {"startingOffsetsByTimestampStrategy": "guess"}, "Strategy is error or latest, not 'guess'"),
        (BASE | {"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false, not 'maybe'"),
        (BASE | {"minPartitions": "0"}, "minPartitions must be positive"),
        (BASE | {"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        (BASE | {"maxBytesPerTask": "64m"}, "maxBytesPerTask must be positive, not '64m'"),
        (BASE | {"readMode": "fast"}, "readMode is auto, local or remote"),
        (BASE | {"readMode": "remote"}, "'kafka.bootstrap.servers' must be specified with readMode remote"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "h:1", "readMode": "local"}, "dir' must be specified"),
        (BASE | {"kafka.auto.offset.reset": "earliest"}, "reset' is not supported.*startingOffsets"),
        (BASE | {"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported as keys"),
        (BASE | {"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        (BASE | {"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        (BASE | {"kafka.isolation.level": "committed"}, "read_committed or read_uncommitted"),
        (BASE | {"kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS is not one of PLAINTEXT"),
        (BASE | {"kafka.security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        (BASE | {"kafka.ssl.engine.factory.class": "x"}, r"kafka\.ssl\.engine\.factory\.class is not supp"),
    ],
)
def test_complaints(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options(given)


def test_columns() -> None:
    assert chosen_columns({"Columns": "headers , key"}, COLUMNS) == ("headers", "key")
    assert chosen_columns({}, COLUMNS) == ("key", "value")
    with pytest.raises(OptionError, match="No columns"):
        chosen_columns({"columns": ","}, COLUMNS)
    with pytest.raises(OptionError, match="includeHeaders is true or false"):
        includes_headers({"includeheaders": "yes"})


STREAM = {"subscribe": "t", "kafka.bootstrap.servers": "h:1"}


def test_a_stream() -> None:
    plain = parse_options(STREAM, streaming=True)
    assert (plain.starting, plain.ending) == (AtOffset(LATEST), AtOffset(LATEST))
    assert (plain.min_offsets_per_trigger, plain.max_offsets_per_trigger) == (None, None)
    assert (plain.max_bytes_per_trigger, plain.max_trigger_delay_ms) == (None, 15 * 60_000)
    assert plain.commit_group_id is None
    full = parse_options(
        STREAM
        | {"startingOffsets": '{"t":{"0":-1,"1":-2,"2":7}}', "minOffsetsPerTrigger": "5"}
        | {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "1000", "maxTriggerDelay": "90s"}
        | {"commitGroupId": " watched "},
        streaming=True,
    )
    assert full.starting == AtOffsets({("t", 0): LATEST, ("t", 1): EARLIEST, ("t", 2): 7})
    assert (full.min_offsets_per_trigger, full.max_offsets_per_trigger) == (5, 5)
    assert (full.max_bytes_per_trigger, full.max_trigger_delay_ms) == (1000, 90_000)
    assert full.commit_group_id == "watched"
    for word, offset in (("latest", LATEST), ("EARLIEST", EARLIEST)):
        given = parse_options(STREAM | {"startingOffsets": word}, streaming=True)
        assert given.starting == AtOffset(offset)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
        ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
        (
            {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            r"The value of minOffsetPerTrigger\(6\) is higher than the maxOffsetsPerTrigger\(5\)",
        ),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger must be positive"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger must be positive"),
        ({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger must be positive"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay 'soon': Time must be specified as seconds"),
        ({"maxTriggerDelay": "5 weeks"}, "Time must be specified as seconds"),
        ({"maxTriggerDelay": "-5s"}, "Time must be specified as seconds"),
        ({"commitGroupId": " "}, "commitGroupId is empty"),
    ],
)
def test_complaints_of_a_stream(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options(STREAM | given, streaming=True)


def test_options_are_checked_before_a_query_is_known_as_batch_or_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The check logs no warnings; parsing logs them later. Options with an end are checked as a batch's."""
    for given in (
        {},
        {"startingOffsets": "latest"},
        {"endingOffsets": "latest", "maxOffsetsPerTrigger": "-1"},
    ):
        check_options(STREAM | given)
    for given in ({"maxOffsetsPerTrigger": "-1"}, {"endingOffsets": "earliest"}, {"assign": "{}"}):
        with pytest.raises(OptionError):
            check_options(STREAM | given)
    assert caplog.messages == []


def test_a_group_is_committed_to_by_a_broker() -> None:
    with pytest.raises(OptionError, match=r"commitGroupId needs 'kafka\.bootstrap\.servers'"):
        parse_options(BASE | {"commitGroupId": "g"}, streaming=True)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("15 MIN", 900_000),
        ("90s", 90_000),
        ("250", 250),
        ("250ms", 250),
        ("1500us", 1),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    found = parse_options(STREAM | {"maxTriggerDelay": text}, streaming=True)
    assert found.max_trigger_delay_ms == milliseconds


def test_a_batch_warns_of_what_is_for_streams(caplog: pytest.LogCaptureFixture) -> None:
    of_streams = {
        "maxOffsetsPerTrigger": "1",
        "minOffsetsPerTrigger": "-2",
        "maxTriggerDelay": "soon",
        "maxBytesPerTrigger": "0",
        "commitGroupId": "g",
    }
    found = parse_options(BASE | of_streams)
    assert {f"{name} option ignored in batch queries" for name in of_streams} == set(caplog.messages)
    assert found == parse_options(BASE)


def test_groups_have_no_meaning(caplog: pytest.LogCaptureFixture) -> None:
    parse_options(STREAM | {"kafka.group.id": "g", "groupIdPrefix": "p"}, streaming=True)
    assert [message.split()[1] for message in caplog.messages] == ["kafka.group.id", "groupIdPrefix"]
    assert all("commitGroupId" in message for message in caplog.messages)


# A time for all goes before times, these go before offsets, these before the default.
TIME, TIMES, OFFSETS = "7", '{"t":{"0":8}}', '{"t":{"0":9}}'
STARTS = {"startingTimestamp": TIME, "startingOffsetsByTimestamp": TIMES, "startingOffsets": OFFSETS}
ENDS = {"endingTimestamp": TIME, "endingOffsetsByTimestamp": TIMES, "endingOffsets": OFFSETS}
HEARD = [AtTimestamp(7), AtTimestamps({("t", 0): 8}), AtOffsets({("t", 0): 9})]


@pytest.mark.parametrize("chosen", [s for n in range(4) for s in itertools.combinations(range(3), n)])
@pytest.mark.parametrize("side", ["starting", "ending"])
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_precedence(chosen: tuple[int, ...], side: str, streaming: bool) -> None:
    given = dict([*(STARTS if side == "starting" else ENDS).items()][number] for number in chosen)
    if streaming and side == "ending" and given:
        with pytest.raises(OptionError, match="not valid in streaming queries"):
            parse_options(STREAM | given, streaming=True)
        return
    default = AtOffset(LATEST if streaming or side == "ending" else EARLIEST)
    found = parse_options(STREAM | given, streaming=streaming)
    heard = HEARD[chosen[0]] if chosen else default
    assert (found.starting if side == "starting" else found.ending) == heard


@pytest.mark.parametrize(
    ("parts", "max_records", "expected"),
    [
        (1, None, [(5, 15)]),
        (3, None, [(5, 8), (8, 11), (11, 15)]),
        (1, 4, [(5, 8), (8, 11), (11, 15)]),
        (99, None, [(n, n + 1) for n in range(5, 15)]),
    ],
)
def test_ranges_of_offsets(parts: int, max_records: int | None, expected: list[tuple[int, int]]) -> None:
    assert by_offsets(5, 15, parts, max_records) == expected


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "expected"),
    [
        ([10, 10], None, [1, 1]),
        ([10, 10], 2, [1, 1]),
        ([], 5, []),
        ([100], 3, [3]),
        # Alike, and hardly more wanted than there are: about so many, not twice as many.
        ([10] * 1000, 1001, [1] * 1000),
        ([100, 100], 5, [3, 3]),
        # The small one counts for itself; the large one is cut for the others.
        ([1, 999], 10, [1, 9]),
        ([300, 100, 1], 9, [6, 2, 1]),
    ],
)
def test_min_partitions_are_shared_out(
    sizes: list[int], min_partitions: int | None, expected: list[int]
) -> None:
    assert parts_of(sizes, min_partitions) == expected
