/* Ops that move or convert rows: cont, cpy, concat, fill, get_rows, set_rows.
 *
 * Conversions go through f32: floats to floats by element, quantized types by whole rows with the
 * reference converters. Integers are only moved. */
#include "backends/cpu/program.h"

#include <string.h>

enum { ROW_MAX = CPU_THREAD_SCRATCH / (int)sizeof(float) }; /* elements of a row that is converted */

static bool is_float(sheaf_type t) { return t == SHEAF_F32 || t == SHEAF_F16 || t == SHEAF_BF16 || t == SHEAF_F64; }

static void load_floats(const cpu_task *t, sheaf_type type, const char *src, float *dst, int64_t n) {
    if (t->run->kernels->to_float[type])
        t->run->kernels->to_float[type](src, dst, n);
    else
        sheaf_to_float(type, src, dst, n);
}

/* --- elements one by one, any strides ------------------------------------------------------------------ */

static double load_one(sheaf_type type, const char *p) {
    switch (type) {
    case SHEAF_F16: return (double)sheaf_f16_to_f32(*(const uint16_t *)p);
    case SHEAF_BF16: return (double)sheaf_bf16_to_f32(*(const uint16_t *)p);
    case SHEAF_F64: return *(const double *)p;
    default: return (double)*(const float *)p;
    }
}

static void store_one(sheaf_type type, char *p, double v) {
    switch (type) {
    case SHEAF_F16: *(uint16_t *)p = sheaf_f32_to_f16((float)v); break;
    case SHEAF_BF16: *(uint16_t *)p = sheaf_f32_to_bf16((float)v); break;
    case SHEAF_F64: *(double *)p = v; break;
    default: *(float *)p = (float)v; break;
    }
}

static void copy_elements(const cpu_operand *from, const char *src, const cpu_operand *to, char *dst) {
    size_t size = sheaf_type_bytes(from->type);
    for (int64_t i = 0; i < from->ne[0]; i++, src += from->nb[0], dst += to->nb[0]) {
        if (from->type == to->type)
            memcpy(dst, src, size);
        else
            store_one(to->type, dst, load_one(from->type, src));
    }
}

/* --- a row ------------------------------------------------------------------------------------------------ */

static bool whole_rows(const cpu_operand *o) { return o->nb[0] == sheaf_type_bytes(o->type); }

/* Copies one row of `from` over one of `to` (same ne[0]); supports_copy has said that this works. */
static void copy_row(const cpu_task *t, const cpu_operand *from, const char *src, const cpu_operand *to, char *dst) {
    if (from->type == to->type && whole_rows(from) && whole_rows(to)) {
        memcpy(dst, src, sheaf_row_bytes(from->type, from->ne[0]));
    } else if (whole_rows(from) && to->type == SHEAF_F32 && whole_rows(to)) {
        load_floats(t, from->type, src, (float *)dst, from->ne[0]);
    } else if (from->type == SHEAF_F32 && whole_rows(from) && whole_rows(to)) {
        sheaf_from_float(to->type, (const float *)src, dst, from->ne[0]);
    } else if (sheaf_type_is_quantized(from->type) || sheaf_type_is_quantized(to->type)) {
        float *tmp = (float *)t->scratch;
        load_floats(t, from->type, src, tmp, from->ne[0]);
        sheaf_from_float(to->type, tmp, dst, from->ne[0]);
    } else {
        copy_elements(from, src, to, dst);
    }
}

/* Is there an encoder for the type? Tried once with nothing to encode: an encoder that exists says yes. */
static bool has_encoder(sheaf_type t) {
    float none[1] = {0};
    char out[8];
    return sheaf_from_float(t, none, out, 0) == SHEAF_OK;
}

static bool supports_rows(const sheaf_tensor *from, const sheaf_tensor *to) {
    bool quantized = sheaf_type_is_quantized(from->type) || sheaf_type_is_quantized(to->type);
    if (quantized && (!sheaf_rows_contiguous(from) || !sheaf_rows_contiguous(to))) return false;
    if (from->type == to->type) return true;
    if (!quantized) return is_float(from->type) && is_float(to->type);
    if (!sheaf_type_is_quantized(from->type) && !is_float(from->type)) return false;
    if (!sheaf_type_is_quantized(to->type) && !is_float(to->type)) return false;
    if (from->type == SHEAF_F64 || to->type == SHEAF_F64) return false;
    return from->ne[0] <= ROW_MAX && (to->type == SHEAF_F32 || has_encoder(to->type));
}

static void run_copy(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *from = s->src[0], *to = s->dst;
    int64_t lo, hi;
    cpu_share(t, cpu_rows(from), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(from->ne, i);
        copy_row(t, from, cpu_row_at(cpu_at(t, from), from, r), to, cpu_row_at(cpu_at(t, to), to, r));
    }
}

static bool supports_copy(const sheaf_tensor *n) {
    return n->src[0] && sheaf_same_shape(n, n->src[0]) && supports_rows(n->src[0], n);
}

static void lower_copy(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_copy, n, n->src, 1, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_CONT = {supports_copy, lower_copy};
const cpu_op cpu_op_CPY = {supports_copy, lower_copy};

/* --- concat -------------------------------------------------------------------------------------------------- */

/* Copies source k into its part of the result: rows of the source, shifted along the joined dimension. */
static void concat_part(const cpu_step *s, const cpu_task *t, int k, int64_t shift) {
    const cpu_operand *from = s->src[k];
    int dim = s->params.concat.dim;
    int64_t lo, hi, rows = cpu_rows(from);
    size_t block = (size_t)sheaf_type_block(from->type);
    cpu_share(t, rows, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(from->ne, i), to = r;
        if (dim == 1) to.i1 += shift;
        if (dim == 2) to.i2 += shift;
        if (dim == 3) to.i3 += shift;
        char *dst = cpu_row_at(cpu_at(t, s->dst), s->dst, to);
        if (dim == 0) dst += (size_t)shift / block * s->dst->nb[0];
        copy_row(t, from, cpu_row_at(cpu_at(t, from), from, r), s->dst, dst);
    }
}

static void run_concat(const cpu_step *s, const cpu_task *t) {
    concat_part(s, t, 0, 0);
    concat_part(s, t, 1, s->src[0]->ne[s->params.concat.dim]);
}

static bool supports_concat(const sheaf_tensor *n) {
    const sheaf_tensor *x = n->src[0], *y = n->src[1];
    int dim = n->params.concat.dim;
    if (!x || !y || dim < 0 || dim >= SHEAF_MAX_DIMS || x->type != n->type || y->type != n->type) return false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        if (i == dim ? x->ne[i] + y->ne[i] != n->ne[i] : x->ne[i] != n->ne[i] || y->ne[i] != n->ne[i]) return false;
    if (dim == 0 && x->ne[0] % sheaf_type_block(x->type)) return false;
    return supports_rows(x, n) && supports_rows(y, n);
}

static void lower_concat(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_concat, n, n->src, 2, 0, NULL, NULL);
}

const cpu_op cpu_op_CONCAT = {supports_concat, lower_concat};

/* --- fill ------------------------------------------------------------------------------------------------------ */

static void run_fill(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        char *p = cpu_row_at(cpu_at(t, s->dst), s->dst, cpu_row_of(s->dst->ne, i));
        if (s->params.fill.value == 0.0f && whole_rows(s->dst)) {
            memset(p, 0, sheaf_row_bytes(s->dst->type, s->dst->ne[0]));
            continue;
        }
        for (int64_t k = 0; k < s->dst->ne[0]; k++, p += s->dst->nb[0])
            store_one(s->dst->type, p, (double)s->params.fill.value);
    }
}

/* Zero bytes are zero in every type; other values only where an element is a float. */
static bool supports_fill(const sheaf_tensor *n) {
    return is_float(n->type) || (n->params.fill.value == 0.0f && sheaf_rows_contiguous(n));
}

static void lower_fill(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_fill, n, NULL, 0, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_FILL = {supports_fill, lower_fill};

/* --- rows by id -------------------------------------------------------------------------------------------------- */

static void run_get_rows(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *table = s->src[0], *ids = s->src[1];
    int64_t lo, hi;
    cpu_share(t, s->dst->ne[1], &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        int64_t id = *(const int32_t *)(cpu_at(t, ids) + (size_t)i * ids->nb[0]);
        id -= s->params.rows.id_first; /* a shard of a cut table has its own row 0 */
        float *out = (float *)(cpu_at(t, s->dst) + (size_t)i * s->dst->nb[1]);
        if (id < 0 || id >= table->ne[1])
            memset(out, 0, (size_t)s->dst->ne[0] * sizeof *out);
        else
            load_floats(t, table->type, cpu_at(t, table) + (size_t)id * table->nb[1], out, s->dst->ne[0]);
    }
}

static bool supports_get_rows(const sheaf_tensor *n) {
    const sheaf_tensor *table = n->src[0], *ids = n->src[1];
    return table && ids && n->type == SHEAF_F32 && sheaf_rows_contiguous(n) && sheaf_rows_contiguous(table) &&
           sheaf_nrows(table) == table->ne[1] && ids->type == SHEAF_I32 && sheaf_nrows(ids) == 1 &&
           (sheaf_type_is_quantized(table->type) || is_float(table->type)) && table->type != SHEAF_F64 &&
           n->ne[0] == table->ne[0] && n->ne[1] == ids->ne[0];
}

static void lower_get_rows(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_get_rows, n, n->src, 2, n->ne[1], NULL, NULL);
}

const cpu_op cpu_op_GET_ROWS = {supports_get_rows, lower_get_rows};

/* src[0] is rows, src[1] is ids. Threads divide the table's rows, not the ids: where two ids are equal, the
 * later one wins for any number of threads. */
static void run_set_rows(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *rows = s->src[0], *ids = s->src[1];
    int64_t n = rows->ne[1];
    int nth = s->parts == 1 ? 1 : t->nth, ith = s->parts == 1 ? 0 : t->ith;
    const char *id = cpu_at(t, ids);
    if (s->parts == 1 && t->ith != t->nth - 1) return; /* a single part is the last thread's */
    for (int64_t i = 0; i < n; i++) {
        int64_t row = *(const int64_t *)(id + (size_t)i * ids->nb[0]);
        if (__builtin_sub_overflow(row, (int64_t)s->params.rows.id_first, &row)) continue;
        if (row < 0 || row >= s->dst->ne[1] || row % nth != ith) continue; /* a row of the table is one thread's */
        sheaf_from_float(s->dst->type, (const float *)(cpu_at(t, rows) + (size_t)i * rows->nb[1]),
                         cpu_at(t, s->dst) + (size_t)row * s->dst->nb[1], s->dst->ne[0]);
    }
}

static bool supports_set_rows(const sheaf_tensor *n) {
    const sheaf_tensor *rows = n->src[1], *ids = n->src[2];
    return rows && ids && rows->type == SHEAF_F32 && sheaf_rows_contiguous(rows) && sheaf_nrows(rows) == rows->ne[1] &&
           ids->type == SHEAF_I64 && sheaf_nrows(ids) == 1 && ids->ne[0] == rows->ne[1] && sheaf_rows_contiguous(n) &&
           sheaf_nrows(n) == n->ne[1] && rows->ne[0] == n->ne[0] && has_encoder(n->type);
}

static void lower_set_rows(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_set_rows, n, n->src + 1, 2, n->src[1]->ne[1] == 1, NULL, NULL);
}

const cpu_op cpu_op_SET_ROWS = {supports_set_rows, lower_set_rows};
