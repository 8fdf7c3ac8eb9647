/* Block encoders and decoders, shared by quants.c (blocks of 32, plain numbers, the table of all
 * types) and kquants.c (super-blocks of 256). `n` is a multiple of the block; both checked above. */
#ifndef SHEAF_TENSOR_QUANTS_INTERNAL_H
#define SHEAF_TENSOR_QUANTS_INTERNAL_H

#include "tensor/tensor.h"

#include <string.h>

enum { SUPER_BLOCK = 256 };

void sheaf_decode_q2_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q3_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q4_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q5_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_q6_k(const uint8_t *src, float *dst, int64_t n);
void sheaf_decode_iq4_xs(const uint8_t *src, float *dst, int64_t n);

void sheaf_encode_q2_k(const float *src, uint8_t *dst, int64_t n);
void sheaf_encode_q3_k(const float *src, uint8_t *dst, int64_t n);
void sheaf_encode_q4_k(const float *src, uint8_t *dst, int64_t n);
void sheaf_encode_q5_k(const float *src, uint8_t *dst, int64_t n);
void sheaf_encode_q6_k(const float *src, uint8_t *dst, int64_t n);

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

#endif
