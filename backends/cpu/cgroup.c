/* Reading the limits of control groups, v1 and v2, from text files.
 *
 * A group's limit and those of its ancestors all hold, so the strictest counts. In a container the
 * path of /proc/self/cgroup often does not exist below the mounted root; files that are missing are
 * skipped, which leaves the root's own, and that is the container's. */
#include "backends/cpu/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096, TEXT = 4096 };

/* Reads a small file whole; false when it is not there or empty. The trailing newline goes. */
static bool read_text(const char *folder, const char *file, char *text, size_t n) {
    char path[PATH];
    int len = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (len < 0 || (size_t)len >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t got = fread(text, 1, n - 1, f);
    fclose(f);
    while (got && (text[got - 1] == '\n' || text[got - 1] == ' ')) got--;
    text[got] = 0;
    return got > 0;
}

void cpu_cgroup_self(char *text, size_t n) {
    if (!read_text("/proc/self", "cgroup", text, n)) text[0] = 0;
}

/* Does the comma separated list `names` of length len hold `want`? */
static bool names_hold(const char *names, size_t len, const char *want) {
    size_t w = strlen(want);
    for (const char *p = names, *end = names + len; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t l = (size_t)((comma ? comma : end) - p);
        if (l == w && !memcmp(p, want, w)) return true;
        p += l + 1;
    }
    return false;
}

/* The path of this process for a controller ("" for v2's single hierarchy): "/" when not listed. */
static void group_path(const char *self, const char *controller, char *out, size_t n) {
    snprintf(out, n, "/");
    for (const char *line = self; line && *line;) {
        const char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) : strlen(line);
        const char *a = memchr(line, ':', len);
        const char *b = a ? memchr(a + 1, ':', len - (size_t)(a + 1 - line)) : NULL;
        if (b) {
            size_t names = (size_t)(b - a - 1), path = len - (size_t)(b + 1 - line);
            bool match = *controller ? names_hold(a + 1, names, controller) : names == 0;
            if (match && path < n && path > 0) {
                memcpy(out, b + 1, path);
                out[path] = 0;
            }
        }
        line = end ? end + 1 : NULL;
    }
    if (strstr(out, "..")) snprintf(out, n, "/"); /* outside our view: only the root is ours to read */
}

/* Walks from base+path up to base; visit returns false to stop. */
static void walk_up(const char *base, const char *path, bool (*visit)(void *ctx, const char *folder), void *ctx) {
    char folder[PATH];
    int len = snprintf(folder, sizeof folder, "%s%s", base, path);
    size_t base_len = strlen(base);
    if (len < 0 || (size_t)len >= sizeof folder) return;
    for (;;) {
        size_t l = strlen(folder);
        while (l > base_len && folder[l - 1] == '/') folder[--l] = 0;
        if (!visit(ctx, folder) || l <= base_len) return;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < base_len)
            folder[base_len] = 0;
        else
            *slash = 0;
    }
}

/* Visits v2's group folders and v1's, for a controller and its usual mount names. */
static void walk_groups(const char *root, const char *self, const char *const *controllers,
                        bool (*v2)(void *, const char *), bool (*v1)(void *, const char *), void *ctx) {
    char path[PATH], base[PATH];
    group_path(self, "", path, sizeof path);
    walk_up(root, path, v2, ctx);
    for (int i = 0; controllers[i]; i++) {
        int len = snprintf(base, sizeof base, "%s/%s", root, controllers[i]);
        if (len < 0 || (size_t)len >= sizeof base) continue;
        group_path(self, controllers[0], path, sizeof path);
        walk_up(base, path, v1, ctx);
    }
}

static void take_quota(double *best, double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    double cpus = quota / period;
    if (*best == 0 || cpus < *best) *best = cpus;
}

static bool quota_v2(void *ctx, const char *folder) {
    char text[TEXT];
    double quota, period;
    if (read_text(folder, "cpu.max", text, sizeof text) && sscanf(text, "%lf %lf", &quota, &period) == 2)
        take_quota(ctx, quota, period);
    return true;
}

static bool quota_v1(void *ctx, const char *folder) {
    char quota[TEXT], period[TEXT];
    if (read_text(folder, "cpu.cfs_quota_us", quota, sizeof quota) &&
        read_text(folder, "cpu.cfs_period_us", period, sizeof period))
        take_quota(ctx, strtod(quota, NULL), strtod(period, NULL));
    return true;
}

double cpu_cgroup_quota(const char *root, const char *self_cgroup) {
    static const char *const controllers[] = {"cpu", "cpu,cpuacct", NULL};
    double best = 0;
    walk_groups(root, self_cgroup, controllers, quota_v2, quota_v1, &best);
    return best;
}

struct list {
    char *text;
    size_t n;
};

/* The nearest group's list is already within its ancestors': the first one found counts. */
static bool take_list(struct list *l, const char *folder, const char *file) {
    char text[TEXT];
    if (l->text[0]) return false;
    if (!read_text(folder, file, text, sizeof text)) return true;
    size_t len = strlen(text);
    while (len >= l->n) { /* cut at a comma rather than inside a number */
        char *comma = strrchr(text, ',');
        len = comma ? (size_t)(comma - text) : 0;
        text[len] = 0;
    }
    memcpy(l->text, text, len + 1);
    return len == 0;
}

static bool cpuset_v2(void *ctx, const char *folder) {
    return take_list(ctx, folder, "cpuset.cpus.effective") && take_list(ctx, folder, "cpuset.cpus");
}

static bool cpuset_v1(void *ctx, const char *folder) {
    return take_list(ctx, folder, "cpuset.effective_cpus") && take_list(ctx, folder, "cpuset.cpus");
}

void cpu_cgroup_cpuset(const char *root, const char *self_cgroup, char *list, size_t n) {
    static const char *const controllers[] = {"cpuset", NULL};
    struct list l = {list, n};
    list[0] = 0;
    walk_groups(root, self_cgroup, controllers, cpuset_v2, cpuset_v1, &l);
}

struct memory {
    size_t limit, used;
};

/* The group that leaves least counts: its limit together with its own use. */
static bool take_memory(struct memory *m, const char *folder, const char *limit_file, const char *used_file) {
    char limit[TEXT], used[TEXT];
    if (!read_text(folder, limit_file, limit, sizeof limit) || !read_text(folder, used_file, used, sizeof used))
        return true;
    unsigned long long l = strtoull(limit, NULL, 10), u = strtoull(used, NULL, 10);
    if (l == 0 || l >= (1ull << 62)) return true; /* "max", or v1's way to say so */
    size_t left = l > u ? (size_t)(l - u) : 0;
    size_t left_before = m->limit > m->used ? m->limit - m->used : 0;
    if (m->limit == 0 || left < left_before) *m = (struct memory){(size_t)l, (size_t)u};
    return true;
}

static bool memory_v2(void *ctx, const char *folder) {
    return take_memory(ctx, folder, "memory.max", "memory.current");
}

static bool memory_v1(void *ctx, const char *folder) {
    return take_memory(ctx, folder, "memory.limit_in_bytes", "memory.usage_in_bytes");
}

void cpu_cgroup_memory(const char *root, const char *self_cgroup, size_t *limit, size_t *used) {
    static const char *const controllers[] = {"memory", NULL};
    struct memory m = {0, 0};
    walk_groups(root, self_cgroup, controllers, memory_v2, memory_v1, &m);
    *limit = m.limit;
    *used = m.used;
}
