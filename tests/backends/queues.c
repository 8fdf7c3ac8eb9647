/* Queues of CPU devices: order, meeting threads, kept failures, events across devices, crowding. */
#include "backends/cpu/faults.h"
#include "tests/backends/workbench.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct pair {
    sheaf_registry *registry;
    sheaf_device *device[3];
    sheaf_backend *backend[3];
    int n;
} pair;

static void pair_open(pair *p, const char *list, int threads) {
    sheaf_open_options o = {.n_threads = threads};
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR);
    cr_assert_eq(sheaf_registry_new(&p->registry), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_devices_open(p->registry, list, &o, p->device, 3, &p->n), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < p->n; i++)
        cr_assert_eq(sheaf_backend_new(p->device[i], &p->backend[i]), SHEAF_OK, "%s", sheaf_error());
}

static void pair_close(pair *p) {
    for (int i = 0; i < p->n; i++) sheaf_backend_free(p->backend[i]);
    sheaf_registry_free(p->registry);
}

/* --- order ------------------------------------------------------------------------------------------------ */

enum { COMMANDS = 1200 }; /* more than the ring holds */

typedef struct list {
    int values[COMMANDS], n;
} list;
typedef struct item {
    list *l;
    int value;
} item;

static sheaf_status append(void *ctx, int i, int n, sheaf_queue *q) {
    (void)n;
    item *it = ctx;
    if (i == 0) it->l->values[it->l->n] = it->value;
    sheaf_queue_barrier(q, i);
    if (i == n - 1) it->l->n++; /* by another thread: the barrier and the queue's order must hold */
    return SHEAF_OK;
}

Test(queues, run_commands_in_order, .timeout = 60) {
    static const int threads[] = {1, 2, 5};
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        pair p;
        list *l = calloc(1, sizeof *l);
        item *items = calloc(COMMANDS, sizeof *items);
        pair_open(&p, "cpu", threads[t]);
        for (int i = 0; i < COMMANDS; i++) {
            items[i] = (item){l, i};
            cr_assert_eq(sheaf_queue_call(p.backend[0]->queue, append, &items[i]), SHEAF_OK, "%s", sheaf_error());
        }
        cr_assert_eq(sheaf_queue_synchronize(p.backend[0]->queue), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(l->n, COMMANDS, "%d of %d", l->n, COMMANDS);
        for (int i = 0; i < COMMANDS; i++) cr_assert_eq(l->values[i], i, "[%d] is %d", i, l->values[i]);
        free(items);
        free(l);
        pair_close(&p);
    }
}

/* --- failures ----------------------------------------------------------------------------------------------- */

typedef struct trouble {
    int fail_with, ran;
    sheaf_status told;
} trouble;

static sheaf_status maybe_fail(void *ctx, int i, int n, sheaf_queue *q) {
    trouble *t = ctx;
    (void)n, (void)q;
    if (i) return SHEAF_OK;
    t->ran++;
    return t->fail_with ? sheaf_fail((sheaf_status)t->fail_with, "trouble number %d", -t->fail_with) : SHEAF_OK;
}

static void told(void *ctx, sheaf_status s) { ((trouble *)ctx)->told = s; }

Test(queues, keep_the_first_failure_and_skip_the_rest, .timeout = 30) {
    pair p;
    trouble first = {SHEAF_E_PEER}, second = {SHEAF_E_IO}, fine = {0}, other = {0};
    pair_open(&p, "cpu", 3);
    sheaf_queue *q = p.backend[0]->queue, *q2;
    cr_assert_eq(p.backend[0]->iface->queue_new(p.backend[0], &q2), SHEAF_OK, "%s", sheaf_error());
    q->on_failure = told;
    q->on_failure_ctx = &first;
    sheaf_queue_call(q, maybe_fail, &fine);
    sheaf_queue_call(q, maybe_fail, &first);
    sheaf_queue_call(q, maybe_fail, &second);
    sheaf_queue_call(q2, maybe_fail, &other); /* another queue of the device goes on */
    sheaf_queue_call(q, maybe_fail, &fine);
    sheaf_status s = sheaf_queue_synchronize(q);
    cr_assert_eq(s, SHEAF_E_PEER, "%s", sheaf_status_name(s));
    cr_assert(strstr(sheaf_error(), "trouble number 12"), "%s", sheaf_error());
    cr_assert_eq(sheaf_queue_synchronize(q2), SHEAF_OK, "%s", sheaf_error());
    cr_assert(fine.ran == 1 && first.ran == 1 && second.ran == 0 && other.ran == 1, "%d %d %d %d", fine.ran, first.ran,
              second.ran, other.ran);
    cr_assert_eq(first.told, SHEAF_E_PEER, "%s", sheaf_status_name(first.told));
    sheaf_queue_call(q, maybe_fail, &fine);
    cr_assert_eq(sheaf_queue_synchronize(q), SHEAF_OK, "clean again: %s", sheaf_error());
    cr_assert_eq(fine.ran, 2, "%d", fine.ran);
    q2->iface->free(q2);
    pair_close(&p);
}

Test(queues, a_failing_kernel_or_copy_reaches_synchronize, .timeout = 30) {
    workbench w;
    sheaf_graph *g;
    cr_assert_eq(workbench_open(&w, "cpu", 2, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *x = sheaf_new_1d(w.arena, SHEAF_F32, 8), *y = x;
    for (int i = 0; i < 4; i++) y = sheaf_scale(w.arena, y, 2, 0);
    cr_assert_eq(workbench_graph(&w, y, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_place(&w, 1), SHEAF_OK, "%s", sheaf_error());
    cpu_faults *f = cpu_device_faults(w.device);
    for (int k = 1; k <= 4; k++) {
        atomic_store(&f->kernel, k);
        sheaf_status s = sheaf_backend_compute(w.backend, g);
        cr_assert_eq(s, SHEAF_E_DEVICE, "kernel %d: %s", k, sheaf_status_name(s));
        cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "after kernel %d: %s", k, sheaf_error());
    }
    float v[8] = {0};
    atomic_store(&f->copy, 1);
    cr_assert_eq(sheaf_tensor_set(x, v, 0, 32), SHEAF_E_DEVICE, "set");
    atomic_store(&f->copy, 1);
    cr_assert_eq(w.backend->iface->set_async(w.backend, x, v, 0, 32, NULL), SHEAF_OK, "%s", sheaf_error());
    sheaf_status s = sheaf_backend_synchronize(w.backend);
    cr_assert_eq(s, SHEAF_E_DEVICE, "queued set: %s", sheaf_status_name(s));
    atomic_store(&f->alloc, 1);
    sheaf_buffer *b;
    cr_assert_eq(sheaf_buffer_alloc(w.device->buffer_type, 64, SHEAF_USAGE_ANY, &b), SHEAF_E_NO_MEMORY, "alloc");
    workbench_close(&w);
}

/* --- events --------------------------------------------------------------------------------------------------- */

typedef struct relay {
    int *value, expect, set, wrong;
} relay;

static sheaf_status pass_on(void *ctx, int i, int n, sheaf_queue *q) {
    relay *r = ctx;
    (void)n, (void)q;
    if (i) return SHEAF_OK;
    if (*r->value != r->expect) r->wrong = 1;
    *r->value = r->set;
    return SHEAF_OK;
}

/* A value is handed back and forth between two devices; only events order them. */
Test(queues, events_order_devices, .timeout = 60) {
    enum { ROUNDS = 100 };
    for (int threads = 2; threads <= 6; threads += 4) {
        pair p;
        sheaf_event *e[2];
        int value = 0;
        static relay r[2 * ROUNDS];
        pair_open(&p, "cpu/2", threads);
        for (int i = 0; i < 2; i++)
            cr_assert_eq(p.backend[i]->iface->event_new(p.backend[i], &e[i]), SHEAF_OK, "%s", sheaf_error());
        for (int k = 0; k < 2 * ROUNDS; k++) {
            int me = k % 2;
            r[k] = (relay){&value, k, k + 1, 0};
            sheaf_queue *q = p.backend[me]->queue;
            sheaf_queue_wait(q, e[!me]);
            sheaf_queue_call(q, pass_on, &r[k]);
            sheaf_queue_record(q, e[me]);
        }
        cr_assert_eq(e[1]->iface->synchronize(e[1]), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(value, 2 * ROUNDS, "%d", value);
        for (int k = 0; k < 2 * ROUNDS; k++) cr_assert(!r[k].wrong, "step %d came too early", k);
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(sheaf_backend_synchronize(p.backend[i]), SHEAF_OK, "%s", sheaf_error());
            e[i]->iface->free(e[i]);
        }
        pair_close(&p);
    }
}

/* A failed queue still lets others pass: its records happen. */
Test(queues, a_failed_queue_does_not_hang_who_waits_for_it, .timeout = 30) {
    pair p;
    sheaf_event *e;
    trouble bad = {SHEAF_E_DEVICE}, fine = {0};
    pair_open(&p, "cpu/2", 2);
    cr_assert_eq(p.backend[0]->iface->event_new(p.backend[0], &e), SHEAF_OK, "%s", sheaf_error());
    sheaf_queue_wait(p.backend[1]->queue, e); /* never recorded: no wait */
    sheaf_queue_call(p.backend[0]->queue, maybe_fail, &bad);
    sheaf_queue_record(p.backend[0]->queue, e);
    sheaf_queue_wait(p.backend[1]->queue, e);
    sheaf_queue_call(p.backend[1]->queue, maybe_fail, &fine);
    cr_assert_eq(sheaf_backend_synchronize(p.backend[1]), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_backend_synchronize(p.backend[0]), SHEAF_E_DEVICE, "%s", sheaf_error());
    cr_assert_eq(fine.ran, 1, "%d", fine.ran);
    e->iface->free(e);
    pair_close(&p);
}

/* --- copies ---------------------------------------------------------------------------------------------------- */

Test(queues, copies_happen_in_queue_order, .timeout = 30) {
    enum { N = 300000 };
    pair p;
    sheaf_arena *a;
    sheaf_buffer *b[2];
    float *in = malloc(N * sizeof *in), *out = calloc(N, sizeof *out);
    for (int i = 0; i < N; i++) in[i] = (float)i;
    pair_open(&p, "cpu/2", 4);
    sheaf_tensor *x, *y;
    cr_assert_eq(sheaf_arena_new(4096, &a), SHEAF_OK, "%s", sheaf_error());
    x = sheaf_new_1d(a, SHEAF_F32, N);
    cr_assert_eq(sheaf_arena_place_all(a, p.device[0]->buffer_type, SHEAF_USAGE_ANY, &b[0]), SHEAF_OK, "%s",
                 sheaf_error());
    y = sheaf_new_1d(a, SHEAF_F32, N);
    cr_assert_eq(sheaf_arena_place_all(a, p.device[1]->buffer_type, SHEAF_USAGE_ANY, &b[1]), SHEAF_OK, "%s",
                 sheaf_error());
    sheaf_event *e;
    cr_assert_eq(p.backend[0]->iface->event_new(p.backend[0], &e), SHEAF_OK, "%s", sheaf_error());
    const sheaf_backend_iface *f = p.backend[0]->iface;
    cr_assert_eq(f->set_async(p.backend[0], x, in, 0, N * 4, NULL), SHEAF_OK, "%s", sheaf_error());
    sheaf_queue_record(p.backend[0]->queue, e);
    sheaf_queue_wait(p.backend[1]->queue, e);
    cr_assert_eq(f->copy_async(p.backend[0], p.backend[1], x, y, NULL), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(f->get_async(p.backend[1], y, out, 0, N * 4, NULL), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(f->set_async(p.backend[0], x, in, 8, N * 4, NULL), SHEAF_E_RANGE, "past the end");
    cr_assert_eq(sheaf_backend_synchronize(p.backend[1]), SHEAF_OK, "%s", sheaf_error());
    cr_assert(memcmp(in, out, N * 4) == 0, "other bytes came back");
    cr_assert_eq(sheaf_backend_synchronize(p.backend[0]), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_tensor_copy(x, y), SHEAF_OK, "%s", sheaf_error());
    e->iface->free(e);
    for (int i = 0; i < 2; i++) sheaf_buffer_free(b[i]);
    sheaf_arena_free(a);
    free(in);
    free(out);
    pair_close(&p);
}

/* --- crowding (case E02) -------------------------------------------------------------------------------------------
 */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A graph of many small steps, `rounds` times. */
static double time_graph(int threads, int rounds) {
    workbench w;
    sheaf_graph *g;
    cr_assert_eq(workbench_open(&w, "cpu", threads, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *x = sheaf_new_2d(w.arena, SHEAF_F32, 256, 8);
    for (int i = 0; i < 100; i++) x = sheaf_scale(w.arena, x, 1.0f, 0.5f);
    cr_assert_eq(workbench_graph(&w, x, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(workbench_place(&w, 1), SHEAF_OK, "%s", sheaf_error());
    double begin = seconds();
    for (int i = 0; i < rounds; i++) cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "%s", sheaf_error());
    double took = seconds() - begin;
    workbench_close(&w);
    return took;
}

/* On two of the machine's processors: 16 threads must end, and not take for ever. */
Test(queues, more_threads_than_cores_make_progress, .timeout = 120) {
    cpu_set_t all, two;
    int found = 0;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&two);
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &two), found++;
    sched_setaffinity(0, sizeof two, &two);
    double base = time_graph(2, 32), three = time_graph(3, 32), sixteen = time_graph(16, 32);
    sched_setaffinity(0, sizeof all, &all);
    /* 32 x 100 barriers of 16 sleeping threads: tens of microseconds each are fine, a time slice each is not */
    double limit = 20 * base > 5 ? 20 * base : 5;
    cr_assert(three < limit && sixteen < limit, "2 threads %g s, 3 threads %g s, 16 threads %g s", base, three,
              sixteen);
}
