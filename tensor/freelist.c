/* The free list of tensor/freelist_internal.h. Owns its array. Does not choose blocks: the planner
 * (galloc.c) does.
 *
 *     give [c,d)    a b   e f          a b c d e f    touches both: three become one
 *                   [==)  [==)   ->    [==========)   touches one:  that one grows
 *                      [==)                           touches none: one is inserted
 */
#include "tensor/freelist_internal.h"

#include <string.h>

static bool reserve(sheaf_freelist *f, int32_t want) {
    if (want <= f->capacity) return true;
    int32_t capacity = f->capacity ? f->capacity : 8;
    while (capacity < want) {
        if (capacity > INT32_MAX / 2) return false;
        capacity *= 2;
    }
    sheaf_free_block *fresh = sheaf_realloc(f->blocks, (size_t)capacity * sizeof *fresh);
    if (!fresh) return false;
    f->blocks = fresh;
    f->capacity = capacity;
    return true;
}

bool sheaf_freelist_reset(sheaf_freelist *f, size_t size) {
    if (!reserve(f, 1)) return false;
    f->blocks[0] = (sheaf_free_block){0, size};
    f->count = size > 0;
    return true;
}

void sheaf_freelist_free(sheaf_freelist *f) {
    sheaf_free(f->blocks);
    *f = (sheaf_freelist){0};
}

/* The blocks behind `i` move one down: count - i - 1 of them, none if `i` is the last. */
static void drop(sheaf_freelist *f, int32_t i) {
    memmove(f->blocks + i, f->blocks + i + 1, (size_t)(f->count - i - 1) * sizeof *f->blocks);
    f->count--;
}

size_t sheaf_freelist_take(sheaf_freelist *f, int32_t i, size_t size) {
    sheaf_free_block *b = &f->blocks[i];
    size_t offset = b->offset;
    b->offset += size;
    b->size -= size;
    if (b->size == 0) drop(f, i);
    return offset;
}

/* First block that starts at or behind `offset`. */
static int32_t lower_bound(const sheaf_freelist *f, size_t offset) {
    int32_t lo = 0, hi = f->count;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (f->blocks[mid].offset < offset) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

bool sheaf_freelist_give(sheaf_freelist *f, size_t offset, size_t size) {
    int32_t i = lower_bound(f, offset);
    sheaf_free_block *before = i > 0 ? &f->blocks[i - 1] : NULL, *after = i < f->count ? &f->blocks[i] : NULL;
    bool joins_before = before && before->offset + before->size == offset;
    bool joins_after = after && offset + size == after->offset;
    if (joins_before) {
        before->size += size;
        if (joins_after) {
            before->size += after->size;
            drop(f, i);
        }
    } else if (joins_after) {
        after->offset = offset;
        after->size += size;
    } else {
        if (!reserve(f, f->count + 1)) return false;
        memmove(f->blocks + i + 1, f->blocks + i, (size_t)(f->count - i) * sizeof *f->blocks);
        f->blocks[i] = (sheaf_free_block){offset, size};
        f->count++;
    }
    return true;
}

const char *sheaf_freelist_check(const sheaf_freelist *f) {
    size_t end = 0;
    if (f->count > f->capacity) return "more blocks than room";
    for (int32_t i = 0; i < f->count; i++) {
        const sheaf_free_block *b = &f->blocks[i];
        if (b->size == 0) return "an empty block";
        if (i > 0 && b->offset <= end) return "blocks out of order, overlapping or touching";
        if (sheaf_add_overflow(b->offset, b->size, &end)) return "a block wraps";
    }
    return NULL;
}
