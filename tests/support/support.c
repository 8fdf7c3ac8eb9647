/* See support.h. */
#include "tests/support/support.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

/* --- folders --- */

char *make_folder(void) {
    char path[4096];
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/sheaf-test-XXXXXX", base && base[0] ? base : P_tmpdir);
    cr_assert(mkdtemp(path) != NULL, "%s: %s", path, strerror(errno));
    char *copy = strdup(path);
    cr_assert(copy != NULL, "out of memory");
    return copy;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void remove_folder(char *path) {
    if (path) nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(path);
}

/* --- random numbers --- */

rng rng_start(const char *what) {
    const char *given = getenv("SHEAF_TEST_SEED");
    uint64_t seed = given && given[0] ? strtoull(given, NULL, 0) : 1;
    fprintf(stderr, "%s: SHEAF_TEST_SEED=%llu\n", what, (unsigned long long)seed);
    return (rng){seed * UINT64_C(0x9e3779b97f4a7c15)};
}

/* A counter through a mixing function: no bad seeds, and a state of one word. */
uint64_t rng_word(rng *r) {
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_word(r) % (uint64_t)n); }

float rng_unit(rng *r) { return (float)(rng_word(r) >> 40) * 0x1p-24f; }

float rng_normal(rng *r) {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += rng_unit(r);
    return sum;
}

bool rng_chance(rng *r, float p) { return rng_unit(r) < p; }

/* --- failing allocations --- */

typedef struct countdown {
    int seen, fail_at; /* fail_at 0: none */
} countdown;

static bool allow(void *ctx, size_t size) {
    (void)size;
    countdown *c = ctx;
    return ++c->seen != c->fail_at;
}

static sheaf_status call_with(sheaf_status (*fn)(void *ctx), void *ctx, countdown *c) {
    sheaf_alloc_hook(allow, c);
    sheaf_status s = fn(ctx);
    sheaf_alloc_hook(NULL, NULL);
    return s;
}

int fail_each_allocation(sheaf_status (*fn)(void *ctx), void *ctx) {
    for (int k = 1;; k++) {
        countdown c = {.fail_at = k};
        sheaf_status s = call_with(fn, ctx, &c);
        if (c.seen < k) {
            cr_assert(s == SHEAF_OK, "without a failure: %s (%s)", sheaf_status_name(s), sheaf_error());
            cr_assert(k > 1, "there was no allocation to fail");
            return k - 1;
        }
        cr_assert(s == SHEAF_E_NO_MEMORY || s == SHEAF_OK, "allocation %d failed: %s (%s), expected SHEAF_E_NO_MEMORY",
                  k, sheaf_status_name(s), sheaf_error());
        if (s) cr_assert(sheaf_error()[0] != 0, "allocation %d failed: no error text", k);
    }
}

int count_allocations(sheaf_status (*fn)(void *ctx), void *ctx) {
    countdown c = {0};
    sheaf_status s = call_with(fn, ctx, &c);
    cr_assert(s == SHEAF_OK, "%s (%s)", sheaf_status_name(s), sheaf_error());
    return c.seen;
}

/* --- golden files --- */

char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    cr_assert(f != NULL, "%s: %s", path, strerror(errno));
    size_t used = 0, room = 4096;
    char *text = malloc(room + 1);
    while (text) {
        used += fread(text + used, 1, room - used, f);
        if (used < room) break;
        char *bigger = realloc(text, 2 * room + 1);
        if (!bigger) free(text);
        text = bigger;
        room *= 2;
    }
    int failed = !text || ferror(f);
    fclose(f);
    cr_assert(!failed, "%s: cannot be read", path);
    text[used] = 0;
    if (size) *size = used;
    return text;
}

static void bless(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL, "%s: %s", path, strerror(errno));
    size_t written = fwrite(bytes, 1, size, f);
    int closed = fclose(f);
    cr_assert(written == size && closed == 0, "%s: %zu of %zu bytes written", path, written, size);
    fprintf(stderr, "blessed %s\n", path);
}

void expect_golden(const char *path, const void *bytes, size_t size) {
    const char *wanted = getenv("SHEAF_BLESS");
    if (wanted && strcmp(wanted, "1") == 0) {
        bless(path, bytes, size);
        return;
    }
    size_t golden_size, at = 0;
    char *golden = read_file(path, &golden_size);
    while (at < size && at < golden_size && golden[at] == ((const char *)bytes)[at]) at++;
    bool same = at == size && at == golden_size;
    free(golden);
    cr_assert(same, "%s: differs at byte %zu (%zu bytes, expected %zu); SHEAF_BLESS=1 takes the new one", path, at,
              size, golden_size);
}
