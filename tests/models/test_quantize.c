/* Plans of quantizations: what a mix gives each tensor of models of many shapes, as another program decides it
 * (tests/golden/make_mixes.py makes the same models). */
#include "models/quantize.h"
#include "tests/support/gguf_build.h"
#include "tests/support/support.h"

#include <stdlib.h>

typedef struct model {
    const char *name, *arch;
    int layers, heads, kv, experts, columns;
    bool output;
} model;

static const model models[] = {
    {"small", "llama", 16, 8, 4, 0, 256, true},
    {"shared-kv", "llama", 24, 8, 2, 0, 256, false},
    {"70b", "llama", 80, 64, 8, 0, 256, true},
    {"eight-experts", "llama", 16, 8, 4, 8, 256, true},
    {"many-experts", "qwen3moe", 16, 8, 1, 16, 256, true},
    {"falcon", "falcon", 32, 8, 1, 0, 256, true},
    {"narrow", "qwen2", 16, 8, 4, 0, 96, false},
    {"odd", "llama", 8, 8, 4, 0, 40, true},
};
enum { N_MODELS = sizeof models / sizeof *models };

static const struct {
    sheaf_type type;
    char letter;
} letters[] = {{SHEAF_F32, 'f'},  {SHEAF_F16, 'h'},  {SHEAF_Q4_0, 'a'},   {SHEAF_Q4_1, 'b'},   {SHEAF_Q5_0, 'c'},
               {SHEAF_Q5_1, 'd'}, {SHEAF_Q8_0, '8'}, {SHEAF_Q2_K, '2'},   {SHEAF_Q3_K, '3'},   {SHEAF_Q4_K, '4'},
               {SHEAF_Q5_K, '5'}, {SHEAF_Q6_K, '6'}, {SHEAF_IQ4_NL, 'n'}, {SHEAF_IQ4_XS, 'x'}, {SHEAF_MXFP4, 'm'}};

static char letter_of(sheaf_type t) {
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].type == t) return letters[i].letter;
    return '?';
}

static void put_u32(gguf_build *b, const model *m, const char *suffix, int v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->arch, suffix);
    gguf_build_u32(b, key, (uint32_t)v);
}

/* Calls fn with every tensor's name and shape, in the order of the golden letters. */
static void each_tensor(const model *m, void (*fn)(gguf_build *, const char *, const int64_t *), gguf_build *b) {
    static const char *const parts[] = {"attn_q", "attn_k",   "attn_v",   "attn_output",  "ffn_gate",
                                        "ffn_up", "ffn_down", "attn_qkv", "ffn_down_exps"};
    const int64_t plain[] = {m->columns, 2, 1}, experts[] = {m->columns, 2, m->experts};
    fn(b, "token_embd.weight", plain);
    if (m->output) fn(b, "output.weight", plain);
    for (int layer = 0; layer < m->layers; layer++) {
        for (int i = 0; i < 8 + (m->experts > 0); i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[i]);
            fn(b, name, i == 8 ? experts : plain);
        }
    }
}

static void add_tensor(gguf_build *b, const char *name, const int64_t *ne) {
    gguf_build_tensor(b, name, SHEAF_F32, ne[2] > 1 ? 3 : 2, ne, NULL);
}

static void add_importance(gguf_build *b, const char *name, const int64_t *ne) {
    char full[80];
    snprintf(full, sizeof full, "%s.in_sum2", name);
    gguf_build_tensor(b, full, SHEAF_F32, 2, (int64_t[]){ne[0], ne[2]}, NULL);
    snprintf(full, sizeof full, "%s.counts", name);
    gguf_build_tensor(b, full, SHEAF_F32, 2, (int64_t[]){1, ne[2]}, NULL);
}

static gguf_build *build_model(const model *m) {
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.architecture", m->arch);
    put_u32(b, m, "block_count", m->layers);
    put_u32(b, m, "attention.head_count", m->heads);
    put_u32(b, m, "attention.head_count_kv", m->kv);
    if (m->experts) put_u32(b, m, "expert_count", m->experts);
    each_tensor(m, add_tensor, b);
    return b;
}

/* The plans of one model, line by line of the golden file. */
static int check_model(const model *m, const char *golden) {
    gguf_build *b = build_model(m), *w = gguf_build_new();
    each_tensor(m, add_importance, w);
    size_t n;
    int lines = 0;
    sheaf_gguf *g;
    sheaf_imatrix *importance;
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    expect_ok(sheaf_gguf_open_memory(bytes, n, &g));
    bytes = gguf_build_bytes(w, &n);
    expect_ok(sheaf_imatrix_open_memory(bytes, n, &importance));
    for (const char *at = golden; at && at[1]; at = strchr(at + 1, '\n')) {
        char name[32], mix[16], how[16], want[1024];
        if (sscanf(at + 1, "%31s %15s %15s %1023s", name, mix, how, want) != 4 || strcmp(name, m->name) != 0) continue;
        sheaf_quantize_options o = {.mix = sheaf_mix_find(mix)};
        cr_assert(o.mix != NULL, "%s is no mix", mix);
        sheaf_quantize_row *plan;
        expect_ok(sheaf_quantize_plan(g, &o, how[0] == 'w' ? importance : NULL, &plan));
        expect_int(sheaf_gguf_n_tensors(g), strlen(want));
        for (size_t i = 0; want[i]; i++) {
            sheaf_str t = sheaf_gguf_tensor_at(g, (int64_t)i)->name;
            cr_assert(letter_of(plan[i].to) == want[i], "%s, %s, %s: %.*s is %s, expected %c", name, mix, how, (int)t.n,
                      t.s, sheaf_type_name(plan[i].to), want[i]);
        }
        sheaf_free(plan);
        lines++;
    }
    sheaf_imatrix_free(importance);
    sheaf_gguf_close(g);
    gguf_build_free(b), gguf_build_free(w);
    return lines;
}

Test(quantize, mixes_give_what_the_other_program_gives, .timeout = 60) {
    char *golden = read_file(GOLDEN_DIR "/mixes.txt", NULL);
    int lines = 0;
    for (int i = 0; i < N_MODELS; i++) lines += check_model(&models[i], strchr(golden, '\n'));
    expect_int(lines, N_MODELS * (19 * 2 - 1));
    free(golden);
}

static sheaf_status plan_small(void *ctx) {
    const sheaf_gguf *g = ctx;
    sheaf_tensor_override up = {"ffn_up", SHEAF_Q8_0};
    sheaf_quantize_options o = {.mix = sheaf_mix_find("Q4_K_M"), .overrides = &up, .n_overrides = 1};
    sheaf_quantize_row *plan = NULL;
    sheaf_status s = sheaf_quantize_plan(g, &o, NULL, &plan);
    if (!s) sheaf_free(plan);
    return s;
}

Test(quantize, every_failed_allocation_of_a_plan_is_a_status, .timeout = 60) {
    gguf_build *b = build_model(&models[0]);
    size_t n;
    sheaf_gguf *g;
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    expect_ok(sheaf_gguf_open_memory(bytes, n, &g));
    fail_each_allocation(plan_small, g);
    sheaf_gguf_close(g);
    gguf_build_free(b);
}

Test(quantize, a_pattern_that_never_ends_is_stopped, .timeout = 60) {
    gguf_build *b = gguf_build_new();
    sheaf_gguf *g;
    size_t n;
    gguf_build_tensor(b, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.weight", SHEAF_F32, 2, (int64_t[]){32, 2}, NULL);
    const uint8_t *bytes = gguf_build_bytes(b, &n);
    expect_ok(sheaf_gguf_open_memory(bytes, n, &g));
    sheaf_tensor_override slow = {"(a+)+$", SHEAF_Q8_0};
    sheaf_quantize_options o = {.mix = sheaf_mix_find("Q4_0"), .overrides = &slow, .n_overrides = 1};
    sheaf_quantize_row *plan;
    expect_status(sheaf_quantize_plan(g, &o, NULL, &plan), SHEAF_E_ARGUMENT);
    expect_error("too costly");
    sheaf_gguf_close(g);
    gguf_build_free(b);
}
