"""Transactions: the partitions of a producer's transaction, and its end (KIP-98, KIP-360, KIP-890).

The package is a state machine without I/O. It gets requests and the time, and decides which records are
written to `__transaction_state`.
"""
