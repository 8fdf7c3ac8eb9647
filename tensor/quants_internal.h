/* Block encoders and decoders, shared by quants.c (blocks of 32, plain numbers, the table of all types),
 * quants_weighted.c (blocks of 32 by importance), kquants.c and kquants_encode.c (super-blocks of 256) and
 * iq4_encode.c. `n` is a multiple of the block; both checked above. */
#ifndef SHEAF_TENSOR_QUANTS_INTERNAL_H
#define SHEAF_TENSOR_QUANTS_INTERNAL_H

#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

enum { SUPER_BLOCK = 256 };

void sheaf_decode_q2_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q3_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q4_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q5_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q6_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_iq4_xs(const uint8_t *src, float *dst, int64_t n);

/* Encoders of whole rows. `importance` (one weight an element, how much its error matters) is of one row of
 * n elements, or NULL: then any number of rows may be given at once. Both ways the bytes are those that llama.cpp's
 * quantizer writes for the same floats. */
typedef void encode_fn(const float *src, uint8_t *dst, int64_t n, const float *importance);
encode_fn sheaf_encode_q2_k, sheaf_encode_q3_k, sheaf_encode_q4_k, sheaf_encode_q5_k, sheaf_encode_q6_k;
encode_fn sheaf_encode_iq4_nl, sheaf_encode_iq4_xs;
/* With importance only; quants.c has the plain ones. */
encode_fn sheaf_encode_weighted_q4_0, sheaf_encode_weighted_q4_1, sheaf_encode_weighted_q5_0,
    sheaf_encode_weighted_q5_1;

/* The sixteen values of IQ4_NL and IQ4_XS. */
extern const int8_t sheaf_iq4_values[16];

/* A file's numbers may lie at any address: read and written byte by byte. */
static inline float load_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sheaf_f16_to_f32(h);
}

/* Stores `f` as half and returns what a reader will see: encoders divide by that. */
static inline float store_f16(uint8_t *p, float f) {
    uint16_t h = sheaf_f32_to_f16(f);
    memcpy(p, &h, sizeof h);
    return sheaf_f16_to_f32(h);
}

/* The element of largest magnitude, with its sign: the scale of a symmetric group puts it on the end of the code that
 * reaches one step further. NaN counts as absent. */
static inline float sheaf_extreme(const float *x, int n) {
    float best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    return best;
}

/* Writes 32 five-bit codes as [32 high bits][16 bytes of nibbles], 32 four-bit codes as [16 bytes of nibbles]. */
void sheaf_store_five_bits(uint8_t *dst, const uint8_t code[32]);
void sheaf_store_nibbles(uint8_t *dst, const uint8_t code[32]);

#endif
