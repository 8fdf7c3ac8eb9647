/* The one hash of the house: identities of graphs, plans and logits. Not for keys an adversary
 * chooses. The same words give the same hash on every machine of one byte order. */
#ifndef SHEAF_TENSOR_HASH_H
#define SHEAF_TENSOR_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SHEAF_HASH_SEED UINT64_C(0x9e3779b97f4a7c15)

/* Mixes one word in: multiply, fold the high half down, multiply again (both constants odd). */
static inline uint64_t sheaf_hash_word(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 32;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 29;
}

static inline uint64_t sheaf_hash_bytes(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    uint64_t word;
    h = sheaf_hash_word(h, n);
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = sheaf_hash_word(h, word);
    }
    word = 0;
    memcpy(&word, p, n);
    return n ? sheaf_hash_word(h, word) : h;
}

#endif
