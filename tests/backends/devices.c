/* Device lists, what devices answer, their memory, and the fallback device. */
#include "backends/cpu/faults.h"
#include "backends/registry_internal.h"
#include "tests/backends/workbench.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* --- lists ------------------------------------------------------------------------------------------------ */

typedef struct list_case {
    const char *list;
    sheaf_status status;
    const char *names;
} list_case;

static const list_case lists[] = {
    {"cpu", SHEAF_OK, "cpu"},
    {"CPU", SHEAF_OK, "cpu"},
    {"cpu/1", SHEAF_OK, "cpu/1.0"},
    {"cpu/3", SHEAF_OK, "cpu/3.0 cpu/3.1 cpu/3.2"},
    {"cpu:0", SHEAF_OK, "cpu:0"},
    {"cpu:0-0/2", SHEAF_OK, "cpu:0/2.0 cpu:0/2.1"},
    {"cpu,cpu", SHEAF_OK, "cpu cpu#2"},
    {"cpu/2,cpu", SHEAF_OK, "cpu/2.0 cpu/2.1 cpu"},
    {"", SHEAF_E_ARGUMENT, NULL},
    {",", SHEAF_E_ARGUMENT, NULL},
    {"cpu,", SHEAF_E_ARGUMENT, NULL},
    {"cpu/0", SHEAF_E_ARGUMENT, NULL},
    {"cpu/", SHEAF_E_ARGUMENT, NULL},
    {"cpu/-1", SHEAF_E_ARGUMENT, NULL},
    {"cpu/2x", SHEAF_E_ARGUMENT, NULL},
    {"cpu:", SHEAF_E_ARGUMENT, NULL},
    {"cpu:3-1", SHEAF_E_ARGUMENT, NULL},
    {"cpu:1-", SHEAF_E_ARGUMENT, NULL},
    {"cpu/99999999999999999999", SHEAF_E_ARGUMENT, NULL},
    {"cpu/1025", SHEAF_E_ARGUMENT, NULL},
    {" cpu", SHEAF_E_ARGUMENT, NULL},
    {"warp", SHEAF_E_ARGUMENT, NULL},
    {"averyveryverylongkind", SHEAF_E_ARGUMENT, NULL},
    {"4", SHEAF_E_ARGUMENT, NULL},
    {"cuda", SHEAF_E_NO_DEVICE, NULL},
    {"cuda:0-3", SHEAF_E_NO_DEVICE, NULL},
    {"cpu,cuda:0/4", SHEAF_E_NO_DEVICE, NULL},
    {"cpu:500", SHEAF_E_NO_DEVICE, NULL},
};

Test(devices, lists_as_the_command_line_spells_them, .timeout = 30) {
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        sheaf_registry *r;
        sheaf_device *d[8];
        int n;
        char names[512] = "";
        cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
        sheaf_status s = sheaf_devices_open(r, lists[i].list, NULL, d, 8, &n);
        cr_assert_eq(s, lists[i].status, "\"%s\": %s, expected %s", lists[i].list, sheaf_status_name(s),
                     sheaf_status_name(lists[i].status));
        for (int k = 0; k < n; k++) {
            if (k) strcat(names, " ");
            strcat(names, d[k]->name);
        }
        if (!s)
            cr_assert_str_eq(names, lists[i].names, "\"%s\": %s", lists[i].list, names);
        else
            cr_assert(n == 0 && *sheaf_error(), "\"%s\": no text", lists[i].list);
        sheaf_registry_free(r);
    }
}

Test(devices, too_many_for_the_caller_is_an_error, .timeout = 10) {
    sheaf_registry *r;
    sheaf_device *d[2];
    int n;
    cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
    sheaf_status s = sheaf_devices_open(r, "cpu/3", NULL, d, 2, &n);
    cr_assert_eq(s, SHEAF_E_ARGUMENT, "%s", sheaf_status_name(s));
    sheaf_registry_free(r);
}

Test(devices, threads_are_divided_over_the_list, .timeout = 10) {
    static const struct {
        const char *list;
        int threads, expected[3];
    } rows[] = {{"cpu/2", 2, {1, 1, 0}}, {"cpu/2", 5, {3, 2, 0}}, {"cpu/3", 1, {1, 1, 1}}, {"cpu", 7, {7, 0, 0}}};
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_registry *r;
        sheaf_device *d[3];
        int n;
        sheaf_open_options o = {.n_threads = rows[i].threads};
        cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
        cr_assert_eq(sheaf_devices_open(r, rows[i].list, &o, d, 3, &n), SHEAF_OK, "%s", sheaf_error());
        for (int k = 0; k < n; k++)
            cr_assert_eq(d[k]->n_threads, rows[i].expected[k], "%s with %d: device %d has %d", rows[i].list,
                         rows[i].threads, k, d[k]->n_threads);
        sheaf_registry_free(r);
    }
}

Test(devices, an_absent_kernel_level_is_refused, .timeout = 10) {
    sheaf_registry *r;
    sheaf_device *d[1];
    int n;
    sheaf_open_options o = {.cpu_level = "avx9000"};
    cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
    sheaf_status s = sheaf_devices_open(r, "cpu", &o, d, 1, &n);
    cr_assert_eq(s, SHEAF_E_ARGUMENT, "%s", sheaf_status_name(s));
    sheaf_registry_free(r);
}

Test(devices, are_found_without_being_opened, .timeout = 10) {
    sheaf_registry *r;
    static sheaf_found_device found[64];
    int n;
    cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_devices_find(r, found, 64, &n), SHEAF_OK, "%s", sheaf_error());
    cr_assert(n >= 1 && !strcmp(found[0].name, "cpu") && found[0].cores >= 1, "%d found, %s", n, found[0].name);
    cr_assert(found[0].memory_total > 0 && found[0].memory_free <= found[0].memory_total, "%zu of %zu",
              found[0].memory_free, found[0].memory_total);
    cr_assert(sheaf_default_threads() >= 1 && sheaf_default_threads() <= found[0].cores, "%d threads on %d cores",
              sheaf_default_threads(), found[0].cores);
    sheaf_registry_free(r);
}

/* --- memory ------------------------------------------------------------------------------------------------- */

Test(devices, memory_is_each_devices_own, .timeout = 10) {
    sheaf_registry *r;
    sheaf_device *d[2], *host;
    int n;
    cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_devices_open(r, "cpu/2", NULL, d, 2, &n), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_host_device_open(r, d, 2, &host), SHEAF_OK, "%s", sheaf_error());
    cr_assert(sheaf_device_supports_buffer_type(d[0], d[0]->buffer_type), "its own");
    cr_assert(sheaf_device_supports_buffer_type(d[0], d[0]->mapped_buffer_type), "its mapped one");
    cr_assert(!sheaf_device_supports_buffer_type(d[0], d[1]->buffer_type), "another's");
    cr_assert(!sheaf_device_supports_buffer_type(d[0], sheaf_host_buffer_type()), "the plain host's");
    cr_assert(sheaf_device_supports_buffer_type(host, sheaf_host_buffer_type()), "the host's own");
    cr_assert(!sheaf_device_supports_buffer_type(host, d[0]->buffer_type), "a queue-driven device's");
    size_t total, left;
    cr_assert_eq(d[0]->iface->memory(d[0], &total, &left), SHEAF_OK, "%s", sheaf_error());
    cr_assert(total > 0 && left <= total, "%zu of %zu", left, total);
    sheaf_registry_free(r);
}

Test(devices, buffers_keep_bytes_and_check_ranges, .timeout = 10) {
    workbench w;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *t = sheaf_new_2d(w.arena, SHEAF_F32, 4, 3);
    sheaf_tensor *v = sheaf_view_2d(w.arena, t, 2, 2, t->nb[1], t->nb[1] + 4);
    float in[12], out[12] = {0}, two[4];
    for (int i = 0; i < 12; i++) in[i] = (float)i;
    cr_assert_eq(sheaf_tensor_set(t, in, 0, 48), SHEAF_E_ARGUMENT, "set without a place");
    cr_assert_eq(sheaf_arena_place_all(w.arena, w.device->buffer_type, SHEAF_USAGE_ANY, &w.buffer), SHEAF_OK, "%s",
                 sheaf_error());
    cr_assert((uintptr_t)t->data % 64 == 0, "address %p", t->data);
    cr_assert_eq(sheaf_tensor_set(t, in, 0, 48), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_tensor_get(t, out, 4, 40), SHEAF_OK, "%s", sheaf_error());
    cr_assert(out[0] == 1 && out[9] == 10, "%g %g", (double)out[0], (double)out[9]);
    cr_assert_eq(sheaf_tensor_get_2d(v, two, 8, 0, t->nb[1], 8, 2), SHEAF_OK, "%s", sheaf_error());
    cr_assert(two[0] == 5 && two[1] == 6 && two[2] == 9 && two[3] == 10, "%g %g %g %g", (double)two[0], (double)two[1],
              (double)two[2], (double)two[3]);
    cr_assert_eq(sheaf_tensor_set(t, in, 40, 9), SHEAF_E_RANGE, "past the end");
    cr_assert_eq(sheaf_tensor_get(t, out, SIZE_MAX, 8), SHEAF_E_RANGE, "wrapped");
    cr_assert_eq(sheaf_tensor_get_2d(t, out, 8, 0, SIZE_MAX / 2, 8, 4), SHEAF_E_RANGE, "wrapped strides");
    workbench_close(&w);
}

static bool allow_some(void *ctx, size_t size) {
    (void)size;
    return (*(int *)ctx)-- > 0;
}

Test(devices, empty_buffers_are_not_failures, .timeout = 10) {
    workbench w;
    sheaf_buffer *b;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_buffer_alloc(w.device->buffer_type, 0, SHEAF_USAGE_ANY, &b), SHEAF_OK, "%s", sheaf_error());
    cr_assert(b && !b->base && b->size == 0, "size %zu", b->size);
    sheaf_buffer_free(b);
    cr_assert_eq(sheaf_arena_place_all(w.arena, w.device->buffer_type, SHEAF_USAGE_ANY, &b), SHEAF_OK, "%s",
                 sheaf_error());
    cr_assert(!b, "a buffer for nothing");
    for (int k = 0; k < 2; k++) { /* the struct, then the bytes */
        int left = k;
        sheaf_alloc_hook(allow_some, &left);
        sheaf_status s = sheaf_buffer_alloc(w.device->buffer_type, 1000, SHEAF_USAGE_ANY, &b);
        sheaf_alloc_hook(NULL, NULL);
        cr_assert_eq(s, SHEAF_E_NO_MEMORY, "allocation %d: %s", k, sheaf_status_name(s));
    }
    workbench_close(&w);
}

Test(devices, mapped_memory_is_wrapped_and_read_only, .timeout = 10) {
    workbench w;
    static _Alignas(64) float file[64];
    sheaf_buffer *b, *none;
    sheaf_graph *g;
    cr_assert_eq(workbench_open(&w, "cpu", 1, ""), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < 64; i++) file[i] = (float)i;
    cr_assert_eq(w.device->iface->buffer_from_host_ptr(w.device, file, sizeof file, &b), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *t = sheaf_new_1d(w.arena, SHEAF_F32, 16);
    cr_assert_eq(sheaf_tensor_place(b, t, (char *)file + 4), SHEAF_E_ARGUMENT, "an odd address");
    cr_assert_eq(sheaf_tensor_place(b, t, file + 56), SHEAF_E_RANGE, "over the end");
    cr_assert_eq(sheaf_tensor_place(b, t, file + 8), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_tensor_set(t, file, 0, 4), SHEAF_E_UNSUPPORTED, "a file was written");
    cr_assert_eq(sheaf_buffer_alloc(w.device->mapped_buffer_type, 8, SHEAF_USAGE_ANY, &none), SHEAF_E_UNSUPPORTED,
                 "allocated");
    sheaf_tensor *y = sheaf_scale(w.arena, t, 2.0f, 0.0f);
    cr_assert_eq(workbench_graph(&w, y, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_arena_place_all(w.arena, w.device->buffer_type, SHEAF_USAGE_ANY, &w.buffer), SHEAF_OK, "%s",
                 sheaf_error());
    cr_assert_eq(sheaf_backend_compute(w.backend, g), SHEAF_OK, "%s", sheaf_error());
    cr_assert(((float *)y->data)[3] == 22.0f, "%g", (double)((float *)y->data)[3]);
    sheaf_buffer_free(b);
    workbench_close(&w);
}

/* --- the fallback ------------------------------------------------------------------------------------------------ */

/* y = a*x + x on the host's memory, by borrowed threads, by the caller alone, and by nobody's. */
static void check_host(sheaf_registry *r, sheaf_device *const *members, int n) {
    sheaf_device *host;
    sheaf_backend *be;
    sheaf_arena *a;
    sheaf_graph *g;
    sheaf_buffer *b;
    cr_assert_eq(sheaf_host_device_open(r, members, n, &host), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_backend_new(host, &be), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_arena_new(1 << 14, &a), SHEAF_OK, "%s", sheaf_error());
    sheaf_tensor *w = sheaf_new_2d(a, SHEAF_F32, 64, 64), *x = sheaf_new_2d(a, SHEAF_F32, 64, 2);
    sheaf_tensor *y = sheaf_add(a, sheaf_mul_mat(a, w, x), x);
    cr_assert_eq(sheaf_graph_new(a, 8, &g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_graph_expand(g, y), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_graph_seal(g), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_arena_place_all(a, sheaf_host_buffer_type(), SHEAF_USAGE_ANY, &b), SHEAF_OK, "%s",
                 sheaf_error());
    for (int i = 0; i < 64 * 64; i++) ((float *)w->data)[i] = i % 64 == i / 64 ? 3.0f : 0.0f;
    for (int i = 0; i < 128; i++) ((float *)x->data)[i] = (float)i;
    for (int round = 0; round < 50; round++) {
        memset(y->data, 0, 512);
        cr_assert_eq(sheaf_backend_compute(be, g), SHEAF_OK, "%s", sheaf_error());
        for (int i = 0; i < 128; i++)
            cr_assert(((float *)y->data)[i] == 4.0f * (float)i, "round %d: [%d] = %g", round, i,
                      (double)((float *)y->data)[i]);
    }
    sheaf_buffer_free(b);
    sheaf_arena_free(a);
    sheaf_backend_free(be);
}

static sheaf_status hold(void *ctx, int i, int n, sheaf_queue *q) {
    (void)i, (void)n, (void)q;
    while (!atomic_load((atomic_bool *)ctx)) sched_yield();
    return SHEAF_OK;
}

Test(devices, the_fallback_borrows_parked_threads, .timeout = 60) {
    sheaf_registry *r;
    sheaf_device *d[3];
    sheaf_backend *be[3];
    int n;
    sheaf_open_options o = {.n_threads = 4};
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR);
    cr_assert_eq(sheaf_registry_new(&r), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_devices_open(r, "cpu/3", &o, d, 3, &n), SHEAF_OK, "%s", sheaf_error());
    check_host(r, d, 0);
    check_host(r, d, 3);
    /* while members work for somebody else, they are left alone */
    atomic_bool go = false;
    for (int i = 0; i < 3; i++) cr_assert_eq(sheaf_backend_new(d[i], &be[i]), SHEAF_OK, "%s", sheaf_error());
    sheaf_queue_call(be[0]->queue, hold, &go);
    check_host(r, d, 3);
    sheaf_queue_call(be[1]->queue, hold, &go);
    sheaf_queue_call(be[2]->queue, hold, &go);
    check_host(r, d, 3);
    atomic_store(&go, true);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(sheaf_backend_synchronize(be[i]), SHEAF_OK, "%s", sheaf_error());
        sheaf_backend_free(be[i]);
    }
    sheaf_registry_free(r);
}
