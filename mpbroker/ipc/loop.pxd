"""The longest time for which a process may run native code before it returns to Python."""

cdef enum:
    # Python's own duties between turns (orders, housekeeping, news) tolerate at least the time that a
    # process may sleep.
    NATIVE_AT_MOST_NS = 10 * 1000 * 1000
