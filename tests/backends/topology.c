/* Which cores and how many threads: cgroups v1 and v2, affinity masks, cpusets, SMT, NUMA nodes, all on
 * machines that are text (cases E01, E05, D06). */
#include "backends/cpu/topology.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- a made-up /sys/fs/cgroup ------------------------------------------------------------------------- */

static void put(const char *root, const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, file);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0777);
    }
    FILE *f = fopen(path, "w");
    cr_assert(f, "cannot write %s", path);
    fprintf(f, "%s\n", text);
    fclose(f);
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static char *new_root(char *path) {
    strcpy(path, "/tmp/sheaf-cgroup-XXXXXX");
    cr_assert(mkdtemp(path), "no folder for the test");
    return path;
}
static void drop_root(const char *path) { nftw(path, drop, 8, FTW_DEPTH | FTW_PHYS); }

/* --- the cases ------------------------------------------------------------------------------------------ */

typedef struct limit_case {
    const char *name, *machine, *self;
    struct {
        const char *file, *text;
    } files[6];
    const char *affinity;
    int cores, threads; /* expected */
} limit_case;

static const limit_case cases[] = {
    {"E01 no limit, hyper-threads", "pack:1 core:4 pu:2", "0::/", {{0}}, NULL, 4, 4},
    {"E01 v2 quota 5.5", "pack:1 core:64 pu:1", "0::/", {{"cpu.max", "550000 100000"}}, NULL, 64, 5},
    {"E01 v2 max is no limit", "pack:1 core:8 pu:1", "0::/", {{"cpu.max", "max 100000"}}, NULL, 8, 8},
    {"E01 v1 quota",
     "pack:1 core:64 pu:1",
     "4:cpu,cpuacct:/box\n",
     {{"cpu,cpuacct/box/cpu.cfs_quota_us", "550000"}, {"cpu,cpuacct/box/cpu.cfs_period_us", "100000"}},
     NULL,
     64,
     5},
    {"E01 v1 quota -1",
     "pack:1 core:6 pu:1",
     "4:cpu:/",
     {{"cpu/cpu.cfs_quota_us", "-1"}, {"cpu/cpu.cfs_period_us", "100000"}},
     NULL,
     6,
     6},
    {"E01 v1 mount of a container",
     "pack:1 core:16 pu:1",
     "4:cpu:/docker/abc",
     {{"cpu/cpu.cfs_quota_us", "300000"}, {"cpu/cpu.cfs_period_us", "100000"}},
     NULL,
     16,
     3},
    {"E01 strictest ancestor",
     "pack:1 core:64 pu:1",
     "0::/a/b/c",
     {{"a/b/c/cpu.max", "900000 100000"},
      {"a/b/cpu.max", "max 100000"},
      {"a/cpu.max", "250000 100000"},
      {"cpu.max", "max"}},
     NULL,
     64,
     2},
    {"E01 strictest is the leaf",
     "pack:1 core:64 pu:1",
     "0::/a/b",
     {{"a/b/cpu.max", "150000 100000"}, {"a/cpu.max", "800000 100000"}},
     NULL,
     64,
     1},
    {"E01 less than one CPU", "pack:1 core:4 pu:1", "0::/", {{"cpu.max", "50000 100000"}}, NULL, 4, 1},
    {"E01 cpuset of 4 cores x 2", "pack:1 core:32 pu:2", "0::/x", {{"x/cpuset.cpus.effective", "0-7"}}, NULL, 4, 4},
    {"E01 v1 cpuset", "pack:1 core:8 pu:1", "7:cpuset:/x", {{"cpuset/x/cpuset.cpus", "2,5"}}, NULL, 2, 2},
    {"E05 cpuset and affinity", "pack:1 core:32 pu:1", "0::/", {{"cpuset.cpus.effective", "8-15"}}, "12-15", 4, 4},
    {"E05 cpuset that is stale", "pack:1 core:4 pu:1", "0::/", {{"cpuset.cpus.effective", "100-103"}}, NULL, 4, 4},
    {"D06 one thread of each core", "pack:1 core:2 pu:2", "0::/", {{0}}, "0,2", 2, 2},
    {"path outside the namespace", "pack:1 core:8 pu:1", "0::/../up", {{"cpu.max", "200000 100000"}}, NULL, 8, 2},
    {"garbage in the files",
     "pack:1 core:8 pu:1",
     "nonsense\n::\n0:",
     {{"cpu.max", "x y"}, {"cpuset.cpus.effective", "abc"}},
     NULL,
     8,
     8},
};

static void check_case(const limit_case *c) {
    char root[64];
    cpu_topology *t;
    new_root(root);
    for (int i = 0; i < 6 && c->files[i].file; i++) put(root, c->files[i].file, c->files[i].text);
    cpu_topology_input in = {c->machine, root, c->self, c->affinity};
    cr_assert_eq(cpu_topology_load(&in, &t), SHEAF_OK, "%s: %s", c->name, sheaf_error());
    int cores = cpu_topology_cores(t), threads = cpu_topology_threads(t, cores);
    cr_assert_eq(cores, c->cores, "%s: %d cores, expected %d", c->name, cores, c->cores);
    cr_assert_eq(threads, c->threads, "%s: %d threads, expected %d", c->name, threads, c->threads);
    cpu_topology_free(t);
    drop_root(root);
}

Test(topology, limits_of_groups_masks_and_cores, .timeout = 30) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_case(&cases[i]);
}

/* E05: only allowed hardware threads are ever named. */
Test(topology, cores_lie_inside_every_limit, .timeout = 10) {
    char root[64];
    cpu_topology *t;
    new_root(root);
    put(root, "cpuset.cpus.effective", "8-15");
    cpu_topology_input in = {"pack:2 core:8 pu:2", root, "0::/", "12-20"};
    cr_assert_eq(cpu_topology_load(&in, &t), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(cpu_topology_cores(t), 2, "%d cores", cpu_topology_cores(t));
    cr_assert_eq(cpu_topology_pus(t), 4, "%d hardware threads", cpu_topology_pus(t));
    for (int i = 0; i < cpu_topology_cores(t); i++) {
        int pu = cpu_topology_core(t, i)->pu;
        cr_assert(pu >= 12 && pu <= 15, "core %d has hardware thread %d", i, pu);
    }
    cpu_topology_free(t);
    drop_root(root);
}

Test(topology, cores_are_listed_by_node, .timeout = 10) {
    cpu_topology *t;
    cpu_topology_input in = {"numa:3 core:4 pu:1", "/nonexistent", "0::/", "0-1,4-11"};
    cr_assert_eq(cpu_topology_load(&in, &t), SHEAF_OK, "%s", sheaf_error());
    static const int expected[3][2] = {{0, 2}, {2, 4}, {6, 4}}; /* first, count */
    cr_assert_eq(cpu_topology_nodes(t), 3, "%d nodes", cpu_topology_nodes(t));
    for (int node = 0; node < 3; node++) {
        int first, n = cpu_topology_node_cores(t, node, &first);
        cr_assert_eq(first, expected[node][0], "node %d begins at %d", node, first);
        cr_assert_eq(n, expected[node][1], "node %d has %d cores", node, n);
    }
    int first;
    cr_assert_eq(cpu_topology_node_cores(t, 9, &first), 0, "a node that is not there has cores");
    cpu_topology_free(t);
}

Test(topology, a_bad_description_is_an_argument_error, .timeout = 10) {
    cpu_topology *t;
    cpu_topology_input in = {"pack:x flower:2", "/nonexistent", "", NULL};
    sheaf_status s = cpu_topology_load(&in, &t);
    cr_assert_eq(s, SHEAF_E_ARGUMENT, "%s", sheaf_status_name(s));
}

Test(topology, memory_limit_of_the_tightest_group, .timeout = 10) {
    char root[64];
    size_t limit, used;
    new_root(root);
    put(root, "memory.max", "max");
    put(root, "memory.current", "5");
    put(root, "a/memory.max", "8000000");
    put(root, "a/memory.current", "7000000");
    put(root, "a/b/memory.max", "6000000");
    put(root, "a/b/memory.current", "1000000");
    cpu_cgroup_memory(root, "0::/a/b", &limit, &used);
    cr_assert(limit == 8000000 && used == 7000000, "limit %zu used %zu", limit, used);
    cpu_cgroup_memory(root, "0::/", &limit, &used);
    cr_assert(limit == 0, "limit %zu", limit);
    drop_root(root);
}
