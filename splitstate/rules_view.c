/* Rules of header ops and of ops that write into a tensor that exists: their layout follows the root's. */
#include "splitstate/rules_internal.h"

#include <inttypes.h>

sheaf_status sheaf_rule_header(const rule_context *c, sheaf_rule_result *out) {
    bool fits;
    if (!c->node->view_src) return sheaf_rule_leaf(c, out); /* a NONE, or a header of nothing */
    sheaf_status s = sheaf_view_layout(c->a, c->node, c->root, c->env->n_devices, &out->result, &fits);
    if (s) return s;
    out->linear = c->root->kind == SHEAF_PARTIAL;
    out->want_root = summed(c->root);
    if (fits) return SHEAF_OK;
    out->want_root = out->result = sheaf_layout_mirrored();
    out->rule = "view across runs: gather";
    return SHEAF_OK;
}

/* The layout of what is written into; the root is gathered where the view of it cannot be cut. */
static sheaf_status into_layout(const rule_context *c, int into, sheaf_rule_result *out) {
    bool fits;
    if (!c->root) return sheaf_fail(SHEAF_E_INTERNAL, "writes into nothing");
    sheaf_status s = sheaf_view_layout(c->a, c->node, c->root, c->env->n_devices, &out->result, &fits);
    if (s) return s;
    if (!fits) {
        out->want_root = out->result = sheaf_layout_mirrored();
        out->rule = "write across runs: gather, write, cut again";
    }
    out->want[into] = out->result;
    out->writes_all_holders = out->result.kind == SHEAF_MIRRORED || !sheaf_layout_is_single(&out->result);
    return SHEAF_OK;
}

/* cpy(t, into), of one shape. */
sheaf_status sheaf_rule_copy_into(const rule_context *c, sheaf_rule_result *out) {
    sheaf_status s = into_layout(c, 1, out);
    out->want[0] = out->result;
    return s;
}

sheaf_status sheaf_rule_fill(const rule_context *c, sheaf_rule_result *out) { return into_layout(c, 0, out); }

/* set_rows(into {ne0, n_rows}, rows {ne0, n}, ids {n}): cut along dimension 0 each device writes its part of
 * every row; cut along rows each skips the ids that are not its own. */
sheaf_status sheaf_rule_set_rows(const rule_context *c, sheaf_rule_result *out) {
    sheaf_status s = into_layout(c, 0, out);
    if (s) return s;
    out->want[2] = sheaf_layout_mirrored();
    out->want[1] = is_axis(&out->result, 0) ? out->result : sheaf_layout_mirrored();
    if (!is_cut(&out->result) || out->result.axis == 0) return SHEAF_OK;
    int64_t first, length;
    bool stretches = out->result.axis == 1;
    for (int d = 0; d < c->env->n_devices && stretches; d++) {
        stretches = sheaf_layout_stretch(&out->result, d, c->node->ne[1], &first, &length);
    }
    if (stretches) {
        out->rule = "set rows: each its own ids";
        return SHEAF_OK;
    }
    out->want[0] = out->want_root = out->result = sheaf_layout_mirrored();
    out->rule = "set rows across runs: gather, write, cut again";
    return SHEAF_OK;
}
