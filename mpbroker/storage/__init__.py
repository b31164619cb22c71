"""The files of log directories: their names, formats, layout and locks, and a reader of partitions."""
