"""Which version runs. In the source: a broker says its own, whatever is installed over it meanwhile."""

VERSION = "0.1.0"  # as in pyproject.toml
