/* Encoders of the super-blocks of 256: q2_k to q6_k. Layouts are drawn in kquants.c, searches are quants_fit.c's.
 *
 * Each group is fitted on its own; the groups' steps (and minima) are then rounded to the few bits that the
 * super-block has for them; codes are chosen last, against what a reader will see. With importance the second
 * step is a search too. */
#include "tensor/quants_fit.h"
#include "tensor/quants_internal.h"

/* Weight of each element, and their sum per group: importance * sqrt(spread + x^2). */
static void importance_weights(const float *x, const float *importance, float spread, int group, float *w,
                               float *group_sum) {
    for (int g = 0; g < SUPER_BLOCK / group; g++) {
        group_sum[g] = 0;
        for (int i = g * group; i < (g + 1) * group; i++) {
            w[i] = importance[i] * sqrtf(spread + x[i] * x[i]);
            group_sum[g] += w[i];
        }
    }
}

static float sum_of_squares(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

static float largest(const float *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > most) most = x[i];
    return most;
}

/* --- steps and minima: q2_k, q4_k, q5_k --- */

typedef struct affine_kind {
    int group, top;    /* elements of a group; largest code of an element */
    int pair_top;      /* largest code of a step or minimum */
    fit_search plain;  /* without importance */
    bool by_magnitude; /* plain weights |x|; else the group's root mean square + |x| */
    float spread;      /* of the mean square, in importance weights */
} affine_kind;

static const affine_kind q2_k = {16, 3, 15, {-0.5f, 0.1f, 15, true}, true, 1};
static const affine_kind q4_k = {32, 15, 63, {-1.0f, 0.1f, 20, false}, false, 2};
static const affine_kind q5_k = {32, 31, 63, {-0.5f, 0.1f, 15, false}, false, 2};

typedef struct affine_block {
    uint8_t scale[16], min[16], code[SUPER_BLOCK];
} affine_block;

static void plain_weights(const affine_kind *k, const float *x, float *w) {
    float base = k->by_magnitude ? 0 : sqrtf(sum_of_squares(x, k->group) / (float)k->group);
    for (int i = 0; i < k->group; i++) w[i] = base + fabsf(x[i]);
}

/* Rounds values to codes of the largest, whose share is stored as a half at `d`. */
static void round_to_largest(const float *v, int n, int top, uint8_t *d, uint8_t *code) {
    float most = largest(v, n), inverse = most > 0 ? (float)top / most : 0;
    for (int g = 0; g < n; g++) code[g] = (uint8_t)fit_nearest(inverse * v[g], 0, top);
    store_f16(d, most > 0 ? most / (float)top : 0);
}

/* Codes of the elements, against steps and minima as they are stored. */
static void affine_codes(const affine_kind *k, const float *x, float d, float dmin, affine_block *b) {
    for (int g = 0; g < SUPER_BLOCK / k->group; g++) {
        float step = d * (float)b->scale[g], min = dmin * (float)b->min[g];
        if (step == 0) continue; /* the fit's codes stay: a reader sees -min whatever they are */
        for (int i = g * k->group; i < (g + 1) * k->group; i++)
            b->code[i] = (uint8_t)fit_nearest((x[i] + min) / step, 0, k->top);
    }
}

/* One super-block: halves at d and dmin, the rest in *b. */
static void encode_affine(const affine_kind *k, const float *x, const float *importance, uint8_t *d, uint8_t *dmin,
                          affine_block *b) {
    static const fit_search fine = {-0.9f, 0.05f, 36, false};
    float w[SUPER_BLOCK], group_sum[16], steps[16], mins[16];
    int n = SUPER_BLOCK / k->group;
    if (importance)
        importance_weights(x, importance, k->spread * sum_of_squares(x, SUPER_BLOCK) / SUPER_BLOCK, k->group, w,
                           group_sum);
    for (int g = 0; g < n; g++) {
        int at = g * k->group;
        if (!importance) plain_weights(k, x + at, w + at);
        steps[g] =
            sheaf_fit_affine(x + at, w + at, k->group, k->top, importance ? &fine : &k->plain, b->code + at, &mins[g]);
    }
    if (importance) {
        store_f16(d, sheaf_fit_positive(steps, group_sum, n, k->pair_top, b->scale));
        store_f16(dmin, sheaf_fit_positive(mins, group_sum, n, k->pair_top, b->min));
    } else {
        round_to_largest(steps, n, k->pair_top, d, b->scale);
        round_to_largest(mins, n, k->pair_top, dmin, b->min);
    }
    affine_codes(k, x, load_f16(d), load_f16(dmin), b);
}

static const float *next(const float *importance) { return importance ? importance + SUPER_BLOCK : NULL; }

void sheaf_encode_q2_k(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    affine_block b;
    for (; n > 0; n -= SUPER_BLOCK, dst += 84, src += SUPER_BLOCK, importance = next(importance)) {
        encode_affine(&q2_k, src, importance, dst + 80, dst + 82, &b);
        memset(dst, 0, 80);
        for (int g = 0; g < 16; g++) dst[g] = (uint8_t)(b.scale[g] | b.min[g] << 4);
        for (int i = 0; i < SUPER_BLOCK; i++)
            dst[16 + 32 * (i / 128) + i % 32] |= (uint8_t)(b.code[i] << (i % 128 / 32 * 2));
    }
}

static void pack_pair(uint8_t *p, int j, int scale, int min) {
    if (j < 4) {
        p[j] |= (uint8_t)scale;
        p[j + 4] |= (uint8_t)min;
    } else {
        p[j + 4] |= (uint8_t)((scale & 15) | (min & 15) << 4);
        p[j - 4] |= (uint8_t)(scale >> 4 << 6);
        p[j] |= (uint8_t)(min >> 4 << 6);
    }
}

void sheaf_encode_q4_k(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    affine_block b;
    for (; n > 0; n -= SUPER_BLOCK, dst += 144, src += SUPER_BLOCK, importance = next(importance)) {
        encode_affine(&q4_k, src, importance, dst, dst + 2, &b);
        memset(dst + 4, 0, 140);
        for (int g = 0; g < 8; g++) pack_pair(dst + 4, g, b.scale[g], b.min[g]);
        for (int i = 0; i < SUPER_BLOCK; i++)
            dst[16 + i / 64 * 32 + i % 32] |= (uint8_t)(b.code[i] << (i / 32 % 2 * 4));
    }
}

void sheaf_encode_q5_k(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    affine_block b;
    for (; n > 0; n -= SUPER_BLOCK, dst += 176, src += SUPER_BLOCK, importance = next(importance)) {
        encode_affine(&q5_k, src, importance, dst, dst + 2, &b);
        memset(dst + 4, 0, 172);
        for (int g = 0; g < 8; g++) pack_pair(dst + 4, g, b.scale[g], b.min[g]);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            dst[48 + i / 64 * 32 + i % 32] |= (uint8_t)((b.code[i] & 15) << (i / 32 % 2 * 4));
            dst[16 + i % 32] |= (uint8_t)(b.code[i] >> 4 << (i / 32));
        }
    }
}

/* --- signed steps: q3_k, q6_k --- */

/* Codes of the elements in groups of 16, against steps as they are stored. */
static void signed_codes(const float *x, float d, const int scale[16], int half, uint8_t *code) {
    for (int g = 0; g < 16; g++) {
        float step = d * (float)scale[g];
        if (step == 0) continue; /* the fit's codes stay: a reader sees 0 whatever they are */
        for (int i = 16 * g; i < 16 * (g + 1); i++)
            code[i] = (uint8_t)(half + fit_nearest(x[i] / step, -half, half - 1));
    }
}

/* Rounds signed steps to codes lo..hi with the extreme one on lo, or all on lo when there is none; the half at `d`. */
static void round_to_extreme(const float *steps, int lo, int hi, uint8_t *d, int *scale) {
    float top = sheaf_extreme(steps, 16), inverse = top != 0 ? (float)lo / top : 0;
    for (int g = 0; g < 16; g++) scale[g] = top != 0 ? fit_nearest(inverse * steps[g], lo, hi) : lo;
    store_f16(d, top != 0 ? 1 / inverse : 0);
}

static void q3_k_scales(const float *x, const float *importance, uint8_t *d, int scale[16], uint8_t *code) {
    float w[SUPER_BLOCK], group_sum[16], steps[16];
    if (!importance) {
        for (int g = 0; g < 16; g++) steps[g] = sheaf_fit_signed_by_codes(x + 16 * g, 16, 4, code + 16 * g);
        round_to_extreme(steps, -32, 31, d, scale);
        return;
    }
    uint8_t rounded[16];
    importance_weights(x, importance, 2 * sum_of_squares(x, SUPER_BLOCK) / SUPER_BLOCK, 16, w, group_sum);
    for (int g = 0; g < 16; g++) steps[g] = sheaf_fit_signed(x + 16 * g, w + 16 * g, 16, 4, code + 16 * g);
    store_f16(d, sheaf_fit_signed(steps, group_sum, 16, 32, rounded));
    for (int g = 0; g < 16; g++) scale[g] = rounded[g] - 32;
}

void sheaf_encode_q3_k(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[SUPER_BLOCK];
    int scale[16];
    for (; n > 0; n -= SUPER_BLOCK, dst += 110, src += SUPER_BLOCK, importance = next(importance)) {
        q3_k_scales(src, importance, dst + 108, scale, code);
        signed_codes(src, load_f16(dst + 108), scale, 4, code);
        memset(dst, 0, 108);
        for (int j = 0; j < 16; j++) {
            int bits = scale[j] + 32;
            dst[96 + j % 8] |= (uint8_t)((bits & 15) << (j / 8 * 4));
            dst[104 + j % 4] |= (uint8_t)(bits >> 4 << (j / 4 * 2));
        }
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32;
            dst[32 + 32 * half + i % 32] |= (uint8_t)((code[i] & 3) << (2 * part));
            dst[i % 32] |= (uint8_t)(code[i] >> 2 << (4 * half + part));
        }
    }
}

void sheaf_encode_q6_k(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[SUPER_BLOCK];
    float steps[16], w[16];
    int scale[16];
    for (; n > 0; n -= SUPER_BLOCK, dst += 210, src += SUPER_BLOCK, importance = next(importance)) {
        memset(dst, 0, 210);
        for (int g = 0; g < 16; g++) {
            const float *x = src + 16 * g;
            for (int i = 0; i < 16; i++) w[i] = importance ? importance[16 * g + i] : x[i] * x[i];
            steps[g] = sheaf_fit_signed(x, w, 16, 32, code + 16 * g);
        }
        if (fabsf(sheaf_extreme(steps, 16)) < FIT_NOTHING) continue;
        round_to_extreme(steps, -128, 127, dst + 208, scale);
        signed_codes(src, load_f16(dst + 208), scale, 32, code);
        for (int g = 0; g < 16; g++) dst[192 + g] = (uint8_t)(int8_t)scale[g];
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32;
            dst[64 * half + 32 * (part % 2) + i % 32] |= (uint8_t)((code[i] & 15) << (part / 2 * 4));
            dst[128 + 32 * half + i % 32] |= (uint8_t)(code[i] >> 4 << (2 * part));
        }
    }
}
