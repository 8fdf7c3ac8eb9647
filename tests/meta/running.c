/* Graphs on N devices as one: the same bits as on one device. */
#include "support.h"

/* Two matmuls with an activation between: the second is row-parallel. */
typedef struct two {
    sheaf_arena *weights, *work;
    sheaf_tensor *up, *down, *x, *y;
    sheaf_graph *g;
} two;

enum { WIDTH = 64, HIDDEN = 256, TOKENS = 3 };

static void two_build(two *t, sheaf_type type) {
    expect_ok(sheaf_arena_new(1 << 16, &t->weights));
    expect_ok(sheaf_arena_new(1 << 16, &t->work));
    t->up = sheaf_set_name(sheaf_new_2d(t->weights, type, WIDTH, HIDDEN), "up");
    t->down = sheaf_set_name(sheaf_new_2d(t->weights, type, HIDDEN, WIDTH), "down");
    t->x = sheaf_set_flag(sheaf_set_name(sheaf_new_2d(t->work, SHEAF_F32, WIDTH, TOKENS), "x"), SHEAF_FLAG_INPUT);
    sheaf_tensor *h = sheaf_unary_op(t->work, sheaf_mul_mat(t->work, t->up, t->x), SHEAF_UNARY_SILU);
    t->y = sheaf_mul_mat_segments(t->work, sheaf_mul_mat(t->work, t->down, h), 32);
    t->y = sheaf_set_flag(sheaf_set_name(sheaf_add(t->work, t->y, t->x), "y"), SHEAF_FLAG_OUTPUT);
    expect_ok(sheaf_arena_status(t->work));
    expect_ok(sheaf_graph_new(t->work, 32, &t->g));
    expect_ok(sheaf_graph_expand(t->g, t->y));
    expect_ok(sheaf_graph_seal(t->g));
}

static void set_floats(sheaf_tensor *t, uint64_t seed) {
    static float values[HIDDEN * HIDDEN];
    static char bytes[HIDDEN * HIDDEN * 4];
    int64_t n = sheaf_nelements(t);
    fill_random(values, n, seed);
    if (t->type != SHEAF_F32) {
        expect_ok(sheaf_from_float(t->type, values, bytes, n));
        expect_ok(sheaf_tensor_set(t, bytes, 0, sheaf_nbytes(t)));
    } else {
        expect_ok(sheaf_tensor_set(t, values, 0, sheaf_nbytes(t)));
    }
}

static void two_run(two *t, sheaf_backend *b, float *out) {
    sheaf_buffer *weights, *work;
    sheaf_buffer_type *type = b->device->buffer_type;
    expect_ok(sheaf_arena_place_all(t->weights, type, SHEAF_USAGE_WEIGHTS, &weights));
    expect_ok(sheaf_arena_place_all(t->work, type, SHEAF_USAGE_COMPUTE, &work));
    set_floats(t->up, 1);
    set_floats(t->down, 2);
    sheaf_prepared *p;
    expect_ok(sheaf_backend_prepare(b, t->g, &p));
    expect_ok(sheaf_backend_bind(b, p, t->g));
    void *addr[64], *scratch = NULL;
    for (int i = 0; i < t->g->n_leafs + t->g->n_nodes; i++) addr[i] = sheaf_graph_slot(t->g, i)->data;
    size_t bytes = sheaf_prepared_info(b, p).scratch_bytes;
    if (bytes) scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    set_floats(t->x, 3);
    for (int k = 0; k < 3; k++) { /* again and again: staging slots take turns */
        expect_ok(sheaf_backend_run(b, p, addr, scratch, NULL));
        expect_ok(sheaf_backend_synchronize(b));
        expect_ok(sheaf_tensor_get(t->y, out, 0, sheaf_nbytes(t->y)));
    }
    if (sheaf_meta_is(b->device)) expect_ok(sheaf_plan_check(sheaf_meta_plan(p)));
    sheaf_prepared_free(b, p);
    free(scratch);
    sheaf_buffer_free(work);
    sheaf_buffer_free(weights);
    sheaf_arena_free(t->work);
    sheaf_arena_free(t->weights);
}

Test(running, two_matmuls_have_the_bits_of_one_device, .timeout = 60) {
    static const sheaf_type types[] = {SHEAF_F32, SHEAF_Q8_0, SHEAF_Q4_0};
    for (int k = 0; k < 3; k++) {
        float one[WIDTH * TOKENS], many[WIDTH * TOKENS];
        two t;
        house h;
        house_open(&h, 1);
        sheaf_backend *single;
        expect_ok(sheaf_backend_new(h.devices[0], &single));
        two_build(&t, types[k]);
        two_run(&t, single, one);
        sheaf_backend_free(single);
        house_close(&h);
        for (int n = 1; n <= 5; n++) {
            house_open(&h, n);
            named_layout rows[] = {{"up", 1, {0}}, {"down", 0, {0}}};
            for (int d = 0; d < n; d++)
                rows[0].share[d] = rows[1].share[d] = 32 * (HIDDEN / 32 / n + (d < HIDDEN / 32 % n));
            layout_table table = {rows, 2, n};
            sheaf_meta_set_policy(h.meta, table_policy, &table);
            two_build(&t, types[k]);
            two_run(&t, h.backend, many);
            for (int i = 0; i < WIDTH * TOKENS; i++) {
                cr_assert(memcmp(&one[i], &many[i], sizeof(float)) == 0,
                          "%s, %d devices: element %d is %.9g, on one device %.9g", sheaf_type_name(types[k]), n, i,
                          (double)many[i], (double)one[i]);
            }
            house_close(&h);
        }
    }
}
