/* The entry of every Criterion test program. Two ways to run the registered tests:
 *
 * - normally Criterion's own runner (a process per test, timeouts);
 * - under the thread sanitizer, where Criterion 2.4's forking runner crashes, or with
 *   SHEAF_TEST_INPROCESS=1 (valgrind, debuggers): one after another in this process.
 *
 * The second way stands in for the half of Criterion that a test talks to: the functions that its
 * macros call (set up, assert, abort, skip) are defined here, ahead of the library's, and hand the
 * call on to the library unless tests run in this process. An assertion that fails there jumps back
 * to the runner, as Criterion's would; on another thread than the test's it ends the program.
 *
 * No test run is a failure: a filter that matches nothing must not look like success. */
#include <criterion/criterion.h>
#include <criterion/internal/ordered-set.h>
#include <criterion/internal/test.h>
#include <dlfcn.h>
#include <fnmatch.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/support/sanitized.h"

/* A test's timeout is meant for a program at full speed. */
enum { SLOWER_IN_PROCESS = 20 };

static struct {
    bool on;
    pthread_t thread; /* that runs the tests */
    jmp_buf back;
    bool failed, skipped, set_up; /* set_up: its tear-down is still owed */
    const struct criterion_suite *suite;
    const struct criterion_test *test;
    int n_run, n_failed, n_skipped;
} here;

/* --- what a test calls --- */

/* The library's function behind ours. */
static void *behind(const char *name) {
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) {
        fprintf(stderr, "criterion has no %s\n", name);
        _exit(1);
    }
    return f;
}

static void run_hook(const struct criterion_test_extra_data *data, bool init) {
    void (*hook)(void) = !data ? NULL : init ? data->init : data->fini;
    if (hook) hook();
}

void criterion_internal_test_setup(void) {
    if (!here.on) {
        ((void (*)(void))behind("criterion_internal_test_setup"))();
        return;
    }
    run_hook(here.suite->data, true);
    run_hook(here.test->data, true);
    here.set_up = true;
}

void criterion_internal_test_main(void (*fn)(void)) {
    if (!here.on) {
        ((void (*)(void (*)(void)))behind("criterion_internal_test_main"))(fn);
        return;
    }
    fn();
}

void criterion_internal_test_teardown(void) {
    if (!here.on) {
        ((void (*)(void))behind("criterion_internal_test_teardown"))();
        return;
    }
    here.set_up = false;
    run_hook(here.test->data, false);
    run_hook(here.suite->data, false);
}

/* Ends the test that runs here. A jump across threads would be undefined. */
static _Noreturn void leave_test(void) {
    fflush(NULL);
    if (!pthread_equal(pthread_self(), here.thread)) _exit(1);
    longjmp(here.back, 1);
}

void criterion_abort_test(void) {
    if (!here.on) ((void (*)(void))behind("criterion_abort_test"))();
    here.failed = true;
    leave_test();
}

void criterion_continue_test(void) {
    if (here.on) here.failed = true;
}

void criterion_send_assert(struct criterion_assert_stats *stats) {
    if (!here.on) {
        ((void (*)(struct criterion_assert_stats *))behind("criterion_send_assert"))(stats);
        return;
    }
    if (!stats->passed) {
        fprintf(stderr, "%s:%u: %s\n", stats->file, stats->line, stats->message);
        here.failed = true;
    }
}

/* .ci/show_skips.sh counts these lines. */
void criterion_skip_test(const char *format, ...) {
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    fprintf(stderr, "skipped: %s\n", reason);
    if (!here.on) ((void (*)(const char *, ...))behind("criterion_skip_test"))("%s", reason);
    here.skipped = true;
    leave_test();
}

void criterion_test_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    if (!here.on) _exit(1);
    here.failed = true;
    leave_test();
}

/* --- which tests --- */

static bool selected(const struct criterion_suite *suite, const struct criterion_test *test) {
    char name[512];
    const char *pattern = criterion_options.pattern;
    if (!pattern) return true;
    snprintf(name, sizeof name, "%s/%s", suite->name, test->name);
    return fnmatch(pattern, name, FNM_EXTMATCH) == 0;
}

static bool disabled(const struct criterion_suite *suite, const struct criterion_test *test) {
    return (suite->data && suite->data->disabled) || test->data->disabled;
}

static int count_selected(struct criterion_test_set *set) {
    int count = 0;
    FOREACH_SET(struct criterion_suite_set * s, set->suites) {
        if (!s->tests) continue;
        FOREACH_SET(struct criterion_test * t, s->tests) { count += selected(&s->suite, t) && !disabled(&s->suite, t); }
    }
    return count;
}

/* --- running in this process --- */

/* The alarm ends the program by its default action (the last line printed names the test): a handler
 * would never run in a busy loop under the thread sanitizer, which delivers signals at system calls. */
static void set_timer(double seconds) {
    struct itimerval limit = {.it_value.tv_sec = (time_t)ceil(seconds * SLOWER_IN_PROCESS)};
    setitimer(ITIMER_REAL, &limit, NULL);
}

static void run_one(const struct criterion_suite *suite, const struct criterion_test *test) {
    here.suite = suite;
    here.test = test;
    here.failed = here.skipped = here.set_up = false;
    fprintf(stderr, "[ RUN ] %s/%s\n", suite->name, test->name);
    if (test->data->signal || test->data->exit_code) {
        fprintf(stderr, "skipped: ends its process\n");
        here.skipped = true;
    } else {
        set_timer(test->data->timeout);
        if (!setjmp(here.back)) test->test();
        if (here.set_up && !setjmp(here.back)) criterion_internal_test_teardown();
        set_timer(0);
    }
    here.n_run++;
    here.n_failed += here.failed;
    here.n_skipped += here.skipped;
    if (here.failed) fprintf(stderr, "[FAIL ] %s/%s\n", suite->name, test->name);
}

static bool run_here(struct criterion_test_set *set) {
    here.on = true;
    here.thread = pthread_self();
    signal(SIGALRM, SIG_DFL);
    signal(SIGTERM, SIG_DFL); /* Criterion's handler waits for its runner */
    FOREACH_SET(struct criterion_suite_set * s, set->suites) {
        if (!s->tests) continue;
        FOREACH_SET(struct criterion_test * t, s->tests) {
            if (selected(&s->suite, t) && !disabled(&s->suite, t)) run_one(&s->suite, t);
        }
    }
    fprintf(stderr, "in one process: %d run, %d failed, %d skipped\n", here.n_run, here.n_failed, here.n_skipped);
    return here.n_failed == 0;
}

static bool in_process(void) {
    const char *wanted = getenv("SHEAF_TEST_INPROCESS");
    return UNDER_TSAN || (wanted && strcmp(wanted, "1") == 0);
}

/* Visible, because Criterion finds and replaces it by name when it starts a test's process. */
__attribute__((visibility("default"))) int main(int argc, char **argv) {
    struct criterion_test_set *tests = criterion_initialize();
    bool ok = true; /* --list and --help run nothing, and are content */
    if (criterion_handle_args(argc, argv, true)) {
        if (count_selected(tests) == 0) {
            fprintf(stderr, "no test is registered that the filter lets through\n");
            ok = false;
        } else {
            ok = in_process() ? run_here(tests) : criterion_run_all_tests(tests) != 0;
        }
    }
    criterion_finalize(tests);
    return ok ? 0 : 1;
}
