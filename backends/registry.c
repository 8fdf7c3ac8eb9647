/* The registry: parses device lists, opens what they name, and closes it all in the end.
 *
 * A kind is a row of a table here. A kind that is known but whose module is not built in or whose
 * hardware is absent is SHEAF_E_NO_DEVICE; an unknown one is the caller's mistake. */
#include "backends/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct sheaf_registry {
    cpu_host *cpu;
    sheaf_device **devices;
    int n_devices, max_devices;
};

/* --- the list's grammar --------------------------------------------------------------------------- */

static sheaf_status bad_item(const char *item, size_t len, const char *what) {
    return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "device list: \"%.*s\": %s", (int)len, item, what),
                            "an item is KIND[:INDEX or :FIRST-LAST][/PARTS], as in cpu/2 or cuda:0-3");
}

/* Reads a decimal number at *p, at most `most`; leaves *p behind it. */
static bool number(const char **p, const char *end, int32_t most, int32_t *out) {
    int64_t v = 0;
    const char *s = *p;
    for (; s < end && *s >= '0' && *s <= '9'; s++) {
        v = v * 10 + (*s - '0');
        if (v > most) return false;
    }
    if (s == *p) return false;
    *p = s;
    *out = (int32_t)v;
    return true;
}

static bool kind_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static sheaf_status parse_item(const char *item, size_t len, sheaf_device_item *out) {
    const char *p = item, *end = item + len;
    *out = (sheaf_device_item){.first = -1, .last = -1};
    while (p < end && kind_char(*p)) p++;
    size_t kind = (size_t)(p - item);
    if (kind == 0 || kind >= sizeof out->kind) return bad_item(item, len, "no kind of device");
    for (size_t i = 0; i < kind; i++) out->kind[i] = (char)(item[i] >= 'A' && item[i] <= 'Z' ? item[i] + 32 : item[i]);
    if (p < end && *p == ':') {
        p++;
        if (!number(&p, end, 65535, &out->first)) return bad_item(item, len, "an index must follow ':'");
        out->last = out->first;
        if (p < end && *p == '-') {
            p++;
            if (!number(&p, end, 65535, &out->last)) return bad_item(item, len, "an index must follow '-'");
            if (out->last < out->first) return bad_item(item, len, "the range runs backwards");
        }
    }
    if (p < end && *p == '/') {
        p++;
        if (!number(&p, end, SHEAF_MAX_PARTS, &out->parts))
            return bad_item(item, len, "a number of parts (at most 1024) must follow '/'");
        if (out->parts == 0) return bad_item(item, len, "a device cannot be cut into zero parts");
    }
    if (p < end) return bad_item(item, len, "something follows that is not understood");
    return SHEAF_OK;
}

sheaf_status sheaf_device_list_parse(const char *list, sheaf_device_item *items, int max, int *n) {
    *n = 0;
    if (!list || !*list) return bad_item("", 0, "the list is empty");
    for (const char *p = list;;) {
        const char *comma = strchr(p, ',');
        size_t len = comma ? (size_t)(comma - p) : strlen(p);
        if (*n == max) return sheaf_fail(SHEAF_E_ARGUMENT, "device list: more than %d items", max);
        sheaf_status s = parse_item(p, len, &items[*n]);
        if (s) return s;
        ++*n;
        if (!comma) return SHEAF_OK;
        p = comma + 1;
    }
}

/* --- opening --------------------------------------------------------------------------------------- */

static int item_devices(const sheaf_device_item *i) {
    int range = i->first < 0 ? 1 : i->last - i->first + 1;
    return range * (i->parts ? i->parts : 1);
}

static sheaf_status need_cpu(sheaf_registry *r) { return r->cpu ? SHEAF_OK : cpu_host_new(&r->cpu); }

static sheaf_status reserve(sheaf_registry *r, int more) {
    if (r->n_devices + more <= r->max_devices) return SHEAF_OK;
    int max = r->max_devices * 2 > r->n_devices + more ? r->max_devices * 2 : r->n_devices + more;
    sheaf_device **d = sheaf_realloc(r->devices, (size_t)max * sizeof *d);
    if (!d) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening devices: no memory");
    r->devices = d;
    r->max_devices = max;
    return SHEAF_OK;
}

sheaf_status sheaf_registry_new(sheaf_registry **out) {
    sheaf_registry *r = sheaf_calloc(1, sizeof *r);
    if (!r) return sheaf_fail(SHEAF_E_NO_MEMORY, "opening the device registry: no memory");
    *out = r;
    return SHEAF_OK;
}

void sheaf_registry_free(sheaf_registry *r) {
    if (!r) return;
    /* Last opened first: a host device borrows the threads of devices opened before it. */
    for (int i = r->n_devices - 1; i >= 0; i--) r->devices[i]->iface->free(r->devices[i]);
    cpu_host_free(r->cpu);
    sheaf_free(r->devices);
    sheaf_free(r);
}

/* Every kind must be known and present before anything is opened. */
static sheaf_status check_kinds(const sheaf_device_item *items, int n_items, int max, int *n_devices) {
    int64_t total = 0;
    for (int i = 0; i < n_items; i++) {
        if (!strcmp(items[i].kind, "cuda"))
            return sheaf_fail(SHEAF_E_NO_DEVICE, "device list: cuda: this build has no CUDA module");
        if (strcmp(items[i].kind, "cpu") != 0)
            return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "device list: unknown kind \"%s\"", items[i].kind),
                                    "known kinds: cpu, cuda");
        total += item_devices(&items[i]);
    }
    if (total > max) return sheaf_fail(SHEAF_E_ARGUMENT, "device list: more than %d devices", max);
    *n_devices = (int)total;
    return SHEAF_OK;
}

sheaf_status sheaf_devices_open(sheaf_registry *r, const char *list, const sheaf_open_options *opts, sheaf_device **out,
                                int max, int *n) {
    static const sheaf_open_options none = {0};
    sheaf_device_item items[SHEAF_MAX_ITEMS];
    int n_items, total = 0;
    *n = 0;
    sheaf_status s = sheaf_device_list_parse(list, items, SHEAF_MAX_ITEMS, &n_items);
    if (!s) s = check_kinds(items, n_items, max, &total);
    if (!s) s = reserve(r, total);
    if (!s) s = need_cpu(r);
    if (!s) s = cpu_devices_open(r->cpu, items, n_items, opts ? opts : &none, out);
    if (s) return s;
    for (int i = 0; i < total; i++) r->devices[r->n_devices++] = out[i];
    *n = total;
    return SHEAF_OK;
}

sheaf_status sheaf_host_device_open(sheaf_registry *r, sheaf_device *const *members, int n, sheaf_device **out) {
    /* one for each set of members, however many models come and go */
    for (int i = 0; i < r->n_devices; i++) {
        if (!cpu_host_lends(r->devices[i], members, n)) continue;
        *out = r->devices[i];
        return SHEAF_OK;
    }
    sheaf_status s = reserve(r, 1);
    if (!s) s = need_cpu(r);
    if (!s) s = cpu_host_device_open(r->cpu, members, n, out);
    if (!s) r->devices[r->n_devices++] = *out;
    return s;
}

sheaf_status sheaf_devices_find(sheaf_registry *r, sheaf_found_device *out, int max, int *n) {
    *n = 0;
    sheaf_status s = need_cpu(r);
    return s ? s : cpu_devices_find(r->cpu, out, max, n);
}
