/* The checker of a memory plan. It finds lifetimes its own way (for each pair of slots, who reads
 * whom) so that a mistake in galloc.c's walk is not repeated here. Quadratic: for tests and debug.
 *
 *   1. Every place is aligned and inside its chunk.
 *   2. Two tensors whose lives meet do not share bytes, unless one took the other's over in place at
 *      the very node where the other was last read.
 *   3. What must be kept is kept: outputs, leafs that are no inputs, lifetimes asked for.
 *   4. Free lists are well-formed. */
#include "tensor/galloc_internal.h"

static sheaf_status broken(const sheaf_graph *g, int32_t i, const char *rule) {
    const sheaf_tensor *t = sheaf_graph_slot(g, i);
    return sheaf_fail(SHEAF_E_INTERNAL, "memory plan: slot %d, %s '%s': %s", (int)i, sheaf_op_name(t->op), t->name,
                      rule);
}

static bool touches(const sheaf_tensor *node, const sheaf_tensor *root) {
    if (sheaf_op_is_header(node->op)) return false;
    if (sheaf_root((sheaf_tensor *)node) == root) return true;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (node->src[j] && sheaf_root(node->src[j]) == root) return true;
    }
    return false;
}

/* Last node that may look at slot `i`'s bytes. */
static int32_t last_touch(const sheaf_galloc *ga, const sheaf_graph *g, int32_t i) {
    sheaf_tensor *root = sheaf_graph_slot(g, i);
    if (i < g->n_leafs && !(root->flags & SHEAF_FLAG_INPUT)) return FOR_EVER;
    for (int32_t j = 0; j < ga->n_slots; j++) {
        sheaf_tensor *t = sheaf_graph_slot(g, j);
        if (sheaf_root(t) == root && (t->flags & SHEAF_FLAG_OUTPUT)) return FOR_EVER;
    }
    int32_t last = i < g->n_leafs ? BEFORE_ALL : i - g->n_leafs;
    for (int32_t n = g->n_nodes - 1; n > last; n--) {
        if (touches(g->nodes[n], root)) last = n;
    }
    return ga->slots[i].until > last ? ga->slots[i].until : last;
}

static int32_t birth(const sheaf_graph *g, int32_t i) { return i < g->n_leafs ? BEFORE_ALL : i - g->n_leafs; }

static bool share_bytes(const sheaf_place *x, const sheaf_place *y) {
    return x->arena == y->arena && x->chunk == y->chunk && x->offset < y->offset + y->size &&
           y->offset < x->offset + x->size;
}

static sheaf_status check_place(const sheaf_galloc *ga, const sheaf_graph *g, int32_t i) {
    const sheaf_place *p = &ga->slots[i].place;
    if (p->arena >= ga->n_pools) return broken(g, i, "its arena does not exist");
    const pool *a = &ga->pools[p->arena];
    if (p->chunk < 0 || p->chunk >= a->n_chunks) return broken(g, i, "its chunk does not exist");
    if (p->offset % a->type.alignment != 0) return broken(g, i, "it is not aligned");
    if (p->offset + p->size > a->chunks[p->chunk].high) return broken(g, i, "it leaves its chunk");
    return SHEAF_OK;
}

/* `i` is born before (or with) `j`. */
static sheaf_status check_pair(const sheaf_galloc *ga, const sheaf_graph *g, int32_t i, int32_t j, int32_t last_i) {
    if (last_i < birth(g, j)) return SHEAF_OK;
    if (!share_bytes(&ga->slots[i].place, &ga->slots[j].place)) return SHEAF_OK;
    if (ga->slots[j].takes_over == i && last_i == birth(g, j) && sheaf_op_can_inplace(sheaf_graph_slot(g, j)->op)) {
        return SHEAF_OK;
    }
    return broken(g, j,
                  sheaf_graph_slot(g, i)->name[0] ? sheaf_graph_slot(g, i)->name
                                                  : "it overlaps a tensor that is still read");
}

sheaf_status sheaf_galloc_check(const sheaf_galloc *ga, const sheaf_graph *g) {
    if (!ga->planned || ga->n_slots != g->n_leafs + g->n_nodes) {
        return sheaf_fail(SHEAF_E_INTERNAL, "memory plan: none for this graph");
    }
    for (int32_t i = 0; i < ga->n_slots; i++) {
        if (ga->slots[i].size == 0) continue;
        sheaf_status s = check_place(ga, g, i);
        if (s) return s;
        int32_t last = last_touch(ga, g, i);
        for (int32_t j = i + 1; j < ga->n_slots; j++) {
            if (ga->slots[j].size == 0) continue;
            if ((s = check_pair(ga, g, i, j, last))) return s;
        }
    }
    for (int32_t k = 0; k < ga->n_pools; k++) {
        for (int32_t c = 0; c < ga->pools[k].n_used; c++) {
            const char *wrong = sheaf_freelist_check(&ga->pools[k].chunks[c].free);
            if (wrong)
                return sheaf_fail(SHEAF_E_INTERNAL, "memory plan: arena %d, chunk %d: %s", (int)k, (int)c, wrong);
        }
    }
    return SHEAF_OK;
}
