"""Groups of consumers: their members, assignments and committed offsets.

The package is a state machine without I/O. It gets requests and the time, and decides which records are
written to `__consumer_offsets`. `classic` and `consumer` are the packages of the two protocols.
"""
