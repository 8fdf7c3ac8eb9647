/* Ops on one element at a time: add, sub, mul, div, scale, unary, glu.
 *
 * Threads divide rows; one long row alone is divided by pieces. The row kernels
 * give an element the same bits wherever a piece begins. Rows whose elements do not lie side by side
 * are gathered into the thread's scratch first. */
#include "backends/cpu/program.h"

enum { PIECE = 1024, LONG_ROW = 8192 };

typedef struct piece {
    cpu_row row;
    int64_t c0, n;
} piece;

/* Thread's pieces [lo, hi) of dst, in order of rows. */
static void my_pieces(const cpu_step *s, const cpu_task *t, int64_t *lo, int64_t *hi) {
    int64_t per_row = (s->dst->ne[0] + PIECE - 1) / PIECE;
    int64_t parts = s->parts ? s->parts : per_row;
    cpu_share(t, parts, lo, hi);
    *lo *= cpu_rows(s->dst) * per_row / parts;
    *hi *= cpu_rows(s->dst) * per_row / parts;
}

/* One row is one thread's, except where it is all there is and long enough to share. */
static int64_t parts_of(const sheaf_tensor *n) {
    return sheaf_nrows(n) == 1 && n->ne[0] >= LONG_ROW ? 0 : sheaf_nrows(n);
}

static piece piece_of(const cpu_step *s, int64_t i) {
    int64_t per_row = (s->dst->ne[0] + PIECE - 1) / PIECE, c0 = i % per_row * PIECE;
    int64_t left = s->dst->ne[0] - c0;
    return (piece){cpu_row_of(s->dst->ne, i / per_row), c0, left < PIECE ? left : PIECE};
}

/* The piece of an f32 operand as contiguous floats: in place, or gathered into tmp; broadcasts. */
static const float *piece_in(const cpu_task *t, const cpu_operand *o, const piece *p, float *tmp) {
    const char *row = cpu_row_at(cpu_at(t, o), o, p->row);
    if (o->nb[0] == sizeof(float) && p->c0 + p->n <= o->ne[0]) return (const float *)row + p->c0;
    for (int64_t i = 0; i < p->n; i++) tmp[i] = *(const float *)(row + (size_t)((p->c0 + i) % o->ne[0]) * o->nb[0]);
    return tmp;
}

static float *piece_out(const cpu_step *s, const cpu_task *t, const piece *p) {
    return (float *)cpu_row_at(cpu_at(t, s->dst), s->dst, p->row) + p->c0;
}

/* --- two sources ------------------------------------------------------------------------------------- */

static void sub(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] - y[i];
}

static void divide(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] / y[i];
}

typedef void (*binary_fn)(float *out, const float *x, const float *y, int64_t n);

static void binary_pieces(const cpu_step *s, const cpu_task *t, binary_fn fn) {
    float *tmp = (float *)t->scratch;
    int64_t lo, hi;
    my_pieces(s, t, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        piece p = piece_of(s, i);
        fn(piece_out(s, t, &p), piece_in(t, s->src[0], &p, tmp), piece_in(t, s->src[1], &p, tmp + PIECE), p.n);
    }
}

static void run_add(const cpu_step *s, const cpu_task *t) { binary_pieces(s, t, t->run->kernels->add); }
static void run_sub(const cpu_step *s, const cpu_task *t) { binary_pieces(s, t, sub); }
static void run_mul(const cpu_step *s, const cpu_task *t) { binary_pieces(s, t, t->run->kernels->mul); }
static void run_div(const cpu_step *s, const cpu_task *t) { binary_pieces(s, t, divide); }

static bool is_f32(const sheaf_tensor *x) { return x && x->type == SHEAF_F32; }

static bool supports_binary(const sheaf_tensor *n) {
    return is_f32(n) && sheaf_rows_contiguous(n) && is_f32(n->src[0]) && is_f32(n->src[1]) &&
           sheaf_same_shape(n, n->src[0]) && sheaf_can_broadcast(n->src[1], n);
}

/* Sums that were not rounded yet. A side whose sum over devices was already made is f32. */
static double load_wide(const char *p, sheaf_type type) {
    return type == SHEAF_F64 ? *(const double *)p : (double)*(const float *)p;
}

static void run_add_wide(const cpu_step *s, const cpu_task *t) {
    const cpu_operand *x = s->src[0], *y = s->src[1];
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        const char *a = cpu_row_at(cpu_at(t, x), x, r), *b = cpu_row_at(cpu_at(t, y), y, r);
        double *out = (double *)cpu_row_at(cpu_at(t, s->dst), s->dst, r);
        for (int64_t k = 0; k < s->dst->ne[0]; k++)
            out[k] = load_wide(a + (size_t)k * x->nb[0], x->type) + load_wide(b + (size_t)k * y->nb[0], y->type);
    }
}

static bool is_wide(const sheaf_tensor *x) { return x && (x->type == SHEAF_F64 || x->type == SHEAF_F32); }

static bool supports_add(const sheaf_tensor *n) {
    if (n->type != SHEAF_F64) return supports_binary(n);
    return sheaf_rows_contiguous(n) && is_wide(n->src[0]) && is_wide(n->src[1]) && sheaf_same_shape(n, n->src[0]) &&
           sheaf_same_shape(n, n->src[1]);
}

static void lower_add(cpu_compiler *c, const sheaf_tensor *n) {
    bool wide = n->type == SHEAF_F64;
    cpu_emit(c, n, wide ? run_add_wide : run_add, n, n->src, 2, wide ? sheaf_nrows(n) : parts_of(n), NULL, NULL);
}
static void lower_sub(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_sub, n, n->src, 2, parts_of(n), NULL, NULL);
}
static void lower_mul(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_mul, n, n->src, 2, parts_of(n), NULL, NULL);
}
static void lower_div(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_div, n, n->src, 2, parts_of(n), NULL, NULL);
}

const cpu_op cpu_op_ADD = {supports_add, lower_add};
const cpu_op cpu_op_SUB = {supports_binary, lower_sub};
const cpu_op cpu_op_MUL = {supports_binary, lower_mul};
const cpu_op cpu_op_DIV = {supports_binary, lower_div};

/* --- one source ---------------------------------------------------------------------------------------- */

static void run_scale(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    my_pieces(s, t, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        piece p = piece_of(s, i);
        t->run->kernels->scale(piece_out(s, t, &p), piece_in(t, s->src[0], &p, (float *)t->scratch),
                               s->params.scale.factor, s->params.scale.bias, p.n);
    }
}

static void run_unary(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    my_pieces(s, t, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        piece p = piece_of(s, i);
        t->run->kernels->unary(piece_out(s, t, &p), piece_in(t, s->src[0], &p, (float *)t->scratch), p.n,
                               (sheaf_unary)s->params.unary.kind);
    }
}

static bool supports_map(const sheaf_tensor *n) {
    return is_f32(n) && sheaf_rows_contiguous(n) && is_f32(n->src[0]) && sheaf_same_shape(n, n->src[0]);
}

static bool supports_unary(const sheaf_tensor *n) {
    return supports_map(n) && (unsigned)n->params.unary.kind < SHEAF_UNARY_COUNT;
}

static void lower_scale(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_scale, n, n->src, 1, parts_of(n), NULL, NULL);
}
static void lower_unary(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_unary, n, n->src, 1, parts_of(n), NULL, NULL);
}

/* The end of an unrounded sum; one that devices have summed is f32 already. */
static void run_round(const cpu_step *s, const cpu_task *t) {
    int64_t lo, hi;
    cpu_share(t, cpu_rows(s->dst), &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        cpu_row r = cpu_row_of(s->dst->ne, i);
        const char *in = cpu_row_at(cpu_at(t, s->src[0]), s->src[0], r);
        float *out = (float *)cpu_row_at(cpu_at(t, s->dst), s->dst, r);
        for (int64_t k = 0; k < s->dst->ne[0]; k++)
            out[k] = (float)load_wide(in + (size_t)k * s->src[0]->nb[0], s->src[0]->type);
    }
}

static bool supports_round(const sheaf_tensor *n) {
    return is_f32(n) && sheaf_rows_contiguous(n) && is_wide(n->src[0]) && sheaf_same_shape(n, n->src[0]);
}

static void lower_round(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_round, n, n->src, 1, sheaf_nrows(n), NULL, NULL);
}

const cpu_op cpu_op_ROUND = {supports_round, lower_round};
const cpu_op cpu_op_SCALE = {supports_map, lower_scale};
const cpu_op cpu_op_UNARY = {supports_unary, lower_unary};

/* --- gated units --------------------------------------------------------------------------------------- */

/* SHEAF_GLU_SWIGLU_OAI of at most PIECE elements, made of other kernels; tmp has room for two pieces. A NaN stays. */
static void swiglu_oai(const cpu_step *s, const cpu_task *t, float *out, const float *gate, const float *up, int64_t n,
                       float *tmp) {
    float limit = s->params.glu.limit, *g = tmp, *u = tmp + PIECE;
    for (int64_t i = 0; i < n; i++) {
        g[i] = gate[i] > limit ? limit : gate[i];
        u[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    }
    t->run->kernels->scale(u, u, 1.0f, 1.0f, n);
    t->run->kernels->mul(u, u, g, n);
    t->run->kernels->scale(g, g, s->params.glu.alpha, 0.0f, n);
    t->run->kernels->unary(g, g, n, SHEAF_UNARY_SIGMOID);
    t->run->kernels->mul(out, u, g, n);
}

static void run_glu(const cpu_step *s, const cpu_task *t) {
    float *tmp = (float *)t->scratch;
    int64_t lo, hi;
    my_pieces(s, t, &lo, &hi);
    for (int64_t i = lo; i < hi; i++) {
        piece p = piece_of(s, i);
        const float *gate = piece_in(t, s->src[0], &p, tmp), *up = piece_in(t, s->src[1], &p, tmp + PIECE);
        if (s->params.glu.kind == SHEAF_GLU_SWIGLU_OAI)
            swiglu_oai(s, t, piece_out(s, t, &p), gate, up, p.n, tmp + 2 * PIECE);
        else
            t->run->kernels->glu(piece_out(s, t, &p), gate, up, p.n, (sheaf_glu)s->params.glu.kind);
    }
}

static bool supports_glu(const sheaf_tensor *n) {
    return supports_map(n) && is_f32(n->src[1]) && sheaf_same_shape(n, n->src[1]) &&
           (unsigned)n->params.glu.kind < SHEAF_GLU_COUNT;
}

static void lower_glu(cpu_compiler *c, const sheaf_tensor *n) {
    cpu_emit(c, n, run_glu, n, n->src, 2, parts_of(n), NULL, NULL);
}

const cpu_op cpu_op_GLU = {supports_glu, lower_glu};
