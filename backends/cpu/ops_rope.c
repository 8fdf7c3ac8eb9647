/* Rotary positions. Sines and cosines of a token are the same for all heads, for queries and keys, and
 * for all layers: they are a step of their own whose table later rotations find again.
 *
 *   table[token][2*pair] = cos * m, table[token][2*pair + 1] = sin * m
 *
 * Angles are made in f64: an f32 angle is off by 1e-3 at position 10^4. */
#include "backends/cpu/program.h"

#include <math.h>
#include <string.h>

/* What a rotation's parameters fix for each pair: f64 frequency and YaRN's mix. */
typedef struct pair_constants {
    double frequency; /* base^(-2i/n) */
    double mix;       /* 0: interpolated positions, 1: as trained; times ext_factor */
} pair_constants;

typedef struct rope_constants {
    double freq_scale, magnitude;
    int32_t n_pairs;
    pair_constants pair[];
} rope_constants;

/* The pair whose wave makes `turns` turns over the trained context. */
static double pair_of_turns(const sheaf_params *p, double turns) {
    const double two_pi = 6.283185307179586;
    return (double)p->rope.n_dims * log((double)p->rope.n_ctx_orig / (turns * two_pi)) /
           (2.0 * log((double)p->rope.freq_base));
}

/* YaRN: pairs that turn often keep their speed, slow ones are stretched, a ramp lies between. */
static double yarn_mix(const sheaf_params *p, int32_t i) {
    if (p->rope.ext_factor == 0.0f || p->rope.n_ctx_orig <= 0) return 0.0;
    double low = fmax(0.0, floor(pair_of_turns(p, (double)p->rope.beta_fast)));
    double high = fmin((double)p->rope.n_dims - 1.0, ceil(pair_of_turns(p, (double)p->rope.beta_slow)));
    double ramp = ((double)i - low) / fmax(0.001, high - low);
    return (1.0 - fmin(1.0, fmax(0.0, ramp))) * (double)p->rope.ext_factor;
}

static rope_constants *make_constants(cpu_compiler *c, const sheaf_params *p) {
    int32_t n = p->rope.n_dims / 2;
    rope_constants *r = cpu_compiler_alloc(c, sizeof *r + (size_t)n * sizeof r->pair[0]);
    if (!r) return NULL;
    r->n_pairs = n;
    r->freq_scale = (double)p->rope.freq_scale;
    r->magnitude = (double)p->rope.attn_factor;
    if (p->rope.ext_factor != 0.0f) r->magnitude *= 1.0 + 0.1 * log(1.0 / r->freq_scale);
    for (int32_t i = 0; i < n; i++) {
        r->pair[i].frequency = pow((double)p->rope.freq_base, -2.0 * (double)i / (double)p->rope.n_dims);
        r->pair[i].mix = yarn_mix(p, i);
    }
    return r;
}

/* src[0] positions, src[1] frequency factors or NULL. */
static void run_table(const cpu_step *s, const cpu_task *t) {
    const rope_constants *r = s->table;
    const cpu_operand *pos = s->src[0];
    const float *factors = s->src[1] ? (const float *)cpu_at(t, s->src[1]) : NULL;
    float *table = (float *)cpu_region_at(t, s->region_out);
    double *angle = (double *)(void *)t->scratch;
    int64_t lo, hi;
    cpu_share(t, pos->ne[0], &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        double position = (double)*(const int32_t *)(cpu_at(t, pos) + (size_t)i * pos->nb[0]);
        for (int32_t k = 0; k < r->n_pairs; k++) {
            double trained = position * r->pair[k].frequency / (factors ? (double)factors[k] : 1.0);
            double stretched = trained * r->freq_scale;
            angle[k] = stretched + (trained - stretched) * r->pair[k].mix;
        }
        t->run->kernels->rotation(table + 2 * i * r->n_pairs, angle, r->magnitude, r->n_pairs);
    }
}

static void rotate_norm(float *out, const float *x, const float *cs, int32_t n_pairs) {
    for (int32_t i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[2 * i] = a * cs[2 * i] - b * cs[2 * i + 1];
        out[2 * i + 1] = a * cs[2 * i + 1] + b * cs[2 * i];
    }
}

static void rotate_neox(float *out, const float *x, const float *cs, int32_t n_pairs) {
    for (int32_t i = 0; i < n_pairs; i++) {
        float a = x[i], b = x[i + n_pairs];
        out[i] = a * cs[2 * i] - b * cs[2 * i + 1];
        out[i + n_pairs] = a * cs[2 * i + 1] + b * cs[2 * i];
    }
}

static void run_rope(const cpu_step *s, const cpu_task *t) {
    const float *table = (const float *)cpu_region_at(t, s->region_in);
    int32_t n_dims = s->params.rope.n_dims;
    int64_t lo, hi;
    int64_t per_part = cpu_rows(s->dst) / s->parts;
    cpu_share(t, s->parts, &lo, &hi);
    for (int64_t i = lo * per_part; i < hi * per_part; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        const float *x = (const float *)cpu_row_at(cpu_at(t, s->src[0]), s->src[0], r), *cs = table + r.i2 * n_dims;
        float *out = (float *)cpu_row_at(cpu_at(t, s->dst), s->dst, r);
        if (s->params.rope.kind == SHEAF_ROPE_NEOX)
            rotate_neox(out, x, cs, n_dims / 2);
        else
            rotate_norm(out, x, cs, n_dims / 2);
        if (out != x) memcpy(out + n_dims, x + n_dims, (size_t)(s->dst->ne[0] - n_dims) * sizeof *out);
    }
}

static bool is_f32_rows(const sheaf_tensor *x) { return x && x->type == SHEAF_F32 && sheaf_rows_contiguous(x); }

static bool supports_rope(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *pos = n->src[1], *factors = n->src[2];
    int32_t dims = n->params.rope.n_dims, kind = n->params.rope.kind;
    if (!is_f32_rows(n) || !is_f32_rows(x) || !sheaf_same_shape(n, x)) return false;
    if (!pos || pos->type != SHEAF_I32 || pos->ne[0] != x->ne[2] || sheaf_nrows(pos) != 1) return false;
    if (factors && (!is_f32_rows(factors) || factors->ne[0] < dims / 2)) return false;
    if (dims < 0 || dims / 2 > CPU_THREAD_SCRATCH / (int32_t)sizeof(double)) return false;
    return dims % 2 == 0 && dims <= x->ne[0] && (kind == SHEAF_ROPE_NORM || kind == SHEAF_ROPE_NEOX);
}

/* The table of these positions and parameters: an earlier one, or a new step. Its layout does not depend
 * on which pairs are rotated, so `kind` is left out of the key. */
static cpu_region *table_of(cpu_compiler *c, const sheaf_tensor *n) {
    sheaf_params *key = cpu_compiler_alloc(c, sizeof *key);
    if (!key) return NULL;
    *key = n->params;
    key->rope.kind = 0;
    cpu_region *r = cpu_cache_find(c, run_table, n->src[1], n->src[2], key);
    if (r) return r;
    r = cpu_region_new(c, (size_t)n->src[1]->ne[0] * (size_t)n->params.rope.n_dims * sizeof(float));
    rope_constants *constants = make_constants(c, &n->params);
    if (!r || !constants) return NULL;
    cpu_step *s = cpu_emit(c, n, run_table, NULL, n->src + 1, 2, n->src[1]->ne[0], NULL, r);
    if (!s) return NULL;
    s->table = constants;
    cpu_cache_add(c, run_table, n->src[1], n->src[2], key, r);
    return r;
}

static void lower_rope(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_region *table = table_of(c, n);
    if (table) cpu_emit(c, n, run_rope, n, n->src, 1, n->ne[3] == 1 ? n->ne[2] : sheaf_nrows(n), table, NULL);
}

const cpu_op cpu_op_ROPE = {supports_rope, lower_rope};
