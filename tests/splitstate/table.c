/* Split tables as text: what is read, what is refused and how it is said. */
#include "support.h"

#include <math.h>

static const char *const header = "group attention heads 6 3\ngroup ffn columns\n";

/* Parses header + line; the error text ("" if it was read). */
static const char *parse(const char *line, char *text, size_t n) {
    sheaf_policy *p;
    snprintf(text, n, "%s%s\n", header, line);
    sheaf_error_clear();
    sheaf_status s = sheaf_policy_new(text, strlen(text), &p);
    cr_assert(s == SHEAF_OK || s == SHEAF_E_FORMAT, "'%s': %s", line, sheaf_status_name(s));
    cr_assert_eq(s == SHEAF_OK, p != NULL, "'%s'", line);
    sheaf_policy_free(p);
    return s ? sheaf_error() : "";
}

Test(table, mistakes_are_named_with_their_line, .timeout = 60) {
    static const struct {
        const char *line, *error;
    } rows[] = {
        {"w ffn 0", ""},
        {"w ffn 1 u,u", ""},
        {"w mirrored", ""},
        {"w attention 1 q,kv,kv   # fused", ""},
        {"w attention 1 q:64,kv:attention.value_length", ""},
        {"group vocabulary rows unit=64\nw vocabulary 1", ""},
        {"\tw\tffn\t0\r", ""},
        {"w", "line 3: PATTERN GROUP AXIS [PARTS], or PATTERN mirrored"},
        {"w ffn", "line 3: PATTERN GROUP AXIS"},
        {"w nosuch 0", "line 3: no group 'nosuch' above"},
        {"w ffn 4", "line 3: axis '4', not 0 to 3"},
        {"w ffn -1", "line 3: axis '-1'"},
        {"w ffn 0 q", "line 3: part 'q' where u was expected"},
        {"w attention 1", "line 3: parts (q, kv) are missing"},
        {"w attention 1 q,x", "line 3: part 'x' where q or kv was expected"},
        {"w attention 1 ,", "line 3: no parts"},
        {"w ffn 0 u u", "line 3: PATTERN GROUP AXIS"},
        {"w ffn 0 u,u,u,u,u,u,u,u,u", "line 3: more than 8 parts"},
        {"a b c d e f g h i", "line 3: more than 8 words"},
        {"w( ffn 0", "line 3: pattern 'w(' at"},
        {"group ffn columns", "line 3: group ffn is taken"},
        {"group mirrored columns", "line 3: group mirrored is taken"},
        {"group x", "line 3: group x heads COUNT KV_COUNT, columns or rows"},
        {"group x slices", "line 3: group x heads COUNT KV_COUNT, columns or rows"},
        {"group x heads 4", "line 3: 4 words for group x"},
        {"group x columns unit=0", "line 3: 'unit=0' where unit=N was expected"},
        {"group x columns unit=9999999999", "where unit=N was expected"},
        {"group x columns step=4", "line 3: 'step=4' where unit=N was expected"},
        {"group a-name-that-is-much-longer-than-it-may-be columns", "is too long"},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *error = parse(rows[i].line, text, sizeof text);
        bool as_said = rows[i].error[0] ? strstr(error, rows[i].error) != NULL : error[0] == 0;
        cr_assert(as_said, "'%s': '%s', expected '%s'", rows[i].line, error, rows[i].error);
    }
}

Test(table, bytes_that_are_no_table_are_refused, .timeout = 60) {
    sheaf_policy *p;
    cr_assert_eq(sheaf_policy_new("", 0, &p), SHEAF_E_FORMAT, "%s", sheaf_error());
    cr_assert_eq(sheaf_policy_new("a\0b mirrored", 12, &p), SHEAF_E_FORMAT, "%s", sheaf_error());
    cr_assert_not_null(strstr(sheaf_error(), "a zero byte"), "%s", sheaf_error());
    static char longest[5000];
    memset(longest, 'x', sizeof longest);
    cr_assert_eq(sheaf_policy_new(longest, sizeof longest, &p), SHEAF_E_FORMAT, "%s", sheaf_error());
    /* any bytes at all: an error or a table, never a crash */
    rng r = {99};
    for (int round = 0; round < 2000; round++) {
        char noise[64];
        static const char letters[] = "abgroup mirrored heads columns01 #\n\t()*\\.,:|=unit";
        for (size_t i = 0; i < sizeof noise; i++) noise[i] = letters[below(&r, (int64_t)sizeof letters - 1)];
        sheaf_policy_new(noise, sizeof noise, &p);
        sheaf_policy_free(p);
    }
}

Test(table, built_in_ones_are_found_by_architecture, .timeout = 60) {
    sheaf_policy *p;
    cr_assert_eq(sheaf_policy_builtin("llama", &p), SHEAF_OK, "%s", sheaf_error());
    sheaf_policy_free(p);
    cr_assert_not_null(strstr(sheaf_policy_builtin_text("llama"), "blk\\.(\\d+)\\.attn_q\\.weight"),
                       "the text is kept as it is");
    cr_assert_eq(sheaf_policy_builtin("nosuch", &p), SHEAF_E_NOT_FOUND, "%s", sheaf_error());
    cr_assert_not_null(strstr(sheaf_error(), "'nosuch'"), "%s", sheaf_error());
    cr_assert_not_null(strstr(sheaf_error_hint_text(), "--split-table"), "%s", sheaf_error_hint_text());
    cr_assert_null(sheaf_policy_builtin_text("nosuch"));
}

/* --- placing with a table ------------------------------------------------------------------------------------ */

static sheaf_status no_keys(void *ctx, const char *key, int64_t *out) {
    (void)ctx, (void)key, (void)out;
    return SHEAF_E_NOT_FOUND;
}

typedef struct placed {
    sheaf_status status;
    char text[8][256];
    int32_t segment[8];
    char error[512];
} placed;

static void place(const char *table, const sheaf_named *tensors, int n, int n_devices, const float *weights,
                  int pack_rows, placed *out) {
    sheaf_policy *p;
    sheaf_placement places[8];
    sheaf_arena *a;
    cr_assert_eq(sheaf_policy_new(table, strlen(table), &p), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_policy_env env = {.get = no_keys, .n_devices = n_devices, .weights = weights, .pack_rows = pack_rows};
    out->status = sheaf_policy_place(p, &env, tensors, n, a, places, NULL);
    snprintf(out->error, sizeof out->error, "%s", out->status ? sheaf_error() : "");
    for (int i = 0; i < n && !out->status; i++) {
        sheaf_layout_text(&places[i].layout, out->text[i], sizeof out->text[i]);
        out->segment[i] = places[i].segment;
    }
    sheaf_arena_free(a);
    sheaf_policy_free(p);
}

Test(table, mistakes_in_placing_name_line_and_tensor, .timeout = 60) {
    static const struct {
        const char *table, *name;
        sheaf_type type;
        int64_t ne0, ne1;
        sheaf_status status;
        const char *error;
    } rows[] = {
        {"group f columns\nw f 0\n", "x", SHEAF_F32, 64, 64, SHEAF_E_FORMAT, "lines 2 to 2: no row matches x"},
        {"group f columns\n# a remark\nw f 0\nv f 0\n", "x", SHEAF_F32, 64, 64, SHEAF_E_FORMAT,
         "lines 3 to 4: no row matches x"},
        {"group f columns\nw f 0\n", "w", SHEAF_Q8_0, 33, 64, SHEAF_E_SHAPE, "line 2: w: rows are not whole blocks"},
        {"group f columns\nw f 0\nw.* f 1\n", "w", SHEAF_F32, 64, 64, SHEAF_E_FORMAT, "lines 2 and 3 both match w"},
        {"group h heads count 1\nw h 0 q\n", "w", SHEAF_F32, 64, 64, SHEAF_E_NOT_FOUND,
         "line 1: the model does not give count"},
        {"group h heads 6 4\nw h 0 q\n", "w", SHEAF_F32, 60, 64, SHEAF_E_FORMAT,
         "line 1: 6 query heads over 4 KV heads"},
        {"group h heads 6 3\nw h 0 q\n", "w", SHEAF_F32, 64, 64, SHEAF_E_SHAPE,
         "line 2: w: 64 elements of dimension 0"},
        {"group h heads 6 3\nw h 0 q:8\n", "w", SHEAF_F32, 60, 64, SHEAF_E_SHAPE, "line 2: w: 60 elements"},
        {"group h heads 6 3\nw h 0 q,kv\n", "w", SHEAF_F32, 90, 64, SHEAF_OK, ""},
        {"group f columns unit=48\nw f 0\n", "w", SHEAF_Q8_0, 192, 64, SHEAF_E_SHAPE,
         "line 1: group f: w: a unit of 48 of 192 columns cuts a block of 32"},
        {"group f columns unit=80\nw f 0\n", "w", SHEAF_F32, 192, 64, SHEAF_E_SHAPE, "a unit of 80 of 192 columns"},
        {"group f columns\nw f 1 u,u\n", "w", SHEAF_F32, 64, 63, SHEAF_E_SHAPE,
         "line 2: w: 63 elements of dimension 1"},
        /* 2^19 ways to take the letters apart: fewer than the regex library's own limit */
        {"group f columns\n(a+)+[bc] f 0\n", "aaaaaaaaaaaaaaaaaaad", SHEAF_F32, 64, 64, SHEAF_E_FORMAT,
         "line 2: pattern gives up on 'aaaaaaaaaaaaaaaaaaad'"},
    };
    placed got;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_named t = {rows[i].name, rows[i].type, {rows[i].ne0, rows[i].ne1, 1, 1}};
        place(rows[i].table, &t, 1, 2, NULL, 1, &got);
        cr_assert_eq(got.status, rows[i].status, "row %zu: %s (%s)", i, sheaf_status_name(got.status), got.error);
        cr_assert_not_null(strstr(got.error, rows[i].error), "row %zu: '%s', expected '%s'", i, got.error,
                           rows[i].error);
    }
    sheaf_named two[] = {{"up", SHEAF_F32, {64, 96, 1, 1}}, {"down", SHEAF_F32, {128, 64, 1, 1}}};
    place("group f columns\nup f 1\ndown f 0\n", two, 2, 2, NULL, 1, &got);
    cr_assert_eq(got.status, SHEAF_E_SHAPE, "%s", got.error);
    cr_assert_not_null(strstr(got.error, "down has 128 columns, up has 96"), "%s", got.error);
}

/* Case A10: a fused tensor is cut part by part. */
Test(table, fused_tensors_are_cut_part_by_part, .timeout = 60) {
    sheaf_named t[] = {{"qkv", SHEAF_F32, {64, 12 * 8, 1, 1}},
                       {"gate_up", SHEAF_F32, {64, 2 * 512, 1, 1}},
                       {"down", SHEAF_F32, {512, 64, 1, 1}}};
    const char *table = "group a heads 6 3\ngroup f columns\nqkv a 1 q,kv,kv\ngate_up f 1 u,u\ndown f 0\n";
    placed got;
    place(table, t, 3, 2, NULL, 1, &got);
    cr_assert_eq(got.status, SHEAF_OK, "%s", got.error);
    cr_assert_str_eq(got.text[0], "AXIS(1) [24:{0}] [24:{1}] [8:{0}] [8:{0,1}] [8:{1}] [8:{0}] [8:{0,1}] [8:{1}]", "%s",
                     got.text[0]);
    cr_assert_str_eq(got.text[1], "AXIS(1) [256:{0}] [256:{1}] [256:{0}] [256:{1}]", "%s", got.text[1]);
    cr_assert_str_eq(got.text[2], "AXIS(0) [256:{0}] [256:{1}]", "%s", got.text[2]);
    float weights[] = {1, 2};
    place(table, t, 3, 2, weights, 1, &got);
    cr_assert_str_eq(got.text[0], "AXIS(1) [16:{0}] [32:{1}] [8:{0}] [16:{1}] [8:{0}] [16:{1}]", "%s", got.text[0]);
}

/* KV heads of 16 in blocks of 32 go in twos: a device that reads one of them holds both. */
Test(table, kv_heads_are_held_in_whole_blocks, .timeout = 60) {
    sheaf_named t = {"w", SHEAF_Q8_0, {8 * 32 + 4 * 16, 64, 1, 1}};
    placed got;
    place("group g heads 8 4\nw g 0 q:32,kv:16\n", &t, 1, 4, NULL, 1, &got);
    cr_assert_eq(got.status, SHEAF_OK, "%s", got.error);
    cr_assert_str_eq(got.text[0], "AXIS(0) [64:{0}] [64:{1}] [64:{2}] [64:{3}] [32:{0,1}] [32:{2,3}]", "%s",
                     got.text[0]);
}

/* Cases A04, A09, A15: shares that do not divide, blocks, devices that get nothing. */
Test(table, shares_follow_weights_units_and_packing, .timeout = 60) {
    static const struct {
        const char *group;
        sheaf_type type;
        int64_t n;
        int n_devices;
        float weights[4];
        int pack;
        const char *expect;
        int32_t segment;
    } rows[] = {
        {"heads 9 3", SHEAF_F32, 9 * 64, 2, {1, 1}, 1, "AXIS(0) [320:{0}] [256:{1}]", 64},
        {"heads 9 3", SHEAF_F32, 9 * 64, 4, {1, 1, 1, 1}, 1, "AXIS(0) [192:{0}] [128:{1}] [128:{2}] [128:{3}]", 64},
        {"heads 9 3", SHEAF_F32, 9 * 64, 2, {1, 0}, 1, "AXIS(0) [576:{0}]", 64},
        {"heads 9 3", SHEAF_F32, 9 * 64, 2, {0, 1}, 1, "AXIS(0) [576:{1}]", 64},
        {"heads 2 2", SHEAF_F32, 2 * 64, 4, {1, 1, 1, 1}, 1, "AXIS(0) [64:{0}] [64:{1}]", 64},
        {"heads 8 8", SHEAF_Q4_K, 8 * 64, 2, {1, 1}, 1, "AXIS(0) [256:{0}] [256:{1}]", 256},
        {"heads 6 6", SHEAF_Q8_0, 6 * 80, 2, {1, 1}, 1, "AXIS(0) [320:{0}] [160:{1}]", 160},
        {"heads 8 8", SHEAF_F32, 8 * 512, 2, {1, 1}, 1, "AXIS(0) [2048:{0}] [2048:{1}]", 256},
        {"columns", SHEAF_Q8_0, 1408, 3, {1, 1, 1}, 1, "AXIS(0) [512:{0}] [512:{1}] [384:{2}]", 64},
        {"columns", SHEAF_Q4_K, 768, 2, {1, 1}, 1, "AXIS(0) [512:{0}] [256:{1}]", 256},
        {"columns", SHEAF_Q4_K, 768, 4, {1, 1, 1, 1}, 1, "AXIS(0) [256:{0}] [256:{1}] [256:{2}]", 256},
        {"columns", SHEAF_F32, 100, 2, {1, 1}, 1, "AXIS(0) [50:{0}] [50:{1}]", 25},
        {"columns", SHEAF_F32, 4864, 2, {1, 1}, 1, "AXIS(0) [2432:{0}] [2432:{1}]", 128},
        {"columns", SHEAF_F32, 4096, 2, {3, 1}, 1, "AXIS(0) [3072:{0}] [1024:{1}]", 256},
        {"columns unit=16", SHEAF_F32, 64, 4, {1, 1, 1, 1}, 1, "AXIS(0) [16:{0}] [16:{1}] [16:{2}] [16:{3}]", 16},
        {"rows", SHEAF_F32, 32003, 2, {1, 1}, 1, "AXIS(0) [16128:{0}] [15875:{1}]", 128},
    };
    placed got;
    char table[128];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool heads = strncmp(rows[i].group, "heads", 5) == 0;
        snprintf(table, sizeof table, "group g %s\nw g 0%s\n", rows[i].group, heads ? " q" : "");
        sheaf_named t = {"w", rows[i].type, {rows[i].n, 64, 1, 1}};
        place(table, &t, 1, rows[i].n_devices, rows[i].weights, rows[i].pack, &got);
        cr_assert_eq(got.status, SHEAF_OK, "row %zu: %s", i, got.error);
        cr_assert_str_eq(got.text[0], rows[i].expect, "row %zu (%s): %s, expected %s", i, rows[i].group, got.text[0],
                         rows[i].expect);
        cr_assert_eq(got.segment[0], rows[i].segment, "row %zu: segment %d, expected %d", i, got.segment[0],
                     rows[i].segment);
    }
    /* packing of 16 rows: heads of 24 go in twos, whatever the number of devices */
    sheaf_named q = {"w", SHEAF_F32, {64, 6 * 24, 1, 1}};
    float even[] = {1, 1, 1};
    place("group g heads 6 3\nw g 1 q\n", &q, 1, 2, even, 16, &got);
    cr_assert_str_eq(got.text[0], "AXIS(1) [96:{0}] [48:{1}]", "%s", got.text[0]);
}

Test(table, weights_that_are_none_are_refused, .timeout = 60) {
    sheaf_named t = {"w", SHEAF_F32, {64, 64, 1, 1}};
    static const float rows[][2] = {{0, 0}, {-1, 2}, {NAN, 1}, {INFINITY, 1}};
    placed got;
    for (size_t i = 0; i < 4; i++) {
        place("group f columns\nw f 0\n", &t, 1, 2, rows[i], 1, &got);
        cr_assert_eq(got.status, SHEAF_E_ARGUMENT, "row %zu: %s", i, sheaf_status_name(got.status));
    }
    place("group f columns\nw f 0\n", &t, 1, 65, NULL, 1, &got);
    cr_assert_eq(got.status, SHEAF_E_ARGUMENT, "%s", sheaf_status_name(got.status));
}

/* Heads that differ by layer are asked for by layer first (case A03). */
static sheaf_status by_layer(void *ctx, const char *key, int64_t *out) {
    (void)ctx;
    if (strcmp(key, "heads[1]") == 0) return *out = 8, SHEAF_OK;
    if (strcmp(key, "heads") == 0) return *out = 6, SHEAF_OK;
    return SHEAF_E_NOT_FOUND;
}

Test(table, counts_may_differ_by_layer, .timeout = 60) {
    sheaf_policy *p;
    sheaf_placement places[2];
    sheaf_arena *a;
    char text[2][128];
    const char *table = "group a heads heads missing|heads\nblk\\.(\\d+)\\.q a 0 q\n";
    cr_assert_eq(sheaf_policy_new(table, strlen(table), &p), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_named t[] = {{"blk.0.q", SHEAF_F32, {48, 48, 1, 1}}, {"blk.1.q", SHEAF_F32, {64, 48, 1, 1}}};
    sheaf_policy_env env = {.get = by_layer, .n_devices = 4, .pack_rows = 1};
    cr_assert_eq(sheaf_policy_place(p, &env, t, 2, a, places, NULL), SHEAF_OK, "%s", sheaf_error());
    for (int i = 0; i < 2; i++) sheaf_layout_text(&places[i].layout, text[i], sizeof text[i]);
    cr_assert_str_eq(text[0], "AXIS(0) [16:{0}] [16:{1}] [8:{2}] [8:{3}]", "%s", text[0]);
    cr_assert_str_eq(text[1], "AXIS(0) [16:{0}] [16:{1}] [16:{2}] [16:{3}]", "%s", text[1]);
    sheaf_arena_free(a);
    sheaf_policy_free(p);
}
