/* Ten thousand ops in a row with nobody waiting in between: addends are rewritten the moment their op
 * allows it, so an op that reads late, or a slot that is reused early, shows as a wrong sum. */
#include "tests/collectives/party.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>

enum { OPS = UNDER_TSAN ? 1500 : 10000, ROW = 96 };

typedef struct writer {
    double *to;
    int op, device;
} writer;

/* The kernel in front of a sum: its addend, made by the whole team. */
static sheaf_status write_addend(void *ctx, int i, int n, sheaf_queue *q) {
    writer *w = ctx;
    (void)q;
    for (int e = i; e < ROW; e += n) w->to[e] = (double)w->op * 16 + w->device + e;
    return SHEAF_OK;
}

typedef struct checker {
    const float *out;
    int op, devices;
    atomic_int *wrong;
} checker;

static sheaf_status check_sum(void *ctx, int i, int n, sheaf_queue *q) {
    checker *c = ctx;
    (void)q;
    for (int e = i; e < ROW; e += n) {
        double want =
            (double)c->op * 16 * c->devices + (double)(c->devices * (c->devices - 1) / 2) + (double)e * c->devices;
        if (c->out[e] != (float)want) atomic_fetch_add(c->wrong, 1);
    }
    return SHEAF_OK;
}

static void stream(int devices, int threads, const char *pin, bool staged, int ops) {
    enum { DEPTH = 16, WINDOW = SHEAF_COMM_IN_FLIGHT };
    party p;
    static double plain[PARTY_MAX][ROW];
    static float out[PARTY_MAX][ROW];
    static writer writers[PARTY_MAX][DEPTH];
    static checker checkers[PARTY_MAX][DEPTH];
    atomic_int wrong = 0;
    sheaf_comm_op *op;
    cr_assert(party_open(&p, devices, threads, pin));
    cr_assert_eq(sheaf_comm_reserve_staging(p.comm, ROW * 8), SHEAF_OK);
    sheaf_comm_desc d = {
        .kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = ROW, .max_rows = 1, .staged = staged, .name = "stream"};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &op), SHEAF_OK, "%s", sheaf_error());
    for (int k = 0; k < ops; k++) {
        for (int m = 0; m < devices; m++) {
            double *in = staged ? sheaf_comm_staging(p.comm, m, k & 1) : plain[m];
            writers[m][k % DEPTH] = (writer){in, k, m};
            checkers[m][k % DEPTH] = (checker){out[m], k, devices, &wrong};
            sheaf_queue_call(p.queue[m], write_addend, &writers[m][k % DEPTH]);
            sheaf_comm_args a = {.in = in, .out = out[m], .rows = 1};
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
