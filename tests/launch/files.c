/* Model files that are absent, wrong, cut or lie: every command answers with one line and a code. */
#include "tests/launch/spawn.h"
#include "tests/support/gguf_build.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What opens a model, each in its own way. */
static const char *const openers[] = {
    "run -p x -n 1 -q -m %s",
    "run -p x -n 1 -q --no-mmap -m %s",
    "run -p x -n 1 -q --devices cpu/2 -m %s",
    "split --devices cpu/2 -m %s",
    "graph --devices cpu/2 -m %s",
    "bench -p 1 -n 1 -r 1 -m %s",
    "perplexity -c 16 --chunks 1 -f " TALES " -m %s",
    "tokenize -p x -m %s",
    "inspect %s",
    "quantize -q --dry-run --allow-requantize %s out.gguf F32",
};
enum { N_OPENERS = sizeof openers / sizeof *openers };

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static outcome open_with(int opener, const char *path) {
    char line[2048];
    snprintf(line, sizeof line, openers[opener], path);
    how h = {.seconds = 20};
    return sheaf_how(&h, "%s", line);
}

Test(files, what_is_no_readable_file_is_bad_input, .timeout = 200) {
    char *folder = make_folder(), loop[600], empty[600];
    snprintf(loop, sizeof loop, "%s/loop", folder);
    snprintf(empty, sizeof empty, "%s/empty", folder);
    cr_assert(symlink(loop, loop) == 0);
    write_file(empty, "", 0);
    const char *const paths[] = {"/nosuch/model.gguf", folder, loop, empty, "/dev/null", TALES, "''"};
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
        for (int i = 0; i < N_OPENERS; i++) {
            outcome o = open_with(i, paths[p]);
            expect_refusal(&o, 3);
            if (paths[p][0] == '/') expect_says(o, paths[p]);
            outcome_free(&o);
        }
    }
    remove_folder(folder);
}

Test(files, a_pipe_or_device_is_no_model, .timeout = 100) {
    char *folder = make_folder(), fifo[600];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    cr_assert(mkfifo(fifo, 0600) == 0);
    const char *const paths[] = {fifo, "/dev/zero"};
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < N_OPENERS; i += 4) {
            outcome o = open_with(i, paths[p]);
            expect_refusal(&o, 3);
            outcome_free(&o);
        }
    }
    remove_folder(folder);
}

Test(files, a_short_file_names_what_is_missing, .timeout = 400) {
    char *folder = make_folder(), path[600];
    size_t n;
    char *model = read_file(TINY, &n);
    snprintf(path, sizeof path, "%s/cut.gguf", folder);
    static const size_t cuts[] = {1, 3, 4, 8, 16, 23, 24, 40, 1000, 30000, 63872, 64640, 500000};
    for (size_t c = 0; c <= sizeof cuts / sizeof *cuts; c++) {
        write_file(path, model, c < sizeof cuts / sizeof *cuts ? cuts[c] : n - 1);
        for (int i = 0; i < N_OPENERS; i++) {
            outcome o = open_with(i, path);
            expect_refusal(&o, 3);
            outcome_free(&o);
        }
    }
    free(model);
    remove_folder(folder);
}

/* Any one byte of the head may be wrong: the answer is a result or a refusal, never a crash or a hang. */
Test(files, a_wrong_byte_anywhere_in_the_head_never_crashes, .timeout = 600) {
    char *folder = make_folder(), path[600];
    size_t n;
    char *model = read_file(TINY, &n);
    rng r = rng_start("wrong bytes");
    snprintf(path, sizeof path, "%s/wrong.gguf", folder);
    for (int i = 0; i < 160; i++) {
        char *copy = malloc(n);
        memcpy(copy, model, n);
        /* the fields up to the vocabulary, then the tensor list, have more to say than a million strings */
        size_t at = i < 80 ? (size_t)rng_below(&r, 1200) : (size_t)(60000 + rng_below(&r, 3800));
        copy[at] = (char)(copy[at] ^ (1 << rng_below(&r, 8)));
        write_file(path, copy, n);
        int opener = (int)rng_below(&r, N_OPENERS);
        outcome o = open_with(opener, path);
        cr_assert(!o.timed_out && (o.code == 0 || o.code == 3 || o.code == 4),
                  "sheaf %s with byte %zu wrong: exit %d: %s", o.line, at, o.code, o.err);
        if (o.code) expect_error_line(&o);
        outcome_free(&o);
        free(copy);
    }
    free(model);
    remove_folder(folder);
}

/* --- files made to be wrong --- */

static const int64_t row[] = {64}, small[] = {64, 64}, vocab_ne[] = {64, 320};
enum { VOCABULARY = 300 }; /* tokens; the embedding has a few rows more */

static void add_head(gguf_build *b, const char *arch) {
    gguf_build_str(b, "general.architecture", arch);
    gguf_build_u32(b, "llama.block_count", 1);
    gguf_build_u32(b, "llama.context_length", 64);
    gguf_build_u32(b, "llama.embedding_length", 64);
    gguf_build_u32(b, "llama.feed_forward_length", 64);
    gguf_build_u32(b, "llama.attention.head_count", 2);
    gguf_build_u32(b, "llama.attention.head_count_kv", 2);
    gguf_build_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

static void add_vocabulary(gguf_build *b) {
    static char pieces[VOCABULARY][8];
    const char *list[VOCABULARY];
    int32_t types[VOCABULARY];
    float scores[VOCABULARY];
    for (int i = 0; i < VOCABULARY; i++) {
        if (i < 3)
            snprintf(pieces[i], sizeof pieces[i], "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259)
            snprintf(pieces[i], sizeof pieces[i], "<0x%02X>", i - 3);
        else
            snprintf(pieces[i], sizeof pieces[i], "w%d", i);
        list[i] = pieces[i];
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        scores[i] = (float)-i;
    }
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", list, VOCABULARY);
    gguf_build_array(b, "tokenizer.ggml.token_type", SHEAF_GGUF_I32, types, VOCABULARY);
    gguf_build_array(b, "tokenizer.ggml.scores", SHEAF_GGUF_F32, scores, VOCABULARY);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", 1);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", 2);
}

static void add_weights(gguf_build *b, const char *without) {
    static const char *const matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                           "ffn_gate", "ffn_up", "ffn_down"};
    char name[64];
    gguf_build_tensor(b, "token_embd.weight", SHEAF_F32, 2, vocab_ne, NULL);
    if (strcmp(without, "output_norm.weight")) gguf_build_tensor(b, "output_norm.weight", SHEAF_F32, 1, row, NULL);
    gguf_build_tensor(b, "blk.0.attn_norm.weight", SHEAF_F32, 1, row, NULL);
    gguf_build_tensor(b, "blk.0.ffn_norm.weight", SHEAF_F32, 1, row, NULL);
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "blk.0.%s.weight", matrices[i]);
        if (strcmp(without, name)) gguf_build_tensor(b, name, SHEAF_F32, 2, small, NULL);
    }
}

enum fault {
    SOUND,
    NO_NORM,
    NO_MATRIX,
    NO_VOCABULARY,
    FOREIGN_ARCH,
    NO_ARCH,
    ODD_ARCH,
    HUGE_LAYERS,
    HUGE_HEADS,
    ZERO_HEADS,
    WRONG_SHAPE,
    WRONG_TYPE,
    HUGE_TENSOR,
    FAR_TENSOR,
    MANY_TENSORS,
    MANY_KEYS,
    NAME_TWICE,
    VERSION_9,
    ALIGNMENT_0,
    CONTROL_NAME,
    HUGE_CONTEXT,
    NAN_EPS,
    N_FAULTS,
};
static const char *const fault_names[] = {
    "sound",        "no norm",     "no matrix",   "no vocabulary", "foreign arch",
    "no arch",      "odd arch",    "huge layers", "huge heads",    "zero heads",
    "wrong shape",  "wrong type",  "huge tensor", "far tensor",    "many tensors",
    "many keys",    "name twice",  "version 9",   "alignment 0",   "control characters",
    "huge context", "nan epsilon",
};

static void build_fault(enum fault f, const char *path) {
    gguf_build *b = gguf_build_new();
    if (f == ODD_ARCH)
        add_head(b, "x\ny\x1b[31m");
    else if (f != NO_ARCH)
        add_head(b, f == FOREIGN_ARCH ? "nosuch" : "llama");
    if (f == HUGE_LAYERS) gguf_build_u32(b, "llama.leading_dense_block_count", 1);
    if (f != NO_VOCABULARY) add_vocabulary(b);
    if (f == WRONG_TYPE) gguf_build_raw_tensor(b, "rope_freqs.weight", 17, 1, (uint64_t[]){64}, 200, 0);
    if (f == HUGE_TENSOR) gguf_build_raw_tensor(b, "blk.0.big", 9, 2, (uint64_t[]){1ull << 62, 4}, 1, 0);
    if (f == FAR_TENSOR) gguf_build_raw_tensor(b, "blk.0.far", 9, 1, (uint64_t[]){64}, 0, UINT64_MAX - 31);
    if (f == CONTROL_NAME) gguf_build_raw_tensor(b, "a\nb\x1b[31m\r", 9, 1, (uint64_t[]){64}, 200, 0);
    if (f == NAME_TWICE) gguf_build_tensor(b, "token_embd.weight", SHEAF_F32, 2, vocab_ne, NULL);
    if (f == WRONG_SHAPE) gguf_build_tensor(b, "output.weight", SHEAF_F32, 2, small, NULL);
    if (f == MANY_TENSORS) gguf_build_counts(b, (int64_t)1 << 61, -1);
    if (f == MANY_KEYS) gguf_build_counts(b, -1, (int64_t)1 << 40);
    if (f == VERSION_9) gguf_build_version(b, 9);
    if (f == ALIGNMENT_0) gguf_build_u32(b, "general.alignment", 0);
    add_weights(b, f == NO_NORM ? "output_norm.weight" : f == NO_MATRIX ? "blk.0.ffn_up.weight" : "");
    gguf_build_file(b, path);
    gguf_build_free(b);
}

/* Changes the value of the last key called `key`, a 4-byte one, in the finished file. */
static void patch_u32(const char *path, const char *key, uint32_t value) {
    size_t n, key_n = strlen(key);
    char *bytes = read_file(path, &n);
    bool done = false;
    for (size_t i = 0; i + key_n + 8 < n && !done; i++) {
        if (memcmp(bytes + i, key, key_n)) continue;
        memcpy(bytes + i + key_n + 4, &value, 4);
        done = true;
    }
    cr_assert(done, "%s has no key %s", path, key);
    write_file(path, bytes, n);
    free(bytes);
}

static void make_fault(enum fault f, const char *path) {
    build_fault(f, path);
    if (f == HUGE_LAYERS) patch_u32(path, "llama.block_count", 0x7fffffff);
    if (f == HUGE_HEADS) patch_u32(path, "llama.attention.head_count", 0x7fffffff);
    if (f == ZERO_HEADS) patch_u32(path, "llama.attention.head_count", 0);
    if (f == HUGE_CONTEXT) patch_u32(path, "llama.context_length", 0xffffffff);
    if (f == NAN_EPS) patch_u32(path, "llama.attention.layer_norm_rms_epsilon", 0x7fc00000);
}

Test(files, the_file_without_a_fault_runs, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/sound.gguf", folder);
    make_fault(SOUND, path);
    for (int i = 0; i < N_OPENERS; i++) {
        outcome o = open_with(i, path);
        expect_code(o, 0);
        outcome_free(&o);
    }
    remove_folder(folder);
}

/* Which commands must refuse which fault: all that need what is wrong. */
static bool must_refuse(enum fault f, int opener) {
    bool model = opener < 7, tokens = opener == 7;
    switch (f) {
    case SOUND: return false;
    case NO_NORM:
    case NO_MATRIX:
    case FOREIGN_ARCH:
    case NO_ARCH:
    case ODD_ARCH:
    case HUGE_LAYERS:
    case HUGE_HEADS:
    case ZERO_HEADS:
    case WRONG_SHAPE:
    case NAN_EPS: return model;
    case NO_VOCABULARY: return tokens;
    case HUGE_CONTEXT: return false; /* too large to be given, which is exit 3 or 4, or taken for what it can be */
    default: return true;
    }
}

Test(files, faults_are_refused_by_whoever_needs_what_is_wrong, .timeout = 400) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/fault.gguf", folder);
    for (int f = 1; f < N_FAULTS; f++) {
        make_fault((enum fault)f, path);
        for (int i = 0; i < N_OPENERS; i++) {
            outcome o = open_with(i, path);
            cr_assert(!o.timed_out && (o.code == 0 || o.code == 3 || (o.code == 4 && f == HUGE_CONTEXT)),
                      "%s: sheaf %s: exit %d: %s", fault_names[f], o.line, o.code, o.err);
            cr_assert(o.code != 0 || !must_refuse((enum fault)f, i), "%s: sheaf %s: accepted: %s", fault_names[f],
                      o.line, o.out);
            if (o.code) expect_error_line(&o);
            expect_has_not(o, o.err, "truncated");
            expect_has_not(o, o.out, "\x1b");
            outcome_free(&o);
        }
    }
    remove_folder(folder);
}

/* `inspect --check` finds what loading would. */
Test(files, inspect_finds_what_a_model_lacks, .timeout = 100) {
    static const enum fault faults[] = {NO_NORM,    NO_MATRIX,   HUGE_LAYERS, HUGE_HEADS,
                                        ZERO_HEADS, WRONG_SHAPE, NAN_EPS,     NAME_TWICE};
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/fault.gguf", folder);
    make_fault(SOUND, path);
    outcome sound = sheaf("inspect %s --check", path);
    expect_code(sound, 0);
    outcome_free(&sound);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        make_fault(faults[i], path);
        outcome o = sheaf("inspect %s --check --json", path);
        cr_assert(o.code == 1 || o.code == 3, "%s: exit %d: %s", fault_names[faults[i]], o.code, o.out);
        if (o.code == 1) expect_has(o, o.out, "\"problems\":");
        expect_has_not(o, o.out, "\"problems\":\t[]");
        outcome_free(&o);
    }
    remove_folder(folder);
}

/* Tensors may begin anywhere: general.alignment 1 behind a key of odd length. Such a file is read, not mapped. */
Test(files, tensors_at_odd_places_are_read, .timeout = 200) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/odd.gguf", folder);
    for (uint32_t alignment = 1; alignment <= 16; alignment *= 2) {
        gguf_build *b = gguf_build_new();
        gguf_build_alignment(b, alignment, true);
        add_head(b, "llama");
        gguf_build_str(b, "general.odd", alignment == 1 ? "xx" : "x");
        add_vocabulary(b);
        add_weights(b, "");
        gguf_build_file(b, path);
        gguf_build_free(b);
        for (int i = 0; i < N_OPENERS; i++) {
            outcome o = open_with(i, path);
            expect_code(o, 0);
            outcome_free(&o);
        }
    }
    remove_folder(folder);
}

/* Rows of the embedding beyond the vocabulary (padding) stand for nothing: they are never drawn. */
Test(files, ids_without_a_token_are_not_drawn, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/padded.gguf", folder);
    make_fault(SOUND, path);
    outcome o =
        sheaf("run -m %s --raw -p a --ignore-eos --temp 5 --top-k 0 --top-p 1 --min-p 0 -n 40 --seed 3 --json", path);
    cJSON *j = expect_json(&o);
    const cJSON *id;
    cJSON_ArrayForEach(id, expect_key(&o, j, "tokens", cJSON_Array)) {
        cr_assert(id->valueint < VOCABULARY, "token %d of a vocabulary of %d was drawn", id->valueint, VOCABULARY);
    }
    cJSON_Delete(j);
    outcome_free(&o);
    remove_folder(folder);
}

Test(files, an_unknown_architecture_names_the_known, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/foreign.gguf", folder);
    make_fault(FOREIGN_ARCH, path);
    outcome o = sheaf("run -m %s -p x", path);
    expect_refusal(&o, 3);
    expect_says(o, "nosuch");
    expect_says(o, "llama");
    outcome_free(&o);
    make_fault(NO_NORM, path);
    o = sheaf("run -m %s -p x", path);
    expect_refusal(&o, 3);
    expect_says(o, "output_norm.weight");
    outcome_free(&o);
    remove_folder(folder);
}

/* A file that shrinks after it was opened must not end the run by a signal. */
Test(files, a_file_that_shrinks_while_it_is_used_is_an_error, .timeout = 60) {
    char *folder = make_folder(), path[600];
    size_t n;
    char *model = read_file(TINY, &n);
    snprintf(path, sizeof path, "%s/shrinks.gguf", folder);
    write_file(path, model, n);
    running r = sheaf_start(NULL, "run -m %s -p Once --ignore-eos -n -1 -c 60000 -q --devices cpu", path);
    usleep(400000);
    cr_assert(truncate(path, 70000) == 0);
    usleep(300000);
    kill(r.pid, SIGINT);
    outcome o = sheaf_finish(&r, 20);
    cr_assert(o.code < 1000, "ended by signal %d: %s", o.code - 1000, o.err);
    outcome_free(&o);
    free(model);
    remove_folder(folder);
}
