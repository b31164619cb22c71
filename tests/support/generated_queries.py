"""Topics with everything that a log may have, and generated SQL over them; both are the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrameReader, SparkSession

from mpbroker.storage.names import LOG_SUFFIX
from tests.support.client_adapters import CODECS
from tests.support.polling import PATIENCE_S, until
from tests.support.reading_queries import read
from tests.support.spark_produced import AT
from tests.support.transactional_clients import TIMEOUT_MS

BROKER = {"log.cleaner.backoff.ms": 20, "log.retention.ms": -1}
"""Settings with which `Topics` are filled soon, and stay as they are."""

MIXED, COMPACTED, STAMPED = "mixed", "compacted", "stamped"
_TABLES = {
    "every": {"subscribePattern": ".*[dx]"},
    "part": {
        "subscribe": MIXED,
        "startingOffsets": f'{{"{MIXED}":{{"0":17,"1":-2,"2":40}}}}',
        "endingOffsets": f'{{"{MIXED}":{{"0":90,"1":61,"2":-1}}}}',
    },
    "mixed": {"subscribe": MIXED},
    "compacted": {"subscribe": COMPACTED},
    "stamped": {"assign": f'{{"{STAMPED}":[0,1]}}'},
}
TABLES = {
    f"{name}_{isolation}": {**given, "includeHeaders": "true", "kafka.isolation.level": isolation}
    for name, given in _TABLES.items()
    for isolation in ("read_committed", "read_uncommitted")
}
"""Options of the tables that queries name."""
ROUNDS = 90
SEGMENT_MS = "1000"


class Topics:
    """Three topics of a running broker, while this object lives: one has an open transaction.

    `mixed` has transactions of all ends and plain batches; `compacted` gaps and tombstones; `stamped` a log
    start within a batch, times of the broker, and a partition without records.
    """

    def __init__(self, bootstrap: str, log_dir: Path, dice: random.Random) -> None:
        self._dice = dice
        self._count = 0
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 1000, "log_level": 0}
        self._plain = {one: Producer({**common, "compression.type": one}) for one in CODECS}
        self._transactional = [
            Producer(
                {
                    **common,
                    "compression.type": one,
                    "transactional.id": one,
                    "transaction.timeout.ms": TIMEOUT_MS,
                }
            )
            for one in CODECS[:4]
        ]
        for producer in self._transactional:
            producer.init_transactions(PATIENCE_S)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        compact = {
            "cleanup.policy": "compact",
            "segment.ms": str(SEGMENT_MS),
            "min.cleanable.dirty.ratio": "0",
        }
        topics = [
            NewTopic(MIXED, 3, 1),
            NewTopic(COMPACTED, 1, 1, config=compact),
            NewTopic(STAMPED, 2, 1, config={"message.timestamp.type": "LogAppendTime"}),
        ]
        for asked in admin.create_topics(topics).values():
            asked.result(PATIENCE_S)
        self._fill_mixed()
        self._fill_compacted(log_dir)
        for _ in range(12):
            self._send(self._plain[dice.choice(CODECS)], STAMPED, 0)
        for deleted in admin.delete_records([TopicPartition(STAMPED, 0, 7)]).values():
            deleted.result(PATIENCE_S)

    def _fill_mixed(self) -> None:
        """Every codec in each kind of batch. Transactions overlap, and the last one stays open."""
        opened: list[Producer] = []
        for number in range(ROUNDS):
            dice, partition = self._dice, self._dice.randrange(3)
            producer = dice.choice([*self._plain.values(), *self._transactional[1:]])
            if number == ROUNDS - 5:
                producer, partition = self._transactional[0], 2
            if producer in self._transactional and producer not in opened:
                producer.begin_transaction()
                opened.append(producer)
            self._send(producer, MIXED, partition)
            if opened and opened[0] is not self._transactional[0] and dice.random() < 0.3:
                self._end(opened.pop(0))
        for producer in opened:
            if producer is not self._transactional[0]:
                self._end(producer)

    def _end(self, producer: Producer) -> None:
        end = producer.commit_transaction if self._dice.random() < 0.6 else producer.abort_transaction
        end(PATIENCE_S)

    def _fill_compacted(self, log_dir: Path) -> None:
        keys: list[bytes] = []
        for _ in range(30):
            keys += self._send(self._plain[self._dice.choice(CODECS)], COMPACTED, 0)
        *_, active = sorted((log_dir / f"{COMPACTED}-0").glob(f"*{LOG_SUFFIX}"))
        base = int(active.stem)
        latest = {key: offset for offset, key in enumerate(keys[:base])}
        kept = [*sorted(latest.values()), *range(base, len(keys))]
        assert len(kept) < len(keys)
        until(lambda: read(log_dir, COMPACTED) == kept, "the topic is compacted")

    def _send(self, producer: Producer, topic: str, partition: int) -> list[bytes]:
        """Write a batch, and return its keys."""
        dice, keys = self._dice, []
        for _ in range(dice.randint(1, 8)):
            self._count += 1
            number = dice.randrange(20)
            keys.append(b"k%d" % number)
            value = dice.choice(
                [None, b"", b"\xff\x00", b"v%d" % number, dice.randbytes(dice.randrange(300))]
            )
            names = dice.sample(["a", "b", "µ" * 40, ""], dice.choice([0, 0, 1, 2, 3]))
            producer.produce(
                topic,
                value,
                None if topic != COMPACTED and number > 16 else keys[-1],
                partition=partition,
                timestamp=AT + self._count * 50,
                headers=[(name, dice.choice([None, b"", b"\xfe", b"%d" % number])) for name in names],
            )
        assert producer.flush(PATIENCE_S) == 0
        return keys


# Expressions by their type; `{}` is the alias of the table, or nothing.
NUMBERS = (
    *("{}partition", "{}offset", "{}timestampType", "{}offset % 7", "unix_millis({}timestamp) % 1000"),
    *("length({}key)", "length({}value)", "crc32({}value)", "coalesce(length({}value), -1)"),
    *("size({}headers)", "size({}headers.value)", "length({}headers[0].value)"),
)
TEXTS = (
    *("{}topic", "string({}key)", "{}headers[0].key", "get({}headers, 1).key", "hex({}value)"),
    *("concat_ws('/', {}headers.key)", "nullif(string({}key), 'k3')", "hex(get({}headers.value, 1))"),
)
BYTES = ("{}key", "{}value", "{}headers[0].value", "get({}headers.value, 2)", "{}headers[0].value")
OTHERS = (
    *("{}headers", "{}headers.key", "{}headers.value", "{}timestamp", "{}value is null"),
    *("transform({}headers, h -> h.key)", "filter({}headers, h -> h.value is null)"),
    *("struct({}key, {}headers.value)", "aggregate({}headers, 0, (n, h) -> n + length(h.key))"),
    *("to_json({}headers)", "map({}topic, {}headers.key)", "slice({}headers, 1, 1)", "{}headers[0]"),
)
ANY = NUMBERS + TEXTS + BYTES + OTHERS
GROUPABLE = NUMBERS + TEXTS + BYTES
CONDITIONS = (
    *("{}partition in (0, 2)", "{}offset between 20 and 60", "{}offset < 33", "{}offset % 3 = 1"),
    *("{}key is null", "{}value is not null", "{}value = X''", "{}key <=> null", "length({}value) > 9"),
    *("string({}key) in ('k1', 'k7', null)", "string({}key) like 'k1%'", "{}topic > 'd'"),
    *("{}headers is null", "size({}headers) > 1", "array_contains({}headers.key, 'a')"),
    *("exists({}headers, h -> h.value is null)", "{}headers[0].key > 'a'", "{}headers.value[0] = X'FE'"),
    *("{}timestamp >= timestamp_millis(1700000004000)", "unix_millis({}timestamp) < 1700000009000"),
    *(
        "{}partition >= 0 and {}offset in (3, 17, 50, null)",
        "{}partition <=> 1",
        "{}topic like 'mi%'",
        "1 + {}offset > 40",
    ),
    *("{}timestamp > timestamp_millis(1700000004049)", "{}timestamp is not null", "{}offset < 33.5"),
    *("{}timestampType = 0", "false", "coalesce({}headers[0].key, '') = ''"),
)
# Of a lateral view over the headers: what it is, and the expressions of its row.
LATERALS = {
    "explode({}headers) e as h": ("h", "h.key", "h.value", "length(h.value)"),
    "posexplode({}headers) e as p, h": ("p", "h.key", "p * 2"),
    "inline({}headers) e as hk, hv": ("hk", "hv", "hk = 'a'"),
    "explode({}headers.key) e as hk": ("hk", "length(hk)"),
    "explode({}headers.value) e as hv": ("hv",),
}
ORDER = "{0}topic, {0}partition, {0}offset"


class Queries:
    """Makes one query after the other. Tables are written `{name}`, for `str.format_map`.

    Rows of a query depend on the tables alone, but for their order. None ends in an error.
    """

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._shapes: Sequence[Callable[[], str]] = (
            *(self._rows, self._first, self._exploded, self._aggregated, self._joined, self._set_operation),
            *(self._distinct, self._counted, self._nested, self._windowed, self._edges, self._ends),
        )
        self._number = 0

    def next(self) -> str:
        """Return a query. Shapes take turns."""
        self._number += 1
        return self._shapes[self._number % len(self._shapes)]()

    def _table(self) -> str:
        return f"{{{self._dice.choice(list(TABLES))}}}"

    def _some(self, kinds: Sequence[str], most: int = 4, alias: str = "", least: int = 1) -> list[str]:
        count = self._dice.randint(least, most)
        return [one.replace("{}", alias) for one in self._dice.choices(kinds, k=count)]

    def _where(self, alias: str = "") -> str:
        """Return a condition of up to two parts, or nothing."""
        parts = self._some(CONDITIONS, 2, alias, least=0)
        found = ""
        for part in parts:
            part = f"not ({part})" if self._dice.random() < 0.3 else part
            found = f"({found} {self._dice.choice(['and', 'or'])} {part})" if found else part
        return f"where {found}" if found else ""

    def _rows(self) -> str:
        chosen = ["*"] if self._dice.random() < 0.1 else self._some(ANY, 5)
        return f"select {', '.join(chosen)} from {self._table()} {self._where()}"

    def _first(self) -> str:
        """The first or last rows of a total order."""
        limit = f"limit {self._dice.randint(0, 30)} offset {self._dice.choice([0, 0, 5])}"
        first = f"{self._some(GROUPABLE, 1, 't.')[0]} desc nulls last"
        order = f"order by {first}, {ORDER.format('t.')}{self._dice.choice(['', ' desc'])}"
        chosen = ", ".join(self._some(ANY, 4))
        return f"select {chosen} from {self._table()} t {self._where()} {order} {limit}"

    def _exploded(self) -> str:
        view, made = self._dice.choice(list(LATERALS.items()))
        chosen = self._dice.sample(made, self._dice.randint(1, len(made))) + self._some(ANY, 2, "t.", least=0)
        outer = self._dice.choice(["", "outer "])
        lateral = f"lateral view {outer}{view.format('t.')}"
        return f"select {', '.join(chosen)} from {self._table()} t {lateral} {self._where('t.')}"

    def _aggregated(self) -> str:
        keys = self._some(GROUPABLE, 2, least=0)
        made = [
            *("count(*)", "count(headers)", "count(distinct headers.key)", "max(headers[0].value)"),
            *(f"{f}({x})" for f in ("sum", "min", "max") for x in self._some(NUMBERS, 2)),
            *(f"{f}({x})" for f in ("count", "count(distinct ", "min") for x in self._some(TEXTS + BYTES, 1)),
            *(f"sort_array(collect_list({x}))" for x in self._some(TEXTS, 1)),
            f"count(*) filter ({self._where() or 'where offset > 3'})",
        ]
        made = [one + ")" if "(distinct " in one and one.count("(") > one.count(")") else one for one in made]
        chosen = keys + self._dice.sample(made, self._dice.randint(1, 4))
        group = f"group by {', '.join(keys)}" if keys else ""
        having = self._dice.choice(["", "", "having count(*) > 1"]) if keys else ""
        return f"select {', '.join(chosen)} from {self._table()} {self._where()} {group} {having}"

    def _joined(self) -> str:
        how = self._dice.choice(["join", "left join", "full join", "left semi join", "left anti join"])
        on = self._dice.choice(
            [
                "a.partition = b.partition and a.offset = b.offset",
                "a.offset = b.offset + 1 and a.headers[0].key = b.headers[0].key",
                "a.key = b.key and a.partition = b.partition and abs(a.offset - b.offset) < 9",
                "a.headers.key = b.headers.key and a.offset = b.offset",
            ]
        )
        chosen = self._some(ANY, 3, "a.")
        if "semi" not in how and "anti" not in how:
            chosen += self._some(ANY, 2, "b.")
        return (
            f"select {', '.join(chosen)} from (select * from {self._table()} {self._where()}) a "
            f"{how} {self._table()} b on {on} {self._where('a.')}"
        )

    def _set_operation(self) -> str:
        made = self._some(TEXTS, 2) + self._some(("offset", "partition", "size(headers)"), 1)
        # Spark makes an invalid plan of EXCEPT ALL if two columns have the same name.
        columns = ", ".join(f"{one} as c{number}" for number, one in enumerate(made))
        both = [f"select {columns} from {self._table()} {self._where()}" for _ in range(2)]
        return f" {self._dice.choice(['union', 'union all', 'intersect', 'except', 'except all'])} ".join(
            both
        )

    def _distinct(self) -> str:
        return f"select distinct {', '.join(self._some(GROUPABLE, 3))} from {self._table()} {self._where()}"

    def _counted(self) -> str:
        """Counts of tables, of rows that a limit has left, and of rows without a column."""
        inner = self._dice.choice(
            [
                self._table(),
                f"({self._rows()} limit {self._dice.randint(0, 70)})",
                f"(select 1 from {self._table()} {self._where()})",
                f"({self._exploded()})",
            ]
        )
        return f"select {self._dice.choice(['count(*)', 'count(1), 7'])} from {inner}"

    def _nested(self) -> str:
        """Queries within the query: the outer one reads other columns than the inner one."""
        inner = f"select *, {self._some(NUMBERS, 1)[0]} as n, headers.key as ks from {self._table()}"
        chosen = ", ".join(["n", "size(ks)", *self._some(ANY, 2)])
        within = f"offset in (select offset from {self._table()} {self._where()})"
        return f"select {chosen} from ({inner} {self._where()}) where {within} or n > 2"

    def _windowed(self) -> str:
        over = f"over (partition by topic, partition order by {ORDER.format('')})"
        made = self._dice.choice(
            ["row_number()", "lag(headers[0].key)", "sum(length(value))", "lead(offset)"]
        )
        return f"select offset, {made} {over}, {', '.join(self._some(ANY, 2))} from {self._table()}"

    def _edges(self) -> str:
        """Aggregates that headers of batches answer, unless there is a condition."""
        dice = self._dice
        keys = dice.sample(["topic", "partition"], dice.randint(0, 2))
        made = [
            *(f"{function}({column})" for function in ("min", "max") for column in ("offset", "partition")),
            *("count(*)", "count(offset)", "count(timestamp)", "min(topic)", "max(offset) - min(offset)"),
        ]
        most = 2 if dice.random() < 0.5 else 4
        chosen = keys + dice.sample(made[:4] if most == 2 else made, dice.randint(0 if keys else 1, most))
        group = f"group by {', '.join(keys)}" if keys else ""
        where = self._where() if dice.random() < 0.3 else ""
        return f"select {', '.join(chosen)} from {self._table()} {where} {group}"

    def _ends(self) -> str:
        """The first or last rows by offset, within topics and partitions or over all."""
        dice = self._dice
        order = ", ".join(
            f"{one}{dice.choice(['', ' desc'])}" for one in dice.sample(["topic", "partition", "offset"], 3)
        )
        where = self._where() if dice.random() < 0.3 else ""
        limit = f"limit {dice.randint(1, 40)} offset {dice.choice([0, 0, 5])}"
        return f"select {', '.join(self._some(ANY, 3))} from {self._table()} {where} order by {order} {limit}"


def make_tables(prefix: str, reader: Callable[[], DataFrameReader]) -> dict[str, str]:
    """Make a view of each table, and return their names by those in queries."""
    for name, given in TABLES.items():
        reader().options(**given).load().createOrReplaceTempView(f"{prefix}_{name}")
    return {name: f"{prefix}_{name}" for name in TABLES}


def make_expected(spark: SparkSession, bootstrap: str) -> dict[str, str]:
    """Make the same views of what Spark's own connector returns. It is slow, so it reads each record once."""
    for name, given in TABLES.items():
        kind, isolation = name.split("_", 1)
        if kind in ("every", "part"):
            quick = {"kafka.bootstrap.servers": bootstrap, "kafka.fetch.max.wait.ms": "5"}
            frame = spark.read.format("kafka").options(**quick, **given).load().cache()
        else:
            frame = spark.table(f"connector_every_{isolation}").where(f"topic = '{kind}'")
        frame.createOrReplaceTempView(f"connector_{name}")
    return {name: f"connector_{name}" for name in TABLES}
