/* Members of one process read each other's memory where it is.
 *
 * One-shot (small): everybody arrives, then everybody adds up all addends for itself. Nothing is written
 * that another reads, so a staged op needs this one meeting; its slot is free after the next.
 *
 *     device 0   in0 ==meet== out = in0 + in1 + in2
 *     device 1   in1 ==meet== out = in0 + in1 + in2      each reads N addends
 *     device 2   in2 ==meet== out = in0 + in1 + in2
 *
 * Two-shot (large): member m adds up the m-th part of the rows, with the epilogue, into its own result; when all
 * parts are there everybody copies those of the others. Storing into the others' results instead would save a meeting,
 * but each line would then cross twice: to be owned by who stores it, and back to be read.
 *
 *     device 0   in0 ==meet== part 0 -> out 0 ==meet== parts 1, 2 -> out 0 ==meet==
 *     device 1   in1 ==meet== part 1 -> out 1 ==meet== parts 0, 2 -> out 1 ==meet==     each reads 1/N of N addends
 *     device 2   in2 ==meet== part 2 -> out 2 ==meet== parts 0, 1 -> out 2 ==meet==
 *
 * Gather and broadcast are pulled: meet, copy what is mine to have, meet. */
#include "collectives/comm_internal.h"

#include <string.h>

/* Above this many bytes of one device's addends, adding them N times costs more than a second meeting
 * (tests/bench/bench_collectives). */
enum { TWO_SHOT_BYTES = 128 * 1024 };

static bool is_two_shot(const sheaf_comm_op *op, int64_t rows) {
    int n = op->comm->n_local;
    return n > 1 && rows >= n && (size_t)(rows * op->d.row) * op->element > TWO_SHOT_BYTES;
}

static int64_t meetings(const sheaf_comm_op *op, int64_t rows) {
    switch (op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return is_two_shot(op, rows) ? 3 : op->d.staged ? 1 : 2;
    case SHEAF_COMM_BARRIER: return 1;
    case SHEAF_COMM_ALLGATHER:
    case SHEAF_COMM_BROADCAST: return 2;
    case SHEAF_COMM_SEND:
    case SHEAF_COMM_RECV: return 0;
    }
    return 0;
}

static void inputs(run *r, const void **in) {
    for (int k = 0; k < r->c->n_local; k++) in[k] = run_args_of(r, k)->in;
}

/* Rows [row, row + rows) of another member's results into ours. */
static void pull_rows(run *r, const sheaf_comm_args *other, int64_t row, int64_t rows) {
    const sheaf_comm_args *a = &r->post->args;
    int64_t n = r->op->d.row;
    size_t b = r->op->kind->out_bytes, at = (size_t)(row * n), count = (size_t)(rows * n);
    memcpy((char *)a->out + at * b, (const char *)other->out + at * b, count * b);
    if (r->op->d.epilogue.norm) memcpy((float *)a->norm_out + at, (const float *)other->norm_out + at, count * 4);
}

/* Asks for what the sum of a row will read from other caches, while the row before it is summed. */
static void expect_row(const run *r, const void *const *in, int64_t row) {
    size_t bytes = (size_t)r->op->d.row * r->op->kind->in_bytes;
    for (int k = 0; k < r->c->n_local; k++) {
        for (size_t at = 0; at < bytes && in[k]; at += 64)
            __builtin_prefetch((const char *)in[k] + (size_t)row * bytes + at, 0, 3);
    }
}

/* This thread's rows of member k's part. */
static void part_of(const run *r, int k, int64_t *from, int64_t *to) {
    int64_t first, last;
    run_slice(r->post->args.rows, k, r->c->n_local, 1, &first, &last);
    run_slice(last - first, r->i, r->n, 1, from, to);
    *from += first;
    *to += first;
}

static sheaf_status two_shot(run *r) {
    const void *in[MAX_DEVICES];
    int64_t from, to;
    sheaf_status s = run_enter(r);
    if (s) return s;
    inputs(r, in);
    part_of(r, r->post->i, &from, &to);
    for (int64_t row = from; row < to; row++) {
        if (row + 1 < to) expect_row(r, in, row + 1);
        reduce_own_rows(r, &r->op->program, in, false, 0, row, 1);
    }
    s = run_meet(r, 0);
    if (s) return s;
    for (int k = 0; k < r->c->n_local; k++) {
        if (k == r->post->i) continue;
        part_of(r, k, &from, &to);
        pull_rows(r, run_args_of(r, k), from, to - from);
    }
    return run_meet(r, 0);
}

static sheaf_status one_shot(run *r) {
    const void *in[MAX_DEVICES];
    sheaf_status s = run_enter(r);
    if (s) return s;
    inputs(r, in);
    reduce_rows(r, &r->op->program, in, false, 0, 0, r->post->args.rows);
    return r->op->d.staged ? SHEAF_OK : run_meet(r, 0);
}

static sheaf_status gather(run *r) {
    const void *in[MAX_DEVICES];
    sheaf_status s = run_enter(r);
    if (s) return s;
    inputs(r, in);
    gather_rows(r, in, 0, r->post->args.rows);
    return run_meet(r, 0);
}

static sheaf_status broadcast(run *r) {
    sheaf_status s = run_enter(r);
    if (s) return s;
    const sheaf_comm_args *a = &r->post->args;
    size_t bytes = (size_t)(a->rows * r->op->d.row) * r->op->element;
    if (bytes) copy_slice(r, a->out, run_args_of(r, r->op->d.root)->in, bytes);
    return run_meet(r, 0);
}

static sheaf_status run_shm(run *r) {
    switch (r->op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return is_two_shot(r->op, r->post->args.rows) ? two_shot(r) : one_shot(r);
    case SHEAF_COMM_ALLGATHER: return gather(r);
    case SHEAF_COMM_BROADCAST: return broadcast(r);
    case SHEAF_COMM_SEND:
    case SHEAF_COMM_RECV: return pair_run(r);
    case SHEAF_COMM_BARRIER: return run_enter(r);
    }
    return sheaf_fail(SHEAF_E_INTERNAL, "'%s': kind %d", r->op->d.name, (int)r->op->d.kind);
}

static const char *refuses(const sheaf_comm *c, const sheaf_comm_desc *d) {
    (void)d;
    return c->n_ranks > 1 ? "devices live in several processes" : NULL;
}

const engine shm_engine = {
    .info = {"shm", "members of one process read each other's addends: one-shot small, two-shot large", true},
    .refuses = refuses,
    .meetings = meetings,
    .run = run_shm,
};
