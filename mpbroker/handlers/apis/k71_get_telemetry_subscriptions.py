"""GetTelemetrySubscriptions (key 71), version 0: which metrics a client is to push, and how often.

Any client may ask. The API is served if `client.telemetry.enable` is true. (Kafka serves it if a plug-in
receives the metrics: ClientTelemetryReceiver.)
(Kafka: ClientMetricsManager.processGetTelemetrySubscriptionRequest; KIP-714.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.client_metrics import Client
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import GetTelemetrySubscriptionsResponse
from mpbroker.records.compression import Codec

# In the order of preference.
COMPRESSIONS = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]


@api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, name="GetTelemetrySubscriptions")
def handle(context: RequestContext) -> GetTelemetrySubscriptionsResponse:
    """Returns which of its metrics a client is to push, and how often."""
    broker = context.broker
    error, instance_id, instance = broker.client_metrics.get(
        context.body.client_instance_id, Client.of(context)
    )
    if error is not ErrorCode.NONE:
        return GetTelemetrySubscriptionsResponse(error_code=error)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[*COMPRESSIONS],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=broker.config.telemetry_max_bytes,
        delta_temporality=True,
        requested_metrics=instance.metrics,
    )
