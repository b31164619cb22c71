"""The version of mpbroker. It is a constant, so a running broker shows it even if another is installed."""

from typing import Final

VERSION: Final = "0.1.0"
