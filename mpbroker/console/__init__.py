"""The web console: what the exporter serves at `/`, loaded when somebody asks for it."""
