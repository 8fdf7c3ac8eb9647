/* See spawn.h. Programs are started by fork and exec, because limits must be set in the child. */
#include "tests/launch/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORDS = 128, LINE_MAX_BYTES = 1 << 16 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- command lines --- */

typedef struct words {
    char text[LINE_MAX_BYTES];
    char *argv[MAX_WORDS + 2];
} words;

/* Cuts w->text in place. */
static void cut_words(words *w) {
    int n = 0;
    char *in = w->text, *out = w->text;
    w->argv[n++] = (char[]){"sheaf"};
    for (;;) {
        while (*in == ' ') in++;
        if (!*in) break;
        cr_assert(n <= MAX_WORDS, "a test's command line has too many words");
        char *word = out;
        bool quoted = false;
        while (*in && (quoted || *in != ' ')) {
            if (*in == '\'') {
                quoted = !quoted;
                in++;
            } else {
                *out++ = *in++;
            }
        }
        bool more = *in != 0;
        *out++ = 0;
        in += more;
        w->argv[n++] = word;
    }
    w->argv[n] = NULL;
}

static words *make_words(const char *format, va_list args, char *line, size_t line_max) {
    words *w = malloc(sizeof *w);
    cr_assert(w != NULL, "out of memory");
    int n = vsnprintf(w->text, sizeof w->text - 1, format, args);
    cr_assert(n >= 0 && (size_t)n < sizeof w->text - 1, "a test's command line is too long");
    snprintf(line, line_max, "%.1000s", w->text);
    cut_words(w);
    return w;
}

/* --- the child --- */

static void child_fail(const char *what) {
    fprintf(stderr, "child: %s: %s\n", what, strerror(errno));
    _exit(127);
}

static void become_ranks(int ranks, char **argv) {
    char number[16];
    char *line[MAX_WORDS + 12] = {SHEAF_MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                                  number,        SHEAF_COMMAND};
    snprintf(number, sizeof number, "%d", ranks);
    for (int n = 8, i = 1; argv[i]; i++) line[n++] = argv[i];
    execv(SHEAF_MPIEXEC, line);
    child_fail(SHEAF_MPIEXEC);
}

static void become_sheaf(const how *h, char **argv) {
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; h && i < MAX_ENV && h->env[i]; i++) {
        char *copy = strdup(h->env[i]);
        if (!copy || putenv(copy)) child_fail("putenv");
    }
    for (int i = 0; h && i < h->n_limits; i++) {
        struct rlimit r = {h->limits[i].value, h->limits[i].value};
        if (setrlimit((__rlimit_resource_t)h->limits[i].resource, &r)) child_fail("setrlimit");
    }
    for (int fd = 3; fd < 256; fd++) close(fd);
    if (h && h->ranks) become_ranks(h->ranks, argv);
    execv(SHEAF_COMMAND, argv);
    child_fail(SHEAF_COMMAND);
}

static void use(int from, int to) {
    if (dup2(from, to) < 0) child_fail("dup2");
}

/* --- running to the end --- */

typedef struct pipes {
    int in, out, err; /* our ends; -1: none */
    const char *in_text;
    size_t in_left;
} pipes;

static void make_pipe(int p[2]) { cr_assert(pipe2(p, O_CLOEXEC) == 0, "pipe: %s", strerror(errno)); }

static pid_t start_piped(const how *h, char **argv, pipes *p) {
    int in[2], out[2], err[2];
    make_pipe(in);
    make_pipe(out);
    make_pipe(err);
    int file = h && h->out_path ? open(h->out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    cr_assert(!(h && h->out_path) || file >= 0, "%s: %s", h ? h->out_path : "", strerror(errno));
    if (h && h->gone) {
        close(out[0]);
        out[0] = -1;
    }
    fflush(NULL);
    pid_t pid = fork();
    cr_assert(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        use(in[0], 0);
        use(file >= 0 ? file : out[1], 1);
        use(err[1], 2);
        if (h && h->no_out) close(1);
        become_sheaf(h, argv);
    }
    if (file >= 0) close(file);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    *p = (pipes){in[1], out[0], err[0], h && h->in ? h->in : "", h && h->in ? h->in_n : 0};
    fcntl(p->in, F_SETFL, O_NONBLOCK);
    return pid;
}

/* Appends what `fd` has; closes and clears it at its end. */
static void take_bytes(int *fd, char **text, size_t *n) {
    char bite[65536];
    ssize_t got = read(*fd, bite, sizeof bite);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
        close(*fd);
        *fd = -1;
        return;
    }
    char *grown = realloc(*text, *n + (size_t)got + 1);
    cr_assert(grown != NULL, "out of memory");
    memcpy(grown + *n, bite, (size_t)got);
    *n += (size_t)got;
    grown[*n] = 0;
    *text = grown;
}

static void give_bytes(pipes *p) {
    ssize_t put = p->in_left ? write(p->in, p->in_text, p->in_left) : 0;
    if (put > 0) {
        p->in_text += put;
        p->in_left -= (size_t)put;
    }
    bool broken = put < 0 && errno != EAGAIN && errno != EINTR;
    if (!p->in_left || broken) {
        close(p->in);
        p->in = -1;
    }
}

static int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status); }

static void maybe_signal(const how *h, pid_t pid, const outcome *o, double start, bool *sent) {
    if (!h || !h->signal || *sent) return;
    bool due = h->signal_ms ? now_s() - start >= h->signal_ms * 1e-3 : o->out_n > 0;
    if (!due) return;
    kill(pid, h->signal);
    *sent = true;
}

static void watch(const how *h, pid_t pid, pipes *p, outcome *o) {
    double start = now_s(), limit = h && h->seconds ? h->seconds : 60;
    bool sent = false;
    while (p->out >= 0 || p->err >= 0) {
        struct pollfd f[3] = {{p->in, POLLOUT, 0}, {p->out, POLLIN, 0}, {p->err, POLLIN, 0}};
        if (now_s() - start > limit && !o->timed_out) {
            kill(pid, SIGKILL);
            o->timed_out = true;
        }
        if (poll(f, 3, 10) < 0) continue;
        if (f[0].revents) give_bytes(p);
        if (f[1].revents) take_bytes(&p->out, &o->out, &o->out_n);
        if (f[2].revents) take_bytes(&p->err, &o->err, &o->err_n);
        if (h && h->leave_after_first && o->out_n && p->out >= 0) {
            close(p->out);
            p->out = -1;
        }
        maybe_signal(h, pid, o, start, &sent);
    }
    o->seconds = now_s() - start;
}

static void empty_outcome(outcome *o) {
    o->out = calloc(1, 1);
    o->err = calloc(1, 1);
    cr_assert(o->out && o->err, "out of memory");
}

static outcome run_words(const how *h, words *w, const char *line) {
    if (h && h->ranks && !*SHEAF_MPIEXEC) skip_test("there is no mpirun");
    outcome o = {0};
    pipes p;
    int status = 0;
    signal(SIGPIPE, SIG_IGN);
    snprintf(o.line, sizeof o.line, "%s", line);
    empty_outcome(&o);
    pid_t pid = start_piped(h, w->argv, &p);
    watch(h, pid, &p, &o);
    if (p.in >= 0) close(p.in);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    o.code = code_of(status);
    free(w);
    return o;
}

outcome sheaf(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    words *w = make_words(format, args, line, sizeof line);
    va_end(args);
    return run_words(NULL, w, line);
}

outcome sheaf_how(const how *h, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    words *w = make_words(format, args, line, sizeof line);
    va_end(args);
    return run_words(h, w, line);
}

void outcome_free(outcome *o) {
    free(o->out);
    free(o->err);
    o->out = o->err = NULL;
}

/* --- running beside --- */

static int scratch_file(void) {
    FILE *f = tmpfile();
    cr_assert(f != NULL, "tmpfile: %s", strerror(errno));
    int fd = dup(fileno(f));
    fclose(f);
    cr_assert(fd >= 0, "dup: %s", strerror(errno));
    return fd;
}

running sheaf_start(const how *h, const char *format, ...) {
    running r = {.out = scratch_file(), .err = scratch_file()};
    va_list args;
    va_start(args, format);
    words *w = make_words(format, args, r.line, sizeof r.line);
    va_end(args);
    fflush(NULL);
    r.pid = fork();
    cr_assert(r.pid >= 0, "fork: %s", strerror(errno));
    if (r.pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        if (null < 0) child_fail("/dev/null");
        use(null, 0);
        use(r.out, 1);
        use(r.err, 2);
        become_sheaf(h, w->argv);
    }
    free(w);
    return r;
}

static void slurp(int fd, char **text, size_t *n) {
    lseek(fd, 0, SEEK_SET);
    int copy = fd;
    while (copy >= 0) take_bytes(&copy, text, n);
}

outcome sheaf_finish(running *r, int seconds) {
    outcome o = {0};
    int status = 0;
    double end = now_s() + seconds;
    snprintf(o.line, sizeof o.line, "%s", r->line);
    empty_outcome(&o);
    while (waitpid(r->pid, &status, WNOHANG) == 0) {
        if (now_s() > end && !o.timed_out) {
            kill(r->pid, SIGKILL);
            o.timed_out = true;
        }
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    o.code = code_of(status);
    slurp(r->out, &o.out, &o.out_n);
    slurp(r->err, &o.err, &o.err_n);
    return o;
}

/* --- terminals --- */

static terminal open_terminal(const how *given, words *w) {
    terminal t = {0};
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    how h = given ? *given : (how){0};
    int n = 0;
    while (h.env[n]) n++;
    h.env[n] = "TERM=xterm";
    fflush(NULL);
    t.pid = forkpty(&t.fd, NULL, NULL, &size);
    cr_assert(t.pid >= 0, "forkpty: %s", strerror(errno));
    if (t.pid == 0) become_sheaf(&h, w->argv);
    free(w);
    t.shown = calloc(1, 1);
    return t;
}

terminal terminal_open(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    words *w = make_words(format, args, line, sizeof line);
    va_end(args);
    terminal t = open_terminal(NULL, w);
    memcpy(t.line, line, sizeof t.line);
    return t;
}

terminal terminal_open_how(const how *h, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    words *w = make_words(format, args, line, sizeof line);
    va_end(args);
    terminal t = open_terminal(h, w);
    memcpy(t.line, line, sizeof t.line);
    return t;
}

void terminal_type(terminal *t, const char *text) {
    cr_assert(write(t->fd, text, strlen(text)) == (ssize_t)strlen(text), "typing: %s", strerror(errno));
}

/* Takes what is there within `ms`; false when nothing came or the terminal is gone. */
static bool terminal_read(terminal *t, int ms) {
    struct pollfd f = {t->fd, POLLIN, 0};
    char bite[4096];
    if (t->fd < 0 || poll(&f, 1, ms) <= 0) return false;
    ssize_t got = read(t->fd, bite, sizeof bite);
    if (got <= 0) { /* EIO: the other side has closed */
        close(t->fd);
        t->fd = -1;
        return false;
    }
    char *grown = realloc(t->shown, t->n + (size_t)got + 1);
    cr_assert(grown != NULL, "out of memory");
    memcpy(grown + t->n, bite, (size_t)got);
    t->shown = grown;
    t->n += (size_t)got;
    t->shown[t->n] = 0;
    return true;
}

bool terminal_wait(terminal *t, size_t from, const char *text, int seconds) {
    double end = now_s() + seconds;
    while (t->n < from || !strstr(t->shown + from, text)) {
        if (now_s() > end || t->fd < 0) return false;
        terminal_read(t, 50);
    }
    return true;
}

bool terminal_grow(terminal *t, size_t n, int seconds) {
    double end = now_s() + seconds;
    while (t->n < n && t->fd >= 0 && now_s() < end) terminal_read(t, 50);
    return t->n >= n;
}

void terminal_settle(terminal *t, int ms) {
    while (terminal_read(t, ms)) {}
}

int terminal_close(terminal *t, int seconds) {
    int status = 0;
    double end = now_s() + seconds;
    for (;;) {
        terminal_read(t, 20);
        pid_t done = waitpid(t->pid, &status, WNOHANG);
        if (done == t->pid) break;
        if (now_s() < end) continue;
        kill(t->pid, SIGKILL);
        waitpid(t->pid, &status, 0);
        if (t->fd >= 0) close(t->fd);
        return -1;
    }
    terminal_settle(t, 50);
    if (t->fd >= 0) close(t->fd);
    return code_of(status);
}

/* --- what is asked of an outcome --- */

static bool starts(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

/* "a: b: c" with no empty part. */
static bool has_parts(const char *s, size_t n, int least) {
    int parts = 1;
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == ':' && s[i + 1] == ' ') parts++;
    return parts >= least && n > 0 && s[n - 1] != ' ' && s[n - 1] != ':';
}

void expect_error_line(const outcome *o) {
    int errors = 0, hints = 0, after = 0;
    for (const char *p = o->err; *p;) {
        size_t n = strcspn(p, "\n");
        for (size_t i = 0; i < n; i++)
            cr_assert((unsigned char)p[i] >= ' ' && p[i] != 0x7f, "sheaf %s: control character %d in \"%.*s\"", o->line,
                      p[i], (int)n, p);
        if (starts(p, "sheaf: warning: ") || starts(p, "sheaf: note: ")) {
            after += errors;
        } else if (starts(p, "sheaf: ")) {
            errors++;
            cr_assert(has_parts(p + 7, n - 7, 3), "sheaf %s: \"%.*s\" is not \"doing: to what: what is wrong\"",
                      o->line, (int)n, p);
        } else if (starts(p, "hint: ")) {
            hints++;
            cr_assert(errors == 1, "sheaf %s: a hint before its error: %s", o->line, o->err);
        } else {
            after++;
        }
        p += n + (p[n] == '\n');
    }
    cr_assert(errors == 1 && hints <= 1 && after == 0,
              "sheaf %s: expected one error line and at most one hint, got:\n%.1500s", o->line, o->err);
}

void expect_refusal(const outcome *o, int code) {
    expect_code(*o, code);
    cr_assert(o->out_n == 0, "sheaf %s: failed with %d but wrote \"%.200s\" to standard output", o->line, code, o->out);
    expect_error_line(o);
}

cJSON *expect_json(const outcome *o) {
    const char *end = NULL;
    expect_code(*o, 0);
    cJSON *j = cJSON_ParseWithOpts(o->out, &end, 0);
    cr_assert(j != NULL, "sheaf %s: no JSON: \"%.300s\"", o->line, o->out);
    cr_assert(strcmp(end, "\n") == 0, "sheaf %s: behind the document: \"%.300s\"", o->line, end);
    return j;
}

const cJSON *expect_key(const outcome *o, const cJSON *object, const char *key, int type) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    cr_assert(v != NULL, "sheaf %s: key \"%s\" is missing in \"%.600s\"", o->line, key, o->out);
    cr_assert(!type || (v->type & type), "sheaf %s: \"%s\" has type %d, expected %d", o->line, key, v->type, type);
    return v;
}

/* --- files --- */

void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL, "%s: %s", path, strerror(errno));
    bool ok = fwrite(bytes, 1, n, f) == n;
    cr_assert(fclose(f) == 0 && ok, "%s: %s", path, strerror(errno));
}

static void put(unsigned char **p, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) *(*p)++ = (unsigned char)(v >> (8 * i));
}

/* A string key right behind the header. Its bytes are a multiple of the alignment, so all offsets, which
 * count from the start of the data, stay true. */
void add_chat_template(const char *from, const char *path) {
    static const char key[] = "tokenizer.chat_template";
    static const char body[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                               "{% if add_generation_prompt %}assistant:{% endif %}";
    size_t n, key_n = sizeof key - 1, fixed = 8 + key_n + 4 + 8, pad = 32 - (fixed + sizeof body - 1) % 32;
    unsigned char extra[512], *p = extra;
    char *model = read_file(from, &n);
    put(&p, key_n, 8);
    memcpy(p, key, key_n);
    p += key_n;
    put(&p, 8, 4); /* a string */
    put(&p, sizeof body - 1 + pad, 8);
    memset(p, ' ', pad); /* blanks at the start are text: a harmless one */
    memcpy(p + pad, body, sizeof body - 1);
    p += pad + sizeof body - 1;
    uint64_t keys;
    memcpy(&keys, model + 16, 8);
    keys++;
    memcpy(model + 16, &keys, 8);
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL, "%s: %s", path, strerror(errno));
    bool ok = fwrite(model, 1, 24, f) == 24 && fwrite(extra, 1, (size_t)(p - extra), f) == (size_t)(p - extra) &&
              fwrite(model + 24, 1, n - 24, f) == n - 24;
    cr_assert(fclose(f) == 0 && ok, "%s: %s", path, strerror(errno));
    free(model);
}

void write_chat_model(const char *path) { add_chat_template(TINY, path); }

bool exists(const char *path) { return access(path, F_OK) == 0; }

int count_entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    cr_assert(d != NULL, "%s: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}
