/* Blocks of 32 by importance: q4_0, q4_1, q5_0, q5_1 of one row. The plain encoders, which take the scale from the
 * range, are in quants.c; here it is searched, so that what matters more is off by less. */
#include "tensor/quants_fit.h"
#include "tensor/quants_internal.h"

enum { BLOCK = 32 };

/* Mean square of the row: elements far below it count about alike. */
static float mean_square(const float *x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum / (float)n;
}

static void block_weights(const float *x, const float *importance, float spread, float w[BLOCK]) {
    for (int i = 0; i < BLOCK; i++) w[i] = importance[i] * sqrtf(spread + x[i] * x[i]);
}

/* Codes of one block, and d at dst. */
static void symmetric(const float *x, const float *importance, float spread, int half, uint8_t *dst, uint8_t *code) {
    float w[BLOCK];
    block_weights(x, importance, spread, w);
    store_f16(dst, sheaf_fit_signed(x, w, BLOCK, half, code));
}

/* Codes of one block, and d and m at dst. */
static void affine(const float *x, const float *importance, float spread, int top, uint8_t *dst, uint8_t *code) {
    static const fit_search fine = {-0.9f, 0.05f, 36, false};
    float w[BLOCK], min;
    block_weights(x, importance, spread, w);
    store_f16(dst, sheaf_fit_affine(x, w, BLOCK, top, &fine, code, &min));
    store_f16(dst + 2, -min);
}

void sheaf_encode_weighted_q4_0(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[BLOCK];
    float spread = mean_square(src, n);
    for (; n > 0; n -= BLOCK, src += BLOCK, importance += BLOCK, dst += 18) {
        symmetric(src, importance, spread, 8, dst, code);
        sheaf_store_nibbles(dst + 2, code);
    }
}

void sheaf_encode_weighted_q4_1(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[BLOCK];
    float spread = mean_square(src, n);
    for (; n > 0; n -= BLOCK, src += BLOCK, importance += BLOCK, dst += 20) {
        affine(src, importance, spread, 15, dst, code);
        sheaf_store_nibbles(dst + 4, code);
    }
}

void sheaf_encode_weighted_q5_0(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[BLOCK];
    float spread = mean_square(src, n);
    for (; n > 0; n -= BLOCK, src += BLOCK, importance += BLOCK, dst += 22) {
        symmetric(src, importance, spread, 16, dst, code);
        sheaf_store_five_bits(dst + 2, code);
    }
}

void sheaf_encode_weighted_q5_1(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[BLOCK];
    float spread = mean_square(src, n);
    for (; n > 0; n -= BLOCK, src += BLOCK, importance += BLOCK, dst += 24) {
        affine(src, importance, spread, 31, dst, code);
        sheaf_store_five_bits(dst + 4, code);
    }
}
