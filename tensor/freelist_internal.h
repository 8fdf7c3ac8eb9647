/* Free ranges of one chunk of simulated memory: a sorted array of blocks, as long as it must be.
 *
 * Invariants (sheaf_freelist_check):
 *   1. Blocks are not empty and do not wrap.
 *   2. They are sorted by offset and do not touch: what touches is one block.
 *   3. count <= capacity. */
#ifndef SHEAF_TENSOR_FREELIST_INTERNAL_H
#define SHEAF_TENSOR_FREELIST_INTERNAL_H

#include "tensor/status.h"

typedef struct sheaf_free_block {
    size_t offset, size;
} sheaf_free_block;

typedef struct sheaf_freelist {
    sheaf_free_block *blocks;
    int32_t count, capacity;
} sheaf_freelist;

/* Makes the list one block [0, size), keeping its memory. False: out of memory. */
bool sheaf_freelist_reset(sheaf_freelist *f, size_t size);
void sheaf_freelist_free(sheaf_freelist *f);
/* Cuts `size` bytes (at most the block's, at least 1) off the front of block `i`; returns their offset. */
size_t sheaf_freelist_take(sheaf_freelist *f, int32_t i, size_t size);
/* Gives a range back; it must not overlap a free one. False: out of memory, nothing changed. */
bool sheaf_freelist_give(sheaf_freelist *f, size_t offset, size_t size);
/* NULL, or which invariant does not hold. */
const char *sheaf_freelist_check(const sheaf_freelist *f);

#endif
