/* Ten thousand ops in a row with nobody waiting in between: addends are rewritten the moment their op
 * allows it, so an op that reads late, or a slot that is reused early, shows as a wrong sum. */
#include "tests/collectives/party.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>

enum { OPS = UNDER_TSAN ? 1500 : 10000, ROW = 96, MOST_ROWS = 200 };

typedef struct writer {
    double *to;
    int op, device, n;
} writer;

/* The kernel in front of a sum: its addend, made by the whole team. */
static sheaf_status write_addend(void *ctx, int i, int n, sheaf_queue *q) {
    writer *w = ctx;
    (void)q;
    for (int e = i; e < w->n; e += n) w->to[e] = (double)w->op * 16 + w->device + e;
    return SHEAF_OK;
}

typedef struct checker {
    float *out;
    int op, devices, n;
    atomic_int *wrong;
} checker;

static sheaf_status check_sum(void *ctx, int i, int n, sheaf_queue *q) {
    checker *c = ctx;
    (void)q;
    for (int e = i; e < c->n; e += n) {
        double want =
            (double)c->op * 16 * c->devices + (double)(c->devices * (c->devices - 1) / 2) + (double)e * c->devices;
        if (c->out[e] != (float)want) atomic_fetch_add(c->wrong, 1);
        c->out[e] = -1; /* as what follows in a plan would: the result's memory is free again */
    }
    return SHEAF_OK;
}

static void stream_rows(int devices, int threads, const char *pin, bool staged, int ops, int rows) {
    enum { DEPTH = 16, WINDOW = SHEAF_COMM_IN_FLIGHT };
    party p;
    static double plain[PARTY_MAX][ROW * MOST_ROWS];
    static float out[PARTY_MAX][ROW * MOST_ROWS];
    static writer writers[PARTY_MAX][DEPTH];
    static checker checkers[PARTY_MAX][DEPTH];
    atomic_int wrong = 0;
    sheaf_comm_op *op;
    cr_assert(party_open(&p, devices, threads, pin));
    cr_assert_eq(sheaf_comm_reserve_staging(p.comm, (size_t)(ROW * rows) * 8), SHEAF_OK);
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE,
                         .type = SHEAF_F64,
                         .row = ROW,
                         .max_rows = rows,
                         .staged = staged,
                         .name = "stream"};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &op), SHEAF_OK, "%s", sheaf_error());
    for (int k = 0; k < ops; k++) {
        for (int m = 0; m < devices; m++) {
            double *in = staged ? sheaf_comm_staging(p.comm, m, k & 1) : plain[m];
            writers[m][k % DEPTH] = (writer){in, k, m, ROW * rows};
            checkers[m][k % DEPTH] = (checker){out[m], k, devices, ROW * rows, &wrong};
            sheaf_queue_call(p.queue[m], write_addend, &writers[m][k % DEPTH]);
            sheaf_comm_args a = {.in = in, .out = out[m], .rows = rows};
            cr_assert_eq(sheaf_comm_post(op, m, p.queue[m], &a), SHEAF_OK, "%s", sheaf_error());
            sheaf_queue_call(p.queue[m], check_sum, &checkers[m][k % DEPTH]);
        }
        if (k % WINDOW == WINDOW - 1) cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    }
    cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    int bad = atomic_load(&wrong);
    cr_assert_eq(bad, 0, "%s, %d devices, %s: %d wrong elements in %d ops", pin, devices, staged ? "staged" : "plain",
                 bad, ops);
    party_close(&p);
}

static void stream(int devices, int threads, const char *pin, bool staged, int ops) {
    stream_rows(devices, threads, pin, staged, ops, 1);
}

Test(races, ten_thousand_staged_sums, .timeout = 300) {
    stream(2, 1, "shm", true, OPS);
    stream(3, 2, "shm", true, OPS / 5);
}

Test(races, ten_thousand_sums_of_reused_addends, .timeout = 300) {
    stream(2, 1, "shm", false, OPS);
    stream(4, 1, "shm", false, OPS / 5);
}

Test(races, more_members_than_cores_progress, .timeout = 300) { stream(9, 1, "shm", true, OPS / 10); }

Test(races, butterflies_and_rings_in_a_row, .timeout = 300) {
    stream(2, 1, "peer", false, OPS / 5);
    stream(3, 2, "peer", true, OPS / 10);
    stream(5, 1, "peer", false, OPS / 10);
    stream(3, 1, "ring", false, OPS / 10);
    stream(4, 2, "ring", false, OPS / 10);
}

/* More than 128 KiB of addends and more rows than devices: each member sums a share of the rows, then all take the
 * others' shares. An addend is written again, and a result read, as soon as the op lets go of it. */
Test(races, sums_in_two_shots_in_a_row, .timeout = 300) {
    stream_rows(2, 1, "shm", false, OPS / 20, MOST_ROWS);
    stream_rows(3, 2, "shm", true, OPS / 50, MOST_ROWS);
    stream_rows(5, 1, "shm", false, OPS / 50, MOST_ROWS);
    stream_rows(3, 1, "peer", false, OPS / 50, MOST_ROWS);
}
