/* Places for what a split graph computes: the allocator's plan, the buffers behind it, the addresses
 * that backends run on, and the stamps that let the caller set inputs and read outputs. */
#include <string.h>

#include "sched/sched_internal.h"
#include "tensor/hash.h"
#include "tensor/settings.h"

sheaf_status sched_wait_all(sheaf_sched *s) {
    sheaf_status first = SHEAF_OK;
    sheaf_error_box box;
    for (int b = 0; b < s->n; b++) {
        if (!s->in_flight[b]) continue;
        sheaf_status status = sheaf_backend_synchronize(s->backend[b]);
        s->in_flight[b] = false;
        if (status && !first) {
            first = status;
            sheaf_error_save(&box, status);
        }
    }
    return first ? sheaf_error_restore(&box) : SHEAF_OK;
}

static void drop(sheaf_buffer **b) {
    sheaf_buffer_free(*b);
    *b = NULL;
}

void sched_free_memory(sheaf_sched *s) {
    for (int a = 0; a < SHEAF_SCHED_MAX_BACKENDS; a++) {
        for (int c = 0; c < SCHED_MAX_CHUNKS; c++) drop(&s->buffers[a][c]);
        drop(&s->scratch[a]);
    }
}

/* Makes *b hold `bytes` of `type`; what it held before is gone. The old buffer goes first, so that the peak is one
 * buffer. */
static sheaf_status fit(sheaf_buffer **b, sheaf_buffer_type *type, size_t bytes) {
    if (*b && (*b)->size >= bytes) return SHEAF_OK;
    drop(b);
    return sheaf_buffer_alloc(type, bytes, SHEAF_USAGE_COMPUTE, b);
}

/* Buffers for every chunk of the plan, scratch for every backend. Nothing may be in flight. */
static sheaf_status fit_buffers(sheaf_sched *s) {
    sheaf_status status = SHEAF_OK;
    for (int a = 0; a < s->n_arenas && !status; a++) {
        int chunks = sheaf_galloc_chunks(s->galloc, a);
        if (chunks > SCHED_MAX_CHUNKS)
            return sheaf_fail(SHEAF_E_RANGE, "compute memory of %s: %d chunks, %d are possible", s->arena_type[a]->name,
                              chunks, SCHED_MAX_CHUNKS);
        for (int c = 0; c < chunks && !status; c++)
            status = fit(&s->buffers[a][c], s->arena_type[a], sheaf_galloc_chunk_bytes(s->galloc, a, c));
        if (status) return sheaf_error_context(status, "compute memory of %s", s->arena_type[a]->name);
    }
    for (int32_t k = 0; k < s->n_splits && !status; k++) {
        int b = s->splits[k].backend;
        size_t need = sheaf_prepared_info(s->backend[b], s->splits[k].prepared).scratch_bytes;
        if (need) status = fit(&s->scratch[b], s->type[b], need);
    }
    for (int b = 0; b < s->n; b++) {
        size_t bytes = s->scratch[b] ? s->scratch[b]->size : 0;
        for (int c = 0; c < SCHED_MAX_CHUNKS; c++)
            if (s->buffers[s->arena_of[b]][c]) bytes += s->buffers[s->arena_of[b]][c]->size;
        s->stats.compute_bytes[b] = bytes;
    }
    return status;
}

/* --- places ------------------------------------------------------------------------------------------- */

static sheaf_status place_one(sheaf_sched *s, sheaf_tensor *t) {
    if (t->view_src) return sheaf_view_place(t);
    if (t->data || t->buffer) return SHEAF_OK;
    sheaf_place at = sheaf_galloc_place(s->galloc, t->index);
    if (at.arena < 0) return sheaf_fail(SHEAF_E_INTERNAL, "scheduler: %s has no place", t->name);
    sheaf_buffer *b = s->buffers[at.arena][at.chunk];
    return sheaf_tensor_place(b, t, (char *)b->base + at.offset);
}

static void follow_owner(const sched_alias *x) {
    x->alias->buffer = x->owner->buffer;
    x->alias->data = x->owner->data;
    x->alias->ext = sched_ext_of(x->owner);
}

static sheaf_status place_split(sheaf_sched *s, sched_split *p) {
    sheaf_status status = SHEAF_OK;
    for (int32_t i = 0; i < p->n_inputs && !status; i++) {
        sheaf_tensor *from = p->inputs[i].from;
        if (from->view_src && !from->data) status = sheaf_view_place(from);
        if (!status) status = place_one(s, p->inputs[i].to);
    }
    for (int32_t i = 0; i < p->n_aliases && !status; i++) {
        if (p->aliases[i].owner->view_src && !p->aliases[i].owner->data) status = sheaf_view_place(p->aliases[i].owner);
        follow_owner(&p->aliases[i]);
    }
    for (int32_t i = 0; i < p->graph->n_nodes && !status; i++) status = place_one(s, p->graph->nodes[i]);
    return status;
}

static sheaf_status place_all(sheaf_sched *s) {
    sheaf_status status = SHEAF_OK;
    for (int32_t i = 0; i < s->user->n_leafs && !status; i++) status = place_one(s, s->clone[i]);
    for (int32_t k = 0; k < s->n_splits && !status; k++) status = place_split(s, &s->splits[k]);
    return status;
}

/* Lets every backend fix what it keeps by address, in order, so that what one exports the next can import. */
static sheaf_status bind_all(sheaf_sched *s) {
    for (int32_t k = 0; k < s->n_splits; k++) {
        sched_split *p = &s->splits[k];
        for (int32_t i = 0; i < p->n_aliases; i++) follow_owner(&p->aliases[i]);
        sheaf_graph_rebind(p->graph);
        sheaf_status status = sheaf_backend_bind(s->backend[p->backend], p->prepared, p->graph);
        if (status) return status;
        for (int32_t i = 0; i < p->graph->n_leafs + p->graph->n_nodes; i++)
            p->addr[i] = sheaf_graph_slot(p->graph, i)->data;
    }
    return SHEAF_OK;
}

/* The caller's own headers learn where inputs and outputs lie [S1]. */
static sheaf_status stamp_user(sheaf_sched *s) {
    for (int32_t i = 0; i < s->n_slots; i++) {
        sheaf_tensor *t = sheaf_graph_slot(s->user, i), *c = s->clone[i];
        bool wanted = i < s->user->n_leafs || (t->flags & SHEAF_FLAG_OUTPUT);
        if (!wanted || !c || t->data || t->buffer) continue;
        if (c->view_src && !c->data) {
            sheaf_status status = sheaf_view_place(c);
            if (status) return status;
        }
        t->buffer = c->buffer;
        t->data = c->data;
        t->ext = c->ext;
        s->stamped[s->n_stamped++] = t;
    }
    return SHEAF_OK;
}

/* --- the two ways in ------------------------------------------------------------------------------------ */

static sheaf_status settle(sheaf_sched *s) {
    sheaf_status status = fit_buffers(s);
    if (!status) status = place_all(s);
    if (!status) status = bind_all(s);
    if (!status) status = stamp_user(s);
    return status;
}

static sheaf_status assign(sheaf_sched *s) {
    return sheaf_galloc_assign(s->galloc, s->flat, s->flat_arena, s->keep, s->n_keep);
}

static sheaf_status plan_memory(sheaf_sched *s) {
    sheaf_status status = sheaf_galloc_reserve(s->galloc, s->flat, s->flat_arena, s->keep, s->n_keep);
    if (!status && sheaf_checks_on(s->flat->n_leafs + s->flat->n_nodes))
        status = sheaf_galloc_check(s->galloc, s->flat);
    return status;
}

sheaf_status sched_reserve_memory(sheaf_sched *s) {
    sheaf_status status = plan_memory(s);
    if (!status) status = assign(s);
    return status ? status : settle(s);
}

static uint64_t hash_of_keep(const sheaf_sched *s) {
    uint64_t h = SHEAF_HASH_SEED;
    for (int32_t i = 0; i < s->n_keep; i++)
        h = sheaf_hash_word(h, (uint64_t)(uint32_t)s->keep[i].slot << 32 | (uint32_t)s->keep[i].until_node);
    return h;
}

/* Remembers the assignment just used; says whether it is the one before (same slots, same memory, same lifetimes). */
static bool same_as_before(sheaf_sched *s) {
    int32_t n = s->flat->n_leafs + s->flat->n_nodes;
    uint64_t keep = hash_of_keep(s);
    bool same = n == s->prev_slots && keep == s->prev_keep &&
                !memcmp(s->prev_arena, s->flat_arena, (size_t)n * sizeof(int32_t));
    s->prev_keep = keep;
    if (n > s->prev_cap) {
        int32_t *grown = sheaf_realloc(s->prev_arena, (size_t)n * sizeof *grown);
        if (!grown) return same; /* only the tripwire's memory: the next change looks explained */
        s->prev_arena = grown;
        s->prev_cap = n;
    }
    memcpy(s->prev_arena, s->flat_arena, (size_t)n * sizeof(int32_t));
    s->prev_slots = n;
    return same;
}

static sheaf_status plan_again(sheaf_sched *s, bool unexplained) {
    int64_t wire = sheaf_settings()->sched_debug_realloc;
    if (unexplained) s->stats.unexplained_reallocs++;
    if (wire > 1 || (wire == 1 && unexplained))
        return sheaf_fail(SHEAF_E_INTERNAL, "scheduler: unexpected reallocation (%d nodes, %d leafs)", s->flat->n_nodes,
                          s->flat->n_leafs);
    s->stats.reallocs++;
    sheaf_log(SHEAF_LOG_DEBUG, "scheduler: planning memory again (%d nodes)", s->flat->n_nodes);
    sheaf_status status = plan_memory(s);
    return status ? status : assign(s);
}

sheaf_status sched_allocate(sheaf_sched *s) {
    bool had_plan = s->prev_slots > 0, same = same_as_before(s);
    sheaf_status status = assign(s);
    if (status == SHEAF_E_RANGE) status = plan_again(s, had_plan && same);
    return status ? status : settle(s);
}
