"""Topics as Apache Iceberg tables."""
