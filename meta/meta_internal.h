/* The meta device's own structs: device, buffer, backend, and what is bound to a plan.
 *
 *     meta_device   members, policy, bytes by usage
 *     meta_buffer   a reserved range of addresses; static tensors have shards in members' buffers, tensors
 *                   that cross the border of a plan have them in *io* objects
 *     meta_backend  a backend, a queue and a workspace per member, one communicator, the plan cache
 *     meta_prepared a plan and, per member and piece, the addresses it runs on
 */
#ifndef SHEAF_META_META_INTERNAL_H
#define SHEAF_META_META_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "meta/meta.h"

enum { META_USAGES = SHEAF_USAGE_COMPUTE + 1, META_MAX_CHUNKS = 16 };

typedef struct meta_device {
    sheaf_device base;
    sheaf_buffer_type type;
    sheaf_world *world;
    sheaf_device **members;
    int n_local, n_world, first;
    sheaf_meta_policy policy;
    void *policy_ctx;
    double share[SHEAF_MAX_DEVICES]; /* [n_local] of what is cut */
    _Atomic size_t *bytes;           /* [n_local][META_USAGES] */
    pthread_mutex_t posting;         /* held while a run is posted: see exec.c */
} meta_device;

static inline meta_device *meta_of(const sheaf_device *d) { return (meta_device *)d; }
void meta_count_bytes(meta_device *m, int member, sheaf_usage usage, ptrdiff_t change);

/* What a tensor's ext points at: its layout and a header per local member, placed in a buffer of that
 * member. Shards of a member that holds nothing have no data and a zero in their shape. */
typedef struct meta_ext {
    const meta_device *device;
    sheaf_layout layout;
    sheaf_tensor *shards; /* [n_local] */
} meta_ext;

/* Shard headers of a tensor (type, ne) cut as `layout`, in `a`; not placed. */
sheaf_status meta_ext_new(const meta_device *m, sheaf_arena *a, const sheaf_tensor *t, const sheaf_layout *layout,
                          meta_ext **out);
/* A member's buffer for one shard, placed there. *out NULL where the shard is empty. */
sheaf_status meta_shard_alloc(meta_device *m, int member, sheaf_tensor *shard, sheaf_usage usage, sheaf_buffer **out);
void meta_shard_free(meta_device *m, int member, sheaf_usage usage, sheaf_buffer *b);

/* Memory of a tensor that crosses a plan's border. The scheduler gave it a range of the meta buffer; while
 * that range, its shape and its layout stay the same, so do its bytes. Counted: by the buffer that keeps
 * it for the next binding, and by each binding that uses it. */
typedef struct meta_io {
    struct meta_io *next; /* in the buffer */
    meta_device *device;
    int refs;
    size_t begin, end;
    sheaf_arena *arena;
    meta_ext *ext;
    sheaf_buffer **parts; /* [n_local] */
} meta_io;
sheaf_status meta_io_bind(sheaf_buffer *b, sheaf_tensor *t, const sheaf_layout *layout, meta_io **out);
void meta_io_release(meta_io *io);

extern const sheaf_buffer_type_iface meta_buffer_type_iface;
bool meta_is_buffer(const sheaf_buffer *b);

/* --- backend --- */

typedef struct meta_plan meta_plan; /* plan_internal.h */

typedef struct workspace {
    sheaf_buffer *chunks[META_MAX_CHUNKS];
    int n_chunks;
    sheaf_buffer *scratch;
} workspace;

typedef struct meta_member {
    sheaf_backend *backend;
    workspace work;
    int64_t begun_ns;         /* the member's team: when the run that is on began */
    _Atomic uint64_t busy_ns; /* from the begin to the end of runs, collectives included */
    sheaf_member_times taken; /* what was handed out at the last reset */
} meta_member;

typedef struct meta_backend {
    sheaf_backend base;
    meta_device *device;
    meta_member *members; /* [n_local] */
    sheaf_comm *comm;
    size_t staging_bytes; /* what the communicator has reserved */
    uint64_t generation;  /* grows when a workspace or the staging moves */
    struct plan_cache *cache;
    bool strict; /* a reshard is an error */
    bool failed; /* a run failed: the communicator is reset at the next synchronize */
} meta_backend;

sheaf_status meta_backend_create(sheaf_device *d, sheaf_backend **out);

/* --- plan cache (cache.c): by what a graph is, bounded, least recently used goes first --- */

typedef struct plan_cache plan_cache;
sheaf_status plan_cache_new(plan_cache **out);
void plan_cache_free(plan_cache *c);
meta_plan *plan_cache_find(plan_cache *c, const meta_backend *b, const sheaf_graph *g); /* NULL: none fits */
void plan_cache_put(plan_cache *c, meta_plan *p);
sheaf_plan_cache_stats plan_cache_stats(const plan_cache *c);

/* --- what a plan runs on (exec.c) --- */

typedef struct meta_prepared {
    meta_backend *backend;
    meta_plan *plan;
    meta_io **io; /* [plan's crossings], NULL until bound */
    int n_io;
    void **fixed;        /* [n_local][n_values]: addresses of static shards and crossings, by value */
    void ***addr;        /* [2 parities][n_local][n_pieces] -> addresses by slot of the piece graph */
    void **pool;         /* what they point into */
    uint64_t generation; /* of the addresses */
    bool bound;
} meta_prepared;

sheaf_status meta_prepared_new(meta_backend *b, meta_plan *p, meta_prepared **out);
void meta_prepared_free(meta_prepared *p);
void meta_prepared_discard(meta_prepared *p); /* one that a plan has kept; NULL: nothing */
sheaf_status meta_prepared_bind(meta_prepared *p, const sheaf_graph *g);
sheaf_status meta_prepared_run(meta_prepared *p);

#endif
