"""Consumer groups of the classic protocol: members, generations and committed offsets (KIP-62, KIP-345, KIP-394).

A state machine without I/O, fed with requests and a clock; what it decides is in `__consumer_offsets`.
"""
