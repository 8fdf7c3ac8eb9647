/* The entry of every Criterion test program. Two ways to run the registered tests:
 *
 * - normally Criterion's own runner (a process per test, timeouts);
 * - under the thread sanitizer, where Criterion 2.4's forking runner crashes, or with
 *   SHEAF_TEST_INPROCESS=1 (valgrind, debuggers): one after another in this process.
 *
 * No test run is a failure: a filter that matches nothing must not look like success. */
#include <criterion/criterion.h>
#include <criterion/internal/test.h>
#include <stdio.h>
#include <stdlib.h>

/* Visible, because Criterion finds and replaces it by name when it starts a test's process. */
__attribute__((visibility("default"))) int main(int argc, char **argv) {
    struct criterion_test_set *tests = criterion_initialize();
    int ok = criterion_handle_args(argc, argv, true);
    if (ok) {
        if (tests->tests == 0) {
            fprintf(stderr, "no tests are registered\n");
            ok = 0;
        } else {
            ok = criterion_run_all_tests(tests);
        }
    }
    criterion_finalize(tests);
    return ok ? 0 : 1;
}
