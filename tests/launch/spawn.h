/* Runs the built `sheaf` command as a user or a script would, and keeps what came of it.
 *
 *     outcome o = sheaf("run -m %s -p 'Once upon' -n 4 --temp 0", TINY);
 *     expect_code(o, 0);
 *     expect_has(o, o.out, "the King");
 *     outcome_free(&o);
 *
 * A command line is a printf format; the result is cut at blanks, 'quotes' hold blanks together and ''
 * is an empty word. Standard input is empty unless a `how` says otherwise, and every run has a time
 * limit: a run that passes it is killed and fails the test that looks at it. */
#ifndef SHEAF_TESTS_LAUNCH_SPAWN_H
#define SHEAF_TESTS_LAUNCH_SPAWN_H

#include "tests/support/expect.h"
#include "tests/support/support.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "tests/support/sanitized.h"

#define TINY  SHEAF_SOURCE_DIR "/models/tiny/sheaf-tiny-q8_0.gguf"
#define TALES SHEAF_SOURCE_DIR "/models/tiny/household-tales.txt"

enum { MAX_LIMITS = 4, MAX_ENV = 8 };

typedef struct how {
    const char *env[MAX_ENV]; /* "NAME=VALUE", ended by NULL */
    const void *in;           /* standard input; NULL: empty */
    size_t in_n;
    const char *out_path;   /* standard output goes to this file instead of into the outcome */
    bool no_out;            /* descriptor 1 is closed */
    bool gone;              /* the reader of standard output is gone from the start */
    bool leave_after_first; /* the reader of standard output goes once it has read something */
    int signal;             /* sent once standard output has said something, or after signal_ms; 0: none */
    int signal_ms;          /* 0: wait for standard output */
    int seconds;            /* 0: 60 */
    int ranks;              /* so many processes, by mpirun; skips the test where there is none. 0: one, by itself */
    int n_limits;
    struct {
        int resource;
        rlim_t value;
    } limits[MAX_LIMITS];
} how;

typedef struct outcome {
    char line[1024]; /* the command line, for messages */
    int code;        /* exit code; 1000 + the signal that killed it */
    bool timed_out;
    char *out, *err; /* with a NUL behind */
    size_t out_n, err_n;
    double seconds;
} outcome;

outcome sheaf(const char *format, ...) __attribute__((format(printf, 1, 2)));
outcome sheaf_how(const how *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
void outcome_free(outcome *o);

/* A run that another thread of the test goes on beside: start, then finish. Only `env`, `limits` and
 * `out_path` of `h` count; standard output and error are kept in files. */
typedef struct running {
    pid_t pid;
    int out, err;
    char line[1024];
} running;
running sheaf_start(const how *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
outcome sheaf_finish(running *r, int seconds);

/* A command on a terminal of its own (a pty, 80 columns): what is typed, what is shown. */
typedef struct terminal {
    pid_t pid;
    int fd;
    char line[1024];
    char *shown; /* everything so far, with a NUL behind */
    size_t n, cap;
} terminal;
/* `env` of `h` counts, if not NULL. */
terminal terminal_open_how(const how *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
terminal terminal_open(const char *format, ...) __attribute__((format(printf, 1, 2)));
void terminal_type(terminal *t, const char *text);
/* Reads until `text` was shown after position `from`, at most `seconds`; false if it never was. */
bool terminal_wait(terminal *t, size_t from, const char *text, int seconds);
/* Reads until `n` bytes were shown in all; false if they never were. */
bool terminal_grow(terminal *t, size_t n, int seconds);
/* Reads until nothing new came for `ms`. */
void terminal_settle(terminal *t, int ms);
/* Waits for the end; exit code as in outcome, or -1 if it did not end in time (then it is killed). */
int terminal_close(terminal *t, int seconds);

/* --- what is asked of an outcome --- */

#define expect_code(o, wanted)                                                                                         \
    cr_assert(!(o).timed_out && (o).code == (wanted), "sheaf %s: exit %d%s, expected %d\nstderr: %.1500s", (o).line,   \
              (o).code, (o).timed_out ? " (time is up)" : "", (wanted), (o).err)
#define expect_has(o, text, part)                                                                                      \
    cr_assert(strstr((text), (part)) != NULL, "sheaf %s: expected \"%s\" in \"%.1500s\"", (o).line, (part), (text))
#define expect_has_not(o, text, part)                                                                                  \
    cr_assert(strstr((text), (part)) == NULL, "sheaf %s: unexpected \"%s\" in \"%.1500s\"", (o).line, (part), (text))

/* Exit code `code`, nothing on stdout, and on stderr, after any warnings and notes, exactly one line
 * "sheaf: doing: to what: what is wrong", then at most one "hint:". No control characters in them. */
void expect_refusal(const outcome *o, int code);
/* The same without the claim on stdout. */
void expect_error_line(const outcome *o);
/* The error must say `part`, and with `hint` the hint must say that. */
#define expect_says(o, part) expect_has(o, (o).err, part)

/* Exit 0 and one JSON document on stdout, nothing else; free by cJSON_Delete. */
cJSON *expect_json(const outcome *o);
/* The key (of an object) must be there and of `type` (cJSON_Number, ...); cJSON_Invalid: any. */
const cJSON *expect_key(const outcome *o, const cJSON *object, const char *key, int type);

/* --- files --- */

void write_file(const char *path, const void *bytes, size_t n);
/* The tiny model with a chat template (written before its other keys). */
void write_chat_model(const char *path);
/* The same of any model. */
void add_chat_template(const char *from, const char *path);
bool exists(const char *path);
/* Entries of a folder, "." and ".." aside. */
int count_entries(const char *path);

#endif
