/* Chat templates as their users meet them: parse once, render many times (any thread), and learn
 * which bytes of the result the conversation wrote. The language itself is in jinja_*.c. */
#include "models/text/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sheaf_template {
    sheaf_arena *arena; /* the tree and its strings */
    jj_node *root;
};

enum { CHUNK = 1 << 16 };

sheaf_status sheaf_template_new(const char *source, size_t n, sheaf_template **out) {
    jj_token *tokens;
    size_t n_tokens;
    sheaf_template *t = sheaf_calloc(1, sizeof(*t));
    if (!t) return sheaf_fail(SHEAF_E_NO_MEMORY, "chat template");
    sheaf_status s = sheaf_arena_new(CHUNK, &t->arena);
    if (!s) s = jj_lex(t->arena, source, n, &tokens, &n_tokens);
    if (!s) s = jj_parse(t->arena, tokens, n_tokens, &t->root);
    if (s) {
        sheaf_template_free(t);
        return s;
    }
    *out = t;
    return SHEAF_OK;
}

void sheaf_template_free(sheaf_template *t) {
    if (!t) return;
    sheaf_arena_free(t->arena);
    sheaf_free(t);
}

/* --- variables --------------------------------------------------------------------------------------------- */

/* A string that came from outside: every byte marked. */
static sheaf_status input_string(jj_run *r, sheaf_str s, jj_value *out) {
    jj_buf b = {0};
    sheaf_status st = jj_put_text(r, &b, s.s, s.n);
    if (b.n) memset(b.mark, 1, b.n);
    *out = jj_string(jj_built(&b));
    return st;
}

static sheaf_status message_value(jj_run *r, const sheaf_message *m, jj_value *out) {
    jj_value role, content;
    const jj_value role_key = jj_string(jj_text("role")), content_key = jj_string(jj_text("content"));
    sheaf_status s = jj_new_dict(r, out);
    if (!s) s = input_string(r, m->role, &role);
    if (!s) s = input_string(r, m->content, &content);
    if (!s) s = jj_dict_set(r, out->u.dict, &role_key, &role);
    return s ? s : jj_dict_set(r, out->u.dict, &content_key, &content);
}

static sheaf_status set_messages(jj_run *r, const sheaf_chat *chat) {
    jj_value list;
    sheaf_status s = jj_new_list(r, &list);
    for (size_t i = 0; i < chat->n_messages && !s; i++) {
        jj_value message;
        s = message_value(r, &chat->messages[i], &message);
        if (!s) s = jj_push(r, list.u.list, &message);
    }
    return s ? s : jj_assign(r, jj_text("messages"), &list);
}

static sheaf_status set_json(jj_run *r, const sheaf_chat *chat) {
    jj_value v;
    if (!chat->json) return SHEAF_OK;
    sheaf_status s = jj_json_read(r, chat->json, chat->json_n, &v);
    if (s) return sheaf_error_context(s, "chat template variables");
    if (v.kind != JJ_DICT) return sheaf_fail(SHEAF_E_FORMAT, "chat template variables: not a JSON object");
    const jj_dict *d = v.u.dict;
    for (size_t i = 0; i < d->keys.n && !s; i++) s = jj_assign(r, d->keys.v[i].u.str, &d->values.v[i]);
    return s;
}

static sheaf_status set_variables(jj_run *r, const sheaf_chat *chat) {
    jj_value generate = jj_bool(chat->add_generation_prompt);
    jj_value bos = jj_string((jj_str){chat->bos_token.s, NULL, chat->bos_token.n});
    jj_value eos = jj_string((jj_str){chat->eos_token.s, NULL, chat->eos_token.n});
    sheaf_status s = set_messages(r, chat);
    if (!s) s = jj_assign(r, jj_text("add_generation_prompt"), &generate);
    if (!s) s = jj_assign(r, jj_text("bos_token"), &bos);
    if (!s) s = jj_assign(r, jj_text("eos_token"), &eos);
    return s ? s : set_json(r, chat);
}

/* --- the result --------------------------------------------------------------------------------------------- */

/* Runs of marked bytes: counts them, or writes them where `out` is given. */
static size_t mark_runs(const jj_buf *b, sheaf_span *out) {
    size_t n = 0;
    for (size_t i = 0; i < b->n;) {
        size_t begin = i;
        while (i < b->n && b->mark[i] == b->mark[begin]) i++;
        if (!b->mark[begin]) continue;
        if (out) out[n] = (sheaf_span){begin, i};
        n++;
    }
    return n;
}

static sheaf_status hand_over(const jj_buf *b, sheaf_rendered *out) {
    size_t n = mark_runs(b, NULL);
    out->text = sheaf_malloc(b->n + 1);
    out->input = sheaf_malloc((n + 1) * sizeof(sheaf_span));
    if (!out->text || !out->input) {
        sheaf_rendered_free(out);
        return sheaf_fail(SHEAF_E_NO_MEMORY, "rendered chat of %zu bytes", b->n);
    }
    if (b->n) memcpy(out->text, b->s, b->n);
    out->text[b->n] = 0;
    out->n = b->n;
    out->n_input = mark_runs(b, out->input);
    return SHEAF_OK;
}

sheaf_status sheaf_template_render(const sheaf_template *t, const sheaf_chat *chat, sheaf_rendered *out) {
    jj_buf text = {0};
    jj_scope globals = {0};
    jj_flow flow = JJ_NEXT;
    jj_run r = {.scope = &globals, .globals = &globals, .out = &text};
    memset(out, 0, sizeof(*out));
    r.now = chat->now ? strtoll(chat->now, NULL, 10) : (int64_t)time(NULL);
    sheaf_status s = sheaf_arena_new(CHUNK, &r.arena);
    if (s) return s;
    s = set_variables(&r, chat);
    if (!s) s = jj_block(&r, t->root, &flow);
    if (!s) s = hand_over(&text, out);
    sheaf_arena_free(r.arena);
    return s;
}

void sheaf_rendered_free(sheaf_rendered *r) {
    sheaf_free(r->text);
    sheaf_free(r->input);
    memset(r, 0, sizeof(*r));
}
