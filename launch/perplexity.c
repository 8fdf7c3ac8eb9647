/* `sheaf perplexity`: how well a model predicts a text, and how far two runs' predictions are apart.
 *
 * The measure is llama-perplexity's, so that numbers and logits files can be exchanged: the text is cut into
 * chunks of -c tokens; the second half of each is scored; a logits file holds, for every scored position,
 * log-probabilities in 16 bits between the best and at most 16 nats below it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/json.h"
#include "tensor/gguf_output.h"

enum { PPL_CTX = 512 };
static const char magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};

/* Sums over positions, in f64. */
typedef struct scores {
    double nll, nll2;
    double kl, kl2, kl_max;
    int64_t n, n_kl, same_top;
    float *kls; /* every position's divergence, for the 99th percentile; malloc'd */
    int64_t cap;
} scores;

typedef struct work {
    const options *o;
    session s, other; /* --against */
    bool has_other;
    FILE *file; /* logits file */
    gguf_output out;
    bool whole; /* `out` gets its name when all is written */
    bool reading;
    int n_ctx, n_vocab, n_chunk;
    sheaf_ids tokens;
    uint16_t *row; /* one position of the file: 4 words of head, then the vocabulary, even length */
    size_t row_words;
    scores sc;
} work;

/* --- one row of logits ---------------------------------------------------------------------------------- */

typedef struct softmax {
    float max, min, log_sum;
    int best;
} softmax;

static softmax soften(const float *x, int n) {
    softmax s = {x[0], x[0], 0, 0};
    double sum = 0;
    for (int i = 1; i < n; i++) {
        if (x[i] > s.max) s.max = x[i], s.best = i;
        if (x[i] < s.min) s.min = x[i];
    }
    for (int i = 0; i < n; i++) sum += (double)expf(x[i] - s.max);
    s.log_sum = (float)log(sum); /* NaN if any of them is */
    return s;
}

/* Nothing that is compared with a NaN would show that it is one. */
static sheaf_status numbers_only(const softmax *s, const char *whose) {
    if (isfinite(s->log_sum)) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_FORMAT, "perplexity: %s: logits that are not numbers; the weights may be damaged", whose);
}

static void add_nll(scores *sc, const softmax *s, const float *x, int next) {
    double v = (double)s->max + (double)s->log_sum - (double)x[next];
    sc->nll += v;
    sc->nll2 += v * v;
    sc->n++;
}

static sheaf_status add_kl(scores *sc, double kl, bool same_top) {
    if (sc->n_kl == sc->cap) {
        int64_t cap = sc->cap ? sc->cap * 2 : 4096;
        float *grown = sheaf_realloc(sc->kls, (size_t)cap * sizeof *grown);
        if (!grown) return sheaf_fail(SHEAF_E_NO_MEMORY, "perplexity: %lld divergences", (long long)cap);
        sc->kls = grown;
        sc->cap = cap;
    }
    sc->kls[sc->n_kl++] = (float)kl;
    sc->kl += kl;
    sc->kl2 += kl * kl;
    sc->kl_max = fmax(sc->kl_max, kl);
    sc->same_top += same_top;
    return SHEAF_OK;
}

/* Divergence of x from the base row `b`, both in full precision. */
static sheaf_status compare_rows(scores *sc, const float *x, const softmax *s, const float *b, int n) {
    softmax base = soften(b, n);
    double kl = 0;
    sheaf_status status = numbers_only(&base, "--against");
    if (status) return status;
    for (int i = 0; i < n; i++) {
        float lb = b[i] - base.max - base.log_sum, lx = x[i] - s->max - s->log_sum;
        if (lb > -80) kl += (double)expf(lb) * (double)(lb - lx);
    }
    return add_kl(sc, kl, base.best == s->best);
}

/* --- the file's rows ---------------------------------------------------------------------------------------- */

static sheaf_status io_error(const work *w, const char *doing) {
    return sheaf_fail(ferror(w->file) ? errno_status(errno) : SHEAF_E_IO, "%s: %s: %s", doing, w->o->kl_base,
                      ferror(w->file) ? strerror(errno) : "it ends too early");
}

static sheaf_status write_row(work *w, const float *x, const softmax *s) {
    float low = fmaxf(s->min, s->max - 16), head[2] = {(s->max - low) / 65535.f, low - s->max - s->log_sum};
    float inverse = head[0] > 0 ? 1 / head[0] : 0;
    memcpy(w->row, head, sizeof head);
    for (int i = 0; i < w->n_vocab; i++) w->row[4 + i] = x[i] > low ? (uint16_t)lrintf(inverse * (x[i] - low)) : 0;
    if (fwrite(w->row, sizeof *w->row, w->row_words, w->file) != w->row_words) return io_error(w, "writing");
    return SHEAF_OK;
}

static sheaf_status compare_with_file(work *w, const float *x, const softmax *s) {
    float head[2];
    double kl = 0;
    int best = 0;
    if (fread(w->row, sizeof *w->row, w->row_words, w->file) != w->row_words) return io_error(w, "reading");
    memcpy(head, w->row, sizeof head);
    /* steps of 1/65535 of at most 16 nats, down from a log-probability, which is at most 0 (and a little rounding) */
    if (!(head[0] >= 0 && head[0] <= 1e-3f && head[1] <= 1e-3f && head[1] >= -1e6f))
        return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: a row of steps of %g down to %g", w->o->kl_base,
                          (double)head[0], (double)head[1]);
    const uint16_t *q = w->row + 4;
    for (int i = 0; i < w->n_vocab; i++) {
        float lb = head[0] * (float)q[i] + head[1];
        if (q[i] > q[best]) best = i;
        if (lb > -16.f) kl += (double)expf(lb) * (double)(lb - x[i] + s->max + s->log_sum);
    }
    return add_kl(&w->sc, kl, best == s->best);
}

/* The file to write must be none that is read: it would be gone. */
static sheaf_status not_an_input(const work *w) {
    const char *inputs[] = {w->o->model, w->o->file};
    struct stat out, in;
    if (stat(w->o->kl_base, &out) || !S_ISREG(out.st_mode)) return SHEAF_OK;
    for (int i = 0; i < 2; i++)
        if (inputs[i] && stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return sheaf_fail(SHEAF_E_ARGUMENT, "writing: %s: it is the %s too", w->o->kl_base, i ? "text" : "model");
    return SHEAF_OK;
}

/* A file that is not whole never has the name asked for; what is no plain file (a pipe) is written as it is. */
static sheaf_status create_file(work *w) {
    const char *path = w->o->kl_base;
    struct stat st;
    sheaf_status s = not_an_input(w);
    if (s) return s;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        w->file = fopen(path, "wb");
        return w->file ? SHEAF_OK : sheaf_fail(errno_status(errno), "writing: %s: %s", path, strerror(errno));
    }
    s = gguf_output_create(&w->out, path, 0);
    if (s) return s;
    w->whole = true;
    int fd = dup(w->out.fd);
    w->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (w->file) return SHEAF_OK;
    s = sheaf_fail(errno_status(errno), "writing: %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return s;
}

/* Ends the logits file: under its name if all went well, else not at all. */
static sheaf_status close_file(work *w, sheaf_status s) {
    if (w->file) {
        bool ok = !ferror(w->file) && !fflush(w->file);
        if (!w->reading && !s && !ok) s = io_error(w, "writing");
        if (fclose(w->file) && !w->reading && !s)
            s = sheaf_fail(errno_status(errno), "writing: %s: %s", w->o->kl_base, strerror(errno));
        w->file = NULL;
    }
    if (!w->whole) return s;
    w->whole = false;
    if (!s) s = gguf_output_commit(&w->out);
    if (s) gguf_output_abandon(&w->out);
    return s;
}

static sheaf_status write_header(work *w) {
    int32_t head[3] = {w->n_ctx, w->n_vocab, w->n_chunk};
    size_t n = (size_t)w->n_chunk * (size_t)w->n_ctx;
    sheaf_status s = create_file(w);
    if (s) return s;
    bool ok = fwrite(magic, 1, 8, w->file) == 8 && fwrite(head, 4, 3, w->file) == 3 &&
              fwrite(w->tokens.v, 4, n, w->file) == n;
    return ok ? SHEAF_OK : io_error(w, "writing");
}

/* A head that does not say how long the file is belongs to another file. Pipes have no length. */
static sheaf_status check_length(const work *w, int chunks) {
    struct stat st;
    if (fstat(fileno(w->file), &st) || !S_ISREG(st.st_mode)) return SHEAF_OK;
    uint64_t rows = (uint64_t)chunks * (uint64_t)(w->n_ctx - 1 - w->n_ctx / 2);
    uint64_t want = 20 + (uint64_t)chunks * (uint64_t)w->n_ctx * 4 + rows * w->row_words * sizeof *w->row;
    if ((uint64_t)st.st_size == want) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: %lld bytes, but %d chunks of %d tokens take %llu", w->o->kl_base,
                      (long long)st.st_size, chunks, w->n_ctx, (unsigned long long)want);
}

/* Reads head and tokens; everything in it is checked before it is believed. */
static sheaf_status read_header(work *w) {
    char start[8];
    int32_t head[3];
    w->file = fopen(w->o->kl_base, "rb");
    if (!w->file) return sheaf_fail(errno_status(errno), "reading: %s: %s", w->o->kl_base, strerror(errno));
    if (fread(start, 1, 8, w->file) != 8 || memcmp(start, magic, 8))
        return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: it is no logits file", w->o->kl_base);
    if (fread(head, 4, 3, w->file) != 3) return io_error(w, "reading");
    if (head[0] < 4 || head[0] > 1 << 24 || head[2] < 1 || head[2] > 1 << 24)
        return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: %d chunks of %d tokens", w->o->kl_base, head[2], head[0]);
    if (head[1] != w->n_vocab)
        return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: a vocabulary of %d, the model has %d", w->o->kl_base, head[1],
                          w->n_vocab);
    w->n_ctx = head[0];
    sheaf_status whole = check_length(w, head[2]);
    if (whole) return whole;
    w->n_chunk = w->o->chunks > 0 && w->o->chunks < head[2] ? w->o->chunks : head[2];
    for (int64_t left = (int64_t)head[2] * head[0]; left > 0;) {
        int32_t bite[1024];
        size_t n = left < 1024 ? (size_t)left : 1024;
        if (fread(bite, 4, n, w->file) != n) return io_error(w, "reading");
        for (size_t i = 0; i < n; i++)
            if (bite[i] < 0 || bite[i] >= w->n_vocab)
                return sheaf_fail(SHEAF_E_FORMAT, "reading: %s: token id %d outside the vocabulary", w->o->kl_base,
                                  bite[i]);
        sheaf_status s = sheaf_ids_append(&w->tokens, bite, n);
        if (s) return s;
        left -= (int64_t)n;
    }
    return SHEAF_OK;
}

/* --- chunks -------------------------------------------------------------------------------------------------- */

static sheaf_status score_row(work *w, const float *x, const float *base, int next) {
    softmax s = soften(x, w->n_vocab);
    sheaf_status status = numbers_only(&s, w->o->model);
    if (status) return status;
    add_nll(&w->sc, &s, x, next);
    if (base) return compare_rows(&w->sc, x, &s, base, w->n_vocab);
    if (!w->file) return SHEAF_OK;
    return w->reading ? compare_with_file(w, x, &s) : write_row(w, x, &s);
}

/* Tokens [at, at+n) of a chunk through one context; logits only of what is scored. */
static sheaf_status decode_part(sheaf_context *c, const int32_t *ids, int n, const uint8_t *want) {
    sheaf_batch b = {.n = n, .token = ids, .want = want};
    return sheaf_decode(c, &b);
}

static sheaf_status run_chunk(work *w, int chunk, int32_t *ids, uint8_t *want) {
    const sheaf_tokenizer *tok = sheaf_model_tokenizer(w->s.model);
    const int32_t *original = w->tokens.v + (size_t)chunk * (size_t)w->n_ctx;
    int first = w->n_ctx / 2, step = w->o->n_ubatch;
    memcpy(ids, original, (size_t)w->n_ctx * sizeof *ids);
    if (sheaf_tokenizer_adds_bos(tok)) ids[0] = sheaf_tokenizer_bos(tok);
    sheaf_status cleared = sheaf_kv_clear(w->s.context);
    if (!cleared && w->has_other) cleared = sheaf_kv_clear(w->other.context);
    if (cleared) return cleared;
    for (int at = 0; at < w->n_ctx; at += step) {
        int n = w->n_ctx - at < step ? w->n_ctx - at : step, row = 0;
        for (int i = 0; i < n; i++) want[i] = at + i >= first && at + i < w->n_ctx - 1;
        sheaf_status s = decode_part(w->s.context, ids + at, n, want);
        if (!s && w->has_other) s = decode_part(w->other.context, ids + at, n, want);
        for (int i = 0; i < n && !s; i++) {
            if (!want[i]) continue;
            s = score_row(w, sheaf_logits(w->s.context, row), w->has_other ? sheaf_logits(w->other.context, row) : NULL,
                          original[at + i + 1]);
            row++;
        }
        if (!s && (interrupted || terminated)) s = sheaf_fail(SHEAF_E_CANCELLED, "perplexity: interrupted");
        if (s) return s;
    }
    return SHEAF_OK;
}

static sheaf_status run_chunks(work *w) {
    int32_t *ids = sheaf_malloc((size_t)w->n_ctx * sizeof *ids);
    uint8_t *want = sheaf_malloc((size_t)w->n_ctx);
    sheaf_status s = SHEAF_OK;
    double start = now_ms();
    if (!ids || !want) s = sheaf_fail(SHEAF_E_NO_MEMORY, "perplexity: chunks of %d tokens", w->n_ctx);
    for (int i = 0; ids && want && i < w->n_chunk && !s; i++) {
        s = run_chunk(w, i, ids, want);
        if (s || w->o->quiet || !isatty(STDERR_FILENO)) continue;
        fprintf(stderr, "[%d] %.4f%s", i + 1, exp(w->sc.nll / (double)w->sc.n), i + 1 < w->n_chunk ? ", " : "\n");
        if (i == 0) fprintf(stderr, "(%.1f s a chunk) ", (now_ms() - start) / 1e3);
        fflush(stderr);
    }
    sheaf_free(ids);
    sheaf_free(want);
    return s;
}

/* --- opening, closing, telling ------------------------------------------------------------------------------------ */

static sheaf_status text_tokens(work *w) {
    char *text = NULL;
    size_t n = 0;
    if (!w->o->file) return sheaf_fail(SHEAF_E_ARGUMENT, "options: perplexity needs a text: -f FILE");
    sheaf_status s = read_text(w->o->file, &text, &n);
    if (!s) s = check_utf8(w->o->file, text, n);
    if (!s) s = sheaf_tokenize(sheaf_model_tokenizer(w->s.model), text, n, SHEAF_TOKENIZE_ADD_SPECIAL, &w->tokens);
    sheaf_free(text);
    if (s) return s;
    if (w->tokens.n < 2 * (size_t)w->n_ctx)
        return sheaf_fail(SHEAF_E_RANGE, "perplexity: %s: %zu tokens, at least %d are needed with -c %d", w->o->file,
                          w->tokens.n, 2 * w->n_ctx, w->n_ctx);
    int all = (int)(w->tokens.n / (size_t)w->n_ctx);
    w->n_chunk = w->o->chunks > 0 && w->o->chunks < all ? w->o->chunks : all;
    return SHEAF_OK;
}

static sheaf_status open_all(work *w) {
    options o = *w->o;
    w->n_ctx = o.n_ctx ? o.n_ctx : PPL_CTX;
    o.n_ctx = w->n_ctx;
    if (w->n_ctx < 4) return sheaf_fail(SHEAF_E_ARGUMENT, "options: -c %d: perplexity needs at least 4", w->n_ctx);
    const char *list = o.n_devices ? o.devices[0] : NULL;
    sheaf_status s = session_open(&w->s, &o, list, SESSION_MODEL);
    if (s) return s;
    if (o.against && session_ranks(&w->s) > 1) { /* a second model over the same ranks would have to take turns */
        s = sheaf_fail(SHEAF_E_UNSUPPORTED, "perplexity: --against %s: it runs in one process, and these are %d",
                       o.against, session_ranks(&w->s));
        return sheaf_error_hint(s, "one run writes --kl-divergence-base FILE, the other compares with it: "
                                   "--kl-divergence-base FILE --kl-divergence");
    }
    w->n_vocab = sheaf_model_hparams(w->s.model)->n_vocab;
    w->row_words = 2 * (((size_t)w->n_vocab + 1) / 2) + 4;
    w->row = sheaf_calloc(w->row_words, sizeof *w->row);
    if (!w->row) return sheaf_fail(SHEAF_E_NO_MEMORY, "perplexity: a row of %d", w->n_vocab);
    s = w->reading ? read_header(w) : text_tokens(w);
    if (!s && w->o->kl_base && !w->reading) s = write_header(w);
    o.n_ctx = w->n_ctx;
    if (!s) s = session_open_context(&w->s, &o);
    if (!s && o.against) {
        w->has_other = true;
        s = session_open(&w->other, &o, o.against, SESSION_MODEL | SESSION_CONTEXT);
    }
    return s;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double spread(double sum, double sum2, int64_t n) {
    double mean = sum / (double)n, var = sum2 / (double)n - mean * mean;
    return n > 1 && var > 0 ? sqrt(var / (double)(n - 1)) : 0;
}

static sheaf_status tell(work *w) {
    scores *sc = &w->sc;
    double ppl = exp(sc->nll / (double)sc->n), err = spread(sc->nll, sc->nll2, sc->n) * ppl;
    double mean = 0, p99 = 0, top1 = 0;
    if (sc->n_kl) {
        qsort(sc->kls, (size_t)sc->n_kl, sizeof *sc->kls, by_value);
        mean = sc->kl / (double)sc->n_kl;
        p99 = (double)sc->kls[(sc->n_kl - 1) * 99 / 100];
        top1 = (double)sc->same_top / (double)sc->n_kl;
    }
    if (!w->o->json) {
        printf("perplexity %.4f +- %.4f over %lld tokens\n", ppl, err, (long long)sc->n);
        if (sc->n_kl)
            printf("divergence mean %.6f +- %.6f, max %.6f, 99 %% below %.6f, same best token %.2f %%\n", mean,
                   spread(sc->kl, sc->kl2, sc->n_kl), sc->kl_max, p99, top1 * 100);
        return SHEAF_OK;
    }
    jdoc d = j_new(false);
    j_number(&d, d.root, "ppl", ppl);
    j_number(&d, d.root, "ppl_err", err);
    j_integer(&d, d.root, "tokens", sc->n);
    const struct {
        const char *key;
        double value;
    } kl[] = {{"kl_mean", mean}, {"kl_max", sc->kl_max}, {"kl_p99", p99}, {"top1", top1}};
    for (int i = 0; i < 4; i++) {
        if (sc->n_kl)
            j_number(&d, d.root, kl[i].key, kl[i].value);
        else
            j_null(&d, d.root, kl[i].key);
    }
    return j_print(&d, false);
}

static sheaf_status judge(const work *w) {
    double mean = w->sc.n_kl ? w->sc.kl / (double)w->sc.n_kl : 0;
    if (!w->o->max_kl_given || mean <= w->o->max_kl) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_MISMATCH, "perplexity: --max-kl %g: the mean divergence is %g", w->o->max_kl, mean);
}

static sheaf_status check_options(const options *o) {
    if (o->kl_divergence && !o->kl_base)
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: --kl-divergence: it needs --kl-divergence-base FILE");
    if (o->against && o->kl_base)
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: --against and --kl-divergence-base: exclude each other");
    if (o->max_kl_given && !o->against && !o->kl_divergence)
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: --max-kl: it needs --against or --kl-divergence");
    return SHEAF_OK;
}

sheaf_status cmd_perplexity(const options *o) {
    work w = {.o = o, .reading = o->kl_divergence};
    sheaf_status s = check_options(o);
    if (!s) s = open_all(&w);
    if (!s && !session_leads(&w.s)) {
        s = session_follow(&w.s);
    } else if (!s) {
        s = run_chunks(&w);
        s = close_file(&w, s);
        if (!s) s = tell(&w);
        if (!s) s = judge(&w);
    }
    s = close_file(&w, s); /* where opening the rest failed */
    session_close(&w.other);
    session_close(&w.s);
    sheaf_ids_free(&w.tokens);
    sheaf_free(w.row);
    sheaf_free(w.sc.kls);
    return s;
}
