/* Reference decoders of the super-blocks of 256: q2_k to q6_k, and iq4_xs.
 *
 * A super-block holds groups of 16 or 32 elements; each group has a scale (and for some types a
 * minimum) in a few bits, and the super-block one or two halves that scale those. Layouts are drawn
 * above each decoder. Does not hold tuned code; the encoders are in kquants_encode.c. */
#include "tensor/quants_internal.h"

/* q2_k, 84 bytes: [16 x (scale:4, min:4)][64 bytes of codes][d f16][dmin f16]
 * x = d*scale * q - dmin*min. Codes: half h of the super-block (128 elements) has 32 bytes; bits
 * 2s..2s+1 of byte l are element 128h + 32s + l; groups of 16 in order of elements. */
void sheaf_decode_q2_k(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 84, dst += SUPER_BLOCK) {
        float d = load_f16(src + 80), dmin = load_f16(src + 82);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, shift = i % 128 / 32 * 2;
            int q = src[16 + 32 * half + i % 32] >> shift & 3, packed = src[i / 16];
            dst[i] = d * (float)(packed & 15) * (float)q - dmin * (float)(packed >> 4);
        }
    }
}

/* The 16 six-bit scales of q3_k in 12 bytes: byte j%8 holds in its nibbles the low four bits of
 * scales j and j+8; bits 2k..2k+1 of byte 8 + j%4 are the high two of scale j, k = j/4. */
static int q3_scale(const uint8_t *p, int j) {
    int low = j < 8 ? p[j] & 15 : p[j - 8] >> 4;
    return (low | (p[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
}

/* q3_k, 110 bytes: [32 bytes of high bits][64 bytes of low codes][12 bytes of scales][d f16]
 * x = d*scale * q, q = low two bits - (high bit ? 0 : 4). Low codes as in q2_k; bit 4h + s of high
 * byte l is element 128h + 32s + l. */
void sheaf_decode_q3_k(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 110, dst += SUPER_BLOCK) {
        float d = load_f16(src + 108);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32;
            int low = src[32 + 32 * half + i % 32] >> (2 * part) & 3, high = src[i % 32] >> (4 * half + part) & 1;
            dst[i] = d * (float)q3_scale(src + 96, i / 16) * (float)(low - (high ? 0 : 4));
        }
    }
}

/* The eight (scale, min) pairs of six bits in 12 bytes, of q4_k and q5_k:
 *   bytes 0..3   scale j   | high two bits of scale j+4 on top
 *   bytes 4..7   min j     | high two bits of min j+4 on top
 *   bytes 8..11  low four bits of scale j+4, low four bits of min j+4 */
static void unpack_pair(const uint8_t *p, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | p[j - 4] >> 6 << 4;
        *min = p[j + 4] >> 4 | p[j] >> 6 << 4;
    }
}

/* q4_k, 144 bytes: [d f16][dmin f16][12 bytes of pairs][128 bytes of nibbles]
 * x = d*scale * q - dmin*min. Groups of 32: bytes 32k..32k+31 hold group 2k in their low nibbles and
 * group 2k+1 in their high ones. */
void sheaf_decode_q4_k(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 144, dst += SUPER_BLOCK) {
        float d = load_f16(src), dmin = load_f16(src + 2);
        for (int g = 0; g < 8; g++) {
            int scale, min;
            unpack_pair(src + 4, g, &scale, &min);
            float step = d * (float)scale, base = dmin * (float)min;
            for (int l = 0; l < 32; l++) {
                int q = src[16 + g / 2 * 32 + l] >> (g % 2 * 4) & 15;
                dst[32 * g + l] = step * (float)q - base;
            }
        }
    }
}

/* q5_k, 176 bytes: [d f16][dmin f16][12 bytes of pairs][32 bytes of fifth bits][128 bytes of nibbles]
 * As q4_k; bit g of fifth-bit byte l belongs to element l of group g. */
void sheaf_decode_q5_k(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 176, dst += SUPER_BLOCK) {
        float d = load_f16(src), dmin = load_f16(src + 2);
        for (int g = 0; g < 8; g++) {
            int scale, min;
            unpack_pair(src + 4, g, &scale, &min);
            float step = d * (float)scale, base = dmin * (float)min;
            for (int l = 0; l < 32; l++) {
                int q = (src[48 + g / 2 * 32 + l] >> (g % 2 * 4) & 15) | (src[16 + l] >> g & 1) << 4;
                dst[32 * g + l] = step * (float)q - base;
            }
        }
    }
}

/* q6_k, 210 bytes: [128 bytes of low nibbles][64 bytes of high pairs][16 signed scales][d f16]
 * x = d*scale * (q - 32). Per half of 128 elements, for l in 0..31 and part s in 0..3 (element
 * 128h + 32s + l): low nibble in byte 64h + 32(s%2) + l, upper half of the byte for s >= 2; high bits
 * 2s..2s+1 of byte 32h + l. Groups of 16 in order of elements. */
void sheaf_decode_q6_k(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 210, dst += SUPER_BLOCK) {
        float d = load_f16(src + 208);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32, l = i % 32;
            int low = src[64 * half + 32 * (part % 2) + l] >> (part / 2 * 4) & 15;
            int high = src[128 + 32 * half + l] >> (2 * part) & 3;
            dst[i] = d * (float)(int8_t)src[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* iq4_xs, 136 bytes: [d f16][scales, high two bits: u16][4 bytes, low four][128 bytes of nibbles]
 * x = d*(scale - 32) * values[q]. Groups of 32, each in 16 bytes: low nibbles, then high ones. */
void sheaf_decode_iq4_xs(const uint8_t *src, float *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, src += 136, dst += SUPER_BLOCK) {
        float d = load_f16(src);
        unsigned high = src[2] | (unsigned)src[3] << 8;
        for (int g = 0; g < 8; g++) {
            int scale = (src[4 + g / 2] >> (g % 2 * 4) & 15) | (int)(high >> (2 * g) & 3) << 4;
            float step = d * (float)(scale - 32);
            for (int j = 0; j < 16; j++) {
                uint8_t q = src[8 + 16 * g + j];
                dst[32 * g + j] = step * (float)sheaf_iq4_values[q & 15];
                dst[32 * g + j + 16] = step * (float)sheaf_iq4_values[q >> 4];
            }
        }
    }
}
