/* A program for mpirun: ranks with different numbers of pretend devices sum, gather, broadcast, pass
 * messages and fail together. Each rank checks what it holds and reports by exit code, and prints a
 * hash of all sums, which must not depend on the rank, nor on how the devices are spread over ranks.
 *
 *     mpirun -n 2 mpi_world SCENE LIST      LIST: devices of each rank, "1,2"
 *
 * Scenes: sums kinds stuck fails cancels abandons leaves */
#include "tests/collectives/party.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "rank %d, %s:%d: %s: ", rank, __FILE__, __LINE__, #cond);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct job {
    party p;
    int n, first; /* devices of the world, number of our first */
    uint64_t hash;
} job;

static void mix(job *j, const void *bytes, size_t n) {
    const unsigned char *b = bytes;
    for (size_t k = 0; k < n; k++) j->hash = (j->hash ^ b[k]) * 0x100000001b3u;
}

static int my_devices(const char *list, int at) {
    for (; at > 0; at--) {
        list = strchr(list, ',');
        if (!list) return 0;
        list++;
    }
    return atoi(list);
}

/* The party opens its own world; the number of devices is known before by the launcher's rank. */
static void open_job(job *j, const char *list) {
    memset(j, 0, sizeof *j);
    j->hash = 0xcbf29ce484222325u;
    int at = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    CHECK(party_open(&j->p, my_devices(list, at), 1 + at % 2, ""), "%s", sheaf_error());
    rank = sheaf_world_rank(j->p.world);
    j->n = sheaf_comm_devices(j->p.comm);
    j->first = sheaf_comm_first(j->p.comm);
}

static double *addend(int device, int64_t count, int round) {
    double *v = sheaf_malloc((size_t)count * 8);
    uint64_t seed = (uint64_t)(device * 1000 + round);
    /* wide exponents: any other order of addition would show */
    for (int64_t e = 0; e < count; e++) {
        v[e] = next_unit(&seed);
        v[e] *= (double)(1ull << (next_random(&seed) % 50));
    }
    return v;
}

static void one_sum(job *j, int64_t row, int64_t rows, bool fused, uint64_t empty, int round) {
    sheaf_comm_op *op;
    int64_t count = row * rows;
    double *all[MAX_DEVICES];
    float *out[PARTY_MAX], *norm[PARTY_MAX], *want = sheaf_malloc((size_t)count * 4 + 4);
    float *want_norm = sheaf_malloc((size_t)count * 4 + 4), *residual = sheaf_malloc((size_t)count * 4 + 4);
    sheaf_comm_args args[PARTY_MAX];
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE,
                         .type = SHEAF_F64,
                         .row = row,
                         .max_rows = rows,
                         .empty = empty,
                         .epilogue = {fused, fused, 1e-5f},
                         .name = "sum"};
    CHECK(!sheaf_comm_compile(j->p.comm, &d, &op), "%s", sheaf_error());
    for (int k = 0; k < j->n; k++) all[k] = addend(k, count, round);
    for (int64_t e = 0; e < count; e++) {
        residual[e] = (float)(e % 7) - 3;
        want[e] = (float)reference_sum_f64(j->n, empty, (const double *const *)all, e);
    }
    if (fused) reference_epilogue(want, residual, NULL, want_norm, row, rows, 1e-5f);
    for (int k = 0; k < j->p.n; k++) {
        out[k] = sheaf_malloc((size_t)count * 4 + 4);
        norm[k] = sheaf_malloc((size_t)count * 4 + 4);
        bool none = empty >> (j->first + k) & 1;
        args[k] = (sheaf_comm_args){.in = none ? NULL : all[j->first + k],
                                    .out = out[k],
                                    .rows = rows,
                                    .residual = residual,
                                    .norm_out = norm[k]};
    }
    CHECK(!party_post(&j->p, op, args, round), "%s", sheaf_error());
    CHECK(!party_wait(&j->p, NULL, NULL), "%s", sheaf_error());
    for (int k = 0; k < j->p.n; k++) {
        CHECK(!memcmp(out[k], want, (size_t)count * 4), "sum of %ldx%ld on device %d", (long)rows, (long)row,
              j->first + k);
        CHECK(!fused || !memcmp(norm[k], want_norm, (size_t)count * 4), "norm on device %d", j->first + k);
        if (k == 0) mix(j, out[k], (size_t)count * 4);
        sheaf_free(out[k]);
        sheaf_free(norm[k]);
    }
    for (int k = 0; k < j->n; k++) sheaf_free(all[k]);
    sheaf_free(want);
    sheaf_free(want_norm);
    sheaf_free(residual);
    sheaf_comm_op_free(op);
}

static void scene_sums(job *j) {
    one_sum(j, 64, 1, false, 0, 1);
    one_sum(j, 576, 1, true, 0, 2);
    one_sum(j, 1, 1, false, 0, 3);
    one_sum(j, 7, 0, false, 0, 4);
    one_sum(j, 4099, 70, true, 0, 5); /* several chunks */
    one_sum(j, 33, 5, true, 1, 6);
    one_sum(j, 33, 2, false, (1u << j->n) - 1, 7);
    for (int k = 0; k < 60; k++) one_sum(j, 48, 1, true, 0, 10 + k);
    printf("hash %016lx\n", (unsigned long)j->hash);
}

static void scene_gather(job *j) {
    int64_t share[MAX_DEVICES], at = 0;
    sheaf_gather_piece pieces[MAX_DEVICES];
    sheaf_comm_op *op;
    sheaf_comm_args args[PARTY_MAX];
    static float in[PARTY_MAX][4096], out[PARTY_MAX][8192];
    for (int k = 0; k < j->n; k++) {
        share[k] = k == 1 ? 0 : 3 + 5 * k;
        pieces[k] = (sheaf_gather_piece){.at = at, .length = share[k], .src_at = 0, .from = k};
        at += share[k];
    }
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLGATHER,
                         .type = SHEAF_F32,
                         .row = at,
                         .max_rows = 6,
                         .pieces = pieces,
                         .n_pieces = j->n,
                         .share = share,
                         .name = "gather"};
    CHECK(!sheaf_comm_compile(j->p.comm, &d, &op), "%s", sheaf_error());
    for (int64_t rows = 0; rows <= 6; rows += 3) {
        for (int k = 0; k < j->p.n; k++) {
            int device = j->first + k;
            for (int64_t e = 0; e < share[device] * rows; e++) in[k][e] = (float)(device * 1000 + e + rows);
            args[k] = (sheaf_comm_args){.in = share[device] ? in[k] : NULL, .out = out[k], .rows = rows};
        }
        CHECK(!party_post(&j->p, op, args, 0), "%s", sheaf_error());
        CHECK(!party_wait(&j->p, NULL, NULL), "%s", sheaf_error());
        for (int k = 0; k < j->p.n; k++) {
            for (int64_t r = 0; r < rows; r++) {
                for (int f = 0; f < j->n; f++) {
                    for (int64_t e = 0; e < share[f]; e++) {
                        float want = (float)(f * 1000 + r * share[f] + e + rows),
                              got = out[k][r * at + pieces[f].at + e];
                        CHECK(got == want, "gathered %g, want %g", (double)got, (double)want);
                    }
                }
            }
        }
    }
}

static void scene_broadcast(job *j) {
    static int32_t in[3000], out[PARTY_MAX][3000];
    for (int root = 0; root < j->n; root++) {
        sheaf_comm_op *op;
        sheaf_comm_args args[PARTY_MAX];
        sheaf_comm_desc d = {.kind = SHEAF_COMM_BROADCAST, .type = SHEAF_I32, .row = 1000, .max_rows = 3, .root = root};
        CHECK(!sheaf_comm_compile(j->p.comm, &d, &op), "%s", sheaf_error());
        for (int e = 0; e < 3000; e++) in[e] = root * 10000 + e;
        for (int k = 0; k < j->p.n; k++) {
            memset(out[k], 0, sizeof out[k]);
            args[k] = (sheaf_comm_args){.in = j->first + k == root ? in : NULL, .out = out[k], .rows = 3};
        }
        CHECK(!party_post(&j->p, op, args, root), "%s", sheaf_error());
        CHECK(!party_wait(&j->p, NULL, NULL), "%s", sheaf_error());
        for (int k = 0; k < j->p.n; k++) CHECK(!memcmp(in, out[k], sizeof in), "from %d on %d", root, j->first + k);
    }
}

/* Every device sends to its right neighbour, even ones first. */
static void scene_pairs(job *j) {
    static double data[PARTY_MAX][500], got[PARTY_MAX][500];
    for (int k = 0; k < j->p.n; k++) {
        int device = j->first + k;
        sheaf_comm_op *send, *receive;
        sheaf_comm_desc d = {.type = SHEAF_F64, .row = 500, .max_rows = 1, .name = "pair"};
        for (int e = 0; e < 500; e++) data[k][e] = device * 500 + e;
        d.kind = SHEAF_COMM_SEND;
        d.root = (device + 1) % j->n;
        CHECK(!sheaf_comm_compile(j->p.comm, &d, &send), "%s", sheaf_error());
        d.kind = SHEAF_COMM_RECV;
        d.root = (device + j->n - 1) % j->n;
        CHECK(!sheaf_comm_compile(j->p.comm, &d, &receive), "%s", sheaf_error());
        sheaf_comm_args out = {.in = data[k], .rows = 1}, in = {.out = got[k], .rows = 1};
        bool first = device % 2 == 0 && device != j->n - 1;
        if (first) CHECK(!sheaf_comm_post(send, k, j->p.queue[k], &out), "%s", sheaf_error());
        CHECK(!sheaf_comm_post(receive, k, j->p.queue[k], &in), "%s", sheaf_error());
        if (!first) CHECK(!sheaf_comm_post(send, k, j->p.queue[k], &out), "%s", sheaf_error());
    }
    CHECK(!party_wait(&j->p, NULL, NULL), "%s", sheaf_error());
    for (int k = 0; k < j->p.n; k++) {
        int from = (j->first + k + j->n - 1) % j->n;
        for (int e = 0; e < 500; e++) CHECK(got[k][e] == from * 500 + e, "%g from %d", got[k][e], from);
    }
}

static void scene_world(job *j) {
    sheaf_world *w = j->p.world;
    int ranks = sheaf_world_size(w), mine[2] = {rank, rank * rank}, all[64][2];
    static char text[1 << 16];
    memset(text, rank == 0 ? 'x' : '.', sizeof text);
    CHECK(!sheaf_world_broadcast(w, text, sizeof text), "%s", sheaf_error());
    for (size_t k = 0; k < sizeof text; k++) CHECK(text[k] == 'x', "byte %zu", k);
    CHECK(!sheaf_world_allgather(w, mine, sizeof mine, all), "%s", sheaf_error());
    for (int k = 0; k < ranks; k++) CHECK(all[k][0] == k && all[k][1] == k * k, "%d %d", all[k][0], all[k][1]);
    CHECK(!sheaf_world_barrier(w), "%s", sheaf_error());
    CHECK(sheaf_world_host_size(w) == ranks && sheaf_world_host_rank(w) == rank, "all ranks share this host");
}

static void scene_barrier(job *j) {
    sheaf_comm_op *op;
    sheaf_comm_args none[PARTY_MAX] = {0};
    int late = 50000;
    CHECK(!sheaf_comm_compile(j->p.comm, &(sheaf_comm_desc){.kind = SHEAF_COMM_BARRIER}, &op), "%s", sheaf_error());
    CHECK(!sheaf_world_barrier(j->p.world), "%s", sheaf_error());
    int64_t start = sheaf_now_ns();
    if (rank == 1) sheaf_queue_call(j->p.queue[0], late_call, &late);
    CHECK(!party_post(&j->p, op, none, 0), "%s", sheaf_error());
    CHECK(!party_wait(&j->p, NULL, NULL), "%s", sheaf_error());
    CHECK(sheaf_now_ns() - start > 30000000, "passed %ld us before the late one came",
          (long)(sheaf_now_ns() - start) / 1000);
}

/* --- faults: after each, a reset and a sum that works again ------------------------------------------ */

static sheaf_status sum_once(job *j, char (*text)[256], sheaf_status *each, gate *shut) {
    static double in[PARTY_MAX][32];
    static float out[PARTY_MAX][32];
    static sheaf_comm_op *op;
    sheaf_comm_args args[PARTY_MAX];
    sheaf_comm_desc d = {
        .kind = SHEAF_COMM_ALLREDUCE, .type = SHEAF_F64, .row = 32, .max_rows = 1, .name = "blk.1.out"};
    if (!op) CHECK(!sheaf_comm_compile(j->p.comm, &d, &op), "%s", sheaf_error());
    for (int k = 0; k < j->p.n; k++) {
        for (int e = 0; e < 32; e++) in[k][e] = j->first + k + 1;
        args[k] = (sheaf_comm_args){.in = in[k], .out = out[k], .rows = 1};
    }
    sheaf_status s = party_post(&j->p, op, args, 0);
    if (shut) {
        usleep(1500000);
        atomic_store(&shut->open, 1);
    }
    sheaf_status waited = party_wait(&j->p, each, text);
    if (!s) s = waited;
    float want = (float)(j->n * (j->n + 1) / 2);
    for (int k = 0; !s && k < j->p.n; k++) CHECK(out[k][31] == want, "%g, want %g", (double)out[k][31], (double)want);
    return s;
}

static void expect_recovery(job *j) {
    CHECK(!sheaf_comm_reset(j->p.comm), "%s", sheaf_error());
    CHECK(!sum_once(j, NULL, NULL, NULL), "after reset: %s", sheaf_error());
}

static void scene_stuck(job *j) {
    char text[PARTY_MAX][256];
    sheaf_status each[PARTY_MAX];
    gate shut = {0};
    j->p.comm->timeout_ns = 400000000;
    if (rank == 1) sheaf_queue_call(j->p.queue[0], gate_call, &shut);
    int64_t start = sheaf_now_ns();
    sheaf_status s = sum_once(j, text, each, rank == 1 ? &shut : NULL);
    int64_t ms = (sheaf_now_ns() - start) / 1000000;
    CHECK(s == SHEAF_E_TIMEOUT || s == SHEAF_E_PEER, "%s: %s", sheaf_status_name(s), text[0]);
    CHECK(ms < 5000, "%ld ms", (long)ms);
    if (rank != 1) CHECK(strstr(text[0], "rank 1"), "%s", text[0]);
    expect_recovery(j);
}

static void scene_fails(job *j) {
    char text[PARTY_MAX][256];
    sheaf_status each[PARTY_MAX];
    if (rank == 1) sheaf_queue_call(j->p.queue[0], failing_call, NULL);
    int64_t start = sheaf_now_ns();
    sheaf_status s = sum_once(j, text, each, NULL);
    int64_t ms = (sheaf_now_ns() - start) / 1000000;
    CHECK(s != SHEAF_OK && ms < 5000, "%s after %ld ms", sheaf_status_name(s), (long)ms);
    if (rank != 1) {
        CHECK(each[0] == SHEAF_E_PEER, "%s", sheaf_status_name(each[0]));
        CHECK(strstr(text[0], "rank 1: device") && strstr(text[0], "kernel 7: pretended"), "%s", text[0]);
    }
    expect_recovery(j);
}

static void scene_cancels(job *j) {
    sheaf_status each[PARTY_MAX];
    if (rank == 0) {
        usleep(50000);
        sheaf_comm_cancel(j->p.comm);
    }
    sheaf_status s = sum_once(j, NULL, each, NULL);
    CHECK(s == SHEAF_E_CANCELLED, "%s: %s", sheaf_status_name(s), sheaf_error());
    expect_recovery(j);
}

/* One rank ends the job: the others, who wait without limit for rank 0's word or for each other, are told. */
static void abandoned_by(job *j, int who, const char *text) {
    char word[8] = "";
    if (rank == who) {
        usleep(50000);
        sheaf_world_abandon(j->p.world, sheaf_fail(SHEAF_E_NO_MEMORY, "loading m.gguf: out of memory"));
        return;
    }
    sheaf_status s = who == 0 ? sheaf_world_broadcast(j->p.world, word, 8) : sheaf_world_barrier(j->p.world);
    CHECK(s == SHEAF_E_PEER && strstr(sheaf_error(), text), "%s: %s", sheaf_status_name(s), sheaf_error());
    s = sheaf_world_barrier(j->p.world);
    CHECK(s == SHEAF_E_PEER, "and stays so: %s", sheaf_status_name(s));
}

static void scene_abandons(job *j) { abandoned_by(j, 1, "rank 1: loading m.gguf: out of memory"); }
static void scene_leaves(job *j) { abandoned_by(j, 0, "rank 0: loading m.gguf: out of memory"); }

static const struct {
    const char *name;
    void (*play)(job *j);
} scenes[] = {{"sums", scene_sums},         {"gather", scene_gather}, {"broadcast", scene_broadcast},
              {"pairs", scene_pairs},       {"world", scene_world},   {"barrier", scene_barrier},
              {"stuck", scene_stuck},       {"fails", scene_fails},   {"cancels", scene_cancels},
              {"abandons", scene_abandons}, {"leaves", scene_leaves}};

int main(int argc, char **argv) {
    job j;
    if (argc != 3 || !getenv("OMPI_COMM_WORLD_RANK")) {
        fprintf(stderr, "usage: mpirun -n P mpi_world SCENE LIST\n");
        return 2;
    }
    open_job(&j, argv[2]);
    for (size_t k = 0; k < sizeof scenes / sizeof scenes[0]; k++) {
        if (strcmp(scenes[k].name, argv[1]) != 0) continue;
        scenes[k].play(&j);
        party_close(&j.p);
        return 0;
    }
    fprintf(stderr, "no scene %s\n", argv[1]);
    return 2;
}
