"""The web console, which the exporter serves at `/`, and loads with the first request."""
