/* Collectives between the devices of a world: one interface, several engines.
 *
 * Nouns: a *world* (this process's place among P processes, alone or under mpirun), a *communicator*
 * (the devices that meet; a context owns its own), an *op* (one collective of a plan, compiled once)
 * and a *post* (one run of an op by one local device, in that device's queue order).
 *
 * Every member device posts the same ops in the same order. A post returns at once; the work waits in
 * the queue for the peers. An op that does not complete within the communicator's timeout fails on every
 * member with SHEAF_E_TIMEOUT or _E_PEER, naming the missing device or rank; the failure is kept by
 * the queue like any other.
 *
 *     sheaf_comm_new(world, devices, n_local, &comm);
 *     sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = n_embd, .max_rows = 512};
 *     sheaf_comm_compile(comm, &d, &op);
 *     // each token, each local device i:
 *     sheaf_comm_args a = {.in = partial[i], .out = sum[i], .rows = n_tokens};
 *     sheaf_comm_post(op, i, queue[i], &a);
 *
 * The order of addition is the canonical one: a tree over world device numbers (docs/collectives.md), the
 * same in every engine that declares `exact`; sums of F64 addends are rounded to F32 once.
 */
#ifndef SHEAF_COLLECTIVES_COMM_H
#define SHEAF_COLLECTIVES_COMM_H

#include "backends/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- the world ------------------------------------------------------------------------------------ */

typedef struct sheaf_world sheaf_world; /* NULL is a world of one process everywhere below */

/* Alone (size 1) unless a launcher's environment says otherwise; then libsheaf-mpi.so is loaded from
 * beside the library (ABI version checked) and MPI initialised (MPI calls are made by one thread at a time). */
SHEAF_API sheaf_status sheaf_world_open(sheaf_world **out);
SHEAF_API void sheaf_world_close(sheaf_world *w); /* finalises MPI; collective over ranks when no rank failed */
SHEAF_API int sheaf_world_rank(const sheaf_world *w);
SHEAF_API int sheaf_world_size(const sheaf_world *w);
SHEAF_API int sheaf_world_host_rank(const sheaf_world *w); /* among the ranks of this host (MPI_COMM_TYPE_SHARED) */
SHEAF_API int sheaf_world_host_size(const sheaf_world *w);
/* Host-side, blocking, main thread: rank 0's bytes to all; all ranks' `n` bytes to all; a barrier. */
SHEAF_API sheaf_status sheaf_world_broadcast(sheaf_world *w, void *bytes, size_t n);
SHEAF_API sheaf_status sheaf_world_allgather(sheaf_world *w, const void *mine, size_t n, void *all);
SHEAF_API sheaf_status sheaf_world_barrier(sheaf_world *w);
/* Ends the whole job after a failure here (text: this thread's): the others' waits end with SHEAF_E_PEER naming
 * this rank and its text. Then close the world and exit; ranks that are left part in good order. */
SHEAF_API void sheaf_world_abandon(sheaf_world *w, sheaf_status why);
/* `stop` is asked, on ranks other than 0, while they wait for rank 0's next broadcast, for which there is no limit of
 * time: true ends the wait with SHEAF_E_CANCELLED. NULL: never. Set before the first broadcast. */
SHEAF_API void sheaf_world_set_stop(sheaf_world *w, bool (*stop)(void *ctx), void *ctx);
SHEAF_API bool sheaf_world_stopped(const sheaf_world *w);

/* --- communicators ----------------------------------------------------------------------------------- */

typedef struct sheaf_comm sheaf_comm;
typedef struct sheaf_comm_op sheaf_comm_op;

typedef enum sheaf_comm_kind {
    SHEAF_COMM_ALLREDUCE, /* out = sum over devices of in */
    SHEAF_COMM_ALLGATHER, /* every device's pieces to all; shares uneven, some empty */
    SHEAF_COMM_BROADCAST,
    SHEAF_COMM_SEND, /* posted by one device only, as its RECV is by the peer; matched in order per pair */
    SHEAF_COMM_RECV,
    SHEAF_COMM_BARRIER,
} sheaf_comm_kind;

/* Work done on each row of a finished allreduce while it is still in cache: out = sum + residual, and
 * norm_out = rms_norm(out) * weight. Only F32 results. */
typedef struct sheaf_comm_epilogue {
    bool add, norm;
    float eps;
} sheaf_comm_epilogue;

/* ALLGATHER: piece p of the row (elements [at[p], at[p] + length[p]) of each row) comes from world device
 * from[p] and lies at src_at[p] in that device's compact row of share[device] elements. */
typedef struct sheaf_gather_piece {
    int64_t at, length, src_at;
    int32_t from;
} sheaf_gather_piece;

typedef struct sheaf_comm_desc {
    sheaf_comm_kind kind;
    sheaf_type type;  /* of the addends or elements: F64, F32, F16, BF16, I32; an F64 allreduce gives F32 */
    int64_t row;      /* elements of one row (token) of the result */
    int64_t max_rows; /* worst case; a post may have fewer */
    int32_t root;     /* BROADCAST: world device; SEND/RECV: the peer */
    const sheaf_gather_piece *pieces;
    int32_t n_pieces;     /* ALLGATHER; copied */
    const int64_t *share; /* ALLGATHER: elements per row on each world device; copied */
    sheaf_comm_epilogue epilogue;
    uint64_t empty;   /* world devices whose addend is not computed: they contribute true zeros */
    bool staged;      /* ALLREDUCE: every post's `in` is one of sheaf_comm_staging's slots: one meeting less */
    const char *name; /* tensor, for reports; copied */
} sheaf_comm_desc;

typedef struct sheaf_comm_args {
    const void *in; /* this device's addend or compact shard; NULL if it contributes nothing */
    void *out;      /* overlaps no device's `in`; may be `residual` itself */
    int64_t rows;
    const void *residual;    /* epilogue.add: F32, same shape as out */
    const void *norm_weight; /* epilogue.norm: F32 {row} */
    void *norm_out;
} sheaf_comm_args;

/* `devices` are this process's members in world order; world device numbers are the concatenation of
 * the ranks' lists. Collective over ranks. The engine comes from topology, size and type (setting
 * SHEAF_ALLREDUCE pins one); the choice and its reason can be asked. */
SHEAF_API sheaf_status sheaf_comm_new(sheaf_world *w, sheaf_device *const *devices, int n_local, sheaf_comm **out);
SHEAF_API void sheaf_comm_free(sheaf_comm *c);
SHEAF_API int sheaf_comm_devices(const sheaf_comm *c); /* of the world */
SHEAF_API int sheaf_comm_first(const sheaf_comm *c);   /* world number of local device 0 */

/* Memory that the engine likes addends to lie in (the shared segment): two slots a device, used in
 * turn, because a peer may still read slot k while slot k^1 is written; after the next collective of
 * this communicator completes, slot k is free again. So two staged posts that follow each other use
 * different slots, also from the end of one run of a plan to the start of the next (any op that is not
 * staged between them frees both); a post that breaks this is SHEAF_E_ARGUMENT. Grows to `bytes`
 * (SHEAF_E_NO_MEMORY/_NO_SPACE); call before posting, when nothing is in flight. */
SHEAF_API sheaf_status sheaf_comm_reserve_staging(sheaf_comm *c, size_t bytes);
SHEAF_API void *sheaf_comm_staging(const sheaf_comm *c, int i, int slot);
/* The slot that the next staged post must use, or may if both are free. Between runs: when all local members
 * have been posted to alike. */
SHEAF_API int sheaf_comm_next_slot(const sheaf_comm *c);

SHEAF_API sheaf_status sheaf_comm_compile(sheaf_comm *c, const sheaf_comm_desc *d, sheaf_comm_op **out);
SHEAF_API void sheaf_comm_op_free(sheaf_comm_op *op);
/* `args` is copied into the op's slot for device i. At most SHEAF_COMM_IN_FLIGHT posts of one op by one device
 * wait or run at a time (beyond: SHEAF_E_RANGE). One thread posts. No allocation, no lock. */
enum { SHEAF_COMM_IN_FLIGHT = 4 };
SHEAF_API sheaf_status sheaf_comm_post(sheaf_comm_op *op, int i, sheaf_queue *q, const sheaf_comm_args *args);
/* Posts of local device i come through q: when q fails, or skips what follows a failure, every other
 * member fails at once naming device i, instead of after the timeout. Call while q is idle. */
SHEAF_API void sheaf_comm_attach(sheaf_comm *c, int i, sheaf_queue *q);
/* Makes every waiting and later post fail with SHEAF_E_CANCELLED until _reset; any thread. */
SHEAF_API void sheaf_comm_cancel(sheaf_comm *c);
/* Forgets a failure. Nothing in flight; collective over ranks. */
SHEAF_API sheaf_status sheaf_comm_reset(sheaf_comm *c);

typedef struct sheaf_comm_stats {
    uint64_t posts, bytes, wait_ns, reduce_ns;
} sheaf_comm_stats;
SHEAF_API sheaf_comm_stats sheaf_comm_stats_of(const sheaf_comm *c, int i);

/* --- engines ------------------------------------------------------------------------------------------ */

/* Listed in one table (engines.c): name, what it needs, does it keep the canonical order. */
typedef struct sheaf_engine_info {
    const char *name, *description;
    bool exact;
} sheaf_engine_info;
SHEAF_API bool sheaf_engine_row(int i, sheaf_engine_info *out);
/* The engine that serves this op, and why it was chosen. */
SHEAF_API const char *sheaf_comm_op_engine(const sheaf_comm_op *op, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
