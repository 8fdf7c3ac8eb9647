/* Send and receive between two devices. In one process: a rendezvous. The sender publishes the address
 * and waits until the receiver's team has copied; messages of a direction are taken in order. Between
 * processes thread 0 passes the bytes to MPI (hier.c's link). Only the two devices take part. */
#include "collectives/comm_internal.h"

#include <string.h>

static sheaf_status send_local(run *r, channel *ch, size_t bytes) {
    if (r->i != 0) return SHEAF_OK; /* the queue ends this post when thread 0 does */
    uint64_t number = r->post->pair;
    ch->bytes = r->post->args.in;
    ch->size = bytes;
    meet_arrive(&ch->meet, 2 * number + 1);
    return run_wait_channel(r, &ch->meet, 2 * number + 2, r->op->d.root);
}

static sheaf_status receive_local(run *r, channel *ch, size_t bytes) {
    uint64_t number = r->post->pair;
    sheaf_status s = run_wait_channel(r, &ch->meet, 2 * number + 1, r->op->d.root);
    if (s) return s;
    if (ch->size != bytes) {
        s = sheaf_fail(SHEAF_E_SHAPE, "receiving '%s': %zu bytes were sent, %zu are wanted", r->op->d.name, ch->size,
                       bytes);
        return comm_fail(r->c, s, true);
    }
    if (bytes) copy_slice(r, r->post->args.out, ch->bytes, bytes);
    run_barrier(r);
    if (r->i == 0 && !meet_arrive(&ch->meet, 2 * number + 2)) return comm_failure(r->c);
    return SHEAF_OK;
}

static bool meeting_broke(void *ctx) {
    sheaf_comm *c = ctx;
    return atomic_load(&c->failing) != FAIL_NONE;
}

enum { PAIR_TAG = 0x4000 }; /* above the tags of collectives; MPI allows at least 32767 */

/* One tag a pair of devices, so that messages between two ranks cannot take each other's place. */
static int pair_tag(const run *r, int from, int to) { return PAIR_TAG + from * r->c->n_world + to; }

static sheaf_status pass_remote(run *r, size_t bytes) {
    if (r->i != 0) return SHEAF_OK;
    bool receive = r->op->d.kind == SHEAF_COMM_RECV;
    int peer = r->op->d.root, me = r->m->number;
    link_message msg = {.bytes = receive ? r->post->args.out : (void *)r->post->args.in,
                        .size = bytes,
                        .rank = comm_rank_of(r->c, peer),
                        .receive = receive};
    link_wait wait = {.timeout_ns = r->c->timeout_ns,
                      .spin_ns = r->c->pace.spin_ns,
                      .broken = meeting_broke,
                      .ctx = r->c,
                      .what = r->op->d.name};
    sheaf_status s = link_exchange(r->c->link, &msg, 1, receive ? pair_tag(r, peer, me) : pair_tag(r, me, peer), &wait);
    return s ? comm_fail(r->c, s, true) : SHEAF_OK;
}

sheaf_status pair_run(run *r) {
    sheaf_comm *c = r->c;
    int peer = r->op->d.root - c->first;
    size_t bytes = (size_t)(r->post->args.rows * r->op->d.row) * r->op->element;
    if (peer < 0 || peer >= c->n_local) return pass_remote(r, bytes);
    if (r->op->d.kind == SHEAF_COMM_SEND) { return send_local(r, &c->channels[r->post->i * c->n_local + peer], bytes); }
    return receive_local(r, &c->channels[peer * c->n_local + r->post->i], bytes);
}
