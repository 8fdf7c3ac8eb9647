/* Accumulators of the peer engines: made when the op is compiled, so that a post allocates nothing. */
#include "collectives/peer/peer.h"

#include <string.h>

enum { PLACES = 3 };

const char *peer_refuses(const sheaf_comm *c, const sheaf_comm_desc *d) {
    if (c->n_ranks > 1) return "devices live in several processes";
    return d->kind == SHEAF_COMM_ALLREDUCE ? NULL : "it only sums";
}

sheaf_status peer_compile(sheaf_comm_op *op) {
    size_t bytes, all, n = (size_t)op->comm->n_local * PLACES;
    peer_work *w = sheaf_calloc(1, sizeof *w);
    if (!w) return sheaf_fail(SHEAF_E_NO_MEMORY, "compiling '%s'", op->d.name);
    op->engine_data = w;
    bool fits = sheaf_align_up((size_t)(op->d.row * op->d.max_rows) * op->kind->acc_bytes, 64, &bytes) &&
                !sheaf_mul_overflow(bytes, n, &all);
    w->bytes = fits ? bytes : 0;
    w->base = fits ? sheaf_aligned_alloc(64, all) : NULL;
    return w->base ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "accumulators of '%s'", op->d.name);
}

void peer_op_free(sheaf_comm_op *op) {
    peer_work *w = op->engine_data;
    if (!w) return;
    sheaf_free(w->base);
    sheaf_free(w);
}

char *peer_acc(const run *r, int who, int which, int64_t e) {
    const peer_work *w = r->op->engine_data;
    return w->base + ((size_t)who * PLACES + (size_t)which) * w->bytes + (size_t)e * r->op->kind->acc_bytes;
}

void peer_load(run *r, int64_t from, int64_t to) {
    const canon_program one = {.n = 1, .code = {0}};
    const void *in = r->post->args.in;
    if (from >= to) return;
    if (r->op->d.empty >> r->m->number & 1) {
        memset(peer_acc(r, r->post->i, 0, from), 0, (size_t)(to - from) * r->op->kind->acc_bytes);
    } else {
        sum_keep(r->op->kind, &one, &in, false, from, to - from, peer_acc(r, r->post->i, 0, from));
    }
}

void peer_finish(run *r, int who, int which) {
    const canon_program one = {.n = 1, .code = {0}};
    const void *acc = peer_acc(r, who, which, 0);
    reduce_rows(r, &one, &acc, true, 0, 0, r->post->args.rows);
}
