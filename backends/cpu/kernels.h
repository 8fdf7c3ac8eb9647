/* The fast kernels of the CPU backend: one table per instruction level, filled at start by what
 * CPUID and XCR0 say (levels.c). Private to backends/cpu/ and its tests.
 *
 * A kernel here is single-threaded and works on a range that its caller gives it; who threads, and
 * where work is cut, is the caller's affair (ops and prepare). No kernel's order of addition depends
 * on the range it is given, on the number of threads, or on the shard's size: element (m, n) of a
 * matmul is computed by the same additions wherever the tile's borders lie (invariant K1; M11 rests
 * on it). Across *levels* the bits may differ.
 *
 * Every entry has a portable version (kernels_portable.c) that is the reference in the tests.
 */
#ifndef SHEAF_CPU_KERNELS_H
#define SHEAF_CPU_KERNELS_H

#include "tensor/tensor.h"

typedef enum cpu_level { CPU_LEVEL_PORTABLE, CPU_LEVEL_AVX2, CPU_LEVEL_AVX512, CPU_LEVEL_COUNT } cpu_level;

/* How a matmul wants its activations (columns of src1, k elements each):
 *   F32    as they are
 *   Q8     blocks of 32, symmetric (d = amax/127), the parts of a column one after another as below; for every
 *          quantized type that has an integer kernel, 256-element superblocks included */
typedef enum cpu_act { CPU_ACT_F32, CPU_ACT_Q8 } cpu_act;

/* A Q8 column of k elements (k a multiple of 32), each part 64-byte aligned:
 *
 *     q[k] int8 | d[k/32] f32 | s[k/32] f32 = d*sum(q) | n32[k/32] int32 = -sum(q) | n16[k/16] int32 = -sum of 16
 *
 * The negated integer sums undo the offset of weights kept unsigned (w + 8, + 16, + 32, + 128). */
static inline size_t cpu_act_pad(size_t n) { return (n + 63) & ~(size_t)63; }
static inline size_t cpu_act_scales_at(int64_t k) { return cpu_act_pad((size_t)k); }
static inline size_t cpu_act_sums_at(int64_t k) { return cpu_act_scales_at(k) + cpu_act_pad((size_t)k / 8); }
static inline size_t cpu_act_n32_at(int64_t k) { return cpu_act_sums_at(k) + cpu_act_pad((size_t)k / 8); }
static inline size_t cpu_act_n16_at(int64_t k) { return cpu_act_n32_at(k) + cpu_act_pad((size_t)k / 8); }
/* Bytes from one column to the next. Reads may run up to 64 bytes past a part, never past this. */
static inline size_t cpu_act_bytes(cpu_act a, int64_t k) {
    return a == CPU_ACT_F32 ? (size_t)k * 4 : cpu_act_n16_at(k) + cpu_act_pad((size_t)k / 4);
}

/* One matmul: out[n][m] = sum_k w[m][k] * x[n][k] for m in [m0, m1), n in [n0, n1). */
typedef struct cpu_mm {
    const void *w;
    size_t w_row; /* bytes between rows of w */
    const void *x;
    size_t x_col; /* bytes between columns in the activation format of the type */
    void *out;
    size_t out_col; /* bytes between columns of the result */
    int64_t k;
    int64_t n_total; /* columns of the whole op (0: n1): few columns go row by row, many by tiles, and which of the
                      * two must not depend on how the op was cut */
    int32_t segment; /* 0: plain f32 sums; else elements per f32 segment, f64 above (SHEAF_ACC_SEGMENTS) */
    bool out_f64;    /* store the f64 sum (a PARTIAL addend) instead of rounding to f32 */
    void *scratch;   /* cpu_mm_scratch bytes, this thread's own */
} cpu_mm;

enum { CPU_MM_SCRATCH = 384 * 1024 }; /* per thread: room for unpacked tiles of w */

typedef void (*cpu_mm_fn)(const cpu_mm *a, int64_t m0, int64_t m1, int64_t n0, int64_t n1);

/* Attention for one query head and one token range over a range of KV positions is folded with online
 * softmax over chunks of CPU_ATTN_CHUNK positions, always cut at multiples of it from position 0, so the
 * result does not depend on who computes what. */
enum { CPU_ATTN_CHUNK = 64 };

typedef struct cpu_attn {
    const float *q;
    size_t q_token, q_head; /* byte strides; head_k f32 each */
    const char *k;
    size_t k_pos, k_head;
    sheaf_type k_type;
    const char *v;
    size_t v_pos, v_head;
    sheaf_type v_type;
    const char *mask;
    size_t mask_token;
    sheaf_type mask_type; /* NULL: none */
    float *out;
    size_t out_token, out_head; /* head_v f32 each */
    int32_t head_k, head_v, n_kv, n_tokens;
    float scale, soft_cap;
    int32_t q_head0, kv_head0, heads_per_kv; /* global numbering: see sheaf_params.attention */
    const float *sinks;                      /* by global head, or NULL */
    float slope_base;
    int32_t n_head; /* ALiBi: max_bias, whole model's heads */
    void *scratch;  /* this thread's, CPU_ATTN_SCRATCH bytes */
} cpu_attn;
enum { CPU_ATTN_SCRATCH = 512 * 1024 };

typedef struct cpu_kernels {
    cpu_level level;
    const char *name;
    /* matmul by weight type; NULL: not in this level, the next lower one serves (filled in by levels.c) */
    struct {
        cpu_act act;
        cpu_mm_fn mul;
    } mm[SHEAF_TYPE_COUNT];
    void (*quantize_q8)(const float *x, void *column, int64_t k); /* the layout above */
    /* local head range [h0, h1) of this shard and token range [t0, t1) */
    void (*attention)(const cpu_attn *a, int32_t h0, int32_t h1, int32_t t0, int32_t t1);
    /* rows of n contiguous f32 unless said otherwise */
    void (*add)(float *out, const float *x, const float *y, int64_t n);
    void (*mul)(float *out, const float *x, const float *y, int64_t n);
    void (*scale)(float *out, const float *x, float factor, float bias, int64_t n);
    void (*glu)(float *out, const float *gate, const float *up, int64_t n, sheaf_glu kind);
    void (*unary)(float *out, const float *x, int64_t n, sheaf_unary kind);
    void (*rms_norm)(float *out, const float *x, const float *weight, int64_t n, float eps); /* sum of squares in f64 */
    void (*sum_f64)(float *out, const double *x, const double *y, const float *residual, int64_t n); /* backend.h */
    void (*rotation)(float *cs, const double *angle, double magnitude, int64_t n); /* cos, sin, cos, sin, ... */
    void (*soft_max)(float *out, const float *x, const float *mask, float scale, float slope, int64_t n);
    void (*to_float[SHEAF_TYPE_COUNT])(const void *src, float *dst, int64_t n); /* NULL: sheaf_to_float */
} cpu_kernels;

/* The table of `level` (lower levels fill its holes). NULL when this machine lacks it. */
const cpu_kernels *cpu_kernels_get(cpu_level level);
cpu_level cpu_level_best(void);
/* "portable", "avx2", "avx512"; SHEAF_E_ARGUMENT for an unknown name or a level the machine lacks. */
sheaf_status cpu_level_from_name(const char *name, cpu_level *out);
const char *cpu_level_name(cpu_level l);

/* one per level: kernels_portable.c, kernels_avx2*.c, kernels_avx512*.c write their entries over what is there */
void cpu_kernels_portable(cpu_kernels *t);
void cpu_kernels_avx2(cpu_kernels *t);
void cpu_kernels_avx512(cpu_kernels *t);

#endif
