/* Pass 5: cuts the graph where the backend changes (or where a foreign weight would need a second staging
 * buffer, or at an observed node), gives every split a graph of headers of its own [S1][S2], prepares the
 * pieces, and strings them into the flat graph that the allocator plans [S3]. */
#include <stdio.h>
#include <string.h>

#include "sched/sched_internal.h"

/* Grows an array that lives in the arena: the old one is simply left behind. */
static void *grow(sheaf_arena *a, void *old, int32_t n, int32_t *cap, size_t item) {
    if (n < *cap) return old;
    int32_t bigger = *cap ? *cap * 2 : 8;
    void *fresh = sheaf_arena_alloc(a, (size_t)bigger * item);
    if (!fresh) return NULL;
    if (n) memcpy(fresh, old, (size_t)n * item);
    *cap = bigger;
    return fresh;
}

static sheaf_tensor *copy_header(sheaf_sched *s, const sheaf_tensor *t) {
    sheaf_tensor *c = sheaf_arena_alloc(s->arena, sizeof *c);
    if (!c) return NULL;
    *c = *t;
    c->index = -1;
    return c;
}

/* --- the headers of one split ------------------------------------------------------------------------- */

static sheaf_tensor *local_header(sheaf_sched *s, int32_t k, const sheaf_tensor *t);

static sheaf_status add_alias(sheaf_sched *s, sched_split *p, sheaf_tensor *alias, sheaf_tensor *owner) {
    sched_alias *grown = grow(s->arena, p->aliases, p->n_aliases, &p->cap_aliases, sizeof *grown);
    if (!grown) return sheaf_arena_status(s->arena);
    p->aliases = grown;
    p->aliases[p->n_aliases++] = (sched_alias){alias, owner};
    return SHEAF_OK;
}

/* A leaf header in split k for what `owner` (a clone or copy of another split, or a leaf in its second
 * split) holds. */
static sheaf_tensor *alias_of(sheaf_sched *s, int32_t k, sheaf_tensor *owner) {
    sched_split *p = &s->splits[k];
    sheaf_tensor *alias = copy_header(s, owner);
    if (!alias) return NULL;
    memset(alias->src, 0, sizeof alias->src);
    alias->op = SHEAF_OP_NONE;
    alias->view_src = NULL;
    alias->view_offs = 0;
    owner->flags |= SHEAF_FLAG_EXPORT; /* [S4] */
    if (add_alias(s, p, alias, owner) || sheaf_graph_add(p->graph, alias, true)) return NULL;
    return alias;
}

/* The owner's header of a leaf; made at first need. */
static sheaf_tensor *leaf_clone(sheaf_sched *s, const sheaf_tensor *t) {
    sheaf_tensor **clone = &s->clone[t->index];
    if (!*clone) *clone = copy_header(s, t);
    return *clone;
}

/* Makes (or finds) the copy of `t` on split k's backend; `from` is its owner's header. */
static sheaf_tensor *copy_of(sheaf_sched *s, int32_t k, const sheaf_tensor *t) {
    sched_split *p = &s->splits[k];
    size_t cell = (size_t)p->backend * (size_t)s->n_slots + (size_t)t->index;
    if (s->copy[cell]) return s->copy_split[cell] == k ? s->copy[cell] : alias_of(s, k, s->copy[cell]);
    sheaf_tensor *from = s->clone[t->index] ? s->clone[t->index] : leaf_clone(s, t);
    sheaf_tensor *to = from ? sheaf_dup(s->arena, t) : NULL;
    sched_input *grown = to ? grow(s->arena, p->inputs, p->n_inputs, &p->cap_inputs, sizeof *grown) : NULL;
    if (!grown) return NULL;
    p->inputs = grown;
    from->flags |= SHEAF_FLAG_EXPORT; /* [S4] */
    to->copy_of = from;
    to->index = -1;
    to->flags = t->flags & SHEAF_FLAG_INPUT;
    sheaf_set_name(to, "%.16s#%.40s#0", sched_device(s, p->backend)->name, t->name);
    p->inputs[p->n_inputs++] = (sched_input){from, to, s->backend_of[t->index], (t->flags & SHEAF_FLAG_INPUT) != 0};
    s->copy[cell] = to;
    s->copy_split[cell] = k;
    s->stats.n_copies++;
    return sheaf_graph_add(p->graph, to, true) ? NULL : to;
}

/* A header op over bytes that split k's backend can read: cloned into the split, its chain first. The chain is walked
 * with a list, not by recursion: its length is the caller's. */
static sheaf_tensor *view_header(sheaf_sched *s, int32_t k, const sheaf_tensor *t) {
    int32_t n = 0, cap = 0;
    const sheaf_tensor **chain = NULL;
    for (const sheaf_tensor *v = t; sheaf_op_is_header(v->op) && v->op != SHEAF_OP_NONE; v = v->src[0]) {
        if (s->local_split[v->index] == k) break;
        const sheaf_tensor **grown = grow(s->arena, chain, n, &cap, sizeof *grown);
        if (!grown) return NULL;
        chain = grown;
        chain[n++] = v;
    }
    while (n-- > 0) {
        const sheaf_tensor *v = chain[n];
        sheaf_tensor *src = local_header(s, k, v->src[0]);
        sheaf_tensor *root = local_header(s, k, v->view_src);
        sheaf_tensor *c = src && root ? copy_header(s, v) : NULL;
        if (!c || sheaf_graph_add(s->splits[k].graph, c, false)) return NULL;
        c->src[0] = src;
        c->view_src = root;
        c->buffer = NULL;
        c->data = c->ext = NULL;
        s->local[v->index] = c;
        s->local_split[v->index] = k;
        if (!s->clone[v->index]) s->clone[v->index] = c, s->clone_split[v->index] = k;
    }
    return s->local[t->index];
}

/* The header under which split k reads tensor `t` of the caller's graph: its own clone, an alias, a view
 * rebuilt here, or a copy. Roots are never headers, so the mutual call with view_header is one level deep. */
static sheaf_tensor *local_header(sheaf_sched *s, int32_t k, const sheaf_tensor *t) {
    int32_t i = t->index;
    if (s->local_split[i] == k) return s->local[i];
    sheaf_tensor *h;
    bool readable = sched_readable(s, t, s->splits[k].backend);
    bool view = sheaf_op_is_header(t->op) && t->op != SHEAF_OP_NONE;
    if (view && (readable || !sheaf_is_contiguous(t))) {
        h = view_header(s, k, t); /* of the root's copy, where the view itself is no plain range of bytes */
    } else if (!readable) {
        if (view && !s->clone[i]) return NULL;
        h = copy_of(s, k, t);
    } else if (s->clone[i] && s->clone_split[i] >= 0 && s->clone_split[i] != k) {
        h = alias_of(s, k, s->clone[i]);
    } else {
        h = leaf_clone(s, t);
        if (h && s->clone_split[i] < 0) {
            s->clone_split[i] = k;
            if (sheaf_graph_add(s->splits[k].graph, h, true)) h = NULL;
        }
    }
    if (h) s->local[i] = h, s->local_split[i] = k;
    return h;
}

/* A contiguous view that must be copied has to exist where its root lives: in the split that computes it. */
static sheaf_status place_view_at_home(sheaf_sched *s, const sheaf_tensor *t) {
    if (s->clone[t->index]) return SHEAF_OK;
    const sheaf_tensor *root = t->view_src;
    sheaf_tensor *owner = s->clone[root->index] ? s->clone[root->index] : leaf_clone(s, root);
    sheaf_tensor *v = owner ? copy_header(s, t) : NULL;
    if (!v) return sheaf_arena_status(s->arena);
    v->op = SHEAF_OP_VIEW;
    memset(v->src, 0, sizeof v->src);
    v->src[0] = v->view_src = owner;
    v->buffer = NULL;
    v->data = v->ext = NULL;
    s->clone[t->index] = v;
    owner->flags |= SHEAF_FLAG_EXPORT;
    return SHEAF_OK;
}

static sheaf_status add_node(sheaf_sched *s, int32_t k, const sheaf_tensor *t) {
    sheaf_tensor *c = copy_header(s, t);
    if (!c) return sheaf_arena_status(s->arena);
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (!t->src[i]) continue;
        const sheaf_tensor *src = t->src[i];
        bool view = sheaf_op_is_header(src->op) && src->op != SHEAF_OP_NONE;
        if (view && !sched_readable(s, src, s->splits[k].backend) && sheaf_is_contiguous(src)) {
            sheaf_status status = place_view_at_home(s, src);
            if (status) return status;
        }
        c->src[i] = local_header(s, k, src);
        if (!c->src[i]) return sheaf_arena_status(s->arena);
    }
    if (t->view_src) {
        c->view_src = local_header(s, k, t->view_src);
        if (!c->view_src) return sheaf_arena_status(s->arena);
    }
    s->clone[t->index] = s->local[t->index] = c;
    s->clone_split[t->index] = s->local_split[t->index] = k;
    return sheaf_graph_add(s->splits[k].graph, c, false);
}

/* --- cutting ------------------------------------------------------------------------------------------- */

static sheaf_status begin_split(sheaf_sched *s, int backend) {
    sched_split *grown = grow(s->arena, s->splits, s->n_splits, &s->cap_splits, sizeof *grown);
    if (!grown) return sheaf_arena_status(s->arena);
    s->splits = grown;
    sched_split *p = &s->splits[s->n_splits];
    memset(p, 0, sizeof *p);
    p->backend = backend;
    sheaf_status status = sheaf_graph_new(s->arena, 64, &p->graph);
    if (!status) s->n_splits++;
    return status;
}

/* Would this node bring a foreign weight into a split that already works? Then a new split ends the life of the last
 * one's staging. */
static bool brings_foreign_weight(const sheaf_sched *s, const sheaf_tensor *t, int b) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const sheaf_buffer *buffer = t->src[i] ? sched_buffer_of(t->src[i]) : NULL;
        if (buffer && buffer->usage == SHEAF_USAGE_WEIGHTS && !sched_readable(s, t->src[i], b)) return true;
    }
    return false;
}

static bool must_cut(const sheaf_sched *s, const sheaf_tensor *t, int b) {
    if (s->n_splits == 0) return true;
    const sched_split *p = &s->splits[s->n_splits - 1];
    return p->backend != b || p->seen || (p->graph->n_nodes > 0 && brings_foreign_weight(s, t, b));
}

static sheaf_status cut(sheaf_sched *s) {
    const sheaf_graph *g = s->user;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const sheaf_tensor *t = g->nodes[i];
        int b = s->backend_of[t->index];
        sheaf_status status = SHEAF_OK;
        if (sheaf_op_is_header(t->op)) continue; /* cloned where it is read */
        if (must_cut(s, t, b)) status = begin_split(s, b);
        if (!status) status = add_node(s, s->n_splits - 1, t);
        if (status) return status;
        if (s->wants && s->wants(s->eval_ctx, t)) {
            s->splits[s->n_splits - 1].seen = s->clone[t->index];
            s->clone[t->index]->flags |= SHEAF_FLAG_EXPORT;
        }
    }
    return SHEAF_OK;
}

/* Outputs that are headers, and leafs that nobody reads, still need a header with a place. */
static sheaf_status complete(sheaf_sched *s) {
    for (int32_t i = 0; i < s->n_slots; i++) {
        const sheaf_tensor *t = sheaf_graph_slot(s->user, i);
        if (s->clone[i]) continue;
        sheaf_status status = SHEAF_OK;
        if (i < s->user->n_leafs) {
            if (!leaf_clone(s, t)) status = sheaf_arena_status(s->arena);
        } else if (t->flags & SHEAF_FLAG_OUTPUT) {
            status = place_view_at_home(s, t);
        }
        if (status) return status;
    }
    return SHEAF_OK;
}

static sheaf_status prepare_all(sheaf_sched *s) {
    for (int32_t k = 0; k < s->n_splits; k++) {
        sched_split *p = &s->splits[k];
        /* what an earlier split on this backend said of the tensor, before either has a place */
        for (int32_t i = 0; i < p->n_aliases; i++) p->aliases[i].alias->ext = sched_ext_of(p->aliases[i].owner);
        sheaf_status status = sheaf_graph_seal(p->graph);
        if (!status) status = sheaf_backend_prepare(s->backend[p->backend], p->graph, &p->prepared);
        if (status) return status;
        size_t slots = (size_t)p->graph->n_leafs + (size_t)p->graph->n_nodes;
        p->addr = sheaf_arena_alloc(s->arena, slots * sizeof *p->addr);
        if (!p->addr) return sheaf_arena_status(s->arena);
    }
    return SHEAF_OK;
}

/* --- the flat graph [S3] -------------------------------------------------------------------------------- */

/* A header that only tells the allocator: `of` is still read here. */
static sheaf_status flat_read(sheaf_sched *s, sheaf_tensor *of) {
    sheaf_tensor *dep = copy_header(s, of);
    if (!dep) return sheaf_arena_status(s->arena);
    memset(dep->src, 0, sizeof dep->src);
    dep->op = SHEAF_OP_CPY; /* a header op would read nothing; a write in place reads, and needs no memory */
    dep->src[0] = dep->view_src = of->view_src ? of->view_src : of; /* a view made for a copy is in no graph itself */
    dep->buffer = NULL;
    dep->data = dep->ext = NULL;
    dep->flags = 0;
    return sheaf_graph_add(s->flat, dep, false);
}

static sheaf_status flat_split(sheaf_sched *s, sched_split *p) {
    sheaf_status status = SHEAF_OK;
    for (int32_t i = 0; i < p->n_inputs && !status; i++) {
        status = flat_read(s, p->inputs[i].from);
        if (!status) status = sheaf_graph_add(s->flat, p->inputs[i].to, false);
    }
    p->flat_node0 = s->flat->n_nodes;
    for (int32_t i = 0; i < p->graph->n_nodes && !status; i++)
        status = sheaf_graph_add(s->flat, p->graph->nodes[i], false);
    for (int32_t i = 0; i < p->n_aliases && !status; i++) status = flat_read(s, p->aliases[i].owner);
    return status;
}

static sheaf_status flat_leafs(sheaf_sched *s) {
    sheaf_status status = SHEAF_OK;
    for (int32_t i = 0; i < s->user->n_leafs && !status; i++) {
        /* an input keeps its bytes until the caller writes it again, also where the next batch does not use it */
        if (s->user->leafs[i]->flags & SHEAF_FLAG_INPUT) s->clone[i]->flags |= SHEAF_FLAG_OUTPUT;
        status = sheaf_graph_add(s->flat, s->clone[i], true);
    }
    for (int32_t k = 0; k < s->n_splits; k++)
        for (int32_t i = 0; i < s->splits[k].n_aliases && !status; i++)
            status = sheaf_graph_add(s->flat, s->splits[k].aliases[i].alias, true);
    return status;
}

/* Which allocator arena each flat slot's memory comes from: leafs by assignment, aliases none, split nodes by their
 * split. */
static void flat_arenas(sheaf_sched *s) {
    const sheaf_graph *f = s->flat;
    for (int32_t i = 0; i < f->n_leafs + f->n_nodes; i++) s->flat_arena[i] = -1;
    for (int32_t i = 0; i < s->user->n_leafs; i++) s->flat_arena[s->clone[i]->index] = s->arena_of[s->backend_of[i]];
    for (int32_t k = 0; k < s->n_splits; k++) {
        const sched_split *p = &s->splits[k];
        for (int32_t i = 0; i < p->n_inputs; i++) s->flat_arena[p->inputs[i].to->index] = s->arena_of[p->backend];
        for (int32_t i = 0; i < p->graph->n_nodes; i++)
            s->flat_arena[p->graph->nodes[i]->index] = s->arena_of[p->backend];
    }
}

/* Lifetimes that backends asked for, in the flat graph's numbers. */
static sheaf_status flat_lifetimes(sheaf_sched *s) {
    int32_t total = 0;
    for (int32_t k = 0; k < s->n_splits; k++)
        total += sheaf_prepared_info(s->backend[s->splits[k].backend], s->splits[k].prepared).n_keep;
    s->n_keep = 0;
    s->keep = sheaf_arena_alloc(s->arena, ((size_t)total + 1) * sizeof *s->keep);
    if (!s->keep) return sheaf_arena_status(s->arena);
    for (int32_t k = 0; k < s->n_splits; k++) {
        const sched_split *p = &s->splits[k];
        sheaf_prepare_info info = sheaf_prepared_info(s->backend[p->backend], p->prepared);
        for (int i = 0; i < info.n_keep; i++) {
            const sheaf_tensor *t = sheaf_graph_slot(p->graph, info.keep[i].slot);
            s->keep[s->n_keep++] = (sheaf_lifetime){t->index, p->flat_node0 + info.keep[i].until_node};
        }
    }
    return SHEAF_OK;
}

static sheaf_status flatten(sheaf_sched *s) {
    sheaf_status status = sheaf_graph_new(s->arena, s->n_slots + 16, &s->flat);
    if (!status) status = flat_leafs(s);
    for (int32_t k = 0; k < s->n_splits && !status; k++) status = flat_split(s, &s->splits[k]);
    if (!status) status = sheaf_graph_seal(s->flat);
    if (status) return status;
    s->flat_arena =
        sheaf_arena_alloc(s->arena, ((size_t)s->flat->n_leafs + (size_t)s->flat->n_nodes) * sizeof(int32_t));
    if (!s->flat_arena) return sheaf_arena_status(s->arena);
    flat_arenas(s);
    return flat_lifetimes(s);
}

sheaf_status sched_split_graph(sheaf_sched *s) {
    s->stats.n_copies = 0;
    sheaf_status status = cut(s);
    if (!status) status = complete(s);
    if (!status) status = prepare_all(s);
    if (!status) status = flatten(s);
    s->stats.n_nodes = s->user->n_nodes;
    s->stats.n_splits = s->n_splits;
    return status;
}
