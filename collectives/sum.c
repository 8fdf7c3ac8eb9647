/* The interpreter of canonical programs, and the element loops under it. Loops are written plainly:
 * they vectorise, and no order of addition inside an element exists for a vector to change. */
#include "collectives/sum.h"

#include <stdalign.h>
#include <string.h>

enum { ACC_MAX = 8 }; /* bytes of the widest accumulator */

static void add_f64(void *acc, const void *x, const void *y, int64_t n) {
    double *a = acc;
    const double *p = x, *q = y;
    for (int64_t i = 0; i < n; i++) a[i] = p[i] + q[i];
}

static void add_f32(void *acc, const void *x, const void *y, int64_t n) {
    float *a = acc;
    const float *p = x, *q = y;
    for (int64_t i = 0; i < n; i++) a[i] = p[i] + q[i];
}

static void add_i32(void *acc, const void *x, const void *y, int64_t n) {
    uint32_t *a = acc;
    const uint32_t *p = x, *q = y;
    for (int64_t i = 0; i < n; i++) a[i] = p[i] + q[i];
}

static void store_f64(void *out, const void *acc, int64_t n) {
    float *o = out;
    const double *a = acc;
    for (int64_t i = 0; i < n; i++) o[i] = (float)a[i];
}

static void store_4(void *out, const void *acc, int64_t n) { memmove(out, acc, (size_t)n * 4); }

static void load_f16(void *acc, const void *in, int64_t n) {
    float *a = acc;
    const uint16_t *p = in;
    for (int64_t i = 0; i < n; i++) a[i] = sheaf_f16_to_f32(p[i]);
}

static void store_f16(void *out, const void *acc, int64_t n) {
    uint16_t *o = out;
    const float *a = acc;
    for (int64_t i = 0; i < n; i++) o[i] = sheaf_f32_to_f16(a[i]);
}

static void load_bf16(void *acc, const void *in, int64_t n) {
    float *a = acc;
    const uint16_t *p = in;
    for (int64_t i = 0; i < n; i++) a[i] = sheaf_bf16_to_f32(p[i]);
}

static void store_bf16(void *out, const void *acc, int64_t n) {
    uint16_t *o = out;
    const float *a = acc;
    for (int64_t i = 0; i < n; i++) o[i] = sheaf_f32_to_bf16(a[i]);
}

static const sum_kind kinds[] = {
    {SHEAF_F64, 8, 8, 4, NULL, add_f64, store_f64},     {SHEAF_F32, 4, 4, 4, NULL, add_f32, store_4},
    {SHEAF_F16, 2, 4, 2, load_f16, add_f32, store_f16}, {SHEAF_BF16, 2, 4, 2, load_bf16, add_f32, store_bf16},
    {SHEAF_I32, 4, 4, 4, NULL, add_i32, store_4},
};

const sum_kind *sum_kind_of(sheaf_type type) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].type == type) return &kinds[i];
    }
    return NULL;
}

typedef struct sum_scratch {
    alignas(64) char block[CANON_MAX_DEPTH][SUM_BLOCK * ACC_MAX];
} sum_scratch;

/* The accumulators of up to SUM_BLOCK elements: in scratch, or in a leaf itself when nothing is added. */
static const void *sum_block(const sum_kind *k, const canon_program *p, const void *const *leaf, bool load, size_t step,
                             int64_t at, int64_t n, sum_scratch *s) {
    const void *stack[CANON_MAX_DEPTH + 1];
    int top = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->code[i] == CANON_ADD) {
            top--;
            k->add(s->block[top - 1], stack[top - 1], stack[top], n);
            stack[top - 1] = s->block[top - 1];
            continue;
        }
        const char *from = (const char *)leaf[p->code[i]] + (size_t)at * step;
        if (load) k->load(s->block[top], from, n);
        stack[top] = load ? s->block[top] : from;
        top++;
    }
    return top ? stack[0] : NULL;
}

typedef void (*keep_fn)(void *out, const void *acc, int64_t n);

static void sum_blocks(const sum_kind *k, const canon_program *p, const void *const *leaf, bool from_acc, int64_t at,
                       int64_t n, char *out, size_t out_step, keep_fn keep) {
    sum_scratch s;
    bool load = k->load && !from_acc;
    size_t step = from_acc ? k->acc_bytes : k->in_bytes;
    for (int64_t done = 0; done < n; done += SUM_BLOCK) {
        int64_t m = n - done < SUM_BLOCK ? n - done : SUM_BLOCK;
        const void *acc = sum_block(k, p, leaf, load, step, at + done, m, &s);
        char *o = out + (size_t)done * out_step;
        if (!acc) {
            memset(o, 0, (size_t)m * out_step);
        } else {
            keep(o, acc, m);
        }
    }
}

static void keep_8(void *out, const void *acc, int64_t n) { memmove(out, acc, (size_t)n * 8); }

void sum_round(const sum_kind *k, const canon_program *p, const void *const *leaf, bool from_acc, int64_t at, int64_t n,
               void *out) {
    sum_blocks(k, p, leaf, from_acc, at, n, out, k->out_bytes, k->store);
}

void sum_keep(const sum_kind *k, const canon_program *p, const void *const *leaf, bool from_acc, int64_t at, int64_t n,
              void *acc) {
    sum_blocks(k, p, leaf, from_acc, at, n, acc, k->acc_bytes, k->acc_bytes == 8 ? keep_8 : store_4);
}

void sum_residual(float *out, const float *residual, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] += residual[i];
}
