/* The meta device: N devices as one, and the plans it compiles.
 *
 * Nouns: a *meta device* (a device like any other, whose members do the work), a *plan* (what was
 * compiled from one graph: per-device shard graphs and a list of steps; immutable, in one arena, no
 * address in it) and a *step* (run a piece, a collective, a copy). Members belong to the registry, the
 * meta device to whoever made it; it must outlive its buffers and backends. Backends of one meta device may run from
 * a thread each; two meta devices that share members are one thread's.
 *
 *     sheaf_meta_new(members, n_local, world, &dev);
 *     sheaf_meta_set_policy(dev, layout_of, model);            // static tensors: weights and state
 *     sheaf_backend_new(dev, &be);                             // owns queues, communicator, workspaces, plan cache
 *     sheaf_backend_prepare(be, graph, &prep);                 // compiles a plan, or finds it
 *     sheaf_plan_print(sheaf_meta_plan(prep), SHEAF_PLAN_EXPLAIN, stdout);
 *
 * Under mpirun the world has more devices than this process: layouts and plans are of the whole world,
 * buffers and workspaces hold the local members' shards. A tensor that the host reads (an OUTPUT) is
 * then gathered by a visible step, because no process holds it whole.
 */
#ifndef SHEAF_META_META_H
#define SHEAF_META_META_H

#include <stdio.h>

#include "backends/backend.h"
#include "collectives/comm.h"
#include "splitstate/splitstate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layout of a static tensor (a leaf placed in a meta buffer of usage WEIGHTS or STATE), in arena `a`. */
typedef sheaf_status (*sheaf_meta_policy)(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out);

/* `name` as printed, e.g. "cpu/2". The members' order is world order. */
SHEAF_API sheaf_status sheaf_meta_new(const char *name, sheaf_device *const *members, int n_local, sheaf_world *world,
                                      sheaf_device **out);
SHEAF_API void sheaf_meta_free(sheaf_device *meta);
SHEAF_API bool sheaf_meta_is(const sheaf_device *d);
SHEAF_API void sheaf_meta_set_policy(sheaf_device *meta, sheaf_meta_policy fn, void *ctx);
/* Shares of what is cut, by world device; until then all are equal. Usable memory is that of the member which its
 * share fills first. */
SHEAF_API void sheaf_meta_set_shares(sheaf_device *meta, const float *of_world);
SHEAF_API int sheaf_meta_world_devices(const sheaf_device *meta); /* of the world */
SHEAF_API int sheaf_meta_first(const sheaf_device *meta);         /* world number of local member 0 */

/* Layout and local shard (a header with data on member i) of a tensor placed in a meta buffer. */
SHEAF_API const sheaf_layout *sheaf_meta_layout(const sheaf_tensor *t);
SHEAF_API sheaf_tensor *sheaf_meta_shard(const sheaf_tensor *t, int i);
/* Writes only member i's bytes of a tensor: [offset, +size) of its *shard* (the loader reads slices straight
 * to their device). */
SHEAF_API sheaf_status sheaf_meta_shard_set(sheaf_tensor *t, int i, const void *src, size_t offset, size_t size);

/* Bytes allocated on local member i by usage, now. */
SHEAF_API size_t sheaf_meta_bytes(const sheaf_device *meta, int i, sheaf_usage usage);

/* --- plans ------------------------------------------------------------------------------------------- */

typedef struct sheaf_plan sheaf_plan;

/* A meta backend's prepared object is a plan with its bindings. */
SHEAF_API const sheaf_plan *sheaf_meta_plan(const sheaf_prepared *p);

typedef struct sheaf_plan_collective {
    const char
        *tensor; /* the PARTIAL or cut tensor; if that has no name, what it becomes; "" if that has none either */
    sheaf_comm_kind kind;
    int64_t row, rows;
    size_t bytes; /* payload per device */
    bool fused_add, fused_norm;
    const char *reason; /* the rule that asked for it, the engine, and why that one */
} sheaf_plan_collective;

typedef struct sheaf_plan_reshard {
    const char *tensor, *node; /* what was re-laid, and for whom */
    sheaf_op op;
    sheaf_layout from, to;
    size_t bytes;
    const char *rule;
} sheaf_plan_reshard;

typedef struct sheaf_plan_info {
    int32_t n_nodes, n_pieces, n_steps;
    const sheaf_plan_collective *collectives;
    int32_t n_collectives;
    const sheaf_plan_reshard *reshards;
    int32_t n_reshards;
    const size_t *compute_bytes; /* [n_local] workspace of each member, scratch included */
    const size_t *staging_bytes; /* [n_local] */
    double compile_us;
    uint64_t hash; /* of everything that ranks must agree on */
} sheaf_plan_info;
SHEAF_API sheaf_plan_info sheaf_plan_get_info(const sheaf_plan *p);

typedef enum sheaf_plan_format { SHEAF_PLAN_STEPS, SHEAF_PLAN_EXPLAIN, SHEAF_PLAN_DOT } sheaf_plan_format;
SHEAF_API sheaf_status sheaf_plan_print(const sheaf_plan *p, sheaf_plan_format format, FILE *out);
/* Every rule of a plan: each PARTIAL is summed once before it is read, every slot written before read,
 * steps in the same order on all devices, places inside the workspace. (That no two live overlap is checked
 * while memory is planned.) */
SHEAF_API sheaf_status sheaf_plan_check(const sheaf_plan *p);

/* Any reshard in a plan that this backend compiles from now on is SHEAF_E_MISMATCH, naming node, op, shapes,
 * layouts, rule. */
SHEAF_API void sheaf_meta_set_strict(sheaf_backend *meta_backend, bool strict);

/* Time spent by local member i since the backend was made or last asked with reset. */
typedef struct sheaf_member_times {
    uint64_t compute_ns, wait_ns, reduce_ns;
} sheaf_member_times;
SHEAF_API sheaf_member_times sheaf_meta_times(sheaf_backend *meta_backend, int i, bool reset);

typedef struct sheaf_plan_cache_stats {
    uint64_t hits, compiles, evictions;
    size_t bytes;
    int32_t plans;
} sheaf_plan_cache_stats;
SHEAF_API sheaf_plan_cache_stats sheaf_meta_cache_stats(sheaf_backend *meta_backend);

#ifdef __cplusplus
}
#endif
#endif
