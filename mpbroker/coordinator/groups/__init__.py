"""Consumer groups of the classic protocol: members, generations and offsets (KIP-62, KIP-345, KIP-394).

A state machine without I/O, fed with requests and a clock. What it decides is in `__consumer_offsets`.
"""
