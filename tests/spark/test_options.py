"""Options: Kafka's rules, and complaints that name the option."""

from __future__ import annotations

import pytest

from mpbroker.protocol.numbers import EARLIEST, LATEST
from spark_integration.errors import OptionError
from spark_integration.options import (
    Assign,
    AtOffset,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Subscribe,
    SubscribePattern,
    includes_headers,
    parse_options,
)
from spark_integration.plan import by_offsets
from spark_integration.schema import schema_for

BASE = {"subscribe": "t", "log.dir": "/logs"}


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
    parse_options(BASE | {"startingOffset": "latest", "path": "x", "columns": "key", "kafka.x": "1"})
    assert caplog.messages == [
        "option startingoffset is not known and ignored; did you mean startingOffsets?"
    ]


def test_offsets_and_times() -> None:
    options = parse_options(
        BASE | {"startingOffsets": '{"t":{"0":23,"1":-2}}', "endingOffsets": '{"t":{"0":-1}}'}
    )
    assert options.starting == AtOffsets({("t", 0): 23, ("t", 1): EARLIEST})
    assert options.ending == AtOffsets({("t", 0): LATEST})
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
        (
            {"log.dir": "/x"},
            "One of the following options must be specified .*subscribe, subscribePattern, assign",
        ),
        (BASE | {"assign": '{"t":[0]}'}, "Only one of the following options can be specified"),
        ({"subscribe": "t"}, "'log.dir' .* or 'kafka.bootstrap.servers' .*must be specified"),
        (BASE | {"subscribe": " , "}, "No topics to subscribe to .*'subscribe' is ' , '"),
        ({"log.dir": "/x", "subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({"log.dir": "/x", "subscribePattern": "("}, r"subscribePattern: '\(' is not a regular expression"),
        ({"log.dir": "/x", "assign": "t"}, "No topicpartitions to assign .*'assign' is 't'"),
        ({"log.dir": "/x", "assign": "{}"}, "No topicpartitions to assign"),
        ({"log.dir": "/x", "assign": '{"t":[-1]}'}, "assign: Expected e.g."),
        ({"log.dir": "/x", "assign": '{"t":{"0":1}}'}, "assign: Expected e.g."),
        (
            BASE | {"startingOffsets": "latest"},
            "starting offset can't be latest for batch queries.*startingOffsets",
        ),
        (
            BASE | {"endingOffsets": "earliest"},
            "ending offset can't be earliest for batch queries.*endingOffsets",
        ),
        (BASE | {"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest"),
        (BASE | {"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets for t-0 can't be earliest"),
        (BASE | {"startingOffsets": "soon"}, "startingOffsets: Expected e.g.*got soon"),
        (BASE | {"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"startingOffsets": '{"t":{"x":1}}'}, "startingOffsets: Expected e.g."),
        (BASE | {"endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "endingOffsetsByTimestamp: Expected e.g."),
        (BASE | {"startingTimestamp": "now"}, "startingTimestamp is a time in milliseconds"),
        (BASE | {"startingOffsetsByTimestampStrategy": "guess"}, "Strategy is error or latest, not 'guess'"),
        (BASE | {"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false, not 'maybe'"),
        (BASE | {"minPartitions": "0"}, "minPartitions must be positive"),
        (BASE | {"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        (BASE | {"maxBytesPerTask": "64m"}, "maxBytesPerTask must be positive, not '64m'"),
        (BASE | {"readMode": "fast"}, "readMode is auto, local or remote"),
        (BASE | {"readMode": "remote"}, "'kafka.bootstrap.servers' must be specified with readMode remote"),
        (
            {"subscribe": "t", "kafka.bootstrap.servers": "h:1", "readMode": "local"},
            "'log.dir' must be specified",
        ),
        (
            BASE | {"kafka.auto.offset.reset": "earliest"},
            "'auto.offset.reset' is not supported.*startingOffsets",
        ),
        (BASE | {"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported as keys"),
        (BASE | {"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        (BASE | {"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        (BASE | {"kafka.isolation.level": "read_committed"}, "read_committed is not supported"),
        (BASE | {"kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS is not one of PLAINTEXT"),
        (BASE | {"kafka.security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        (BASE | {"kafka.ssl.engine.factory.class": "x"}, r"kafka\.ssl\.engine\.factory\.class is not supp"),
    ],
)
def test_complaints(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options(given)


def test_columns() -> None:
    assert schema_for({}).fieldNames()[-1] == "timestampType"
    assert schema_for({"includeheaders": "true"}).fieldNames()[-1] == "headers"
    assert schema_for({"columns": "headers , key"}).fieldNames() == ["headers", "key"]
    with pytest.raises(OptionError, match="named twice"):
        schema_for({"columns": "key,key"})
    with pytest.raises(OptionError, match="No columns"):
        schema_for({"columns": ","})
    with pytest.raises(OptionError, match="includeHeaders is true or false"):
        includes_headers({"includeheaders": "yes"})


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
