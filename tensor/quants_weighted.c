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

/* How a type lays out a block: scales, then codes of four or five bits. */
typedef struct weighted_form {
    int top; /* symmetric: half the range; affine: the largest code */
    bool affine;
    int scales, bytes; /* of a block's scales, of a block */
    void (*store)(uint8_t *dst, const uint8_t *code);
} weighted_form;

static void encode(const weighted_form *f, const float *src, uint8_t *dst, int64_t n, const float *importance) {
    uint8_t code[BLOCK];
    float spread = mean_square(src, n);
    for (; n > 0; n -= BLOCK, src += BLOCK, importance += BLOCK, dst += f->bytes) {
        (f->affine ? affine : symmetric)(src, importance, spread, f->top, dst, code);
        f->store(dst + f->scales, code);
    }
}

void sheaf_encode_weighted_q4_0(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    encode(&(weighted_form){8, false, 2, 18, sheaf_store_nibbles}, src, dst, n, importance);
}
void sheaf_encode_weighted_q4_1(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    encode(&(weighted_form){15, true, 4, 20, sheaf_store_nibbles}, src, dst, n, importance);
}
void sheaf_encode_weighted_q5_0(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    encode(&(weighted_form){16, false, 2, 22, sheaf_store_five_bits}, src, dst, n, importance);
}
void sheaf_encode_weighted_q5_1(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    encode(&(weighted_form){31, true, 4, 24, sheaf_store_five_bits}, src, dst, n, importance);
}
