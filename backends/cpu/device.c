/* CPU devices: how a list's cores and threads are divided, what a device answers, its team's life.
 *
 * A device is a range of the allowed cores, a number of threads, and its own buffer types. Parts of
 * one item divide that item's cores; more parts than cores share them. Threads are divided over all
 * devices of a list together, at least one each. A team exists while a backend or a queue of its
 * device does. */
#include "backends/cpu/device_internal.h"

#include "tensor/settings.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

/* --- the host ---------------------------------------------------------------------------------------- */

sheaf_status cpu_host_new(cpu_host **out) {
    cpu_host *h = sheaf_calloc(1, sizeof *h);
    if (!h) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening the processors: no memory");
    sheaf_status s = cpu_topology_load_settings(&h->topology);
    if (s) {
        sheaf_free(h);
        return s;
    }
    pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return SHEAF_OK;
}

void cpu_host_free(cpu_host *h) {
    if (!h) return;
    pthread_mutex_destroy(&h->lock);
    cpu_topology_free(h->topology);
    sheaf_free(h);
}

int sheaf_default_threads(void) {
    cpu_topology *t;
    if (cpu_topology_load_settings(&t)) return 1;
    int n = cpu_topology_threads(t, cpu_topology_cores(t));
    cpu_topology_free(t);
    return n;
}

/* How long threads of this host's teams spin: not at all where they outnumber the hardware threads or
 * the quota that they may use, for then the one waited for needs the core. Under the lock. */
static int64_t spin_time(const cpu_host *h) {
    double quota = cpu_topology_quota(h->topology);
    bool too_many = h->total_threads > cpu_topology_pus(h->topology) || (quota > 0 && h->total_threads > quota);
    return too_many ? 0 : sheaf_settings()->spin_us * 1000;
}

static void count_threads(cpu_host *h, int more) {
    h->total_threads += more;
    for (cpu_device *d = h->devices; d; d = d->next)
        if (d->team) atomic_store(&d->team->spin_ns, spin_time(h));
}

/* --- the team's life ----------------------------------------------------------------------------------- */

sheaf_status cpu_team_acquire(cpu_device *d, cpu_team **out) {
    cpu_host *h = d->host;
    sheaf_status s = SHEAF_OK;
    pthread_mutex_lock(&h->lock);
    if (!d->team) {
        cpu_team_place place = {h->topology, d->core0, d->n_cores, cpu_topology_binds(h->topology)};
        s = cpu_team_new(d->base.n_threads, &place, spin_time(h), d->kernels, &d->faults, &d->team);
    }
    if (!s) {
        d->team_users++;
        *out = d->team;
    }
    pthread_mutex_unlock(&h->lock);
    return s;
}

void cpu_team_release(cpu_device *d) {
    cpu_host *h = d->host;
    pthread_mutex_lock(&h->lock);
    cpu_team *last = --d->team_users == 0 ? d->team : NULL;
    if (last) d->team = NULL;
    pthread_mutex_unlock(&h->lock);
    cpu_team_free(last);
}

/* --- what a device answers ------------------------------------------------------------------------------ */

/* Bytes of the machine (or the tightest cgroup) and those still free. */
static void host_memory(size_t *total, size_t *free_bytes) {
    char line[256], self[8192];
    unsigned long long kb, all = 0, available = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu kB", &kb) == 1) all = kb * 1024;
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) available = kb * 1024;
    }
    if (f) fclose(f);
    struct sysinfo info;
    if (!all && sysinfo(&info) == 0) { /* no /proc, or no descriptor left to read it: never "nothing is free" */
        all = (unsigned long long)info.totalram * info.mem_unit;
        available = (unsigned long long)(info.freeram + info.bufferram) * info.mem_unit;
    }
    size_t limit, used;
    cpu_cgroup_self(self, sizeof self);
    cpu_cgroup_memory(sheaf_settings()->cgroup_root, self, &limit, &used);
    if (limit && limit < all) {
        all = limit;
        size_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    *total = (size_t)all;
    *free_bytes = (size_t)available;
}

/* Devices of one machine share its memory: each answers with its part of it. */
static sheaf_status device_memory(sheaf_device *base, size_t *total, size_t *free_bytes) {
    cpu_device *d = cpu_device_of(base);
    host_memory(total, free_bytes);
    *total /= (size_t)d->shares;
    *free_bytes /= (size_t)d->shares;
    return SHEAF_OK;
}

static bool device_supports_op(sheaf_device *d, const sheaf_tensor *node) {
    (void)d;
    return cpu_op_supported(node);
}

/* The plain host's memory is refused: inputs of a queue-driven device are copied, so that the host may
 * write the next ones while it works. Mapped weights have a type of their own. */
static bool device_supports_buffer_type(sheaf_device *base, const sheaf_buffer_type *t) {
    return t == base->buffer_type || t == base->mapped_buffer_type;
}

static sheaf_status device_backend_new(sheaf_device *d, sheaf_backend **out) { return cpu_backend_create(d, out); }

static const sheaf_row_kernels *device_row_kernels(sheaf_device *d) { return &cpu_device_of(d)->rows; }

static void unlink_device(cpu_device *d) {
    pthread_mutex_lock(&d->host->lock);
    for (cpu_device **p = &d->host->devices; *p; p = &(*p)->next) {
        if (*p != d) continue;
        *p = d->next;
        break;
    }
    count_threads(d->host, -d->base.n_threads);
    pthread_mutex_unlock(&d->host->lock);
}

static void device_free(sheaf_device *base) {
    cpu_device *d = cpu_device_of(base);
    unlink_device(d);
    sheaf_free(d);
}

static sheaf_status device_from_host_ptr(sheaf_device *d, void *p, size_t size, sheaf_buffer **out);

const sheaf_device_iface cpu_device_iface = {
    .free = device_free,
    .memory = device_memory,
    .supports_op = device_supports_op,
    .supports_buffer_type = device_supports_buffer_type,
    .backend_new = device_backend_new,
    .buffer_from_host_ptr = device_from_host_ptr,
    .row_kernels = device_row_kernels,
};

cpu_faults *cpu_device_faults(sheaf_device *d) {
    return d->iface == &cpu_device_iface ? &cpu_device_of(d)->faults : NULL;
}

/* --- buffer types ------------------------------------------------------------------------------------------ */

sheaf_status cpu_buffer_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out);
sheaf_status cpu_buffer_map(sheaf_buffer_type *t, void *p, size_t size, sheaf_buffer **out);

const sheaf_buffer_type_iface cpu_own_type_iface = {.alloc = cpu_buffer_alloc};

static sheaf_status mapped_alloc(sheaf_buffer_type *t, size_t size, sheaf_buffer **out) {
    (void)size;
    (void)out;
    return sheaf_fail(SHEAF_E_UNSUPPORTED, "allocating from %s: it only wraps memory that exists", t->name);
}

const sheaf_buffer_type_iface cpu_mapped_type_iface = {.alloc = mapped_alloc};

bool cpu_is_mapped_type(const sheaf_buffer_type *t) { return t->iface == &cpu_mapped_type_iface; }

static sheaf_status device_from_host_ptr(sheaf_device *d, void *p, size_t size, sheaf_buffer **out) {
    return cpu_buffer_map(d->mapped_buffer_type, p, size, out);
}

/* --- opening a list ------------------------------------------------------------------------------------------ */

/* A device to be: a range of cores, and its name. */
typedef struct planned {
    int core0, n_cores, n_threads, numa;
    char name[32];
} planned;

static void part_name(char *name, size_t n, const sheaf_device_item *item, int index, int part) {
    char where[16] = "", parts[24] = "";
    if (index >= 0) snprintf(where, sizeof where, ":%d", index);
    if (item->parts) snprintf(parts, sizeof parts, "/%d.%d", item->parts, part);
    snprintf(name, n, "cpu%s%s", where, parts);
}

/* The cores of an item's index: a NUMA node's, or all of this process's share [lo, hi). */
static sheaf_status item_cores(const cpu_topology *t, int node, int lo, int hi, int *core0, int *n_cores) {
    *core0 = lo;
    *n_cores = hi - lo;
    if (node < 0) return SHEAF_OK;
    if (node >= cpu_topology_nodes(t))
        return sheaf_fail(SHEAF_E_NO_DEVICE, "device list: cpu:%d: this machine has %d NUMA node%s", node,
                          cpu_topology_nodes(t), cpu_topology_nodes(t) == 1 ? "" : "s");
    *n_cores = cpu_topology_node_cores(t, node, core0);
    if (*n_cores == 0)
        return sheaf_fail(SHEAF_E_NO_DEVICE, "device list: cpu:%d: no core of that NUMA node may be used", node);
    return SHEAF_OK;
}

static sheaf_status plan_item(const cpu_topology *t, const sheaf_device_item *item, int lo, int hi, planned *out,
                              int *n) {
    int parts = item->parts ? item->parts : 1;
    for (int index = item->first; index <= item->last; index++) {
        int core0, n_cores;
        sheaf_status s = item_cores(t, index, lo, hi, &core0, &n_cores);
        if (s) return s;
        for (int part = 0; part < parts; part++) {
            int64_t a = (int64_t)n_cores * part / parts, b = (int64_t)n_cores * (part + 1) / parts;
            planned *p = &out[(*n)++];
            p->core0 = core0 + (int)a;
            p->n_cores = b > a ? (int)(b - a) : 1; /* more parts than cores: they share */
            p->numa = cpu_topology_core(t, p->core0)->numa;
            part_name(p->name, sizeof p->name, item, index, part);
        }
    }
    return SHEAF_OK;
}

/* One thread each, then one by one to whoever has fewest for its cores. */
static void divide_threads(planned *p, int n, int threads) {
    for (int i = 0; i < n; i++) p[i].n_threads = 1;
    for (int left = threads - n; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < n; i++)
            if ((int64_t)p[i].n_threads * p[best].n_cores < (int64_t)p[best].n_threads * p[i].n_cores) best = i;
        p[best].n_threads++;
    }
}

/* A name that is already taken ("cpu,cpu") gets a number. */
static void make_unique(const cpu_host *h, planned *p, int n) {
    for (int i = 0; i < n; i++) {
        char base[32];
        snprintf(base, sizeof base, "%s", p[i].name);
        for (int number = 2;; number++) {
            bool taken = false;
            for (int k = 0; k < i; k++) taken |= !strcmp(p[k].name, p[i].name);
            for (const cpu_device *d = h->devices; d; d = d->next) taken |= !strcmp(d->base.name, p[i].name);
            if (!taken) break;
            snprintf(p[i].name, sizeof p[i].name, "%.20s#%d", base, number);
        }
    }
}

static void describe(const cpu_host *h, cpu_device *d) {
    const char *model = cpu_topology_model(h->topology);
    snprintf(d->base.description, sizeof d->base.description, "%.48s, %s kernels, %d core%s", *model ? model : "CPU",
             d->kernels->name, d->n_cores, d->n_cores == 1 ? "" : "s");
}

static void init_types(cpu_device *d) {
    d->own = (sheaf_buffer_type){
        .iface = &cpu_own_type_iface, .device = &d->base, .alignment = 64, .pack_rows = 1, .is_host = true};
    /* Files align tensors to 8 bytes at least; kernels load unaligned. */
    d->mapped = (sheaf_buffer_type){
        .iface = &cpu_mapped_type_iface, .device = &d->base, .alignment = 8, .pack_rows = 1, .is_host = true};
    snprintf(d->own.name, sizeof d->own.name, "%s", d->base.name);
    snprintf(d->mapped.name, sizeof d->mapped.name, "%.24s mapped", d->base.name);
}

static cpu_device *device_create(cpu_host *h, const planned *p, const cpu_kernels *kernels, int shares) {
    cpu_device *d = sheaf_aligned_alloc(64, sizeof *d);
    if (!d) return NULL;
    memset(d, 0, sizeof *d);
    d->host = h;
    d->kernels = kernels;
    d->rows = (sheaf_row_kernels){kernels->rms_norm, kernels->sum_f64};
    d->core0 = p->core0;
    d->n_cores = p->n_cores;
    d->shares = shares;
    d->base = (sheaf_device){.iface = &cpu_device_iface,
                             .kind = SHEAF_DEVICE_CPU,
                             .caps = {.async = true, .events = true, .host_ptr = true, .host_memory = true},
                             .buffer_type = &d->own,
                             .mapped_buffer_type = &d->mapped,
                             .n_threads = p->n_threads,
                             .numa = p->numa};
    memcpy(d->base.name, p->name, sizeof d->base.name);
    init_types(d);
    describe(h, d);
    return d;
}

/* `parts` processes of this host open as many devices each. */
static sheaf_status create_all(cpu_host *h, const planned *p, int n, int parts, const cpu_kernels *kernels,
                               sheaf_device **out) {
    for (int i = 0; i < n; i++) {
        cpu_device *d = device_create(h, &p[i], kernels, n * parts);
        if (!d) {
            for (int k = 0; k < i; k++) out[k]->iface->free(out[k]);
            return sheaf_fail(SHEAF_E_NO_MEMORY, "opening %s: no memory", p[i].name);
        }
        pthread_mutex_lock(&h->lock);
        d->next = h->devices;
        h->devices = d;
        count_threads(h, d->base.n_threads);
        pthread_mutex_unlock(&h->lock);
        out[i] = &d->base;
    }
    return SHEAF_OK;
}

sheaf_status cpu_choose_kernels(const sheaf_open_options *opts, const cpu_kernels **out) {
    const char *name = opts->cpu_level && *opts->cpu_level ? opts->cpu_level : sheaf_settings()->cpu_level;
    cpu_level level = cpu_level_best();
    sheaf_status s = *name ? cpu_level_from_name(name, &level) : SHEAF_OK;
    if (!s) *out = cpu_kernels_get(level);
    return s;
}

/* This process's share of the allowed cores: the part-th of n_parts, at least one. */
static void process_share(const cpu_topology *t, const sheaf_open_options *o, int *lo, int *hi) {
    int n = cpu_topology_cores(t), parts = o->n_parts > 0 ? o->n_parts : 1;
    int part = o->part >= 0 && o->part < parts ? o->part : 0;
    *lo = (int)((int64_t)n * part / parts);
    *hi = (int)((int64_t)n * (part + 1) / parts);
    if (*hi > *lo) return;
    *hi = *lo + 1;
}

static void warn_if_crowded(const cpu_host *h) {
    int pus = cpu_topology_pus(h->topology);
    double quota = cpu_topology_quota(h->topology);
    if (h->total_threads > pus)
        sheaf_log(SHEAF_LOG_WARN, "%d threads share %d hardware threads: they will wait for each other",
                  h->total_threads, pus);
    else if (quota > 0 && h->total_threads > quota)
        sheaf_log(SHEAF_LOG_WARN, "%d threads under a quota of %.2f CPUs: they will be throttled", h->total_threads,
                  quota);
}

static int default_threads(const cpu_topology *t, const sheaf_open_options *o, int lo, int hi) {
    int n = cpu_topology_threads(t, hi - lo);
    double quota = cpu_topology_quota(t);
    if (o->n_parts > 1 && quota > 0 && n > quota / o->n_parts) n = (int)(quota / o->n_parts);
    return n < 1 ? 1 : n;
}

sheaf_status cpu_devices_open(cpu_host *h, const sheaf_device_item *items, int n_items, const sheaf_open_options *opts,
                              sheaf_device **out) {
    int total = 0, n = 0, lo, hi;
    const cpu_kernels *kernels;
    for (int i = 0; i < n_items; i++)
        total += (items[i].last - items[i].first + 1) * (items[i].parts ? items[i].parts : 1);
    if (opts->n_threads < 0) return sheaf_fail(SHEAF_E_ARGUMENT, "opening devices: %d threads", opts->n_threads);
    sheaf_status s = cpu_choose_kernels(opts, &kernels);
    if (s) return s;
    planned *p = sheaf_calloc((size_t)total, sizeof *p);
    if (!p) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening devices: no memory");
    process_share(h->topology, opts, &lo, &hi);
    for (int i = 0; i < n_items && !s; i++) s = plan_item(h->topology, &items[i], lo, hi, p, &n);
    if (!s) {
        divide_threads(p, n, opts->n_threads ? opts->n_threads : default_threads(h->topology, opts, lo, hi));
        make_unique(h, p, n);
        s = create_all(h, p, n, opts->n_parts > 0 ? opts->n_parts : 1, kernels, out);
    }
    if (!s && !opts->idle) warn_if_crowded(h);
    sheaf_free(p);
    return s;
}

/* --- finding --------------------------------------------------------------------------------------------------- */

static void note(sheaf_found_device *f, const char *text) {
    if (f->n_notes < 4) snprintf(f->notes[f->n_notes++], sizeof f->notes[0], "%s", text);
}

static void note_limits(const cpu_topology *t, sheaf_found_device *f) {
    char text[128];
    if (cpu_topology_quota(t) > 0) {
        snprintf(text, sizeof text, "quota of %.2f CPUs", cpu_topology_quota(t));
        note(f, text);
    }
    if (cpu_topology_smt(t)) {
        snprintf(text, sizeof text, "%d hardware threads on %d cores", cpu_topology_pus(t), cpu_topology_cores(t));
        note(f, text);
    }
    snprintf(text, sizeof text, "%s kernels", cpu_level_name(cpu_level_best()));
    note(f, text);
}

sheaf_status cpu_devices_find(cpu_host *h, sheaf_found_device *out, int max, int *n) {
    const cpu_topology *t = h->topology;
    int nodes = cpu_topology_nodes(t), rows = nodes > 1 ? nodes + 1 : 1;
    for (int i = 0; i < rows && *n < max; i++) {
        sheaf_found_device *f = &out[(*n)++];
        int node = i - 1, first;
        *f = (sheaf_found_device){.kind = "cpu", .numa = node};
        snprintf(f->name, sizeof f->name, i ? "cpu:%d" : "cpu", node);
        snprintf(f->description, sizeof f->description, "%.64s",
                 *cpu_topology_model(t) ? cpu_topology_model(t) : "CPU");
        f->cores = i ? cpu_topology_node_cores(t, node, &first) : cpu_topology_cores(t);
        host_memory(&f->memory_total, &f->memory_free);
        if (i) f->memory_total = cpu_topology_node_memory(t, node);
        if (f->memory_free > f->memory_total) f->memory_free = f->memory_total;
        if (!i) note_limits(t, f);
    }
    return SHEAF_OK;
}
