/* From one row of logits to a token.
 *
 * The chain is llama.cpp's, in its order: bias, penalties, then top-k, typical, top-p, min-p, and last
 * the temperature and one draw. Candidates live in an array that is allocated once: `n` of them stay, the
 * filters only shorten it. Ties always fall to the lower id, so the same logits give the same token on any
 * machine. Allocates nothing per token: not even qsort, which does for large arrays.
 *
 *     logits --bias, penalties--> work[] --top-k--> cand[0..n) sorted --typical, top-p, min-p--> draw
 *
 * Where top-k (or greedy) comes first, a few of the best logits say as much as the row: sheaf_sampler_needs. A
 * penalty or a bias that only lowers can push at most so many tokens out of the k best as there are penalised ones,
 * and nothing from below can rise above what was not lowered.
 */
#include "models/model.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A candidate: `key` is what it is ordered by (its logit; for typical, its distance from the expected). */
typedef struct candidate {
    float key, logit, p;
    int32_t id;
} candidate;

struct sheaf_sampler {
    sheaf_sampler_options o;
    int32_t n_vocab;
    int32_t needs; /* best logits that decide; 0: all */
    int32_t *bias_id;
    float *bias;
    float *work; /* [n_vocab] logits after bias and penalties */
    candidate *cand;
    int32_t n;
    bool sorted; /* best first */
    uint64_t rng[4];
    /* What was accepted lately: counts by id, the list of ids with a count, and each one's place in it. */
    int32_t *count, *seen, *seen_at;
    int32_t n_seen;
    int32_t *ring; /* [repeat_last_n], NULL when nothing is ever forgotten */
    int32_t ring_n, ring_at;
};

sheaf_sampler_options sheaf_sampler_defaults(void) {
    return (sheaf_sampler_options){
        .temp = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical = 1.0f,
        .repeat_penalty = 1.0f,
        .repeat_last_n = 64,
    };
}

/* --- random numbers: xoshiro256**, seeded by splitmix64 ------------------------------------------------ */

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

static void seed_rng(sheaf_sampler *s) {
    uint64_t x = s->o.seed;
    for (int i = 0; i < 4; i++) {
        uint64_t z = (x += 0x9e3779b97f4a7c15u);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        s->rng[i] = z ^ z >> 31;
    }
}

/* Uniform in [0, 1), 53 bits. */
static double draw(sheaf_sampler *s) {
    uint64_t *r = s->rng, out = rotl(r[1] * 5, 7) * 9, t = r[1] << 17;
    r[2] ^= r[0];
    r[3] ^= r[1];
    r[1] ^= r[2];
    r[0] ^= r[3];
    r[2] ^= t;
    r[3] = rotl(r[3], 45);
    return (double)(out >> 11) * 0x1p-53;
}

/* --- making and ending --------------------------------------------------------------------------------- */

static sheaf_status check_options(const sheaf_sampler_options *o, int32_t n_vocab) {
    if (n_vocab <= 0) return sheaf_fail(SHEAF_E_ARGUMENT, "sampler: vocabulary of %d tokens", n_vocab);
    if (isnan(o->temp) || isnan(o->top_p) || isnan(o->min_p) || isnan(o->typical))
        return sheaf_fail(SHEAF_E_ARGUMENT, "sampler: an option is not a number");
    if (!(o->repeat_penalty > 0))
        return sheaf_fail(SHEAF_E_ARGUMENT, "sampler: repeat penalty %g, must be above 0", (double)o->repeat_penalty);
    if (o->top_k < 0 || o->repeat_last_n < -1 || o->n_bias < 0)
        return sheaf_fail(SHEAF_E_ARGUMENT, "sampler: top-k %d, repeat-last-n %d", o->top_k, o->repeat_last_n);
    for (int32_t i = 0; i < o->n_bias; i++)
        if (o->bias_id[i] < 0 || o->bias_id[i] >= n_vocab || isnan(o->bias[i]))
            return sheaf_fail(SHEAF_E_ARGUMENT, "sampler: bias %g of token %d of %d", (double)o->bias[i], o->bias_id[i],
                              n_vocab);
    return SHEAF_OK;
}

static bool allocate(sheaf_sampler *s, const sheaf_sampler_options *o) {
    size_t n = (size_t)s->n_vocab, b = (size_t)o->n_bias;
    s->work = sheaf_malloc(n * sizeof *s->work);
    s->cand = sheaf_malloc(n * sizeof *s->cand);
    s->count = sheaf_calloc(n, sizeof *s->count);
    s->seen = sheaf_malloc(n * sizeof *s->seen);
    s->seen_at = sheaf_malloc(n * sizeof *s->seen_at);
    bool ok = s->work && s->cand && s->count && s->seen && s->seen_at;
    if (ok && o->repeat_last_n > 0) ok = (s->ring = sheaf_malloc((size_t)o->repeat_last_n * sizeof *s->ring)) != NULL;
    if (ok && b) {
        s->bias_id = sheaf_malloc(b * sizeof *s->bias_id);
        s->bias = sheaf_malloc(b * sizeof *s->bias);
        ok = s->bias_id && s->bias;
    }
    return ok;
}

sheaf_status sheaf_sampler_new(const sheaf_sampler_options *o, int32_t n_vocab, sheaf_sampler **out) {
    *out = NULL;
    sheaf_status status = check_options(o, n_vocab);
    if (status) return status;
    sheaf_sampler *s = sheaf_calloc(1, sizeof *s);
    if (s) {
        s->o = *o;
        s->n_vocab = n_vocab;
        s->needs = sheaf_sampler_needs(o, n_vocab);
    }
    if (!s || !allocate(s, o)) {
        sheaf_sampler_free(s);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "sampler: no memory for a vocabulary of %d", n_vocab);
    }
    if (o->n_bias) {
        memcpy(s->bias_id, o->bias_id, (size_t)o->n_bias * sizeof *s->bias_id);
        memcpy(s->bias, o->bias, (size_t)o->n_bias * sizeof *s->bias);
    }
    s->o.bias_id = NULL; /* ours are the copies */
    s->o.bias = NULL;
    seed_rng(s);
    *out = s;
    return SHEAF_OK;
}

void sheaf_sampler_free(sheaf_sampler *s) {
    if (!s) return;
    sheaf_free(s->bias_id);
    sheaf_free(s->bias);
    sheaf_free(s->work);
    sheaf_free(s->cand);
    sheaf_free(s->count);
    sheaf_free(s->seen);
    sheaf_free(s->seen_at);
    sheaf_free(s->ring);
    sheaf_free(s);
}

void sheaf_sampler_reset(sheaf_sampler *s) {
    memset(s->count, 0, (size_t)s->n_vocab * sizeof *s->count);
    s->n_seen = s->ring_n = s->ring_at = 0;
    seed_rng(s);
}

/* --- what was said ------------------------------------------------------------------------------------- */

static void remember(sheaf_sampler *s, int32_t id) {
    if (s->count[id]++) return;
    s->seen_at[id] = s->n_seen;
    s->seen[s->n_seen++] = id;
}

static void forget(sheaf_sampler *s, int32_t id) {
    if (--s->count[id]) return;
    int32_t last = s->seen[--s->n_seen];
    s->seen[s->seen_at[id]] = last;
    s->seen_at[last] = s->seen_at[id];
}

void sheaf_sampler_accept(sheaf_sampler *s, int32_t id) {
    if (id < 0 || id >= s->n_vocab || s->o.repeat_last_n == 0) return;
    if (s->ring) {
        if (s->ring_n == s->o.repeat_last_n) {
            forget(s, s->ring[s->ring_at]);
        } else {
            s->ring_n++;
        }
        s->ring[s->ring_at] = id;
        s->ring_at = (s->ring_at + 1) % s->o.repeat_last_n;
    }
    remember(s, id);
}

/* --- as bytes ------------------------------------------------------------------------------------------- */

/* rng, then n ids with a count each: the ring from its oldest on (counts 1), or what was seen. */
typedef struct saved_sampler {
    uint64_t rng[4];
    int32_t repeat_last_n, n;
} saved_sampler;

static int32_t n_saved(const sheaf_sampler *s) { return s->ring ? s->ring_n : s->n_seen; }

size_t sheaf_sampler_state_size(const sheaf_sampler *s) {
    return sizeof(saved_sampler) + (size_t)n_saved(s) * 2 * sizeof(int32_t);
}

void sheaf_sampler_state_get(const sheaf_sampler *s, void *dst) {
    saved_sampler h = {.repeat_last_n = s->o.repeat_last_n, .n = n_saved(s)};
    char *to = dst;
    memcpy(h.rng, s->rng, sizeof h.rng);
    memcpy(to, &h, sizeof h);
    for (int32_t i = 0; i < h.n; i++) {
        int32_t oldest = s->ring && s->ring_n == s->o.repeat_last_n ? s->ring_at : 0;
        int32_t id = s->ring ? s->ring[(oldest + i) % s->o.repeat_last_n] : s->seen[i];
        int32_t pair[2] = {id, s->ring ? 1 : s->count[id]};
        memcpy(to + sizeof h + (size_t)i * sizeof pair, pair, sizeof pair);
    }
}

static sheaf_status check_saved(const sheaf_sampler *s, const saved_sampler *h, const char *pairs, size_t bytes) {
    if (h->repeat_last_n != s->o.repeat_last_n)
        return sheaf_fail(SHEAF_E_FORMAT, "state of a sampler: it remembers %d tokens, this one %d", h->repeat_last_n,
                          s->o.repeat_last_n);
    int32_t most = s->ring ? s->o.repeat_last_n : s->n_vocab;
    if (h->n < 0 || h->n > most || bytes != (size_t)h->n * 2 * sizeof(int32_t))
        return sheaf_fail(SHEAF_E_FORMAT, "state of a sampler: %d tokens in %zu bytes", h->n, bytes);
    for (int32_t i = 0; i < h->n; i++) {
        int32_t pair[2];
        memcpy(pair, pairs + (size_t)i * sizeof pair, sizeof pair);
        if (pair[0] < 0 || pair[0] >= s->n_vocab || pair[1] < 1 || (s->ring && pair[1] != 1))
            return sheaf_fail(SHEAF_E_FORMAT, "state of a sampler: token %d, %d times", pair[0], pair[1]);
    }
    return SHEAF_OK;
}

sheaf_status sheaf_sampler_state_set(sheaf_sampler *s, const void *src, size_t size) {
    saved_sampler h;
    const char *pairs = (const char *)src + sizeof h;
    if (size < sizeof h) return sheaf_fail(SHEAF_E_FORMAT, "state of a sampler: %zu bytes", size);
    memcpy(&h, src, sizeof h);
    sheaf_status status = check_saved(s, &h, pairs, size - sizeof h);
    if (status) return status;
    sheaf_sampler_reset(s);
    for (int32_t i = 0; i < h.n; i++) {
        int32_t pair[2];
        memcpy(pair, pairs + (size_t)i * sizeof pair, sizeof pair);
        sheaf_sampler_accept(s, pair[0]);
        if (!s->ring) s->count[pair[0]] = pair[1];
    }
    memcpy(s->rng, h.rng, sizeof h.rng);
    return SHEAF_OK;
}

/* --- logits to candidates ------------------------------------------------------------------------------ */

/* No NaN survives: it counts as impossible, also where a bias forbids an infinite logit. */
static float number(float x) { return isnan(x) ? -INFINITY : x; }

static bool penalties(const sheaf_sampler_options *o) {
    return o->repeat_last_n != 0 &&
           (o->repeat_penalty != 1.0f || o->frequency_penalty != 0 || o->presence_penalty != 0);
}

/* The penalty divides a positive logit and multiplies a negative one: either way the token sinks. */
static float penalised(const sheaf_sampler_options *o, float x, int32_t count) {
    x = x > 0 ? x / o->repeat_penalty : x * o->repeat_penalty;
    return number(x - ((float)count * o->frequency_penalty + o->presence_penalty));
}

/* Copies the row, with biases and penalties. */
static void take_logits(sheaf_sampler *s, const float *logits) {
    for (int32_t i = 0; i < s->n_vocab; i++) s->work[i] = number(logits[i]);
    for (int32_t i = 0; i < s->o.n_bias; i++) {
        float *x = &s->work[s->bias_id[i]];
        *x = number(*x + s->bias[i]);
    }
    for (int32_t i = 0; penalties(&s->o) && i < s->n_seen; i++) {
        int32_t id = s->seen[i];
        s->work[id] = penalised(&s->o, s->work[id], s->count[id]);
    }
}

/* The same for one token alone. */
static float taken(const sheaf_sampler *s, int32_t id, float logit) {
    float x = number(logit);
    for (int32_t i = 0; i < s->o.n_bias; i++)
        if (s->bias_id[i] == id) x = number(x + s->bias[i]);
    return penalties(&s->o) && s->count[id] ? penalised(&s->o, x, s->count[id]) : x;
}

/* Ordered by what it is; from then on no infinity, so that later sums are numbers. */
static candidate candidate_of(int32_t id, float x) {
    return (candidate){.key = x, .logit = x > FLT_MAX / 4 ? FLT_MAX / 4 : x, .id = id};
}

static bool better(const candidate *a, const candidate *b) {
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

/* Restores the heap below `at`. With `worst`, the root is the worst candidate, else the best. */
static void sift(candidate *h, int32_t n, int32_t at, bool worst) {
    candidate moving = h[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && better(&h[child + 1], &h[child]) != worst) child++;
        if (better(&h[child], &moving) == worst) break;
        h[at] = h[child];
    }
    h[at] = moving;
}

static void heapify(candidate *h, int32_t n, bool worst) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(h, n, i, worst);
}

/* A heap with the worst at its root becomes an array with the best first. */
static void unheap(candidate *h, int32_t n) {
    for (int32_t end = n - 1; end > 0; end--) {
        candidate worst = h[0];
        h[0] = h[end];
        h[end] = worst;
        sift(h, end, 0, true);
    }
}

static void sort_best_first(sheaf_sampler *s) {
    heapify(s->cand, s->n, true);
    unheap(s->cand, s->n);
    s->sorted = true;
}

/* Candidates: the k best (sorted), or all that are possible. A heap of the k best so far holds the worst
 * of them at its root: almost every other logit is refused by one comparison. */
static void choose_candidates(sheaf_sampler *s) {
    int32_t k = s->o.top_k > 0 && s->o.top_k < s->n_vocab ? s->o.top_k : s->n_vocab;
    s->n = 0;
    s->sorted = k < s->n_vocab;
    for (int32_t id = 0; id < s->n_vocab; id++) {
        float x = s->work[id];
        if (x == -INFINITY) continue;
        if (s->n == k && !(x > s->cand[0].key)) continue; /* k < n_vocab here, so cand is a heap */
        candidate c = candidate_of(id, x);
        if (s->n < k) {
            s->cand[s->n++] = c;
            if (s->n == k && s->sorted) heapify(s->cand, s->n, true);
        } else {
            s->cand[0] = c;
            sift(s->cand, s->n, 0, true);
        }
    }
    if (!s->sorted) return;
    if (s->n < k) heapify(s->cand, s->n, true);
    unheap(s->cand, s->n);
}

/* --- filters ------------------------------------------------------------------------------------------- */

static float best_logit(const sheaf_sampler *s) {
    float best = s->cand[0].logit;
    for (int32_t i = 1; i < s->n && !s->sorted; i++)
        if (s->cand[i].logit > best) best = s->cand[i].logit;
    return best;
}

/* Probabilities of the candidates at this temperature. */
static void soften(sheaf_sampler *s, float temp) {
    float best = best_logit(s);
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++) sum += s->cand[i].p = expf((s->cand[i].logit - best) / temp);
    for (int32_t i = 0; i < s->n; i++) s->cand[i].p = (float)(s->cand[i].p / sum);
}

/* Keeps those whose surprise is nearest to the expected one, until their mass is `typical`. */
static void keep_typical(sheaf_sampler *s) {
    if (!(s->o.typical < 1.0f)) return;
    soften(s, 1.0f);
    double entropy = 0, mass = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (s->cand[i].p > 0) entropy -= s->cand[i].p * log((double)s->cand[i].p);
    for (int32_t i = 0; i < s->n; i++)
        s->cand[i].key = s->cand[i].p > 0 ? -fabsf((float)(-log((double)s->cand[i].p) - entropy)) : -INFINITY;
    sort_best_first(s);
    int32_t keep = 0;
    while (keep < s->n && mass <= s->o.typical) mass += s->cand[keep++].p;
    s->n = keep;
    for (int32_t i = 0; i < s->n; i++) s->cand[i].key = s->cand[i].logit;
    s->sorted = false;
}

/* Keeps the fewest best ones whose mass reaches top_p. */
static void keep_top_p(sheaf_sampler *s) {
    if (!(s->o.top_p < 1.0f)) return;
    soften(s, 1.0f);
    double mass = 0;
    int32_t keep = 0;
    if (s->sorted) {
        while (keep < s->n && (keep == 0 || mass < s->o.top_p)) mass += s->cand[keep++].p;
        s->n = keep;
        return;
    }
    /* Of a whole vocabulary only few are kept: take them off a heap, best first, to the end of the array. */
    heapify(s->cand, s->n, false);
    int32_t left = s->n;
    while (left > 0 && (left == s->n || mass < s->o.top_p)) {
        candidate best = s->cand[0];
        s->cand[0] = s->cand[--left];
        sift(s->cand, left, 0, false);
        s->cand[left] = best;
        mass += best.p;
    }
    s->n -= left;
    memmove(s->cand, s->cand + left, (size_t)s->n * sizeof *s->cand);
    sort_best_first(s);
}

/* Keeps those at least min_p times as likely as the best. */
static void keep_min_p(sheaf_sampler *s) {
    if (!(s->o.min_p > 0)) return;
    float floor = best_logit(s) + logf(s->o.min_p);
    int32_t keep = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (s->cand[i].logit >= floor) s->cand[keep++] = s->cand[i];
    if (keep > 0) s->n = keep; /* min_p above 1 would leave nothing */
}

static int32_t pick(sheaf_sampler *s) {
    soften(s, s->o.temp);
    double at = draw(s), sum = 0;
    for (int32_t i = 0; i < s->n; i++) {
        sum += s->cand[i].p;
        if (at < sum) return s->cand[i].id;
    }
    return s->cand[s->n - 1].id; /* the sum ends a rounding below 1 */
}

static int32_t greedy(const sheaf_sampler *s) {
    int32_t best = -1;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->work[i] > -INFINITY && (best < 0 || s->work[i] > s->work[best])) best = i;
    return best;
}

/* From sorted candidates, or all of them, to a token. */
static int32_t draw_from_candidates(sheaf_sampler *s) {
    if (s->n < 1) return -1;
    keep_typical(s);
    keep_top_p(s);
    keep_min_p(s);
    return pick(s);
}

static sheaf_status accept_drawn(sheaf_sampler *s, int32_t id) {
    if (id < 0)
        return sheaf_fail(SHEAF_E_RANGE, "sampling: no token is possible: all %d logits are NaN or minus infinity",
                          s->n_vocab);
    sheaf_sampler_accept(s, id);
    return SHEAF_OK;
}

sheaf_status sheaf_sample(sheaf_sampler *s, const float *logits, int32_t *id) {
    take_logits(s, logits);
    if (s->o.temp <= 0) {
        *id = greedy(s);
    } else {
        choose_candidates(s);
        *id = draw_from_candidates(s);
    }
    return accept_drawn(s, *id);
}

/* --- from the best logits alone ------------------------------------------------------------------------- */

/* Tokens that may sink: those that are biased, and those said lately. -1: one may rise, or there is no limit. */
static int64_t may_sink(const sheaf_sampler_options *o) {
    for (int32_t i = 0; i < o->n_bias; i++)
        if (!(o->bias[i] <= 0)) return -1;
    if (!penalties(o)) return o->n_bias;
    bool lowers = o->repeat_penalty >= 1 && o->frequency_penalty >= 0 && o->presence_penalty >= 0;
    return lowers && o->repeat_last_n > 0 ? (int64_t)o->n_bias + o->repeat_last_n : -1;
}

int32_t sheaf_sampler_needs(const sheaf_sampler_options *o, int32_t n_vocab) {
    int64_t k = o->temp <= 0 ? 1 : o->top_k, sink = may_sink(o);
    if (k < 1 || sink < 0 || k + sink > SHEAF_MAX_BEST || 2 * (k + sink) > n_vocab) return 0;
    return (int32_t)(k + sink);
}

sheaf_status sheaf_sample_best(sheaf_sampler *s, const sheaf_best *best, int32_t n, int32_t *id) {
    *id = -1;
    if (n < s->needs || s->needs < 1 || n > s->n_vocab)
        return sheaf_fail(SHEAF_E_ARGUMENT, "sampling: %d of the best logits, these options need %d", n, s->needs);
    s->n = 0;
    for (int32_t i = 0; i < n; i++) {
        if (best[i].id < 0 || best[i].id >= s->n_vocab)
            return sheaf_fail(SHEAF_E_ARGUMENT, "sampling: token %d of %d", best[i].id, s->n_vocab);
        float x = taken(s, best[i].id, best[i].logit);
        if (x > -INFINITY) s->cand[s->n++] = candidate_of(best[i].id, x);
    }
    sort_best_first(s);
    if (s->o.temp <= 0) {
        *id = s->n > 0 ? s->cand[0].id : -1;
    } else {
        if (s->n > s->o.top_k) s->n = s->o.top_k;
        *id = draw_from_candidates(s);
    }
    return accept_drawn(s, *id);
}
