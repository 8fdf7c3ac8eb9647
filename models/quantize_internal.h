/* What the quantizer's files share: quantize_mix.c (rules), quantize_plan.c (a type for every tensor), quantize.c
 * (the new file's header), quantize_work.c (threads and pieces), imatrix.c and imatrix_read.c. */
#ifndef SHEAF_MODELS_QUANTIZE_INTERNAL_H
#define SHEAF_MODELS_QUANTIZE_INTERNAL_H

#include "models/quantize.h"
#include "tensor/gguf_write.h"

/* What rules ask about a model; a key that is absent counts as 0. */
typedef struct mix_model {
    int64_t n_layer, n_expert, gqa; /* gqa: query heads per KV head in the first layer */
    bool tied;                      /* no output.weight: the embedding is it */
    bool falcon, large;             /* large: a Llama of 80 layers with fewer KV than query heads */
    bool has_imatrix;
    int n_value; /* value-like attention tensors */
} mix_model;

/* Counters that go on from tensor to tensor, in order of layers. */
typedef struct mix_state {
    const sheaf_mix *mix;
    mix_model model;
    int i_value, i_down;
} mix_state;

bool mix_is_value(const char *name); /* attn_v, attn_qkv or attn_kv_b */
/* The type that the mix gives a matrix. `layer` -1: not of a layer. */
sheaf_type mix_type(mix_state *st, const char *name, int layer, const sheaf_gguf_tensor *t);
/* Is this a matrix that may be quantized, rather than a norm, a router, a position table, a bias? */
bool mix_allows(const char *name, const sheaf_gguf_tensor *t);

/* Importance of row `row` of a tensor, or NULL. */
const float *quantize_importance(const sheaf_imatrix *m, const sheaf_gguf_tensor *t, int64_t row);
/* Converts and writes every tensor. */
sheaf_status quantize_work(const sheaf_gguf *g, const sheaf_quantize_row *plan, sheaf_gguf_writer *w,
                           const sheaf_quantize_options *o, const sheaf_imatrix *m);

#endif
