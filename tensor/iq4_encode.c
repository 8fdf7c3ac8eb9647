/* Encoders of iq4_nl and iq4_xs: codes point into sixteen uneven values, so a scale is found by trying where the
 * largest element goes (quants.c and kquants.c draw the layouts). */
#include "tensor/quants_fit.h"
#include "tensor/quants_internal.h"

enum { BLOCK = 32, TRIES = 7 };

/* The value nearest to v, the higher one in the middle of two; NaN takes the lowest. */
static int nearest_value(float v) {
    int above = 1;
    if (!(v > (float)sheaf_iq4_values[0])) return 0;
    if (v >= (float)sheaf_iq4_values[15]) return 15;
    while (v >= (float)sheaf_iq4_values[above]) above++;
    return v - (float)sheaf_iq4_values[above - 1] < (float)sheaf_iq4_values[above] - v ? above - 1 : above;
}

/* The best step is num / den; it lowers the weighted squared error by num^2 / den. */
static void moments(const float *x, const float *w, float inverse, float *num, float *den) {
    *num = *den = 0;
    for (int i = 0; i < BLOCK; i++) {
        float v = (float)sheaf_iq4_values[nearest_value(inverse * x[i])];
        *num += w[i] * v * x[i];
        *den += w[i] * v * v;
    }
}

/* Weights of a block: by importance, or each element's square. */
static void weights(const float *x, const float *importance, float spread, float *w) {
    for (int i = 0; i < BLOCK; i++) w[i] = importance ? importance[i] * sqrtf(spread + x[i] * x[i]) : x[i] * x[i];
}

/* The step of one block. The lowest value is the farthest from 0: the largest element goes there, or TRIES around. */
static float fit(const float *x, const float *importance, float spread) {
    float w[BLOCK], top = 0, num, den;
    weights(x, importance, spread, w);
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    if (fabsf(top) < FIT_NOTHING) return 0;
    moments(x, w, 1 / (-top / (float)sheaf_iq4_values[0]), &num, &den);
    float step = den > 0 ? num / den : 0, gain = step * num;
    for (int k = -TRIES; k <= TRIES; k++) {
        moments(x, w, (float)(k + sheaf_iq4_values[0]) / top, &num, &den);
        if (den > 0 && num * num > gain * den) {
            step = num / den;
            gain = step * num;
        }
    }
    return step;
}

static void store_codes(const float *x, float step, uint8_t *dst) {
    uint8_t code[BLOCK];
    float inverse = step != 0 ? 1 / step : 0;
    for (int i = 0; i < BLOCK; i++) code[i] = (uint8_t)nearest_value(inverse * x[i]);
    sheaf_store_nibbles(dst, code);
}

static float spread_of(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sum * (2.0f / (float)n);
}

void sheaf_encode_iq4_nl(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    for (; n > 0; n -= BLOCK, src += BLOCK, dst += 18) {
        float step = fit(src, importance, spread_of(src, BLOCK));
        store_f16(dst, step);
        store_codes(src, step, dst + 2); /* against the step itself, not its half */
        if (importance) importance += BLOCK;
    }
}

/* One super-block: block steps as six-bit multiples of d, the one of largest magnitude on -32. */
static void encode_xs(const float *x, uint8_t *dst, const float *importance) {
    float steps[8], top = 0, spread = spread_of(x, SUPER_BLOCK);
    for (int g = 0; g < 8; g++) {
        steps[g] = fit(x + BLOCK * g, importance ? importance + BLOCK * g : NULL, spread);
        if (fabsf(steps[g]) > fabsf(top)) top = steps[g];
    }
    float d = -top / 32, inverse = d != 0 ? 1 / d : 0;
    memset(dst, 0, 8);
    store_f16(dst, d);
    for (int g = 0; g < 8; g++) {
        int scale = fit_nearest(inverse * steps[g], -32, 31);
        store_codes(x + BLOCK * g, d * (float)scale, dst + 8 + 16 * g);
        dst[2 + g / 4] |= (uint8_t)((scale + 32) >> 4 << (2 * (g % 4)));
        dst[4 + g / 2] |= (uint8_t)(((scale + 32) & 15) << (g % 2 * 4));
    }
}

void sheaf_encode_iq4_xs(const float *src, uint8_t *dst, int64_t n, const float *importance) {
    for (; n > 0; n -= SUPER_BLOCK, src += SUPER_BLOCK, dst += 136) {
        encode_xs(src, dst, importance);
        if (importance) importance += SUPER_BLOCK;
    }
}
