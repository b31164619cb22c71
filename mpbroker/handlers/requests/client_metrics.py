"""Subscriptions to the metrics of clients, and the client instances that push them (KIP-714).

A subscription is a resource of type CLIENT_METRICS. It says which clients push which metrics (by prefixes of
their names), and how often. A client asks for its subscriptions, and pushes the metrics that they name. The
error UNKNOWN_SUBSCRIPTION_ID tells the client that they have changed; it then asks again.

Each handler has its own instances. The subscription id of an instance is computed from the subscriptions that
match it and from the instance's id. So all handlers compute the same subscription id, and a client may send
each request to another handler. Only the interval between a client's requests is measured for each handler
alone. (Kafka: ClientMetricsManager, ClientMetricsInstance, ClientMetricsConfigs.)
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mpbroker.config.keys import listed
from mpbroker.config.resource_config import ALL_METRICS, CLIENT_METRICS_KEYS, parse_matching_patterns
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.ipc.client_metrics import DECOMPRESSED_BYTES_MAX, Push
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import PushTelemetryRequest
from mpbroker.protocol.uuids import is_reserved, may_be_given_out, uuid_text
from mpbroker.records.batch import checksum
from mpbroker.records.compression import Codec, decompress
from mpbroker.records.errors import CompressionError

INSTANCES_MAX: Final = 16384
# An instance is forgotten when it has not called for so long, or for three intervals.
KEPT_MS: Final = 60_000
DEFAULT_INTERVAL_MS: Final = int(CLIENT_METRICS_KEYS["interval.ms"].default)  # type: ignore[arg-type]
NO_ID: Final = bytes(16)
_LONG_AGO_MS: Final = -(1 << 62)
_CODECS: Final = frozenset(Codec)

log = logging.getLogger("mpbroker.handlers")


class Client(NamedTuple):
    """The properties of a client that subscriptions can match."""

    client_id: str
    software_name: str
    software_version: str
    source_address: str
    source_port: int

    @classmethod
    def of(cls, request: ReceivedRequest) -> Client:
        session = request.session
        return cls(
            request.client_id,
            session.client_software_name,
            session.client_software_version,
            session.client_host,
            session.client_port,
        )

    def matched(self, instance_id: bytes) -> dict[str, str]:
        """Return the values that subscriptions can match, by the names that their patterns use."""
        return {
            "client_id": self.client_id,
            "client_instance_id": uuid_text(instance_id),
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.source_address,
            "client_source_port": str(self.source_port),
        }


@dataclass(frozen=True)
class _Subscription:
    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, re.Pattern[str]]

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> _Subscription:
        return cls(
            frozenset(listed(configs.get("metrics", ""))),
            int(configs.get("interval.ms", DEFAULT_INTERVAL_MS)),
            parse_matching_patterns(configs.get("match", "")),
        )


@dataclass
class Instance:
    """A client instance. Its subscriptions together ask it to push `metrics` every `interval_ms`."""

    client: Client
    version: int
    metrics: list[str]
    interval_ms: int
    subscription_id: int
    called_ms: int
    get_ms: int = _LONG_AGO_MS
    push_ms: int = _LONG_AGO_MS
    terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    def may_get(self, now_ms: int) -> bool:
        if now_ms - max(self.get_ms, self.push_ms) < self.interval_ms:
            # Such a client has to ask again at once.
            return self.last_error in (
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            )
        self.get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        if now_ms - self.push_ms < self.interval_ms:
            return False
        self.push_ms = now_ms
        return True


class ClientMetricsManager:
    """The client instances of one handler. `put` passes on a push, and may drop it."""

    def __init__(
        self, metadata: Metadata, max_bytes: int, put: Callable[[Push], object], now_ms: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._put = put
        self._now_ms = now_ms
        self._instances: OrderedDict[bytes, Instance] = OrderedDict()
        self._subscriptions: list[_Subscription] = []
        self._version = -1

    def get(self, instance_id: bytes, client: Client) -> tuple[ErrorCode, bytes, Instance]:
        """Return (error, instance id, instance) for a client that asks for its subscription.

        If `instance_id` is NO_ID, the instance gets a new id.
        """
        now_ms = self._now_ms()
        if instance_id == NO_ID:
            instance_id = self._new_id()
        instance = self._instance(instance_id, client, now_ms)
        if not instance.may_get(now_ms):
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, instance_id, instance
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE, instance_id, instance

    def push(self, request: PushTelemetryRequest, client: Client, principal: str) -> ErrorCode:
        """Check a push and pass it on."""
        instance_id = request.client_instance_id
        if is_reserved(instance_id):
            return ErrorCode.INVALID_REQUEST
        now_ms = self._now_ms()
        instance = self._instance(instance_id, client, now_ms)
        error = self._problem(request, instance, now_ms)
        instance.terminating = request.terminating
        instance.last_error = error
        if error is ErrorCode.NONE and request.metrics:
            self._put(
                Push(
                    *(instance_id, *client[:4], principal, instance.interval_ms),
                    request.terminating,
                    request.compression_type,
                    bytes(request.metrics),
                )
            )
        return error

    def _problem(self, request: PushTelemetryRequest, instance: Instance, now_ms: int) -> ErrorCode:
        """Return the error of a push. The order of the checks is Kafka's."""
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        if not (instance.may_push(now_ms) or request.terminating):
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if request.subscription_id != instance.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in _CODECS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > self._max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        try:
            # The exporter does this again: the queue to it is as small as what is sent.
            if request.metrics:
                decompress(Codec(request.compression_type), request.metrics, DECOMPRESSED_BYTES_MAX)
        except CompressionError:
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    def _new_id(self) -> bytes:
        while True:
            instance_id = os.urandom(16)
            if may_be_given_out(instance_id) and instance_id not in self._instances:
                return instance_id

    def _instance(self, instance_id: bytes, client: Client, now_ms: int) -> Instance:
        """Return the instance with this id, a new one if it is unknown or subscriptions have changed."""
        self._refresh()
        known = self._instances.pop(instance_id, None)
        if known is not None and now_ms - known.called_ms > max(KEPT_MS, 3 * known.interval_ms):
            known = None
        if known is None or known.version != self._version:
            known = self._made(instance_id, client if known is None else known.client, now_ms)
        known.called_ms = now_ms
        self._instances[instance_id] = known
        if len(self._instances) > INSTANCES_MAX:
            self._instances.popitem(last=False)
        return known

    def _refresh(self) -> None:
        if self._version != self._metadata.subscriptions_version:
            self._version = self._metadata.subscriptions_version
            self._subscriptions = []
            for name, configs in self._metadata.subscriptions.items():
                try:
                    self._subscriptions.append(_Subscription.of(configs))
                except ValueError as error:
                    # Taken over from Kafka, whose regular expressions are Java's.
                    log.warning("the subscription %s to client metrics has no effect: %s", name, error)

    def _made(self, instance_id: bytes, client: Client, now_ms: int) -> Instance:
        values = client.matched(instance_id)
        matching = [
            one
            for one in self._subscriptions
            if all(pattern.fullmatch(values[name]) for name, pattern in one.patterns.items())
        ]
        metrics = sorted(frozenset[str]().union(*(one.metrics for one in matching)))
        if ALL_METRICS in metrics:
            metrics = [ALL_METRICS]
        interval_ms = min([DEFAULT_INTERVAL_MS, *(one.interval_ms for one in matching)])
        hashed = checksum(f"[{', '.join(metrics)}]{interval_ms}".encode())
        for part in struct.unpack(">4I", instance_id):
            hashed ^= part
        (subscription_id,) = struct.unpack(">i", struct.pack(">I", hashed))
        return Instance(client, self._version, metrics, interval_ms, subscription_id, now_ms)
