/* Graphs: order, numbering, identities, the checker, depth, and failed allocations. */
#include "tensor/tensor.h"
#include "tests/support/support.h"

static sheaf_arena *a;
static sheaf_graph *g;

static void start(void) {
    expect_ok(sheaf_arena_new(1 << 16, &a));
    expect_ok(sheaf_graph_new(a, 4, &g));
}
static void stop(void) { sheaf_arena_free(a); }

TestSuite(graph, .init = start, .fini = stop, .timeout = 30);

static void seal_and_check(void) {
    expect_ok(sheaf_graph_seal(g));
    expect_ok(sheaf_graph_check(g));
}

Test(graph, sources_come_before_their_readers) {
    rng r = rng_start("order");
    sheaf_tensor *pool[400];
    int n = 0;
    for (; n < 20; n++) pool[n] = sheaf_new_1d(a, SHEAF_F32, 8);
    for (; n < 400; n++) {
        sheaf_tensor *x = pool[rng_below(&r, n)], *y = pool[rng_below(&r, n)];
        pool[n] = rng_chance(&r, 0.2f) ? sheaf_reshape_2d(a, x, 4, 2)
                                       : sheaf_add(a, sheaf_reshape_1d(a, x, 8), sheaf_reshape_1d(a, y, 8));
    }
    expect_ok(sheaf_arena_status(a));
    for (int i = 0; i < 40; i++) expect_ok(sheaf_graph_expand(g, pool[399 - i]));
    int32_t before = g->n_nodes;
    expect_ok(sheaf_graph_expand(g, pool[380])); /* it is there already */
    expect_int(g->n_nodes, before);
    seal_and_check();
    cr_assert(g->n_nodes > 100 && g->n_leafs > 5, "%d nodes and %d leafs: too few", g->n_nodes, g->n_leafs);
}

Test(graph, depth_is_not_recursion) {
    sheaf_tensor *t = sheaf_new_1d(a, SHEAF_F32, 1);
    for (int i = 0; i < 200000; i++) t = sheaf_scale(a, t, 1, 0);
    expect_ok(sheaf_graph_expand(g, t));
    expect_ok(sheaf_graph_seal(g));
    expect_int(g->n_nodes, 200000);
    cr_assert(g->nodes[199999] == t, "the last node is another");
}

Test(graph, uses_are_counted_by_reader_and_place) {
    sheaf_tensor *x = sheaf_new_1d(a, SHEAF_F32, 8), *w = sheaf_new_1d(a, SHEAF_F32, 8);
    sheaf_tensor *twice = sheaf_add(a, x, x), *y = sheaf_rms_norm(a, twice, w, 0), *v = sheaf_view_1d(a, twice, 4, 0);
    expect_ok(sheaf_graph_expand(g, y));
    expect_ok(sheaf_graph_expand(g, sheaf_scale(a, v, 2, 0)));
    seal_and_check();
    expect_int(g->use_counts[x->index], 2);
    expect_int(g->use_counts[twice->index], 2);
    expect_int(g->use_counts[v->index], 1);
    expect_int(g->use_counts[y->index], 0);
    sheaf_set_name(v, "v");
    cr_assert(sheaf_graph_find(g, "v") == v && sheaf_graph_find(g, "w") == NULL, "finding by name");
}

/* A small block: w*x, norm, add; with `n` tokens, `factor` in a parameter, `seen` as its input's flag. */
static uint64_t shape_of(int64_t n, float factor, uint32_t flag, bool twist) {
    sheaf_arena *own;
    sheaf_graph *h;
    expect_ok(sheaf_arena_new(1 << 14, &own));
    expect_ok(sheaf_graph_new(own, 16, &h));
    sheaf_tensor *w = sheaf_new_2d(own, SHEAF_F32, 8, 8), *x = sheaf_set_flag(sheaf_new_2d(own, SHEAF_F32, 8, n), flag);
    sheaf_tensor *y = sheaf_mul_mat(own, w, x), *z = sheaf_scale(own, y, factor, 0);
    sheaf_set_name(z, "name %d", (int)factor); /* names are no structure */
    expect_ok(sheaf_graph_expand(h, twist ? sheaf_add(own, z, y) : sheaf_add(own, y, z)));
    expect_ok(sheaf_graph_seal(h));
    uint64_t id = h->shape_id;
    sheaf_arena_free(own);
    return id;
}

Test(graph, shape_id_follows_structure_and_nothing_else) {
    uint64_t id = shape_of(5, 2, SHEAF_FLAG_INPUT, false);
    cr_assert(shape_of(5, 2, SHEAF_FLAG_INPUT, false) == id, "the same graph in another arena has another id");
    cr_assert(shape_of(6, 2, SHEAF_FLAG_INPUT, false) != id, "a shape changes it");
    cr_assert(shape_of(5, 3, SHEAF_FLAG_INPUT, false) != id, "a parameter changes it");
    cr_assert(shape_of(5, 2, 0, false) != id, "a flag changes it");
    cr_assert(shape_of(5, 2, SHEAF_FLAG_INPUT, true) != id, "wiring changes it");
}

Test(graph, bind_id_follows_addresses) {
    float bytes[2];
    sheaf_tensor *x = sheaf_new_1d(a, SHEAF_F32, 1);
    expect_ok(sheaf_graph_expand(g, sheaf_scale(a, x, 1, 0)));
    seal_and_check();
    uint64_t shape = g->shape_id, bind = g->bind_id;
    x->data = bytes;
    sheaf_graph_rebind(g);
    cr_assert(g->bind_id != bind, "an address was set and bind_id stayed");
    x->data = bytes + 1;
    uint64_t second = g->bind_id;
    sheaf_graph_rebind(g);
    cr_assert(g->bind_id != second, "an address moved and bind_id stayed");
    expect_ok(sheaf_graph_seal(g));
    cr_assert(g->shape_id == shape, "an address changed shape_id");
}

Test(graph, parts_may_have_computed_leafs) {
    sheaf_tensor *x = sheaf_new_1d(a, SHEAF_F32, 8), *y = sheaf_scale(a, x, 2, 0), *z = sheaf_scale(a, y, 3, 0);
    expect_ok(sheaf_graph_add(g, y, true));
    expect_ok(sheaf_graph_add(g, z, false));
    expect_ok(sheaf_graph_add(g, z, false));
    seal_and_check();
    expect_int(g->n_leafs, 1);
    expect_int(g->n_nodes, 1);
}

Test(graph, a_source_outside_is_an_error) {
    sheaf_tensor *x = sheaf_new_1d(a, SHEAF_F32, 8);
    expect_ok(sheaf_graph_add(g, sheaf_set_name(sheaf_scale(a, x, 2, 0), "y"), false));
    expect_status(sheaf_graph_seal(g), SHEAF_E_INTERNAL);
    expect_error("scale 'y' reads ''");
    expect_status(sheaf_graph_expand(g, NULL), SHEAF_E_ARGUMENT);
    sheaf_graph *none;
    expect_status(sheaf_graph_new(a, 0, &none), SHEAF_E_ARGUMENT);
}

/* Each row breaks one rule of a good graph: x -> view v -> y = scale(v) -> z = add(y, x). */
static sheaf_tensor *x, *v, *y, *z;

static void break_index(void) { y->index = 0; }
static void break_order(void) { /* y before the view it reads */
    g->nodes[0] = y, g->nodes[1] = v;
    y->index = 1, v->index = 2;
}
static void break_missing_source(void) { z->src[1] = NULL; }
static void break_root(void) { v->view_src = y; }
static void break_root_is_view(void) { x->view_src = x; }
static void break_range(void) { v->view_offs = 1000; }
static void break_shape(void) { y->ne[2] = -1; }
static void break_op(void) { y->op = SHEAF_OP_NONE; }
static void break_uses(void) { g->use_counts[x->index]++; }
static void break_type(void) { y->type = (sheaf_type)5; }

static const struct {
    void (*apply)(void);
    const char *words;
} breaks[] = {
    {break_index, "its index is another slot"},    {break_order, "a source does not come before it"},
    {break_missing_source, "a source is missing"}, {break_root, "its root does not come before it"},
    {break_root_is_view, "its root is a view"},    {break_range, "it leaves its root"},
    {break_shape, "shape or strides wrap"},        {break_op, "a node has an operation"},
    {break_uses, "its use count is wrong"},        {break_type, "its type is unknown"},
};

Test(graph, checker_finds_every_broken_rule) {
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        sheaf_arena_reset(a);
        expect_ok(sheaf_graph_new(a, 8, &g));
        expect_status(sheaf_graph_check(g), SHEAF_E_INTERNAL); /* not sealed */
        x = sheaf_new_1d(a, SHEAF_F32, 8);
        v = sheaf_view_1d(a, x, 4, 8);
        y = sheaf_scale(a, v, 2, 0);
        z = sheaf_add(a, y, sheaf_view_1d(a, x, 4, 0));
        expect_ok(sheaf_graph_expand(g, z));
        seal_and_check();
        breaks[i].apply();
        expect_status(sheaf_graph_check(g), SHEAF_E_INTERNAL);
        expect_error(breaks[i].words);
    }
}

/* --- memory --- */

static sheaf_status build(void *ctx) {
    sheaf_arena *own = ctx;
    sheaf_graph *h;
    sheaf_arena_reset(own);
    sheaf_status s = sheaf_graph_new(own, 4, &h);
    if (s) return s;
    sheaf_tensor *t = sheaf_new_1d(own, SHEAF_F32, 8);
    for (int i = 0; i < 100; i++) t = sheaf_add(own, t, sheaf_new_1d(own, SHEAF_F32, 8));
    if ((s = sheaf_graph_expand(h, t))) return s;
    return sheaf_graph_seal(h);
}

static sheaf_status build_from_nothing(void *ctx) {
    (void)ctx;
    sheaf_arena *own;
    sheaf_status s = sheaf_arena_new(512, &own);
    if (s) return s;
    s = build(own);
    sheaf_arena_free(own);
    return s;
}

Test(graph, rebuilding_after_a_reset_allocates_nothing) {
    expect_ok(build(a));
    expect_int(count_allocations(build, a), 0);
}

Test(graph, survives_every_failed_allocation) {
    int n = fail_each_allocation(build_from_nothing, NULL);
    cr_assert(n > 50, "%d allocations are too few to mean anything", n);
}
