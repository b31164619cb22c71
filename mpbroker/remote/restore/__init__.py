"""Restores a broker from what the object store has."""
