"""Counter pages with histograms. `counters.pxd` describes their layout and is the native interface."""
from shm.counters cimport (
    COUNTERS_AT, ERROR_AT, ERROR_BYTES, HISTOGRAM_BUCKETS, HISTOGRAM_MAX, HISTOGRAM_SUM, HISTOGRAM_WORDS,
    STATUS_AT, STATUS_BYTES, counter_add, counter_set, heartbeat, histogram_bucket, histogram_record,
    monotonic_ns,
)
from shm.atomics cimport load_relaxed, store_relaxed
from libc.string cimport memcpy

BUCKETS = HISTOGRAM_BUCKETS


def page_bytes(counters: int, histograms: int) -> int:
    """Return the size in bytes of a page with these numbers of counters and histograms."""
    return COUNTERS_AT + (counters * 8 + 63) // 64 * 64 + histograms * HISTOGRAM_WORDS * 8


def bucket_of(value: int) -> int:
    return histogram_bucket(value)


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """Return the values [low, high) that a bucket counts."""
    if not 0 <= bucket < HISTOGRAM_BUCKETS:
        raise IndexError(f"bucket {bucket} of {HISTOGRAM_BUCKETS}")
    if bucket < 4:
        return bucket, bucket + 1
    order, quarter = bucket // 4 + 1, bucket % 4
    width = 1 << (order - 2)
    return (4 + quarter) * width, (5 + quarter) * width


cdef class CounterPage:
    """The counter page in `block`. If the block is mapped read-only, methods that write raise TypeError."""

    def __init__(self, const unsigned char[::1] block, int counters, int histograms):
        if counters < 0 or histograms < 0:
            raise ValueError(f"a page cannot have {counters} counters and {histograms} histograms")
        needed = page_bytes(counters, histograms)
        if block.shape[0] < needed:
            raise ValueError(f"the page needs {needed} bytes, the block has {block.shape[0]}")
        if <size_t>&block[0] % 64:
            raise ValueError("a counter page must start on a cache line")
        cdef char *base = <char *>&block[0]
        self.keep = block
        self.readonly = memoryview(block).readonly
        self.counter_count = counters
        self.histogram_count = histograms
        self.ref.heartbeat_ns = <uint64_t *>base
        self.ref.turns = <uint64_t *>(base + 8)
        self.ref.counters = <uint64_t *>(base + COUNTERS_AT)
        self.ref.histograms = <uint64_t *>(base + COUNTERS_AT + (counters * 8 + 63) // 64 * 64)

    cdef _check(self, int counter):
        if not 0 <= counter < self.counter_count:
            raise IndexError(f"counter {counter} of {self.counter_count}")

    cdef _check_histogram(self, int histogram):
        if not 0 <= histogram < self.histogram_count:
            raise IndexError(f"histogram {histogram} of {self.histogram_count}")

    cdef _check_writable(self):
        if self.readonly:
            raise TypeError("this counter page is attached read-only: its owner alone writes it")

    def add(self, int counter, uint64_t amount=1) -> None:
        self._check_writable()
        self._check(counter)
        counter_add(&self.ref, counter, amount)

    def set(self, int counter, uint64_t value) -> None:
        self._check_writable()
        self._check(counter)
        counter_set(&self.ref, counter, value)

    def get(self, int counter) -> int:
        self._check(counter)
        return load_relaxed(&self.ref.counters[counter])

    def record(self, int histogram, uint64_t value) -> None:
        self._check_writable()
        self._check_histogram(histogram)
        histogram_record(&self.ref, histogram, value)

    def histogram(self, int histogram) -> list[int]:
        """Return the counts of all buckets; see `bucket_bounds`."""
        self._check_histogram(histogram)
        cdef int i
        cdef uint64_t *first = self.ref.histograms + histogram * HISTOGRAM_WORDS
        return [load_relaxed(first + i) for i in range(HISTOGRAM_BUCKETS)]

    def histogram_sum(self, int histogram) -> int:
        """Return the exact sum of all recorded values."""
        self._check_histogram(histogram)
        return load_relaxed(self.ref.histograms + histogram * HISTOGRAM_WORDS + HISTOGRAM_SUM)

    def histogram_max(self, int histogram) -> int:
        """Return the largest recorded value; 0 if there is none."""
        self._check_histogram(histogram)
        return load_relaxed(self.ref.histograms + histogram * HISTOGRAM_WORDS + HISTOGRAM_MAX)

    def beat(self) -> None:
        self._check_writable()
        heartbeat(&self.ref, monotonic_ns())

    @property
    def heartbeat_ns(self) -> int:
        return load_relaxed(self.ref.heartbeat_ns)

    @property
    def turns(self) -> int:
        return load_relaxed(self.ref.turns)

    def clear(self) -> None:
        """Set everything to zero."""
        self._clear(page_bytes(self.counter_count, self.histogram_count))

    def restart(self) -> None:
        """Clear heartbeat, turns and texts for a process's successor, but keep counters and histograms."""
        self._clear(COUNTERS_AT)

    cdef _clear(self, size_t size):
        cdef size_t i
        self._check_writable()
        for i in range(size // 8):
            store_relaxed(self.ref.heartbeat_ns + i, 0)

    cdef _text(self, int at):
        return (<char *>self.ref.heartbeat_ns + at).decode("utf-8", "replace")

    def set_status(self, text: str) -> None:
        self._put(STATUS_AT, STATUS_BYTES, text)

    def set_last_error(self, text: str) -> None:
        self._put(ERROR_AT, ERROR_BYTES, text)

    def _put(self, int at, int room, text: str) -> None:
        self._check_writable()
        # An error message may have any bytes. Cut it between two characters.
        raw = text.encode("utf-8", "backslashreplace").replace(b"\0", b" ")[: room - 1]
        raw = raw.decode("utf-8", "ignore").encode("utf-8")
        raw += bytes(room - len(raw))
        memcpy(<char *>self.ref.heartbeat_ns + at, <const char *>raw, room)

    @property
    def status(self) -> str:
        return self._text(STATUS_AT)

    @property
    def last_error(self) -> str:
        return self._text(ERROR_AT)
