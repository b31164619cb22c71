"""Allocates blocks of shared memory. One process, the owner, writes, lends and frees them.

The arena is a large sparse memory area, its extent. The owner cuts it into blocks of power-of-two size
classes. The allocator's state is in the owner's private memory, so a killed owner leaves no inconsistent
state. A fork would copy that state, so an owner must make its `Arena` after the fork. A descriptor is a
message with a block's offset and generation. Each block begins with a header that only the owner writes:

    0    generation   grows with each allocation and each release; a descriptor with an older one is stale
    8    capacity     bytes usable after the header
    16   state        0 free, 1 held by the owner, 2 lent
    24   borrower     the process that has the block while it is lent
    64   the usable bytes; their offset in the arena names the block
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shm.atomics cimport load_acquire, store_relaxed, store_release

cdef enum:
    BLOCK_HEADER_BYTES = 64
    SMALLEST_CLASS = 11          # 2 KiB, header included
    LARGEST_CLASS = 30           # 1 GiB
    # Blocks of this class and above give their pages back when freed, except for a warm reserve: faulting in
    # fresh pages costs more than a copy.
    LARGE_CLASS = 16             # 64 KiB
    ARENA_PAGE_BYTES = 4096

cdef enum BlockState:
    BLOCK_FREE = 0
    BLOCK_HELD = 1
    BLOCK_LENT = 2
    BLOCK_GONE = 3               # only while the owner makes one block of several

cdef struct BlockHeader:
    uint64_t generation
    uint64_t capacity
    uint64_t state
    uint64_t borrower
    uint64_t reserved[4]

cdef struct BlockStack:
    uint64_t *offsets
    uint64_t count
    uint64_t room

cdef struct ArenaRef:
    uint8_t *base
    uint64_t extent
    uint64_t top                 # everything from here on was never used
    uint64_t generation          # the last one given to any block; a successor begins above it
    uint64_t blocks_out          # held or lent
    uint64_t joined_at           # `releases` when no free neighbours were found
    int joined_order             # the class of that search
    uint64_t releases            # only grows; while it does not, a refused size is refused again
    uint64_t in_use_bytes        # bytes as asked for, not as rounded up
    uint64_t limit_bytes
    uint64_t warm_bytes          # large free blocks that still have their pages
    uint64_t warm_limit_bytes
    uint64_t cut[31]             # existing blocks of each class; the free lists have room for all of them
    BlockStack free[31]          # small blocks, and large ones that still have their pages
    BlockStack cold[31]          # large blocks that gave their pages back
    BlockStack carved            # every block that exists, for reclaiming

cdef uint64_t arena_allocate(ArenaRef *arena, uint64_t size) noexcept nogil
cdef uint64_t arena_allocate_beyond(ArenaRef *arena, uint64_t size) noexcept nogil
cdef void arena_free(ArenaRef *arena, uint64_t block, uint64_t size) noexcept nogil

cdef inline BlockHeader *block_header(ArenaRef *arena, uint64_t block) noexcept nogil:
    return <BlockHeader *>(arena.base + block - BLOCK_HEADER_BYTES)

cdef inline uint64_t block_generation(uint8_t *base, uint64_t block) noexcept nogil:
    """Return the block's generation, in any process that maps the arena at `base`."""
    return load_acquire(&(<BlockHeader *>(base + block - BLOCK_HEADER_BYTES)).generation)

cdef inline uint64_t block_capacity(uint8_t *base, uint64_t block) noexcept nogil:
    return (<BlockHeader *>(base + block - BLOCK_HEADER_BYTES)).capacity

cdef inline void block_lend(ArenaRef *arena, uint64_t block, uint64_t borrower) noexcept nogil:
    cdef BlockHeader *header = block_header(arena, block)
    store_relaxed(&header.borrower, borrower)
    store_release(&header.state, BLOCK_LENT)

cdef inline void block_take_back(ArenaRef *arena, uint64_t block) noexcept nogil:
    store_release(&block_header(arena, block).state, BLOCK_HELD)


cdef class Arena:
    cdef ArenaRef ref
    cdef object keep
    cdef BlockHeader *_header(self, uint64_t block) except NULL
