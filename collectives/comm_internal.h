/* What the engines share: the communicator, a compiled op, and one run of it by one thread of a team.
 *
 * Life of a post: the posting thread fills one of the op's post slots and puts it on the device's
 * queue (post.c); every thread of the device's team then calls its engine's `run` (through run.c), which
 * meets the other members through run_meet, and works on its slice.
 *
 * Invariants
 * 1. A post's position is fixed when it is posted: `base` counts the meetings that all earlier posts of
 *    the communicator hold. All members post the same, so they agree without a word.
 * 2. Every thread of a team passes the same number of team barriers, whatever its status. Meetings
 *    freeze when they break (meet.h), so all threads of all members see the same outcome of each.
 * 3. A failure is written (comm_fail) before anything breaks, and stays until reset.
 * 4. What a member lends others (addends, post slots) stays as it is until it has passed a later meeting:
 *    then everybody has left the one in which it was read.
 */
#ifndef SHEAF_COLLECTIVES_COMM_INTERNAL_H
#define SHEAF_COLLECTIVES_COMM_INTERNAL_H

#include "collectives/comm.h"
#include "collectives/meet.h"
#include "collectives/sum.h"
#include "collectives/world_internal.h"

enum { MAX_DEVICES = CANON_MAX_DEVICES, POST_SLOTS = 8 }; /* > SHEAF_COMM_IN_FLIGHT + 1, a power of two */

typedef struct run run;

typedef struct engine {
    sheaf_engine_info info;
    /* NULL when it can serve the op, else why not. */
    const char *(*refuses)(const sheaf_comm *c, const sheaf_comm_desc *d);
    sheaf_status (*compile)(sheaf_comm_op *op); /* NULL: nothing to do */
    void (*op_free)(sheaf_comm_op *op);         /* NULL: nothing to do */
    /* Meetings that one post of `rows` holds. */
    int64_t (*meetings)(const sheaf_comm_op *op, int64_t rows);
    sheaf_status (*run)(run *r);
} engine;

extern const engine shm_engine, peer_engine, ring_engine, mpi_engine, hier_engine;

/* The default engine of `d`, or the pinned one: SHEAF_E_ARGUMENT when that cannot serve. */
sheaf_status engine_choose(const sheaf_comm *c, const sheaf_comm_desc *d, const char *pin, const engine **out,
                           char *reason, size_t n);
/* SHEAF_E_ARGUMENT unless `pin` is "" or a row of the table. */
sheaf_status engine_pin_check(const char *pin);

typedef struct comm_post {
    sheaf_comm_op *op;
    int32_t i;     /* local device */
    uint64_t base; /* meetings before this post (invariant 1) */
    uint64_t pair; /* SEND, RECV: number of the message in its direction */
    sheaf_comm_args args;
} comm_post;

/* One local device. */
typedef struct member {
    sheaf_comm *comm;
    sheaf_device *device;
    void (*rms_norm)(float *out, const float *x, const float *weight, int64_t n, float eps);
    /* NULL: the device lends none */
    void (*sum_f64)(float *out, const double *x, const double *y, const float *residual, int64_t n);
    int32_t number; /* world device */
    char *staging;  /* two slots */
    /* the posting thread's */
    uint64_t meetings; /* posted so far */
    int last_slot;     /* staging slot of the last post, -1: none */
    uint64_t sent[MAX_DEVICES], received[MAX_DEVICES];
    /* the team's */
    alignas(64) _Atomic uint64_t arrived; /* meetings, so that the missing one can be named */
    _Atomic uint64_t posts, bytes, wait_ns, reduce_ns;
} member;

/* Messages from one local device to another: odd counts are published, even ones taken. */
typedef struct channel {
    meet meet;
    const void *bytes;
    size_t size;
} channel;

typedef enum fail_state { FAIL_NONE, FAIL_WRITING, FAIL_WRITTEN } fail_state;

struct sheaf_comm {
    meet meet;
    alignas(64) atomic_int failing; /* fail_state */
    sheaf_error_box failure;
    sheaf_world *world;
    struct link *link; /* to the other ranks; NULL in a world of one */
    int n_local, n_world, first;
    int n_ranks, rank;
    int rank_first[MAX_DEVICES + 1]; /* first device of each rank */
    meet_pace pace;
    int64_t timeout_ns;
    size_t staging_bytes;
    char pin[16];
    member *members;
    channel *channels; /* [from * n_local + to] */
    sheaf_comm_op *ops;
    struct hier_block *blocks; /* hier: staging between ranks, newest first */
};

typedef struct op_member {
    uint64_t posted;                   /* the posting thread's */
    alignas(64) _Atomic uint64_t done; /* the team's */
} op_member;

struct sheaf_comm_op {
    sheaf_comm *comm;
    sheaf_comm_op *prev, *next;
    const engine *engine;
    char reason[160];
    sheaf_comm_desc d; /* arrays and name are the op's own */
    const sum_kind *kind;
    size_t element;        /* bytes of an element of `in` */
    canon_program program; /* over the world's devices */
    comm_post *posts;      /* [n_local][POST_SLOTS] */
    op_member *members;    /* [n_local] */
    void *engine_data;
};

/* One thread's view of one post. */
struct run {
    sheaf_comm *c;
    sheaf_comm_op *op;
    const comm_post *post;
    member *m;
    sheaf_queue *q;
    int i, n;         /* this thread of its team */
    uint64_t meeting; /* next one */
    int64_t waited;   /* ns in meetings, thread 0 */
};

/* The team meets (so its stage is done), then all members do. On failure this thread's error text is the
 * communicator's. `grace_ns` is added to the timeout: who waits for a rank that waits for another lets that
 * one name the culprit. */
sheaf_status run_meet(run *r, int64_t grace_ns);
/* The first meeting of a post that has done nothing yet: a queue starts a call on no thread before all
 * have ended what was before, so the team need not meet again. */
sheaf_status run_enter(run *r);
/* Waits for `target` on a channel's meeting. */
sheaf_status run_wait_channel(run *r, meet *m, uint64_t target, int peer);
/* Team barrier. */
void run_barrier(run *r);
/* Another local member's arguments of the same post. */
const sheaf_comm_args *run_args_of(const run *r, int other);
/* [*from, *to): part `i` of `n` of [0, total), borders at multiples of `align`. */
void run_slice(int64_t total, int i, int n, int64_t align, int64_t *from, int64_t *to);

/* Keeps the first failure, tells the other ranks (`tell`), breaks all meetings. Text is this thread's.
 * Returns the failure kept, made this thread's error. Any thread. */
sheaf_status comm_fail(sheaf_comm *c, sheaf_status s, bool tell);
/* The failure kept, as this thread's error; SHEAF_OK if none. */
sheaf_status comm_failure(sheaf_comm *c);
/* "device 3 (cpu/5.3)", or "device 3 (rank 1)" for one of another process. */
const char *comm_device_name(const sheaf_comm *c, int device, char *buf, size_t n);
int comm_rank_of(const sheaf_comm *c, int device);
/* A failure that another rank told: comm_fail without telling it on. */
void comm_link_failed(void *comm, sheaf_status s);
/* The queue function of every collective: `post` (comm_post) by thread i of n of a device's team. */
sheaf_status comm_run_post(void *post, int i, int n, sheaf_queue *q);
/* Zeroed, and on cache lines of its own, as words that members share must be. NULL: no memory. sheaf_free. */
void *comm_zeros(size_t bytes);

/* --- reduce.c: what a team does with finished meetings --- */

/* Sums rows [row0, row0 + rows) into this member's out with the op's epilogue; this thread's slice of them.
 * leaf[k] starts at row leaf_row0. Holds at most one team barrier. */
void reduce_rows(run *r, const canon_program *p, const void *const *leaf, bool from_acc, int64_t leaf_row0,
                 int64_t row0, int64_t rows);
/* The same for whole rows [row0, row0 + rows) alone, on this thread. */
void reduce_own_rows(run *r, const canon_program *p, const void *const *leaf, bool from_acc, int64_t leaf_row0,
                     int64_t row0, int64_t rows);
/* Copies this thread's slice of rows of gathered pieces whose source is device [d0, d1): from[d] is device d's compact
 * shard of rows [row0, row0 + rows). */
void gather_rows(run *r, const void *const *from, int64_t row0, int64_t rows);
/* This thread's slice of a plain copy. */
void copy_slice(run *r, void *to, const void *from, size_t bytes);
/* hier.c: frees the communicator's staging between ranks. */
void hier_blocks_free(sheaf_comm *c);
/* Sends and receives between devices of this process (shm/pair.c). */
sheaf_status pair_run(run *r);

#endif
