"""What the coordinator publishes in shared memory, for whom."""
