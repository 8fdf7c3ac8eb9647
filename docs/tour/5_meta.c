/* The tour, 5 of 5: two devices as one.
 *
 * In the program before, one device waited while the other worked. Here both work on every layer: a meta device stands
 * before them and is a device like any other, so buffers, scheduler and graph are those of one device. New is only a
 * function that says how a weight lies on the members (the split table's answer): a set cuts the bytes, each
 * member gets its part and no more, and the plan that is compiled from the graph sums between them, twice a layer.
 *
 * What comes out has the bits that one device computes. */
#include "gpt2.h"

#include <stdio.h>

enum { MEMBERS = 2 };

typedef struct program {
    gpt2 m;
    sheaf_registry *registry;
    sheaf_device *member[MEMBERS], *meta, *host;
    sheaf_backend *backend[2]; /* the meta device's, the host's */
    sheaf_sched *sched;
    sheaf_arena *graph[2];
    int turn;
    sheaf_buffer *weights, *state;
} program;

static sheaf_status set(sheaf_tensor *t, const void *bytes, size_t size) { return sheaf_tensor_set(t, bytes, 0, size); }

/* Asked once for each tensor that is placed in a buffer of the meta device. */
static sheaf_status layout_of(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    const sheaf_placement *p = gpt2_placement(ctx, t->name);
    (void)a; /* the runs of our layouts lie in the model */
    if (!p) return sheaf_fail(SHEAF_E_NOT_FOUND, "no layout for %s", t->name);
    *out = p->layout;
    return SHEAF_OK;
}

static sheaf_status open_devices(program *p) {
    sheaf_open_options o = {0};
    int n;
    sheaf_status s = sheaf_registry_new(&p->registry);
    if (!s) s = sheaf_devices_open(p->registry, "cpu/2", &o, p->member, MEMBERS, &n);
    if (!s) s = sheaf_meta_new("cpu/2", p->member, MEMBERS, NULL, &p->meta);
    if (!s) s = sheaf_host_device_open(p->registry, p->member, MEMBERS, &p->host);
    if (s) return s;
    sheaf_meta_set_policy(p->meta, layout_of, &p->m);
    s = sheaf_backend_new(p->meta, &p->backend[0]);
    if (s) return s;
    sheaf_meta_set_strict(p->backend[0], true); /* a layout that costs more than the sums would be our mistake */
    s = sheaf_backend_new(p->host, &p->backend[1]);
    sheaf_sched_options so = {0};
    return s ? s : sheaf_sched_new(p->backend, 2, &so, &p->sched);
}

static sheaf_status make_buffers(program *p) {
    sheaf_buffer_type *type = p->meta->buffer_type;
    sheaf_status s = sheaf_arena_place_all(p->m.weights, type, SHEAF_USAGE_WEIGHTS, &p->weights);
    if (!s) s = sheaf_arena_place_all(p->m.state, type, SHEAF_USAGE_STATE, &p->state);
    return s ? s : sheaf_buffer_clear(p->state, 0);
}

static sheaf_status reserve(program *p) {
    sheaf_graph *g = NULL;
    sheaf_status s = sheaf_arena_new(64 << 10, &p->graph[0]);
    if (!s) s = sheaf_arena_new(64 << 10, &p->graph[1]);
    if (!s) s = gpt2_worst_graph(&p->m, p->graph[0], &g);
    return s ? s : sheaf_sched_reserve(p->sched, g);
}

static sheaf_status eval(void *ctx, const int32_t *token, int n, int n_past, float *logits) {
    program *p = ctx;
    sheaf_graph *g = NULL;
    sheaf_arena *a = p->graph[p->turn ^= 1];
    sheaf_arena_reset(a);
    sheaf_status s = gpt2_graph(&p->m, a, n, n_past, &g);
    if (!s) s = sheaf_sched_alloc(p->sched, g);
    if (!s) s = gpt2_feed(g, token, n, n_past, set);
    if (!s) s = sheaf_sched_compute(p->sched);
    if (!s) s = sheaf_sched_synchronize(p->sched);
    return s ? s : sheaf_tensor_get(sheaf_graph_find(g, "logits"), logits, 0, (size_t)p->m.n_vocab * sizeof *logits);
}

static void report(const program *p) {
    sheaf_backend *backend;
    const sheaf_prepared *piece;
    for (int i = 0; i < MEMBERS; i++)
        fprintf(stderr, "on %s: weights %zu bytes, caches %zu, any run %zu\n", p->member[i]->name,
                sheaf_meta_bytes(p->meta, i, SHEAF_USAGE_WEIGHTS), sheaf_meta_bytes(p->meta, i, SHEAF_USAGE_STATE),
                sheaf_meta_bytes(p->meta, i, SHEAF_USAGE_COMPUTE));
    for (int i = 0; (piece = sheaf_sched_prepared(p->sched, i, &backend)); i++)
        if (backend == p->backend[0])
            fprintf(stderr, "%d collectives a run\n", sheaf_plan_get_info(sheaf_meta_plan(piece)).n_collectives);
}

int main(int argc, char **argv) {
    program p = {0};
    sheaf_status s = gpt2_open(argc, argv, MEMBERS, &p.m);
    if (!s) s = open_devices(&p);
    if (!s) s = make_buffers(&p);
    if (!s) s = reserve(&p);
    if (!s) s = gpt2_load(&p.m, set);
    if (!s) s = gpt2_generate(&p.m, eval, &p);
    if (s) {
        fprintf(stderr, "%s\n", sheaf_error());
    } else {
        report(&p);
    }
    sheaf_sched_free(p.sched);
    for (int b = 0; b < 2; b++) sheaf_backend_free(p.backend[b]);
    sheaf_buffer_free(p.state);
    sheaf_buffer_free(p.weights);
    sheaf_meta_free(p.meta);
    sheaf_registry_free(p.registry);
    sheaf_arena_free(p.graph[0]);
    sheaf_arena_free(p.graph[1]);
    gpt2_close(&p.m);
    return sheaf_status_exit_code(s);
}
