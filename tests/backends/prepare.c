/* Compiling graphs: failed allocations, what is fused into one group, what must live on, and that a
 * graph computes the same with planned memory as with a buffer for every tensor (case C17). */
#include "backends/cpu/program.h"
#include "tests/backends/workbench.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A layer much like a model's. Returns the output; *x is its input. */
static sheaf_tensor *layer(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *pos, sheaf_tensor *ids, sheaf_type type) {
    enum { HEAD = 32, HEADS = 4, KV = 2, WIDTH = HEAD * HEADS, FF = 256, POSITIONS = 64 };
    int64_t n = x->ne[1];
    sheaf_params rope = {.rope = {.kind = SHEAF_ROPE_NEOX,
                                  .n_dims = HEAD,
                                  .n_ctx_orig = 512,
                                  .freq_base = 10000.0f,
                                  .freq_scale = 1.0f,
                                  .attn_factor = 1.0f}};
    sheaf_tensor *h = sheaf_rms_norm(a, x, sheaf_new_1d(a, SHEAF_F32, WIDTH), 1e-5f);
    sheaf_tensor *q = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, WIDTH), h);
    sheaf_tensor *k = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, HEAD * KV), h);
    sheaf_tensor *v = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, HEAD * KV), h);
    q = sheaf_rope(a, sheaf_reshape_3d(a, q, HEAD, HEADS, n), pos, NULL, &rope);
    k = sheaf_rope(a, sheaf_reshape_3d(a, k, HEAD, KV, n), pos, NULL, &rope);
    sheaf_tensor *kc = sheaf_new_2d(a, SHEAF_F16, HEAD * KV, POSITIONS),
                 *vc = sheaf_new_2d(a, SHEAF_F16, HEAD * KV, POSITIONS);
    sheaf_tensor *kw = sheaf_set_rows(a, kc, sheaf_reshape_2d(a, k, HEAD * KV, n), ids);
    sheaf_tensor *vw = sheaf_set_rows(a, vc, v, ids);
    sheaf_tensor *keys = sheaf_permute(a, sheaf_reshape_3d(a, kw, HEAD, KV, POSITIONS), 0, 2, 1, 3);
    sheaf_tensor *values = sheaf_permute(a, sheaf_reshape_3d(a, vw, HEAD, KV, POSITIONS), 0, 2, 1, 3);
    sheaf_tensor *att = sheaf_attention(a, sheaf_permute(a, q, 0, 2, 1, 3), keys, values, NULL, NULL, 0.2f, 0, 0);
    sheaf_tensor *o = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, WIDTH), sheaf_reshape_2d(a, att, WIDTH, n));
    x = sheaf_add(a, x, o);
    h = sheaf_rms_norm(a, x, sheaf_new_1d(a, SHEAF_F32, WIDTH), 1e-5f);
    sheaf_tensor *gate = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, FF), h);
    sheaf_tensor *up = sheaf_mul_mat(a, sheaf_new_2d(a, type, WIDTH, FF), h);
    sheaf_tensor *down =
        sheaf_mul_mat(a, sheaf_new_2d(a, type, FF, WIDTH), sheaf_glu_op(a, gate, up, SHEAF_GLU_SWIGLU));
    return sheaf_add(a, x, down);
}

static sheaf_tensor *model(sheaf_arena *a, int layers, int64_t n, sheaf_type type) {
    sheaf_tensor *x = sheaf_new_2d(a, SHEAF_F32, 128, n), *pos = sheaf_new_1d(a, SHEAF_I32, n);
    sheaf_tensor *ids = sheaf_new_1d(a, SHEAF_I64, n);
    sheaf_set_name(pos, "pos");
    sheaf_set_name(ids, "ids");
    for (int i = 0; i < layers; i++) x = layer(a, x, pos, ids, type);
    return x;
}

/* --- failed allocations ------------------------------------------------------------------------------------ */

typedef struct countdown {
    int left, seen;
} countdown;

static bool allow(void *ctx, size_t size) {
    countdown *c = ctx;
    (void)size;
    c->seen++;
    return c->left < 0 || c->left-- > 0;
}

/* Every allocation of prepare fails in turn; each is a clean out of memory. */
Test(prepare, fails_cleanly_at_every_allocation, .timeout = 60) {
    workbench w;
    sheaf_graph *g;
    sheaf_prepared *p;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_graph(&w, model(w.arena, 12, 3, SHEAF_Q8_0), &g), SHEAF_OK, "%s", sheaf_error());
    countdown c = {-1, 0};
    sheaf_alloc_hook(allow, &c);
    cr_assert_eq(sheaf_backend_prepare(w.backend, g, &p), SHEAF_OK, "%s", sheaf_error());
    sheaf_prepared_free(w.backend, p);
    int total = c.seen;
    cr_assert_gt(total, 2, "%d allocations", total);
    for (int k = 0; k < total; k++) {
        c = (countdown){k, 0};
        sheaf_status s = sheaf_backend_prepare(w.backend, g, &p);
        cr_assert_eq(s, SHEAF_E_NO_MEMORY, "allocation %d of %d: %s", k, total, sheaf_status_name(s));
        cr_assert(!p && *sheaf_error(), "allocation %d: no text", k);
    }
    sheaf_alloc_hook(NULL, NULL);
    workbench_close(&w);
}

/* Opening devices and backends: the same sweep. */
Test(prepare, opening_fails_cleanly_at_every_allocation, .timeout = 60) {
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR);
    for (int k = 0;; k++) {
        countdown c = {k, 0};
        workbench w;
        sheaf_alloc_hook(allow, &c);
        sheaf_status s = workbench_open(&w, "cpu/2", 4, "");
        sheaf_alloc_hook(NULL, NULL);
        workbench_close(&w);
        if (!s) {
            cr_assert_gt(k, 4, "only %d allocations", k);
            return;
        }
        cr_assert_eq(s, SHEAF_E_NO_MEMORY, "allocation %d: %s", k, sheaf_status_name(s));
    }
}

/* --- groups -------------------------------------------------------------------------------------------------- */

static cpu_program *compile(workbench *w, sheaf_tensor *out) {
    sheaf_graph *g;
    cpu_program *p;
    cr_assert_eq(workbench_graph(w, out, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(cpu_program_new(g, cpu_kernels_get(cpu_level_best()), &p), SHEAF_OK, "%s", sheaf_error());
    return p;
}

/* Independent neighbours share a group, and so do steps that follow each other row by row; quantizing and
 * rotation tables happen once. */
Test(prepare, groups_what_needs_no_meeting, .timeout = 10) {
    workbench w;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *x = sheaf_new_2d(w.arena, SHEAF_F32, 64, 4);
    sheaf_tensor *a = sheaf_scale(w.arena, x, 2, 0), *b = sheaf_rms_norm(w.arena, x, NULL, 1e-5f);
    cpu_program *p = compile(&w, sheaf_add(w.arena, a, b));
    cr_assert(p->n_steps == 3 && p->n_groups == 1, "%d steps in %d groups", p->n_steps, p->n_groups);
    cpu_program_free(p);
    p = compile(&w, sheaf_cont(w.arena, sheaf_transpose(w.arena, sheaf_add(w.arena, a, b))));
    cr_assert(p->n_steps == 4 && p->n_groups == 2 && p->steps[3]->barrier, "%d steps in %d groups", p->n_steps,
              p->n_groups);
    cpu_program_free(p);
    cr_assert_eq(workbench_clear(&w), SHEAF_OK, "%s", sheaf_error());
    p = compile(&w, model(w.arena, 3, 1, SHEAF_Q8_0));
    int tables = 0;
    for (int32_t i = 0; i < p->n_steps; i++) tables += p->steps[i]->op == SHEAF_OP_ROPE && !p->steps[i]->dst;
    cr_assert_eq(tables, 1, "%d rotation tables for one list of positions", tables);
    /* norm+quant | q k v | rope rope set set | attention | quant | o | add norm quant | gate up | glu quant | down */
    cr_assert_eq(p->n_groups, 3 * 10 + 1, "%d groups for 3 layers", p->n_groups);
    cpu_program_free(p);
    workbench_close(&w);
}

/* Writes into parts of a buffer are ordered where the parts overlap, and only there. */
Test(prepare, orders_views_by_their_bytes, .timeout = 10) {
    workbench w;
    sheaf_graph *g;
    cpu_program *p;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *big = sheaf_new_2d(w.arena, SHEAF_F32, 8, 8);
    cr_assert_eq(sheaf_graph_new(w.arena, 8, &g), SHEAF_OK, "%s", sheaf_error());
    static const int first_row[] = {0, 4, 2};
    for (int i = 0; i < 3; i++) {
        sheaf_tensor *v = sheaf_view_2d(w.arena, big, 8, 4, big->nb[1], (size_t)first_row[i] * big->nb[1]);
        cr_assert_eq(sheaf_graph_expand(g, sheaf_fill(w.arena, v, (float)i)), SHEAF_OK, "%s", sheaf_error());
    }
    cr_assert_eq(sheaf_graph_seal(g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(cpu_program_new(g, cpu_kernels_get(cpu_level_best()), &p), SHEAF_OK, "%s", sheaf_error());
    cr_assert(p->n_steps == 3 && !p->steps[1]->barrier && p->steps[2]->barrier, "%d steps, barriers %d %d", p->n_steps,
              p->steps[1]->barrier, p->steps[2]->barrier);
    cr_assert_eq(p->steps[2]->params.fill.value, 2.0f, "the last fill is number %g",
                 (double)p->steps[2]->params.fill.value);
    cpu_program_free(p);
    workbench_close(&w);
}

/* --- lifetimes ------------------------------------------------------------------------------------------------ */

/* Nodes: h 0, first 1, transpose 2, last 3, the end 4. Whoever reads h last may write its result over it, unless
 * another reads it at the same time: then it lives one node longer. */
Test(prepare, keeps_what_a_neighbour_reads_at_the_same_time, .timeout = 10) {
    for (int crowded = 0; crowded < 2; crowded++) {
        workbench w;
        cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
        sheaf_tensor *h = sheaf_scale(w.arena, sheaf_new_2d(w.arena, SHEAF_F32, 32, 32), 2, 0);
        sheaf_tensor *first = crowded ? sheaf_mul_mat(w.arena, sheaf_new_2d(w.arena, SHEAF_F32, 32, 32), h)
                                      : sheaf_new_2d(w.arena, SHEAF_F32, 32, 32);
        sheaf_tensor *last = sheaf_cont(w.arena, sheaf_transpose(w.arena, h));
        cpu_program *p = compile(&w, sheaf_mul_mat(w.arena, first, last));
        cr_assert_eq(p->n_groups, 3, "%d groups", p->n_groups);
        int32_t until = -1;
        for (int32_t i = 0; i < p->n_keep; i++)
            if (p->keep[i].slot == h->index) until = p->keep[i].until_node;
        cr_assert_eq(until, crowded ? 4 : -1, "kept until node %d", until);
        cpu_program_free(p);
        workbench_close(&w);
    }
}

/* --- memory that is planned ------------------------------------------------------------------------------------- */

static void set_ints(sheaf_arena *a) {
    sheaf_tensor *pos = sheaf_arena_find(a, "pos"), *ids = sheaf_arena_find(a, "ids");
    for (int64_t i = 0; pos && pos->data && i < pos->ne[0]; i++) {
        ((int32_t *)pos->data)[i] = (int32_t)(7 + i);
        ((int64_t *)ids->data)[i] = 7 + i;
    }
}

/* Lays the nodes of a sealed graph out by the planner, with the backend's lifetimes; leafs get memory of their own. */
static sheaf_status place_planned(workbench *w, sheaf_graph *g, const sheaf_prepare_info *info, sheaf_buffer **nodes) {
    int32_t slots = g->n_leafs + g->n_nodes;
    int32_t *arena_of_slot = malloc((size_t)slots * sizeof *arena_of_slot);
    sheaf_galloc_type type = {.alignment = 64};
    sheaf_galloc *ga;
    for (int32_t i = 0; i < slots; i++) arena_of_slot[i] = i < g->n_leafs ? -1 : 0;
    sheaf_status s = sheaf_galloc_new(&type, 1, &ga);
    if (!s) s = sheaf_galloc_reserve(ga, g, arena_of_slot, info->keep, info->n_keep);
    if (!s) s = sheaf_galloc_check(ga, g);
    if (!s)
        s = sheaf_buffer_alloc(w->device->buffer_type, sheaf_galloc_chunk_bytes(ga, 0, 0), SHEAF_USAGE_COMPUTE, nodes);
    for (int32_t i = g->n_leafs; !s && i < slots; i++) {
        sheaf_tensor *t = sheaf_graph_slot(g, i);
        sheaf_place at = sheaf_galloc_place(ga, i);
        if (at.arena == 0 && !t->view_src) s = sheaf_tensor_place(*nodes, t, (char *)(*nodes)->base + at.offset);
    }
    for (int32_t i = 0; !s && i < slots; i++)
        if (sheaf_graph_slot(g, i)->view_src) s = sheaf_view_place(sheaf_graph_slot(g, i));
    sheaf_galloc_free(ga);
    free(arena_of_slot);
    return s;
}

/* Leafs first, so that only they are placed by place_all. */
static uint64_t run_model(int threads, sheaf_type type, int64_t n, bool planned) {
    workbench w;
    sheaf_graph *g;
    sheaf_prepared *p;
    sheaf_buffer *nodes = NULL;
    cr_assert_eq(workbench_open(&w, "cpu", threads, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *out = sheaf_set_flag(model(w.arena, 3, n, type), SHEAF_FLAG_OUTPUT);
    cr_assert_eq(workbench_graph(&w, out, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_backend_prepare(w.backend, g, &p), SHEAF_OK, "%s", sheaf_error());
    sheaf_prepare_info info = sheaf_prepared_info(w.backend, p);
    if (planned) {
        sheaf_linear l = {.alignment = 64};
        size_t at;
        for (int32_t i = 0; i < g->n_leafs; i++) sheaf_linear_place(&l, sheaf_nbytes(g->leafs[i]), &at);
        cr_assert_eq(sheaf_buffer_alloc(w.device->buffer_type, l.used, SHEAF_USAGE_ANY, &w.buffer), SHEAF_OK, "%s",
                     sheaf_error());
        l.used = 0;
        for (int32_t i = 0; i < g->n_leafs; i++) {
            sheaf_linear_place(&l, sheaf_nbytes(g->leafs[i]), &at);
            cr_assert_eq(sheaf_tensor_place(w.buffer, g->leafs[i], (char *)w.buffer->base + at), SHEAF_OK, "%s",
                         sheaf_error());
        }
        cr_assert_eq(place_planned(&w, g, &info, &nodes), SHEAF_OK, "%s", sheaf_error());
        sheaf_buffer_clear(w.buffer, 0);
        uint32_t seed = 7;
        for (sheaf_tensor *t = NULL; (t = sheaf_arena_next(w.arena, t));)
            if (t->op == SHEAF_OP_NONE && !t->view_src) fill_random(t, &seed, -1.0f, 1.0f);
    } else {
        cr_assert_eq(workbench_place(&w, 7), SHEAF_OK, "%s", sheaf_error());
    }
    sheaf_prepared_free(w.backend, p);
    set_ints(w.arena);
    uint64_t hash = 1469598103934665603u;
    for (int round = 0; round < 2; round++) { /* twice: the second finds what the first left behind */
        cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "%s", sheaf_error());
        for (size_t i = 0; i < sheaf_nbytes(out); i++) hash = (hash ^ ((uint8_t *)out->data)[i]) * 1099511628211u;
    }
    sheaf_buffer_free(nodes);
    workbench_close(&w);
    return hash;
}

Test(prepare, planned_memory_gives_the_same_bits, .timeout = 60) {
    static const sheaf_type types[] = {SHEAF_F32, SHEAF_Q8_0, SHEAF_Q4_0};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (int64_t n = 1; n <= 9; n += 8) {
            uint64_t expected = run_model(1, types[t], n, false);
            for (int threads = 1; threads <= 5; threads += 2)
                for (int round = 0; round < 2; round++) {
                    uint64_t got = run_model(threads, types[t], n, true);
                    cr_assert_eq(got, expected, "%s, %d tokens, %d threads: %llx, expected %llx",
                                 sheaf_type_name(types[t]), (int)n, threads, (unsigned long long)got,
                                 (unsigned long long)expected);
                }
        }
}
