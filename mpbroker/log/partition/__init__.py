"""One partition: its files, its state in memory, and the checks that a file has to pass."""
