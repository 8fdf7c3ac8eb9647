/* See quants_fit.h. */
#include "tensor/quants_fit.h"

#include "tensor/quants_internal.h"

#include <string.h>

enum { MOST = 256 };

/* 0 when all elements are as good as nothing. */
static float extreme_or_nothing(const float *x, int n) {
    float best = sheaf_extreme(x, n);
    return fabsf(best) < FIT_NOTHING ? 0 : best;
}

/* --- signed --- */

/* What least squares needs: the best step is num / den, and it lowers the error by num^2 / den. */
typedef struct moments {
    float num, den;
} moments;

static moments signed_moments(const float *x, const float *w, int n, int half, float inverse) {
    moments m = {0, 0};
    for (int i = 0; i < n; i++) {
        float c = (float)fit_nearest(inverse * x[i], -half, half - 1);
        m.num += w[i] * x[i] * c;
        m.den += w[i] * c * c;
    }
    return m;
}

float sheaf_fit_signed(const float *x, const float *w, int n, int half, uint8_t *code) {
    float top = extreme_or_nothing(x, n);
    if (top == 0) {
        memset(code, 0, (size_t)n);
        return 0;
    }
    float chosen = -(float)half / top;
    moments m = signed_moments(x, w, n, half, chosen);
    float step = m.den != 0 ? m.num / m.den : 0, gain = step * m.num;
    for (int k = -9; k <= 9; k++) {
        if (k == 0) continue;
        float inverse = -((float)half + 0.1f * (float)k) / top;
        m = signed_moments(x, w, n, half, inverse);
        if (m.den > 0 && m.num * m.num > gain * m.den) {
            chosen = inverse;
            step = m.num / m.den;
            gain = step * m.num;
        }
    }
    for (int i = 0; i < n; i++) code[i] = (uint8_t)(half + fit_nearest(chosen * x[i], -half, half - 1));
    return step;
}

/* One pass over the elements: each code moves to where the others want it if that is a gain. Were any changed? */
static bool improve_codes(const float *x, int n, int half, int *c, moments *m) {
    bool changed = false;
    for (int i = 0; i < n; i++) {
        float w = x[i] * x[i], now = (float)c[i];
        moments rest = {m->num - w * x[i] * now, 0};
        if (!(rest.num > 0)) continue;
        rest.den = m->den - w * now * now;
        int want = fit_nearest(x[i] * rest.den / rest.num, -half, half - 1);
        if (want == c[i]) continue;
        rest.num += w * x[i] * (float)want;
        rest.den += w * (float)want * (float)want;
        if (rest.den > 0 && rest.num * rest.num * m->den > m->num * m->num * rest.den) {
            c[i] = want;
            *m = rest;
            changed = true;
        }
    }
    return changed;
}

float sheaf_fit_signed_by_codes(const float *x, int n, int half, uint8_t *code) {
    int c[MOST];
    float top = extreme_or_nothing(x, n);
    if (top == 0) {
        memset(code, 0, (size_t)n);
        return 0;
    }
    float inverse = -(float)half / top;
    moments m = {0, 0};
    for (int i = 0; i < n; i++) {
        c[i] = fit_nearest(inverse * x[i], -half, half - 1);
        float w = x[i] * x[i];
        m.num += w * x[i] * (float)c[i];
        m.den += w * (float)c[i] * (float)c[i];
    }
    for (int pass = 0; pass < 5 && improve_codes(x, n, half, c, &m); pass++) {}
    for (int i = 0; i < n; i++) code[i] = (uint8_t)(c[i] + half);
    return m.den > 0 ? m.num / m.den : 0;
}

/* --- affine --- */

typedef struct line {
    float step, base; /* x ~ step * c + base */
} line;

static float line_error(const float *x, const float *w, int n, line l, const uint8_t *code, bool absolute) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        float e = l.step * (float)code[i] + l.base - x[i];
        e = absolute ? fabsf(e) : e * e;
        error += w[i] * e;
    }
    return error;
}

/* Codes for one inverse step, and the line that fits them best with a base of at most 0. False: no line does. */
static bool refit(const float *x, const float *w, int n, int top, float inverse, float base, float sum_w, float sum_x,
                  uint8_t *code, line *out) {
    float sum_c = 0, sum_c2 = 0, sum_xc = 0;
    for (int i = 0; i < n; i++) {
        code[i] = (uint8_t)fit_nearest(inverse * (x[i] - base), 0, top);
        float c = (float)code[i];
        sum_c += w[i] * c;
        sum_c2 += w[i] * c * c;
        sum_xc += w[i] * c * x[i];
    }
    float det = sum_w * sum_c2 - sum_c * sum_c;
    if (!(det > 0)) return false;
    out->step = (sum_w * sum_xc - sum_x * sum_c) / det;
    out->base = (sum_c2 * sum_x - sum_c * sum_xc) / det;
    if (out->base > 0) {
        out->base = 0;
        out->step = sum_xc / sum_c2;
    }
    return true;
}

float sheaf_fit_affine(const float *x, const float *w, int n, int top, const fit_search *how, uint8_t *code,
                       float *min) {
    uint8_t tried[MOST];
    float lo = x[0], hi = x[0], sum_w = w[0], sum_x = w[0] * x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    if (lo > 0) lo = 0;
    if (!(hi > lo)) {
        memset(code, 0, (size_t)n);
        *min = -lo;
        return 0;
    }
    float inverse = (float)top / (hi - lo);
    line best = {1 / inverse, lo};
    for (int i = 0; i < n; i++) code[i] = (uint8_t)fit_nearest(inverse * (x[i] - lo), 0, top);
    float least = line_error(x, w, n, best, code, how->absolute);
    for (int k = 0; k <= how->last; k++) {
        line l;
        /* from the best base so far, not from the smallest element */
        inverse = (how->first + how->by * (float)k + (float)top) / (hi - best.base);
        if (!refit(x, w, n, top, inverse, best.base, sum_w, sum_x, tried, &l)) continue;
        float error = line_error(x, w, n, l, tried, how->absolute);
        if (error < least) {
            memcpy(code, tried, (size_t)n);
            least = error;
            best = l;
        }
    }
    *min = -best.base;
    return best.step;
}

/* --- positive --- */

static float positive_error(const float *x, const float *w, int n, int top, float inverse) {
    float error = 0, step = 1 / inverse;
    for (int i = 0; i < n; i++) {
        float e = x[i] - step * (float)fit_nearest(inverse * x[i], 0, top);
        error += w[i] * e * e;
    }
    return error;
}

static bool improve_positive(const float *x, const float *w, int n, int top, uint8_t *code, moments *m) {
    bool changed = false;
    for (int i = 0; i < n; i++) {
        float now = (float)code[i];
        moments rest = {m->num - w[i] * x[i] * now, m->den - w[i] * now * now};
        if (!(rest.num > 0 && rest.den > 0)) continue;
        int want = fit_nearest(x[i] * rest.den / rest.num, 0, top);
        if (want == code[i]) continue;
        rest.num += w[i] * x[i] * (float)want;
        rest.den += w[i] * (float)want * (float)want;
        if (rest.num * rest.num * m->den > m->num * m->num * rest.den) {
            code[i] = (uint8_t)want;
            *m = rest;
            changed = true;
        }
    }
    return changed;
}

float sheaf_fit_positive(const float *x, const float *w, int n, int top, uint8_t *code) {
    float most = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > most) most = x[i];
    if (most < FIT_NOTHING) {
        memset(code, 0, (size_t)n);
        return 0;
    }
    float chosen = (float)top / most, least = positive_error(x, w, n, top, chosen);
    for (int k = -4; k <= 4; k++) {
        if (k == 0) continue;
        float inverse = (0.1f * (float)k + (float)top) / most, error = positive_error(x, w, n, top, inverse);
        if (error < least) {
            least = error;
            chosen = inverse;
        }
    }
    moments m = {0, 0};
    for (int i = 0; i < n; i++) {
        code[i] = (uint8_t)fit_nearest(chosen * x[i], 0, top);
        m.num += w[i] * x[i] * (float)code[i];
        m.den += w[i] * (float)code[i] * (float)code[i];
    }
    for (int pass = 0; pass < 5 && improve_positive(x, w, n, top, code, &m); pass++) {}
    return m.den > 0 ? m.num / m.den : 0;
}
