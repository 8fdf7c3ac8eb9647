/* Any graph that runs on one device runs on N: random graphs over every op, with leafs cut at random, compared
 * with one device. Where no rule fits this goes through gathers, slices and writes that are cut back. */
#include <math.h>

#include "support.h"

enum { MAX_POOL = 64, LEAFS = 7, STATES = 2, N_DIMS = 7 };

typedef struct rng {
    uint64_t state;
} rng;

static uint64_t next_random(rng *r) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->state ^ r->state >> 29;
    return x * 0x9e3779b97f4a7c15u >> 17;
}

static int64_t below(rng *r, int64_t n) { return (int64_t)(next_random(r) % (uint64_t)n); }

static int64_t any_dim(rng *r) {
    static const int64_t dims[N_DIMS] = {1, 2, 3, 4, 6, 8, 12};
    return dims[below(r, N_DIMS)];
}

/* One graph, made anew for each backend from the same seed. */
typedef struct made {
    sheaf_arena *fixed, *work;
    sheaf_tensor *leaf[LEAFS + STATES], *ids, *pos, *rows;
    sheaf_tensor *pool[MAX_POOL];
    int n_pool;
    sheaf_tensor *out[8];
    int n_out;
    sheaf_graph *g;
} made;

static sheaf_tensor *pick(rng *r, made *m) { return m->pool[below(r, m->n_pool)]; }

static void keep(made *m, sheaf_tensor *t) {
    if (!t || m->n_pool == MAX_POOL || sheaf_nelements(t) > 4096) return;
    sheaf_set_name(t, "t%d_%s", m->n_pool, sheaf_op_name(t->op));
    m->pool[m->n_pool++] = t;
}

static sheaf_tensor *cont_of(made *m, sheaf_tensor *t) { return sheaf_rows_contiguous(t) ? t : sheaf_cont(m->work, t); }

/* A tensor of x's shape, or one that broadcasts to it; NULL if the pool has none. */
static sheaf_tensor *partner(rng *r, made *m, const sheaf_tensor *x) {
    for (int k = 0; k < 20; k++) {
        sheaf_tensor *t = pick(r, m);
        if (sheaf_can_broadcast(t, x)) return t;
    }
    return NULL;
}

static sheaf_tensor *random_reshape(rng *r, made *m, sheaf_tensor *x) {
    int64_t n = sheaf_nelements(x), ne[4] = {1, 1, 1, 1};
    for (int i = 0; i < 3; i++) {
        int64_t d = any_dim(r);
        if (n % d != 0) continue;
        ne[i] = d;
        n /= d;
    }
    ne[below(r, 4)] *= n;
    return sheaf_reshape(m->work, sheaf_is_contiguous(x) ? x : sheaf_cont(m->work, x), 4, ne);
}

/* A box inside x: a range of each dimension. */
static sheaf_tensor *random_view(rng *r, made *m, sheaf_tensor *x) {
    int64_t ne[4];
    size_t offset = 0;
    for (int i = 0; i < 4; i++) {
        int64_t first = below(r, 2) ? below(r, x->ne[i]) : 0;
        ne[i] = below(r, 2) ? 1 + below(r, x->ne[i] - first) : x->ne[i] - first;
        offset += (size_t)first * x->nb[i];
    }
    return sheaf_view_4d(m->work, x, ne, x->nb, offset);
}

static sheaf_tensor *random_permute(rng *r, made *m, sheaf_tensor *x) {
    int d[4] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) {
        int k = (int)below(r, i + 1), t = d[i];
        d[i] = d[k];
        d[k] = t;
    }
    return sheaf_permute(m->work, x, d[0], d[1], d[2], d[3]);
}

static sheaf_tensor *random_matmul(rng *r, made *m) {
    for (int k = 0; k < 30; k++) {
        sheaf_tensor *w = cont_of(m, pick(r, m)), *x = cont_of(m, pick(r, m));
        if (w->ne[0] != x->ne[0] || x->ne[2] % w->ne[2] || x->ne[3] % w->ne[3]) continue;
        return sheaf_mul_mat(m->work, w, x);
    }
    return NULL;
}

static sheaf_tensor *random_rope(rng *r, made *m, sheaf_tensor *x) {
    x = cont_of(m, x);
    if (x->ne[0] % 2 || x->ne[2] > m->pos->ne[0]) return NULL;
    sheaf_params p = {.rope = {.kind = below(r, 2) ? SHEAF_ROPE_NORM : SHEAF_ROPE_NEOX,
                               .n_dims = (int32_t)x->ne[0],
                               .n_ctx_orig = 64,
                               .freq_base = 10000,
                               .freq_scale = 1,
                               .attn_factor = 1,
                               .beta_fast = 32,
                               .beta_slow = 1}};
    return sheaf_rope(m->work, x, sheaf_view_1d(m->work, m->pos, x->ne[2], 0), NULL, &p);
}

static sheaf_tensor *random_lookup(rng *r, made *m, sheaf_tensor *x) {
    x = cont_of(m, x);
    (void)r;
    return x->ne[2] == 1 && x->ne[3] == 1 ? sheaf_get_rows(m->work, x, m->ids) : NULL;
}

static sheaf_tensor *random_write(rng *r, made *m, sheaf_tensor *x) {
    sheaf_tensor *state = m->leaf[LEAFS + below(r, STATES)];
    int kind = (int)below(r, 3);
    if (kind == 0) return sheaf_fill(m->work, random_view(r, m, state), (float)below(r, 5));
    if (kind == 1) {
        sheaf_tensor *into = random_view(r, m, state);
        if (!sheaf_same_shape(x, into)) x = partner(r, m, into);
        return x && sheaf_same_shape(x, into) ? sheaf_cpy(m->work, x, into) : NULL;
    }
    int64_t ne[] = {state->ne[0], m->rows->ne[0]};
    if (sheaf_nelements(x) < ne[0] * ne[1] || !sheaf_is_contiguous(x)) return NULL;
    return sheaf_set_rows(m->work, state, sheaf_view_2d(m->work, x, ne[0], ne[1], (size_t)ne[0] * 4, 0), m->rows);
}

static sheaf_tensor *random_attention(rng *r, made *m) {
    int64_t head = 4, kv_heads = 1 + below(r, 3), group = 1 + below(r, 3), cells = 6, tokens = 2;
    for (int k = 0; k < 10; k++) {
        sheaf_tensor *q = pick(r, m), *c = pick(r, m);
        if (!sheaf_is_contiguous(q) || !sheaf_is_contiguous(c) ||
            sheaf_nelements(q) < head * kv_heads * group * tokens || sheaf_nelements(c) < head * kv_heads * cells)
            continue;
        q = sheaf_view_3d(m->work, q, head, kv_heads * group, tokens, 16, 16 * (size_t)(kv_heads * group), 0);
        sheaf_tensor *kv = sheaf_view_3d(m->work, c, head, cells, kv_heads, 16 * (size_t)kv_heads, 16, 0);
        return sheaf_attention(m->work, sheaf_permute(m->work, q, 0, 2, 1, 3), kv, kv, NULL, NULL, 0.5f, 0,
                               below(r, 2) ? 3.0f : 0.0f);
    }
    return NULL;
}

/* Matrices by id (some ids name none), biases by id, elements by id; sums of products stay unrounded until they meet.
 */
static sheaf_tensor *random_experts(rng *r, made *m) {
    sheaf_arena *a = m->work;
    for (int k = 0; k < 30; k++) {
        sheaf_tensor *w = cont_of(m, pick(r, m)), *x = cont_of(m, pick(r, m));
        int64_t used = x->ne[1], tokens = x->ne[2];
        if (x->ne[3] != 1 || used * tokens > m->ids->ne[0]) continue;
        sheaf_tensor *ids = sheaf_view_2d(a, m->ids, used, tokens, (size_t)used * sizeof(int32_t), 0);
        if (below(r, 4) == 0 && w->ne[0] == x->ne[0] && w->ne[2] * w->ne[3] == 1) return sheaf_add_id(a, x, w, ids);
        if (below(r, 4) == 0 && w->ne[1] == tokens && w->ne[2] * w->ne[3] == 1) return sheaf_pick(a, w, ids);
        if (w->ne[0] != x->ne[0] || w->ne[3] != 1) continue;
        if (below(r, 2)) return sheaf_mul_mat_id(a, w, x, ids);
        sheaf_tensor *sum = sheaf_mul_mat_id_sum(a, w, x, ids, 1);
        if (below(r, 2)) sum = sheaf_add(a, sum, sheaf_mul_mat_id_sum(a, w, sheaf_scale(a, x, 0.5f, 1), ids, 1));
        return sheaf_round(a, sum);
    }
    return NULL;
}

/* A norm over a row that may be cut: its sum of squares first. */
static sheaf_tensor *random_norm_by(rng *r, made *m, sheaf_tensor *x) {
    sheaf_tensor *y = below(r, 2) ? partner(r, m, x) : NULL;
    if (y && !sheaf_same_shape(x, y)) y = NULL;
    x = cont_of(m, x);
    if (y) y = cont_of(m, y);
    sheaf_tensor *sums = sheaf_sum_squares(m->work, x, y);
    int index = y ? (int)below(r, 2) : 0;
    return sheaf_rms_norm_by(m->work, index ? y : x, sums, index, NULL, 1e-3f);
}

/* The best elements of each row, in order. */
static sheaf_tensor *random_best(rng *r, made *m, sheaf_tensor *x) {
    if (x->ne[2] * x->ne[3] != 1 || x->ne[0] == 0) return NULL;
    x = cont_of(m, x);
    return sheaf_pick(m->work, x, sheaf_top_k(m->work, x, 1 + (int64_t)below(r, (uint32_t)x->ne[0])));
}

/* A row as long as those of x, for the weight of its norm, or none. */
static sheaf_tensor *weight_for(rng *r, made *m, const sheaf_tensor *x) {
    for (int k = 0; k < 8 && below(r, 4); k++) {
        sheaf_tensor *t = pick(r, m);
        if (sheaf_nelements(t) == x->ne[0] && t->ne[0] == x->ne[0] && sheaf_is_contiguous(t)) return t;
    }
    return NULL;
}

/* Rows that the largest elements of other rows name. */
static sheaf_tensor *random_argmax(rng *r, made *m, sheaf_tensor *x) {
    x = cont_of(m, x);
    for (int k = 0; k < 10; k++) {
        sheaf_tensor *w = cont_of(m, pick(r, m));
        if (x->ne[2] * x->ne[3] == 1 && w->ne[2] * w->ne[3] == 1 && w->ne[1] >= x->ne[0])
            return sheaf_get_rows(m->work, w, sheaf_argmax(m->work, x));
    }
    return NULL;
}

static sheaf_tensor *random_op(rng *r, made *m) {
    sheaf_tensor *x = pick(r, m), *y;
    switch (below(r, 30)) {
    case 0: return sheaf_unary_op(m->work, x, below(r, 2) ? SHEAF_UNARY_SILU : SHEAF_UNARY_NEG);
    case 1: return sheaf_scale(m->work, x, 0.5f, below(r, 2) ? 0.0f : 1.0f);
    case 2: y = partner(r, m, x); return y ? sheaf_add(m->work, x, y) : NULL;
    case 3: y = partner(r, m, x); return y ? sheaf_sub(m->work, x, y) : NULL;
    case 4: y = partner(r, m, x); return y ? sheaf_mul(m->work, x, y) : NULL;
    case 5:
        y = partner(r, m, x);
        return y && sheaf_same_shape(x, y) ? sheaf_glu_op(m->work, x, y, SHEAF_GLU_SWIGLU) : NULL;
    case 6: return sheaf_rms_norm(m->work, cont_of(m, x), weight_for(r, m, x), 1e-3f);
    case 7: return sheaf_norm(m->work, cont_of(m, x), weight_for(r, m, x), NULL, 1e-3f);
    case 8: return sheaf_soft_max(m->work, cont_of(m, x), NULL, 0.5f, 0);
    case 9: return random_rope(r, m, x);
    case 10:
    case 11:
    case 12:
    case 13: return random_matmul(r, m);
    case 14: return random_reshape(r, m, x);
    case 15: return random_view(r, m, x);
    case 16: return random_permute(r, m, x);
    case 17: return sheaf_cont(m->work, x);
    case 18: {
        int dim = (int)below(r, 4);
        y = pick(r, m);
        for (int i = 0; i < 4; i++) {
            if (i != dim && x->ne[i] != y->ne[i]) return NULL;
        }
        return sheaf_concat(m->work, x, y, dim);
    }
    case 19: return sheaf_sum_rows(m->work, cont_of(m, x));
    case 20: return random_lookup(r, m, x);
    case 21: return random_write(r, m, x);
    case 22: return random_attention(r, m);
    case 23:
    case 24: return random_experts(r, m);
    case 25: return random_norm_by(r, m, x);
    case 26: return random_best(r, m, x);
    case 27: return random_argmax(r, m, x);
    case 28: return sheaf_transpose(m->work, x);
    default: return sheaf_div(m->work, x, sheaf_scale(m->work, sheaf_unary_op(m->work, x, SHEAF_UNARY_SQR), 1, 1));
    }
}

static sheaf_tensor *input(made *m, const char *name, sheaf_type type, int64_t n) {
    return sheaf_set_flag(sheaf_set_name(sheaf_new_1d(m->work, type, n), "%s", name), SHEAF_FLAG_INPUT);
}

static void make_graph(made *m, uint64_t seed) {
    rng r = {seed};
    memset(m, 0, sizeof *m);
    expect_ok(sheaf_arena_new(1 << 16, &m->fixed));
    expect_ok(sheaf_arena_new(1 << 18, &m->work));
    for (int i = 0; i < LEAFS + STATES; i++) {
        int64_t ne[] = {any_dim(&r), 1 + below(&r, 12), below(&r, 3) ? 1 : any_dim(&r)};
        if (i >= LEAFS) ne[2] = 1, ne[1] += 3;
        m->leaf[i] =
            sheaf_set_name(sheaf_new_3d(m->fixed, SHEAF_F32, ne[0], ne[1], ne[2]), i < LEAFS ? "w%d" : "s%d", i);
        m->pool[m->n_pool++] = m->leaf[i];
    }
    m->ids = input(m, "ids", SHEAF_I32, 3);
    m->pos = input(m, "pos", SHEAF_I32, 12);
    m->rows = input(m, "rows", SHEAF_I64, 2);
    int steps = 4 + (int)below(&r, 20);
    for (int k = 0; k < steps; k++) keep(m, random_op(&r, m));
    expect_ok(sheaf_graph_new(m->work, 64, &m->g));
    for (int k = 0; k < 4 && k + LEAFS + STATES < m->n_pool; k++) {
        sheaf_tensor *t = m->pool[m->n_pool - 1 - k];
        m->out[m->n_out++] = sheaf_set_flag(sheaf_set_name(sheaf_cont(m->work, t), "out%d", k), SHEAF_FLAG_OUTPUT);
    }
    /* writers in the order they were made, then what is read at the end */
    for (int i = LEAFS + STATES; i < m->n_pool; i++) expect_ok(sheaf_graph_expand(m->g, m->pool[i]));
    for (int i = 0; i < m->n_out; i++) expect_ok(sheaf_graph_expand(m->g, m->out[i]));
    expect_ok(sheaf_graph_seal(m->g));
}

/* A random cut for each leaf, the same for the same seed and name. */
typedef struct cuts {
    uint64_t seed;
    int n_devices;
} cuts;

static sheaf_status random_cuts(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    const cuts *c = ctx;
    rng r = {c->seed + (uint64_t)t->name[0] * 131 + (uint64_t)t->name[1] * 7919};
    sheaf_run runs[16];
    int axis = (int)below(&r, 3), n = 0;
    next_random(&r);
    if (below(&r, 5) == 0) return SHEAF_OK;
    for (int64_t left = t->ne[axis]; left > 0;) {
        int64_t take = n == 7 ? left : 1 + below(&r, left);
        sheaf_device_set set = below(&r, 4) ? (sheaf_device_set)1 << below(&r, c->n_devices)
                                            : (sheaf_device_set)(1 + below(&r, (1 << c->n_devices) - 1));
        runs[n++] = (sheaf_run){take, set};
        left -= take;
    }
    return sheaf_layout_axis(a, axis, runs, n, c->n_devices, out);
}

typedef struct results {
    float value[8 + STATES][4096];
    int64_t n[8 + STATES];
    int count;
} results;

static bool in_graph(const made *m, const sheaf_tensor *t) {
    return t->index >= 0 && t->index < m->g->n_leafs && m->g->leafs[t->index] == t;
}

static void run_graph(made *m, sheaf_backend *b, uint64_t seed, results *out) {
    sheaf_buffer *fixed, *work;
    sheaf_prepared *p = NULL;
    sheaf_buffer_type *type = b->device->buffer_type;
    void *addr[512], *scratch = NULL;
    expect_ok(sheaf_arena_place_all(m->fixed, type, SHEAF_USAGE_STATE, &fixed));
    expect_ok(sheaf_arena_place_all(m->work, type, SHEAF_USAGE_COMPUTE, &work));
    cr_assert_lt(m->g->n_leafs + m->g->n_nodes, 512);
    for (int i = 0; i < m->g->n_leafs + m->g->n_nodes; i++) addr[i] = sheaf_graph_slot(m->g, i)->data;
    expect_ok(sheaf_backend_prepare(b, m->g, &p));
    expect_ok(sheaf_backend_bind(b, p, m->g));
    size_t bytes = sheaf_prepared_info(b, p).scratch_bytes;
    if (bytes) scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    bool meta = sheaf_meta_is(b->device); /* there an input that no node reads has no bytes */
    float values[4096];
    for (int i = 0; i < LEAFS + STATES; i++) {
        fill_random(values, sheaf_nelements(m->leaf[i]), seed + (uint64_t)i);
        expect_ok(sheaf_tensor_set(m->leaf[i], values, 0, sheaf_nbytes(m->leaf[i])));
    }
    int32_t ids[3] = {1, 0, 2}, pos[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t rows[2] = {2, 1};
    if (!meta || in_graph(m, m->ids)) expect_ok(sheaf_tensor_set(m->ids, ids, 0, sizeof ids));
    if (!meta || in_graph(m, m->pos)) expect_ok(sheaf_tensor_set(m->pos, pos, 0, sizeof pos));
    if (!meta || in_graph(m, m->rows)) expect_ok(sheaf_tensor_set(m->rows, rows, 0, sizeof rows));
    expect_ok(sheaf_backend_run(b, p, addr, scratch, NULL));
    expect_ok(sheaf_backend_synchronize(b));
    if (meta) expect_ok(sheaf_plan_check(sheaf_meta_plan(p)));
    if (meta && getenv("SHEAF_FUZZ_PRINT")) expect_ok(sheaf_plan_print(sheaf_meta_plan(p), SHEAF_PLAN_STEPS, stderr));
    out->count = 0;
    for (int i = 0; i < m->n_out; i++, out->count++) {
        out->n[out->count] = sheaf_nelements(m->out[i]);
        expect_ok(sheaf_tensor_get(m->out[i], out->value[out->count], 0, sheaf_nbytes(m->out[i])));
    }
    for (int i = LEAFS; i < LEAFS + STATES; i++, out->count++) {
        out->n[out->count] = sheaf_nelements(m->leaf[i]);
        expect_ok(sheaf_tensor_get(m->leaf[i], out->value[out->count], 0, sheaf_nbytes(m->leaf[i])));
    }
    sheaf_prepared_free(b, p);
    free(scratch);
    sheaf_buffer_free(work);
    sheaf_buffer_free(fixed);
}

static void compare(const results *one, const results *many, uint64_t seed, int n) {
    cr_assert_eq(one->count, many->count);
    for (int k = 0; k < one->count; k++) {
        for (int64_t i = 0; i < one->n[k]; i++) {
            double x = (double)one->value[k][i], y = (double)many->value[k][i];
            bool same = (isnan(x) && isnan(y)) || x == y || fabs(x - y) <= 1e-4 * (1 + fabs(x));
            cr_assert(same, "seed %llu, %d devices: result %d, element %lld is %.9g, on one device %.9g",
                      (unsigned long long)seed, n, k, (long long)i, y, x);
        }
    }
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* SHEAF_FUZZ_SEED and SHEAF_FUZZ_COUNT: where to start, how many; SHEAF_FUZZ_PRINT: show the plans. */
Test(random_graphs, give_what_one_device_gives, .timeout = 600) {
    static results one, many;
    uint64_t first = number_from("SHEAF_FUZZ_SEED", 1), count = number_from("SHEAF_FUZZ_COUNT", 300);
    house h[4], single;
    sheaf_backend *b;
    house_open(&single, 1);
    expect_ok(sheaf_backend_new(single.devices[0], &b));
    for (int n = 1; n <= 4; n++) house_open(&h[n - 1], n);
    for (uint64_t seed = first; seed < first + count; seed++) {
        made m;
        int n = 1 + (int)(seed % 4);
        make_graph(&m, seed);
        run_graph(&m, b, seed, &one);
        sheaf_arena_free(m.work);
        sheaf_arena_free(m.fixed);
        cuts c = {seed * 77, n};
        sheaf_meta_set_policy(h[n - 1].meta, random_cuts, &c);
        make_graph(&m, seed);
        run_graph(&m, h[n - 1].backend, seed, &many);
        sheaf_arena_free(m.work);
        sheaf_arena_free(m.fixed);
        compare(&one, &many, seed, n);
    }
    sheaf_backend_free(b);
    house_close(&single);
    for (int n = 1; n <= 4; n++) house_close(&h[n - 1]);
}
