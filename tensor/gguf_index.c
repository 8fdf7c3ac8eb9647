/* Names to numbers: an open-addressed table at most half full.
 *
 * Names come from a hostile file, so the hash is keyed with bytes of this process that the file's
 * author cannot know; otherwise a crafted header of colliding names would take quadratic time. */
#include "tensor/gguf_internal.h"

#include <string.h>
#include <sys/auxv.h>

static uint64_t secret(void) {
    uint64_t seed = 0x9e3779b97f4a7c15u;
    const void *random = (const void *)getauxval(AT_RANDOM); /* NOLINT(performance-no-int-to-ptr): its only form */
    if (random) memcpy(&seed, random, sizeof seed);
    return seed;
}

static uint64_t mix(uint64_t h) {
    __extension__ typedef unsigned __int128 wide;
    wide m = (wide)(h ^ 0xa0761d6478bd642fu) * 0xe7037ed1a0b428dbu;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t hash(uint64_t seed, sheaf_str t) {
    uint64_t h = mix(seed ^ t.n);
    size_t i = 0;
    for (; i + 8 <= t.n; i += 8) {
        uint64_t w;
        memcpy(&w, t.s + i, 8);
        h = mix(h ^ w);
    }
    uint64_t tail = 0;
    if (i < t.n) memcpy(&tail, t.s + i, t.n - i);
    return mix(h ^ tail ^ seed);
}

bool gguf_str_equal(sheaf_str a, sheaf_str b) { return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0); }

/* The slot that holds `wanted`, or the free slot where it belongs. */
static uint64_t probe(const gguf_index *x, gguf_name_fn name, const void *items, sheaf_str wanted, uint64_t h) {
    uint64_t at = h & x->mask;
    for (; x->slots[at]; at = (at + 1) & x->mask) {
        bool same_hash = (uint32_t)(x->slots[at] >> 32) == (uint32_t)(h >> 32);
        if (same_hash && gguf_str_equal(name(items, (uint32_t)x->slots[at] - 1), wanted)) break;
    }
    return at;
}

sheaf_status gguf_index_build(gguf_index *x, gguf_name_fn name, const void *items, uint32_t n, uint32_t twice[2]) {
    uint64_t size = 4;
    while (size < (uint64_t)n * 2) size *= 2;
    *x = (gguf_index){.mask = size - 1, .seed = secret()};
    x->slots = sheaf_calloc((size_t)size, sizeof *x->slots);
    if (!x->slots) return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for an index of %u names", n);
    for (uint32_t i = 0; i < n; i++) {
        sheaf_str wanted = name(items, i);
        uint64_t h = hash(x->seed, wanted), at = probe(x, name, items, wanted, h);
        if (x->slots[at]) {
            twice[0] = (uint32_t)x->slots[at] - 1;
            twice[1] = i;
            return SHEAF_E_FORMAT;
        }
        x->slots[at] = (h >> 32) << 32 | (i + 1);
    }
    return SHEAF_OK;
}

int64_t gguf_index_find(const gguf_index *x, gguf_name_fn name, const void *items, sheaf_str wanted) {
    if (!x->slots) return -1;
    uint64_t at = probe(x, name, items, wanted, hash(x->seed, wanted));
    return x->slots[at] ? (int64_t)(uint32_t)x->slots[at] - 1 : -1;
}

void gguf_index_free(gguf_index *x) {
    sheaf_free(x->slots);
    *x = (gguf_index){0};
}
