/* resolve: the rule table over every node, in graph order. What comes out is a layout per slot and a rule
 * per node; nothing is inserted yet. */
#include "meta/plan_internal.h"

static sheaf_status copy_layout(meta_plan *p, const sheaf_layout *l, sheaf_layout *out) {
    *out = *l;
    if (l->kind != SHEAF_AXIS) return SHEAF_OK;
    return sheaf_layout_axis(p->arena, l->axis, l->runs, l->n_runs, p->n_world, out);
}

static sheaf_status resolve_node(meta_plan *p, const sheaf_rule_env *env, int32_t slot) {
    sheaf_layout src[SHEAF_MAX_SRC];
    const sheaf_tensor *t = &p->slots[slot];
    for (int j = 0; j < SHEAF_MAX_SRC; j++) {
        int32_t from = p->src_slot[slot * SHEAF_MAX_SRC + j];
        src[j] = from >= 0 ? p->layout[from] : sheaf_layout_mirrored();
    }
    const sheaf_layout *root = p->root_slot[slot] >= 0 ? &p->layout[p->root_slot[slot]] : NULL;
    sheaf_status s = sheaf_rule_apply(p->arena, env, t, src, root, &p->rules[slot]);
    if (s) return s;
    p->layout[slot] = p->rules[slot].result;
    return SHEAF_OK;
}

sheaf_status plan_resolve(meta_plan *p) {
    sheaf_rule_env env = {.n_devices = p->n_world, .lowerings = 1u << SHEAF_LOWER_LOOKUP, .reorder_sums = false};
    for (int32_t i = 0; i < p->n_leafs; i++) {
        sheaf_layout l = meta_leaf_layout(&p->slots[i]);
        sheaf_status s = copy_layout(p, &l, &p->layout[i]);
        if (s) return s;
    }
    for (int32_t i = p->n_leafs; i < p->n_slots; i++) {
        sheaf_status s = resolve_node(p, &env, i);
        if (s) return s;
    }
    return SHEAF_OK;
}
