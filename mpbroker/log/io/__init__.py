"""Files as a log process needs them: which errors pass, threads that sync, work in the background."""
