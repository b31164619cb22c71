"""Topics as Apache Iceberg tables: a job that appends what is new and keeps them small, and the way back."""
