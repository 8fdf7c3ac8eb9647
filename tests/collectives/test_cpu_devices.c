/* Sums between real CPU devices: their teams, their queues, their own norm. More devices than cores is
 * the usual case here. */
#include "tests/collectives/party.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { ROW = 576, MAX_ROWS = 40, OPS = 30 };

typedef struct house {
    sheaf_registry *registry;
    sheaf_world *world;
    sheaf_comm *comm;
    int n;
    sheaf_device *device[PARTY_MAX];
    sheaf_backend *backend[PARTY_MAX];
    sheaf_comm_op *op[OPS];
    float *out[PARTY_MAX][OPS], *norm[PARTY_MAX][OPS];
} house;

static float weight[ROW], residual[MAX_ROWS * ROW];

static void house_open(house *h, const char *list, int threads) {
    sheaf_open_options opts = {.n_threads = threads, .n_parts = 1};
    memset(h, 0, sizeof *h);
    cr_assert_eq(sheaf_world_open(&h->world), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_registry_new(&h->registry), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_devices_open(h->registry, list, &opts, h->device, PARTY_MAX, &h->n), SHEAF_OK, "%s",
                 sheaf_error());
    for (int k = 0; k < h->n; k++)
        cr_assert_eq(sheaf_backend_new(h->device[k], &h->backend[k]), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_comm_new(h->world, h->device, h->n, &h->comm), SHEAF_OK, "%s", sheaf_error());
    for (int k = 0; k < h->n; k++) sheaf_comm_attach(h->comm, k, h->backend[k]->queue);
    cr_assert_eq(sheaf_comm_reserve_staging(h->comm, sizeof(double) * MAX_ROWS * ROW), SHEAF_OK);
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE,
                         .type = SHEAF_F64,
                         .row = ROW,
                         .max_rows = MAX_ROWS,
                         .staged = true,
                         .epilogue = {true, true, 1e-5f},
                         .name = "attn_out"};
    for (int t = 0; t < OPS; t++) {
        cr_assert_eq(sheaf_comm_compile(h->comm, &d, &h->op[t]), SHEAF_OK, "%s", sheaf_error());
        for (int k = 0; k < h->n; k++) {
            h->out[k][t] = sheaf_malloc(sizeof(float) * MAX_ROWS * ROW);
            h->norm[k][t] = sheaf_malloc(sizeof(float) * MAX_ROWS * ROW);
        }
    }
}

static void house_close(house *h) {
    for (int k = 0; k < h->n; k++) {
        sheaf_backend_free(h->backend[k]);
        for (int t = 0; t < OPS; t++) {
            sheaf_free(h->out[k][t]);
            sheaf_free(h->norm[k][t]);
        }
    }
    sheaf_comm_free(h->comm);
    sheaf_registry_free(h->registry);
    sheaf_world_close(h->world);
}

static double value(int device, int op, int64_t e) {
    uint64_t seed = (uint64_t)device * 1000003 + (uint64_t)op * 7919 + (uint64_t)e;
    return (float)next_unit(&seed) * (device % 2 ? 1000.0 : 0.001);
}

typedef struct maker {
    double *to;
    int device, op;
    int64_t n;
} maker;

static sheaf_status make(void *ctx, int i, int n, sheaf_queue *q) {
    maker *m = ctx;
    (void)q;
    for (int64_t e = i; e < m->n; e += n) m->to[e] = value(m->device, m->op, e);
    return SHEAF_OK;
}

static void check(house *h, int t, int64_t rows) {
    float want[ROW], norm[ROW];
    const sheaf_row_kernels *own = h->device[0]->iface->row_kernels(h->device[0]);
    for (int64_t r = 0; r < rows; r++) {
        for (int e = 0; e < ROW; e++) {
            double one[PARTY_MAX];
            const double *leaf[PARTY_MAX];
            for (int k = 0; k < h->n; k++) {
                one[k] = value(k, t, r * ROW + e);
                leaf[k] = &one[k];
            }
            want[e] = (float)reference_sum_f64(h->n, 0, leaf, 0) + residual[r * ROW + e];
        }
        own->rms_norm(norm, want, weight, ROW, 1e-5f);
        for (int k = 0; k < h->n; k++) {
            cr_assert_eq(memcmp(h->out[k][t] + r * ROW, want, sizeof want), 0, "%d devices, op %d, row %ld: sum on %d",
                         h->n, t, (long)r, k);
            cr_assert_eq(memcmp(h->norm[k][t] + r * ROW, norm, sizeof norm), 0,
                         "%d devices, op %d, row %ld: norm on %d", h->n, t, (long)r, k);
        }
    }
}

static void play(house *h, int64_t rows) {
    static maker makers[PARTY_MAX][OPS];
    for (int t = 0; t < OPS; t++) {
        for (int k = 0; k < h->n; k++) {
            double *in = sheaf_comm_staging(h->comm, k, t & 1);
            makers[k][t] = (maker){in, k, t, rows * ROW};
            sheaf_queue_call(h->backend[k]->queue, make, &makers[k][t]);
            sheaf_comm_args a = {.in = in,
                                 .out = h->out[k][t],
                                 .rows = rows,
                                 .residual = residual,
                                 .norm_weight = weight,
                                 .norm_out = h->norm[k][t]};
            cr_assert_eq(sheaf_comm_post(h->op[t], k, h->backend[k]->queue, &a), SHEAF_OK, "%s", sheaf_error());
        }
    }
    for (int k = 0; k < h->n; k++) {
        sheaf_status s = sheaf_queue_synchronize(h->backend[k]->queue);
        cr_assert_eq(s, SHEAF_OK, "%s: %s", sheaf_status_name(s), sheaf_error());
    }
    for (int t = 0; t < OPS; t++) check(h, t, rows);
}

Test(cpu_devices, fused_sums_have_the_bits_of_the_devices_own_norm, .timeout = 240) {
    static const struct {
        const char *list;
        int threads;
    } cases[] = {{"cpu", 2}, {"cpu/2", 2}, {"cpu/2", 5}, {"cpu/3", 3}, {"cpu/5", 5}};
    for (int e = 0; e < ROW; e++) weight[e] = 1.0f + (float)(e % 5) / 8;
    for (int e = 0; e < MAX_ROWS * ROW; e++) residual[e] = (float)(e % 17) - 8;
    for (int c = 0; c < 5; c++) {
        house h;
        house_open(&h, cases[c].list, cases[c].threads);
        play(&h, 1);
        play(&h, 3);
        play(&h, MAX_ROWS);
        play(&h, 1);
        house_close(&h);
    }
}

static sheaf_status break_down(void *ctx, int i, int n, sheaf_queue *q) {
    (void)ctx, (void)n, (void)q;
    return i == 0 ? sheaf_fail(SHEAF_E_DEVICE, "kernel 3 (mul_mat): pretended") : SHEAF_OK;
}

Test(cpu_devices, a_failed_device_is_named_by_the_others, .timeout = 60) {
    house h;
    char text[2][256];
    sheaf_status got[2];
    house_open(&h, "cpu/2", 2);
    sheaf_comm_args a[2];
    for (int k = 0; k < 2; k++) {
        a[k] = (sheaf_comm_args){.in = sheaf_comm_staging(h.comm, k, 0),
                                 .out = h.out[k][0],
                                 .rows = 1,
                                 .residual = residual,
                                 .norm_weight = weight,
                                 .norm_out = h.norm[k][0]};
        memset((void *)a[k].in, 0, ROW * 8);
    }
    cr_assert_eq(sheaf_comm_post(h.op[0], 0, h.backend[0]->queue, &a[0]), SHEAF_OK);
    sheaf_queue_call(h.backend[1]->queue, break_down, NULL);
    int64_t start = sheaf_now_ns();
    for (int k = 0; k < 2; k++) {
        got[k] = sheaf_queue_synchronize(h.backend[k]->queue);
        snprintf(text[k], sizeof text[k], "%s", sheaf_error());
    }
    int64_t ms = (sheaf_now_ns() - start) / 1000000;
    cr_assert(ms < 10000, "%ld ms", (long)ms);
    cr_assert(got[0] == SHEAF_E_PEER && strstr(text[0], "kernel 3 (mul_mat): pretended") && strstr(text[0], "device 1"),
              "%s: %s", sheaf_status_name(got[0]), text[0]);
    cr_assert(got[1] == SHEAF_E_DEVICE, "%s: %s", sheaf_status_name(got[1]), text[1]);
    cr_assert_eq(sheaf_comm_reset(h.comm), SHEAF_OK);
    play(&h, 1);
    house_close(&h);
}
