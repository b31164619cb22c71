"""Parses the options of the sink, with the names, defaults and errors of Spark's Kafka sink.

mpbroker adds the options exactlyOnce, sinkId and sinkBatch. Spark passes options with lower-case keys.
Options that begin with `kafka.` are for the client. `kafka.linger.ms` has no effect, because rows come
without pauses. The options of Kafka's adaptive partitioner have no effect either, because rows without a key
take partitions in turn.
(Spark: KafkaSourceProvider, KafkaWriter.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mpbroker.client.config import ClientConfig, from_properties, parse_servers
from mpbroker.client.errors import ClientConfigError
from mpbroker.reading.errors import OptionError
from mpbroker.reading.option_values import boolean, client_settings, positive, warn_of_unknown
from mpbroker.records.compression import Codec

CLIENT_ID: Final = "mpbroker-spark"
# Kafka's default of 16 KiB is for programs that send one record at a time.
BATCH_BYTES: Final = 256 << 10
# The most that brokers allow by the default of transaction.max.timeout.ms.
TRANSACTION_TIMEOUT_MS: Final = 900_000

_IGNORE_KEYS: Final = "kafka.partitioner.ignore.keys"
# Partitioners of Kafka's producer. Only Kafka 3 has the first two. Each ignores partitioner.ignore.keys.
_DEFAULT: Final = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
_STICKY: Final = "org.apache.kafka.clients.producer.UniformStickyPartitioner"
_ROUND_ROBIN: Final = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
_PARTITIONERS: Final = (_DEFAULT, _STICKY, _ROUND_ROBIN)
# Options as they are written, by their lower-cased form.
_NAMES: Final = {name.lower(): name for name in ("topic", "exactlyOnce", "sinkId", "sinkBatch")}
_T = TypeVar("_T")
_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
_CODECS = {codec.name.lower(): codec for codec in Codec}
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_SINK_BATCH = re.compile(r"([A-Za-z0-9._-]{1,200}):([0-9]{1,18})")
_REFUSED = {
    "kafka.key.serializer": (
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer."
    ),
    "kafka.value.serializer": (
        "Kafka option 'value.serializer' is not supported as values are serialized with ByteArraySerializer."
    ),
    "kafka.interceptor.classes": (
        "Kafka option 'interceptor.classes' is not supported: the sink runs no Java classes. Change the rows "
        "in the query"
    ),
    "kafka.transactional.id": (
        "Kafka option 'transactional.id' is not supported: the sink names its transactions itself. "
        "Set exactlyOnce=true and sinkId"
    ),
}


@dataclass(frozen=True)
class WriteOptions:
    """The options of a query's sink. Spark sends them to every task."""

    bootstrap_servers: str
    topic: str | None = None
    acks: int = -1
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    # Keys do not choose partitions.
    ignore_keys: bool = False
    # Rows without a partition go to a topic's partitions one by one, keys or not.
    in_turn: bool = False
    exactly_once: bool = False
    sink_id: str = ""
    # For df.write: a name of jobs, and the number of this one. A committed number is not written again.
    sink_batch: tuple[str, int] | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    # Settings of the network client, by their Kafka names; passwords are among them.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client_config(self) -> ClientConfig:
        """Return the network client's settings. Raises ClientConfigError."""
        config, _ = from_properties(self.client, ClientConfig(client_id=CLIENT_ID))
        return config


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a query's sink. Raises OptionError."""
    options = {name.lower(): value for name, value in given.items()}
    for name, text in _REFUSED.items():
        if name in options:
            raise OptionError(text)
    bootstrap = options.get("kafka.bootstrap.servers", "").strip()
    if not bootstrap:
        raise OptionError(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer: the sink "
            "writes through the broker, also where log.dir is at hand"
        )
    warn_of_unknown(options, _NAMES)
    ignores_keys, in_turn = _partitioner(options)
    exactly_once = boolean(options.get("exactlyonce", "false"), "exactlyOnce")
    sink_id = options.get("sinkid", "").strip()
    acks = _one_of(options, "kafka.acks", "all", _ACKS)
    _check_exactly_once(exactly_once, sink_id, acks)
    try:
        parse_servers(bootstrap)
    except ClientConfigError as error:
        raise OptionError(f"kafka.bootstrap.servers: {error}") from error
    return WriteOptions(
        bootstrap_servers=bootstrap,
        topic=options.get("topic", "").strip() or None,
        acks=acks,
        codec=_one_of(options, "kafka.compression.type", "none", _CODECS),
        batch_bytes=_positive(options, "kafka.batch.size", BATCH_BYTES),
        ignore_keys=ignores_keys,
        in_turn=in_turn,
        exactly_once=exactly_once,
        sink_id=sink_id,
        sink_batch=_sink_batch(options, exactly_once),
        transaction_timeout_ms=_positive(options, "kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
        client=client_settings(options),
    )


def _partitioner(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether keys are ignored, and whether rows take a topic's partitions in turn.

    Raises OptionError.
    """
    name = options.get("kafka.partitioner.class", "").strip()
    if not name:
        return boolean(options.get(_IGNORE_KEYS, "false"), _IGNORE_KEYS), False
    if name not in _PARTITIONERS:
        raise OptionError(
            f"kafka.partitioner.class={name} is not supported: the sink runs no Java classes. Put each row's "
            f"partition into the column partition, or name one of {', '.join(_PARTITIONERS)}"
        )
    return name != _DEFAULT, name == _ROUND_ROBIN


def _check_exactly_once(exactly_once: bool, sink_id: str, acks: int) -> None:
    if not exactly_once:
        return
    if not _SINK_ID.fullmatch(sink_id):
        raise OptionError(
            f"exactlyOnce=true needs the option sinkId, which is '{sink_id}': a name for this sink that "
            "stays the same when the query is started again and that no other query uses, of letters, "
            "digits, '.', '_' and '-', at most 200"
        )
    if acks != -1:
        raise OptionError("exactlyOnce=true needs kafka.acks=all: leave kafka.acks out")


def _sink_batch(options: Mapping[str, str], exactly_once: bool) -> tuple[str, int] | None:
    text = options.get("sinkbatch", "").strip()
    if not text:
        return None
    found = _SINK_BATCH.fullmatch(text)
    if found is None:
        raise OptionError(
            f"sinkBatch is NAME:NUMBER, such as nightly:17, not '{text}': jobs of one name have rising "
            "numbers, and a number that was written is not written again"
        )
    if not exactly_once:
        raise OptionError("sinkBatch needs exactlyOnce=true: only then the sink records what it wrote")
    return found[1], int(found[2])


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    return positive(options.get(name, str(default)), name)


def _one_of(options: Mapping[str, str], name: str, default: str, known: Mapping[str, _T]) -> _T:
    text = options.get(name, default).strip().lower()
    if text not in known:
        raise OptionError(f"{name} is one of {', '.join(known)}, not '{text}'")
    return known[text]
