/* `sheaf split`: how every tensor is cut over the devices, and what each device then holds. With a model no
 * weight is read; with --tensors there is no model at all, only names, shapes and a table. */
#include <string.h>

#include "launch/plans.h"

/* --- what is shown: rows and devices, whatever they came from ------------------------------------------- */

typedef struct split_view {
    sheaf_split_row *rows;
    int n_rows, cap_rows;
    int n_devices;
    const char *names[SHEAF_MAX_DEVICES];
    sheaf_shares shares;
    sheaf_memory_row memory[SHEAF_MAX_DEVICES];
    bool has_memory;
    plan_summary plan;
} split_view;

static int64_t row_bytes_on(const sheaf_split_row *r, int device) {
    int64_t ne[4];
    sheaf_layout_local_ne(&r->layout, device, r->ne, ne);
    size_t row = sheaf_row_bytes(r->type, ne[0]);
    return row == SIZE_MAX ? 0 : (int64_t)row * ne[1] * ne[2] * ne[3];
}

/* Weights and KV by device, from the layouts alone. */
static void count_bytes(split_view *v) {
    for (int i = 0; i < v->n_rows; i++) {
        const sheaf_split_row *r = &v->rows[i];
        for (int d = 0; d < v->n_devices; d++) {
            size_t bytes = (size_t)row_bytes_on(r, d);
            if (r->usage == SHEAF_USAGE_STATE)
                v->memory[d].kv_bytes += bytes;
            else
                v->memory[d].weight_bytes += bytes;
            /* on one device nothing is held twice */
            if (r->usage != SHEAF_USAGE_STATE && r->layout.kind == SHEAF_MIRRORED && v->n_devices > 1)
                v->memory[d].mirrored_bytes += bytes;
        }
    }
}

static sheaf_status add_row(split_view *v, const sheaf_split_row *r) {
    if (v->n_rows == v->cap_rows) {
        int cap = v->cap_rows ? v->cap_rows * 2 : 256;
        sheaf_split_row *grown = sheaf_realloc(v->rows, (size_t)cap * sizeof *grown);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "split: %d tensors", cap);
        v->rows = grown;
        v->cap_rows = cap;
    }
    v->rows[v->n_rows++] = *r;
    return SHEAF_OK;
}

/* --- printing -------------------------------------------------------------------------------------------- */

static void print_rows(const split_view *v) {
    for (int i = 0; i < v->n_rows; i++) {
        const sheaf_split_row *r = &v->rows[i];
        char layout[256], shape[64];
        int at = 0;
        for (int k = 0; k < r->n_dims; k++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", k ? " x " : "", (long long)r->ne[k]);
        printf("%-32s %-6s %-18s %-14s %s\n", r->name, sheaf_type_name(r->type), shape, r->group ? r->group : "-",
               sheaf_layout_text(&r->layout, layout, sizeof layout));
    }
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* --memory: what a device's parts come to. */
static void print_sum(const sheaf_memory_row *m) {
    printf("; in all %.2f MiB", mib(m->weight_bytes + m->kv_bytes + m->compute_bytes + m->staging_bytes));
}

/* "what is cut is 0.02 to 0.31 % off the shares asked for (a unit is 1.50 MiB); copies of KV heads 12.00 MiB; ..." */
static void print_shares(const split_view *v) {
    const sheaf_shares *s = &v->shares;
    uint64_t copies = 0;
    for (int d = 0; d < s->n_devices; d++) copies += s->device[d].copies;
    printf("what is cut is %.2f to %.2f %% off the shares asked for (the largest unit is %.2f MiB)", s->error_min * 100,
           s->error_max * 100, mib(s->largest_unit));
    if (copies) printf("; keys and values of which some are held twice: %.2f MiB in all", mib(copies));
    if (v->plan.known) printf("; %d collectives a layer, %d reshards", v->plan.collectives_per_layer, v->plan.reshards);
    putchar('\n');
}

static void print_devices(const split_view *v, const options *o) {
    double total = 0;
    for (int d = 0; d < v->n_devices; d++) total += (double)v->memory[d].weight_bytes;
    for (int d = 0; d < v->n_devices; d++) {
        const sheaf_memory_row *m = &v->memory[d];
        printf("%-10s weights %9.2f MiB", v->names[d], mib(m->weight_bytes));
        if (v->n_devices > 1)
            printf(" (%.1f %%), of these mirrored %.2f MiB", total > 0 ? (double)m->weight_bytes / total * 100 : 0,
                   mib(m->mirrored_bytes));
        printf("; KV %.2f MiB", mib(m->kv_bytes));
        if (v->has_memory) printf("; compute %.2f MiB, staging %.2f MiB", mib(m->compute_bytes), mib(m->staging_bytes));
        if (v->has_memory && o->memory) print_sum(m);
        putchar('\n');
    }
    if (v->n_devices > 1) print_shares(v);
}

static const char *layout_name(const sheaf_layout *l, char out[16]) {
    if (l->kind == SHEAF_MIRRORED) return "mirrored";
    if (l->kind == SHEAF_PARTIAL) return "partial";
    snprintf(out, 16, "axis%d", l->axis);
    return out;
}

static void add_json_rows(jdoc *d, const split_view *v) {
    cJSON *list = j_array(d, d->root, "tensors");
    for (int i = 0; i < v->n_rows; i++) {
        const sheaf_split_row *r = &v->rows[i];
        char layout[16];
        cJSON *row = j_object(d, list, NULL);
        j_string(d, row, "name", r->name);
        j_string(d, row, "type", sheaf_type_name(r->type));
        cJSON *ne = j_array(d, row, "ne");
        for (int k = 0; k < r->n_dims; k++) j_integer(d, ne, NULL, r->ne[k]);
        j_string(d, row, "layout", layout_name(&r->layout, layout));
        cJSON *runs = j_array(d, row, "runs");
        for (int k = 0; k < r->layout.n_runs && r->layout.kind == SHEAF_AXIS; k++) {
            cJSON *run = j_array(d, runs, NULL);
            j_integer(d, run, NULL, r->layout.runs[k].length);
            cJSON *on = j_array(d, run, NULL);
            for (int dev = 0; dev < v->n_devices; dev++)
                if (r->layout.runs[k].devices >> dev & 1) j_integer(d, on, NULL, dev);
        }
        if (r->rule)
            j_string(d, row, "rule", r->rule);
        else
            j_null(d, row, "rule");
    }
}

static jdoc make_json(const split_view *v) {
    jdoc d = j_new(false);
    cJSON *list = j_array(&d, d.root, "devices");
    for (int i = 0; i < v->n_devices; i++) {
        cJSON *row = j_object(&d, list, NULL);
        j_string(&d, row, "name", v->names[i]);
        j_integer(&d, row, "weight_bytes", (int64_t)v->memory[i].weight_bytes);
        j_integer(&d, row, "kv_bytes", (int64_t)v->memory[i].kv_bytes);
        j_integer(&d, row, "compute_bytes", (int64_t)v->memory[i].compute_bytes);
        j_integer(&d, row, "staging_bytes", (int64_t)v->memory[i].staging_bytes);
        j_integer(&d, row, "mirrored_bytes", (int64_t)v->memory[i].mirrored_bytes);
    }
    add_json_rows(&d, v);
    if (v->plan.known) {
        j_integer(&d, d.root, "collectives_per_layer", v->plan.collectives_per_layer);
        j_integer(&d, d.root, "reshards", v->plan.reshards);
    } else {
        j_null(&d, d.root, "collectives_per_layer");
        j_null(&d, d.root, "reshards");
    }
    j_number(&d, d.root, "share_error_max", v->shares.error_max);
    j_number(&d, d.root, "share_error_min", v->shares.error_min);
    return d;
}

/* --- --expect ---------------------------------------------------------------------------------------------- */

static const char *name_of(const cJSON *row) {
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(row, "name"));
    return s ? s : "?";
}

static const cJSON *find_row(const cJSON *list, const char *name) {
    const cJSON *row;
    cJSON_ArrayForEach(row, list) if (!strcmp(name_of(row), name)) return row;
    return NULL;
}

/* One line for each row that differs in what `keys` name; the number of lines. */
static int diff_lists(const cJSON *want, const cJSON *have, const char *const *keys) {
    int lines = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, want) {
        const cJSON *other = find_row(have, name_of(row));
        if (!other) {
            printf("- %s: expected, not there\n", name_of(row));
            lines++;
        }
        for (int k = 0; other && keys[k]; k++) {
            const cJSON *a = cJSON_GetObjectItem(row, keys[k]), *b = cJSON_GetObjectItem(other, keys[k]);
            if (!a || cJSON_Compare(a, b, true)) continue;
            char *at = cJSON_PrintUnformatted(a), *bt = b ? cJSON_PrintUnformatted(b) : NULL;
            printf("! %s: %s: expected %s, is %s\n", name_of(row), keys[k], at ? at : "?", bt ? bt : "absent");
            cJSON_free(at);
            cJSON_free(bt);
            lines++;
        }
    }
    cJSON_ArrayForEach(row, have) if (!find_row(want, name_of(row))) {
        printf("+ %s: not expected\n", name_of(row));
        lines++;
    }
    return lines;
}

/* An expectation that names nothing, or a thing twice, would pass for ever: every row has a name of its own and all
 * keys. */
static sheaf_status check_rows(const cJSON *list, const char *what, const char *const *keys, const char *path) {
    const cJSON *row;
    if (!cJSON_IsArray(list)) return sheaf_fail(SHEAF_E_FORMAT, "comparing: %s: it has no list \"%s\"", path, what);
    cJSON_ArrayForEach(row, list) {
        if (find_row(list, name_of(row)) != row)
            return sheaf_fail(SHEAF_E_FORMAT, "comparing: %s: \"%s\" has two rows of '%s'", path, what, name_of(row));
        for (int k = 0; keys[k]; k++)
            if (!cJSON_GetObjectItem(row, keys[k]))
                return sheaf_fail(SHEAF_E_FORMAT, "comparing: %s: \"%s\", '%s': no \"%s\"", path, what, name_of(row),
                                  keys[k]);
    }
    return SHEAF_OK;
}

/* Prints and parses the document again: numbers were added as digits, which equal no parsed number. */
static void reread(jdoc *d) {
    char *text = d->failed ? NULL : cJSON_PrintUnformatted(d->root);
    cJSON_Delete(d->root);
    d->root = text ? cJSON_Parse(text) : NULL;
    d->failed = !d->root;
    cJSON_free(text);
}

static sheaf_status compare(const split_view *v, const char *path) {
    static const char *const tensor_keys[] = {"type", "ne", "layout", "runs", NULL};
    static const char *const device_keys[] = {"weight_bytes", "kv_bytes", "mirrored_bytes", NULL};
    char *text = NULL;
    size_t n = 0;
    sheaf_status s = read_table(path, &text, &n);
    if (s) return s;
    cJSON *want = cJSON_ParseWithLength(text, n);
    sheaf_free(text);
    if (!want) return sheaf_fail(SHEAF_E_FORMAT, "comparing: %s: it is no JSON document", path);
    jdoc have = make_json(v);
    reread(&have);
    const cJSON *tensors = cJSON_GetObjectItem(want, "tensors"), *devices = cJSON_GetObjectItem(want, "devices");
    int lines = 0;
    if (have.failed) s = sheaf_fail(SHEAF_E_NO_MEMORY, "comparing: %s: out of memory", path);
    if (!s) s = check_rows(tensors, "tensors", tensor_keys, path);
    if (!s && devices) s = check_rows(devices, "devices", device_keys, path);
    if (!s) lines = diff_lists(tensors, cJSON_GetObjectItem(have.root, "tensors"), tensor_keys);
    if (!s && devices) lines += diff_lists(devices, cJSON_GetObjectItem(have.root, "devices"), device_keys);
    cJSON_Delete(want);
    cJSON_Delete(have.root);
    if (!s && lines) s = sheaf_fail(SHEAF_E_MISMATCH, "comparing: %s: %d differences", path, lines);
    return s;
}

static sheaf_status present(split_view *v, const options *o) {
    if (o->expect) return compare(v, o->expect);
    if (o->json) {
        jdoc d = make_json(v);
        return j_print(&d, false);
    }
    if (!o->summary && !o->memory) print_rows(v);
    print_devices(v, o);
    return SHEAF_OK;
}

/* --- from a model -------------------------------------------------------------------------------------------- */

/* The devices of all ranks, with what each rank knows of its own. */
static void name_devices(split_view *v, const session *s) {
    v->n_devices = s->n_all;
    for (int d = 0; d < s->n_all; d++) v->names[d] = s->all[d].name;
}

/* Compute, staging and KV bytes, as each rank estimates them for its members. Collective over ranks. */
static sheaf_status gather_memory(split_view *v, session *s) {
    struct known {
        bool is;
        sheaf_memory_row row;
    } mine[SHEAF_MAX_DEVICES] = {0};
    void *all = NULL;
    for (int i = 0; i < s->n_devices; i++)
        mine[s->first + i].is = sheaf_context_memory_estimate(s->context, i, &mine[s->first + i].row);
    sheaf_status status = session_gather(s, mine, sizeof mine, &all);
    for (int r = 0; !status && r < session_ranks(s); r++) {
        const struct known *of_rank = (const struct known *)all + (size_t)r * SHEAF_MAX_DEVICES;
        for (int d = 0; d < v->n_devices; d++) {
            if (!of_rank[d].is) continue;
            v->has_memory = true;
            v->memory[d].compute_bytes = of_rank[d].row.compute_bytes;
            v->memory[d].staging_bytes = of_rank[d].row.staging_bytes;
            v->memory[d].kv_bytes = of_rank[d].row.kv_bytes;
        }
    }
    sheaf_free(all);
    return status;
}

static sheaf_status fill_from_model(split_view *v, session *s) {
    sheaf_split_row row;
    sheaf_status status = SHEAF_OK;
    for (int i = 0; !status && sheaf_model_split_row(s->model, i, &row); i++) status = add_row(v, &row);
    v->shares = *sheaf_model_shares(s->model);
    name_devices(v, s);
    count_bytes(v);
    if (!status) status = plan_summarize(s, 1, &v->plan);
    return status ? status : gather_memory(v, s);
}

static sheaf_status split_model(const options *o) {
    session s;
    split_view v = {0};
    sheaf_status status =
        session_open(&s, o, o->n_devices ? o->devices[0] : NULL, SESSION_MODEL | SESSION_CONTEXT | SESSION_NO_DATA);
    if (!status) status = fill_from_model(&v, &s); /* compiles the plan: a step of all ranks together */
    if (!status) status = session_leads(&s) ? present(&v, o) : session_follow(&s);
    sheaf_free(v.rows);
    session_close(&s);
    return status;
}

/* --- from a list of names -------------------------------------------------------------------------------------- */

static sheaf_status open_policy(const options *o, const char *arch, sheaf_policy **out) {
    if (!o->split_table) return sheaf_policy_builtin(o->arch ? o->arch : arch ? arch : "llama", out);
    char *text = NULL;
    size_t n = 0;
    sheaf_status s = read_table(o->split_table, &text, &n);
    if (!s) s = sheaf_policy_new(text, n, out);
    if (s) s = sheaf_error_context(s, "split table: %s", o->split_table);
    sheaf_free(text);
    return s;
}

static sheaf_status add_list_row(split_view *v, const sheaf_named *t, const sheaf_placement *p) {
    sheaf_split_row r = {.name = t->name,
                         .type = t->type,
                         .n_dims = 4,
                         .layout = p->layout,
                         .group = p->group,
                         .rule = p->rule,
                         .usage = SHEAF_USAGE_WEIGHTS};
    memcpy(r.ne, t->ne, sizeof r.ne);
    while (r.n_dims > 1 && r.ne[r.n_dims - 1] == 1) r.n_dims--;
    if (strstr(r.name, ".cache_")) r.usage = SHEAF_USAGE_STATE;
    return add_row(v, &r);
}

static sheaf_status place_list(split_view *v, sheaf_tensor_list *l, const options *o, const session *s,
                               sheaf_arena *a) {
    sheaf_policy *p = NULL;
    int n;
    const sheaf_named *tensors = sheaf_tensor_list_items(l, &n);
    name_devices(v, s);
    if (o->n_share && o->n_share != v->n_devices)
        return sheaf_fail(SHEAF_E_ARGUMENT, "%s: %d shares for %d devices", o->tensors, o->n_share, v->n_devices);
    sheaf_policy_env env = {.get = sheaf_tensor_list_get,
                            .ctx = l,
                            .weights = o->n_share ? o->share : NULL,
                            .n_devices = v->n_devices,
                            .pack_rows = 1};
    sheaf_status status = open_policy(o, sheaf_tensor_list_architecture(l), &p);
    sheaf_placement *placed = status ? NULL : sheaf_arena_alloc(a, (size_t)n * sizeof *placed);
    if (!status && !placed) status = sheaf_arena_status(a);
    if (!status) {
        status = sheaf_policy_place(p, &env, tensors, n, a, placed, &v->shares);
        if (status) status = sheaf_error_context(status, "%s", o->split_table ? o->split_table : "built-in table");
    }
    for (int i = 0; i < n && !status; i++) status = add_list_row(v, &tensors[i], &placed[i]);
    /* rule texts lie in the policy, so it is printed before it goes */
    if (!status) count_bytes(v);
    if (!status && session_leads(s)) status = present(v, o);
    sheaf_policy_free(p);
    return status;
}

static sheaf_status read_list(const char *path, sheaf_tensor_list **out) {
    char *text = NULL;
    size_t n = 0;
    sheaf_status s = read_table(path, &text, &n);
    if (s) return s;
    s = sheaf_tensor_list_new(text, n, out);
    sheaf_free(text);
    return s ? sheaf_error_context(s, "%s", path) : s;
}

static sheaf_status split_list(const options *o) {
    session s;
    split_view v = {0};
    sheaf_tensor_list *l = NULL;
    sheaf_arena *a = NULL;
    sheaf_status status = session_open(&s, o, o->n_devices ? o->devices[0] : NULL, 0);
    if (!status) status = read_list(o->tensors, &l);
    if (!status) status = sheaf_arena_new((size_t)1 << 16, &a);
    if (!status) status = place_list(&v, l, o, &s, a);
    sheaf_arena_free(a);
    sheaf_tensor_list_free(l);
    sheaf_free(v.rows);
    session_close(&s);
    return status;
}

/* --- --print-table ------------------------------------------------------------------------------------------------ */

static sheaf_status print_table(const options *o) {
    char arch[64] = "llama";
    if (o->split_table) { /* checked, then printed as it is */
        sheaf_policy *p = NULL;
        char *text = NULL;
        size_t n = 0;
        sheaf_status s = open_policy(o, NULL, &p);
        sheaf_policy_free(p);
        if (!s) s = read_table(o->split_table, &text, &n);
        if (!s) fwrite(text, 1, n, stdout);
        sheaf_free(text);
        return s;
    }
    if (o->arch) {
        snprintf(arch, sizeof arch, "%s", o->arch);
    } else if (o->model) {
        sheaf_gguf *g = NULL;
        sheaf_str name;
        sheaf_status s = sheaf_gguf_open(o->model, &g);
        if (!s) s = sheaf_gguf_get_str(g, "general.architecture", &name);
        if (!s) snprintf(arch, sizeof arch, "%.*s", (int)(name.n < 63 ? name.n : 63), name.s);
        sheaf_gguf_close(g);
        if (s) return sheaf_error_context(s, "loading %s", o->model);
    }
    const char *text = sheaf_policy_builtin_text(arch);
    if (!text) {
        sheaf_status s =
            sheaf_fail(SHEAF_E_NOT_FOUND, "split table: %s: there is no built-in one for this architecture", arch);
        return sheaf_error_hint(s, "known: %s", sheaf_known_architectures());
    }
    fputs(text, stdout);
    return SHEAF_OK;
}

sheaf_status cmd_split(const options *o) {
    if (o->print_table) return print_table(o);
    if (o->tensors && o->model) return sheaf_fail(SHEAF_E_ARGUMENT, "options: -m and --tensors: exclude each other");
    return o->tensors ? split_list(o) : split_model(o);
}
