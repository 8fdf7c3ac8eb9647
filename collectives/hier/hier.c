/* Between processes: add up inside, exchange between the ranks' leaders, finish inside.
 *
 *     rank 0: devices 0 1 2                      rank 1: devices 3 4
 *       all members meet: addends are readable     all members meet
 *       leader adds the canonical tree's nodes     leader: 3, 4
 *       that lie here: (0+1) 2
 *       leaders exchange nodes  <---- MPI ---->  leaders exchange nodes
 *       all members meet: nodes are readable       all members meet
 *       each adds ((0+1) + (2+3)) + 4 ...          each adds the same
 *
 * (With five devices leaves are (0+1) 2 3 4, the tree ((0+1)+2) + (3+4); rank 0 passes on one node, ((0+1)+2), rank 1
 * (3+4).) A sum that is not a node of the tree is never formed, so the bits do not depend on which process holds which
 * device. Every rank receives all nodes and finishes by itself: one message each way, which is what a token's small
 * sums want; large ones go in chunks of rows, so that staging stays small.
 *
 * The leader is local device 0, and its team's thread 0 speaks to MPI (world.c says why there is no progress
 * thread). Staging needs no second half: it is written between two meetings and read after the second, and
 * the next write comes after one more. */
#include "collectives/comm_internal.h"

#include <string.h>

enum { CHUNK_BYTES = 1 << 20, TAG_MASK = 0x3fff };

/* Memory where other ranks' bytes land; shared by the ops of a communicator. Grown ones stay: compiled
 * ops point at them. */
typedef struct hier_block {
    struct hier_block *next;
    size_t bytes;
    char *base;
} hier_block;

typedef struct hier_plan {
    int n_nodes;
    canon_node nodes[MAX_DEVICES]; /* of all ranks, in device order */
    int rank_node[MAX_DEVICES + 1];
    canon_program local[2 * CANON_MAX_DEPTH]; /* of this rank's nodes, over local devices */
    canon_program last;                       /* over nodes */
    bool direct;                              /* one local device whose addend is its node as it is */
    int64_t chunk_rows;
    int64_t landing[MAX_DEVICES]; /* ALLGATHER: where device d's share starts, elements of a row */
    char *staging;
    link_message *messages;
    char came[MAX_DEVICES]; /* BARRIER: written by receives, read by nobody: only that they came counts */
} hier_plan;

void hier_blocks_free(sheaf_comm *c) {
    while (c->blocks) {
        hier_block *b = c->blocks;
        c->blocks = b->next;
        sheaf_free(b->base);
        sheaf_free(b);
    }
}

static sheaf_status block_get(sheaf_comm *c, size_t bytes, char **out) {
    if (!c->blocks || c->blocks->bytes < bytes) {
        hier_block *b = sheaf_calloc(1, sizeof *b);
        char *base = sheaf_aligned_alloc(4096, bytes);
        if (!b || !base) {
            sheaf_free(b);
            sheaf_free(base);
            return sheaf_fail(SHEAF_E_NO_MEMORY, "%zu bytes of staging between ranks", bytes);
        }
        *b = (hier_block){c->blocks, bytes, base};
        c->blocks = b;
    }
    *out = c->blocks->base;
    return SHEAF_OK;
}

/* --- compiling ------------------------------------------------------------------------------------------ */

static void plan_nodes(const sheaf_comm *c, const sheaf_comm_desc *d, hier_plan *h) {
    int n = c->n_world;
    for (int k = 0; k < c->n_ranks; k++) {
        h->rank_node[k] = h->n_nodes;
        h->n_nodes +=
            canon_forest(n, c->rank_first[k], c->rank_first[k + 1] - c->rank_first[k], d->empty, h->nodes + h->n_nodes);
    }
    h->rank_node[c->n_ranks] = h->n_nodes;
    canon_build(n, (canon_node){0, n}, d->empty, h->nodes, h->n_nodes, &h->last);
    canon_node own[MAX_DEVICES];
    for (int k = 0; k < c->n_local; k++) own[k] = (canon_node){c->first + k, 1};
    for (int k = h->rank_node[c->rank]; k < h->rank_node[c->rank + 1]; k++) {
        canon_build(n, h->nodes[k], d->empty, own, c->n_local, &h->local[k - h->rank_node[c->rank]]);
    }
}

/* Elements of one row that land in staging, and bytes of one. */
static int64_t plan_row(const sheaf_comm_op *op, hier_plan *h, size_t *element) {
    const sheaf_comm *c = op->comm;
    int64_t row = 0;
    *element = op->element;
    if (op->d.kind == SHEAF_COMM_ALLREDUCE) {
        plan_nodes(c, &op->d, h);
        h->direct = c->n_local == 1 && !op->kind->load;
        *element = op->kind->acc_bytes;
        return h->n_nodes * op->d.row;
    }
    if (op->d.kind == SHEAF_COMM_BROADCAST) return op->d.row;
    if (op->d.kind != SHEAF_COMM_ALLGATHER) return 0;
    for (int k = 0; k < c->n_world; k++) {
        h->landing[k] = row;
        if (comm_rank_of(c, k) != c->rank) row += op->d.share[k];
    }
    return row;
}

static sheaf_status compile(sheaf_comm_op *op) {
    sheaf_comm *c = op->comm;
    size_t element, bytes;
    hier_plan *h = sheaf_calloc(1, sizeof *h);
    if (!h) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", op->d.name);
    op->engine_data = h;
    size_t n_messages = (size_t)(c->n_ranks - 1) * (size_t)(c->n_local + 1) + (size_t)c->n_world;
    h->messages = sheaf_calloc(n_messages, sizeof *h->messages);
    if (!h->messages) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", op->d.name);
    int64_t row = plan_row(op, h, &element);
    /* the chunk is the same on every rank: it follows from the row, not from what lands here */
    size_t row_bytes = (size_t)op->d.row * element;
    int64_t fit = row_bytes ? (int64_t)(CHUNK_BYTES / row_bytes) : 1;
    h->chunk_rows = fit < 1 ? 1 : fit > op->d.max_rows && op->d.max_rows > 0 ? op->d.max_rows : fit;
    if (sheaf_mul_overflow((size_t)row * element, (size_t)h->chunk_rows, &bytes)) {
        return sheaf_fail(SHEAF_E_RANGE, "compiling '%s': a row of %lld elements", op->d.name, (long long)op->d.row);
    }
    return bytes ? block_get(c, bytes, &h->staging) : SHEAF_OK;
}

static void op_free(sheaf_comm_op *op) {
    hier_plan *h = op->engine_data;
    if (!h) return;
    sheaf_free(h->messages);
    sheaf_free(h);
}

static int64_t chunks_of(const hier_plan *h, int64_t rows) {
    return rows > 0 ? (rows + h->chunk_rows - 1) / h->chunk_rows : 1;
}

static int64_t meetings(const sheaf_comm_op *op, int64_t rows) {
    const hier_plan *h = op->engine_data;
    switch (op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return 2 * chunks_of(h, rows);
    case SHEAF_COMM_ALLGATHER:
    case SHEAF_COMM_BROADCAST: return 2 * chunks_of(h, rows) + 1;
    case SHEAF_COMM_BARRIER: return 2;
    case SHEAF_COMM_SEND:
    case SHEAF_COMM_RECV: return 0;
    }
    return 0;
}

/* --- the leader's exchange --------------------------------------------------------------------------------- */

/* One rank waits a little longer than its peers' own members do, so that the peer names its missing device
 * first; members wait longer than their leader. */
static int64_t grace(const sheaf_comm *c) { return c->timeout_ns / 4 < 500000000 ? c->timeout_ns / 4 : 500000000; }

static bool members_failed(void *ctx) {
    sheaf_comm *c = ctx;
    return atomic_load(&c->failing) != FAIL_NONE;
}

/* Failure is kept by the communicator: the meeting that follows hands it to every thread. */
static void exchange(run *r, int n_messages) {
    sheaf_comm *c = r->c;
    const hier_plan *h = r->op->engine_data;
    link_wait wait = {.timeout_ns = c->timeout_ns + grace(c),
                      .spin_ns = c->pace.spin_ns,
                      .broken = members_failed,
                      .ctx = c,
                      .what = r->op->d.name};
    int64_t start = sheaf_now_ns();
    sheaf_status s = link_exchange(c->link, h->messages, n_messages, (int)(r->meeting & TAG_MASK), &wait);
    r->waited += sheaf_now_ns() - start;
    if (s && !members_failed(c)) comm_fail(c, s, true);
}

/* The middle of every chunk: the leader exchanges what `fill` lists, everybody else waits for it. */
static sheaf_status exchange_and_meet(run *r, int (*fill)(run *r, int64_t row0, int64_t rows), int64_t row0,
                                      int64_t rows) {
    if (r->post->i == 0 && r->i == 0) exchange(r, fill(r, row0, rows));
    return run_meet(r, 2 * grace(r->c) + 500000000);
}

static char *node_at(const run *r, int node, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    return h->staging + (size_t)(node * rows * r->op->d.row) * r->op->kind->acc_bytes;
}

/* What this process's nodes are, for the chunk that starts at row0. */
static const char *own_nodes(const run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    if (h->direct) return (const char *)run_args_of(r, 0)->in + (size_t)(row0 * r->op->d.row) * r->op->kind->acc_bytes;
    return node_at(r, h->rank_node[r->c->rank], rows);
}

static int fill_sum(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    const int *first = h->rank_node;
    int n = 0, me = r->c->rank;
    size_t bytes = (size_t)(rows * r->op->d.row) * r->op->kind->acc_bytes;
    const char *mine = own_nodes(r, row0, rows);
    for (int k = 0; k < r->c->n_ranks; k++) {
        if (k == me) continue;
        h->messages[n++] = (link_message){.bytes = node_at(r, first[k], rows),
                                          .size = (size_t)(first[k + 1] - first[k]) * bytes,
                                          .rank = k,
                                          .receive = true};
        h->messages[n++] =
            (link_message){.bytes = (void *)mine, .size = (size_t)(first[me + 1] - first[me]) * bytes, .rank = k};
    }
    return n;
}

static int fill_gather(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    const sheaf_comm *c = r->c;
    size_t b = r->op->element;
    int n = 0;
    for (int d = 0; d < c->n_world; d++) {
        size_t size = (size_t)(rows * r->op->d.share[d]) * b;
        int owner = comm_rank_of(c, d);
        if (owner != c->rank) {
            h->messages[n++] = (link_message){
                .bytes = h->staging + (size_t)(h->landing[d] * rows) * b, .size = size, .rank = owner, .receive = true};
            continue;
        }
        const char *in = run_args_of(r, d - c->first)->in;
        for (int k = 0; size && k < c->n_ranks; k++) {
            if (k == c->rank) continue;
            const char *from = in + (size_t)(row0 * r->op->d.share[d]) * b;
            h->messages[n++] = (link_message){.bytes = (void *)from, .size = size, .rank = k};
        }
    }
    return n;
}

static const char *broadcast_source(const run *r, int64_t row0) {
    const hier_plan *h = r->op->engine_data;
    int root = r->op->d.root - r->c->first;
    if (root < 0 || root >= r->c->n_local) return h->staging;
    return (const char *)run_args_of(r, root)->in + (size_t)(row0 * r->op->d.row) * r->op->element;
}

static int fill_broadcast(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    int owner = comm_rank_of(r->c, r->op->d.root), n = 0;
    size_t size = (size_t)(rows * r->op->d.row) * r->op->element;
    void *bytes = size ? (void *)broadcast_source(r, row0) : NULL;
    if (owner != r->c->rank) {
        h->messages[n++] = (link_message){.bytes = bytes, .size = size, .rank = owner, .receive = true};
        return n;
    }
    for (int k = 0; k < r->c->n_ranks; k++) {
        if (k != owner) h->messages[n++] = (link_message){.bytes = bytes, .size = size, .rank = k};
    }
    return n;
}

static int fill_barrier(run *r, int64_t row0, int64_t rows) {
    hier_plan *h = r->op->engine_data;
    int n = 0;
    (void)row0, (void)rows;
    for (int k = 0; k < r->c->n_ranks; k++) {
        if (k == r->c->rank) continue;
        h->messages[n++] = (link_message){.bytes = &h->came[k], .size = 1, .rank = k, .receive = true};
        h->messages[n++] = (link_message){.bytes = &h->came[r->c->rank], .size = 1, .rank = k};
    }
    return n;
}

/* --- runs ------------------------------------------------------------------------------------------------------ */

/* Everybody has done with the last chunk; only the first one finds the team together. */
static sheaf_status start_chunk(run *r, int64_t row0) { return row0 ? run_meet(r, 0) : run_enter(r); }

/* The leader's team adds up this process's nodes. */
static void pack_nodes(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    const void *in[MAX_DEVICES];
    int64_t a, b, row = r->op->d.row;
    int first = h->rank_node[r->c->rank], end = h->rank_node[r->c->rank + 1];
    for (int k = 0; k < r->c->n_local; k++) in[k] = run_args_of(r, k)->in;
    run_slice(rows * row, r->i, r->n, 16, &a, &b);
    for (int k = first; k < end && a < b; k++) {
        char *to = node_at(r, k, rows) + (size_t)a * r->op->kind->acc_bytes;
        sum_keep(r->op->kind, &h->local[k - first], in, false, row0 * row + a, b - a, to);
    }
    run_barrier(r);
}

static sheaf_status sum_chunk(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    const void *leaf[MAX_DEVICES];
    sheaf_status s = start_chunk(r, row0);
    if (s) return s;
    if (r->post->i == 0 && !h->direct) pack_nodes(r, row0, rows);
    s = exchange_and_meet(r, fill_sum, row0, rows);
    if (s) return s;
    for (int k = 0; k < h->n_nodes; k++) leaf[k] = node_at(r, k, rows);
    int own = h->rank_node[r->c->rank];
    if (h->direct && own < h->rank_node[r->c->rank + 1]) leaf[own] = own_nodes(r, row0, rows);
    reduce_rows(r, &h->last, leaf, true, row0, row0, rows);
    return SHEAF_OK;
}

static sheaf_status gather_chunk(run *r, int64_t row0, int64_t rows) {
    const hier_plan *h = r->op->engine_data;
    const sheaf_comm *c = r->c;
    const void *from[MAX_DEVICES];
    sheaf_status s = start_chunk(r, row0);
    if (!s) s = exchange_and_meet(r, fill_gather, row0, rows);
    if (s) return s;
    for (int d = 0; d < c->n_world; d++) {
        int local = d - c->first;
        bool here = local >= 0 && local < c->n_local;
        const char *in = here ? run_args_of(r, local)->in : NULL;
        if (!here) {
            from[d] = h->staging ? h->staging + (size_t)(h->landing[d] * rows) * r->op->element : NULL;
        } else {
            from[d] = in ? in + (size_t)(row0 * r->op->d.share[d]) * r->op->element : NULL;
        }
    }
    gather_rows(r, from, row0, rows);
    return SHEAF_OK;
}

static sheaf_status broadcast_chunk(run *r, int64_t row0, int64_t rows) {
    sheaf_status s = start_chunk(r, row0);
    if (!s) s = exchange_and_meet(r, fill_broadcast, row0, rows);
    if (s) return s;
    size_t row = (size_t)r->op->d.row * r->op->element, bytes = (size_t)rows * row;
    if (bytes) copy_slice(r, (char *)r->post->args.out + (size_t)row0 * row, broadcast_source(r, row0), bytes);
    return SHEAF_OK;
}

static sheaf_status chunks(run *r, sheaf_status (*one)(run *r, int64_t row0, int64_t rows)) {
    const hier_plan *h = r->op->engine_data;
    int64_t rows = r->post->args.rows, n = chunks_of(h, rows);
    for (int64_t k = 0; k < n; k++) {
        int64_t row0 = k * h->chunk_rows, left = rows - row0;
        sheaf_status s = one(r, row0, left < h->chunk_rows ? left : h->chunk_rows);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status run_hier(run *r) {
    sheaf_status s;
    switch (r->op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return chunks(r, sum_chunk);
    case SHEAF_COMM_ALLGATHER: s = chunks(r, gather_chunk); return s ? s : run_meet(r, 0);
    case SHEAF_COMM_BROADCAST: s = chunks(r, broadcast_chunk); return s ? s : run_meet(r, 0);
    case SHEAF_COMM_BARRIER: s = run_enter(r); return s ? s : exchange_and_meet(r, fill_barrier, 0, 0);
    case SHEAF_COMM_SEND:
    case SHEAF_COMM_RECV: return pair_run(r);
    }
    return sheaf_fail(SHEAF_E_INTERNAL, "'%s': kind %d", r->op->d.name, (int)r->op->d.kind);
}

static const char *hier_refuses(const sheaf_comm *c, const sheaf_comm_desc *d) {
    (void)d;
    return c->n_ranks > 1 ? NULL : "there is one process";
}

/* With one device in each process there is nothing to do inside: the same steps, under MPI's name. */
static const char *mpi_refuses(const sheaf_comm *c, const sheaf_comm_desc *d) {
    (void)d;
    if (c->n_ranks == 1) return "there is one process";
    return c->n_ranks == c->n_world ? NULL : "a process holds several devices";
}

const engine hier_engine = {
    .info = {"hier", "adds inside each process, exchanges tree nodes between ranks over MPI, finishes inside", true},
    .refuses = hier_refuses,
    .compile = compile,
    .op_free = op_free,
    .meetings = meetings,
    .run = run_hier,
};

const engine mpi_engine = {
    .info = {"mpi", "one device a process: addends exchanged over MPI, added in order by every rank", true},
    .refuses = mpi_refuses,
    .compile = compile,
    .op_free = op_free,
    .meetings = meetings,
    .run = run_hier,
};
