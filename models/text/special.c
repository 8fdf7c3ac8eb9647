/* Finds special tokens in text: a sorted list of their texts, narrowed byte by byte, so that the
 * time at one place is the length of the match and not the number of special tokens. It does not
 * decide whether control tokens may be found: the caller says. */
#include "models/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_special(const token *tok) {
    return tok->n > 0 && (tok->type == SHEAF_TOKEN_CONTROL || tok->type == SHEAF_TOKEN_USER_DEFINED ||
                          tok->type == SHEAF_TOKEN_UNKNOWN);
}

static int compare(const void *a, const void *b, void *ctx) {
    const sheaf_tokenizer *t = ctx;
    int32_t ia = *(const int32_t *)a, ib = *(const int32_t *)b;
    const token *x = &t->tokens[ia], *y = &t->tokens[ib];
    int c = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (c) return c;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return ia < ib ? -1 : ia > ib; /* equal texts: the first id is found */
}

sheaf_status special_build(sheaf_tokenizer *t) {
    size_t n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++) n += is_special(&t->tokens[i]);
    t->special = sheaf_malloc((n + 1) * sizeof(int32_t));
    if (!t->special) return sheaf_fail(SHEAF_E_NO_MEMORY, "list of %zu special tokens", n);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if (!is_special(&t->tokens[i])) continue;
        t->special[t->n_special++] = i;
        t->special_first[(uint8_t)t->tokens[i].text[0]] = true;
    }
    qsort_r(t->special, t->n_special, sizeof(int32_t), compare, t);
    return SHEAF_OK;
}

/* First index in [lo, hi) whose byte `at` is at least `byte`; texts there are longer than `at`. */
static size_t lower(const sheaf_tokenizer *t, size_t lo, size_t hi, uint32_t at, int byte) {
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)t->tokens[t->special[mid]].text[at] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t special_match(const sheaf_tokenizer *t, const char *s, size_t n, bool control) {
    int32_t best = -1;
    size_t lo = 0, hi = t->n_special;
    if (n == 0 || !t->special_first[(uint8_t)s[0]]) return -1;
    for (uint32_t at = 0; at < n && lo < hi; at++) {
        lo = lower(t, lo, hi, at, (uint8_t)s[at]);
        hi = lower(t, lo, hi, at, (uint8_t)s[at] + 1);
        /* All of [lo, hi) begin with s[0..at]; those that end here sort first. */
        for (bool taken = false; lo < hi && t->tokens[t->special[lo]].n == at + 1; lo++) {
            const token *tok = &t->tokens[t->special[lo]];
            if (taken || (!control && tok->type != SHEAF_TOKEN_USER_DEFINED)) continue;
            best = t->special[lo];
            taken = true;
        }
    }
    return best;
}

int32_t sheaf_tokenizer_find(const sheaf_tokenizer *t, const char *text, size_t n) {
    int32_t id = special_match(t, text, n, true);
    if (id >= 0 && t->tokens[id].n == n) return id;
    return n ? text_map_find(t, &t->plain, text, n) : -1;
}
