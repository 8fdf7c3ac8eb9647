/* Plans over time: found again, bounded in number, after failures, with rotating shapes. */
#include "backends/cpu/faults.h"
#include "support.h"

/* y = down * silu(up * x) + x with `tokens` columns. */
typedef struct net {
    sheaf_arena *weights;
    sheaf_buffer *buffer;
    sheaf_tensor *up, *down;
} net;

enum { WIDTH = 32, HIDDEN = 64, MOST = 48 };

static named_layout net_rows[] = {{"up", 1, {32, 32}}, {"down", 0, {32, 32}}};
static layout_table net_table = {net_rows, 2, 2};

static void net_open(net *t, house *h) {
    float values[WIDTH * HIDDEN];
    sheaf_meta_set_policy(h->meta, table_policy, &net_table);
    expect_ok(sheaf_arena_new(1 << 14, &t->weights));
    t->up = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, WIDTH, HIDDEN), "up");
    t->down = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, HIDDEN, WIDTH), "down");
    expect_ok(sheaf_arena_place_all(t->weights, h->meta->buffer_type, SHEAF_USAGE_WEIGHTS, &t->buffer));
    fill_random(values, WIDTH * HIDDEN, 1);
    expect_ok(sheaf_tensor_set(t->up, values, 0, sizeof values));
    fill_random(values, WIDTH * HIDDEN, 2);
    expect_ok(sheaf_tensor_set(t->down, values, 0, sizeof values));
}

static void net_close(net *t) {
    sheaf_buffer_free(t->buffer);
    sheaf_arena_free(t->weights);
}

/* Builds and computes the graph in `a` (reset first); the first column of y. */
static sheaf_status compute(net *t, sheaf_backend *b, sheaf_arena *a, int tokens, float *y) {
    float x[WIDTH * MOST];
    sheaf_buffer *work;
    sheaf_graph *g;
    sheaf_arena_reset(a);
    sheaf_tensor *in = sheaf_set_flag(sheaf_set_name(sheaf_new_2d(a, SHEAF_F32, WIDTH, tokens), "x"), SHEAF_FLAG_INPUT);
    sheaf_tensor *h = sheaf_unary_op(a, sheaf_mul_mat(a, t->up, in), SHEAF_UNARY_SILU);
    sheaf_tensor *p = sheaf_mul_mat_segments(a, sheaf_mul_mat(a, t->down, h), 32);
    sheaf_tensor *out = sheaf_set_flag(sheaf_set_name(sheaf_add(a, p, in), "y"), SHEAF_FLAG_OUTPUT);
    sheaf_status s = sheaf_graph_new(a, 16, &g);
    if (!s) s = sheaf_graph_expand(g, out);
    if (!s) s = sheaf_graph_seal(g);
    if (!s) s = sheaf_arena_place_all(a, b->device->buffer_type, SHEAF_USAGE_COMPUTE, &work);
    if (s) return s;
    sheaf_prepared *prepared = NULL;
    fill_random(x, (int64_t)WIDTH * tokens, 3);
    s = sheaf_backend_prepare(b, g, &prepared);
    if (!s) s = sheaf_backend_bind(b, prepared, g);
    if (!s) s = sheaf_tensor_set(in, x, 0, sheaf_nbytes(in));
    if (!s) s = sheaf_backend_run(b, prepared, NULL, NULL, NULL);
    sheaf_status end = sheaf_backend_synchronize(b);
    if (!s) s = end;
    if (!s) s = sheaf_tensor_get(out, y, 0, WIDTH * sizeof(float));
    sheaf_prepared_free(b, prepared);
    sheaf_buffer_free(work);
    return s;
}

/* Kernels for few and for many columns add in different orders. */
static void expect_near(const float *got, const float *want) {
    for (int i = 0; i < WIDTH; i++) {
        double off = (double)got[i] - (double)want[i];
        cr_assert(off < 1e-5 && off > -1e-5, "element %d is %.9g, not %.9g", i, (double)got[i], (double)want[i]);
    }
}

Test(lives, plans_are_found_again_and_few, .timeout = 120) {
    house h;
    net t;
    sheaf_arena *a;
    static float by_tokens[MOST][WIDTH];
    float first[WIDTH], y[WIDTH];
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 16, &a));
    expect_ok(compute(&t, h.backend, a, 3, first));
    sheaf_plan_cache_stats before = sheaf_meta_cache_stats(h.backend);
    expect_int(before.compiles, 1);
    for (int k = 0; k < 50; k++) {
        expect_ok(compute(&t, h.backend, a, 3, y));
        cr_assert_eq(memcmp(y, first, sizeof y), 0, "run %d: %.9g, first %.9g", k, (double)y[0], (double)first[0]);
    }
    sheaf_plan_cache_stats after = sheaf_meta_cache_stats(h.backend);
    expect_int(after.compiles, 1);
    expect_int(after.hits, before.hits + 50);
    /* many differing graphs: memory is bounded, the first column is the same in each */
    size_t bytes = 0;
    for (int k = 0; k < 400; k++) {
        expect_ok(compute(&t, h.backend, a, 1 + k % MOST, y));
        expect_near(y, first);
        if (k < MOST) memcpy(by_tokens[k], y, sizeof y);
        cr_assert_eq(memcmp(y, by_tokens[k % MOST], sizeof y), 0, "%d tokens: %.9g, before %.9g", 1 + k % MOST,
                     (double)y[0], (double)by_tokens[k % MOST][0]);
        after = sheaf_meta_cache_stats(h.backend);
        cr_assert_leq(after.plans, 16, "%d plans", after.plans);
        if (k == 100) bytes = after.bytes;
        if (k > 100) cr_assert_leq(after.bytes, bytes + bytes / 2, "%zu bytes after %zu", after.bytes, bytes);
    }
    cr_assert_gt(after.evictions, 300, "%llu", (unsigned long long)after.evictions);
    /* nothing of the compute memory is left over when its buffers are gone, but the workspace */
    size_t work = sheaf_meta_bytes(h.meta, 0, SHEAF_USAGE_COMPUTE);
    expect_ok(compute(&t, h.backend, a, 1, y));
    expect_int(sheaf_meta_bytes(h.meta, 0, SHEAF_USAGE_COMPUTE), work);
    sheaf_arena_free(a);
    net_close(&t);
    sheaf_backend_free(h.backend);
    for (int d = 0; d < 2; d++) expect_int(sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_COMPUTE), 0);
    expect_ok(sheaf_backend_new(h.meta, &h.backend));
    house_close(&h);
}

/* Each allocation of compiling, binding and running fails in turn: a status, and the next try works. */
typedef struct countdown {
    int left;
} countdown;
static bool allow(void *ctx, size_t size) {
    (void)size;
    return ((countdown *)ctx)->left-- != 0;
}

Test(lives, every_failed_allocation_is_a_status, .timeout = 120) {
    house h;
    net t;
    sheaf_arena *a;
    float want[WIDTH], y[WIDTH];
    int failures = 0;
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 18, &a));
    expect_ok(compute(&t, h.backend, a, 2, want));
    for (int k = 0; k < 1000; k++) {
        sheaf_backend *b;
        expect_ok(sheaf_backend_new(h.meta, &b));
        countdown c = {k};
        sheaf_alloc_hook(allow, &c);
        sheaf_status s = compute(&t, b, a, 2, y);
        sheaf_alloc_hook(NULL, NULL);
        cr_assert(s == SHEAF_OK || s == SHEAF_E_NO_MEMORY, "%d: %s (%s)", k, sheaf_status_name(s), sheaf_error());
        failures += s != SHEAF_OK;
        sheaf_status again = compute(&t, b, a, 2, y);
        cr_assert_eq(again, SHEAF_OK, "after failing allocation %d: %s (%s)", k, sheaf_status_name(again),
                     sheaf_error());
        cr_assert_eq(memcmp(y, want, sizeof y), 0, "after failing allocation %d: %.9g, not %.9g", k, (double)y[0],
                     (double)want[0]);
        sheaf_backend_free(b);
        if (!s) break;
    }
    cr_assert_geq(failures, 20, "%d", failures);
    sheaf_arena_free(a);
    net_close(&t);
    house_close(&h);
}

/* Two backends over one set of weights: contexts do not disturb each other. */
Test(lives, two_backends_share_one_set_of_weights, .timeout = 60) {
    house h;
    net t;
    sheaf_arena *a;
    sheaf_backend *other;
    float want[WIDTH], y[WIDTH];
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_backend_new(h.meta, &other));
    expect_ok(sheaf_arena_new(1 << 16, &a));
    expect_ok(compute(&t, h.backend, a, 2, want));
    for (int k = 0; k < 20; k++) {
        expect_ok(compute(&t, k % 2 ? h.backend : other, a, 1 + k % 5, y));
        expect_near(y, want);
    }
    sheaf_member_times times = sheaf_meta_times(h.backend, 1, true);
    cr_assert_gt(times.compute_ns, 0);
    cr_assert_gt(times.reduce_ns + times.wait_ns, 0);
    expect_int(sheaf_meta_times(h.backend, 1, false).reduce_ns, 0);
    expect_int(sheaf_meta_times(h.backend, 7, false).compute_ns, 0);
    sheaf_arena_free(a);
    sheaf_backend_free(other);
    net_close(&t);
    house_close(&h);
}

/* A kernel of one member fails: the run is an error that names it, nobody hangs in the sum, the next run works. */
Test(lives, a_failing_member_fails_the_run_and_no_other, .timeout = 120) {
    house h;
    net t;
    sheaf_arena *a;
    float want[WIDTH], y[WIDTH];
    int failed = 0;
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 16, &a));
    expect_ok(compute(&t, h.backend, a, 2, want));
    for (int member = 0; member < 2; member++) {
        for (int kernel = 1; kernel < 4; kernel++) {
            atomic_store(&cpu_device_faults(h.devices[member])->kernel, kernel);
            sheaf_status s = compute(&t, h.backend, a, 2, y);
            cr_assert(s == SHEAF_OK || s == SHEAF_E_DEVICE || s == SHEAF_E_PEER, "member %d, kernel %d: %s (%s)",
                      member, kernel, sheaf_status_name(s), sheaf_error());
            if (s) cr_assert_not_null(strstr(sheaf_error(), "injected fault"), "%s", sheaf_error());
            failed += s != SHEAF_OK;
            atomic_store(&cpu_device_faults(h.devices[member])->kernel, 0);
            for (int k = 0; k < 3; k++) {
                expect_ok(compute(&t, h.backend, a, 2, y));
                cr_assert_eq(memcmp(y, want, sizeof y), 0, "after the failure: %.9g, not %.9g", (double)y[0],
                             (double)want[0]);
            }
        }
    }
    cr_assert_geq(failed, 4, "%d runs failed", failed);
    sheaf_arena_free(a);
    net_close(&t);
    house_close(&h);
}
