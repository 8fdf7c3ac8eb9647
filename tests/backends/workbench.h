/* A device, an arena and the usual steps around them, for the tests of backends/. */
#ifndef SHEAF_TESTS_BACKENDS_WORKBENCH_H
#define SHEAF_TESTS_BACKENDS_WORKBENCH_H

#include "backends/backend.h"

typedef struct workbench {
    sheaf_registry *registry;
    sheaf_device *device;
    sheaf_backend *backend;
    sheaf_arena *arena;
    sheaf_buffer *buffer;
} workbench;

/* Opens the first device of a list with `threads` threads at a kernel level ("" for the best). */
sheaf_status workbench_open(workbench *w, const char *list, int threads, const char *level);
void workbench_close(workbench *w);
/* Forgets the tensors and their buffer, keeps the device. */
sheaf_status workbench_clear(workbench *w);
/* Builds the graph of `node`, in the arena. */
sheaf_status workbench_graph(workbench *w, sheaf_tensor *node, sheaf_graph **out);
/* Gives every tensor a place and leaf floats pseudo-random values in [-1, 1] from `seed`. */
sheaf_status workbench_place(workbench *w, uint32_t seed);

/* Pseudo-random f32 values in [lo, hi) into any type with a decoder (bytes where it has no encoder). */
void fill_random(sheaf_tensor *t, uint32_t *seed, float lo, float hi);
uint32_t random_next(uint32_t *seed);

/* The levels that this machine has: NULL ends the list. */
const char *const *kernel_levels(void);

#endif
