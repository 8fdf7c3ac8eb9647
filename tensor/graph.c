/* Graphs: an order in which nodes can be computed, and what identifies it.
 *
 * Owns: arrays in the graph's arena (nodes, leafs, use counts, the set of tensors met, the work
 * stack). They grow by doubling; what they outgrow stays in the arena until its reset, so that a
 * rebuilt graph of the same size asks for the same memory again. Does not choose an order among
 * independent nodes: it is the order in which sources are named. */
#include "tensor/arena_internal.h"
#include "tensor/hash.h"

#include <string.h>

/* A tensor whose sources are being visited, and which one comes next. */
typedef struct frame {
    sheaf_tensor *t;
    int32_t next;
} frame;

/* Open addressing, power-of-two capacity, at most half full; and the scratch of a graph. */
typedef struct sheaf_hash_set {
    sheaf_tensor **slots;
    uint32_t capacity, count;
    frame *stack;
    int32_t stack_capacity;
    int32_t uses_capacity;
} hash_set;

enum { FIRST_STACK = 64 };

/* --- growing arrays in the arena --- */

/* A copy of `old` with room for `want` items; NULL when the arena is out of memory. */
static void *regrow(sheaf_arena *a, const void *old, size_t count, size_t want, size_t item) {
    size_t bytes;
    if (sheaf_mul_overflow(want, item, &bytes)) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_NO_MEMORY, "graph: %zu items of %zu bytes", want, item));
    }
    void *fresh = sheaf_arena_alloc(a, bytes);
    if (fresh && count) memcpy(fresh, old, count * item);
    return fresh;
}

/* --- the set of tensors met --- */

static uint32_t home_of(const hash_set *set, const sheaf_tensor *t) {
    return (uint32_t)(sheaf_hash_word(SHEAF_HASH_SEED, (uint64_t)(uintptr_t)t) >> 32) & (set->capacity - 1);
}

static void put(hash_set *set, sheaf_tensor *t) {
    uint32_t i = home_of(set, t);
    while (set->slots[i]) i = (i + 1) & (set->capacity - 1);
    set->slots[i] = t;
    set->count++;
}

static bool contains(const hash_set *set, const sheaf_tensor *t) {
    for (uint32_t i = home_of(set, t); set->slots[i]; i = (i + 1) & (set->capacity - 1)) {
        if (set->slots[i] == t) return true;
    }
    return false;
}

static bool set_grow(sheaf_arena *a, hash_set *set, uint32_t capacity) {
    sheaf_tensor **old = set->slots;
    uint32_t old_capacity = set->capacity;
    sheaf_tensor **fresh = regrow(a, NULL, 0, capacity, sizeof *fresh);
    if (!fresh) return false;
    set->slots = fresh;
    set->capacity = capacity;
    set->count = 0;
    for (uint32_t i = 0; i < old_capacity; i++) {
        if (old[i]) put(set, old[i]);
    }
    return true;
}

static bool meet(sheaf_arena *a, hash_set *set, sheaf_tensor *t) {
    if (set->count >= set->capacity / 2 && !set_grow(a, set, set->capacity * 2)) return false;
    put(set, t);
    return true;
}

/* --- making --- */

sheaf_status sheaf_graph_new(sheaf_arena *a, int32_t capacity, sheaf_graph **out) {
    *out = NULL;
    if (capacity < 1 || capacity > INT32_MAX / 8) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "graph: a capacity of %d tensors", (int)capacity);
    }
    uint32_t slots = 16;
    while (slots < 4u * (uint32_t)capacity) slots *= 2;
    sheaf_graph *g = sheaf_arena_alloc(a, sizeof *g);
    hash_set *set = g ? sheaf_arena_alloc(a, sizeof *set) : NULL;
    if (!set) return sheaf_arena_status(a);
    g->arena = a;
    g->visited = set;
    g->capacity = capacity;
    g->nodes = regrow(a, NULL, 0, (size_t)capacity, sizeof *g->nodes);
    g->leafs = g->nodes ? regrow(a, NULL, 0, (size_t)capacity, sizeof *g->leafs) : NULL;
    set->stack = g->leafs ? regrow(a, NULL, 0, FIRST_STACK, sizeof *set->stack) : NULL;
    set->stack_capacity = FIRST_STACK;
    if (!set->stack || !set_grow(a, set, slots)) return sheaf_arena_status(a);
    *out = g;
    return SHEAF_OK;
}

static bool reserve_one(sheaf_graph *g) {
    if (g->n_nodes < g->capacity && g->n_leafs < g->capacity) return true;
    size_t want = 2 * (size_t)g->capacity;
    if (want > INT32_MAX / 8) {
        return sheaf_arena_fail(g->arena, sheaf_fail(SHEAF_E_RANGE, "graph: more than %d tensors", INT32_MAX / 8));
    }
    sheaf_tensor **nodes = regrow(g->arena, g->nodes, (size_t)g->n_nodes, want, sizeof *nodes);
    sheaf_tensor **leafs = nodes ? regrow(g->arena, g->leafs, (size_t)g->n_leafs, want, sizeof *leafs) : NULL;
    if (!leafs) return false;
    g->nodes = nodes;
    g->leafs = leafs;
    g->capacity = (int32_t)want;
    return true;
}

static bool append(sheaf_graph *g, sheaf_tensor *t, bool as_leaf) {
    if (!reserve_one(g)) return false;
    if (as_leaf) {
        g->leafs[g->n_leafs++] = t;
    } else {
        g->nodes[g->n_nodes++] = t;
    }
    return true;
}

/* Marks `t` as met and puts it on the stack of tensors whose sources come first. */
static bool push(sheaf_graph *g, int32_t *depth, sheaf_tensor *t) {
    hash_set *set = g->visited;
    if (!meet(g->arena, set, t)) return false;
    if (*depth == set->stack_capacity) {
        frame *fresh = regrow(g->arena, set->stack, (size_t)*depth, 2 * (size_t)*depth, sizeof *fresh);
        if (!fresh) return false;
        set->stack = fresh;
        set->stack_capacity *= 2;
    }
    set->stack[(*depth)++] = (frame){t, 0};
    return true;
}

/* The next source of the frame that is not in the graph yet; the root of a view counts as one. */
static sheaf_tensor *next_source(const hash_set *set, frame *f) {
    while (f->next <= SHEAF_MAX_SRC) {
        int32_t i = f->next++;
        sheaf_tensor *s = i < SHEAF_MAX_SRC ? f->t->src[i] : f->t->view_src;
        if (s && !contains(set, s)) return s;
    }
    return NULL;
}

/* All sources of the tensor on top of the stack are in the graph: it takes its place. */
static bool add_top(sheaf_graph *g, int32_t *depth) {
    sheaf_tensor *t = g->visited->stack[--*depth].t;
    return append(g, t, t->op == SHEAF_OP_NONE);
}

sheaf_status sheaf_graph_expand(sheaf_graph *g, sheaf_tensor *t) {
    if (!t) {
        sheaf_status s = sheaf_arena_status(g->arena);
        return s ? s : sheaf_fail(SHEAF_E_ARGUMENT, "graph: a NULL tensor");
    }
    hash_set *set = g->visited;
    int32_t depth = 0;
    if (contains(set, t)) return SHEAF_OK;
    if (!push(g, &depth, t)) return sheaf_arena_status(g->arena);
    while (depth > 0) {
        sheaf_tensor *source = next_source(set, &set->stack[depth - 1]);
        bool ok = source ? push(g, &depth, source) : add_top(g, &depth);
        if (!ok) return sheaf_arena_status(g->arena);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_graph_add(sheaf_graph *g, sheaf_tensor *t, bool as_leaf) {
    if (contains(g->visited, t)) return SHEAF_OK;
    if (!meet(g->arena, g->visited, t) || !append(g, t, as_leaf)) return sheaf_arena_status(g->arena);
    return SHEAF_OK;
}

/* --- sealing --- */

static void number(sheaf_graph *g) {
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) sheaf_graph_slot(g, i)->index = i;
}

/* The slot of `s` in `g`, or -1 when its index belongs to another graph. */
static int32_t slot_of(const sheaf_graph *g, const sheaf_tensor *s) {
    if (s->index < 0 || s->index >= g->n_leafs + g->n_nodes) return -1;
    return sheaf_graph_slot(g, s->index) == s ? s->index : -1;
}

static sheaf_status outside(const sheaf_tensor *t, const sheaf_tensor *s) {
    return sheaf_fail(SHEAF_E_INTERNAL, "graph: %s '%s' reads '%s', which is not in the graph", sheaf_op_name(t->op),
                      t->name, s->name);
}

static sheaf_status count_uses(sheaf_graph *g) {
    memset(g->use_counts, 0, (size_t)(g->n_leafs + g->n_nodes) * sizeof *g->use_counts);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            sheaf_tensor *s = g->nodes[i]->src[j];
            if (!s) continue;
            int32_t slot = slot_of(g, s);
            if (slot < 0) return outside(g->nodes[i], s);
            g->use_counts[slot]++;
        }
    }
    return SHEAF_OK;
}

/* What of a tensor is structure. Names and addresses are not: two layers of one shape are one plan.
 * How a leaf came to be is not either: another graph may have computed it. */
static uint64_t hash_header(uint64_t h, const sheaf_tensor *t) {
    h = sheaf_hash_word(h, (uint64_t)t->type << 32 | t->flags);
    h = sheaf_hash_bytes(h, t->ne, sizeof t->ne);
    return sheaf_hash_bytes(h, t->nb, sizeof t->nb);
}

static uint64_t hash_node(uint64_t h, const sheaf_tensor *t) {
    h = sheaf_hash_word(hash_header(h, t), (uint64_t)t->op << 32 | (uint32_t)(t->view_src ? t->view_src->index : -1));
    h = sheaf_hash_word(h, t->view_offs);
    h = sheaf_hash_bytes(h, &t->params, sizeof t->params);
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (t->src[j]) h = sheaf_hash_word(h, (uint64_t)j << 32 | (uint32_t)t->src[j]->index);
    }
    return h;
}

sheaf_status sheaf_graph_seal(sheaf_graph *g) {
    int32_t n = g->n_leafs + g->n_nodes;
    if (g->visited->uses_capacity < n || !g->use_counts) {
        int32_t *uses = regrow(g->arena, NULL, 0, (size_t)n, sizeof *uses);
        if (!uses) return sheaf_arena_status(g->arena);
        g->use_counts = uses;
        g->visited->uses_capacity = n;
    }
    number(g);
    sheaf_status s = count_uses(g);
    if (s) return s;
    uint64_t h = sheaf_hash_word(SHEAF_HASH_SEED, (uint64_t)g->n_leafs << 32 | (uint32_t)g->n_nodes);
    for (int32_t i = 0; i < g->n_leafs; i++) h = hash_header(h, g->leafs[i]);
    for (int32_t i = 0; i < g->n_nodes; i++) h = hash_node(h, g->nodes[i]);
    g->shape_id = h;
    sheaf_graph_rebind(g);
    return SHEAF_OK;
}

void sheaf_graph_rebind(sheaf_graph *g) {
    uint64_t h = SHEAF_HASH_SEED;
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        h = sheaf_hash_word(h, (uint64_t)(uintptr_t)sheaf_graph_slot(g, i)->data);
    }
    g->bind_id = h;
}

sheaf_tensor *sheaf_graph_find(const sheaf_graph *g, const char *name) {
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        if (strcmp(sheaf_graph_slot(g, i)->name, name) == 0) return sheaf_graph_slot(g, i);
    }
    return NULL;
}
