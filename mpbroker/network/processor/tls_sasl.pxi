# Channels of TLS and SASL listeners: Python leads them, frames and answers stay here. Part of turn.pyx.
#
# A channel of a listener that is not PLAINTEXT begins as NEGOTIATING: nothing of it is read here, and Python
# has its socket. With TLS it becomes MOVED when the client is authenticated: Python has OpenSSL decrypt into
# its block and encrypt from its answer (tls_stream.pxi), and the rest is as for any channel. Without TLS it
# becomes an ordinary channel and costs nothing more.

cdef enum:
    NEGOTIATING = 1
    MOVED = 2
    REAUTHENTICATION_NS = 1000000000    # Kafka: at most one a second

cdef inline void mark(ChannelTurn *t, Channel *c) noexcept nogil:
    """Put the channel on Python's list."""
    if not c.marked:
        c.marked = 1
        t.marked[t.marked_count] = c.index
        t.marked_count += 1

cdef bint session_over(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a request stops here because its session ends: it renews it, or comes too late."""
    if c.request.api_key == Api.API_SASL_HANDSHAKE and (
        c.renewed_ns == 0 or t.now_ns - c.renewed_ns >= REAUTHENTICATION_NS
    ):
        c.renewed_ns = t.now_ns
        c.secure = NEGOTIATING
        mark(t, c)
        return True
    if t.now_ns < c.expires_ns:
        return False
    counter_add(t.counters, Counter.COUNT_EXPIRED_KILLED, 1)
    close_channel(t, c, CloseReason.CLOSED_SESSION_EXPIRED, 0)
    return True
