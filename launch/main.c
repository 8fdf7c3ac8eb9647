/* The entry: picks a command, prints the one error line, turns a status into an exit code. */
#include <stdlib.h>
#include <string.h>

#include "launch/launch.h"
#include "tensor/settings.h"

volatile sig_atomic_t interrupted, terminated;

static void on_interrupt(int sig) {
    (void)sig;
    /* a second Ctrl-C, when the first was not seen yet, must not be ignored */
    if (interrupted) _exit(130);
    interrupted = 1;
}
static void on_terminate(int sig) {
    (void)sig;
    terminated = 1;
}

static void install_signals(void) {
    struct sigaction a = {.sa_handler = on_interrupt};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL); /* no SA_RESTART: a read at the prompt must end */
    a.sa_handler = on_terminate;
    sigaction(SIGTERM, &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is a write error with a message, not a death */
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
    default: return sheaf_fail(SHEAF_E_INTERNAL, "command %s has no code", o->command);
    }
}

static int exit_code(sheaf_status s) {
    if (terminated) return 143;
    if (interrupted && (!s || s == SHEAF_E_CANCELLED)) return 130;
    return sheaf_status_exit_code(s);
}

static sheaf_status run(int argc, char **argv) {
    options o;
    sheaf_status s = sheaf_settings_error();
    if (!s) s = options_parse(argc, argv, &o);
    if (s) return s;
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
    return dispatch(&o);
}

int main(int argc, char **argv) {
    install_signals();
    sheaf_status s = run(argc, argv);
    if (!s && (fflush(stdout) || ferror(stdout))) s = stdout_failed();
    if (s && !(s == SHEAF_E_CANCELLED && (interrupted || terminated))) {
        fprintf(stderr, "sheaf: %s\n", *sheaf_error() ? sheaf_error() : sheaf_status_text(s));
        if (*sheaf_error_hint_text()) fprintf(stderr, "hint: %s\n", sheaf_error_hint_text());
    }
    return exit_code(s);
}
