/* What a team does with its slice once everybody's addends are readable: sums, epilogues, copies.
 *
 * Slices follow rows where a norm needs whole rows, elements otherwise. No slice changes a bit: every
 * element is one program of additions, every norm one call on a whole row. */
#include "collectives/comm_internal.h"

#include <string.h>

enum { SLICE_ALIGN = 16 }; /* elements: threads write different cache lines of out */

static char *at_element(void *base, int64_t e, size_t bytes) { return (char *)base + (size_t)e * bytes; }

/* One addition of two unrounded leaves, which is what two devices have: in one pass, if the device lends a kernel. */
static bool reduce_pair(run *r, const canon_program *p, const void *const *leaf, int64_t leaf_from, int64_t from,
                        int64_t to) {
    const sheaf_comm_args *a = &r->post->args;
    if (!r->m->sum_f64 || r->op->kind->type != SHEAF_F64 || p->n != 3 || p->code[2] != CANON_ADD) return false;
    const double *x = leaf[p->code[0]], *y = leaf[p->code[1]];
    const float *residual = r->op->d.epilogue.add ? a->residual : NULL;
    r->m->sum_f64((float *)a->out + from, x + (from - leaf_from), y + (from - leaf_from),
                  residual ? residual + from : NULL, to - from);
    return true;
}

/* Elements [from, to) of the whole tensor: the sum, then the residual while it is in cache. */
static void reduce_part(run *r, const canon_program *p, const void *const *leaf, bool from_acc, int64_t leaf_from,
                        int64_t from, int64_t to) {
    const sheaf_comm_args *a = &r->post->args;
    const sum_kind *k = r->op->kind;
    bool add = r->op->d.epilogue.add;
    if (reduce_pair(r, p, leaf, leaf_from, from, to)) return;
    for (int64_t e = from; e < to; e += SUM_BLOCK) {
        int64_t n = to - e < SUM_BLOCK ? to - e : SUM_BLOCK;
        float residual[SUM_BLOCK]; /* read first: it may be out itself */
        if (add) memcpy(residual, at_element((void *)a->residual, e, 4), (size_t)n * 4);
        char *out = at_element(a->out, e, k->out_bytes);
        sum_round(k, p, leaf, from_acc, e - leaf_from, n, out);
        if (add) sum_residual((float *)(void *)out, residual, n);
    }
}

static void norm_row(run *r, int64_t row) {
    const sheaf_comm_args *a = &r->post->args;
    int64_t n = r->op->d.row, at = row * n;
    r->m->rms_norm((float *)a->norm_out + at, (const float *)a->out + at, a->norm_weight, n, r->op->d.epilogue.eps);
}

void reduce_own_rows(run *r, const canon_program *p, const void *const *leaf, bool from_acc, int64_t leaf_row0,
                     int64_t row0, int64_t rows) {
    int64_t n = r->op->d.row;
    for (int64_t k = row0; k < row0 + rows; k++) {
        reduce_part(r, p, leaf, from_acc, leaf_row0 * n, k * n, (k + 1) * n);
        if (r->op->d.epilogue.norm) norm_row(r, k);
    }
}

void reduce_rows(run *r, const canon_program *p, const void *const *leaf, bool from_acc, int64_t leaf_row0,
                 int64_t row0, int64_t rows) {
    int64_t n = r->op->d.row, from, to;
    bool norm = r->op->d.epilogue.norm;
    if (norm && rows >= r->n) {
        run_slice(rows, r->i, r->n, 1, &from, &to);
        reduce_own_rows(r, p, leaf, from_acc, leaf_row0, row0 + from, to - from);
        return;
    }
    run_slice(rows * n, r->i, r->n, SLICE_ALIGN, &from, &to);
    reduce_part(r, p, leaf, from_acc, leaf_row0 * n, row0 * n + from, row0 * n + to);
    if (!norm) return;
    run_barrier(r);
    for (int64_t k = r->i; k < rows; k += r->n) norm_row(r, row0 + k);
}

static void gather_piece(run *r, const sheaf_gather_piece *p, const char *from, int64_t row0, int64_t k, int64_t part0,
                         int64_t part1) {
    const sheaf_comm_desc *d = &r->op->d;
    size_t b = r->op->element;
    const char *src = from + (size_t)(k * d->share[p->from] + p->src_at + part0) * b;
    char *dst = at_element(r->post->args.out, (row0 + k) * d->row + p->at + part0, b);
    memcpy(dst, src, (size_t)(part1 - part0) * b);
}

void gather_rows(run *r, const void *const *from, int64_t row0, int64_t rows) {
    const sheaf_comm_desc *d = &r->op->d;
    bool by_rows = rows >= r->n;
    int64_t k0 = 0, k1 = rows;
    if (by_rows) run_slice(rows, r->i, r->n, 1, &k0, &k1);
    for (int64_t k = k0; k < k1; k++) {
        for (int32_t j = 0; j < d->n_pieces; j++) {
            const sheaf_gather_piece *p = &d->pieces[j];
            int64_t a = 0, b = p->length;
            if (!by_rows) run_slice(p->length, r->i, r->n, SLICE_ALIGN, &a, &b);
            if (a < b && from[p->from]) gather_piece(r, p, from[p->from], row0, k, a, b);
        }
    }
}

void copy_slice(run *r, void *to, const void *from, size_t bytes) {
    int64_t a, b;
    run_slice((int64_t)bytes, r->i, r->n, 64, &a, &b);
    if (to != from && a < b) memcpy((char *)to + a, (const char *)from + a, (size_t)(b - a));
}
