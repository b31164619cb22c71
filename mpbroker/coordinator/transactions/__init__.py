"""Transactions: the partitions of a producer's transaction, and its end (KIP-98, KIP-360, KIP-890).

A state machine without I/O, fed with requests and a clock. Its decisions are records of
`__transaction_state`.
"""
