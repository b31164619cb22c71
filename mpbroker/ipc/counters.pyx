"""Exports the enumerations of `counters.pxd` to Python."""
