"""Where PySpark looks by itself: it imports `pyspark_*` modules and registers their DefaultSource."""

from spark_integration.source import MpbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
