"""Consumer groups of the classic protocol: members, generations and offsets (KIP-62, KIP-345, KIP-394).

The package is a state machine without I/O. It gets requests and the time, and decides which records are
written to `__consumer_offsets`.
"""
