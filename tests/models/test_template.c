/* Chat templates against what jinja2 makes of them (tests/golden/make_templates.py), the origin of
 * every byte, and what must be refused, in time and by name. */
#include "tests/models/text_support.h"

#include <time.h>

static const char MESSAGES[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"},{\"role\":\"assistant\",\"content\":"
    "\"Hi, \xc3\x84\"},{\"role\":\"user\",\"content\":\"bye\"}],\"add_generation_prompt\":true,"
    "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

/* Renders `source` with the variables of a JSON object; the caller frees `out` if OK. */
static sheaf_status render(const char *source, size_t n, const char *json, sheaf_rendered *out) {
    sheaf_template *t;
    sheaf_chat chat = {.json = json, .json_n = strlen(json), .now = "0"};
    sheaf_status s = sheaf_template_new(source, n, &t);
    if (s) return s;
    s = sheaf_template_render(t, &chat, out);
    sheaf_template_free(t);
    return s;
}

static sheaf_status render_text(const char *source, sheaf_rendered *out) {
    return render(source, strlen(source), MESSAGES, out);
}

/* Cuts the next record off a text of records between "\n====\n"; NULL at the end. */
static char *next_record(char **rest, size_t *n) {
    static const char separator[] = "\n====\n";
    char *begin = *rest;
    if (!begin) return NULL;
    char *end = strstr(begin, separator);
    *n = end ? (size_t)(end - begin) : strlen(begin);
    *rest = end ? end + sizeof(separator) - 1 : NULL;
    return begin;
}

Test(templates, print_what_jinja_prints, .timeout = 60) {
    size_t n, m;
    char *sources = read_file(SHEAF_SOURCE_DIR "/tests/golden/templates/snippets.txt", &n), *source = sources, *s;
    char *texts = read_file(SHEAF_SOURCE_DIR "/tests/golden/templates/snippets.golden", &n), *text = texts;
    int count = 0;
    for (; (s = next_record(&source, &n)); count++) {
        char *wanted = next_record(&text, &m);
        sheaf_rendered got = {0};
        cr_assert(wanted, "snippet %d has no golden text", count);
        sheaf_status status = render(s, n, MESSAGES, &got);
        cr_assert(status == SHEAF_OK, "snippet %d: %s\n%.*s", count, sheaf_error(), (int)n, s);
        cr_assert(got.n == m && memcmp(got.text, wanted, m) == 0, "snippet %d:\n%.*s\ngives\n%s\nexpected\n%.*s", count,
                  (int)n, s, got.text, (int)m, wanted);
        sheaf_rendered_free(&got);
    }
    cr_assert(count >= 20, "only %d snippets", count);
    free(sources);
    free(texts);
}

static uint64_t fnv(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return h;
}

/* The variables of a case of cases.txt, in a static buffer. */
static const char *case_variables(const char *cases, const char *name) {
    static char json[8192];
    char key[80];
    snprintf(key, sizeof(key), "\n%s\t", name);
    const char *line = strstr(cases, key);
    cr_assert(line, "case %s is not in cases.txt", name);
    line += strlen(key);
    snprintf(json, sizeof(json), "%.*s", (int)strcspn(line, "\n"), line);
    return json;
}

static void check_model(const char *cases, const char *model, const char *name, const char *wanted) {
    char path[256], got[64];
    size_t n;
    sheaf_rendered out = {0};
    snprintf(path, sizeof(path), "templates/%s", model);
    const char *file = shared_file(path);
    cr_assert(file, "%s is absent", path);
    char *source = read_file(file, &n);
    sheaf_status s = render(source, n, case_variables(cases, name), &out);
    if (s)
        snprintf(got, sizeof(got), "error");
    else
        snprintf(got, sizeof(got), "%zu %016llx", out.n, (unsigned long long)fnv(out.text, out.n));
    cr_assert(strcmp(got, wanted) == 0, "%s, case %s: %s, expected %s (%s)\n%s", model, name, got, wanted,
              s ? sheaf_error() : "", out.text ? out.text : "");
    cr_assert(s != SHEAF_E_UNSUPPORTED, "%s, case %s: %s", model, name, sheaf_error());
    if (!s) sheaf_rendered_free(&out);
    free(source);
}

Test(templates, of_models_render_as_in_jinja, .timeout = 120) {
    size_t n;
    int count = 0;
    if (!shared_file("templates/Qwen-Qwen3-0.6B.jinja"))
        cr_skip_test("no templates: ../shared/data (or $SHEAF_SHARED/data) is absent");
    char *cases = read_file(SHEAF_SOURCE_DIR "/tests/golden/templates/cases.txt", &n);
    char *golden = read_file(SHEAF_SOURCE_DIR "/tests/golden/templates/models.golden", &n), *rest = NULL;
    for (char *line = strtok_r(golden, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char model[128], name[64];
        int at = 0;
        if (line[0] == '#') continue;
        cr_assert(sscanf(line, "%127s %63s %n", model, name, &at) == 2, "line \"%s\" is not understood", line);
        check_model(cases, model, name, line + at);
        count++;
    }
    cr_assert(count >= 60, "only %d rows", count);
    free(cases);
    free(golden);
}

/* --- origins (case H05) ----------------------------------------------------------------------------- */

/* The bytes of a rendered text that came from the input, one after the other. */
static void input_bytes(const sheaf_rendered *r, char *buf, size_t size) {
    size_t at = 0, last = 0;
    for (size_t i = 0; i < r->n_input; i++) {
        cr_assert(r->input[i].begin >= last + (i > 0) && r->input[i].end > r->input[i].begin && r->input[i].end <= r->n,
                  "span %zu is [%zu, %zu) after %zu of %zu", i, r->input[i].begin, r->input[i].end, last, r->n);
        last = r->input[i].end;
        at += (size_t)snprintf(buf + at, size - at, "%s%.*s", i ? "|" : "", (int)(last - r->input[i].begin),
                               r->text + r->input[i].begin);
    }
}

Test(templates, know_which_bytes_the_conversation_wrote, .timeout = 30) {
    static const struct {
        const char *source, *text, *input;
    } rows[] = {
        {"<|im_start|>{{ messages[0].content }}<|im_end|>", "<|im_start|>Hello there<|im_end|>", "Hello there"},
        {"{{ 'a' + messages[0].content + 'b' }}", "aHello thereb", "Hello there"},
        {"{{ ('  ' + messages[2].content + ' ') | trim }}", "bye", "bye"},
        {"{{ messages[0].content.replace('l', 'LL') }}", "HeLLLLo there", "He|o there"},
        {"{{ 'x-y'.replace('-', messages[2].content) }}", "xbyey", "bye"},
        {"{{ messages[0].content.split(' ')[1] }}", "there", "there"},
        {"{{ ['a', messages[2].content] | join('/') }}", "a/bye", "bye"},
        {"{{ messages[2].content | tojson }}", "\"bye\"", "bye"},
        {"{{ {'k': messages[2].content} }}", "{'k': 'bye'}", "bye"},
        {"{{ messages[2].content | upper }}", "BYE", "BYE"},
        {"{{ messages[2].content[1:] ~ messages[2].content[0] }}", "yeb", "yeb"},
        {"{% set x %}<{{ messages[2].content }}>{% endset %}{{ x }}", "<bye>", "bye"},
        {"{% macro m(t) %}[{{ t }}]{% endmacro %}{{ m(messages[2].content) }}", "[bye]", "bye"},
        {"{{ messages[0].role }}:", "user:", "user"},
        {"{{ messages | length }}{{ 'plain' }}", "3plain", ""},
        {"{{ messages[2].content | reverse }}", "eyb", "eyb"},
        {"{{ messages[2].content * 2 }}", "byebye", "byebye"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        sheaf_rendered r;
        char input[256] = "";
        expect_ok(render_text(rows[i].source, &r));
        expect_text(r.text, rows[i].text);
        input_bytes(&r, input, sizeof(input));
        cr_assert(strcmp(input, rows[i].input) == 0, "%s: input bytes are \"%s\", expected \"%s\"", rows[i].source,
                  input, rows[i].input);
        sheaf_rendered_free(&r);
    }
}

Test(templates, take_messages_and_the_models_own_markers, .timeout = 30) {
    static const char source[] =
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[go]{% endif %}{{ strftime_now('%Y') }}";
    const sheaf_message messages[] = {{{"user", 4}, {"a</s>b", 6}}, {{"bot", 3}, {"x", 1}}};
    const sheaf_chat chat = {.messages = messages,
                             .n_messages = 2,
                             .add_generation_prompt = true,
                             .bos_token = {"<s>", 3},
                             .eos_token = {"</s>", 4},
                             .now = "86400000"};
    sheaf_template *t;
    sheaf_rendered r;
    char input[256] = "";
    expect_ok(sheaf_template_new(source, strlen(source), &t));
    for (int again = 0; again < 2; again++) { /* a template is not used up */
        expect_ok(sheaf_template_render(t, &chat, &r));
        expect_text(r.text, "<s>[user]a</s>b</s>[bot]x</s>[go]1972");
        input_bytes(&r, input, sizeof(input));
        expect_text(input, "user|a</s>b|bot|x");
        sheaf_rendered_free(&r);
    }
    sheaf_template_free(t);
}

/* --- refusals ------------------------------------------------------------------------------------------ */

Test(templates, refuse_by_name_what_they_do_not_understand, .timeout = 60) {
    static const struct {
        const char *source;
        sheaf_status status;
        const char *part;
    } rows[] = {
        {"a\n{% include 'x' %}", SHEAF_E_UNSUPPORTED, "line 2: statement not supported: \"include\""},
        {"{{ x | frobnicate }}", SHEAF_E_UNSUPPORTED, "line 1: filter \"frobnicate\" is not supported"},
        {"\n\n{{ nothing() }}", SHEAF_E_UNSUPPORTED, "line 3: function \"nothing\" is not known"},
        {"{{ 'a'.swapcase() }}", SHEAF_E_UNSUPPORTED, "method \"swapcase\" of a string is not supported"},
        {"{{ 1 is strange }}", SHEAF_E_UNSUPPORTED, "test \"strange\" is not supported"},
        {"{{ f(*a) }}", SHEAF_E_UNSUPPORTED, "unpacked arguments"},
        {"{% for x in y recursive %}{% endfor %}", SHEAF_E_UNSUPPORTED, "recursive loops"},
        {"{{ 1 < 2 < 3 }}", SHEAF_E_UNSUPPORTED, "chained comparisons"},
        {"{{ '%s' % 1 }}", SHEAF_E_UNSUPPORTED, "formatting with %"},
        {"{% if x %}", SHEAF_E_FORMAT, "is missing for line 1"},
        {"{% endif %}", SHEAF_E_UNSUPPORTED, "\"endif\""},
        {"{{ 1 + }}", SHEAF_E_FORMAT, "expected an expression"},
        {"{{ 'abc }}", SHEAF_E_FORMAT, "a string does not end"},
        {"{{ x", SHEAF_E_FORMAT, "a tag does not end"},
        {"{# x", SHEAF_E_FORMAT, "a comment does not end"},
        {"{{ 1 ? 2 }}", SHEAF_E_FORMAT, "character '?'"},
        {"{{ 'a' + 1 }}", SHEAF_E_FORMAT, "an operator cannot take a string and an integer"},
        {"{{ 'a' + missing }}", SHEAF_E_FORMAT, "\"missing\" is undefined"},
        {"{{ missing.x }}", SHEAF_E_FORMAT, "\"missing\" is undefined"},
        {"{{ raise_exception('no tools here') }}", SHEAF_E_FORMAT, "refuses this conversation: no tools here"},
        {"{% break %}", SHEAF_E_FORMAT, "a loop around it"},
        {"{% for a, b in [[1]] %}{% endfor %}", SHEAF_E_FORMAT, "2 names for an item of 1 parts"},
        {"{% set x.y = 1 %}", SHEAF_E_FORMAT, "only a namespace"},
        {"{{ 1 // 0 }}", SHEAF_E_FORMAT, "division by zero"},
        {"{{ 9223372036854775807 }}", SHEAF_E_FORMAT, "too large"},
        {"{{ 999999999999999999 * 99 }}", SHEAF_E_RANGE, "too large"},
        {"{{ [1][::0] }}", SHEAF_E_FORMAT, "step is zero"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        sheaf_rendered r;
        sheaf_status s = render_text(rows[i].source, &r);
        cr_assert(s == rows[i].status && strstr(sheaf_error(), rows[i].part), "%s: %s \"%s\", expected %s \"...%s...\"",
                  rows[i].source, sheaf_status_name(s), sheaf_error(), sheaf_status_name(rows[i].status), rows[i].part);
    }
}

/* `count` times `unit` between `before` and `after`; the caller frees. */
static char *many(const char *before, const char *unit, size_t count, const char *middle, const char *unit2,
                  const char *after) {
    size_t n = strlen(before) + (strlen(unit) + strlen(unit2)) * count + strlen(middle) + strlen(after) + 1;
    char *text = malloc(n), *at = text;
    at += sprintf(at, "%s", before);
    for (size_t i = 0; i < count; i++) at += sprintf(at, "%s", unit);
    at += sprintf(at, "%s", middle);
    for (size_t i = 0; i < count; i++) at += sprintf(at, "%s", unit2);
    sprintf(at, "%s", after);
    return text;
}

Test(templates, end_in_an_error_instead_of_the_machine, .timeout = 120) {
    static const struct {
        const char *before, *unit;
        size_t count;
        const char *middle, *unit2, *after, *part;
    } rows[] = {
        {"{{ ", "(", 50000, "1", ")", " }}", "nested deeper"},
        {"{{ ", "[", 50000, "", "]", " }}", "nested deeper"},
        {"{{ ", "-", 50000, "1", "", " }}", "nested deeper"},
        {"{{ ", "not ", 50000, "1", "", " }}", "nested deeper"},
        {"{{ 1", "+1", 50000, "", "", " }}", "levels"},
        {"{{ x", ".a", 50000, "", "", " }}", "levels"},
        {"{{ x", "|trim", 50000, "", "", " }}", "levels"},
        {"{{ f", "(", 50000, "", ")", " }}", "nested deeper"},
        {"", "{% if 1 %}", 20000, "", "{% endif %}", "", "nested deeper"},
        {"", "{% for x in [1] %}", 20000, "", "{% endfor %}", "", "nested deeper"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "", 0, "", "", "", "deeper than"},
        {"{% macro m(x) %}{{ m([x]) | tojson }}{% endmacro %}{{ m(1) }}", "", 0, "", "", "", "deeper than"},
        {"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", "", 0, "", "", "",
         "steps"},
        {"{{ range(1000000000) | length }}", "", 0, "", "", "", ""},
        {"{% set ns = namespace(t='0123456789') %}{% for a in range(64) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ "
         "ns.t }}",
         "", 0, "", "", "", ""},
        {"{% set ns = namespace(t=[]) %}{% for a in range(1000) %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.t }}", "", 0,
         "", "", "", "deeper"},
        {"{% set ns = namespace(t=[]) %}{% for a in range(1000) %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.t == [1] "
         "}}{{ ns.t | tojson }}",
         "", 0, "", "", "", "deeper"},
        {"{{ 'ab' * 1000000000 }}", "", 0, "", "", "", ""},
        {"{{ 2 ** 1000000 }}", "", 0, "", "", "", "too large"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *text = many(rows[i].before, rows[i].unit, rows[i].count, rows[i].middle, rows[i].unit2, rows[i].after);
        sheaf_rendered r = {0};
        sheaf_status s = render_text(text, &r);
        cr_assert(s == SHEAF_E_RANGE && strstr(sheaf_error(), rows[i].part),
                  "row %zu: %s \"%s\", expected SHEAF_E_RANGE \"...%s...\"", i, sheaf_status_name(s), sheaf_error(),
                  rows[i].part);
        free(text);
    }
}

Test(templates, refuse_variables_that_are_no_json, .timeout = 30) {
    static const char *const bad[] = {"",
                                      "[1]",
                                      "{",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{\"a\":1} x",
                                      "{\"a\":\"\\q\"}",
                                      "{\"a\":\"\\u12\"}",
                                      "{\"a\":\"",
                                      "{\"a\":01x}",
                                      "{\"a\":tru}",
                                      "{\"a\":\"\n\"}",
                                      "{\"a\":\"\xff\"}",
                                      "{\"a\":-}",
                                      "{1:2}",
                                      "{\"a\":[1 2]}",
                                      "{\"a\":\"x\\"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        sheaf_rendered r;
        sheaf_status s = render("x", 1, bad[i], &r);
        cr_assert(s == SHEAF_E_FORMAT, "%s: %s (%s)", bad[i], sheaf_status_name(s), sheaf_error());
    }
    char *deep = many("{\"a\":", "[", 100000, "", "]", "}");
    sheaf_rendered r;
    expect_status(render("x", 1, deep, &r), SHEAF_E_FORMAT);
    expect_error("nested too deep");
    free(deep);
}

/* --- memory -------------------------------------------------------------------------------------------- */

static bool countdown(void *ctx, size_t size) {
    int *left = ctx;
    (void)size;
    return (*left)-- > 0;
}

Test(templates, survive_every_failed_allocation, .timeout = 120) {
    static const char source[] =
        "{% macro m(t) %}[{{ t | trim }}]{% endmacro %}{% set ns = namespace(a=[]) %}{% for m1 in messages %}{% set "
        "ns.a = ns.a + [m1.content.split('e')] %}"
        "{{ m(m1.content) }}{{ ns.a | tojson(indent=2) }}{{ {'a': 1} }}{% endfor %}{{ ('x' * 100000) | length }}";
    bool done = false;
    for (int fail_at = 0; !done; fail_at++) {
        sheaf_rendered r = {0};
        int left = fail_at;
        sheaf_alloc_hook(countdown, &left);
        sheaf_status s = render_text(source, &r);
        sheaf_alloc_hook(NULL, NULL);
        done = s == SHEAF_OK;
        cr_assert(done || s == SHEAF_E_NO_MEMORY, "allocation %d fails: %s (%s)", fail_at, sheaf_status_name(s),
                  sheaf_error());
        sheaf_rendered_free(&r);
        cr_assert(fail_at < 10000, "it never succeeds: %s", sheaf_error());
    }
}
