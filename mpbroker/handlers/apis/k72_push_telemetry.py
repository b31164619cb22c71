"""PushTelemetry (key 72), version 0: takes metrics of a client, for the exporter's page of metrics.

The response does not wait for the exporter. If the exporter cannot keep up, the push is dropped and counted.
(Kafka: ClientMetricsManager.processPushTelemetryRequest; KIP-714.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.client_metrics import Client
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import PushTelemetryResponse


@api(ApiKey.PUSH_TELEMETRY, 0, 0, name="PushTelemetry")
def handle(context: RequestContext) -> PushTelemetryResponse:
    """Takes the metrics that a client pushes."""
    error = context.broker.client_metrics.push(context.body, Client.of(context), context.session.principal)
    return PushTelemetryResponse(error_code=error)
