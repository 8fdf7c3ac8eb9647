/* The meta device: answers for its members. Owns no memory and nothing that runs (buffer.c, backend.c). */
#include "meta/meta_internal.h"

#include <stdio.h>
#include <string.h>

static void device_free(sheaf_device *d) {
    meta_device *m = meta_of(d);
    pthread_mutex_destroy(&m->posting);
    sheaf_free((void *)m->bytes);
    sheaf_free(m->members);
    sheaf_free(m);
}

static size_t scaled(size_t bytes, double share) {
    double all = (double)bytes / share;
    return all < (double)(SIZE_MAX / 2) ? (size_t)all : SIZE_MAX;
}

/* What can be cut before the first member is full: the smallest free_i / share_i. A model compares member by
 * member besides, since not all of it is cut. */
static sheaf_status device_memory(sheaf_device *d, size_t *total, size_t *free_bytes) {
    meta_device *m = meta_of(d);
    size_t least_total = SIZE_MAX, least_free = SIZE_MAX;
    for (int i = 0; i < m->n_local; i++) {
        size_t t = 0, f = 0;
        sheaf_status s = m->members[i]->iface->memory(m->members[i], &t, &f);
        if (s) return s;
        if (m->share[i] <= 0) continue;
        t = scaled(t, m->share[i]);
        f = scaled(f, m->share[i]);
        least_total = t < least_total ? t : least_total;
        least_free = f < least_free ? f : least_free;
    }
    *total = least_total;
    *free_bytes = least_free;
    return SHEAF_OK;
}

static bool device_supports_op(sheaf_device *d, const sheaf_tensor *node) {
    meta_device *m = meta_of(d);
    for (int i = 0; i < m->n_local; i++) {
        if (!sheaf_device_supports_op(m->members[i], node)) return false;
    }
    return true;
}

static bool device_supports_buffer_type(sheaf_device *d, const sheaf_buffer_type *t) { return t == d->buffer_type; }

static bool device_wants_offload(sheaf_device *d, const sheaf_tensor *node) {
    meta_device *m = meta_of(d);
    for (int i = 0; i < m->n_local; i++) {
        const sheaf_device_iface *f = m->members[i]->iface;
        if (!f->wants_offload || !f->wants_offload(m->members[i], node)) return false;
    }
    return true;
}

static const sheaf_device_iface meta_device_iface = {
    .free = device_free,
    .memory = device_memory,
    .supports_op = device_supports_op,
    .supports_buffer_type = device_supports_buffer_type,
    .wants_offload = device_wants_offload,
    .backend_new = meta_backend_create,
};

bool sheaf_meta_is(const sheaf_device *d) { return d && d->iface == &meta_device_iface; }

/* Counts of the other ranks: world order is the concatenation of the ranks' lists. */
static sheaf_status count_world(meta_device *m) {
    int size = m->world ? sheaf_world_size(m->world) : 1, rank = m->world ? sheaf_world_rank(m->world) : 0;
    m->n_world = m->n_local;
    m->first = 0;
    if (size == 1) return SHEAF_OK;
    int32_t mine = m->n_local, *all = sheaf_calloc((size_t)size, sizeof *all);
    if (!all) return sheaf_fail(SHEAF_E_NO_MEMORY, "counting devices");
    sheaf_status s = sheaf_world_allgather(m->world, &mine, sizeof mine, all);
    m->n_world = 0;
    for (int r = 0; r < size && !s; r++) {
        if (r < rank) m->first += all[r];
        m->n_world += all[r];
    }
    sheaf_free(all);
    return s;
}

static void describe_type(meta_device *m) {
    m->type =
        (sheaf_buffer_type){.iface = &meta_buffer_type_iface, .device = &m->base, .alignment = 64, .pack_rows = 1};
    snprintf(m->type.name, sizeof m->type.name, "%s", m->base.name);
    for (int i = 0; i < m->n_local; i++) {
        const sheaf_buffer_type *t = m->members[i]->buffer_type;
        if (t->alignment > m->type.alignment) m->type.alignment = t->alignment;
        if (t->pack_rows > m->type.pack_rows) m->type.pack_rows = t->pack_rows;
    }
    m->base.buffer_type = &m->type;
}

static void describe(meta_device *m, const char *name) {
    m->base.iface = &meta_device_iface;
    m->base.kind = SHEAF_DEVICE_META;
    m->base.numa = -1;
    m->base.caps = (sheaf_caps){.async = true};
    snprintf(m->base.name, sizeof m->base.name, "%s", name);
    snprintf(m->base.description, sizeof m->base.description, "%d devices as one", m->n_world);
    for (int i = 0; i < m->n_local; i++) {
        m->base.caps.async = m->base.caps.async && m->members[i]->caps.async;
        m->base.n_threads += m->members[i]->n_threads;
    }
}

sheaf_status sheaf_meta_new(const char *name, sheaf_device *const *members, int n_local, sheaf_world *world,
                            sheaf_device **out) {
    *out = NULL;
    if (n_local < 1 || n_local > SHEAF_MAX_DEVICES)
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: %d devices, not 1 to %d", name, n_local, SHEAF_MAX_DEVICES);
    meta_device *m = sheaf_calloc(1, sizeof *m);
    if (!m) goto no_device;
    m->members = sheaf_calloc((size_t)n_local, sizeof(sheaf_device *));
    if (!m->members) goto no_members;
    m->bytes = sheaf_calloc((size_t)n_local * META_USAGES, sizeof *m->bytes);
    if (!m->bytes) goto no_bytes;
    memcpy(m->members, members, (size_t)n_local * sizeof(sheaf_device *));
    m->n_local = n_local;
    m->world = world;
    pthread_mutex_init(&m->posting, NULL);
    sheaf_status s = count_world(m);
    if (!s && m->n_world > SHEAF_MAX_DEVICES) {
        s = sheaf_fail(SHEAF_E_ARGUMENT, "%s: %d devices in the world, at most %d", name, m->n_world,
                       SHEAF_MAX_DEVICES);
    }
    if (s) {
        device_free(&m->base);
        return s;
    }
    for (int i = 0; i < n_local; i++) m->share[i] = 1.0 / m->n_world;
    describe(m, name);
    describe_type(m);
    *out = &m->base;
    return SHEAF_OK;

no_bytes:
    sheaf_free(m->members);
no_members:
    sheaf_free(m);
no_device:
    return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: %d devices", name, n_local);
}

void sheaf_meta_free(sheaf_device *meta) {
    if (meta) device_free(meta);
}

void sheaf_meta_set_policy(sheaf_device *meta, sheaf_meta_policy fn, void *ctx) {
    meta_of(meta)->policy = fn;
    meta_of(meta)->policy_ctx = ctx;
}

void sheaf_meta_set_shares(sheaf_device *meta, const float *of_world) {
    meta_device *m = meta_of(meta);
    double sum = 0;
    for (int i = 0; i < m->n_world; i++) sum += (double)of_world[i];
    for (int i = 0; i < m->n_local && sum > 0; i++) m->share[i] = (double)of_world[m->first + i] / sum;
}

int sheaf_meta_world_devices(const sheaf_device *meta) { return meta_of(meta)->n_world; }
int sheaf_meta_first(const sheaf_device *meta) { return meta_of(meta)->first; }

void meta_count_bytes(meta_device *m, int member, sheaf_usage usage, ptrdiff_t change) {
    atomic_fetch_add(&m->bytes[member * META_USAGES + (int)usage], (size_t)change);
}

size_t sheaf_meta_bytes(const sheaf_device *meta, int i, sheaf_usage usage) {
    const meta_device *m = meta_of(meta);
    return i >= 0 && i < m->n_local ? atomic_load(&m->bytes[i * META_USAGES + (int)usage]) : 0;
}
