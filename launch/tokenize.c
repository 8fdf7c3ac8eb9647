/* `sheaf tokenize`: text to ids and back, with the vocabulary of a GGUF file (its weights are not read). */
#include <string.h>

#include "launch/json.h"

static sheaf_status print_ids(const options *o, const sheaf_tokenizer *t, const sheaf_ids *ids) {
    if (!o->json) {
        for (size_t i = 0; i < ids->n; i++) {
            if (!o->show) {
                printf("%d\n", ids->v[i]);
                continue;
            }
            sheaf_str p = sheaf_token_piece(t, ids->v[i], true);
            printf("%6d -> '", ids->v[i]);
            fwrite(p.s, 1, p.n, stdout);
            printf("'\n");
        }
        return SHEAF_OK;
    }
    jdoc d = j_new(true);
    for (size_t i = 0; i < ids->n; i++) {
        if (!o->show) {
            j_integer(&d, d.root, NULL, ids->v[i]);
            continue;
        }
        cJSON *row = j_object(&d, d.root, NULL);
        j_integer(&d, row, "id", ids->v[i]);
        j_text(&d, row, "piece", sheaf_token_piece(t, ids->v[i], true));
    }
    return j_print(&d, false);
}

/* The text of -p, -f or standard input, escapes undone if asked; the caller frees. */
static sheaf_status read_input(const options *o, char **text, size_t *n) {
    sheaf_status s = SHEAF_OK;
    if (o->prompt) {
        *n = strlen(o->prompt);
        *text = sheaf_strdup(o->prompt);
        if (!*text) return sheaf_fail(SHEAF_E_NO_MEMORY, "prompt: %zu bytes", *n);
    } else {
        s = read_text(o->file, text, n);
    }
    if (!s && o->escape) *n = unescape(*text, *n);
    return s ? s : check_utf8(o->prompt ? "prompt" : o->file ? o->file : "standard input", *text, *n);
}

static sheaf_status encode(const options *o, const sheaf_tokenizer *t) {
    char *text = NULL;
    size_t n = 0;
    sheaf_ids ids = {0};
    sheaf_status s = read_input(o, &text, &n);
    unsigned flags =
        (o->no_bos ? 0 : SHEAF_TOKENIZE_ADD_SPECIAL) | (o->parse_special ? SHEAF_TOKENIZE_PARSE_SPECIAL : 0);
    if (!s) s = sheaf_tokenize(t, text, n, flags, &ids);
    if (!s) s = print_ids(o, t, &ids);
    sheaf_ids_free(&ids);
    sheaf_free(text);
    return s;
}

/* "1,2,3" to text on stdout, control tokens shown. */
static sheaf_status decode(const options *o, const sheaf_tokenizer *t) {
    size_t commas = 1;
    for (const char *p = o->decode; *p; p++) commas += *p == ',';
    int *ids = sheaf_malloc(commas * sizeof *ids), n = 0;
    if (!ids || commas > INT32_MAX) {
        sheaf_free(ids);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "--decode: %zu ids", commas);
    }
    sheaf_status s = parse_int_list(o->decode, "--decode", 0, ids, (int)commas, &n);
    for (int i = 0; i < n && !s; i++)
        if (ids[i] >= sheaf_tokenizer_size(t))
            s = sheaf_fail(SHEAF_E_RANGE, "--decode: id %d: the vocabulary has %d tokens", ids[i],
                           sheaf_tokenizer_size(t));
    for (int i = 0; i < n && !s; i++) {
        sheaf_str p = sheaf_token_piece(t, ids[i], true);
        fwrite(p.s, 1, p.n, stdout);
    }
    if (!s) fputc('\n', stdout);
    sheaf_free(ids);
    return s;
}

sheaf_status cmd_tokenize(const options *o) {
    sheaf_gguf *g = NULL;
    sheaf_tokenizer *t = NULL;
    sheaf_tokenizer_options to = {.force = o->force_pretokenizer};
    if (!o->model) return sheaf_fail(SHEAF_E_ARGUMENT, "options: -m FILE: it is missing");
    sheaf_status s = sheaf_gguf_open(o->model, &g);
    if (!s) s = sheaf_tokenizer_new(g, &to, &t);
    if (s) s = sheaf_error_context(s, "loading");
    if (!s) s = o->decode ? decode(o, t) : encode(o, t);
    sheaf_tokenizer_free(t);
    sheaf_gguf_close(g);
    return s;
}
