/* Which kernel level this machine can run, and the tables of each.
 *
 * Reads CPUID and XCR0 itself: the compilers' built-ins differ in the flags they know, and a level is
 * only there when the operating system saves its registers. The tables are built once, each
 * by the levels up to it, lower first, so that a level writes its entries over the ones below. */
#include "backends/cpu/kernels.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[CPU_LEVEL_COUNT] = {
    [CPU_LEVEL_PORTABLE] = "portable", [CPU_LEVEL_AVX2] = "avx2", [CPU_LEVEL_AVX512] = "avx512"};

#if defined(__x86_64__)

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_BMI2 = 1 << 8,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512VNNI = 1 << 11,
    XCR0_AVX = 0x6,     /* SSE and upper halves of ymm */
    XCR0_AVX512 = 0xe6, /* and masks, upper halves of zmm, upper zmm */
};
#define LEAF7_EBX_AVX512VL (1u << 31)

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

static cpu_level detect(void) {
    uint32_t a, b, c, d, ecx1;
    if (!__get_cpuid(1, &a, &b, &ecx1, &d)) return CPU_LEVEL_PORTABLE;
    if (!all(ecx1, LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C)) return CPU_LEVEL_PORTABLE;
    uint64_t saved = xcr0();
    if ((saved & XCR0_AVX) != XCR0_AVX) return CPU_LEVEL_PORTABLE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return CPU_LEVEL_PORTABLE;
    if (!all(b, LEAF7_EBX_AVX2 | LEAF7_EBX_BMI2)) return CPU_LEVEL_PORTABLE;
    if ((saved & XCR0_AVX512) != XCR0_AVX512) return CPU_LEVEL_AVX2;
    uint32_t ebx = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL;
    return all(b, ebx) && all(c, LEAF7_ECX_AVX512VNNI) ? CPU_LEVEL_AVX512 : CPU_LEVEL_AVX2;
}

#else

static cpu_level detect(void) { return CPU_LEVEL_PORTABLE; }

#endif

static cpu_kernels tables[CPU_LEVEL_COUNT];
static cpu_level best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    best = detect();
    for (int level = 0; level <= (int)best; level++) {
        cpu_kernels *t = &tables[level];
        cpu_kernels_portable(t);
#if defined(__x86_64__)
        if (level >= CPU_LEVEL_AVX2) cpu_kernels_avx2(t);
        if (level >= CPU_LEVEL_AVX512) cpu_kernels_avx512(t);
#endif
        t->level = (cpu_level)level;
        t->name = names[level];
    }
}

cpu_level cpu_level_best(void) {
    pthread_once(&once, fill);
    return best;
}

const cpu_kernels *cpu_kernels_get(cpu_level level) {
    if ((int)level < 0 || level > cpu_level_best()) return NULL;
    return &tables[level];
}

const char *cpu_level_name(cpu_level l) { return (int)l >= 0 && l < CPU_LEVEL_COUNT ? names[l] : "?"; }

sheaf_status cpu_level_from_name(const char *name, cpu_level *out) {
    for (int l = 0; l < CPU_LEVEL_COUNT; l++) {
        if (strcmp(names[l], name) != 0) continue;
        if (l > (int)cpu_level_best()) {
            return sheaf_fail(SHEAF_E_ARGUMENT, "CPU level %s: this machine has only %s", name, names[best]);
        }
        *out = (cpu_level)l;
        return SHEAF_OK;
    }
    return sheaf_fail(SHEAF_E_ARGUMENT, "CPU level %s: unknown (portable, avx2, avx512)", name);
}
