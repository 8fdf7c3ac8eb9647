/* The AVX-512 level: what it puts into the table. The kernels are in kernels_avx512_*.c. */
#include "backends/cpu/kernels_avx512.h"

void cpu_kernels_avx512(cpu_kernels *t) {
    avx512_vectors(t);
    avx512_attention(t);
    avx512_tiles(t);
    avx512_rows(t); /* over the tiles, which they call when columns are many */
}
