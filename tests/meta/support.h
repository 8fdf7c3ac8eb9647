/* What the tests of this room share: CPU devices as one, and the same graph on one of them. */
#ifndef SHEAF_TESTS_META_SUPPORT_H
#define SHEAF_TESTS_META_SUPPORT_H

#include <stdlib.h>
#include <string.h>

#include "meta/meta.h"
#include "tests/support/expect.h"

enum { MOST_DEVICES = 8 };

/* N CPU devices, and as one; N = 1 gives a meta device of one member. */
typedef struct house {
    sheaf_registry *registry;
    sheaf_device *devices[MOST_DEVICES];
    int n;
    sheaf_world *world;
    sheaf_device *meta;
    sheaf_backend *backend;
} house;

static inline void house_open(house *h, int n) {
    char list[16];
    memset(h, 0, sizeof *h);
    snprintf(list, sizeof list, "cpu/%d", n);
    sheaf_open_options o = {.n_threads = n};
    expect_ok(sheaf_registry_new(&h->registry));
    expect_ok(sheaf_devices_open(h->registry, list, &o, h->devices, MOST_DEVICES, &h->n));
    expect_ok(sheaf_world_open(&h->world));
    expect_ok(sheaf_meta_new(list, h->devices, h->n, h->world, &h->meta));
    expect_ok(sheaf_backend_new(h->meta, &h->backend));
}

static inline void house_close(house *h) {
    sheaf_backend_free(h->backend);
    sheaf_meta_free(h->meta);
    sheaf_world_close(h->world);
    sheaf_registry_free(h->registry);
}

/* A layout by tensor name, the rest mirrored: what a policy is in these tests. */
typedef struct named_layout {
    const char *name;
    int axis;
    int64_t share[MOST_DEVICES];
    const sheaf_run *runs;
    int n_runs;
} named_layout;
typedef struct layout_table {
    const named_layout *rows;
    int n, n_devices;
} layout_table;

static inline sheaf_status table_policy(void *ctx, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out) {
    const layout_table *table = ctx;
    for (int i = 0; i < table->n; i++) {
        const named_layout *r = &table->rows[i];
        if (strcmp(r->name, t->name) != 0) continue;
        return r->runs ? sheaf_layout_axis(a, r->axis, r->runs, r->n_runs, table->n_devices, out)
                       : sheaf_layout_shares(a, r->axis, r->share, table->n_devices, out);
    }
    return SHEAF_OK;
}

static inline void fill_random(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(seed >> 40) / (1 << 24) - 0.5);
    }
}

#endif
