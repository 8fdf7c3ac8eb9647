/* Placement of real models' tensor lists: expected shares as text, and what must hold of every placement.
 *
 * Fixtures: fixtures/MODEL.tensors (made by make_fixtures.py), fixtures/MODEL.expect (made by running this
 * test with SHEAF_BLESS=1 in the environment; look at the difference before keeping it). */
#include "support.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

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

typedef struct model {
    const char *path;
    sheaf_tensor_list *list;
    sheaf_policy *policy;
    const sheaf_named *tensor;
    int n, layers;
    int64_t heads, kv;
} model;

static void open_model(const char *path, model *m) {
    char *text = slurp(path);
    cr_assert_not_null(text, "%s", path);
    *m = (model){.path = path};
    cr_assert_eq(sheaf_tensor_list_new(text, strlen(text), &m->list), SHEAF_OK, "%s: %s", path, sheaf_error());
    free(text);
    const char *architecture = sheaf_tensor_list_architecture(m->list);
    cr_assert_not_null(architecture, "%s", path);
    cr_assert_eq(sheaf_policy_builtin(architecture, &m->policy), SHEAF_OK, "%s: %s", path, sheaf_error());
    m->tensor = sheaf_tensor_list_items(m->list, &m->n);
    for (int i = 0, layer; i < m->n; i++)
        if (sscanf(m->tensor[i].name, "blk.%d.", &layer) == 1 && layer >= m->layers) m->layers = layer + 1;
    cr_assert_eq(sheaf_tensor_list_get(m->list, "attention.head_count", &m->heads), SHEAF_OK, "%s", path);
    cr_assert_eq(sheaf_tensor_list_get(m->list, "attention.head_count_kv", &m->kv), SHEAF_OK, "%s", path);
}

static void close_model(model *m) {
    sheaf_policy_free(m->policy);
    sheaf_tensor_list_free(m->list);
}

static int find(const model *m, const char *name) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->tensor[i].name, name) == 0) return i;
    return -1;
}

static int find_in_layer(const model *m, int layer, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return find(m, full);
}

/* One placement of one model: what it was asked and what came out. */
typedef struct placed {
    const model *m;
    int n_devices;
    bool uneven;
    double weight[SHEAF_MAX_DEVICES]; /* sum 1 */
    sheaf_placement *at;
    sheaf_shares shares;
    sheaf_arena *arena;
} placed;

static void place(const model *m, int n_devices, const float *weights, placed *p) {
    *p = (placed){.m = m, .n_devices = n_devices, .uneven = weights, .at = calloc((size_t)m->n, sizeof *p->at)};
    double sum = 0;
    for (int d = 0; d < n_devices; d++) sum += weights ? (double)weights[d] : 1.0;
    for (int d = 0; d < n_devices; d++) p->weight[d] = (weights ? (double)weights[d] : 1.0) / sum;
    sheaf_policy_env env = {
        .get = sheaf_tensor_list_get, .ctx = m->list, .weights = weights, .n_devices = n_devices, .pack_rows = 1};
    cr_assert_eq(sheaf_arena_new(1 << 14, &p->arena), SHEAF_OK);
    sheaf_status s = sheaf_policy_place(m->policy, &env, m->tensor, m->n, p->arena, p->at, &p->shares);
    cr_assert_eq(s, SHEAF_OK, "%s N=%d: %s", m->path, n_devices, sheaf_error());
    for (int i = 0; i < m->n; i++)
        cr_assert_eq(sheaf_layout_check(&p->at[i].layout, m->tensor[i].ne, n_devices), SHEAF_OK, "%s: %s",
                     m->tensor[i].name, sheaf_error());
}

static void placed_free(placed *p) {
    sheaf_arena_free(p->arena);
    free(p->at);
}

/* --- what must hold ----------------------------------------------------------------------------------------- */

/* The same cut for all of a group. */
static void check_linked(const placed *p, int layer) {
    static const struct {
        const char *a, *b;
        int axis_b;
    } linked[] = {{"attn_q.weight", "attn_output.weight", 0},
                  {"attn_k.weight", "attn_v.weight", 1},
                  {"attn_k.weight", "cache_k", 0},
                  {"attn_k.weight", "cache_v", 0},
                  {"attn_k.weight", "attn_k.bias", 0},
                  {"ffn_gate.weight", "ffn_up.weight", 1},
                  {"ffn_gate.weight", "ffn_down.weight", 0},
                  {"ffn_gate_exps.weight", "ffn_up_exps.weight", 1},
                  {"ffn_gate_exps.weight", "ffn_down_exps.weight", 0},
                  {"ffn_gate_exps.weight", "ffn_gate_exps.bias", 0},
                  {"ffn_gate_shexp.weight", "ffn_up_shexp.weight", 1},
                  {"ffn_gate_shexp.weight", "ffn_down_shexp.weight", 0}};
    char text[2][512];
    for (size_t i = 0; i < sizeof linked / sizeof linked[0]; i++) {
        int a = find_in_layer(p->m, layer, linked[i].a), b = find_in_layer(p->m, layer, linked[i].b);
        if (a < 0 || b < 0) continue; /* another family's */
        if (strcmp(linked[i].a, "attn_q.weight") == 0 && p->m->tensor[a].ne[1] != p->m->tensor[b].ne[0])
            continue; /* latent attention: heads of another length */
        sheaf_layout l = p->at[a].layout;
        if (l.kind == SHEAF_AXIS) l = sheaf_layout_on_axis(&l, linked[i].axis_b);
        cr_assert(sheaf_layout_equal(&l, &p->at[b].layout), "%s N=%d: %s %s, %s %s", p->m->path, p->n_devices,
                  p->m->tensor[a].name, sheaf_layout_text(&p->at[a].layout, text[0], 512), p->m->tensor[b].name,
                  sheaf_layout_text(&p->at[b].layout, text[1], 512));
    }
}

/* First query head and number of query heads of a device. */
static void heads_of(const placed *p, const sheaf_layout *q, int64_t ne, int device, int64_t *first, int64_t *n) {
    int64_t size = ne / p->m->heads;
    cr_assert(sheaf_layout_stretch(q, device, ne, first, n));
    cr_assert(*first % size == 0 && *n % size == 0, "%s N=%d: cut inside a head", p->m->path, p->n_devices);
    *first /= size;
    *n /= size;
}

/* L6: query heads as asked, to within one (or as many as one quantisation block of 256 holds), and every device with
 * the KV heads of its query heads. */
static void check_heads(const placed *p, int layer) {
    int out = find_in_layer(p->m, layer, "attn_output.weight"), k = find_in_layer(p->m, layer, "attn_k.weight");
    cr_assert(out >= 0, "%s", p->m->path);
    int64_t ne = p->m->tensor[out].ne[0], size = ne / p->m->heads, block = sheaf_type_block(p->m->tensor[out].type);
    int64_t together = 1; /* heads that make whole blocks */
    while (together * size % block != 0) together++;
    for (int d = 0; d < p->n_devices; d++) {
        int64_t first, n, k0, kn;
        heads_of(p, &p->at[out].layout, ne, d, &first, &n);
        double off = fabs((double)n - (double)p->m->heads * p->weight[d]);
        cr_assert(off <= (double)together - 1e-9 || (p->uneven && off <= (double)together),
                  "%s N=%d layer %d: device %d has %" PRId64 " of %" PRId64 " heads, asked %g", p->m->path,
                  p->n_devices, layer, d, n, p->m->heads, (double)p->m->heads * p->weight[d]);
        if (n == 0 || k < 0) continue;
        int64_t kv_size = p->m->tensor[k].ne[1] / p->m->kv, group = p->m->heads / p->m->kv;
        cr_assert(sheaf_layout_stretch(&p->at[k].layout, d, p->m->tensor[k].ne[1], &k0, &kn));
        cr_assert(k0 % kv_size == 0 && kn % kv_size == 0 && k0 / kv_size <= first / group &&
                      (first + n - 1) / group < (k0 + kn) / kv_size,
                  "%s N=%d: device %d has no KV head for a query", p->m->path, p->n_devices, d);
    }
}

/* --- bytes, counted again from the layouts --------------------------------------------------------------------- */

typedef struct count {
    double cut[SHEAF_MAX_DEVICES], copies[SHEAF_MAX_DEVICES], mirrored;
} count;

/* Elements of the cut dimension that belong to query heads or columns; what follows is of KV heads. */
static int64_t own_length(const model *m, const sheaf_named *t, int64_t whole) {
    if (strstr(t->name, "attn_qkv")) return whole * m->heads / (m->heads + 2 * m->kv);
    return strstr(t->name, "attn_k.") || strstr(t->name, "attn_v.") || strstr(t->name, "attn_k_norm") ? 0 : whole;
}

static bool is_held_twice(const sheaf_layout *l) {
    bool twice = l->kind == SHEAF_MIRRORED;
    for (int r = 0; r < l->n_runs; r++) twice = twice || (l->runs[r].devices & (l->runs[r].devices - 1));
    return twice;
}

static void count_tensor(const placed *p, int i, count *c) {
    const sheaf_named *t = &p->m->tensor[i];
    const sheaf_layout *l = &p->at[i].layout;
    double bytes = (double)sheaf_row_bytes(t->type, t->ne[0]) * (double)(t->ne[1] * t->ne[2] * t->ne[3]);
    if (strstr(t->name, "cache_")) return;
    if (strcmp(p->at[i].group, "mirrored") == 0) {
        c->mirrored += bytes;
        return;
    }
    if (l->kind == SHEAF_MIRRORED) { /* each device reads all KV heads */
        for (int d = 0; d < p->n_devices; d++) c->copies[d] += bytes;
        return;
    }
    int64_t whole = t->ne[l->axis], own = own_length(p->m, t, whole), at = 0;
    bool twice = is_held_twice(l);
    for (int r = 0; r < l->n_runs; at += l->runs[r++].length) {
        int64_t end = at + l->runs[r].length, own_part = (end < own ? end : own) - at;
        if (own_part < 0) own_part = 0;
        double kv = bytes * (double)(l->runs[r].length - own_part) / (double)whole;
        for (int d = 0; d < p->n_devices; d++) {
            if (!(l->runs[r].devices >> d & 1)) continue;
            c->cut[d] += bytes * (double)own_part / (double)whole + (twice ? 0 : kv);
            c->copies[d] += twice ? kv : 0;
        }
    }
}

/* L7: what is cut lies within half a percent of the request, or within the largest unit; replicas apart. */
static void check_bytes(const placed *p) {
    count c = {0};
    double total = 0;
    const sheaf_shares *s = &p->shares;
    for (int i = 0; i < p->m->n; i++) count_tensor(p, i, &c);
    for (int d = 0; d < p->n_devices; d++) total += c.cut[d];
    cr_assert(fabs((double)s->cut - total) < 1, "%s N=%d: %g bytes cut, said %" PRIu64, p->m->path, p->n_devices, total,
              s->cut);
    for (int d = 0; d < p->n_devices; d++) {
        const sheaf_share *said = &s->device[d];
        cr_assert(
            fabs((double)said->cut - c.cut[d]) < 1 && fabs((double)said->copies - c.copies[d]) < 1 &&
                fabs((double)said->mirrored - c.mirrored) < 1,
            "%s N=%d: device %d holds %g cut, %g copied, %g mirrored bytes; said %" PRIu64 ", %" PRIu64 ", %" PRIu64,
            p->m->path, p->n_devices, d, c.cut[d], c.copies[d], c.mirrored, said->cut, said->copies, said->mirrored);
        double asked = total * p->weight[d], off = fabs(c.cut[d] - asked);
        cr_assert(off <= 0.005 * asked || off <= (double)s->largest_unit,
                  "%s N=%d: device %d holds %.0f of %.0f bytes, asked %.0f, unit %" PRIu64, p->m->path, p->n_devices, d,
                  c.cut[d], total, asked, s->largest_unit);
        cr_assert(asked <= 0 || off / asked <= s->error_max + 1e-9, "%s N=%d: %g off, said %g", p->m->path,
                  p->n_devices, off / asked, s->error_max);
    }
}

static void check_all(const placed *p) {
    for (int i = 0; i < p->m->layers; i++) {
        check_linked(p, i);
        check_heads(p, i);
    }
    check_bytes(p);
}

/* --- as text --------------------------------------------------------------------------------------------------- */

static void print_list(FILE *out, const char *what, const placed *p, size_t field) {
    fprintf(out, "%s", what);
    for (int d = 0; d < p->n_devices; d++)
        fprintf(out, " %" PRIu64, *(const uint64_t *)((const char *)&p->shares.device[d] + field));
}

/* "N=3 1,2,5: cut 10 20 50; at most 0.1 % off, largest unit 4; mirrored 7; KV heads copied 3 3 3" */
static void print_shares(const placed *p, const char *asked, FILE *out) {
    const sheaf_shares *s = &p->shares;
    bool copies = false;
    fprintf(out, "N=%d%s%s: ", p->n_devices, *asked ? " " : "", asked);
    print_list(out, "cut", p, offsetof(sheaf_share, cut));
    fprintf(out, "; at most %.2f %% off, largest unit %" PRIu64 "; mirrored %" PRIu64, 100 * s->error_max,
            s->largest_unit, s->device[0].mirrored);
    for (int d = 0; d < p->n_devices; d++) copies = copies || s->device[d].copies > 0;
    if (copies) print_list(out, "; KV heads copied", p, offsetof(sheaf_share, copies));
    fprintf(out, "\n");
}

/* Tensors of no layer, of layer 0, and of layer 1 those that are cut otherwise than in layer 0. */
static bool is_shown(const placed *p, int i) {
    int layer, at = 0;
    const char *name = p->m->tensor[i].name;
    if (sscanf(name, "blk.%d.%n", &layer, &at) != 1) return true;
    if (layer != 1) return layer == 0;
    int first = find_in_layer(p->m, 0, name + at);
    return first < 0 || !sheaf_layout_equal(&p->at[i].layout, &p->at[first].layout);
}

static void print_layouts(const placed *p, FILE *out) {
    char text[1024];
    for (int i = 0; i < p->m->n; i++) {
        if (!is_shown(p, i)) continue;
        fprintf(out, "  %-26s %s", p->m->tensor[i].name, sheaf_layout_text(&p->at[i].layout, text, sizeof text));
        if (p->at[i].layout.kind == SHEAF_MIRRORED && strcmp(p->at[i].group, "mirrored") != 0)
            fprintf(out, ": every device reads all KV heads");
        fprintf(out, p->at[i].segment ? " segment %d\n" : "\n", p->at[i].segment);
    }
}

/* --- the fixtures -------------------------------------------------------------------------------------------- */

static const struct {
    int n;
    float weights[5];
    const char *text;
} uneven[] = {{2, {3, 1}, "3,1"}, {3, {45, 25, 30}, "45,25,30"}, {3, {1, 0, 1}, "1,0,1"}, {4, {4, 1, 1, 2}, "4,1,1,2"}};

static char *text_of(const model *m) {
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8};
    char *text = NULL;
    size_t size = 0;
    placed p;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        place(m, counts[i], NULL, &p);
        if (counts[i] > 1) { /* one device: nothing is cut */
            check_all(&p);
            print_shares(&p, "", out);
            print_layouts(&p, out);
        }
        placed_free(&p);
    }
    for (size_t i = 0; i < sizeof uneven / sizeof uneven[0]; i++) {
        place(m, uneven[i].n, uneven[i].weights, &p);
        check_all(&p);
        print_shares(&p, uneven[i].text, out);
        placed_free(&p);
    }
    fclose(out);
    return text;
}

static void check_fixture(const char *name) {
    model m;
    char path[512], expect_path[512];
    snprintf(path, sizeof path, "%s/%s", SHEAF_FIXTURES, name);
    snprintf(expect_path, sizeof expect_path, "%s/%.*s.expect", SHEAF_FIXTURES,
             (int)(strlen(name) - strlen(".tensors")), name);
    open_model(path, &m);
    char *text = text_of(&m);
    close_model(&m);
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
    cr_assert_geq(n, 40, "%d fixtures", n);
}
