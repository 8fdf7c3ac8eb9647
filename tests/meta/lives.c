/* Plans over time: found again, bounded in number, after failures, with rotating shapes. */
#include <inttypes.h>
#include <malloc.h>

#include "backends/cpu/faults.h"
#include "support.h"
#include "tests/support/sanitized.h"

/* y = down * silu(up * x) + x with `tokens` columns. */
typedef struct net {
    sheaf_arena *weights;
    sheaf_buffer *buffer;
    sheaf_tensor *up, *down;
} net;

enum { WIDTH = 32, HIDDEN = 64, MOST = 48 };

static named_layout net_rows[] = {{"up", 1, {32, 32}}, {"down", 0, {32, 32}}};
static layout_table net_table = {net_rows, 2, 2};

static void net_open_as(net *t, house *h, layout_table *table) {
    float values[WIDTH * HIDDEN];
    sheaf_meta_set_policy(h->meta, table_policy, table);
    expect_ok(sheaf_arena_new(1 << 14, &t->weights));
    t->up = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, WIDTH, HIDDEN), "up");
    t->down = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, HIDDEN, WIDTH), "down");
    expect_ok(sheaf_arena_place_all(t->weights, h->meta->buffer_type, SHEAF_USAGE_WEIGHTS, &t->buffer));
    fill_random(values, WIDTH * HIDDEN, 1);
    expect_ok(sheaf_tensor_set(t->up, values, 0, sizeof values));
    fill_random(values, WIDTH * HIDDEN, 2);
    expect_ok(sheaf_tensor_set(t->down, values, 0, sizeof values));
}

static void net_open(net *t, house *h) { net_open_as(t, h, &net_table); }

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

/* The graph for `tokens` columns, prepared and no more. */
static sheaf_prepared *prepare(net *t, sheaf_backend *b, sheaf_arena *a, int tokens, int segment) {
    sheaf_graph *g;
    sheaf_prepared *prepared;
    sheaf_tensor *in = sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, WIDTH, tokens), SHEAF_FLAG_INPUT);
    sheaf_tensor *h = sheaf_unary_op(a, sheaf_mul_mat(a, t->up, in), SHEAF_UNARY_SILU);
    sheaf_tensor *p = sheaf_mul_mat_segments(a, sheaf_mul_mat(a, t->down, h), segment);
    sheaf_tensor *out = sheaf_set_flag(sheaf_add(a, p, in), SHEAF_FLAG_OUTPUT);
    expect_ok(sheaf_graph_new(a, 16, &g));
    expect_ok(sheaf_graph_expand(g, out));
    expect_ok(sheaf_graph_seal(g));
    expect_ok(sheaf_backend_prepare(b, g, &prepared));
    return prepared;
}

/* What ranks compare: the hash of the plan for `tokens` columns. */
static uint64_t hash_of(net *t, sheaf_backend *b, sheaf_arena *a, int tokens, int segment) {
    sheaf_arena_reset(a);
    sheaf_prepared *prepared = prepare(t, b, a, tokens, segment);
    uint64_t hash = sheaf_plan_get_info(sheaf_meta_plan(prepared)).hash;
    sheaf_prepared_free(b, prepared);
    return hash;
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

/* Graphs alike in all but how their weights are cut: each has its own plan, and finds that one again. */
Test(lives, plans_are_told_apart_by_the_layouts_of_leafs, .timeout = 60) {
    named_layout rows[] = {{"up", 1, {0, 64}}, {"down", 0, {0, 64}}};
    layout_table table = {rows, 2, 2};
    house h;
    net t[2];
    sheaf_arena *a;
    float first[WIDTH], y[WIDTH];
    house_open(&h, 2);
    net_open(&t[0], &h);
    net_open_as(&t[1], &h, &table);
    expect_ok(sheaf_arena_new(1 << 16, &a));
    expect_ok(compute(&t[0], h.backend, a, 2, first));
    for (int k = 1; k < 6; k++) {
        expect_ok(compute(&t[k % 2], h.backend, a, 2, y));
        expect_near(y, first);
    }
    expect_int(sheaf_meta_cache_stats(h.backend).compiles, 2);
    expect_int(sheaf_meta_cache_stats(h.backend).hits, 4);
    sheaf_arena_free(a);
    net_close(&t[1]);
    net_close(&t[0]);
    house_close(&h);
}

/* Staging is two slots, each of the largest sum's addends. */
Test(lives, staging_is_told_with_both_its_slots, .timeout = 60) {
    house h;
    net t;
    sheaf_arena *a;
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 16, &a));
    sheaf_prepared *prepared = prepare(&t, h.backend, a, 3, 32);
    sheaf_plan_info info = sheaf_plan_get_info(sheaf_meta_plan(prepared));
    for (int d = 0; d < 2; d++) expect_int(info.staging_bytes[d], 2 * 3 * WIDTH * sizeof(double));
    sheaf_prepared_free(h.backend, prepared);
    sheaf_arena_free(a);
    net_close(&t);
    house_close(&h);
}

/* 10 000 graphs, no two alike: each is compiled and forgotten, and memory stays as it was after the first few. */
Test(lives, ten_thousand_graphs_leave_memory_flat, .timeout = 300) {
    enum { GRAPHS = SANITIZED ? 500 : 10000, SETTLED = 100 };
    house h;
    net t;
    sheaf_arena *a;
    size_t in_use = 0, bytes = 0;
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 18, &a));
    for (int k = 0; k < GRAPHS; k++) {
        sheaf_graph *g;
        sheaf_prepared *prepared;
        sheaf_arena_reset(a);
        sheaf_tensor *in = sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, WIDTH, 1 + k % MOST), SHEAF_FLAG_INPUT);
        sheaf_tensor *x = sheaf_scale(a, sheaf_mul_mat(a, t.up, in), (float)(k + 1), 0);
        sheaf_tensor *y = sheaf_mul_mat_segments(a, sheaf_mul_mat(a, t.down, x), 32);
        expect_ok(sheaf_graph_new(a, 16, &g));
        expect_ok(sheaf_graph_expand(g, sheaf_set_flag(sheaf_add(a, y, in), SHEAF_FLAG_OUTPUT)));
        expect_ok(sheaf_graph_seal(g));
        expect_ok(sheaf_backend_prepare(h.backend, g, &prepared));
        sheaf_prepared_free(h.backend, prepared);
        if (k != SETTLED) continue;
        in_use = mallinfo2().uordblks;
        bytes = sheaf_meta_cache_stats(h.backend).bytes;
    }
    sheaf_plan_cache_stats end = sheaf_meta_cache_stats(h.backend);
    expect_int(end.compiles, GRAPHS);
    expect_int(end.plans, 16);
    cr_assert_leq(end.bytes, bytes + bytes / 2, "plans of %zu bytes, then %zu", bytes, end.bytes);
    size_t now = mallinfo2().uordblks;
    if (!SANITIZED) cr_assert_leq(now, in_use + (64 << 10), "%zu bytes in use, %zu after %d", now, in_use, SETTLED);
    sheaf_arena_free(a);
    net_close(&t);
    house_close(&h);
}

/* A buffer's parts lie in other allocations than the buffer: all of them go with it. */
Test(lives, buffers_give_their_memory_back, .timeout = 60) {
    enum { ROUNDS = 50, BYTES = 2 * WIDTH * HIDDEN * 4 };
    house h;
    net t;
    house_open(&h, 2);
    net_open(&t, &h);
    net_close(&t);
    size_t before = mallinfo2().uordblks;
    for (int k = 0; k < ROUNDS; k++) {
        net_open(&t, &h);
        net_close(&t);
    }
    size_t after = mallinfo2().uordblks, most = before + ROUNDS * BYTES / 10;
    cr_assert_leq(after, most, "%zu bytes in use, before %zu", after, before);
    house_close(&h);
}

/* The bound on plans is for those that nobody uses: a plan that is still prepared for a graph stays. */
Test(lives, plans_in_use_are_not_dropped, .timeout = 60) {
    enum { LIVE = 20 };
    house h;
    net t;
    sheaf_arena *a;
    sheaf_prepared *prepared[LIVE];
    uint64_t hash[LIVE];
    house_open(&h, 2);
    net_open(&t, &h);
    expect_ok(sheaf_arena_new(1 << 18, &a));
    for (int k = 0; k < LIVE; k++) {
        prepared[k] = prepare(&t, h.backend, a, 1 + k, 32);
        hash[k] = sheaf_plan_get_info(sheaf_meta_plan(prepared[k])).hash;
    }
    expect_int(sheaf_meta_cache_stats(h.backend).plans, LIVE);
    expect_int(sheaf_meta_cache_stats(h.backend).evictions, 0);
    for (int k = 0; k < LIVE; k++) {
        expect_int(sheaf_plan_get_info(sheaf_meta_plan(prepared[k])).hash == hash[k], 1);
        sheaf_prepared_free(h.backend, prepared[k]);
    }
    sheaf_prepared_free(h.backend, prepare(&t, h.backend, a, LIVE + 1, 32)); /* now they may go */
    expect_int(sheaf_meta_cache_stats(h.backend).plans, 16);
    sheaf_arena_free(a);
    net_close(&t);
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

/* Ranks that would run different plans must see it in the hash; those that would run the same must not. */
Test(lives, a_plans_hash_tells_shapes_parameters_and_layouts, .timeout = 60) {
    static const struct {
        const char *what;
        int n_devices, tokens, segment, first_share;
    } cases[] = {
        {"as it is", 2, 3, 32, 32},
        {"tokens", 2, 4, 32, 32},
        {"the segment of a sum", 2, 3, 16, 32},
        {"the layout of weights", 2, 3, 32, 48},
        {"devices", 1, 3, 32, 64},
    };
    enum { N = sizeof cases / sizeof *cases };
    uint64_t hash[N];
    for (int i = 0; i < N; i++) {
        house h;
        net t;
        sheaf_arena *a;
        int64_t first = cases[i].first_share;
        named_layout rows[] = {{"up", 1, {first, HIDDEN - first}}, {"down", 0, {first, HIDDEN - first}}};
        layout_table table = {rows, 2, cases[i].n_devices};
        for (int again = 0; again < 2; again++) {
            house_open(&h, cases[i].n_devices);
            net_open_as(&t, &h, &table);
            expect_ok(sheaf_arena_new(1 << 16, &a));
            uint64_t got = hash_of(&t, h.backend, a, cases[i].tokens, cases[i].segment);
            if (again) cr_assert(got == hash[i], "%s: %016" PRIx64 ", then %016" PRIx64, cases[i].what, hash[i], got);
            hash[i] = got;
            sheaf_arena_free(a);
            net_close(&t);
            house_close(&h);
        }
        for (int k = 0; k < i; k++) {
            cr_assert(hash[i] != hash[k], "%s and %s: both %016" PRIx64, cases[k].what, cases[i].what, hash[i]);
        }
    }
}

/* `down` is mirrored but what it is multiplied with is cut: a reshard. */
Test(lives, strict_is_one_backends_own, .timeout = 60) {
    house h;
    net t;
    sheaf_arena *a;
    sheaf_backend *other;
    float y[WIDTH];
    layout_table table = {net_rows, 1, 2};
    house_open(&h, 2);
    net_open_as(&t, &h, &table);
    expect_ok(sheaf_backend_new(h.meta, &other));
    expect_ok(sheaf_arena_new(1 << 16, &a));
    sheaf_meta_set_strict(other, true);
    expect_ok(compute(&t, h.backend, a, 2, y));
    expect_status(compute(&t, other, a, 2, y), SHEAF_E_MISMATCH);
    expect_ok(compute(&t, h.backend, a, 2, y));
    sheaf_meta_set_strict(other, false); /* and may be taken back: what was refused is not kept */
    expect_ok(compute(&t, other, a, 2, y));
    sheaf_meta_set_strict(other, true); /* nor is what was allowed */
    expect_status(compute(&t, other, a, 2, y), SHEAF_E_MISMATCH);
    sheaf_arena_free(a);
    sheaf_backend_free(other);
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
