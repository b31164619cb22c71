"""The version. The build reads it here; a running broker keeps its own, whatever is installed over it."""

from typing import Final

VERSION: Final = "0.1.0"
