/* Rules of mixtures of experts. Every expert is cut inside, as a dense feed-forward is, so that all devices work
 * whichever are chosen:
 *
 *     w {k, m, experts}    x {k, 1 or used, tokens}    result {m, used, tokens}, or {m, tokens} summed over used
 *     AXIS(1)              MIRRORED                    AXIS(0)    gate and up: columns of each expert
 *     AXIS(0)              AXIS(0), same runs          PARTIAL    down: rows of each expert
 *     MIRRORED             AXIS(2)                     tokens
 *
 * Ids are mirrored; with cut tokens they are cut alike. */
#include "splitstate/rules_internal.h"

enum { X = 1, IDS = 2 };

sheaf_status sheaf_rule_mul_mat_id(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout w = summed(&c->have[0]), x = summed(&c->have[X]);
    bool sum = c->node->params.mul_mat.over_used != 0;
    sheaf_rule_gather_all(c, out, out->rule);
    if (is_axis(&w, 1)) {
        out->want[0] = w;
        out->result = sheaf_layout_on_axis(&w, 0);
        out->rule = "experts, column parallel";
    } else if (is_axis(&w, 0)) {
        out->result = sheaf_layout_partial();
        out->rule = "experts, row parallel";
        sheaf_status s = sheaf_layout_single(c->a, &w, c->env->n_devices, &out->want[0]);
        out->want[X] = out->want[0];
        return s;
    } else if (!is_cut(&w) && is_axis(&x, 2)) {
        out->want[X] = x;
        out->want[IDS] = sheaf_layout_on_axis(&x, 1);
        out->result = sheaf_layout_on_axis(&x, sum ? 1 : 2);
        out->rule = "experts by token";
    } else if (is_cut(&w) || is_cut(&x)) {
        out->rule = "experts apart: gather";
    }
    return SHEAF_OK;
}

/* x {n, used, tokens} leads; rows {n, experts} and ids {used, tokens} follow. */
sheaf_status sheaf_rule_add_id(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0], *rows = &c->have[1];
    sheaf_rule_gather_all(c, out, out->rule);
    if (!is_cut(x) && is_axis(rows, 0)) x = rows; /* any slice of a whole is free */
    if (!is_cut(x)) return SHEAF_OK;
    out->want[0] = out->result = *x;
    if (x->axis == 0)
        out->want[1] = *x;
    else
        out->want[2] = sheaf_layout_on_axis(x, x->axis - 1);
    return SHEAF_OK;
}

/* Columns {n, tokens} that are needed whole, and one result column for each: argsort, pick. */
sheaf_status sheaf_rule_by_column(const rule_context *c, sheaf_rule_result *out) {
    const sheaf_layout *x = &c->have[0];
    if (!is_axis(x, 1)) return sheaf_rule_gather_all(c, out, is_cut(x) ? "column is cut: gather" : out->rule);
    for (int i = 0; i < c->n_src; i++) out->want[i] = *x;
    out->result = *x;
    return SHEAF_OK;
}
