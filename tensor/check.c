/* The graph checker: every rule of the structure, in one place. Always on in debug builds and tests.
 *
 *   1. Slots are numbered leafs first, and each tensor knows its slot.
 *   2. A node has an operation, with at least its least number of sources. (A leaf may have one:
 *      another graph computed it; its sources and root may then be outside.)
 *   3. Sources of a node are in the graph, before it.
 *   4. The root of a node that is a view is in the graph, before it, is no view itself, and contains its bytes.
 *   5. Sizes are not negative and types known; shapes and strides do not wrap.
 *   6. Use counts are what the nodes read.
 *
 * Does not check that shapes fit an operation: constructors did, and shards of a plan have shapes
 * of their own. */
#include "tensor/ops_internal.h"

#include <string.h>

static sheaf_status broken(const sheaf_tensor *t, int32_t slot, const char *rule) {
    return sheaf_fail(SHEAF_E_INTERNAL, "graph: slot %d, %s '%s': %s", (int)slot, sheaf_op_name(t->op), t->name, rule);
}

static int least_sources(sheaf_op op) {
    static const int table[SHEAF_OP_COUNT] = {
#define X(name, text, nsrc) nsrc,
        SHEAF_OP_TABLE(X)
#undef X
    };
    return table[op];
}

/* Is `s` in the graph, before `slot`? */
static bool is_before(const sheaf_graph *g, const sheaf_tensor *s, int32_t slot) {
    return s->index >= 0 && s->index < slot && sheaf_graph_slot(g, s->index) == s;
}

static sheaf_status check_tensor(const sheaf_graph *g, const sheaf_tensor *t, int32_t slot) {
    size_t bytes, root_bytes, end;
    if (t->index != slot) return broken(t, slot, "its index is another slot");
    if ((unsigned)t->op >= SHEAF_OP_COUNT) return broken(t, slot, "its operation is unknown");
    if (!sheaf_type_valid(t->type)) return broken(t, slot, "its type is unknown");
    if (!sheaf_extent(t->type, t->ne, t->nb, &bytes)) return broken(t, slot, "its shape or strides wrap");
    if (slot < g->n_leafs) return SHEAF_OK;
    if (t->op == SHEAF_OP_NONE) return broken(t, slot, "a node has an operation");
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (!t->src[j] && j < least_sources(t->op)) return broken(t, slot, "a source is missing");
        if (t->src[j] && !is_before(g, t->src[j], slot)) return broken(t, slot, "a source does not come before it");
    }
    if (!t->view_src) return SHEAF_OK;
    if (t->view_src->view_src) return broken(t, slot, "its root is a view");
    if (!is_before(g, t->view_src, slot)) return broken(t, slot, "its root does not come before it");
    root_bytes = sheaf_nbytes(t->view_src);
    if (sheaf_add_overflow(t->view_offs, bytes, &end) || end > root_bytes) return broken(t, slot, "it leaves its root");
    return SHEAF_OK;
}

static sheaf_status check_uses(const sheaf_graph *g) {
    for (int32_t slot = 0; slot < g->n_leafs + g->n_nodes; slot++) {
        const sheaf_tensor *t = sheaf_graph_slot(g, slot);
        int32_t uses = 0;
        /* Quadratic, and meant for graphs of tests and debug builds; the count is kept by slot
         * elsewhere, so that this is a second way to reach the same numbers. */
        for (int32_t i = 0; i < g->n_nodes; i++) {
            for (int j = 0; j < SHEAF_MAX_SRC; j++) uses += g->nodes[i]->src[j] == t;
        }
        if (uses != g->use_counts[slot]) return broken(t, slot, "its use count is wrong");
    }
    return SHEAF_OK;
}

sheaf_status sheaf_graph_check(const sheaf_graph *g) {
    if (!g->use_counts) return sheaf_fail(SHEAF_E_INTERNAL, "graph: not sealed");
    for (int32_t slot = 0; slot < g->n_leafs + g->n_nodes; slot++) {
        sheaf_status s = check_tensor(g, sheaf_graph_slot(g, slot), slot);
        if (s) return s;
    }
    return check_uses(g);
}
