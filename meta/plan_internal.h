/* A plan, and the intermediate form that the five functions hand on.
 *
 *     graph --resolve--> a layout and a rule per slot
 *           --reshard--> items: nodes, and conversions where a source does not fit
 *           --delay----> sums fused with what follows them
 *           --shard----> per local member: a header per value, memory planned on its own shapes
 *           --cut------> pieces (compiled by the member's backend) and steps
 *
 * A *value* is a tensor on all devices with one layout; a graph slot has a first value, and others where
 * it was converted. An *item* makes a value from values. Items are in execution order, the same on all
 * devices of the world; that order is the plan. Everything lies in the plan's arena, except what members
 * and the communicator made for it. No address in it.
 *
 * Invariants (sheaf_plan_check):
 *   1. A PARTIAL value is read by its one sum, or joined with another by an addition, and by nothing else.
 *   2. A value is made before it is read, by one item.
 *   3. Every collective is in the list of all devices at the same place.
 *   4. Places lie inside their chunk; values that live at the same time do not overlap (checked where the
 *      memory is planned, while lifetimes are known).
 */
#ifndef SHEAF_META_PLAN_INTERNAL_H
#define SHEAF_META_PLAN_INTERNAL_H

#include "meta/meta_internal.h"

typedef enum value_home {
    HOME_WORK,    /* planned in the workspace */
    HOME_STATIC,  /* a weight's or state's shard */
    HOME_IO,      /* crosses the plan's border */
    HOME_STAGING, /* an addend computed where the communicator sums it */
    HOME_VIEW,    /* lies in its root's home */
} value_home;

typedef struct plan_value {
    int32_t slot; /* whose content it is */
    sheaf_layout layout;
    sheaf_type type; /* F64 for addends that are rounded once */
    value_home home;
    int32_t root;         /* value whose bytes it shares, -1 */
    int32_t made_by;      /* item, -1: a leaf */
    int32_t next_version; /* another value of the same slot, -1 */
    int32_t uses;         /* items that read it */
    int32_t staging;      /* HOME_STAGING: number among the plan's staged sums */
    uint64_t empty;       /* PARTIAL: world devices that compute no addend */
} plan_value;

typedef enum item_kind {
    ITEM_NODE,     /* a node of the graph, on shards */
    ITEM_SLICE,    /* each device cuts its part out of what it has */
    ITEM_CUT_BACK, /* a gathered root that was written: each device keeps its part of it */
    ITEM_SUM,      /* PARTIAL -> MIRRORED */
    ITEM_GATHER,   /* AXIS -> MIRRORED */
} item_kind;

typedef struct plan_item {
    item_kind kind;
    bool dropped; /* fused into another */
    int32_t node; /* NODE: graph node; else the node it is for */
    int32_t out;
    int32_t src[SHEAF_MAX_SRC];
    int32_t root; /* NODE: value that it views or writes into, -1 */
    bool as_view; /* NODE: a header over `root`; also for what a writer left behind */
    sheaf_lowering lowering;
    const char *rule; /* why */
    /* SUM */
    int32_t residual, norm_weight, norm_out; /* fused neighbours, -1 */
    float eps;
    bool add, norm;
    int32_t plain_out;           /* the sum before the addition (only for printing), -1 */
    int32_t add_node, norm_node; /* graph nodes that were fused, -1 */
} plan_item;

typedef struct plan_place {
    int32_t chunk;
    size_t offset;
} plan_place; /* chunk -1: not in the workspace */

/* A stretch of local work between two collectives. */
typedef struct plan_piece {
    int32_t first_item, end_item;
    sheaf_graph **graphs;      /* [n_local]; NULL: nothing to do there */
    sheaf_prepared **prepared; /* [n_local] */
    int32_t **shard_of_slot;   /* [n_local][slots of the graph] */
} plan_piece;

typedef struct plan_step {
    bool is_collective;
    int32_t piece; /* run */
    int32_t item;  /* collective */
    sheaf_comm_op *op;
    int64_t rows;
} plan_step;

/* A value on one local member: what the member computes, its sources as numbers of other shards. Inner ones
 * (views and parts that SLICE, CUT_BACK and compacting need) come after the values. */
typedef struct plan_shard {
    sheaf_tensor header; /* src and view_src are not set: graphs have copies */
    int32_t src[SHEAF_MAX_SRC];
    int32_t root; /* shard that it lies in, -1 */
    value_home home;
    plan_place place; /* HOME_WORK */
    bool empty;
} plan_shard;

/* Nodes of one member in order, with the item each belongs to. */
typedef struct plan_member_node {
    int32_t shard;
    int32_t item;
} plan_member_node;

typedef struct plan_member {
    int32_t *compact_of; /* [n_items]: shard that a collective reads, -1: it contributes nothing */
    plan_shard *shards;
    int32_t n_shards, capacity; /* [n_values] and inner ones */
    plan_member_node *nodes;
    int32_t n_nodes, nodes_capacity;
    size_t chunk_bytes[META_MAX_CHUNKS];
    int32_t n_chunks;
    size_t scratch_bytes;
} plan_member;

struct meta_plan {
    meta_plan *newer, *older; /* cache */
    int refs;
    struct meta_prepared *spare; /* of the last binding, for the next: its memory is large, and its pages are there */
    bool cached;
    uint64_t key, hash, shape_id;
    bool strict;
    sheaf_arena *arena;
    meta_backend *backend;
    meta_device *device;
    int n_local, n_world, first;

    sheaf_tensor *slots; /* [n_slots] copies of the graph's headers: plans outlive graphs */
    int32_t n_leafs, n_slots;
    int32_t *src_slot;        /* [n_slots][SHEAF_MAX_SRC], -1 */
    int32_t *root_slot;       /* [n_slots], -1 */
    sheaf_layout *layout;     /* [n_slots] */
    sheaf_rule_result *rules; /* [n_slots], nodes only */

    plan_value *values;
    int32_t n_values, values_capacity;
    int32_t *first_value, *newest_value; /* [n_slots] */
    bool *stale;                         /* [n_slots]: a view over a copy of its root that was written since */
    plan_item *items;
    int32_t n_items, items_capacity;

    plan_member *members; /* [n_local] */
    plan_piece *pieces;
    int32_t n_pieces;
    plan_step *steps;
    int32_t n_steps;
    int32_t *crossing;
    int32_t n_crossings;  /* values in HOME_IO */
    meta_ext **announced; /* [n_crossings]: their layouts, before they have a place */
    int32_t n_staged;     /* sums whose addends lie in staging */
    size_t staging_bytes;

    sheaf_plan_collective *collectives;
    int32_t n_collectives;
    sheaf_plan_reshard *reshards;
    int32_t n_reshards, reshards_capacity;
    size_t *compute_bytes, *staging_list;
    double compile_us;
};

sheaf_status meta_plan_compile(meta_backend *b, const sheaf_graph *g, uint64_t key, meta_plan **out);
void meta_plan_free(meta_plan *p);
/* Of what decides a plan: the graph's own structure, and the layouts of its leafs. Part of what ranks compare. */
uint64_t meta_plan_key(const meta_backend *b, const sheaf_graph *g);
/* Was `p` compiled for what `g` is? Compares what decides it: comparing layouts costs less than hashing them. */
bool meta_plan_fits(const meta_plan *p, const meta_backend *b, const sheaf_graph *g);
/* Layout of a leaf as the plan must take it. */
sheaf_layout meta_leaf_layout(const sheaf_tensor *t);

/* The five, in order. */
sheaf_status plan_resolve(meta_plan *p);
sheaf_status plan_reshard(meta_plan *p);
sheaf_status plan_delay(meta_plan *p);
sheaf_status plan_shard_members(meta_plan *p);
sheaf_status plan_cut(meta_plan *p);

/* --- shared by them --- */

static inline bool is_node(const meta_plan *p, int32_t slot) { return slot >= p->n_leafs; }
static inline bool crosses(const sheaf_tensor *t) { return (t->flags & (SHEAF_FLAG_OUTPUT | SHEAF_FLAG_EXPORT)) != 0; }
static inline bool is_collective(item_kind k) { return k == ITEM_SUM || k == ITEM_GATHER; }
sheaf_status plan_value_new(meta_plan *p, int32_t slot, sheaf_layout layout, int32_t *out);
sheaf_status plan_item_new(meta_plan *p, item_kind kind, int32_t node, int32_t out, plan_item **item);
/* An array in the arena, doubled when full; what it outgrows stays. False: out of memory. */
bool plan_grow(sheaf_arena *a, void **items, int32_t n, int32_t *capacity, size_t size);
size_t plan_payload(const meta_plan *p, const plan_value *v); /* bytes of the whole value */

#endif
