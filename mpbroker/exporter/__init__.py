"""The exporter process: metrics for Prometheus, liveness and readiness, over HTTP."""
