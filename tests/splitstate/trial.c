/* Tensor lists as text, and tables tried on them: no model, no device. */
#include "support.h"

#include <math.h>

/* Reads a list; the error text ("" if it was read). */
static const char *read_list(const char *text, size_t n, sheaf_tensor_list **l) {
    sheaf_error_clear();
    sheaf_status s = sheaf_tensor_list_new(text, n, l);
    cr_assert(s == SHEAF_OK || s == SHEAF_E_FORMAT, "'%s': %s", text, sheaf_status_name(s));
    cr_assert_eq(s == SHEAF_OK, *l != NULL, "'%s'", text);
    return s ? sheaf_error() : "";
}

Test(tensor_list, holds_names_shapes_types_and_keys, .timeout = 60) {
    static const char text[] = "general.architecture = llama\nllama.attention.head_count = 32 # a remark\n"
                               "llama.attention.head_count[3] = 16\r\nblock_count=7\n\n"
                               "token_embd.weight 64 1000 q8_0\nblk.{0-2,7}.attn_q.weight, 64 32 4, F16\nx 8 f32";
    static const char *const names[] = {"token_embd.weight",   "blk.0.attn_q.weight", "blk.1.attn_q.weight",
                                        "blk.2.attn_q.weight", "blk.7.attn_q.weight", "x"};
    sheaf_tensor_list *l;
    int n;
    int64_t x;
    const char *error = read_list(text, strlen(text), &l);
    cr_assert_str_eq(error, "", "%s", error);
    const sheaf_named *t = sheaf_tensor_list_items(l, &n);
    cr_assert_eq(n, 6, "%d tensors", n);
    for (int i = 0; i < n; i++) cr_assert_str_eq(t[i].name, names[i], "%d: %s", i, t[i].name);
    cr_assert(t[0].type == SHEAF_Q8_0 && t[0].ne[0] == 64 && t[0].ne[1] == 1000 && t[0].ne[2] == 1);
    cr_assert(t[4].type == SHEAF_F16 && t[4].ne[2] == 4 && t[5].ne[0] == 8 && t[5].ne[1] == 1);
    cr_assert_str_eq(sheaf_tensor_list_architecture(l), "llama");
    cr_assert(sheaf_tensor_list_get(l, "attention.head_count", &x) == SHEAF_OK && x == 32, "%" PRId64, x);
    cr_assert(sheaf_tensor_list_get(l, "attention.head_count[3]", &x) == SHEAF_OK && x == 16, "%" PRId64, x);
    cr_assert(sheaf_tensor_list_get(l, "block_count", &x) == SHEAF_OK && x == 7, "%" PRId64, x);
    cr_assert_eq(sheaf_tensor_list_get(l, "head_count_kv", &x), SHEAF_E_NOT_FOUND);
    sheaf_tensor_list_free(l);
}

Test(tensor_list, mistakes_are_named_with_their_line, .timeout = 60) {
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", "it names no tensor"},
        {"# nothing\na.b = 1\n", "it names no tensor"},
        {"x", "line 1: x: a line is: name, ne0 [ne1 ...], type"},
        {"x 8", "line 1: x: a line is"},
        {"\nx f32", "line 2: x: a line is"},
        {"x 8 f32 more", "line 1: x: a line is"},
        {"x 8 nosuch", "line 1: x: a line is"},
        {",", "line 1: : a line is"},
        {"x 0 f32", "line 1: x: 0: one to four sizes"},
        {"x -8 f32", "line 1: x: -8: one to four sizes"},
        {"x 8x f32", "line 1: x: 8x: one to four sizes"},
        {"x 1 2 3 4 5 f32", "line 1: x: 5: one to four sizes"},
        {"x 99999999999999999999 f32", "one to four sizes"},
        {"x 33 q8_0", "line 1: x: no whole blocks of q8_0"},
        {"x 9223372036854775807 9223372036854775807 f32", "more than any memory"},
        {"x 4611686018427387904 4 f32", "more than any memory"},
        {"a = 1\na = 2\nx 8 f32", "line 2: a stands twice"},
        {"a = 1.5\nx 8 f32", "line 1: a = 1.5: not a whole number"},
        {"a =\nx 8 f32", "line 1: a = : not a whole number"},
        {"x 8 f32\nx 8 f32", "x stands twice"},
        {"b.{0-3}.x 8 f32\nb.2.x 8 f32", "b.2.x stands twice"},
        {"b.{}.x 8 f32", "line 1: b.{}.x: braces hold numbers and ranges"},
        {"b.{3.x 8 f32", "line 1: b.{3.x 8 f32: a line is"},
        {"b.{3-}.x 8 f32", "braces hold"},
        {"b.{3-1}.x 8 f32", "braces hold"},
        {"b.{-3}.x 8 f32", "braces hold"},
        {"b.{1;2}.x 8 f32", "braces hold"},
        {"b.{1,}.x 8 f32", "braces hold"},
        {"b.{0-99999999}.x 8 f32", "braces hold"},
        {"b.{0-9223372036854775807}.x 8 f32", "braces hold"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_tensor_list *l;
        const char *error = read_list(rows[i].text, strlen(rows[i].text), &l);
        cr_assert_not_null(strstr(error, rows[i].error), "'%s': '%s', expected '%s'", rows[i].text, error,
                           rows[i].error);
    }
    sheaf_tensor_list *l;
    const char *error = read_list("x 8 f32\n\0y", 10, &l);
    cr_assert_not_null(strstr(error, "a zero byte"), "%s", error);
}

Test(tensor_list, any_bytes_are_a_list_or_an_error, .timeout = 60) {
    static const char letters[] = "blk.{}0123-,=# \n\tf32q8_0xy";
    rng r = {7};
    for (int round = 0; round < 20000; round++) {
        char noise[48];
        sheaf_tensor_list *l;
        for (size_t i = 0; i < sizeof noise; i++) noise[i] = letters[below(&r, (int64_t)sizeof letters - 1)];
        (void)sheaf_tensor_list_new(noise, sizeof noise, &l);
        sheaf_tensor_list_free(l);
    }
}

/* --- tables tried --------------------------------------------------------------------------------------------- */

static const char gpt2[] = "general.architecture = gpt2\ngpt2.attention.head_count = 12\n"
                           "token_embd.weight 768 50257 f16\noutput_norm.weight 768 f32\noutput_norm.bias 768 f32\n"
                           "blk.{0-11}.attn_qkv.weight 768 2304 f16\nblk.{0-11}.attn_qkv.bias 2304 f32\n"
                           "blk.{0-11}.attn_output.weight 768 768 f16\nblk.{0-11}.attn_output.bias 768 f32\n"
                           "blk.{0-11}.ffn_up.weight 768 3072 f16\nblk.{0-11}.ffn_down.weight 3072 768 f16\n";

/* L7: twelve heads on five devices are 3, 3, 2, 2, 2, with their keys and values; who gets the third changes from layer
 * to layer, so that over all twelve nobody holds half a percent more or less than a fifth. */
Test(trial, gpt2_on_five_devices_is_within_half_a_percent, .timeout = 60) {
    sheaf_trial *t;
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 5, NULL, &t), SHEAF_OK, "%s", sheaf_error());
    int64_t heads[5] = {0};
    for (int il = 0; il < 12; il++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", il);
        const sheaf_placement *p = sheaf_trial_placement(t, name);
        for (int d = 0; d < 5; d++) {
            int64_t n = sheaf_layout_share(&p->layout, d, 0) / 64 / 3;
            cr_assert(n == 2 || n == 3, "layer %d, device %d: %" PRId64 " heads", il, d, n);
            heads[d] += n;
        }
    }
    for (int d = 0; d < 5; d++)
        cr_assert(heads[d] >= 28 && heads[d] <= 30, "device %d has %" PRId64 " of 144 heads", d, heads[d]);
    const sheaf_shares *s = sheaf_trial_shares(t);
    cr_assert_leq(s->error_max, 0.005, "%g off", s->error_max);
    cr_assert(s->error_min <= s->error_max && s->largest_unit > 0);
    sheaf_trial_free(t);
}

Test(trial, an_uneven_request_is_met, .timeout = 60) {
    static const float weights[] = {3, 1, 0};
    sheaf_trial *t;
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 3, weights, &t), SHEAF_OK, "%s", sheaf_error());
    const sheaf_shares *s = sheaf_trial_shares(t);
    cr_assert_eq(s->device[2].cut, 0, "%" PRIu64, s->device[2].cut);
    cr_assert_leq(s->error_max, 0.005, "%g off", s->error_max);
    cr_assert_eq(s->device[0].mirrored, s->device[2].mirrored);
    cr_assert_float_eq(s->device[0].asked, 0.75, 1e-12, "%g", s->device[0].asked);
    sheaf_trial_free(t);
}

/* A made-up model of llama's kind, as a list. */
static char *random_list(rng *r) {
    static const char *const types[] = {"f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k"};
    static const int64_t ratios[] = {1, 1, 2, 4, 8};
    char *text = NULL;
    size_t size = 0;
    int64_t kv = 1 + below(r, 12), heads = kv * ratios[below(r, 5)], head = 32 << below(r, 3);
    int64_t layers = 1 + below(r, 40), embd = 256 * (1 + below(r, 8)), ff = 256 * (1 + below(r, 40)),
            vocab = 64 + below(r, 9000);
    while (heads * head % 256) heads *= 2, kv *= 2; /* whole superblocks */
    FILE *f = open_memstream(&text, &size);
    fprintf(f,
            "general.architecture = llama\nattention.head_count = %" PRId64 "\nattention.head_count_kv = %" PRId64 "\n",
            heads, kv);
    const struct {
        const char *name;
        int64_t ne0, ne1;
    } rows[] = {{"attn_q", embd, heads * head}, {"attn_k", embd, kv * head},
                {"attn_v", embd, kv * head},    {"attn_output", heads * head, embd},
                {"ffn_gate", embd, ff},         {"ffn_up", embd, ff},
                {"ffn_down", ff, embd}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(f, "blk.{0-%" PRId64 "}.%s.weight %" PRId64 " %" PRId64 " %s\n", layers - 1, rows[i].name, rows[i].ne0,
                rows[i].ne1, types[below(r, 6)]);
    fprintf(f, "token_embd.weight %" PRId64 " %" PRId64 " %s\n", embd, vocab, types[below(r, 6)]);
    fclose(f);
    return text;
}

/* L7 on models and requests nobody chose: within half a percent or the largest unit, and whoever asked for nothing
 * holds nothing. */
Test(trial, any_request_is_met_on_any_model, .timeout = 60) {
    rng r = {20260};
    for (int round = 0; round < 3000; round++) {
        int32_t n = 1 + (int32_t)below(&r, 12);
        float weights[12];
        bool even = below(&r, 2);
        for (int d = 0; d < n; d++) weights[d] = d > 0 && below(&r, 6) == 0 ? 0 : (float)(1 + below(&r, 9));
        char *list = random_list(&r);
        sheaf_trial *t;
        cr_assert_eq(sheaf_trial_new(NULL, list, n, even ? NULL : weights, &t), SHEAF_OK, "round %d: %s\n%s", round,
                     sheaf_error(), list);
        const sheaf_shares *s = sheaf_trial_shares(t);
        for (int d = 0; d < n; d++) {
            double asked = s->device[d].asked * (double)s->cut, off = fabs((double)s->device[d].cut - asked);
            cr_assert(off <= 0.005 * asked || off <= (double)s->largest_unit,
                      "round %d: device %d of %d holds %" PRIu64 ", asked %.0f, largest unit %" PRIu64 "\n%s", round, d,
                      n, s->device[d].cut, asked, s->largest_unit, list);
            cr_assert(asked > 0 || s->device[d].cut == 0, "round %d: device %d", round, d);
        }
        sheaf_trial_free(t);
        free(list);
    }
}

/* On one device nothing is held twice, whatever the table mirrors. */
Test(trial, one_device_holds_everything_once, .timeout = 60) {
    sheaf_trial *one, *two;
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 1, NULL, &one), SHEAF_OK, "%s", sheaf_error());
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 2, NULL, &two), SHEAF_OK, "%s", sheaf_error());
    const sheaf_shares *a = sheaf_trial_shares(one), *b = sheaf_trial_shares(two);
    cr_assert(a->device[0].mirrored == 0 && a->device[0].copies == 0 && a->error_max <= 0, "%g", a->error_max);
    cr_assert_eq(a->cut, b->cut + b->device[0].mirrored, "%" PRIu64 ", %" PRIu64, a->cut, b->cut);
    sheaf_trial_free(one);
    sheaf_trial_free(two);
}

Test(trial, what_is_wrong_with_table_or_list_is_said, .timeout = 60) {
    static const struct {
        const char *table, *list;
        sheaf_status status;
        const char *error;
    } rows[] = {
        {"group f columns\nw f 0\n", "w 64 64 f32\nv 64 64 f32", SHEAF_E_FORMAT, "lines 2 to 2: no row matches v"},
        {"group f columns\nw f 0\n.* mirrored\n", "w 64 64 f32", SHEAF_E_FORMAT, "lines 2 and 3 both match w"},
        {"group f columns unit=48\nw f 0\n", "w 192 64 q8_0", SHEAF_E_SHAPE, "line 1: group f: w: a unit of 48"},
        {"group h heads 6 3\nw h 0 q\n", "w 64 64 f32", SHEAF_E_SHAPE, "line 2: w: 64 elements of dimension 0"},
        {"group h heads count 3\nw h 0 q\n", "w 64 64 f32", SHEAF_E_NOT_FOUND, "line 1: the model does not give count"},
        {"group f slices\n", "w 64 64 f32", SHEAF_E_FORMAT, "split table line 1"},
        {"w mirrored\n", "w 64 64\n", SHEAF_E_FORMAT, "tensor list line 1"},
        {NULL, "w 64 64 f32", SHEAF_E_NOT_FOUND, "no general.architecture"},
        {NULL, "general.architecture = nosuch\nw 64 64 f32", SHEAF_E_NOT_FOUND, "'nosuch'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sheaf_trial *t;
        sheaf_status s = sheaf_trial_new(rows[i].table, rows[i].list, 2, NULL, &t);
        cr_assert_eq(s, rows[i].status, "row %zu: %s", i, sheaf_status_name(s));
        cr_assert_null(t, "row %zu", i);
        cr_assert_not_null(strstr(sheaf_error(), rows[i].error), "row %zu: '%s', expected '%s'", i, sheaf_error(),
                           rows[i].error);
    }
    sheaf_trial *t;
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 0, NULL, &t), SHEAF_E_ARGUMENT, "%s", sheaf_error());
    cr_assert_eq(sheaf_trial_new(NULL, gpt2, 2, NULL, &t), SHEAF_OK, "%s", sheaf_error());
    cr_assert_null(sheaf_trial_placement(t, "nosuch"));
    sheaf_trial_free(t);
}

static bool count_down(void *ctx, size_t size) {
    int *left = ctx;
    (void)size;
    return (*left)-- > 0;
}

/* Every allocation failed in turn is a clean status, and nothing is left behind. */
Test(trial, any_allocation_may_fail, .timeout = 60) {
    sheaf_trial *t = NULL;
    int k = 0;
    for (sheaf_status s = SHEAF_E_NO_MEMORY; s; k++) {
        int left = k;
        cr_assert_lt(k, 10000, "it never succeeds");
        sheaf_alloc_hook(count_down, &left);
        s = sheaf_trial_new(NULL, gpt2, 3, NULL, &t);
        sheaf_alloc_hook(NULL, NULL);
        cr_assert(s == SHEAF_OK || s == SHEAF_E_NO_MEMORY, "allocation %d: %s: %s", k, sheaf_status_name(s),
                  sheaf_error());
    }
    cr_assert_gt(k, 5, "%d allocations", k);
    sheaf_trial_free(t);
}
