/* Rules of ops that work element by element or row by row: a cut that does not go through what they
 * need whole passes through them. */
#include "splitstate/rules_internal.h"

/* Is op(sum of addends, ...) the sum of op(addend, ...)? Only source `i` is a sum. */
static bool is_linear(const sheaf_tensor *n, int i) {
    switch (n->op) {
    case SHEAF_OP_CONT: return true;
    case SHEAF_OP_MUL: return true;
    case SHEAF_OP_DIV: return i == 0;
    case SHEAF_OP_SCALE: return n->params.scale.bias == 0;
    case SHEAF_OP_UNARY: return n->params.unary.kind == SHEAF_UNARY_NEG;
    default: return false;
    }
}

/* A sum may wait if one source is owed it and the op is linear in it, or if both sides of an addition are. */
static bool may_delay(const rule_context *c) {
    int n_partial = 0, last = 0;
    for (int i = 0; i < c->n_src; i++) {
        if (!c->node->src[i] || c->have[i].kind != SHEAF_PARTIAL) continue;
        n_partial++;
        last = i;
    }
    bool addition = c->node->op == SHEAF_OP_ADD || c->node->op == SHEAF_OP_SUB;
    if (addition) return n_partial == 2 && sheaf_same_shape(c->node->src[0], c->node->src[1]);
    return n_partial == 1 && is_linear(c->node, last);
}

/* The source whose cut the result takes: the first that is cut along a dimension it does not repeat in.
 * A tensor that merely lives on some devices (one element along the cut) leads only as the first source. */
static const sheaf_layout *leader(const rule_context *c) {
    for (int i = 0; i < c->n_src; i++) {
        if (!c->node->src[i] || !is_cut(&c->have[i])) continue;
        int64_t mine = c->node->src[i]->ne[c->have[i].axis], whole = c->node->ne[c->have[i].axis];
        if (mine == whole && (i == 0 || whole > 1)) return &c->have[i];
    }
    return NULL;
}

/* Sources other than the first, beside a result cut as `l`: cut alike where they have the dimension, whole
 * where they are repeated along it. False: one repeats in part, so its index there is not local. */
static bool side_wants(const rule_context *c, const sheaf_layout *l, sheaf_rule_result *out) {
    for (int i = 0; i < c->n_src; i++) {
        if (!c->node->src[i]) continue;
        int64_t mine = c->node->src[i]->ne[l->axis];
        if (mine == c->node->ne[l->axis]) {
            out->want[i] = *l;
        } else if (mine == 1) {
            out->want[i] = sheaf_layout_mirrored();
        } else {
            return false;
        }
    }
    return true;
}

/* Two sums that are owed and were not rounded: added where they are, they are one sum. */
static bool joins_sums(const rule_context *c) {
    return c->node->op == SHEAF_OP_ADD && c->node->type == SHEAF_F64 && c->have[0].kind == SHEAF_PARTIAL &&
           c->have[1].kind == SHEAF_PARTIAL;
}

sheaf_status sheaf_rule_elementwise(const rule_context *c, sheaf_rule_result *out) {
    if (joins_sums(c)) {
        out->result = sheaf_layout_partial();
        out->rule = "two sums as one";
        return SHEAF_OK;
    }
    out->linear = may_delay(c);
    const sheaf_layout *l = leader(c);
    if (!l) return sheaf_rule_gather_all(c, out, out->rule);
    if (!side_wants(c, l, out)) return sheaf_rule_gather_all(c, out, "elementwise, repeated in part: gather");
    out->result = *l;
    return SHEAF_OK;
}

/* x, and sides that have one value per element of a row. */
sheaf_status sheaf_rule_per_row(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    if (!is_cut(x)) return sheaf_rule_gather_all(c, out, out->rule);
    if (x->axis != 0) {
        sheaf_rule_gather_all(c, out, out->rule);
        out->want[0] = out->result = *x;
        return SHEAF_OK;
    }
    bool lower = c->env->lowerings >> SHEAF_LOWER_NORM & 1 && c->env->reorder_sums && sheaf_layout_is_single(x);
    if (!lower || c->node->op == SHEAF_OP_SOFT_MAX) return sheaf_rule_gather_all(c, out, "row is cut: gather");
    for (int i = 0; i < c->n_src; i++) out->want[i] = *x;
    out->result = *x;
    out->lowering = SHEAF_LOWER_NORM;
    out->rule = "row is cut: one sum a row";
    return SHEAF_OK;
}

sheaf_status sheaf_rule_soft_max(const rule_context *c, sheaf_rule_result *out) {
    sheaf_status s = sheaf_rule_per_row(c, out);
    if (s || !is_cut(&out->result)) return s;
    const sheaf_tensor *mask = c->node->src[1];
    int axis = out->result.axis;
    /* ALiBi slopes go by global head, which a shard of dimension 2 does not know */
    if (axis == 2 && c->node->params.soft_max.max_bias > 0)
        return sheaf_rule_gather_all(c, out, "slopes by head: gather");
    if (!mask || mask->ne[axis] == 1) return SHEAF_OK;
    if (mask->ne[axis] != c->node->ne[axis]) return sheaf_rule_gather_all(c, out, "mask repeated in part: gather");
    out->want[1] = out->result;
    return SHEAF_OK;
}

/* x {head, n_head, n_tokens}, pos {n_tokens}, freq_factors or NULL. */
sheaf_status sheaf_rule_rope(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    if (is_axis(x, 0)) return sheaf_rule_gather_all(c, out, "rotated dimension is cut: gather");
    sheaf_rule_gather_all(c, out, out->rule);
    if (!is_cut(x)) return SHEAF_OK;
    out->want[0] = out->result = *x;
    if (x->axis == 2) out->want[1] = sheaf_layout_on_axis(x, 0);
    return SHEAF_OK;
}

sheaf_status sheaf_rule_sum_rows(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    out->linear = x->kind == SHEAF_PARTIAL;
    if (!is_cut(x)) return sheaf_rule_gather_all(c, out, out->rule);
    out->result = *x;
    if (x->axis != 0) return SHEAF_OK;
    if (!c->env->reorder_sums) return sheaf_rule_gather_all(c, out, "row is cut, order of sums fixed: gather");
    out->result = sheaf_layout_partial();
    out->rule = "row is cut: a sum of sums";
    return sheaf_layout_single(c->a, x, c->env->n_devices, &out->want[0]);
}

int64_t sheaf_counted_elsewhere(const sheaf_layout *l, int device) {
    int64_t skip = 0, counted = 0;
    sheaf_device_set below = ((sheaf_device_set)1 << device) - 1;
    for (int r = 0; r < l->n_runs; r++) {
        if (!(l->runs[r].devices >> device & 1)) continue;
        if (!(l->runs[r].devices & below)) {
            counted += l->runs[r].length;
        } else if (counted > 0) {
            return -1;
        } else {
            skip += l->runs[r].length;
        }
    }
    return skip;
}

/* Can the sums of two cut rows be made where the rows are? Both need the same devices, for one of them alone adds
 * nothing at all. */
static bool sums_in_place(const rule_context *c, const sheaf_layout *x, const sheaf_layout *y) {
    for (int d = 0; d < c->env->n_devices; d++) {
        if (is_cut(x) && is_cut(y) && (sheaf_layout_share(x, d, 0) == 0) != (sheaf_layout_share(y, d, 0) == 0))
            return false;
        if (is_cut(x) && sheaf_counted_elsewhere(x, d) < 0) return false;
        if (is_cut(y) && sheaf_counted_elsewhere(y, d) < 0) return false;
    }
    return (!is_cut(x) || x->axis == 0) && (!is_cut(y) || y->axis == 0);
}

/* x {n, rows}, y {m, rows} or NULL -> {1 or 2, rows}. Squares are summed in f64, so a cut of the rows changes nothing.
 */
sheaf_status sheaf_rule_sum_squares(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout whole = sheaf_layout_mirrored(), x = summed(&c->have[0]),
                       y = c->n_src > 1 ? summed(&c->have[1]) : whole;
    out->want[0] = x;
    if (c->n_src > 1) out->want[1] = y;
    if (!is_cut(&x) && !is_cut(&y)) return SHEAF_OK;
    if (is_cut(&x) && x.axis > 0) { /* rows; any slice of a whole y is free */
        out->result = x;
        if (c->n_src > 1) out->want[1] = x;
        return SHEAF_OK;
    }
    if (!sums_in_place(c, &x, &y)) return sheaf_rule_gather_all(c, out, "sum squares, rows apart: gather");
    out->result = sheaf_layout_partial();
    out->rule = "row is cut: one sum a row";
    return SHEAF_OK;
}

/* x {n, rows}, sums {k, rows}, weight {n} or NULL. */
sheaf_status sheaf_rule_norm_by(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    if (!is_cut(x)) return sheaf_rule_gather_all(c, out, out->rule);
    sheaf_rule_gather_all(c, out, out->rule);
    out->want[0] = out->result = *x;
    if (x->axis > 0) {
        out->want[1] = *x;
    } else if (c->n_src > 2) {
        out->want[2] = *x;
    }
    return SHEAF_OK;
}

/* x {ne0, ne1} -> {ne1}: the cut of rows moves one dimension down. */
sheaf_status sheaf_rule_argmax(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    if (is_axis(x, 1)) {
        out->result = sheaf_layout_on_axis(x, 0);
        return SHEAF_OK;
    }
    if (!is_axis(x, 0)) return sheaf_rule_gather_all(c, out, out->rule);
    if (!(c->env->lowerings >> SHEAF_LOWER_ARGMAX & 1)) return sheaf_rule_gather_all(c, out, "row is cut: gather");
    out->lowering = SHEAF_LOWER_ARGMAX;
    out->result = sheaf_layout_mirrored();
    out->rule = "row is cut: best of the best";
    return SHEAF_OK;
}
