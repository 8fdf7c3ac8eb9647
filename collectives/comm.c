/* The communicator: who meets, their names, staging, statistics.
 *
 * Owns members, staging, channels, ops (op.c). Does not add or copy elements: engines and reduce.c do. What
 * happens in which order (post.c, run.c, failure.c), and why members agree, is stated in comm_internal.h. */
#include "collectives/comm_internal.h"
#include "tensor/settings.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

int comm_rank_of(const sheaf_comm *c, int device) {
    int rank = 0;
    while (rank + 1 < c->n_ranks && device >= c->rank_first[rank + 1]) rank++;
    return rank;
}

const char *comm_device_name(const sheaf_comm *c, int device, char *buf, size_t n) {
    int local = device - c->first;
    if (local >= 0 && local < c->n_local) {
        snprintf(buf, n, "device %d (%s)", device, c->members[local].device->name);
    } else {
        snprintf(buf, n, "device %d (rank %d)", device, comm_rank_of(c, device));
    }
    return buf;
}

/* --- staging --------------------------------------------------------------------------------------------- */

sheaf_status sheaf_comm_reserve_staging(sheaf_comm *c, size_t bytes) {
    size_t slot, both;
    if (bytes <= c->staging_bytes) return SHEAF_OK;
    if (!sheaf_align_up(bytes, 4096, &slot) || sheaf_mul_overflow(slot, 2, &both)) {
        return sheaf_fail(SHEAF_E_RANGE, "staging of %zu bytes", bytes);
    }
    char *fresh[MAX_DEVICES];
    for (int i = 0; i < c->n_local; i++) {
        fresh[i] = sheaf_pages_alloc(both);
        if (fresh[i]) continue;
        while (i-- > 0) sheaf_free(fresh[i]);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "staging of %zu bytes for %d devices", both, c->n_local);
    }
    for (int i = 0; i < c->n_local; i++) {
        sheaf_free(c->members[i].staging);
        c->members[i].staging = fresh[i];
        c->members[i].last_slot = -1;
    }
    c->staging_bytes = slot;
    return SHEAF_OK;
}

void *sheaf_comm_staging(const sheaf_comm *c, int i, int slot) {
    if (i < 0 || i >= c->n_local || slot < 0 || slot > 1 || !c->members[i].staging) return NULL;
    return c->members[i].staging + (slot ? c->staging_bytes : 0);
}

/* A device that lends nothing may not know of a slot that the others used. */
int sheaf_comm_next_slot(const sheaf_comm *c) {
    for (int i = 0; i < c->n_local; i++) {
        if (c->members[i].last_slot >= 0) return !c->members[i].last_slot;
    }
    return 0;
}

/* --- making one ------------------------------------------------------------------------------------------ */

void *comm_zeros(size_t bytes) {
    void *p = sheaf_aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* The reference, for devices that lend none: squares summed in order in F64. */
static void plain_rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float factor = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (int64_t i = 0; i < n; i++) out[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

static int allowed_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* Spinning helps only while everybody who is waited for has a core. */
static void set_pace(sheaf_comm *c) {
    int threads = 0;
    for (int i = 0; i < c->n_local; i++) {
        int n = c->members[i].device->n_threads;
        threads += n > 0 ? n : 1;
    }
    threads *= sheaf_world_host_size(c->world);
    c->pace.spin_ns = threads <= allowed_cores() ? sheaf_settings()->spin_us * 1000 : 0;
}

/* What each rank tells the others of itself. Rank 0's pin is everybody's. */
typedef struct rank_card {
    int32_t n_local;
    char pin[16];
} rank_card;

static sheaf_status exchange_cards(sheaf_comm *c) {
    rank_card mine = {.n_local = c->n_local}, all[MAX_DEVICES];
    snprintf(mine.pin, sizeof mine.pin, "%s", sheaf_settings()->allreduce);
    c->n_ranks = sheaf_world_size(c->world);
    c->rank = sheaf_world_rank(c->world);
    if (c->n_ranks > MAX_DEVICES) {
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "a world of %d ranks, at most %d devices can meet", c->n_ranks,
                          MAX_DEVICES);
    }
    sheaf_status s = sheaf_world_allgather(c->world, &mine, sizeof mine, all);
    if (s) return s;
    for (int k = 0; k < c->n_ranks; k++) {
        if (all[k].n_local < 1 || all[k].n_local > MAX_DEVICES - c->n_world) {
            return sheaf_fail(SHEAF_E_UNSUPPORTED, "rank %d brings %d devices to %d: 1 to %d can meet", k,
                              (int)all[k].n_local, c->n_world, MAX_DEVICES);
        }
        c->rank_first[k] = c->n_world;
        c->n_world += all[k].n_local;
    }
    c->rank_first[c->n_ranks] = c->n_world;
    c->first = c->rank_first[c->rank];
    all[0].pin[sizeof all[0].pin - 1] = 0;
    memcpy(c->pin, all[0].pin, sizeof c->pin);
    return engine_pin_check(c->pin);
}

static sheaf_status make_members(sheaf_comm *c, sheaf_device *const *devices) {
    size_t n = (size_t)c->n_local;
    c->members = comm_zeros(n * sizeof *c->members);
    c->channels = comm_zeros(n * n * sizeof *c->channels);
    if (!c->members || !c->channels) return sheaf_fail(SHEAF_E_NO_MEMORY, "a communicator of %d devices", c->n_local);
    for (int i = 0; i < c->n_local; i++) {
        member *m = &c->members[i];
        m->comm = c;
        m->device = devices[i];
        m->last_slot = -1;
        const sheaf_device_iface *iface = devices[i]->iface;
        const sheaf_row_kernels *rows = iface && iface->row_kernels ? iface->row_kernels(devices[i]) : NULL;
        m->rms_norm = rows ? rows->rms_norm : plain_rms_norm;
        m->sum_f64 = rows ? rows->sum_f64 : NULL;
    }
    return SHEAF_OK;
}

sheaf_status sheaf_comm_new(sheaf_world *w, sheaf_device *const *devices, int n_local, sheaf_comm **out) {
    *out = NULL;
    if (!devices || n_local < 1 || n_local > MAX_DEVICES) {
        return sheaf_fail(SHEAF_E_ARGUMENT, "a communicator of %d devices: 1 to %d can meet", n_local, MAX_DEVICES);
    }
    sheaf_comm *c = comm_zeros(sizeof *c);
    if (!c) return sheaf_fail(SHEAF_E_NO_MEMORY, "a communicator");
    c->world = w;
    c->n_local = n_local;
    c->timeout_ns = sheaf_settings()->comm_timeout_ms * 1000000;
    sheaf_status s = make_members(c, devices);
    if (!s) s = exchange_cards(c);
    if (!s && c->n_ranks > 1) s = link_new(w, comm_link_failed, c, &c->link);
    if (s) {
        sheaf_comm_free(c);
        return s;
    }
    for (int i = 0; i < n_local; i++) c->members[i].number = c->first + i;
    set_pace(c);
    *out = c;
    return SHEAF_OK;
}

void sheaf_comm_free(sheaf_comm *c) {
    if (!c) return;
    while (c->ops) sheaf_comm_op_free(c->ops);
    link_free(c->link);
    hier_blocks_free(c);
    for (int i = 0; c->members && i < c->n_local; i++) sheaf_free(c->members[i].staging);
    sheaf_free(c->channels);
    sheaf_free(c->members);
    sheaf_free(c);
}

int sheaf_comm_devices(const sheaf_comm *c) { return c->n_world; }

int sheaf_comm_first(const sheaf_comm *c) { return c->first; }

sheaf_comm_stats sheaf_comm_stats_of(const sheaf_comm *c, int i) {
    if (i < 0 || i >= c->n_local) return (sheaf_comm_stats){0};
    member *m = &c->members[i];
    return (sheaf_comm_stats){atomic_load_explicit(&m->posts, memory_order_relaxed),
                              atomic_load_explicit(&m->bytes, memory_order_relaxed),
                              atomic_load_explicit(&m->wait_ns, memory_order_relaxed),
                              atomic_load_explicit(&m->reduce_ns, memory_order_relaxed)};
}
