/* Models, contexts and samplers: from a GGUF file to the next token.
 *
 * Nouns: a *model* (weights on their devices, hyper-parameters, vocabulary; immutable once loaded, shared
 * by any number of contexts), a *context* (KV cache, scheduler, workspaces: one stream of decodes, one
 * thread at a time), a *batch* (tokens to run) and a *sampler* (from logits to a token).
 *
 *     sheaf_model_load("m.gguf", &mopts, &model);
 *     sheaf_context_new(model, &copts, &ctx);
 *     sheaf_batch b = {.n = n_prompt, .token = ids};              // positions follow on, last token's logits
 *     sheaf_decode(ctx, &b);
 *     sheaf_sampler_new(&sopts, sheaf_model_hparams(model)->n_tokens, &smp);
 *     sheaf_sample(smp, sheaf_logits(ctx, 0), &id);
 *
 * Who owns what: devices belong to the registry and must outlive the model; the model its contexts.
 */
#ifndef SHEAF_MODELS_MODEL_H
#define SHEAF_MODELS_MODEL_H

#include <stdio.h>

#include "backends/backend.h"
#include "collectives/comm.h"
#include "meta/meta.h"
#include "models/text/text.h"
#include "sched/sched.h"
#include "tensor/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_model sheaf_model;
typedef struct sheaf_context sheaf_context;
typedef struct sheaf_sampler sheaf_sampler;

/* --- model -------------------------------------------------------------------------------------------- */

typedef enum sheaf_split_mode { SHEAF_SPLIT_TENSOR, SHEAF_SPLIT_LAYER, SHEAF_SPLIT_NONE } sheaf_split_mode;

typedef struct sheaf_model_options {
    sheaf_registry *registry;
    sheaf_device *const *devices;
    int32_t n_devices;           /* this process's; one device alone in the world: no meta device */
    const char *devices_name;    /* as the user wrote it, for printing */
    sheaf_world *world;          /* NULL: alone */
    sheaf_split_mode split_mode; /* TENSOR; NONE uses devices[0]; LAYER: SHEAF_E_UNSUPPORTED for now */
    const float *tensor_split;
    int32_t n_tensor_split; /* shares over the world's devices, or NULL */
    const char *split_table;
    size_t split_table_bytes; /* text, or NULL: built in */
    bool no_mmap;
    bool no_data; /* declare and place everything, read no weight (for `split`, `graph`): memory is reserved, not
                     touched */
    bool force_pretokenizer;
    /* 0..1 while weights are read; return false to cancel (SHEAF_E_CANCELLED). May be NULL. */
    bool (*progress)(void *ctx, float done);
    void *progress_ctx;
} sheaf_model_options;

/* Errors: whatever is wrong with the file, by key or tensor; unknown architecture names the known ones
 * before any weight is read; memory; a split table's line. Nothing stays behind. */
SHEAF_API sheaf_status sheaf_model_load(const char *path, const sheaf_model_options *o, sheaf_model **out);
SHEAF_API void sheaf_model_free(sheaf_model *m);

/* What may differ from layer to layer. */
typedef struct sheaf_layer_hparams {
    int32_t n_ff, n_head, n_head_kv;
    int32_t n_expert, n_ff_exp; /* experts and their width; 0: a dense layer */
} sheaf_layer_hparams;

/* How a token's experts are chosen and weighed, from the router's logits; numbers are GGUF's. */
typedef enum sheaf_gating {
    SHEAF_GATING_SOFT_MAX = 1,
    SHEAF_GATING_SIGMOID = 2,
    SHEAF_GATING_SOFT_MAX_CHOSEN = 3 /* over the chosen ones only */
} sheaf_gating;

typedef struct sheaf_hparams {
    char arch[32], name[64], type[96]; /* "llama", general.name, "llama 135M Q4_1" */
    int32_t n_tokens; /* ids that the vocabulary has; at most n_vocab, the rows of the embedding: those above mean
                         nothing */
    int32_t n_vocab, n_ctx_train, n_embd, n_layer, head_k, head_v;
    const sheaf_layer_hparams *layer; /* [n_layer], the model's */
    int32_t n_expert, n_expert_used;  /* 0: no layer has experts */
    int32_t n_group, n_group_used;    /* a token's experts are of its best groups; 1, 1: of any */
    int32_t n_ff_shared;              /* width of the experts that all tokens share, together; 0: none */
    sheaf_gating expert_gating;
    int32_t n_lora_q, n_lora_kv; /* latent attention: widths of what queries, keys and values are made from; 0: not */
    int32_t head_k_mla, head_v_mla; /* heads that the latents stand for; head_k and head_v are the cached latents' */
    bool expert_norm;               /* weights of a token's experts are divided by their sum */
    float expert_scale;
    float rms_eps, norm_eps; /* the latter where norms subtract the mean */
    sheaf_params rope;       /* sheaf_params.rope filled */
    int32_t window; /* positions that a windowed layer sees, the token's own among them; 0: no layer is windowed */
    sheaf_params rope_window;            /* rope of windowed layers */
    float attn_soft_cap, logit_soft_cap; /* cap * tanh(x / cap); 0: none */
    float attn_scale, logit_scale, embed_scale, residual_scale;
    int64_t n_params;
    uint64_t bytes; /* of all weights; bytes that one token reads: active_bytes */
    uint64_t active_bytes;
    bool tied; /* output is token_embd */
} sheaf_hparams;
SHEAF_API const sheaf_hparams *sheaf_model_hparams(const sheaf_model *m);
SHEAF_API const sheaf_tokenizer *sheaf_model_tokenizer(const sheaf_model *m);
SHEAF_API sheaf_str sheaf_model_chat_template(const sheaf_model *m); /* {NULL,0}: none in the file */
SHEAF_API const sheaf_gguf *sheaf_model_gguf(const sheaf_model *m);
SHEAF_API sheaf_device *sheaf_model_device(const sheaf_model *m); /* the meta device, or the only one */
SHEAF_API const char *sheaf_known_architectures(void);            /* "llama, ..." */

/* One row a tensor, for `sheaf split`: weights as declared, then the KV caches of every layer (f16, as
 * long as the context the model was trained for, though layers with a window keep less). */
typedef struct sheaf_split_row {
    const char *name;
    sheaf_type type;
    int n_dims;
    int64_t ne[4];
    sheaf_layout layout;
    const char *group, *rule;
    sheaf_usage usage;
} sheaf_split_row;
SHEAF_API bool sheaf_model_split_row(const sheaf_model *m, int i, sheaf_split_row *out);
/* Bytes of weights by device of the world, beside what was asked for. */
SHEAF_API const sheaf_shares *sheaf_model_shares(const sheaf_model *m);

/* --- context -------------------------------------------------------------------------------------------- */

typedef struct sheaf_context_options {
    int32_t n_ctx;             /* 0: the model's */
    int32_t n_batch;           /* logical batch, default 2048; */
    int32_t n_ubatch;          /* what runs at once, default 512 */
    int32_t n_seq;             /* sequences, default 1 */
    int32_t n_outputs;         /* rows of logits a ubatch may want; 0: n_ubatch (perplexity), run uses 1 */
    int32_t n_best;            /* a decode may ask for so many of a row's best logits instead of the row
                                  (sheaf_batch.best); 0: none may. At most SHEAF_MAX_BEST */
    sheaf_type type_k, type_v; /* 0 is F32; default F16 comes from sheaf_context_defaults */
    bool strict;               /* any reshard is an error */
    bool full_window; /* layers with a sliding window keep all n_ctx positions, not only those that a window needs */
} sheaf_context_options;
SHEAF_API sheaf_context_options sheaf_context_defaults(void);
SHEAF_API sheaf_status sheaf_context_new(sheaf_model *m, const sheaf_context_options *o, sheaf_context **out);
SHEAF_API void sheaf_context_free(sheaf_context *c);

typedef struct sheaf_batch {
    int32_t n;
    const int32_t *token; /* ids in [0, n_vocab) */
    const int32_t *pos;   /* NULL: each sequence goes on where it is */
    const int32_t *seq;   /* NULL: sequence 0 */
    const uint8_t *want;  /* NULL: logits of the last token only; else one flag a token */
    bool best;            /* bring out only the n_best best logits of each wanted row: sheaf_logits_best */
} sheaf_batch;

/* Runs a batch, in micro-batches. SHEAF_E_RANGE when it does not fit the context (nothing was run), or an id is
 * out of range; SHEAF_E_ARGUMENT for n <= 0 or n > n_batch. After any failure the context is as before the call; but
 * where layers with a window have given up positions for a batch of several micro-batches that then failed, its
 * sequences do not go on (SHEAF_E_RANGE) until each is removed as a whole.
 * Returns when logits are readable. Under mpirun: rank 0 calls it, the others sit in sheaf_follow. */
SHEAF_API sheaf_status sheaf_decode(sheaf_context *c, const sheaf_batch *b);
/* Row i of the logits that the last decode produced (in batch order of wanted tokens), n_vocab floats, valid until the
 * next decode. NULL out of range, and for rows that were not brought out (sheaf_batch.best). */
SHEAF_API const float *sheaf_logits(const sheaf_context *c, int32_t i);
SHEAF_API int32_t sheaf_n_outputs(const sheaf_context *c);
SHEAF_API uint64_t sheaf_logits_hash(const sheaf_context *c, int32_t i); /* of the bits of one full row */

/* One of the best logits of a row. */
typedef struct sheaf_best {
    int32_t id;
    float logit;
} sheaf_best;
/* The best logits of row i after a decode that asked for them: larger first, ties by the lower id, NaN last; *n of
 * them, n_best unless the vocabulary has fewer ids. The context's, valid until the next decode. Each device looks for
 * the best of its own part of the vocabulary, and only these are read (and, over processes, sent). NULL out of range,
 * and after a decode that did not ask. */
SHEAF_API const sheaf_best *sheaf_logits_best(const sheaf_context *c, int32_t i, int32_t *n);
/* Whole rows after all: brings out those of the last micro-batch, which the devices keep until the next decode; then
 * sheaf_logits and sheaf_logits_hash have them. Nothing to do where they are there. SHEAF_E_RANGE where that
 * micro-batch has no wanted row. Under mpirun rank 0 calls it. */
SHEAF_API sheaf_status sheaf_logits_fetch(sheaf_context *c);
/* Follower ranks: runs what rank 0 sends until it closes its context or ends. */
SHEAF_API sheaf_status sheaf_follow(sheaf_context *c);

SHEAF_API int32_t sheaf_n_ctx(const sheaf_context *c);
SHEAF_API int32_t sheaf_n_best(const sheaf_context *c); /* sheaf_context_options.n_best; no more than there are ids */
SHEAF_API int32_t sheaf_kv_used(const sheaf_context *c, int32_t seq); /* tokens of a sequence */
SHEAF_API sheaf_status sheaf_kv_clear(sheaf_context *c); /* fails only under mpirun, if a rank cannot be told */
/* Removes positions [p0, p1) of a sequence (p1 < 0: to the end). Layers with a sliding window keep a window and some
 * more (n_seq * window + n_ubatch cells, full_window: all): where the shortened sequence would need what they gave up,
 * SHEAF_E_RANGE, and nothing is removed. All of a sequence can always go. */
SHEAF_API sheaf_status sheaf_kv_remove(sheaf_context *c, int32_t seq, int32_t p0, int32_t p1);

/* A context's state: what its KV cache holds, where, and of which sequence. Saved on any number of devices it is
 * restored on any other, and a context of the same options goes on with the same bits as if it had never stopped.
 * Logits are no part of it. A *note* is bytes that the caller wants back with it (the tokens, a sampler's state); NULL:
 * none.
 *
 * The file is checked whole before anything of the context changes: SHEAF_E_FORMAT, with what is wrong and at which
 * byte, for one that is short, altered, of another version, model, cache type or byte order; SHEAF_E_RANGE where the
 * context is too small for it. It appears under its name only when it is whole. Where devices fail while they are being
 * written, the context is empty. Not while a decode runs; under mpirun rank 0 calls these, and its file counts. */
SHEAF_API sheaf_status sheaf_state_size(const sheaf_context *c, size_t note_bytes, size_t *out);
SHEAF_API sheaf_status sheaf_state_save(sheaf_context *c, const char *path, const void *note, size_t note_bytes);
/* *note: the caller's, by sheaf_free; NULL for an empty one. `note` itself may be NULL: not wanted. */
SHEAF_API sheaf_status sheaf_state_restore(sheaf_context *c, const char *path, void **note, size_t *note_bytes);
/* The same to and from memory; `size` as sheaf_state_size says, or more. */
SHEAF_API sheaf_status sheaf_state_get(sheaf_context *c, const void *note, size_t note_bytes, void *dst, size_t size);
SHEAF_API sheaf_status sheaf_state_set(sheaf_context *c, const void *src, size_t size, void **note, size_t *note_bytes);

typedef struct sheaf_memory_row {
    char device[32];
    size_t weight_bytes, kv_bytes, compute_bytes, staging_bytes, mirrored_bytes;
} sheaf_memory_row;
/* What is allocated now on local member i (or the only device). */
SHEAF_API bool sheaf_context_memory(const sheaf_context *c, int i, sheaf_memory_row *out);
/* The same computed beforehand, from layouts and plans alone, for comparison: equal, or a test fails. */
SHEAF_API bool sheaf_context_memory_estimate(const sheaf_context *c, int i, sheaf_memory_row *out);

typedef struct sheaf_context_stats {
    uint64_t decodes, graphs_built, graphs_reused;
    int32_t nodes_prompt, splits_prompt, nodes_token, splits_token;
    uint64_t overhead_ns;  /* build, schedule, bind, enqueue: host time that is not waiting for devices */
    uint64_t device_ns;    /* host waiting for devices */
    uint64_t logits_bytes; /* of logits, or of pairs of the best, brought out of the devices that computed them */
} sheaf_context_stats;
SHEAF_API sheaf_context_stats sheaf_context_get_stats(const sheaf_context *c);
SHEAF_API sheaf_sched *sheaf_context_sched(sheaf_context *c);
SHEAF_API sheaf_backend *sheaf_context_backend(sheaf_context *c); /* meta backend or the only one */
/* Builds and allocates (without running) the graph of n_tokens at the given KV fill, for `sheaf graph`. Collective
 * over ranks. */
SHEAF_API sheaf_status sheaf_context_graph(sheaf_context *c, int32_t n_tokens, int32_t n_kv, sheaf_graph **out);

/* --- sampler --------------------------------------------------------------------------------------------- */

typedef struct sheaf_sampler_options {
    float temp;    /* <= 0: greedy; ties: lowest id */
    int32_t top_k; /* 0: off */
    float top_p, min_p, typical;
    float repeat_penalty, frequency_penalty, presence_penalty;
    int32_t repeat_last_n; /* -1: whole context */
    uint64_t seed;
    const int32_t *bias_id;
    const float *bias;
    int32_t n_bias; /* copied; -INFINITY forbids */
} sheaf_sampler_options;
SHEAF_API sheaf_sampler_options
sheaf_sampler_defaults(void); /* llama.cpp's: 0.8, 40, 0.95, 0.05, 1 (off), penalties off over 64 */
SHEAF_API sheaf_status sheaf_sampler_new(const sheaf_sampler_options *o, int32_t n_vocab, sheaf_sampler **out);
SHEAF_API void sheaf_sampler_free(sheaf_sampler *s);
/* Draws from one row of logits and accepts the token (penalties count it). No allocation. NaN logits count as
 * -inf; if nothing is left: SHEAF_E_RANGE through *id = -1. */
SHEAF_API sheaf_status sheaf_sample(sheaf_sampler *s, const float *logits, int32_t *id);
/* How many of a row's best logits decide what a sampler of these options draws (top_k, and one more for each token that
 * a penalty or a bias may push down); 0: the row is needed whole, because nothing is cut off by rank, or because a
 * penalty or a bias may lift a token, or because it would be more than SHEAF_MAX_BEST or half the vocabulary. */
SHEAF_API int32_t sheaf_sampler_needs(const sheaf_sampler_options *o, int32_t n_vocab);
/* sheaf_sample from the n best logits of a row alone, in their order, n at least what sheaf_sampler_needs says (or all
 * of the vocabulary): the same token, and the sampler is left the same. SHEAF_E_ARGUMENT for fewer. */
SHEAF_API sheaf_status sheaf_sample_best(sheaf_sampler *s, const sheaf_best *best, int32_t n, int32_t *id);
SHEAF_API void sheaf_sampler_accept(sheaf_sampler *s, int32_t id); /* prompt tokens, for penalties */
SHEAF_API void sheaf_sampler_reset(sheaf_sampler *s);
/* What a sampler would draw next: its random numbers and the tokens that penalties count, as bytes for a note. Set on a
 * sampler of the same options; SHEAF_E_FORMAT for bytes that are none of a sampler with this memory and vocabulary, and
 * then nothing has changed. */
SHEAF_API size_t sheaf_sampler_state_size(const sheaf_sampler *s);
SHEAF_API void sheaf_sampler_state_get(const sheaf_sampler *s, void *dst); /* sheaf_sampler_state_size bytes */
SHEAF_API sheaf_status sheaf_sampler_state_set(sheaf_sampler *s, const void *src, size_t size);

#ifdef __cplusplus
}
#endif
#endif
