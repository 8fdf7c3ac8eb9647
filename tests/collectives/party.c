/* Pretend devices: threads that walk a ring of calls under one mutex. Slow and obvious on purpose. */
#include "tests/collectives/party.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct pretend_thread {
    pretend *p;
    int i;
    pthread_t id;
} pretend_thread;

struct pretend {
    sheaf_device device;
    sheaf_queue queue;
    int n_threads;
    pretend_thread threads[8];
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned posted, done; /* calls */
    bool quit;
    bool failed;
    unsigned failed_at;
    sheaf_error_box failure;
    struct {
        sheaf_queue_fn fn;
        void *ctx;
    } ring[PRETEND_RING];
};

static pretend *pretend_of(sheaf_queue *q) { return (pretend *)((char *)q - offsetof(pretend, queue)); }

static void keep_failure(pretend *p, unsigned at, sheaf_status s) {
    pthread_mutex_lock(&p->lock);
    bool first = !p->failed;
    if (first) {
        p->failed = true;
        p->failed_at = at;
        sheaf_error_save(&p->failure, s);
    }
    pthread_mutex_unlock(&p->lock);
    if (first && p->queue.on_failure) p->queue.on_failure(p->queue.on_failure_ctx, s);
}

static void walk_one(pretend *p, unsigned at, int i) {
    pthread_mutex_lock(&p->lock);
    bool skip = p->failed && p->failed_at != at;
    pthread_mutex_unlock(&p->lock);
    if (skip) return;
    sheaf_status s = p->ring[at % PRETEND_RING].fn(p->ring[at % PRETEND_RING].ctx, i, p->n_threads, &p->queue);
    if (s) keep_failure(p, at, s);
}

static void *walk(void *arg) {
    pretend_thread *t = arg;
    pretend *p = t->p;
    for (unsigned at = 0;; at++) {
        pthread_mutex_lock(&p->lock);
        while (p->posted == at && !p->quit) pthread_cond_wait(&p->changed, &p->lock);
        bool over = p->posted == at;
        pthread_mutex_unlock(&p->lock);
        if (over) return NULL;
        walk_one(p, at, t->i);
        pthread_barrier_wait(&p->barrier);
        if (t->i == 0) {
            pthread_mutex_lock(&p->lock);
            p->done = at + 1;
            pthread_cond_broadcast(&p->changed);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static sheaf_status pretend_call(sheaf_queue *q, sheaf_queue_fn fn, void *ctx) {
    pretend *p = pretend_of(q);
    pthread_mutex_lock(&p->lock);
    while (p->posted - p->done >= PRETEND_RING - 1) pthread_cond_wait(&p->changed, &p->lock);
    p->ring[p->posted % PRETEND_RING].fn = fn;
    p->ring[p->posted % PRETEND_RING].ctx = ctx;
    p->posted++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return SHEAF_OK;
}

static sheaf_status pretend_synchronize(sheaf_queue *q) {
    pretend *p = pretend_of(q);
    sheaf_status s = SHEAF_OK;
    pthread_mutex_lock(&p->lock);
    while (p->done != p->posted) pthread_cond_wait(&p->changed, &p->lock);
    if (p->failed) s = sheaf_error_restore(&p->failure);
    p->failed = false;
    pthread_mutex_unlock(&p->lock);
    return s;
}

static void pretend_barrier(sheaf_queue *q, int i) {
    (void)i;
    pthread_barrier_wait(&pretend_of(q)->barrier);
}

static const sheaf_queue_iface queue_iface = {
    .call = pretend_call, .synchronize = pretend_synchronize, .barrier = pretend_barrier};
static const sheaf_device_iface device_iface = {0};

static pretend *pretend_new(int number, int threads) {
    pretend *p = calloc(1, sizeof *p);
    p->device = (sheaf_device){.iface = &device_iface, .kind = SHEAF_DEVICE_CPU, .n_threads = threads};
    snprintf(p->device.name, sizeof p->device.name, "pretend.%d", number);
    p->queue = (sheaf_queue){.iface = &queue_iface, .device = &p->device};
    p->n_threads = threads;
    pthread_barrier_init(&p->barrier, NULL, (unsigned)threads);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int i = 0; i < threads; i++) {
        p->threads[i] = (pretend_thread){.p = p, .i = i};
        pthread_create(&p->threads[i].id, NULL, walk, &p->threads[i]);
    }
    return p;
}

static void pretend_free(pretend *p) {
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i].id, NULL);
    pthread_barrier_destroy(&p->barrier);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

bool party_open(party *p, int n, int threads, const char *pin) {
    memset(p, 0, sizeof *p);
    p->n = n;
    if (sheaf_world_open(&p->world)) goto failed;
    for (int k = 0; k < n; k++) {
        p->member[k] = pretend_new(k, threads);
        p->device[k] = &p->member[k]->device;
        p->queue[k] = &p->member[k]->queue;
    }
    if (sheaf_comm_new(p->world, p->device, n, &p->comm)) goto failed;
    snprintf(p->comm->pin, sizeof p->comm->pin, "%s", pin);
    for (int k = 0; k < n; k++) sheaf_comm_attach(p->comm, k, p->queue[k]);
    return true;
failed:
    fprintf(stderr, "opening a party of %d: %s\n", n, sheaf_error());
    party_close(p);
    return false;
}

void party_close(party *p) {
    for (int k = 0; k < p->n; k++) {
        if (p->member[k]) pretend_free(p->member[k]);
    }
    sheaf_comm_free(p->comm);
    sheaf_world_close(p->world);
}

sheaf_status party_post(party *p, sheaf_comm_op *op, const sheaf_comm_args *args, int turn) {
    for (int k = 0; k < p->n; k++) {
        int i = (k + turn) % p->n;
        sheaf_status s = sheaf_comm_post(op, i, p->queue[i], &args[i]);
        if (s) return s;
    }
    return SHEAF_OK;
}

sheaf_status party_wait(party *p, sheaf_status *each, char (*text)[256]) {
    sheaf_status first = SHEAF_OK;
    for (int k = 0; k < p->n; k++) {
        sheaf_error_clear();
        sheaf_status s = sheaf_queue_synchronize(p->queue[k]);
        if (each) each[k] = s;
        if (text) snprintf(text[k], 256, "%s", sheaf_error());
        if (s && !first) first = s;
    }
    return first;
}

sheaf_status late_call(void *microseconds, int i, int n, sheaf_queue *q) {
    (void)n, (void)q;
    if (i == 0) usleep((useconds_t)(*(const int *)microseconds));
    return SHEAF_OK;
}

sheaf_status failing_call(void *ctx, int i, int n, sheaf_queue *q) {
    (void)ctx, (void)n, (void)q;
    return i == 0 ? sheaf_fail(SHEAF_E_DEVICE, "kernel 7: pretended") : SHEAF_OK;
}

sheaf_status gate_call(void *ctx, int i, int n, sheaf_queue *q) {
    gate *g = ctx;
    (void)i, (void)n, (void)q;
    while (!atomic_load(&g->open)) usleep(100);
    return SHEAF_OK;
}

/* --- the reference: the picture of docs/collectives.md as a loop over leaves ------------------------ */

/* Folds the excess, then halves the list of leaves until one is left. Marks say which are there. */
#define REFERENCE(name, type)                                                                                          \
    type name(int n, uint64_t empty, const type *const *in, int64_t e) {                                               \
        type v[64];                                                                                                    \
        bool there[64];                                                                                                \
        int p = 1, m = 0;                                                                                              \
        while (2 * p <= n) p *= 2;                                                                                     \
        for (int d = 0; d < n; m++) {                                                                                  \
            bool has = !(empty >> d & 1);                                                                              \
            type x = has ? in[d][e] : 0;                                                                               \
            d++;                                                                                                       \
            if (m < n - p) {                                                                                           \
                bool also = !(empty >> d & 1);                                                                         \
                if (also) x = has ? x + in[d][e] : in[d][e];                                                           \
                has = has || also;                                                                                     \
                d++;                                                                                                   \
            }                                                                                                          \
            v[m] = x;                                                                                                  \
            there[m] = has;                                                                                            \
        }                                                                                                              \
        for (; m > 1; m /= 2) {                                                                                        \
            for (int k = 0; k < m / 2; k++) {                                                                          \
                type a = v[2 * k], b = v[2 * k + 1];                                                                   \
                bool ha = there[2 * k], hb = there[2 * k + 1];                                                         \
                v[k] = ha && hb ? a + b : ha ? a : b;                                                                  \
                there[k] = ha || hb;                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
        return there[0] ? v[0] : 0;                                                                                    \
    }

REFERENCE(reference_sum_f64, double)
REFERENCE(reference_sum_f32, float)

void reference_epilogue(float *out, const float *residual, const float *weight, float *norm_out, int64_t row,
                        int64_t rows, float eps) {
    for (int64_t k = 0; k < rows; k++) {
        float *o = out + k * row;
        double squares = 0;
        for (int64_t e = 0; e < row; e++) {
            if (residual) o[e] = o[e] + residual[k * row + e];
            squares += (double)o[e] * (double)o[e];
        }
        float factor = (float)(1.0 / sqrt(squares / (double)row + (double)eps));
        for (int64_t e = 0; norm_out && e < row; e++) {
            norm_out[k * row + e] = weight ? o[e] * factor * weight[e] : o[e] * factor;
        }
    }
}

bool same_f32(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }
