/* A meta device under the scheduler: outputs, inputs, and nodes observed one by one, so that cut tensors cross
 * from one plan to the next. */
#include "sched/sched.h"
#include "support.h"

enum { WIDTH = 32, HIDDEN = 96, TOKENS = 2, MAX_SEEN = 16 };

typedef struct net {
    sheaf_arena *weights, *work;
    sheaf_buffer *buffer;
    sheaf_tensor *up, *down, *x, *y;
    sheaf_graph *g;
} net;

static void build(net *t, sheaf_buffer_type *type) {
    expect_ok(sheaf_arena_new(1 << 14, &t->weights));
    expect_ok(sheaf_arena_new(1 << 14, &t->work));
    t->up = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, WIDTH, HIDDEN), "up");
    t->down = sheaf_set_name(sheaf_new_2d(t->weights, SHEAF_F32, HIDDEN, WIDTH), "down");
    expect_ok(sheaf_arena_place_all(t->weights, type, SHEAF_USAGE_WEIGHTS, &t->buffer));
    t->x = sheaf_set_flag(sheaf_set_name(sheaf_new_2d(t->work, SHEAF_F32, WIDTH, TOKENS), "x"), SHEAF_FLAG_INPUT);
    sheaf_tensor *h = sheaf_set_name(sheaf_mul_mat(t->work, t->up, t->x), "h");
    sheaf_tensor *a = sheaf_set_name(sheaf_unary_op(t->work, h, SHEAF_UNARY_SILU), "a");
    sheaf_tensor *b = sheaf_set_name(sheaf_mul(t->work, sheaf_reshape_3d(t->work, a, 8, HIDDEN / 8, TOKENS),
                                               sheaf_reshape_3d(t->work, h, 8, HIDDEN / 8, TOKENS)),
                                     "b");
    sheaf_tensor *o = sheaf_mul_mat(t->work, t->down, sheaf_reshape_2d(t->work, b, HIDDEN, TOKENS));
    o = sheaf_set_name(sheaf_mul_mat_segments(t->work, o, 16), "o");
    t->y = sheaf_set_flag(sheaf_set_name(sheaf_add(t->work, o, t->x), "y"), SHEAF_FLAG_OUTPUT);
    expect_ok(sheaf_graph_new(t->work, 32, &t->g));
    expect_ok(sheaf_graph_expand(t->g, t->y));
    expect_ok(sheaf_graph_seal(t->g));
    float values[WIDTH * HIDDEN];
    fill_random(values, WIDTH * HIDDEN, 5);
    expect_ok(sheaf_tensor_set(t->up, values, 0, sizeof values));
    fill_random(values, WIDTH * HIDDEN, 6);
    expect_ok(sheaf_tensor_set(t->down, values, 0, sizeof values));
}

typedef struct seen {
    char name[MAX_SEEN][64];
    float value[MAX_SEEN][HIDDEN * TOKENS];
    int n;
} seen;

static bool wants(void *ctx, const sheaf_tensor *node) {
    (void)ctx;
    return node->type == SHEAF_F32 && !sheaf_op_is_header(node->op);
}

static sheaf_status see(void *ctx, const sheaf_tensor *node) {
    seen *s = ctx;
    if (s->n == MAX_SEEN) return SHEAF_OK;
    strcpy(s->name[s->n], node->name);
    return sheaf_tensor_get(node, s->value[s->n++], 0, sheaf_nbytes(node));
}

static void run(house *h, sheaf_backend *b, int n_devices, bool observe, float *y, seen *s) {
    sheaf_device *host;
    sheaf_backend *backends[2] = {b, NULL};
    sheaf_sched *sched;
    sheaf_sched_options o = {0};
    net t;
    named_layout rows[] = {{"up", 1, {0}}, {"down", 0, {0}}};
    for (int d = 0; d < n_devices; d++)
        rows[0].share[d] = rows[1].share[d] = 16 * (HIDDEN / 16 / n_devices + (d < HIDDEN / 16 % n_devices));
    layout_table table = {rows, 2, n_devices};
    if (sheaf_meta_is(b->device)) sheaf_meta_set_policy(h->meta, table_policy, &table);
    expect_ok(sheaf_host_device_open(h->registry, h->devices, h->n, &host));
    expect_ok(sheaf_backend_new(host, &backends[1]));
    build(&t, b->device->buffer_type);
    expect_ok(sheaf_sched_new(backends, 2, &o, &sched));
    if (observe) sheaf_sched_set_eval(sched, wants, see, s);
    expect_ok(sheaf_sched_reserve(sched, t.g));
    s->n = 0;
    for (int k = 0; k < 3; k++) {
        expect_ok(sheaf_sched_alloc(sched, t.g));
        float x[WIDTH * TOKENS];
        fill_random(x, WIDTH * TOKENS, 9);
        expect_ok(sheaf_tensor_set(t.x, x, 0, sizeof x));
        expect_ok(sheaf_sched_compute(sched));
        expect_ok(sheaf_sched_synchronize(sched));
        expect_ok(sheaf_tensor_get(t.y, y, 0, sheaf_nbytes(t.y)));
    }
    sheaf_sched_free(sched);
    sheaf_backend_free(backends[1]);
    sheaf_buffer_free(t.buffer);
    sheaf_arena_free(t.work);
    sheaf_arena_free(t.weights);
}

Test(observing, nodes_one_by_one_changes_nothing, .timeout = 60) {
    static seen one, many;
    float y[WIDTH * TOKENS], plain[WIDTH * TOKENS];
    house h;
    sheaf_backend *b;
    house_open(&h, 1);
    expect_ok(sheaf_backend_new(h.devices[0], &b));
    run(&h, b, 1, true, y, &one);
    sheaf_backend_free(b);
    house_close(&h);
    expect_int(one.n, 15); /* five nodes, three times */
    for (int n = 1; n <= 4; n++) {
        house_open(&h, n);
        run(&h, h.backend, n, false, plain, &many);
        cr_assert_eq(memcmp(plain, y, sizeof y), 0, "%d devices: y[0] is %.9g, on one device %.9g", n, (double)plain[0],
                     (double)y[0]);
        run(&h, h.backend, n, true, plain, &many);
        cr_assert_eq(memcmp(plain, y, sizeof y), 0, "%d devices, observed: y[0] is %.9g, on one device %.9g", n,
                     (double)plain[0], (double)y[0]);
        expect_int(many.n, one.n);
        for (int k = 0; k < one.n; k++) {
            expect_text(many.name[k], one.name[k]);
            cr_assert_eq(memcmp(many.value[k], one.value[k], sizeof one.value[k]), 0,
                         "%d devices: %s[0] is %.9g, on one device %.9g", n, one.name[k], (double)many.value[k][0],
                         (double)one.value[k][0]);
        }
        house_close(&h);
    }
}
