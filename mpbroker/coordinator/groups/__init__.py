"""Consumer groups of the classic protocol: members, generations and offsets (KIP-62, KIP-345, KIP-394).

A state machine without I/O, fed with requests and a clock. Its decisions are records of `__consumer_offsets`.
"""
