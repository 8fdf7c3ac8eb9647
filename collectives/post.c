/* Posting: what the caller gives is checked, gets its place in the order of all posts, and goes on the queue. */
#include "collectives/comm_internal.h"

static bool is_pair(const sheaf_comm_desc *d) { return d->kind == SHEAF_COMM_SEND || d->kind == SHEAF_COMM_RECV; }

static bool reads_in(const sheaf_comm_op *op, int device) {
    switch (op->d.kind) {
    case SHEAF_COMM_ALLREDUCE: return !(op->d.empty >> device & 1);
    case SHEAF_COMM_ALLGATHER: return op->d.share[device] > 0;
    case SHEAF_COMM_BROADCAST: return device == op->d.root;
    case SHEAF_COMM_SEND: return true;
    case SHEAF_COMM_RECV:
    case SHEAF_COMM_BARRIER: return false;
    }
    return false;
}

static sheaf_status check_args(const sheaf_comm_op *op, const member *m, const sheaf_comm_args *a) {
    const sheaf_comm_desc *d = &op->d;
    const char *wrong = NULL;
    if (a->rows < 0 || a->rows > d->max_rows) {
        return sheaf_fail(SHEAF_E_RANGE, "posting '%s': %lld rows, compiled for at most %lld", d->name,
                          (long long)a->rows, (long long)d->max_rows);
    }
    if (d->kind == SHEAF_COMM_BARRIER || a->rows == 0 || d->row == 0) return SHEAF_OK;
    if (!a->in && reads_in(op, m->number)) wrong = "no input";
    if (!a->out && d->kind != SHEAF_COMM_SEND) wrong = "no output";
    if (d->epilogue.add && !a->residual) wrong = "no residual";
    if (d->epilogue.norm && !a->norm_out) wrong = "no output of the norm";
    return wrong ? sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s' on device %d: %s", d->name, m->number, wrong) : SHEAF_OK;
}

/* Which staging slot `in` is, -1 when it is none. */
static int slot_of(const sheaf_comm *c, const member *m, const void *in) {
    if (!m->staging) return -1;
    return in == m->staging ? 0 : in == m->staging + c->staging_bytes ? 1 : -1;
}

/* A staged addend may still be read by a slow peer until the next meeting (invariant 4). */
static sheaf_status check_staged(const sheaf_comm_op *op, const member *m, const sheaf_comm_args *a, int *slot) {
    *slot = -1;
    if (!op->d.staged || a->rows == 0) return SHEAF_OK;
    if (!a->in) { /* an empty device lends nothing */
        *slot = m->last_slot < 0 ? -1 : !m->last_slot;
        return SHEAF_OK;
    }
    *slot = slot_of(op->comm, m, a->in);
    if (*slot < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': its addend is not in staging", op->d.name);
    if (*slot != m->last_slot) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': staging slot %d used twice in turn", op->d.name, *slot);
}

static void place_post(sheaf_comm_op *op, member *m, comm_post *p, const sheaf_comm_args *args) {
    p->args = *args;
    p->base = m->meetings;
    if (op->d.kind == SHEAF_COMM_SEND) {
        p->pair = m->sent[op->d.root]++;
    } else if (op->d.kind == SHEAF_COMM_RECV) {
        p->pair = m->received[op->d.root]++;
    } else {
        m->meetings += (uint64_t)op->engine->meetings(op, args->rows);
    }
}

sheaf_status sheaf_comm_post(sheaf_comm_op *op, int i, sheaf_queue *q, const sheaf_comm_args *args) {
    sheaf_comm *c = op->comm;
    if (i < 0 || i >= c->n_local)
        return sheaf_fail(SHEAF_E_ARGUMENT, "posting '%s': no local device %d", op->d.name, i);
    member *m = &c->members[i];
    int slot;
    sheaf_status s = comm_failure(c);
    if (!s) s = check_args(op, m, args);
    if (!s) s = check_staged(op, m, args, &slot);
    if (s) return s;
    op_member *om = &op->members[i];
    if (om->posted - atomic_load(&om->done) >= SHEAF_COMM_IN_FLIGHT) {
        return sheaf_fail(SHEAF_E_RANGE, "posting '%s' on device %d: %d posts of it are in flight", op->d.name,
                          m->number, SHEAF_COMM_IN_FLIGHT);
    }
    comm_post *p = &op->posts[(size_t)i * POST_SLOTS + om->posted % POST_SLOTS];
    place_post(op, m, p, args);
    om->posted++;
    if (!is_pair(&op->d)) m->last_slot = slot;
    return sheaf_queue_call(q, comm_run_post, p);
}
