"""The enumerations of `counters.pxd`, exported to Python."""
