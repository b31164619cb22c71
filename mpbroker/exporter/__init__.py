"""The exporter process: serves metrics for Prometheus, liveness and readiness over HTTP."""
