"""Writes Arrow batches to topics, at least once or in transactions. Knows nothing of Spark."""
