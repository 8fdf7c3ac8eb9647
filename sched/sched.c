/* The scheduler object: made, given graphs, freed. The work is in the stages' own files. */
#include <string.h>

#include "sched/sched_internal.h"
#include "tensor/settings.h"

static const char *const cause_texts[] = {
#define X(name, text) text,
    SHEAF_CAUSE_TABLE(X)
#undef X
};

const char *sheaf_cause_text(sheaf_cause c) {
    return (unsigned)c < sizeof cause_texts / sizeof *cause_texts ? cause_texts[c] : "?";
}

/* One allocator arena per distinct buffer type, so that backends that share memory share plans. */
static sheaf_status make_arenas(sheaf_sched *s) {
    sheaf_galloc_type types[SHEAF_SCHED_MAX_BACKENDS] = {0};
    for (int b = 0; b < s->n; b++) {
        s->type[b] = sched_device(s, b)->buffer_type;
        int a = 0;
        while (a < s->n_arenas && s->arena_type[a] != s->type[b]) a++;
        if (a == s->n_arenas) {
            s->arena_type[a] = s->type[b];
            types[a] = (sheaf_galloc_type){.alignment = s->type[b]->alignment,
                                           .max_size = s->type[b]->max_size,
                                           .alloc_size = NULL,
                                           .ctx = s->type[b]};
            s->n_arenas++;
        }
        s->arena_of[b] = a;
    }
    return sheaf_galloc_new(types, s->n_arenas, &s->galloc);
}

sheaf_status sheaf_sched_new(sheaf_backend *const *backends, int n, const sheaf_sched_options *opts,
                             sheaf_sched **out) {
    if (n < 1 || n > SHEAF_SCHED_MAX_BACKENDS)
        return sheaf_fail(SHEAF_E_ARGUMENT, "scheduler: %d backends, between 1 and %d are possible", n,
                          SHEAF_SCHED_MAX_BACKENDS);
    const sheaf_device *last = backends[n - 1]->device;
    if (last->kind != SHEAF_DEVICE_CPU)
        return sheaf_fail(SHEAF_E_ARGUMENT, "scheduler: the last backend must be a CPU, it is %s", last->name);
    sheaf_sched *s = sheaf_calloc(1, sizeof *s);
    if (!s) return sheaf_fail(SHEAF_E_NO_MEMORY, "scheduler: out of memory");
    s->n = n;
    memcpy(s->backend, backends, (size_t)n * sizeof *backends);
    if (opts) s->opts = *opts;
    sheaf_status status = sheaf_arena_new((size_t)1 << 20, &s->arena);
    if (!status) status = make_arenas(s);
    if (status) {
        sheaf_sched_free(s);
        return status;
    }
    *out = s;
    return SHEAF_OK;
}

void sched_forget(sheaf_sched *s) {
    for (int32_t i = 0; i < s->n_splits; i++)
        if (s->splits[i].prepared) sheaf_prepared_free(s->backend[s->splits[i].backend], s->splits[i].prepared);
    for (int32_t i = 0; i < s->n_stamped; i++) {
        s->stamped[i]->buffer = NULL;
        s->stamped[i]->data = NULL;
        s->stamped[i]->ext = NULL;
    }
    s->n_stamped = s->n_splits = s->cap_splits = 0;
    s->splits = NULL;
    s->user = NULL;
    s->allocated = false;
    sheaf_arena_reset(s->arena);
}

void sheaf_sched_free(sheaf_sched *s) {
    if (!s) return;
    if (s->arena) {
        (void)sched_wait_all(s);
        sched_forget(s);
    }
    sched_free_memory(s);
    sheaf_galloc_free(s->galloc);
    sheaf_arena_free(s->arena);
    sheaf_free(s->pins);
    sheaf_free(s->prev_arena);
    sheaf_free(s);
}

sheaf_status sheaf_sched_pin(sheaf_sched *s, const sheaf_tensor *t, int backend) {
    if (backend < 0 || backend >= s->n)
        return sheaf_fail(SHEAF_E_ARGUMENT, "pinning %s: backend %d of %d", t->name, backend, s->n);
    if (s->n_pins == s->cap_pins) {
        int32_t cap = s->cap_pins ? s->cap_pins * 2 : 8;
        sched_pin *grown = sheaf_realloc(s->pins, (size_t)cap * sizeof *grown);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "pinning %s: out of memory", t->name);
        s->pins = grown;
        s->cap_pins = cap;
    }
    s->pins[s->n_pins++] = (sched_pin){t, backend};
    return SHEAF_OK;
}

/* Arrays by slot of the caller's graph, all in the arena. */
static sheaf_status make_tables(sheaf_sched *s) {
    size_t n = (size_t)s->n_slots, nb = n * (size_t)s->n;
    s->backend_of = sheaf_arena_alloc(s->arena, n);
    s->cause = sheaf_arena_alloc(s->arena, n);
    s->clone = sheaf_arena_alloc(s->arena, n * sizeof *s->clone);
    s->clone_split = sheaf_arena_alloc(s->arena, n * sizeof *s->clone_split);
    s->copy = sheaf_arena_alloc(s->arena, nb * sizeof *s->copy);
    s->copy_split = sheaf_arena_alloc(s->arena, nb * sizeof *s->copy_split);
    s->local = sheaf_arena_alloc(s->arena, n * sizeof *s->local);
    s->local_split = sheaf_arena_alloc(s->arena, n * sizeof *s->local_split);
    s->stamped = sheaf_arena_alloc(s->arena, n * sizeof(sheaf_tensor *));
    sheaf_status status = sheaf_arena_status(s->arena);
    if (status) return status;
    memset(s->backend_of, -1, n);
    for (size_t i = 0; i < n; i++) s->clone_split[i] = s->local_split[i] = -1;
    return SHEAF_OK;
}

/* Split stage: assignment, cuts, prepared pieces, flat graph. No memory of a device is touched. */
static sheaf_status split_stage(sheaf_sched *s, const sheaf_graph *g) {
    sched_forget(s);
    s->user = g;
    s->n_slots = g->n_leafs + g->n_nodes;
    sheaf_status status = make_tables(s);
    if (!status) status = sched_assign(s);
    s->n_pins = 0; /* pins are for one graph */
    if (!status) status = sched_split_graph(s);
    s->stats.splits_made++;
    return status;
}

sheaf_status sheaf_sched_reserve(sheaf_sched *s, sheaf_graph *g) {
    sheaf_status status = sched_wait_all(s);
    if (!status) status = split_stage(s, g);
    if (!status) status = sched_reserve_memory(s);
    if (status) sched_forget(s);
    return status;
}

sheaf_status sheaf_sched_alloc(sheaf_sched *s, sheaf_graph *g) {
    sheaf_status status = sched_wait_all(s);
    if (!status) status = split_stage(s, g);
    if (!status) status = sched_allocate(s);
    if (status) {
        sched_forget(s);
        return status;
    }
    s->stats.allocs++;
    s->allocated = true;
    /* what is printed must not change what is done: a full stderr is no failure of the schedule */
    if (sheaf_settings()->sched_debug) (void)sheaf_sched_print(s, (int)sheaf_settings()->sched_debug, stderr);
    return SHEAF_OK;
}

void sheaf_sched_set_eval(sheaf_sched *s, sheaf_eval_wants wants, sheaf_eval_see see, void *ctx) {
    s->wants = wants;
    s->see = see;
    s->eval_ctx = ctx;
}

sheaf_sched_stats sheaf_sched_get_stats(const sheaf_sched *s) { return s->stats; }

int sheaf_sched_backend_of(const sheaf_sched *s, const sheaf_tensor *t, sheaf_cause *cause) {
    if (!s->user || t->index < 0 || t->index >= s->n_slots || sheaf_graph_slot(s->user, t->index) != t) return -1;
    if (cause) *cause = (sheaf_cause)s->cause[t->index];
    return s->backend_of[t->index];
}

const sheaf_prepared *sheaf_sched_prepared(const sheaf_sched *s, int i, sheaf_backend **backend) {
    if (i < 0 || i >= s->n_splits) return NULL;
    if (backend) *backend = s->backend[s->splits[i].backend];
    return s->splits[i].prepared;
}
