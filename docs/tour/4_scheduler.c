/* The tour, 4 of 5: a scheduler over several backends.
 *
 * Two devices hold half of the layers each. The program says only where weights and caches lie; the scheduler puts
 * every node where its weight is, cuts the graph where the device changes, copies what crosses, plans the memory of
 * each device and runs the pieces in order. Gone from the program: the allocator, the compute buffers, prepare and run.
 *
 * The last backend of a scheduler is the host: it takes what no device does, and inputs start there. */
#include "gpt2.h"

#include <stdio.h>
#include <string.h>

enum { DEVICES = 2 };

typedef struct program {
    gpt2 m;
    sheaf_registry *registry;
    sheaf_device *device[DEVICES], *host;
    sheaf_backend *backend[DEVICES + 1]; /* earlier is preferred; the host ends the list */
    sheaf_sched *sched;
    sheaf_arena *graph[2]; /* by turns: a graph must outlive the next one's allocation */
    int turn;
    sheaf_buffer *weights[DEVICES], *state[DEVICES];
} program;

static sheaf_status set(sheaf_tensor *t, const void *bytes, size_t size) { return sheaf_tensor_set(t, bytes, 0, size); }

static sheaf_status open_devices(program *p) {
    sheaf_open_options o = {0};
    int n;
    sheaf_status s = sheaf_registry_new(&p->registry);
    if (!s) s = sheaf_devices_open(p->registry, "cpu/2", &o, p->device, DEVICES, &n);
    if (!s) s = sheaf_host_device_open(p->registry, p->device, DEVICES, &p->host);
    for (int d = 0; d <= DEVICES && !s; d++)
        s = sheaf_backend_new(d < DEVICES ? p->device[d] : p->host, &p->backend[d]);
    sheaf_sched_options so = {0};
    return s ? s : sheaf_sched_new(p->backend, DEVICES + 1, &so, &p->sched);
}

/* Embeddings with the first layers, the output with the last. */
static int device_of(const gpt2 *m, const char *name) {
    int layer;
    if (sscanf(name, "blk.%d.", &layer) == 1) return layer * DEVICES / (int)m->n_layer;
    return !strncmp(name, "output", 6) ? DEVICES - 1 : 0;
}

/* One buffer on device d for its part of an arena: a walk that adds up, and one that places. */
static sheaf_status place_part(program *p, sheaf_arena *a, int d, sheaf_usage usage, sheaf_buffer **out) {
    sheaf_buffer_type *type = p->device[d]->buffer_type;
    for (int pass = 0; pass < 2; pass++) {
        sheaf_linear at = {.alignment = type->alignment};
        sheaf_status s = SHEAF_OK;
        for (sheaf_tensor *t = sheaf_arena_next(a, NULL); t && !s; t = sheaf_arena_next(a, t)) {
            size_t offset;
            if (device_of(&p->m, t->name) != d) continue;
            s = sheaf_linear_place(&at, sheaf_alloc_size(type, t), &offset);
            if (!s && pass) s = sheaf_tensor_place(*out, t, (char *)(*out)->base + offset);
        }
        if (!s && !pass) s = sheaf_buffer_alloc(type, at.used, usage, out);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status make_buffers(program *p) {
    sheaf_status s = SHEAF_OK;
    for (int d = 0; d < DEVICES && !s; d++) {
        s = place_part(p, p->m.weights, d, SHEAF_USAGE_WEIGHTS, &p->weights[d]);
        if (!s) s = place_part(p, p->m.state, d, SHEAF_USAGE_STATE, &p->state[d]);
        if (!s) s = sheaf_buffer_clear(p->state[d], 0);
    }
    return s;
}

/* Memory for the largest graph, before the first token. */
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
    sheaf_sched_stats st = sheaf_sched_get_stats(p->sched);
    for (int d = 0; d < DEVICES; d++)
        fprintf(stderr, "on %s: weights %zu bytes, caches %zu, any run %zu\n", p->device[d]->name, p->weights[d]->size,
                p->state[d]->size, st.compute_bytes[d]);
    fprintf(stderr, "%d pieces, %d tensors cross\n", st.n_splits, st.n_copies);
}

int main(int argc, char **argv) {
    program p = {0};
    sheaf_status s = gpt2_open(argc, argv, 1, &p.m);
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
    for (int d = 0; d <= DEVICES; d++) sheaf_backend_free(p.backend[d]);
    for (int d = 0; d < DEVICES; d++) {
        sheaf_buffer_free(p.state[d]);
        sheaf_buffer_free(p.weights[d]);
    }
    sheaf_registry_free(p.registry);
    sheaf_arena_free(p.graph[0]);
    sheaf_arena_free(p.graph[1]);
    gpt2_close(&p.m);
    return sheaf_status_exit_code(s);
}
