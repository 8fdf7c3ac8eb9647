/* What tests of every room share, beside the assertions of expect.h: folders, random numbers,
 * allocation failures, golden files, skips.
 *
 * Everything here reports through Criterion or by value; link `test-support`. */
#ifndef SHEAF_TESTS_SUPPORT_H
#define SHEAF_TESTS_SUPPORT_H

#include "tensor/status.h"
#include "tests/support/expect.h"

/* Ends the test as skipped: prints "skipped: <reason>", which the test tiers count. */
#define skip_test(...) cr_skip(__VA_ARGS__)

/* --- folders --- */

/* A fresh folder under $TMPDIR or the system's; fails the test if there is none. Free by
 * remove_folder, which removes what is in it. */
char *make_folder(void);
void remove_folder(char *path);

/* --- random numbers --- */

/* A small generator with the same numbers on every machine. Every test starts from a fixed seed, or
 * from SHEAF_TEST_SEED to look further; the seed is printed so that a failure can be had again. */
typedef struct rng {
    uint64_t state;
} rng;
rng rng_start(const char *what);
uint64_t rng_word(rng *r);
int64_t rng_below(rng *r, int64_t n); /* [0, n), n >= 1 */
float rng_unit(rng *r);               /* [0, 1) */
float rng_normal(rng *r);             /* mean 0, variance 1, within +-6 */
bool rng_chance(rng *r, float p);

/* --- failing allocations --- */

/* Calls fn(ctx) with the first allocation failing, then the second, and so on until a call makes
 * fewer allocations than that and succeeds. Each failing call must return SHEAF_E_NO_MEMORY, or
 * SHEAF_OK where it can do without; anything else fails the test. fn leaves nothing behind in either
 * case (the address sanitizer watches). Returns how many allocations were failed; at least one must
 * be there to fail. */
int fail_each_allocation(sheaf_status (*fn)(void *ctx), void *ctx);
/* Allocations that fn(ctx) makes; its status must be SHEAF_OK. */
int count_allocations(sheaf_status (*fn)(void *ctx), void *ctx);

/* --- golden files --- */

/* A whole file, with a NUL behind it; fails the test if it cannot be read. Free by free(). */
char *read_file(const char *path, size_t *size);
/* Fails the test unless the file at `path` holds just these bytes; SHEAF_BLESS=1 writes it instead. */
void expect_golden(const char *path, const void *bytes, size_t size);

#endif
