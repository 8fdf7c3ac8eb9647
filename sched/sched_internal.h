/* The scheduler's state, shared by its stages: assign.c (passes 1 to 4), split.c (pass 5), memory.c
 * (places, buffers, addresses), compute.c (copies and runs), print.c.
 *
 * Invariants, cited as [S1]..[S5] where they are relied on:
 *  S1 The caller's graph is read only; every header that a backend sees is one of ours (a clone, an alias,
 *     a copy). Only `buffer`, `data` and `ext` of the caller's unplaced leafs and outputs are stamped, and
 *     taken back before the next split.
 *  S2 A header belongs to one split graph only, so its `index` is that graph's.
 *  S3 In the flat graph every tensor stands behind all that it reads, and a split's copies stand before
 *     its nodes: the allocator then keeps a source until it is copied and has the copy ready in time.
 *  S4 A tensor read outside its split carries SHEAF_FLAG_EXPORT before any split is prepared.
 *  S5 Everything of one split pass lies in `arena` and goes with its next reset; prepared objects are freed first.
 */
#ifndef SHEAF_SCHED_INTERNAL_H
#define SHEAF_SCHED_INTERNAL_H

#include "sched/sched.h"

enum { SCHED_MAX_CHUNKS = 16 };

/* A tensor copied in before a split runs. */
typedef struct sched_input {
    sheaf_tensor *from; /* header in the split that computes it, or a leaf's clone */
    sheaf_tensor *to;   /* lies on the split's backend */
    int32_t from_backend;
    bool user; /* the caller may overwrite it as soon as compute returns */
} sched_input;

/* An alias: the header under which a later split reads what another split or leaf owns. */
typedef struct sched_alias {
    sheaf_tensor *alias, *owner;
} sched_alias;

/* What a backend keeps about an owner's bytes. What was written in place (rows of a cache) lies as the whole does, and
 * its own header never had a place of its own. */
static inline void *sched_ext_of(const sheaf_tensor *owner) {
    const sheaf_tensor *whole = owner->view_src;
    return owner->ext || !whole || !sheaf_same_shape(owner, whole) ? owner->ext : whole->ext;
}

typedef struct sched_split {
    int32_t backend;
    sheaf_graph *graph;
    sched_input *inputs;
    int32_t n_inputs, cap_inputs;
    sched_alias *aliases;
    int32_t n_aliases, cap_aliases;
    sheaf_prepared *prepared;
    void **addr;              /* by slot of `graph` */
    int32_t flat_node0;       /* where the split's nodes begin in the flat graph */
    const sheaf_tensor *seen; /* observed node that ends the split (eval callback), else NULL */
} sched_split;

typedef struct sched_pin {
    const sheaf_tensor *tensor;
    int32_t backend;
} sched_pin;

struct sheaf_sched {
    int32_t n;
    sheaf_backend *backend[SHEAF_SCHED_MAX_BACKENDS];
    sheaf_buffer_type *type[SHEAF_SCHED_MAX_BACKENDS];
    int32_t arena_of[SHEAF_SCHED_MAX_BACKENDS]; /* allocator arena: one per distinct buffer type */
    int32_t n_arenas;
    sheaf_buffer_type *arena_type[SHEAF_SCHED_MAX_BACKENDS];
    sheaf_sched_options opts;

    sheaf_arena *arena; /* [S5] */
    const sheaf_graph *user;
    int32_t n_slots;
    int8_t *backend_of; /* by slot of the caller's graph; -1: not yet */
    uint8_t *cause;
    sheaf_tensor **clone; /* the owner's header of each slot, or NULL while it has none */
    int32_t *clone_split; /* whose graph it is in; -1: none yet (leafs) */
    sheaf_tensor **copy;  /* [backend][slot] */
    int32_t *copy_split;
    sheaf_tensor **local; /* header of a slot in the split being built, valid when local_split says so */
    int32_t *local_split;
    sched_split *splits;
    int32_t n_splits, cap_splits;
    sched_pin *pins;
    int32_t n_pins, cap_pins;
    sheaf_tensor **stamped; /* the caller's headers that carry our places [S1] */
    int32_t n_stamped;

    sheaf_graph *flat;
    int32_t *flat_arena;
    sheaf_lifetime *keep;
    int32_t n_keep;
    int32_t *prev_arena; /* last flat assignment, for the tripwire; malloc'd */
    int32_t prev_slots, prev_cap;
    uint64_t prev_keep; /* hash of the lifetimes that were asked for then */
    sheaf_galloc *galloc;
    sheaf_buffer *buffers[SHEAF_SCHED_MAX_BACKENDS][SCHED_MAX_CHUNKS];
    sheaf_buffer *scratch[SHEAF_SCHED_MAX_BACKENDS];
    bool in_flight[SHEAF_SCHED_MAX_BACKENDS];
    bool allocated;

    sheaf_eval_wants wants;
    sheaf_eval_see see;
    void *eval_ctx;
    sheaf_sched_stats stats;
};

/* The buffer that a tensor's bytes lie in, or will: its own or its root's. */
static inline sheaf_buffer *sched_buffer_of(const sheaf_tensor *t) {
    return t->view_src ? t->view_src->buffer : t->buffer;
}
static inline sheaf_device *sched_device(const sheaf_sched *s, int b) { return s->backend[b]->device; }

/* Passes 1 to 4: a backend and a cause for every slot, or SHEAF_E_UNSUPPORTED naming op, type, tensor. */
sheaf_status sched_assign(sheaf_sched *s);
/* Pass 5: cuts, clones, copies; then prepares every split and builds the flat graph. */
sheaf_status sched_split_graph(sheaf_sched *s);
/* Can backend b read slot's bytes where they are? */
bool sched_readable(const sheaf_sched *s, const sheaf_tensor *t, int b);
/* Frees prepared objects, takes stamps back, resets the arena: ready for another graph. */
void sched_forget(sheaf_sched *s);
sheaf_status sched_reserve_memory(sheaf_sched *s);
/* Places by the plan, growing it if it must; stamps, binds, and fills address tables. */
sheaf_status sched_allocate(sheaf_sched *s);
void sched_free_memory(sheaf_sched *s);
sheaf_status sched_wait_all(sheaf_sched *s);

#endif
