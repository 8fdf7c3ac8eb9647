/* How a failure is kept, spreads to everybody who waits, and is forgotten again. */
#include "collectives/comm_internal.h"

#include <string.h>

sheaf_status comm_failure(sheaf_comm *c) {
    int state = atomic_load(&c->failing);
    if (state == FAIL_NONE) return SHEAF_OK;
    while (state != FAIL_WRITTEN) { /* another thread is copying a line of text */
        sheaf_relax();
        state = atomic_load(&c->failing);
    }
    return sheaf_error_restore(&c->failure);
}

static void break_all(sheaf_comm *c) {
    meet_break(&c->meet);
    for (int k = 0; k < c->n_local * c->n_local; k++) meet_break(&c->channels[k].meet);
}

sheaf_status comm_fail(sheaf_comm *c, sheaf_status s, bool tell) {
    int none = FAIL_NONE;
    if (atomic_compare_exchange_strong(&c->failing, &none, FAIL_WRITING)) {
        sheaf_error_save(&c->failure, s);
        atomic_store(&c->failing, FAIL_WRITTEN);
        break_all(c);
        if (tell && c->link) link_notify(c->link, s);
    }
    return comm_failure(c);
}

void comm_link_failed(void *ctx, sheaf_status s) { comm_fail(ctx, s, false); }

void sheaf_comm_cancel(sheaf_comm *c) {
    if (!c || atomic_load(&c->failing) != FAIL_NONE) return;
    sheaf_error_box before; /* the canceller's own error text is not ours to change */
    sheaf_error_save(&before, SHEAF_OK);
    comm_fail(c, sheaf_fail(SHEAF_E_CANCELLED, "collective cancelled"), true);
    sheaf_error_restore(&before);
}

/* A queue's worker reports its first failure; the text is on this thread and must stay as it is. */
static void queue_failed(void *ctx, sheaf_status s) {
    member *m = ctx;
    char name[64];
    if (atomic_load(&m->comm->failing) != FAIL_NONE) return;
    sheaf_error_box own;
    sheaf_error_save(&own, s);
    sheaf_status told = s == SHEAF_E_CANCELLED ? s : SHEAF_E_PEER;
    sheaf_error_context(told, "%s failed", comm_device_name(m->comm, m->number, name, sizeof name));
    comm_fail(m->comm, told, true);
    sheaf_error_restore(&own);
}

void sheaf_comm_attach(sheaf_comm *c, int i, sheaf_queue *q) {
    if (!c || i < 0 || i >= c->n_local || !q) return;
    q->on_failure = queue_failed;
    q->on_failure_ctx = &c->members[i];
}

static void forget_posts(sheaf_comm_op *op) {
    for (int i = 0; i < op->comm->n_local; i++) {
        op->members[i].posted = 0;
        atomic_store(&op->members[i].done, 0);
    }
}

sheaf_status sheaf_comm_reset(sheaf_comm *c) {
    if (!c) return sheaf_fail(SHEAF_E_ARGUMENT, "resetting a communicator: none given");
    for (int i = 0; i < c->n_local; i++) {
        member *m = &c->members[i];
        m->meetings = 0;
        m->last_slot = -1;
        memset(m->sent, 0, sizeof m->sent);
        memset(m->received, 0, sizeof m->received);
        atomic_store(&m->arrived, 0);
    }
    for (sheaf_comm_op *op = c->ops; op; op = op->next) forget_posts(op);
    for (int k = 0; k < c->n_local * c->n_local; k++) meet_reset(&c->channels[k].meet);
    meet_reset(&c->meet);
    sheaf_status s = c->link ? link_renew(c->link) : SHEAF_OK;
    atomic_store(&c->failing, FAIL_NONE);
    return s;
}
