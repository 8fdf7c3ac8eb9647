/* The graph allocator: cases C11, C12, C15, C17's lifetimes, replay, and the checker itself. */
#include "tensor/galloc_internal.h"
#include "tests/tensor/random_graph.h"

#include <stdlib.h>

enum { MAX_SLOTS = 512, MIB = 1 << 20 };

static sheaf_arena *a;

static void start(void) { expect_ok(sheaf_arena_new(1 << 16, &a)); }
static void stop(void) { sheaf_arena_free(a); }

TestSuite(galloc, .init = start, .fini = stop, .timeout = 60);

static sheaf_galloc *new_galloc(size_t alignment, size_t max_size) {
    sheaf_galloc *ga;
    expect_ok(sheaf_galloc_new(&(sheaf_galloc_type){.alignment = alignment, .max_size = max_size}, 1, &ga));
    return ga;
}

static sheaf_graph *graph_of(sheaf_tensor *t) {
    sheaf_graph *g;
    expect_ok(sheaf_arena_status(a));
    expect_ok(sheaf_graph_new(a, 16, &g));
    expect_ok(sheaf_graph_expand(g, t));
    expect_ok(sheaf_graph_seal(g));
    return g;
}

static void reserve(sheaf_galloc *ga, const sheaf_graph *g) {
    expect_ok(sheaf_galloc_reserve(ga, g, NULL, NULL, 0));
    expect_ok(sheaf_galloc_check(ga, g));
}

/* --- case C12: the planned memory computes what one buffer per tensor computes --- */

/* Memory for a run: a block per root (addr from malloc) or the planned chunks. */
typedef struct memory {
    void *addr[MAX_SLOTS];
    void *owned[MAX_SLOTS];
    int n_owned;
} memory;

static void *own(memory *m, size_t size) {
    void *p = malloc(size ? size : 1);
    cr_assert(p != NULL, "out of memory");
    memset(p, 0xff, size); /* NaN: what is read before it is written shows */
    m->owned[m->n_owned++] = p;
    return p;
}

static void release(memory *m) {
    for (int i = 0; i < m->n_owned; i++) free(m->owned[i]);
}

static void place_apart(memory *m, const sheaf_graph *g) {
    m->n_owned = 0;
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        m->addr[i] = t->view_src ? (char *)m->addr[t->view_src->index] + t->view_offs : own(m, sheaf_nbytes(t));
    }
}

static void place_planned(memory *m, const sheaf_galloc *ga, const sheaf_graph *g) {
    void *chunks[64];
    m->n_owned = 0;
    for (int c = 0; c < sheaf_galloc_chunks(ga, 0); c++) chunks[c] = own(m, sheaf_galloc_chunk_bytes(ga, 0, c));
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        sheaf_place p = sheaf_galloc_place(ga, i);
        expect_int(p.arena, 0);
        m->addr[i] = (char *)chunks[p.chunk] + p.offset;
    }
}

static void expect_same_outputs(const sheaf_graph *g, const memory *want, const memory *got, int round) {
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        if (!(t->flags & SHEAF_FLAG_OUTPUT)) continue;
        for (int64_t e = 0; e < sheaf_nelements(t); e++) {
            int64_t k[4], rest = e;
            size_t at = 0;
            for (int d = 0; d < 4; d++) k[d] = rest % t->ne[d], rest /= t->ne[d], at += (size_t)k[d] * t->nb[d];
            const float *x = (const float *)((char *)want->addr[i] + at),
                        *y = (const float *)((char *)got->addr[i] + at);
            cr_assert(memcmp(x, y, sizeof *x) == 0, "graph %d, slot %d (%s), element %lld: %a, expected %a", round,
                      (int)i, sheaf_op_name(t->op), (long long)e, *y, *x);
        }
    }
}

static int count_in_place(const sheaf_galloc *ga) {
    int n = 0;
    for (int32_t i = 0; i < ga->n_slots; i++) n += ga->slots[i].takes_over >= 0;
    return n;
}

static void compare_runs(const sheaf_galloc *ga, const sheaf_graph *g, int round) {
    memory apart, planned;
    place_apart(&apart, g);
    place_planned(&planned, ga, g);
    fill_leafs(g, apart.addr);
    fill_leafs(g, planned.addr);
    interpret(g, apart.addr);
    interpret(g, planned.addr);
    expect_same_outputs(g, &apart, &planned, round);
    release(&apart), release(&planned);
}

Test(galloc, planned_memory_computes_what_separate_memory_does) {
    rng r = rng_start("C12");
    int n_in_place = 0;
    double used = 0, bound = 0;
    for (int round = 0; round < 500; round++) {
        sheaf_arena_reset(a);
        sheaf_graph *g = random_graph(&r, a, 5 + (int)rng_below(&r, 36));
        cr_assert(g->n_leafs + g->n_nodes <= MAX_SLOTS, "%d slots", g->n_leafs + g->n_nodes);
        sheaf_galloc *ga = new_galloc(round % 2 ? 4 : 64, round % 3 ? 0 : 512);
        reserve(ga, g);
        compare_runs(ga, g, round);
        expect_ok(sheaf_galloc_assign(ga, g, NULL, NULL, 0));
        compare_runs(ga, g, round); /* the replayed plan is the same */
        n_in_place += count_in_place(ga);
        used += (double)sheaf_galloc_bytes(ga, 0), bound += (double)sheaf_galloc_lower_bound(ga, 0);
        cr_assert(sheaf_galloc_bytes(ga, 0) >= sheaf_galloc_lower_bound(ga, 0), "less memory than is live");
        sheaf_galloc_free(ga);
    }
    fprintf(stderr, "500 graphs: %d in place, %.3f of the bound\n", n_in_place, used / bound);
    cr_assert(n_in_place > 500, "%d nodes ran in place: too few to mean anything", n_in_place);
    cr_assert(used < 1.15 * bound, "%.0f bytes planned, %.0f live: too much is lost between blocks", used, bound);
}

Test(galloc, a_chain_runs_in_one_block) {
    sheaf_tensor *t = sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, 64, 4), SHEAF_FLAG_INPUT);
    for (int i = 0; i < 20; i++) t = sheaf_scale(a, t, 2, 0);
    sheaf_graph *g = graph_of(sheaf_set_flag(t, SHEAF_FLAG_OUTPUT));
    sheaf_galloc *ga = new_galloc(32, 0);
    reserve(ga, g);
    expect_int(sheaf_galloc_bytes(ga, 0), 1024);
    expect_int(sheaf_galloc_lower_bound(ga, 0), 1024);
    expect_int(count_in_place(ga), 20);
    sheaf_galloc_free(ga);
}

Test(galloc, what_is_still_read_is_not_written_over) {
    /* x is read again after y = -x; a view of x is; x is a constant; x is an output. */
    for (int kind = 0; kind < 4; kind++) {
        sheaf_arena_reset(a);
        sheaf_tensor *leaf = sheaf_new_1d(a, SHEAF_F32, 16), *x = leaf;
        if (kind < 2) x = sheaf_scale(a, sheaf_set_flag(leaf, SHEAF_FLAG_INPUT), 2, 0);
        if (kind == 3) x = sheaf_set_flag(sheaf_scale(a, leaf, 2, 0), SHEAF_FLAG_OUTPUT);
        sheaf_tensor *y = sheaf_unary_op(a, x, SHEAF_UNARY_NEG), *z = y;
        if (kind == 0) z = sheaf_add(a, y, x);
        if (kind == 1) z = sheaf_add(a, y, sheaf_reshape_2d(a, sheaf_view_1d(a, x, 8, 0), 8, 1));
        if (kind == 1) z = sheaf_add(a, sheaf_view_1d(a, y, 8, 0), sheaf_view_1d(a, x, 8, 32));
        sheaf_graph *g = graph_of(z);
        sheaf_galloc *ga = new_galloc(4, 0);
        reserve(ga, g);
        expect_int(ga->slots[y->index].takes_over, -1);
        sheaf_galloc_free(ga);
    }
}

/* The second source is the first one's bytes in another order: in place would read what was just written. */
Test(galloc, an_op_over_two_views_of_one_tensor_is_not_in_place) {
    sheaf_tensor *x = sheaf_cont(a, sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, 4, 4), SHEAF_FLAG_INPUT));
    sheaf_graph *g = graph_of(sheaf_set_flag(sheaf_add(a, x, sheaf_transpose(a, x)), SHEAF_FLAG_OUTPUT));
    sheaf_galloc *ga = new_galloc(4, 0);
    reserve(ga, g);
    expect_int(count_in_place(ga), 0);
    compare_runs(ga, g, 0);
    sheaf_galloc_free(ga);
}

Test(galloc, outputs_and_constants_keep_their_bytes) {
    sheaf_tensor *constant = sheaf_new_1d(a, SHEAF_F32, 16), *first = sheaf_scale(a, constant, 2, 0), *t = first;
    sheaf_tensor *view = sheaf_set_flag(sheaf_view_1d(a, first, 4, 0), SHEAF_FLAG_OUTPUT);
    for (int i = 0; i < 10; i++) t = sheaf_cont(a, t);
    sheaf_graph *g = graph_of(t);
    expect_ok(sheaf_graph_expand(g, view));
    expect_ok(sheaf_graph_seal(g));
    sheaf_galloc *ga = new_galloc(64, 0);
    reserve(ga, g);
    size_t kept[] = {sheaf_galloc_place(ga, constant->index).offset, sheaf_galloc_place(ga, first->index).offset};
    expect_int(sheaf_galloc_place(ga, view->index).offset, kept[1]);
    expect_int(sheaf_galloc_place(ga, view->index).size, 0);
    for (int32_t n = 1; n < g->n_nodes; n++) {
        size_t offset = sheaf_galloc_place(ga, g->n_leafs + n).offset;
        cr_assert(g->nodes[n] == view || (offset != kept[0] && offset != kept[1]), "node %d reuses kept bytes", n);
    }
    sheaf_galloc_free(ga);
}

/* Case C17: a backend that fuses asks for a longer life. */
Test(galloc, lifetimes_asked_for_are_kept) {
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_1d(a, SHEAF_F32, 16), SHEAF_FLAG_INPUT), *t = sheaf_cont(a, x);
    sheaf_tensor *first = t;
    for (int i = 0; i < 5; i++) t = sheaf_cont(a, t);
    sheaf_graph *g = graph_of(t);
    sheaf_galloc *ga = new_galloc(64, 0);
    reserve(ga, g);
    size_t without = sheaf_galloc_bytes(ga, 0);
    sheaf_lifetime keep[] = {{first->index, 5}};
    expect_ok(sheaf_galloc_reserve(ga, g, NULL, keep, 1));
    expect_ok(sheaf_galloc_check(ga, g));
    size_t offset = sheaf_galloc_place(ga, first->index).offset;
    for (int32_t n = 1; n <= 5; n++) {
        cr_assert(sheaf_galloc_place(ga, g->n_leafs + n).offset != offset, "node %d writes over what node 5 reads", n);
    }
    cr_assert(sheaf_galloc_bytes(ga, 0) > without, "%zu bytes, %zu without", sheaf_galloc_bytes(ga, 0), without);
    /* replay: no longer than planned */
    const sheaf_lifetime shorter = {first->index, 3}, longer = {first->index + 1, 5}, of_a_leaf = {x->index, 3};
    expect_ok(sheaf_galloc_assign(ga, g, NULL, keep, 1));
    expect_ok(sheaf_galloc_assign(ga, g, NULL, &shorter, 1));
    expect_ok(sheaf_galloc_assign(ga, g, NULL, NULL, 0));
    expect_status(sheaf_galloc_assign(ga, g, NULL, &longer, 1), SHEAF_E_RANGE);
    expect_status(sheaf_galloc_assign(ga, g, NULL, &of_a_leaf, 1), SHEAF_E_RANGE);
    keep[0].slot = 99;
    expect_status(sheaf_galloc_assign(ga, g, NULL, keep, 1), SHEAF_E_RANGE);
    expect_status(sheaf_galloc_reserve(ga, g, NULL, keep, 1), SHEAF_E_ARGUMENT);
    expect_status(sheaf_galloc_assign(ga, g, NULL, NULL, 0), SHEAF_E_RANGE); /* a failed reserve leaves no plan */
    sheaf_galloc_free(ga);
}

/* --- case C11: chunks --- */

/* All `n` tensors are alive until the last is made. */
static sheaf_graph *all_alive(int n, const double *mib) {
    sheaf_graph *g;
    expect_ok(sheaf_graph_new(a, 16, &g));
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_1d(a, SHEAF_F32, 1), SHEAF_FLAG_INPUT);
    for (int i = 0; i < n; i++) {
        sheaf_tensor *zero = sheaf_mul_mat(a, sheaf_new_2d(a, SHEAF_F32, 1, (int64_t)(mib[i] * MIB / 4)), x);
        zero->src[0]->data = &zero; /* a placed weight: none of the planner's memory */
        expect_ok(sheaf_graph_expand(g, sheaf_set_flag(zero, SHEAF_FLAG_OUTPUT)));
    }
    expect_ok(sheaf_graph_seal(g));
    return g;
}

static void expect_chunked(const sheaf_galloc *ga, const sheaf_graph *g) {
    for (int c = 0; c < sheaf_galloc_chunks(ga, 0); c++) {
        cr_assert(sheaf_galloc_chunk_bytes(ga, 0, c) <= MIB, "chunk %d has %zu bytes", c,
                  sheaf_galloc_chunk_bytes(ga, 0, c));
    }
    for (int32_t i = 0; i < g->n_leafs + g->n_nodes; i++) {
        sheaf_place p = sheaf_galloc_place(ga, i);
        if (p.arena < 0) continue;
        cr_assert(p.offset + p.size <= sheaf_galloc_chunk_bytes(ga, 0, p.chunk), "slot %d crosses its chunk", i);
    }
}

Test(galloc, more_than_one_allocation_holds_is_chunked) {
    static const double first[] = {0.2, 0.9, 0.9, 0.7}, second[] = {0.9, 0.9, 0.8}; /* 0.2 + 2.5, then 2.6 MiB */
    sheaf_galloc *ga = new_galloc(64, MIB);
    size_t high = 0;
    for (int round = 0; round < 3; round++) {
        sheaf_arena_reset(a);
        sheaf_graph *g = round == 1 ? all_alive(3, second) : all_alive(4, first);
        reserve(ga, g);
        expect_chunked(ga, g);
        size_t bytes = sheaf_galloc_bytes(ga, 0);
        cr_assert(bytes >= high, "round %d: %zu bytes recorded, %zu before", round, bytes, high);
        cr_assert(round == 0 || bytes <= high + MIB, "round %d: %zu bytes recorded, %zu before", round, bytes, high);
        high = bytes;
    }
    cr_assert(sheaf_galloc_chunks(ga, 0) >= 3, "%d chunks", sheaf_galloc_chunks(ga, 0));
    sheaf_galloc_free(ga);
}

Test(galloc, recorded_sizes_never_fall) {
    rng r = rng_start("high water");
    sheaf_galloc *ga = new_galloc(32, 256);
    size_t high[64] = {0};
    for (int round = 0; round < 200; round++) {
        sheaf_arena_reset(a);
        reserve(ga, random_graph(&r, a, 3 + (int)rng_below(&r, 40)));
        cr_assert(sheaf_galloc_chunks(ga, 0) <= 64, "%d chunks", sheaf_galloc_chunks(ga, 0));
        for (int c = 0; c < sheaf_galloc_chunks(ga, 0); c++) {
            size_t bytes = sheaf_galloc_chunk_bytes(ga, 0, c);
            cr_assert(bytes >= high[c] && bytes <= 256, "chunk %d: %zu bytes, %zu before", c, bytes, high[c]);
            high[c] = bytes;
        }
    }
    sheaf_galloc_free(ga);
}

Test(galloc, a_tensor_larger_than_an_allocation_is_an_error) {
    static const double too_large[] = {1.5};
    sheaf_galloc *ga = new_galloc(64, MIB);
    sheaf_graph *g = all_alive(1, too_large);
    sheaf_set_name(g->nodes[0], "wide");
    expect_status(sheaf_galloc_reserve(ga, g, NULL, NULL, 0), SHEAF_E_NO_SPACE);
    expect_error("'wide' needs 1572864 bytes, one allocation holds at most 1048576");
    sheaf_galloc_free(ga);
}

/* --- case C15: sizes that wrap --- */

static size_t told_size(void *ctx, const sheaf_tensor *t) {
    return t->op == SHEAF_OP_NONE ? sheaf_nbytes(t) : *(size_t *)ctx;
}

Test(galloc, sizes_that_wrap_are_errors) {
    size_t size = 0;
    sheaf_galloc *ga;
    sheaf_galloc_type type = {.alignment = 64, .alloc_size = told_size, .ctx = &size};
    static const size_t bad_alignments[] = {0, 3, 48};
    for (size_t i = 0; i < 3; i++) {
        expect_status(sheaf_galloc_new(&(sheaf_galloc_type){.alignment = bad_alignments[i]}, 1, &ga), SHEAF_E_ARGUMENT);
    }
    expect_ok(sheaf_galloc_new(&type, 1, &ga));
    sheaf_graph *g = graph_of(sheaf_cont(a, sheaf_set_flag(sheaf_new_1d(a, SHEAF_F32, 4), SHEAF_FLAG_INPUT)));
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 64, (size_t)PTRDIFF_MAX + 1};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        size = huge[i];
        expect_status(sheaf_galloc_reserve(ga, g, NULL, NULL, 0), SHEAF_E_NO_SPACE);
    }
    static const size_t normal[][2] = {{0, 64}, {1, 64}, {64, 64}, {65, 128}};
    for (size_t i = 0; i < 4; i++) {
        size = normal[i][0];
        reserve(ga, g);
        expect_int(sheaf_galloc_place(ga, 1).size, normal[i][1]);
    }
    sheaf_galloc_free(ga);
}

Test(galloc, linear_places_one_after_another_or_says_why_not) {
    sheaf_linear l = {.alignment = 32};
    size_t offset = 7;
    expect_ok(sheaf_linear_place(&l, 10, &offset));
    expect_int(offset, 0);
    expect_ok(sheaf_linear_place(&l, 33, &offset));
    expect_int(offset, 32);
    expect_ok(sheaf_linear_place(&l, 0, &offset));
    expect_int(offset, 96);
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 32, SIZE_MAX - 95, (size_t)PTRDIFF_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        expect_status(sheaf_linear_place(&l, huge[i], &offset), SHEAF_E_RANGE);
        expect_int(l.used, 96);
        expect_int(offset, 96);
    }
    l.alignment = 3;
    expect_status(sheaf_linear_place(&l, 1, &offset), SHEAF_E_RANGE);
    l.alignment = 0;
    expect_status(sheaf_linear_place(&l, 1, &offset), SHEAF_E_RANGE);
}

/* --- arenas and replay --- */

Test(galloc, each_slot_lies_in_its_arena) {
    sheaf_galloc *ga;
    sheaf_galloc_type types[] = {{.alignment = 32}, {.alignment = 256}};
    expect_ok(sheaf_galloc_new(types, 2, &ga));
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_1d(a, SHEAF_F32, 16), SHEAF_FLAG_INPUT), *y = sheaf_scale(a, x, 2, 0);
    sheaf_tensor *v = sheaf_view_1d(a, y, 8, 32), *z = sheaf_scale(a, v, 2, 0);
    sheaf_graph *g = graph_of(z);
    int32_t arena_of_slot[4];
    arena_of_slot[x->index] = 0, arena_of_slot[y->index] = 1, arena_of_slot[v->index] = 0, arena_of_slot[z->index] = -1;
    expect_ok(sheaf_galloc_reserve(ga, g, arena_of_slot, NULL, 0));
    expect_ok(sheaf_galloc_check(ga, g));
    expect_int(sheaf_galloc_place(ga, x->index).arena, 0);
    expect_int(sheaf_galloc_place(ga, y->index).arena, 1);
    expect_int(sheaf_galloc_place(ga, v->index).arena, 1); /* a view lies in its root */
    expect_int(sheaf_galloc_place(ga, v->index).offset, 32);
    expect_int(sheaf_galloc_place(ga, z->index).arena, -1);
    expect_int(sheaf_galloc_place(ga, 99).arena, -1);
    expect_int(sheaf_galloc_bytes(ga, 1), 256);
    arena_of_slot[y->index] = 0;
    expect_status(sheaf_galloc_assign(ga, g, arena_of_slot, NULL, 0), SHEAF_E_RANGE); /* planned for the other arena */
    sheaf_galloc_free(ga);
}

/* x -> scale -> norm -> (wide: a view first) -> add; `n` columns, other wiring on request. */
static sheaf_graph *layer(int64_t n, bool other_wiring, uint32_t flags) {
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, 32, n), SHEAF_FLAG_INPUT);
    sheaf_tensor *y = sheaf_scale(a, x, 2, 0), *z = sheaf_set_flag(sheaf_rms_norm(a, y, NULL, 0), flags);
    return graph_of(sheaf_add(a, z, other_wiring ? y : x));
}

static sheaf_status replay(void *ctx) {
    void **both = ctx;
    return sheaf_galloc_assign(both[0], both[1], NULL, NULL, 0);
}

Test(galloc, a_plan_fits_what_is_wired_alike_and_no_larger) {
    sheaf_galloc *ga = new_galloc(32, 0);
    expect_status(sheaf_galloc_assign(ga, layer(1, false, 0), NULL, NULL, 0), SHEAF_E_RANGE); /* no plan yet */
    reserve(ga, layer(16, false, 0));
    size_t bytes = sheaf_galloc_bytes(ga, 0);
    for (int64_t n = 1; n <= 16; n++) {
        sheaf_graph *smaller = layer(n, false, 0);
        void *both[] = {ga, smaller};
        expect_int(count_allocations(replay, both), 0);
        expect_ok(sheaf_galloc_check(ga, smaller));
    }
    expect_status(sheaf_galloc_assign(ga, layer(17, false, 0), NULL, NULL, 0), SHEAF_E_RANGE);
    expect_status(sheaf_galloc_assign(ga, layer(16, true, 0), NULL, NULL, 0), SHEAF_E_RANGE);
    expect_status(sheaf_galloc_assign(ga, layer(16, false, SHEAF_FLAG_OUTPUT), NULL, NULL, 0), SHEAF_E_RANGE);
    expect_status(sheaf_galloc_assign(ga, graph_of(sheaf_scale(a, sheaf_new_1d(a, SHEAF_F32, 1), 1, 0)), NULL, NULL, 0),
                  SHEAF_E_RANGE);
    expect_int(sheaf_galloc_bytes(ga, 0), bytes);
    sheaf_galloc_free(ga);
}

/* A replayed graph whose views cover less of their root than the planned one's must not run in place. */
Test(galloc, in_place_is_judged_again_at_replay) {
    sheaf_galloc *ga = new_galloc(4, 0);
    sheaf_graph *graphs[2];
    for (int k = 0; k < 2; k++) {
        sheaf_tensor *x = sheaf_set_flag(sheaf_new_2d(a, SHEAF_F32, 8, 4), SHEAF_FLAG_INPUT), *y = sheaf_cont(a, x);
        sheaf_tensor *v = k == 0 ? sheaf_view_2d(a, y, 8, 4, 32, 0) : sheaf_view_2d(a, y, 4, 4, 32, 16);
        graphs[k] = graph_of(sheaf_scale(a, v, 2, 0));
    }
    reserve(ga, graphs[0]);
    expect_int(count_in_place(ga), 1);
    expect_status(sheaf_galloc_assign(ga, graphs[1], NULL, NULL, 0), SHEAF_E_RANGE);
    sheaf_galloc_free(ga);
}

/* --- the checker, and failing allocations --- */

Test(galloc, checker_finds_broken_plans) {
    sheaf_galloc *ga = new_galloc(64, 0);
    sheaf_tensor *x = sheaf_set_flag(sheaf_new_1d(a, SHEAF_F32, 16), SHEAF_FLAG_INPUT);
    sheaf_graph *g = graph_of(sheaf_add(a, sheaf_cont(a, x), x));
    expect_status(sheaf_galloc_check(ga, g), SHEAF_E_INTERNAL);
    static const char *const words[] = {"it is not aligned", "it leaves its chunk", "it overlaps",
                                        "its chunk does not exist", "its arena does not exist"};
    for (int kind = 0; kind < 5; kind++) {
        reserve(ga, g);
        slot *s = &ga->slots[g->n_leafs]; /* the copy, which lives beside x */
        if (kind == 0) s->place.offset += 4;
        if (kind == 1) s->place.offset += 1 << 20;
        if (kind == 2) s->place.offset = ga->slots[0].place.offset;
        if (kind == 3) s->place.chunk = 9;
        if (kind == 4) s->place.arena = 9;
        expect_status(sheaf_galloc_check(ga, g), SHEAF_E_INTERNAL);
        expect_error(words[kind]);
    }
    sheaf_galloc_free(ga);
}

static sheaf_status plan_from_nothing(void *ctx) {
    const sheaf_graph *g = ctx;
    sheaf_galloc *ga;
    sheaf_status s = sheaf_galloc_new(&(sheaf_galloc_type){.alignment = 4, .max_size = 128}, 1, &ga);
    if (s) return s;
    s = sheaf_galloc_reserve(ga, g, NULL, NULL, 0);
    sheaf_status again = s ? sheaf_galloc_reserve(ga, g, NULL, NULL, 0) : SHEAF_OK;
    cr_assert(again == SHEAF_OK && sheaf_galloc_check(ga, g) == SHEAF_OK, "a failed reserve spoils the next: %s",
              sheaf_error());
    if (s) sheaf_fail(s, "first reserve");
    sheaf_galloc_free(ga);
    return s;
}

Test(galloc, survives_every_failed_allocation) {
    rng r = rng_start("sweep");
    sheaf_graph *g = random_graph(&r, a, 40);
    int n = fail_each_allocation(plan_from_nothing, g);
    cr_assert(n >= 5, "%d allocations are too few to mean anything", n);
}
