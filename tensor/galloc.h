/* Planning memory: a linear allocator for weights and a graph allocator for what a graph computes.
 *
 * Both plan first and touch memory after: a plan is offsets in numbered *arenas* (one per buffer
 * type; an arena is cut into *chunks* where the buffer type limits one allocation). Nothing here
 * knows a backend: what an allocation costs comes in as `sheaf_galloc_type`, real memory goes out as
 * sizes, and whoever owns buffers stamps addresses.
 *
 *     sheaf_galloc_new(types, n_types, &ga);
 *     sheaf_galloc_reserve(ga, graph, arena_of_slot, keep, n);   // worst case; sizes only ever grow
 *     bytes = sheaf_galloc_chunk_bytes(ga, 0, 0);          // -> allocate real buffers
 *     sheaf_galloc_assign(ga, graph, arena_of_slot, keep, n);    // replay, or SHEAF_E_RANGE: reserve again
 *     where = sheaf_galloc_place(ga, slot);                // arena, chunk, offset
 */
#ifndef SHEAF_TENSOR_GALLOC_H
#define SHEAF_TENSOR_GALLOC_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the allocator must know of a buffer type. */
typedef struct sheaf_galloc_type {
    size_t alignment; /* a power of two */
    size_t max_size;  /* largest single chunk; 0: no limit */
    /* Bytes this tensor takes in such memory, before alignment; NULL: sheaf_nbytes. */
    size_t (*alloc_size)(void *ctx, const sheaf_tensor *t);
    void *ctx;
} sheaf_galloc_type;

typedef struct sheaf_place {
    int32_t arena; /* -1: not the allocator's to place (already has data, or a view of such) */
    int32_t chunk;
    size_t offset;
    size_t size; /* 0 for views: they lie in their root */
} sheaf_place;

/* "Keep slot `tensor` alive until node number `until_node`": what a backend's prepare reports when
 * it fuses or reorders (case C17). */
typedef struct sheaf_lifetime {
    int32_t slot;
    int32_t until_node;
} sheaf_lifetime;

typedef struct sheaf_galloc sheaf_galloc;

SHEAF_API sheaf_status sheaf_galloc_new(const sheaf_galloc_type *types, int n_types, sheaf_galloc **out);
SHEAF_API void sheaf_galloc_free(sheaf_galloc *ga);

/* Plans `g` (sealed) and grows the recorded sizes to hold it. `arena_of_slot[n_leafs + n_nodes]`
 * says which arena each slot's memory comes from; -1 leaves it out, NULL means arena 0 for all. A view
 * lies in its root, whatever its own entry says. Tensors that already have `data` are left out too.
 * Liveness over node order (a root lives as long as its views); in-place reuse where the op allows;
 * best fit; a free list without a fixed number of blocks. Outputs, and leafs that are no inputs, are
 * never reused. On failure no plan is left, but recorded sizes stay.
 * SHEAF_E_NO_SPACE: a tensor larger than its arena's max_size, or whose size wraps; _NO_MEMORY; _ARGUMENT. */
SHEAF_API sheaf_status sheaf_galloc_reserve(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot,
                                            const sheaf_lifetime *keep, int n_keep);
/* Gives each slot of `g` a place by the recorded plan: same slots, ops and wiring, nothing larger than its slot was,
 * nothing to be kept longer than it was planned to live (a backend may run one token otherwise than many). Allocates
 * nothing. SHEAF_E_RANGE (no text is built) when the plan does not fit. */
SHEAF_API sheaf_status sheaf_galloc_assign(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot,
                                           const sheaf_lifetime *keep, int n_keep);
SHEAF_API sheaf_place sheaf_galloc_place(const sheaf_galloc *ga, int32_t slot);

SHEAF_API int sheaf_galloc_chunks(const sheaf_galloc *ga, int arena);
SHEAF_API size_t sheaf_galloc_chunk_bytes(const sheaf_galloc *ga, int arena, int chunk);
SHEAF_API size_t sheaf_galloc_bytes(const sheaf_galloc *ga, int arena); /* sum of chunks */
/* Asserts: no two live tensors overlap, all inside their chunk, alignments hold, lifetimes kept. */
SHEAF_API sheaf_status sheaf_galloc_check(const sheaf_galloc *ga, const sheaf_graph *g);
/* Lower bound: the peak of live bytes over node order, in one arena. */
SHEAF_API size_t sheaf_galloc_lower_bound(const sheaf_galloc *ga, int arena);

/* Linear allocator: places one tensor after another; offsets only. SHEAF_E_RANGE on a wrap (C15). */
typedef struct sheaf_linear {
    size_t used, alignment;
} sheaf_linear;
SHEAF_API sheaf_status sheaf_linear_place(sheaf_linear *l, size_t size, size_t *offset);

#ifdef __cplusplus
}
#endif
#endif
