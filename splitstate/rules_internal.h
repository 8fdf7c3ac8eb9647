/* What the files of the rule table share. A rule is a function of this context: sources as they are
 * (`have`, PARTIAL included), and fills `out`, which starts as "everything stays, result MIRRORED". */
#ifndef SHEAF_SPLITSTATE_RULES_INTERNAL_H
#define SHEAF_SPLITSTATE_RULES_INTERNAL_H

#include "splitstate/splitstate.h"

typedef struct rule_context {
    sheaf_arena *a;
    const sheaf_rule_env *env;
    const sheaf_tensor *node;
    const sheaf_layout *have; /* of node->src[i] */
    const sheaf_layout *root; /* of node->view_src, or NULL */
    int n_src;                /* sources up to the last that is not NULL */
} rule_context;

typedef sheaf_status (*rule_fn)(const rule_context *c, sheaf_rule_result *out);

sheaf_status sheaf_rule_leaf(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_header(const rule_context *c, sheaf_rule_result *out); /* rules_view.c */
sheaf_status sheaf_rule_copy_into(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_fill(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_set_rows(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_elementwise(const rule_context *c, sheaf_rule_result *out); /* rules_elementwise.c */
sheaf_status sheaf_rule_per_row(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_soft_max(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_rope(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_sum_rows(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_sum_squares(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_norm_by(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_argmax(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_matmul(const rule_context *c, sheaf_rule_result *out);   /* rules_matmul.c */
sheaf_status sheaf_rule_get_rows(const rule_context *c, sheaf_rule_result *out); /* rules_rows.c */
sheaf_status sheaf_rule_best(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_concat(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_attention(const rule_context *c, sheaf_rule_result *out);  /* rules_attention.c */
sheaf_status sheaf_rule_mul_mat_id(const rule_context *c, sheaf_rule_result *out); /* rules_experts.c */
sheaf_status sheaf_rule_add_id(const rule_context *c, sheaf_rule_result *out);
sheaf_status sheaf_rule_by_column(const rule_context *c, sheaf_rule_result *out);

/* Every source whole everywhere: what always fits. */
sheaf_status sheaf_rule_gather_all(const rule_context *c, sheaf_rule_result *out, const char *why);

static inline bool is_axis(const sheaf_layout *l, int axis) { return l->kind == SHEAF_AXIS && l->axis == axis; }
/* For sums over the elements of a cut row, of which some may live on several devices: each counts on its first device
 * alone. How many leading elements of device's shard count elsewhere; -1 where those that count are not the rest. */
int64_t sheaf_counted_elsewhere(const sheaf_layout *l, int device);

static inline bool is_cut(const sheaf_layout *l) { return l->kind == SHEAF_AXIS; }
/* What a source is once a sum that is still owed has been made. */
static inline sheaf_layout summed(const sheaf_layout *l) {
    return l->kind == SHEAF_PARTIAL ? sheaf_layout_mirrored() : *l;
}

/* --- a view of a cut root, in bytes (view_map.c) -----------------------------------------------------
 *
 * The root repeats with a period (pieces.c). A view's strides are either multiples of the period
 * ("outer": they step over periods) or smaller ("inner": they move inside one). The inner stride that
 * steps farthest is `top`; the rest of the inner dimensions cover a window of `window` bytes:
 *
 *     period  |........ Q ........|.... K ....|.... V ....|
 *     view K           first ---> |[w][w][w]..|              top steps from window to window
 *
 * The view is cut along `top` where every window lies inside one run. */
typedef struct view_map {
    size_t period; /* bytes; 0: the root is not cut */
    size_t unit, unit_elements;
    size_t offset;  /* of the first window inside the period */
    size_t n_outer; /* whole periods before the first */
    int top;        /* dimension that steps; -1: a single window */
    size_t step, window;
} view_map;

/* False: the view cannot be described so (it crosses a period, or its strides do not fit). */
bool sheaf_view_map(const sheaf_tensor *node, const sheaf_layout *root, view_map *out);
/* The layout of the view; false where a window straddles runs or a device's windows are not evenly spaced. */
sheaf_status sheaf_view_layout(sheaf_arena *a, const sheaf_tensor *node, const sheaf_layout *root, int n_devices,
                               sheaf_layout *out, bool *fits);
/* Device's ne, nb and view_offs. */
sheaf_status sheaf_view_local(const sheaf_tensor *node, const sheaf_layout *root, int device, sheaf_local *out);

#endif
