/* `sheaf devices`: what was found on this machine, and what would be chosen with the options given. */
#include <string.h>

#include "launch/json.h"

enum { MAX_FOUND = 64 };

/* The node of a found device; -1: it spans several. A machine of one node has no rows for its nodes. */
static int node_of(const sheaf_found_device *found, int n, int i) {
    int cpus = 0;
    for (int k = 0; k < n; k++) cpus += !strcmp(found[k].kind, "cpu");
    return found[i].numa < 0 && cpus == 1 ? 0 : found[i].numa;
}

static void print_text(const sheaf_found_device *found, int n, const session *s) {
    puts("found:");
    for (int i = 0; i < n; i++) {
        char node[32] = "all NUMA nodes";
        if (node_of(found, n, i) >= 0) snprintf(node, sizeof node, "NUMA node %d", node_of(found, n, i));
        printf("  %-8s %-4s %d cores, %s, %.1f of %.1f GiB free, %s\n", found[i].name, found[i].kind, found[i].cores,
               node, (double)found[i].memory_free / (1 << 30), (double)found[i].memory_total / (1 << 30),
               found[i].description);
        for (int k = 0; k < found[i].n_notes; k++) printf("           %s\n", found[i].notes[k]);
    }
    printf("chosen (%s):\n", s->where);
    for (int i = 0; i < s->n_all; i++)
        printf("  %-8s %d thread%s, %s\n", s->all[i].name, s->all[i].n_threads, s->all[i].n_threads == 1 ? "" : "s",
               s->all[i].description);
    if (s->n_devices > 1)
        puts(session_ranks(s) > 1 ? "links: the devices of a rank share their host's memory"
                                  : "links: all devices share this host's memory");
}

static sheaf_status print_json(const sheaf_found_device *found, int n, const session *s) {
    jdoc d = j_new(false);
    cJSON *list = j_array(&d, d.root, "found");
    for (int i = 0; i < n; i++) {
        cJSON *row = j_object(&d, list, NULL);
        j_string(&d, row, "name", found[i].name);
        j_string(&d, row, "kind", found[i].kind);
        j_integer(&d, row, "cores", found[i].cores);
        if (node_of(found, n, i) >= 0)
            j_integer(&d, row, "numa", node_of(found, n, i));
        else
            j_null(&d, row, "numa");
        j_integer(&d, row, "memory_total", (int64_t)found[i].memory_total);
        j_integer(&d, row, "memory_free", (int64_t)found[i].memory_free);
        j_string(&d, row, "description", found[i].description);
        cJSON *notes = j_array(&d, row, "notes");
        for (int k = 0; k < found[i].n_notes; k++) j_string(&d, notes, NULL, found[i].notes[k]);
    }
    cJSON *chosen = j_array(&d, d.root, "chosen");
    for (int i = 0; i < s->n_all; i++) {
        cJSON *row = j_object(&d, chosen, NULL);
        j_string(&d, row, "name", s->all[i].name);
        j_string(&d, row, "description", s->all[i].description);
        j_integer(&d, row, "threads", s->all[i].n_threads);
        j_integer(&d, row, "numa", s->all[i].numa);
    }
    cJSON *links = j_array(&d, d.root, "links");
    for (int i = 0; i < s->n_devices; i++)
        for (int k = i + 1; k < s->n_devices; k++) {
            cJSON *row = j_object(&d, links, NULL);
            j_string(&d, row, "a", s->all[s->first + i].name);
            j_string(&d, row, "b", s->all[s->first + k].name);
            j_string(&d, row, "kind", "host memory");
        }
    return j_print(&d, false);
}

sheaf_status cmd_devices(const options *o) {
    session s;
    sheaf_found_device found[MAX_FOUND];
    int n = 0;
    sheaf_status status = session_open(&s, o, o->n_devices ? o->devices[0] : NULL, 0);
    if (!status) status = sheaf_devices_find(s.registry, found, MAX_FOUND, &n);
    if (!status && session_leads(&s)) {
        if (o->json)
            status = print_json(found, n, &s);
        else
            print_text(found, n, &s);
    }
    session_close(&s);
    return status;
}
