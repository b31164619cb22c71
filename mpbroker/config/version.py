"""The version that runs. It stands in the source: a broker reports its own, whatever is installed over it."""

from mpbroker.config._version import VERSION as VERSION
