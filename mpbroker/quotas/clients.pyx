"""The table of clients with quotas, and the charges for their requests; see `clients.pxd`."""
from libc.math cimport floor
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from mpbroker.ipc.meters cimport Meters, QuotaWord, add_quota, note_used, quota_of_all
from shm.rates cimport Measured, SharedRates, rates_measure, rates_record
from shm.zeroed cimport zeroed

cdef enum:
    FIRST_PLACES = 256
    # Closed connections stay in the table; a full table is emptied.
    CLIENTS_MAX = 65536
    THROTTLE_MAX_MS = 0x7FFFFFFF


cdef inline uint64_t hashed(uint64_t connection) noexcept nogil:
    return (connection * 0x9e3779b97f4a7c15ULL) >> 24


cdef Client *place_of(ClientsRef *clients, uint64_t connection) noexcept nogil:
    """Return the table entry of a connection, or the free entry for it."""
    cdef uint64_t at = hashed(connection) & clients.mask
    while clients.places[at].connection != 0 and clients.places[at].connection != connection:
        at = (at + 1) & clients.mask
    return &clients.places[at]


cdef Client *client_of(
    ClientsRef *clients, uint64_t connection, uint64_t revision, const uint8_t *id, uint32_t id_length
) noexcept nogil:
    """Return a connection's client; NULL if unknown, or if the session revision or client id differs."""
    cdef Client *client = place_of(clients, connection)
    if client.connection != connection or client.revision != revision or client.id_length != id_length:
        return NULL
    return client if memcmp(client.id, id, id_length) == 0 else NULL


cdef int64_t charge(
    ClientsRef *clients, int kind, uint64_t key, double bound, int64_t value, int64_t now_ms
) noexcept nogil:
    """Record `value` bytes or ns. Return the client's pause in ms (Kafka: QuotaUtils.throttleTime)."""
    cdef Measured measured
    cdef double rate, pause_ms
    note_used(clients.meters, kind, key, value, now_ms)
    if not rates_record(clients.rates, key, value, now_ms):
        clients.unmeasured += 1
        add_quota(quota_of_all(clients.meters, kind), QuotaWord.QUOTA_UNMEASURED, 1)
        return 0
    measured = rates_measure(clients.rates, key, now_ms)
    rate = measured.total / (measured.window_ms / 1000.0)
    if rate <= bound:
        return 0
    pause_ms = floor((rate - bound) / bound * measured.window_ms + 0.5)
    return THROTTLE_MAX_MS if pause_ms > THROTTLE_MAX_MS else <int64_t>pause_ms


cdef class Clients:
    """The table of one handler, which writes to the shared `rates` and `meters`."""

    def __init__(self, SharedRates rates, Meters meters):
        self.keep = rates, meters
        self.ref.rates, self.ref.meters = &rates.ref, &meters.ref
        self._resize(FIRST_PLACES)

    def __dealloc__(self):
        self._free()

    def _free(self):
        cdef uint64_t i
        if self.ref.places != NULL:
            for i in range(self.ref.mask + 1):
                free(self.ref.places[i].id)
        free(self.ref.places)
        self.ref.places = NULL

    def _resize(self, uint64_t places):
        cdef Client *old = self.ref.places
        cdef uint64_t i, old_places = self.ref.mask + 1
        cdef Client *fresh = <Client *>zeroed(places, sizeof(Client))
        if fresh == NULL:
            raise MemoryError(f"no memory for {places} clients")
        self.ref.places, self.ref.mask = fresh, places - 1
        if old != NULL:
            for i in range(old_places):
                if old[i].connection:
                    place_of(&self.ref, old[i].connection)[0] = old[i]
            free(old)

    def __len__(self) -> int:
        return self.ref.count

    @property
    def on(self) -> bool:
        """Return whether any quota exists. If so, the client of every request must be known."""
        return self.ref.on

    @on.setter
    def on(self, bint on):
        self.ref.on = on

    @property
    def unmeasured(self) -> int:
        """Return how many charges were not recorded, because too many clients were active at once."""
        return self.ref.unmeasured

    def clear(self) -> None:
        """Remove all clients. Called after the quotas have changed."""
        self._free()
        self.ref.count = 0
        self._resize(FIRST_PLACES)

    def put(
        self, uint64_t connection, uint64_t revision, bytes client_id, produce: tuple[int, float] | None,
        request: tuple[int, float] | None,
        bint fetch_limited=False
    ) -> None:
        """Set the limits of a connection. `produce` and `request`: (key, bound per second), or None."""
        cdef Client *client
        cdef uint8_t *id
        if connection == 0:
            raise ValueError("no connection has the id 0")
        if self.ref.count >= CLIENTS_MAX:
            self.clear()
        if self.ref.count * 2 > self.ref.mask:
            self._resize((self.ref.mask + 1) * 4)
        id = <uint8_t *>malloc(len(client_id) + 1)
        if id == NULL:
            raise MemoryError("no memory for a client id")
        memcpy(id, <const char *>client_id, len(client_id))
        client = place_of(&self.ref, connection)
        self.ref.count += client.connection == 0
        free(client.id)
        memset(client, 0, sizeof(Client))
        client.connection, client.revision, client.id, client.id_length = (
            connection, revision, id, len(client_id))
        client.produce.key, client.produce.bound = produce or (0, 0.0)
        client.fetch_limited = fetch_limited
        client.request.key, client.request.bound = request or (0, 0.0)

    def knows(self, uint64_t connection, uint64_t revision, bytes client_id) -> bool:
        return client_of(
            &self.ref, connection, revision, <const uint8_t *><const char *>client_id, len(client_id)
        ) != NULL

    def charge(self, int kind, uint64_t key, double bound, int64_t value, int64_t now_ms) -> int:
        """Record usage of a budget. Return how long the client must pause, in ms. `kind` is a QuotaKind."""
        return charge(&self.ref, kind, key, bound, value, now_ms)

    def take_back(self, int kind, uint64_t key, int64_t value, int64_t now_ms) -> None:
        """Reduce the recorded usage of a budget by `value`, which was charged and not used."""
        note_used(self.ref.meters, kind, key, -value, now_ms)
        rates_record(self.ref.rates, key, -value, now_ms)
