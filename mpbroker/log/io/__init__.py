"""Files as a log process needs them: errors that pass, threads that sync, background work that keeps out of the way."""
