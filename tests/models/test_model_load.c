/* Loading: files that fit no architecture, numbers that make no sense, devices and memory that are not
 * there. Every error names the file and what is wrong in it; nothing stays behind. */
#include "tests/models/model_support.h"
#include "tests/support/gguf_build.h"

enum { EMBD = 32, HEADS = 4, KV_HEADS = 2, HEAD = 8, FF = 64, VOCAB = 40 };

/* What one test changes of a small whole model. */
typedef struct twist {
    const char *arch, *skip_key, *skip_tensor;
    const char *key; /* an integer key with another value */
    int64_t value;
    const char *f32_key;
    float f32_value;
    const char *text_key, *text;
    const char *kv_array; /* head_count_kv as an array: "2,2" */
    sheaf_type norm_type;
    int64_t q_rows;
    bool extra, window_of_one; /* the latter: a pattern of windows for one layer */
} twist;

static const char *arch_of(const twist *t) { return t->arch ? t->arch : "llama"; }

static void put_u32(gguf_build *b, const twist *t, const char *key, uint32_t value) {
    if (t->skip_key && !strcmp(t->skip_key, key)) return;
    if (t->key && !strcmp(t->key, key)) value = (uint32_t)t->value;
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch_of(t), key);
    gguf_build_u32(b, full, value);
}

static void put_tensor(gguf_build *b, const twist *t, const char *name, sheaf_type type, int64_t ne0, int64_t ne1) {
    if (t->skip_tensor && !strcmp(t->skip_tensor, name)) return;
    gguf_build_tensor(b, name, type, ne1 ? 2 : 1, (int64_t[]){ne0, ne1}, NULL);
}

static void put_layer(gguf_build *b, const twist *t, int il) {
    const struct {
        const char *name;
        int64_t ne0, ne1;
    } rows[] = {
        {"attn_norm", EMBD, 0},
        {"attn_q", EMBD, t->q_rows},
        {"attn_k", EMBD, KV_HEADS * HEAD},
        {"attn_v", EMBD, KV_HEADS * HEAD},
        {"attn_output", HEADS * HEAD, EMBD},
        {"ffn_norm", EMBD, 0},
        {"ffn_gate", EMBD, FF},
        {"ffn_up", EMBD, FF},
        {"ffn_down", FF, EMBD},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", il, rows[i].name);
        put_tensor(b, t, name, rows[i].ne1 ? SHEAF_F32 : t->norm_type, rows[i].ne0, rows[i].ne1);
    }
}

static void write_model(const char *path, const twist *given) {
    twist t = *given;
    if (!t.q_rows) t.q_rows = HEADS * HEAD;
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.architecture", arch_of(&t));
    put_u32(b, &t, "block_count", 2);
    put_u32(b, &t, "context_length", 64);
    put_u32(b, &t, "embedding_length", EMBD);
    put_u32(b, &t, "feed_forward_length", FF);
    put_u32(b, &t, "attention.head_count", HEADS);
    if (t.kv_array) {
        int32_t a[8], n = 0;
        for (const char *p = t.kv_array; *p; p++)
            if (*p >= '0' && *p <= '9') a[n++] = *p - '0';
        gguf_build_array(b, "llama.attention.head_count_kv", SHEAF_GGUF_I32, a, n);
    } else {
        put_u32(b, &t, "attention.head_count_kv", KV_HEADS);
    }
    char full[96];
    snprintf(full, sizeof full, "%s.attention.layer_norm_rms_epsilon", arch_of(&t));
    if (!t.skip_key || strcmp(t.skip_key, "eps") != 0) gguf_build_f32(b, full, 1e-5f);
    if (t.key && !strncmp(t.key, "extra.", 6)) {
        snprintf(full, sizeof full, "%s.%s", arch_of(&t), t.key + 6);
        gguf_build_i64(b, full, t.value);
    }
    if (t.window_of_one) {
        snprintf(full, sizeof full, "%s.attention.sliding_window_pattern", arch_of(&t));
        gguf_build_array(b, full, SHEAF_GGUF_I32, (int32_t[]){1}, 1);
    }
    if (t.f32_key) gguf_build_f32(b, t.f32_key, t.f32_value);
    if (t.text_key) gguf_build_str(b, t.text_key, t.text);
    put_tensor(b, &t, "token_embd.weight", SHEAF_F32, EMBD, VOCAB);
    for (int il = 0; il < 2; il++) put_layer(b, &t, il);
    put_tensor(b, &t, "output_norm.weight", SHEAF_F32, EMBD, 0);
    if (t.extra) put_tensor(b, &t, "blk.2.nextn.eh_proj.weight", SHEAF_F32, EMBD, EMBD);
    gguf_build_file(b, path);
    gguf_build_free(b);
}

static void start(rig *r) {
    *r = (rig){.folder = make_folder()};
    snprintf(r->path, sizeof r->path, "%s/m.gguf", r->folder);
    rig_devices(r, "cpu");
}

static sheaf_status load(rig *r, const twist *t) {
    write_model(r->path, t);
    return sheaf_model_load(r->path, &r->options, &r->model);
}

Test(model_load, a_whole_model_loads_and_says_what_it_is, .timeout = 300) {
    rig r;
    start(&r);
    expect_ok(load(&r, &(twist){.text_key = "general.name", .text = "Tiny"}));
    const sheaf_hparams *h = sheaf_model_hparams(r.model);
    expect_int(h->n_layer, 2);
    expect_int(h->n_vocab, VOCAB);
    expect_int(h->head_k, HEAD);
    expect_int(h->layer[0].n_head_kv, KV_HEADS);
    expect_int(h->rope.rope.n_dims, HEAD);
    expect_int(h->tied, true);
    expect_int(h->active_bytes, h->bytes);
    expect_text(h->name, "Tiny");
    cr_assert_null(sheaf_model_tokenizer(r.model));
    rig_end(&r);
}

Test(model_load, files_that_fit_no_architecture_are_named, .timeout = 300) {
    const struct {
        twist t;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {{.arch = "nosuch"}, SHEAF_E_UNSUPPORTED, "architecture \"nosuch\" not supported (known: "},
        {{.skip_tensor = "output_norm.weight"},
         SHEAF_E_NOT_FOUND,
         "tensor output_norm.weight not found for architecture llama"},
        {{.skip_tensor = "blk.1.ffn_down.weight"},
         SHEAF_E_NOT_FOUND,
         "tensor blk.1.ffn_down.weight not found for architecture llama"},
        {{.skip_tensor = "token_embd.weight"}, SHEAF_E_NOT_FOUND, "tensor token_embd.weight not found"},
        {{.q_rows = 31}, SHEAF_E_FORMAT, "blk.0.attn_q.weight: shape is [32, 31, 1, 1], expected [32, 32]"},
        {{.norm_type = SHEAF_F16}, SHEAF_E_UNSUPPORTED, "blk.0.attn_norm.weight: type f16 not supported here"},
        {{.key = "extra.expert_count", .value = 8}, SHEAF_E_NOT_FOUND, "llama.expert_used_count not found"},
    };
    rig r;
    start(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_status(load(&r, &cases[i].t), cases[i].status);
        expect_error(cases[i].says);
        expect_error("m.gguf");
        cr_assert_null(r.model);
        cr_assert_null(strstr(sheaf_error(), "truncated"), "a complete file is called truncated: %s", sheaf_error());
    }
    rig_end(&r);
}

Test(model_load, numbers_that_make_no_sense_are_refused, .timeout = 300) {
    const struct {
        twist t;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {{.skip_key = "block_count"}, SHEAF_E_NOT_FOUND, "llama.block_count not found"},
        {{.skip_key = "eps"}, SHEAF_E_FORMAT, "layer_norm_rms_epsilon is missing"},
        {{.key = "block_count", .value = 0}, SHEAF_E_FORMAT, "llama.block_count is 0"},
        {{.key = "block_count", .value = 0xffffffff}, SHEAF_E_FORMAT, "llama.block_count is 4294967295"},
        {{.key = "embedding_length", .value = 0}, SHEAF_E_FORMAT, "embedding_length is 0"},
        {{.key = "embedding_length", .value = 0xffffffff}, SHEAF_E_FORMAT, "embedding_length"},
        {{.key = "attention.head_count", .value = 3}, SHEAF_E_FORMAT, "3 heads are no multiple of 2 KV heads"},
        {{.key = "attention.head_count_kv", .value = 0}, SHEAF_E_FORMAT, "head_count_kv is 0"},
        {{.key = "attention.head_count", .value = 6}, SHEAF_E_FORMAT, "a width of 32 is no multiple of 6 heads"},
        {{.kv_array = "2,3"}, SHEAF_E_FORMAT, "layer 1: 4 heads are no multiple of 3 KV heads"},
        {{.kv_array = "2"}, SHEAF_E_FORMAT, "has 1 entries for 2 layers"},
        {{.key = "extra.rope.dimension_count", .value = 10}, SHEAF_E_FORMAT, "rope.dimension_count is 10"},
        {{.key = "extra.rope.dimension_count", .value = 7}, SHEAF_E_FORMAT, "odd number of dimensions (7)"},
        {{.f32_key = "llama.rope.freq_base", .f32_value = -1}, SHEAF_E_FORMAT, "freq_base is -1"},
        {{.f32_key = "llama.rope.freq_base", .f32_value = NAN}, SHEAF_E_FORMAT, "freq_base is"},
        {{.text_key = "llama.rope.scaling.type", .text = "dynamic"},
         SHEAF_E_UNSUPPORTED,
         "rope scaling \"dynamic\" not supported"},
        {{.arch = "gemma3", .key = "extra.attention.sliding_window", .value = -1},
         SHEAF_E_FORMAT,
         "gemma3.attention.sliding_window is -1"},
        {{.arch = "gemma3", .key = "extra.attention.sliding_window", .value = 8, .window_of_one = true},
         SHEAF_E_FORMAT,
         "sliding_window_pattern has 1 entries for 2 layers"},
        {{.arch = "gemma3",
          .key = "extra.attention.sliding_window",
          .value = 8,
          .f32_key = "gemma3.rope.freq_base_swa",
          .f32_value = 0},
         SHEAF_E_FORMAT,
         "freq_base_swa is 0"},
        {{.arch = "gemma2", .f32_key = "gemma2.final_logit_softcapping", .f32_value = -30},
         SHEAF_E_FORMAT,
         "a soft cap is negative"},
        {{.arch = "gpt2"}, SHEAF_E_FORMAT, "gpt2.attention.layer_norm_epsilon is missing"},
    };
    rig r;
    start(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_status(load(&r, &cases[i].t), cases[i].status);
        expect_error(cases[i].says);
        cr_assert_null(r.model);
    }
    rig_end(&r);
}

Test(model_load, an_array_of_equal_heads_and_an_unused_tensor_are_fine, .timeout = 300) {
    rig r;
    start(&r);
    expect_ok(load(&r, &(twist){.kv_array = "2,2", .extra = true}));
    expect_int(sheaf_model_hparams(r.model)->layer[1].n_head_kv, 2);
    rig_end(&r);
}

Test(model_load, wrong_device_options_are_refused, .timeout = 300) {
    rig r;
    start(&r);
    r.options.split_mode = SHEAF_SPLIT_LAYER;
    expect_status(load(&r, &(twist){0}), SHEAF_E_UNSUPPORTED);
    r.options.split_mode = SHEAF_SPLIT_TENSOR;
    r.options.tensor_split = (float[]){1, 2};
    r.options.n_tensor_split = 2;
    expect_status(load(&r, &(twist){0}), SHEAF_E_ARGUMENT);
    expect_error("2 shares for 1 devices");
    r.options.tensor_split = NULL;
    r.options.split_table = "nonsense here\n";
    r.options.split_table_bytes = strlen(r.options.split_table);
    cr_assert(load(&r, &(twist){0}) != SHEAF_OK, "a nonsense table was accepted");
    rig_end(&r);
}

/* A device that tells of less memory than it has. */
typedef struct tight {
    sheaf_device *device;
    const sheaf_device_iface *own;
    sheaf_device_iface iface;
} tight;
static const sheaf_device *tight_first;
static size_t tight_free[2];

static sheaf_status tight_memory(sheaf_device *d, size_t *total, size_t *free_bytes) {
    *total = SIZE_MAX;
    *free_bytes = tight_free[d != tight_first];
    return SHEAF_OK;
}

static void tighten(tight *t, sheaf_device *d) {
    *t = (tight){d, d->iface, *d->iface};
    t->iface.memory = tight_memory;
    d->iface = &t->iface;
}

/* Loads on two devices that tell of `a` and `b` bytes; on success what the first holds of the weights. */
static sheaf_status load_tight(rig *r, size_t a, size_t b, size_t *held) {
    tight t[2];
    sheaf_memory_row row;
    for (int i = 0; i < 2; i++) tighten(&t[i], r->devices[i]);
    tight_first = r->devices[0];
    tight_free[0] = a;
    tight_free[1] = b;
    sheaf_status s = sheaf_model_load(r->path, &r->options, &r->model);
    tight_free[0] = tight_free[1] = SIZE_MAX;
    for (int i = 0; !s && i < 2; i++) {
        sheaf_context_options o = sheaf_context_defaults();
        o.n_ctx = 64;
        expect_ok(sheaf_context_new(r->model, &o, &r->context));
        cr_assert(sheaf_context_memory(r->context, i, &row), "no row of device %d", i);
        held[i] = row.weight_bytes;
        sheaf_context_free(r->context);
    }
    sheaf_model_free(r->model);
    r->context = NULL;
    r->model = NULL;
    for (int i = 0; i < 2; i++) t[i].device->iface = t[i].own;
    return s;
}

/* Three parts of four on the first device, and what is mirrored on both: halves of the whole do not tell. */
Test(model_load, each_device_must_have_room_for_its_own_shards, .timeout = 300) {
    rig r;
    size_t held[2];
    rig_file(&r, "h9k3-f32");
    rig_devices(&r, "cpu/2");
    r.options.tensor_split = (float[]){3, 1};
    r.options.n_tensor_split = 2;
    expect_ok(load_tight(&r, SIZE_MAX, SIZE_MAX, held));
    cr_assert_gt(held[0], held[1] + held[1] / 4, "%zu and %zu bytes", held[0], held[1]);
    size_t first = held[0], second = held[1];
    expect_status(load_tight(&r, (first + second) / 2, SIZE_MAX, held), SHEAF_E_NO_MEMORY);
    expect_error(r.devices[0]->name);
    expect_error("MiB needed");
    expect_status(load_tight(&r, first, second / 2, held), SHEAF_E_NO_MEMORY);
    expect_error(r.devices[1]->name);
    expect_ok(load_tight(&r, first, second, held));
    rig_end(&r);
}

static bool stop_half_way(void *ctx, float done) {
    *(float *)ctx = done;
    return done < 0.5f;
}

Test(model_load, progress_reaches_one_and_can_cancel, .timeout = 300) {
    for (int mapped = 0; mapped < 2; mapped++) {
        rig r;
        float done = 0;
        start(&r);
        r.options.no_mmap = !mapped;
        r.options.progress = stop_half_way;
        r.options.progress_ctx = &done;
        expect_status(load(&r, &(twist){0}), SHEAF_E_CANCELLED);
        cr_assert(done >= 0.5f, "stopped at %g", (double)done);
        cr_assert_null(r.model);
        rig_end(&r);
    }
}

Test(model_load, mapped_and_read_give_the_same_bits, .timeout = 300) {
    uint64_t hash[2];
    for (int mapped = 0; mapped < 2; mapped++) {
        rig r;
        rig_file(&r, "h9k3-q8_0");
        rig_devices(&r, "cpu");
        r.options.no_mmap = !mapped;
        rig_load(&r, NULL);
        sheaf_batch b = {.n = 4, .token = (int32_t[]){1, 2, 3, 4}};
        expect_ok(sheaf_decode(r.context, &b));
        hash[mapped] = sheaf_logits_hash(r.context, 0);
        rig_end(&r);
    }
    cr_assert(hash[0] == hash[1], "read %016llx, mapped %016llx", (unsigned long long)hash[0],
              (unsigned long long)hash[1]);
}

/* Writes over a file `skip` bytes after the start of a key's name. */
static void patch_key(const char *path, const char *key, size_t skip, const void *data, size_t n_data) {
    static char bytes[64 << 10]; /* keys come first */
    FILE *f = fopen(path, "r+b");
    cr_assert_not_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    char *at = memmem(bytes, n, key, strlen(key));
    cr_assert(at != NULL, "no %s in %zu bytes", key, n);
    fseek(f, at - bytes + (long)skip, SEEK_SET);
    cr_assert(fwrite(data, n_data, 1, f) == 1 && fclose(f) == 0);
}

/* Sets a key of a file, an integer of `size` bytes or a boolean of one, to another value. */
static void set_key(const char *path, const char *key, uint32_t value, size_t size) {
    patch_key(path, key, strlen(key) + 4, &value, size); /* the key, its type, the value */
}

static void rename_key(const char *path, const char *key) { patch_key(path, key, strlen(key) - 1, "_", 1); }

/* 16 experts, 4 of a token, in 2 of 4 groups; sigmoids. */
Test(model_load, groups_of_experts_that_cannot_be_are_named, .timeout = 300) {
    static const char count[] = "deepseek2.expert_group_count", used[] = "deepseek2.expert_group_used_count";
    static const struct {
        const char *key;
        uint32_t value;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {count, 3, SHEAF_E_FORMAT, "16 experts in 3 groups"},
        {count, 32, SHEAF_E_FORMAT, "16 experts in 32 groups"},
        {count, 16, SHEAF_E_FORMAT, "16 experts in 16 groups"}, /* two of these are two experts */
        {used, 0, SHEAF_E_FORMAT, "expert_group_used_count"},
        {used, 5, SHEAF_E_FORMAT, "expert_group_used_count"},
        {"deepseek2.expert_used_count", 9, SHEAF_E_FORMAT, "9 of 2 groups"},
        {"deepseek2.expert_used_count", 8, SHEAF_OK, NULL},
        {"deepseek2.expert_gating_func", 3, SHEAF_E_UNSUPPORTED, "groups of 4 experts"},
        {count, 0, SHEAF_OK, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_file(&r, "deepseek3-f32");
        set_key(r.path, cases[i].key, cases[i].value, 4);
        rig_devices(&r, "cpu");
        expect_status(sheaf_model_load(r.path, &r.options, &r.model), cases[i].status);
        if (cases[i].says) expect_error(cases[i].says);
        rig_end(&r);
    }
}

static const sheaf_hparams *loaded(rig *r, const char *name, const char *key, uint8_t value, size_t bytes) {
    rig_file(r, name);
    if (key) set_key(r->path, key, value, bytes);
    rig_devices(r, "cpu");
    expect_ok(sheaf_model_load(r->path, &r->options, &r->model));
    return sheaf_model_hparams(r->model);
}

/* DeepSeek's file says all that weighs its experts: sigmoids with shares normed, where the family's are neither. */
Test(model_load, a_file_says_how_experts_are_weighed_else_the_family, .timeout = 300) {
    static const char norm[] = "deepseek2.expert_weights_norm", gating[] = "deepseek2.expert_gating_func";
    const struct {
        const char *name, *key;
        uint8_t value;
        size_t bytes;
        sheaf_gating gating;
        bool norm;
    } cases[] = {
        {"deepseek3-f32", NULL, 0, 0, SHEAF_GATING_SIGMOID, true},
        {"deepseek3-f32", norm, 0, 1, SHEAF_GATING_SIGMOID, false},
        {"deepseek3-f32", gating, SHEAF_GATING_SOFT_MAX, 4, SHEAF_GATING_SOFT_MAX, true},
        {"deepseek3-f32", gating, 0, 4, SHEAF_GATING_SOFT_MAX, true}, /* 0: not said */
        {"deepseek2-f32", NULL, 0, 0, SHEAF_GATING_SOFT_MAX, false},
        {"qwen3moe-f32", NULL, 0, 0, SHEAF_GATING_SOFT_MAX, true},
        {"olmoe-f32", NULL, 0, 0, SHEAF_GATING_SOFT_MAX, false},
        {"gpt-oss-f32", NULL, 0, 0, SHEAF_GATING_SOFT_MAX_CHOSEN, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        const sheaf_hparams *h = loaded(&r, cases[i].name, cases[i].key, cases[i].value, cases[i].bytes);
        cr_assert(h->expert_gating == cases[i].gating && h->expert_norm == cases[i].norm,
                  "row %zu, %s: gating %d and norm %d, expected %d and %d", i, cases[i].name, (int)h->expert_gating,
                  h->expert_norm, (int)cases[i].gating, cases[i].norm);
        rig_end(&r);
    }
}

/* A key by another name of the same length is a key that is absent. */
Test(model_load, gpt_oss_without_a_window_in_the_file_has_one_of_128, .timeout = 300) {
    rig r;
    expect_int(loaded(&r, "gpt-oss-f32", NULL, 0, 0)->window, 9);
    rig_unload(&r);
    rename_key(r.path, "gpt-oss.attention.sliding_window");
    rig_devices(&r, "cpu");
    expect_ok(sheaf_model_load(r.path, &r.options, &r.model));
    expect_int(sheaf_model_hparams(r.model)->window, 128);
    rig_end(&r);
}

static sheaf_status load_again(void *ctx) {
    rig *r = ctx;
    sheaf_context_options o = sheaf_context_defaults();
    o.n_ctx = 32;
    sheaf_status s = sheaf_model_load(r->path, &r->options, &r->model);
    if (!s) s = sheaf_context_new(r->model, &o, &r->context);
    sheaf_context_free(r->context);
    sheaf_model_free(r->model);
    r->context = NULL;
    r->model = NULL;
    return s;
}

Test(model_load, every_failed_allocation_is_a_clean_status, .timeout = 600) {
    for (int mapped = 0; mapped < 2; mapped++) {
        rig r;
        start(&r);
        write_model(r.path, &(twist){0});
        r.options.no_mmap = !mapped;
        int failed = fail_each_allocation(load_again, &r);
        cr_assert(failed > 50, "only %d allocations were failed", failed);
        rig_end(&r);
    }
}
