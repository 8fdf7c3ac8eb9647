/* What the files of models/ share. Not for other rooms: those include models/model.h.
 *
 *   hparams.c       GGUF keys -> sheaf_hparams, checked
 *   arch.c          the registry: one row per architecture, its weights and its graph
 *   weights.c       declares a model's tensors and checks their shapes
 *   place.c         split table -> a layout for each tensor; the device that all of it lives on
 *   loader.c        bytes of the file -> weights on their devices
 *   model.c         the journey of a load, top to bottom
 *   layers.c        layers that families share
 *   llama.c ...     one family each: its weights and what differs in its graph
 *   experts.c       the feed-forward of a mixture of experts
 *   kv_cache.c      cells (who holds which position) and the tensors behind them
 *   graph_inputs.c  what a graph is fed with: tokens, positions, mask, ids
 *   context.c       decode: micro-batches, graph reuse
 *   outputs.c       what a decode brings out: rows of logits, or the best of each
 *   state.c         a context's state as bytes: what is saved and restored
 *   state_file.c    where these bytes go to and come from, and the checks of a header
 *   follow.c        rank 0's batches, told to the other ranks
 *   split_report.c  what lies where, in bytes
 *
 * Invariants, cited as [M1]..[M5]:
 *  M1 A model is immutable once loaded: sealing a graph writes into headers, so every context builds its
 *     graphs from header copies of its own.
 *  M2 weight[i], placement[i] and headers of contexts use one numbering; KV placements follow the weights.
 *  M3 A cell is claimed before the graph that writes it runs, and given back if that fails; what lies in
 *     a free cell is never read (the mask hides it).
 *  M4 The same (tokens, KV buckets, outputs) is the same graph: it is built once and reused until it changes.
 *  M5 Windowed layers hold, of every sequence, all positions that its next token sees, unless some were given up
 *     (kv_cells.lost): then the sequence does not go on, until all of it is removed.
 */
#ifndef SHEAF_MODELS_INTERNAL_H
#define SHEAF_MODELS_INTERNAL_H

#include "models/model.h"

/* --- weights ------------------------------------------------------------------------------------------ */

/* Every weight that some family has: id and GGUF name, "blk.%d." in front where it belongs to a layer. */
#define MODEL_WEIGHT_TABLE(X)                                                                                          \
    X(TOKEN_EMBD, "token_embd.weight")                                                                                 \
    X(POS_EMBD, "position_embd.weight")                                                                                \
    X(OUTPUT_NORM, "output_norm.weight")                                                                               \
    X(OUTPUT_NORM_BIAS, "output_norm.bias")                                                                            \
    X(OUTPUT, "output.weight")                                                                                         \
    X(OUTPUT_BIAS, "output.bias")                                                                                      \
    X(ROPE_FREQS, "rope_freqs.weight")                                                                                 \
    X(ROPE_LONG, "rope_factors_long.weight")                                                                           \
    X(ROPE_SHORT, "rope_factors_short.weight")                                                                         \
    X(ATTN_NORM, "blk.%d.attn_norm.weight")                                                                            \
    X(ATTN_NORM_BIAS, "blk.%d.attn_norm.bias")                                                                         \
    X(ATTN_QKV, "blk.%d.attn_qkv.weight")                                                                              \
    X(ATTN_QKV_BIAS, "blk.%d.attn_qkv.bias")                                                                           \
    X(ATTN_Q_NORM, "blk.%d.attn_q_norm.weight")                                                                        \
    X(ATTN_K_NORM, "blk.%d.attn_k_norm.weight")                                                                        \
    X(ATTN_Q, "blk.%d.attn_q.weight")                                                                                  \
    X(ATTN_Q_BIAS, "blk.%d.attn_q.bias")                                                                               \
    X(ATTN_K, "blk.%d.attn_k.weight")                                                                                  \
    X(ATTN_K_BIAS, "blk.%d.attn_k.bias")                                                                               \
    X(ATTN_V, "blk.%d.attn_v.weight")                                                                                  \
    X(ATTN_V_BIAS, "blk.%d.attn_v.bias")                                                                               \
    X(ATTN_OUT, "blk.%d.attn_output.weight")                                                                           \
    X(ATTN_OUT_BIAS, "blk.%d.attn_output.bias")                                                                        \
    X(ATTN_POST_NORM, "blk.%d.post_attention_norm.weight")                                                             \
    X(FFN_NORM, "blk.%d.ffn_norm.weight")                                                                              \
    X(FFN_NORM_BIAS, "blk.%d.ffn_norm.bias")                                                                           \
    X(FFN_GATE, "blk.%d.ffn_gate.weight")                                                                              \
    X(FFN_GATE_BIAS, "blk.%d.ffn_gate.bias")                                                                           \
    X(FFN_UP, "blk.%d.ffn_up.weight")                                                                                  \
    X(FFN_UP_BIAS, "blk.%d.ffn_up.bias")                                                                               \
    X(FFN_DOWN, "blk.%d.ffn_down.weight")                                                                              \
    X(FFN_DOWN_BIAS, "blk.%d.ffn_down.bias")                                                                           \
    X(FFN_POST_NORM, "blk.%d.post_ffw_norm.weight")                                                                    \
    X(ROUTER, "blk.%d.ffn_gate_inp.weight")                                                                            \
    X(ROUTER_BIAS, "blk.%d.ffn_gate_inp.bias")                                                                         \
    X(CHOICE_BIAS, "blk.%d.exp_probs_b.bias")                                                                          \
    X(GATE_EXPS, "blk.%d.ffn_gate_exps.weight")                                                                        \
    X(GATE_EXPS_BIAS, "blk.%d.ffn_gate_exps.bias")                                                                     \
    X(UP_EXPS, "blk.%d.ffn_up_exps.weight")                                                                            \
    X(UP_EXPS_BIAS, "blk.%d.ffn_up_exps.bias")                                                                         \
    X(DOWN_EXPS, "blk.%d.ffn_down_exps.weight")                                                                        \
    X(DOWN_EXPS_BIAS, "blk.%d.ffn_down_exps.bias")                                                                     \
    X(GATE_SHEXP, "blk.%d.ffn_gate_shexp.weight")                                                                      \
    X(UP_SHEXP, "blk.%d.ffn_up_shexp.weight")                                                                          \
    X(DOWN_SHEXP, "blk.%d.ffn_down_shexp.weight")                                                                      \
    X(ATTN_SINKS, "blk.%d.attn_sinks.weight")                                                                          \
    X(ATTN_Q_A, "blk.%d.attn_q_a.weight")                                                                              \
    X(ATTN_Q_A_NORM, "blk.%d.attn_q_a_norm.weight")                                                                    \
    X(ATTN_Q_B, "blk.%d.attn_q_b.weight")                                                                              \
    X(ATTN_KV_A, "blk.%d.attn_kv_a_mqa.weight")                                                                        \
    X(ATTN_KV_A_NORM, "blk.%d.attn_kv_a_norm.weight")                                                                  \
    X(ATTN_K_B, "blk.%d.attn_k_b.weight")                                                                              \
    X(ATTN_V_B, "blk.%d.attn_v_b.weight")

typedef enum model_weight {
#define X(id, name) W_##id,
    MODEL_WEIGHT_TABLE(X)
#undef X
        W_COUNT
} model_weight;

const char *model_weight_format(model_weight w);
bool model_weight_is_layer(model_weight w);

/* Lengths that shapes are made of. */
typedef enum model_dim {
    DIM_NONE,
    DIM_EMBD,
    DIM_VOCAB,
    DIM_FF,
    DIM_Q,
    DIM_K,
    DIM_V,
    DIM_ATTN,
    DIM_QKV,
    DIM_2FF, /* gate and up in one */
    DIM_POSITIONS,
    DIM_EXPERTS,
    DIM_FF_EXP,
    DIM_FF_SHARED,
    DIM_LORA_Q,
    DIM_LORA_KV,
    DIM_HEAD_K, /* one key: what is cached of latent attention */
    DIM_HEADS,
    DIM_NOPE, /* latent attention: the part of a head that is not rotated */
    DIM_V_MLA,
    DIM_Q_MLA, /* all heads of queries, of values */
    DIM_ATTN_MLA,
    DIM_ROPE_PAIRS
} model_dim;

/* DENSE, EXPERTS, SHARED: of layers without experts, of layers with some, of those if there are shared ones. */
typedef enum model_need {
    NEED_ALWAYS,
    NEED_OPTIONAL,
    NEED_DENSE,
    NEED_DENSE_OPTIONAL,
    NEED_EXPERTS,
    NEED_EXPERTS_OPTIONAL,
    NEED_SHARED,
    NEED_LORA_Q, /* where queries are made from a latent, and where not */
    NEED_NO_LORA_Q
} model_need;

typedef struct weight_row {
    model_weight id;
    model_dim dim[3]; /* innermost first; DIM_NONE: no such dimension */
    model_need need;
    bool f32; /* kernels read it as f32: norms, biases, factors */
} weight_row;

/* --- architectures ------------------------------------------------------------------------------------ */

typedef struct graph_build graph_build;

/* What a family says of its experts where the file does not. */
typedef struct model_experts {
    enum { EXPERTS_NEVER, EXPERTS_MAYBE, EXPERTS_ALWAYS } there;
    sheaf_gating gating;
    bool norm;
} model_experts;

typedef struct model_arch {
    const char *name;
    sheaf_rope_kind rope;
    const weight_row *rows;
    int n_rows;
    /* Adds the whole forward pass to b->graph and leaves b->logits. Errors stay in the arena. */
    void (*build)(graph_build *b);
    /* Reads what only this family has into m->hp, after everything common; NULL: nothing. */
    sheaf_status (*read)(sheaf_model *m);
    bool layer_norm;        /* norms subtract the mean: another epsilon */
    bool norm_all_heads;    /* norms of queries and keys are over all heads, not over each */
    bool learned_positions; /* nothing is rotated, and there are as many positions as were trained */
    model_experts experts;
} model_arch;

/* NULL with SHEAF_E_UNSUPPORTED and the known names when there is none. */
sheaf_status model_arch_find(sheaf_str name, const char *path, const model_arch **out);
/* All families: a row for each, its model_NAME and its name in files. */
/* clang-format off */
#define MODEL_FAMILIES(X)     \
    X(deepseek2, "deepseek2") \
    X(gemma2, "gemma2")       \
    X(gemma3, "gemma3")       \
    X(gpt2, "gpt2")           \
    X(gpt_oss, "gpt-oss")     \
    X(llama, "llama")         \
    X(olmo2, "olmo2")         \
    X(olmoe, "olmoe")         \
    X(phi3, "phi3")           \
    X(qwen2, "qwen2")         \
    X(qwen3, "qwen3")         \
    X(qwen3moe, "qwen3moe")
/* clang-format on */
#define X(id, text) extern const model_arch model_##id;
MODEL_FAMILIES(X)
#undef X

/* --- model -------------------------------------------------------------------------------------------- */

struct sheaf_model {
    sheaf_gguf *gguf;
    const char *path; /* the gguf's */
    const model_arch *arch;
    sheaf_hparams hp;
    sheaf_layer_hparams *layers; /* hp.layer */
    bool *windowed; /* [n_layer], NULL: no layer is; attention of these sees the last hp.window positions only */
    int32_t n_windowed;
    sheaf_tokenizer *tokenizer; /* NULL: the file has no vocabulary */
    sheaf_str chat_template;

    sheaf_arena *arena;               /* headers of weights, nothing else */
    sheaf_tensor **weight;            /* [n_weights] [M2] */
    const sheaf_gguf_tensor **source; /* where its bytes are in the file */
    int32_t n_weights;
    int32_t global[W_COUNT]; /* number of each weight, -1: absent */
    int32_t *layer;          /* [n_layer][W_COUNT] */

    sheaf_arena *places;             /* run lists of the layouts */
    sheaf_placement *placement;      /* weights, then cache_k and cache_v of each layer [M2] */
    sheaf_named *named;              /* the same tensors as the policy saw them */
    char (*kv_name)[SHEAF_MAX_NAME]; /* [2 * n_layer] */
    int32_t *by_name;                /* numbers, ordered by name */
    int32_t n_named;
    sheaf_policy *policy;
    sheaf_shares shares;

    sheaf_device *device; /* the meta device, or the only one */
    bool no_data;         /* declared and placed only: contexts touch no memory either */
    bool is_meta;
    sheaf_device *host; /* ends every scheduler's array; the registry's */
    sheaf_device *members[SHEAF_MAX_DEVICES];
    int32_t n_members;
    sheaf_world *world; /* NULL: alone */
    int32_t n_world_devices;
    sheaf_buffer **buffers; /* of the weights */
    int32_t n_buffers;
    size_t weight_bytes; /* on a single device */
};

static inline sheaf_tensor *model_weight_at(sheaf_tensor *const *weight, int32_t i) { return i < 0 ? NULL : weight[i]; }

/* Elements of one head's cached value: latent values are a part of the key. */
static inline int32_t model_cached_v(const sheaf_model *m) { return m->hp.n_lora_kv ? 0 : m->hp.head_v; }

sheaf_status model_read_hparams(sheaf_model *m);
/* An integer key below the architecture's prefix; element `index` where the value is an array (-1: it must not be one).
 */
sheaf_status model_key_i64(const sheaf_model *m, const char *suffix, int64_t index, int64_t *out);
/* A finite float; *io stays when the key is absent. */
sheaf_status model_key_f32(const sheaf_model *m, const char *suffix, float *io);
/* Sliding window: its length, which layers have one, and the base of their rotation. `length` and `period` are what
 * holds where the file says nothing: of every `period` layers the last one sees everything; 0: none does. */
sheaf_status model_read_window(sheaf_model *m, int32_t length, int32_t period);
/* Latent attention (MLA), for a family's `read`: widths, the heads they stand for, the scale of scores. */
sheaf_status model_read_latents(sheaf_model *m);
sheaf_status model_declare_weights(sheaf_model *m);
sheaf_status model_open_devices(sheaf_model *m, const sheaf_model_options *o);
/* SHEAF_E_NO_MEMORY, naming the device and both numbers, when a member has less free than its shards of the
 * arena's tensors need: a later touch would be the system's to refuse. */
sheaf_status model_need_memory(const sheaf_model *m, const sheaf_arena *tensors);
sheaf_status model_place_tensors(sheaf_model *m, const sheaf_model_options *o);
sheaf_status model_load_weights(sheaf_model *m, const sheaf_model_options *o);
const sheaf_placement *model_placement_of(const sheaf_model *m, const char *name); /* NULL: unknown */
/* sheaf_meta_policy over a model's placements. */
sheaf_status model_layout_of(void *model, sheaf_arena *a, const sheaf_tensor *t, sheaf_layout *out);

/* --- graphs ------------------------------------------------------------------------------------------- */

/* What a graph reads from the caller. Cells and mask are NULL where all layers are windowed, those of windows where
 * none is. */
typedef struct graph_inputs {
    sheaf_tensor *tokens;                /* {n_tokens} i32 */
    sheaf_tensor *positions;             /* {n_tokens} i32 */
    sheaf_tensor *cells;                 /* {n_tokens} i64: which cell each token's key and value go to */
    sheaf_tensor *mask;                  /* {n_kv, n_tokens} f16: 0 or -inf */
    sheaf_tensor *window_cells, *window; /* {n_tokens}, {n_window, n_tokens}: the same for windowed layers */
    sheaf_tensor *outputs;               /* {n_out} i32: which tokens' logits are wanted; NULL: all, in order */
} graph_inputs;

/* [M4] */
typedef struct graph_key {
    int32_t n_tokens, n_kv, n_window, n_out; /* n_kv, n_window: cells that layers look at, those with a window */
    int32_t n_best;                          /* 0: rows of logits are read whole */
} graph_key;

struct graph_build {
    const sheaf_model *model;
    const sheaf_hparams *hp;
    sheaf_arena *arena;
    sheaf_graph *graph;
    sheaf_tensor *const *weight;  /* this context's headers [M1] */
    sheaf_tensor *const *cache_k; /* [n_layer] {head_k * its n_head_kv, its cells} */
    sheaf_tensor *const *cache_v;
    int32_t n_ctx; /* of the context: some families rotate otherwise in a long one */
    graph_key key;
    graph_inputs in;
    sheaf_tensor *logits; /* {n_vocab, n_out} */
    sheaf_tensor *best;   /* pairs of the best of each part of a row; NULL: none are wanted */
    sheaf_status status;  /* of sheaf_graph_expand */
};

/* Makes the input leafs of a graph. */
void graph_inputs_make(graph_build *b);

/* Shared layers. A weight that is absent (NULL) is left out where the format allows it. `il` is the layer, -1: none. */
sheaf_tensor *layer_weight(const graph_build *b, int il, model_weight w);
/* Puts a node (and what it needs) next in execution order: neighbours that run together stand together. */
void layer_emit(graph_build *b, sheaf_tensor *t);
sheaf_tensor *layer_named(sheaf_tensor *t, const char *name, int il);
/* w x, summed in the model's segments where w is row-parallel, and + bias if there is one. */
sheaf_tensor *layer_matmul(graph_build *b, int il, model_weight w, model_weight bias, sheaf_tensor *x);
sheaf_tensor *layer_embed(graph_build *b);
/* Attention over the cache, queries through the output projection; x is the normed input {n_embd, n_tokens}.
 * `select`: only the wanted tokens' results are projected. */
sheaf_tensor *layer_attention(graph_build *b, int il, sheaf_tensor *x, bool select);
/* act(gate) * up through the down projection. Without a weight for gate, up's holds both, gate first. */
sheaf_tensor *layer_ffn_gated(graph_build *b, int il, sheaf_tensor *x, sheaf_glu kind);
/* x / rms(x) * weight; x itself where the model has no such weight. */
sheaf_tensor *layer_rms_norm(graph_build *b, int il, sheaf_tensor *x, model_weight w, const char *name);
/* The output projection, soft cap and all: b->logits. */
void layer_logits(graph_build *b, sheaf_tensor *x);
/* The residual layers that most families are made of, and everything around them, down to the logits:
 *
 *     x = embed(tokens)
 *     each layer:  x += norm(attention(norm(x)));  x += norm(down(act(gate(n)) * up(n))), n = norm(x)
 *     logits = output(norm(x)), of the wanted tokens only; output is the embedding where the file has none
 *
 * Of the last layer only the wanted tokens go beyond attention. Norms that a family does not have are left out. */
void layer_decoder(graph_build *b, sheaf_glu kind);
/* residual + the feed-forward of x, dense or of experts as the layer is. */
sheaf_tensor *layer_ffn(graph_build *b, int il, sheaf_tensor *x, sheaf_tensor *residual, sheaf_glu kind);
/* The logits of normed columns. */
void layer_logits(graph_build *b, sheaf_tensor *x);
/* residual + the experts' and the shared experts' feed-forward of x {n_embd, n}, both in one sum (experts.c). */
sheaf_tensor *layer_ffn_experts(graph_build *b, int il, sheaf_tensor *x, sheaf_tensor *residual, sheaf_glu kind);
/* Elements that a row-parallel product by this weight sums in f32 at a time; the whole row where it is not cut. */
int32_t layer_segment(const graph_build *b, int il, model_weight w);
/* The wanted tokens' columns of x {n, n_tokens}; x itself when all are wanted. */
sheaf_tensor *layer_select(graph_build *b, sheaf_tensor *x);

/* --- KV cells ----------------------------------------------------------------------------------------- */

typedef struct kv_cells {
    int32_t n; /* cells */
    int32_t n_seq;
    int32_t *pos;   /* [n] position held, where seq says that one is */
    int32_t *seq;   /* [n] -1: free */
    int32_t used;   /* cells that are not free */
    int32_t high;   /* 1 + the highest cell in use */
    int32_t *next;  /* [n_seq] position after the last one */
    int32_t *ahead; /* [n_seq] the same while a batch is being checked; scratch */
    int32_t *count; /* [n_seq] cells held */
    int32_t *lost;  /* [n_seq] positions below this were given up: some of them have no cell any more */
    int32_t hand;   /* where the last one was given up */
} kv_cells;

sheaf_status kv_cells_init(kv_cells *k, int32_t n, int32_t n_seq);
void kv_cells_free(kv_cells *k);
void kv_cells_clear(kv_cells *k);
/* Takes the lowest free cell. There must be one. */
int32_t kv_cells_claim(kv_cells *k, int32_t seq, int32_t pos);
/* The same where tokens see the last `window` positions only: when no cell is free, one is given up that no coming
 * token of its sequence sees, those at next[its sequence] and after. */
int32_t kv_cells_claim_windowed(kv_cells *k, int32_t seq, int32_t pos, int32_t window, const int32_t *next);
void kv_cells_release(kv_cells *k, int32_t cell);
/* After releases: recomputes `high` and the next position of a sequence. */
void kv_cells_settle(kv_cells *k, int32_t seq);
/* Releases positions [p0, p1) of a sequence (p1 < 0: to the end), and settles. */
void kv_cells_remove(kv_cells *k, int32_t seq, int32_t p0, int32_t p1);
/* Where a sequence would go on without them; nothing changes. */
int32_t kv_cells_next_without(const kv_cells *k, int32_t seq, int32_t p0, int32_t p1);
/* Takes over n cells as (seq, pos) pairs, seq -1 for a free one; they have been checked. */
void kv_cells_load(kv_cells *k, const int32_t *pairs, int32_t n);
/* One row of the mask: what a token at (seq, pos) may see of cells [0, n_kv): positions up to its own, with a
 * `window` the last so many of them (0: all). */
void kv_cells_mask(const kv_cells *k, int32_t seq, int32_t pos, int32_t window, int32_t n_kv, uint16_t *row);

/* --- context ------------------------------------------------------------------------------------------ */

/* A batch with every default filled in; arrays of n_batch. */
typedef struct full_batch {
    int32_t n;
    int32_t *token, *pos, *seq;
    uint8_t *want;
    bool best;
} full_batch;

/* What the last decode brought out (outputs.c). */
typedef struct decode_outputs {
    int32_t n;          /* rows: wanted tokens */
    int32_t last;       /* of these, in the last micro-batch */
    int32_t whole_from; /* the first row that logits has; n: none */
    float *logits;      /* [capacity][n_vocab] */
    int32_t capacity;   /* rows */
    sheaf_best *best;   /* [best_capacity][n_best]; id -1 ends a row that has fewer */
    int32_t best_capacity;
    int32_t places; /* parts of the vocabulary whose best are found apart */
    int64_t *pairs; /* [places * n_best] one row as it is read */
    bool has_best;
} decode_outputs;

struct sheaf_context {
    sheaf_model *model;
    sheaf_context_options o;
    sheaf_backend *backend, *host;
    sheaf_sched *sched;

    sheaf_arena *arena; /* header copies of the weights [M1] */
    sheaf_tensor **weight;
    sheaf_arena *state; /* headers of the KV tensors */
    sheaf_tensor **cache_k, **cache_v;
    sheaf_buffer *kv;
    kv_cells cells;        /* every token's, n_ctx of them */
    kv_cells window_cells; /* of windowed layers, as many as windows and a micro-batch need [M5]; n 0: there are none */
    int32_t *claimed, *window_claimed; /* [n_batch] cells of the batch that runs [M3] */
    int32_t n_claimed;

    sheaf_arena *graphs[2]; /* by turn: the graph that the scheduler holds must outlive the next */
    int turn;
    graph_key key; /* of the graph that is allocated; n_tokens 0: none [M4] */
    graph_inputs in;
    sheaf_tensor *logits_node, *best_node;

    bool ready; /* every rank has made its own */
    full_batch batch;
    decode_outputs out;
    sheaf_context_stats stats;
    size_t *plan_compute, *plan_staging; /* [n_members] largest over the reserved plans */
};

/* Feeds the allocated graph: tokens [first, first + n) of c->batch, whose cells are c->claimed[first..). */
sheaf_status graph_inputs_fill(sheaf_context *c, int32_t first, int32_t n);
/* Runs c->batch, which is valid. */
sheaf_status context_run_batch(sheaf_context *c);
void context_kv_remove(sheaf_context *c, int32_t seq, int32_t p0, int32_t p1);
void context_kv_clear(sheaf_context *c);
int32_t context_layer_cells(const sheaf_context *c, int32_t il); /* rows of its KV cache */

/* Room for so many rows, and what making a graph needs to know. */
sheaf_status outputs_init(sheaf_context *c);
void outputs_free(sheaf_context *c);
sheaf_status outputs_reserve(sheaf_context *c, int32_t rows, bool best);
/* Marks what will be read of a graph that has b->logits, and adds what finds the best. */
void outputs_mark(const sheaf_context *c, graph_build *b);
/* Takes the next `rows` rows from the graph that was just computed. */
sheaf_status outputs_take(sheaf_context *c, int32_t rows);
/* sheaf_logits_fetch on every rank. */
sheaf_status outputs_fetch(sheaf_context *c);

/* What rank 0 does, told to the others; nothing when this process is alone. */
typedef enum follow_op {
    FOLLOW_DECODE,
    FOLLOW_REMOVE,
    FOLLOW_CLEAR,
    FOLLOW_LOGITS,
    FOLLOW_SAVE,
    FOLLOW_RESTORE,
    FOLLOW_END
} follow_op;
bool follow_leads(const sheaf_context *c); /* rank 0 of several */
sheaf_status follow_send_batch(sheaf_context *c);
sheaf_status follow_send(sheaf_context *c, follow_op op, int32_t a, int32_t b, int32_t d);
/* Bytes [offset, +n) of a tensor of which this process may have only a part: every rank gets them. Collective. */
sheaf_status follow_gather(sheaf_context *c, const sheaf_tensor *t, size_t offset, size_t n, void *out);
/* What a rank that follows does of a save and of a restore. */
sheaf_status state_follow_save(sheaf_context *c);
sheaf_status state_follow_restore(sheaf_context *c);
/* All ranks learn whether every one of them succeeded: a failure anywhere is a failure everywhere. */
sheaf_status follow_agree(sheaf_world *w, sheaf_status mine);

#endif
