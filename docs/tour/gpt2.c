/* GPT-2 for the tour: its file, its graph, and the loop that generates. Nothing here gives a tensor its bytes. */
#include "gpt2.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the file ------------------------------------------------------------------------------------------- */

static sheaf_status read_numbers(gpt2 *m) {
    const struct {
        const char *key;
        int64_t *to;
    } keys[] = {{"gpt2.block_count", &m->n_layer},
                {"gpt2.attention.head_count", &m->n_head},
                {"gpt2.embedding_length", &m->n_embd},
                {"gpt2.context_length", &m->n_ctx}};
    sheaf_status s = SHEAF_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !s; i++) {
        s = sheaf_gguf_get_i64(m->file, keys[i].key, keys[i].to);
        if (!s && (*keys[i].to < 1 || *keys[i].to > 1 << 20))
            s = sheaf_fail(SHEAF_E_FORMAT, "%s is %" PRId64, keys[i].key, *keys[i].to);
    }
    if (!s) s = sheaf_gguf_get_f32(m->file, "gpt2.attention.layer_norm_epsilon", &m->eps);
    if (!s && m->n_embd % m->n_head) s = sheaf_fail(SHEAF_E_FORMAT, "heads do not divide the width");
    return s;
}

/* A header for every tensor of the file, and two caches a layer. F32 caches: the tour is about memory, not about
 * saving it. */
static sheaf_status declare(gpt2 *m) {
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(m->file); i++) {
        const sheaf_gguf_tensor *f = sheaf_gguf_tensor_at(m->file, i);
        sheaf_tensor *t = sheaf_new(m->weights, f->type, f->n_dims, f->ne);
        sheaf_set_flag(sheaf_set_name(t, "%.*s", (int)f->name.n, f->name.s), SHEAF_FLAG_WEIGHT);
        if (t && !strcmp(t->name, "token_embd.weight")) m->n_vocab = t->ne[1];
    }
    for (int64_t i = 0; i < 2 * m->n_layer; i++) {
        sheaf_tensor *t = sheaf_new_2d(m->state, SHEAF_F32, m->n_embd, m->n_ctx);
        sheaf_set_flag(sheaf_set_name(t, "blk.%d.cache_%c", (int)(i / 2), i % 2 ? 'v' : 'k'), SHEAF_FLAG_STATE);
    }
    sheaf_status s = sheaf_arena_status(m->weights);
    return s ? s : sheaf_arena_status(m->state);
}

static sheaf_status policy_key(void *ctx, const char *key, int64_t *out) {
    char full[128];
    snprintf(full, sizeof full, "gpt2.%s", key);
    return sheaf_gguf_get_i64(((gpt2 *)ctx)->file, full, out);
}

/* The built-in split table says where each tensor belongs on n devices, and in which steps long sums are added: the
 * same for any n, so that one device and five compute the same bits. */
static sheaf_status place(gpt2 *m, int n_devices) {
    sheaf_policy *table = NULL;
    size_t n = (size_t)sheaf_gguf_n_tensors(m->file) + 2 * (size_t)m->n_layer;
    m->named = calloc(n, sizeof *m->named);
    m->placement = calloc(n, sizeof *m->placement);
    if (!m->named || !m->placement) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %zu names", n);
    for (int k = 0; k < 2; k++) {
        const sheaf_arena *a = k ? m->state : m->weights;
        for (sheaf_tensor *t = sheaf_arena_next(a, NULL); t; t = sheaf_arena_next(a, t)) {
            sheaf_named *x = &m->named[m->n_named++];
            *x = (sheaf_named){.name = t->name, .type = t->type};
            memcpy(x->ne, t->ne, sizeof x->ne);
        }
    }
    sheaf_policy_env env = {.get = policy_key, .ctx = m, .n_devices = n_devices, .pack_rows = 1};
    sheaf_status s = sheaf_policy_builtin("gpt2", &table);
    if (!s) s = sheaf_policy_place(table, &env, m->named, m->n_named, m->layouts, m->placement, NULL);
    sheaf_policy_free(table);
    return s;
}

const sheaf_placement *gpt2_placement(const gpt2 *m, const char *name) {
    for (int32_t i = 0; i < m->n_named; i++)
        if (!strcmp(m->named[i].name, name)) return &m->placement[i];
    return NULL;
}

static sheaf_status read_prompt(int argc, char **argv, gpt2 *m) {
    m->n_new = atoi(argv[2]);
    m->prompt = calloc((size_t)argc, sizeof *m->prompt);
    if (!m->prompt) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for a prompt");
    for (int i = 3; i < argc; i++) {
        int32_t id = atoi(argv[i]);
        if (id < 0 || id >= m->n_vocab) return sheaf_fail(SHEAF_E_RANGE, "id %s: not in the vocabulary", argv[i]);
        m->prompt[m->n_prompt++] = id;
    }
    if (m->n_new < 0 || m->n_prompt + (int64_t)m->n_new > m->n_ctx)
        return sheaf_fail(SHEAF_E_RANGE, "%d tokens and %d more, the model has %d positions", m->n_prompt, m->n_new,
                          (int)m->n_ctx);
    return SHEAF_OK;
}

sheaf_status gpt2_open(int argc, char **argv, int n_devices, gpt2 *m) {
    *m = (gpt2){0};
    if (argc < 4) return sheaf_fail(SHEAF_E_ARGUMENT, "usage: %s MODEL.gguf N ID...", argv[0]);
    sheaf_status s = sheaf_gguf_open(argv[1], &m->file);
    if (!s) s = sheaf_arena_new(64 << 10, &m->weights);
    if (!s) s = sheaf_arena_new(16 << 10, &m->state);
    if (!s) s = sheaf_arena_new(16 << 10, &m->layouts);
    if (!s) s = read_numbers(m);
    if (!s) s = declare(m);
    if (!s) s = place(m, n_devices);
    return s ? s : read_prompt(argc, argv, m);
}

void gpt2_close(gpt2 *m) {
    free(m->prompt);
    free(m->placement);
    free(m->named);
    sheaf_arena_free(m->layouts);
    sheaf_arena_free(m->state);
    sheaf_arena_free(m->weights);
    sheaf_gguf_close(m->file);
}

sheaf_status gpt2_load(const gpt2 *m, gpt2_set set) {
    sheaf_status s = SHEAF_OK;
    for (sheaf_tensor *t = sheaf_arena_next(m->weights, NULL); t && !s; t = sheaf_arena_next(m->weights, t)) {
        const sheaf_gguf_tensor *f = sheaf_gguf_find_tensor(m->file, t->name);
        void *bytes = f ? malloc(f->bytes + 1) : NULL;
        if (!bytes) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %s", t->name);
        s = sheaf_gguf_read(m->file, f, 0, bytes, f->bytes);
        if (!s) s = set(t, bytes, f->bytes);
        free(bytes);
    }
    return s;
}

/* --- the graph ------------------------------------------------------------------------------------------- */

typedef struct build {
    const gpt2 *m;
    sheaf_arena *a;
    int64_t n, n_kv; /* tokens that run; cells of the caches that they look at */
    sheaf_tensor *cells, *mask;
    sheaf_status status;
} build;

static sheaf_tensor *find(build *b, const sheaf_arena *a, int64_t il, const char *name) {
    char full[SHEAF_MAX_NAME];
    int n = il < 0 ? 0 : snprintf(full, sizeof full, "blk.%d.", (int)il);
    snprintf(full + n, sizeof full - (size_t)n, "%s", name);
    sheaf_tensor *t = sheaf_arena_find(a, full);
    if (!t && !b->status) b->status = sheaf_fail(SHEAF_E_FORMAT, "the file has no %s", full);
    return t;
}

static sheaf_tensor *weight(build *b, int64_t il, const char *name) { return find(b, b->m->weights, il, name); }

static sheaf_tensor *norm(build *b, int64_t il, const char *name, sheaf_tensor *x) {
    char w[48], bias[48];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return sheaf_norm(b->a, x, weight(b, il, w), weight(b, il, bias), b->m->eps);
}

/* w x + bias. What is cut along its inputs is summed in segments of the split table. */
static sheaf_tensor *linear(build *b, int64_t il, const char *name, sheaf_tensor *x) {
    char w[48], bias[48];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    sheaf_tensor *t = weight(b, il, w), *y = sheaf_mul_mat(b->a, t, x);
    const sheaf_placement *p = t ? gpt2_placement(b->m, t->name) : NULL;
    if (p && p->segment > 0) y = sheaf_mul_mat_segments(b->a, y, p->segment);
    return sheaf_add(b->a, y, weight(b, il, bias));
}

/* Columns [first, first + n_embd) of qkv go to this run's cells of the cache; the first n_kv cells come back as heads:
 *
 *     cache {n_embd, n_ctx}, a row a cell   ->   view {head, n_kv, n_head} of the same bytes */
static sheaf_tensor *remember(build *b, int64_t il, const char *cache, sheaf_tensor *qkv, int64_t first) {
    int64_t head = b->m->n_embd / b->m->n_head;
    sheaf_tensor *t = find(b, b->m->state, il, cache);
    if (!t || !qkv) return NULL;
    sheaf_tensor *rows = sheaf_view_2d(b->a, qkv, b->m->n_embd, b->n, qkv->nb[1], (size_t)first * sizeof(float));
    return sheaf_view_3d(b->a, sheaf_set_rows(b->a, t, rows, b->cells), head, b->n_kv, b->m->n_head, t->nb[1],
                         (size_t)head * sizeof(float), 0);
}

static sheaf_tensor *attention(build *b, int64_t il, sheaf_tensor *x) {
    int64_t width = b->m->n_embd, head = width / b->m->n_head;
    sheaf_tensor *qkv = linear(b, il, "attn_qkv", x);
    if (!qkv) return NULL;
    sheaf_tensor *q = sheaf_view_3d(b->a, qkv, head, b->m->n_head, b->n, (size_t)head * sizeof(float), qkv->nb[1], 0);
    sheaf_tensor *k = remember(b, il, "cache_k", qkv, width), *v = remember(b, il, "cache_v", qkv, 2 * width);
    sheaf_tensor *y =
        sheaf_attention(b->a, sheaf_permute(b->a, q, 0, 2, 1, 3), k, v, b->mask, NULL, 1 / sqrtf((float)head), 0, 0);
    return linear(b, il, "attn_output", sheaf_reshape_2d(b->a, y, width, b->n));
}

static sheaf_tensor *feed_forward(build *b, int64_t il, sheaf_tensor *x) {
    return linear(b, il, "ffn_down", sheaf_unary_op(b->a, linear(b, il, "ffn_up", x), SHEAF_UNARY_GELU));
}

static sheaf_tensor *input(build *b, sheaf_type type, int64_t ne0, int64_t ne1, const char *name) {
    return sheaf_set_flag(sheaf_set_name(sheaf_new_2d(b->a, type, ne0, ne1), "%s", name), SHEAF_FLAG_INPUT);
}

static sheaf_tensor *forward(build *b) {
    sheaf_tensor *tokens = input(b, SHEAF_I32, b->n, 1, "tokens"),
                 *positions = input(b, SHEAF_I32, b->n, 1, "positions");
    sheaf_tensor *last = input(b, SHEAF_I32, 1, 1, "last");
    b->cells = input(b, SHEAF_I64, b->n, 1, "cells");
    b->mask = input(b, SHEAF_F32, b->n_kv, b->n, "mask");
    sheaf_tensor *x = sheaf_add(b->a, sheaf_get_rows(b->a, weight(b, -1, "token_embd.weight"), tokens),
                                sheaf_get_rows(b->a, weight(b, -1, "position_embd.weight"), positions));
    for (int64_t il = 0; il < b->m->n_layer; il++) {
        x = sheaf_add(b->a, attention(b, il, norm(b, il, "attn_norm", x)), x);
        x = sheaf_add(b->a, feed_forward(b, il, norm(b, il, "ffn_norm", x)), x);
    }
    x = norm(b, -1, "output_norm", sheaf_get_rows(b->a, x, last));
    sheaf_tensor *output = sheaf_arena_find(b->m->weights, "output.weight"); /* absent: the embedding serves */
    x = sheaf_mul_mat(b->a, output ? output : weight(b, -1, "token_embd.weight"), x);
    return sheaf_set_flag(sheaf_set_name(x, "logits"), SHEAF_FLAG_OUTPUT);
}

/* Cells that a run looks at, in steps of 64: neighbouring tokens then have the same graph, and the mask hides the rest.
 */
static int64_t cells_seen(int64_t used, int64_t n_ctx) {
    int64_t up = (used + 63) / 64 * 64;
    return up < n_ctx ? up : n_ctx;
}

sheaf_status gpt2_graph(const gpt2 *m, sheaf_arena *a, int n, int n_past, sheaf_graph **out) {
    build b = {.m = m, .a = a, .n = n, .n_kv = cells_seen(n_past + n, m->n_ctx)};
    sheaf_tensor *logits = forward(&b);
    if (b.status) return b.status;
    sheaf_status s = sheaf_arena_status(a);
    if (!s) s = sheaf_graph_new(a, (int32_t)(32 + 32 * m->n_layer), out);
    if (!s) s = sheaf_graph_expand(*out, logits);
    return s ? s : sheaf_graph_seal(*out);
}

sheaf_status gpt2_worst_graph(const gpt2 *m, sheaf_arena *a, sheaf_graph **out) {
    int n = m->n_ctx < GPT2_BATCH ? (int)m->n_ctx : GPT2_BATCH;
    return gpt2_graph(m, a, n, (int)m->n_ctx - n, out);
}

sheaf_status gpt2_feed(const sheaf_graph *g, const int32_t *token, int n, int n_past, gpt2_set set) {
    int32_t position[GPT2_BATCH], last = n - 1;
    int64_t cell[GPT2_BATCH];
    sheaf_tensor *mask = sheaf_graph_find(g, "mask");
    float *seen = malloc(sheaf_nbytes(mask));
    if (!seen) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for a mask");
    for (int i = 0; i < n; i++) {
        position[i] = n_past + i;
        cell[i] = n_past + i; /* one sequence from the start: a token's cell is its position */
        for (int64_t k = 0; k < mask->ne[0]; k++) seen[i * mask->ne[0] + k] = k <= n_past + i ? 0 : -INFINITY;
    }
    sheaf_status s = set(sheaf_graph_find(g, "tokens"), token, (size_t)n * sizeof *token);
    if (!s) s = set(sheaf_graph_find(g, "positions"), position, (size_t)n * sizeof *position);
    if (!s) s = set(sheaf_graph_find(g, "cells"), cell, (size_t)n * sizeof *cell);
    if (!s) s = set(sheaf_graph_find(g, "last"), &last, sizeof last);
    if (!s) s = set(mask, seen, sheaf_nbytes(mask));
    free(seen);
    return s;
}

/* --- generating ------------------------------------------------------------------------------------------- */

static int32_t best_of(const float *logits, int64_t n) {
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

/* Nine digits are all of a float: programs that print the same computed the same bits. */
static void print_logits(const float *logits, int64_t n) {
    for (int64_t i = 0; i < n; i++) printf("%.9g\n", (double)logits[i]);
}

sheaf_status gpt2_generate(const gpt2 *m, gpt2_eval eval, void *ctx) {
    float *logits = calloc((size_t)m->n_vocab + 1, sizeof *logits);
    if (!logits) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for logits");
    sheaf_status s = SHEAF_OK;
    int n_past = 0;
    for (int n; n_past < m->n_prompt && !s; n_past += n) {
        n = m->n_prompt - n_past < GPT2_BATCH ? m->n_prompt - n_past : GPT2_BATCH;
        s = eval(ctx, m->prompt + n_past, n, n_past, logits);
    }
    if (!s && m->n_new == 0) print_logits(logits, m->n_vocab);
    for (int i = 0; i < m->n_new && !s; i++) {
        int32_t id = best_of(logits, m->n_vocab);
        printf("%d %.9g\n", id, (double)logits[id]);
        if (i + 1 < m->n_new) s = eval(ctx, &id, 1, n_past++, logits);
    }
    free(logits);
    return s;
}
