/* `--prompt-cache FILE`: a context's state with its tokens as the note, so that a prompt which begins with them runs
 * only what is new. The file does not say on how many devices it was made. */
#include <string.h>

#include "launch/generate.h"

static sheaf_status check_tokens(const generator *g, const int32_t *ids, size_t bytes) {
    size_t n = bytes / sizeof *ids;
    int32_t n_vocab = sheaf_model_hparams(g->s->model)->n_vocab, held = sheaf_kv_used(g->s->context, 0);
    sheaf_status s = SHEAF_OK;
    if (bytes % sizeof *ids || n != (size_t)held)
        s = sheaf_fail(SHEAF_E_FORMAT, "%zu bytes of tokens, the cache holds %d tokens", bytes, held);
    for (size_t i = 0; i < n && !s; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            s = sheaf_fail(SHEAF_E_FORMAT, "token %zu: id %d of %d", i, ids[i], n_vocab);
    return s;
}

sheaf_status prompt_cache_open(generator *g) {
    void *note = NULL;
    size_t bytes = 0;
    if (!g->o->prompt_cache) return SHEAF_OK;
    sheaf_status s = sheaf_state_restore(g->s->context, g->o->prompt_cache, &note, &bytes);
    if (s == SHEAF_E_NOT_FOUND) {
        sheaf_error_clear();
        return SHEAF_OK; /* the first run makes it */
    }
    if (!s) s = check_tokens(g, note, bytes);
    if (!s) s = sheaf_ids_append(&g->cached, note, bytes / sizeof(int32_t));
    sheaf_free(note);
    if (!s) return SHEAF_OK;
    s = sheaf_error_context(s, "--prompt-cache %s", g->o->prompt_cache);
    return sheaf_error_hint(s, "another name, or removing the file, starts a new one");
}

sheaf_status prompt_cache_save(const generator *g) {
    if (!g->o->prompt_cache || g->o->prompt_cache_ro) return SHEAF_OK;
    sheaf_status s =
        sheaf_state_save(g->s->context, g->o->prompt_cache, g->cached.v, g->cached.n * sizeof *g->cached.v);
    return s ? sheaf_error_context(s, "--prompt-cache") : SHEAF_OK;
}
