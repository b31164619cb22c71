"""The native turn of a log worker, its commit rounds, and the ring of the journal that rounds write to."""
