/* Recursive doubling over peer copies, for any number of devices.
 *
 * Of N devices P = 2^k are left after the excess is folded in (canonical.h: the first 2E pair up, the odd
 * one of a pair gives its addend to the even one). Then k rounds: in round j leaf v copies what leaf
 * v ^ 2^j has, and both add the same two numbers, the lower one first. At the end the odd ones of the
 * pairs copy the result. N = 6, so P = 4, E = 2:
 *
 *     device   0    1    2    3    4    5
 *     fold     0<---1    2<---3    4    5       leaves: (0+1) (2+3) 4 5
 *     round 0  0<------->2         4<-->5
 *     round 1  0<----------------->4
 *                        2<------------->5
 *     unfold   0--->1    2--->3
 *
 * Every leaf ends with the same tree of additions: the canonical one. Accumulators alternate, so that
 * a peer may still copy the last one while this one is written; each round ends with a meeting. */
#include "collectives/peer/peer.h"

#include <string.h>

typedef struct place {
    int leaves, excess, leaf; /* P, E, my leaf */
    bool folded;              /* my addend goes to my left neighbour */
} place;

static place place_of(const sheaf_comm *c, int device) {
    int n = c->n_world, p = canon_leaves(n);
    place at = {.leaves = p, .excess = n - p, .leaf = canon_leaf_of(n, device)};
    at.folded = device != canon_leaf_first(n, at.leaf);
    return at;
}

static int64_t meetings(const sheaf_comm_op *op, int64_t rows) {
    (void)rows;
    place at = place_of(op->comm, 0);
    int64_t rounds = 0;
    for (int p = at.leaves; p > 1; p /= 2) rounds++;
    return 1 + rounds + (at.excess ? 2 : 0);
}

/* Devices in [first, first + count) that have an addend. An empty one is no addend: adding its zeros
 * would turn a sum of -0 into +0. */
static bool any(const run *r, int first, int count) {
    for (int d = first; d < first + count; d++) {
        if (!(r->op->d.empty >> d & 1)) return true;
    }
    return false;
}

/* Whether the leaves [v, v + n) hold anything. */
static bool any_leaf(const run *r, int v, int n) {
    int world = r->c->n_world, first = canon_leaf_first(world, v);
    int end = v + n < canon_leaves(world) ? canon_leaf_first(world, v + n) : world;
    return any(r, first, end - first);
}

/* My accumulator `from` and the peer's become my accumulator `to`, by the slice [a, b). */
static void combine(run *r, int peer, bool peer_lower, bool mine, bool theirs, int from, int64_t a, int64_t b) {
    const sum_kind *k = r->op->kind;
    int me = r->post->i;
    size_t bytes = (size_t)(b - a) * k->acc_bytes;
    char *to = peer_acc(r, me, !from, a), *own = peer_acc(r, me, from, a), *landed = peer_acc(r, me, 2, a);
    if (a >= b) return;
    if (theirs) memcpy(landed, peer_acc(r, peer, from, a), bytes); /* the peer copy */
    if (mine && theirs) {
        k->add(to, peer_lower ? landed : own, peer_lower ? own : landed, b - a);
    } else {
        memcpy(to, theirs ? landed : own, bytes);
    }
}

/* Into accumulator `cur` of every leaf; a leaf without a partner in the fold moves to it as it is. */
static sheaf_status fold(run *r, const place *at, int64_t a, int64_t b) {
    int me = r->m->number;
    if (!at->folded) {
        bool pair = at->leaf < at->excess;
        combine(r, pair ? me + 1 : me, false, any(r, me, 1), pair && any(r, me + 1, 1), 0, a, b);
    }
    return run_meet(r, 0);
}

static sheaf_status rounds(run *r, const place *at, int *cur, int64_t a, int64_t b) {
    for (int step = 1; step < at->leaves; step *= 2) {
        if (!at->folded) {
            int other = at->leaf ^ step, base = at->leaf / step * step, other_base = other / step * step;
            combine(r, canon_leaf_first(r->c->n_world, other), other < at->leaf, any_leaf(r, base, step),
                    any_leaf(r, other_base, step), *cur, a, b);
        }
        *cur = !*cur;
        sheaf_status s = run_meet(r, 0);
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status run_butterfly(run *r) {
    place at = place_of(r->c, r->m->number);
    int64_t a, b;
    int cur = 0;
    run_slice(r->post->args.rows * r->op->d.row, r->i, r->n, 16, &a, &b);
    peer_load(r, a, b);
    sheaf_status s = run_meet(r, 0);
    if (!s && at.excess) {
        s = fold(r, &at, a, b);
        cur = 1;
    }
    if (!s) s = rounds(r, &at, &cur, a, b);
    if (s) return s;
    peer_finish(r, canon_leaf_first(r->c->n_world, at.leaf), cur);
    return at.excess ? run_meet(r, 0) : SHEAF_OK;
}

const engine peer_engine = {
    .info = {"peer", "butterfly over peer copies, any number of devices", true},
    .refuses = peer_refuses,
    .compile = peer_compile,
    .op_free = peer_op_free,
    .meetings = meetings,
    .run = run_butterfly,
};
