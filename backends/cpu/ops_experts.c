/* Mixtures of experts: the product that takes a matrix by id, the bias by id, the choice of experts.
 *
 * mul_mat_id works in two steps. `columns` sorts the (token, used) slots by expert and writes their columns, in
 * that order, into a region, in the format that the kernel wants; gate and up share it. `product` then goes over
 * rows of the experts: a thread that has rows [m0, m1) does them for every expert, so that a sum over a token's
 * experts needs no lock and its order (by expert, then slot) depends on nobody.
 *
 *     region   n_expert + 2 firsts | slot of each place | column | column | ...     sorted by expert
 *     places   [first[e], first[e+1]) are expert e's; the last bucket holds ids that name no expert
 *
 * An expert's columns are one matmul: many go by tiles, few row by row, which the kernel decides by their
 * number, the same on every device. */
#include "backends/cpu/matmul.h"

#include <math.h>
#include <string.h>

enum { TILE_BYTES = CPU_THREAD_SCRATCH - CPU_MM_SCRATCH };

/* --- columns by expert ---------------------------------------------------------------------------------- */

typedef struct slots {
    const int32_t *first, *slot;
    const char *columns;
} slots;

static size_t header_bytes(int64_t n_expert, int64_t n_slots) {
    return cpu_act_pad((size_t)(n_expert + 2 + n_slots) * sizeof(int32_t));
}

static slots slots_of(const cpu_step *s, const cpu_task *t, int64_t n_slots) {
    const char *base = cpu_region_at(t, s->region_in);
    int64_t n_expert = s->src[0]->ne[2];
    const int32_t *first = (const int32_t *)base;
    return (slots){first, first + n_expert + 2, base + header_bytes(n_expert, n_slots)};
}

/* Counting sort of the slots by expert, in order of slots within one; `n_expert` is the bucket of foreign ids. */
static void sort_slots(const cpu_operand *ids, const char *base, int64_t n_expert, int32_t *first, int32_t *slot) {
    int64_t n_used = ids->ne[0], n_slots = n_used * ids->ne[1];
    memset(first, 0, (size_t)(n_expert + 2) * sizeof *first);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n_slots; i++) {
            int64_t e =
                *(const int32_t *)(base + (size_t)(i % n_used) * ids->nb[0] + (size_t)(i / n_used) * ids->nb[1]);
            if (e < 0 || e > n_expert) e = n_expert;
            if (pass == 0)
                first[e + 1]++;
            else
                slot[first[e]++] = (int32_t)i;
        }
        if (pass == 0)
            for (int64_t e = 0; e <= n_expert; e++) first[e + 1] += first[e];
    }
    for (int64_t e = n_expert + 1; e > 0; e--) first[e] = first[e - 1]; /* the second pass moved each to its end */
    first[0] = 0;
}

/* Every thread sorts for itself (a few microseconds, cheaper than to meet); one writes the order down. */
static void write_columns(const cpu_step *s, const cpu_task *t, bool quantize) {
    const cpu_operand *x = s->src[0], *ids = s->src[1];
    int64_t n_used = ids->ne[0], n_slots = n_used * ids->ne[1], n_expert = s->params.words[0], k = x->ne[0], lo, hi;
    int32_t *first = (int32_t *)t->scratch, *slot = first + n_expert + 2;
    char *region = cpu_region_at(t, s->region_out), *columns = region + header_bytes(n_expert, n_slots);
    size_t column = cpu_act_bytes(quantize ? CPU_ACT_Q8 : CPU_ACT_F32, k);
    sort_slots(ids, cpu_at(t, ids), n_expert, first, slot);
    if (t->ith == t->nth - 1) memcpy(region, first, (size_t)(n_expert + 2 + n_slots) * sizeof *first);
    cpu_share(t, n_slots, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = {slot[i] % n_used, slot[i] / n_used, 0}; /* one column a token repeats */
        const float *row = (const float *)cpu_row_at(cpu_at(t, x), x, r);
        if (quantize)
            t->run->kernels->quantize_q8(row, columns + (size_t)i * column, k);
        else
            memcpy(columns + (size_t)i * column, row, (size_t)k * sizeof *row);
    }
}

static void run_columns_q8(const cpu_step *s, const cpu_task *t) { write_columns(s, t, true); }
static void run_columns_f32(const cpu_step *s, const cpu_task *t) { write_columns(s, t, false); }

static cpu_region *columns_of(cpu_compiler *c, const sheaf_tensor *n, bool quantize) {
    sheaf_tensor *x = n->src[1], *ids = n->src[2];
    cpu_step_fn run = quantize ? run_columns_q8 : run_columns_f32;
    int64_t n_slots = sheaf_nelements(ids), n_expert = n->src[0]->ne[2];
    size_t size;
    sheaf_params *key = cpu_compiler_alloc(c, sizeof *key); /* the sort is by so many experts */
    if (!key) return NULL;
    key->words[0] = (int32_t)n_expert;
    cpu_region *r = cpu_cache_find(c, run, x, ids, key);
    if (r) return r;
    if (sheaf_mul_overflow(cpu_act_bytes(quantize ? CPU_ACT_Q8 : CPU_ACT_F32, x->ne[0]), (size_t)n_slots, &size) ||
        sheaf_add_overflow(size, header_bytes(n_expert, n_slots), &size))
        return NULL;
    r = cpu_region_new(c, size);
    cpu_step *s = r ? cpu_emit(c, n, run, NULL, (sheaf_tensor *[]){x, ids}, 2, 0, NULL, r) : NULL;
    if (!s) return NULL;
    s->params = *key;
    cpu_cache_add(c, run, x, ids, key, r);
    return r;
}

/* --- the product ------------------------------------------------------------------------------------------ */

/* Where the result of slot `i` begins: its own column, or its token's sum. */
static char *result_of(const cpu_step *s, const cpu_task *t, int32_t i) {
    const cpu_operand *d = s->dst;
    int64_t n_used = s->params.mul_mat.over_used ? s->src[1]->ne[0] : d->ne[1];
    if (s->params.mul_mat.over_used) return cpu_at(t, d) + (size_t)(i / n_used) * d->nb[1];
    return cpu_at(t, d) + (size_t)(i % n_used) * d->nb[1] + (size_t)(i / n_used) * d->nb[2];
}

static void zero_rows(const cpu_step *s, char *column, int64_t m0, int64_t m1) {
    size_t element = s->dst->nb[0];
    memset(column + (size_t)m0 * element, 0, (size_t)(m1 - m0) * element);
}

/* A finished column of rows [m0, m1), copied or added to where it belongs. */
static void deliver(const cpu_step *s, const cpu_task *t, int32_t slot, const char *tile, int64_t m0, int64_t m1) {
    size_t element = s->dst->nb[0];
    char *out = result_of(s, t, slot) + (size_t)m0 * element;
    if (!s->params.mul_mat.over_used) {
        memcpy(out, tile, (size_t)(m1 - m0) * element);
        return;
    }
    for (int64_t i = 0; i < m1 - m0; i++) ((double *)out)[i] += ((const double *)tile)[i];
}

static int64_t segment_of(const cpu_step *s, int64_t none) {
    return s->params.mul_mat.accumulate == SHEAF_ACC_SEGMENTS ? s->params.mul_mat.segment : none;
}

/* Rows [m0, m1) of one expert times the columns of its places [p0, p1), by the kernel table. */
static void expert_fast(const cpu_step *s, const cpu_task *t, const slots *o, int64_t e, int64_t m0, int64_t m1) {
    const cpu_operand *w = s->src[0];
    size_t element = s->dst->nb[0], rows = (size_t)(m1 - m0);
    int64_t at_once = (int64_t)(TILE_BYTES / (rows * element)), p1 = o->first[e + 1];
    char *tile = t->scratch + CPU_MM_SCRATCH;
    bool q8 = t->run->kernels->mm[w->type].act == CPU_ACT_Q8;
    cpu_mm a = {
        .w = cpu_at(t, w) + (size_t)e * w->nb[2] + (size_t)m0 * w->nb[1],
        .w_row = w->nb[1],
        .x_col = cpu_act_bytes(q8 ? CPU_ACT_Q8 : CPU_ACT_F32, w->ne[0]),
        .out = tile,
        .out_col = rows * element,
        .k = w->ne[0],
        .n_total = p1 - o->first[e],
        .segment = (int32_t)segment_of(s, 0),
        .out_f64 = s->dst->type == SHEAF_F64,
        .scratch = t->scratch,
    };
    for (int64_t p = o->first[e]; p < p1; p += at_once) {
        int64_t n = p1 - p < at_once ? p1 - p : at_once;
        a.x = o->columns + (size_t)p * a.x_col;
        t->run->kernels->mm[w->type].mul(&a, 0, m1 - m0, 0, n);
        for (int64_t i = 0; i < n; i++) deliver(s, t, o->slot[p + i], tile + (size_t)i * a.out_col, m0, m1);
    }
}

/* The same without a kernel: any type, any length. */
static void expert_plain(const cpu_step *s, const cpu_task *t, const slots *o, int64_t e, int64_t m0, int64_t m1) {
    const cpu_operand *w = s->src[0];
    int64_t k = w->ne[0], segment = segment_of(s, k ? k : 1);
    float *row = (float *)t->scratch;
    for (int64_t m = m0; m < m1 && o->first[e] < o->first[e + 1]; m++) {
        sheaf_to_float(w->type, cpu_at(t, w) + (size_t)e * w->nb[2] + (size_t)m * w->nb[1], row, k);
        for (int32_t p = o->first[e]; p < o->first[e + 1]; p++) {
            const char *x = o->columns + (size_t)p * cpu_act_bytes(CPU_ACT_F32, k);
            double sum = cpu_dot_plain(row, x, sizeof(float), k, segment);
            float rounded = (float)sum;
            bool wide = s->dst->type == SHEAF_F64;
            deliver(s, t, o->slot[p], wide ? (const char *)&sum : (const char *)&rounded, m, m + 1);
        }
    }
}

typedef void (*expert_fn)(const cpu_step *, const cpu_task *, const slots *, int64_t, int64_t, int64_t);

/* Rows [m0, m1) of all experts. */
static void product_rows(const cpu_step *s, const cpu_task *t, expert_fn fn, int64_t m0, int64_t m1) {
    bool sum = s->params.mul_mat.over_used;
    int64_t n_expert = s->src[0]->ne[2], n_used = sum ? s->src[1]->ne[0] : s->dst->ne[1];
    int64_t n_tokens = sum ? s->dst->ne[1] : s->dst->ne[2];
    slots o = slots_of(s, t, n_used * n_tokens);
    for (int64_t i = 0; sum && i < n_tokens; i++) zero_rows(s, result_of(s, t, (int32_t)(i * n_used)), m0, m1);
    for (int64_t e = 0; e < n_expert; e++) fn(s, t, &o, e, m0, m1);
    for (int32_t p = o.first[n_expert]; !sum && p < o.first[n_expert + 1]; p++)
        zero_rows(s, result_of(s, t, o.slot[p]), m0, m1);
}

static void product(const cpu_step *s, const cpu_task *t, expert_fn fn) {
    int64_t m = s->dst->ne[0];
    cpu_handout h = cpu_hand_out(m, t->nth);
    for (int64_t at = h.own * t->ith, end = at + h.own; at < end; at += CPU_MAX_CHUNK)
        product_rows(s, t, fn, at, at + CPU_MAX_CHUNK < end ? at + CPU_MAX_CHUNK : end);
    int64_t first = h.own * t->nth, n = (m - first + h.chunk - 1) / h.chunk;
    if (n == 0) return;
    for (int64_t i; (i = cpu_take(s, t)) < n;) {
        int64_t m0 = first + i * h.chunk;
        product_rows(s, t, fn, m0, m0 + h.chunk < m ? m0 + h.chunk : m);
    }
}

static void run_product_fast(const cpu_step *s, const cpu_task *t) { product(s, t, expert_fast); }
static void run_product_plain(const cpu_step *s, const cpu_task *t) { product(s, t, expert_plain); }

static bool is_id_matrix(const sheaf_tensor *t) {
    return t && t->type == SHEAF_I32 && sheaf_rows_contiguous(t) && t->ne[2] == 1 && t->ne[3] == 1;
}

static bool is_f32_rows(const sheaf_tensor *t) { return t && t->type == SHEAF_F32 && sheaf_rows_contiguous(t); }

static bool supports_mul_mat_id(const sheaf_tensor *n) {
    const sheaf_tensor *w = n->src[0], *x = n->src[1], *ids = n->src[2];
    bool sum = n->params.mul_mat.over_used;
    if (!w || !is_f32_rows(x) || !is_id_matrix(ids) || !sheaf_rows_contiguous(w) || !sheaf_rows_contiguous(n))
        return false;
    if (n->type != SHEAF_F64 && (sum || n->type != SHEAF_F32)) return false;
    if (w->type != SHEAF_F32 && w->type != SHEAF_F16 && w->type != SHEAF_BF16 && !sheaf_type_is_quantized(w->type))
        return false;
    if (w->ne[3] != 1 || x->ne[3] != 1 || n->ne[3] != 1 || w->ne[0] != x->ne[0] || n->ne[0] != w->ne[1]) return false;
    if (x->ne[2] != ids->ne[1] || (x->ne[1] != ids->ne[0] && (sum || x->ne[1] != 1))) return false;
    if (sum ? n->ne[1] != ids->ne[1] || n->ne[2] != 1 : n->ne[1] != ids->ne[0] || n->ne[2] != ids->ne[1]) return false;
    int64_t header = w->ne[2] + 2 + sheaf_nelements(ids); /* sorted in a thread's scratch */
    return w->ne[2] < INT32_MAX - 2 && header <= CPU_THREAD_SCRATCH / (int64_t)sizeof(int32_t) &&
           w->ne[0] <= CPU_THREAD_SCRATCH / (int64_t)sizeof(float);
}

static void lower_mul_mat_id(cpu_compiler *c, const sheaf_tensor *n) {
    const cpu_kernels *k = cpu_compiler_kernels(c);
    const sheaf_tensor *w = n->src[0];
    bool q8 = k->mm[w->type].act == CPU_ACT_Q8, fast = k->mm[w->type].mul && w->ne[0] > 0;
    if (q8 && w->ne[0] % 32) fast = false;
    cpu_region *columns = columns_of(c, n, fast && q8);
    if (!columns) return;
    /* the columns lie in the region; ids are looked at for their shape */
    sheaf_tensor *src[] = {n->src[0], n->src[2]};
    cpu_emit(c, n, fast ? run_product_fast : run_product_plain, n, src, 2, 0, columns, NULL);
}

const cpu_op cpu_op_MUL_MAT_ID = {supports_mul_mat_id, lower_mul_mat_id};

/* --- bias by id ----------------------------------------------------------------------------------------------- */

static void run_add_id(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0], *rows = s->src[1], *ids = s->src[2];
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        int64_t id = *(const int32_t *)(cpu_at(t, ids) + (size_t)r.i1 * ids->nb[0] + (size_t)r.i2 * ids->nb[1]);
        float *out = (float *)cpu_row_at(cpu_at(t, s->dst), s->dst, r);
        const float *in = (const float *)cpu_row_at(cpu_at(t, x), x, r);
        if (id >= 0 && id < rows->ne[1])
            t->run->kernels->add(out, in, (const float *)(cpu_at(t, rows) + (size_t)id * rows->nb[1]), x->ne[0]);
        else
            memmove(out, in, (size_t)x->ne[0] * sizeof *out);
    }
}

static bool supports_add_id(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *rows = n->src[1], *ids = n->src[2];
    return is_f32_rows(n) && is_f32_rows(x) && is_f32_rows(rows) && is_id_matrix(ids) && sheaf_same_shape(n, x) &&
           n->ne[3] == 1 && rows->ne[0] == x->ne[0] && sheaf_nrows(rows) == rows->ne[1] && ids->ne[0] == x->ne[1] &&
           ids->ne[1] == x->ne[2];
}

static void lower_add_id(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_add_id, n, n->src, 3, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_ADD_ID = {supports_add_id, lower_add_id};

/* --- the choice ------------------------------------------------------------------------------------------------- */

/* Does element a of x come before element b? A strict order: larger first, NaN last, then the lower index. */
static bool before(const float *x, int32_t a, int32_t b) {
    if (isnan(x[a]) || isnan(x[b])) return isnan(x[a]) == isnan(x[b]) ? a < b : isnan(x[b]);
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* Lets the element at `i` of a heap of n sink; what comes last is on top. */
static void sink(const float *x, int32_t *heap, int64_t n, int64_t i) {
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) child++;
        if (!before(x, heap[i], heap[child])) return;
        int32_t moving = heap[i];
        heap[i] = heap[child];
        heap[child] = moving;
    }
}

enum { REFUSED = 32 };

/* Is none of so many elements worth a closer look? A NaN on either side is. */
static bool none_above(const float *x, float worst) {
    int32_t above = 0;
    for (int i = 0; i < REFUSED; i++) above |= !(x[i] <= worst);
    return !above;
}

/* The first k of n elements in order: a heap of the best so far, then sorted from its end. Of a long row almost all
 * are refused, many at a time. */
void cpu_top_k(const float *x, int64_t n, int32_t *out, int64_t k) {
    for (int64_t i = 0; i < k; i++) out[i] = (int32_t)i;
    for (int64_t i = k / 2; i > 0; i--) sink(x, out, k, i - 1);
    for (int64_t i = k; i < n && k > 0; i++) {
        while (i + REFUSED <= n && none_above(x + i, x[out[0]])) i += REFUSED;
        if (i == n || !before(x, (int32_t)i, out[0])) continue;
        out[0] = (int32_t)i;
        sink(x, out, k, 0);
    }
    for (int64_t end = k; end > 1; end--) {
        int32_t last = out[0];
        out[0] = out[end - 1];
        out[end - 1] = last;
        sink(x, out, end - 1, 0);
    }
}

static void run_argsort(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0];
    int64_t lo, hi;
    cpu_share(t, s->dst->ne[1], &lo, &hi);
    for (int64_t i = lo; i < hi; i++)
        cpu_top_k((const float *)(cpu_at(t, x) + (size_t)i * x->nb[1]), x->ne[0],
                  (int32_t *)(cpu_at(t, s->dst) + (size_t)i * s->dst->nb[1]), s->dst->ne[0]);
}

static bool supports_argsort(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0];
    return is_id_matrix(n) && is_f32_rows(x) && sheaf_nrows(x) == x->ne[1] && n->ne[1] == x->ne[1] &&
           n->ne[0] <= x->ne[0] && x->ne[0] <= INT32_MAX;
}

static void lower_argsort(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_argsort, n, n->src, 1, n->ne[1], NULL, NULL);
}

const cpu_op cpu_op_ARGSORT = {supports_argsort, lower_argsort};

static void run_pick(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0], *ids = s->src[1];
    int64_t lo, hi;
    cpu_share(t, s->dst->ne[1], &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        const float *column = (const float *)(cpu_at(t, x) + (size_t)i * x->nb[1]);
        const int32_t *id = (const int32_t *)(cpu_at(t, ids) + (size_t)i * ids->nb[1]);
        float *out = (float *)(cpu_at(t, s->dst) + (size_t)i * s->dst->nb[1]);
        for (int64_t k = 0; k < s->dst->ne[0]; k++) out[k] = id[k] >= 0 && id[k] < x->ne[0] ? column[id[k]] : 0.0f;
    }
}

static bool supports_pick(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *ids = n->src[1];
    return is_f32_rows(n) && is_f32_rows(x) && is_id_matrix(ids) && sheaf_nrows(x) == x->ne[1] &&
           sheaf_same_shape(n, ids) && ids->ne[1] == x->ne[1];
}

static void lower_pick(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_pick, n, n->src, 2, n->ne[1], NULL, NULL);
}

const cpu_op cpu_op_PICK = {supports_pick, lower_pick};
