/* Every engine of sums against the reference: types, numbers of devices, sizes, epilogues, odd values. */
#include "tests/collectives/party.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const exact_engines[] = {"shm", "peer"};

typedef struct sums {
    party p;
    int64_t row, rows;
    sheaf_type type;
    uint64_t empty;
    sheaf_comm_epilogue epilogue;
    bool staged;
    /* per member */
    void *in[PARTY_MAX];
    float *residual, *weight;
    char *out[PARTY_MAX];
    float *norm_out[PARTY_MAX];
    sheaf_comm_op *op;
} sums;

static double odd_value(uint64_t *seed, double fair) {
    switch (next_random(seed) % 23) {
    case 0: return INFINITY;
    case 1: return -INFINITY;
    case 2: return NAN;
    case 3: return -0.0;
    case 4: return 1e-310;
    case 5: return fair * 1e30;
    default: return fair;
    }
}

static void fill(sheaf_type t, void *to, int64_t n, uint64_t seed, bool odd) {
    for (int64_t e = 0; e < n; e++) {
        double v = next_unit(&seed);
        v *= (double)(1 << (next_random(&seed) % 12));
        if (odd) v = odd_value(&seed, v);
        float f = (float)v;
        switch (t) {
        case SHEAF_F64: ((double *)to)[e] = f; break; /* as segments are: sums of F32 */
        case SHEAF_F32: ((float *)to)[e] = f; break;
        case SHEAF_F16: ((uint16_t *)to)[e] = sheaf_f32_to_f16(f); break;
        case SHEAF_BF16: ((uint16_t *)to)[e] = sheaf_f32_to_bf16(f); break;
        default: ((int32_t *)to)[e] = (int32_t)next_random(&seed); break;
        }
    }
}

static void *vector(size_t bytes) {
    void *p = sheaf_aligned_alloc(64, bytes + 64);
    cr_assert_not_null(p);
    memset(p, 0xee, bytes + 64);
    return p;
}

/* `skew` elements off the alignment: callers' vectors need only their type's. */
static void sums_open(sums *s, int n, int threads, const char *pin, int skew, uint64_t seed, bool odd) {
    size_t element = sheaf_type_bytes(s->type), count = (size_t)(s->row * s->rows);
    cr_assert(party_open(&s->p, n, threads, pin));
    if (s->staged) cr_assert_eq(sheaf_comm_reserve_staging(s->p.comm, count * element + 1), SHEAF_OK);
    s->residual = vector(count * 4);
    s->weight = vector((size_t)s->row * 4);
    fill(SHEAF_F32, s->residual, s->row * s->rows, seed + 100, odd);
    fill(SHEAF_F32, s->weight, s->row, seed + 101, false);
    for (int k = 0; k < n; k++) {
        char *in = s->staged ? sheaf_comm_staging(s->p.comm, k, 0) : vector(count * element + 64);
        s->in[k] = s->staged ? in : in + (size_t)skew * element;
        fill(s->type, s->in[k], s->row * s->rows, seed + (uint64_t)k, odd);
        s->out[k] = vector(count * 8);
        s->norm_out[k] = vector(count * 4);
    }
    sheaf_comm_desc d = {.kind = SHEAF_COMM_ALLREDUCE,
                         .type = s->type,
                         .row = s->row,
                         .max_rows = s->rows,
                         .empty = s->empty,
                         .staged = s->staged,
                         .epilogue = s->epilogue,
                         .name = "sums"};
    cr_assert_eq(sheaf_comm_compile(s->p.comm, &d, &s->op), SHEAF_OK, "%s", sheaf_error());
}

static void sums_close(sums *s, int skew) {
    int n = s->p.n;
    bool staged = s->staged;
    party_close(&s->p);
    for (int k = 0; k < n; k++) {
        if (!staged) sheaf_free((char *)s->in[k] - (size_t)skew * sheaf_type_bytes(s->type));
        sheaf_free(s->out[k]);
        sheaf_free(s->norm_out[k]);
    }
    sheaf_free(s->residual);
    sheaf_free(s->weight);
}

static void sums_run(sums *s, int turn) {
    sheaf_comm_args args[PARTY_MAX];
    for (int k = 0; k < s->p.n; k++) {
        args[k] = (sheaf_comm_args){.in = s->empty >> k & 1 ? NULL : s->in[k],
                                    .out = s->out[k],
                                    .rows = s->rows,
                                    .residual = s->residual,
                                    .norm_weight = s->weight,
                                    .norm_out = s->norm_out[k]};
    }
    cr_assert_eq(party_post(&s->p, s->op, args, turn), SHEAF_OK, "%s", sheaf_error());
    sheaf_status st = party_wait(&s->p, NULL, NULL);
    cr_assert_eq(st, SHEAF_OK, "%s: %s", sheaf_status_name(st), sheaf_error());
}

/* The reference result of element e as the type's bits in a word. */
static uint64_t expected(const sums *s, int64_t e) {
    const float *wide[PARTY_MAX];
    float one[PARTY_MAX];
    uint64_t bits = 0;
    if (s->type == SHEAF_I32) {
        uint32_t sum = 0;
        for (int k = 0; k < s->p.n; k++) sum += s->empty >> k & 1 ? 0 : ((uint32_t *)s->in[k])[e];
        return sum;
    }
    if (s->type == SHEAF_F64) {
        float f = (float)reference_sum_f64(s->p.n, s->empty, (const double *const *)s->in, e);
        memcpy(&bits, &f, 4);
        return bits;
    }
    for (int k = 0; k < s->p.n; k++) {
        wide[k] = &one[k];
        one[k] = s->type == SHEAF_F32   ? ((float *)s->in[k])[e]
                 : s->type == SHEAF_F16 ? sheaf_f16_to_f32(((uint16_t *)s->in[k])[e])
                                        : sheaf_bf16_to_f32(((uint16_t *)s->in[k])[e]);
    }
    float f = reference_sum_f32(s->p.n, s->empty, wide, 0);
    if (s->type == SHEAF_F16) return sheaf_f32_to_f16(f);
    if (s->type == SHEAF_BF16) return sheaf_f32_to_bf16(f);
    memcpy(&bits, &f, 4);
    return bits;
}

static bool bits_agree(sheaf_type t, uint64_t a, uint64_t b) {
    if (a == b) return true;
    if (t == SHEAF_F16) return isnan(sheaf_f16_to_f32((uint16_t)a)) && isnan(sheaf_f16_to_f32((uint16_t)b));
    if (t == SHEAF_BF16) return isnan(sheaf_bf16_to_f32((uint16_t)a)) && isnan(sheaf_bf16_to_f32((uint16_t)b));
    float x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    return t != SHEAF_I32 && isnan(x) && isnan(y);
}

static void check_plain(const sums *s, const char *name) {
    size_t bytes = s->type == SHEAF_F64 ? 4 : sheaf_type_bytes(s->type);
    for (int64_t e = 0; e < s->row * s->rows; e++) {
        uint64_t want = expected(s, e);
        for (int k = 0; k < s->p.n; k++) {
            uint64_t got = 0;
            memcpy(&got, s->out[k] + (size_t)e * bytes, bytes);
            cr_assert(bits_agree(s->type, got, want), "%s, %s, N=%d, %ldx%ld: device %d element %ld is %lx, want %lx",
                      name, sheaf_type_name(s->type), s->p.n, (long)s->rows, (long)s->row, k, (long)e,
                      (unsigned long)got, (unsigned long)want);
        }
    }
    for (int k = 0; k < s->p.n; k++) {
        unsigned char after = (unsigned char)s->out[k][(size_t)(s->row * s->rows) * bytes];
        cr_assert_eq(after, 0xee, "%s wrote behind the result of device %d", name, k);
    }
}

Test(sums, every_engine_type_and_number_of_devices_gives_the_reference_bits, .timeout = 300) {
    static const sheaf_type types[] = {SHEAF_F64, SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_I32};
    static const struct {
        int64_t row, rows;
    } shapes[] = {{0, 1}, {1, 1}, {5, 0}, {7, 1}, {257, 3}, {1000, 2}, {64, 19}};
    for (size_t g = 0; g < 2; g++) {
        for (int n = 1; n <= 9; n++) {
            for (size_t t = 0; t < 5; t++) {
                for (size_t h = 0; h < 7; h++) {
                    sums s = {.row = shapes[h].row, .rows = shapes[h].rows, .type = types[t]};
                    int skew = (int)h % 3;
                    sums_open(&s, n, 1 + (n + (int)h) % 2, exact_engines[g], skew, (uint64_t)(n * 100) + h, h == 4);
                    sums_run(&s, (int)h);
                    check_plain(&s, exact_engines[g]);
                    sums_close(&s, skew);
                }
            }
        }
    }
}

Test(sums, large_messages_take_the_second_shot_and_the_same_bits, .timeout = 120) {
    static const int devices[] = {2, 3, 5};
    for (size_t g = 0; g < 2; g++) {
        for (int c = 0; c < 3; c++) {
            sums s = {.row = 1031, .rows = 67, .type = SHEAF_F64};
            sums_open(&s, devices[c], 2, exact_engines[g], 1, 5, false);
            sums_run(&s, 0);
            check_plain(&s, exact_engines[g]);
            sums_close(&s, 1);
        }
    }
}

static void check_epilogue(const sums *s, const char *name) {
    int64_t count = s->row * s->rows;
    float *out = vector((size_t)count * 4), *norm = vector((size_t)count * 4);
    for (int64_t e = 0; e < count; e++)
        out[e] = (float)reference_sum_f64(s->p.n, s->empty, (const double *const *)s->in, e);
    reference_epilogue(out, s->epilogue.add ? s->residual : NULL, s->weight, norm, s->row, s->rows, s->epilogue.eps);
    for (int k = 0; k < s->p.n; k++) {
        for (int64_t e = 0; e < count; e++) {
            float got = ((float *)(void *)s->out[k])[e];
            cr_assert(same_f32(got, out[e]), "%s, N=%d, %ldx%ld: out of %d at %ld: %a, want %a", name, s->p.n,
                      (long)s->rows, (long)s->row, k, (long)e, (double)got, (double)out[e]);
            if (!s->epilogue.norm) continue;
            got = s->norm_out[k][e];
            cr_assert(same_f32(got, norm[e]), "%s, N=%d, %ldx%ld: norm of %d at %ld: %a, want %a", name, s->p.n,
                      (long)s->rows, (long)s->row, k, (long)e, (double)got, (double)norm[e]);
        }
    }
    sheaf_free(out);
    sheaf_free(norm);
}

Test(sums, epilogues_give_the_bits_of_the_unfused_chain, .timeout = 120) {
    static const struct {
        int64_t row, rows;
        bool staged;
    } shapes[] = {{576, 1, true}, {576, 1, false}, {64, 3, true}, {577, 80, true}, {33, 2, false}};
    static const sheaf_comm_epilogue kinds[] = {{true, true, 1e-5f}, {true, false, 0}, {false, true, 1e-6f}};
    for (size_t g = 0; g < 2; g++) {
        for (int n = 1; n <= 5; n++) {
            for (int h = 0; h < 5; h++) {
                sums s = {.row = shapes[h].row,
                          .rows = shapes[h].rows,
                          .type = SHEAF_F64,
                          .staged = shapes[h].staged,
                          .epilogue = kinds[(n + h) % 3]};
                sums_open(&s, n, 1 + (n + h) % 3, exact_engines[g], 0, (uint64_t)(n * 10 + h), false);
                sums_run(&s, h);
                check_epilogue(&s, exact_engines[g]);
                sums_close(&s, 0);
            }
        }
    }
}

/* The residual stream is added in place: out is the residual itself. */
Test(sums, the_residual_may_be_the_result, .timeout = 30) {
    sums s = {.row = 300, .rows = 40, .type = SHEAF_F64, .epilogue = {true, true, 1e-5f}};
    sums_open(&s, 3, 2, "shm", 0, 77, false);
    float *want = s.residual;
    for (int k = 0; k < 3; k++) memcpy(s.out[k], want, (size_t)(s.row * s.rows) * 4);
    sheaf_comm_args args[PARTY_MAX];
    for (int k = 0; k < 3; k++) {
        args[k] = (sheaf_comm_args){.in = s.in[k],
                                    .out = s.out[k],
                                    .rows = s.rows,
                                    .residual = s.out[k],
                                    .norm_weight = s.weight,
                                    .norm_out = s.norm_out[k]};
    }
    cr_assert_eq(party_post(&s.p, s.op, args, 0), SHEAF_OK);
    cr_assert_eq(party_wait(&s.p, NULL, NULL), SHEAF_OK, "%s", sheaf_error());
    check_epilogue(&s, "shm");
    sums_close(&s, 0);
}

Test(sums, empty_devices_are_no_addends, .timeout = 60) {
    for (size_t g = 0; g < 2; g++) {
        for (int n = 2; n <= 7; n++) {
            for (uint64_t empty = 1; empty < (1u << n); empty = empty * 2 + 1) {
                sums s = {.row = 41, .rows = 2, .type = SHEAF_F64, .empty = empty};
                sums_open(&s, n, 1, exact_engines[g], 0, 9, false);
                for (int k = 0; k < n; k++) ((double *)s.in[k])[3] = -0.0;
                sums_run(&s, 0);
                check_plain(&s, exact_engines[g]);
                sums_close(&s, 0);
            }
        }
    }
}

/* Case B06: device r contributes r + 1, so every element is N (N + 1) / 2, on every device, in every engine. */
Test(sums, any_number_of_devices_adds_up, .timeout = 120) {
    static const char *const all[] = {"shm", "peer", "ring"};
    for (size_t g = 0; g < 3; g++) {
        for (int n = 1; n <= 9; n++) {
            int64_t lengths[] = {0, 1, n - 1, n, 4099};
            for (int h = 0; h < 5; h++) {
                sums s = {.row = lengths[h], .rows = 1, .type = SHEAF_F64};
                sums_open(&s, n, 1, all[g], 0, 1, false);
                for (int k = 0; k < n; k++) {
                    for (int64_t e = 0; e < s.row; e++) ((double *)s.in[k])[e] = k + 1;
                }
                sums_run(&s, n);
                check_plain(&s, all[g]);
                for (int64_t e = 0; e < s.row; e++) {
                    float got = ((float *)(void *)s.out[n - 1])[e];
                    cr_assert_eq(got, (float)(n * (n + 1) / 2), "%s N=%d: %g", all[g], n, (double)got);
                }
                sums_close(&s, 0);
            }
        }
    }
}

Test(sums, a_million_elements_add_up, .timeout = 60) {
    sums s = {.row = 1048577, .rows = 1, .type = SHEAF_F64};
    sums_open(&s, 3, 1, "shm", 0, 1, false);
    sums_run(&s, 0);
    check_plain(&s, "shm");
    sums_close(&s, 0);
}

Test(sums, a_ring_gives_every_device_the_same_bits, .timeout = 60) {
    for (int n = 2; n <= 9; n++) {
        sums s = {.row = 501, .rows = 3, .type = SHEAF_F32, .epilogue = {true, true, 1e-5f}};
        sums_open(&s, n, 1 + n % 2, "ring", 0, 3, false);
        sums_run(&s, 0);
        for (int k = 1; k < n; k++) {
            cr_assert_eq(memcmp(s.out[k], s.out[0], 501 * 3 * 4), 0, "N=%d: device %d differs from device 0", n, k);
            cr_assert_eq(memcmp(s.norm_out[k], s.norm_out[0], 501 * 3 * 4), 0, "N=%d: norm of device %d", n, k);
        }
        sums_close(&s, 0);
    }
}

Test(sums, the_engine_and_its_reason_can_be_asked, .timeout = 10) {
    sums s = {.row = 8, .rows = 1, .type = SHEAF_F64};
    const char *reason;
    sums_open(&s, 2, 1, "", 0, 1, false);
    cr_assert_str_eq(sheaf_comm_op_engine(s.op, &reason), "shm");
    cr_assert(strlen(reason) > 0);
    sums_close(&s, 0);
    sums_open(&s, 2, 1, "peer", 0, 1, false);
    cr_assert_str_eq(sheaf_comm_op_engine(s.op, &reason), "peer");
    cr_assert_not_null(strstr(reason, "SHEAF_ALLREDUCE"), "%s", reason);
    sheaf_comm_desc d = s.op->d;
    sheaf_comm_op *op;
    snprintf(s.p.comm->pin, sizeof s.p.comm->pin, "hier");
    sheaf_status st = sheaf_comm_compile(s.p.comm, &d, &op);
    cr_assert(st == SHEAF_E_ARGUMENT && strstr(sheaf_error(), "one process"), "%d %s", st, sheaf_error());
    sums_close(&s, 0);
    sheaf_engine_info info;
    int rows = 0;
    for (; sheaf_engine_row(rows, &info); rows++) cr_assert(info.name[0] && info.description[0]);
    cr_assert_eq(rows, 5, "%d rows", rows);
}
