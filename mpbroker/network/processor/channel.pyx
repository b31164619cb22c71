"""Exports the enumerations of `channel.pxd` to Python."""
