/* The rule table: one row per op. A rule maps the layouts of an op's sources to the layout of its result
 * and to what each source must first become. The kinds of rule live in rules_*.c; here is which op takes
 * which, and what is common to all. Rules never refuse: where nothing fits they ask for MIRRORED. */
#include "splitstate/rules_internal.h"

#include <inttypes.h>

/* op -> function and the name printed for it. An op without a line here does not compile. */
#define RULE_NONE                                                                                                      \
    { sheaf_rule_leaf, "leaf" }
#define RULE_VIEW                                                                                                      \
    { sheaf_rule_header, "view" }
#define RULE_RESHAPE                                                                                                   \
    { sheaf_rule_header, "reshape" }
#define RULE_PERMUTE                                                                                                   \
    { sheaf_rule_header, "permute" }
#define RULE_TRANSPOSE                                                                                                 \
    { sheaf_rule_header, "transpose" }
#define RULE_CONT                                                                                                      \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_CPY                                                                                                       \
    { sheaf_rule_copy_into, "copy into" }
#define RULE_ADD                                                                                                       \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_SUB                                                                                                       \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_MUL                                                                                                       \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_DIV                                                                                                       \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_SCALE                                                                                                     \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_UNARY                                                                                                     \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_GLU                                                                                                       \
    { sheaf_rule_elementwise, "elementwise" }
#define RULE_RMS_NORM                                                                                                  \
    { sheaf_rule_per_row, "per row" }
#define RULE_NORM                                                                                                      \
    { sheaf_rule_per_row, "per row" }
#define RULE_SOFT_MAX                                                                                                  \
    { sheaf_rule_soft_max, "soft max" }
#define RULE_ROPE                                                                                                      \
    { sheaf_rule_rope, "rope" }
#define RULE_MUL_MAT                                                                                                   \
    { sheaf_rule_matmul, "matmul" }
#define RULE_GET_ROWS                                                                                                  \
    { sheaf_rule_get_rows, "get rows" }
#define RULE_SET_ROWS                                                                                                  \
    { sheaf_rule_set_rows, "set rows" }
#define RULE_ATTENTION                                                                                                 \
    { sheaf_rule_attention, "attention" }
#define RULE_CONCAT                                                                                                    \
    { sheaf_rule_concat, "concat" }
#define RULE_SUM_ROWS                                                                                                  \
    { sheaf_rule_sum_rows, "sum rows" }
#define RULE_SUM_SQUARES                                                                                               \
    { sheaf_rule_sum_squares, "sum squares" }
#define RULE_RMS_NORM_BY                                                                                               \
    { sheaf_rule_norm_by, "norm by sums" }
#define RULE_FILL                                                                                                      \
    { sheaf_rule_fill, "fill" }
#define RULE_ARGMAX                                                                                                    \
    { sheaf_rule_argmax, "argmax" }

#define RULE_MUL_MAT_ID                                                                                                \
    { sheaf_rule_mul_mat_id, "matmul by id" }
#define RULE_ADD_ID                                                                                                    \
    { sheaf_rule_add_id, "add by id" }
#define RULE_ARGSORT                                                                                                   \
    { sheaf_rule_by_column, "by column" }
#define RULE_PICK                                                                                                      \
    { sheaf_rule_by_column, "by column" }
#define RULE_BEST                                                                                                      \
    { sheaf_rule_best, "best" }
#define RULE_ROUND                                                                                                     \
    { sheaf_rule_elementwise, "elementwise" }

static const struct rule_row {
    rule_fn apply;
    const char *name;
} table[] = {
#define X(op, text, nsrc) [SHEAF_OP_##op] = RULE_##op,
    SHEAF_OP_TABLE(X)
#undef X
};
_Static_assert(sizeof table / sizeof table[0] == SHEAF_OP_COUNT, "one rule per op");

const char *sheaf_rule_name(sheaf_op op) {
    return (unsigned)op < (unsigned)SHEAF_OP_COUNT ? table[op].name : "no such op";
}

sheaf_status sheaf_rule_leaf(const rule_context *c, sheaf_rule_result *out) {
    (void)c;
    out->result = sheaf_layout_mirrored();
    return SHEAF_OK;
}

sheaf_status sheaf_rule_gather_all(const rule_context *c, sheaf_rule_result *out, const char *why) {
    for (int i = 0; i < c->n_src; i++) out->want[i] = sheaf_layout_mirrored();
    out->result = sheaf_layout_mirrored();
    out->rule = why;
    return SHEAF_OK;
}

static sheaf_status check_sources(const rule_context *c) {
    for (int i = 0; i < c->n_src; i++) {
        if (!c->node->src[i]) continue;
        sheaf_status s = sheaf_layout_check(&c->have[i], c->node->src[i]->ne, c->env->n_devices);
        if (s) return sheaf_error_context(s, "%s: source %d", c->node->name, i);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_rule_apply(sheaf_arena *a, const sheaf_rule_env *env, const sheaf_tensor *node,
                              const sheaf_layout *src, const sheaf_layout *root, sheaf_rule_result *out) {
    rule_context c = {a, env, node, src, root, 0};
    *out = (sheaf_rule_result){.result = sheaf_layout_mirrored(), .want_root = sheaf_layout_mirrored()};
    if ((unsigned)node->op >= (unsigned)SHEAF_OP_COUNT) {
        return sheaf_fail(SHEAF_E_INTERNAL, "%s: op %d has no rule", node->name, (int)node->op);
    }
    out->rule = table[node->op].name;
    bool header = sheaf_op_is_header(node->op);
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (!node->src[i]) continue;
        c.n_src = i + 1;
        if (!header) out->want[i] = src[i];
    }
    if (root) out->want_root = *root;
    sheaf_status s = header ? SHEAF_OK : check_sources(&c);
    if (s) return s;
    if (node->view_src && !root)
        return sheaf_fail(SHEAF_E_INTERNAL, "%s: a view without its root's layout", node->name);
    s = table[node->op].apply(&c, out);
    if (s) return sheaf_error_context(s, "%s (%s)", node->name, sheaf_op_name(node->op));
    for (int i = 0; i < c.n_src && !header; i++) {
        out->reshard[i] = node->src[i] && !sheaf_layout_equal(&out->want[i], &src[i]);
    }
    out->reshard_root = root && !sheaf_layout_equal(&out->want_root, root);
    return SHEAF_OK;
}
