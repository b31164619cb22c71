"""Topics as Iceberg tables: the job of `mpbroker tables`, and the file that declares tables."""

from spark_integration.tables.job import Done, TablesJob
from spark_integration.tables.settings import Settings, read_settings

__all__ = ["Done", "Settings", "TablesJob", "read_settings"]
