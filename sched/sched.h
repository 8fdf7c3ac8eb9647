/* The scheduler: places the nodes of a graph on an array of backends, cuts it into splits, plans their
 * memory and runs them.
 *
 * The array is the policy: earlier is preferred, the last must be a host CPU backend. Three stages:
 * *split* (assign and cut; no memory touched), *allocate* (places by the graph allocator), *compute*
 * (copies in, runs queued). Behaviour follows the five passes that docs/scheduler.md draws.
 *
 *     sheaf_sched_new(backends, n, &opts, &s);
 *     sheaf_sched_reserve(s, worst_case_graph);       // sizes memory once
 *     sheaf_sched_alloc(s, graph);                    // or nothing at all when the caller reuses the graph
 *     sheaf_sched_compute(s);  sheaf_sched_synchronize(s);
 *
 * The caller's graph is never edited: the scheduler works on headers of its own. Backends belong to the
 * caller. One thread at a time.
 */
#ifndef SHEAF_SCHED_SCHED_H
#define SHEAF_SCHED_SCHED_H

#include <stdio.h>

#include "backends/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_SCHED_MAX_BACKENDS = 16 };

typedef struct sheaf_sched sheaf_sched;

typedef struct sheaf_sched_options {
    int32_t offload_min_rows; /* rows from which a host weight's op may move to an accelerator; 0: never */
} sheaf_sched_options;

/* Why a node is where it is; kept for every node in every build. */
#define SHEAF_CAUSE_TABLE(X)                                                                                           \
    X(NONE, "-")                                                                                                       \
    X(USER, "usr")                                                                                                     \
    X(DST, "1.dst")                                                                                                    \
    X(VIEW_SRC, "1.vsrc")                                                                                              \
    X(INPUT, "1.inp")                                                                                                  \
    X(WEIGHT, "1.wgt")                                                                                                 \
    X(OFFLOAD, "1.off")                                                                                                \
    X(SWEEP_ACC, "2.acc")                                                                                              \
    X(SWEEP_ANY, "2.any")                                                                                              \
    X(UPGRADE, "3.upg")                                                                                                \
    X(BEST, "3.best")                                                                                                  \
    X(SRC_VIEW, "4.vsrc")                                                                                              \
    X(SRC_CUR, "4.cur")                                                                                                \
    X(ALIAS, "4.alias")
typedef enum sheaf_cause {
#define X(name, text) SHEAF_CAUSE_##name,
    SHEAF_CAUSE_TABLE(X)
#undef X
} sheaf_cause;
SHEAF_API const char *sheaf_cause_text(sheaf_cause c);

SHEAF_API sheaf_status sheaf_sched_new(sheaf_backend *const *backends, int n, const sheaf_sched_options *opts,
                                       sheaf_sched **out);
SHEAF_API void sheaf_sched_free(sheaf_sched *s);
/* Pins a node of the graph that is split next; survives all passes. */
SHEAF_API sheaf_status sheaf_sched_pin(sheaf_sched *s, const sheaf_tensor *t, int backend);
/* Split + plan for the worst case; memory only ever grows. Any number of graphs, any order. */
SHEAF_API sheaf_status sheaf_sched_reserve(sheaf_sched *s, sheaf_graph *g);
/* Split + allocate `g` (sealed; it and its arena must live until the next alloc or free): afterwards its inputs may be
 * set and its outputs read by sheaf_tensor_set/get on the caller's own headers. */
SHEAF_API sheaf_status sheaf_sched_alloc(sheaf_sched *s, sheaf_graph *g);
/* Queues one run of the graph that was allocated last. User inputs are copied before it returns.
 * May be called again and again without another alloc: that is the steady state; no allocation, no rebuild. */
SHEAF_API sheaf_status sheaf_sched_compute(sheaf_sched *s);
SHEAF_API sheaf_status sheaf_sched_synchronize(sheaf_sched *s);

/* Called for each node that `wants` says yes to, after it is computed; costs a synchronize each. Return
 * an error to stop. NULL removes it. Takes effect at the next alloc. */
typedef bool (*sheaf_eval_wants)(void *ctx, const sheaf_tensor *node);
typedef sheaf_status (*sheaf_eval_see)(void *ctx, const sheaf_tensor *node);
SHEAF_API void sheaf_sched_set_eval(sheaf_sched *s, sheaf_eval_wants wants, sheaf_eval_see see, void *ctx);

typedef struct sheaf_sched_stats {
    int32_t n_nodes, n_splits, n_copies; /* of the last split; copies: tensors that cross */
    uint64_t splits_made, allocs, reallocs, unexplained_reallocs, computes;
    size_t compute_bytes[SHEAF_SCHED_MAX_BACKENDS]; /* by backend */
} sheaf_sched_stats;
SHEAF_API sheaf_sched_stats sheaf_sched_get_stats(const sheaf_sched *s);
/* Splits with their inputs; level 2: every node with backend and cause. */
SHEAF_API sheaf_status sheaf_sched_print(const sheaf_sched *s, int level, FILE *out);
SHEAF_API int sheaf_sched_backend_of(const sheaf_sched *s, const sheaf_tensor *t,
                                     sheaf_cause *cause); /* of the last split; -1 */
/* The prepared object of the last split graph's split i (for `sheaf graph`): NULL past the end. */
SHEAF_API const sheaf_prepared *sheaf_sched_prepared(const sheaf_sched *s, int i, sheaf_backend **backend);

#ifdef __cplusplus
}
#endif
#endif
