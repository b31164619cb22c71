"""How long a process with a native turn may go on without a look from Python."""

cdef enum:
    # Python's own duties between turns (orders, housekeeping, news) bear at least the 300 ms that a process may sleep.
    NATIVE_AT_MOST_NS = 10 * 1000 * 1000
    # A turn that finds more bears Python's part easily, and what gathers meanwhile makes the next batch larger.
    NATIVE_WHILE_FEW = 4
