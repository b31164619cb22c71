"""Reading partitions from outside the log process."""
