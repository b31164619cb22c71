"""Fetches that the hot path leaves to Python: parked fetches, sessions, open files, reads from disk."""
