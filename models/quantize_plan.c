/* The plan of a quantization: which type each tensor of a file gets, with every refusal said before any work. */
#include "models/quantize_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 100000 };

typedef struct planner {
    const sheaf_gguf *g;
    const sheaf_quantize_options *o;
    const sheaf_imatrix *m;
    sheaf_quantize_row *rows;
    int64_t *order; /* tensors by layer, then name: the order that counting rules go by */
    mix_state mix;
    pcre2_code **patterns;
    bool *used;               /* pattern i was the first to match some tensor */
    int weighted, unweighted; /* tensors that the importance matrix knows, and does not */
    pcre2_match_data *match;
    pcre2_match_context *limits;
} planner;

static const char *name_of(const sheaf_gguf_tensor *t, char name[SHEAF_MAX_NAME]) {
    memcpy(name, t->name.s, t->name.n);
    name[t->name.n] = 0;
    return name;
}

/* N of "blk.N.", or -1. */
static int layer_of(const char *name) {
    int layer = -1;
    return sscanf(name, "blk.%d.", &layer) == 1 ? layer : -1;
}

/* --- facts about the model --- */

/* An integer of the architecture, or the first of a list of them (one a layer); 0 when it is absent or odd. */
static int64_t fact(const sheaf_gguf *g, sheaf_str arch, const char *suffix) {
    char key[160];
    int64_t v = 0;
    if (arch.n > 64) return 0;
    snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.s, suffix);
    int64_t i = sheaf_gguf_find(g, key);
    if (i < 0) return 0;
    sheaf_status s =
        sheaf_gguf_array_length(g, i) > 0 ? sheaf_gguf_array_i64(g, key, 0, &v) : sheaf_gguf_get_i64(g, key, &v);
    return s || v < 0 ? 0 : v;
}

static bool is_text(sheaf_str s, const char *text) { return s.n == strlen(text) && !memcmp(s.s, text, s.n); }

static void read_model(planner *p) {
    mix_model *m = &p->mix.model;
    sheaf_str arch = {"", 0};
    char name[SHEAF_MAX_NAME];
    if (sheaf_gguf_get_str(p->g, "general.architecture", &arch)) arch = (sheaf_str){"", 0};
    int64_t heads = fact(p->g, arch, "attention.head_count"), kv = fact(p->g, arch, "attention.head_count_kv");
    if (kv == 0) kv = heads;
    *m = (mix_model){.n_layer = fact(p->g, arch, "block_count"),
                     .n_expert = fact(p->g, arch, "expert_count"),
                     .gqa = kv ? heads / kv : 0,
                     .tied = !sheaf_gguf_find_tensor(p->g, "output.weight"),
                     .falcon = is_text(arch, "falcon"),
                     .has_imatrix = p->m != NULL};
    m->large = is_text(arch, "llama") && m->n_layer == 80 && heads != kv;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(p->g); i++)
        m->n_value += mix_is_value(name_of(sheaf_gguf_tensor_at(p->g, i), name));
}

static int by_layer(const void *a, const void *b, void *g) {
    char x[SHEAF_MAX_NAME], y[SHEAF_MAX_NAME];
    name_of(sheaf_gguf_tensor_at(g, *(const int64_t *)a), x);
    name_of(sheaf_gguf_tensor_at(g, *(const int64_t *)b), y);
    int i = layer_of(x), j = layer_of(y);
    return i != j ? (i > j) - (i < j) : strcmp(x, y);
}

/* --- overrides --- */

static sheaf_status compile(planner *p) {
    const sheaf_quantize_options *o = p->o;
    if (o->n_overrides == 0) return SHEAF_OK;
    p->patterns = sheaf_calloc((size_t)o->n_overrides, sizeof *p->patterns);
    p->used = sheaf_calloc((size_t)o->n_overrides, sizeof *p->used);
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->patterns || !p->used || !p->match || !p->limits)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "quantizing: no memory for patterns");
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    for (int i = 0; i < o->n_overrides; i++) {
        int code;
        PCRE2_SIZE at;
        PCRE2_UCHAR text[128];
        p->patterns[i] = pcre2_compile((PCRE2_SPTR)o->overrides[i].pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
        if (p->patterns[i]) continue;
        pcre2_get_error_message(code, text, sizeof text);
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: tensor type pattern %s: at character %zu: %s",
                          o->overrides[i].pattern, (size_t)at + 1, (const char *)text);
    }
    return SHEAF_OK;
}

/* The first override whose pattern is in the name; -1: none. */
static sheaf_status overridden(const planner *p, const char *name, int *which) {
    *which = -1;
    for (int i = 0; i < p->o->n_overrides; i++) {
        int n = pcre2_match(p->patterns[i], (PCRE2_SPTR)name, strlen(name), 0, 0, p->match, p->limits);
        if (n >= 0) {
            *which = i;
            p->used[i] = true;
            return SHEAF_OK;
        }
        if (n != PCRE2_ERROR_NOMATCH)
            return sheaf_fail(SHEAF_E_ARGUMENT, "options: tensor type pattern %s: too costly on %s",
                              p->o->overrides[i].pattern, name);
    }
    return SHEAF_OK;
}

/* --- one tensor --- */

/* A type of blocks of 32 that is about as exact, for rows that are no whole blocks of 256. */
static sheaf_type smaller_block(sheaf_type t) {
    switch (t) {
    case SHEAF_Q2_K:
    case SHEAF_Q3_K: return SHEAF_Q4_0;
    case SHEAF_Q4_K: return SHEAF_Q5_0;
    case SHEAF_Q5_K: return SHEAF_Q5_1;
    case SHEAF_Q6_K: return SHEAF_Q8_0;
    case SHEAF_IQ4_XS: return SHEAF_IQ4_NL;
    default: return t;
    }
}

static bool fits(const sheaf_gguf_tensor *t, sheaf_type type) { return t->ne[0] % sheaf_type_block(type) == 0; }

static bool is_embedding(const char *name) {
    return !strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight");
}

/* What the options, then the mix, want a matrix to be. */
static sheaf_status wanted(planner *p, const char *name, const sheaf_gguf_tensor *t, sheaf_type *type) {
    const sheaf_quantize_options *o = p->o;
    bool output = !strcmp(name, "output.weight");
    int which;
    sheaf_status s = overridden(p, name, &which);
    if (s) return s;
    /* the table of per-layer embeddings is large and apart: an override that names it counts */
    bool named = which >= 0 && !strcmp(name, "per_layer_token_embd.weight");
    if (o->has_embedding_type && is_embedding(name) && !named)
        *type = o->embedding_type;
    else if (o->has_output_type && output)
        *type = o->output_type;
    else if (which >= 0)
        *type = o->overrides[which].type;
    else if (o->pure || !sheaf_type_is_quantized(o->mix->type))
        *type = o->mix->type;
    else if (o->has_output_type && p->mix.model.tied && is_embedding(name))
        *type = o->output_type;
    else
        *type = mix_type(&p->mix, name, layer_of(name), t);
    return SHEAF_OK;
}

static sheaf_status check_importance(planner *p, const char *name, const sheaf_gguf_tensor *t,
                                     sheaf_quantize_row *row) {
    static const char q2_k_s[] = "Q2_K_S";
    int64_t n = 0;
    const float *w = p->m ? sheaf_imatrix_find(p->m, t->name, &n) : NULL;
    bool table = is_embedding(name) || !strcmp(name, "output.weight");
    if (w && n != t->ne[0] * t->ne[2] && !table)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: it has %lld columns of importance, the tensor %lld x %lld",
                          sheaf_imatrix_path(p->m), name, (long long)n, (long long)t->ne[0], (long long)t->ne[2]);
    row->unweighted = p->m && !w;
    p->weighted += w != NULL;
    p->unweighted += row->unweighted;
    if (w || table || row->to != SHEAF_Q2_K || strcmp(p->o->mix->name, q2_k_s) != 0) return SHEAF_OK;
    if (p->m)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: it is missing, and %s needs it", sheaf_imatrix_path(p->m), name,
                          q2_k_s);
    return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: %s needs an importance matrix", q2_k_s, name),
                            "--imatrix FILE gives one; Q2_K does without");
}

static sheaf_status plan_one(planner *p, int64_t i) {
    const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(p->g, i);
    sheaf_quantize_row *row = &p->rows[i];
    char name[SHEAF_MAX_NAME], text[160];
    name_of(t, name);
    *row = (sheaf_quantize_row){.to = t->type, .bytes = t->bytes};
    if (!p->o->mix || !mix_allows(name, t)) return SHEAF_OK;
    if (p->o->leave_output && !strcmp(name, "output.weight")) return SHEAF_OK;
    sheaf_type type = t->type;
    sheaf_status s = wanted(p, name, t, &type);
    if (s) return s;
    row->fallback = !fits(t, type);
    if (!fits(t, type)) type = smaller_block(type);
    if (!fits(t, type)) type = SHEAF_F16;
    row->to = type;
    if (type == t->type) return SHEAF_OK;
    if (sheaf_type_is_quantized(t->type) && !p->o->allow_requantize) {
        s = sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: %s: it is %s already", sheaf_gguf_path(p->g, t->shard),
                       sheaf_str_text(t->name, text, sizeof text), sheaf_type_name(t->type));
        return sheaf_error_hint(s, "start from a float file, or accept the loss with --allow-requantize");
    }
    /* no wrap: the source's rows are at least as many bits, or the reader would have refused it */
    uint64_t n_rows = (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
    size_t row_bytes = sheaf_row_bytes(type, t->ne[0]), bytes;
    if (row_bytes == SIZE_MAX || sheaf_mul_overflow(row_bytes, n_rows, &bytes))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: its size in %s wraps", sheaf_gguf_path(p->g, t->shard),
                          sheaf_str_text(t->name, text, sizeof text), sheaf_type_name(type));
    row->bytes = bytes;
    return check_importance(p, name, t, row);
}

/* --- all --- */

/* What was asked for and came to nothing is a slip of the pen more often than not. */
static sheaf_status check_use(const planner *p) {
    for (int i = 0; i < p->o->n_overrides; i++)
        if (!p->used[i])
            sheaf_log(SHEAF_LOG_WARN, "tensor type pattern %s: no tensor whose type it would set",
                      p->o->overrides[i].pattern);
    if (p->m && p->unweighted && !p->weighted)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: it knows none of the %d tensors to quantize: it is of another model",
                          sheaf_imatrix_path(p->m), p->unweighted);
    return SHEAF_OK;
}

static void planner_free(planner *p) {
    for (int i = 0; p->patterns && i < p->o->n_overrides; i++) pcre2_code_free(p->patterns[i]);
    sheaf_free(p->patterns);
    sheaf_free(p->used);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->limits);
    sheaf_free(p->order);
}

sheaf_status sheaf_quantize_plan(const sheaf_gguf *g, const sheaf_quantize_options *o, const sheaf_imatrix *m,
                                 sheaf_quantize_row **out) {
    size_t n = (size_t)sheaf_gguf_n_tensors(g);
    planner p = {.g = g, .o = o, .m = m, .mix = {.mix = o->mix}};
    p.rows = sheaf_calloc(n + 1, sizeof *p.rows);
    p.order = sheaf_calloc(n + 1, sizeof *p.order);
    sheaf_status s = SHEAF_OK;
    if (!p.rows || !p.order) s = sheaf_fail(SHEAF_E_NO_MEMORY, "quantizing: no memory for %zu tensors", n);
    if (!s) s = compile(&p);
    if (!s) {
        read_model(&p);
        for (size_t i = 0; i < n; i++) p.order[i] = (int64_t)i;
        qsort_r(p.order, n, sizeof *p.order, by_layer, (void *)g);
    }
    for (size_t i = 0; i < n && !s; i++) s = plan_one(&p, p.order[i]);
    if (!s) s = check_use(&p);
    planner_free(&p);
    if (s)
        sheaf_free(p.rows);
    else
        *out = p.rows;
    return s;
}
