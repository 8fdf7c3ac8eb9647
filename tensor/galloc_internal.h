/* The allocator's state, shared by galloc.c (planning, replay) and galloc_check.c (invariants). */
#ifndef SHEAF_TENSOR_GALLOC_INTERNAL_H
#define SHEAF_TENSOR_GALLOC_INTERNAL_H

#include "tensor/freelist_internal.h"
#include "tensor/galloc.h"

/* Liveness is in node numbers. */
enum { BEFORE_ALL = -1, FOR_EVER = INT32_MAX };

typedef struct chunk {
    sheaf_freelist free;
    size_t end;  /* bytes the current plan uses */
    size_t high; /* bytes any plan has used: what the owner allocates */
} chunk;

typedef struct pool {
    sheaf_galloc_type type;
    chunk *chunks;
    int32_t n_chunks, n_used, capacity; /* ever made, of the current plan, array */
    size_t live, peak;                  /* of the current plan */
} pool;

/* What is known of one slot of the planned graph. */
typedef struct slot {
    sheaf_place place;
    size_t size;        /* planned bytes, aligned; 0: the slot has no memory of its own */
    int32_t root;       /* slot whose memory it uses: itself, or a view's root; -1: none of ours */
    int32_t last;       /* last node that touches its bytes (of a root, its views included) */
    int32_t until;      /* what a caller asked to keep; BEFORE_ALL: nothing */
    int32_t takes_over; /* slot whose memory it took in place, or -1 */
    int32_t next_dead;  /* chain of slots that die at the same node */
} slot;

struct sheaf_galloc {
    pool *pools;
    int32_t n_pools;
    slot *slots;
    int32_t *dead; /* per node: first slot that dies there, or -1 */
    int32_t n_slots, slot_capacity, n_leafs, dead_capacity;
    uint64_t wiring; /* hash of who reads whom: a plan fits only this */
    bool planned;
};

/* The slot of the tensor whose bytes `t` uses, or -1 if that tensor is not in the graph. */
int32_t sheaf_galloc_root_slot(const sheaf_graph *g, sheaf_tensor *t);
/* May node `t` write over its first source's whole memory, by shapes and aliases alone? (Liveness is
 * the caller's to judge.) */
bool sheaf_galloc_can_take_over(const sheaf_graph *g, sheaf_tensor *t);

#endif
