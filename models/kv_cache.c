/* The book-keeping of a KV cache: which cell holds which position of which sequence.
 *
 * A cell is a row of every layer's cache_k and cache_v. Cells are unified: any sequence may use any cell,
 * and rows are written by number, so a sequence need not lie in one piece. The lowest free cell is taken
 * first: attention reads cells [0, high), so a low `high` is a short read.
 *
 * Layers with a sliding window have cells of their own, fewer: n_seq * window + a micro-batch. A token then takes the
 * cell of a position that no coming token sees. Before a micro-batch each sequence has at most window - 1 positions
 * that its next token sees, so there is always one (window 4, micro-batch 2, one sequence; * seen by the next token):
 *
 *     cells   0  1* 2* 3* .  .      claim 4, 5    0  1  2  3* 4* 5*      claim 6, 7    6* 7* 2  3  4  5*
 *
 * Owns numbers only; the tensors are the context's. */
#include "models/model_internal.h"

#include <string.h>

sheaf_status kv_cells_init(kv_cells *k, int32_t n, int32_t n_seq) {
    *k = (kv_cells){.n = n, .n_seq = n_seq};
    k->pos = sheaf_malloc((size_t)n * sizeof *k->pos);
    k->seq = sheaf_malloc((size_t)n * sizeof *k->seq);
    k->next = sheaf_malloc((size_t)n_seq * sizeof *k->next);
    k->ahead = sheaf_malloc((size_t)n_seq * sizeof *k->ahead);
    k->count = sheaf_malloc((size_t)n_seq * sizeof *k->count);
    k->lost = sheaf_malloc((size_t)n_seq * sizeof *k->lost);
    if (!k->pos || !k->seq || !k->next || !k->ahead || !k->count || !k->lost)
        return sheaf_fail(SHEAF_E_NO_MEMORY, "no memory for %d KV cells", n);
    kv_cells_clear(k);
    return SHEAF_OK;
}

void kv_cells_free(kv_cells *k) {
    sheaf_free(k->pos);
    sheaf_free(k->seq);
    sheaf_free(k->next);
    sheaf_free(k->ahead);
    sheaf_free(k->count);
    sheaf_free(k->lost);
    *k = (kv_cells){0};
}

void kv_cells_clear(kv_cells *k) {
    memset(k->pos, 0, (size_t)k->n * sizeof *k->pos);
    memset(k->seq, 0xff, (size_t)k->n * sizeof *k->seq); /* -1 */
    memset(k->next, 0, (size_t)k->n_seq * sizeof *k->next);
    memset(k->count, 0, (size_t)k->n_seq * sizeof *k->count);
    memset(k->lost, 0, (size_t)k->n_seq * sizeof *k->lost);
    k->used = k->high = k->hand = 0;
}

int32_t kv_cells_claim(kv_cells *k, int32_t seq, int32_t pos) {
    int32_t cell = 0;
    if (k->used == k->high) {
        cell = k->high; /* no holes: the usual case, found at once */
    } else {
        while (k->seq[cell] >= 0) cell++;
    }
    k->seq[cell] = seq;
    k->pos[cell] = pos;
    k->used++;
    k->count[seq]++;
    if (cell >= k->high) k->high = cell + 1;
    if (pos >= k->next[seq]) k->next[seq] = pos + 1;
    return cell;
}

/* Round the cells, so that what is given up is the oldest, and the recent past stays for as long as it can. */
static void give_one_up(kv_cells *k, int32_t window, const int32_t *next) {
    for (int32_t i = 0; i < k->n; i++) {
        int32_t cell = k->hand, seq = k->seq[cell], pos = k->pos[cell];
        k->hand = cell + 1 < k->n ? cell + 1 : 0;
        if (pos > next[seq] - window) continue;
        if (pos >= k->lost[seq]) k->lost[seq] = pos + 1;
        kv_cells_release(k, cell);
        return;
    }
}

int32_t kv_cells_claim_windowed(kv_cells *k, int32_t seq, int32_t pos, int32_t window, const int32_t *next) {
    if (k->used == k->n) give_one_up(k, window, next);
    return kv_cells_claim(k, seq, pos);
}

void kv_cells_release(kv_cells *k, int32_t cell) {
    k->count[k->seq[cell]]--;
    k->seq[cell] = -1;
    k->used--;
}

void kv_cells_settle(kv_cells *k, int32_t seq) {
    while (k->high > 0 && k->seq[k->high - 1] < 0) k->high--;
    int32_t next = 0;
    for (int32_t i = 0; i < k->high; i++)
        if (k->seq[i] == seq && k->pos[i] >= next) next = k->pos[i] + 1;
    k->next[seq] = next;
}

static bool in_range(const kv_cells *k, int32_t cell, int32_t seq, int32_t p0, int32_t p1) {
    return k->seq[cell] == seq && k->pos[cell] >= p0 && (p1 < 0 || k->pos[cell] < p1);
}

void kv_cells_remove(kv_cells *k, int32_t seq, int32_t p0, int32_t p1) {
    for (int32_t i = 0; i < k->high; i++)
        if (in_range(k, i, seq, p0, p1)) kv_cells_release(k, i);
    kv_cells_settle(k, seq);
}

int32_t kv_cells_next_without(const kv_cells *k, int32_t seq, int32_t p0, int32_t p1) {
    int32_t next = 0;
    for (int32_t i = 0; i < k->high; i++)
        if (k->seq[i] == seq && !in_range(k, i, seq, p0, p1) && k->pos[i] >= next) next = k->pos[i] + 1;
    return next;
}

void kv_cells_load(kv_cells *k, const int32_t *pairs, int32_t n) {
    kv_cells_clear(k);
    for (int32_t i = 0; i < n; i++) {
        int32_t seq = pairs[2 * i], pos = pairs[2 * i + 1];
        if (seq < 0) continue;
        k->seq[i] = seq;
        k->pos[i] = pos;
        k->used++;
        k->count[seq]++;
        k->high = i + 1;
        if (pos >= k->next[seq]) k->next[seq] = pos + 1;
    }
}

void kv_cells_mask(const kv_cells *k, int32_t seq, int32_t pos, int32_t window, int32_t n_kv, uint16_t *row) {
    enum { SEEN = 0x0000, HIDDEN = 0xfc00 }; /* 0 and -inf as f16 */
    int32_t first = window > 0 && window <= pos ? pos - window + 1 : 0;
    for (int32_t i = 0; i < n_kv; i++)
        row[i] = k->seq[i] == seq && k->pos[i] >= first && k->pos[i] <= pos ? SEEN : HIDDEN;
}
