"""Fetches that the hot path leaves to Python: parked ones, sessions, files, the disk."""
