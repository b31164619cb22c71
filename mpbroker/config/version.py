"""The version of mpbroker. A running broker reports its own version even if another one is installed."""

from typing import Final

VERSION: Final = "0.1.0"
