"""Transactions: which partitions a producer's transaction has, and how it ends (KIP-98, KIP-360, KIP-890).

A state machine without I/O, fed with requests and a clock. What it decides is in `__transaction_state`.
"""
