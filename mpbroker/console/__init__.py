"""The web console. The exporter serves it at `/`, and imports it with the first request."""
