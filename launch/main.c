/* The entry: picks a command, prints the one error line, turns a status into an exit code. */
#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "launch/launch.h"
#include "tensor/settings.h"

volatile sig_atomic_t interrupted, terminated, at_prompt, chatting;
static struct termios cooked; /* the terminal as it was before a line is edited */
static volatile sig_atomic_t cooked_known;

enum { PATIENCE_S = 2 };

/* A second Ctrl-C, when the first was not seen yet, must not be ignored: it ends a run at once. In a chat it would
 * end the conversation with it, so there the reply is given some time to stop. */
static void on_interrupt(int sig) {
    static struct timespec first;
    struct timespec now = {0};
    (void)sig;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (interrupted && !at_prompt && (!chatting || now.tv_sec - first.tv_sec > PATIENCE_S)) _exit(130);
    if (!interrupted) first = now;
    interrupted = 1;
}
/* At the prompt there is nothing to put away, and a flag set just before the read begins would wait for a line that
 * may never come: leave at once, with the terminal as it was found. */
static void on_terminate(int sig) {
    terminated = sig;
    if (!at_prompt) return;
    if (cooked_known) (void)tcsetattr(STDIN_FILENO, TCSANOW, &cooked);
    _exit(128 + sig);
}

void prompt_begins(void) {
    cooked_known = tcgetattr(STDIN_FILENO, &cooked) == 0;
    at_prompt = 1;
    if (terminated) on_terminate(terminated); /* it came on the way here */
}

void prompt_ends(void) { at_prompt = 0; }

/* A mapped file that shrinks, or a disk that fails under it, is bad input; the load that hit it cannot go on. */
static void on_bus_error(int sig) {
    static const char line[] =
        "sheaf: reading: a mapped file: it became shorter while it was used, or its disk failed\n"
        "hint: --no-mmap reads the weights instead\n";
    (void)sig;
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    _exit(written < 0 ? 4 : 3);
}

static void install_signals(void) {
    struct sigaction a = {.sa_handler = on_interrupt};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL); /* no SA_RESTART: a read at the prompt must end */
    a.sa_handler = on_terminate;
    static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction before;
        if (sigaction(ends[i], NULL, &before) || before.sa_handler != SIG_IGN) sigaction(ends[i], &a, NULL); /* nohup */
    }
    a.sa_handler = on_bus_error;
    sigaction(SIGBUS, &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is a write error with a message, not a death */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow */
}

/* A standard stream that the caller closed must not become the next file that is opened: what is written there
 * would go into that file. It is opened the wrong way round, so that using it is an error as it should be. */
static void hold_streams(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY);
}

/* Text is UTF-8 here whatever the locale says; the line editor asks the locale. Only the character set: numbers are
 * written and read as in C. */
static void speak_utf8(void) {
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8")) (void)setlocale(LC_CTYPE, "C.UTF-8");
}

/* What needs no other process: of several ranks the first does it, and the others have nothing to add. */
static bool is_alone(const options *o) {
    return o->help || o->help_env || o->version || o->print_table || o->bench_kind ||
           !(o->bit & (CMD_MODEL | CMD_DEVICES));
}

static sheaf_status dispatch(const options *o) {
    switch (o->bit) {
    case CMD_RUN: return cmd_run(o);
    case CMD_DEVICES: return cmd_devices(o);
    case CMD_SPLIT: return cmd_split(o);
    case CMD_GRAPH: return cmd_graph(o);
    case CMD_BENCH: return cmd_bench(o);
    case CMD_PERPLEXITY: return cmd_perplexity(o);
    case CMD_TOKENIZE: return cmd_tokenize(o);
    case CMD_INSPECT: return cmd_inspect(o);
    case CMD_QUANTIZE: return cmd_quantize(o);
    default: return sheaf_fail(SHEAF_E_INTERNAL, "command %s has no code", o->command);
    }
}

static int exit_code(sheaf_status s) {
    if (terminated) return 128 + terminated;
    if (interrupted && (!s || s == SHEAF_E_CANCELLED)) return 130;
    return sheaf_status_exit_code(s);
}

static sheaf_status run(int argc, char **argv, const char **command) {
    options o;
    sheaf_status s = sheaf_settings_error();
    if (s) return sheaf_error_context(s, "settings");
    s = options_parse(argc, argv, &o);
    *command = o.command;
    if (s) return s;
    bool first_rank = sheaf_settings_launcher_rank() == 0;
    if (!first_rank && is_alone(&o)) return SHEAF_OK;
    if (o.version) {
        printf("sheaf %s\n", SHEAF_VERSION);
        return SHEAF_OK;
    }
    if (o.help_env || o.help) {
        if (o.help_env)
            options_help_env(stdout);
        else
            options_help(&o, stdout);
        return SHEAF_OK;
    }
    sheaf_log_level level = o.quiet         ? SHEAF_LOG_ERROR
                            : o.verbose > 1 ? SHEAF_LOG_DEBUG
                            : o.verbose     ? SHEAF_LOG_INFO
                                            : SHEAF_LOG_WARN;
    sheaf_log_set(NULL, NULL, level);
    if (!o.quiet && first_rank) options_notes(&o, stderr);
    return dispatch(&o);
}

int main(int argc, char **argv) {
    const char *command = NULL;
    hold_streams();
    speak_utf8();
    install_signals();
    sheaf_status s = run(argc, argv, &command);
    /* other rooms print too, and know only that it failed */
    if ((!s && fflush(stdout)) || ((!s || s == SHEAF_E_IO) && ferror(stdout))) s = stdout_failed();
    if (s && !(s == SHEAF_E_CANCELLED && (interrupted || terminated))) say_error(command, s);
    return exit_code(s);
}
