/* Samplers: what each filter keeps, that probabilities are as asked, and that nothing is allocated. */
#include "models/model.h"
#include "tests/support/expect.h"

#include <math.h>

static sheaf_sampler *make(sheaf_sampler_options o, int32_t n) {
    sheaf_sampler *s = NULL;
    expect_ok(sheaf_sampler_new(&o, n, &s));
    return s;
}

/* Everything off but the temperature. */
static sheaf_sampler_options plain(float temp) {
    return (sheaf_sampler_options){.temp = temp, .top_p = 1, .typical = 1, .repeat_penalty = 1, .seed = 7};
}

enum { DRAWS = 20000 };

/* How often each id comes. */
static void tally(sheaf_sampler *s, const float *logits, int32_t n, double *share) {
    for (int32_t i = 0; i < n; i++) share[i] = 0;
    for (int k = 0; k < DRAWS; k++) {
        int32_t id;
        expect_ok(sheaf_sample(s, logits, &id));
        cr_assert(id >= 0 && id < n, "id %d of %d", id, n);
        share[id] += 1.0 / DRAWS;
    }
}

static void expect_share(const double *share, int32_t id, double wanted) {
    cr_assert(fabs(share[id] - wanted) < 0.02, "token %d came with %.4f, expected %.4f", id, share[id], wanted);
}

Test(sampler, greedy_takes_the_best_and_of_equals_the_lowest, .timeout = 120) {
    sheaf_sampler *s = make(plain(0), 5);
    int32_t id;
    expect_ok(sheaf_sample(s, (float[]){1, 3, 2, 3, -1}, &id));
    expect_int(id, 1);
    expect_ok(sheaf_sample(s, (float[]){NAN, -INFINITY, -5, -4, NAN}, &id));
    expect_int(id, 3);
    expect_status(sheaf_sample(s, (float[]){NAN, -INFINITY, NAN, -INFINITY, NAN}, &id), SHEAF_E_RANGE);
    expect_int(id, -1);
    sheaf_sampler_free(s);
}

Test(sampler, draws_follow_the_softmax_at_the_temperature, .timeout = 120) {
    const float logits[] = {0, 1, 2, -INFINITY};
    static const float temps[] = {0.5f, 1.0f, 2.0f};
    for (int t = 0; t < 3; t++) {
        sheaf_sampler *s = make(plain(temps[t]), 4);
        double share[4], sum = 0;
        tally(s, logits, 4, share);
        for (int i = 0; i < 3; i++) sum += exp((double)(logits[i] / temps[t]));
        for (int i = 0; i < 3; i++) expect_share(share, i, exp((double)(logits[i] / temps[t])) / sum);
        expect_share(share, 3, 0);
        sheaf_sampler_free(s);
    }
}

Test(sampler, filters_keep_what_they_say, .timeout = 300) {
    /* probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 */
    const float logits[] = {logf(0.5f), logf(0.25f), logf(0.125f), logf(0.0625f), logf(0.0625f)};
    sheaf_sampler_options top_k = plain(1), top_p = plain(1), min_p = plain(1), typical = plain(1), all = plain(1);
    top_k.top_k = 2;
    top_p.top_p = 0.7f;
    min_p.min_p = 0.3f;
    typical.typical = 0.3f; /* entropy is 1.3 nats: 0.25 (1.386) is the nearest, and then 0.125 or 0.5 */
    all.top_k = 4;
    all.top_p = 0.85f;
    const struct {
        sheaf_sampler_options o;
        double share[5];
    } cases[] = {
        {top_k, {2.0 / 3, 1.0 / 3, 0, 0, 0}},     {top_p, {2.0 / 3, 1.0 / 3, 0, 0, 0}},
        {min_p, {2.0 / 3, 1.0 / 3, 0, 0, 0}},     {typical, {2.0 / 3, 1.0 / 3, 0, 0, 0}},
        {all, {4.0 / 7, 2.0 / 7, 1.0 / 7, 0, 0}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int turned = 0; turned < 2; turned++) { /* the best is token 0, then token 4 */
            sheaf_sampler *s = make(cases[k].o, 5);
            float row[5];
            double share[5];
            for (int i = 0; i < 5; i++) row[i] = logits[turned ? 4 - i : i];
            tally(s, row, 5, share);
            for (int i = 0; i < 5; i++) {
                double got = share[turned ? 4 - i : i];
                cr_assert(fabs(got - cases[k].share[i]) < 0.02, "case %zu, number %d of the best: %.4f, expected %.4f",
                          k, i, got, cases[k].share[i]);
            }
            sheaf_sampler_free(s);
        }
    }
}

/* Where a filter cuts between equals, the lower ids stay, in whatever order the search met them. */
Test(sampler, ties_fall_to_the_lower_id, .timeout = 120) {
    sheaf_sampler_options top_k = plain(1), top_p = plain(1);
    top_k.top_k = 2;
    top_p.top_p = 0.45f;
    const struct {
        sheaf_sampler_options o;
        float logits[4];
        double share[4];
    } cases[] = {
        {top_k, {2, 2, 2, 2}, {0.5, 0.5, 0, 0}},
        {top_k, {2, 2, 2 + logf(3), 1}, {0.25, 0, 0.75, 0}}, /* 2 comes when 0 and 1 are in: 1 must go */
        {top_p, {1, 1, 1, 1}, {0.5, 0.5, 0, 0}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        sheaf_sampler *s = make(cases[k].o, 4);
        double share[4];
        tally(s, cases[k].logits, 4, share);
        for (int i = 0; i < 4; i++) expect_share(share, i, cases[k].share[i]);
        sheaf_sampler_free(s);
    }
}

/* With and without a top-k before it, top-p of a large vocabulary keeps the same few. */
Test(sampler, a_large_vocabulary_is_filtered_the_same_both_ways, .timeout = 300) {
    enum { N = 5000 };
    static float logits[N];
    for (int i = 0; i < N; i++) logits[i] = (float)((i * 7919) % N) * 0.004f;
    sheaf_sampler_options a = plain(1), b = plain(1);
    a.top_p = b.top_p = 0.05f;
    b.top_k = N - 1;
    sheaf_sampler *x = make(a, N), *y = make(b, N);
    for (int k = 0; k < 500; k++) {
        int32_t i, j;
        expect_ok(sheaf_sample(x, logits, &i));
        expect_ok(sheaf_sample(y, logits, &j));
        expect_int(i, j);
        cr_assert(logits[i] > 15, "token %d with logit %g", i, (double)logits[i]);
    }
    sheaf_sampler_free(x);
    sheaf_sampler_free(y);
}

Test(sampler, penalties_count_what_was_said_lately, .timeout = 120) {
    sheaf_sampler_options o = plain(0);
    o.repeat_penalty = 2;
    o.repeat_last_n = 2;
    sheaf_sampler *s = make(o, 3);
    const float logits[] = {4, 3, -1};
    static const int32_t expected[] = {0, 1, 0, 0, 1}; /* 4/2 < 3; 3/2 < 4/2, twice; then 1 is out of the window */
    for (int k = 0; k < 5; k++) {
        int32_t id;
        expect_ok(sheaf_sample(s, logits, &id));
        expect_int(id, expected[k]);
    }
    /* What fell out of the window is forgotten. */
    sheaf_sampler_accept(s, 2);
    sheaf_sampler_accept(s, 2);
    int32_t id;
    expect_ok(sheaf_sample(s, logits, &id));
    expect_int(id, 0);
    sheaf_sampler_free(s);
    o = plain(0);
    o.frequency_penalty = 0.4f;
    o.presence_penalty = 0.1f;
    o.repeat_last_n = -1;
    s = make(o, 3);
    sheaf_sampler_accept(s, 0);
    sheaf_sampler_accept(s, 0);
    expect_ok(sheaf_sample(s, (float[]){1.0f, 0.2f, 0}, &id)); /* 1 - 0.8 - 0.1 = 0.1 */
    expect_int(id, 1);
    sheaf_sampler_reset(s);
    expect_ok(sheaf_sample(s, (float[]){1.0f, 0.2f, 0}, &id));
    expect_int(id, 0);
    sheaf_sampler_free(s);
}

Test(sampler, bias_moves_and_forbids, .timeout = 120) {
    sheaf_sampler_options o = plain(0);
    o.bias_id = (int32_t[]){0, 2};
    o.bias = (float[]){-INFINITY, 5};
    o.n_bias = 2;
    sheaf_sampler *s = make(o, 3);
    int32_t id;
    expect_ok(sheaf_sample(s, (float[]){9, 3, -1}, &id));
    expect_int(id, 2);
    sheaf_sampler_free(s);
    o.bias_id = (int32_t[]){0, 3};
    expect_status(sheaf_sampler_new(&o, 3, &s), SHEAF_E_ARGUMENT);
    cr_assert_null(s);
}

Test(sampler, the_same_seed_gives_the_same_tokens, .timeout = 120) {
    float logits[50];
    for (int i = 0; i < 50; i++) logits[i] = sinf((float)i);
    sheaf_sampler_options o = sheaf_sampler_defaults();
    o.seed = 42;
    sheaf_sampler *a = make(o, 50), *b = make(o, 50);
    o.seed = 43;
    sheaf_sampler *c = make(o, 50);
    int differ = 0;
    for (int k = 0; k < 200; k++) {
        int32_t i, j, l;
        expect_ok(sheaf_sample(a, logits, &i));
        expect_ok(sheaf_sample(b, logits, &j));
        expect_ok(sheaf_sample(c, logits, &l));
        expect_int(i, j);
        differ += i != l;
    }
    cr_assert(differ > 50, "only %d of 200 tokens differ with another seed", differ);
    sheaf_sampler_free(a);
    sheaf_sampler_free(b);
    sheaf_sampler_free(c);
}

Test(sampler, reset_begins_again, .timeout = 120) {
    float logits[50];
    int32_t first[100], id;
    for (int i = 0; i < 50; i++) logits[i] = sinf((float)i);
    sheaf_sampler_options o = sheaf_sampler_defaults();
    o.seed = 42;
    o.repeat_penalty = 1.5f;
    o.repeat_last_n = 7;
    sheaf_sampler *s = make(o, 50);
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 100; k++) {
            expect_ok(sheaf_sample(s, logits, &id));
            if (round == 0) first[k] = id;
            cr_assert(id == first[k], "token %d after a reset is %d, at first %d", k, id, first[k]);
        }
        sheaf_sampler_reset(s);
    }
    sheaf_sampler_free(s);
}

Test(sampler, impossible_options_are_refused, .timeout = 120) {
    sheaf_sampler_options bad[6];
    for (int i = 0; i < 6; i++) bad[i] = sheaf_sampler_defaults();
    bad[0].temp = NAN;
    bad[1].repeat_penalty = 0;
    bad[2].top_k = -1;
    bad[3].repeat_last_n = -2;
    bad[4].top_p = NAN;
    bad[5].n_bias = -1;
    for (int i = 0; i < 6; i++) {
        sheaf_sampler *s;
        expect_status(sheaf_sampler_new(&bad[i], 10, &s), SHEAF_E_ARGUMENT);
        cr_assert_null(s);
    }
    sheaf_sampler *s;
    expect_status(sheaf_sampler_new(&bad[0], 0, &s), SHEAF_E_ARGUMENT);
}

static bool count(void *ctx, size_t size) {
    (void)size;
    ++*(int *)ctx;
    return true;
}

Test(sampler, a_token_allocates_nothing, .timeout = 300) {
    enum { N = 32000 };
    static float logits[N];
    for (int i = 0; i < N; i++) logits[i] = cosf((float)i) * 5;
    sheaf_sampler_options o[3] = {sheaf_sampler_defaults(), sheaf_sampler_defaults(), plain(0)};
    o[0].repeat_penalty = 1.1f;
    o[1].top_k = 0;
    o[1].typical = 0.9f;
    for (int k = 0; k < 3; k++) {
        sheaf_sampler *s = make(o[k], N);
        int calls = 0;
        sheaf_alloc_hook(count, &calls);
        for (int i = 0; i < 100; i++) {
            int32_t id;
            expect_ok(sheaf_sample(s, logits, &id));
        }
        sheaf_alloc_hook(NULL, NULL);
        expect_int(calls, 0);
        sheaf_sampler_free(s);
    }
}

static bool fail_at(void *ctx, size_t size) {
    (void)size;
    return (*(int *)ctx)-- != 0;
}

Test(sampler, every_failed_allocation_is_a_clean_status, .timeout = 120) {
    sheaf_sampler_options o = sheaf_sampler_defaults();
    o.bias_id = (int32_t[]){0};
    o.bias = (float[]){1};
    o.n_bias = 1;
    sheaf_status status = SHEAF_E_NO_MEMORY;
    int k = 0;
    for (; status; k++) {
        int left = k;
        sheaf_sampler *s = NULL;
        sheaf_alloc_hook(fail_at, &left);
        status = sheaf_sampler_new(&o, 100, &s);
        sheaf_alloc_hook(NULL, NULL);
        if (status) expect_status(status, SHEAF_E_NO_MEMORY);
        sheaf_sampler_free(s);
        cr_assert(k < 100);
    }
    cr_assert(k > 7, "only %d allocations were failed", k);
}

/* --- from the best alone ---------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b) {
    const sheaf_best *x = a, *y = b;
    if (isnan(x->logit) || isnan(y->logit))
        return isnan(x->logit) == isnan(y->logit) ? x->id - y->id : isnan(x->logit) - isnan(y->logit);
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

/* Rows full of ties, infinities and NaN, under every kind of option: the same tokens, one after another, and so the
 * same state, because penalties and the generator feed on what was drawn. */
Test(sampler, the_best_alone_give_the_same_tokens, .timeout = 300) {
    enum { N = 400, ROUNDS = 60 };
    static const float odd[] = {INFINITY, 3e38f, -INFINITY, NAN, 0.0f, -0.0f, 1e30f};
    static const int32_t ids[] = {3, 9, 3, 250};
    static const float bias[] = {-1, -INFINITY, -0.5f, 0};
    uint32_t x = 1;
    sheaf_sampler_options o[8];
    for (int i = 0; i < 8; i++) o[i] = sheaf_sampler_defaults(), o[i].seed = 77;
    o[1].temp = 0, o[1].repeat_penalty = 1.5f;
    o[2].temp = 2, o[2].repeat_penalty = 1.2f, o[2].repeat_last_n = 20;
    o[3].top_k = 1, o[3].presence_penalty = 3, o[3].repeat_last_n = 5;
    o[4].top_k = 7, o[4].top_p = 1, o[4].typical = 0.5f;
    o[5].top_k = 30, o[5].min_p = 0, o[5].frequency_penalty = 1, o[5].repeat_last_n = 100;
    o[6].bias_id = ids, o[6].bias = bias, o[6].n_bias = 4;
    o[7].temp = 0, o[7].bias_id = ids, o[7].bias = bias, o[7].n_bias = 4, o[7].repeat_penalty = 2;
    for (int k = 0; k < 8; k++) {
        int32_t needs = sheaf_sampler_needs(&o[k], N);
        cr_assert_gt(needs, 0, "options %d", k);
        sheaf_sampler *a = make(o[k], N), *b = make(o[k], N);
        for (int round = 0; round < ROUNDS; round++) {
            float row[N];
            sheaf_best best[N];
            for (int32_t i = 0; i < N; i++) {
                x = x * 1664525u + 1013904223u;
                row[i] = (float)(x >> 26) * 0.1f; /* 64 values among 400: ties everywhere */
                if (round % 3 == 0 && x >> 8 & 1) row[i] = odd[(x >> 9) % (round % 2 ? 7 : 5)];
                best[i] = (sheaf_best){i, row[i]};
            }
            qsort(best, N, sizeof *best, by_order);
            int32_t i, j;
            sheaf_status one = sheaf_sample(a, row, &i), other = sheaf_sample_best(b, best, needs, &j);
            expect_int(one, other);
            cr_assert(i == j, "options %d, row %d: token %d from the row, %d from the best", k, round, i, j);
        }
        sheaf_sampler_free(a);
        sheaf_sampler_free(b);
    }
}

/* One best fewer than needed can be one too few: what was said lately may fill all of them. */
Test(sampler, the_number_needed_is_not_too_large, .timeout = 120) {
    sheaf_sampler_options o = plain(0);
    o.repeat_penalty = 100, o.repeat_last_n = 3;
    expect_int(sheaf_sampler_needs(&o, 100), 4);
    sheaf_sampler *s = make(o, 100);
    for (int32_t i = 0; i < 3; i++) sheaf_sampler_accept(s, i);
    int32_t id;
    const sheaf_best best[] = {{0, 9}, {1, 9}, {2, 9}, {3, 8}};
    expect_ok(sheaf_sample_best(s, best, 4, &id));
    expect_int(id, 3);
    expect_status(sheaf_sample_best(s, best, 3, &id), SHEAF_E_ARGUMENT);
    expect_status(sheaf_sample_best(s, (sheaf_best[]){{0, 9}, {100, 9}, {2, 9}, {3, 8}}, 4, &id), SHEAF_E_ARGUMENT);
    sheaf_sampler_free(s);
}

Test(sampler, options_that_need_the_whole_row_say_so, .timeout = 30) {
    static const int32_t id = 5;
    static const float up = 1, down = -1;
    sheaf_sampler_options o[9];
    for (int i = 0; i < 9; i++) o[i] = sheaf_sampler_defaults();
    o[0].top_k = 0;
    o[1].repeat_penalty = 0.9f;
    o[2].frequency_penalty = -1;
    o[3].presence_penalty = -1;
    o[4].repeat_penalty = 1.1f, o[4].repeat_last_n = -1;
    o[5].bias_id = &id, o[5].bias = &up, o[5].n_bias = 1;
    o[6].top_k = SHEAF_MAX_BEST + 1;
    o[7].bias_id = &id, o[7].bias = &down, o[7].n_bias = 1; /* this one does not */
    for (int i = 0; i < 7; i++) expect_int(sheaf_sampler_needs(&o[i], 100000), 0);
    expect_int(sheaf_sampler_needs(&o[7], 100000), 41);
    expect_int(sheaf_sampler_needs(&o[8], 100000), 40);
    expect_int(sheaf_sampler_needs(&o[8], 79), 0); /* half of it is not few */
    sheaf_sampler *s = make(o[0], 100);
    int32_t got;
    expect_status(sheaf_sample_best(s, (sheaf_best[]){{0, 9}}, 1, &got), SHEAF_E_ARGUMENT);
    sheaf_sampler_free(s);
}

/* --- as bytes ---------------------------------------------------------------------------------------------- */

/* What was saved goes on drawing as if nothing had happened, with a short memory, a long one and none. */
Test(sampler, a_saved_sampler_draws_what_it_would_have_drawn, .timeout = 60) {
    enum { N = 60, ROUNDS = 40 };
    static const int32_t memory[] = {8, 100, -1, 0};
    float row[N];
    for (int i = 0; i < N; i++) row[i] = (float)(i * 7 % 13) * 0.2f;
    for (int k = 0; k < 4; k++) {
        sheaf_sampler_options o = sheaf_sampler_defaults();
        o.repeat_penalty = 1.3f, o.frequency_penalty = 0.1f, o.repeat_last_n = memory[k], o.seed = 9;
        sheaf_sampler *a = make(o, N), *b = make(o, N);
        int32_t i, j;
        for (int round = 0; round < ROUNDS; round++) expect_ok(sheaf_sample(a, row, &i));
        expect_ok(sheaf_sample(b, row, &j)); /* another past */
        size_t n = sheaf_sampler_state_size(a);
        uint8_t *bytes = malloc(n);
        sheaf_sampler_state_get(a, bytes);
        expect_ok(sheaf_sampler_state_set(b, bytes, n));
        for (int round = 0; round < ROUNDS; round++) {
            expect_ok(sheaf_sample(a, row, &i));
            expect_ok(sheaf_sample(b, row, &j));
            cr_assert(i == j, "memory of %d, round %d: token %d, after a restore %d", memory[k], round, i, j);
        }
        for (size_t cut = 0; cut < n; cut++) expect_status(sheaf_sampler_state_set(b, bytes, cut), SHEAF_E_FORMAT);
        int32_t far = N;
        if (n > 40) {
            memcpy(bytes + 40, &far, sizeof far);
            expect_status(sheaf_sampler_state_set(b, bytes, n), SHEAF_E_FORMAT);
        }
        o.repeat_last_n = 5;
        sheaf_sampler *other = make(o, N);
        expect_status(sheaf_sampler_state_set(other, bytes, n), SHEAF_E_FORMAT);
        sheaf_sampler_free(other);
        free(bytes);
        sheaf_sampler_free(a);
        sheaf_sampler_free(b);
    }
}
