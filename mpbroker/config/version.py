"""The version that runs. It stands in the source: a broker reports its own, whatever is installed over it."""

VERSION = "0.1.0"  # as in pyproject.toml
