"""Topics as Apache Iceberg tables: a job that appends what is new, and what keeps the tables small."""
