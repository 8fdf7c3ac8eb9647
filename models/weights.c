/* Which tensors a model has: headers declared from the architecture's table, checked against the file.
 *
 * A missing tensor is said to be missing, by name and architecture (case G10); a wrong shape shows both
 * shapes; tensors of the file that nobody asks for are counted and mentioned once. Reads no data. */
#include "models/model_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const formats[W_COUNT] = {
#define X(id, name) name,
    MODEL_WEIGHT_TABLE(X)
#undef X
};

const char *model_weight_format(model_weight w) { return formats[w]; }
bool model_weight_is_layer(model_weight w) { return strncmp(formats[w], "blk.", 4) == 0; }

/* il is -1 for what belongs to no layer; no such weight has a length that differs by layer. */
static int64_t length_of(const sheaf_hparams *h, int il, model_dim d) {
    const sheaf_layer_hparams *l = &h->layer[il < 0 ? 0 : il];
    switch (d) {
    case DIM_EMBD: return h->n_embd;
    case DIM_VOCAB: return h->n_vocab;
    case DIM_FF: return l->n_ff;
    case DIM_Q: return (int64_t)l->n_head * h->head_k;
    case DIM_K: return (int64_t)l->n_head_kv * h->head_k;
    case DIM_V: return (int64_t)l->n_head_kv * h->head_v;
    case DIM_ATTN: return (int64_t)l->n_head * h->head_v;
    case DIM_EXPERTS: return l->n_expert;
    case DIM_FF_EXP: return l->n_ff_exp;
    case DIM_FF_SHARED: return h->n_ff_shared;
    case DIM_LORA_Q: return h->n_lora_q;
    case DIM_LORA_KV: return h->n_lora_kv;
    case DIM_HEAD_K: return h->head_k;
    case DIM_QKV: return length_of(h, il, DIM_Q) + length_of(h, il, DIM_K) + length_of(h, il, DIM_V);
    case DIM_2FF: return 2 * (int64_t)l->n_ff;
    case DIM_POSITIONS: return h->n_ctx_train;
    case DIM_HEADS: return l->n_head;
    case DIM_NOPE: return h->head_k_mla - h->rope.rope.n_dims;
    case DIM_V_MLA: return h->head_v_mla;
    case DIM_Q_MLA: return (int64_t)l->n_head * h->head_k_mla;
    case DIM_ATTN_MLA: return (int64_t)l->n_head * h->head_v_mla;
    case DIM_ROPE_PAIRS: return h->rope.rope.n_dims / 2;
    case DIM_NONE: break;
    }
    return 1;
}

static void weight_name(model_weight w, int il, char name[SHEAF_MAX_NAME]) {
    if (!model_weight_is_layer(w)) {
        snprintf(name, SHEAF_MAX_NAME, "%s", formats[w]);
        return;
    }
    /* "blk.%d." and the rest, put together here, so that no format string comes from a table */
    snprintf(name, SHEAF_MAX_NAME, "blk.%d%s", il, strchr(formats[w] + 4, '.'));
}

static sheaf_status check_shape(const sheaf_model *m, const weight_row *r, int il, const sheaf_gguf_tensor *t,
                                const char *name) {
    int64_t want[SHEAF_MAX_DIMS] = {1, 1, 1, 1};
    for (int i = 0; i < 3; i++) want[i] = length_of(&m->hp, il, r->dim[i]);
    if (memcmp(want, t->ne, sizeof want) != 0)
        return sheaf_fail(SHEAF_E_FORMAT, "%s: %s: shape is [%lld, %lld, %lld, %lld], expected [%lld, %lld%s%.0lld]",
                          m->path, name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
                          (long long)t->ne[3], (long long)want[0], (long long)want[1], r->dim[2] ? ", " : "",
                          (long long)(r->dim[2] ? want[2] : 0));
    if (r->f32 && t->type != SHEAF_F32)
        return sheaf_fail(SHEAF_E_UNSUPPORTED, "%s: %s: type %s not supported here, f32 expected", m->path, name,
                          sheaf_type_name(t->type));
    return SHEAF_OK;
}

/* Does layer il want this weight at all, and may it be absent? */
static bool is_wanted(const sheaf_model *m, model_need need, int il, bool *optional) {
    bool experts = il >= 0 && m->hp.layer[il].n_expert > 0;
    *optional = need == NEED_OPTIONAL || need == NEED_DENSE_OPTIONAL || need == NEED_EXPERTS_OPTIONAL;
    switch (need) {
    case NEED_DENSE:
    case NEED_DENSE_OPTIONAL: return !experts;
    case NEED_EXPERTS:
    case NEED_EXPERTS_OPTIONAL: return experts;
    case NEED_SHARED: return experts && m->hp.n_ff_shared > 0;
    case NEED_LORA_Q: return m->hp.n_lora_q > 0;
    case NEED_NO_LORA_Q: return m->hp.n_lora_q == 0;
    default: return true;
    }
}

/* Declares one tensor; *at is its number, -1 when the layer has none. */
static sheaf_status declare(sheaf_model *m, const weight_row *r, int il, int32_t *at) {
    char name[SHEAF_MAX_NAME];
    bool optional;
    *at = -1;
    if (!is_wanted(m, r->need, il, &optional)) return SHEAF_OK;
    weight_name(r->id, il, name);
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(m->gguf, name);
    if (!t && optional) return SHEAF_OK;
    if (!t)
        return sheaf_fail(SHEAF_E_NOT_FOUND, "%s: tensor %s not found for architecture %s", m->path, name,
                          m->arch->name);
    sheaf_status s = check_shape(m, r, il, t, name);
    if (s) return s;
    sheaf_tensor *w = sheaf_new(m->arena, t->type, r->dim[2] ? 3 : r->dim[1] ? 2 : 1, t->ne);
    if (!w) return sheaf_arena_status(m->arena);
    sheaf_set_name(w, "%s", name);
    sheaf_set_flag(w, SHEAF_FLAG_WEIGHT);
    *at = m->n_weights;
    m->weight[m->n_weights] = w;
    m->source[m->n_weights++] = t;
    return SHEAF_OK;
}

static sheaf_status allocate(sheaf_model *m) {
    size_t layers = (size_t)m->hp.n_layer, most = 0;
    for (int i = 0; i < m->arch->n_rows; i++) most += model_weight_is_layer(m->arch->rows[i].id) ? layers : 1;
    m->weight = sheaf_calloc(most, sizeof(sheaf_tensor *));
    m->source = sheaf_calloc(most, sizeof(const sheaf_gguf_tensor *));
    m->layer = sheaf_malloc(layers * W_COUNT * sizeof *m->layer);
    if (!m->weight || !m->source || !m->layer)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "%s: no memory for %zu tensor headers", m->path, most);
    for (size_t i = 0; i < W_COUNT; i++) m->global[i] = -1;
    for (size_t i = 0; i < layers * W_COUNT; i++) m->layer[i] = -1;
    return sheaf_arena_new(64 << 10, &m->arena);
}

sheaf_status model_declare_weights(sheaf_model *m) {
    const model_arch *a = m->arch;
    sheaf_status s = allocate(m);
    for (int i = 0; i < a->n_rows && !s; i++)
        if (!model_weight_is_layer(a->rows[i].id)) s = declare(m, &a->rows[i], -1, &m->global[a->rows[i].id]);
    for (int il = 0; il < m->hp.n_layer && !s; il++)
        for (int i = 0; i < a->n_rows && !s; i++)
            if (model_weight_is_layer(a->rows[i].id))
                s = declare(m, &a->rows[i], il, &m->layer[il * W_COUNT + (int)a->rows[i].id]);
    if (s) return s;
    int64_t unused = sheaf_gguf_n_tensors(m->gguf) - m->n_weights;
    if (unused > 0)
        sheaf_log(SHEAF_LOG_WARN, "%s: %lld tensors are not used by architecture %s", m->path, (long long)unused,
                  a->name);
    return SHEAF_OK;
}
