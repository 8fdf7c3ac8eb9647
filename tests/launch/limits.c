/* Little memory, few descriptors, few threads, and two runs at once. */
#include "tests/launch/spawn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const lines[] = {
    "run -m " TINY " -p Once -n 4 --temp 0 -q",
    "run -m " TINY " -p Once -n 4 --temp 0 -q --devices cpu/2",
    "run -m " TINY " -p Once -n 4 --temp 0 -q --no-mmap --json",
    "split -m " TINY " --devices cpu/3 --json",
    "graph -m " TINY " --devices cpu/2 --json",
    "perplexity -m " TINY " -f " TALES " -c 64 --chunks 1 -q",
    "bench -m " TINY " -p 16 -n 2 -r 1 -o json",
    "tokenize -m " TINY " -f " TALES,
    "inspect " TINY " --json --check",
    "devices --json",
};
enum { N_LINES = sizeof lines / sizeof *lines };

/* Each command under ever larger limits: clean refusals first, success in the end. */
static void sweep(int resource, const rlim_t *values, int n_values, int code) {
    for (int i = 0; i < N_LINES; i++) {
        for (int v = 0; v < n_values; v++) {
            how h = {.n_limits = 1, .limits = {{resource, values[v]}}, .seconds = 30};
            outcome o = sheaf_how(&h, "%s", lines[i]);
            bool started = o.code != 127 && !(o.code == 1009 || o.code == 1011) /* the loader itself had no room */;
            if (!started && !o.out_n && strstr(o.err, "sheaf:") == NULL && v == 0) {
                outcome_free(&o);
                continue;
            }
            cr_assert(!o.timed_out && (o.code == 0 || o.code == code), "sheaf %s under limit %llu: exit %d: %s", o.line,
                      (unsigned long long)values[v], o.code, o.err);
            if (o.code) expect_error_line(&o);
            outcome_free(&o);
        }
    }
}

Test(limits, little_address_space_is_exit_4, .timeout = 600) {
    if (SANITIZED) skip_test("sanitizers reserve terabytes of addresses");
    static const rlim_t values[] = {24ull << 20, 32ull << 20, 40ull << 20,  48ull << 20,
                                    64ull << 20, 96ull << 20, 160ull << 20, 4096ull << 20};
    sweep(RLIMIT_AS, values, 8, 4);
}

Test(limits, little_data_memory_is_exit_4, .timeout = 600) {
    if (SANITIZED) skip_test("sanitizers need much memory of their own");
    static const rlim_t values[] = {1ull << 20,  2ull << 20,  4ull << 20,   8ull << 20,
                                    16ull << 20, 40ull << 20, 2048ull << 20};
    sweep(RLIMIT_DATA, values, 7, 4);
}

Test(limits, few_descriptors_are_exit_4, .timeout = 600) {
    static const rlim_t values[] = {4, 5, 6, 8, 16, 64};
    sweep(RLIMIT_NOFILE, values, 6, 4);
}

Test(limits, a_context_that_no_memory_holds_is_exit_4, .timeout = 60) {
    static const char *const sizes[] = {"100000000", "2000000000", "2147483647"};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("run -m %s -p x -c %s", TINY, sizes[i]),
                two = sheaf("run -m %s -p x -c %s --devices cpu/2", TINY, sizes[i]);
        expect_refusal(&o, 4);
        expect_refusal(&two, 4);
        outcome_free(&o);
        outcome_free(&two);
    }
}

Test(limits, four_runs_at_once_give_what_one_gives, .timeout = 120) {
    enum { N = 4 };
    static const char *const devices[N] = {"cpu", "cpu/2", "cpu/2", "cpu/3"};
    outcome one = sheaf("run -m %s -p 'Once upon a time' -n 48 --temp 0 -q", TINY);
    running r[N];
    for (int i = 0; i < N; i++)
        r[i] = sheaf_start(NULL, "run -m %s -p 'Once upon a time' -n 48 --temp 0 -q --devices %s", TINY, devices[i]);
    for (int i = 0; i < N; i++) {
        outcome o = sheaf_finish(&r[i], 60);
        expect_code(o, 0);
        expect_text(o.out, one.out);
        outcome_free(&o);
    }
    outcome_free(&one);
}
