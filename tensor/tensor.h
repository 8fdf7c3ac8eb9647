/* Tensors, the operations that produce them, graphs of them, and the arena that holds their headers.
 *
 * Nouns: a *tensor* (a header: type, shape, strides, how it is computed, where its bytes are), an
 * *arena* (owns headers; frees them in one piece) and a *graph* (nodes in execution order). A header
 * never owns its bytes: a buffer does (backends/backend.h). Dimension 0 is innermost, strides are in
 * bytes, a quantized row is whole blocks.
 *
 *     sheaf_arena *a;  sheaf_tensor *w, *x, *y;  sheaf_graph *g;
 *     sheaf_arena_new(1 << 16, &a);
 *     w = sheaf_new_2d(a, SHEAF_F32, 64, 32);   // 32 rows of 64
 *     x = sheaf_new_2d(a, SHEAF_F32, 64, 5);    // 5 columns (tokens)
 *     y = sheaf_mul_mat(a, w, x);               // {32, 5}
 *     if (!y) return sheaf_arena_status(a);     // first error of the arena, with its text
 *     sheaf_graph_new(a, 128, &g);
 *     sheaf_graph_expand(g, y);
 *
 * Errors: an op constructor that cannot make its result (shapes that do not fit, arena out of
 * memory, a NULL source) returns NULL and the arena keeps the first status and text; a NULL source
 * makes a NULL result, so a whole model may be built and checked once at its end.
 * Threads: an arena and its tensors belong to one thread at a time.
 */
#ifndef SHEAF_TENSOR_TENSOR_H
#define SHEAF_TENSOR_TENSOR_H

#include "tensor/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHEAF_MAX_DIMS = 4,
    SHEAF_MAX_SRC = 8,
    SHEAF_MAX_NAME = 64,
    SHEAF_MAX_PARAMS = 16, /* 32-bit words */
};

/* --- element types -------------------------------------------------------------------------- */

/* GGUF type ids (so that a file's number is ours), block elements, block bytes. F64 exists for
 * partial sums only: a row-parallel matmul's addends (M11). */
#define SHEAF_TYPE_TABLE(X)                                                                                            \
    X(F32, 0, "f32", 1, 4)                                                                                             \
    X(F16, 1, "f16", 1, 2)                                                                                             \
    X(Q4_0, 2, "q4_0", 32, 18)                                                                                         \
    X(Q4_1, 3, "q4_1", 32, 20)                                                                                         \
    X(Q5_0, 6, "q5_0", 32, 22)                                                                                         \
    X(Q5_1, 7, "q5_1", 32, 24)                                                                                         \
    X(Q8_0, 8, "q8_0", 32, 34)                                                                                         \
    X(Q2_K, 10, "q2_k", 256, 84)                                                                                       \
    X(Q3_K, 11, "q3_k", 256, 110)                                                                                      \
    X(Q4_K, 12, "q4_k", 256, 144)                                                                                      \
    X(Q5_K, 13, "q5_k", 256, 176)                                                                                      \
    X(Q6_K, 14, "q6_k", 256, 210)                                                                                      \
    X(IQ4_NL, 20, "iq4_nl", 32, 18)                                                                                    \
    X(IQ4_XS, 23, "iq4_xs", 256, 136)                                                                                  \
    X(I8, 24, "i8", 1, 1)                                                                                              \
    X(I16, 25, "i16", 1, 2)                                                                                            \
    X(I32, 26, "i32", 1, 4)                                                                                            \
    X(I64, 27, "i64", 1, 8)                                                                                            \
    X(F64, 28, "f64", 1, 8)                                                                                            \
    X(BF16, 30, "bf16", 1, 2)                                                                                          \
    X(MXFP4, 39, "mxfp4", 32, 17)

typedef enum sheaf_type {
#define X(name, id, text, block, bytes) SHEAF_##name = (id),
    SHEAF_TYPE_TABLE(X)
#undef X
        SHEAF_TYPE_COUNT = 64 /* ids are below this; holes are unsupported types */
} sheaf_type;

SHEAF_API bool sheaf_type_valid(int64_t id); /* false for holes, negative and foreign ids */
SHEAF_API const char *sheaf_type_name(sheaf_type t);
SHEAF_API bool sheaf_type_from_name(const char *name, sheaf_type *out); /* case-insensitive */
SHEAF_API int64_t sheaf_type_block(sheaf_type t);                       /* elements per block */
SHEAF_API size_t sheaf_type_bytes(sheaf_type t);                        /* bytes per block */
SHEAF_API bool sheaf_type_is_quantized(sheaf_type t);                   /* block > 1 */
/* Bytes of a row of n elements (n a multiple of the block), or SIZE_MAX if not a multiple / wraps. */
SHEAF_API size_t sheaf_row_bytes(sheaf_type t, int64_t n);

/* Reference conversions, bit-compatible with GGUF files in the wild. `n` a multiple of the block.
 * Encoded bytes are those that llama.cpp's quantizer writes for the same floats. Any thread. */
SHEAF_API sheaf_status sheaf_to_float(sheaf_type t, const void *src, float *dst, int64_t n);
SHEAF_API sheaf_status sheaf_from_float(sheaf_type t, const float *src, void *dst, int64_t n);
/* One row of n elements, where importance[i] (of n, at least 0; NULL: none) says how much the error of element i
 * matters. Types without a choice to make (plain numbers, q8_0, mxfp4) do not look at it. */
SHEAF_API sheaf_status sheaf_from_float_weighted(sheaf_type t, const float *src, void *dst, int64_t n,
                                                 const float *importance);
SHEAF_API float sheaf_f16_to_f32(uint16_t h);
SHEAF_API uint16_t sheaf_f32_to_f16(float f); /* round to nearest even */
SHEAF_API float sheaf_bf16_to_f32(uint16_t h);
SHEAF_API uint16_t sheaf_f32_to_bf16(float f); /* round to nearest even, NaN stays NaN */

/* --- operations ------------------------------------------------------------------------------ */

/* id, text, number of sources (minimum). Every op needs: a constructor here, a reference kernel in
 * backends/cpu/, a rule in splitstate/rules.c and a row in the op tests; each table is sized by
 * SHEAF_OP_COUNT and checked at compile time, so that an op without a row cannot be built. */
#define SHEAF_OP_TABLE(X)                                                                                              \
    X(NONE, "none", 0)                                                                                                 \
    X(VIEW, "view", 1)                                                                                                 \
    X(RESHAPE, "reshape", 1)                                                                                           \
    X(PERMUTE, "permute", 1)                                                                                           \
    X(TRANSPOSE, "transpose", 1)                                                                                       \
    X(CONT, "cont", 1)                                                                                                 \
    X(CPY, "cpy", 2)                                                                                                   \
    X(ADD, "add", 2)                                                                                                   \
    X(SUB, "sub", 2)                                                                                                   \
    X(MUL, "mul", 2)                                                                                                   \
    X(DIV, "div", 2)                                                                                                   \
    X(SCALE, "scale", 1)                                                                                               \
    X(UNARY, "unary", 1)                                                                                               \
    X(GLU, "glu", 2)                                                                                                   \
    X(RMS_NORM, "rms_norm", 1)                                                                                         \
    X(NORM, "norm", 1)                                                                                                 \
    X(SOFT_MAX, "soft_max", 1)                                                                                         \
    X(ROPE, "rope", 2)                                                                                                 \
    X(MUL_MAT, "mul_mat", 2)                                                                                           \
    X(GET_ROWS, "get_rows", 2)                                                                                         \
    X(SET_ROWS, "set_rows", 3)                                                                                         \
    X(ATTENTION, "attention", 3)                                                                                       \
    X(CONCAT, "concat", 2)                                                                                             \
    X(SUM_ROWS, "sum_rows", 1)                                                                                         \
    X(SUM_SQUARES, "sum_squares", 1)                                                                                   \
    X(RMS_NORM_BY, "rms_norm_by", 2)                                                                                   \
    X(FILL, "fill", 1)                                                                                                 \
    X(ARGMAX, "argmax", 1)                                                                                             \
    X(MUL_MAT_ID, "mul_mat_id", 3)                                                                                     \
    X(ADD_ID, "add_id", 3)                                                                                             \
    X(ARGSORT, "argsort", 1)                                                                                           \
    X(PICK, "pick", 2)                                                                                                 \
    X(BEST, "best", 1)                                                                                                 \
    X(ROUND, "round", 1)

typedef enum sheaf_op {
#define X(name, text, nsrc) SHEAF_OP_##name,
    SHEAF_OP_TABLE(X)
#undef X
        SHEAF_OP_COUNT
} sheaf_op;

SHEAF_API const char *sheaf_op_name(sheaf_op op);
/* VIEW, RESHAPE, PERMUTE, TRANSPOSE and NONE compute nothing: they are headers only. */
SHEAF_API bool sheaf_op_is_header(sheaf_op op);

typedef enum sheaf_unary {
    SHEAF_UNARY_SILU,
    SHEAF_UNARY_GELU,
    SHEAF_UNARY_GELU_ERF,
    SHEAF_UNARY_RELU,
    SHEAF_UNARY_SIGMOID,
    SHEAF_UNARY_TANH,
    SHEAF_UNARY_EXP,
    SHEAF_UNARY_NEG,
    SHEAF_UNARY_SQR,
    SHEAF_UNARY_COUNT
} sheaf_unary;
/* act(gate) * up. SWIGLU_OAI: g * sigmoid(alpha * g) * (u + 1), g = min(gate, limit), u = up kept in [-limit, limit].
 */
typedef enum sheaf_glu {
    SHEAF_GLU_SWIGLU,
    SHEAF_GLU_GEGLU,
    SHEAF_GLU_REGLU,
    SHEAF_GLU_SWIGLU_OAI, /* made of other kernels: those of backends/cpu/kernels.h come before it */
    SHEAF_GLU_COUNT
} sheaf_glu;
/* Which pairs a rotation takes: (2i, 2i+1) or (i, i + n/2). */
typedef enum sheaf_rope_kind { SHEAF_ROPE_NORM = 0, SHEAF_ROPE_NEOX = 2 } sheaf_rope_kind;
/* How a matmul accumulates. SEGMENTS: fixed segments of `segment` elements of dimension 0 are summed
 * in f32, everything above a segment in f64, so that any cut of dimension 0 at a segment border gives
 * the same bits (M11). A whole result is rounded to f32 once; a PARTIAL addend stays F64 (the plan
 * compiler sets the type of the shard's result). */
typedef enum sheaf_accumulate { SHEAF_ACC_DEFAULT = 0, SHEAF_ACC_SEGMENTS = 1 } sheaf_accumulate;

/* Parameters by op; everything else is zero. All fields are 32-bit words, so that a header can be
 * hashed and printed without knowing the op. */
typedef union sheaf_params {
    int32_t words[SHEAF_MAX_PARAMS];
    struct {
        int32_t dim[4];
    } permute; /* result dim[i] = source dim i */
    struct {
        float factor, bias;
    } scale; /* x*factor + bias */
    struct {
        int32_t kind;
    } unary; /* sheaf_unary */
    struct {
        int32_t kind;       /* sheaf_glu */
        float alpha, limit; /* SWIGLU_OAI */
    } glu;
    struct {
        float eps;
    } norm;
    struct {
        int32_t skip[2]; /* leading elements of each source's rows that count elsewhere (a shard's replicas) */
    } sum_squares;
    struct {
        float eps;
        int32_t index, length; /* element of sums; elements of a whole row, of which a shard has a part */
    } norm_by;
    struct {
        float scale, max_bias;
    } soft_max; /* soft_max(x*scale + slope*mask) */
    struct {
        int32_t kind, n_dims, n_ctx_orig; /* sheaf_rope_kind, rotated elements */
        float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    } rope;
    struct {
        int32_t accumulate, segment; /* sheaf_accumulate */
        int32_t over_used;           /* mul_mat_id: the experts of a token are summed */
    } mul_mat;
    struct {
        float scale, max_bias, soft_cap; /* cap 0: none */
        int32_t q_head0, n_head;         /* this shard's first query head and the whole model's count: */
        int32_t kv_head0, n_kv;          /* sinks and ALiBi slopes are indexed by global head. */
    } attention;
    struct {
        int32_t dim;
    } concat;
    struct {
        float value;
    } fill;
    struct {
        int32_t id_first;
    } rows; /* get_rows, set_rows: id of the table's row 0 (a shard of a cut table); ids outside are skipped */
    struct {
        int32_t k;                /* pairs a place */
        int32_t id_first, id_end; /* id of element 0 (of a shard); the first id that does not count */
    } best;
} sheaf_params;

/* --- the tensor ------------------------------------------------------------------------------- */

typedef struct sheaf_arena sheaf_arena;
typedef struct sheaf_buffer sheaf_buffer; /* backends/backend.h */
typedef struct sheaf_tensor sheaf_tensor;

enum sheaf_tensor_flag {
    SHEAF_FLAG_INPUT = 1 << 0,  /* the caller writes it before each compute */
    SHEAF_FLAG_OUTPUT = 1 << 1, /* the caller reads it after; its memory is never reused */
    SHEAF_FLAG_WEIGHT = 1 << 2, /* a parameter of the model */
    SHEAF_FLAG_STATE = 1 << 3,  /* lives from compute to compute and is written by the graph (KV) */
    SHEAF_FLAG_EXPORT = 1 << 5, /* the scheduler: read outside the piece that computes it */
    SHEAF_FLAG_EMPTY = 1 << 4,  /* a shard with no elements, or one that contributes zeros */
    SHEAF_FLAG_APART = 1 << 6,  /* with OUTPUT: stays as it lies, also over processes: nothing is gathered for it */
};

struct sheaf_tensor {
    sheaf_type type;
    sheaf_op op;
    uint32_t flags;
    int32_t index;              /* slot in the graph that was sealed last (leafs first); -1 outside */
    int64_t ne[SHEAF_MAX_DIMS]; /* elements */
    size_t nb[SHEAF_MAX_DIMS];  /* bytes from one index to the next; nb[0] of a block type is a block */
    sheaf_params params;
    sheaf_tensor *src[SHEAF_MAX_SRC];
    sheaf_tensor *view_src; /* for views: the root that owns the bytes (never itself a view) */
    size_t view_offs;       /* bytes from the root's first byte */
    sheaf_tensor *copy_of;  /* whose copy the scheduler made this */
    sheaf_buffer *buffer;   /* NULL until allocated */
    void *data;             /* address in the buffer (a reserved, unreadable range on a meta buffer) */
    void *ext;              /* owned by the buffer: for a meta buffer the layout and the shards */
    char name[SHEAF_MAX_NAME];
};

/* --- arena ------------------------------------------------------------------------------------ */

/* An arena of headers that grows in chunks of `chunk_bytes` and goes in one piece. */
SHEAF_API sheaf_status sheaf_arena_new(size_t chunk_bytes, sheaf_arena **out);
SHEAF_API void sheaf_arena_free(sheaf_arena *a); /* NULL is fine */
/* Forgets all that was allocated but keeps the memory: steady-state rebuilds call no malloc. */
SHEAF_API void sheaf_arena_reset(sheaf_arena *a);
SHEAF_API void *sheaf_arena_alloc(sheaf_arena *a, size_t size); /* zeroed, 16-byte aligned; NULL: arena status set */
SHEAF_API size_t sheaf_arena_used(const sheaf_arena *a);
/* First error since creation or reset; restores its text as this thread's error text. */
SHEAF_API sheaf_status sheaf_arena_status(const sheaf_arena *a);

/* Tensors of an arena in order of creation: start with NULL, NULL at the end. */
SHEAF_API sheaf_tensor *sheaf_arena_next(const sheaf_arena *a, const sheaf_tensor *previous);
SHEAF_API sheaf_tensor *sheaf_arena_find(const sheaf_arena *a, const char *name);

/* --- making tensors: leafs -------------------------------------------------------------------- */

SHEAF_API sheaf_tensor *sheaf_new(sheaf_arena *a, sheaf_type type, int n_dims, const int64_t *ne);
SHEAF_API sheaf_tensor *sheaf_new_1d(sheaf_arena *a, sheaf_type type, int64_t ne0);
SHEAF_API sheaf_tensor *sheaf_new_2d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1);
SHEAF_API sheaf_tensor *sheaf_new_3d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1, int64_t ne2);
SHEAF_API sheaf_tensor *sheaf_new_4d(sheaf_arena *a, sheaf_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                                     int64_t ne3);
SHEAF_API sheaf_tensor *sheaf_dup(sheaf_arena *a,
                                  const sheaf_tensor *t); /* same type and shape, contiguous, no bytes */
SHEAF_API sheaf_tensor *sheaf_set_name(sheaf_tensor *t, const char *format, ...)
    SHEAF_PRINTF(2, 3); /* returns t; NULL passes */
SHEAF_API sheaf_tensor *sheaf_set_flag(sheaf_tensor *t, uint32_t flags);

/* --- views: no bytes move --------------------------------------------------------------------- */

/* `offset` in bytes into `t`; nb1.. in bytes. Range checked against t's bytes. */
SHEAF_API sheaf_tensor *sheaf_view_1d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, size_t offset);
SHEAF_API sheaf_tensor *sheaf_view_2d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, size_t nb1,
                                      size_t offset);
SHEAF_API sheaf_tensor *sheaf_view_3d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, int64_t ne2,
                                      size_t nb1, size_t nb2, size_t offset);
SHEAF_API sheaf_tensor *sheaf_view_4d(sheaf_arena *a, sheaf_tensor *t, const int64_t ne[4], const size_t nb[4],
                                      size_t offset);
SHEAF_API sheaf_tensor *sheaf_reshape(sheaf_arena *a, sheaf_tensor *t, int n_dims,
                                      const int64_t *ne); /* t contiguous */
SHEAF_API sheaf_tensor *sheaf_reshape_1d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0);
SHEAF_API sheaf_tensor *sheaf_reshape_2d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1);
SHEAF_API sheaf_tensor *sheaf_reshape_3d(sheaf_arena *a, sheaf_tensor *t, int64_t ne0, int64_t ne1, int64_t ne2);
SHEAF_API sheaf_tensor *sheaf_permute(sheaf_arena *a, sheaf_tensor *t, int d0, int d1, int d2,
                                      int d3);                            /* source dim i becomes dim d_i */
SHEAF_API sheaf_tensor *sheaf_transpose(sheaf_arena *a, sheaf_tensor *t); /* swaps dimensions 0 and 1 */

/* --- ops: one node each. "broadcast": b's ne[i] divides a's ne[i]. ------------------------------ */

SHEAF_API sheaf_tensor *sheaf_cont(sheaf_arena *a, sheaf_tensor *t);
SHEAF_API sheaf_tensor *sheaf_cpy(sheaf_arena *a, sheaf_tensor *t,
                                  sheaf_tensor *into); /* result is a view of `into`; types convert */
SHEAF_API sheaf_tensor *sheaf_add(sheaf_arena *a, sheaf_tensor *x,
                                  sheaf_tensor *y); /* f32, y broadcasts; or both F64 of one shape */
SHEAF_API sheaf_tensor *sheaf_sub(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y);
SHEAF_API sheaf_tensor *sheaf_mul(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y);
SHEAF_API sheaf_tensor *sheaf_div(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y);
SHEAF_API sheaf_tensor *sheaf_scale(sheaf_arena *a, sheaf_tensor *x, float factor, float bias);
SHEAF_API sheaf_tensor *sheaf_unary_op(sheaf_arena *a, sheaf_tensor *x, sheaf_unary kind);
SHEAF_API sheaf_tensor *sheaf_glu_op(sheaf_arena *a, sheaf_tensor *gate, sheaf_tensor *up, sheaf_glu kind);
SHEAF_API sheaf_tensor *sheaf_rms_norm(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *weight,
                                       float eps); /* weight {ne0} f32 or NULL */
SHEAF_API sheaf_tensor *sheaf_norm(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *weight, sheaf_tensor *bias,
                                   float eps); /* layer norm */
SHEAF_API sheaf_tensor *sheaf_soft_max(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *mask, float scale,
                                       float max_bias); /* over dim 0; mask f32 or f16, NULL: none */
/* x {head, n_head, n_tokens} f32; pos {n_tokens} i32; freq_factors {n_dims/2} f32 or NULL. YaRN by
 * the field's usual parameters (ext_factor 0: off). Params as in sheaf_params.rope. */
SHEAF_API sheaf_tensor *sheaf_rope(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *pos, sheaf_tensor *freq_factors,
                                   const sheaf_params *params);
/* w {k, m, b2, b3}, x {k, n, b2', b3'} f32 -> {m, n, b2', b3'} f32; w broadcasts over batch dimensions. */
SHEAF_API sheaf_tensor *sheaf_mul_mat(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x);
/* Marks a mul_mat or mul_mat_id node as row-parallel: see SHEAF_ACC_SEGMENTS. `segment` divides k and is a multiple of
 * w's block. Returns node. */
SHEAF_API sheaf_tensor *sheaf_mul_mat_segments(sheaf_arena *a, sheaf_tensor *node, int32_t segment);
/* table {ne0, n_rows}, ids {n} i32 -> {ne0, n} f32. An id outside [0, n_rows) is the caller's error
 * and gives a row of zeros (which is what a masked lookup in a cut vocabulary needs). */
SHEAF_API sheaf_tensor *sheaf_get_rows(sheaf_arena *a, sheaf_tensor *table, sheaf_tensor *ids);
/* into {ne0, n_rows} any type with an encoder, rows {ne0, n} f32, ids {n} i64: writes rows; result is a view of `into`.
 * Ids outside are skipped. */
SHEAF_API sheaf_tensor *sheaf_set_rows(sheaf_arena *a, sheaf_tensor *into, sheaf_tensor *rows, sheaf_tensor *ids);
/* Online-softmax attention without an L x L buffer.
 * q {head, n_tokens, n_head} f32 (any strides with nb[0] = 4), k {head, n_kv, n_head_kv}, v {head_v, n_kv, n_head_kv}
 * (f32, f16, bf16 or a quantized KV type), mask {n_kv, n_tokens} f16 or f32 or NULL (-inf: hidden), sinks {n_head} f32
 * or NULL
 * -> {head_v, n_head, n_tokens} f32. Query head h reads KV head h / (n_head/n_head_kv), by GLOBAL heads
 * (params.attention), so that a shard with 5 of 9 heads finds its KV heads. soft_cap is applied before the mask. */
SHEAF_API sheaf_tensor *sheaf_attention(sheaf_arena *a, sheaf_tensor *q, sheaf_tensor *k, sheaf_tensor *v,
                                        sheaf_tensor *mask, sheaf_tensor *sinks, float scale, float max_bias,
                                        float soft_cap);
SHEAF_API sheaf_tensor *sheaf_concat(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y, int dim);
SHEAF_API sheaf_tensor *sheaf_sum_rows(sheaf_arena *a, sheaf_tensor *x); /* {1, ne1, ne2, ne3} */
/* Squares of a row's elements, each rounded to f32, summed in f64 and rounded once, so that any cut of the rows gives
 * the same bits: x {n, rows...}, y {m, rows...} or NULL, f32 -> {2, rows...}, {1, rows...} without y. */
SHEAF_API sheaf_tensor *sheaf_sum_squares(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *y);
/* rms_norm of rows whose sum of squares is known: element `index` of sums {k, rows...}. For rows that lie cut over
 * devices: what must be summed between them is one number a row. weight {n} f32 or NULL. */
SHEAF_API sheaf_tensor *sheaf_rms_norm_by(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *sums, int index,
                                          sheaf_tensor *weight, float eps);
SHEAF_API sheaf_tensor *sheaf_fill(sheaf_arena *a, sheaf_tensor *into, float value); /* result is a view of `into` */
SHEAF_API sheaf_tensor *sheaf_argmax(sheaf_arena *a, sheaf_tensor *x);               /* {ne1} i32; ties: lowest index */

/* --- mixtures of experts ------------------------------------------------------------------------- */

/* swiglu with clamped parts: see SHEAF_GLU_SWIGLU_OAI. */
SHEAF_API sheaf_tensor *sheaf_swiglu_oai(sheaf_arena *a, sheaf_tensor *gate, sheaf_tensor *up, float alpha,
                                         float limit);
/* x {n, n_tokens} f32 -> {k, n_tokens} i32: where the k largest of each column are, largest first; ties by the lower
 * index, NaN after everything else. k = n sorts all. */
SHEAF_API sheaf_tensor *sheaf_top_k(sheaf_arena *a, sheaf_tensor *x, int64_t k);
/* x {n, rows} f32 -> {k * places, rows} i64: the k best of elements [0, n_ids) of each row as (value, id) pairs, in
 * the order of sheaf_top_k, ids counted from 0. Where x is cut along dimension 0 over as many devices as there are
 * places, each device writes the k best of its own part to its place, so that what must be moved is k pairs a device
 * and not the row; else place 0 has all. Either way the k best of the row are among the pairs, each once, and each
 * place is in order, filled up with pairs of id -1. k in [1, SHEAF_MAX_BEST]. */
enum { SHEAF_MAX_BEST = 1024 };
SHEAF_API sheaf_tensor *sheaf_best_of(sheaf_arena *a, sheaf_tensor *x, int64_t n_ids, int32_t k, int32_t places);
static inline int64_t sheaf_best_pair(float value, int32_t id) {
    union {
        float f;
        uint32_t u;
    } bits = {value};
    return (int64_t)((uint64_t)bits.u << 32 | (uint32_t)id);
}
static inline int32_t sheaf_best_id(int64_t pair) { return (int32_t)(uint32_t)(uint64_t)pair; }
static inline float sheaf_best_value(int64_t pair) {
    union {
        uint32_t u;
        float f;
    } bits = {(uint32_t)((uint64_t)pair >> 32)};
    return bits.f;
}
/* x {n, n_tokens} f32, ids {k, n_tokens} i32 -> {k, n_tokens} f32: element ids[j, t] of column t; 0 for an id outside.
 */
SHEAF_API sheaf_tensor *sheaf_pick(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *ids);
/* w {k, m, n_expert}, x {k, 1 or n_used, n_tokens} f32, ids {n_used, n_tokens} i32 -> {m, n_used, n_tokens} f32: column
 * (j, t) is w[ids[j, t]] x[j, t], or x[0, t] where x has one column a token. An id outside gives zeros. */
SHEAF_API sheaf_tensor *sheaf_mul_mat_id(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x, sheaf_tensor *ids);
/* The same, x {k, n_used, n_tokens}, summed over a token's experts -> {m, n_tokens} F64, in segments as below. The sum
 * is not rounded: see sheaf_unrounded. Scale x, not the result, to weight the experts. */
SHEAF_API sheaf_tensor *sheaf_mul_mat_id_sum(sheaf_arena *a, sheaf_tensor *w, sheaf_tensor *x, sheaf_tensor *ids,
                                             int32_t segment);
/* x {n, n_used, n_tokens} f32, rows {n, n_expert} f32, ids {n_used, n_tokens} i32: x + rows[ids]; an id outside adds
 * nothing. */
SHEAF_API sheaf_tensor *sheaf_add_id(sheaf_arena *a, sheaf_tensor *x, sheaf_tensor *rows, sheaf_tensor *ids);
/* Makes the result of a mul_mat with segments F64: a sum that still grows. Such sums are added by sheaf_add (both F64)
 * and end in sheaf_round; over a cut weight all of them are one collective. Returns node. */
SHEAF_API sheaf_tensor *sheaf_unrounded(sheaf_arena *a, sheaf_tensor *node);
SHEAF_API sheaf_tensor *sheaf_round(sheaf_arena *a, sheaf_tensor *x); /* F64 -> f32 */

/* --- asking ------------------------------------------------------------------------------------ */

SHEAF_API int64_t sheaf_nelements(const sheaf_tensor *t);
SHEAF_API int64_t sheaf_nrows(const sheaf_tensor *t); /* ne1*ne2*ne3 */
SHEAF_API size_t sheaf_nbytes(const sheaf_tensor *t); /* first to last byte touched, strides included; 0 if empty */
SHEAF_API bool sheaf_is_contiguous(const sheaf_tensor *t);
SHEAF_API bool sheaf_rows_contiguous(const sheaf_tensor *t); /* nb[0] is the type's size */
SHEAF_API bool sheaf_is_permuted(const sheaf_tensor *t);
SHEAF_API bool sheaf_same_shape(const sheaf_tensor *x, const sheaf_tensor *y);
SHEAF_API bool sheaf_can_broadcast(const sheaf_tensor *small, const sheaf_tensor *big);
SHEAF_API sheaf_tensor *sheaf_root(sheaf_tensor *t); /* view_src or t */
/* May this op write its result over its first source when that dies here? */
SHEAF_API bool sheaf_op_can_inplace(sheaf_op op);
SHEAF_API const char *sheaf_shape_text(const sheaf_tensor *t, char *buf, size_t n); /* "[64, 32]"; returns buf */

/* --- graph ------------------------------------------------------------------------------------- */

typedef struct sheaf_graph {
    sheaf_tensor **nodes; /* execution order; views are nodes too (headers, not computed) */
    sheaf_tensor **leafs; /* what no node of the graph produces: weights, state, inputs */
    int32_t n_nodes, n_leafs, capacity;
    int32_t *use_counts; /* [leafs then nodes], by tensor->index: how many nodes read it */
    uint64_t shape_id;   /* changes when ops, shapes, parameters (or layouts) change; see sheaf_graph_seal */
    uint64_t bind_id;    /* changes when an address does */
    struct sheaf_hash_set *visited;
    sheaf_arena *arena;
} sheaf_graph;

/* A graph in the arena; it grows beyond `capacity` by itself. */
SHEAF_API sheaf_status sheaf_graph_new(sheaf_arena *a, int32_t capacity, sheaf_graph **out);
/* Adds `t` and all it needs, dependencies first (iterative: no recursion on input depth). */
SHEAF_API sheaf_status sheaf_graph_expand(sheaf_graph *g, sheaf_tensor *t);
/* Appends `t` alone, without its sources: for whoever writes a part of another graph, or a shard's own
 * graph, in an order already known. A leaf may then be a tensor that another graph computes. */
SHEAF_API sheaf_status sheaf_graph_add(sheaf_graph *g, sheaf_tensor *t, bool as_leaf);
/* Numbers all tensors (index), counts uses, and computes shape_id as a hash over the structure.
 * Call after the last expand; a graph that is edited afterwards must be sealed again. */
SHEAF_API sheaf_status sheaf_graph_seal(sheaf_graph *g);
/* Recomputes bind_id from the data pointers of all leafs and nodes. */
SHEAF_API void sheaf_graph_rebind(sheaf_graph *g);
/* tensor by slot: [0, n_leafs) leafs, then nodes */
static inline sheaf_tensor *sheaf_graph_slot(const sheaf_graph *g, int32_t i) {
    return i < g->n_leafs ? g->leafs[i] : g->nodes[i - g->n_leafs];
}
SHEAF_API sheaf_tensor *sheaf_graph_find(const sheaf_graph *g, const char *name);
/* Every rule of a graph (order, sources inside, shapes, view roots, use counts): SHEAF_E_INTERNAL with the rule broken.
 */
SHEAF_API sheaf_status sheaf_graph_check(const sheaf_graph *g);

#ifdef __cplusplus
}
#endif
#endif
