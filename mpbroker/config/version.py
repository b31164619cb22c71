"""The version. The build reads it here. A running broker keeps its version when another is installed."""

from typing import Final

VERSION: Final = "0.1.0"
