/* Byte-pair merging of one word: start from bytes, always join the pair of lowest rank (leftmost of
 * equals). A linked list of symbols and a heap of candidate pairs: n log n, no recursion. */
#include "models/text/tokenizer_internal.h"

#include <string.h>

typedef struct symbol {
    int32_t id; /* -1: no token; DEAD: joined to its left neighbour */
    uint32_t previous, next;
} symbol;

enum { DEAD = -2 };
#define NOWHERE UINT32_MAX

void merge_work_free(merge_work *w) {
    sheaf_free(w->symbols);
    sheaf_free(w->heap);
}

sheaf_status work_reserve(void **p, size_t *have, size_t need) {
    if (need <= *have) return SHEAF_OK;
    size_t bytes = *have + *have / 2 + 1024;
    if (bytes < need) bytes = need;
    void *grown = sheaf_realloc(*p, bytes);
    if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "tokenizing: %zu bytes of work memory", bytes);
    *p = grown;
    *have = bytes;
    return SHEAF_OK;
}

sheaf_status byte_fallback(const sheaf_tokenizer *t, uint8_t byte, sheaf_ids *out) {
    /* Some files name a control token as the unknown one; plain text must never become it. */
    bool usable = t->unknown >= 0 && t->tokens[t->unknown].type == SHEAF_TOKEN_UNKNOWN;
    int32_t id = t->byte_id[byte] >= 0 ? t->byte_id[byte] : usable ? t->unknown : -1;
    if (id < 0) return sheaf_fail(SHEAF_E_UNSUPPORTED, "byte 0x%02X: the vocabulary has no token for it", byte);
    return sheaf_ids_append(out, &id, 1);
}

/* A heap of rank << 32 | position: its order is exactly "lowest rank, then leftmost". */
typedef struct heap {
    uint64_t *v;
    size_t n;
} heap;

static void heap_push(heap *h, uint64_t x) {
    size_t i = h->n++;
    for (; i > 0 && h->v[(i - 1) / 2] > x; i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

static uint64_t heap_pop(heap *h) {
    uint64_t top = h->v[0], last = h->v[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->v[child + 1] < h->v[child]) child++;
        if (h->v[child] >= last) break;
        h->v[i] = h->v[child];
    }
    h->v[i] = last;
    return top;
}

static void offer(const sheaf_tokenizer *t, heap *h, const symbol *sym, uint32_t at) {
    if (at == NOWHERE || sym[at].next == NOWHERE) return;
    int32_t left = sym[at].id, right = sym[sym[at].next].id;
    if (left < 0 || right < 0) return;
    uint32_t rank = merge_map_find(&t->merges, left, right);
    if (rank != UINT32_MAX) heap_push(h, (uint64_t)rank << 32 | at);
}

/* Joins the pair at `at` if it is still what the candidate meant. */
static void join(const sheaf_tokenizer *t, heap *h, symbol *sym, uint32_t rank, uint32_t at) {
    const merge *m = &t->merges.merges[rank];
    uint32_t right = sym[at].next;
    if (sym[at].id != m->left || right == NOWHERE || sym[right].id != m->right) return;
    sym[at].id = m->joined;
    sym[right].id = DEAD;
    sym[at].next = sym[right].next;
    if (sym[at].next != NOWHERE) sym[sym[at].next].previous = at;
    offer(t, h, sym, sym[at].previous);
    offer(t, h, sym, at);
}

sheaf_status bpe_word(const sheaf_tokenizer *t, merge_work *w, const char *word, size_t n, sheaf_ids *out) {
    const pre_traits *traits = pre_split_traits(t->pre);
    if (n == 0) return SHEAF_OK;
    int32_t whole = n == 1 ? t->byte_id[(uint8_t)word[0]] : -1;
    if (traits->ignore_merges && n > 1 && n <= t->longest) whole = text_map_find(t, &t->plain, word, n);
    if (whole >= 0) return sheaf_ids_append(out, &whole, 1);

    /* Each join removes a symbol and offers at most two pairs: 3n candidates ever. */
    sheaf_status s = work_reserve(&w->symbols, &w->symbol_bytes, n * sizeof(symbol));
    if (!s) s = work_reserve(&w->heap, &w->heap_bytes, 3 * n * sizeof(uint64_t));
    if (s) return s;
    symbol *sym = w->symbols;
    heap h = {w->heap, 0};
    for (uint32_t i = 0; i < n; i++)
        sym[i] = (symbol){t->byte_id[(uint8_t)word[i]], i ? i - 1 : NOWHERE, i + 1 < n ? i + 1 : NOWHERE};
    for (uint32_t i = 0; i + 1 < n; i++) offer(t, &h, sym, i);
    while (h.n) {
        uint64_t top = heap_pop(&h);
        join(t, &h, sym, (uint32_t)(top >> 32), (uint32_t)top);
    }
    for (uint32_t i = 0; i != NOWHERE && !s; i = sym[i].next)
        s = sym[i].id >= 0 ? sheaf_ids_append(out, &sym[i].id, 1) : byte_fallback(t, (uint8_t)word[i], out);
    return s;
}
