/* The allowed cores of this process, from hwloc, the cgroup and the affinity mask. */
#include "backends/cpu/topology.h"

#include "tensor/settings.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct cpu_topology {
    hwloc_topology_t hw;
    hwloc_bitmap_t allowed; /* hardware threads this process may use */
    bool synthetic;
    cpu_core *cores;
    int n_cores, n_pus, n_nodes;
    bool smt;
    double quota;
    char model[96];
};

static const char *const real_cgroup_root = "/sys/fs/cgroup";

static bool given(const char *text) { return text && *text; }

static sheaf_status load_hwloc(const cpu_topology_input *in, hwloc_topology_t *out) {
    hwloc_topology_t hw;
    if (hwloc_topology_init(&hw)) return sheaf_fail(SHEAF_E_NO_MEMORY, "reading the topology: no memory");
    if (given(in->synthetic)) {
        if (hwloc_topology_set_synthetic(hw, in->synthetic)) {
            hwloc_topology_destroy(hw);
            return sheaf_fail(SHEAF_E_ARGUMENT, "reading the topology: \"%s\" is not a synthetic description",
                              in->synthetic);
        }
    } else {
        /* Without this flag hwloc may move the calling thread from processor to processor to ask each. */
        hwloc_topology_set_flags(hw, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    }
    if (hwloc_topology_load(hw)) {
        hwloc_topology_destroy(hw);
        return sheaf_fail(SHEAF_E_IO, "reading the topology: hwloc could not load it");
    }
    *out = hw;
    return SHEAF_OK;
}

/* Intersects with a list as the kernel writes it; an empty intersection is ignored, because a limit
 * that leaves nothing is stale or not about these processors. */
static void limit_to_list(hwloc_bitmap_t allowed, const char *list) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set) return;
    if (!hwloc_bitmap_list_sscanf(set, list) && hwloc_bitmap_intersects(allowed, set))
        hwloc_bitmap_and(allowed, allowed, set);
    hwloc_bitmap_free(set);
}

static void limit_to_affinity(cpu_topology *t) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set) return;
    if (!hwloc_get_cpubind(t->hw, set, HWLOC_CPUBIND_THREAD) && hwloc_bitmap_intersects(t->allowed, set))
        hwloc_bitmap_and(t->allowed, t->allowed, set);
    hwloc_bitmap_free(set);
}

static int node_of(hwloc_topology_t hw, hwloc_const_cpuset_t set) {
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_NUMANODE, node)))
        if (node->cpuset && hwloc_bitmap_intersects(node->cpuset, set)) return (int)node->logical_index;
    return 0;
}

static int by_node(const void *x, const void *y) {
    const cpu_core *a = x, *b = y;
    if (a->numa != b->numa) return a->numa < b->numa ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Lists the cores with an allowed hardware thread. A machine that shows no cores (some virtual ones)
 * counts each hardware thread as one. */
static sheaf_status list_cores(cpu_topology *t) {
    hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int n = hwloc_get_nbobjs_by_type(t->hw, type);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    t->cores = sheaf_calloc(n > 0 ? (size_t)n : 1, sizeof *t->cores);
    if (!t->cores || !set) {
        hwloc_bitmap_free(set);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "reading the topology: no memory");
    }
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(t->hw, type, o));) {
        hwloc_bitmap_and(set, o->cpuset, t->allowed);
        int pus = hwloc_bitmap_weight(set);
        if (pus <= 0) continue;
        if (hwloc_bitmap_weight(o->cpuset) > 1) t->smt = true;
        t->cores[t->n_cores++] = (cpu_core){node_of(t->hw, set), hwloc_bitmap_first(set), pus, (int)o->logical_index};
        t->n_pus += pus;
    }
    hwloc_bitmap_free(set);
    if (t->n_cores == 0) t->cores[t->n_cores++] = (cpu_core){0, 0, 1, 0}; /* never fatal: we do run somewhere */
    if (t->n_pus == 0) t->n_pus = 1;
    qsort(t->cores, (size_t)t->n_cores, sizeof *t->cores, by_node);
    return SHEAF_OK;
}

static void find_model(cpu_topology *t) {
    hwloc_obj_t package = hwloc_get_next_obj_by_type(t->hw, HWLOC_OBJ_PACKAGE, NULL);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    snprintf(t->model, sizeof t->model, "%s", model ? model : "");
}

static void read_limits(cpu_topology *t, const cpu_topology_input *in) {
    char self[8192], list[2048];
    const char *root = given(in->cgroup_root) ? in->cgroup_root : real_cgroup_root;
    t->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t->hw));
    if (!t->allowed) return;
    if (given(in->affinity))
        limit_to_list(t->allowed, in->affinity);
    else if (!t->synthetic)
        limit_to_affinity(t);
    /* The real groups say nothing about a made-up machine. */
    if (t->synthetic && !strcmp(root, real_cgroup_root)) return;
    if (in->self_cgroup)
        snprintf(self, sizeof self, "%s", in->self_cgroup);
    else
        cpu_cgroup_self(self, sizeof self);
    cpu_cgroup_cpuset(root, self, list, sizeof list);
    if (list[0]) limit_to_list(t->allowed, list);
    t->quota = cpu_cgroup_quota(root, self);
}

sheaf_status cpu_topology_load(const cpu_topology_input *in, cpu_topology **out) {
    cpu_topology *t = sheaf_calloc(1, sizeof *t);
    if (!t) return sheaf_fail(SHEAF_E_NO_MEMORY, "reading the topology: no memory");
    sheaf_status s = load_hwloc(in, &t->hw);
    if (s) {
        sheaf_free(t);
        return s;
    }
    t->synthetic = given(in->synthetic);
    read_limits(t, in);
    if (!t->allowed) s = sheaf_fail(SHEAF_E_NO_MEMORY, "reading the topology: no memory");
    if (!s) s = list_cores(t);
    if (s) {
        cpu_topology_free(t);
        return s;
    }
    int nodes = hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_NUMANODE);
    t->n_nodes = nodes > 0 ? nodes : 1;
    find_model(t);
    *out = t;
    return SHEAF_OK;
}

sheaf_status cpu_topology_load_settings(cpu_topology **out) {
    const sheaf_settings_values *v = sheaf_settings();
    return cpu_topology_load(&(cpu_topology_input){.synthetic = v->topology, .cgroup_root = v->cgroup_root}, out);
}

void cpu_topology_free(cpu_topology *t) {
    if (!t) return;
    if (t->allowed) hwloc_bitmap_free(t->allowed);
    hwloc_topology_destroy(t->hw);
    sheaf_free(t->cores);
    sheaf_free(t);
}

int cpu_topology_cores(const cpu_topology *t) { return t->n_cores; }
const cpu_core *cpu_topology_core(const cpu_topology *t, int i) { return &t->cores[i]; }
int cpu_topology_pus(const cpu_topology *t) { return t->n_pus; }
int cpu_topology_nodes(const cpu_topology *t) { return t->n_nodes; }
double cpu_topology_quota(const cpu_topology *t) { return t->quota; }
bool cpu_topology_smt(const cpu_topology *t) { return t->smt; }
bool cpu_topology_binds(const cpu_topology *t) { return !t->synthetic; }
const char *cpu_topology_model(const cpu_topology *t) { return t->model; }

int cpu_topology_node_cores(const cpu_topology *t, int node, int *first) {
    int n = 0;
    *first = 0;
    for (int i = 0; i < t->n_cores; i++) {
        if (t->cores[i].numa != node) continue;
        if (n++ == 0) *first = i;
    }
    return n;
}

size_t cpu_topology_node_memory(const cpu_topology *t, int node) {
    hwloc_obj_t o = hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_NUMANODE, (unsigned)node);
    return o && o->attr ? (size_t)o->attr->numanode.local_memory : 0;
}

int cpu_topology_threads(const cpu_topology *t, int n_cores) {
    int n = n_cores;
    if (t->quota > 0 && t->quota < n) n = (int)t->quota;
    return n < 1 ? 1 : n;
}

/* The hardware threads of the cores that thread i of n should use. */
static void fill_set(const cpu_topology *t, int core0, int n_cores, int n, int i, hwloc_bitmap_t set) {
    int pus = 0;
    for (int c = 0; c < n_cores; c++) pus += t->cores[core0 + c].n_pus;
    if (n <= n_cores) { /* a core each, spread over the range so that neighbours share less */
        hwloc_bitmap_only(set, (unsigned)t->cores[core0 + (int)((int64_t)i * n_cores / n)].pu);
        return;
    }
    hwloc_bitmap_zero(set);
    for (int c = 0; c < n_cores; c++) {
        hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(t->hw, (unsigned)t->cores[core0 + c].pu);
        hwloc_obj_t core = pu ? hwloc_get_ancestor_obj_by_type(t->hw, HWLOC_OBJ_CORE, pu) : NULL;
        if (core)
            hwloc_bitmap_or(set, set, core->cpuset);
        else
            hwloc_bitmap_set(set, (unsigned)t->cores[core0 + c].pu);
    }
    hwloc_bitmap_and(set, set, t->allowed);
    if (n > pus) return;
    int id = hwloc_bitmap_first(set); /* a hardware thread each */
    for (int k = 0; k < i && id >= 0; k++) id = hwloc_bitmap_next(set, id);
    if (id >= 0) hwloc_bitmap_only(set, (unsigned)id);
}

/* Binds the calling thread; 0 if it worked. hwloc writes through a set that it could not allocate when memory is short,
 * so the call is made here wherever the fixed set of the C library is large enough. */
static int bind_here(const cpu_topology *t, hwloc_const_bitmap_t set) {
    cpu_set_t cpus;
    if (hwloc_bitmap_last(set) < 0 || hwloc_bitmap_last(set) >= CPU_SETSIZE)
        return hwloc_set_cpubind(t->hw, set, HWLOC_CPUBIND_THREAD);
    CPU_ZERO(&cpus);
    for (int id = hwloc_bitmap_first(set); id >= 0; id = hwloc_bitmap_next(set, id)) CPU_SET((size_t)id, &cpus);
    return pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
}

void cpu_bind_thread(const cpu_topology *t, int core0, int n_cores, int n, int i) {
    if (t->synthetic) return;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set) return;
    fill_set(t, core0, n_cores, n, i, set);
    if (bind_here(t, set)) sheaf_log(SHEAF_LOG_DEBUG, "thread %d of %d could not be bound to its core", i, n);
    hwloc_bitmap_free(set);
}

void cpu_bind_memory(const cpu_topology *t, int node, void *p, size_t size) {
    if (t->synthetic || t->n_nodes < 2 || node < 0) return;
    hwloc_obj_t o = hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_NUMANODE, (unsigned)node);
    if (!o) return;
    hwloc_set_area_membind(t->hw, p, size, o->nodeset, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
}
