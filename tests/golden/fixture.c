/* Writes the random models of cases.txt. Contract in fixture.h.
 *
 * Numbers come from splitmix64 over (case, tensor, index), so any element can be made without the
 * ones before it. Every scale is a power of two: matrices spread by about 1 / sqrt(row), so that
 * activations keep their size through the layers, and no rounding differs between compilers.
 *
 * Quantized blocks are random bytes with fixed scales, not quantized floats: that reaches every
 * bit pattern of the packed parts, and needs no quantizer that could be wrong in the same way as
 * the code under test.
 *
 * As a program: fixture CASES NAME OUT writes one model, fixture CASES lists the names.
 */
#include "fixture.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 32, CONTEXT = 256 };
enum { KV_U32 = 4, KV_F32 = 6, KV_BOOL = 7, KV_STRING = 8, KV_ARRAY = 9, KV_I32 = 5 };

/* Block layouts. Every scale is 2^(shift - e) where 2^-e is the spread the matrix wants. */
typedef struct block_type {
    const char *name;
    uint32_t id;       /* in GGUF */
    int elems, bytes;  /* one block */
    int d_at, d_shift; /* half float: the scale */
    int m_at, m_shift; /* half float: the minimum, m_at < 0 if there is none */
    int m_sign;        /* added (-1: stored negative) or subtracted (+1) by the format */
} block_type;

static const block_type types[] = {
    {"f32", 0, 1, 4, -1, 0, -1, 0, 0},         {"f16", 1, 1, 2, -1, 0, -1, 0, 0},
    {"bf16", 30, 1, 2, -1, 0, -1, 0, 0},       {"q4_0", 2, 32, 18, 0, -2, -1, 0, 0},
    {"q4_1", 3, 32, 20, 0, -2, 2, 1, -1},      {"q5_0", 6, 32, 22, 0, -3, -1, 0, 0},
    {"q5_1", 7, 32, 24, 0, -3, 2, 1, -1},      {"q8_0", 8, 32, 34, 0, -6, -1, 0, 0},
    {"q4_K", 12, 256, 144, 0, -8, 2, -5, 1},   {"q5_K", 13, 256, 176, 0, -9, 2, -5, 1},
    {"q6_K", 14, 256, 210, 208, -7, -1, 0, 0}, {"mxfp4", 39, 32, 17, 0, -1, -1, 0, 0}, /* its scale is a byte */
};

typedef struct tensor {
    char name[64];
    const block_type *type;
    uint64_t cols, rows; /* rows 0: a vector */
    uint64_t depth;      /* matrices of a mixture of experts, 0: one */
    int e;               /* spread 2^-e */
    enum { MATRIX, NORM, BIAS, FACTORS, LONG_FACTORS, SHORT_FACTORS } kind;
} tensor;

/* ------------------------------------------------------------------------------- numbers */

static uint64_t hash_text(uint64_t h, const char *s) {
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3ull;
    return h;
}

static uint64_t draw(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1), 24 bits: exact in a float. */
static float uniform(uint64_t r) { return (float)((int32_t)(r >> 40) - (1 << 23)) * 0x1p-23f; }

/* The half float 2^k; below 2^-14 halves are subnormal. */
static uint16_t half_power(int k) { return (uint16_t)(k >= -14 ? (k + 15) << 10 : 1 << (k + 24)); }

static void put16(unsigned char *at, uint16_t v) {
    at[0] = (unsigned char)v;
    at[1] = (unsigned char)(v >> 8);
}

/* The smallest e with 4^e >= n, so that 2^-e is just under 1 / sqrt(n). */
static int spread_for(int n) {
    int e = 0;
    while (1ll << (2 * e) < n) e++;
    return e;
}

/* --------------------------------------------------------------------------------- writer */

typedef struct writer {
    FILE *f;
    uint64_t n_kv, at;
} writer;

/* Errors are kept by the stream and looked at once, when the file is closed. */
static void put(writer *w, const void *data, size_t n) {
    fwrite(data, 1, n, w->f);
    w->at += n;
}

static void put_int(writer *w, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++, v >>= 8) {
        unsigned char b = (unsigned char)v;
        put(w, &b, 1);
    }
}

static void put_f32(writer *w, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    put_int(w, u, 4);
}

static void put_text(writer *w, const char *s) {
    put_int(w, strlen(s), 8);
    put(w, s, strlen(s));
}

static void pad(writer *w) {
    while (w->at % ALIGN) put_int(w, 0, 1);
}

static void key(writer *w, const char *name, int type) {
    w->n_kv++;
    put_text(w, name);
    put_int(w, (uint64_t)type, 4);
}

static void kv_u32(writer *w, const char *name, int v) {
    key(w, name, KV_U32);
    put_int(w, (uint32_t)v, 4);
}

static void kv_bool(writer *w, const char *name, int v) {
    key(w, name, KV_BOOL);
    put_int(w, (uint64_t)v, 1);
}

static void kv_f32(writer *w, const char *name, float v) {
    key(w, name, KV_F32);
    put_f32(w, v);
}

static void kv_text(writer *w, const char *name, const char *v) {
    key(w, name, KV_STRING);
    put_text(w, v);
}

static void kv_array(writer *w, const char *name, int type, int n) {
    key(w, name, KV_ARRAY);
    put_int(w, (uint64_t)type, 4);
    put_int(w, (uint64_t)n, 8);
}

/* ------------------------------------------------------------------------------ vocabulary */

/* GPT-2's printable stand-in for byte b, as UTF-8. */
static void byte_piece(int b, char out[3]) {
    int cp = b;
    if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)) {
        cp = b < 33 ? 256 + b : b < 161 ? 256 + 33 + (b - 127) : 256 + 67;
    }
    if (cp < 128) {
        out[0] = (char)cp;
        out[1] = 0;
    } else {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 63));
        out[2] = 0;
    }
}

/* Id 0 ends a text, 1-256 are the bytes, then pairs of letters a-p, each with its merge; last the names that llama.cpp
 * looks for in a vocabulary of phi3. */
static void vocabulary(writer *w, int n) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    enum { SPECIAL = sizeof special / sizeof *special };
    char piece[8];
    int pairs = n - 257 - SPECIAL;
    kv_text(w, "tokenizer.ggml.model", "gpt2");
    kv_text(w, "tokenizer.ggml.pre", "gpt-2");
    kv_array(w, "tokenizer.ggml.tokens", KV_STRING, n);
    put_text(w, "<|endoftext|>");
    for (int b = 0; b < 256; b++) {
        byte_piece(b, piece);
        put_text(w, piece);
    }
    for (int i = 0; i < pairs; i++) {
        snprintf(piece, sizeof piece, "%c%c", 'a' + i / 16, 'a' + i % 16);
        put_text(w, piece);
    }
    for (int i = 0; i < SPECIAL; i++) put_text(w, special[i]);
    kv_array(w, "tokenizer.ggml.token_type", KV_I32, n);
    put_int(w, 3, 4);
    for (int i = 1; i < n; i++) put_int(w, i < n - SPECIAL ? 1 : 3, 4);
    kv_array(w, "tokenizer.ggml.merges", KV_STRING, pairs);
    for (int i = 0; i < pairs; i++) {
        snprintf(piece, sizeof piece, "%c %c", 'a' + i / 16, 'a' + i % 16);
        put_text(w, piece);
    }
    kv_u32(w, "tokenizer.ggml.bos_token_id", 0);
    kv_u32(w, "tokenizer.ggml.eos_token_id", 0);
    key(w, "tokenizer.ggml.add_bos_token", KV_BOOL);
    put_int(w, 0, 1);
}

/* ------------------------------------------------------------------------------- families */

/* Which tensors a family has, and what its metadata says beyond the shapes. */
typedef struct family {
    const char *name;                     /* general.architecture */
    enum { BEFORE = 1, AFTER = 2 } norms; /* of attention and feed-forward */
    enum { NO_QK_NORM, QK_NORM_HEAD, QK_NORM_ROW } qk_norm;
    enum { BIAS_QKV, BIAS_ALL } biases; /* where cases.txt asks for some */
    int fused_qkv, fused_up;            /* attn_qkv; ffn_up holds gate and up */
    int plain_ff;                       /* no gate */
    int layer_norm;                     /* norms subtract the mean and have a bias; positions are learned */
    int window;                         /* positions of a sliding window, 0: none */
    float attn_cap, logit_cap;
    float freq_base;
    const char *arch; /* general.architecture, if it is not the name */
    struct {
        int n, used, shared, dense; /* experts, of a token, that all share, leading layers without */
        int own_width;              /* the file says their width; dense layers are twice as wide */
        int gating, norm;           /* GGUF's number, if the file says it */
        int groups, groups_used;    /* experts are chosen from the best groups */
        int choice_bias;            /* of the choice alone */
        float scale;
        int biases; /* of the router, of every expert; sinks in attention, its norm is called otherwise */
    } experts;
    int latent;  /* keys and values are made from latents of half the width, queries too; heads are rotated in part */
    int whole_q; /* not queries */
} family;

static const family families[] = {
    {"llama", BEFORE, NO_QK_NORM, BIAS_ALL, .freq_base = 1e4f},
    {"qwen2", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e6f},
    {"qwen3", BEFORE, QK_NORM_HEAD, BIAS_QKV, .freq_base = 1e6f},
    {"gemma2", BEFORE | AFTER, NO_QK_NORM, BIAS_QKV, .window = 9, .attn_cap = 5, .logit_cap = 30, .freq_base = 1e4f},
    {"gemma3", BEFORE | AFTER, QK_NORM_HEAD, BIAS_QKV, .window = 9, .freq_base = 1e6f},
    {"olmo2", AFTER, QK_NORM_ROW, BIAS_QKV, .freq_base = 5e5f},
    {"olmo3", AFTER, QK_NORM_ROW, BIAS_QKV, .window = 9, .freq_base = 5e5f, .arch = "olmo2"},
    {"phi3", BEFORE, NO_QK_NORM, BIAS_QKV, .fused_qkv = 1, .fused_up = 1, .window = 20, .freq_base = 1e4f},
    {"gpt2", BEFORE, NO_QK_NORM, BIAS_ALL, .fused_qkv = 1, .plain_ff = 1, .layer_norm = 1},
    {"mixtral", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e4f, .arch = "llama", .experts = {5, 2}},
    {"qwen3moe", BEFORE, QK_NORM_HEAD, BIAS_QKV, .freq_base = 1e6f, .experts = {9, 4, .own_width = 1}},
    {"olmoe", BEFORE, QK_NORM_ROW, BIAS_QKV, .freq_base = 1e4f, .experts = {7, 3}},
    {"gpt-oss", BEFORE, NO_QK_NORM, BIAS_ALL, .window = 9, .freq_base = 1e4f,
     .experts = {6, 2, .own_width = 1, .biases = 1}},
    {"deepseek2", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e4f, .latent = 1,
     .experts = {6, 2, .shared = 2, .dense = 1, .own_width = 1, .gating = 1, .scale = 1.5f}},
    {"deepseek2-lite", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e4f, .latent = 1, .whole_q = 1, .arch = "deepseek2",
     .experts = {6, 2, .shared = 2, .dense = 1, .own_width = 1, .gating = 1}},
    {"deepseek2-group", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e4f, .latent = 1, .arch = "deepseek2",
     .experts = {12, 3, .shared = 1, .dense = 1, .own_width = 1, .gating = 1, .groups = 4, .groups_used = 2,
                 .scale = 1.5f}},
    {"deepseek3", BEFORE, NO_QK_NORM, BIAS_QKV, .freq_base = 1e4f, .latent = 1, .arch = "deepseek2",
     .experts = {16, 4, .shared = 1, .dense = 1, .own_width = 1, .gating = 2, .norm = 1, .groups = 4, .groups_used = 2,
                 .choice_bias = 1, .scale = 2.5f}},
};

static const family *family_named(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].name, name)) return &families[i];
    return NULL;
}

/* ------------------------------------------------------------------------------- the model */

/* What the next keys begin with. */
static const char *prefixed(const fixture_case *c, const char *suffix) {
    static char text[96];
    const family *f = family_named(c->family);
    snprintf(text, sizeof text, "%s.%s", f->arch ? f->arch : f->name, suffix);
    return text;
}

static void family_u32(writer *w, const fixture_case *c, const char *suffix, int v) {
    kv_u32(w, prefixed(c, suffix), v);
}

static void family_f32(writer *w, const fixture_case *c, const char *suffix, float v) {
    kv_f32(w, prefixed(c, suffix), v);
}

/* LongRoPE: the context the model was first trained for. Short factors serve up to it, long ones beyond. */
static int long_rope_context(const fixture_case *c) { return strcmp(c->rope, "long") ? 128 : 16; }

static void positions(writer *w, const fixture_case *c, const family *f) {
    family_u32(w, c, "rope.dimension_count", f->latent ? c->head_size / 2 : c->head_size);
    family_f32(w, c, "rope.freq_base", f->freq_base);
    if (!strcmp(c->rope, "linear") || !strcmp(c->rope, "yarn")) {
        kv_text(w, prefixed(c, "rope.scaling.type"), c->rope);
        family_f32(w, c, "rope.scaling.factor", 4.0f);
        family_u32(w, c, "rope.scaling.original_context_length", 64);
    }
    if (!strcmp(c->rope, "short") || !strcmp(c->rope, "long")) {
        double context = long_rope_context(c);
        family_u32(w, c, "rope.scaling.original_context_length", (int)context);
        family_f32(w, c, "rope.scaling.attn_factor", (float)sqrt(1 + log(CONTEXT / context) / log(context)));
    }
}

static void expert_keys(writer *w, const fixture_case *c, const family *f) {
    family_u32(w, c, "expert_count", f->experts.n);
    family_u32(w, c, "expert_used_count", f->experts.used);
    if (f->experts.own_width) family_u32(w, c, "expert_feed_forward_length", c->feed_forward);
    if (f->experts.shared) family_u32(w, c, "expert_shared_count", f->experts.shared);
    if (f->experts.dense) family_u32(w, c, "leading_dense_block_count", f->experts.dense);
    if (f->experts.gating) family_u32(w, c, "expert_gating_func", f->experts.gating);
    if (f->experts.norm) kv_bool(w, prefixed(c, "expert_weights_norm"), 1);
    if (f->experts.groups) family_u32(w, c, "expert_group_count", f->experts.groups);
    if (f->experts.groups) family_u32(w, c, "expert_group_used_count", f->experts.groups_used);
    if (f->experts.scale > 0) family_f32(w, c, "expert_weights_scale", f->experts.scale);
}

/* Latents are half as wide as the model; a head has a part that is rotated, half as long as the rest. */
static void latent_keys(writer *w, const fixture_case *c, const family *f) {
    if (!f->whole_q) family_u32(w, c, "attention.q_lora_rank", c->width / 2);
    family_u32(w, c, "attention.kv_lora_rank", c->width / 2);
    family_u32(w, c, "attention.key_length_mla", c->head_size + c->head_size / 2);
    family_u32(w, c, "attention.value_length_mla", c->head_size);
}

static void metadata(writer *w, const fixture_case *c) {
    const family *f = family_named(c->family);
    int key = f->latent ? c->width / 2 + c->head_size / 2 : c->head_size;
    kv_text(w, "general.architecture", f->arch ? f->arch : f->name);
    kv_text(w, "general.name", c->name);
    family_u32(w, c, "vocab_size", c->vocab);
    family_u32(w, c, "context_length", CONTEXT);
    family_u32(w, c, "embedding_length", c->width);
    family_u32(w, c, "block_count", c->layers);
    family_u32(w, c, "feed_forward_length", c->feed_forward * (f->experts.own_width ? 2 : 1));
    family_u32(w, c, "attention.head_count", c->heads);
    family_u32(w, c, "attention.head_count_kv", c->kv_heads);
    family_u32(w, c, "attention.key_length", key);
    family_u32(w, c, "attention.value_length", f->latent ? c->width / 2 : c->head_size);
    family_f32(w, c, f->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5f);
    if (f->window) family_u32(w, c, "attention.sliding_window", f->window);
    if (f->attn_cap > 0) family_f32(w, c, "attn_logit_softcapping", f->attn_cap);
    if (f->logit_cap > 0) family_f32(w, c, "final_logit_softcapping", f->logit_cap);
    if (!f->layer_norm) positions(w, c, f);
    if (f->experts.n) expert_keys(w, c, f);
    if (f->latent) latent_keys(w, c, f);
    vocabulary(w, c->vocab);
}

static const block_type *type_named(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) return &types[i];
    return NULL;
}

static tensor *add(tensor *t, int kind, int layer, const char *name, int cols, int rows) {
    *t = (tensor){.type = &types[0], .cols = (uint64_t)cols, .rows = (uint64_t)rows, .e = 0, .kind = kind};
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    return t;
}

/* A norm's weight, and its bias if the family has one. */
static tensor *add_norm(const family *f, tensor *t, int layer, const char *name, int length) {
    char full[48];
    snprintf(full, sizeof full, "%s.weight", name);
    add(t++, NORM, layer, full, length, 0);
    if (!f->layer_norm) return t;
    snprintf(full, sizeof full, "%s.bias", name);
    add(t++, BIAS, layer, full, length, 0);
    return t;
}

static tensor *layer_norms(const fixture_case *c, const family *f, int layer, tensor *t) {
    int whole = f->qk_norm == QK_NORM_ROW;
    if (f->norms & BEFORE) {
        t = add_norm(f, t, layer, "attn_norm", c->width);
        t = add_norm(f, t, layer, f->experts.biases ? "post_attention_norm" : "ffn_norm", c->width);
    }
    if (f->latent) {
        if (!f->whole_q) t = add_norm(f, t, layer, "attn_q_a_norm", c->width / 2);
        t = add_norm(f, t, layer, "attn_kv_a_norm", c->width / 2);
    }
    if (f->norms & AFTER) {
        t = add_norm(f, t, layer, "post_attention_norm", c->width);
        t = add_norm(f, t, layer, "post_ffw_norm", c->width);
    }
    if (f->qk_norm == NO_QK_NORM) return t;
    t = add_norm(f, t, layer, "attn_q_norm", c->head_size * (whole ? c->heads : 1));
    return add_norm(f, t, layer, "attn_k_norm", c->head_size * (whole ? c->kv_heads : 1));
}

/* A matrix of a layer, `depth` of them if that is not 0, and its bias if it has one. */
typedef struct matrix {
    const char *name;
    int there, cols, rows, bias, depth;
    const block_type *type;
} matrix;

static tensor *add_matrix(tensor *t, int layer, const matrix *m) {
    char name[32];
    if (!m->there) return t;
    snprintf(name, sizeof name, "%s.weight", m->name);
    add(t, MATRIX, layer, name, m->cols, m->rows);
    t->type = m->type;
    t->depth = (uint64_t)m->depth;
    t++->e = spread_for(m->cols);
    if (!m->bias) return t;
    snprintf(name, sizeof name, "%s.bias", m->name);
    add(t++, BIAS, layer, name, m->rows, m->depth);
    return t;
}

/* Lists the tensors of a layer from t on; returns the end. */
static tensor *layer_tensors(const fixture_case *c, int layer, tensor *t) {
    const family *f = family_named(c->family);
    const block_type *main_type = type_named(c->type);
    const block_type *alt = strcmp(c->alt, "-") ? type_named(c->alt) : main_type;
    int q = c->heads * c->head_size, kv = c->kv_heads * c->head_size, ff = c->feed_forward;
    int apart = !f->fused_qkv && !f->latent, lora = c->width / 2, rope = c->head_size / 2;
    int latent_q = c->heads * (c->head_size + rope);
    int n = layer < f->experts.dense ? 0 : f->experts.n, dense = n == 0, shared = dense ? 0 : f->experts.shared;
    int wide = f->experts.own_width ? 2 * ff : ff; /* of a dense layer */
    int of_qkv = c->bias, of_all = c->bias && f->biases == BIAS_ALL, of_experts = f->experts.biases;
    const matrix matrices[] = {
        {"attn_qkv", f->fused_qkv, c->width, q + 2 * kv, of_qkv, 0, main_type},
        {"attn_q", apart, c->width, q, of_qkv, 0, main_type},
        {"attn_k", apart, c->width, kv, of_qkv, 0, main_type},
        {"attn_v", apart, c->width, kv, of_qkv, 0, alt},
        {"attn_q", f->latent && f->whole_q, c->width, latent_q, 0, 0, main_type},
        {"attn_q_a", f->latent && !f->whole_q, c->width, lora, 0, 0, main_type},
        {"attn_q_b", f->latent && !f->whole_q, lora, latent_q, 0, 0, main_type},
        {"attn_kv_a_mqa", f->latent, c->width, lora + rope, 0, 0, main_type},
        {"attn_k_b", f->latent, c->head_size, lora, 0, c->heads, main_type},
        {"attn_v_b", f->latent, lora, c->head_size, 0, c->heads, alt},
        {"attn_output", 1, q, c->width, of_all, 0, main_type},
        {"ffn_gate", dense && !f->fused_up && !f->plain_ff, c->width, wide, of_all, 0, main_type},
        {"ffn_up", dense, c->width, f->fused_up ? 2 * wide : wide, of_all, 0, main_type},
        {"ffn_down", dense, wide, c->width, of_all, 0, alt},
        {"ffn_gate_inp", n, c->width, n, of_experts, 0, &types[0]},
        {"ffn_gate_exps", n, c->width, ff, of_experts, n, main_type},
        {"ffn_up_exps", n, c->width, ff, of_experts, n, main_type},
        {"ffn_down_exps", n, ff, c->width, of_experts, n, alt},
        {"ffn_gate_shexp", shared, c->width, shared * ff, 0, 0, main_type},
        {"ffn_up_shexp", shared, c->width, shared * ff, 0, 0, main_type},
        {"ffn_down_shexp", shared, shared * ff, c->width, 0, 0, alt},
    };
    t = layer_norms(c, f, layer, t);
    if (f->experts.biases) add(t++, BIAS, layer, "attn_sinks.weight", c->heads, 0);
    if (n && f->experts.choice_bias) add(t++, BIAS, layer, "exp_probs_b.bias", n, 0);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) t = add_matrix(t, layer, &matrices[i]);
    return t;
}

/* All tensors in file order; returns how many. The head spreads by 4, so that the best logit
 * stands clear of the second and greedy text is the same under any order of addition. */
static int all_tensors(const fixture_case *c, tensor *list) {
    tensor *t = list;
    const family *f = family_named(c->family);
    int head = spread_for(c->width) - 2, stretched = !strcmp(c->rope, "short") || !strcmp(c->rope, "long");
    add(t, MATRIX, -1, "token_embd.weight", c->width, c->vocab);
    t->type = type_named(c->type);
    t++->e = c->tied ? head : 0;
    if (f->layer_norm) {
        add(t, MATRIX, -1, "position_embd.weight", c->width, CONTEXT);
        t++->e = c->tied ? head : 0;
    }
    if (!strcmp(c->rope, "llama3")) add(t++, FACTORS, -1, "rope_freqs.weight", c->head_size / 2, 0);
    if (stretched) add(t++, LONG_FACTORS, -1, "rope_factors_long.weight", c->head_size / 2, 0);
    if (stretched) add(t++, SHORT_FACTORS, -1, "rope_factors_short.weight", c->head_size / 2, 0);
    for (int i = 0; i < c->layers; i++) t = layer_tensors(c, i, t);
    t = add_norm(f, t, -1, "output_norm", c->width);
    if (!c->tied) {
        add(t, MATRIX, -1, "output.weight", c->width, c->vocab);
        t->type = type_named(c->type);
        t++->e = head;
    }
    return (int)(t - list);
}

static uint64_t elements(const tensor *t) { return t->cols * (t->rows ? t->rows : 1) * (t->depth ? t->depth : 1); }

static uint64_t tensor_bytes(const tensor *t) {
    return elements(t) / (uint64_t)t->type->elems * (uint64_t)t->type->bytes;
}

/* What Llama 3 divides rotary frequency i by: 1 for short waves, 8 for long, a ramp between, for a
 * model trained on 64 positions. */
static float llama3_factor(int i, int head_size) {
    double factor = 8, low = 1, high = 4, old_context = 64;
    double wave = 2 * 3.14159265358979323846 * pow(10000.0, 2.0 * i / head_size);
    if (wave < old_context / high) return 1;
    if (wave > old_context / low) return (float)factor;
    double smooth = (old_context / wave - low) / (high - low);
    return (float)(1 / ((1 - smooth) / factor + smooth));
}

static float vector_value(const tensor *t, uint64_t seed, uint64_t i) {
    switch (t->kind) {
    case NORM: return 1 + uniform(draw(seed, i)) * 0.125f;
    case BIAS: return uniform(draw(seed, i)) * 0.5f;
    case FACTORS: return llama3_factor((int)i, (int)t->cols * 2);
    case LONG_FACTORS: return 1 + 0.75f * (float)i;
    case SHORT_FACTORS: return 1 + 0.0625f * (float)i;
    default: return uniform(draw(seed, i)) * ldexpf(1, 1 - t->e);
    }
}

static void block_bytes(const tensor *t, uint64_t seed, uint64_t b, unsigned char *out) {
    const block_type *k = t->type;
    uint64_t words = ((uint64_t)k->bytes + 7) / 8;
    for (uint64_t j = 0; j < words; j++) {
        uint64_t r = draw(seed, b * words + j);
        for (int n = 0; n < 8; n++, r >>= 8) out[j * 8 + (uint64_t)n] = (unsigned char)r;
    }
    if (k->id == 8) /* no quantizer writes -128, and the sign trick of many kernels fails on it */
        for (int i = 2; i < 34; i++) out[i] += out[i] == 0x80;
    if (k->id == 14) /* scales of -16..15 */
        for (int i = 192; i < 208; i++) out[i] = (unsigned char)((out[i] & 31) - 16);
    if (k->id == 39) {
        out[0] = (unsigned char)(127 + k->d_shift - t->e);
        return;
    }
    put16(out + k->d_at, half_power(k->d_shift - t->e));
    if (k->m_at >= 0) put16(out + k->m_at, (uint16_t)(half_power(k->m_shift - t->e) | (k->m_sign < 0 ? 0x8000 : 0)));
}

static void tensor_data(writer *w, const tensor *t, uint64_t seed) {
    uint64_t n = elements(t);
    unsigned char block[216];
    for (uint64_t i = 0; i < n / (uint64_t)t->type->elems; i++) {
        uint64_t r = draw(seed, i);
        if (t->type->id == 0) {
            put_f32(w, vector_value(t, seed, i));
        } else if (t->type->id == 1) { /* +-[1, 2) 2^-e */
            put_int(w, (r & 0x83ff) | (uint64_t)(15 - t->e) << 10, 2);
        } else if (t->type->id == 30) {
            put_int(w, (r & 0x807f) | (uint64_t)(127 - t->e) << 7, 2);
        } else {
            block_bytes(t, seed, i, block);
            put(w, block, (size_t)t->type->bytes);
        }
    }
}

static void write_model(writer *w, const fixture_case *c, const tensor *list, int n) {
    put(w, "GGUF", 4);
    put_int(w, 3, 4);
    put_int(w, (uint64_t)n, 8);
    put_int(w, 0, 8); /* number of keys, set below */
    metadata(w, c);
    uint64_t offset = 0;
    for (int i = 0; i < n; i++) {
        put_text(w, list[i].name);
        put_int(w, list[i].depth ? 3 : list[i].rows ? 2 : 1, 4);
        put_int(w, list[i].cols, 8);
        if (list[i].rows) put_int(w, list[i].rows, 8);
        if (list[i].depth) put_int(w, list[i].depth, 8);
        put_int(w, list[i].type->id, 4);
        put_int(w, offset, 8);
        offset += (tensor_bytes(&list[i]) + ALIGN - 1) / ALIGN * ALIGN;
    }
    for (int i = 0; i < n; i++) {
        pad(w);
        tensor_data(w, &list[i], hash_text(hash_text(0xcbf29ce484222325ull, c->name), list[i].name));
    }
    pad(w);
    fseek(w->f, 16, SEEK_SET);
    put_int(w, w->n_kv, 8);
}

int fixture_write(const fixture_case *c, const char *path) {
    int rc = -1;
    writer w = {0};
    tensor *list = malloc(sizeof *list * (size_t)(c->layers * 32 + 12));
    if (!list) return -1;
    w.f = fopen(path, "wb");
    if (!w.f) goto no_file;
    write_model(&w, c, list, all_tensors(c, list));
    rc = ferror(w.f) ? -1 : 0;
    if (fclose(w.f)) rc = -1;
no_file:
    if (rc) perror(path);
    free(list);
    return rc;
}

/* --------------------------------------------------------------------------------- the list */

/* What would make write_model produce nonsense: an unknown type, or rows that are not whole blocks. */
static int case_is_sound(const fixture_case *c) {
    const block_type *m = type_named(c->type), *a = strcmp(c->alt, "-") ? type_named(c->alt) : m;
    return m && a && family_named(c->family) && c->layers > 0 && c->layers < 100 && c->vocab >= 258 &&
           c->vocab <= 513 && c->width % m->elems == 0 && c->width % a->elems == 0 &&
           c->heads * c->head_size % m->elems == 0 && c->feed_forward % a->elems == 0 && c->heads % c->kv_heads == 0 &&
           c->head_size % 2 == 0;
}

int fixture_next(FILE *file, fixture_case *out) {
    char line[256];
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || line[0] == '\n') continue;
        int n = sscanf(line, "%31s %15s %7s %7s %d %d %d %d %d %d %d %d %d %7s", out->name, out->family, out->type,
                       out->alt, &out->layers, &out->width, &out->heads, &out->kv_heads, &out->head_size,
                       &out->feed_forward, &out->vocab, &out->tied, &out->bias, out->rope);
        if (n == 14 && case_is_sound(out)) return 1;
        fprintf(stderr, "fixture: reading cases: bad line: %s", line);
        return -1;
    }
    return 0;
}

int fixture_find(const char *cases_path, const char *name, fixture_case *out) {
    int found;
    FILE *f = fopen(cases_path, "r");
    if (!f) {
        perror(cases_path);
        return -1;
    }
    do { found = fixture_next(f, out); } while (found == 1 && strcmp(out->name, name));
    fclose(f);
    if (found == 0) fprintf(stderr, "fixture: %s: no case called %s\n", cases_path, name);
    return found == 1 ? 0 : -1;
}

#ifdef FIXTURE_MAIN
static int list_cases(const char *path) {
    fixture_case c;
    int found = -1;
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        return 3;
    }
    while ((found = fixture_next(f, &c)) == 1) puts(c.name);
    fclose(f);
    return found ? 3 : 0;
}

int main(int argc, char **argv) {
    fixture_case c;
    if (argc == 2) return list_cases(argv[1]);
    if (argc == 4) return fixture_find(argv[1], argv[2], &c) || fixture_write(&c, argv[3]) ? 3 : 0;
    fprintf(stderr, "usage: fixture CASES [NAME OUT]\n");
    return 2;
}
#endif
