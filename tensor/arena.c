/* The arena: headers that live and die together.
 *
 *     chunk          chunk            chunk
 *     [used|free] -> [used|free] ->   [free]
 *                     ^ current
 *
 * Owns: its chunks. Everything behind `current` is empty and waits for reuse, so that a graph which
 * is rebuilt after a reset finds all its memory without malloc. A request that does not fit moves on
 * to the first later chunk that holds it (relinked behind `current`), and only then allocates: the
 * number of chunks is bounded by the largest use ever made, however requests of different sizes
 * alternate. Does not free single allocations. */
#include "tensor/arena_internal.h"

#include <string.h>

enum { ALIGN = 16 };

typedef struct chunk {
    struct chunk *next;
    size_t size, used; /* of bytes[] */
    _Alignas(ALIGN) unsigned char bytes[];
} chunk;

/* A tensor with the link that makes "all tensors of the arena" cheap and ordered. */
typedef struct linked_tensor {
    struct linked_tensor *next;
    _Alignas(ALIGN) sheaf_tensor tensor;
} linked_tensor;

struct sheaf_arena {
    chunk *first, *current;
    linked_tensor *tensors, *last_tensor;
    size_t chunk_bytes, used;
    sheaf_error_box error;
};

static chunk *chunk_new(size_t size) {
    size_t total;
    if (sheaf_add_overflow(sizeof(chunk), size, &total)) return NULL;
    chunk *c = sheaf_malloc(total);
    if (!c) return NULL;
    c->next = NULL;
    c->size = size;
    c->used = 0;
    return c;
}

sheaf_status sheaf_arena_new(size_t chunk_bytes, sheaf_arena **out) {
    *out = NULL;
    size_t rounded;
    if (!sheaf_align_up(chunk_bytes ? chunk_bytes : 1, ALIGN, &rounded)) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "arena: chunks of %zu bytes", chunk_bytes);
    }
    sheaf_arena *a = sheaf_calloc(1, sizeof *a);
    if (!a) return sheaf_fail(SHEAF_E_NO_MEMORY, "arena: %zu bytes", sizeof *a);
    a->chunk_bytes = rounded;
    a->first = a->current = chunk_new(rounded);
    if (!a->first) {
        sheaf_free(a);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "arena: a chunk of %zu bytes", rounded);
    }
    *out = a;
    return SHEAF_OK;
}

void sheaf_arena_free(sheaf_arena *a) {
    if (!a) return;
    for (chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        sheaf_free(c);
    }
    sheaf_free(a);
}

void sheaf_arena_reset(sheaf_arena *a) {
    for (chunk *c = a->first; c; c = c->next) c->used = 0;
    a->current = a->first;
    a->tensors = a->last_tensor = NULL;
    a->used = 0;
    a->error.status = SHEAF_OK;
}

/* Makes the chunk behind `current` one that has `size` bytes free. False: out of memory. */
static bool advance(sheaf_arena *a, size_t size) {
    chunk *before = a->current;
    while (before->next && before->next->size < size) before = before->next;
    chunk *found = before->next;
    if (found) {
        before->next = found->next;
    } else {
        found = chunk_new(size > a->chunk_bytes ? size : a->chunk_bytes);
        if (!found) return false;
    }
    found->next = a->current->next;
    a->current->next = found;
    a->current = found;
    return true;
}

void *sheaf_arena_alloc(sheaf_arena *a, size_t size) {
    size_t rounded;
    if (!a) return NULL;
    if (!sheaf_align_up(size ? size : 1, ALIGN, &rounded) ||
        (a->current->size - a->current->used < rounded && !advance(a, rounded))) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_NO_MEMORY, "arena: %zu more bytes", size));
    }
    void *p = a->current->bytes + a->current->used;
    a->current->used += rounded;
    a->used += rounded;
    return memset(p, 0, rounded);
}

size_t sheaf_arena_used(const sheaf_arena *a) { return a->used; }

sheaf_status sheaf_arena_status(const sheaf_arena *a) {
    return a->error.status ? sheaf_error_restore(&a->error) : SHEAF_OK;
}

void *sheaf_arena_fail(sheaf_arena *a, sheaf_status s) {
    if (a && !a->error.status) sheaf_error_save(&a->error, s);
    return NULL;
}

sheaf_tensor *sheaf_arena_tensor(sheaf_arena *a) {
    linked_tensor *n = sheaf_arena_alloc(a, sizeof *n);
    if (!n) return NULL;
    if (a->last_tensor) {
        a->last_tensor->next = n;
    } else {
        a->tensors = n;
    }
    a->last_tensor = n;
    n->tensor.index = -1;
    return &n->tensor;
}

sheaf_tensor *sheaf_arena_next(const sheaf_arena *a, const sheaf_tensor *previous) {
    linked_tensor *n = a->tensors;
    if (previous) n = ((const linked_tensor *)((const char *)previous - offsetof(linked_tensor, tensor)))->next;
    return n ? &n->tensor : NULL;
}

sheaf_tensor *sheaf_arena_find(const sheaf_arena *a, const char *name) {
    for (linked_tensor *n = a->tensors; n; n = n->next) {
        if (strcmp(n->tensor.name, name) == 0) return &n->tensor;
    }
    return NULL;
}
