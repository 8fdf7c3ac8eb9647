/* The scheduler over two accelerators with gaps and a host CPU: placement with causes, cuts, copies, reuse,
 * failures; and random graphs whose result must not depend on where their nodes ran. */
#include "sched/sched.h"
#include "tests/sched/proxy.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>

typedef struct bed {
    sheaf_registry *registry;
    sheaf_device *inner[2], *host;
    proxy p[2];
    sheaf_backend *host_backend, *array[3];
    sheaf_sched *sched;
    sheaf_arena *weights, *arena;
    sheaf_buffer *buffers[32];
    int n_buffers;
} bed;

static void open_bed(bed *b) {
    sheaf_open_options o = {.n_threads = 2, .n_parts = 1};
    int n = 0;
    memset(b, 0, sizeof *b);
    expect_ok(sheaf_registry_new(&b->registry));
    expect_ok(sheaf_devices_open(b->registry, "cpu/2", &o, b->inner, 2, &n));
    expect_int(n, 2);
    expect_ok(sheaf_host_device_open(b->registry, b->inner, 2, &b->host));
    expect_ok(proxy_open(&b->p[0], "A", b->inner[0]));
    expect_ok(proxy_open(&b->p[1], "B", b->inner[1]));
    expect_ok(sheaf_backend_new(b->host, &b->host_backend));
    b->array[0] = &b->p[0].backend;
    b->array[1] = &b->p[1].backend;
    b->array[2] = b->host_backend;
    expect_ok(sheaf_sched_new(b->array, 3, NULL, &b->sched));
    expect_ok(sheaf_arena_new(1 << 16, &b->weights));
    expect_ok(sheaf_arena_new(1 << 16, &b->arena));
}

static void close_bed(bed *b) {
    sheaf_sched_free(b->sched);
    for (int i = 0; i < b->n_buffers; i++) sheaf_buffer_free(b->buffers[i]);
    sheaf_arena_free(b->weights);
    sheaf_arena_free(b->arena);
    proxy_close(&b->p[0]);
    proxy_close(&b->p[1]);
    sheaf_backend_free(b->host_backend);
    sheaf_registry_free(b->registry);
}

/* A tensor of known values in the memory of device `where` (0, 1: accelerators; 2: host). */
static sheaf_tensor *stored(bed *b, int where, sheaf_usage usage, int64_t ne0, int64_t ne1, float first, float step) {
    sheaf_buffer_type *types[3] = {b->inner[0]->buffer_type, b->inner[1]->buffer_type, b->host->buffer_type};
    sheaf_tensor *t = sheaf_new_2d(b->weights, SHEAF_F32, ne0, ne1);
    expect_ok(sheaf_buffer_alloc(types[where], sheaf_nbytes(t), usage, &b->buffers[b->n_buffers]));
    sheaf_buffer *buf = b->buffers[b->n_buffers++];
    expect_ok(sheaf_tensor_place(buf, t, buf->base));
    for (int64_t i = 0; i < ne0 * ne1; i++) {
        float v = first + step * (float)(i % 17);
        expect_ok(sheaf_tensor_set(t, &v, (size_t)i * 4, 4));
    }
    return t;
}
static sheaf_tensor *weight(bed *b, int where, int64_t ne0, int64_t ne1) {
    return stored(b, where, SHEAF_USAGE_WEIGHTS, ne0, ne1, -0.5f, 0.0625f);
}

static sheaf_tensor *input(bed *b, int64_t ne0, int64_t ne1, const char *name) {
    return sheaf_set_flag(sheaf_set_name(sheaf_new_2d(b->arena, SHEAF_F32, ne0, ne1), "%s", name), SHEAF_FLAG_INPUT);
}

static sheaf_graph *graph_of(bed *b, sheaf_tensor *out) {
    sheaf_graph *g;
    cr_assert(out != NULL, "building: %s", sheaf_error());
    sheaf_set_flag(out, SHEAF_FLAG_OUTPUT);
    expect_ok(sheaf_graph_new(b->arena, 64, &g));
    expect_ok(sheaf_graph_expand(g, out));
    expect_ok(sheaf_graph_seal(g));
    return g;
}

static void set_ramp(sheaf_tensor *t, float first) {
    for (int64_t i = 0; i < sheaf_nelements(t); i++) {
        float v = first + 0.125f * (float)(i % 11);
        expect_ok(sheaf_tensor_set(t, &v, (size_t)i * 4, 4));
    }
}

static float value(const sheaf_tensor *t, int64_t i) {
    float v;
    expect_ok(sheaf_tensor_get(t, &v, (size_t)i * 4, 4));
    return v;
}

static void run(bed *b) {
    expect_ok(sheaf_sched_compute(b->sched));
    expect_ok(sheaf_sched_synchronize(b->sched));
}

Test(sched, the_last_backend_must_be_a_cpu, .timeout = 30) {
    bed b;
    sheaf_sched *s;
    open_bed(&b);
    expect_status(sheaf_sched_new(b.array, 2, NULL, &s), SHEAF_E_ARGUMENT);
    expect_error("must be a CPU");
    expect_status(sheaf_sched_new(b.array, 0, NULL, &s), SHEAF_E_ARGUMENT);
    close_bed(&b);
}

Test(sched, a_node_runs_where_its_weight_lies_and_its_input_is_copied, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *w = weight(&b, 0, 32, 8), *x = input(&b, 32, 3, "x");
    sheaf_tensor *y = sheaf_mul_mat(b.arena, w, x);
    sheaf_graph *g = graph_of(&b, y);
    sheaf_cause cause;
    expect_ok(sheaf_sched_alloc(b.sched, g));
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 1);
    expect_int(sheaf_sched_get_stats(b.sched).n_copies, 1);
    expect_int(sheaf_sched_backend_of(b.sched, y, &cause), 0);
    expect_text(sheaf_cause_text(cause), "1.wgt");
    expect_int(sheaf_sched_backend_of(b.sched, x, &cause), 2);
    expect_text(sheaf_cause_text(cause), "1.inp");
    for (int round = 0; round < 3; round++) {
        set_ramp(x, (float)round);
        run(&b);
        double want = 0;
        for (int k = 0; k < 32; k++)
            want += (-0.5 + 0.0625 * (double)((32 + k) % 17)) * (round + 0.125 * (double)(k % 11));
        cr_assert(fabs((double)value(y, 1) - want) < 1e-3, "round %d: %g, expected %g", round, (double)value(y, 1),
                  want);
    }
    close_bed(&b);
}

static bool deny(void *ctx, size_t size) {
    (void)size;
    ++*(int *)ctx;
    return false;
}

Test(sched, a_steady_compute_asks_the_heap_for_nothing, .timeout = 30) {
    bed b;
    open_bed(&b);
    b.p[0].refused = 1u << SHEAF_OP_UNARY;
    sheaf_tensor *x = input(&b, 32, 3, "x");
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), x);
    y = sheaf_unary_op(b.arena, y, SHEAF_UNARY_SILU);
    y = sheaf_mul_mat(b.arena, weight(&b, 1, 8, 4), y);
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, y)));
    set_ramp(x, 0.5f);
    run(&b);
    float first = value(y, 5);
    int asked = 0;
    sheaf_alloc_hook(deny, &asked);
    sheaf_status s = sheaf_sched_compute(b.sched);
    if (!s) s = sheaf_sched_synchronize(b.sched);
    sheaf_alloc_hook(NULL, NULL);
    expect_ok(s);
    expect_int(asked, 0);
    cr_assert(value(y, 5) == first, "%g, expected %g", (double)value(y, 5), (double)first);
    close_bed(&b);
}

Test(sched, what_one_device_refuses_another_runs, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *x = input(&b, 32, 3, "x");
    sheaf_tensor *h = sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), x);
    sheaf_tensor *a = sheaf_unary_op(b.arena, h, SHEAF_UNARY_SILU);
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 0, 8, 4), a);
    sheaf_graph *g = graph_of(&b, y);
    expect_ok(sheaf_sched_alloc(b.sched, g));
    set_ramp(x, 0.25f);
    run(&b);
    float want = value(y, 7);
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 1);

    b.p[0].refused = b.p[1].refused = 1u << SHEAF_OP_UNARY;
    expect_ok(sheaf_sched_alloc(b.sched, g));
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 3);
    expect_int(sheaf_sched_backend_of(b.sched, a, NULL), 2);
    set_ramp(x, 0.25f);
    run(&b);
    cr_assert(value(y, 7) == want, "%g, expected %g", (double)value(y, 7), (double)want);
    close_bed(&b);
}

Test(sched, an_op_that_nobody_runs_is_named, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_2d(b.arena, SHEAF_I32, 32, 3), SHEAF_FLAG_INPUT);
    sheaf_tensor *y = sheaf_set_name(sheaf_unary_op(b.arena, input(&b, 32, 3, "x"), SHEAF_UNARY_SILU), "strange");
    y->src[0] = x; /* no constructor would make it */
    sheaf_graph *g = graph_of(&b, y);
    expect_status(sheaf_sched_alloc(b.sched, g), SHEAF_E_UNSUPPORTED);
    expect_error("strange");
    expect_error("unary");
    /* and the scheduler still works */
    sheaf_tensor *z = sheaf_add(b.arena, input(&b, 4, 1, "u"), input(&b, 4, 1, "v"));
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, z)));
    close_bed(&b);
}

Test(sched, the_callers_graph_stays_as_it_was, .timeout = 30) {
    bed b;
    sheaf_sched *second;
    open_bed(&b);
    b.p[0].refused = 1u << SHEAF_OP_UNARY;
    sheaf_tensor *x = input(&b, 32, 3, "x");
    sheaf_tensor *h = sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), x);
    sheaf_tensor *a = sheaf_unary_op(b.arena, h, SHEAF_UNARY_SILU);
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 1, 8, 4), a);
    sheaf_graph *g = graph_of(&b, y);
    uint64_t shape = g->shape_id;
    expect_ok(sheaf_sched_reserve(b.sched, g));
    expect_ok(sheaf_sched_reserve(b.sched, g));
    expect_ok(sheaf_sched_alloc(b.sched, g));
    cr_assert(h->src[1] == x && a->src[0] == h && y->src[1] == a, "a source was edited");
    expect_int(g->shape_id == shape, 1);
    expect_int(g->n_nodes, 3);
    set_ramp(x, 0.75f);
    run(&b);
    float want = value(y, 3);
    expect_ok(sheaf_sched_new(b.array, 3, NULL, &second));
    expect_ok(sheaf_sched_alloc(second, g));
    set_ramp(x, 0.75f);
    expect_ok(sheaf_sched_compute(second));
    expect_ok(sheaf_sched_synchronize(second));
    cr_assert(value(y, 3) == want, "second scheduler: %g, expected %g", (double)value(y, 3), (double)want);
    sheaf_sched_free(second);
    close_bed(&b);
}

Test(sched, state_is_written_where_it_lies, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *cache = stored(&b, 1, SHEAF_USAGE_STATE, 8, 4, 0, 0);
    cache->flags |= SHEAF_FLAG_STATE;
    sheaf_tensor *rows = input(&b, 8, 1, "rows");
    sheaf_tensor *ids = sheaf_set_flag(sheaf_new_1d(b.arena, SHEAF_I64, 1), SHEAF_FLAG_INPUT);
    sheaf_tensor *w = sheaf_set_rows(b.arena, cache, rows, ids);
    sheaf_tensor *y = sheaf_scale(b.arena, sheaf_view_2d(b.arena, w, 8, 2, w->nb[1], w->nb[1]), 2, 0);
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, y)));
    sheaf_cause cause;
    expect_int(sheaf_sched_backend_of(b.sched, w, &cause), 1);
    for (int64_t at = 1; at <= 2; at++) {
        set_ramp(rows, (float)at);
        expect_ok(sheaf_tensor_set(ids, &at, 0, 8));
        run(&b);
    }
    cr_assert(value(cache, 8) == 1 && value(cache, 16) == 2, "%g %g", (double)value(cache, 8),
              (double)value(cache, 16));
    cr_assert(value(y, 0) == 2 && value(y, 8) == 4, "%g %g", (double)value(y, 0), (double)value(y, 8));
    close_bed(&b);
}

Test(sched, pins_survive_and_the_alias_stays_with_its_bytes, .timeout = 30) {
    bed b;
    sheaf_cause cause;
    open_bed(&b);
    sheaf_tensor *x = input(&b, 32, 3, "x");
    sheaf_tensor *h = sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), x);
    sheaf_tensor *a = sheaf_scale(b.arena, h, 2, 0);
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 0, 8, 4), a);
    sheaf_graph *g = graph_of(&b, y);
    expect_ok(sheaf_sched_pin(b.sched, a, 2));
    expect_ok(sheaf_sched_alloc(b.sched, g));
    expect_int(sheaf_sched_backend_of(b.sched, a, &cause), 2);
    expect_text(sheaf_cause_text(cause), "usr");
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 3);
    expect_ok(sheaf_sched_alloc(b.sched, g)); /* pins are for one graph */
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 1);
    expect_status(sheaf_sched_pin(b.sched, a, 3), SHEAF_E_ARGUMENT);
    close_bed(&b);
}

Test(sched, two_hundred_crossing_inputs_are_no_limit, .timeout = 60) {
    bed b;
    open_bed(&b);
    sheaf_tensor *sum = sheaf_scale(b.arena, weight(&b, 0, 8, 1), 0, 0), *in[200];
    for (int i = 0; i < 200; i++) {
        in[i] = input(&b, 8, 1, "in");
        sum = sheaf_add(b.arena, sum, in[i]);
    }
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, sum)));
    expect_int(sheaf_sched_get_stats(b.sched).n_copies, 200);
    for (int i = 0; i < 200; i++) set_ramp(in[i], 1);
    run(&b);
    cr_assert(value(sum, 0) == 200, "%g", (double)value(sum, 0));
    close_bed(&b);
}

Test(sched, a_failed_run_reports_and_the_next_is_right, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *x = input(&b, 32, 3, "x");
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 1, 8, 4), sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), x));
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, y)));
    set_ramp(x, 1);
    run(&b);
    float want = value(y, 2);
    b.p[1].fail_run = b.p[1].runs + 1;
    expect_status(sheaf_sched_compute(b.sched), SHEAF_E_DEVICE);
    expect_error("fails");
    run(&b);
    cr_assert(value(y, 2) == want, "%g, expected %g", (double)value(y, 2), (double)want);
    close_bed(&b);
}

/* What an input holds is the caller's: nothing that the graph computes may lie over it, though nobody reads it again.
 */
Test(sched, an_input_keeps_its_bytes_for_the_next_run, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *x = input(&b, 16, 3, "x"), *w = weight(&b, 2, 16, 16), *y = x;
    for (int i = 0; i < 4; i++) y = sheaf_mul_mat(b.arena, w, y);
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, y)));
    expect_int(sheaf_sched_backend_of(b.sched, y, NULL), 2);
    set_ramp(x, 1);
    run(&b);
    float want = value(y, 20);
    for (int i = 0; i < 2; i++) {
        run(&b);
        cr_assert(value(y, 20) == want, "%g, at first %g", (double)value(y, 20), (double)want);
    }
    close_bed(&b);
}

/* The last split of a run and the first of the next are neighbours like any others. */
Test(sched, a_run_waits_for_the_end_of_the_run_before, .timeout = 30) {
    bed b;
    open_bed(&b);
    sheaf_tensor *y = sheaf_mul_mat(b.arena, weight(&b, 0, 32, 8), weight(&b, 0, 32, 3));
    y = sheaf_mul_mat(b.arena, weight(&b, 1, 8, 4), y);
    expect_ok(sheaf_sched_alloc(b.sched, graph_of(&b, y)));
    expect_int(sheaf_sched_get_stats(b.sched).n_splits, 2);
    b.p[0].other = &b.p[1];
    b.p[1].other = &b.p[0];
    for (int i = 0; i < 3; i++) expect_ok(sheaf_sched_compute(b.sched));
    expect_ok(sheaf_sched_synchronize(b.sched));
    expect_int(b.p[0].runs, 3);
    expect_int(b.p[0].beside, 0);
    expect_int(b.p[1].beside, 0);
    close_bed(&b);
}

static bool wants_scale(void *ctx, const sheaf_tensor *t) {
    (void)ctx;
    return t->op == SHEAF_OP_SCALE;
}
static sheaf_status see(void *ctx, const sheaf_tensor *t) {
    float v;
    sheaf_status s = sheaf_tensor_get(t, &v, 0, 4);
    if (!s) *(float *)ctx += v;
    return s;
}

Test(sched, an_observer_sees_every_node_it_wants, .timeout = 30) {
    bed b;
    float seen = 0;
    open_bed(&b);
    sheaf_tensor *x = input(&b, 8, 1, "x");
    sheaf_tensor *y =
        sheaf_add(b.arena, sheaf_scale(b.arena, sheaf_scale(b.arena, x, 2, 0), 3, 0), weight(&b, 0, 8, 1));
    sheaf_graph *g = graph_of(&b, y);
    sheaf_sched_set_eval(b.sched, wants_scale, see, &seen);
    expect_ok(sheaf_sched_alloc(b.sched, g));
    set_ramp(x, 1);
    run(&b);
    cr_assert(seen == 2 + 6, "%g", (double)seen);
    close_bed(&b);
}

/* --- random graphs ---------------------------------------------------------------------------------------- */

static sheaf_tensor *random_node(bed *b, rng *r, sheaf_tensor **have, int n) {
    sheaf_tensor *x = have[rng_below(r, n)], *y = have[rng_below(r, n)];
    switch (rng_below(r, 7)) {
    case 0: return sheaf_add(b->arena, x, y);
    case 1: return sheaf_mul(b->arena, x, y);
    case 2: return sheaf_scale(b->arena, x, 0.5f, 0.25f);
    case 3: return sheaf_unary_op(b->arena, x, SHEAF_UNARY_SIGMOID);
    case 4: return sheaf_cont(b->arena, sheaf_transpose(b->arena, x));
    case 5: return sheaf_reshape_2d(b->arena, x, 8, 8);
    default: return sheaf_rms_norm(b->arena, x, NULL, 1e-5f);
    }
}

Test(sched, random_graphs_do_not_depend_on_where_they_run, .timeout = 300) {
    rng r = rng_start("random graphs");
    for (int round = 0; round < 150; round++) {
        bed b;
        sheaf_tensor *have[48];
        float result[2][64];
        int n = 0;
        open_bed(&b);
        for (int i = 0; i < 3; i++) have[n++] = input(&b, 8, 8, "in");
        for (int i = 0; i < 3; i++) have[n++] = weight(&b, (int)rng_below(&r, 3), 8, 8);
        int nodes = 4 + (int)rng_below(&r, 36);
        for (int i = 0; i < nodes; i++, n++) have[n] = random_node(&b, &r, have, n);
        sheaf_graph *g = graph_of(&b, sheaf_add(b.arena, have[n - 1], have[n - 2]));
        for (int way = 0; way < 2; way++) {
            uint32_t mask = 1u << SHEAF_OP_ADD | 1u << SHEAF_OP_MUL | 1u << SHEAF_OP_UNARY | 1u << SHEAF_OP_SCALE;
            b.p[0].refused = way ? (uint32_t)rng_word(&r) & mask : 0;
            b.p[1].refused = way ? (uint32_t)rng_word(&r) & mask : 0;
            expect_ok(sheaf_sched_alloc(b.sched, g));
            for (int i = 0; i < g->n_leafs; i++)
                if (g->leafs[i]->flags & SHEAF_FLAG_INPUT) set_ramp(g->leafs[i], (float)i * 0.5f);
            run(&b);
            expect_ok(sheaf_tensor_get(g->nodes[g->n_nodes - 1], result[way], 0, sizeof result[way]));
        }
        cr_assert(!memcmp(result[0], result[1], sizeof result[0]), "round %d: results differ", round);
        close_bed(&b);
    }
}

/* --- allocation failures ------------------------------------------------------------------------------------ */

static sheaf_status alloc_again(void *ctx) {
    bed *b = ctx;
    sheaf_sched *s = NULL;
    sheaf_status status = sheaf_sched_new(b->array, 3, NULL, &s);
    sheaf_graph *g = NULL;
    sheaf_arena_reset(b->arena);
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_2d(b->arena, SHEAF_F32, 32, 3), SHEAF_FLAG_INPUT);
    sheaf_tensor *w0 = sheaf_arena_next(b->weights, NULL), *w1 = sheaf_arena_next(b->weights, w0);
    sheaf_tensor *y = sheaf_mul_mat(b->arena, w1, sheaf_mul_mat(b->arena, w0, x));
    if (!status && !y) status = sheaf_arena_status(b->arena);
    if (!status) status = sheaf_graph_new(b->arena, 16, &g);
    if (!status) status = sheaf_graph_expand(g, sheaf_set_flag(y, SHEAF_FLAG_OUTPUT));
    if (!status) status = sheaf_graph_seal(g);
    if (!status) status = sheaf_sched_alloc(s, g);
    if (!status) status = sheaf_sched_compute(s);
    if (!status) status = sheaf_sched_synchronize(s);
    sheaf_sched_free(s);
    return status;
}

Test(sched, every_failed_allocation_is_a_status, .timeout = 120) {
    bed b;
    open_bed(&b);
    (void)weight(&b, 0, 32, 8);
    (void)weight(&b, 1, 8, 4);
    int failed = fail_each_allocation(alloc_again, &b);
    cr_assert(failed > 5, "only %d allocations", failed);
    close_bed(&b);
}
