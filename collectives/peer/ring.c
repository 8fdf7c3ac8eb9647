/* A ring: N - 1 steps in which partial sums of N chunks travel to the right and grow, N - 1 steps in
 * which the finished chunks travel on. Each device moves 2 (N - 1) / N of a message whatever N is, over
 * links to its neighbours only. N = 3, chunk c starts at device c + 1 and is complete at device c:
 *
 *     step 0   0 -(c2)-> 1   1 -(c0)-> 2   2 -(c1)-> 0        adds
 *     step 1   0 -(c1)-> 1   1 -(c2)-> 2   2 -(c0)-> 0        adds: c0 done at 0, c1 at 1, c2 at 2
 *     step 2   0 -(c0)-> 1   1 -(c1)-> 2   2 -(c2)-> 0        copies
 *     step 3   0 -(c2)-> 1   1 -(c0)-> 2   2 -(c1)-> 0        copies
 *
 * All devices end with the same bits, but each chunk is added in another order: not the canonical one, so
 * it is never chosen where bits must not depend on N. */
#include "collectives/peer/peer.h"

#include <string.h>

static int64_t meetings(const sheaf_comm_op *op, int64_t rows) {
    (void)rows;
    return 1 + 2 * (int64_t)(op->comm->n_local - 1);
}

/* One step: chunk `c` as the left neighbour has it, added to mine or copied over it. */
static sheaf_status step(run *r, int chunk, bool add) {
    int me = r->post->i, n = r->c->n_local, left = (me + n - 1) % n;
    int64_t first, last, a, b;
    run_slice(r->post->args.rows * r->op->d.row, chunk, n, 16, &first, &last);
    run_slice(last - first, r->i, r->n, 16, &a, &b);
    a += first;
    b += first;
    if (a < b) {
        const sum_kind *k = r->op->kind;
        size_t bytes = (size_t)(b - a) * k->acc_bytes;
        char *mine = peer_acc(r, me, 0, a), *landed = peer_acc(r, me, 2, a);
        memcpy(add ? landed : mine, peer_acc(r, left, 0, a), bytes);
        if (add) k->add(mine, landed, mine, b - a);
    }
    return run_meet(r, 0);
}

static sheaf_status run_ring(run *r) {
    int me = r->post->i, n = r->c->n_local;
    int64_t a, b;
    run_slice(r->post->args.rows * r->op->d.row, r->i, r->n, 16, &a, &b);
    peer_load(r, a, b);
    sheaf_status s = run_meet(r, 0);
    for (int k = 0; !s && k < n - 1; k++) s = step(r, (me + 2 * n - 2 - k) % n, true);
    for (int k = 0; !s && k < n - 1; k++) s = step(r, (me + 2 * n - 1 - k) % n, false);
    if (s) return s;
    peer_finish(r, me, 0);
    return SHEAF_OK;
}

const engine ring_engine = {
    .info = {"ring", "reduce-scatter and gather around a ring of peer copies; bits depend on the number of devices",
             false},
    .refuses = peer_refuses,
    .compile = peer_compile,
    .op_free = peer_op_free,
    .meetings = meetings,
    .run = run_ring,
};
