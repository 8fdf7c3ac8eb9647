/* reshard: writes the items of the plan: every node in graph order, and before it whatever turns its sources
 * into what its rule asked for.
 *
 *     have      want       items
 *     PARTIAL   MIRRORED   sum
 *     PARTIAL   AXIS       sum, slice
 *     AXIS      MIRRORED   gather
 *     AXIS      AXIS       slice where each device holds enough, else gather, slice
 *     MIRRORED  AXIS       slice
 *
 * A conversion is made once: later readers that want the same find it among the slot's values. A write into
 * a tensor forgets the conversions of all that lies in it. Sums are not reshards: they are what row-parallel
 * matmuls cost; everything else is listed, and an error in strict mode. */
#include <stdio.h>
#include <string.h>

#include "meta/plan_internal.h"

static int32_t root_value(const meta_plan *p, int32_t v) { return p->values[v].root >= 0 ? p->values[v].root : v; }

/* A value of `slot` with this layout; -1. */
static int32_t find_version(const meta_plan *p, int32_t slot, const sheaf_layout *want) {
    for (int32_t v = p->first_value[slot]; v >= 0; v = p->values[v].next_version) {
        if (sheaf_layout_equal(&p->values[v].layout, want)) return v;
    }
    return -1;
}

static sheaf_status add_version(meta_plan *p, item_kind kind, int32_t from, const sheaf_layout *layout, int32_t node,
                                const char *rule, int32_t *out) {
    plan_item *item;
    int32_t slot = p->values[from].slot;
    sheaf_status s = plan_value_new(p, slot, *layout, out);
    if (!s) s = plan_item_new(p, kind, node, *out, &item);
    if (s) return s;
    item->src[0] = from;
    item->rule = rule;
    p->values[*out].home = HOME_WORK;                                    /* whatever the original's is */
    bool rounds = kind == ITEM_SUM && p->values[from].type == SHEAF_F64; /* a sum of F64 addends is F32 */
    p->values[*out].type = rounds ? SHEAF_F32 : p->values[from].type;
    p->values[from].uses++;
    p->values[p->newest_value[slot]].next_version = *out;
    p->newest_value[slot] = *out;
    return SHEAF_OK;
}

/* Keeps a reshard for --explain; in strict mode it is the error. */
static sheaf_status note_reshard(meta_plan *p, int32_t from, const sheaf_layout *to, int32_t node, const char *rule) {
    const plan_value *v = &p->values[from];
    const sheaf_tensor *t = &p->slots[v->slot], *n = &p->slots[node];
    if (p->strict) {
        char a[160], b[160], shape[64], nshape[64];
        return sheaf_fail(SHEAF_E_MISMATCH, "strict: %s %s %s: source %s %s is %s, rule '%s' wants %s",
                          sheaf_op_name(n->op), n->name, sheaf_shape_text(n, nshape, sizeof nshape), t->name,
                          sheaf_shape_text(t, shape, sizeof shape), sheaf_layout_text(&v->layout, a, sizeof a), rule,
                          sheaf_layout_text(to, b, sizeof b));
    }
    if (!plan_grow(p->arena, (void **)&p->reshards, p->n_reshards, &p->reshards_capacity, sizeof *p->reshards)) {
        return sheaf_arena_status(p->arena);
    }
    p->reshards[p->n_reshards++] =
        (sheaf_plan_reshard){t->name, n->name, n->op, v->layout, *to, plan_payload(p, v), rule};
    return SHEAF_OK;
}

/* The value of v's slot that is laid out as `want`, made if it is not there. */
static sheaf_status convert(meta_plan *p, int32_t v, const sheaf_layout *want, int32_t node, const char *rule,
                            int32_t *out) {
    const sheaf_layout mirrored = sheaf_layout_mirrored();
    int32_t slot = p->values[v].slot, whole = v;
    sheaf_status s = SHEAF_OK;
    *out = find_version(p, slot, want);
    if (*out >= 0) return SHEAF_OK;
    sheaf_layout have = p->values[v].layout;
    bool local = have.kind != SHEAF_PARTIAL && sheaf_layout_covers(&have, want, p->n_world);
    if (have.kind != SHEAF_PARTIAL && have.kind != SHEAF_MIRRORED) s = note_reshard(p, v, want, node, rule);
    if (s) return s;
    if (have.kind != SHEAF_MIRRORED && !local) {
        whole = find_version(p, slot, &mirrored);
        item_kind kind = have.kind == SHEAF_PARTIAL ? ITEM_SUM : ITEM_GATHER;
        if (whole < 0) s = add_version(p, kind, v, &mirrored, node, rule, &whole);
        if (s) return s;
    }
    *out = whole;
    if (sheaf_layout_equal(&p->values[whole].layout, want)) return SHEAF_OK;
    return add_version(p, ITEM_SLICE, whole, want, node, rule, out);
}

/* After a write into value `written` of a root: other copies of it, and conversions of its views, say what was and
 * not what is. A view over such a copy is made again when it is next read. */
static void forget_copies(meta_plan *p, int32_t root_slot, int32_t written) {
    int32_t primary = p->first_value[root_slot];
    for (int32_t i = 0; i < p->n_slots; i++) {
        if (p->first_value[i] < 0 || (i != root_slot && p->root_slot[i] != root_slot)) continue;
        int32_t v = p->first_value[i];
        p->values[v].next_version = -1;
        p->newest_value[i] = v;
        if (i != root_slot) p->stale[i] = p->values[v].root != primary && p->values[v].root != written;
    }
    if (written == primary) return;
    p->values[primary].next_version = written;
    p->values[written].next_version = -1;
    p->newest_value[root_slot] = written;
}

static bool writes_root(sheaf_op op) { return op == SHEAF_OP_CPY || op == SHEAF_OP_SET_ROWS || op == SHEAF_OP_FILL; }

static int into_of(sheaf_op op) { return op == SHEAF_OP_CPY ? 1 : 0; }

/* The root in the form that the rule of a view or writer wants. */
static sheaf_status convert_root(meta_plan *p, int32_t slot, int32_t *out) {
    const sheaf_rule_result *r = &p->rules[slot];
    int32_t root = p->first_value[p->root_slot[slot]];
    *out = root;
    if (!r->reshard_root) return SHEAF_OK;
    return convert(p, root, &r->want_root, slot, r->rule, out);
}

/* A view (or what a writer left behind, which is one) over the root as it is now. */
static sheaf_status write_view(meta_plan *p, int32_t slot) {
    int32_t root, out;
    plan_item *item;
    sheaf_status s = convert_root(p, slot, &root);
    if (!s) s = plan_value_new(p, slot, p->rules[slot].result, &out);
    if (!s) s = plan_item_new(p, ITEM_NODE, slot, out, &item);
    if (s) return s;
    item->root = root;
    item->as_view = true;
    item->rule = p->rules[slot].rule;
    p->values[root].uses++;
    p->values[out].root = root_value(p, root);
    p->values[out].home = HOME_VIEW;
    p->first_value[slot] = p->newest_value[slot] = out;
    p->stale[slot] = false;
    return SHEAF_OK;
}

static sheaf_status convert_sources(meta_plan *p, int32_t slot, int32_t out[SHEAF_MAX_SRC]) {
    const sheaf_rule_result *r = &p->rules[slot];
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        int32_t from = p->src_slot[slot * SHEAF_MAX_SRC + j];
        out[j] = -1;
        if (from < 0) continue;
        /* what is written into is described by the root */
        bool into =
            writes_root(p->slots[slot].op) &&
            (from == p->root_slot[slot] || (p->root_slot[from] >= 0 && p->root_slot[from] == p->root_slot[slot])) &&
            j == into_of(p->slots[slot].op);
        if (into) continue;
        sheaf_status s = p->stale[from] ? write_view(p, from) : SHEAF_OK;
        out[j] = p->first_value[from];
        if (!s && r->reshard[j]) s = convert(p, out[j], &r->want[j], slot, r->rule, &out[j]);
        if (s) return s;
    }
    return SHEAF_OK;
}

/* The gathered copy was written: each device keeps its part of it. */
static sheaf_status write_cut_back(meta_plan *p, int32_t slot, int32_t written) {
    plan_item *item;
    int32_t primary = p->first_value[p->root_slot[slot]];
    sheaf_status s = plan_item_new(p, ITEM_CUT_BACK, slot, primary, &item);
    if (s) return s;
    item->src[0] = written;
    item->rule = p->rules[slot].rule;
    p->values[written].uses++;
    return SHEAF_OK;
}

static sheaf_status write_node(meta_plan *p, int32_t slot) {
    int32_t src[SHEAF_MAX_SRC], root = -1, out;
    plan_item *item;
    const sheaf_rule_result *r = &p->rules[slot];
    sheaf_op op = p->slots[slot].op;
    if (sheaf_op_is_header(op)) return write_view(p, slot);
    sheaf_status s = p->root_slot[slot] >= 0 ? convert_root(p, slot, &root) : SHEAF_OK;
    if (!s) s = convert_sources(p, slot, src);
    if (!s) s = plan_value_new(p, slot, r->result, &out);
    if (!s) s = plan_item_new(p, ITEM_NODE, slot, out, &item);
    if (s) return s;
    memcpy(item->src, src, sizeof src);
    item->root = root;
    item->lowering = r->lowering;
    item->rule = r->rule;
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        if (src[j] >= 0) p->values[src[j]].uses++;
    }
    p->first_value[slot] = p->newest_value[slot] = out;
    if (root < 0) return SHEAF_OK;
    p->values[root].uses++;
    p->values[out].root = root_value(p, root);
    p->values[out].home = HOME_VIEW;
    forget_copies(p, p->root_slot[slot], root);
    return root == p->first_value[p->root_slot[slot]] ? SHEAF_OK : write_cut_back(p, slot, root);
}

/* What crosses the border must be readable: no addends, and in a world of many processes no parts. */
static sheaf_status finish_crossings(meta_plan *p) {
    const sheaf_layout mirrored = sheaf_layout_mirrored();
    for (int32_t i = p->n_leafs; i < p->n_slots; i++) {
        if (!crosses(&p->slots[i])) continue;
        int32_t v = p->first_value[i];
        bool partial = p->values[v].layout.kind == SHEAF_PARTIAL;
        bool apart = p->n_world > p->n_local && p->values[v].layout.kind == SHEAF_AXIS &&
                     !(p->slots[i].flags & SHEAF_FLAG_APART);
        if (!partial && !apart) continue;
        if (partial && p->slots[i].type == SHEAF_F64)
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: a sum that is not rounded cannot be read", p->slots[i].name);
        int32_t out = find_version(p, i, &mirrored);
        sheaf_status s = SHEAF_OK;
        if (out < 0)
            s = add_version(p, partial ? ITEM_SUM : ITEM_GATHER, v, &mirrored, i,
                            partial ? "summed to be read" : "gathered to be read", &out);
        if (s) return s;
    }
    return SHEAF_OK;
}

sheaf_status plan_reshard(meta_plan *p) {
    p->stale = sheaf_arena_alloc(p->arena, (size_t)p->n_slots * sizeof *p->stale + 1);
    if (!p->stale) return sheaf_arena_status(p->arena);
    for (int32_t i = 0; i < p->n_slots; i++) p->first_value[i] = p->newest_value[i] = -1;
    for (int32_t i = 0; i < p->n_leafs; i++) {
        int32_t v;
        sheaf_status s = plan_value_new(p, i, p->layout[i], &v);
        if (s) return s;
        p->first_value[i] = p->newest_value[i] = v;
    }
    for (int32_t i = p->n_leafs; i < p->n_slots; i++) {
        sheaf_status s = write_node(p, i);
        if (s) return s;
    }
    return finish_crossings(p);
}
