/* Mixes: which type a tensor gets when the user says Q4_K_M. A table of rules; the first that fits decides, and what
 * none fits keeps the mix's own type. */
#include "models/quantize_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The numbers are general.file_type's. */
enum {
    MIX_F32 = 0,
    MIX_F16 = 1,
    MIX_Q4_0 = 2,
    MIX_Q4_1 = 3,
    MIX_Q8_0 = 7,
    MIX_Q5_0 = 8,
    MIX_Q5_1 = 9,
    MIX_Q2_K = 10,
    MIX_Q3_K_S = 11,
    MIX_Q3_K_M = 12,
    MIX_Q3_K_L = 13,
    MIX_Q4_K_S = 14,
    MIX_Q4_K_M = 15,
    MIX_Q5_K_S = 16,
    MIX_Q5_K_M = 17,
    MIX_Q6_K = 18,
    MIX_Q2_K_S = 21,
    MIX_IQ4_NL = 25,
    MIX_IQ4_XS = 30,
    MIX_BF16 = 32,
    MIX_MXFP4 = 38,
};

static const char mxfp4_moe[] = "MXFP4_MOE";

static const sheaf_mix mixes[] = {
    {"F32", MIX_F32, SHEAF_F32, "32 bits"},
    {"F16", MIX_F16, SHEAF_F16, "16 bits, range of halves"},
    {"BF16", MIX_BF16, SHEAF_BF16, "16 bits, range of 32"},
    {"Q8_0", MIX_Q8_0, SHEAF_Q8_0, "8.5 bits a weight"},
    {"Q6_K", MIX_Q6_K, SHEAF_Q6_K, "6.6 bits"},
    {"Q5_K_M", MIX_Q5_K_M, SHEAF_Q5_K, "5.5 bits, some matrices 6.6"},
    {"Q5_K_S", MIX_Q5_K_S, SHEAF_Q5_K, "5.5 bits"},
    {"Q5_K", MIX_Q5_K_M, SHEAF_Q5_K, "Q5_K_M"},
    {"Q5_1", MIX_Q5_1, SHEAF_Q5_1, "6 bits, blocks of 32"},
    {"Q5_0", MIX_Q5_0, SHEAF_Q5_0, "5.5 bits, blocks of 32"},
    {"Q4_K_M", MIX_Q4_K_M, SHEAF_Q4_K, "4.5 bits, some matrices 6.6: a good default"},
    {"Q4_K_S", MIX_Q4_K_S, SHEAF_Q4_K, "4.5 bits, the first layers 5.5"},
    {"Q4_K", MIX_Q4_K_M, SHEAF_Q4_K, "Q4_K_M"},
    {"IQ4_NL", MIX_IQ4_NL, SHEAF_IQ4_NL, "4.5 bits, uneven values, blocks of 32"},
    {"IQ4_XS", MIX_IQ4_XS, SHEAF_IQ4_XS, "4.25 bits, uneven values"},
    {"Q4_1", MIX_Q4_1, SHEAF_Q4_1, "5 bits, blocks of 32"},
    {"Q4_0", MIX_Q4_0, SHEAF_Q4_0, "4.5 bits, blocks of 32"},
    {mxfp4_moe, MIX_MXFP4, SHEAF_MXFP4, "experts 4.25 bits, the rest 8.5"},
    {"MXFP4", MIX_MXFP4, SHEAF_MXFP4, "4.25 bits for every matrix but the output"},
    {"Q3_K_L", MIX_Q3_K_L, SHEAF_Q3_K, "3.4 bits, some matrices 5.5"},
    {"Q3_K_M", MIX_Q3_K_M, SHEAF_Q3_K, "3.4 bits, some matrices 4.5 or 5.5"},
    {"Q3_K_S", MIX_Q3_K_S, SHEAF_Q3_K, "3.4 bits"},
    {"Q3_K", MIX_Q3_K_M, SHEAF_Q3_K, "Q3_K_M"},
    {"Q2_K", MIX_Q2_K, SHEAF_Q2_K, "2.6 bits, some matrices 3.4 or 4.5"},
    {"Q2_K_S", MIX_Q2_K_S, SHEAF_Q2_K, "2.6 bits; needs --imatrix"},
};
enum { N_MIXES = sizeof mixes / sizeof *mixes };

const sheaf_mix *sheaf_mix_at(int i) { return i >= 0 && i < N_MIXES ? &mixes[i] : NULL; }

const sheaf_mix *sheaf_mix_find(const char *name) {
    char *end;
    long number = strtol(name, &end, 10);
    for (int i = 0; i < N_MIXES; i++) {
        if (strcasecmp(mixes[i].name, name) == 0) return &mixes[i];
        if (end != name && !*end && number == (long)mixes[i].file_type) return &mixes[i];
    }
    return NULL;
}

/* --- what a tensor is --- */

typedef enum role { OTHER, OUTPUT, EMBEDDING, VALUE, KEY, ATTENTION_OUT, DOWN } role;

/* The first piece that is in the name decides. */
static const struct {
    const char *piece;
    role role;
} roles[] = {
    {"attn_qkv.weight", VALUE}, {"attn_kv_b.weight", VALUE}, {"attn_v.weight", VALUE},
    {"attn_k.weight", KEY},     {"attn_q.weight", OTHER},    {"attn_output.weight", ATTENTION_OUT},
    {"ffn_up", OTHER},          {"ffn_gate", OTHER},         {"ffn_down", DOWN},
};

static role role_of(const char *name) {
    if (!strcmp(name, "output.weight")) return OUTPUT;
    if (!strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight")) return EMBEDDING;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strstr(name, roles[i].piece)) return roles[i].role;
    return OTHER;
}

bool mix_is_value(const char *name) { return role_of(name) == VALUE; }

/* Matrices that stay as they are: small, or hurt by rounding more than their size is worth. */
static const char *const kept[] = {
    /* norms, routers, tables of ids */
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    /* small projections of particular families */
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    /* RWKV */
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    /* positions, and parts of image and sound models */
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
};

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

bool mix_allows(const char *name, const sheaf_gguf_tensor *t) {
    bool matrix = t->ne[1] > 1 || t->ne[2] > 1 || t->ne[3] > 1;
    bool number = t->type < SHEAF_I8 || t->type > SHEAF_F64; /* ids and sums are no weights */
    if (!matrix || !number || !ends_with(name, "weight")) return false;
    if (!strcmp(name, "position_embd.weight") || !strcmp(name, "token_types.weight")) return false;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strstr(name, kept[i])) return false;
    return true;
}

/* --- rules --- */

typedef enum when {
    ALWAYS,
    FIRST_2, /* of the value-like tensors */
    FIRST_4,
    FIRST_8TH, /* of the layers */
    FIRST_16TH,
    MORE_BITS, /* the first and last eighth, and every third between */
    SHARED_KV, /* four query heads or more on one KV head: that tensor is small */
    PLAIN_FIRST_8TH,
    WEIGHTED_FIRST_8TH, /* without, with an imatrix */
    FALCON,
    FALCON_FIRST_16TH,
    FALCON_MORE_BITS,
    EIGHT_EXPERTS,
} when;

static const struct {
    uint32_t mix;
    role role;
    when when;
    sheaf_type type;
} rules[] = {
    {MIX_Q2_K, VALUE, SHARED_KV, SHEAF_Q4_K},
    {MIX_Q2_K, VALUE, ALWAYS, SHEAF_Q3_K},
    {MIX_Q2_K_S, VALUE, SHARED_KV, SHEAF_Q4_K},
    {MIX_Q3_K_M, VALUE, FIRST_2, SHEAF_Q5_K},
    {MIX_Q3_K_M, VALUE, ALWAYS, SHEAF_Q4_K},
    {MIX_Q3_K_L, VALUE, ALWAYS, SHEAF_Q5_K},
    {MIX_IQ4_NL, VALUE, SHARED_KV, SHEAF_Q5_K},
    {MIX_IQ4_XS, VALUE, SHARED_KV, SHEAF_Q5_K},
    {MIX_Q4_K_M, VALUE, MORE_BITS, SHEAF_Q6_K},
    {MIX_Q5_K_M, VALUE, MORE_BITS, SHEAF_Q6_K},
    {MIX_Q4_K_S, VALUE, FIRST_4, SHEAF_Q5_K},

    {MIX_Q2_K, DOWN, ALWAYS, SHEAF_Q3_K},
    {MIX_Q2_K_S, DOWN, FIRST_8TH, SHEAF_Q4_K},
    {MIX_Q3_K_M, DOWN, FIRST_16TH, SHEAF_Q5_K},
    {MIX_Q3_K_M, DOWN, FALCON_MORE_BITS, SHEAF_Q4_K},
    {MIX_Q3_K_M, DOWN, FALCON, SHEAF_Q3_K},
    {MIX_Q3_K_M, DOWN, ALWAYS, SHEAF_Q4_K},
    {MIX_Q3_K_L, DOWN, FALCON, SHEAF_Q4_K},
    {MIX_Q3_K_L, DOWN, ALWAYS, SHEAF_Q5_K},
    {MIX_Q4_K_M, DOWN, FALCON_FIRST_16TH, SHEAF_Q6_K},
    {MIX_Q4_K_M, DOWN, FALCON_MORE_BITS, SHEAF_Q5_K},
    {MIX_Q4_K_M, DOWN, FALCON, SHEAF_Q4_K},
    {MIX_Q4_K_M, DOWN, MORE_BITS, SHEAF_Q6_K},
    {MIX_Q5_K_M, DOWN, MORE_BITS, SHEAF_Q6_K},
    {MIX_Q4_K_S, DOWN, FALCON, SHEAF_Q4_K},
    {MIX_Q4_K_S, DOWN, FIRST_8TH, SHEAF_Q5_K},
    {MIX_IQ4_NL, DOWN, PLAIN_FIRST_8TH, SHEAF_Q5_K},
    {MIX_IQ4_XS, DOWN, PLAIN_FIRST_8TH, SHEAF_Q5_K},
    /* a scale fitted by importance can lose the few large values of the first layers; a minimum keeps them */
    {MIX_Q4_0, DOWN, WEIGHTED_FIRST_8TH, SHEAF_Q4_1},
    {MIX_Q5_0, DOWN, WEIGHTED_FIRST_8TH, SHEAF_Q5_1},

    {MIX_Q3_K_L, ATTENTION_OUT, FALCON, SHEAF_Q4_K},
    {MIX_Q2_K, ATTENTION_OUT, FALCON, SHEAF_Q2_K},
    {MIX_Q3_K_S, ATTENTION_OUT, FALCON, SHEAF_Q3_K},
    {MIX_Q3_K_M, ATTENTION_OUT, FALCON, SHEAF_Q3_K},
    {MIX_Q4_K_S, ATTENTION_OUT, FALCON, SHEAF_Q4_K},
    {MIX_Q4_K_M, ATTENTION_OUT, FALCON, SHEAF_Q4_K},
    {MIX_IQ4_NL, ATTENTION_OUT, FALCON, SHEAF_IQ4_NL},
    {MIX_IQ4_XS, ATTENTION_OUT, FALCON, SHEAF_IQ4_XS},
    /* with experts, attention is a small part of the file */
    {MIX_Q2_K, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_Q3_K_S, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_Q3_K_M, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_Q3_K_L, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q3_K},
    {MIX_Q4_K_S, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_Q4_K_M, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_IQ4_NL, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_IQ4_XS, ATTENTION_OUT, EIGHT_EXPERTS, SHEAF_Q5_K},
    {MIX_Q2_K, ATTENTION_OUT, ALWAYS, SHEAF_Q3_K},
    {MIX_Q3_K_M, ATTENTION_OUT, ALWAYS, SHEAF_Q4_K},
    {MIX_Q3_K_L, ATTENTION_OUT, ALWAYS, SHEAF_Q5_K},
};

static bool more_bits(int64_t i, int64_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

/* `i` of `n`: the number of the tensor among those of its role. */
static bool holds(when w, const mix_model *m, int64_t i, int64_t n) {
    switch (w) {
    case ALWAYS: return true;
    case FIRST_2: return i < 2;
    case FIRST_4: return i < 4;
    case FIRST_8TH: return i < n / 8;
    case FIRST_16TH: return i < n / 16;
    case MORE_BITS: return more_bits(i, n);
    case SHARED_KV: return m->gqa >= 4;
    case PLAIN_FIRST_8TH: return !m->has_imatrix && i < n / 8;
    case WEIGHTED_FIRST_8TH: return m->has_imatrix && i < n / 8;
    case FALCON: return m->falcon;
    case FALCON_FIRST_16TH: return m->falcon && i < n / 16;
    case FALCON_MORE_BITS: return m->falcon && more_bits(i, n);
    case EIGHT_EXPERTS: return m->n_expert == 8;
    }
    return false;
}

static sheaf_type by_rule(const mix_state *st, role r, int64_t i, int64_t n) {
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
        if (rules[k].mix != st->mix->file_type || rules[k].role != r) continue;
        if (holds(rules[k].when, &st->model, i, n)) return rules[k].type;
    }
    return st->mix->type;
}

/* The matrix that makes logits: errors there are seen at once. */
static sheaf_type output_type(const mix_state *st, const sheaf_gguf_tensor *t) {
    sheaf_type type = st->mix->type;
    bool whole = t->ne[0] % sheaf_type_block(type) == 0;
    if (st->mix->file_type == MIX_MXFP4 || st->model.falcon || !whole || type == SHEAF_Q8_0) return SHEAF_Q8_0;
    return SHEAF_Q6_K;
}

/* Eight experts share one small attention: eight bits there cost little. */
static sheaf_type value_type(mix_state *st) {
    sheaf_type type = by_rule(st, VALUE, st->i_value, st->model.n_value);
    st->i_value++;
    if (st->model.n_expert == 8) return SHEAF_Q8_0;
    return st->model.large && (type == SHEAF_Q3_K || type == SHEAF_Q4_K) ? SHEAF_Q5_K : type;
}

sheaf_type mix_type(mix_state *st, const char *name, int layer, const sheaf_gguf_tensor *t) {
    role r = role_of(name);
    if (r == OUTPUT || (r == EMBEDDING && st->model.tied)) return output_type(st, t);
    if (st->mix->file_type == MIX_MXFP4) return t->ne[2] > 1 || st->mix->name != mxfp4_moe ? SHEAF_MXFP4 : SHEAF_Q8_0;
    if (r == VALUE) return value_type(st);
    if (r == KEY && st->model.n_expert == 8) return SHEAF_Q8_0;
    if (r == DOWN) {
        /* experts of a layer may be many tensors, so that counting them would not give the layer */
        int64_t i = st->model.n_expert > 1 && layer >= 0 ? layer : st->i_down;
        st->i_down++;
        return by_rule(st, r, i, st->model.n_layer);
    }
    return by_rule(st, r, 0, 1);
}
