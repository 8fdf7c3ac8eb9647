/* Gathers, broadcasts, messages, barriers: bytes arrive where they belong. */
#include "tests/collectives/party.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROW = 50 };

/* Device k holds k pieces' worth, some none; two pieces of one device lie apart and in reverse order. */
static const sheaf_gather_piece pieces[] = {
    {.at = 0, .length = 11, .src_at = 4, .from = 0},   {.at = 11, .length = 20, .src_at = 0, .from = 2},
    {.at = 31, .length = 4, .src_at = 0, .from = 0},   {.at = 35, .length = 0, .src_at = 0, .from = 1},
    {.at = 35, .length = 15, .src_at = 20, .from = 2},
};
static const int64_t share[4] = {15, 0, 35, 0};

static void run_gather(int threads, int64_t rows) {
    party p;
    int32_t in[4][35 * 9], out[4][ROW * 9];
    sheaf_comm_op *op;
    cr_assert(party_open(&p, 4, threads, ""));
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLGATHER,
                         .type = SHEAF_I32,
                         .row = ROW,
                         .max_rows = 9,
                         .pieces = pieces,
                         .n_pieces = 5,
                         .share = share,
                         .name = "logits"};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &op), SHEAF_OK, "%s", sheaf_error());
    sheaf_comm_args args[4];
    for (int k = 0; k < 4; k++) {
        for (int e = 0; e < 35 * 9; e++) in[k][e] = k * 100000 + e;
        memset(out[k], 0xff, sizeof out[k]);
        args[k] = (sheaf_comm_args){.in = share[k] ? in[k] : NULL, .out = out[k], .rows = rows};
    }
    for (int turn = 0; turn < 5; turn++) {
        cr_assert_eq(party_post(&p, op, args, turn), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    }
    for (int k = 0; k < 4; k++) {
        for (int64_t r = 0; r < rows; r++) {
            for (int j = 0; j < 5; j++) {
                for (int64_t e = 0; e < pieces[j].length; e++) {
                    int from = pieces[j].from;
                    int32_t want = (int32_t)(from * 100000 + r * share[from] + pieces[j].src_at + e);
                    int32_t got = out[k][r * ROW + pieces[j].at + e];
                    cr_assert_eq(got, want, "device %d row %ld piece %d element %ld: %d, want %d", k, (long)r, j,
                                 (long)e, got, want);
                }
            }
        }
        if (rows < 9) cr_assert_eq(out[k][rows * ROW], -1, "written behind the last row");
    }
    party_close(&p);
}

Test(kinds, uneven_and_empty_shares_are_gathered, .timeout = 60) {
    for (int threads = 1; threads <= 3; threads++) {
        for (int64_t rows = 0; rows <= 9; rows += 3) run_gather(threads, rows);
        run_gather(threads, 1);
    }
}

Test(kinds, every_root_broadcasts, .timeout = 60) {
    for (int n = 1; n <= 9; n++) {
        party p;
        cr_assert(party_open(&p, n, 1 + n % 2, ""));
        for (int root = 0; root < n; root++) {
            uint16_t in[300], out[PARTY_MAX][300];
            sheaf_comm_op *op;
            sheaf_comm_desc d = {
                .kind = SHEAF_COMM_BROADCAST, .type = SHEAF_F16, .row = 100, .max_rows = 3, .root = root};
            cr_assert_eq(sheaf_comm_compile(p.comm, &d, &op), SHEAF_OK);
            sheaf_comm_args args[PARTY_MAX];
            for (int e = 0; e < 300; e++) in[e] = (uint16_t)(root * 300 + e);
            for (int k = 0; k < n; k++)
                args[k] = (sheaf_comm_args){.in = k == root ? in : NULL, .out = out[k], .rows = 3};
            cr_assert_eq(party_post(&p, op, args, root), SHEAF_OK, "%s", sheaf_error());
            cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
            for (int k = 0; k < n; k++)
                cr_assert_eq(memcmp(in, out[k], sizeof in), 0, "N=%d root=%d: device %d", n, root, k);
        }
        party_close(&p);
    }
}

/* A chain 0 -> 1 -> 2 -> 3, several messages deep, with the first device far ahead. */
Test(kinds, messages_pass_from_device_to_device_in_order, .timeout = 60) {
    enum { N = 4, DEEP = 4, LENGTH = 1000 };
    party p;
    static float data[N][DEEP][LENGTH];
    sheaf_comm_op *send[N], *receive[N];
    cr_assert(party_open(&p, N, 2, ""));
    for (int k = 0; k < N; k++) {
        sheaf_comm_desc d = {.kind = SHEAF_COMM_SEND, .type = SHEAF_F32, .row = LENGTH, .max_rows = 1, .name = "stage"};
        d.root = (k + 1) % N;
        cr_assert_eq(sheaf_comm_compile(p.comm, &d, &send[k]), SHEAF_OK, "%s", sheaf_error());
        d.kind = SHEAF_COMM_RECV;
        d.root = (k + N - 1) % N;
        cr_assert_eq(sheaf_comm_compile(p.comm, &d, &receive[k]), SHEAF_OK, "%s", sheaf_error());
    }
    for (int j = 0; j < DEEP; j++) {
        for (int e = 0; e < LENGTH; e++) data[0][j][e] = (float)(j * LENGTH + e);
    }
    for (int k = 0; k < N; k++) {
        for (int j = 0; j < DEEP; j++) {
            sheaf_comm_args a = {.in = data[k][j], .out = data[k][j], .rows = 1};
            if (k > 0) cr_assert_eq(sheaf_comm_post(receive[k], k, p.queue[k], &a), SHEAF_OK, "%s", sheaf_error());
            if (k + 1 < N) cr_assert_eq(sheaf_comm_post(send[k], k, p.queue[k], &a), SHEAF_OK, "%s", sheaf_error());
        }
    }
    cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    for (int j = 0; j < DEEP; j++) {
        cr_assert_eq(memcmp(data[N - 1][j], data[0][j], sizeof data[0][j]), 0, "message %d", j);
    }
    party_close(&p);
}

Test(kinds, a_message_of_another_size_is_an_error_on_both_sides, .timeout = 30) {
    party p;
    float a[8] = {0}, b[8];
    sheaf_status each[PARTY_MAX];
    sheaf_comm_op *send, *receive;
    cr_assert(party_open(&p, 2, 1, ""));
    sheaf_comm_desc d = {.kind = SHEAF_COMM_SEND, .type = SHEAF_F32, .row = 8, .max_rows = 1, .root = 1, .name = "odd"};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &send), SHEAF_OK);
    d.kind = SHEAF_COMM_RECV;
    d.root = 0;
    d.row = 7;
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &receive), SHEAF_OK);
    sheaf_comm_post(send, 0, p.queue[0], &(sheaf_comm_args){.in = a, .rows = 1});
    sheaf_comm_post(receive, 1, p.queue[1], &(sheaf_comm_args){.out = b, .rows = 1});
    party_wait(&p, each, NULL);
    cr_assert_eq(each[0], SHEAF_E_SHAPE, "sender: %s", sheaf_status_name(each[0]));
    cr_assert_eq(each[1], SHEAF_E_SHAPE, "receiver: %s", sheaf_status_name(each[1]));
    party_close(&p);
}

static sheaf_status bump(void *ctx, int i, int n, sheaf_queue *q) {
    (void)n, (void)q;
    if (i == 0) atomic_fetch_add((atomic_int *)ctx, 1);
    return SHEAF_OK;
}

typedef struct seen {
    atomic_int *count;
    int value;
} seen;

static sheaf_status look(void *ctx, int i, int n, sheaf_queue *q) {
    seen *s = ctx;
    (void)n, (void)q;
    if (i == 0) s->value = atomic_load(s->count);
    return SHEAF_OK;
}

Test(kinds, nobody_passes_a_barrier_before_everybody_came, .timeout = 60) {
    for (int n = 2; n <= 9; n += 3) {
        party p;
        atomic_int count = 0;
        int late = 3000;
        seen saw[PARTY_MAX];
        sheaf_comm_op *op;
        sheaf_comm_args none[PARTY_MAX] = {0};
        cr_assert(party_open(&p, n, 2, ""));
        cr_assert_eq(sheaf_comm_compile(p.comm, &(sheaf_comm_desc){.kind = SHEAF_COMM_BARRIER}, &op), SHEAF_OK);
        sheaf_queue_call(p.queue[n / 2], late_call, &late);
        for (int k = 0; k < n; k++) sheaf_queue_call(p.queue[k], bump, &count);
        cr_assert_eq(party_post(&p, op, none, 0), SHEAF_OK);
        for (int k = 0; k < n; k++) {
            saw[k].count = &count;
            sheaf_queue_call(p.queue[k], look, &saw[k]);
        }
        cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK);
        for (int k = 0; k < n; k++) cr_assert_eq(saw[k].value, n, "device %d saw %d of %d", k, saw[k].value, n);
        party_close(&p);
    }
}

Test(kinds, descriptions_that_do_not_fit_are_refused, .timeout = 30) {
    party p;
    sheaf_comm_op *op = NULL;
    static const int64_t shares[2] = {4, 4};
    static const sheaf_gather_piece outside = {.at = 5, .length = 4, .src_at = 0, .from = 1};
    static const sheaf_gather_piece stranger = {.at = 0, .length = 4, .src_at = 0, .from = 2};
    static const sheaf_gather_piece beyond = {.at = 0, .length = 4, .src_at = 1, .from = 0};
    sheaf_comm_desc bad[] = {
        {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_Q4_0, .row = 32, .max_rows = 1},
        {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_I8, .row = 32, .max_rows = 1},
        {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F16, .row = 32, .max_rows = 1, .epilogue = {.add = true}},
        {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F32, .row = -1, .max_rows = 1},
        {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F32, .row = INT64_MAX / 2, .max_rows = 1 << 20},
        {.kind = SHEAF_COMM_BROADCAST, .type = SHEAF_F32, .row = 8, .max_rows = 1, .root = 2},
        {.kind = SHEAF_COMM_ALLGATHER,
         .type = SHEAF_F32,
         .row = 8,
         .max_rows = 1,
         .pieces = &outside,
         .n_pieces = 1,
         .share = shares},
        {.kind = SHEAF_COMM_ALLGATHER,
         .type = SHEAF_F32,
         .row = 8,
         .max_rows = 1,
         .pieces = &stranger,
         .n_pieces = 1,
         .share = shares},
        {.kind = SHEAF_COMM_ALLGATHER,
         .type = SHEAF_F32,
         .row = 8,
         .max_rows = 1,
         .pieces = &beyond,
         .n_pieces = 1,
         .share = shares},
        {.kind = SHEAF_COMM_ALLGATHER, .type = SHEAF_F32, .row = 8, .max_rows = 1},
        {.kind = (sheaf_comm_kind)99, .type = SHEAF_F32, .row = 8, .max_rows = 1},
    };
    cr_assert(party_open(&p, 2, 1, ""));
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        sheaf_status s = sheaf_comm_compile(p.comm, &bad[k], &op);
        cr_assert(s < 0 && !op, "description %zu: %s", k, sheaf_status_name(s));
    }
    float x[8] = {0}, y[8];
    sheaf_comm_desc d = {
        .kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F32, .row = 8, .max_rows = 1, .epilogue = {.add = true}};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &op), SHEAF_OK);
    sheaf_comm_args args[] = {{.in = x, .out = y, .rows = 2, .residual = x},
                              {.in = x, .out = y, .rows = 1},
                              {.out = y, .rows = 1, .residual = x},
                              {.in = x, .rows = 1, .residual = x}};
    for (size_t k = 0; k < 4; k++) {
        sheaf_status s = sheaf_comm_post(op, 0, p.queue[0], &args[k]);
        cr_assert(s < 0, "arguments %zu: %s", k, sheaf_status_name(s));
    }
    cr_assert_eq(sheaf_comm_post(op, 2, p.queue[0], &args[0]), SHEAF_E_ARGUMENT);
    party_close(&p);
}

Test(kinds, staging_slots_take_turns, .timeout = 30) {
    party p;
    float y[2][8];
    sheaf_comm_op *sum, *barrier;
    cr_assert(party_open(&p, 2, 1, ""));
    cr_assert_null(sheaf_comm_staging(p.comm, 0, 0));
    cr_assert_eq(sheaf_comm_reserve_staging(p.comm, 64), SHEAF_OK);
    cr_assert(sheaf_comm_reserve_staging(p.comm, SIZE_MAX / 2) < 0, "half of all addresses");
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = 8, .max_rows = 1, .staged = true};
    cr_assert_eq(sheaf_comm_compile(p.comm, &d, &sum), SHEAF_OK);
    cr_assert_eq(sheaf_comm_compile(p.comm, &(sheaf_comm_desc){.kind = SHEAF_COMM_BARRIER}, &barrier), SHEAF_OK);
    sheaf_comm_args a[2], none[2] = {0};
    for (int slot = 0; slot < 2; slot++) {
        for (int k = 0; k < 2; k++) {
            a[k] = (sheaf_comm_args){.in = sheaf_comm_staging(p.comm, k, slot), .out = y[k], .rows = 1};
            memset((void *)a[k].in, 0, 64);
        }
        cr_assert_eq(party_post(&p, sum, a, 0), SHEAF_OK, "%s", sheaf_error());
    }
    sheaf_status s = sheaf_comm_post(sum, 0, p.queue[0], &a[0]);
    cr_assert_eq(s, SHEAF_E_ARGUMENT, "the same slot twice: %s", sheaf_status_name(s));
    cr_assert_eq(party_post(&p, barrier, none, 0), SHEAF_OK);
    cr_assert_eq(party_post(&p, sum, a, 0), SHEAF_OK, "after a barrier: %s", sheaf_error());
    double elsewhere[8] = {0};
    a[0].in = elsewhere;
    s = sheaf_comm_post(sum, 0, p.queue[0], &a[0]);
    cr_assert_eq(s, SHEAF_E_ARGUMENT, "outside staging: %s", sheaf_status_name(s));
    cr_assert_eq(party_wait(&p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    party_close(&p);
}
