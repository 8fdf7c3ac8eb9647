/* Meta buffers: bytes across any border, empty shards, traps, and what happens when memory runs out. */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

enum { PARTS = 6, BYTES = 1 << 15 };

/* Case A06: three unequal segments over two devices, in f32 and in blocks, cut along either dimension. */
typedef struct shape {
    sheaf_type type;
    int64_t ne[3];
    int axis;
    sheaf_run runs[PARTS];
    int n_runs;
} shape;
static const shape shapes[] = {
    {SHEAF_F32, {12, 3, 2}, 0, {{4, 1}, {2, 2}, {2, 1}, {1, 2}, {2, 1}, {1, 2}}, 6},
    {SHEAF_F32, {5, 12, 2}, 1, {{4, 1}, {2, 2}, {2, 3}, {1, 2}, {2, 1}, {1, 2}}, 6},
    {SHEAF_F32, {5, 3, 4}, 2, {{1, 2}, {3, 1}}, 2},
    {SHEAF_Q8_0, {192, 3, 2}, 0, {{64, 1}, {32, 3}, {96, 2}}, 3},
    {SHEAF_Q4_K, {512, 4, 1}, 0, {{256, 2}, {256, 1}}, 2},
    {SHEAF_F16, {7, 9, 1}, 1, {{9, 1}}, 1},
};

static sheaf_status one_shape(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    (void)t;
    const shape *s = ctx;
    return sheaf_layout_axis(a, s->axis, s->runs, s->n_runs, 2, out);
}

static void check_ranges(sheaf_tensor *t, const unsigned char *whole, size_t bytes) {
    static unsigned char got[BYTES];
    uint64_t seed = 17;
    for (int k = 0; k < 200; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t begin = (size_t)(seed >> 33) % bytes, size = (size_t)(seed >> 13) % (bytes - begin + 1);
        memset(got, 0xcc, size);
        expect_ok(sheaf_tensor_get(t, got, begin, size));
        cr_assert_eq(memcmp(got, whole + begin, size), 0, "[%zu, +%zu) of %zu", begin, size, bytes);
        expect_ok(sheaf_tensor_set(t, whole + begin, begin, size)); /* back the same way: nothing else moves */
    }
    expect_ok(sheaf_tensor_get(t, got, 0, bytes));
    cr_assert_eq(memcmp(got, whole, bytes), 0, "after writing ranges back");
}

static void check_2d(sheaf_tensor *t, const unsigned char *whole) {
    static unsigned char got[BYTES];
    size_t row = t->nb[1], rows = (size_t)t->ne[1], piece = row / 2, at = row / 4;
    expect_ok(sheaf_tensor_get_2d(t, got, piece, at, row, piece, rows));
    for (size_t r = 0; r < rows; r++)
        cr_assert_eq(memcmp(got + r * piece, whole + r * row + at, piece), 0, "row %zu", r);
    expect_ok(sheaf_tensor_set_2d(t, got, piece, at, row, piece, rows));
    expect_ok(sheaf_tensor_get(t, got, 0, row * rows));
    cr_assert_eq(memcmp(got, whole, row * rows), 0, "after a 2-D write");
}

/* What device d holds, by the slow obvious way: byte ranges of its shard are runs of the whole. */
static void check_shards(const sheaf_tensor *t, const unsigned char *whole) {
    static unsigned char got[BYTES];
    const sheaf_layout *l = sheaf_meta_layout(t);
    for (int d = 0; d < 2; d++) {
        sheaf_tensor *shard = sheaf_meta_shard(t, d);
        cr_assert_not_null(shard);
        size_t bytes = sheaf_nbytes(shard);
        expect_int(shard->ne[l->axis], sheaf_layout_share(l, d, 0));
        if (bytes == 0) continue;
        expect_ok(sheaf_tensor_get(shard, got, 0, bytes));
        sheaf_pieces w;
        sheaf_piece p;
        sheaf_pieces_begin(&w, l, d, t->type, t->ne, 0, sheaf_nbytes(t));
        while (sheaf_pieces_next(&w, &p))
            cr_assert_eq(memcmp(got + p.local, whole + p.global, p.bytes), 0, "device %d at %zu", d, p.local);
    }
}

Test(buffers, bytes_cross_every_border, .timeout = 60) {
    static unsigned char whole[BYTES];
    house h;
    house_open(&h, 2);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        sheaf_arena *a;
        sheaf_buffer *b;
        expect_ok(sheaf_arena_new(1 << 12, &a));
        sheaf_meta_set_policy(h.meta, one_shape, (void *)&shapes[k]);
        sheaf_tensor *t = sheaf_set_name(sheaf_new(a, shapes[k].type, 3, shapes[k].ne), "t");
        expect_ok(sheaf_arena_place_all(a, h.meta->buffer_type, SHEAF_USAGE_STATE, &b));
        size_t bytes = sheaf_nbytes(t), held = 0;
        for (size_t i = 0; i < bytes; i++) whole[i] = (unsigned char)(i * 7 + k);
        expect_ok(sheaf_tensor_set(t, whole, 0, bytes));
        check_ranges(t, whole, bytes);
        check_2d(t, whole);
        check_shards(t, whole);
        for (int d = 0; d < 2; d++) {
            held += sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_STATE);
            expect_int(sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_STATE), sheaf_nbytes(sheaf_meta_shard(t, d)));
        }
        cr_assert_geq(held, bytes, "%zu of %zu", held, bytes);
        expect_status(sheaf_tensor_get(t, whole, bytes - 1, 2), SHEAF_E_RANGE);
        sheaf_buffer_free(b);
        for (int d = 0; d < 2; d++) expect_int(sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_STATE), 0);
        sheaf_arena_free(a);
    }
    house_close(&h);
}

/* The same for layouts that nobody thought of: any number of segments, on any of 1 to 5 devices, several at once or
 * all, along any dimension, of elements and of blocks. */
typedef struct drawn {
    int axis, n_runs, n_devices;
    sheaf_run runs[9];
} drawn;

static sheaf_status drawn_layout(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    (void)t;
    const drawn *d = ctx;
    return sheaf_layout_axis(a, d->axis, d->runs, d->n_runs, d->n_devices, out);
}

static uint64_t draw(uint64_t *seed, uint64_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % n;
}

/* Every device's bytes are those of its runs, replicas too. */
static void check_holders(const sheaf_tensor *t, const unsigned char *whole, int n_devices) {
    static unsigned char got[BYTES];
    for (int d = 0; d < n_devices; d++) {
        sheaf_tensor *shard = sheaf_meta_shard(t, d);
        sheaf_pieces w;
        sheaf_piece p;
        if (sheaf_nelements(shard) == 0) continue;
        expect_ok(sheaf_tensor_get(shard, got, 0, sheaf_nbytes(shard)));
        sheaf_pieces_begin(&w, sheaf_meta_layout(t), d, t->type, t->ne, 0, sheaf_nbytes(t));
        while (sheaf_pieces_next(&w, &p))
            cr_assert_eq(memcmp(got + p.local, whole + p.global, p.bytes), 0, "device %d at %zu", d, p.local);
    }
}

static void check_drawn(house *h, uint64_t *seed) {
    static const sheaf_type types[] = {SHEAF_F32, SHEAF_F16, SHEAF_Q8_0, SHEAF_Q4_K, SHEAF_I64};
    static unsigned char whole[BYTES];
    sheaf_type type = types[draw(seed, 5)];
    drawn d = {.axis = (int)draw(seed, 4), .n_runs = 1 + (int)draw(seed, 9), .n_devices = h->n};
    int64_t ne[4], length = 0, unit = sheaf_type_block(type);
    for (int r = 0; r < d.n_runs; r++) {
        sheaf_device_set set = 1 + draw(seed, ((uint64_t)1 << h->n) - 1);
        d.runs[r] = (sheaf_run){(1 + (int64_t)draw(seed, 3)) * (d.axis == 0 ? unit : 1), set};
        length += d.runs[r].length;
    }
    for (int i = 0; i < 4; i++) ne[i] = i == d.axis ? length : (1 + (int64_t)draw(seed, 2)) * (i == 0 ? unit : 1);
    sheaf_arena *a;
    sheaf_buffer *b;
    expect_ok(sheaf_arena_new(1 << 12, &a));
    sheaf_tensor *t = sheaf_set_name(sheaf_new(a, type, 4, ne), "t");
    size_t bytes = sheaf_nbytes(t);
    cr_assert_leq(bytes, sizeof whole);
    sheaf_meta_set_policy(h->meta, drawn_layout, &d);
    expect_ok(sheaf_arena_place_all(a, h->meta->buffer_type, SHEAF_USAGE_STATE, &b));
    for (size_t i = 0; i < bytes; i++) whole[i] = (unsigned char)(i * 13 + draw(seed, 3));
    for (size_t at = 0; at < bytes;) { /* written in pieces of any length */
        size_t n = 1 + (size_t)draw(seed, bytes - at);
        expect_ok(sheaf_tensor_set(t, whole + at, at, n));
        at += n;
    }
    check_ranges(t, whole, bytes);
    check_2d(t, whole);
    check_holders(t, whole, h->n);
    sheaf_buffer_free(b);
    sheaf_arena_free(a);
}

Test(buffers, bytes_cross_every_border_of_any_layout, .timeout = 120) {
    uint64_t seed = 5;
    for (int n = 1; n <= 5; n++) {
        house h;
        house_open(&h, n);
        for (int k = 0; k < 60; k++) check_drawn(&h, &seed);
        house_close(&h);
    }
}

Test(buffers, a_state_moves_from_two_devices_to_three, .timeout = 60) {
    float values[96], got[96];
    house two, three;
    sheaf_arena *a, *b;
    sheaf_buffer *from, *to;
    named_layout rows2[] = {{"s", 0, {8, 4}}}, rows3[] = {{"s", 0, {4, 4, 4}}};
    layout_table t2 = {rows2, 1, 2}, t3 = {rows3, 1, 3};
    house_open(&two, 2);
    house_open(&three, 3);
    sheaf_meta_set_policy(two.meta, table_policy, &t2);
    sheaf_meta_set_policy(three.meta, table_policy, &t3);
    expect_ok(sheaf_arena_new(1 << 12, &a));
    expect_ok(sheaf_arena_new(1 << 12, &b));
    sheaf_tensor *x = sheaf_set_name(sheaf_new_2d(a, SHEAF_F32, 12, 8), "s"),
                 *y = sheaf_set_name(sheaf_new_2d(b, SHEAF_F32, 12, 8), "s");
    expect_ok(sheaf_arena_place_all(a, two.meta->buffer_type, SHEAF_USAGE_STATE, &from));
    expect_ok(sheaf_arena_place_all(b, three.meta->buffer_type, SHEAF_USAGE_STATE, &to));
    fill_random(values, 96, 4);
    expect_ok(sheaf_tensor_set(x, values, 0, sizeof values));
    expect_ok(sheaf_tensor_copy(x, y));
    expect_ok(sheaf_tensor_get(y, got, 0, sizeof got));
    cr_assert_eq(memcmp(got, values, sizeof got), 0, "got[0] is %.9g, not %.9g", (double)got[0], (double)values[0]);
    sheaf_buffer_free(to);
    sheaf_buffer_free(from);
    sheaf_arena_free(b);
    sheaf_arena_free(a);
    house_close(&three);
    house_close(&two);
}

/* Reading an address of a meta buffer is a bug that must not go unnoticed. */
Test(buffers, a_stray_access_traps, .timeout = 60) {
    house h;
    sheaf_buffer *b;
    house_open(&h, 2);
    expect_ok(sheaf_buffer_alloc(h.meta->buffer_type, 1 << 16, SHEAF_USAGE_COMPUTE, &b));
    cr_assert_not_null(b->base);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        volatile const char *p = b->base;
        _exit(p[123] == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    cr_assert(!(WIFEXITED(status) && WEXITSTATUS(status) <= 1), "the child read the byte (status %d)", status);
    sheaf_buffer_free(b);
    expect_ok(sheaf_buffer_alloc(h.meta->buffer_type, 0, SHEAF_USAGE_WEIGHTS, &b)); /* nothing is not a failure */
    cr_assert_null(b->base);
    sheaf_buffer_free(b);
    house_close(&h);
}

/* Case A27: a policy that answers nonsense. */
static sheaf_status bad_policy(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    (void)a, (void)t;
    *out = *(const sheaf_layout *)ctx;
    return SHEAF_OK;
}

Test(buffers, a_policy_that_answers_nonsense_is_an_error, .timeout = 60) {
    static const sheaf_run runs[] = {{3, 1}, {5, 2}}, foreign[] = {{3, 1}, {5, 4}}, inside[] = {{48, 1}, {16, 2}};
    static const struct {
        sheaf_layout l;
        sheaf_type type;
        int64_t ne0;
        sheaf_status status;
    } rows[] = {
        {{SHEAF_AXIS, 0, 2, runs}, SHEAF_F32, 8, SHEAF_OK},
        {{SHEAF_AXIS, 4, 2, runs}, SHEAF_F32, 8, SHEAF_E_RANGE},
        {{SHEAF_AXIS, -1, 2, runs}, SHEAF_F32, 8, SHEAF_E_RANGE},
        {{SHEAF_AXIS, 0, 2, runs}, SHEAF_F32, 9, SHEAF_E_SHAPE},
        {{SHEAF_AXIS, 0, 2, foreign}, SHEAF_F32, 8, SHEAF_E_RANGE},
        {{(sheaf_layout_kind)11, 0, 0, NULL}, SHEAF_F32, 8, SHEAF_E_RANGE},
        {{SHEAF_AXIS, 0, 2, inside}, SHEAF_Q8_0, 64, SHEAF_E_SHAPE},
    };
    house h;
    house_open(&h, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_arena *a;
        sheaf_buffer *b = NULL;
        expect_ok(sheaf_arena_new(1 << 12, &a));
        sheaf_meta_set_policy(h.meta, bad_policy, (void *)&rows[i].l);
        sheaf_set_name(sheaf_new_2d(a, rows[i].type, rows[i].ne0, 2), "t");
        sheaf_status s = sheaf_arena_place_all(a, h.meta->buffer_type, SHEAF_USAGE_WEIGHTS, &b);
        cr_assert_eq(s, rows[i].status, "row %zu: %s (%s)", i, sheaf_status_name(s), sheaf_error());
        sheaf_buffer_free(b);
        sheaf_arena_free(a);
    }
    for (int d = 0; d < 2; d++) expect_int(sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_WEIGHTS), 0);
    house_close(&h);
}

/* Case A18: each allocation of loading fails in turn; all that was taken is given back. */
typedef struct countdown {
    int left;
} countdown;
static bool allow(void *ctx, size_t size) {
    (void)size;
    return ((countdown *)ctx)->left-- != 0;
}

Test(buffers, every_failed_allocation_is_given_back, .timeout = 60) {
    house h;
    house_open(&h, 3);
    named_layout rows[] = {{"a", 1, {2, 3, 1}}, {"b", 0, {4, 2, 2}}};
    layout_table table = {rows, 2, 3};
    sheaf_meta_set_policy(h.meta, table_policy, &table);
    int failures = 0;
    for (int k = 0; k < 100; k++) {
        sheaf_arena *a;
        sheaf_buffer *b = NULL;
        expect_ok(sheaf_arena_new(1 << 12, &a));
        sheaf_tensor *x = sheaf_set_name(sheaf_new_2d(a, SHEAF_F32, 8, 6), "a");
        sheaf_set_name(sheaf_new_2d(a, SHEAF_F32, 8, 6), "b");
        countdown c = {k};
        sheaf_alloc_hook(allow, &c);
        sheaf_status s = sheaf_arena_place_all(a, h.meta->buffer_type, SHEAF_USAGE_WEIGHTS, &b);
        sheaf_alloc_hook(NULL, NULL);
        cr_assert(s == SHEAF_OK || s == SHEAF_E_NO_MEMORY, "%d: %s (%s)", k, sheaf_status_name(s), sheaf_error());
        if (s) {
            failures++;
            cr_assert_null(x->data, "%d: still placed", k);
        }
        sheaf_buffer_free(b);
        for (int d = 0; d < 3; d++) expect_int(sheaf_meta_bytes(h.meta, d, SHEAF_USAGE_WEIGHTS), 0);
        sheaf_arena_free(a);
        if (!s) break;
    }
    cr_assert_geq(failures, 5, "%d", failures);
    house_close(&h);
}

Test(buffers, a_device_tells_what_its_members_tell, .timeout = 60) {
    house h;
    size_t total, free_bytes, one_total, one_free;
    house_open(&h, 3);
    expect_int(sheaf_meta_world_devices(h.meta), 3);
    expect_int(sheaf_meta_first(h.meta), 0);
    cr_assert(sheaf_meta_is(h.meta) && !sheaf_meta_is(h.devices[0]) && !sheaf_meta_is(NULL));
    expect_ok(h.meta->iface->memory(h.meta, &total, &free_bytes));
    expect_ok(h.devices[0]->iface->memory(h.devices[0], &one_total, &one_free));
    cr_assert_geq(total, one_total, "%zu, a member has %zu", total, one_total);
    /* the first fills when a third more than what it has is on all of them */
    sheaf_meta_set_shares(h.meta, (const float[]){3, 1, 0});
    expect_ok(h.meta->iface->memory(h.meta, &total, &free_bytes));
    double most = (double)one_total / 0.75;
    cr_assert(fabs((double)total - most) < 2, "%zu in all, a member with 3 of 4 parts has %zu", total, one_total);
    cr_assert(sheaf_device_supports_buffer_type(h.meta, h.meta->buffer_type));
    cr_assert_not(sheaf_device_supports_buffer_type(h.meta, sheaf_host_buffer_type()));
    sheaf_device *none;
    expect_status(sheaf_meta_new("none", h.devices, 0, NULL, &none), SHEAF_E_ARGUMENT);
    house_close(&h);
}
