/* Hyper-parameters: GGUF keys under the architecture's prefix, defaults where the format has some, and
 * every number checked before a shape is made of it. Reads no tensor data. */
#include "models/model_internal.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 4096, KEY_BYTES = 128 };
#define MAX_LENGTH ((int64_t)1 << 30) /* of any one dimension: products of two stay below 2^63 */

static const char *full_key(const sheaf_model *m, const char *suffix, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%s.%s", m->arch->name, suffix);
    return key;
}

sheaf_status model_key_i64(const sheaf_model *m, const char *suffix, int64_t index, int64_t *out) {
    char key[KEY_BYTES];
    full_key(m, suffix, key);
    int64_t at = sheaf_gguf_find(m->gguf, key);
    if (at >= 0 && index >= 0 && sheaf_gguf_array_length(m->gguf, at) >= 0)
        return sheaf_gguf_array_i64(m->gguf, key, index, out);
    return sheaf_gguf_get_i64(m->gguf, key, out);
}

/* An integer in [lo, hi]; `fallback` when the key is absent, unless that is below lo: then it is needed. */
static sheaf_status integer(const sheaf_model *m, const char *suffix, int64_t lo, int64_t hi, int64_t fallback,
                            int32_t *out) {
    char key[KEY_BYTES];
    int64_t v = fallback;
    sheaf_status s = sheaf_gguf_get_i64(m->gguf, full_key(m, suffix, key), &v);
    if (s && !(s == SHEAF_E_NOT_FOUND && fallback >= lo)) return s;
    if (v < lo || v > hi)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s is %lld, expected %lld to %lld", m->path, key, (long long)v,
                          (long long)lo, (long long)hi);
    *out = (int32_t)v;
    return SHEAF_OK;
}

/* The same for every layer, for a key that may be an array with one entry a layer. `field` is the offset in
 * sheaf_layer_hparams; `fallback` that of the field whose value is taken when the key is absent, -1: it is needed. */
static sheaf_status per_layer(sheaf_model *m, const char *suffix, int64_t lo, int64_t hi, ptrdiff_t fallback,
                              size_t field) {
    char key[KEY_BYTES];
    int64_t at = sheaf_gguf_find(m->gguf, full_key(m, suffix, key));
    int64_t n = at < 0 ? -1 : sheaf_gguf_array_length(m->gguf, at);
    if (n >= 0 && n != m->hp.n_layer)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s has %lld entries for %d layers", m->path, key, (long long)n,
                          m->hp.n_layer);
    for (int32_t il = 0; il < m->hp.n_layer; il++) {
        char *layer = (char *)&m->layers[il];
        int64_t v = 0;
        sheaf_status s = SHEAF_OK;
        if (at < 0 && fallback >= 0) {
            v = *(int32_t *)(layer + fallback);
        } else {
            s = n >= 0 ? sheaf_gguf_array_i64(m->gguf, key, il, &v) : sheaf_gguf_get_i64(m->gguf, key, &v);
        }
        if (s) return s;
        if (v < lo || v > hi)
            return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s is %lld in layer %d, expected %lld to %lld", m->path, key,
                              (long long)v, il, (long long)lo, (long long)hi);
        *(int32_t *)(layer + field) = (int32_t)v;
    }
    return SHEAF_OK;
}
#define FIELD(name) offsetof(sheaf_layer_hparams, name)

sheaf_status model_key_f32(const sheaf_model *m, const char *suffix, float *io) {
    char key[KEY_BYTES];
    float v = *io;
    sheaf_status s = sheaf_gguf_get_f32(m->gguf, full_key(m, suffix, key), &v);
    if (s == SHEAF_E_NOT_FOUND) return SHEAF_OK;
    if (s) return s;
    if (!isfinite(v)) return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s is %g", m->path, key, (double)v);
    *io = v;
    return SHEAF_OK;
}

/* --- shapes --- */

static sheaf_status vocabulary(sheaf_model *m) {
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(m->gguf, "token_embd.weight");
    if (!t)
        return sheaf_fail(SHEAF_E_NOT_FOUND, "%s: tensor token_embd.weight not found for architecture %s", m->path,
                          m->arch->name);
    if (t->ne[1] > MAX_LENGTH)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: token_embd.weight has %lld rows", m->path, (long long)t->ne[1]);
    m->hp.n_vocab = (int32_t)t->ne[1];
    return SHEAF_OK;
}

/* Head and feed-forward counts of every layer. */
static sheaf_status layer_shapes(sheaf_model *m) {
    m->layers = sheaf_calloc((size_t)m->hp.n_layer, sizeof *m->layers);
    if (!m->layers) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %d layers", m->path, m->hp.n_layer);
    m->hp.layer = m->layers;
    sheaf_status s = per_layer(m, "feed_forward_length", 1, MAX_LENGTH, -1, FIELD(n_ff));
    if (!s) s = per_layer(m, "attention.head_count", 1, 1 << 16, -1, FIELD(n_head));
    if (!s) s = per_layer(m, "attention.head_count_kv", 1, 1 << 16, FIELD(n_head), FIELD(n_head_kv));
    for (int32_t il = 0; il < m->hp.n_layer && !s; il++)
        if (m->layers[il].n_head % m->layers[il].n_head_kv)
            s = sheaf_fail(SHEAF_E_FORMAT, "%s: layer %d: %d heads are no multiple of %d KV heads", m->path, il,
                           m->layers[il].n_head, m->layers[il].n_head_kv);
    return s;
}

/* The head size follows from the width only where the file says nothing; it is the same in all layers. */
static sheaf_status head_sizes(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    int32_t n_head = h->layer[0].n_head, most = n_head;
    int64_t head = h->n_embd % n_head == 0 ? h->n_embd / n_head : 0;
    char key[KEY_BYTES];
    if (head == 0 && sheaf_gguf_find(m->gguf, full_key(m, "attention.key_length", key)) < 0)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: a width of %d is no multiple of %d heads, and there is no %s", m->path,
                          h->n_embd, n_head, key);
    sheaf_status s = integer(m, "attention.key_length", 1, 1 << 16, head, &h->head_k);
    if (!s) s = integer(m, "attention.value_length", 1, 1 << 16, head, &h->head_v);
    if (s) return s;
    for (int32_t il = 0; il < h->n_layer; il++) most = h->layer[il].n_head > most ? h->layer[il].n_head : most;
    if ((int64_t)most * (h->head_k > h->head_v ? h->head_k : h->head_v) > MAX_LENGTH)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %d heads of %d", m->path, most, h->head_k);
    return SHEAF_OK;
}

static sheaf_status shapes(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    sheaf_status s = integer(m, "block_count", 1, MAX_LAYERS, -1, &h->n_layer);
    if (!s) s = integer(m, "context_length", 1, INT32_MAX, -1, &h->n_ctx_train);
    if (!s) s = integer(m, "embedding_length", 1, MAX_LENGTH, -1, &h->n_embd);
    if (!s) s = layer_shapes(m);
    if (!s) s = head_sizes(m);
    return s ? s : vocabulary(m);
}

/* --- rope --- */

/* freq_scale and the YaRN numbers from rope.scaling.*; Llama 3's and LongRoPE's stretching comes as tensors
 * of factors. */
static sheaf_status rope_scaling(sheaf_model *m) {
    char key[KEY_BYTES], text[64];
    sheaf_params *p = &m->hp.rope;
    sheaf_str kind = {"none", 4};
    float factor = 0, legacy = 0;
    sheaf_status s = sheaf_gguf_get_str(m->gguf, full_key(m, "rope.scaling.type", key), &kind);
    if (s && s != SHEAF_E_NOT_FOUND) return s;
    s = model_key_f32(m, "rope.scale_linear", &legacy);
    if (!s) s = model_key_f32(m, "rope.scaling.factor", &factor);
    if (!s) s = model_key_f32(m, "rope.scaling.attn_factor", &p->rope.attn_factor);
    if (s) return s;
    if (factor == 0) factor = legacy;
    if (factor < 0) return sheaf_fail(SHEAF_E_FORMAT, "%s: a rope scaling factor of %g", m->path, (double)factor);
    sheaf_str_text(kind, text, sizeof text);
    bool linear = !strcmp(text, "linear") || (legacy > 0 && !strcmp(text, "none")), yarn = !strcmp(text, "yarn");
    if (!linear && !yarn && strcmp(text, "none") != 0 && strcmp(text, "llama3") != 0 && strcmp(text, "longrope") != 0)
        return sheaf_fail(SHEAF_E_UNSUPPORTED,
                          "%s: rope scaling \"%s\" not supported (none, linear, yarn, llama3, longrope are)", m->path,
                          text);
    if ((linear || yarn) && factor > 0) p->rope.freq_scale = 1.0f / factor;
    if (!yarn) return SHEAF_OK;
    p->rope.ext_factor = 1.0f;
    s = model_key_f32(m, "rope.scaling.yarn_ext_factor", &p->rope.ext_factor);
    if (!s) s = model_key_f32(m, "rope.scaling.yarn_attn_factor", &p->rope.attn_factor);
    if (!s) s = model_key_f32(m, "rope.scaling.yarn_beta_fast", &p->rope.beta_fast);
    if (!s) s = model_key_f32(m, "rope.scaling.yarn_beta_slow", &p->rope.beta_slow);
    return s;
}

static sheaf_status rope(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    sheaf_params *p = &h->rope;
    if (m->arch->learned_positions) return SHEAF_OK;
    p->rope.kind = (int32_t)m->arch->rope;
    p->rope.freq_base = 10000.0f;
    p->rope.freq_scale = p->rope.attn_factor = 1.0f;
    p->rope.beta_fast = 32.0f;
    p->rope.beta_slow = 1.0f;
    sheaf_status s = integer(m, "rope.dimension_count", 1, h->head_k, h->head_k, &p->rope.n_dims);
    if (!s) s = integer(m, "rope.scaling.original_context_length", 1, INT32_MAX, h->n_ctx_train, &p->rope.n_ctx_orig);
    if (!s) s = model_key_f32(m, "rope.freq_base", &p->rope.freq_base);
    if (!s) s = rope_scaling(m);
    if (s) return s;
    if (p->rope.n_dims % 2)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: rope over an odd number of dimensions (%d)", m->path, p->rope.n_dims);
    if (!(p->rope.freq_base > 0))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: rope.freq_base is %g", m->path, (double)p->rope.freq_base);
    h->rope_window = *p;
    return SHEAF_OK;
}

/* --- sliding windows --- */

/* Which layers are windowed: an array with an entry a layer, or a period. */
static sheaf_status window_pattern(sheaf_model *m, int32_t period) {
    static const char suffix[] = "attention.sliding_window_pattern";
    char key[KEY_BYTES];
    int64_t at = sheaf_gguf_find(m->gguf, full_key(m, suffix, key)), n_layer = m->hp.n_layer;
    int64_t n = at < 0 ? -1 : sheaf_gguf_array_length(m->gguf, at);
    sheaf_status s = n < 0 ? integer(m, suffix, 0, MAX_LAYERS, period, &period) : SHEAF_OK;
    if (s) return s;
    if (n >= 0 && n != n_layer)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s has %lld entries for %lld layers", m->path, key, (long long)n,
                          (long long)n_layer);
    for (int64_t il = 0; il < n_layer; il++) {
        int64_t windowed = period == 0 || (il + 1) % period != 0;
        if (n >= 0) s = sheaf_gguf_array_i64(m->gguf, key, il, &windowed);
        if (s) return s;
        m->windowed[il] = windowed != 0;
        m->n_windowed += windowed != 0;
    }
    return SHEAF_OK;
}

sheaf_status model_read_window(sheaf_model *m, int32_t length, int32_t period) {
    sheaf_hparams *h = &m->hp;
    sheaf_status s = integer(m, "attention.sliding_window", 0, INT32_MAX, length, &h->window);
    if (s || h->window == 0) return s;
    m->windowed = sheaf_calloc((size_t)h->n_layer, sizeof *m->windowed);
    if (!m->windowed) return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %d layers", m->path, h->n_layer);
    s = model_key_f32(m, "rope.freq_base_swa", &h->rope_window.rope.freq_base);
    if (s) return s;
    if (!(h->rope_window.rope.freq_base > 0))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: rope.freq_base_swa is %g", m->path,
                          (double)h->rope_window.rope.freq_base);
    return window_pattern(m, period);
}

/* --- latent attention --- */

/* Scores go by the heads that latents stand for. With YaRN the file's multiplier takes the magnitude out of the
 * rotation, where a part of a head would miss it, and into the scores. */
static sheaf_status latent_scale(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    sheaf_params *p = &h->rope;
    float multiplier = 0;
    h->attn_scale = 1.0f / sqrtf((float)h->head_k_mla);
    sheaf_status s = model_key_f32(m, "rope.scaling.yarn_log_multiplier", &multiplier);
    if (s || multiplier == 0 || p->rope.ext_factor == 0) return s;
    float stretch = logf(1.0f / p->rope.freq_scale), magnitude = 1.0f + multiplier * stretch;
    p->rope.attn_factor /= 1.0f + 0.1f * stretch;
    h->attn_scale *= magnitude * magnitude;
    return SHEAF_OK;
}

sheaf_status model_read_latents(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    sheaf_status s = integer(m, "attention.q_lora_rank", 0, MAX_LENGTH, 0, &h->n_lora_q);
    if (!s) s = integer(m, "attention.kv_lora_rank", 1, MAX_LENGTH, -1, &h->n_lora_kv);
    if (!s) s = integer(m, "attention.key_length_mla", 1, 1 << 16, -1, &h->head_k_mla);
    if (!s) s = integer(m, "attention.value_length_mla", 1, 1 << 16, -1, &h->head_v_mla);
    if (s) return s;
    int32_t turned = h->rope.rope.n_dims;
    bool one_head = true;
    for (int32_t il = 0; il < h->n_layer; il++) one_head = one_head && h->layer[il].n_head_kv == 1;
    if (!one_head || (int64_t)h->n_lora_kv + turned != h->head_k || h->head_v != h->n_lora_kv ||
        h->head_k_mla <= turned)
        return sheaf_fail(SHEAF_E_FORMAT,
                          "%s: latents of %d and %d rotated, heads of %d: expected one cached key of %d and value of "
                          "%d, not %d and %d",
                          m->path, h->n_lora_kv, turned, h->head_k_mla, h->n_lora_kv + turned, h->n_lora_kv, h->head_k,
                          h->head_v);
    return latent_scale(m);
}

/* --- the rest --- */

static sheaf_status scales(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    const char *eps_key = m->arch->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    float *eps = m->arch->layer_norm ? &h->norm_eps : &h->rms_eps;
    *eps = NAN;
    h->attn_scale = 1.0f / sqrtf((float)h->head_k);
    h->logit_scale = h->embed_scale = h->residual_scale = 1.0f;
    sheaf_status s = model_key_f32(m, eps_key, eps);
    if (!s) s = model_key_f32(m, "attention.scale", &h->attn_scale);
    if (!s) s = model_key_f32(m, "attn_logit_softcapping", &h->attn_soft_cap);
    if (!s) s = model_key_f32(m, "final_logit_softcapping", &h->logit_soft_cap);
    if (s) return s;
    if (!(*eps >= 0))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s.%s is missing or negative", m->path, m->arch->name, eps_key);
    if (!(h->attn_soft_cap >= 0) || !(h->logit_soft_cap >= 0))
        return sheaf_fail(SHEAF_E_FORMAT, "%s: a soft cap is negative (%g of attention, %g of logits)", m->path,
                          (double)h->attn_soft_cap, (double)h->logit_soft_cap);
    return SHEAF_OK;
}

/* --- experts --- */

/* How they are chosen and weighed: as the file says, else as the family does. */
static sheaf_status gating(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    const model_experts *e = &m->arch->experts;
    int32_t kind = 0;
    char key[KEY_BYTES];
    bool norm = e->norm;
    h->expert_scale = 1.0f;
    sheaf_status s = integer(m, "expert_gating_func", 0, SHEAF_GATING_SOFT_MAX_CHOSEN, 0, &kind);
    if (!s) s = model_key_f32(m, "expert_weights_scale", &h->expert_scale);
    if (s) return s;
    s = sheaf_gguf_get_bool(m->gguf, full_key(m, "expert_weights_norm", key), &norm);
    if (s && s != SHEAF_E_NOT_FOUND) return s;
    h->expert_gating = kind ? (sheaf_gating)kind : e->gating;
    h->expert_norm = norm;
    if (h->expert_scale == 0) h->expert_scale = 1.0f; /* files say 0 for none */
    return SHEAF_OK;
}

/* Groups that experts are chosen from. */
static sheaf_status expert_groups(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    char key[KEY_BYTES];
    h->n_group_used = 1;
    sheaf_status s = integer(m, "expert_group_count", 0, MAX_LENGTH, 1, &h->n_group);
    if (!s && h->n_group > 1) s = integer(m, "expert_group_used_count", 1, h->n_group, -1, &h->n_group_used);
    if (s || h->n_group <= 1) {
        h->n_group = 1; /* files say 0 for none */
        return s;
    }
    full_key(m, "expert_group_count", key);
    int32_t each = h->n_expert / h->n_group;
    if (h->n_expert % h->n_group || (int64_t)each * h->n_group_used < h->n_expert_used)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %d experts in %d groups (%s), %d of %d groups", m->path, h->n_expert,
                          h->n_group, key, h->n_expert_used, h->n_group_used);
    if (h->expert_gating == SHEAF_GATING_SOFT_MAX_CHOSEN || (h->expert_gating == SHEAF_GATING_SIGMOID && each < 2))
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: groups of %d experts (%s) with gating %d", m->path, each, key,
                          (int)h->expert_gating);
    return SHEAF_OK;
}

/* Experts of every layer but the leading dense ones. A family without experts refuses a file that has some: it would
 * be computed wrongly, or end as a missing tensor (K11, G10). */
static sheaf_status experts(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    char key[KEY_BYTES];
    int32_t shared = 0, dense = 0;
    sheaf_status s = integer(m, "expert_count", 0, 1 << 16, 0, &h->n_expert);
    if (s) return s;
    if (h->n_expert == 0 && m->arch->experts.there != EXPERTS_ALWAYS) return SHEAF_OK;
    full_key(m, "expert_count", key);
    if (h->n_expert == 0) return sheaf_fail(SHEAF_E_FORMAT, "%s: key %s is missing or 0", m->path, key);
    if (m->arch->experts.there == EXPERTS_NEVER)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: key %s is %d; experts are not supported for architecture %s",
                          m->path, key, h->n_expert, m->arch->name);
    s = integer(m, "expert_used_count", 1, h->n_expert, -1, &h->n_expert_used);
    if (!s) s = integer(m, "leading_dense_block_count", 0, h->n_layer, 0, &dense);
    if (!s) s = integer(m, "expert_shared_count", 0, 1 << 16, 0, &shared);
    if (!s) s = per_layer(m, "expert_feed_forward_length", 1, MAX_LENGTH, FIELD(n_ff), FIELD(n_ff_exp));
    if (s) return s;
    for (int32_t il = 0; il < h->n_layer; il++) m->layers[il].n_expert = il < dense ? 0 : h->n_expert;
    if ((int64_t)shared * h->layer[h->n_layer - 1].n_ff_exp > MAX_LENGTH)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %d shared experts of %d", m->path, shared,
                          h->layer[h->n_layer - 1].n_ff_exp);
    h->n_ff_shared = shared * h->layer[h->n_layer - 1].n_ff_exp;
    s = gating(m);
    return s ? s : expert_groups(m);
}

/* GGUF's general.file_type numbers. */
static const char *file_type_text(int64_t n) {
    static const char *const text[] = {
        [0] = "F32",     [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",    [7] = "Q8_0",
        [8] = "Q5_0",    [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S", [12] = "Q3_K_M",
        [13] = "Q3_K_L", [14] = "Q4_K_S", [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M",
        [18] = "Q6_K",   [25] = "IQ4_NL", [30] = "IQ4_XS", [32] = "BF16",   [38] = "MXFP4",
    };
    return n >= 0 && n < (int64_t)(sizeof text / sizeof *text) ? text[n] : NULL;
}

/* The type of all matrices where there is one. */
static const char *common_type(const sheaf_gguf *g) {
    const char *common = NULL;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(g, i);
        if (t->ne[1] * t->ne[2] * t->ne[3] <= 1) continue;
        if (common && strcmp(common, sheaf_type_name(t->type)) != 0) return "mixed";
        common = sheaf_type_name(t->type);
    }
    return common ? common : "mixed";
}

/* "llama 135M Q4_1" */
static void describe(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    int64_t file_type = -1;
    (void)sheaf_gguf_get_i64(m->gguf, "general.file_type", &file_type);
    const char *type = file_type_text(file_type);
    if (!type) type = common_type(m->gguf);
    double n = (double)h->n_params;
    if (n >= 1e9) {
        snprintf(h->type, sizeof h->type, "%s %.1fB %s", h->arch, n / 1e9, type);
    } else if (n >= 1e7) {
        snprintf(h->type, sizeof h->type, "%s %.0fM %s", h->arch, n / 1e6, type);
    } else {
        snprintf(h->type, sizeof h->type, "%s %.1fM %s", h->arch, n / 1e6, type);
    }
    sheaf_str name;
    if (sheaf_gguf_get_str(m->gguf, "general.name", &name) == SHEAF_OK) sheaf_str_text(name, h->name, sizeof h->name);
}

static bool is_of_experts(sheaf_str name) {
    static const char mark[] = "_exps.weight";
    size_t n = sizeof mark - 1;
    return name.n > n && !memcmp(name.s + name.n - n, mark, n);
}

/* Sizes of what the file holds. A token reads every weight but the embedding, of which it reads a row,
 * unless the embedding is the output as well, and the experts that it does not use. */
static void measure(sheaf_model *m) {
    sheaf_hparams *h = &m->hp;
    uint64_t params = 0, idle = 0;
    h->tied = sheaf_gguf_find_tensor(m->gguf, "output.weight") == NULL;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(m->gguf); i++) {
        const sheaf_gguf_tensor *t = sheaf_gguf_tensor_at(m->gguf, i);
        params += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]); /* each was checked at open */
        h->bytes += t->bytes;
        if (h->n_expert && is_of_experts(t->name))
            idle += t->bytes / (uint64_t)h->n_expert * (uint64_t)(h->n_expert - h->n_expert_used);
    }
    h->n_params = (int64_t)params;
    const sheaf_gguf_tensor *embd = sheaf_gguf_find_tensor(m->gguf, "token_embd.weight");
    h->active_bytes = h->tied ? h->bytes : h->bytes - embd->bytes + embd->bytes / (uint64_t)embd->ne[1];
    h->active_bytes -= idle;
}

sheaf_status model_read_hparams(sheaf_model *m) {
    snprintf(m->hp.arch, sizeof m->hp.arch, "%s", m->arch->name);
    sheaf_status s = shapes(m);
    if (!s) s = experts(m);
    if (!s) s = rope(m);
    if (!s) s = scales(m);
    if (!s && m->arch->read) s = m->arch->read(m);
    if (s) return s;
    measure(m);
    describe(m);
    sheaf_error_clear(); /* lookups of absent keys left their text */
    return SHEAF_OK;
}
