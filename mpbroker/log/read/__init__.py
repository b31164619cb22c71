"""Readers of partitions from outside the log process."""
