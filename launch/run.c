/* `sheaf run`: a prompt from -p, -f or stdin; the reply to stdout; what it cost to stderr. */
#include <string.h>
#include <unistd.h>

#include "launch/generate.h"

static sheaf_status prompt_text(const options *o, char **text, size_t *n) {
    sheaf_status s;
    if (o->prompt) {
        *n = strlen(o->prompt);
        *text = sheaf_strdup(o->prompt);
        s = *text ? SHEAF_OK : sheaf_fail(SHEAF_E_NO_MEMORY, "prompt: %zu bytes", *n);
    } else {
        if (!o->file && isatty(STDIN_FILENO)) {
            s = sheaf_fail(SHEAF_E_ARGUMENT, "options: no prompt: -p TEXT, -f FILE, or a text on standard input");
            return sheaf_error_hint(s, "-i starts a chat");
        }
        s = read_text(o->file, text, n);
        /* an editor's or echo's last newline is no part of the prompt, as elsewhere */
        if (!s && *n && (*text)[*n - 1] == '\n') (*text)[--*n] = 0;
    }
    if (!s && o->escape) *n = unescape(*text, *n);
    if (!s) s = check_utf8(o->prompt ? "prompt" : o->file ? o->file : "standard input", *text, *n);
    return s;
}

/* The prompt's ids: as it is with --raw or where the file has no template, else as one user message. */
static sheaf_status prompt_ids(const session *s, const options *o, const char *text, size_t n, sheaf_ids *ids) {
    bool templated = !o->raw && sheaf_model_chat_template(s->model).s;
    if (!templated) {
        unsigned flags = SHEAF_TOKENIZE_ADD_SPECIAL | (o->parse_special ? SHEAF_TOKENIZE_PARSE_SPECIAL : 0);
        if (o->system)
            return sheaf_fail(SHEAF_E_ARGUMENT,
                              "options: -sys: it needs a chat template, and --raw or the file leaves it out");
        return sheaf_tokenize(sheaf_model_tokenizer(s->model), text, n, flags, ids);
    }
    sheaf_message m[2];
    size_t count = 0;
    if (o->system) m[count++] = (sheaf_message){{"system", 6}, {o->system, strlen(o->system)}};
    m[count++] = (sheaf_message){{"user", 4}, {text, n}};
    return render_chat(s, m, count, ids);
}

static sheaf_status reply_once(session *s, const options *o, const char *text, size_t n) {
    generator g;
    sheaf_ids ids = {0};
    sheaf_status status = generator_open(&g, s, o);
    if (!status) status = prompt_ids(s, o, text, n, &ids);
    bool machine = o->json || o->jsonl;
    g.print = !machine;
    if (!status) status = generate(&g, &ids);
    if (!status && machine) status = report_json(&g, &ids, o->jsonl);
    if (!status && !machine) {
        fputc('\n', stdout);
        fflush(stdout);
        if (!o->quiet) report(&g, stderr);
    }
    if (!status && !strcmp(g.stop, "interrupt")) status = sheaf_fail(SHEAF_E_CANCELLED, "run: interrupted");
    sheaf_ids_free(&ids);
    generator_close(&g);
    return status;
}

/* -sysf: *text is malloc'd, NULL without it; a newline at the end of the file is not part of the message. */
static sheaf_status read_system(const options *o, char **text) {
    size_t n = 0;
    *text = NULL;
    if (!o->system_file) return SHEAF_OK;
    sheaf_status s = read_text(o->system_file, text, &n);
    if (!s && strlen(*text) != n) s = sheaf_fail(SHEAF_E_FORMAT, "%s: it has a zero byte", o->system_file);
    if (!s) s = check_utf8(o->system_file, *text, n);
    if (!s && n && (*text)[n - 1] == '\n') (*text)[n - 1] = 0;
    return s;
}

sheaf_status cmd_run(const options *given) {
    session s;
    options own = *given;
    const options *o = &own;
    char *text = NULL, *system = NULL;
    size_t n = 0;
    sheaf_status status = read_system(given, &system);
    if (system) own.system = system;
    if (status) {
        sheaf_free(system);
        return status;
    }
    status = session_open(&s, o, o->n_devices ? o->devices[0] : NULL, SESSION_MODEL | SESSION_CONTEXT);
    if (!status && !session_leads(&s)) {
        status = session_follow(&s);
    } else if (!status && o->interactive) {
        status = chat(&s, o);
    } else if (!status) {
        status = prompt_text(o, &text, &n);
        if (!status) status = reply_once(&s, o, text, n);
        sheaf_free(text);
    }
    session_close(&s);
    sheaf_free(system);
    return status;
}
