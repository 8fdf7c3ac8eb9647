/* Assertions that print both values, and a folder for a test's files.
 *
 * They end the test at the first failure (Criterion's cr_assert), so they belong in the test's own
 * process: an assertion that fails in a forked child of a test hangs. */
#ifndef SHEAF_TESTS_EXPECT_H
#define SHEAF_TESTS_EXPECT_H

#include "tensor/status.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define expect_int(got, wanted)                                                                                        \
    do {                                                                                                               \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                              \
        cr_assert(got_ == wanted_, "%s is %lld, expected %lld", #got, got_, wanted_);                                  \
    } while (0)

#define expect_text(got, wanted)                                                                                       \
    do {                                                                                                               \
        const char *got_ = (got), *wanted_ = (wanted);                                                                 \
        cr_assert(strcmp(got_, wanted_) == 0, "%s is \"%s\", expected \"%s\"", #got, got_, wanted_);                   \
    } while (0)

/* A status, with the error text shown when it is another one. */
#define expect_status(call, wanted)                                                                                    \
    do {                                                                                                               \
        sheaf_status got_ = (call), wanted_ = (wanted);                                                                \
        cr_assert(got_ == wanted_, "%s is %s (%s), expected %s", #call, sheaf_status_name(got_), sheaf_error(),        \
                  sheaf_status_name(wanted_));                                                                         \
    } while (0)

#define expect_ok(call) expect_status(call, SHEAF_OK)

/* The error text must contain `part`. */
#define expect_error(part)                                                                                             \
    cr_assert(strstr(sheaf_error(), (part)) != NULL, "the error is \"%s\", expected it to contain \"%s\"",             \
              sheaf_error(), (part))

#endif
