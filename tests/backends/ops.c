/* Every op x type x shape x level x number of threads against the reference, and the same bits for
 * every number of threads. Cases are rows of tables; a row says how to build one node. */
#include "tests/backends/reference.h"
#include "tests/backends/workbench.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int thread_counts[] = {1, 2, 5};
enum { N_THREAD_COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

typedef struct op_case {
    const char *name;
    sheaf_tensor *(*build)(sheaf_arena *a, const struct op_case *c);
    double bound; /* on |got - expected| / max(1, largest |expected|) */
    int kind;     /* op parameter of a family of cases */
    sheaf_type type;
    int64_t m, n, k;
} op_case;

/* --- running one case --------------------------------------------------------------------------------- */

/* Ids and positions by op; floats were filled by place. */
static void fill_integers(sheaf_tensor *node, uint32_t seed) {
    static const int ids_at[SHEAF_OP_COUNT] = {
        [SHEAF_OP_SET_ROWS] = 2, [SHEAF_OP_GET_ROWS] = 1, [SHEAF_OP_ROPE] = 1,
        [SHEAF_OP_ADD_ID] = 2,   [SHEAF_OP_PICK] = 1,     [SHEAF_OP_MUL_MAT_ID] = 2,
    };
    if (!ids_at[node->op]) return;
    sheaf_tensor *ids = node->src[ids_at[node->op]];
    int64_t rows = node->op == SHEAF_OP_ROPE         ? 3000
                   : node->op == SHEAF_OP_MUL_MAT_ID ? node->src[0]->ne[2]
                   : node->op == SHEAF_OP_ADD_ID     ? node->src[1]->ne[1]
                   : node->op == SHEAF_OP_PICK       ? node->src[0]->ne[0]
                                                     : node->src[0]->ne[1];
    for (int64_t i = 0; i < sheaf_nelements(ids); i++) {
        int64_t id = (int64_t)(random_next(&seed) % (uint32_t)(rows + 2)) - 1; /* -1 and `rows` are outside */
        if (node->op == SHEAF_OP_ROPE && id < 0) id = 0;
        if (ids->type == SHEAF_I64)
            ((int64_t *)ids->data)[i] = id;
        else
            ((int32_t *)ids->data)[i] = (int32_t)id;
    }
}

static double worst_error(const sheaf_tensor *node, const double *expected) {
    double largest = 1, worst = 0;
    int64_t n = sheaf_nelements(node);
    for (int64_t i = 0; i < n; i++)
        if (isfinite(expected[i])) largest = fmax(largest, fabs(expected[i]));
    const double *e = expected;
    for (int64_t i3 = 0; i3 < node->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < node->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < node->ne[1]; i1++)
                for (int64_t i0 = 0; i0 < node->ne[0]; i0++, e++) {
                    double got = reference_at(node, i0, i1, i2, i3);
                    if (got == *e || (isnan(got) && isnan(*e))) continue;
                    double error = fabs(got - *e) / largest;
                    worst = isnan(error) ? INFINITY : fmax(worst, error);
                }
    return worst;
}

/* Builds, computes, compares. *expected is worked out where it is NULL, for the same case has the same operands
 * everywhere; the result's bytes go to *bytes. The caller frees both. */
static void run_case(workbench *w, const op_case *c, const char *where, double **expected, uint8_t **bytes,
                     size_t *n_bytes) {
    sheaf_graph *g;
    cr_assert_eq(workbench_clear(w), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *node = c->build(w->arena, c);
    cr_assert_eq(workbench_graph(w, node, &g), SHEAF_OK, "%s %s: %s", where, c->name, sheaf_error());
    cr_assert_eq(workbench_place(w, 12345), SHEAF_OK, "%s", sheaf_error());
    fill_integers(node, 99);
    cr_assert(sheaf_device_supports_op(w->device, node), "%s %s: not supported", where, c->name);
    if (!*expected) {
        *expected = malloc((size_t)(sheaf_nelements(node) + 1) * sizeof **expected);
        reference_eval(node, *expected);
    }
    cr_assert_eq(sheaf_backend_compute(w->backend, g), SHEAF_OK, "%s %s: %s", where, c->name, sheaf_error());
    double worst = worst_error(node, *expected);
    cr_assert(worst <= c->bound, "%s %s: error %g, bound %g", where, c->name, worst, c->bound);
    *n_bytes = sheaf_nbytes(node);
    *bytes = malloc(*n_bytes + 1);
    if (*n_bytes) memcpy(*bytes, node->data, *n_bytes);
}

/* All rows of a table at every level and number of threads; bits must not depend on the threads. */
static void run_table(const op_case *cases, int n) {
    double **expected = calloc((size_t)n, sizeof *expected);
    for (const char *const *level = kernel_levels(); *level; level++) {
        uint8_t **first = calloc((size_t)n, sizeof *first);
        for (int t = 0; t < N_THREAD_COUNTS; t++) {
            workbench w;
            char where[64];
            snprintf(where, sizeof where, "%s, %d threads:", *level, thread_counts[t]);
            cr_assert_eq(workbench_open(&w, "cpu", thread_counts[t], *level), SHEAF_OK, "%s", sheaf_error());
            for (int i = 0; i < n; i++) {
                uint8_t *bytes;
                size_t size;
                run_case(&w, &cases[i], where, &expected[i], &bytes, &size);
                if (t == 0) {
                    first[i] = bytes;
                    continue;
                }
                cr_assert(memcmp(first[i], bytes, size) == 0, "%s %s: other bits than with one thread", where,
                          cases[i].name);
                free(bytes);
            }
            workbench_close(&w);
        }
        for (int i = 0; i < n; i++) free(first[i]);
        free(first);
    }
    for (int i = 0; i < n; i++) free(expected[i]);
    free(expected);
}

#define RUN(table) run_table(table, (int)(sizeof(table) / sizeof(table)[0]))

/* --- element by element ---------------------------------------------------------------------------------- */

static sheaf_tensor *binary_of(sheaf_arena *a, int kind, sheaf_tensor *x, sheaf_tensor *y) {
    switch (kind) {
    case 0: return sheaf_add(a, x, y);
    case 1: return sheaf_sub(a, x, y);
    case 2: return sheaf_mul(a, x, y);
    /* a divisor near zero has no bound on its error: keep it in [4, 6] */
    default: return sheaf_div(a, x, y);
    }
}

static sheaf_tensor *same_shape(sheaf_arena *a, const op_case *c) {
    int64_t ne[4] = {c->m, c->n, 3, 2};
    return binary_of(a, c->kind, sheaf_new(a, SHEAF_F32, 4, ne), sheaf_new(a, SHEAF_F32, 4, ne));
}
static sheaf_tensor *row_broadcast(sheaf_arena *a, const op_case *c) {
    int64_t ne[4] = {c->m, c->n, 3, 2};
    return binary_of(a, c->kind, sheaf_new(a, SHEAF_F32, 4, ne), sheaf_new_1d(a, SHEAF_F32, c->m));
}
static sheaf_tensor *scalar_broadcast(sheaf_arena *a, const op_case *c) {
    return binary_of(a, c->kind, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 2), sheaf_new_3d(a, SHEAF_F32, 1, c->n, 1));
}
static sheaf_tensor *repeat_broadcast(sheaf_arena *a, const op_case *c) {
    return binary_of(a, c->kind, sheaf_new_2d(a, SHEAF_F32, 3 * c->m, c->n), sheaf_new_2d(a, SHEAF_F32, c->m, 1));
}
static sheaf_tensor *transposed(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *x = sheaf_transpose(a, sheaf_new_2d(a, SHEAF_F32, c->n, c->m));
    return binary_of(a, c->kind, x, sheaf_transpose(a, sheaf_new_2d(a, SHEAF_F32, c->n, c->m)));
}
static sheaf_tensor *in_view(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *big = sheaf_new_2d(a, SHEAF_F32, c->m + 5, c->n + 2);
    sheaf_tensor *v = sheaf_view_2d(a, big, c->m, c->n, big->nb[1], 3 * sizeof(float) + big->nb[1]);
    return binary_of(a, c->kind, v, sheaf_new_2d(a, SHEAF_F32, c->m, c->n));
}
static sheaf_tensor *scale(sheaf_arena *a, const op_case *c) {
    return sheaf_scale(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n), 1.75f, -0.25f);
}
static sheaf_tensor *unary(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *x = sheaf_new_2d(a, SHEAF_F32, c->m, c->n);
    return sheaf_unary_op(a, x, (sheaf_unary)c->kind);
}
static sheaf_tensor *unary_strided(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *x = sheaf_transpose(a, sheaf_new_2d(a, SHEAF_F32, c->n, c->m));
    return sheaf_unary_op(a, x, (sheaf_unary)c->kind);
}
static sheaf_tensor *glu(sheaf_arena *a, const op_case *c) {
    return sheaf_glu_op(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n), sheaf_new_2d(a, SHEAF_F32, c->m, c->n),
                        (sheaf_glu)c->kind);
}
static sheaf_tensor *glu_halves(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *both = sheaf_new_2d(a, SHEAF_F32, 2 * c->m, c->n);
    return sheaf_glu_op(a, sheaf_view_2d(a, both, c->m, c->n, both->nb[1], 0),
                        sheaf_view_2d(a, both, c->m, c->n, both->nb[1], c->n ? (size_t)c->m * sizeof(float) : 0),
                        (sheaf_glu)c->kind);
}

Test(ops, elementwise, .timeout = 120) {
    static const int64_t shapes[][2] = {{1, 1}, {7, 3}, {64, 5}, {1023, 2}, {1025, 1}, {5000, 1}, {0, 4}, {4, 0}};
    static const struct {
        const char *name;
        sheaf_tensor *(*build)(sheaf_arena *, const op_case *);
        int kinds;
        double bound;
    } families[] = {
        {"same shape", same_shape, 3, 1e-6},
        {"row broadcast", row_broadcast, 3, 1e-6},
        {"scalar broadcast", scalar_broadcast, 3, 1e-6},
        {"repeated", repeat_broadcast, 3, 1e-6},
        {"transposed", transposed, 3, 1e-6},
        {"view", in_view, 3, 1e-6},
        {"scale", scale, 1, 1e-6},
        {"unary", unary, SHEAF_UNARY_COUNT, 2e-6},
        {"unary strided", unary_strided, SHEAF_UNARY_COUNT, 2e-6},
        {"glu", glu, SHEAF_GLU_COUNT, 2e-6},
        {"glu of halves", glu_halves, SHEAF_GLU_COUNT, 2e-6},
    };
    op_case cases[640];
    char names[640][64];
    int n = 0;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (int kind = 0; kind < families[f].kinds; kind++)
            for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
                snprintf(names[n], sizeof names[n], "%s kind %d of %lld x %lld", families[f].name, kind,
                         (long long)shapes[s][0], (long long)shapes[s][1]);
                cases[n] = (op_case){.name = names[n],
                                     .build = families[f].build,
                                     .bound = families[f].bound,
                                     .kind = kind,
                                     .m = shapes[s][0],
                                     .n = shapes[s][1]};
                n++;
            }
    run_table(cases, n);
}

/* --- rows ---------------------------------------------------------------------------------------------------- */

static sheaf_tensor *rms_norm(sheaf_arena *a, const op_case *c) {
    return sheaf_rms_norm(a, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 2),
                          c->kind ? sheaf_new_1d(a, SHEAF_F32, c->m) : NULL, 1e-5f);
}
static sheaf_tensor *norm(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *w = c->kind > 0 ? sheaf_new_1d(a, SHEAF_F32, c->m) : NULL;
    return sheaf_norm(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n), w,
                      c->kind > 1 ? sheaf_new_1d(a, SHEAF_F32, c->m) : NULL, 1e-5f);
}
static sheaf_tensor *rms_norm_view(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *big = sheaf_new_2d(a, SHEAF_F32, c->m + 9, c->n);
    return sheaf_rms_norm(a, sheaf_view_2d(a, big, c->m, c->n, big->nb[1], 4 * sizeof(float)), NULL, 1e-6f);
}
static sheaf_tensor *soft_max(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *mask = c->kind ? sheaf_new_2d(a, c->type, c->m, c->n) : NULL;
    return sheaf_soft_max(a, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 6), mask, 0.7f, c->kind == 2 ? 8.0f : 0.0f);
}
static sheaf_tensor *sum_squares(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *t = sheaf_sum_squares(a, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 2),
                                        c->kind ? sheaf_new_3d(a, SHEAF_F32, c->m + 7, c->n, 2) : NULL);
    if (t && c->kind) t->params.sum_squares.skip[1] = 5;
    return t;
}

static sheaf_tensor *norm_by(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *x = sheaf_new_2d(a, SHEAF_F32, c->m, c->n);
    sheaf_tensor *sums = sheaf_new_2d(a, SHEAF_F32, 2, c->n); /* any numbers, negative ones too: hence the epsilon */
    return sheaf_rms_norm_by(a, x, sums, 1, c->kind ? sheaf_new_1d(a, SHEAF_F32, c->m) : NULL, 1.0f);
}

static sheaf_tensor *sum_rows(sheaf_arena *a, const op_case *c) {
    return sheaf_sum_rows(a, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 2));
}
static sheaf_tensor *argmax(sheaf_arena *a, const op_case *c) {
    return sheaf_argmax(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n));
}

Test(ops, rows, .timeout = 120) {
    static const op_case cases[] = {
        {"rms_norm", rms_norm, 1e-5, 0, .m = 64, .n = 3},
        {"rms_norm weight", rms_norm, 1e-5, 1, .m = 576, .n = 5},
        {"rms_norm odd", rms_norm, 1e-5, 1, .m = 33, .n = 1},
        {"rms_norm one", rms_norm, 1e-5, 1, .m = 1, .n = 2},
        {"rms_norm no rows", rms_norm, 0, 1, .m = 8, .n = 0},
        {"rms_norm view", rms_norm_view, 1e-5, 0, .m = 40, .n = 4},
        {"norm", norm, 1e-5, 0, .m = 64, .n = 3},
        {"norm weight", norm, 1e-5, 1, .m = 65, .n = 3},
        {"norm weight bias", norm, 1e-5, 2, .m = 17, .n = 9},
        {"soft_max", soft_max, 1e-6, 0, .m = 50, .n = 3},
        {"soft_max f32 mask", soft_max, 1e-6, 1, SHEAF_F32, 50, 3},
        {"soft_max f16 mask", soft_max, 1e-6, 1, SHEAF_F16, 129, 2},
        {"soft_max alibi", soft_max, 1e-6, 2, SHEAF_F16, 31, 4},
        {"soft_max one", soft_max, 1e-6, 1, SHEAF_F32, 1, 1},
        {"sum_squares", sum_squares, 1e-6, 0, .m = 96, .n = 3},
        {"sum_squares of two", sum_squares, 1e-6, 1, .m = 33, .n = 2},
        {"rms_norm_by", norm_by, 1e-5, 0, .m = 96, .n = 3},
        {"rms_norm_by weight", norm_by, 1e-5, 1, .m = 33, .n = 2},
        {"sum_rows", sum_rows, 1e-6, .m = 1000, .n = 3},
        {"sum_rows one", sum_rows, 1e-6, .m = 1, .n = 1},
        {"argmax", argmax, 0, .m = 1000, .n = 3},
        {"argmax one", argmax, 0, .m = 1, .n = 5},
    };
    RUN(cases);
}

/* --- rotations -------------------------------------------------------------------------------------------------- */

static sheaf_tensor *rope(sheaf_arena *a, const op_case *c) {
    sheaf_params p = {.rope = {.kind = c->kind & 2,
                               .n_dims = (int32_t)c->k,
                               .n_ctx_orig = 2048,
                               .freq_base = 10000.0f,
                               .freq_scale = 1.0f,
                               .attn_factor = 1.0f,
                               .beta_fast = 32,
                               .beta_slow = 1}};
    if (c->kind & 4) p.rope.freq_scale = 0.25f, p.rope.ext_factor = 1.0f, p.rope.attn_factor = 1.1f;
    sheaf_tensor *factors = c->kind & 8 ? sheaf_new_1d(a, SHEAF_F32, c->k / 2) : NULL;
    sheaf_tensor *x = sheaf_new_3d(a, SHEAF_F32, c->m, 3, c->n);
    if (c->kind & 16) { /* heads and tokens swapped in memory */
        x = sheaf_permute(a, sheaf_new_3d(a, SHEAF_F32, c->m, c->n, 3), 0, 2, 1, 3);
    }
    return sheaf_rope(a, x, sheaf_new_1d(a, SHEAF_I32, c->n), factors, &p);
}

Test(ops, rotations, .timeout = 120) {
    static const op_case cases[] = {
        {"norm", rope, 2e-6, 0, .m = 64, .n = 5, .k = 64},
        {"neox", rope, 2e-6, 2, .m = 64, .n = 5, .k = 64},
        {"norm partial", rope, 2e-6, 0, .m = 80, .n = 3, .k = 32},
        {"neox partial", rope, 2e-6, 2, .m = 80, .n = 3, .k = 32},
        {"yarn", rope, 2e-6, 4, .m = 64, .n = 4, .k = 64},
        {"yarn neox", rope, 2e-6, 6, .m = 128, .n = 4, .k = 128},
        {"neox permuted", rope, 2e-6, 18, .m = 32, .n = 6, .k = 32},
        {"nothing rotated", rope, 0, 0, .m = 8, .n = 2, .k = 0},
        {"no tokens", rope, 0, 2, .m = 8, .n = 0, .k = 8},
    };
    RUN(cases);
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static sheaf_tensor *cont_permuted(sheaf_arena *a, const op_case *c) {
    return sheaf_cont(a, sheaf_permute(a, sheaf_new_3d(a, c->type, c->m, c->n, 3), 0, 2, 1, 3));
}
static sheaf_tensor *cont_transposed(sheaf_arena *a, const op_case *c) {
    return sheaf_cont(a, sheaf_transpose(a, sheaf_new_2d(a, c->type, c->m, c->n)));
}
static sheaf_tensor *convert(sheaf_arena *a, const op_case *c) {
    return sheaf_cpy(a, sheaf_new_2d(a, (sheaf_type)c->kind, c->m, c->n), sheaf_new_2d(a, c->type, c->m, c->n));
}
static sheaf_tensor *concat(sheaf_arena *a, const op_case *c) {
    int64_t x[4] = {c->m, 2, 3, 2}, y[4] = {c->m, 2, 3, 2};
    y[c->kind] += c->n;
    return sheaf_concat(a, sheaf_new(a, c->type, 4, x), sheaf_new(a, c->type, 4, y), c->kind);
}
static sheaf_tensor *fill(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *big = sheaf_new_2d(a, c->type, c->m, c->n + 2);
    return sheaf_fill(a, sheaf_view_2d(a, big, c->m, c->n, big->nb[1], big->nb[1]), (float)c->kind);
}
static sheaf_tensor *get_rows(sheaf_arena *a, const op_case *c) {
    return sheaf_get_rows(a, sheaf_new_2d(a, c->type, c->m, c->k), sheaf_new_1d(a, SHEAF_I32, c->n));
}
static sheaf_tensor *set_rows(sheaf_arena *a, const op_case *c) {
    return sheaf_set_rows(a, sheaf_new_2d(a, c->type, c->m, c->k), sheaf_new_2d(a, SHEAF_F32, c->m, c->n),
                          sheaf_new_1d(a, SHEAF_I64, c->n));
}

Test(ops, copies, .timeout = 120) {
    static const op_case cases[] = {
        {"cont permuted", cont_permuted, 0, 0, SHEAF_F32, 33, 4},
        {"cont permuted q4_0", cont_permuted, 0, 0, SHEAF_Q4_0, 64, 4},
        {"cont transposed", cont_transposed, 0, 0, SHEAF_F32, 33, 5},
        {"cont transposed f16", cont_transposed, 0, 0, SHEAF_F16, 17, 5},
        {"cont empty", cont_transposed, 0, 0, SHEAF_F32, 0, 5},
        {"f32 to f16", convert, 1e-3, SHEAF_F32, SHEAF_F16, 50, 3},
        {"f16 to f32", convert, 0, SHEAF_F16, SHEAF_F32, 50, 3},
        {"f32 to bf16", convert, 5e-3, SHEAF_F32, SHEAF_BF16, 50, 3},
        {"bf16 to f16", convert, 1e-3, SHEAF_BF16, SHEAF_F16, 50, 3},
        {"f32 to q8_0", convert, 1e-2, SHEAF_F32, SHEAF_Q8_0, 64, 3},
        {"q4_0 to f32", convert, 1e-6, SHEAF_Q4_0, SHEAF_F32, 64, 3},
        {"q4_0 to q8_0", convert, 1e-2, SHEAF_Q4_0, SHEAF_Q8_0, 64, 3},
        {"q6_k to f16", convert, 1e-3, SHEAF_Q6_K, SHEAF_F16, 256, 3},
        {"i32 to i32", convert, 0, SHEAF_I32, SHEAF_I32, 7, 3},
        {"concat 0", concat, 0, 0, SHEAF_F32, 5, 3},
        {"concat 1", concat, 0, 1, SHEAF_F32, 5, 3},
        {"concat 2", concat, 0, 2, SHEAF_F16, 5, 3},
        {"concat 3", concat, 0, 3, SHEAF_F32, 5, 3},
        {"concat q8_0", concat, 0, 0, SHEAF_Q8_0, 32, 64},
        {"fill zero", fill, 0, 0, SHEAF_Q8_0, 64, 3},
        {"fill three", fill, 0, 3, SHEAF_F16, 13, 4},
        {"get_rows f32", get_rows, 0, 0, SHEAF_F32, 33, 9, 20},
        {"get_rows f16", get_rows, 0, 0, SHEAF_F16, 33, 9, 20},
        {"get_rows q4_1", get_rows, 1e-6, 0, SHEAF_Q4_1, 64, 9, 20},
        {"get_rows q6_k", get_rows, 1e-6, 0, SHEAF_Q6_K, 256, 9, 20},
        {"get_rows none", get_rows, 0, 0, SHEAF_F32, 8, 0, 4},
        {"set_rows f32", set_rows, 0, 0, SHEAF_F32, 33, 9, 20},
        {"set_rows f16", set_rows, 1e-3, 0, SHEAF_F16, 64, 19, 11},
        {"set_rows q8_0", set_rows, 1e-2, 0, SHEAF_Q8_0, 64, 9, 20},
        {"set_rows none", set_rows, 0, 0, SHEAF_F32, 8, 0, 4},
    };
    RUN(cases);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

enum { MASK = 1, SINKS = 2, CAP = 4, ALIBI = 8, SHARD = 16 };

/* m: head length, n: tokens, k: positions; 6 query heads on 2 KV heads. */
static sheaf_tensor *attention(sheaf_arena *a, const op_case *c) {
    int64_t heads = c->kind & SHARD ? 4 : 6;
    sheaf_tensor *q = sheaf_permute(a, sheaf_new_3d(a, SHEAF_F32, c->m, heads, c->n), 0, 2, 1, 3);
    sheaf_tensor *k = sheaf_new_3d(a, c->type, c->m, c->k, 2), *v = sheaf_new_3d(a, c->type, c->m, c->k, 2);
    sheaf_tensor *mask = c->kind & MASK ? sheaf_new_2d(a, SHEAF_F16, c->k, c->n) : NULL;
    sheaf_tensor *sinks = c->kind & SINKS ? sheaf_new_1d(a, SHEAF_F32, heads) : NULL;
    sheaf_tensor *t =
        sheaf_attention(a, q, k, v, mask, sinks, 0.25f, c->kind & ALIBI ? 8.0f : 0.0f, c->kind & CAP ? 2.0f : 0.0f);
    if (t && c->kind & SHARD) { /* heads 2 to 5 of 6: KV heads 0 and 1 */
        t->params.attention.q_head0 = 2;
        t->params.attention.n_head = 6;
    }
    return t;
}

Test(ops, attention, .timeout = 120) {
    static const op_case cases[] = {
        {"f32 one", attention, 2e-5, 0, SHEAF_F32, 32, 1, 1},
        {"f32", attention, 2e-5, MASK, SHEAF_F32, 64, 3, 300},
        {"f16", attention, 2e-3, MASK, SHEAF_F16, 64, 5, 257},
        {"f16 many tokens", attention, 2e-3, MASK, SHEAF_F16, 64, 130, 130},
        {"bf16", attention, 2e-3, 0, SHEAF_BF16, 64, 2, 64},
        {"q8_0", attention, 5e-3, MASK, SHEAF_Q8_0, 64, 2, 100},
        {"cap", attention, 2e-5, MASK | CAP, SHEAF_F32, 32, 2, 70},
        {"sinks", attention, 2e-5, SINKS, SHEAF_F32, 32, 2, 70},
        {"alibi", attention, 2e-3, MASK | ALIBI, SHEAF_F16, 32, 2, 70},
        {"shard", attention, 2e-5, MASK | SHARD, SHEAF_F32, 32, 2, 70},
        {"no tokens", attention, 0, 0, SHEAF_F32, 32, 0, 5},
        {"odd head", attention, 2e-5, MASK, SHEAF_F32, 20, 2, 65},
    };
    RUN(cases);
}

/* --- products --------------------------------------------------------------------------------------------------------
 */

static sheaf_tensor *mul_mat(sheaf_arena *a, const op_case *c) {
    return sheaf_mul_mat(a, sheaf_new_2d(a, c->type, c->k, c->m), sheaf_new_2d(a, SHEAF_F32, c->k, c->n));
}
static sheaf_tensor *mul_mat_batched(sheaf_arena *a, const op_case *c) {
    int64_t w[4] = {c->k, c->m, 2, 1}, x[4] = {c->k, c->n, 4, 3};
    return sheaf_mul_mat(a, sheaf_new(a, c->type, 4, w), sheaf_new(a, SHEAF_F32, 4, x));
}
static sheaf_tensor *mul_mat_permuted(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *w = sheaf_permute(a, sheaf_new_3d(a, c->type, c->k, 2, c->m), 0, 2, 1, 3);
    sheaf_tensor *x = sheaf_permute(a, sheaf_new_3d(a, SHEAF_F32, c->k, 4, c->n), 0, 2, 1, 3);
    return sheaf_mul_mat(a, w, x);
}
static sheaf_tensor *mul_mat_segments(sheaf_arena *a, const op_case *c) {
    return sheaf_mul_mat_segments(a, mul_mat(a, c), c->kind);
}
static sheaf_tensor *mul_mat_f64(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *t = mul_mat_segments(a, c);
    if (!t) return NULL;
    t->type = SHEAF_F64;
    t->nb[0] = 8;
    for (int i = 1; i < 4; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
    return t;
}

/* What 8-bit activations may cost, or f32 sums. */
static double product_bound(sheaf_type t) { return sheaf_type_is_quantized(t) ? 4e-2 : t == SHEAF_F32 ? 1e-5 : 2e-3; }

Test(ops, products, .timeout = 300) {
    static const sheaf_type types[] = {SHEAF_F32,  SHEAF_F16,    SHEAF_BF16,   SHEAF_Q4_0, SHEAF_Q4_1, SHEAF_Q5_0,
                                       SHEAF_Q5_1, SHEAF_Q8_0,   SHEAF_Q2_K,   SHEAF_Q3_K, SHEAF_Q4_K, SHEAF_Q5_K,
                                       SHEAF_Q6_K, SHEAF_IQ4_NL, SHEAF_IQ4_XS, SHEAF_MXFP4};
    static const struct {
        const char *name;
        sheaf_tensor *(*build)(sheaf_arena *, const op_case *);
        int kind;
        int64_t m, n, k;
    } shapes[] = {
        {"vector", mul_mat, 0, 70, 1, 512},
        {"few", mul_mat, 0, 33, 5, 256},
        {"many", mul_mat, 0, 130, 70, 256},
        {"batched", mul_mat_batched, 0, 20, 3, 256},
        {"permuted", mul_mat_permuted, 0, 20, 3, 256},
        {"segments", mul_mat_segments, 256, 40, 3, 1024},
        {"f64", mul_mat_f64, 256, 40, 3, 1024},
        {"no rows", mul_mat, 0, 0, 3, 256},
        {"no columns", mul_mat, 0, 5, 0, 256},
        {"nothing to add", mul_mat, 0, 5, 3, 0},
    };
    op_case cases[256];
    char names[256][64];
    int n = 0;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            snprintf(names[n], sizeof names[n], "%s %s", sheaf_type_name(types[t]), shapes[s].name);
            cases[n] = (op_case){.name = names[n],
                                 .build = shapes[s].build,
                                 .bound = product_bound(types[t]),
                                 .kind = shapes[s].kind,
                                 .type = types[t],
                                 .m = shapes[s].m,
                                 .n = shapes[s].n,
                                 .k = shapes[s].k};
            n++;
        }
    run_table(cases, n);
}

/* --- mixtures of experts -------------------------------------------------------------------------------------------
 */

/* m, k: an expert's; n: tokens; kind: experts used of 6, + 16: one column a token, + 32: f64, summed. */
static sheaf_tensor *mul_mat_id(sheaf_arena *a, const op_case *c) {
    int64_t used = c->kind & 15;
    sheaf_tensor *w = sheaf_new_3d(a, c->type, c->k, c->m, 6), *ids = sheaf_new_2d(a, SHEAF_I32, used, c->n);
    sheaf_tensor *x = sheaf_new_3d(a, SHEAF_F32, c->k, c->kind & 16 ? 1 : used, c->n);
    return c->kind & 32 ? sheaf_mul_mat_id_sum(a, w, x, ids, (int32_t)c->k / 2) : sheaf_mul_mat_id(a, w, x, ids);
}
static sheaf_tensor *mul_mat_id_segments(sheaf_arena *a, const op_case *c) {
    return sheaf_mul_mat_segments(a, mul_mat_id(a, c), (int32_t)c->k / 2);
}

Test(ops, products_by_id, .timeout = 300) {
    static const sheaf_type types[] = {SHEAF_F32, SHEAF_BF16, SHEAF_Q4_0, SHEAF_Q8_0, SHEAF_Q6_K, SHEAF_MXFP4};
    static const struct {
        const char *name;
        sheaf_tensor *(*build)(sheaf_arena *, const op_case *);
        int kind;
        int64_t m, n, k;
    } shapes[] = {
        {"one token", mul_mat_id, 2, 70, 1, 512},
        {"one column a token", mul_mat_id, 2 + 16, 33, 5, 512},
        {"many", mul_mat_id, 3, 130, 170, 512}, /* more columns an expert than one tile holds */
        {"segments", mul_mat_id_segments, 2, 33, 5, 512},
        {"sum", mul_mat_id, 2 + 32, 33, 5, 512},
        {"sum of one", mul_mat_id, 1 + 32, 33, 1, 512},
        {"sum of many", mul_mat_id, 4 + 32, 40, 170, 512},
        {"no tokens", mul_mat_id, 2, 33, 0, 512},
        {"none used", mul_mat_id, 0, 33, 3, 512},
        {"no rows", mul_mat_id, 2, 0, 3, 512},
    };
    op_case cases[64];
    char names[64][64];
    int n = 0;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++, n++) {
            snprintf(names[n], sizeof names[n], "%s by id, %s", sheaf_type_name(types[t]), shapes[s].name);
            cases[n] =
                (op_case){names[n],    shapes[s].build, product_bound(types[t]), shapes[s].kind, types[t], shapes[s].m,
                          shapes[s].n, shapes[s].k};
        }
    run_table(cases, n);
}

static sheaf_tensor *add_id(sheaf_arena *a, const op_case *c) {
    return sheaf_add_id(a, sheaf_new_3d(a, SHEAF_F32, c->m, 3, c->n), sheaf_new_2d(a, SHEAF_F32, c->m, 5),
                        sheaf_new_2d(a, SHEAF_I32, 3, c->n));
}
static sheaf_tensor *top_k(sheaf_arena *a, const op_case *c) {
    return sheaf_top_k(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n), c->k);
}
static sheaf_tensor *pick(sheaf_arena *a, const op_case *c) {
    return sheaf_pick(a, sheaf_new_2d(a, SHEAF_F32, c->m, c->n), sheaf_new_2d(a, SHEAF_I32, c->k, c->n));
}
/* A bias of one element an expert, summed by weight: a product of length 1. */
static sheaf_tensor *weighted_bias(sheaf_arena *a, const op_case *c) {
    sheaf_tensor *w = sheaf_new_3d(a, SHEAF_F32, 1, c->m, 5), *x = sheaf_new_3d(a, SHEAF_F32, 1, 3, c->n);
    return sheaf_mul_mat_id_sum(a, w, x, sheaf_new_2d(a, SHEAF_I32, 3, c->n), 1);
}

Test(ops, choices_of_experts, .timeout = 120) {
    static const op_case cases[] = {
        {"add_id", add_id, 1e-6, .m = 40, .n = 7},
        {"add_id one", add_id, 1e-6, .m = 1, .n = 1},
        {"add_id none", add_id, 0, .m = 8, .n = 0},
        {"top 2 of 8", top_k, 0, .m = 8, .n = 9, .k = 2},
        {"top 8 of 128", top_k, 0, .m = 128, .n = 5, .k = 8},
        {"sort", top_k, 0, .m = 77, .n = 3, .k = 77},
        {"top none", top_k, 0, .m = 5, .n = 3, .k = 0},
        {"pick", pick, 0, .m = 9, .n = 6, .k = 4},
        {"weighted bias", weighted_bias, 1e-6, .m = 33, .n = 4},
    };
    RUN(cases);
}

/* Ties go to the lower index, NaN to the end, whatever lies around them. */
Test(ops, order_is_strict, .timeout = 30) {
    static const float values[3][6] = {
        {1, 1, 1, 1, 1, 1}, {NAN, 2, NAN, 2, -INFINITY, 3}, {NAN, NAN, NAN, NAN, NAN, 0}};
    static const int32_t expected[3][6] = {{0, 1, 2, 3, 4, 5}, {5, 1, 3, 4, 0, 2}, {5, 0, 1, 2, 3, 4}};
    workbench w;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    for (int64_t k = 1; k <= 6; k++) {
        sheaf_graph *g;
        cr_assert_eq(workbench_clear(&w), SHEAF_OK, "%s", sheaf_error());
        sheaf_tensor *x = sheaf_new_2d(w.arena, SHEAF_F32, 6, 3), *t = sheaf_top_k(w.arena, x, k);
        cr_assert_eq(workbench_graph(&w, t, &g), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(workbench_place(&w, 1), SHEAF_OK, "%s", sheaf_error());
        memcpy(x->data, values, sizeof values);
        cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "%s", sheaf_error());
        for (int r = 0; r < 3; r++)
            for (int64_t i = 0; i < k; i++) {
                int32_t got = ((const int32_t *)t->data)[r * k + i];
                cr_assert_eq(got, expected[r][i], "row %d, place %d of %d: %d, expected %d", r, (int)i, (int)k, got,
                             expected[r][i]);
            }
    }
    workbench_close(&w);
}

/* The best of rows as pairs: what sorting says, for every length around the cut into chunks, with ids from anywhere. */
static void check_best(workbench *w, int64_t n, int64_t n_ids, int32_t k, int32_t first) {
    enum { ROWS = 3, PLACES = 2 };
    sheaf_graph *g;
    uint32_t seed = 17;
    cr_assert_eq(workbench_clear(w), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *x = sheaf_new_2d(w->arena, SHEAF_F32, n, ROWS), *t = sheaf_best_of(w->arena, x, n_ids, k, PLACES);
    cr_assert_not_null(t, "%s", sheaf_error());
    t->params.best.id_first = first;
    t->params.best.id_end += first;
    cr_assert_eq(workbench_graph(w, t, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_place(w, 1), SHEAF_OK, "%s", sheaf_error());
    float *v = x->data;
    for (int64_t i = 0; i < n * ROWS; i++) {
        uint32_t r = random_next(&seed);
        v[i] = r % 11 == 0 ? NAN : r % 13 == 0 ? -INFINITY : (float)(r % 50);
    }
    cr_assert_eq(sheaf_backend_compute(w->backend, g), SHEAF_OK, "%s", sheaf_error());
    for (int64_t r = 0; r < ROWS; r++) {
        const float *row = v + r * n;
        const int64_t *pair = (const int64_t *)t->data + r * k * PLACES;
        for (int64_t i = 0; i < k * PLACES; i++) {
            int32_t id = sheaf_best_id(pair[i]);
            if (i >= k || i >= n_ids) {
                cr_assert(id == -1, "row %d, place %d: id %d", (int)r, (int)i, id);
                continue;
            }
            cr_assert(id >= first && id < first + n_ids, "row %d, place %d: id %d", (int)r, (int)i, id);
            float got = sheaf_best_value(pair[i]), is = row[id - first];
            cr_assert(got == is || (isnan(got) && isnan(is)), "row %d, id %d: %g", (int)r, id, (double)got);
            int64_t earlier = 0;
            for (int64_t j = 0; j < n_ids; j++) {
                bool equal = row[j] == is || (isnan(row[j]) && isnan(is));
                earlier += equal ? j < id - first : row[j] > is || (isnan(is) && !isnan(row[j]));
            }
            cr_assert(earlier == i, "n %d, row %d, place %d: %d come before id %d", (int)n, (int)r, (int)i,
                      (int)earlier, id);
        }
    }
}

Test(ops, the_best_of_a_row_in_strict_order, .timeout = 120) {
    for (int threads = 1; threads <= 3; threads += 2) {
        workbench w;
        cr_assert_eq(workbench_open(&w, "cpu", threads, ""), SHEAF_OK, "%s", sheaf_error());
        for (int64_t n = 1; n <= 35; n++) check_best(&w, n, n, 4, 0);
        check_best(&w, 1000, 1000, 40, 0);
        check_best(&w, 1000, 977, 40, 5000);
        check_best(&w, 30, 20, 25, 7);
        check_best(&w, 1500, 1500, SHEAF_MAX_BEST, 0);
        check_best(&w, 9, 0, 3, 0);
        workbench_close(&w);
    }
}

/* An unrounded sum: two products added in f64 are rounded once. */
Test(ops, unrounded_sums_are_rounded_once, .timeout = 30) {
    workbench w;
    sheaf_graph *g;
    cr_assert_eq(workbench_open(&w, "cpu", 2, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *a = sheaf_new_2d(w.arena, SHEAF_F32, 1, 3), *x = sheaf_new_2d(w.arena, SHEAF_F32, 1, 2);
    sheaf_tensor *y = sheaf_new_2d(w.arena, SHEAF_F32, 1, 2);
    sheaf_tensor *p = sheaf_unrounded(w.arena, sheaf_mul_mat_segments(w.arena, sheaf_mul_mat(w.arena, a, x), 1));
    sheaf_tensor *q = sheaf_unrounded(w.arena, sheaf_mul_mat_segments(w.arena, sheaf_mul_mat(w.arena, a, y), 1));
    sheaf_tensor *t = sheaf_round(w.arena, sheaf_add(w.arena, sheaf_add(w.arena, p, q), q));
    cr_assert_eq(workbench_graph(&w, t, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_place(&w, 1), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < 3; i++) ((float *)a->data)[i] = 1;
    for (int i = 0; i < 2; i++) ((float *)x->data)[i] = 1, ((float *)y->data)[i] = 0x1p-24f;
    cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < 6; i++) { /* 1 + 2^-24 would be 1 in f32, and again */
        float got = ((const float *)t->data)[i];
        cr_assert(got == 1 + 0x1p-23f, "element %d is %a, expected %a", i, (double)got, 1 + 0x1p-23);
    }
    workbench_close(&w);
}

/* Constructors refuse what does not fit, with the shapes. */
Test(ops, experts_refuse_what_does_not_fit, .timeout = 30) {
    sheaf_arena *a;
    for (int i = 0; i < 13; i++) {
        cr_assert_eq(sheaf_arena_new(1 << 14, &a), SHEAF_OK);
        sheaf_tensor *w = sheaf_new_3d(a, SHEAF_F32, 8, 6, 5), *x = sheaf_new_3d(a, SHEAF_F32, 8, 2, 4);
        sheaf_tensor *ids = sheaf_new_2d(a, SHEAF_I32, 2, 4), *m = sheaf_new_2d(a, SHEAF_F32, 8, 4), *t = NULL;
        switch (i) {
        case 0: t = sheaf_mul_mat_id(a, sheaf_new_3d(a, SHEAF_F32, 7, 6, 5), x, ids); break;
        case 1: t = sheaf_mul_mat_id(a, w, x, sheaf_new_2d(a, SHEAF_I32, 2, 3)); break;
        case 2: t = sheaf_mul_mat_id(a, w, x, sheaf_new_2d(a, SHEAF_I32, 3, 4)); break;
        case 3: t = sheaf_mul_mat_id(a, w, x, sheaf_new_2d(a, SHEAF_F32, 2, 4)); break;
        case 4: t = sheaf_mul_mat_id_sum(a, w, sheaf_new_3d(a, SHEAF_F32, 8, 1, 4), ids, 4); break;
        case 5: t = sheaf_mul_mat_id_sum(a, w, x, ids, 3); break;
        case 6: t = sheaf_add_id(a, x, sheaf_new_2d(a, SHEAF_F32, 7, 5), ids); break;
        case 7: t = sheaf_top_k(a, m, 9); break;
        case 8: t = sheaf_pick(a, m, sheaf_new_2d(a, SHEAF_I32, 2, 3)); break;
        case 9: t = sheaf_unrounded(a, sheaf_mul_mat(a, m, m)); break;
        case 10: t = sheaf_best_of(a, m, 9, 2, 1); break;
        case 11: t = sheaf_best_of(a, m, 8, SHEAF_MAX_BEST + 1, 1); break;
        case 12: t = sheaf_best_of(a, m, 8, 2, 0); break;
        }
        cr_assert_null(t, "row %d was made", i);
        cr_assert_eq(sheaf_arena_status(a), SHEAF_E_SHAPE, "row %d: %s", i, sheaf_error());
        sheaf_arena_free(a);
    }
}

/* Case C20: no row or column is lost at the tail of a tile. One graph holds the product of every m rows with
 * every n columns of the same matrices, so that the largest one's reference serves all. */
enum { TAILS = 40 };

/* Sanitizers look at the borders of tiles, which are multiples of 8, and at the smallest numbers. */
static bool tail_counts(int64_t x) { return !SANITIZED || x <= 4 || (x + 1) % 8 <= 2; }

static void check_tails(workbench *w, const char *level, sheaf_type type, int64_t k) {
    static sheaf_tensor *node[TAILS + 1][TAILS + 1];
    static double expected[TAILS * TAILS];
    sheaf_graph *g;
    cr_assert_eq(workbench_clear(w), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *a = sheaf_new_2d(w->arena, type, k, TAILS), *x = sheaf_new_2d(w->arena, SHEAF_F32, k, TAILS);
    cr_assert_eq(sheaf_graph_new(w->arena, 8192, &g), SHEAF_OK, "%s", sheaf_error());
    for (int64_t m = 1; m <= TAILS; m++)
        for (int64_t n = 1; n <= TAILS; n++) {
            if (!tail_counts(m) || !tail_counts(n)) continue;
            node[m][n] = sheaf_mul_mat(w->arena, sheaf_view_2d(w->arena, a, k, m, a->nb[1], 0),
                                       sheaf_view_2d(w->arena, x, k, n, x->nb[1], 0));
            cr_assert_eq(sheaf_graph_expand(g, node[m][n]), SHEAF_OK, "%s", sheaf_error());
        }
    cr_assert_eq(sheaf_graph_seal(g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_place(w, 4321), SHEAF_OK, "%s", sheaf_error());
    reference_eval(node[TAILS][TAILS], expected);
    cr_assert_eq(sheaf_backend_compute(w->backend, g), SHEAF_OK, "%s", sheaf_error());
    double largest = 1, bound = product_bound(type);
    for (int i = 0; i < TAILS * TAILS; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t m = 1; m <= TAILS; m++)
        for (int64_t n = 1; n <= TAILS; n++)
            for (int64_t i = 0; i < m * n && tail_counts(m) && tail_counts(n); i++) {
                double e = expected[i / m * TAILS + i % m], got = (double)((float *)node[m][n]->data)[i];
                if (fabs(got - e) / largest <= bound) continue;
                cr_assert(false, "%s %s m %d n %d k %d, row %d column %d: %g, expected %g", level,
                          sheaf_type_name(type), (int)m, (int)n, (int)k, (int)(i % m), (int)(i / m), got, e);
            }
}

Test(ops, tails_of_small_products, .timeout = 300) {
    static const int64_t lengths[] = {1, 31, 32, 33, 64, 256};
    static const sheaf_type types[] = {SHEAF_F32,  SHEAF_F16,  SHEAF_BF16, SHEAF_Q4_0, SHEAF_Q4_1,
                                       SHEAF_Q5_0, SHEAF_Q8_0, SHEAF_Q4_K, SHEAF_Q5_K, SHEAF_Q6_K};
    for (const char *const *level = kernel_levels(); *level; level++) {
        workbench w;
        cr_assert_eq(workbench_open(&w, "cpu", 2, *level), SHEAF_OK, "%s", sheaf_error());
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
            for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
                if (lengths[k] % sheaf_type_block(types[t]) == 0) check_tails(&w, *level, types[t], lengths[k]);
        workbench_close(&w);
    }
}

/* --- what no kernel does ----------------------------------------------------------------------------------- */

static sheaf_tensor *i8_scale(sheaf_arena *a) {
    sheaf_tensor *t = sheaf_scale(a, sheaf_new_1d(a, SHEAF_F32, 8), 1, 0);
    t->src[0] = sheaf_new_1d(a, SHEAF_I8, 8);
    return t;
}
static sheaf_tensor *long_row_times(sheaf_arena *a) {
    return sheaf_mul_mat(a, sheaf_new_2d(a, SHEAF_F32, 1 << 20, 1), sheaf_new_2d(a, SHEAF_F32, 1 << 20, 1));
}
static sheaf_tensor *head_outside(sheaf_arena *a) {
    sheaf_tensor *k = sheaf_new_3d(a, SHEAF_F32, 8, 4, 1);
    sheaf_tensor *t = sheaf_attention(a, sheaf_new_3d(a, SHEAF_F32, 8, 1, 2), k, k, NULL, NULL, 1, 0, 0);
    t->params.attention.n_head = 8;
    t->params.attention.n_kv = 2;
    t->params.attention.q_head0 = 4; /* reads KV head 1: only head 0 is here */
    return t;
}
static sheaf_tensor *ids_of_another_type(sheaf_arena *a) {
    sheaf_tensor *t = sheaf_get_rows(a, sheaf_new_2d(a, SHEAF_F32, 8, 4), sheaf_new_1d(a, SHEAF_I32, 2));
    t->src[1] = sheaf_new_1d(a, SHEAF_F32, 2);
    return t;
}
static sheaf_tensor *kind_outside(sheaf_arena *a) {
    sheaf_tensor *t = sheaf_unary_op(a, sheaf_new_1d(a, SHEAF_F32, 8), SHEAF_UNARY_RELU);
    t->params.unary.kind = 99;
    return t;
}
static sheaf_tensor *op_outside(sheaf_arena *a) {
    sheaf_tensor *t = sheaf_scale(a, sheaf_new_1d(a, SHEAF_F32, 8), 1, 0);
    t->op = (sheaf_op)77;
    return t;
}
/* A device says no, and preparing what it said no to is a clean error that names the node. */
Test(ops, refuse_what_no_kernel_does, .timeout = 30) {
    static sheaf_tensor *(*const rows[])(sheaf_arena *) = {
        i8_scale, long_row_times, head_outside, ids_of_another_type, kind_outside, op_outside};
    workbench w;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_graph *g;
        sheaf_prepared *p;
        cr_assert_eq(workbench_clear(&w), SHEAF_OK, "%s", sheaf_error());
        sheaf_tensor *t = sheaf_set_name(rows[i](w.arena), "odd");
        cr_assert_eq(workbench_graph(&w, t, &g), SHEAF_OK, "row %zu: %s", i, sheaf_error());
        cr_assert(!sheaf_device_supports_op(w.device, t), "row %zu: said to be supported", i);
        sheaf_status s = sheaf_backend_prepare(w.backend, g, &p);
        cr_assert_eq(s, SHEAF_E_UNSUPPORTED, "row %zu: %s", i, sheaf_status_name(s));
        cr_assert(strstr(sheaf_error(), "odd"), "row %zu: %s", i, sheaf_error());
    }
    workbench_close(&w);
}
