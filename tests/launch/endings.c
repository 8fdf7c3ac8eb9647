/* How a run ends when something else ends it: signals, a reader that leaves, a disk that is full. */
#include "tests/launch/spawn.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough to be caught in the middle, on any machine. */
#define LONG "run -m " TINY " -p Once --ignore-eos -n -1 -c 60000 -q"

static int shm_entries(void) {
    DIR *d = opendir("/dev/shm");
    int n = 0;
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));) n += strstr(e->d_name, "sheaf") != NULL;
    closedir(d);
    return n;
}

Test(endings, interrupt_in_mid_reply_is_130, .timeout = 120) {
    static const char *const devices[] = {"cpu", "cpu/2"};
    int shm = shm_entries();
    for (int i = 0; i < 2; i++) {
        how h = {.signal = SIGINT};
        outcome o = sheaf_how(&h, LONG " --devices %s", devices[i]);
        expect_code(o, 130);
        expect_text(o.err, "");
        cr_assert(o.out_n > 0 && o.out[o.out_n - 1] == '\n', "the text that was there stays, with its line ended");
        outcome_free(&o);
    }
    expect_int(shm_entries(), shm);
}

Test(endings, interrupt_with_json_still_tells_what_was_made, .timeout = 60) {
    how h = {.signal = SIGINT, .signal_ms = 2500};
    outcome o = sheaf_how(&h, LONG " --json");
    expect_code(o, 130);
    cJSON *j = cJSON_Parse(o.out);
    cr_assert(j != NULL, "no document: \"%.200s\" %s", o.out, o.err);
    expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "interrupt");
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(endings, terminate_in_mid_reply_is_143, .timeout = 120) {
    static const char *const devices[] = {"cpu", "cpu/2"};
    for (int i = 0; i < 2; i++) {
        how h = {.signal = SIGTERM};
        outcome o = sheaf_how(&h, LONG " --devices %s", devices[i]);
        expect_code(o, 143);
        outcome_free(&o);
    }
}

Test(endings, signals_end_other_commands_too, .timeout = 200) {
    static const char *const lines[] = {
        "perplexity -m " TINY " -f " TALES " -c 128",
        "bench -m " TINY " -p 256 -n 256 -r 1000",
        "run -m " TINY " -f /dev/zero",
        "tokenize -m " TINY " -f /dev/zero",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        for (int s = 0; s < 2; s++) {
            how h = {.signal = s ? SIGTERM : SIGINT, .signal_ms = 300, .seconds = 20};
            outcome o = sheaf_how(&h, "%s", lines[i]);
            expect_code(o, s ? 143 : 130);
            outcome_free(&o);
        }
    }
}

/* A closed terminal, too, ends in order; under nohup it ends nothing. */
Test(endings, hangup_and_quit_are_ends, .timeout = 60) {
    static const int signals[] = {SIGHUP, SIGQUIT};
    for (int i = 0; i < 2; i++) {
        how h = {.signal = signals[i], .signal_ms = 300, .seconds = 20};
        outcome o = sheaf_how(&h, "bench -m " TINY " -p 256 -n 256 -r 1000");
        expect_code(o, 128 + signals[i]);
        outcome_free(&o);
    }
}

Test(endings, a_second_interrupt_does_not_wait, .timeout = 60) {
    running r = sheaf_start(NULL, LONG);
    usleep(500000);
    kill(r.pid, SIGINT);
    kill(r.pid, SIGINT);
    outcome o = sheaf_finish(&r, 10);
    expect_code(o, 130);
    outcome_free(&o);
}

Test(endings, no_program_is_left_behind, .timeout = 60) {
    running r = sheaf_start(NULL, LONG " --devices cpu/2");
    usleep(400000);
    kill(r.pid, SIGTERM);
    outcome o = sheaf_finish(&r, 10);
    expect_code(o, 143);
    cr_assert(kill(r.pid, 0) != 0, "the process is still there");
    outcome_free(&o);
}

/* --- standard output --- */

static const char *const writers[] = {
    "run -m " TINY " -p Once -n 8 --temp 0 -q",
    "run -m " TINY " -p Once -n 8 --temp 0 -q --json",
    "devices",
    "devices --json",
    "split -m " TINY " --devices cpu/2",
    "split -m " TINY " --devices cpu/2 --json",
    "split --print-table --arch llama",
    "graph -m " TINY " --devices cpu/2",
    "graph -m " TINY " --devices cpu/2 --json",
    "bench -m " TINY " -p 8 -n 2 -r 1",
    "perplexity -m " TINY " -f " TALES " -c 64 --chunks 1 -q",
    "tokenize -m " TINY " -f " TALES,
    "tokenize -m " TINY " -p x",
    "inspect " TINY,
    "inspect " TINY " --json",
    "--help",
    "run --help",
    "--help-env",
    "--version",
};
enum { N_WRITERS = sizeof writers / sizeof *writers };

Test(endings, a_full_disk_is_a_missing_resource, .timeout = 200) {
    if (access("/dev/full", W_OK)) skip_test("there is no /dev/full");
    for (int i = 0; i < N_WRITERS; i++) {
        how h = {.out_path = "/dev/full"};
        outcome o = sheaf_how(&h, "%s", writers[i]);
        expect_code(o, 4);
        expect_error_line(&o);
        expect_says(o, "standard output");
        outcome_free(&o);
    }
}

Test(endings, a_reader_that_is_gone_is_an_error_not_a_death, .timeout = 200) {
    for (int i = 0; i < N_WRITERS; i++) {
        how h = {.gone = true};
        outcome o = sheaf_how(&h, "%s", writers[i]);
        cr_assert(o.code == 3 || o.code == 4, "sheaf %s: exit %d: %s", o.line, o.code, o.err);
        expect_error_line(&o);
        expect_says(o, "standard output");
        outcome_free(&o);
    }
}

Test(endings, a_closed_standard_output_is_an_error, .timeout = 200) {
    for (int i = 0; i < N_WRITERS; i++) {
        how h = {.no_out = true};
        outcome o = sheaf_how(&h, "%s", writers[i]);
        cr_assert(o.code == 3 || o.code == 4, "sheaf %s: exit %d: %s", o.line, o.code, o.err);
        expect_says(o, "standard output");
        outcome_free(&o);
    }
}

/* With descriptor 1 free, the next file opened would get it, and results would go into that file. */
Test(endings, a_closed_standard_output_spoils_no_file, .timeout = 60) {
    char *folder = make_folder(), a[600], b[600];
    snprintf(a, sizeof a, "%s/with", folder);
    snprintf(b, sizeof b, "%s/without", folder);
    how h = {.no_out = true};
    outcome with = sheaf("perplexity -m %s -f %s -c 64 --chunks 1 -q --kl-divergence-base %s", TINY, TALES, a),
            without =
                sheaf_how(&h, "perplexity -m %s -f %s -c 64 --chunks 1 -q --kl-divergence-base %s", TINY, TALES, b);
    expect_code(with, 0);
    cr_assert(without.code == 3 || without.code == 4, "exit %d: %s", without.code, without.err);
    size_t n = 0, m = 0;
    char *x = read_file(a, &n), *y = exists(b) ? read_file(b, &m) : NULL;
    cr_assert(!y || (n == m && !memcmp(x, y, n)), "the logits file has %zu bytes, expected %zu", m, n);
    free(x);
    free(y);
    outcome_free(&with);
    outcome_free(&without);
    remove_folder(folder);
}

Test(endings, a_reader_that_leaves_in_the_middle_ends_the_run, .timeout = 60) {
    how h = {.leave_after_first = true, .seconds = 30};
    outcome o = sheaf_how(&h, LONG);
    cr_assert(!o.timed_out && (o.code == 3 || o.code == 4), "exit %d after %.1f s: %s", o.code, o.seconds, o.err);
    expect_error_line(&o);
    outcome_free(&o);
}
