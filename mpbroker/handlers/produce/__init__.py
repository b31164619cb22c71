"""Produce requests that the hot path leaves to Python: their order, appends, and checks of transactions."""
