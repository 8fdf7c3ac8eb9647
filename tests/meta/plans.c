/* Plans as text: each fixture is a graph in a small notation, a line "---", and the plan that comes out.
 *
 *     devices 2                        strict            (an error is then the expected text)
 *     w: f32 8 6 | A1 3:0 3:1          a weight and how it is cut; without '|' it is mirrored
 *     c= f16 8 6 | A0 4:0 4:1          the same as state
 *     x? f32 8 4                       an input
 *     y = mul_mat(w, x)                a node; "y! = ..." is an output
 *
 * After the steps come the shards of each member: shape, where they lie, and what differs by device. The
 * expected part is written again by SHEAF_BLESS=1; look at the difference before keeping it. */
#include <dirent.h>
#include <inttypes.h>

#include "meta/plan_internal.h"
#include "support.h"

enum { MAX_NAMES = 64, MAX_LINE = 256, MAX_RUNS = 16 };

typedef struct notation {
    sheaf_arena *fixed, *work;
    sheaf_tensor *tensor[MAX_NAMES];
    int n, n_devices;
    bool strict;
    sheaf_graph *g;
    /* layouts of leafs, by tensor */
    char layout[MAX_NAMES][128];
} notation;

/* --- reading the notation ------------------------------------------------------------------------------------- */

static sheaf_tensor *named(const notation *t, const char *name) {
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->tensor[i]->name, name) == 0) return t->tensor[i];
    }
    cr_assert(false, "no tensor '%s'", name);
    return NULL;
}

static void read_leaf(notation *t, char *line, char kind) {
    char name[64], type[16], *bar = strchr(line, '|');
    int64_t ne[4] = {1, 1, 1, 1};
    int used = 0, n;
    if (bar) *bar = 0;
    cr_assert_geq(sscanf(line, "%63[^:=?]%*c %15s%n", name, type, &used), 2, "%s", line);
    char *p = line + used;
    for (n = 0; n < 4 && sscanf(p, "%" SCNd64 "%n", &ne[n], &used) == 1; n++) p += used;
    sheaf_type id;
    cr_assert(sheaf_type_from_name(type, &id), "%s", type);
    sheaf_tensor *x = sheaf_set_name(sheaf_new(kind == '?' ? t->work : t->fixed, id, n, ne), "%s", name);
    cr_assert_not_null(x, "%s: %s", line, sheaf_error());
    sheaf_set_flag(x, kind == '?' ? SHEAF_FLAG_INPUT : kind == '=' ? SHEAF_FLAG_STATE : SHEAF_FLAG_WEIGHT);
    snprintf(t->layout[t->n], sizeof t->layout[0], "%s", bar ? bar + 2 : "");
    t->tensor[t->n++] = x;
}

typedef struct call {
    char op[32], arg[8][32];
    int n;
} call;

static int64_t number(const call *c, int i) { return strtoll(c->arg[i], NULL, 10); }

static sheaf_tensor *arg(const notation *t, const call *c, int i) { return i < c->n ? named(t, c->arg[i]) : NULL; }

static sheaf_tensor *view_node(notation *t, const call *c) {
    sheaf_arena *a = t->work;
    sheaf_tensor *x = arg(t, c, 0);
    if (strcmp(c->op, "reshape") == 0) {
        int64_t ne[4] = {1, 1, 1, 1};
        for (int i = 1; i < c->n; i++) ne[i - 1] = number(c, i);
        return sheaf_reshape(a, x, 4, ne);
    }
    if (strcmp(c->op, "permute") == 0)
        return sheaf_permute(a, x, (int)number(c, 1), (int)number(c, 2), (int)number(c, 3), (int)number(c, 4));
    /* rows(x, first, count) */
    if (strcmp(c->op, "rows") == 0)
        return sheaf_view_2d(a, x, x->ne[0], number(c, 2), x->nb[1], (size_t)number(c, 1) * x->nb[1]);
    /* columns(x, first, count) */
    if (strcmp(c->op, "columns") == 0)
        return sheaf_view_2d(a, x, number(c, 2), x->ne[1], x->nb[1], (size_t)number(c, 1) * x->nb[0]);
    /* heads(cache, head, cells, n): as attention reads it */
    if (strcmp(c->op, "heads") == 0) {
        return sheaf_view_3d(a, x, number(c, 1), number(c, 2), number(c, 3), x->nb[1], (size_t)number(c, 1) * x->nb[0],
                             0);
    }
    return NULL;
}

static sheaf_tensor *plain_node(notation *t, const call *c) {
    sheaf_arena *a = t->work;
    sheaf_tensor *x = arg(t, c, 0);
    sheaf_params rope = {.rope = {.n_dims = (int32_t)x->ne[0], .freq_base = 10000, .freq_scale = 1, .attn_factor = 1}};
#define OP(name, made)                                                                                                 \
    if (strcmp(c->op, name) == 0) return made
    OP("mul_mat", sheaf_mul_mat(a, x, arg(t, c, 1)));
    OP("row_parallel", sheaf_mul_mat_segments(a, sheaf_mul_mat(a, x, arg(t, c, 1)), (int32_t)number(c, 2)));
    OP("unrounded",
       sheaf_unrounded(a, sheaf_mul_mat_segments(a, sheaf_mul_mat(a, x, arg(t, c, 1)), (int32_t)number(c, 2))));
    OP("experts", sheaf_mul_mat_id(a, x, arg(t, c, 1), arg(t, c, 2)));
    OP("experts_sum", sheaf_mul_mat_id_sum(a, x, arg(t, c, 1), arg(t, c, 2), (int32_t)number(c, 3)));
    OP("round", sheaf_round(a, x));
    OP("add", sheaf_add(a, x, arg(t, c, 1)));
    OP("mul", sheaf_mul(a, x, arg(t, c, 1)));
    OP("silu", sheaf_unary_op(a, x, SHEAF_UNARY_SILU));
    OP("swiglu", sheaf_glu_op(a, x, arg(t, c, 1), SHEAF_GLU_SWIGLU));
    OP("rms_norm", sheaf_rms_norm(a, x, arg(t, c, 1), 1e-5f));
    OP("rope", sheaf_rope(a, x, arg(t, c, 1), NULL, &rope));
    OP("get_rows", sheaf_get_rows(a, x, arg(t, c, 1)));
    OP("set_rows", sheaf_set_rows(a, x, arg(t, c, 1), arg(t, c, 2)));
    OP("cpy", sheaf_cpy(a, x, arg(t, c, 1)));
    OP("fill", sheaf_fill(a, x, 0));
    OP("cont", sheaf_cont(a, x));
    OP("attention", sheaf_attention(a, x, arg(t, c, 1), arg(t, c, 2), arg(t, c, 3), NULL, 1, 0, 0));
#undef OP
    return view_node(t, c);
}

static void read_node(notation *t, char *line) {
    call c = {.n = 0};
    char name[64], *save = NULL;
    cr_assert_eq(sscanf(line, "%63[^ !]", name), 1, "%s", line);
    bool output = strstr(line, "! =") != NULL;
    char *p = strstr(line, "= ") + 2, *open = strchr(p, '(');
    cr_assert_not_null(open, "%s", line);
    snprintf(c.op, sizeof c.op, "%.*s", (int)(open - p), p);
    for (char *a = strtok_r(open + 1, ", )", &save); a; a = strtok_r(NULL, ", )", &save))
        snprintf(c.arg[c.n++], sizeof c.arg[0], "%s", a);
    sheaf_tensor *x = sheaf_set_name(plain_node(t, &c), "%s", name);
    cr_assert_not_null(x, "%s: %s", line, sheaf_error());
    if (output) sheaf_set_flag(x, SHEAF_FLAG_OUTPUT);
    t->tensor[t->n++] = x;
    expect_ok(sheaf_graph_expand(t->g, x));
}

static void read_line(notation *t, char *line) {
    char *blank = strchr(line, ' ');
    if (line[0] == '#' || line[0] == 0) return;
    if (sscanf(line, "devices %d", &t->n_devices) == 1) return;
    if (strcmp(line, "strict") == 0) {
        t->strict = true;
    } else if (blank && strchr(":=?", blank[-1])) {
        read_leaf(t, line, blank[-1]);
    } else {
        read_node(t, line);
    }
}

/* "A1 320:0 64:0,1" as runs. */
static sheaf_status layout_from(const char *text, sheaf_arena *a, int n_devices, sheaf_layout *out) {
    sheaf_run runs[MAX_RUNS];
    int n = 0;
    *out = sheaf_layout_mirrored();
    if (text[0] != 'A') return SHEAF_OK;
    const char *p = text + 2;
    while (*p == ' ') {
        char *end;
        runs[n] = (sheaf_run){strtoll(p, &end, 10), 0};
        do runs[n].devices |= (sheaf_device_set)1 << strtol(end + 1, &end, 10);
        while (*end == ',');
        p = end;
        n++;
    }
    return sheaf_layout_axis(a, text[1] - '0', runs, n, n_devices, out);
}

static sheaf_status notation_policy(void *ctx, sheaf_arena *a, const sheaf_tensor *x, sheaf_layout *out) {
    const notation *t = ctx;
    for (int i = 0; i < t->n; i++) {
        if (t->tensor[i] == x) return layout_from(t->layout[i], a, t->n_devices, out);
    }
    return SHEAF_OK;
}

/* --- printing a member's shards ------------------------------------------------------------------------------------
 */

static const char *home_name(const plan_shard *s) {
    static const char *const names[] = {"work", "static", "io", "staging", "view"};
    return names[s->home];
}

static void print_shards(const meta_plan *p, FILE *out) {
    for (int i = 0; i < p->n_local; i++) {
        fprintf(out, "member %d:", i);
        for (int32_t n = 0; n < p->members[i].n_nodes; n++) {
            const plan_shard *s = &p->members[i].shards[p->members[i].nodes[n].shard];
            const sheaf_tensor *h = &s->header;
            fprintf(out, " %s%s[%" PRId64 " %" PRId64 "]%s", h->name, h->op == SHEAF_OP_VIEW ? "/view" : "", h->ne[0],
                    h->ne[1] * h->ne[2] * h->ne[3], home_name(s));
            if (h->view_offs) fprintf(out, "+%zu", h->view_offs);
            if (h->op == SHEAF_OP_ATTENTION)
                fprintf(out, "(q%d,kv%d)", h->params.attention.q_head0, h->params.attention.kv_head0);
            if (h->params.rows.id_first && (h->op == SHEAF_OP_GET_ROWS || h->op == SHEAF_OP_SET_ROWS))
                fprintf(out, "(from %d)", h->params.rows.id_first);
        }
        fprintf(out, "\n");
    }
}

/* --- what a sum reads beside its addends ---------------------------------------------------------------------- */

static bool overlap(const plan_shard *x, const plan_shard *y) {
    if (x->empty || y->empty || x->home != HOME_WORK || y->home != HOME_WORK || x->place.chunk != y->place.chunk)
        return false;
    return x->place.offset < y->place.offset + sheaf_nbytes(&y->header) &&
           y->place.offset < x->place.offset + sheaf_nbytes(&x->header);
}

/* Value v keeps its bytes until the sum at `item` has read them. */
static void expect_alive(const meta_plan *p, const plan_member *m, int32_t v, int32_t item) {
    const plan_shard *read = &m->shards[v];
    const plan_item *sum = &p->items[item];
    for (int32_t n = 0; n < m->n_nodes; n++) {
        const plan_shard *other = &m->shards[m->nodes[n].shard];
        if (m->nodes[n].item <= p->values[v].made_by || m->nodes[n].item > item) continue;
        cr_assert(!overlap(read, other), "%s lies where %s is until its sum", other->header.name, read->header.name);
    }
    cr_assert(!overlap(read, &m->shards[sum->out]), "a sum lies where its %s is", read->header.name);
    if (sum->norm_out >= 0)
        cr_assert(!overlap(read, &m->shards[sum->norm_out]), "a norm lies where its %s is", read->header.name);
}

/* The piece that makes value v gives it to others: its backend may not fuse it away. */
static void expect_given(const meta_plan *p, int member, int32_t v) {
    for (int32_t k = 0; k < p->n_pieces; k++) {
        const sheaf_graph *g = p->pieces[k].graphs[member];
        for (int32_t i = g ? g->n_leafs : 0; g && i < g->n_leafs + g->n_nodes; i++) {
            if (p->pieces[k].shard_of_slot[member][i] != v) continue;
            cr_assert(sheaf_graph_slot(g, i)->flags & SHEAF_FLAG_OUTPUT, "%s is nobody's but a sum reads it",
                      sheaf_graph_slot(g, i)->name);
        }
    }
}

static void check_what_sums_read(const meta_plan *p) {
    for (int32_t item = 0; item < p->n_items; item++) {
        const plan_item *t = &p->items[item];
        const int32_t read[] = {t->residual, t->norm_weight};
        for (int k = 0; k < 2 && t->kind == ITEM_SUM && !t->dropped; k++) {
            if (read[k] < 0 || p->values[read[k]].home != HOME_WORK) continue;
            for (int i = 0; i < p->n_local; i++) {
                expect_alive(p, &p->members[i], read[k], item);
                expect_given(p, i, read[k]);
            }
        }
    }
}

/* A writer names what it writes into as a source: it must be over the bytes that are written, not an older copy. */
static void check_what_is_written(const meta_plan *p, const plan_member *m) {
    for (int32_t n = 0; n < m->n_nodes; n++) {
        const plan_item *t = &p->items[m->nodes[n].item];
        const plan_shard *h = &m->shards[m->nodes[n].shard];
        bool writes = h->header.op == SHEAF_OP_CPY || h->header.op == SHEAF_OP_SET_ROWS, found = false;
        if (t->kind != ITEM_NODE || !writes) continue;
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            int32_t s = h->src[j];
            found = found || (s >= 0 && (s == h->root || m->shards[s].root == h->root));
        }
        cr_assert(found, "%s does not name what it writes into", h->header.name);
    }
}

static void print_plan(notation *t, house *h, FILE *out) {
    sheaf_prepared *prepared;
    sheaf_meta_set_strict(h->backend, t->strict);
    sheaf_status s = sheaf_backend_prepare(h->backend, t->g, &prepared);
    if (s) {
        fprintf(out, "%s: %s\n", sheaf_status_name(s),
                strstr(sheaf_error(), "strict:") ? strstr(sheaf_error(), "strict:") : sheaf_error());
        return;
    }
    const sheaf_plan *plan = sheaf_meta_plan(prepared);
    expect_ok(sheaf_plan_check(plan));
    expect_ok(sheaf_plan_print(plan, SHEAF_PLAN_STEPS, out));
    const meta_plan *p = (const meta_plan *)plan;
    check_what_sums_read(p);
    for (int i = 0; i < p->n_local; i++) check_what_is_written(p, &p->members[i]);
    char from[128], to[128];
    for (int32_t i = 0; i < p->n_reshards; i++) {
        const sheaf_plan_reshard *r = &p->reshards[i];
        fprintf(out, "reshard %s for %s: %s -> %s, %zu bytes\n", r->tensor, r->node,
                sheaf_layout_text(&r->from, from, sizeof from), sheaf_layout_text(&r->to, to, sizeof to), r->bytes);
    }
    print_shards(p, out);
    sheaf_prepared_free(h->backend, prepared);
}

/* --- fixtures ---------------------------------------------------------------------------------------------- */

/* Reads the graph part of the fixture; the text of that part goes to `out` as it is. */
static void read_graph(FILE *f, notation *t, FILE *out) {
    char line[MAX_LINE];
    memset(t, 0, sizeof *t);
    t->n_devices = 2;
    expect_ok(sheaf_arena_new(1 << 14, &t->fixed));
    expect_ok(sheaf_arena_new(1 << 14, &t->work));
    expect_ok(sheaf_graph_new(t->work, 64, &t->g));
    while (fgets(line, sizeof line, f)) {
        fputs(line, out);
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "---") == 0) break;
        read_line(t, line);
    }
    expect_ok(sheaf_graph_seal(t->g));
}

static char *whole_file(const char *path) {
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    char *text = calloc(1, 1 << 16);
    cr_assert_lt(fread(text, 1, (1 << 16) - 1, f), (size_t)(1 << 16) - 1, "%s is too long", path);
    fclose(f);
    return text;
}

static void check_fixture(const char *name) {
    char path[512], *text = NULL;
    size_t size = 0;
    notation t;
    house h;
    sheaf_buffer *fixed;
    snprintf(path, sizeof path, "%s/%s", SHEAF_FIXTURES, name);
    FILE *f = fopen(path, "r"), *out = open_memstream(&text, &size);
    cr_assert_not_null(f, "%s", path);
    read_graph(f, &t, out);
    fclose(f);
    house_open(&h, t.n_devices);
    sheaf_meta_set_policy(h.meta, notation_policy, &t);
    expect_ok(sheaf_arena_place_all(t.fixed, h.meta->buffer_type, SHEAF_USAGE_WEIGHTS, &fixed));
    print_plan(&t, &h, out);
    fclose(out);
    sheaf_buffer_free(fixed);
    house_close(&h);
    sheaf_arena_free(t.work);
    sheaf_arena_free(t.fixed);
    char *expected = whole_file(path);
    const char *bless = getenv("SHEAF_BLESS");
    if (bless && *bless == '1') {
        f = fopen(path, "w");
        fputs(text, f);
        fclose(f);
    } else {
        size_t at = 0, line = 1;
        for (; text[at] && text[at] == expected[at]; at++) line += text[at] == '\n';
        cr_assert_str_eq(text, expected, "%s differs at line %zu: '%.80s', expected '%.80s'", name, line, text + at,
                         expected + at);
    }
    free(expected);
    free(text);
}

Test(plans, are_as_the_fixtures_say, .timeout = 120) {
    DIR *dir = opendir(SHEAF_FIXTURES);
    cr_assert_not_null(dir, "%s", SHEAF_FIXTURES);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".plan") != 0) continue;
        check_fixture(e->d_name);
        n++;
    }
    closedir(dir);
    cr_assert_geq(n, 10, "%d fixtures", n);
}
