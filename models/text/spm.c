/* SentencePiece's BPE: start from characters, always join the neighbours whose joined text is the
 * token of highest score (leftmost of equals); characters that are no token become bytes. The whole
 * text is one run, so candidates sit in a heap: n log n, no recursion. */
#include "models/text/tokenizer_internal.h"

#include <string.h>

typedef struct symbol {
    uint32_t at, n; /* bytes of the text; n 0: joined to its left neighbour */
    uint32_t previous, next;
} symbol;

typedef struct candidate {
    float score;
    uint32_t left, n; /* symbol index; bytes of the joined text, which tell whether it is still true */
} candidate;

#define NOWHERE UINT32_MAX

typedef struct heap {
    candidate *v;
    size_t n;
} heap;

static bool before(const candidate *a, const candidate *b) {
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(heap *h, candidate x) {
    size_t i = h->n++;
    for (; i > 0 && before(&x, &h->v[(i - 1) / 2]); i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = x;
}

static candidate heap_pop(heap *h) {
    candidate top = h->v[0], last = h->v[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && before(&h->v[child + 1], &h->v[child])) child++;
        if (!before(&h->v[child], &last)) break;
        h->v[i] = h->v[child];
    }
    h->v[i] = last;
    return top;
}

/* One text being merged. */
typedef struct run {
    const sheaf_tokenizer *t;
    const char *text;
    symbol *sym;
    heap heap;
} run;

static void offer(run *r, uint32_t left) {
    if (left == NOWHERE || r->sym[left].next == NOWHERE) return;
    const symbol *a = &r->sym[left], *b = &r->sym[a->next];
    size_t n = (size_t)a->n + b->n;
    if (n > r->t->longest) return;
    int32_t id = text_map_find(r->t, &r->t->plain, r->text + a->at, n);
    if (id >= 0) heap_push(&r->heap, (candidate){r->t->tokens[id].score, left, (uint32_t)n});
}

static void join(run *r, const candidate *c) {
    symbol *a = &r->sym[c->left];
    if (a->n == 0 || a->next == NOWHERE) return;
    symbol *b = &r->sym[a->next];
    if (a->n + b->n != c->n) return;
    a->n = c->n;
    b->n = 0;
    a->next = b->next;
    if (a->next != NOWHERE) r->sym[a->next].previous = c->left;
    offer(r, a->previous);
    offer(r, c->left);
}

static sheaf_status emit(const run *r, const symbol *x, sheaf_ids *out) {
    int32_t id = text_map_find(r->t, &r->t->plain, r->text + x->at, x->n);
    if (id >= 0) return sheaf_ids_append(out, &id, 1);
    sheaf_status s = SHEAF_OK;
    for (uint32_t i = 0; i < x->n && !s; i++) s = byte_fallback(r->t, (uint8_t)r->text[x->at + i], out);
    return s;
}

/* The characters of the text as symbols; a byte that is no character is a symbol of its own. */
static uint32_t cut_characters(run *r, size_t n) {
    uint32_t count = 0;
    for (size_t i = 0; i < n; count++) {
        size_t len = sheaf_utf8_char(r->text + i, n - i, NULL);
        if (len == 0) len = 1;
        r->sym[count] = (symbol){(uint32_t)i, (uint32_t)len, count ? count - 1 : NOWHERE, count + 1};
        i += len;
    }
    r->sym[count - 1].next = NOWHERE;
    return count;
}

static sheaf_status merge_run(run *r, uint32_t count, sheaf_ids *out) {
    for (uint32_t i = 0; i + 1 < count; i++) offer(r, i);
    while (r->heap.n) {
        candidate c = heap_pop(&r->heap);
        join(r, &c);
    }
    sheaf_status s = SHEAF_OK;
    for (uint32_t i = 0; i != NOWHERE && !s; i = r->sym[i].next) s = emit(r, &r->sym[i], out);
    return s;
}

/* Bytes of `text` as the vocabulary sees it: a space first if `prefix`, and U+2581 is a space. */
static size_t normalise(const char *text, size_t n, bool prefix, char *dst) {
    size_t out = 0;
    if (prefix) dst[out++] = ' ';
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0) {
            dst[out++] = ' ';
            i += 3;
        } else {
            dst[out++] = text[i++];
        }
    }
    return out;
}

sheaf_status spm_text(const sheaf_tokenizer *t, merge_work *w, const char *text, size_t n, bool prefix,
                      sheaf_ids *out) {
    if (n == 0) return SHEAF_OK;
    char *copy = sheaf_malloc(n + 1);
    if (!copy) return sheaf_fail(SHEAF_E_NO_MEMORY, "tokenizing: a copy of %zu bytes", n);
    n = normalise(text, n, prefix, copy);
    /* Each join removes a symbol and offers at most two pairs: 3n candidates ever. */
    sheaf_status s = work_reserve(&w->symbols, &w->symbol_bytes, n * sizeof(symbol));
    if (!s) s = work_reserve(&w->heap, &w->heap_bytes, 3 * n * sizeof(candidate));
    if (!s) {
        run r = {t, copy, w->symbols, {w->heap, 0}};
        s = merge_run(&r, cut_characters(&r, n), out);
    }
    sheaf_free(copy);
    return s;
}
