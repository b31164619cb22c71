"""Where PySpark looks by itself: it imports every top-level `pyspark_*` module and registers its DefaultSource."""

from spark_integration.source import MpbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
