"""Produces that the hot path leaves to Python, and what transactions need of them."""
