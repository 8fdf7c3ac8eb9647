/* The graph allocator: plans who lies where, on simulated memory, and replays the plan.
 *
 * Owns: the last plan (a place per slot) and, per chunk, the most any plan has needed. Planning is
 * one walk over the nodes:
 *
 *     node n:  its result takes over its first source's bytes (in place), or the best free block;
 *              then everything whose last reader is n is given back.
 *
 * Views have no bytes of their own: a read of a view is a read of its root, so a root lives until
 * the last reader of any of its views. Leafs are there before the first node; those that are not
 * inputs, and everything marked OUTPUT (itself or a view of it), live for ever.
 *
 * A plan fits another graph if it is wired alike and nothing is larger. Wiring (which slot reads
 * which, and which op) is compared by hash, since equal sizes alone would let a plan be replayed on
 * a graph with other lifetimes.
 *
 * Deliberately not here: real memory, addresses, and any search for a better order of nodes. */
#include "tensor/galloc_internal.h"
#include "tensor/hash.h"

#include <stdio.h>
#include <string.h>

/* --- making and freeing --- */

sheaf_status sheaf_galloc_new(const sheaf_galloc_type *types, int n_types, sheaf_galloc **out) {
    *out = NULL;
    if (n_types < 1) return sheaf_fail(SHEAF_E_ARGUMENT, "graph allocator: %d buffer types", n_types);
    for (int i = 0; i < n_types; i++) {
        size_t unused;
        if (!sheaf_align_up(0, types[i].alignment, &unused)) {
            return sheaf_fail(SHEAF_E_ARGUMENT, "graph allocator: alignment %zu is no power of two",
                              types[i].alignment);
        }
    }
    sheaf_galloc *ga = sheaf_calloc(1, sizeof *ga);
    if (!ga) goto no_galloc;
    ga->pools = sheaf_calloc((size_t)n_types, sizeof *ga->pools);
    if (!ga->pools) goto no_pools;
    ga->n_pools = n_types;
    for (int i = 0; i < n_types; i++) ga->pools[i].type = types[i];
    *out = ga;
    return SHEAF_OK;

no_pools:
    sheaf_free(ga);
no_galloc:
    return sheaf_fail(SHEAF_E_NO_MEMORY, "graph allocator: out of memory");
}

void sheaf_galloc_free(sheaf_galloc *ga) {
    if (!ga) return;
    for (int32_t i = 0; i < ga->n_pools; i++) {
        for (int32_t c = 0; c < ga->pools[i].n_chunks; c++) sheaf_freelist_free(&ga->pools[i].chunks[c].free);
        sheaf_free(ga->pools[i].chunks);
    }
    sheaf_free(ga->pools);
    sheaf_free(ga->slots);
    sheaf_free(ga->dead);
    sheaf_free(ga);
}

/* --- simulated memory --- */

static sheaf_status no_memory(void) { return sheaf_fail(SHEAF_E_NO_MEMORY, "graph allocator: planning"); }

/* Bytes of `t` in this arena: never 0, so that each tensor has an address of its own (case A15).
 * False: they wrap (case C15). */
static bool padded_size(const pool *a, const sheaf_tensor *t, size_t *size) {
    size_t bytes = a->type.alloc_size ? a->type.alloc_size(a->type.ctx, t) : sheaf_nbytes(t);
    return sheaf_align_up(bytes ? bytes : 1, a->type.alignment, size) && *size <= PTRDIFF_MAX;
}

/* The most a chunk may hold, in whole alignment units. */
static size_t chunk_limit(const pool *a) {
    size_t limit = a->type.max_size ? a->type.max_size : PTRDIFF_MAX;
    return limit & ~(a->type.alignment - 1);
}

/* Starts one more chunk of the current plan. */
static sheaf_status use_chunk(pool *a) {
    if (a->n_used == a->capacity) {
        int32_t capacity = a->capacity ? 2 * a->capacity : 4;
        chunk *fresh = sheaf_realloc(a->chunks, (size_t)capacity * sizeof *fresh);
        if (!fresh) return no_memory();
        memset(fresh + a->capacity, 0, (size_t)(capacity - a->capacity) * sizeof *fresh);
        a->chunks = fresh;
        a->capacity = capacity;
    }
    chunk *c = &a->chunks[a->n_used];
    if (!sheaf_freelist_reset(&c->free, chunk_limit(a))) return no_memory();
    c->end = 0;
    a->n_used++;
    if (a->n_chunks < a->n_used) a->n_chunks = a->n_used;
    return SHEAF_OK;
}

/* Best fit: the block that holds `size` with the least growth of its chunk, then with the least
 * bytes left over. Ties: first chunk, lowest offset, so that a plan depends on nothing but the graph. */
static bool find_block(const pool *a, size_t size, int32_t *chunk_out, int32_t *block_out) {
    size_t best_growth = SIZE_MAX, best_rest = SIZE_MAX;
    for (int32_t c = 0; c < a->n_used; c++) {
        const chunk *k = &a->chunks[c];
        for (int32_t i = 0; i < k->free.count; i++) {
            const sheaf_free_block *b = &k->free.blocks[i];
            if (b->size < size) continue;
            size_t end = b->offset + size, growth = end > k->end ? end - k->end : 0, rest = b->size - size;
            if (growth < best_growth || (growth == best_growth && rest < best_rest)) {
                best_growth = growth, best_rest = rest;
                *chunk_out = c, *block_out = i;
            }
        }
    }
    return best_growth != SIZE_MAX;
}

static sheaf_status place_new(pool *a, int32_t number, const sheaf_tensor *t, size_t size, sheaf_place *place) {
    int32_t c = 0, block = 0;
    if (size > chunk_limit(a)) {
        return sheaf_fail(SHEAF_E_NO_SPACE, "graph allocator: '%s' needs %zu bytes, one allocation holds at most %zu",
                          t->name, size, a->type.max_size);
    }
    if (!find_block(a, size, &c, &block)) {
        sheaf_status s = use_chunk(a);
        if (s) return s;
        c = a->n_used - 1, block = 0;
    }
    chunk *k = &a->chunks[c];
    *place = (sheaf_place){.arena = number, .chunk = c, .size = size};
    place->offset = sheaf_freelist_take(&k->free, block, size);
    if (place->offset + size > k->end) k->end = place->offset + size;
    a->live += size;
    if (a->live > a->peak) a->peak = a->live;
    return SHEAF_OK;
}

static sheaf_status give_back(sheaf_galloc *ga, const slot *s) {
    pool *a = &ga->pools[s->place.arena];
    if (!sheaf_freelist_give(&a->chunks[s->place.chunk].free, s->place.offset, s->size)) return no_memory();
    a->live -= s->size;
    return SHEAF_OK;
}

/* --- what the graph says: roots, lifetimes, wiring --- */

int32_t sheaf_galloc_root_slot(const sheaf_graph *g, sheaf_tensor *t) {
    sheaf_tensor *root = sheaf_root(t);
    if (root->index < 0 || root->index >= g->n_leafs + g->n_nodes) return -1;
    return sheaf_graph_slot(g, root->index) == root ? root->index : -1;
}

bool sheaf_galloc_can_take_over(const sheaf_graph *g, sheaf_tensor *t) {
    sheaf_tensor *x = t->src[0];
    if (!sheaf_op_can_inplace(t->op) || t->view_src || !x) return false;
    sheaf_tensor *root = sheaf_root(x);
    /* All of the root, element for element: a part would leave the rest unreadable for nobody's
     * gain, and other strides would write where another element is still to be read. */
    if (x->type != t->type || !sheaf_same_shape(x, t) || !sheaf_is_contiguous(x)) return false;
    if (sheaf_nbytes(x) != sheaf_nbytes(root)) return false;
    for (int j = 1; j < SHEAF_MAX_SRC; j++) {
        if (t->src[j] && sheaf_root(t->src[j]) == root) return false;
    }
    return sheaf_galloc_root_slot(g, x) >= 0;
}

static uint64_t wiring_of(const sheaf_graph *g) {
    uint64_t h = sheaf_hash_word(SHEAF_HASH_SEED, (uint64_t)g->n_leafs << 32 | (uint32_t)g->n_nodes);
    for (int32_t i = 0; i < g->n_leafs; i++) h = sheaf_hash_word(h, g->leafs[i]->flags);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        sheaf_tensor *t = g->nodes[i];
        h = sheaf_hash_word(h, (uint64_t)t->op << 32 | t->flags);
        h = sheaf_hash_word(h, (uint64_t)(uint32_t)(t->view_src ? sheaf_galloc_root_slot(g, t) : -1));
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (t->src[j]) h = sheaf_hash_word(h, (uint64_t)j << 32 | (uint32_t)t->src[j]->index);
        }
    }
    return h;
}

static void touch(sheaf_galloc *ga, int32_t root, int32_t node) {
    if (root >= 0 && ga->slots[root].last < node) ga->slots[root].last = node;
}

/* Fills root and last of every slot. A header-only node touches nothing: its readers do. */
static void find_lifetimes(sheaf_galloc *ga, const sheaf_graph *g) {
    for (int32_t i = 0; i < ga->n_slots; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        int32_t root = sheaf_galloc_root_slot(g, t);
        ga->slots[i].root = root;
        if (i < g->n_leafs && !(t->flags & SHEAF_FLAG_INPUT)) touch(ga, root, FOR_EVER);
        if (t->flags & SHEAF_FLAG_OUTPUT) touch(ga, root, FOR_EVER);
    }
    for (int32_t n = 0; n < g->n_nodes; n++) {
        sheaf_tensor *t = g->nodes[n];
        if (sheaf_op_is_header(t->op)) continue;
        touch(ga, ga->slots[g->n_leafs + n].root, n);
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            if (t->src[j]) touch(ga, ga->slots[t->src[j]->index].root, n);
        }
    }
}

static sheaf_status keep_alive(sheaf_galloc *ga, const sheaf_lifetime *keep, int n_keep) {
    for (int i = 0; i < n_keep; i++) {
        if (keep[i].slot < 0 || keep[i].slot >= ga->n_slots) {
            return sheaf_fail(SHEAF_E_ARGUMENT, "graph allocator: keep slot %d of %d", (int)keep[i].slot,
                              (int)ga->n_slots);
        }
        int32_t root = ga->slots[keep[i].slot].root;
        if (root < 0) continue;
        if (ga->slots[root].until < keep[i].until_node) ga->slots[root].until = keep[i].until_node;
        touch(ga, root, keep[i].until_node);
    }
    return SHEAF_OK;
}

/* --- planning --- */

static sheaf_status make_room(sheaf_galloc *ga, const sheaf_graph *g) {
    int32_t n = g->n_leafs + g->n_nodes;
    if (ga->slot_capacity < n) {
        slot *fresh = sheaf_realloc(ga->slots, (size_t)n * sizeof *fresh);
        if (!fresh) return no_memory();
        ga->slots = fresh;
        ga->slot_capacity = n;
    }
    if (ga->dead_capacity < g->n_nodes) {
        int32_t *fresh = sheaf_realloc(ga->dead, (size_t)g->n_nodes * sizeof *fresh);
        if (!fresh) return no_memory();
        ga->dead = fresh;
        ga->dead_capacity = g->n_nodes;
    }
    return SHEAF_OK;
}

static void start_plan(sheaf_galloc *ga, const sheaf_graph *g) {
    ga->n_slots = g->n_leafs + g->n_nodes;
    ga->n_leafs = g->n_leafs;
    ga->wiring = wiring_of(g);
    for (int32_t i = 0; i < ga->n_slots; i++) {
        ga->slots[i] = (slot){.place = {.arena = -1},
                              .root = -1,
                              .last = BEFORE_ALL,
                              .until = BEFORE_ALL,
                              .takes_over = -1,
                              .next_dead = -1};
    }
    for (int32_t n = 0; n < g->n_nodes; n++) ga->dead[n] = -1;
    for (int32_t i = 0; i < ga->n_pools; i++) {
        ga->pools[i].n_used = 0;
        ga->pools[i].live = ga->pools[i].peak = 0;
    }
}

/* The arena whose memory slot `i` itself needs, or -1: a view, already placed, or left out. */
static int32_t arena_for(const sheaf_galloc *ga, const sheaf_tensor *t, const int32_t *arena_of_slot, int32_t i) {
    int32_t arena = arena_of_slot ? arena_of_slot[i] : 0;
    if (t->view_src || t->data || arena < 0 || arena >= ga->n_pools) return -1;
    return arena;
}

/* Queues slot `i` to be given back after its last node. */
static void dies(sheaf_galloc *ga, int32_t i, int32_t n_nodes) {
    slot *s = &ga->slots[i];
    if (s->last < 0 || s->last >= n_nodes) return;
    s->next_dead = ga->dead[s->last];
    ga->dead[s->last] = i;
}

static bool take_over(sheaf_galloc *ga, const sheaf_graph *g, int32_t i, int32_t arena, size_t size) {
    sheaf_tensor *t = sheaf_graph_slot(g, i);
    if (!sheaf_galloc_can_take_over(g, t)) return false;
    int32_t from = ga->slots[t->src[0]->index].root;
    slot *s = &ga->slots[i], *old = &ga->slots[from];
    if (old->size != size || old->place.arena != arena || old->last != i - g->n_leafs) return false;
    s->place = old->place;
    s->takes_over = from;
    return true;
}

static sheaf_status plan_slot(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot, int32_t i) {
    sheaf_tensor *t = sheaf_graph_slot(g, i);
    int32_t number = arena_for(ga, t, arena_of_slot, i);
    if (number < 0) return SHEAF_OK;
    slot *s = &ga->slots[i];
    if (!padded_size(&ga->pools[number], t, &s->size)) {
        s->size = 0;
        return sheaf_fail(SHEAF_E_NO_SPACE, "graph allocator: the size of '%s' wraps", t->name);
    }
    if (!take_over(ga, g, i, number, s->size)) {
        sheaf_status failed = place_new(&ga->pools[number], number, t, s->size, &s->place);
        if (failed) return failed;
    }
    dies(ga, i, g->n_nodes);
    return SHEAF_OK;
}

/* Gives back what dies at node `n`, unless node n itself took it over. */
static sheaf_status bury(sheaf_galloc *ga, int32_t n) {
    int32_t taken = ga->slots[ga->n_leafs + n].takes_over;
    for (int32_t i = ga->dead[n]; i >= 0; i = ga->slots[i].next_dead) {
        if (i == taken) continue;
        sheaf_status s = give_back(ga, &ga->slots[i]);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* Where slot `i` lies: its own place, or its root's with the view's offset. */
static sheaf_place place_of(const sheaf_galloc *ga, const sheaf_tensor *t, int32_t i, int32_t root) {
    if (!t->view_src) return ga->slots[i].place;
    if (root < 0 || ga->slots[root].size == 0) return (sheaf_place){.arena = -1};
    sheaf_place place = ga->slots[root].place;
    place.offset += t->view_offs;
    place.size = 0;
    return place;
}

static sheaf_status plan(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot) {
    sheaf_status s;
    for (int32_t i = 0; i < g->n_leafs; i++) {
        if ((s = plan_slot(ga, g, arena_of_slot, i))) return s;
    }
    for (int32_t n = 0; n < g->n_nodes; n++) {
        if ((s = plan_slot(ga, g, arena_of_slot, g->n_leafs + n))) return s;
        if ((s = bury(ga, n))) return s;
    }
    return SHEAF_OK;
}

static void place_views(sheaf_galloc *ga, const sheaf_graph *g) {
    for (int32_t i = 0; i < ga->n_slots; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        if (t->view_src) ga->slots[i].place = place_of(ga, t, i, sheaf_galloc_root_slot(g, t));
    }
}

sheaf_status sheaf_galloc_reserve(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot,
                                  const sheaf_lifetime *keep, int n_keep) {
    ga->planned = false;
    sheaf_status s = make_room(ga, g);
    if (s) return s;
    start_plan(ga, g);
    find_lifetimes(ga, g);
    if ((s = keep_alive(ga, keep, n_keep))) return s;
    if ((s = plan(ga, g, arena_of_slot))) return s;
    place_views(ga, g);
    for (int32_t i = 0; i < ga->n_pools; i++) {
        pool *a = &ga->pools[i];
        for (int32_t c = 0; c < a->n_used; c++) {
            if (a->chunks[c].high < a->chunks[c].end) a->chunks[c].high = a->chunks[c].end;
        }
    }
    ga->planned = true;
    return SHEAF_OK;
}

/* --- replay --- */

/* Does slot `i` of `g`, planned as `s`, still fit? */
static bool fits(const sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot, int32_t i) {
    sheaf_tensor *t = sheaf_graph_slot(g, i);
    const slot *s = &ga->slots[i];
    int32_t number = arena_for(ga, t, arena_of_slot, i);
    size_t size;
    if (number < 0) return s->size == 0;
    if (s->size == 0 || s->place.arena != number) return false;
    if (!padded_size(&ga->pools[number], t, &size) || size > s->size) return false;
    return s->takes_over < 0 || sheaf_galloc_can_take_over(g, t);
}

/* Does everything live as long as it was planned to? */
static bool live_long_enough(const sheaf_galloc *ga, const sheaf_lifetime *keep, int n_keep) {
    for (int i = 0; i < n_keep; i++) {
        if (keep[i].slot < 0 || keep[i].slot >= ga->n_slots) return false;
        int32_t root = ga->slots[keep[i].slot].root;
        if (root >= 0 && ga->slots[root].last < keep[i].until_node) return false;
    }
    return true;
}

sheaf_status sheaf_galloc_assign(sheaf_galloc *ga, const sheaf_graph *g, const int32_t *arena_of_slot,
                                 const sheaf_lifetime *keep, int n_keep) {
    if (!ga->planned || g->n_leafs != ga->n_leafs || g->n_leafs + g->n_nodes != ga->n_slots) return SHEAF_E_RANGE;
    if (wiring_of(g) != ga->wiring || !live_long_enough(ga, keep, n_keep)) return SHEAF_E_RANGE;
    for (int32_t i = 0; i < ga->n_slots; i++) {
        if (!fits(ga, g, arena_of_slot, i)) return SHEAF_E_RANGE;
    }
    place_views(ga, g);
    return SHEAF_OK;
}

/* --- asking --- */

sheaf_place sheaf_galloc_place(const sheaf_galloc *ga, int32_t i) {
    if (!ga->planned || i < 0 || i >= ga->n_slots) return (sheaf_place){.arena = -1};
    return ga->slots[i].place;
}

static const pool *pool_at(const sheaf_galloc *ga, int i) { return i >= 0 && i < ga->n_pools ? &ga->pools[i] : NULL; }

int sheaf_galloc_chunks(const sheaf_galloc *ga, int i) {
    const pool *a = pool_at(ga, i);
    return a ? a->n_chunks : 0;
}

size_t sheaf_galloc_chunk_bytes(const sheaf_galloc *ga, int i, int c) {
    const pool *a = pool_at(ga, i);
    return a && c >= 0 && c < a->n_chunks ? a->chunks[c].high : 0;
}

size_t sheaf_galloc_bytes(const sheaf_galloc *ga, int i) {
    size_t sum = 0;
    for (int c = 0; c < sheaf_galloc_chunks(ga, i); c++) sum += sheaf_galloc_chunk_bytes(ga, i, c);
    return sum;
}

size_t sheaf_galloc_lower_bound(const sheaf_galloc *ga, int i) {
    const pool *a = pool_at(ga, i);
    return a ? a->peak : 0;
}

/* --- the linear allocator --- */

sheaf_status sheaf_linear_place(sheaf_linear *l, size_t size, size_t *offset) {
    size_t start, padded, end;
    if (!sheaf_align_up(l->used, l->alignment, &start) || !sheaf_align_up(size, l->alignment, &padded) ||
        sheaf_add_overflow(start, padded, &end) || end > PTRDIFF_MAX) {
        return sheaf_fail(SHEAF_E_RANGE, "placing %zu bytes behind %zu, aligned to %zu: cannot be", size, l->used,
                          l->alignment);
    }
    l->used = end;
    *offset = start;
    return SHEAF_OK;
}
