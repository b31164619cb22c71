"""Sparse arena with a local allocator, leases and generations; `arena.pxd` draws the block header."""
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from shm.arena cimport (
    BLOCK_FREE, BLOCK_HEADER_BYTES, BLOCK_HELD, BLOCK_LENT, LARGE_CLASS, LARGEST_CLASS, SMALLEST_CLASS, ArenaRef, BlockHeader, BlockStack,
    block_generation, block_header, block_lend, block_take_back,
)

HEADER_BYTES = BLOCK_HEADER_BYTES

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t length, int advice)
    int MADV_REMOVE


class ArenaFull(MemoryError):
    """The limit of bytes in use, or the extent itself, leaves no room for the block."""


cdef int stack_push(BlockStack *stack, uint64_t offset) noexcept nogil:
    cdef uint64_t *grown
    if stack.count == stack.room:
        grown = <uint64_t *>realloc(stack.offsets, (stack.room * 2 + 64) * sizeof(uint64_t))
        if grown == NULL:
            return -1
        stack.offsets = grown
        stack.room = stack.room * 2 + 64
    stack.offsets[stack.count] = offset
    stack.count += 1
    return 0


cdef inline int class_of(uint64_t size) noexcept nogil:
    cdef int order = SMALLEST_CLASS
    while ((<uint64_t>1) << order) - BLOCK_HEADER_BYTES < size:
        order += 1
    return order


cdef uint64_t arena_allocate(ArenaRef *arena, uint64_t size) noexcept nogil:
    """A block of at least `size` bytes; 0 when the limit or the extent is used up. One block is always granted below the limit."""
    cdef uint64_t block, whole
    cdef int order
    cdef BlockHeader *header
    cdef BlockStack *stack
    if size > ((<uint64_t>1) << LARGEST_CLASS) - BLOCK_HEADER_BYTES or arena.in_use_bytes >= arena.limit_bytes:
        return 0
    order = class_of(size)
    whole = (<uint64_t>1) << order
    stack = &arena.free[order]
    if stack.count:
        stack.count -= 1
        block = stack.offsets[stack.count]
        if order >= LARGE_CLASS and arena.warm_bytes >= whole:
            arena.warm_bytes -= whole
    else:
        if arena.top + whole > arena.extent:
            return 0
        block = arena.top + BLOCK_HEADER_BYTES
        if stack_push(&arena.carved, block):
            return 0
        arena.top += whole
    header = block_header(arena, block)
    header.capacity = whole - BLOCK_HEADER_BYTES
    store_relaxed(&header.state, BLOCK_HELD)
    store_release(&header.generation, header.generation + 1)
    arena.in_use_bytes += size
    return block


cdef void arena_free(ArenaRef *arena, uint64_t block, uint64_t size) noexcept nogil:
    """Owner: `size` is what was asked for. The generation has grown before the block can be handed out again."""
    cdef BlockHeader *header = block_header(arena, block)
    cdef uint64_t whole = header.capacity + BLOCK_HEADER_BYTES
    cdef int order = class_of(header.capacity)
    arena.in_use_bytes -= size if size <= arena.in_use_bytes else arena.in_use_bytes
    store_release(&header.generation, header.generation + 1)
    store_release(&header.state, BLOCK_FREE)
    if order >= LARGE_CLASS:
        if arena.warm_bytes + whole > arena.warm_limit_bytes:
            # The header's page stays, so that generations keep growing.
            madvise(arena.base + block - BLOCK_HEADER_BYTES + 4096, whole - 4096, MADV_REMOVE)
        else:
            arena.warm_bytes += whole
    stack_push(&arena.free[order], block)


cdef class Arena:
    """Owner's view (allocate, free, lend, reclaim) or a borrower's (view, check) of one arena.

    `block` is page-aligned shared memory, usually mapped without reserving; `limit_bytes` bounds what is in use.
    """

    def __init__(self, unsigned char[::1] block, uint64_t limit_bytes, uint64_t warm_limit_bytes=64 << 20):
        if <size_t>&block[0] % 4096:
            raise ValueError("an arena must start on a page")
        memset(&self.ref, 0, sizeof(ArenaRef))
        self.keep = block
        self.ref.base = &block[0]
        self.ref.extent = block.shape[0]
        self.ref.limit_bytes = limit_bytes
        self.ref.warm_limit_bytes = warm_limit_bytes

    def __dealloc__(self):
        for order in range(LARGEST_CLASS + 1):
            free(self.ref.free[order].offsets)
        free(self.ref.carved.offsets)

    @property
    def in_use_bytes(self):
        return self.ref.in_use_bytes

    @property
    def limit_bytes(self):
        return self.ref.limit_bytes

    @property
    def extent_bytes(self):
        return self.ref.extent

    def allocate(self, uint64_t size) -> int:
        """The offset of a fresh block of at least `size` bytes, held by the owner. Raises ArenaFull."""
        cdef uint64_t block = arena_allocate(&self.ref, size)
        if block == 0:
            raise ArenaFull(
                f"no room for {size} bytes: {self.ref.in_use_bytes} of {self.ref.limit_bytes} bytes are in use"
            )
        return block

    def free(self, uint64_t block, uint64_t size) -> None:
        if block_header(&self.ref, block).state == BLOCK_FREE:
            raise ValueError(f"block {block} is free already")
        arena_free(&self.ref, block, size)

    def lend(self, uint64_t block, uint64_t borrower) -> int:
        """Marks the block as lent and returns the generation that its descriptor must carry."""
        block_lend(&self.ref, block, borrower)
        return block_generation(self.ref.base, block)

    def take_back(self, uint64_t block, uint64_t generation) -> bool:
        """The borrower returned it. False when the descriptor is stale: the lease had ended before."""
        cdef BlockHeader *header = block_header(&self.ref, block)
        if header.generation != generation or header.state != BLOCK_LENT:
            return False
        block_take_back(&self.ref, block)
        return True

    def lent_to(self, uint64_t borrower) -> list[int]:
        """All blocks that a (fenced) borrower had not returned."""
        cdef uint64_t i
        cdef BlockHeader *header
        out = []
        for i in range(self.ref.carved.count):
            header = block_header(&self.ref, self.ref.carved.offsets[i])
            if header.state == BLOCK_LENT and header.borrower == borrower:
                out.append(self.ref.carved.offsets[i])
        return out

    def check(self, uint64_t block, uint64_t generation) -> bool:
        """Borrower: whether the descriptor still names what the block holds."""
        return (
            BLOCK_HEADER_BYTES <= block < self.ref.extent and block_generation(self.ref.base, block) == generation
        )

    def generation(self, uint64_t block) -> int:
        return block_generation(self.ref.base, block)

    def capacity(self, uint64_t block) -> int:
        return block_header(&self.ref, block).capacity

    def view(self, uint64_t block, uint64_t length) -> memoryview:
        """The bytes of a block, uncopied."""
        if block < BLOCK_HEADER_BYTES or block + length > self.ref.extent:
            raise ValueError(f"{length} bytes at {block} lie outside the arena of {self.ref.extent} bytes")
        return memoryview(self.keep)[block : block + length]

    def reset(self) -> None:
        """A successor's fresh start: forgets every block and gives all pages back. Only behind a fence."""
        cdef int order
        for order in range(LARGEST_CLASS + 1):
            self.ref.free[order].count = 0
        self.ref.carved.count = 0
        self.ref.top = self.ref.in_use_bytes = self.ref.warm_bytes = 0
        if madvise(self.ref.base, self.ref.extent, MADV_REMOVE):
            raise OSError("the arena's pages could not be given back")
