"""Counts the elements of a message before it is decoded.

Counting takes some nanoseconds for each element of an array, decoding takes a microsecond or two. So a
message with many elements can be refused, or decoded in pieces. The walk over the bytes follows a program, a
table of numbers that `element_program.py` makes from the schema. Only these two files know its form:

    END
    FIXED, bytes
    SHORT_SIZED                     int16 length, negative for null, then that many bytes
    INT_SIZED                       int32 length, negative for null, then that many bytes
    COMPACT_SIZED                   unsigned varint of length + 1, 0 for null, then that many bytes
    NUMBERS, bytes                  int32 count, then values of `bytes` bytes each
    COMPACT_NUMBERS, bytes          unsigned varint of count + 1, then values of `bytes` bytes each
    ARRAY, skip, …, END             int32 count; `skip` leads past the END
    COMPACT_ARRAY, skip, …, END     unsigned varint of count + 1
    NULLABLE, skip, …, END          int8, negative for null
    TAGS, skip, (tag + 1, skip, …, END)*, END
                                    unsigned varint of their number, then tag, size and bytes of each

Bytes that do not fit the program end the walk. The decoder then reports the fault, before it has decoded
more elements than were counted.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

cdef enum:
    END = 0
    FIXED = 1
    SHORT_SIZED = 2
    INT_SIZED = 3
    COMPACT_SIZED = 4
    NUMBERS = 5
    COMPACT_NUMBERS = 6
    ARRAY = 7
    COMPACT_ARRAY = 8
    NULLABLE = 9
    TAGS = 10

    UVARINT_BYTES_MAX = 5


cdef struct Walk:
    const uint8_t *data
    int64_t end
    int64_t at
    int64_t count
    int64_t most
    bint over           # the bytes do not fit, or there is more than `most`


cdef inline int64_t take(Walk *w, int64_t size) noexcept nogil:
    """Skip `size` bytes. Return the position of the first one, or -1 if fewer bytes are left."""
    cdef int64_t begun = w.at
    if size < 0 or size > w.end - w.at:
        w.over = True
        return -1
    w.at += size
    return begun


cdef int64_t uvarint(Walk *w) noexcept nogil:
    cdef int64_t value = 0
    cdef int i
    cdef int64_t at
    for i in range(UVARINT_BYTES_MAX):
        at = take(w, 1)
        if at < 0:
            return 0
        value |= <int64_t>(w.data[at] & 127) << (7 * i)
        if w.data[at] < 128:
            return value
    w.over = True
    return 0


cdef int64_t integer(Walk *w, int size) noexcept nogil:
    """Read a signed integer of 1, 2 or 4 bytes. Return 0 if fewer bytes are left."""
    cdef int64_t at = take(w, size)
    if at < 0:
        return 0
    if size == 1:
        return <int8_t>w.data[at]
    if size == 2:
        return <int16_t>((w.data[at] << 8) | w.data[at + 1])
    return <int32_t>(
        (<unsigned int>w.data[at] << 24) | (w.data[at + 1] << 16) | (w.data[at + 2] << 8) | w.data[at + 3]
    )


cdef inline void charge(Walk *w, int64_t count) noexcept nogil:
    w.count += count
    if w.count > w.most:
        w.over = True


cdef inline void walk_numbers(Walk *w, int32_t size, int64_t count) noexcept nogil:
    if count > 0 and take(w, count * size) >= 0:
        charge(w, count)


cdef void walk_array(Walk *w, const int32_t *body, int64_t count) noexcept nogil:
    cdef int64_t _
    if count <= 0:
        return
    # Each takes a byte at least: a count without bytes costs nothing.
    if count > w.end - w.at:
        w.over = True
        return
    for _ in range(count):
        charge(w, 1)
        if w.over:
            return
        walk(w, body)


cdef void walk_tags(Walk *w, const int32_t *known) noexcept nogil:
    cdef int64_t count = uvarint(w), _, tag, size, end
    cdef const int32_t *field
    for _ in range(count):
        charge(w, 1)
        tag = uvarint(w)
        size = uvarint(w)
        end = w.at + size
        if w.over or take(w, size) < 0:
            return
        field = known
        while field[0] != END:
            if field[0] - 1 == tag:
                w.at = end - size
                walk(w, field + 2)
                w.at = end
                break
            field += field[1]
        if w.over:
            return


cdef void walk(Walk *w, const int32_t *op) noexcept nogil:
    cdef int64_t n
    while op[0] != END and not w.over:
        if op[0] == FIXED:
            take(w, op[1])
            op += 2
        elif op[0] == SHORT_SIZED or op[0] == INT_SIZED:
            n = integer(w, 2 if op[0] == SHORT_SIZED else 4)
            if n > 0:
                take(w, n)
            op += 1
        elif op[0] == COMPACT_SIZED:
            n = uvarint(w)
            if n > 1:
                take(w, n - 1)
            op += 1
        elif op[0] == NUMBERS:
            walk_numbers(w, op[1], integer(w, 4))
            op += 2
        elif op[0] == COMPACT_NUMBERS:
            walk_numbers(w, op[1], uvarint(w) - 1)
            op += 2
        elif op[0] == ARRAY:
            walk_array(w, op + 2, integer(w, 4))
            op += op[1]
        elif op[0] == COMPACT_ARRAY:
            walk_array(w, op + 2, uvarint(w) - 1)
            op += op[1]
        elif op[0] == NULLABLE:
            if integer(w, 1) >= 0:
                walk(w, op + 2)
            op += op[1]
        else:
            walk_tags(w, op + 2)
            op += op[1]


def count(
    const int32_t[::1] program not None, const uint8_t[::1] data not None, Py_ssize_t at, int64_t most,
) -> int:
    """Return the number of array elements and tagged fields of the message that begins at `at`.

    The count stops when it exceeds `most`.
    """
    cdef Walk w
    w.end = data.shape[0]
    w.at = at
    w.count = 0
    w.most = most
    w.over = False
    if at < 0 or at >= w.end:
        return 0
    w.data = &data[0]
    with nogil:
        walk(&w, &program[0])
    return w.count
