/* `sheaf run -i`: a conversation. Lines are edited by libedit on a terminal and read plainly elsewhere. Ctrl-C ends
 * the reply, at the prompt it clears the line; Ctrl-D or /exit ends. Under mpirun the terminal is mpirun's, so the
 * prompt is shown there too, but lines are not edited and Ctrl-C ends the whole job. The whole conversation is rendered
 * anew each turn, so what the model sees is exactly its template's text; what the cache already holds is not run again.
 */
#include <editline/readline.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "launch/generate.h"

typedef struct conversation {
    sheaf_message *m; /* roles are constants, contents are owned */
    size_t n, cap;
} conversation;

static sheaf_status say(conversation *c, const char *role, const char *text, size_t n) {
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        sheaf_message *grown = sheaf_realloc(c->m, cap * sizeof *grown);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "chat: %zu messages", cap);
        c->m = grown;
        c->cap = cap;
    }
    char *own = sheaf_malloc(n + 1);
    if (!own) return sheaf_fail(SHEAF_E_NO_MEMORY, "chat: a message of %zu bytes", n);
    memcpy(own, text, n);
    own[n] = 0;
    c->m[c->n++] = (sheaf_message){{role, strlen(role)}, {own, n}};
    return SHEAF_OK;
}

static void forget(conversation *c, size_t keep) {
    while (c->n > keep) {
        void *own; /* ours since say(), although a message only looks at it */
        memcpy(&own, &c->m[--c->n].content.s, sizeof own);
        sheaf_free(own);
    }
}

/* Ctrl-D during a reply: the terminal holds an end of input and no text before it. The line editor, which takes the
 * terminal over, would lose it. */
static bool end_is_waiting(void) {
    struct pollfd f = {.fd = STDIN_FILENO, .events = POLLIN};
    int text = 0;
    return poll(&f, 1, 0) == 1 && !ioctl(STDIN_FILENO, FIONREAD, &text) && text == 0;
}

static sigset_t while_waiting; /* the signals that are held while the editor waits for a key: all but Ctrl-C's */

/* One character for the line editor, or -1. Ctrl-C's signal is let in only while we wait: between a look at the flag
 * and a plain read() it would set the flag and leave the read waiting for a key. */
static int typed_char(FILE *in) {
    struct pollfd f = {.fd = fileno(in), .events = POLLIN};
    mbstate_t state = {0};
    for (;;) {
        char byte;
        wchar_t wide;
        if (interrupted) return -1;
        if (ppoll(&f, 1, NULL, &while_waiting) < 0) {
            if (errno != EINTR) return -1;
            if (!interrupted) rl_forced_update_display(); /* stopped and continued, or the window has another size */
            continue;
        }
        if (read(f.fd, &byte, 1) != 1) return -1;
        size_t n = mbrtowc(&wide, &byte, 1, &state);
        if (n == (size_t)-1) memset(&state, 0, sizeof state); /* no text: the editor has no use for it */
        if (n <= 1) return (int)wide;
    }
}

static char *edited_line(void) {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    pthread_sigmask(SIG_BLOCK, &held, &while_waiting);
    rl_getc_function = typed_char;
    char *line = readline("> ");
    pthread_sigmask(SIG_SETMASK, &while_waiting, NULL);
    return line;
}

/* The next line, malloc'd; NULL at the end. An interrupt gives an empty line. */
static char *next_line(bool terminal, bool prompted) {
    interrupted = 0;
    if (terminal) {
        if (end_is_waiting()) return NULL;
        prompt_begins();
        char *line = edited_line();
        prompt_ends();
        if (!line && interrupted) {
            interrupted = 0;
            fputc('\n', stderr);
            return strdup("");
        }
        if (line && *line) add_history(line);
        return line;
    }
    char *line = NULL;
    size_t cap = 0;
    errno = 0;
    if (prompted) fputs("> ", stderr);
    prompt_begins();
    ssize_t n = getline(&line, &cap, stdin);
    prompt_ends();
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n') line[n - 1] = 0;
    return line;
}

/* Renders the conversation, generates, keeps the reply. A failed turn leaves the conversation as it was before it. */
static sheaf_status turn(generator *g, conversation *c, const char *line) {
    sheaf_ids ids = {0};
    size_t before = c->n;
    sheaf_status s = say(c, "user", line, strlen(line));
    if (!s) s = render_chat(g->s, c->m, c->n, &ids);
    if (!s) s = generate(g, &ids);
    if (s == SHEAF_E_CANCELLED && !terminated) s = SHEAF_OK; /* Ctrl-C in the prompt: no reply */
    if (!s) s = say(c, "assistant", g->text ? g->text : "", g->text_n);
    if (s) forget(c, before);
    sheaf_ids_free(&ids);
    fputc('\n', stdout);
    fflush(stdout);
    return s;
}

/* -p, its escapes undone where -e asks for it. */
static sheaf_status first_turn(generator *g, conversation *c, const options *o) {
    char *text = sheaf_strdup(o->prompt);
    if (!text) return sheaf_fail(SHEAF_E_NO_MEMORY, "chat: prompt: out of memory");
    if (o->escape) unescape(text, strlen(text));
    sheaf_status s = turn(g, c, text);
    sheaf_free(text);
    return s;
}

static const char help[] = "/clear  forget the conversation (a system message stays)\n"
                           "/help   this text\n"
                           "/exit   end; so does Ctrl-D\n"
                           "Ctrl-C stops the reply, at the prompt it clears the line.\n";

/* A line that is for us and not for the model. *leave: it ends the chat. */
static bool obey(conversation *c, const options *o, const char *line, bool *leave) {
    *leave = !strcmp(line, "/exit") || !strcmp(line, "/quit");
    if (*leave) return true;
    if (!strcmp(line, "/help")) {
        fputs(help, stderr);
        return true;
    }
    if (strcmp(line, "/clear")) return false;
    forget(c, o->system ? 1 : 0);
    if (!o->quiet) fputs("The conversation is forgotten.\n", stderr);
    return true;
}

/* After a turn: a conversation that no longer fits is said, and the user may go on or leave. */
static sheaf_status look_at_room(const generator *g, sheaf_status s) {
    if (s == SHEAF_E_RANGE) {
        say_error("chat", s);
        return SHEAF_OK;
    }
    if (!s && g->full)
        sheaf_log(SHEAF_LOG_WARN, "the context of %d tokens is full; /clear forgets the conversation",
                  sheaf_n_ctx(g->s->context));
    return s;
}

static sheaf_status converse(generator *g, conversation *c, bool terminal) {
    const options *o = g->o;
    sheaf_status s = SHEAF_OK;
    char *line;
    bool shown = !o->quiet && (terminal || session_ranks(g->s) > 1), leave = false;
    if (shown)
        fprintf(stderr, "%s. Ctrl-C stops the reply, /clear forgets the conversation, /help, Ctrl-D or /exit ends.\n",
                sheaf_model_hparams(g->s->model)->type);
    while (!s && !leave && !terminated && (line = next_line(terminal, shown))) {
        if (*line && !obey(c, o, line, &leave)) {
            s = look_at_room(g, turn(g, c, line));
            leave = o->single_turn;
        }
        free(line);
        interrupted = 0;
    }
    return s;
}

sheaf_status chat(session *s, const options *o) {
    generator g;
    conversation c = {0};
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    sheaf_status status = generator_open(&g, s, o);
    if (!status && !sheaf_model_chat_template(s->model).s) {
        status = sheaf_fail(SHEAF_E_NOT_FOUND, "chat: %s has no chat template", o->model);
        sheaf_error_hint(status, "without -i the prompt is continued as plain text");
    }
    if (!status && o->system) status = say(&c, "system", o->system, strlen(o->system));
    g.print = true;
    chatting = 1;
    if (!status && o->prompt) status = first_turn(&g, &c, o);
    if (!status && !(o->prompt && o->single_turn)) status = converse(&g, &c, terminal);
    chatting = 0;
    if (!status && !o->quiet && g.stop) report(&g, stderr);
    forget(&c, 0);
    sheaf_free(c.m);
    generator_close(&g);
    return status;
}
