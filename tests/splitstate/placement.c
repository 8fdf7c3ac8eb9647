/* Placement of real models' tensor lists: expected shares as text, and what must hold of every placement.
 *
 * Fixtures: fixtures/MODEL.tensors (made by make_fixtures.py), fixtures/MODEL.expect (made by running this
 * test with SHEAF_BLESS=1 in the environment; look at the difference before keeping it). */
#include "support.h"

#include <dirent.h>
#include <unistd.h>

enum { MAX_NAMED = 2048, MAX_KEYS = 8 };

typedef struct model {
    char architecture[16];
    sheaf_named tensor[MAX_NAMED];
    char names[MAX_NAMED][SHEAF_MAX_NAME];
    int n;
    char key[MAX_KEYS][64];
    int64_t value[MAX_KEYS];
    int n_keys;
} model;

static sheaf_status get_key(void *ctx, const char *key, int64_t *out) {
    model *m = ctx;
    for (int i = 0; i < m->n_keys; i++) {
        if (strcmp(m->key[i], key) != 0) continue;
        *out = m->value[i];
        return SHEAF_OK;
    }
    return SHEAF_E_NOT_FOUND;
}

static void read_model(const char *path, model *m) {
    char line[256], prefix[16], name[128], type[16];
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    m->n = m->n_keys = 0;
    while (fgets(line, sizeof line, f)) {
        int64_t ne[4] = {1, 1, 1, 1}, value;
        if (sscanf(line, "%15[a-z0-9].%63s = %" SCNd64, prefix, name, &value) == 3) {
            strcpy(m->architecture, prefix);
            strcpy(m->key[m->n_keys], name);
            m->value[m->n_keys++] = value;
            continue;
        }
        int dims = sscanf(line, "%63s %" SCNd64 " %" SCNd64 " %15s", name, &ne[0], &ne[1], type) - 2;
        if (dims != 2) {
            cr_assert_eq(sscanf(line, "%63s %" SCNd64 " %15s", name, &ne[0], type), 3, "%s: %s", path, line);
            ne[1] = 1;
        }
        sheaf_named *t = &m->tensor[m->n];
        strcpy(m->names[m->n], name);
        *t = (sheaf_named){m->names[m->n], SHEAF_F32, {ne[0], ne[1], 1, 1}};
        cr_assert(sheaf_type_from_name(type, &t->type), "%s", type);
        m->n++;
    }
    fclose(f);
}

static int find(const model *m, const char *name) {
    for (int i = 0; i < m->n; i++) {
        if (strcmp(m->names[i], name) == 0) return i;
    }
    return -1;
}

static double bytes_of(const sheaf_named *t) { return (double)sheaf_row_bytes(t->type, t->ne[0]) * (double)t->ne[1]; }

/* The same cut for all of a group, and every device with the KV heads of its query heads. */
static void check_layer(const model *m, const sheaf_placement *p, int layer, int n_devices, const char *path) {
    static const struct {
        const char *a, *b;
        int axis_a, axis_b;
    } linked[] = {{"attn_q.weight", "attn_output.weight", 1, 0},
                  {"attn_k.weight", "attn_v.weight", 1, 1},
                  {"attn_k.weight", "cache_k", 1, 0},
                  {"attn_k.weight", "cache_v", 1, 0},
                  {"ffn_gate.weight", "ffn_up.weight", 1, 1},
                  {"ffn_gate.weight", "ffn_down.weight", 1, 0}};
    char x[64], y[64], text[2][512];
    for (size_t i = 0; i < sizeof linked / sizeof linked[0]; i++) {
        snprintf(x, sizeof x, "blk.%d.%s", layer, linked[i].a);
        snprintf(y, sizeof y, "blk.%d.%s", layer, linked[i].b);
        int a = find(m, x), b = find(m, y);
        if (a < 0 || b < 0) continue; /* fused */
        sheaf_layout l = sheaf_layout_on_axis(&p[a].layout, linked[i].axis_b);
        cr_assert(sheaf_layout_equal(&l, &p[b].layout), "%s N=%d: %s %s, %s %s", path, n_devices, x,
                  sheaf_layout_text(&p[a].layout, text[0], 512), y, sheaf_layout_text(&p[b].layout, text[1], 512));
    }
    snprintf(x, sizeof x, "blk.%d.attn_q.weight", layer);
    snprintf(y, sizeof y, "blk.%d.attn_k.weight", layer);
    if (find(m, x) < 0) return;
    const sheaf_named *tq = &m->tensor[find(m, x)], *tk = &m->tensor[find(m, y)];
    const sheaf_layout *q = &p[find(m, x)].layout, *k = &p[find(m, y)].layout;
    int64_t heads = m->value[0], kv = m->value[1], size = tq->ne[1] / heads;
    int64_t least = INT64_MAX, most = 0;
    cr_assert_eq(tk->ne[1], kv * size);
    for (int d = 0; d < n_devices; d++) {
        int64_t q0, qn, k0, kn;
        cr_assert(sheaf_layout_stretch(q, d, tq->ne[1], &q0, &qn));
        cr_assert(sheaf_layout_stretch(k, d, tk->ne[1], &k0, &kn));
        cr_assert(q0 % size == 0 && qn % size == 0 && k0 % size == 0 && kn % size == 0, "%s N=%d: cut inside a head",
                  path, n_devices);
        least = qn < least ? qn : least;
        most = qn > most ? qn : most;
        if (qn == 0) continue;
        int64_t group = heads / kv, lo = q0 / size / group, hi = (q0 + qn - 1) / size / group;
        cr_assert(k0 / size <= lo && hi < (k0 + kn) / size, "%s N=%d: device %d has no KV head for a query", path,
                  n_devices, d);
    }
    cr_assert_leq((most - least) / size, 256 % size == 0 && size < 256 ? 256 / size : 1,
                  "%s N=%d: heads %" PRId64 " to %" PRId64, path, n_devices, least / size, most / size);
}

/* L7: bytes per device within half a percent of the request, or the largest unit; replicas apart. */
static void check_bytes(const model *m, const sheaf_placement *p, int n_devices, const char *path, double *share) {
    double held[SHEAF_MAX_DEVICES] = {0}, total = 0, unit = 0;
    for (int i = 0; i < m->n; i++) {
        const sheaf_named *t = &m->tensor[i];
        const sheaf_layout *l = &p[i].layout;
        bool kv = strstr(m->names[i], "attn_k") || strstr(m->names[i], "attn_v") || strstr(m->names[i], "cache_");
        if (l->kind != SHEAF_AXIS || kv) continue;
        /* of a fused weight the queries */
        double counted = strstr(m->names[i], "attn_qkv")
                             ? (double)m->value[0] / (double)(m->value[0] + 2 * m->value[1]) * bytes_of(t)
                             : bytes_of(t);
        total += counted;
        for (int d = 0; d < n_devices; d++) {
            held[d] += counted * (double)sheaf_layout_share(l, d, 0) / (double)t->ne[l->axis];
        }
        double whole = counted / (strstr(m->names[i], "attn") ? (double)m->value[0] : (double)t->ne[l->axis] / 256.0);
        unit = whole * 3 > unit ? whole * 3 : unit; /* gate, up and down go together */
    }
    for (int d = 0; d < n_devices; d++) {
        share[d] = total > 0 ? held[d] / total : 1;
        double off = held[d] - total / n_devices;
        off = off < 0 ? -off : off;
        cr_assert(off <= 0.005 * total / n_devices || off <= unit,
                  "%s N=%d: device %d holds %.0f of %.0f bytes, unit %.0f", path, n_devices, d, held[d], total, unit);
    }
}

static bool is_shown(const char *name) {
    return strncmp(name, "blk.", 4) != 0 || strncmp(name, "blk.0.", 6) == 0 || strncmp(name, "blk.1.", 6) == 0;
}

static void place_and_print(const model *m, const char *path, int n_devices, sheaf_policy *policy, FILE *out) {
    static sheaf_placement p[MAX_NAMED];
    double share[SHEAF_MAX_DEVICES];
    char text[1024];
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 14, &a), SHEAF_OK);
    sheaf_policy_env env = {.get = get_key, .ctx = (void *)m, .n_devices = n_devices, .pack_rows = 1};
    sheaf_status s = sheaf_policy_place(policy, &env, m->tensor, m->n, a, p);
    cr_assert_eq(s, SHEAF_OK, "%s N=%d: %s", path, n_devices, sheaf_error());
    int layers = 0;
    for (int i = 0; i < m->n; i++) {
        int layer;
        cr_assert_eq(sheaf_layout_check(&p[i].layout, m->tensor[i].ne, n_devices), SHEAF_OK, "%s: %s", m->names[i],
                     sheaf_error());
        if (sscanf(m->names[i], "blk.%d.", &layer) == 1 && layer >= layers) layers = layer + 1;
    }
    for (int i = 0; i < layers; i++) check_layer(m, p, i, n_devices, path);
    check_bytes(m, p, n_devices, path, share);
    fprintf(out, "N=%d: cut bytes", n_devices);
    for (int d = 0; d < n_devices; d++) fprintf(out, " %.2f%%", 100 * share[d]);
    fprintf(out, "\n");
    for (int i = 0; i < m->n; i++) {
        if (!is_shown(m->names[i])) continue;
        fprintf(out, "  %-26s %s", m->names[i], sheaf_layout_text(&p[i].layout, text, sizeof text));
        fprintf(out, p[i].segment ? " segment %d\n" : "\n", p[i].segment);
    }
    sheaf_arena_free(a);
}

static char *slurp(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    size_t got = fread(text, 1, (size_t)n, f);
    text[got] = 0;
    fclose(f);
    return text;
}

static void check_fixture(const char *name) {
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8};
    static model m;
    char path[512], expect_path[512], *text = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/%s", SHEAF_FIXTURES, name);
    snprintf(expect_path, sizeof expect_path, "%s/%.*s.expect", SHEAF_FIXTURES,
             (int)(strlen(name) - strlen(".tensors")), name);
    read_model(path, &m);
    sheaf_policy *policy;
    cr_assert_eq(sheaf_policy_builtin(m.architecture, &policy), SHEAF_OK, "%s: %s", name, sheaf_error());
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) place_and_print(&m, name, counts[i], policy, out);
    fclose(out);
    sheaf_policy_free(policy);
    const char *bless = getenv("SHEAF_BLESS");
    if (bless && *bless == '1') {
        FILE *f = fopen(expect_path, "w");
        cr_assert_not_null(f, "%s", expect_path);
        fputs(text, f);
        fclose(f);
    }
    char *expect = slurp(expect_path);
    cr_assert_not_null(expect, "%s is missing", expect_path);
    size_t at = 0, line = 1;
    for (; text[at] && text[at] == expect[at]; at++) line += text[at] == '\n';
    cr_assert_str_eq(text, expect, "%s differs at line %zu: '%.60s', expected '%.60s'", name, line, text + at,
                     expect + at);
    free(expect);
    free(text);
}

Test(placement, of_real_models_is_as_expected, .timeout = 120) {
    DIR *dir = opendir(SHEAF_FIXTURES);
    cr_assert_not_null(dir, "%s", SHEAF_FIXTURES);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        if (len < 8 || strcmp(e->d_name + len - 8, ".tensors") != 0) continue;
        check_fixture(e->d_name);
        n++;
    }
    closedir(dir);
    cr_assert_geq(n, 20, "%d fixtures", n);
}
