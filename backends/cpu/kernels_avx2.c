/* The AVX2 level: what it puts into the table. The kernels are in kernels_avx2_*.c. */
#include "backends/cpu/kernels_avx2.h"

void cpu_kernels_avx2(cpu_kernels *t) {
    avx2_vectors(t);
    avx2_attention(t);
    avx2_tiles(t);
    avx2_rows(t); /* over the tiles, which they call when columns are many */
}
