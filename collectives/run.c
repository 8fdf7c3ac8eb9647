/* One run of a post by a team: its thread's slice, its meetings with the other members, its times. */
#include "collectives/comm_internal.h"

#include <stdio.h>

void run_barrier(run *r) {
    if (r->n > 1) sheaf_queue_barrier(r->q, r->i);
}

const sheaf_comm_args *run_args_of(const run *r, int other) {
    size_t slot = (size_t)(r->post - r->op->posts) % POST_SLOTS;
    return &r->op->posts[(size_t)other * POST_SLOTS + slot].args;
}

void run_slice(int64_t total, int i, int n, int64_t align, int64_t *from, int64_t *to) {
    int64_t units = (total + align - 1) / align;
    *from = units * i / n * align;
    *to = units * (i + 1) / n * align;
    if (*from > total) *from = total;
    if (*to > total) *to = total;
}

/* Names the members that have not arrived at a meeting. */
static sheaf_status meeting_late(run *r) {
    sheaf_comm *c = r->c;
    char who[256] = "";
    size_t used = 0;
    for (int k = 0; k < c->n_local && used + 1 < sizeof who; k++) {
        if (atomic_load(&c->members[k].arrived) > r->meeting) continue;
        char name[64];
        int more = snprintf(who + used, sizeof who - used, "%s%s", used ? ", " : "",
                            comm_device_name(c, c->members[k].number, name, sizeof name));
        if (more > 0) used += (size_t)more;
    }
    sheaf_status s = sheaf_fail(SHEAF_E_TIMEOUT, "collective '%s': %s did not come within %lld ms", r->op->d.name,
                                used ? who : "a device", (long long)(c->timeout_ns / 1000000));
    return comm_fail(c, s, true);
}

static sheaf_status meet_members(run *r, int64_t grace_ns) {
    sheaf_comm *c = r->c;
    uint64_t target = (r->meeting + 1) * (uint64_t)c->n_local;
    int64_t start = 0;
    if (r->i == 0) {
        atomic_store(&r->m->arrived, r->meeting + 1);
        meet_arrive(&c->meet, target);
        start = sheaf_now_ns();
    }
    meet_state state = meet_wait(&c->meet, target, &c->pace, c->timeout_ns + grace_ns);
    if (state == MEET_LATE) {
        meeting_late(r);
        state = meet_look(&c->meet, target); /* the last one may have come in this instant */
    }
    if (r->i == 0) r->waited += sheaf_now_ns() - start;
    r->meeting++;
    return state == MEET_DONE ? SHEAF_OK : comm_failure(c);
}

sheaf_status run_meet(run *r, int64_t grace_ns) {
    run_barrier(r);
    return meet_members(r, grace_ns);
}

sheaf_status run_enter(run *r) { return meet_members(r, 0); }

sheaf_status run_wait_channel(run *r, meet *m, uint64_t target, int peer) {
    sheaf_comm *c = r->c;
    meet_state state = meet_wait(m, target, &c->pace, c->timeout_ns);
    if (state == MEET_LATE) {
        char name[64];
        comm_fail(c,
                  sheaf_fail(SHEAF_E_TIMEOUT, "'%s': %s did not come within %lld ms", r->op->d.name,
                             comm_device_name(c, peer, name, sizeof name), (long long)(c->timeout_ns / 1000000)),
                  true);
        state = meet_look(m, target);
    }
    return state == MEET_DONE ? SHEAF_OK : comm_failure(c);
}

static void count(member *m, const run *r, int64_t spent) {
    const sheaf_comm_desc *d = &r->op->d;
    uint64_t bytes = (uint64_t)(d->row * r->post->args.rows) * r->op->element;
    uint64_t waited = (uint64_t)r->waited, total = (uint64_t)spent;
    atomic_fetch_add_explicit(&m->posts, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->wait_ns, waited, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->reduce_ns, total > waited ? total - waited : 0, memory_order_relaxed);
}

sheaf_status comm_run_post(void *ctx, int i, int n, sheaf_queue *q) {
    const comm_post *post = ctx;
    sheaf_comm_op *op = post->op;
    run r = {.c = op->comm, .op = op, .post = post, .m = &op->comm->members[post->i], .q = q, .i = i, .n = n};
    r.meeting = post->base;
    int64_t start = i == 0 ? sheaf_now_ns() : 0;
    sheaf_status s = op->engine->run(&r);
    if (i == 0) {
        count(r.m, &r, sheaf_now_ns() - start);
        atomic_fetch_add(&op->members[post->i].done, 1);
    }
    return s;
}
