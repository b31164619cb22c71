"""The log beyond the disk: an object store that holds sealed segments, and the ledger that says which."""
