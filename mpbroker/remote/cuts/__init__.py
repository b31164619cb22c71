"""Cuts: what a restore needs besides the segments in the object store, as of one instant."""
