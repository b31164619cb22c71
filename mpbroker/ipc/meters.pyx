"""Access to the pages of counts (`meters.pxd`), for the process that writes them and for all readers."""
import os
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset, strncmp

from mpbroker.ipc.meters cimport (
    API_PAGE_BYTES, API_PAGES, CELL_BYTES, CELL_WORDS, CELLS_PER_PART, CLIENT_BYTES, CLIENT_TEXT_BYTES,
    CLIENTS, ERROR_PAGE_BYTES, ERRORS, HISTOGRAMS_AT, NAME_BYTES, NAMES_PER_PART, PART_BYTES, QUOTA_GROUP,
    QUOTA_GROUPS, QUOTA_TEXT_BYTES, USED_APIS, USED_CLIENTS, USED_ERRORS, USED_LOST, USED_QUOTAS,
    USED_RETIRED, USED_TOPICS, VERSIONS, ApiHistogram, ClientKind, QuotaKind, QuotaWord, TopicMeter,
)
from shm.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, store_relaxed, store_release,
)
from shm.counters cimport HISTOGRAM_BUCKETS, HISTOGRAM_MAX, HISTOGRAM_SUM, HISTOGRAM_WORDS
from shm.zeroed cimport zeroed

from shm.region import Block
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from shm.region import Region

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t most)

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, int64_t offset, int64_t length)

assert HISTOGRAMS_AT * 8 + ApiHistogram.API_HISTOGRAMS * HISTOGRAM_WORDS * 8 <= API_PAGE_BYTES
assert ERRORS * 8 <= ERROR_PAGE_BYTES and TopicMeter.TOPIC_METERS <= CELL_WORDS
assert CELLS_PER_PART * CELL_BYTES == PART_BYTES == NAMES_PER_PART * NAME_BYTES
assert CLIENT_BYTES * CLIENTS % PART_BYTES == 0 and USED_RETIRED + CELL_WORDS == USED_QUOTAS
assert USED_QUOTAS * 64 + QUOTA_GROUPS <= USED_TOPICS * 64 and QuotaKind.QUOTA_KINDS <= QUOTA_GROUP
assert (
    sizeof(QuotaRow) * QUOTA_GROUP == PART_BYTES
    and QuotaWord.QUOTA_WORDS * 8 + 2 * QUOTA_TEXT_BYTES == sizeof(QuotaRow)
)

TOPIC_NAME_BYTES_MAX = NAME_BYTES - 16
OTHER_ERROR = ERRORS - 2
OTHER_VERSION = VERSIONS - 1
CLIENTS_MAX = CLIENTS
QUOTA_ROWS = QUOTA_GROUP * QUOTA_GROUPS
# A client's row is given to another one after this much idle time.
QUOTA_IDLE_MS = 60000

cdef struct ClientEntry:
    char name[CLIENT_TEXT_BYTES]
    char version[CLIENT_TEXT_BYTES]
    uint64_t connections            # open now
    uint64_t connected              # ever
    uint64_t reserved[6]

assert sizeof(ClientEntry) == CLIENT_BYTES


def _parts(slots: int, each: int) -> int:
    return (slots + each - 1) // each


def _used_words(slots: int) -> int:
    return USED_TOPICS + _parts(_parts(slots, CELLS_PER_PART), 64) + _parts(_parts(slots, NAMES_PER_PART), 64)


def blocks(processes: int, slots: int) -> list[Block]:
    """Return the blocks of all pages, for the public region of a broker with `slots` partition slots."""
    cells, names = _parts(slots, CELLS_PER_PART) * PART_BYTES, _parts(slots, NAMES_PER_PART) * PART_BYTES
    return [
        Block("meters_used", processes * _used_words(slots) * 8, PART_BYTES),
        Block("meters_apis", processes * API_PAGES * API_PAGE_BYTES, PART_BYTES, sparse=True),
        Block("meters_errors", processes * API_PAGES * ERROR_PAGE_BYTES, PART_BYTES, sparse=True),
        Block("meters_topics", processes * cells, PART_BYTES, sparse=True),
        Block("meters_homes", 16 * slots, PART_BYTES),
        Block("meters_names", names, PART_BYTES, sparse=True),
        Block(
            "meters_clients",
            processes * ClientKind.CLIENT_KINDS * CLIENTS * CLIENT_BYTES,
            PART_BYTES,
            sparse=True,
        ),
        Block("meters_quotas", processes * QUOTA_GROUPS * PART_BYTES, PART_BYTES, sparse=True),
    ]


# ---- the first touch of a part

cdef bint reserve(MetersRef *meters, int64_t at, int64_t size) noexcept nogil:
    """Reserve `size` bytes of the file from `at` on, so that they can be written.

    Return whether it succeeded: a tmpfs can be full.
    """
    cdef int64_t first = at // PART_BYTES * PART_BYTES
    cdef int64_t end = (at + size + PART_BYTES - 1) // PART_BYTES * PART_BYTES
    if fallocate(meters.fd, 0, first, end - first) == 0:
        return True
    store_relaxed(&meters.used[USED_LOST], meters.used[USED_LOST] + 1)
    return False

cdef inline void mark(MetersRef *meters, uint32_t word, uint32_t bit) noexcept nogil:
    """Publish that a part of the pages is reserved, so that readers read it."""
    word += bit // 64
    store_release(&meters.used[word], meters.used[word] | <uint64_t>1 << (bit % 64))

cdef uint64_t *open_api(MetersRef *meters, int api) noexcept nogil:
    meters.apis[api] = meters.scratch
    if reserve(meters, meters.apis_at + api * API_PAGE_BYTES, API_PAGE_BYTES):
        meters.apis[api] = <uint64_t *>(meters.apis_base + api * API_PAGE_BYTES)
        mark(meters, USED_APIS, api)
    return meters.apis[api]

cdef uint64_t *open_errors(MetersRef *meters, int api) noexcept nogil:
    meters.errors[api] = meters.scratch
    if reserve(meters, meters.errors_at + api * ERROR_PAGE_BYTES, ERROR_PAGE_BYTES):
        meters.errors[api] = <uint64_t *>(meters.errors_base + api * ERROR_PAGE_BYTES)
        mark(meters, USED_ERRORS, api)
    return meters.errors[api]

cdef uint64_t *open_cell(MetersRef *meters, uint32_t slot, uint32_t generation) noexcept nogil:
    """Zero the cell of a slot for this generation, and return it. Add the cell's old counts to `retired`."""
    cdef uint32_t part = slot // CELLS_PER_PART
    cdef uint64_t *cell = <uint64_t *>(meters.topics_base + <uint64_t>slot * CELL_BYTES)
    cdef int i
    if slot >= meters.slots:
        return meters.scratch
    if not meters.used[USED_TOPICS + part // 64] >> (part % 64) & 1:
        if not reserve(meters, meters.topics_at + <int64_t>part * PART_BYTES, PART_BYTES):
            return meters.scratch
        mark(meters, USED_TOPICS, part)
    store_release(&cell[<int>TopicMeter.TOPIC_GENERATION], 0)
    for i in range(1, CELL_WORDS):
        store_relaxed(&meters.used[USED_RETIRED + i], meters.used[USED_RETIRED + i] + cell[i])
        store_relaxed(&cell[i], 0)
    store_release(&cell[<int>TopicMeter.TOPIC_GENERATION], generation)
    return cell


cdef bint open_quotas(MetersRef *meters, uint32_t group) noexcept nogil:
    if meters.no_quotas:
        return False
    if not reserve(meters, meters.quotas_at + group * PART_BYTES, PART_BYTES):
        meters.no_quotas = True
        return False
    mark(meters, USED_QUOTAS, group)
    return True


# ---- clients by their software, or how their connections are encrypted

cdef ClientEntry *client_at(MetersRef *meters, int kind, int client) noexcept nogil:
    return <ClientEntry *>(meters.clients_base + (kind * CLIENTS + client) * CLIENT_BYTES)

cdef int client_enter(MetersRef *meters, int kind, const char *name, const char *version) noexcept nogil:
    """Count a connection of a client (name and version). Return the client's number within its ClientKind.

    Return -1 if there are too many different clients. The texts are zero-terminated.
    """
    cdef int i
    cdef ClientEntry *entry
    if not meters.used[USED_CLIENTS] >> kind & 1:
        if not reserve(meters, meters.clients_at + kind * CLIENTS * CLIENT_BYTES, CLIENTS * CLIENT_BYTES):
            return -1
        mark(meters, USED_CLIENTS, kind)
    for i in range(CLIENTS):
        entry = client_at(meters, kind, i)
        if entry.connected == 0:
            memset(entry, 0, sizeof(ClientEntry))
            memcpy(entry.name, name, strnlen(name, CLIENT_TEXT_BYTES - 1))
            memcpy(entry.version, version, strnlen(version, CLIENT_TEXT_BYTES - 1))
        elif strncmp(entry.name, name, CLIENT_TEXT_BYTES - 1) or strncmp(
            entry.version, version, CLIENT_TEXT_BYTES - 1
        ):
            continue
        store_relaxed(&entry.connections, entry.connections + 1)
        store_release(&entry.connected, entry.connected + 1)
        return i
    return -1

cdef void client_leave(MetersRef *meters, int kind, int client) noexcept nogil:
    cdef ClientEntry *entry
    if 0 <= client < CLIENTS:
        entry = client_at(meters, kind, client)
        if entry.connections:
            store_relaxed(&entry.connections, entry.connections - 1)


cdef class Meters:
    """The pages of one process, for this process to write.

    `path` is the file of the public region, in which the process reserves parts.
    """

    def __init__(self, public: Region, path: Path, int process, uint32_t slots):
        cdef MetersRef *ref = &self.ref
        cdef unsigned char[::1] used = public.block("meters_used")
        cdef unsigned char[::1] apis = public.block("meters_apis")
        cdef unsigned char[::1] errors = public.block("meters_errors")
        cdef unsigned char[::1] topics = public.block("meters_topics")
        cdef unsigned char[::1] names = public.block("meters_names")
        cdef unsigned char[::1] homes = public.block("meters_homes")
        cdef unsigned char[::1] clients = public.block("meters_clients")
        cdef unsigned char[::1] quotas = public.block("meters_quotas")
        cdef int64_t cells = _parts(slots, CELLS_PER_PART) * PART_BYTES
        self.process = process
        self.keep = [used, apis, errors, topics, names, homes, clients, quotas]
        self.home_of = {}
        ref.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        ref.slots = slots
        ref.used = <uint64_t *>&used[process * _used_words(slots) * 8]
        ref.used_names = USED_TOPICS + _parts(_parts(slots, CELLS_PER_PART), 64)
        ref.apis_base = &apis[process * API_PAGES * API_PAGE_BYTES]
        ref.errors_base = &errors[process * API_PAGES * ERROR_PAGE_BYTES]
        ref.topics_base = &topics[process * cells]
        ref.names_base = &names[0]
        ref.homes = <uint64_t *>&homes[0]
        ref.clients_base = &clients[process * ClientKind.CLIENT_KINDS * CLIENTS * CLIENT_BYTES]
        ref.quotas_base = <QuotaRow *>&quotas[process * QUOTA_GROUPS * PART_BYTES]
        ref.apis_at = public.offset("meters_apis") + process * API_PAGES * API_PAGE_BYTES
        ref.errors_at = public.offset("meters_errors") + process * API_PAGES * ERROR_PAGE_BYTES
        ref.topics_at = public.offset("meters_topics") + process * cells
        ref.names_at = public.offset("meters_names")
        ref.clients_at = (
            public.offset("meters_clients") + process * ClientKind.CLIENT_KINDS * CLIENTS * CLIENT_BYTES
        )
        ref.quotas_at = public.offset("meters_quotas") + process * QUOTA_GROUPS * PART_BYTES
        ref.scratch = <uint64_t *>zeroed(1, API_PAGE_BYTES)
        if ref.scratch == NULL:
            raise MemoryError("no memory for counts that cannot be reserved")
        self._take_over()

    cdef _take_over(self):
        """Continue a predecessor's counts, except those of its connections, which are closed."""
        cdef MetersRef *ref = &self.ref
        cdef int i, kind
        for i in range(API_PAGES):
            if ref.used[USED_APIS + i // 64] >> (i % 64) & 1:
                ref.apis[i] = <uint64_t *>(ref.apis_base + i * API_PAGE_BYTES)
            if ref.used[USED_ERRORS + i // 64] >> (i % 64) & 1:
                ref.errors[i] = <uint64_t *>(ref.errors_base + i * ERROR_PAGE_BYTES)
        for kind in range(ClientKind.CLIENT_KINDS):
            if ref.used[USED_CLIENTS] >> kind & 1:
                for i in range(CLIENTS):
                    store_relaxed(&client_at(ref, kind, i).connections, 0)

    def __cinit__(self, *args):
        memset(&self.ref, 0, sizeof(MetersRef))
        self.ref.fd = -1

    def __dealloc__(self):
        free(self.ref.scratch)
        if self.ref.fd >= 0:
            os.close(self.ref.fd)

    @property
    def lost(self) -> int:
        """Return how often memory for counts could not be reserved since the region was made."""
        return load_relaxed(&self.ref.used[USED_LOST])

    def request(self, int api, int version, int histogram, uint64_t value) -> None:
        """Record a value in an ApiHistogram of an API. A value for TOTAL_NS also counts the request."""
        cdef uint64_t *page = api_page(&self.ref, api)
        if not 0 <= histogram < ApiHistogram.API_HISTOGRAMS:
            raise IndexError(f"histogram {histogram} of {ApiHistogram.API_HISTOGRAMS}")
        if histogram == ApiHistogram.TOTAL_NS:
            count_version(page, version)
        note_api(page, histogram, value)

    def error(self, int api, int code, uint64_t times=1) -> None:
        count_error(&self.ref, api, code, times)

    def topic(self, uint32_t slot, uint32_t generation, int meter, uint64_t amount=1) -> None:
        if not 0 < meter < TopicMeter.TOPIC_METERS:
            raise IndexError(f"meter {meter} of {TopicMeter.TOPIC_METERS}")
        count_topic(topic_cell(&self.ref, slot, generation), meter, amount)

    def name_topic(self, uint32_t slot, uint32_t generation, bytes topic_id, str name) -> None:
        """Record that a slot of the partition table has a partition of this topic.

        Only log processes call this.
        """
        cdef MetersRef *ref = &self.ref
        if slot >= ref.slots:
            raise IndexError(f"slot {slot} of {ref.slots}")
        if topic_id not in self.home_of:
            if not self._put_name(slot, generation, name.encode()[:TOPIC_NAME_BYTES_MAX]):
                return
            self.home_of[topic_id] = <uint64_t>slot << 32 | generation
        store_release(&ref.homes[2 * slot], 0)
        store_release(&ref.homes[2 * slot + 1], self.home_of[topic_id])
        store_release(&ref.homes[2 * slot], generation)

    cdef bint _put_name(self, uint32_t slot, uint32_t generation, bytes text) except -1:
        """Write a topic's name into the entry of a slot. Return whether there was room."""
        cdef MetersRef *ref = &self.ref
        cdef uint32_t part = slot // NAMES_PER_PART
        cdef uint64_t *entry = <uint64_t *>(ref.names_base + <uint64_t>slot * NAME_BYTES)
        if not ref.used[ref.used_names + part // 64] >> (part % 64) & 1:
            if not reserve(ref, ref.names_at + <int64_t>part * PART_BYTES, PART_BYTES):
                return False
            mark(ref, ref.used_names, part)
        store_release(&entry[0], 0)
        # Texts are no atomic stores: they must not become visible before their entry is marked as changing.
        fence_release()
        store_relaxed(&entry[1], len(text))
        memcpy(&entry[2], <const char *>text, len(text))
        store_release(&entry[0], generation)
        return True

    def forget_topic(self, bytes topic_id) -> None:
        """Forget a topic whose partitions are all deleted. Only log processes call this."""
        self.home_of.pop(topic_id, None)

    def client(self, int kind, bytes name, bytes version) -> int:
        """Count a connection for its client. Return the client's number for `client_gone`, or -1."""
        if not 0 <= kind < ClientKind.CLIENT_KINDS:
            raise IndexError(f"kind {kind} of {ClientKind.CLIENT_KINDS}")
        return client_enter(&self.ref, kind, name, version)

    def client_gone(self, int kind, int client) -> None:
        if 0 <= kind < ClientKind.CLIENT_KINDS:
            client_leave(&self.ref, kind, client)

    # ---- quotas

    def name_quota(self, int kind, uint64_t key, str user, str client_id, int64_t now_ms) -> bool:
        """Give the client with this quota key a row. Return False if there is no room."""
        cdef MetersRef *ref = &self.ref
        cdef uint32_t group = 1 + <uint32_t>((key >> 32) % (QUOTA_GROUPS - 1)), i
        cdef QuotaRow *rows = ref.quotas_base + group * QUOTA_GROUP
        cdef QuotaRow *row = NULL
        cdef bytes user_text = user.encode()[:QUOTA_TEXT_BYTES], client_text = (
            client_id.encode()[:QUOTA_TEXT_BYTES]
        )
        if quota_of(ref, key) != NULL:
            return True
        if not has_quotas(ref, group) and not open_quotas(ref, group):
            return False
        for i in range(QUOTA_GROUP):
            if rows[i].words[<int>QuotaWord.QUOTA_KEY] == 0:
                row = &rows[i]
                break
            if row == NULL or (
                rows[i].words[<int>QuotaWord.QUOTA_LAST_MS] < row.words[<int>QuotaWord.QUOTA_LAST_MS]
            ):
                row = &rows[i]
        if row.words[<int>QuotaWord.QUOTA_KEY] and (
            now_ms - <int64_t>row.words[<int>QuotaWord.QUOTA_LAST_MS] < QUOTA_IDLE_MS
        ):
            return False
        store_release(&row.words[<int>QuotaWord.QUOTA_KEY], 0)
        fence_release()         # no value of the new client is visible before the old one's key is cleared
        for i in range(1, <uint32_t>QuotaWord.QUOTA_WORDS):
            store_relaxed(&row.words[i], 0)
        memset(row.user, 0, 2 * QUOTA_TEXT_BYTES)
        memcpy(row.user, <const char *>user_text, len(user_text))
        memcpy(row.client_id, <const char *>client_text, len(client_text))
        store_relaxed(&row.words[<int>QuotaWord.QUOTA_OF], kind)
        store_relaxed(&row.words[<int>QuotaWord.QUOTA_LAST_MS], <uint64_t>now_ms)
        store_release(&row.words[<int>QuotaWord.QUOTA_KEY], key)
        return True

    def quota_used(self, int kind, uint64_t key, int64_t value, int64_t now_ms) -> None:
        self._check_quota(kind)
        note_used(&self.ref, kind, key, value, now_ms)

    def quota_pause(self, int kind, uint64_t key, uint64_t pause_ms) -> None:
        self._check_quota(kind)
        note_pause(&self.ref, kind, key, pause_ms)

    def quota_exempt(self, int kind, uint64_t value) -> None:
        """Add `value` to the usage that no quota limits, which is counted for all clients together."""
        self._check_quota(kind)
        add_quota(quota_of_all(&self.ref, kind), QuotaWord.QUOTA_EXEMPT, value)

    def quota_tokens(self, uint64_t key, double tokens, double rate, double burst) -> None:
        """Write the tokens that remain in a client's token bucket, and the bucket's rate and burst."""
        cdef uint64_t *row = quota_of(&self.ref, key)
        if row != NULL:
            store_relaxed(&row[<int>QuotaWord.QUOTA_TOKENS_MILLI], <uint64_t><int64_t>(tokens * 1000))
            store_relaxed(&row[<int>QuotaWord.QUOTA_RATE_MILLI], <uint64_t>(rate * 1000))
            store_relaxed(&row[<int>QuotaWord.QUOTA_BURST_MILLI], <uint64_t>(burst * 1000))

    def _check_quota(self, int kind):
        if not 0 <= kind < QuotaKind.QUOTA_KINDS:
            raise IndexError(f"quota {kind} of {QuotaKind.QUOTA_KINDS}")


# ---- for readers

cdef list words_of(const uint64_t *first, int count):
    """Return `count` words from `first` on, loaded in order and after all earlier loads of the caller."""
    fence_acquire()
    return [load_acquire(first + i) for i in range(count)]


class Reader:
    """A reader of all processes' pages in an attached public region.

    It reads only parts that are reserved, so reading takes no memory of the region.
    """

    def __init__(self, public: Region, slots: int) -> None:
        self._blocks = {name: public.block(name) for name in public.names() if name.startswith("meters_")}
        self._slots = slots

    def _words(self, name: str, at: int, count: int) -> list:
        cdef const unsigned char[::1] block = self._blocks[name]
        if at < 0 or at + count * 8 > block.shape[0]:
            raise IndexError(f"{count} words at {at} of {name}")
        return words_of(<const uint64_t *>&block[at], count)

    def _used(self, process: int) -> list:
        count = _used_words(self._slots)
        return self._words("meters_used", process * count * 8, count)

    def lost(self, process: int) -> int:
        """Return how often `process` could not reserve memory for counts, as when the tmpfs was full."""
        return self._used(process)[USED_LOST]

    def apis(self, process: int) -> dict[int, tuple[dict[int, int], list[tuple[list[int], int, int]]]]:
        """Return {API key: ({version: requests}, [(bucket counts, sum, max) per ApiHistogram])}."""
        used, found = self._used(process), {}
        for api in _bits(used, USED_APIS, API_PAGES):
            words = self._words(
                "meters_apis", (process * API_PAGES + api) * API_PAGE_BYTES, API_PAGE_BYTES // 8
            )
            versions = {version: count for version, count in enumerate(words[:VERSIONS]) if count}
            histograms = []
            for i in range(ApiHistogram.API_HISTOGRAMS):
                one = words[HISTOGRAMS_AT + i * HISTOGRAM_WORDS : HISTOGRAMS_AT + (i + 1) * HISTOGRAM_WORDS]
                histograms.append((one[:HISTOGRAM_BUCKETS], one[HISTOGRAM_SUM], one[HISTOGRAM_MAX]))
            found[api] = versions, histograms
        return found

    def errors(self, process: int) -> dict[int, dict[int, int]]:
        """Return {error code: count} by API key; OTHER_ERROR counts codes without a counter of their own."""
        used, found = self._used(process), {}
        for api in _bits(used, USED_ERRORS, API_PAGES):
            words = self._words("meters_errors", (process * API_PAGES + api) * ERROR_PAGE_BYTES, ERRORS)
            found[api] = {code - 1: count for code, count in enumerate(words) if count}
        return found

    def topics(self, process: int) -> dict[tuple[int, int], list[int]]:
        """Return each partition's counts by (slot, generation): a list of words, indexed by TopicMeter."""
        used, found = self._used(process), {}
        cells = _parts(self._slots, CELLS_PER_PART) * PART_BYTES
        for part in _bits(used, USED_TOPICS, _parts(self._slots, CELLS_PER_PART)):
            words = self._words("meters_topics", process * cells + part * PART_BYTES, PART_BYTES // 8)
            for i in range(CELLS_PER_PART):
                cell = words[i * CELL_WORDS : i * CELL_WORDS + TopicMeter.TOPIC_METERS]
                if cell[TopicMeter.TOPIC_GENERATION]:
                    found[part * CELLS_PER_PART + i, cell[TopicMeter.TOPIC_GENERATION]] = cell
        return found

    def retired(self, process: int) -> list[int]:
        """Return the retired counts, indexed by TopicMeter: sums over former partitions of reused slots."""
        return self._used(process)[USED_RETIRED : USED_RETIRED + TopicMeter.TOPIC_METERS]

    def names(self) -> dict[tuple[int, int], str]:
        """Return the name of each partition's topic, by (slot, generation)."""
        found, texts = {}, {}
        words = self._words("meters_homes", 0, 2 * self._slots)
        for slot in range(self._slots):
            generation, home = words[2 * slot], words[2 * slot + 1]
            if not generation or self._words("meters_homes", 16 * slot, 2) != [generation, home]:
                continue
            if home not in texts:
                texts[home] = self._name_at(home >> 32, home & 0xffffffff)
            if texts[home] is not None:
                found[slot, generation] = texts[home]
        return found

    def _name_at(self, slot: int, generation: int) -> str | None:
        """Return the topic name in the entry of a slot; None if the entry has another generation now."""
        at = slot * NAME_BYTES
        before, length = self._words("meters_names", at, 2)
        text = bytes(self._blocks["meters_names"][at + 16 : at + 16 + min(length, TOPIC_NAME_BYTES_MAX)])
        if before != generation or self._words("meters_names", at, 1) != [generation]:
            return None
        return text.decode("utf-8", "replace")

    def clients(self, process: int, kind: int) -> list[tuple[str, str, int, int]]:
        """Return (name, version, open connections, connections ever) of each client of this ClientKind."""
        found = []
        if not self._used(process)[USED_CLIENTS] >> kind & 1:
            return found
        for i in range(CLIENTS):
            at = ((process * ClientKind.CLIENT_KINDS + kind) * CLIENTS + i) * CLIENT_BYTES
            now, ever = self._words("meters_clients", at + 2 * CLIENT_TEXT_BYTES, 2)
            if not ever:
                break
            found.append((*self._texts("meters_clients", at, CLIENT_TEXT_BYTES), now, ever))
        return found

    def quotas(self, process: int) -> tuple[list[list[int]], list[tuple[str, str, list[int]]]]:
        """Return (a list with one row per QuotaKind for all clients together, [(user, client id, row)]).

        A row is a list of words, indexed by QuotaWord. The second list has an item for each client.
        """
        used, clients, row_bytes = self._used(process), [], PART_BYTES // QUOTA_GROUP
        alls = [[0] * QuotaWord.QUOTA_WORDS for _ in range(QuotaKind.QUOTA_KINDS)]
        for group in _bits(used, USED_QUOTAS, QUOTA_GROUPS):
            for i in range(QUOTA_GROUP):
                at = (process * QUOTA_GROUPS + group) * PART_BYTES + i * row_bytes
                words = self._words("meters_quotas", at, QuotaWord.QUOTA_WORDS)
                if group == 0 and i < QuotaKind.QUOTA_KINDS:
                    alls[i] = words
                elif group and words[0]:
                    texts = self._texts("meters_quotas", at + QuotaWord.QUOTA_WORDS * 8, QUOTA_TEXT_BYTES)
                    if self._words("meters_quotas", at, 1) == words[:1]:
                        clients.append((*texts, words))
        return alls, clients

    def _texts(self, name: str, at: int, size: int) -> list:
        """Decode the two adjacent texts at `at`. Each has `size` bytes, zeros at the end included."""
        block = self._blocks[name]
        texts = [bytes(block[at + k * size : at + (k + 1) * size]) for k in (0, 1)]
        return [text.split(b"\0")[0].decode("utf-8", "replace") for text in texts]


def _bits(words: list, first: int, count: int) -> list:
    return [i for i in range(count) if words[first + i // 64] >> (i % 64) & 1]
