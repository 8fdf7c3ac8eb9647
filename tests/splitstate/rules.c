/* The rule table: what each op's rule answers, on nodes made by the constructors.
 *
 * fixtures/rules.txt has a line a case, "node layouts => answer"; the answers are written again by SHEAF_BLESS=1.
 * Layouts as support.h spells them, separated by '|': of src[0], src[1]..., and last of the root where there is
 * one. On 2 devices, in a world of fixed sums, with the lookup lowering, unless the node's name ends in '*' (sums
 * may be cut, every lowering). */
#include "support.h"

enum { MAX_TEXT = 1024 };

/* --- nodes ------------------------------------------------------------------------------------------------ */

typedef sheaf_tensor *(*maker)(sheaf_arena *a);

static sheaf_tensor *f32(sheaf_arena *a, int64_t n0, int64_t n1, int64_t n2) {
    return sheaf_new_3d(a, SHEAF_F32, n0, n1, n2);
}

static sheaf_tensor *make_add(sheaf_arena *a) { return sheaf_add(a, f32(a, 8, 4, 1), f32(a, 8, 4, 1)); }
static sheaf_tensor *make_sub(sheaf_arena *a) { return sheaf_sub(a, f32(a, 8, 4, 1), f32(a, 8, 4, 1)); }
static sheaf_tensor *make_add_bias(sheaf_arena *a) { return sheaf_add(a, f32(a, 8, 4, 1), f32(a, 8, 1, 1)); }
static sheaf_tensor *make_add_repeat(sheaf_arena *a) { return sheaf_add(a, f32(a, 8, 4, 1), f32(a, 4, 1, 1)); }
static sheaf_tensor *make_mul(sheaf_arena *a) { return sheaf_mul(a, f32(a, 8, 4, 1), f32(a, 8, 1, 1)); }
static sheaf_tensor *make_div(sheaf_arena *a) { return sheaf_div(a, f32(a, 8, 4, 1), f32(a, 8, 4, 1)); }
static sheaf_tensor *make_scale(sheaf_arena *a) { return sheaf_scale(a, f32(a, 8, 4, 1), 2, 0); }
static sheaf_tensor *make_scale_bias(sheaf_arena *a) { return sheaf_scale(a, f32(a, 8, 4, 1), 2, 1); }
static sheaf_tensor *make_gelu(sheaf_arena *a) { return sheaf_unary_op(a, f32(a, 8, 4, 1), SHEAF_UNARY_GELU); }
static sheaf_tensor *make_neg(sheaf_arena *a) { return sheaf_unary_op(a, f32(a, 8, 4, 1), SHEAF_UNARY_NEG); }
static sheaf_tensor *make_glu(sheaf_arena *a) {
    return sheaf_glu_op(a, f32(a, 8, 4, 1), f32(a, 8, 4, 1), SHEAF_GLU_SWIGLU);
}
static sheaf_tensor *make_cont(sheaf_arena *a) { return sheaf_cont(a, f32(a, 8, 4, 1)); }
static sheaf_tensor *make_rms_norm(sheaf_arena *a) {
    return sheaf_rms_norm(a, f32(a, 8, 4, 1), f32(a, 8, 1, 1), 1e-5f);
}
static sheaf_tensor *make_norm(sheaf_arena *a) {
    return sheaf_norm(a, f32(a, 8, 4, 1), f32(a, 8, 1, 1), f32(a, 8, 1, 1), 1e-5f);
}
static sheaf_tensor *make_soft_max(sheaf_arena *a) {
    return sheaf_soft_max(a, f32(a, 8, 4, 2), sheaf_new_2d(a, SHEAF_F16, 8, 4), 1, 0);
}
static sheaf_tensor *make_soft_max_alibi(sheaf_arena *a) {
    return sheaf_soft_max(a, f32(a, 8, 4, 2), sheaf_new_2d(a, SHEAF_F16, 8, 4), 1, 8);
}
static sheaf_tensor *make_sum_rows(sheaf_arena *a) { return sheaf_sum_rows(a, f32(a, 8, 4, 1)); }
static sheaf_tensor *make_sum_squares(sheaf_arena *a) { return sheaf_sum_squares(a, f32(a, 8, 4, 1), f32(a, 6, 4, 1)); }
static sheaf_tensor *make_norm_by(sheaf_arena *a) {
    return sheaf_rms_norm_by(a, f32(a, 8, 4, 1), f32(a, 2, 4, 1), 1, f32(a, 8, 1, 1), 1e-5f);
}
static sheaf_tensor *make_argmax(sheaf_arena *a) { return sheaf_argmax(a, f32(a, 8, 4, 1)); }
static sheaf_tensor *make_mul_mat(sheaf_arena *a) { return sheaf_mul_mat(a, f32(a, 8, 6, 1), f32(a, 8, 4, 1)); }
static sheaf_tensor *make_mul_mat_batch(sheaf_arena *a) { return sheaf_mul_mat(a, f32(a, 8, 6, 2), f32(a, 8, 4, 4)); }
static sheaf_tensor *make_mul_mat_shared(sheaf_arena *a) { return sheaf_mul_mat(a, f32(a, 8, 6, 1), f32(a, 8, 4, 4)); }
static sheaf_tensor *make_get_rows(sheaf_arena *a) {
    return sheaf_get_rows(a, f32(a, 8, 6, 1), sheaf_new_1d(a, SHEAF_I32, 4));
}
static sheaf_tensor *make_concat_0(sheaf_arena *a) { return sheaf_concat(a, f32(a, 8, 4, 1), f32(a, 4, 4, 1), 0); }
static sheaf_tensor *make_concat_1(sheaf_arena *a) { return sheaf_concat(a, f32(a, 8, 4, 1), f32(a, 8, 2, 1), 1); }

static sheaf_tensor *make_rope(sheaf_arena *a) {
    sheaf_params p = {.rope = {.n_dims = 8, .freq_base = 10000, .freq_scale = 1}};
    return sheaf_rope(a, f32(a, 8, 6, 4), sheaf_new_1d(a, SHEAF_I32, 4), f32(a, 4, 1, 1), &p);
}

/* 9 query heads over 3 KV heads */
static sheaf_tensor *make_attention(sheaf_arena *a) {
    sheaf_tensor *kv = sheaf_new_3d(a, SHEAF_F16, 8, 6, 3);
    return sheaf_attention(a, f32(a, 8, 2, 9), kv, kv, sheaf_new_2d(a, SHEAF_F16, 6, 2), f32(a, 9, 1, 1), 1, 0, 0);
}

static sheaf_tensor *make_set_rows(sheaf_arena *a) {
    return sheaf_set_rows(a, sheaf_new_2d(a, SHEAF_F16, 8, 6), f32(a, 8, 2, 1), sheaf_new_1d(a, SHEAF_I64, 2));
}
static sheaf_tensor *make_cpy(sheaf_arena *a) { return sheaf_cpy(a, f32(a, 8, 4, 1), f32(a, 8, 4, 1)); }
static sheaf_tensor *make_cpy_into_row(sheaf_arena *a) {
    return sheaf_cpy(a, f32(a, 8, 1, 1), sheaf_view_2d(a, f32(a, 8, 6, 1), 8, 1, 32, 64));
}
static sheaf_tensor *make_fill(sheaf_arena *a) { return sheaf_fill(a, f32(a, 8, 4, 1), 0); }

/* heads of 4: {8, 4} as {4, 2, 4} and back */
static sheaf_tensor *make_reshape_heads(sheaf_arena *a) { return sheaf_reshape_3d(a, f32(a, 8, 4, 1), 4, 2, 4); }
static sheaf_tensor *make_reshape_flat(sheaf_arena *a) { return sheaf_reshape_2d(a, f32(a, 4, 2, 4), 8, 4); }
static sheaf_tensor *make_reshape_line(sheaf_arena *a) { return sheaf_reshape_1d(a, f32(a, 8, 4, 1), 32); }
static sheaf_tensor *make_permute(sheaf_arena *a) { return sheaf_permute(a, f32(a, 4, 2, 4), 0, 2, 1, 3); }
static sheaf_tensor *make_transpose(sheaf_arena *a) { return sheaf_transpose(a, f32(a, 8, 4, 1)); }
/* what attention sees of a cache {8, 6}: 4 cells of 2 heads of 4 */
static sheaf_tensor *make_view_cache(sheaf_arena *a) {
    return sheaf_view_3d(a, sheaf_new_2d(a, SHEAF_F16, 8, 6), 4, 4, 2, 16, 8, 0);
}
static sheaf_tensor *make_view_row(sheaf_arena *a) { return sheaf_view_1d(a, f32(a, 8, 4, 1), 8, 64); }
/* the second of three parts of a fused {12, 4}, and one that lies across two of them */
static sheaf_tensor *make_view_part(sheaf_arena *a) { return sheaf_view_2d(a, f32(a, 12, 4, 1), 4, 4, 48, 16); }
static sheaf_tensor *make_view_across(sheaf_arena *a) { return sheaf_view_2d(a, f32(a, 12, 4, 1), 4, 4, 48, 8); }
static sheaf_tensor *make_view_quant(sheaf_arena *a) {
    return sheaf_view_2d(a, sheaf_new_2d(a, SHEAF_Q8_0, 128, 4), 64, 4, 136, 34);
}
static sheaf_tensor *make_leaf(sheaf_arena *a) { return f32(a, 8, 4, 1); }

/* 5 experts of 8 -> 6, 2 used by each of 4 tokens */
static sheaf_tensor *ids_of_experts(sheaf_arena *a) { return sheaf_new_2d(a, SHEAF_I32, 2, 4); }
static sheaf_tensor *make_mul_mat_id(sheaf_arena *a) {
    return sheaf_mul_mat_id(a, f32(a, 8, 6, 5), f32(a, 8, 1, 4), ids_of_experts(a));
}
static sheaf_tensor *make_mul_mat_id_sum(sheaf_arena *a) {
    return sheaf_mul_mat_id_sum(a, f32(a, 8, 6, 5), f32(a, 8, 2, 4), ids_of_experts(a), 4);
}
static sheaf_tensor *make_add_id(sheaf_arena *a) {
    return sheaf_add_id(a, f32(a, 8, 2, 4), f32(a, 8, 5, 1), ids_of_experts(a));
}
static sheaf_tensor *make_argsort(sheaf_arena *a) { return sheaf_top_k(a, f32(a, 8, 4, 1), 2); }
static sheaf_tensor *make_pick(sheaf_arena *a) { return sheaf_pick(a, f32(a, 8, 4, 1), ids_of_experts(a)); }
/* of 8 elements the best 2 in 2 places */
static sheaf_tensor *make_best(sheaf_arena *a) { return sheaf_best_of(a, f32(a, 8, 4, 1), 7, 2, 2); }
static sheaf_tensor *wide(sheaf_arena *a) { return sheaf_new_2d(a, SHEAF_F64, 8, 4); }
static sheaf_tensor *make_add_wide(sheaf_arena *a) { return sheaf_add(a, wide(a), wide(a)); }
static sheaf_tensor *make_round(sheaf_arena *a) { return sheaf_round(a, wide(a)); }

static const struct {
    const char *name;
    maker make;
} makers[] = {{"leaf", make_leaf},
              {"add", make_add},
              {"sub", make_sub},
              {"add_bias", make_add_bias},
              {"add_repeat", make_add_repeat},
              {"mul", make_mul},
              {"div", make_div},
              {"scale", make_scale},
              {"scale_bias", make_scale_bias},
              {"gelu", make_gelu},
              {"neg", make_neg},
              {"glu", make_glu},
              {"cont", make_cont},
              {"rms_norm", make_rms_norm},
              {"norm", make_norm},
              {"soft_max", make_soft_max},
              {"soft_max_alibi", make_soft_max_alibi},
              {"sum_rows", make_sum_rows},
              {"sum_squares", make_sum_squares},
              {"norm_by", make_norm_by},
              {"argmax", make_argmax},
              {"mul_mat", make_mul_mat},
              {"mul_mat_batch", make_mul_mat_batch},
              {"mul_mat_shared", make_mul_mat_shared},
              {"get_rows", make_get_rows},
              {"concat_0", make_concat_0},
              {"concat_1", make_concat_1},
              {"rope", make_rope},
              {"attention", make_attention},
              {"set_rows", make_set_rows},
              {"cpy", make_cpy},
              {"cpy_into_row", make_cpy_into_row},
              {"fill", make_fill},
              {"reshape_heads", make_reshape_heads},
              {"reshape_flat", make_reshape_flat},
              {"reshape_line", make_reshape_line},
              {"permute", make_permute},
              {"transpose", make_transpose},
              {"view_cache", make_view_cache},
              {"view_row", make_view_row},
              {"view_part", make_view_part},
              {"view_across", make_view_across},
              {"view_quant", make_view_quant},
              {"mul_mat_id", make_mul_mat_id},
              {"mul_mat_id_sum", make_mul_mat_id_sum},
              {"add_id", make_add_id},
              {"argsort", make_argsort},
              {"pick", make_pick},
              {"best", make_best},
              {"add_wide", make_add_wide},
              {"round", make_round}};

static sheaf_tensor *make(sheaf_arena *a, const char *name) {
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        if (strcmp(makers[i].name, name) == 0) return sheaf_set_name(makers[i].make(a), "%s", name);
    }
    return NULL;
}

/* --- answers ------------------------------------------------------------------------------------------------- */

static int n_sources(const sheaf_tensor *t) {
    int n = 0;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (t->src[i]) n = i + 1;
    }
    return n;
}

static void say(char *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out + strlen(out), MAX_TEXT - strlen(out), format, args);
    va_end(args);
}

static const char *lowering_name(sheaf_lowering l) {
    static const char *const names[] = {"", "norm", "lookup", "argmax"};
    return names[l];
}

static void answer(const sheaf_tensor *t, const sheaf_rule_result *r, const sheaf_layout *root, char *out) {
    char text[256];
    out[0] = 0;
    say(out, "%s", sheaf_layout_text(&r->result, text, sizeof text));
    for (int i = 0; i < n_sources(t); i++) {
        if (r->reshard[i]) say(out, "; src%d to %s", i, sheaf_layout_text(&r->want[i], text, sizeof text));
    }
    if (root && r->reshard_root) say(out, "; root to %s", sheaf_layout_text(&r->want_root, text, sizeof text));
    if (r->linear) say(out, "; linear");
    if (r->writes_all_holders) say(out, "; all holders");
    if (r->lowering) say(out, "; lowered: %s", lowering_name(r->lowering));
    say(out, " (%s)", r->rule);
}

/* Every local shard adds up: what the devices hold of the result, replicas apart, is the result. */
static void check_locals(const sheaf_tensor *t, const sheaf_layout *src, const sheaf_layout *root,
                         const sheaf_rule_result *r, int n) {
    for (int d = 0; d < n; d++) {
        sheaf_local local;
        const sheaf_layout *want = r->want;
        (void)src;
        cr_assert_eq(sheaf_rule_local(t, want, root ? &r->want_root : NULL, &r->result, d, &local), SHEAF_OK, "%s: %s",
                     t->name, sheaf_error());
        int64_t ne[4];
        sheaf_layout_local_ne(&r->result, d, t->ne, ne);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(local.ne[i], ne[i], "%s, device %d: ne[%d] is %" PRId64 ", layout says %" PRId64, t->name, d,
                         i, local.ne[i], ne[i]);
        }
    }
}

static void run_case(sheaf_arena *a, const char *input, char *out) {
    char copy[MAX_TEXT], *save = NULL;
    strcpy(copy, input);
    char *name = strtok_r(copy, " ", &save), *rest = strtok_r(NULL, "", &save);
    bool free_sums = name[strlen(name) - 1] == '*';
    if (free_sums) name[strlen(name) - 1] = 0;
    sheaf_tensor *t = make(a, name);
    cr_assert_not_null(t, "no node '%s': %s", name, sheaf_error());
    sheaf_layout src[SHEAF_MAX_SRC + 1];
    int n = 0;
    for (char *l = rest ? strtok_r(rest, "|", &save) : NULL; l; l = strtok_r(NULL, "|", &save)) {
        while (*l == ' ') l++;
        for (char *end = l + strlen(l); end > l && end[-1] == ' ';) *--end = 0;
        src[n++] = layout_of(a, l, 2);
    }
    int sources = sheaf_op_is_header(t->op) ? 0 : n_sources(t);
    cr_assert_eq(n, sources + (t->view_src != NULL), "'%s': %d layouts, %d sources", input, n, sources);
    const sheaf_layout *root = t->view_src ? &src[n - 1] : NULL;
    sheaf_rule_env env = {
        .n_devices = 2, .lowerings = free_sums ? ~0u : 1u << SHEAF_LOWER_LOOKUP, .reorder_sums = free_sums};
    sheaf_rule_result r;
    cr_assert_eq(sheaf_rule_apply(a, &env, t, src, root, &r), SHEAF_OK, "'%s': %s", input, sheaf_error());
    cr_assert_eq(sheaf_layout_check(&r.result, t->ne, 2), SHEAF_OK, "'%s': %s", input, sheaf_error());
    for (int i = 0; i < sources; i++) {
        if (t->src[i])
            cr_assert_eq(sheaf_layout_check(&r.want[i], t->src[i]->ne, 2), SHEAF_OK, "'%s' src%d: %s", input, i,
                         sheaf_error());
    }
    check_locals(t, src, root, &r, 2);
    answer(t, &r, root, out);
}

Test(rules, answer_as_the_fixture_says, .timeout = 60) {
    char path[512], line[MAX_TEXT], got[MAX_TEXT], *text = NULL;
    size_t size = 0;
    int n = 0, wrong = 0;
    bool seen[SHEAF_OP_COUNT] = {false};
    snprintf(path, sizeof path, "%s/rules.txt", SHEAF_FIXTURES);
    FILE *f = fopen(path, "r"), *out = open_memstream(&text, &size);
    cr_assert_not_null(f, "%s", path);
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 14, &a), SHEAF_OK);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || line[0] == 0) {
            fprintf(out, "%s\n", line);
            continue;
        }
        char *arrow = strstr(line, " => ");
        if (arrow) *arrow = 0;
        sheaf_arena_reset(a);
        run_case(a, line, got);
        fprintf(out, "%s => %s\n", line, got);
        char name[64];
        sscanf(line, "%63[^ *]", name);
        seen[make(a, name)->op] = true;
        if (!arrow || strcmp(arrow + 4, got) != 0) {
            fprintf(stderr, "%s\n  is        %s\n  expected  %s\n", line, got, arrow ? arrow + 4 : "nothing yet");
            wrong++;
        }
        n++;
    }
    fclose(f);
    fclose(out);
    const char *bless = getenv("SHEAF_BLESS");
    if (bless && *bless == '1') {
        f = fopen(path, "w");
        cr_assert_not_null(f, "%s", path);
        fputs(text, f);
        fclose(f);
    } else {
        cr_assert_eq(wrong, 0, "%d of %d answers differ", wrong, n);
    }
    for (int op = 0; op < SHEAF_OP_COUNT; op++) cr_assert(seen[op], "no case for %s", sheaf_op_name((sheaf_op)op));
    sheaf_arena_free(a);
    free(text);
}

Test(rules, of_every_op_has_a_name, .timeout = 60) {
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const char *name = sheaf_rule_name((sheaf_op)op);
        cr_assert(name && *name, "op %d", op);
    }
    cr_assert_str_eq(sheaf_rule_name(SHEAF_OP_COUNT), "no such op", "%s", sheaf_rule_name(SHEAF_OP_COUNT));
}

/* Broken nodes are errors that name them. */
Test(rules, refuse_what_does_not_fit_the_node, .timeout = 60) {
    sheaf_arena *a;
    cr_assert_eq(sheaf_arena_new(1 << 12, &a), SHEAF_OK);
    sheaf_rule_env env = {.n_devices = 2};
    sheaf_rule_result r;
    sheaf_tensor *t = sheaf_set_name(make_add(a), "sum");
    sheaf_layout src[2] = {layout_of(a, "A0 4:0 3:1", 2), sheaf_layout_mirrored()};
    cr_assert_eq(sheaf_rule_apply(a, &env, t, src, NULL, &r), SHEAF_E_SHAPE, "%s", sheaf_error());
    cr_assert_not_null(strstr(sheaf_error(), "sum: source 0"), "%s", sheaf_error());
    t = sheaf_set_name(make_reshape_flat(a), "view");
    cr_assert_eq(sheaf_rule_apply(a, &env, t, src, NULL, &r), SHEAF_E_INTERNAL, "%s", sheaf_error());
    sheaf_tensor odd = *make_add(a);
    odd.op = SHEAF_OP_COUNT;
    cr_assert_eq(sheaf_rule_apply(a, &env, &odd, src, NULL, &r), SHEAF_E_INTERNAL, "%s", sheaf_error());
    sheaf_arena_free(a);
}
