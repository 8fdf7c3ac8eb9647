/* Constructors of operations: each checks its sources and makes one node; nothing is computed.
 *
 * What the ops mean is said at their declarations in tensor/tensor.h. The checks here are what
 * kernels and rules may rely on without looking again. */
#include "tensor/arena_internal.h"
#include "tensor/ops_internal.h"

#include <string.h>

/* --- the table of ops --- */

const char *sheaf_op_name(sheaf_op op) {
    static const char *const names[SHEAF_OP_COUNT] = {
#define X(name, text, nsrc) text,
        SHEAF_OP_TABLE(X)
#undef X
    };
    return (unsigned)op < SHEAF_OP_COUNT ? names[op] : "?";
}

bool sheaf_op_is_header(sheaf_op op) {
    return op == SHEAF_OP_NONE || op == SHEAF_OP_VIEW || op == SHEAF_OP_RESHAPE || op == SHEAF_OP_PERMUTE ||
           op == SHEAF_OP_TRANSPOSE;
}

/* Ops that finish reading a row (or a rotated pair) of their first source before they write it. */
bool sheaf_op_can_inplace(sheaf_op op) {
    switch (op) {
    case SHEAF_OP_ADD:
    case SHEAF_OP_SUB:
    case SHEAF_OP_MUL:
    case SHEAF_OP_DIV:
    case SHEAF_OP_SCALE:
    case SHEAF_OP_UNARY:
    case SHEAF_OP_GLU:
    case SHEAF_OP_RMS_NORM:
    case SHEAF_OP_RMS_NORM_BY:
    case SHEAF_OP_NORM:
    case SHEAF_OP_SOFT_MAX:
    case SHEAF_OP_ROPE:
    case SHEAF_OP_ADD_ID: return true;
    default: return false;
    }
}

/* --- errors --- */

void *sheaf_missing_source(sheaf_arena *a, const char *op, int i) {
    return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_ARGUMENT, "%s: source %d is NULL", op, i));
}

/* "op: [..] type, [..] type: what is wrong". `y` may be NULL. */
static void *misfit(sheaf_arena *a, sheaf_op op, const sheaf_tensor *x, const sheaf_tensor *y, const char *what) {
    char xs[96], ys[96] = "";
    sheaf_shape_text(x, xs, sizeof xs);
    if (y) sheaf_shape_text(y, ys, sizeof ys);
    return sheaf_arena_fail(a,
                            sheaf_fail(SHEAF_E_SHAPE, "%s: '%s' %s %s%s%s%s%s%s: %s", sheaf_op_name(op), x->name, xs,
                                       sheaf_type_name(x->type), y ? ", '" : "", y ? y->name : "", y ? "' " : "", ys,
                                       y ? (y->type == x->type ? " of the same type" : " of another type") : "", what));
}

/* --- making a node --- */

static sheaf_tensor *node(sheaf_arena *a, sheaf_op op, sheaf_type type, const int64_t ne[4], sheaf_tensor *s0,
                          sheaf_tensor *s1, sheaf_tensor *s2) {
    sheaf_tensor *t = sheaf_new(a, type, SHEAF_MAX_DIMS, ne);
    if (!t) return NULL;
    t->op = op;
    t->src[0] = s0;
    t->src[1] = s1;
    t->src[2] = s2;
    return t;
}

/* A node whose result is the bytes of `into`. */
static sheaf_tensor *node_into(sheaf_arena *a, sheaf_op op, sheaf_tensor *into, sheaf_tensor *s0, sheaf_tensor *s1,
                               sheaf_tensor *s2) {
    sheaf_tensor *t = sheaf_alias(a, sheaf_op_name(op), into, into->ne, into->nb, 0);
    if (!t) return NULL;
    t->op = op;
    t->src[0] = s0;
    t->src[1] = s1;
    t->src[2] = s2;
    return t;
}

static bool is_vector(const sheaf_tensor *t, sheaf_type type, int64_t n) {
    return t->type == type && t->ne[0] == n && sheaf_nrows(t) == 1 && sheaf_rows_contiguous(t);
}

static bool is_matrix(const sheaf_tensor *t) { return t->ne[2] == 1 && t->ne[3] == 1; }

static bool is_f32_rows(const sheaf_tensor *t) { return t->type == SHEAF_F32 && sheaf_rows_contiguous(t); }

/* {n, tokens} i32 */
static bool is_id_matrix(const sheaf_tensor *t) {
    return t->type == SHEAF_I32 && is_matrix(t) && sheaf_rows_contiguous(t);
}

static bool is_integer(sheaf_type t) { return t == SHEAF_I8 || t == SHEAF_I16 || t == SHEAF_I32 || t == SHEAF_I64; }

/* --- copies --- */

sheaf_tensor *sheaf_cont(sheaf_arena *a, sheaf_tensor *t) {
    if (!t) return sheaf_missing_source(a, "cont", 0);
    return node(a, SHEAF_OP_CONT, t->type, t->ne, t, NULL, NULL);
}

sheaf_tensor *sheaf_cpy(sheaf_arena *a, sheaf_tensor *t, sheaf_tensor *into) {
    if (!t || !into) return sheaf_missing_source(a, "cpy", t ? 1 : 0);
    if (!sheaf_same_shape(t, into)) return misfit(a, SHEAF_OP_CPY, t, into, "shapes differ");
    return node_into(a, SHEAF_OP_CPY, into, t, into, NULL);
}

sheaf_tensor *sheaf_fill(sheaf_arena *a, sheaf_tensor *into, float value) {
    if (!into) return sheaf_missing_source(a, "fill", 0);
    sheaf_tensor *t = node_into(a, SHEAF_OP_FILL, into, into, NULL, NULL);
    if (t) t->params.fill.value = value;
    return t;
}

sheaf_tensor *sheaf_concat(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y, int dim) {
    if (!x || !y) return sheaf_missing_source(a, "concat", x ? 1 : 0);
    bool fits = x->type == y->type && dim >= 0 && dim < SHEAF_MAX_DIMS;
    for (int i = 0; fits && i < SHEAF_MAX_DIMS; i++) fits = i == dim || x->ne[i] == y->ne[i];
    if (!fits) return misfit(a, SHEAF_OP_CONCAT, x, y, "types, or shapes outside the joined dimension, differ");
    int64_t ne[SHEAF_MAX_DIMS];
    memcpy(ne, x->ne, sizeof ne);
    if (__builtin_add_overflow(x->ne[dim], y->ne[dim], &ne[dim])) {
        return misfit(a, SHEAF_OP_CONCAT, x, y, "the joined dimension wraps");
    }
    sheaf_tensor *t = node(a, SHEAF_OP_CONCAT, x->type, ne, x, y, NULL);
    if (t) t->params.concat.dim = dim;
    return t;
}

/* --- element by element --- */

static sheaf_tensor *binary(sheaf_arena *a, sheaf_op op, sheaf_tensor *x, sheaf_tensor *y) {
    if (!x || !y) return sheaf_missing_source(a, sheaf_op_name(op), x ? 1 : 0);
    if (op == SHEAF_OP_ADD && x->type == SHEAF_F64 && y->type == SHEAF_F64 && sheaf_same_shape(x, y))
        return node(a, op, SHEAF_F64, x->ne, x, y, NULL); /* sums that were not rounded yet */
    if (x->type != SHEAF_F32 || y->type != SHEAF_F32) return misfit(a, op, x, y, "both must be f32");
    if (!sheaf_can_broadcast(y, x)) return misfit(a, op, x, y, "the second does not broadcast to the first");
    return node(a, op, SHEAF_F32, x->ne, x, y, NULL);
}

sheaf_tensor *sheaf_add(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y) { return binary(a, SHEAF_OP_ADD, x, y); }
sheaf_tensor *sheaf_sub(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y) { return binary(a, SHEAF_OP_SUB, x, y); }
sheaf_tensor *sheaf_mul(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y) { return binary(a, SHEAF_OP_MUL, x, y); }
sheaf_tensor *sheaf_div(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y) { return binary(a, SHEAF_OP_DIV, x, y); }

/* A node of x's shape with one f32 source. */
static sheaf_tensor *alone(sheaf_arena *a, sheaf_op op, sheaf_tensor *x) {
    if (!x) return sheaf_missing_source(a, sheaf_op_name(op), 0);
    if (x->type != SHEAF_F32) return misfit(a, op, x, NULL, "must be f32");
    return node(a, op, SHEAF_F32, x->ne, x, NULL, NULL);
}

sheaf_tensor *sheaf_scale(sheaf_arena *a, sheaf_tensor *x, float factor, float bias) {
    sheaf_tensor *t = alone(a, SHEAF_OP_SCALE, x);
    if (!t) return NULL;
    t->params.scale.factor = factor;
    t->params.scale.bias = bias;
    return t;
}

sheaf_tensor *sheaf_unary_op(sheaf_arena *a, sheaf_tensor *x, sheaf_unary kind) {
    if ((unsigned)kind >= SHEAF_UNARY_COUNT) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_ARGUMENT, "unary: kind %d is unknown", (int)kind));
    }
    sheaf_tensor *t = alone(a, SHEAF_OP_UNARY, x);
    if (t) t->params.unary.kind = (int32_t)kind;
    return t;
}

sheaf_tensor *sheaf_glu_op(sheaf_arena *a, sheaf_tensor *gate, sheaf_tensor *up, sheaf_glu kind) {
    if (!gate || !up) return sheaf_missing_source(a, "glu", gate ? 1 : 0);
    if ((unsigned)kind >= SHEAF_GLU_COUNT) {
        return sheaf_arena_fail(a, sheaf_fail(SHEAF_E_ARGUMENT, "glu: kind %d is unknown", (int)kind));
    }
    if (gate->type != SHEAF_F32 || up->type != SHEAF_F32 || !sheaf_same_shape(gate, up)) {
        return misfit(a, SHEAF_OP_GLU, gate, up, "both must be f32 of one shape");
    }
    sheaf_tensor *t = node(a, SHEAF_OP_GLU, SHEAF_F32, gate->ne, gate, up, NULL);
    if (!t) return NULL;
    t->params.glu.kind = (int32_t)kind;
    if (kind == SHEAF_GLU_SWIGLU_OAI) { /* what its inventors use */
        t->params.glu.alpha = 1.702f;
        t->params.glu.limit = 7.0f;
    }
    return t;
}

sheaf_tensor *sheaf_swiglu_oai(sheaf_arena *a, sheaf_tensor *gate, sheaf_tensor *up, float alpha, float limit) {
    sheaf_tensor *t = sheaf_glu_op(a, gate, up, SHEAF_GLU_SWIGLU_OAI);
    if (!t) return NULL;
    t->params.glu.alpha = alpha;
    t->params.glu.limit = limit;
    return t;
}

/* --- row by row --- */

static sheaf_tensor *norm(sheaf_arena *a, sheaf_op op, sheaf_tensor *x, sheaf_tensor *weight, sheaf_tensor *bias,
                          float eps) {
    if (!x) return sheaf_missing_source(a, sheaf_op_name(op), 0);
    if (!is_f32_rows(x)) return misfit(a, op, x, NULL, "must be f32 with whole rows");
    if (weight && !is_vector(weight, SHEAF_F32, x->ne[0])) return misfit(a, op, x, weight, "no weight for its rows");
    if (bias && !is_vector(bias, SHEAF_F32, x->ne[0])) return misfit(a, op, x, bias, "no bias for its rows");
    sheaf_tensor *t = node(a, op, SHEAF_F32, x->ne, x, weight, bias);
    if (t) t->params.norm.eps = eps;
    return t;
}

sheaf_tensor *sheaf_rms_norm(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *weight, float eps) {
    return norm(a, SHEAF_OP_RMS_NORM, x, weight, NULL, eps);
}

sheaf_tensor *sheaf_norm(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *weight, sheaf_tensor *bias, float eps) {
    return norm(a, SHEAF_OP_NORM, x, weight, bias, eps);
}

sheaf_tensor *sheaf_soft_max(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *mask, float scale, float max_bias) {
    if (!x) return sheaf_missing_source(a, "soft_max", 0);
    if (!is_f32_rows(x)) return misfit(a, SHEAF_OP_SOFT_MAX, x, NULL, "must be f32 with whole rows");
    if (mask && ((mask->type != SHEAF_F32 && mask->type != SHEAF_F16) || !sheaf_rows_contiguous(mask) ||
                 mask->ne[0] != x->ne[0] || mask->ne[1] != x->ne[1] || !sheaf_can_broadcast(mask, x))) {
        return misfit(a, SHEAF_OP_SOFT_MAX, x, mask, "no mask for it (f32 or f16, same rows)");
    }
    sheaf_tensor *t = node(a, SHEAF_OP_SOFT_MAX, SHEAF_F32, x->ne, x, mask, NULL);
    if (!t) return NULL;
    t->params.soft_max.scale = scale;
    t->params.soft_max.max_bias = max_bias;
    return t;
}

sheaf_tensor *sheaf_rope(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *pos, sheaf_tensor *freq_factors,
                         const sheaf_params *params) {
    if (!x || !pos) return sheaf_missing_source(a, "rope", x ? 1 : 0);
    int32_t n = params->rope.n_dims, kind = params->rope.kind;
    if (!is_f32_rows(x)) return misfit(a, SHEAF_OP_ROPE, x, NULL, "must be f32 with whole rows");
    if (!is_vector(pos, SHEAF_I32, x->ne[2])) return misfit(a, SHEAF_OP_ROPE, x, pos, "want one i32 position a token");
    if (n < 0 || n % 2 != 0 || n > x->ne[0] || (kind != SHEAF_ROPE_NORM && kind != SHEAF_ROPE_NEOX)) {
        return misfit(a, SHEAF_OP_ROPE, x, NULL, "rotated elements must be even and inside a row, the kind known");
    }
    if (freq_factors && (freq_factors->ne[0] < n / 2 || !is_vector(freq_factors, SHEAF_F32, freq_factors->ne[0]))) {
        return misfit(a, SHEAF_OP_ROPE, x, freq_factors, "want one f32 factor a rotated pair");
    }
    sheaf_tensor *t = node(a, SHEAF_OP_ROPE, SHEAF_F32, x->ne, x, pos, freq_factors);
    if (t) t->params = *params;
    return t;
}

sheaf_tensor *sheaf_sum_rows(sheaf_arena *a, sheaf_tensor *x) {
    if (!x) return sheaf_missing_source(a, "sum_rows", 0);
    if (!is_f32_rows(x)) return misfit(a, SHEAF_OP_SUM_ROWS, x, NULL, "must be f32 with whole rows");
    int64_t ne[] = {1, x->ne[1], x->ne[2], x->ne[3]};
    return node(a, SHEAF_OP_SUM_ROWS, SHEAF_F32, ne, x, NULL, NULL);
}

static bool same_rows(const sheaf_tensor *x, const sheaf_tensor *y) {
    return x->ne[1] == y->ne[1] && x->ne[2] == y->ne[2] && x->ne[3] == y->ne[3];
}

sheaf_tensor *sheaf_sum_squares(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y) {
    if (!x) return sheaf_missing_source(a, "sum_squares", 0);
    if (!is_f32_rows(x) || (y && (!is_f32_rows(y) || !same_rows(x, y)))) {
        return misfit(a, SHEAF_OP_SUM_SQUARES, x, y, "must be f32 with whole rows, as many in both");
    }
    int64_t ne[] = {y ? 2 : 1, x->ne[1], x->ne[2], x->ne[3]};
    return node(a, SHEAF_OP_SUM_SQUARES, SHEAF_F32, ne, x, y, NULL);
}

sheaf_tensor *sheaf_rms_norm_by(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *sums, int index, sheaf_tensor *weight,
                                float eps) {
    if (!x || !sums) return sheaf_missing_source(a, "rms_norm_by", x ? 1 : 0);
    if (!is_f32_rows(x)) return misfit(a, SHEAF_OP_RMS_NORM_BY, x, NULL, "must be f32 with whole rows");
    if (!is_f32_rows(sums) || !same_rows(x, sums) || index < 0 || index >= sums->ne[0] || x->ne[0] > INT32_MAX) {
        return misfit(a, SHEAF_OP_RMS_NORM_BY, x, sums, "no sum for each of its rows");
    }
    if (weight && !is_vector(weight, SHEAF_F32, x->ne[0]))
        return misfit(a, SHEAF_OP_RMS_NORM_BY, x, weight, "no weight for its rows");
    sheaf_tensor *t = node(a, SHEAF_OP_RMS_NORM_BY, SHEAF_F32, x->ne, x, sums, weight);
    if (!t) return NULL;
    t->params.norm_by.eps = eps;
    t->params.norm_by.index = index;
    t->params.norm_by.length = (int32_t)x->ne[0];
    return t;
}

sheaf_tensor *sheaf_argmax(sheaf_arena *a, sheaf_tensor *x) {
    if (!x) return sheaf_missing_source(a, "argmax", 0);
    if (!is_f32_rows(x) || !is_matrix(x)) return misfit(a, SHEAF_OP_ARGMAX, x, NULL, "must be an f32 matrix");
    int64_t ne[] = {x->ne[1], 1, 1, 1};
    return node(a, SHEAF_OP_ARGMAX, SHEAF_I32, ne, x, NULL, NULL);
}

/* --- matrices --- */

sheaf_tensor *sheaf_mul_mat(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x) {
    if (!w || !x) return sheaf_missing_source(a, "mul_mat", w ? 1 : 0);
    if (w->ne[0] != x->ne[0]) return misfit(a, SHEAF_OP_MUL_MAT, w, x, "their first dimensions differ");
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) {
        if (w->ne[i] != x->ne[i] && (w->ne[i] == 0 || x->ne[i] % w->ne[i] != 0)) {
            return misfit(a, SHEAF_OP_MUL_MAT, w, x, "the first does not broadcast over the second's batches");
        }
    }
    if (!sheaf_rows_contiguous(w) || is_integer(w->type)) {
        return misfit(a, SHEAF_OP_MUL_MAT, w, x, "the first must have whole rows of floats or blocks");
    }
    if (!is_f32_rows(x)) return misfit(a, SHEAF_OP_MUL_MAT, w, x, "the second must be f32 with whole rows");
    int64_t ne[] = {w->ne[1], x->ne[1], x->ne[2], x->ne[3]};
    return node(a, SHEAF_OP_MUL_MAT, SHEAF_F32, ne, w, x, NULL);
}

sheaf_tensor *sheaf_mul_mat_segments(sheaf_arena *a, sheaf_tensor *t, int32_t segment) {
    if (!t) return sheaf_missing_source(a, "mul_mat_segments", 0);
    if (t->op != SHEAF_OP_MUL_MAT && t->op != SHEAF_OP_MUL_MAT_ID)
        return misfit(a, t->op, t, NULL, "only a product sums by segments");
    const sheaf_tensor *w = t->src[0];
    if (segment <= 0 || w->ne[0] % segment != 0 || segment % sheaf_type_block(w->type) != 0) {
        return misfit(a, t->op, w, NULL, "segments must be whole blocks and divide its rows");
    }
    t->params.mul_mat.accumulate = SHEAF_ACC_SEGMENTS;
    t->params.mul_mat.segment = segment;
    return t;
}

/* A fresh node turned into one of F64: nothing has read its strides yet. */
static sheaf_tensor *widen(sheaf_arena *a, sheaf_tensor *t) {
    t->type = SHEAF_F64;
    size_t nb = sizeof(double);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        t->nb[i] = nb;
        if (sheaf_mul_overflow(nb, (size_t)t->ne[i], &nb)) return misfit(a, t->op, t, NULL, "its size wraps");
    }
    return t;
}

sheaf_tensor *sheaf_unrounded(sheaf_arena *a, sheaf_tensor *t) {
    if (!t) return sheaf_missing_source(a, "unrounded", 0);
    if (t->op != SHEAF_OP_MUL_MAT || t->params.mul_mat.accumulate != SHEAF_ACC_SEGMENTS)
        return misfit(a, t->op, t, NULL, "only a mul_mat with segments can stay unrounded");
    return widen(a, t);
}

sheaf_tensor *sheaf_round(sheaf_arena *a, sheaf_tensor *x) {
    if (!x) return sheaf_missing_source(a, "round", 0);
    if (x->type != SHEAF_F64) return misfit(a, SHEAF_OP_ROUND, x, NULL, "must be f64");
    return node(a, SHEAF_OP_ROUND, SHEAF_F32, x->ne, x, NULL, NULL);
}

/* --- matrices by id --- */

sheaf_tensor *sheaf_mul_mat_id(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x, sheaf_tensor *ids) {
    if (!w || !x || !ids) return sheaf_missing_source(a, "mul_mat_id", !w ? 0 : !x ? 1 : 2);
    if (w->ne[0] != x->ne[0]) return misfit(a, SHEAF_OP_MUL_MAT_ID, w, x, "their first dimensions differ");
    if (w->ne[3] != 1 || x->ne[3] != 1 || !sheaf_rows_contiguous(w) || is_integer(w->type) || !is_f32_rows(x))
        return misfit(a, SHEAF_OP_MUL_MAT_ID, w, x, "want {k, m, experts} of floats or blocks and f32 {k, n, tokens}");
    if (!is_id_matrix(ids) || ids->ne[1] != x->ne[2])
        return misfit(a, SHEAF_OP_MUL_MAT_ID, x, ids, "want i32 ids {used, tokens}");
    if (x->ne[1] != 1 && x->ne[1] != ids->ne[0])
        return misfit(a, SHEAF_OP_MUL_MAT_ID, x, ids, "want one column a token, or one an id");
    int64_t ne[] = {w->ne[1], ids->ne[0], ids->ne[1], 1};
    return node(a, SHEAF_OP_MUL_MAT_ID, SHEAF_F32, ne, w, x, ids);
}

sheaf_tensor *sheaf_mul_mat_id_sum(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x, sheaf_tensor *ids,
                                   int32_t segment) {
    sheaf_tensor *t = sheaf_mul_mat_id(a, w, x, ids);
    if (!t || !sheaf_mul_mat_segments(a, t, segment)) return NULL;
    if (x->ne[1] != ids->ne[0]) return misfit(a, SHEAF_OP_MUL_MAT_ID, x, ids, "a sum wants one column an id");
    t->params.mul_mat.over_used = 1;
    t->ne[1] = ids->ne[1];
    t->ne[2] = 1;
    return widen(a, t);
}

sheaf_tensor *sheaf_add_id(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *rows, sheaf_tensor *ids) {
    if (!x || !rows || !ids) return sheaf_missing_source(a, "add_id", !x ? 0 : !rows ? 1 : 2);
    if (!is_f32_rows(x) || x->ne[3] != 1 || !is_f32_rows(rows) || !is_matrix(rows) || rows->ne[0] != x->ne[0])
        return misfit(a, SHEAF_OP_ADD_ID, x, rows, "want f32 {n, used, tokens} and f32 rows {n, experts}");
    if (!is_id_matrix(ids) || ids->ne[0] != x->ne[1] || ids->ne[1] != x->ne[2])
        return misfit(a, SHEAF_OP_ADD_ID, x, ids, "want i32 ids {used, tokens}");
    return node(a, SHEAF_OP_ADD_ID, SHEAF_F32, x->ne, x, rows, ids);
}

sheaf_tensor *sheaf_top_k(sheaf_arena *a, sheaf_tensor *x, int64_t k) {
    if (!x) return sheaf_missing_source(a, "top_k", 0);
    if (!is_f32_rows(x) || !is_matrix(x) || x->ne[0] > INT32_MAX || k < 0 || k > x->ne[0])
        return misfit(a, SHEAF_OP_ARGSORT, x, NULL, "must be an f32 matrix with at least k elements a column");
    int64_t ne[] = {k, x->ne[1], 1, 1};
    return node(a, SHEAF_OP_ARGSORT, SHEAF_I32, ne, x, NULL, NULL);
}

sheaf_tensor *sheaf_best_of(sheaf_arena *a, sheaf_tensor *x, int64_t n_ids, int32_t k, int32_t places) {
    if (!x) return sheaf_missing_source(a, "best", 0);
    if (!is_f32_rows(x) || !is_matrix(x) || x->ne[0] > INT32_MAX || n_ids < 0 || n_ids > x->ne[0])
        return misfit(a, SHEAF_OP_BEST, x, NULL, "must be an f32 matrix of at least as many elements as have ids");
    if (k < 1 || k > SHEAF_MAX_BEST || places < 1)
        return misfit(a, SHEAF_OP_BEST, x, NULL, "wants 1 to 1024 pairs in at least one place");
    int64_t ne[] = {(int64_t)k * places, x->ne[1], 1, 1};
    sheaf_tensor *t = node(a, SHEAF_OP_BEST, SHEAF_I64, ne, x, NULL, NULL);
    if (!t) return NULL;
    t->params.best.k = k;
    t->params.best.id_end = (int32_t)n_ids;
    return t;
}

sheaf_tensor *sheaf_pick(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *ids) {
    if (!x || !ids) return sheaf_missing_source(a, "pick", x ? 1 : 0);
    if (!is_f32_rows(x) || !is_matrix(x) || !is_id_matrix(ids) || ids->ne[1] != x->ne[1])
        return misfit(a, SHEAF_OP_PICK, x, ids, "want an f32 matrix and i32 ids for each of its columns");
    return node(a, SHEAF_OP_PICK, SHEAF_F32, ids->ne, x, ids, NULL);
}

/* --- rows by id --- */

sheaf_tensor *sheaf_get_rows(sheaf_arena *a, sheaf_tensor *table, sheaf_tensor *ids) {
    if (!table || !ids) return sheaf_missing_source(a, "get_rows", table ? 1 : 0);
    if (!is_matrix(table) || !sheaf_rows_contiguous(table)) {
        return misfit(a, SHEAF_OP_GET_ROWS, table, ids, "the table must be a matrix with whole rows");
    }
    if (!is_vector(ids, SHEAF_I32, ids->ne[0])) return misfit(a, SHEAF_OP_GET_ROWS, table, ids, "ids must be {n} i32");
    int64_t ne[] = {table->ne[0], ids->ne[0], 1, 1};
    return node(a, SHEAF_OP_GET_ROWS, SHEAF_F32, ne, table, ids, NULL);
}

sheaf_tensor *sheaf_set_rows(sheaf_arena *a, sheaf_tensor *into, sheaf_tensor *rows, sheaf_tensor *ids) {
    if (!into || !rows || !ids) return sheaf_missing_source(a, "set_rows", !into ? 0 : !rows ? 1 : 2);
    if (!is_matrix(into) || !sheaf_rows_contiguous(into)) {
        return misfit(a, SHEAF_OP_SET_ROWS, into, rows, "the first must be a matrix with whole rows");
    }
    if (!is_f32_rows(rows) || !is_matrix(rows) || rows->ne[0] != into->ne[0]) {
        return misfit(a, SHEAF_OP_SET_ROWS, into, rows, "the second must be f32 rows of the same length");
    }
    if (!is_vector(ids, SHEAF_I64, rows->ne[1]))
        return misfit(a, SHEAF_OP_SET_ROWS, rows, ids, "want one i64 id a row");
    return node_into(a, SHEAF_OP_SET_ROWS, into, into, rows, ids);
}

/* --- attention --- */

/* What is wrong with these sources, or NULL. Shapes as in tensor/tensor.h. */
static const char *attention_misfit(const sheaf_tensor *q, const sheaf_tensor *k, const sheaf_tensor *v,
                                    const sheaf_tensor *mask, const sheaf_tensor *sinks) {
    if (!is_f32_rows(q)) return "queries must be f32 with whole rows";
    if (!sheaf_rows_contiguous(k) || !sheaf_rows_contiguous(v) || is_integer(k->type) || is_integer(v->type)) {
        return "keys and values must have whole rows of floats or blocks";
    }
    if (q->ne[3] != 1 || k->ne[3] != 1 || v->ne[3] != 1) return "one sequence at a time: dimension 3 must be 1";
    if (q->ne[0] != k->ne[0]) return "heads of queries and keys differ in length";
    if (k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2]) return "keys and values differ in positions or heads";
    if (q->ne[2] != k->ne[2] && (k->ne[2] == 0 || q->ne[2] % k->ne[2] != 0))
        return "query heads are no multiple of KV heads";
    if (mask && ((mask->type != SHEAF_F32 && mask->type != SHEAF_F16) || !sheaf_rows_contiguous(mask) ||
                 mask->ne[0] != k->ne[1] || mask->ne[1] != q->ne[1] || !is_matrix(mask))) {
        return "the mask must be f32 or f16 {positions, tokens}";
    }
    if (sinks && !is_vector(sinks, SHEAF_F32, q->ne[2])) return "want one f32 sink a query head";
    return NULL;
}

sheaf_tensor *sheaf_attention(sheaf_arena *a, sheaf_tensor *q, sheaf_tensor *k, sheaf_tensor *v, sheaf_tensor *mask,
                              sheaf_tensor *sinks, float scale, float max_bias, float soft_cap) {
    if (!q || !k || !v) return sheaf_missing_source(a, "attention", !q ? 0 : !k ? 1 : 2);
    const char *wrong = attention_misfit(q, k, v, mask, sinks);
    if (wrong) return misfit(a, SHEAF_OP_ATTENTION, q, k, wrong);
    int64_t ne[] = {v->ne[0], q->ne[2], q->ne[1], 1};
    sheaf_tensor *t = node(a, SHEAF_OP_ATTENTION, SHEAF_F32, ne, q, k, v);
    if (!t) return NULL;
    t->src[3] = mask;
    t->src[4] = sinks;
    t->params.attention.scale = scale;
    t->params.attention.max_bias = max_bias;
    t->params.attention.soft_cap = soft_cap;
    t->params.attention.n_head = (int32_t)q->ne[2];
    t->params.attention.n_kv = (int32_t)k->ne[2];
    return t;
}
