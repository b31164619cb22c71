"""Sums over a sliding window, shared by processes. `rates.pxd` describes the layout and the counting."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from shm.atomics cimport load_acquire, load_relaxed, store_release, store_relaxed

cdef enum:
    ALIGN = 4096


cdef inline uint64_t *keys_of(RatesRef *rates, uint32_t writer) noexcept nogil:
    return <uint64_t *>(rates.base + rates.pages_at + writer * rates.page_bytes)


cdef inline Sample *row_at(RatesRef *rates, uint32_t writer, uint64_t row) noexcept nogil:
    return <Sample *>(<uint8_t *>keys_of(rates, writer) + rates.rows_at) + row * (rates.samples + 1)


cdef inline bint in_use(RatesRef *rates, uint32_t writer) noexcept nogil:
    return load_acquire(<uint64_t *>rates.base + writer) != 0


cdef inline uint64_t place(RatesRef *rates, uint64_t key, uint32_t choice) noexcept nogil:
    """Return the row number of one of the 2 * RATES_GROUP rows in which a key may be, chosen by `choice`."""
    cdef uint64_t groups = rates.rows // RATES_GROUP
    cdef uint64_t group = (key if choice < RATES_GROUP else key >> 32) & (groups - 1)
    return group * RATES_GROUP + (choice & (RATES_GROUP - 1))


cdef int64_t find(RatesRef *rates, uint32_t writer, uint64_t key) noexcept nogil:
    """Return the row number of a key in a writer's page; -1 if the key has no row."""
    cdef uint64_t *keys = keys_of(rates, writer)
    cdef uint32_t choice
    cdef uint64_t row
    for choice in range(2 * RATES_GROUP):
        row = place(rates, key, choice)
        if load_acquire(&keys[row]) == key:
            return <int64_t>row
    return -1


cdef bint expired(RatesRef *rates, int64_t last_ms, int64_t now_ms) noexcept nogil:
    return now_ms - last_ms >= rates.samples * rates.window_ms


cdef bint idle(RatesRef *rates, Sample *samples, int64_t now_ms) noexcept nogil:
    cdef uint32_t i
    for i in range(rates.samples + 1):
        if not expired(rates, <int64_t>load_relaxed(&samples[i].last_ms), now_ms):
            return False
    return True


cdef Sample *own_row(RatesRef *rates, uint64_t key, int64_t now_ms) noexcept nogil:
    """Return this writer's row for a key, made if needed; NULL if busy keys occupy its 16 possible rows."""
    cdef uint64_t *keys = keys_of(rates, rates.own)
    cdef int64_t found = find(rates, rates.own, key)
    cdef uint32_t choice, i
    cdef uint64_t row
    cdef Sample *samples
    if found >= 0:
        return row_at(rates, rates.own, <uint64_t>found)
    for choice in range(2 * RATES_GROUP):
        row = place(rates, key, choice)
        samples = row_at(rates, rates.own, row)
        if load_relaxed(&keys[row]) == 0 or idle(rates, samples, now_ms):
            store_release(&keys[row], 0)
            for i in range(rates.samples + 1):
                store_relaxed(&samples[i].last_ms, 0)
                store_relaxed(&samples[i].start_ms, 0)
                store_relaxed(&samples[i].value, 0)
            store_release(&keys[row], key)
            store_release(<uint64_t *>rates.base + rates.own, 1)
            return samples
    return NULL


cdef int64_t newest_start(RatesRef *rates, uint64_t key) noexcept nogil:
    """Return the start in ms of the key's newest sample of all writers; 0 without samples."""
    cdef int64_t newest = 0, start, row
    cdef uint32_t writer, i
    cdef Sample *samples
    for writer in range(rates.writers):
        if not in_use(rates, writer):
            continue
        row = find(rates, writer, key)
        if row < 0:
            continue
        samples = row_at(rates, writer, <uint64_t>row)
        for i in range(rates.samples + 1):
            start = <int64_t>load_relaxed(&samples[i].start_ms)
            if start > newest:
                newest = start
    return newest


cdef void begin(Sample *sample, int64_t start_ms) noexcept nogil:
    """Replace an expired sample by a new one. Set `last_ms` to 0 first, so no reader mixes old and new."""
    store_release(&sample.last_ms, 0)
    store_release(&sample.value, 0)
    store_release(&sample.start_ms, <uint64_t>start_ms)


cdef bint rates_record(RatesRef *rates, uint64_t key, int64_t value, int64_t now_ms) noexcept nogil:
    """Add `value` (below 0: cancel an event) to a key. Return False and add nothing if no row is free."""
    cdef Sample *samples = own_row(rates, key, now_ms)
    cdef Sample *newest
    cdef Sample *oldest
    cdef int64_t start
    cdef uint32_t i
    if samples == NULL:
        return False
    newest = oldest = samples
    for i in range(1, rates.samples + 1):
        if samples[i].start_ms > newest.start_ms:
            newest = &samples[i]
        if samples[i].start_ms < oldest.start_ms:
            oldest = &samples[i]
    start = newest_start(rates, key)
    if start == 0 or now_ms - start >= rates.window_ms:
        begin(oldest, now_ms)
        newest = oldest
    elif <int64_t>newest.start_ms <= start - rates.window_ms:
        # Another writer has begun this sample.
        begin(oldest, start)
        newest = oldest
    # Not before the sample's beginning, and its key, are visible: a reader that sees the value checks whether
    # they have changed.
    store_release(&newest.value, newest.value + <uint64_t>value)
    if <int64_t>newest.last_ms < now_ms:
        store_release(&newest.last_ms, <uint64_t>now_ms)
    return True


cdef void gather(RatesRef *rates, int64_t start, int64_t last, int64_t value) noexcept nogil:
    cdef Span *span = NULL
    cdef uint32_t i
    for i in range(rates.span_count):
        span = &rates.spans[i]
        if start - span.start_ms < rates.window_ms and span.start_ms - start < rates.window_ms:
            break
    else:
        if rates.span_count < rates.span_room:
            span = &rates.spans[rates.span_count]
            rates.span_count += 1
            span.start_ms, span.last_ms, span.value = start, last, 0
    if start < span.start_ms:
        span.start_ms = start
    if last > span.last_ms:
        span.last_ms = last
    span.value += value


cdef void gather_row(RatesRef *rates, uint32_t writer, uint64_t key, int64_t now_ms) noexcept nogil:
    cdef uint64_t *keys = keys_of(rates, writer)
    cdef int64_t row = find(rates, writer, key), start, last, value
    cdef Sample *samples
    cdef uint32_t i
    if row < 0:
        return
    samples = row_at(rates, writer, <uint64_t>row)
    for i in range(rates.samples + 1):
        last = <int64_t>load_acquire(&samples[i].last_ms)
        start = <int64_t>load_acquire(&samples[i].start_ms)
        value = <int64_t>load_acquire(&samples[i].value)
        if load_acquire(&keys[row]) != key:
            return              # given to another key: no event of this one counts
        if last == 0 or start == 0 or <int64_t>load_relaxed(&samples[i].start_ms) != start:
            continue            # in use again: the old sample had expired
        if now_ms - start >= (<int64_t>rates.samples + 1) * rates.window_ms:
            continue            # expired: its last event was at most a window after its beginning
        gather(rates, start, last, value)


cdef Measured rates_measure(RatesRef *rates, uint64_t key, int64_t now_ms) noexcept nogil:
    """Return the total of a key over all writers, and the length of its time span in ms."""
    cdef Measured measured
    cdef int64_t oldest = now_ms, whole
    cdef uint32_t writer, i
    rates.span_count = 0
    for writer in range(rates.writers):
        if in_use(rates, writer):
            gather_row(rates, writer, key, now_ms)
    measured.total = 0
    for i in range(rates.span_count):
        if expired(rates, rates.spans[i].last_ms, now_ms):
            continue
        measured.total += rates.spans[i].value
        if rates.spans[i].start_ms < oldest:
            oldest = rates.spans[i].start_ms
    measured.window_ms = now_ms - oldest
    whole = measured.window_ms // rates.window_ms
    if whole < <int64_t>rates.samples - 1:
        measured.window_ms += (<int64_t>rates.samples - 1 - whole) * rates.window_ms
    if measured.window_ms < 1:
        measured.window_ms = 1
    return measured


def _page_bytes(rows: int, samples: int) -> int:
    return (8 * rows + rows * (samples + 1) * sizeof(Sample) + ALIGN - 1) // ALIGN * ALIGN


def block_bytes(writers: int, rows: int, samples: int) -> int:
    """Return the size in bytes of the shared memory, which must be zero at first."""
    return (8 * writers + ALIGN - 1) // ALIGN * ALIGN + writers * _page_bytes(rows, samples)


cdef class SharedRates:
    """Shared rates, as seen by writer number `own`. `rows` per page is a power of two, at least 8."""

    def __init__(
        self, unsigned char[::1] block, uint32_t writers, uint64_t rows, uint32_t samples, int64_t window_ms,
        uint32_t own
    ):
        if rows < RATES_GROUP or rows & (rows - 1) or samples < 1 or window_ms < 1 or own >= writers:
            raise ValueError(
                f"no rates of {rows} rows, {samples} samples of {window_ms} ms for writer {own} of {writers}")
        if <uint64_t>block.shape[0] < <uint64_t>block_bytes(writers, rows, samples):
            raise ValueError(
                f"rates need {block_bytes(writers, rows, samples)} bytes, the block has {block.shape[0]}")
        if <size_t>&block[0] % 64:
            raise ValueError("rates must start on a cache line")
        self.keep = block
        memset(&self.ref, 0, sizeof(RatesRef))
        self.ref.base = &block[0]
        self.ref.pages_at = (8 * writers + ALIGN - 1) // ALIGN * ALIGN
        self.ref.page_bytes = _page_bytes(rows, samples)
        self.ref.rows_at, self.ref.rows = 8 * rows, rows
        self.ref.writers, self.ref.samples, self.ref.window_ms, self.ref.own = (
            writers, samples, window_ms, own)
        # Twice the samples there should be: writers may begin one of their own at the same moment.
        self.ref.span_room = 2 * (samples + 1)
        self.ref.spans = <Span *>malloc(self.ref.span_room * sizeof(Span))
        if self.ref.spans == NULL:
            raise MemoryError(f"no memory for {self.ref.span_room} spans")

    def __dealloc__(self):
        free(self.ref.spans)

    @property
    def writers(self) -> int:
        return self.ref.writers

    @property
    def samples(self) -> int:
        return self.ref.samples

    @property
    def window_ms(self) -> int:
        return self.ref.window_ms

    def record(self, uint64_t key, int64_t value, int64_t now_ms) -> bool:
        """Add `value` to a key. Return False and add nothing if busy keys occupy its 16 possible rows."""
        self._check(key, now_ms)
        return rates_record(&self.ref, key, value, now_ms)

    def measure(self, uint64_t key, int64_t now_ms) -> tuple[int, int]:
        """Return (total over all writers, length of the time span in ms, at least 1)."""
        self._check(key, now_ms)
        cdef Measured measured = rates_measure(&self.ref, key, now_ms)
        return measured.total, measured.window_ms

    def _check(self, uint64_t key, int64_t now_ms):
        if key == 0 or now_ms < 1:
            raise ValueError(f"key {key} at {now_ms} ms")
