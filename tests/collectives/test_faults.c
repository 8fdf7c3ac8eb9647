/* Late, stuck and dead members: everybody fails in the same step, in time, naming who. */
#include "tests/collectives/party.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROW = 64 };

typedef struct scene {
    party p;
    sheaf_comm_op *op;
    double in[PARTY_MAX][ROW];
    float out[PARTY_MAX][ROW];
    sheaf_comm_args args[PARTY_MAX];
    sheaf_status each[PARTY_MAX];
    char text[PARTY_MAX][256];
} scene;

static scene *scene_open(int n, int threads, const char *pin, int timeout_ms) {
    scene *s = calloc(1, sizeof *s);
    cr_assert(party_open(&s->p, n, threads, pin));
    s->p.comm->timeout_ns = (int64_t)timeout_ms * 1000000;
    sheaf_comm_desc d = {
        .kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = ROW, .max_rows = 1, .name = "blk.3.attn_out"};
    cr_assert_eq(sheaf_comm_compile(s->p.comm, &d, &s->op), SHEAF_OK, "%s", sheaf_error());
    for (int k = 0; k < n; k++) {
        for (int e = 0; e < ROW; e++) s->in[k][e] = k + 1;
        s->args[k] = (sheaf_comm_args){.in = s->in[k], .out = s->out[k], .rows = 1};
    }
    return s;
}

static void scene_close(scene *s) {
    party_close(&s->p);
    free(s);
}

static void expect_sum(scene *s, const char *when) {
    memset(s->out, 0, sizeof s->out);
    cr_assert_eq(party_post(&s->p, s->op, s->args, 0), SHEAF_OK, "%s: %s", when, sheaf_error());
    cr_assert_eq(party_wait(&s->p, NULL, NULL), SHEAF_OK, "%s: %s", when, sheaf_error());
    int n = s->p.n;
    for (int k = 0; k < n; k++) {
        for (int e = 0; e < ROW; e++)
            cr_assert_eq(s->out[k][e], (float)(n * (n + 1) / 2), "%s: device %d is %g", when, k, (double)s->out[k][e]);
    }
}

static int64_t since_ms(int64_t start) { return (sheaf_now_ns() - start) / 1000000; }

static const char *const engines_here[] = {"shm", "peer", "ring"};

Test(faults, a_late_member_delays_and_changes_nothing, .timeout = 60) {
    for (int g = 0; g < 3; g++) {
        scene *s = scene_open(3, 2, engines_here[g], 20000);
        int late = 30000;
        for (int k = 0; k < 3; k++) {
            sheaf_queue_call(s->p.queue[k], late_call, &late);
            expect_sum(s, engines_here[g]);
        }
        scene_close(s);
    }
}

Test(faults, a_stuck_member_is_named_by_all_in_bounded_time, .timeout = 60) {
    for (int g = 0; g < 3; g++) {
        scene *s = scene_open(4, 2, engines_here[g], 100);
        gate shut = {0};
        sheaf_queue_call(s->p.queue[2], gate_call, &shut);
        cr_assert_eq(party_post(&s->p, s->op, s->args, 0), SHEAF_OK);
        int64_t start = sheaf_now_ns();
        sheaf_status first = sheaf_queue_synchronize(s->p.queue[0]);
        int64_t took = since_ms(start);
        cr_assert_eq(first, SHEAF_E_TIMEOUT, "%s", sheaf_status_name(first));
        cr_assert(took >= 90 && took < 5000, "%ld ms", (long)took);
        atomic_store(&shut.open, 1);
        party_wait(&s->p, s->each, s->text);
        for (int k = 1; k < 4; k++) {
            cr_assert_eq(s->each[k], SHEAF_E_TIMEOUT, "device %d: %s", k, sheaf_status_name(s->each[k]));
            cr_assert(strstr(s->text[k], "device 2 (pretend.2)") && strstr(s->text[k], "blk.3.attn_out"),
                      "device %d: %s", k, s->text[k]);
        }
        cr_assert_eq(sheaf_comm_post(s->op, 0, s->p.queue[0], &s->args[0]), SHEAF_E_TIMEOUT);
        cr_assert_eq(sheaf_comm_reset(s->p.comm), SHEAF_OK);
        expect_sum(s, "after reset");
        scene_close(s);
    }
}

Test(faults, a_failed_queue_fails_its_peers_at_once_by_name, .timeout = 60) {
    for (int g = 0; g < 3; g++) {
        scene *s = scene_open(3, 2, engines_here[g], 30000);
        sheaf_queue_call(s->p.queue[1], failing_call, NULL);
        sheaf_status posted = party_post(&s->p, s->op, s->args, 0);
        int64_t start = sheaf_now_ns();
        party_wait(&s->p, s->each, s->text);
        cr_assert(since_ms(start) < 5000, "took %ld ms", (long)since_ms(start));
        cr_assert_eq(s->each[1], SHEAF_E_DEVICE, "%s", sheaf_status_name(s->each[1]));
        cr_assert_str_eq(s->text[1], "kernel 7: pretended");
        if (!posted) { /* else the failure was there before everybody had posted */
            cr_assert(s->each[0] == SHEAF_E_PEER && s->each[2] == SHEAF_E_PEER, "%d %d", s->each[0], s->each[2]);
            cr_assert_str_eq(s->text[0], "device 1 (pretend.1) failed: kernel 7: pretended");
        }
        cr_assert_eq(sheaf_comm_reset(s->p.comm), SHEAF_OK);
        expect_sum(s, "after reset");
        scene_close(s);
    }
}

Test(faults, cancel_ends_waits_and_later_posts_until_reset, .timeout = 60) {
    scene *s = scene_open(3, 1, "", 30000);
    gate shut = {0};
    sheaf_queue_call(s->p.queue[0], gate_call, &shut);
    cr_assert_eq(party_post(&s->p, s->op, s->args, 0), SHEAF_OK);
    usleep(2000);
    sheaf_comm_cancel(s->p.comm);
    sheaf_status st = sheaf_queue_synchronize(s->p.queue[1]);
    cr_assert_eq(st, SHEAF_E_CANCELLED, "%s", sheaf_status_name(st));
    cr_assert_eq(sheaf_comm_post(s->op, 1, s->p.queue[1], &s->args[1]), SHEAF_E_CANCELLED);
    atomic_store(&shut.open, 1);
    party_wait(&s->p, s->each, NULL);
    cr_assert_eq(s->each[0], SHEAF_E_CANCELLED, "%s", sheaf_status_name(s->each[0]));
    cr_assert_eq(sheaf_comm_reset(s->p.comm), SHEAF_OK);
    expect_sum(s, "after reset");
    scene_close(s);
}

typedef struct canceller {
    sheaf_comm *comm;
    int after_us;
} canceller;

static void *cancel_later(void *arg) {
    canceller *c = arg;
    usleep((useconds_t)c->after_us);
    sheaf_comm_cancel(c->comm);
    return NULL;
}

/* A failure at any moment of a running stream: an op completes for all members or for none. */
Test(faults, an_op_completes_for_all_members_or_for_none, .timeout = 120) {
    for (int round = 0; round < 60; round++) {
        scene *s = scene_open(3, 1, engines_here[round % 3], 30000);
        canceller c = {s->p.comm, 50 * (round % 20)};
        pthread_t thread;
        pthread_create(&thread, NULL, cancel_later, &c);
        sheaf_status st = SHEAF_OK;
        for (int k = 0; k < 400 && !st; k++) {
            st = party_post(&s->p, s->op, s->args, k);
            if (st) break;
            st = party_wait(&s->p, s->each, NULL);
            for (int m = 1; m < 3; m++)
                cr_assert_eq(s->each[m], s->each[0], "round %d op %d: %d and %d", round, k, s->each[m], s->each[0]);
        }
        pthread_join(thread, NULL);
        party_wait(&s->p, NULL, NULL);
        cr_assert(st == SHEAF_OK || st == SHEAF_E_CANCELLED, "%s", sheaf_status_name(st));
        scene_close(s);
    }
}

Test(faults, a_sender_without_a_receiver_times_out, .timeout = 30) {
    scene *s = scene_open(2, 2, "", 100);
    sheaf_comm_op *send, *receive;
    sheaf_comm_desc d = {
        .kind = SHEAF_COMM_SEND, .type = SHEAF_F64, .row = ROW, .max_rows = 1, .root = 1, .name = "stage"};
    cr_assert_eq(sheaf_comm_compile(s->p.comm, &d, &send), SHEAF_OK);
    d.kind = SHEAF_COMM_RECV;
    d.root = 0;
    cr_assert_eq(sheaf_comm_compile(s->p.comm, &d, &receive), SHEAF_OK);
    cr_assert_eq(sheaf_comm_post(send, 0, s->p.queue[0], &s->args[0]), SHEAF_OK);
    sheaf_status st = sheaf_queue_synchronize(s->p.queue[0]);
    cr_assert_eq(st, SHEAF_E_TIMEOUT, "%s", sheaf_status_name(st));
    cr_assert_not_null(strstr(sheaf_error(), "device 1 (pretend.1)"), "%s", sheaf_error());
    cr_assert_eq(sheaf_comm_reset(s->p.comm), SHEAF_OK);
    cr_assert_eq(sheaf_comm_post(receive, 1, s->p.queue[1], &(sheaf_comm_args){.out = s->out[1], .rows = 1}), SHEAF_OK);
    st = sheaf_queue_synchronize(s->p.queue[1]);
    cr_assert_eq(st, SHEAF_E_TIMEOUT, "%s", sheaf_status_name(st));
    scene_close(s);
}

Test(faults, too_many_posts_of_one_op_are_refused, .timeout = 30) {
    scene *s = scene_open(2, 1, "", 30000);
    gate shut = {0};
    sheaf_queue_call(s->p.queue[0], gate_call, &shut);
    for (int k = 0; k < SHEAF_COMM_IN_FLIGHT; k++)
        cr_assert_eq(sheaf_comm_post(s->op, 0, s->p.queue[0], &s->args[0]), SHEAF_OK, "post %d", k);
    cr_assert_eq(sheaf_comm_post(s->op, 0, s->p.queue[0], &s->args[0]), SHEAF_E_RANGE);
    atomic_store(&shut.open, 1);
    for (int k = 0; k < SHEAF_COMM_IN_FLIGHT; k++)
        cr_assert_eq(sheaf_comm_post(s->op, 1, s->p.queue[1], &s->args[1]), SHEAF_OK, "post %d", k);
    cr_assert_eq(party_wait(&s->p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    scene_close(s);
}

typedef struct budget {
    atomic_int left;
    atomic_int used;
} budget;

static bool spend(void *ctx, size_t size) {
    budget *b = ctx;
    (void)size;
    atomic_fetch_add(&b->used, 1);
    return atomic_fetch_sub(&b->left, 1) > 0;
}

/* Every allocation of making a communicator and an op fails in turn. */
Test(faults, every_allocation_may_fail, .timeout = 60) {
    for (int g = 0; g < 3; g++) {
        int k = 0;
        for (bool whole = false; !whole; k++) {
            party p;
            sheaf_comm *c = NULL;
            sheaf_comm_op *op = NULL;
            budget b = {.left = k};
            cr_assert(party_open(&p, 3, 1, ""));
            sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = ROW, .max_rows = 1};
            sheaf_alloc_hook(spend, &b);
            sheaf_status st = sheaf_comm_new(p.world, p.device, 3, &c);
            if (!st) {
                snprintf(c->pin, sizeof c->pin, "%s", engines_here[g]);
                st = sheaf_comm_reserve_staging(c, 100);
            }
            if (!st) st = sheaf_comm_compile(c, &d, &op);
            sheaf_alloc_hook(NULL, NULL);
            whole = st == SHEAF_OK;
            cr_assert(whole || st == SHEAF_E_NO_MEMORY, "allocation %d: %s", k, sheaf_status_name(st));
            sheaf_comm_free(c);
            party_close(&p);
        }
        cr_assert(k > 6, "only %d allocations were failed", k);
    }
}

Test(faults, a_post_allocates_nothing, .timeout = 60) {
    scene *s = scene_open(3, 1, "", 30000);
    budget b = {.left = 1 << 30};
    expect_sum(s, "warm");
    sheaf_alloc_hook(spend, &b);
    for (int k = 0; k < 100; k++) {
        party_post(&s->p, s->op, s->args, k);
        party_wait(&s->p, NULL, NULL);
    }
    sheaf_alloc_hook(NULL, NULL);
    int used = atomic_load(&b.used);
    cr_assert_eq(used, 0, "%d allocations in 100 posts", used);
    sheaf_comm_stats stats = sheaf_comm_stats_of(s->p.comm, 1);
    cr_assert_eq(stats.posts, 101, "%lu posts", (unsigned long)stats.posts);
    cr_assert_eq(stats.bytes, 101 * ROW * 8, "%lu bytes", (unsigned long)stats.bytes);
    scene_close(s);
}
