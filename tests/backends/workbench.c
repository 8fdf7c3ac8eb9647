/* A device, an arena and the usual steps around them. */
#include "tests/backends/workbench.h"

#include "backends/cpu/kernels.h"

#include <stdlib.h>
#include <string.h>

uint32_t random_next(uint32_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

static float random_float(uint32_t *seed, float lo, float hi) {
    return lo + (hi - lo) * (float)(random_next(seed) >> 8) / 16777216.0f;
}

/* Random blocks of a type without an encoder: any bytes, but scales that are sane f16 numbers. */
static void random_blocks(sheaf_type type, uint8_t *p, size_t bytes, uint32_t *seed) {
    size_t block = sheaf_type_bytes(type);
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)random_next(seed);
    for (size_t at = 0; at + block <= bytes; at += block) {
        float sum = 0, values[256];
        /* A scale is an f16 or an e8m0 somewhere in the block; what is not finite and small is drawn again. */
        for (int tries = 0; tries < 64; tries++) {
            sheaf_to_float(type, p + at, values, sheaf_type_block(type));
            sum = 0;
            for (int64_t i = 0; i < sheaf_type_block(type); i++) sum += values[i] * values[i];
            if (sum < 1e4f) break;
            for (size_t i = 0; i < block; i++) p[at + i] = (uint8_t)(random_next(seed) & 0x1f);
        }
        if (!(sum < 1e4f)) memset(p + at, 0, block);
    }
}

void fill_random(sheaf_tensor *t, uint32_t *seed, float lo, float hi) {
    int64_t n = sheaf_nelements(t);
    size_t bytes = sheaf_nbytes(t);
    if (n == 0) return;
    if (t->type == SHEAF_I32 || t->type == SHEAF_I64 || t->type == SHEAF_I8 || t->type == SHEAF_I16 ||
        t->type == SHEAF_F64)
        return; /* ids and positions are the case's own */
    float *values = malloc((size_t)n * sizeof *values);
    char *encoded = calloc(1, bytes + 1);
    for (int64_t i = 0; i < n; i++) values[i] = random_float(seed, lo, hi);
    if (sheaf_from_float(t->type, values, encoded, n)) random_blocks(t->type, (uint8_t *)encoded, bytes, seed);
    sheaf_tensor_set(t, encoded, 0, bytes);
    free(encoded);
    free(values);
}

sheaf_status workbench_open(workbench *w, const char *list, int threads, const char *level) {
    int n;
    memset(w, 0, sizeof *w);
    sheaf_log_set(NULL, NULL, SHEAF_LOG_ERROR); /* more threads than cores are meant here */
    sheaf_open_options options = {.n_threads = threads, .cpu_level = level};
    sheaf_device *devices[8];
    sheaf_status s = sheaf_registry_new(&w->registry);
    if (!s) s = sheaf_devices_open(w->registry, list, &options, devices, 8, &n);
    if (!s) w->device = devices[0];
    if (!s) s = sheaf_backend_new(w->device, &w->backend);
    if (!s) s = sheaf_arena_new(1 << 16, &w->arena);
    return s;
}

void workbench_close(workbench *w) {
    sheaf_arena_free(w->arena);
    sheaf_buffer_free(w->buffer);
    sheaf_backend_free(w->backend);
    sheaf_registry_free(w->registry);
    memset(w, 0, sizeof *w);
}

sheaf_status workbench_clear(workbench *w) {
    sheaf_buffer_free(w->buffer);
    w->buffer = NULL;
    sheaf_arena_reset(w->arena);
    return sheaf_arena_status(w->arena);
}

sheaf_status workbench_graph(workbench *w, sheaf_tensor *node, sheaf_graph **out) {
    if (!node) return sheaf_arena_status(w->arena);
    sheaf_status s = sheaf_graph_new(w->arena, 64, out);
    if (!s) s = sheaf_graph_expand(*out, node);
    if (!s) s = sheaf_graph_seal(*out);
    return s;
}

sheaf_status workbench_place(workbench *w, uint32_t seed) {
    sheaf_status s = sheaf_arena_place_all(w->arena, w->device->buffer_type, SHEAF_USAGE_ANY, &w->buffer);
    if (s) return s;
    if (w->buffer) s = sheaf_buffer_clear(w->buffer, 0);
    for (sheaf_tensor *t = NULL; !s && (t = sheaf_arena_next(w->arena, t));)
        if (t->op == SHEAF_OP_NONE && !t->view_src) fill_random(t, &seed, -1.0f, 1.0f);
    return s;
}

const char *const *kernel_levels(void) {
    static const char *levels[CPU_LEVEL_COUNT + 1];
    int n = 0;
    for (int l = 0; l <= (int)cpu_level_best(); l++) levels[n++] = cpu_level_name((cpu_level)l);
    levels[n] = NULL;
    return levels;
}
