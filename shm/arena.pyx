"""A sparse arena of shared memory: allocates blocks and lends them. `arena.pxd` describes block headers."""
from libc.errno cimport errno
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memset

from shm.arena cimport (
    ARENA_PAGE_BYTES, BLOCK_FREE, BLOCK_GONE, BLOCK_HEADER_BYTES, BLOCK_HELD, BLOCK_LENT, LARGE_CLASS,
    LARGEST_CLASS, SMALLEST_CLASS, ArenaRef, BlockHeader, BlockStack, block_generation, block_header,
    block_lend, block_take_back,
)
from shm.counters cimport monotonic_ns

HEADER_BYTES = BLOCK_HEADER_BYTES

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t length, int advice)
    int MADV_REMOVE


class ArenaFull(MemoryError):
    """Raised when the limit of bytes in use is reached, or the arena has no room for the block."""


cdef int stack_reserve(BlockStack *stack, uint64_t room) noexcept nogil:
    cdef uint64_t *grown
    if stack.room < room:
        grown = <uint64_t *>realloc(stack.offsets, (room * 2 + 64) * sizeof(uint64_t))
        if grown == NULL:
            return -1
        stack.offsets = grown
        stack.room = room * 2 + 64
    return 0


cdef inline void stack_push(BlockStack *stack, uint64_t offset) noexcept nogil:
    stack.offsets[stack.count] = offset
    stack.count += 1


cdef inline uint64_t stack_pop(BlockStack *stack) noexcept nogil:
    stack.count -= 1
    return stack.offsets[stack.count]


cdef inline int class_of(uint64_t size) noexcept nogil:
    cdef int order = SMALLEST_CLASS
    while ((<uint64_t>1) << order) - BLOCK_HEADER_BYTES < size:
        order += 1
    return order


cdef uint64_t carve(ArenaRef *arena, int order) noexcept nogil:
    """Cut a new block of a class off the extent; return 0 if the extent or private memory is exhausted.

    Blocks of a page and more are page-aligned, so that whole pages can be returned to the kernel. Blocks of
    half a page are cut in pairs.
    """
    cdef uint64_t whole = (<uint64_t>1) << order
    cdef uint64_t pieces = ARENA_PAGE_BYTES // whole if whole < ARENA_PAGE_BYTES else 1
    cdef uint64_t i, block
    if arena.top + whole * pieces > arena.extent:
        return 0
    if (
        stack_reserve(&arena.carved, arena.carved.count + pieces)
        or stack_reserve(&arena.free[order], arena.cut[order] + pieces)
        or stack_reserve(&arena.cold[order], arena.cut[order] + pieces)
    ):
        return 0
    for i in range(pieces):
        block = arena.top + i * whole + BLOCK_HEADER_BYTES
        block_header(arena, block).capacity = whole - BLOCK_HEADER_BYTES
        stack_push(&arena.carved, block)
        if i:
            store_relaxed(&block_header(arena, block).state, BLOCK_FREE)
            stack_push(&arena.free[order], block)
    block = arena.top + BLOCK_HEADER_BYTES
    arena.cut[order] += pieces
    arena.top += whole * pieces
    return block


cdef uint64_t take_free(ArenaRef *arena, int order) noexcept nogil:
    """Take a free block of a class, preferably one that still has its pages; return 0 if there is none."""
    if arena.free[order].count:
        if order >= LARGE_CLASS:
            arena.warm_bytes -= (<uint64_t>1) << order
        return stack_pop(&arena.free[order])
    if arena.cold[order].count:
        return stack_pop(&arena.cold[order])
    return 0


cdef void forget_blocks(ArenaRef *arena) noexcept nogil:
    cdef int order
    for order in range(LARGEST_CLASS + 1):
        arena.free[order].count = arena.cold[order].count = arena.cut[order] = 0
    arena.carved.count = 0
    arena.joined_order = LARGEST_CLASS + 1
    arena.top = arena.warm_bytes = arena.in_use_bytes = arena.blocks_out = 0


cdef void shelve(ArenaRef *arena, uint64_t block, int order) noexcept nogil:
    """Put a free block on its class's list. Above the warm limit return the block's pages to the kernel."""
    cdef uint64_t whole = (<uint64_t>1) << order
    if order < LARGE_CLASS:
        stack_push(&arena.free[order], block)
        return
    # The header's page stays, so that a stale descriptor still finds a newer generation. Pages that the
    # kernel will not take back (locked memory) still count as warm.
    if arena.warm_bytes + whole > arena.warm_limit_bytes and madvise(
        arena.base + block - BLOCK_HEADER_BYTES + ARENA_PAGE_BYTES, whole - ARENA_PAGE_BYTES, MADV_REMOVE
    ) == 0:
        stack_push(&arena.cold[order], block)
        return
    arena.warm_bytes += whole
    stack_push(&arena.free[order], block)


cdef inline uint64_t whole_size(ArenaRef *arena, uint64_t block) noexcept nogil:
    return block_header(arena, block).capacity + BLOCK_HEADER_BYTES


cdef uint64_t forget_gone(ArenaRef *arena, BlockStack *stack) noexcept nogil:
    """Remove BLOCK_GONE blocks from a list; return the sum of their sizes in bytes."""
    cdef uint64_t i, kept = 0, gone = 0
    for i in range(stack.count):
        if block_header(arena, stack.offsets[i]).state == BLOCK_GONE:
            gone += whole_size(arena, stack.offsets[i])
        else:
            stack.offsets[kept] = stack.offsets[i]
            kept += 1
    stack.count = kept
    return gone


cdef bint new_block(ArenaRef *arena, uint64_t start, int order) noexcept nogil:
    """Write the header of a block made of free blocks. Return False if private memory is exhausted."""
    cdef uint64_t block = start + BLOCK_HEADER_BYTES
    if (
        stack_reserve(&arena.carved, arena.carved.count + 1)
        or stack_reserve(&arena.free[order], arena.cut[order] + 1)
        or stack_reserve(&arena.cold[order], arena.cut[order] + 1)
    ):
        return False
    block_header(arena, block).capacity = ((<uint64_t>1) << order) - BLOCK_HEADER_BYTES
    arena.generation += 1
    store_release(&block_header(arena, block).generation, arena.generation)
    store_release(&block_header(arena, block).state, BLOCK_FREE)
    arena.cut[order] += 1
    stack_push(&arena.carved, block)
    return True


cdef void sort_offsets(BlockStack *stack) noexcept nogil:
    qsort(stack.offsets, stack.count, sizeof(uint64_t), compare_offsets)


cdef int compare_offsets(const void *a, const void *b) noexcept nogil:
    cdef uint64_t first = (<const uint64_t *>a)[0], second = (<const uint64_t *>b)[0]
    return (first > second) - (first < second)


cdef bint find_neighbours(ArenaRef *arena, uint64_t whole, uint64_t *first, uint64_t *behind) noexcept nogil:
    """Find page-aligned adjacent free blocks of `whole` bytes, [first, behind) in `carved`; False if none."""
    cdef uint64_t i, begin = 0, bytes = 0, block, end = 0
    for i in range(arena.carved.count):
        block = arena.carved.offsets[i]
        if block_header(arena, block).state != BLOCK_FREE:
            bytes = 0
            continue
        if bytes == 0 or block - BLOCK_HEADER_BYTES != end:
            bytes = 0
            if (block - BLOCK_HEADER_BYTES) % ARENA_PAGE_BYTES:
                continue
            begin = i
        bytes += whole_size(arena, block)
        end = block - BLOCK_HEADER_BYTES + whole_size(arena, block)
        if bytes >= whole:
            first[0], behind[0] = begin, i + 1
            return True
    return False


cdef uint64_t join_neighbours(ArenaRef *arena, int order) noexcept nogil:
    """Make a block of the class from adjacent smaller free blocks or from a larger one; return 0 if none fit.

    The rest becomes free blocks again. Without joining, an extent cut into small blocks could not hold a
    large one while any is in use. A failed search is not repeated for this size until a block is freed.
    """
    cdef uint64_t whole = (<uint64_t>1) << order, first = 0, behind = 0, start, at, end, i
    cdef int piece
    if arena.joined_at == arena.releases and order >= arena.joined_order:
        return 0
    sort_offsets(&arena.carved)
    if not find_neighbours(arena, whole if whole > ARENA_PAGE_BYTES else ARENA_PAGE_BYTES, &first, &behind):
        arena.joined_at, arena.joined_order = arena.releases, order
        return 0
    start = arena.carved.offsets[first] - BLOCK_HEADER_BYTES
    end = (
        arena.carved.offsets[behind - 1] - BLOCK_HEADER_BYTES
        + whole_size(arena, arena.carved.offsets[behind - 1]))
    for i in range(first, behind):
        store_relaxed(&block_header(arena, arena.carved.offsets[i]).state, BLOCK_GONE)
    for piece in range(SMALLEST_CLASS, LARGEST_CLASS + 1):
        at = forget_gone(arena, &arena.free[piece])
        if piece >= LARGE_CLASS:
            arena.warm_bytes -= at
        arena.cut[piece] -= (at + forget_gone(arena, &arena.cold[piece])) >> piece
    forget_gone(arena, &arena.carved)
    if not new_block(arena, start, order):
        return 0
    at = start + whole
    while at < end:
        piece = SMALLEST_CLASS if at % ARENA_PAGE_BYTES else LARGEST_CLASS
        while at + ((<uint64_t>1) << piece) > end:
            piece -= 1
        if not new_block(arena, at, piece):
            break
        shelve(arena, at + BLOCK_HEADER_BYTES, piece)
        at += (<uint64_t>1) << piece
    return start + BLOCK_HEADER_BYTES


cdef uint64_t find_block(ArenaRef *arena, int order) noexcept nogil:
    """Return a free, new or joined block of the class, or 0. Empty a full extent if no block is in use."""
    cdef uint64_t block = take_free(arena, order)
    if block == 0:
        block = carve(arena, order)
    if block == 0 and arena.blocks_out == 0 and arena.top:
        madvise(arena.base, arena.top, MADV_REMOVE)
        forget_blocks(arena)
        block = carve(arena, order)
    if block == 0:
        block = join_neighbours(arena, order)
    return block


cdef uint64_t arena_allocate(ArenaRef *arena, uint64_t size) noexcept nogil:
    """Allocate a block of at least `size` bytes; return 0 if the limit is reached or the extent exhausted.

    Below the limit a block of any size is allocated, so the bytes in use may exceed the limit by one block
    (as in Kafka's MemoryPool).
    """
    if arena.in_use_bytes >= arena.limit_bytes:
        return 0
    return arena_allocate_beyond(arena, size)


cdef uint64_t arena_allocate_beyond(ArenaRef *arena, uint64_t size) noexcept nogil:
    """Allocate like `arena_allocate`, but ignore the limit; return 0 if the extent is exhausted."""
    cdef uint64_t block
    cdef BlockHeader *header
    if size > ((<uint64_t>1) << LARGEST_CLASS) - BLOCK_HEADER_BYTES:
        return 0
    block = find_block(arena, class_of(size))
    if block == 0:
        return 0
    header = block_header(arena, block)
    arena.generation += 1
    store_relaxed(&header.state, BLOCK_HELD)
    store_release(&header.generation, arena.generation)
    arena.in_use_bytes += size
    arena.blocks_out += 1
    return block


cdef void arena_free(ArenaRef *arena, uint64_t block, uint64_t size) noexcept nogil:
    """Free a block. Owner only; `size` is the size that was requested.

    The block's generation grows before the block can be allocated again.
    """
    cdef BlockHeader *header = block_header(arena, block)
    arena.in_use_bytes -= size if size <= arena.in_use_bytes else arena.in_use_bytes
    arena.blocks_out -= 1
    arena.releases += 1
    arena.generation += 1
    store_release(&header.generation, arena.generation)
    store_release(&header.state, BLOCK_FREE)
    shelve(arena, block, class_of(header.capacity))


cdef class Arena:
    """One arena, for its owner (allocate, free, lend, take back) or for a borrower (view, check).

    `block` is page-aligned shared memory, usually mapped without reserving; `limit_bytes` limits its use.
    Free large blocks keep their pages up to `warm_limit_bytes`.
    """

    def __init__(self, unsigned char[::1] block, uint64_t limit_bytes, uint64_t warm_limit_bytes=64 << 20):
        if block.shape[0] < ARENA_PAGE_BYTES or <size_t>&block[0] % ARENA_PAGE_BYTES:
            raise ValueError("an arena must start on a page and hold at least one")
        memset(&self.ref, 0, sizeof(ArenaRef))
        self.keep = block
        self.ref.base = &block[0]
        self.ref.extent = block.shape[0]
        self.ref.limit_bytes = limit_bytes
        self.ref.warm_limit_bytes = warm_limit_bytes
        self.ref.joined_order = LARGEST_CLASS + 1
        # Start above any generation of an earlier owner of this memory, so that its descriptors stay stale.
        self.ref.generation = monotonic_ns()

    def __dealloc__(self):
        for order in range(LARGEST_CLASS + 1):
            free(self.ref.free[order].offsets)
            free(self.ref.cold[order].offsets)
        free(self.ref.carved.offsets)

    @property
    def in_use_bytes(self) -> int:
        return self.ref.in_use_bytes

    @property
    def limit_bytes(self) -> int:
        return self.ref.limit_bytes

    @property
    def warm_bytes(self) -> int:
        """Return the total size of free large blocks that still have their pages."""
        return self.ref.warm_bytes

    @property
    def extent_bytes(self) -> int:
        return self.ref.extent

    cdef BlockHeader *_header(self, uint64_t block) except NULL:
        """Return the header of the block at an offset. Raises ValueError if no block can be there."""
        if block < BLOCK_HEADER_BYTES or block >= self.ref.extent or block % BLOCK_HEADER_BYTES:
            raise ValueError(f"{block} is no block of an arena of {self.ref.extent} bytes")
        return block_header(&self.ref, block)

    def allocate(self, uint64_t size) -> int:
        """Return the offset of a new block of at least `size` bytes. Owner only. Raises ArenaFull."""
        cdef uint64_t block = arena_allocate(&self.ref, size)
        if block == 0:
            raise ArenaFull(
                f"no room for {size} bytes: {self.ref.in_use_bytes} of {self.ref.limit_bytes} are in use, "
                f"{self.ref.extent - self.ref.top} of the extent's {self.ref.extent} were never cut"
            )
        return block

    def free(self, uint64_t block, uint64_t size) -> None:
        """Free a block that was allocated with `size`. Owner only. Raises ValueError if free or lent."""
        cdef BlockHeader *header = self._header(block)
        if block >= self.ref.top or header.state == BLOCK_FREE:
            raise ValueError(f"block {block} is free already")
        if header.state == BLOCK_LENT:
            raise ValueError(f"block {block} is lent to {header.borrower}: take it back first")
        if size > header.capacity or size > self.ref.in_use_bytes:
            raise ValueError(f"block {block} has {header.capacity} bytes and was not allocated for {size}")
        arena_free(&self.ref, block, size)

    def lend(self, uint64_t block, uint64_t borrower) -> int:
        """Mark the block as lent. Return its generation, to be sent to the borrower in the descriptor."""
        if self._header(block).state == BLOCK_FREE or block >= self.ref.top:
            raise ValueError(f"block {block} is free: nobody can borrow it")
        block_lend(&self.ref, block, borrower)
        return block_generation(self.ref.base, block)

    def take_back(self, uint64_t block, uint64_t generation) -> bool:
        """End the lease of a block that its borrower returned. Return False if the descriptor is stale."""
        cdef BlockHeader *header = self._header(block)
        if block >= self.ref.top or header.generation != generation or header.state != BLOCK_LENT:
            return False
        block_take_back(&self.ref, block)
        return True

    def lent_to(self, uint64_t borrower) -> list[int]:
        """Return the offsets of all blocks lent to a borrower. For use after the borrower has ended."""
        cdef uint64_t i
        cdef BlockHeader *header
        out = []
        for i in range(self.ref.carved.count):
            header = block_header(&self.ref, self.ref.carved.offsets[i])
            if header.state == BLOCK_LENT and header.borrower == borrower:
                out.append(self.ref.carved.offsets[i])
        return out

    def check(self, uint64_t block, uint64_t generation) -> bool:
        """Return whether the block still has the descriptor's generation. For borrowers."""
        if block < BLOCK_HEADER_BYTES or block >= self.ref.extent or block % BLOCK_HEADER_BYTES:
            return False
        return block_generation(self.ref.base, block) == generation

    def generation(self, uint64_t block) -> int:
        self._header(block)
        return block_generation(self.ref.base, block)

    def capacity(self, uint64_t block) -> int:
        return self._header(block).capacity

    def view(self, uint64_t block, uint64_t length) -> memoryview:
        """Return the first `length` bytes of a block, not a copy. Raises ValueError above its capacity."""
        cdef uint64_t capacity = self._header(block).capacity
        if length > capacity or length > self.ref.extent - block:
            raise ValueError(f"{length} bytes at {block} lie outside the block, which has {capacity}")
        return memoryview(self.keep)[block : block + length]

    def reset(self) -> None:
        """Discard all blocks; return all pages to the kernel. Call it when the previous owner has ended."""
        forget_blocks(&self.ref)
        if madvise(self.ref.base, self.ref.extent, MADV_REMOVE):
            raise OSError(errno, "the arena's pages could not be given back")
