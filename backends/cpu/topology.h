/* Which cores this process may use, and how threads and memory are bound to them.
 *
 * A *core* here is a physical core of which at least one hardware thread is allowed; it is counted
 * once however many of its threads are (cases E01, D06). Allowed means: in the topology, in the
 * cgroup's cpuset, and in the affinity mask, which are three different limits (case E05). The CPU
 * quota of a cgroup (v1 or v2, the strictest ancestor) limits how many threads make sense, not where.
 * Nothing here starts threads. Immutable after load; any thread may read. */
#ifndef SHEAF_CPU_TOPOLOGY_H
#define SHEAF_CPU_TOPOLOGY_H

#include "tensor/status.h"

/* Where the facts come from. NULL or "" means the real one; tests give text. */
typedef struct cpu_topology_input {
    const char *synthetic;   /* hwloc synthetic description; binding is off then */
    const char *cgroup_root; /* folder that stands for /sys/fs/cgroup */
    const char *self_cgroup; /* content of /proc/self/cgroup */
    const char *affinity;    /* list of hardware threads: "12-15" */
} cpu_topology_input;

typedef struct cpu_core {
    int32_t numa;  /* logical index of its NUMA node */
    int32_t pu;    /* first allowed hardware thread, as the system numbers it */
    int32_t n_pus; /* allowed hardware threads */
    int32_t index; /* logical index of the core in the machine */
} cpu_core;

typedef struct cpu_topology cpu_topology;

sheaf_status cpu_topology_load(const cpu_topology_input *in, cpu_topology **out);
/* The real machine, or what the settings say instead. */
sheaf_status cpu_topology_load_settings(cpu_topology **out);
void cpu_topology_free(cpu_topology *t);

int cpu_topology_cores(const cpu_topology *t);                   /* allowed cores, at least 1 */
const cpu_core *cpu_topology_core(const cpu_topology *t, int i); /* ordered by NUMA node, then place */
int cpu_topology_pus(const cpu_topology *t);                     /* allowed hardware threads */
int cpu_topology_nodes(const cpu_topology *t);                   /* NUMA nodes of the machine, at least 1 */
/* First allowed core of a node and how many; 0 cores when the node is absent or nothing there is allowed. */
int cpu_topology_node_cores(const cpu_topology *t, int node, int *first);
double cpu_topology_quota(const cpu_topology *t);      /* CPUs' worth of time; 0: no limit */
bool cpu_topology_smt(const cpu_topology *t);          /* some core has more than one hardware thread */
bool cpu_topology_binds(const cpu_topology *t);        /* false for a synthetic one */
const char *cpu_topology_model(const cpu_topology *t); /* processor's name, or "" */
size_t cpu_topology_node_memory(const cpu_topology *t, int node);

/* Threads by default for `n_cores` of the cores: never more than the quota's whole CPUs, at least 1. */
int cpu_topology_threads(const cpu_topology *t, int n_cores);

/* Binds the calling thread as thread i of n over cores [core0, core0+n_cores): one core each where
 * there are enough, one hardware thread each where those suffice, else all of the range. Failure is
 * logged, never an error: a sandbox may forbid it. */
void cpu_bind_thread(const cpu_topology *t, int core0, int n_cores, int n, int i);
/* Asks for [p, p+size) to lie on a node; only where there are several. Failure is silent. */
void cpu_bind_memory(const cpu_topology *t, int node, void *p, size_t size);

/* cgroup.c: CPUs' worth of time that the groups of `self_cgroup` leave (0: no limit), and the
 * cpuset as a list ("" when none is set; cut at n-1 bytes only at a comma). */
double cpu_cgroup_quota(const char *root, const char *self_cgroup);
void cpu_cgroup_cpuset(const char *root, const char *self_cgroup, char *list, size_t n);
/* Memory limit of the groups and what they use now; limit 0: none. */
void cpu_cgroup_memory(const char *root, const char *self_cgroup, size_t *limit, size_t *used);
/* Content of /proc/self/cgroup in a fixed buffer ("" when it cannot be read). */
void cpu_cgroup_self(char *text, size_t n);

#endif
