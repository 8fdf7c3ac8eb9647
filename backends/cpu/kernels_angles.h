/* Cosines and sines of many angles at once, as plain loops that each level's compiler turns into vectors; included once
 * by each level. A prompt of 512 tokens wants 30,000 of them in every layer, and libm takes them one by one.
 *
 * Reduction to [-pi/4, pi/4] by two-part pi/2 (Cody and Waite), then the polynomials of fdlibm's __kernel_sin and
 * __kernel_cos, cut where f32 results no longer see the rest: absolute error below 1e-9 for angles below LARGEST.
 * Beyond (and for NaN) libm does it. */
#ifndef SHEAF_CPU_KERNELS_ANGLES_H
#define SHEAF_CPU_KERNELS_ANGLES_H

#include "backends/cpu/kernels_common.h"

/* cs[2 i] = cos(angle[i]) * magnitude, cs[2 i + 1] = sin(angle[i]) * magnitude, for n angles. */
static void rotation(float *restrict cs, const double *restrict angle, double magnitude, int64_t n) {
    const double LARGEST = 1e6, TWO_OVER_PI = 0.63661977236758134308, ROUND = 6755399441055744.0; /* 1.5 * 2^52 */
    const double PI_2_HIGH = 1.57079632673412561417, PI_2_LOW = 6.07710050650619224932e-11;       /* high: 33 bits */
    double farthest = 0.0;
    bool all_numbers = true;
    for (int64_t i = 0; i < n; i++) {
        double a = fabs(angle[i]);
        farthest = a > farthest ? a : farthest;
        all_numbers &= a == a;
    }
    if (!all_numbers || farthest > LARGEST) {
        for (int64_t i = 0; i < n; i++) {
            cs[2 * i] = (float)(cos(angle[i]) * magnitude);
            cs[2 * i + 1] = (float)(sin(angle[i]) * magnitude);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double shifted = angle[i] * TWO_OVER_PI + ROUND, k = shifted - ROUND;
        uint64_t quarter; /* its low bits are k's */
        memcpy(&quarter, &shifted, sizeof quarter);
        double r = (angle[i] - k * PI_2_HIGH) - k * PI_2_LOW, z = r * r;
        double s =
            r +
            r * z *
                (-1.66666666666666324348e-01 +
                 z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06)));
        double c =
            1.0 - 0.5 * z +
            z * z *
                (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 +
                                                   z * (2.48015872894767294178e-05 + z * -2.75573143513906633035e-07)));
        double first = quarter & 1 ? s : c, second = quarter & 1 ? c : s;
        cs[2 * i] = (float)((quarter + 1) & 2 ? -first * magnitude : first * magnitude);
        cs[2 * i + 1] = (float)(quarter & 2 ? -second * magnitude : second * magnitude);
    }
}

#endif
