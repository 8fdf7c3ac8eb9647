/* See random_graph.h. */
#include "tests/tensor/random_graph.h"

#include <math.h>

enum { MAX_POOL = 200 };

typedef struct maker {
    rng *r;
    sheaf_arena *a;
    sheaf_tensor *pool[MAX_POOL];
    int n;
} maker;

static sheaf_tensor *any(maker *m) { return m->pool[rng_below(m->r, m->n)]; }

/* A tensor of x's shape, or x itself. */
static sheaf_tensor *partner(maker *m, const sheaf_tensor *x) {
    for (int tries = 0; tries < 10; tries++) {
        sheaf_tensor *y = any(m);
        if (sheaf_same_shape(x, y)) return y;
    }
    return (sheaf_tensor *)x;
}

static sheaf_tensor *leaf(maker *m) {
    sheaf_tensor *t = sheaf_new_2d(m->a, SHEAF_F32, 4 * (1 + rng_below(m->r, 2)), 1 + rng_below(m->r, 3));
    return rng_chance(m->r, 0.7f) ? sheaf_set_flag(t, SHEAF_FLAG_INPUT) : t;
}

static sheaf_tensor *view_of(maker *m, sheaf_tensor *x) {
    int64_t rows;
    switch (rng_below(m->r, 4)) {
    case 0: return sheaf_transpose(m->a, x);
    case 1: return sheaf_is_contiguous(x) ? sheaf_reshape_1d(m->a, x, sheaf_nelements(x)) : NULL;
    case 2: return sheaf_is_contiguous(x) ? sheaf_reshape_2d(m->a, x, x->ne[0], x->ne[1]) : NULL;
    default:
        if (!sheaf_rows_contiguous(x)) return NULL;
        rows = 1 + rng_below(m->r, x->ne[1]);
        return sheaf_view_2d(m->a, x, x->ne[0], rows, x->nb[1], (size_t)(x->ne[1] - rows) * x->nb[1]);
    }
}

static sheaf_tensor *in_place_op(maker *m, sheaf_tensor *x) {
    switch (rng_below(m->r, 4)) {
    case 0: return sheaf_scale(m->a, x, 0.5f, 0.25f);
    case 1: return sheaf_add(m->a, x, partner(m, x));
    case 2: return sheaf_unary_op(m->a, x, SHEAF_UNARY_NEG);
    default: return sheaf_rows_contiguous(x) ? sheaf_rms_norm(m->a, x, NULL, 1e-3f) : NULL;
    }
}

static sheaf_tensor *other_op(maker *m, sheaf_tensor *x) {
    sheaf_tensor *into;
    switch (rng_below(m->r, 4)) {
    case 0: return sheaf_cont(m->a, x);
    case 1: return sheaf_rows_contiguous(x) ? sheaf_sum_rows(m->a, x) : NULL;
    case 2: {
        sheaf_tensor *y = any(m);
        bool fits =
            x->ne[0] == y->ne[0] && sheaf_rows_contiguous(x) && sheaf_rows_contiguous(y) && x->ne[1] * y->ne[1] < 64;
        return fits ? sheaf_mul_mat(m->a, x, y) : NULL;
    }
    default:
        /* A write into something computed: what read it before must be done, what reads it later sees it. Only
         * into a fresh copy, so that the order of the other readers says nothing. */
        into = sheaf_cont(m->a, x);
        return sheaf_cpy(m->a, partner(m, into), into);
    }
}

sheaf_graph *random_graph(rng *r, sheaf_arena *a, int n_nodes) {
    maker m = {.r = r, .a = a};
    sheaf_graph *g;
    for (int i = 0; i < 4; i++) m.pool[m.n++] = leaf(&m);
    for (int made = 0; made < n_nodes && m.n < MAX_POOL;) {
        float kind = rng_unit(r);
        sheaf_tensor *x = any(&m), *t = kind < 0.2f   ? view_of(&m, x)
                                        : kind < 0.6f ? in_place_op(&m, x)
                                        : kind < 0.9f ? other_op(&m, x)
                                                      : leaf(&m);
        if (!t) continue;
        m.pool[m.n++] = t;
        made++;
    }
    expect_ok(sheaf_arena_status(a));
    expect_ok(sheaf_graph_new(a, 16, &g));
    for (int i = 0; i < 4; i++) {
        sheaf_tensor *t = i == 0 ? m.pool[m.n - 1] : any(&m);
        expect_ok(sheaf_graph_expand(g, sheaf_set_flag(t, SHEAF_FLAG_OUTPUT)));
    }
    expect_ok(sheaf_graph_seal(g));
    expect_ok(sheaf_graph_check(g));
    return g;
}

/* --- the interpreter --- */

static float *at(const sheaf_tensor *t, void *const *addr, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    size_t offset = (size_t)i0 * t->nb[0] + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
    return (float *)((char *)addr[t->index] + offset);
}

/* Element `e` of `t` in order of its indices. */
static float *element(const sheaf_tensor *t, void *const *addr, int64_t e) {
    int64_t i[4];
    for (int d = 0; d < 4; d++) i[d] = e % t->ne[d], e /= t->ne[d];
    return at(t, addr, i[0], i[1], i[2], i[3]);
}

void fill_leafs(const sheaf_graph *g, void *const *addr) {
    for (int32_t i = 0; i < g->n_leafs; i++) {
        if (!addr[i]) continue;
        for (int64_t e = 0; e < sheaf_nelements(g->leafs[i]); e++) {
            *element(g->leafs[i], addr, e) = (float)((i * 37 + e * 11) % 64 - 31) / 16.0f;
        }
    }
}

static void rms_norm(const sheaf_tensor *t, void *const *addr) {
    const sheaf_tensor *x = t->src[0];
    for (int64_t r = 0; r < sheaf_nrows(t); r++) {
        float sum = 0;
        for (int64_t i = 0; i < t->ne[0]; i++) {
            float v = *element(x, addr, r * t->ne[0] + i);
            sum += v * v;
        }
        float scale = 1.0f / sqrtf(sum / (float)t->ne[0] + t->params.norm.eps);
        for (int64_t i = 0; i < t->ne[0]; i++) {
            *element(t, addr, r * t->ne[0] + i) = *element(x, addr, r * t->ne[0] + i) * scale;
        }
    }
}

static void sum_rows(const sheaf_tensor *t, void *const *addr) {
    const sheaf_tensor *x = t->src[0];
    for (int64_t r = 0; r < sheaf_nrows(x); r++) {
        float sum = 0;
        for (int64_t i = 0; i < x->ne[0]; i++) sum += *element(x, addr, r * x->ne[0] + i);
        *element(t, addr, r) = sum;
    }
}

static void mul_mat(const sheaf_tensor *t, void *const *addr) {
    const sheaf_tensor *w = t->src[0], *x = t->src[1];
    for (int64_t n = 0; n < x->ne[1]; n++) {
        for (int64_t m = 0; m < w->ne[1]; m++) {
            float sum = 0;
            for (int64_t k = 0; k < w->ne[0]; k++) sum += *at(w, addr, k, m, 0, 0) * *at(x, addr, k, n, 0, 0);
            *at(t, addr, m, n, 0, 0) = sum * 0.1f;
        }
    }
}

static void each_element(const sheaf_tensor *t, void *const *addr) {
    for (int64_t e = 0; e < sheaf_nelements(t); e++) {
        float x = *element(t->src[0], addr, e);
        float y = t->op == SHEAF_OP_ADD ? *element(t->src[1], addr, e) : 0;
        float *out = element(t, addr, e);
        switch (t->op) {
        case SHEAF_OP_SCALE: *out = x * t->params.scale.factor + t->params.scale.bias; break;
        case SHEAF_OP_UNARY: *out = -x; break;
        case SHEAF_OP_ADD: *out = x + y; break;
        default: *out = x; break; /* cont, cpy */
        }
    }
}

void interpret(const sheaf_graph *g, void *const *addr) {
    for (int32_t n = 0; n < g->n_nodes; n++) {
        const sheaf_tensor *t = g->nodes[n];
        if (sheaf_op_is_header(t->op)) continue;
        switch (t->op) {
        case SHEAF_OP_RMS_NORM: rms_norm(t, addr); break;
        case SHEAF_OP_SUM_ROWS: sum_rows(t, addr); break;
        case SHEAF_OP_MUL_MAT: mul_mat(t, addr); break;
        default: each_element(t, addr); break;
        }
    }
}
