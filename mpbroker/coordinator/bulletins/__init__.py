"""Bulletins: metadata that the coordinator publishes in shared memory for other processes."""
