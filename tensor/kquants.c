/* Reference conversions of the super-blocks of 256: q2_k to q6_k, and iq4_xs.
 *
 * A super-block holds groups of 16 or 32 elements; each group has a scale (and for some types a
 * minimum) in a few bits, and the super-block one or two halves that scale those. Layouts are drawn
 * above each decoder. Does not hold tuned code, nor importance weights. */
#include "tensor/quants_internal.h"

#include <math.h>

/* --- decoders --- */

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

/* --- encoders ---
 *
 * Each group gets the step and base that fit it best: candidates around the plain range are tried,
 * each is rounded to codes and then refitted by least squares, and the one with the smallest squared
 * error (weighted by magnitude: large weights matter more) wins. Group steps are then themselves
 * rounded to the super-block's scale, and codes are chosen last, against what a reader will see. */

static int clamp_int(int v, int lo, int hi) { return v < lo ? lo : v > hi ? hi : v; }

/* Nearest code; NaN (possible only from NaN weights) becomes `lo`. */
static int nearest(float v, int lo, int hi) {
    if (!(v > (float)lo)) return lo;
    return v >= (float)hi ? hi : (int)lrintf(v);
}

static float weight_of(float x, float mean_square) { return sqrtf(mean_square) + fabsf(x); }

static float mean_square(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sum / (float)n;
}

/* One asymmetric candidate: rounds with step and base, refits both. Returns the refitted error;
 * the base stays at most 0 (it is stored as a minimum, without sign). */
static float refit_affine(const float *x, int n, int top, float ms, float *step, float *base) {
    float sw = 0, sx = 0, sq = 0, sqq = 0, sxq = 0, id = *step > 0 ? 1 / *step : 0;
    int code[32];
    for (int i = 0; i < n; i++) {
        float w = weight_of(x[i], ms);
        code[i] = nearest((x[i] - *base) * id, 0, top);
        float q = (float)code[i];
        sw += w, sx += w * x[i], sq += w * q, sqq += w * q * q, sxq += w * x[i] * q;
    }
    float det = sw * sqq - sq * sq;
    if (det > 0) {
        *step = (sw * sxq - sx * sq) / det;
        *base = (sqq * sx - sq * sxq) / det;
        if (*base > 0) {
            *base = 0;
            *step = sqq > 0 ? sxq / sqq : 0;
        }
    }
    float error = 0;
    for (int i = 0; i < n; i++) {
        float e = *step * (float)code[i] + *base - x[i];
        error += weight_of(x[i], ms) * e * e;
    }
    return error;
}

/* Best step and minimum (>= 0, to be subtracted) of a group for codes 0..top. */
static float fit_affine(const float *x, int n, int top, float *min_out) {
    float lo = x[0], hi = x[0], ms = mean_square(x, n);
    for (int i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    if (lo > 0) lo = 0;
    if (!(hi > lo)) {
        *min_out = -lo;
        return 0;
    }
    float best_step = 0, best_base = lo, best = INFINITY;
    for (int k = -10; k <= 10; k++) {
        float step = (hi - lo) / ((float)top + 0.1f * (float)k), base = lo;
        float error = refit_affine(x, n, top, ms, &step, &base);
        if (error < best && step > 0) best = error, best_step = step, best_base = base;
    }
    *min_out = -best_base;
    return best_step;
}

/* Best step of a group for signed codes lo..hi (the step may be negative: the longer side of the
 * code goes to the larger extreme). */
static float fit_signed(const float *x, int n, int lo, int hi) {
    float top = 0, ms = mean_square(x, n), best_step = 0, best_gain = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    }
    if (!(fabsf(top) > 0)) return 0;
    for (int k = -9; k <= 9; k++) {
        float id = ((float)lo + 0.1f * (float)k) / top, num = 0, den = 0;
        for (int i = 0; i < n; i++) {
            float q = (float)nearest(x[i] * id, lo, hi), w = weight_of(x[i], ms);
            num += w * x[i] * q;
            den += w * q * q;
        }
        /* With the step refitted to num/den the squared error falls by num^2/den. */
        if (den > 0 && num * num > best_gain * den) {
            best_gain = num * num / den;
            best_step = num / den;
        }
    }
    return best_step;
}

static float largest(const float *x, int n) {
    float m = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] > m) m = x[i];
    }
    return m;
}

/* Rounds `n` group steps and minima to codes 0..top of one half each, stored at `d` and `dmin`.
 * Leaves in steps/mins what a reader will see. */
static void round_pairs(float *steps, float *mins, int n, int top, uint8_t *d, uint8_t *dmin, int *scale, int *min) {
    float ds = store_f16(d, largest(steps, n) / (float)top), dm = store_f16(dmin, largest(mins, n) / (float)top);
    for (int g = 0; g < n; g++) {
        scale[g] = ds > 0 ? nearest(steps[g] / ds, 0, top) : 0;
        min[g] = dm > 0 ? nearest(mins[g] / dm, 0, top) : 0;
        steps[g] = ds * (float)scale[g];
        mins[g] = dm * (float)min[g];
    }
}

static int affine_code(float x, float step, float min, int top) {
    return step > 0 ? nearest((x + min) / step, 0, top) : 0;
}

void sheaf_encode_q2_k(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, dst += 84, src += SUPER_BLOCK) {
        float steps[16], mins[16];
        int scale[16], min[16];
        memset(dst, 0, 84);
        for (int g = 0; g < 16; g++) steps[g] = fit_affine(src + 16 * g, 16, 3, &mins[g]);
        round_pairs(steps, mins, 16, 15, dst + 80, dst + 82, scale, min);
        for (int g = 0; g < 16; g++) dst[g] = (uint8_t)(scale[g] | min[g] << 4);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int q = affine_code(src[i], steps[i / 16], mins[i / 16], 3);
            dst[16 + 32 * (i / 128) + i % 32] |= (uint8_t)(q << (i % 128 / 32 * 2));
        }
    }
}

/* The shared first half of q4_k and q5_k: pairs at dst + 4, steps and minima as a reader sees them. */
static void encode_pairs(const float *src, uint8_t *dst, int top, float steps[8], float mins[8]) {
    int scale[8], min[8];
    for (int g = 0; g < 8; g++) steps[g] = fit_affine(src + 32 * g, 32, top, &mins[g]);
    round_pairs(steps, mins, 8, 63, dst, dst + 2, scale, min);
    for (int g = 0; g < 8; g++) pack_pair(dst + 4, g, scale[g], min[g]);
}

void sheaf_encode_q4_k(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, dst += 144, src += SUPER_BLOCK) {
        float steps[8], mins[8];
        memset(dst, 0, 144);
        encode_pairs(src, dst, 15, steps, mins);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int g = i / 32, q = affine_code(src[i], steps[g], mins[g], 15);
            dst[16 + g / 2 * 32 + i % 32] |= (uint8_t)(q << (g % 2 * 4));
        }
    }
}

void sheaf_encode_q5_k(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, dst += 176, src += SUPER_BLOCK) {
        float steps[8], mins[8];
        memset(dst, 0, 176);
        encode_pairs(src, dst, 31, steps, mins);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int g = i / 32, q = affine_code(src[i], steps[g], mins[g], 31);
            dst[48 + g / 2 * 32 + i % 32] |= (uint8_t)((q & 15) << (g % 2 * 4));
            dst[16 + i % 32] |= (uint8_t)(q >> 4 << g);
        }
    }
}

/* Rounds 16 signed group steps to codes lo..hi of one half at `d`; leaves what a reader will see. */
static void round_signed(float steps[16], int lo, int hi, uint8_t *d, int scale[16]) {
    float top = 0;
    for (int g = 0; g < 16; g++) {
        if (fabsf(steps[g]) > fabsf(top)) top = steps[g];
    }
    float ds = store_f16(d, top / (float)lo);
    for (int g = 0; g < 16; g++) {
        scale[g] = ds != 0 ? nearest(steps[g] / ds, lo, hi) : 0;
        steps[g] = ds * (float)scale[g];
    }
}

static int signed_code(float x, float step, int lo, int hi) {
    return step != 0 ? nearest(x / step, lo, hi) : clamp_int(0, lo, hi);
}

void sheaf_encode_q3_k(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, dst += 110, src += SUPER_BLOCK) {
        float steps[16];
        int scale[16];
        memset(dst, 0, 110);
        for (int g = 0; g < 16; g++) steps[g] = fit_signed(src + 16 * g, 16, -4, 3);
        round_signed(steps, -32, 31, dst + 108, scale);
        for (int j = 0; j < 16; j++) {
            int code = scale[j] + 32;
            dst[96 + j % 8] |= (uint8_t)((code & 15) << (j / 8 * 4));
            dst[104 + j % 4] |= (uint8_t)(code >> 4 << (j / 4 * 2));
        }
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32, q = signed_code(src[i], steps[i / 16], -4, 3) + 4;
            dst[32 + 32 * half + i % 32] |= (uint8_t)((q & 3) << (2 * part));
            dst[i % 32] |= (uint8_t)(q >> 2 << (4 * half + part));
        }
    }
}

void sheaf_encode_q6_k(const float *src, uint8_t *dst, int64_t n) {
    for (; n > 0; n -= SUPER_BLOCK, dst += 210, src += SUPER_BLOCK) {
        float steps[16];
        int scale[16];
        memset(dst, 0, 210);
        for (int g = 0; g < 16; g++) steps[g] = fit_signed(src + 16 * g, 16, -32, 31);
        round_signed(steps, -128, 127, dst + 208, scale);
        for (int g = 0; g < 16; g++) dst[192 + g] = (uint8_t)(int8_t)scale[g];
        for (int i = 0; i < SUPER_BLOCK; i++) {
            int half = i / 128, part = i % 128 / 32, q = signed_code(src[i], steps[i / 16], -32, 31) + 32;
            dst[64 * half + 32 * (part % 2) + i % 32] |= (uint8_t)((q & 15) << (part / 2 * 4));
            dst[128 + 32 * half + i % 32] |= (uint8_t)(q >> 4 << (2 * part));
        }
    }
}
