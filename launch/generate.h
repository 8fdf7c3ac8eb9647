/* Prompt in, reply out: what `run` and its chat share. */
#ifndef SHEAF_LAUNCH_GENERATE_H
#define SHEAF_LAUNCH_GENERATE_H

#include "launch/launch.h"

/* One stream of text over one context: what is in the cache, how tokens are drawn, where text goes. */
typedef struct generator {
    session *s;
    const options *o;
    const sheaf_tokenizer *tok;
    sheaf_sampler *sampler;
    sheaf_stops *stops;
    sheaf_stream stream;
    sheaf_ids cached; /* ids whose KV is in the context, in order */
    bool best;        /* tokens are drawn from the best logits alone */
    bool print;       /* text goes to stdout as it comes */
    char *text;       /* the reply so far, whole characters */
    size_t text_n, text_cap;
    sheaf_ids reply;  /* ids drawn */
    const char *stop; /* "eos", "length", "stop", "interrupt"; NULL: nothing has run yet */
    bool full;        /* "length", because the context is full */
    uint64_t logits_hash;
    /* times, of the last prompt and reply */
    int prompt_n, prompt_run; /* tokens of the prompt; those that were not cached already */
    double prompt_ms, reply_ms;
    int64_t steady_calls; /* malloc-family calls in tokens that reused their graph */
    int steady_tokens;
    uint64_t steady_logits_bytes;
    double steady_ms, steady_device_ms;
    struct dump *dump;
    char scratch[4096];
} generator;

/* --dump-tensors: *out is NULL where it was not asked for. After dump_close the context runs as before. */
typedef struct dump dump;
sheaf_status dump_open(const options *o, sheaf_context *c, dump **out);
void dump_close(dump *d, sheaf_context *c);

/* --prompt-cache FILE (prompt_cache.c): what it holds is where the context starts; nothing where there is no file yet.
 * A file that does not fit the model or the context is an error. Saving replaces it, unless it is not to be written. */
sheaf_status prompt_cache_open(generator *g);
sheaf_status prompt_cache_save(const generator *g);

sheaf_status generator_open(generator *g, session *s, const options *o);
void generator_close(generator *g);
/* Runs the prompt (only what the cache does not hold already), then draws until something ends the reply. Leaves all
 * counters in *g. Ctrl-C ends the reply with "interrupt". */
sheaf_status generate(generator *g, const sheaf_ids *prompt);

/* The conversation as the model's template writes it. SHEAF_E_NOT_FOUND if the file has none. */
sheaf_status render_chat(const session *s, const sheaf_message *m, size_t n, sheaf_ids *out);

void report(const generator *g, FILE *out);                                       /* closing report, a person's */
sheaf_status report_json(const generator *g, const sheaf_ids *prompt, bool line); /* stdout */

sheaf_status chat(session *s, const options *o);

#endif
