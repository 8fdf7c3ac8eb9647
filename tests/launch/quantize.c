/* `sheaf quantize`: files that run, refusals that leave nothing behind. */
#include "tests/launch/spawn.h"
#include "tests/support/gguf_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t wide[] = {256, 64}, narrow[] = {96, 64}, odd[] = {40, 64}, row[] = {256}, experts[] = {256, 8, 4};

/* A file of no family that runs: 8 layers of what rules look at, f32. */
static void write_model(const char *path) {
    gguf_build *b = gguf_build_new();
    enum { MANY = 256 * 64 + 8 }; /* each layer begins one further */
    static float x[MANY];
    rng r = rng_start("model");
    for (int i = 0; i < MANY; i++) x[i] = rng_normal(&r) * 0.05f;
    gguf_build_str(b, "general.architecture", "nosuch");
    gguf_build_u32(b, "nosuch.block_count", 8);
    gguf_build_u32(b, "nosuch.attention.head_count", 8);
    gguf_build_u32(b, "nosuch.attention.head_count_kv", 4);
    gguf_build_u32(b, "general.file_type", 0);
    gguf_build_tensor_f32(b, "token_embd.weight", SHEAF_F32, 2, wide, x);
    gguf_build_tensor_f32(b, "output.weight", SHEAF_F32, 2, wide, x);
    gguf_build_tensor_f32(b, "output_norm.weight", SHEAF_F32, 1, row, x);
    for (int layer = 0; layer < 8; layer++) {
        static const char *const parts[] = {"attn_v", "attn_output", "ffn_down", "ffn_up"};
        char name[64];
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[i]);
            gguf_build_tensor_f32(b, name, SHEAF_F32, 2, wide, x + layer);
        }
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
        gguf_build_tensor_f32(b, name, SHEAF_F32, 2, odd, x);
    }
    gguf_build_tensor_f32(b, "blk.0.ffn_down_exps.weight", SHEAF_F32, 3, experts, x);
    gguf_build_tensor_f32(b, "blk.0.attn_q.weight", SHEAF_F32, 2, narrow, x);
    gguf_build_tensor_f32(b, "blk.0.attn_k.weight", SHEAF_F32, 2, odd, x);
    gguf_build_tensor_f32(b, "blk.0.attn_q.bias", SHEAF_F32, 1, row, x);
    gguf_build_file(b, path);
    gguf_build_free(b);
}

typedef struct place {
    char *folder, in[600], out[600];
} place;

static place make_place(void) {
    place p = {.folder = make_folder()};
    snprintf(p.in, sizeof p.in, "%s/in.gguf", p.folder);
    snprintf(p.out, sizeof p.out, "%s/out.gguf", p.folder);
    write_model(p.in);
    return p;
}

static void expect_type(const char *path, const char *name, sheaf_type want) {
    sheaf_gguf *g;
    expect_ok(sheaf_gguf_open(path, &g));
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(g, name);
    cr_assert(t != NULL, "%s: no %s", path, name);
    cr_assert(t->type == want, "%s is %s, expected %s", name, sheaf_type_name(t->type), sheaf_type_name(want));
    sheaf_gguf_close(g);
}

static void expect_u32(const char *path, const char *key, uint32_t want) {
    sheaf_gguf *g;
    uint32_t v = 0;
    expect_ok(sheaf_gguf_open(path, &g));
    expect_ok(sheaf_gguf_get_u32(g, key, &v));
    expect_int(v, want);
    sheaf_gguf_close(g);
}

static void run(const char *line) {
    outcome o = sheaf("%s", line);
    expect_code(o, 0);
    expect_int(o.out_n, 0);
    outcome_free(&o);
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"

/* --- what comes out --- */

Test(quantize, every_type_is_written_whole, .timeout = 300) {
    static const struct {
        const char *name;
        uint32_t file_type;
        sheaf_type up, output, narrow; /* of ffn_up, of output.weight, of rows of 96 */
    } types[] = {
        {"F32", 0, SHEAF_F32, SHEAF_F32, SHEAF_F32},
        {"F16", 1, SHEAF_F16, SHEAF_F16, SHEAF_F16},
        {"BF16", 32, SHEAF_BF16, SHEAF_BF16, SHEAF_BF16},
        {"Q8_0", 7, SHEAF_Q8_0, SHEAF_Q8_0, SHEAF_Q8_0},
        {"Q4_0", 2, SHEAF_Q4_0, SHEAF_Q6_K, SHEAF_Q4_0},
        {"q4_1", 3, SHEAF_Q4_1, SHEAF_Q6_K, SHEAF_Q4_1},
        {"Q5_0", 8, SHEAF_Q5_0, SHEAF_Q6_K, SHEAF_Q5_0},
        {"Q5_1", 9, SHEAF_Q5_1, SHEAF_Q6_K, SHEAF_Q5_1},
        {"Q2_K", 10, SHEAF_Q2_K, SHEAF_Q6_K, SHEAF_Q4_0},
        {"Q3_K_S", 11, SHEAF_Q3_K, SHEAF_Q6_K, SHEAF_Q4_0},
        {"Q3_K", 12, SHEAF_Q3_K, SHEAF_Q6_K, SHEAF_Q4_0},
        {"Q3_K_L", 13, SHEAF_Q3_K, SHEAF_Q6_K, SHEAF_Q4_0},
        {"Q4_K_S", 14, SHEAF_Q4_K, SHEAF_Q6_K, SHEAF_Q5_0},
        {"15", 15, SHEAF_Q4_K, SHEAF_Q6_K, SHEAF_Q5_0},
        {"Q5_K_S", 16, SHEAF_Q5_K, SHEAF_Q6_K, SHEAF_Q5_1},
        {"Q5_K_M", 17, SHEAF_Q5_K, SHEAF_Q6_K, SHEAF_Q5_1},
        {"Q6_K", 18, SHEAF_Q6_K, SHEAF_Q6_K, SHEAF_Q8_0},
        {"IQ4_NL", 25, SHEAF_IQ4_NL, SHEAF_Q6_K, SHEAF_IQ4_NL},
        {"IQ4_XS", 30, SHEAF_IQ4_XS, SHEAF_Q6_K, SHEAF_IQ4_NL},
        {"MXFP4", 38, SHEAF_MXFP4, SHEAF_Q8_0, SHEAF_MXFP4},
        {"MXFP4_MOE", 38, SHEAF_Q8_0, SHEAF_Q8_0, SHEAF_Q8_0},
    };
    place p = make_place();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        outcome o = sheaf("quantize -q %s %s %s", p.in, p.out, types[i].name),
                check = sheaf("inspect --check %s", p.out);
        expect_code(o, 0);
        expect_code(check, 0);
        expect_u32(p.out, "general.file_type", types[i].file_type);
        expect_u32(p.out, "general.quantization_version", 2);
        expect_type(p.out, "blk.3.ffn_up.weight", types[i].up);
        expect_type(p.out, "output.weight", types[i].output);
        expect_type(p.out, "blk.0.attn_q.weight", types[i].narrow);
        bool blocks = sheaf_type_is_quantized(types[i].up);
        expect_type(p.out, "blk.0.attn_k.weight", blocks ? SHEAF_F16 : types[i].up); /* 40 is no multiple of 32 */
        expect_type(p.out, "blk.0.attn_q.bias", SHEAF_F32);
        expect_type(p.out, "output_norm.weight", SHEAF_F32);
        expect_type(p.out, "blk.7.ffn_gate_inp.weight", SHEAF_F32);
        expect_int(count_entries(p.folder), 2);
        outcome_free(&check);
        outcome_free(&o);
    }
    remove_folder(p.folder);
}

/* What Q4_K_M means: more bits where it matters. */
Test(quantize, a_mix_gives_some_tensors_more_bits, .timeout = 60) {
    place p = make_place();
    outcome o = sheaf("quantize -q %s %s Q4_K_M", p.in, p.out);
    expect_code(o, 0);
    for (int layer = 0; layer < 8; layer++) {
        char name[64];
        bool more = layer < 1 || layer >= 7 || (layer - 1) % 3 == 2;
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", layer);
        expect_type(p.out, name, more ? SHEAF_Q6_K : SHEAF_Q4_K);
        snprintf(name, sizeof name, "blk.%d.attn_output.weight", layer);
        expect_type(p.out, name, SHEAF_Q4_K);
    }
    outcome_free(&o);
    o = sheaf("quantize -q --pure %s %s Q4_K_M", p.in, p.out);
    expect_code(o, 0);
    expect_type(p.out, "blk.0.attn_v.weight", SHEAF_Q4_K);
    expect_type(p.out, "output.weight", SHEAF_Q4_K);
    outcome_free(&o);
    remove_folder(p.folder);
}

Test(quantize, options_choose_single_types, .timeout = 60) {
    place p = make_place();
    outcome o = sheaf("quantize -q --tensor-type 'blk\\.[0-3]\\..*_up=q8_0' --tensor-type=ffn_up=q2_k "
                      "--token-embedding-type f16 --output-tensor-type q5_k %s %s Q4_K_S",
                      p.in, p.out);
    expect_code(o, 0);
    expect_type(p.out, "blk.3.ffn_up.weight", SHEAF_Q8_0);
    expect_type(p.out, "blk.4.ffn_up.weight", SHEAF_Q2_K);
    expect_type(p.out, "token_embd.weight", SHEAF_F16);
    expect_type(p.out, "output.weight", SHEAF_Q5_K);
    outcome_free(&o);
    o = sheaf("quantize -q --leave-output-tensor %s %s Q4_K_S", p.in, p.out);
    expect_code(o, 0);
    expect_type(p.out, "output.weight", SHEAF_F32);
    outcome_free(&o);
    remove_folder(p.folder);
}

Test(quantize, threads_and_order_do_not_change_a_byte, .timeout = 120) {
    place p = make_place();
    char *first = NULL;
    size_t n = 0, m;
    for (int threads = 1; threads <= 5; threads += 2) {
        outcome o = sheaf("quantize -q %s %s Q5_K_M -t %d", p.in, p.out, threads);
        expect_code(o, 0);
        outcome_free(&o);
        char *bytes = read_file(p.out, &m);
        if (first) cr_assert(m == n && !memcmp(bytes, first, n), "%d threads: another file", threads);
        if (first) {
            free(bytes);
        } else {
            first = bytes;
            n = m;
        }
    }
    free(first);
    remove_folder(p.folder);
}

Test(quantize, a_copy_is_the_same_and_f32_and_back_too, .timeout = 60) {
    place p = make_place();
    char middle[700], line[2500];
    size_t n, m;
    snprintf(middle, sizeof middle, "%s/middle.gguf", p.folder);
    snprintf(line, sizeof line, "quantize -q %s %s COPY", p.in, p.out);
    run(line);
    char *a = read_file(p.in, &n), *b = read_file(p.out, &m);
    cr_assert(n == m && !memcmp(a, b, n), "the copy differs");
    free(a), free(b);
    snprintf(line, sizeof line, "quantize -q %s %s BF16", p.in, middle);
    run(line);
    snprintf(line, sizeof line, "quantize -q %s %s F32", middle, p.out);
    run(line);
    expect_type(p.out, "blk.3.ffn_up.weight", SHEAF_F32);
    snprintf(line, sizeof line, "quantize -q %s %s BF16", p.out, p.in);
    run(line);
    a = read_file(middle, &n), b = read_file(p.in, &m);
    cr_assert(n == m && !memcmp(a, b, n), "bf16 to f32 and back differs");
    free(a), free(b);
    remove_folder(p.folder);
}

static double perplexity_of(const char *path) {
    outcome o = sheaf("perplexity -m %s -f %s -c 64 --chunks 4 -q --json", path, TALES);
    cJSON *j = expect_json(&o);
    double ppl = expect_key(&o, j, "ppl", cJSON_Number)->valuedouble;
    cJSON_Delete(j);
    outcome_free(&o);
    return ppl;
}

Test(quantize, the_tiny_model_still_tells_its_tale, .timeout = 120) {
    place p = make_place();
    double before = perplexity_of(TINY);
    static const char *const types[] = {"Q6_K", "Q8_0"};
    for (int i = 0; i < 2; i++) {
        outcome o = sheaf("quantize --allow-requantize %s %s %s", TINY, p.out, types[i]);
        expect_code(o, 0);
        expect_int(o.out_n, 0);
        expect_says(o, "bits a weight");
        double after = perplexity_of(p.out);
        cr_assert(fabs(after / before - 1) < 0.01, "%s: perplexity %g became %g", types[i], before, after);
        outcome_free(&o);
    }
    remove_folder(p.folder);
}

Test(quantize, a_dry_run_prints_the_plan_and_writes_nothing, .timeout = 60) {
    place p = make_place();
    outcome text = sheaf("quantize --dry-run %s %s Q4_K_M", p.in, p.out),
            json = sheaf("quantize -q --dry-run --json %s %s Q4_K_M", p.in, p.out);
    expect_code(text, 0);
    expect_has(text, text.out, "blk.0.attn_q.weight");
    expect_says(text, "no whole blocks");
    cJSON *j = expect_json(&json);
    expect_text(expect_key(&json, j, "type", cJSON_String)->valuestring, "Q4_K_M");
    expect_int(cJSON_GetArraySize(expect_key(&json, j, "tensors", cJSON_Array)), 3 + 8 * 5 + 4);
    cr_assert(expect_key(&json, j, "bits_per_weight", cJSON_Number)->valuedouble < 8);
    expect_int(count_entries(p.folder), 1);
    cJSON_Delete(j);
    outcome_free(&text), outcome_free(&json);
    remove_folder(p.folder);
}

/* Two shards go in, one file comes out, without the keys that spoke of shards. */
Test(quantize, shards_become_one_file, .timeout = 60) {
    place p = make_place();
    char path[2][700];
    float x[256 * 64];
    for (int i = 0; i < 256 * 64; i++) x[i] = 0.001f * (float)(i % 97 - 48);
    for (int no = 0; no < 2; no++) {
        gguf_build *b = gguf_build_new();
        if (no == 0) gguf_build_str(b, "general.architecture", "nosuch");
        gguf_build_u16(b, "split.no", (uint16_t)no);
        gguf_build_u16(b, "split.count", 2);
        gguf_build_i32(b, "split.tensors.count", 2);
        gguf_build_tensor_f32(b, no ? "blk.1.ffn_up.weight" : "blk.0.ffn_up.weight", SHEAF_F32, 2, wide, x);
        snprintf(path[no], sizeof path[no], "%s/m-0000%d-of-00002.gguf", p.folder, no + 1);
        gguf_build_file(b, path[no]);
        gguf_build_free(b);
    }
    static const char *const types[] = {"COPY", "Q4_0"};
    for (int i = 0; i < 2; i++) {
        outcome o = sheaf("quantize -q %s %s %s", path[1], p.out, types[i]);
        expect_code(o, 0);
        sheaf_gguf *g;
        expect_ok(sheaf_gguf_open(p.out, &g));
        expect_int(sheaf_gguf_shards(g), 1);
        expect_int(sheaf_gguf_n_tensors(g), 2);
        expect_int(sheaf_gguf_find(g, "split.count"), -1);
        sheaf_gguf_close(g);
        expect_type(p.out, "blk.1.ffn_up.weight", i ? SHEAF_Q4_0 : SHEAF_F32);
        outcome_free(&o);
    }
    outcome over = sheaf("quantize %s %s Q4_0", path[1], path[0]);
    expect_refusal(&over, 2);
    outcome_free(&over);
    remove_folder(p.folder);
}

/* --- importance --- */

static void put_i32(char **p, int32_t v) { memcpy(*p, &v, 4), *p += 4; }

/* An older matrix of one tensor. */
static void write_dat_of(const char *path, const char *tensor, int n, float heavy, float light) {
    char *bytes = malloc(4096), *p = bytes;
    put_i32(&p, 1);
    put_i32(&p, (int32_t)strlen(tensor));
    memcpy(p, tensor, strlen(tensor)), p += strlen(tensor);
    put_i32(&p, 2);
    put_i32(&p, n);
    for (int i = 0; i < n; i++) {
        float w = i % 8 == 3 ? heavy : light;
        memcpy(p, &w, 4), p += 4;
    }
    put_i32(&p, 7);
    put_i32(&p, 5);
    memcpy(p, "tales", 5), p += 5;
    write_file(path, bytes, (size_t)(p - bytes));
    free(bytes);
}

static void write_dat(const char *path, const char *tensor, int n) { write_dat_of(path, tensor, n, 20, 0.01f); }

/* Finite, but their weighted sums are not: no file of NaN. */
Test(quantize, importance_too_large_is_refused, .timeout = 60) {
    static const char *const types[] = {"Q4_K_M", "Q2_K", "IQ4_NL"};
    place p = make_place();
    char dat[700];
    snprintf(dat, sizeof dat, "%s/m.dat", p.folder);
    write_dat_of(dat, "blk.2.ffn_up.weight", 256, 3e38f, 3e38f);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        outcome o = sheaf("quantize %s %s %s --imatrix %s", p.in, p.out, types[i], dat);
        expect_refusal(&o, 3);
        expect_says(o, "blk.2.ffn_up.weight");
        expect_int(count_entries(p.folder), 2);
        outcome_free(&o);
    }
}

Test(quantize, what_comes_to_nothing_is_said, .timeout = 60) {
    place p = make_place();
    char dat[700];
    snprintf(dat, sizeof dat, "%s/m.dat", p.folder);
    write_dat(dat, "of.another.model", 256);
    outcome a = sheaf("quantize %s %s Q4_0 --imatrix %s", p.in, p.out, dat),
            b = sheaf("quantize %s %s Q4_0 --tensor-type nothingmatches=q8_0 --tensor-type ffn_up=q8_0", p.in, p.out);
    expect_refusal(&a, 3);
    expect_says(a, "another model");
    expect_code(b, 0);
    expect_says(b, "nothingmatches");
    cr_assert_null(strstr(b.err, "pattern ffn_up"), "%s", b.err);
    outcome_free(&a);
    outcome_free(&b);
}

Test(quantize, importance_changes_the_tensors_it_knows, .timeout = 60) {
    place p = make_place();
    char dat[700], plain[700];
    snprintf(dat, sizeof dat, "%s/m.dat", p.folder);
    snprintf(plain, sizeof plain, "%s/plain.gguf", p.folder);
    write_dat(dat, "blk.2.ffn_up.weight", 256);
    outcome a = sheaf("quantize %s %s Q4_K_S --imatrix %s", p.in, p.out, dat),
            b = sheaf("quantize -q %s %s Q4_K_S", p.in, plain);
    expect_code(a, 0);
    expect_code(b, 0);
    expect_says(a, "does not know");
    expect_u32(p.out, "quantize.imatrix.chunks_count", 7);
    expect_u32(p.out, "quantize.imatrix.entries_count", 1);
    sheaf_gguf *x, *y;
    expect_ok(sheaf_gguf_open(p.out, &x));
    expect_ok(sheaf_gguf_open(plain, &y));
    for (int layer = 1; layer < 4; layer++) {
        uint8_t u[64 * 144], v[64 * 144];
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", layer);
        const sheaf_gguf_tensor *s = sheaf_gguf_find_tensor(x, name), *t = sheaf_gguf_find_tensor(y, name);
        expect_ok(sheaf_gguf_read(x, s, 0, u, sizeof u));
        expect_ok(sheaf_gguf_read(y, t, 0, v, sizeof v));
        cr_assert((memcmp(u, v, sizeof u) != 0) == (layer == 2), "%s", name);
    }
    sheaf_gguf_close(x), sheaf_gguf_close(y);
    outcome_free(&a), outcome_free(&b);
    remove_folder(p.folder);
}

/* --- refusals --- */

Test(quantize, wrong_words_are_usage, .timeout = 120) {
    place p = make_place();
    const char *const lines[][2] = {
        {"quantize", "an input, an output and a type"},
        {"quantize %s", "an input, an output and a type"},
        {"quantize %s %s", "an input, an output and a type"},
        {"quantize %s %s Q9_9", "unknown type"},
        {"quantize %s %s Q4_0 many", "many"},
        {"quantize %s %s Q4_0 0", "0"},
        {"quantize %s %s Q4_0 2 3", "one argument too many"},
        {"quantize %s %s Q4_0 --tensor-type ffn_up", "REGEX=TYPE"},
        {"quantize %s %s Q4_0 --tensor-type ffn_up=q9", "q9"},
        {"quantize %s %s Q4_0 --tensor-type '(=q4_0'", "at character"},
        {"quantize %s %s Q4_0 --tensor-type '=q4_0'", "REGEX=TYPE"},
        {"quantize %s %s Q4_0 --output-tensor-type i32", "i32"},
        {"quantize %s %s Q4_0 --output-tensor-type q8_0 --leave-output-tensor", "exclude"},
        {"quantize %s %s Q4_0 --keep-split", "not supported"},
        {"quantize %s %s Q4_0 --prune-layers 1", "not supported"},
        {"quantize %s %s Q2_K_S", "needs an importance matrix"},
        {"quantize %s %s Q4_0 --nonsense", "unknown option"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        outcome o = sheaf(lines[i][0], p.in, p.out);
        expect_refusal(&o, 2);
        expect_says(o, lines[i][1]);
        expect_int(count_entries(p.folder), 1);
        outcome_free(&o);
    }
    remove_folder(p.folder);
}

Test(quantize, what_is_quantized_already_needs_a_word, .timeout = 60) {
    place p = make_place();
    outcome o = sheaf("quantize %s %s Q4_0", TINY, p.out), same = sheaf("quantize -q %s %s Q8_0", TINY, p.out);
    expect_refusal(&o, 3);
    expect_says(o, "q8_0 already");
    expect_says(o, "--allow-requantize");
    expect_code(same, 0); /* nothing changes */
    outcome_free(&o), outcome_free(&same);
    remove_folder(p.folder);
}

Test(quantize, no_input_is_written_over, .timeout = 60) {
    place p = make_place();
    char link[700], hard[700], dat[700];
    size_t n, m;
    snprintf(link, sizeof link, "%s/link.gguf", p.folder);
    snprintf(hard, sizeof hard, "%s/hard.gguf", p.folder);
    snprintf(dat, sizeof dat, "%s/m.dat", p.folder);
    cr_assert(symlink(p.in, link) == 0 && linkat(-1, p.in, -1, hard, 0) == 0);
    write_dat(dat, "blk.2.ffn_up.weight", 256);
    char *before = read_file(p.in, &n);
    const char *const outs[] = {p.in, link, hard};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("quantize %s %s Q4_0", p.in, outs[i]);
        expect_refusal(&o, 2);
        expect_says(o, "it is the input too");
        outcome_free(&o);
    }
    outcome o = sheaf("quantize %s %s Q4_0 --imatrix %s", p.in, dat, dat);
    expect_refusal(&o, 2);
    char *after = read_file(p.in, &m);
    cr_assert(n == m && !memcmp(before, after, n), "the input changed");
    expect_int(count_entries(p.folder), 4);
    free(before), free(after);
    outcome_free(&o);
    remove_folder(p.folder);
}

Test(quantize, places_and_files_that_cannot_be_are_named, .timeout = 120) {
    place p = make_place();
    char fifo[700], junk[700];
    snprintf(fifo, sizeof fifo, "%s/fifo", p.folder);
    snprintf(junk, sizeof junk, "%s/junk", p.folder);
    cr_assert(mkfifo(fifo, 0600) == 0);
    write_file(junk, "\1\0\0\0\5\0\0\0blk", 11);
    const struct {
        const char *in, *out, *imatrix;
    } rows[] = {
        {"/nosuch/x.gguf", p.out, NULL},
        {p.folder, p.out, NULL},
        {junk, p.out, NULL},
        {p.in, "/nosuch/x.gguf", NULL},
        {p.in, p.folder, NULL},
        {p.in, fifo, NULL},
        {p.in, "/dev/null", NULL},
        {p.in, p.out, "/nosuch/m.dat"},
        {p.in, p.out, p.folder},
        {p.in, p.out, junk},
        {p.in, p.out, p.in},
        {p.in, p.out, fifo},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        outcome o = rows[i].imatrix
                        ? sheaf("quantize %s %s Q4_0 --imatrix %s", rows[i].in, rows[i].out, rows[i].imatrix)
                        : sheaf("quantize %s %s Q4_0", rows[i].in, rows[i].out);
        expect_refusal(&o, 3);
        expect_int(count_entries(p.folder), 3);
        outcome_free(&o);
    }
    cr_assert(exists("/dev/null"));
    remove_folder(p.folder);
}

Test(quantize, an_importance_of_another_model_is_refused, .timeout = 60) {
    place p = make_place();
    char dat[700];
    snprintf(dat, sizeof dat, "%s/m.dat", p.folder);
    write_dat(dat, "blk.2.ffn_up.weight", 128);
    outcome o = sheaf("quantize %s %s Q4_K_S --imatrix %s", p.in, p.out, dat);
    expect_refusal(&o, 3);
    expect_says(o, "128 columns");
    expect_says(o, "blk.2.ffn_up.weight");
    write_dat(dat, "token_embd.weight", 128); /* tables of tokens have none that fits: it is ignored */
    outcome table = sheaf("quantize -q %s %s Q4_K_S --imatrix %s", p.in, p.out, dat);
    expect_code(table, 0);
    outcome_free(&o), outcome_free(&table);
    remove_folder(p.folder);
}

Test(quantize, a_full_disk_is_exit_4_and_the_old_file_stays, .timeout = 60) {
    place p = make_place();
    write_file(p.out, "old", 3);
    how small = {.n_limits = 1, .limits = {{RLIMIT_FSIZE, 100000}}};
    outcome o = sheaf_how(&small, "quantize %s %s Q8_0", p.in, p.out);
    expect_refusal(&o, 4);
    expect_says(o, p.out);
    size_t n;
    char *old = read_file(p.out, &n);
    expect_text(old, "old");
    expect_int(count_entries(p.folder), 2);
    free(old);
    outcome_free(&o);
    remove_folder(p.folder);
}

Test(quantize, numbers_that_no_scale_holds_are_named, .timeout = 60) {
    place p = make_place();
    static const float bad[] = {NAN, INFINITY, 1e30f};
    for (int i = 0; i < 3; i++) {
        gguf_build *b = gguf_build_new();
        float x[256 * 64] = {0};
        x[256 * 5 + 9] = bad[i];
        gguf_build_str(b, "general.architecture", "nosuch");
        gguf_build_tensor_f32(b, "blk.0.ffn_up.weight", SHEAF_F32, 2, wide, x);
        gguf_build_file(b, p.in);
        gguf_build_free(b);
        static const char *const types[] = {"Q4_0", "Q4_K_S", "F16"};
        for (int t = 0; t < 3; t++) {
            outcome o = sheaf("quantize %s %s %s", p.in, p.out, types[t]);
            expect_refusal(&o, 3);
            expect_says(o, "blk.0.ffn_up.weight: row 5, column");
            expect_int(count_entries(p.folder), 1);
            outcome_free(&o);
        }
    }
    outcome o = sheaf("quantize -q %s %s BF16", p.in, p.out);
    expect_code(o, 0);
    outcome_free(&o);
    remove_folder(p.folder);
}

Test(quantize, a_signal_leaves_nothing, .timeout = 120) {
    static const int signals[] = {2, 15}, codes[] = {130, 143};
    place p = make_place();
    gguf_build *b = gguf_build_new();
    static const int64_t large[] = {4096, 4096};
    gguf_build_str(b, "general.architecture", "nosuch");
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", i);
        gguf_build_tensor(b, name, SHEAF_F16, 2, large, NULL);
    }
    gguf_build_file(b, p.in);
    gguf_build_free(b);
    for (int i = 0; i < 2; i++) {
        how h = {.signal = signals[i], .signal_ms = 60};
        outcome o = sheaf_how(&h, "quantize -t 1 %s %s Q2_K", p.in, p.out);
        cr_assert(o.code == codes[i] || o.code == 0, "exit %d: %s", o.code, o.err);
        expect_int(count_entries(p.folder), o.code ? 1 : 2);
        unlink(p.out);
        outcome_free(&o);
    }
    remove_folder(p.folder);
}

Test(quantize, little_memory_is_enough_or_exit_4, .timeout = 120) {
    if (SANITIZED) skip_test("sanitizers reserve terabytes of addresses");
    place p = make_place();
    static const rlim_t values[] = {2ull << 20, 4ull << 20, 8ull << 20, 16ull << 20, 64ull << 20};
    for (int i = 0; i < 5; i++) {
        how h = {.n_limits = 1, .limits = {{RLIMIT_DATA, values[i]}}};
        outcome o = sheaf_how(&h, "quantize -q -t 2 %s %s Q4_K_M", p.in, p.out);
        cr_assert(o.code == 0 || o.code == 4, "limit %d: exit %d: %s", i, o.code, o.err);
        if (i == 4) expect_code(o, 0);
        expect_int(count_entries(p.folder), o.code ? 1 : 2);
        unlink(p.out);
        outcome_free(&o);
    }
    remove_folder(p.folder);
}

Test(quantize, a_terminal_sees_a_bar, .timeout = 60) {
    place p = make_place();
    gguf_build *b = gguf_build_new();
    static const int64_t large[] = {4096, 2048};
    gguf_build_str(b, "general.architecture", "nosuch");
    gguf_build_tensor(b, "blk.0.ffn_up.weight", SHEAF_F16, 2, large, NULL);
    gguf_build_file(b, p.in);
    gguf_build_free(b);
    terminal t = terminal_open("quantize -t 1 %s %s Q4_0", p.in, p.out);
    cr_assert(terminal_wait(&t, 0, "quantizing [", 30), "shown: %s", t.shown);
    cr_assert(terminal_wait(&t, 0, "bits a weight", 30), "shown: %s", t.shown);
    expect_int(terminal_close(&t, 30), 0);
    remove_folder(p.folder);
}
