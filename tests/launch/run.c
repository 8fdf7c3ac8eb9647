/* `sheaf run`: where the prompt comes from, what the reply is, when it ends, and what is told about it. */
#include "tests/launch/spawn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GREEDY "run -m " TINY " --temp 0 -q "

static char *join(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    cr_assert(path != NULL, "out of memory");
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

/* --- prompts --- */

Test(run, prompt_comes_from_p_f_or_standard_input_alike, .timeout = 60) {
    static const char text[] = "There was once upon a time a king";
    char *folder = make_folder(), *path = join(folder, "prompt.txt");
    write_file(path, text, sizeof text - 1);
    how h = {.in = text, .in_n = sizeof text - 1};
    outcome p = sheaf(GREEDY "-n 12 -p '%s'", text), f = sheaf(GREEDY "-n 12 -f %s", path),
            in = sheaf_how(&h, GREEDY "-n 12"), dash = sheaf_how(&h, GREEDY "-n 12 -f -");
    expect_code(p, 0);
    expect_code(f, 0);
    expect_code(in, 0);
    expect_code(dash, 0);
    expect_text(f.out, p.out);
    expect_text(in.out, p.out);
    expect_text(dash.out, p.out);
    expect_text(p.err, "");
    cr_assert(p.out_n > 12, "the reply is \"%s\"", p.out);
    outcome_free(&p);
    outcome_free(&f);
    outcome_free(&in);
    outcome_free(&dash);
    remove_folder(folder);
    free(path);
}

Test(run, escapes_are_undone_only_when_asked, .timeout = 60) {
    outcome with = sheaf("run -m " TINY " -n 0 --json -e -p 'a\\nb\\tc\\\\'"),
            without = sheaf("run -m " TINY " -n 0 --json -p 'a\\nb\\tc\\\\'"),
            wanted = sheaf("tokenize -m " TINY " --json -p 'a\nb\tc\\'");
    cJSON *a = expect_json(&with), *b = expect_json(&without), *ids = expect_json(&wanted);
    cr_assert(cJSON_Compare(expect_key(&with, a, "prompt_tokens", cJSON_Array), ids, true), "%s is not %s", with.out,
              wanted.out);
    cr_assert(!cJSON_Compare(expect_key(&without, b, "prompt_tokens", cJSON_Array), ids, true),
              "escapes were undone unasked");
    cJSON_Delete(a);
    cJSON_Delete(b);
    cJSON_Delete(ids);
    outcome_free(&with);
    outcome_free(&without);
    outcome_free(&wanted);
}

Test(run, prompts_that_cannot_be_run_are_bad_input, .timeout = 100) {
    char *folder = make_folder(), *secret = join(folder, "secret"), *bad = join(folder, "bad.txt"),
         *long_one = join(folder, "long.txt");
    static const char not_utf8[] = "abc\xff\xfe";
    write_file(bad, not_utf8, sizeof not_utf8 - 1);
    write_file(secret, "x", 1);
    char *many = malloc(40000);
    for (int i = 0; i < 20000; i++) memcpy(many + 2 * i, "a ", 2);
    write_file(long_one, many, 40000);
    free(many);
    cr_assert(symlink(secret, secret) != 0, "a symlink over a file");
    struct {
        char words[512];
        const char *says;
    } cases[] = {{"-p ''", "empty"}, {"", "empty"}, {"-f /nosuch/file", "/nosuch/file"},
                 {"", NULL},         {"", NULL},    {"", NULL}};
    snprintf(cases[3].words, sizeof cases[3].words, "-f %s", folder);
    cases[3].says = "directory";
    snprintf(cases[4].words, sizeof cases[4].words, "-f %s", bad);
    cases[4].says = "UTF-8";
    snprintf(cases[5].words, sizeof cases[5].words, "-f %s", long_one);
    cases[5].says = "512";
    for (int i = 0; i < 6; i++) {
        outcome o = sheaf(GREEDY "-n 4 %s", cases[i].words);
        expect_refusal(&o, 3);
        expect_says(o, cases[i].says);
        outcome_free(&o);
    }
    remove_folder(folder);
    free(secret);
    free(bad);
    free(long_one);
}

Test(run, a_prompt_that_is_too_long_is_told_with_both_counts, .timeout = 60) {
    char words[512] = "";
    for (int i = 0; i < 40; i++) strcat(words, "one two ");
    outcome ids = sheaf("tokenize -m " TINY " --json -p '%s'", words), o = sheaf(GREEDY "-c 32 -n 4 -p '%s'", words);
    cJSON *j = expect_json(&ids);
    char both[64], count[16];
    snprintf(count, sizeof count, "%d tokens", cJSON_GetArraySize(j));
    snprintf(both, sizeof both, "of %d", 256);
    expect_refusal(&o, 3);
    expect_says(o, count);
    cr_assert(strstr(o.err, "32") || strstr(o.err, both), "the context's size is not told: %s", o.err);
    expect_says(o, "hint: ");
    cJSON_Delete(j);
    outcome_free(&ids);
    outcome_free(&o);
}

Test(run, unreadable_text_is_bad_input, .timeout = 60) {
    if (geteuid() == 0) skip_test("root may read every file");
    char *folder = make_folder(), *secret = join(folder, "secret");
    write_file(secret, "x", 1);
    cr_assert(chmod(secret, 0) == 0);
    outcome o = sheaf(GREEDY "-n 4 -f %s", secret);
    expect_refusal(&o, 3);
    outcome_free(&o);
    remove_folder(folder);
    free(secret);
}

Test(run, one_newline_at_the_end_is_no_part_of_the_prompt, .timeout = 60) {
    static const char *const ends[] = {"", "\n", "\n\n"};
    char *folder = make_folder(), *path = join(folder, "prompt.txt");
    int n[3][2];
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "Once upon a time%s", ends[i]);
        write_file(path, text, strlen(text));
        how h = {.in = text, .in_n = strlen(text)};
        outcome o[2] = {sheaf(GREEDY "-n 0 --json -f %s", path), sheaf_how(&h, GREEDY "-n 0 --json")};
        for (int k = 0; k < 2; k++) {
            cJSON *j = expect_json(&o[k]);
            n[i][k] = cJSON_GetArraySize(expect_key(&o[k], j, "prompt_tokens", cJSON_Array));
            cJSON_Delete(j);
            outcome_free(&o[k]);
        }
        expect_int(n[i][1], n[i][0]);
    }
    expect_int(n[1][0], n[0][0]);
    cr_assert(n[2][0] > n[0][0], "two newlines: one is left");
    remove_folder(folder);
    free(path);
}

/* --- the reply --- */

Test(run, json_has_the_promised_keys, .timeout = 60) {
    outcome o = sheaf("run -m " TINY " -p 'Once upon' -n 12 --temp 0 --json -q");
    cJSON *j = expect_json(&o);
    expect_text(o.err, "");
    expect_key(&o, j, "text", cJSON_String);
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "prompt_tokens", cJSON_Array)) > 0, 1);
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "tokens", cJSON_Array)), 12);
    expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "length");
    expect_int(strlen(expect_key(&o, j, "logits_hash", cJSON_String)->valuestring), 16);
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "devices", cJSON_Array)), 1);
    const cJSON *t = expect_key(&o, j, "timings", cJSON_Object);
    static const char *const times[] = {"load_ms", "prompt_ms", "prompt_per_second", "predicted_ms",
                                        "predicted_per_second"};
    for (int i = 0; i < 5; i++) cr_assert(expect_key(&o, t, times[i], cJSON_Number)->valuedouble > 0, "%s", times[i]);
    cr_assert(expect_key(&o, j, "read_gb_per_s", cJSON_Number)->valuedouble > 0, "read_gb_per_s");
    cr_assert(expect_key(&o, j, "limit_gb_per_s", cJSON_Number)->valuedouble > 0, "limit_gb_per_s");
    expect_key(&o, j, "heap_allocs_per_token", cJSON_Number | cJSON_NULL);
    expect_key(&o, j, "overhead_share", cJSON_Number | cJSON_NULL);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(run, steady_tokens_ask_the_heap_for_nothing, .timeout = 60) {
    static const char *const devices[] = {"cpu", "cpu/2", "cpu/3"};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("run -m " TINY " -p 'Once upon' -n 80 --temp 0 --json --ignore-eos --devices %s", devices[i]);
        cJSON *j = expect_json(&o);
        const cJSON *calls = expect_key(&o, j, "heap_allocs_per_token", cJSON_Number | cJSON_NULL);
        if (!cJSON_IsNull(calls))
            cr_assert(calls->valuedouble == 0, "%s: %g calls a token", devices[i], calls->valuedouble);
        const cJSON *share = expect_key(&o, j, "overhead_share", cJSON_Number);
        cr_assert(share->valuedouble >= 0 && share->valuedouble <= 1, "%s: overhead share %g", devices[i],
                  share->valuedouble);
        cJSON_Delete(j);
        outcome_free(&o);
    }
}

Test(run, jsonl_is_one_line, .timeout = 60) {
    outcome o = sheaf("run -m " TINY " -p 'Once upon' -n 4 --temp 0 --jsonl -q");
    cJSON *j = expect_json(&o);
    expect_int(strcspn(o.out, "\n") + 1, o.out_n);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(run, plain_text_is_the_same_text_as_in_json, .timeout = 60) {
    outcome plain = sheaf(GREEDY "-n 24 -p 'Once upon'"), json = sheaf(GREEDY "-n 24 -p 'Once upon' --json");
    cJSON *j = expect_json(&json);
    const char *text = expect_key(&json, j, "text", cJSON_String)->valuestring;
    cr_assert(plain.out_n == strlen(text) + 1 && !memcmp(plain.out, text, plain.out_n - 1) &&
                  plain.out[plain.out_n - 1] == '\n',
              "\"%s\" is not \"%s\"", plain.out, text);
    cJSON_Delete(j);
    outcome_free(&plain);
    outcome_free(&json);
}

Test(run, quiet_says_nothing_and_loud_says_where_it_ran, .timeout = 60) {
    outcome quiet = sheaf(GREEDY "-n 4 -p Once"), loud = sheaf("run -m " TINY " --temp 0 -n 4 -p Once"),
            louder = sheaf("run -m " TINY " --temp 0 -n 4 -p Once -vv");
    expect_text(quiet.err, "");
    expect_says(loud, "tokens/s");
    expect_says(loud, " on cpu");
    cr_assert(louder.err_n > loud.err_n, "-vv says no more: %s", louder.err);
    expect_text(loud.out, quiet.out);
    expect_text(louder.out, quiet.out);
    outcome_free(&quiet);
    outcome_free(&loud);
    outcome_free(&louder);
}

Test(run, v_says_what_was_chosen_and_why, .timeout = 60) {
    static const char *const parts[] = {"sheaf: info: devices: cpu/2", "thread",       "split: tensor over 2 devices",
                                        "context: 512 tokens",         "K cache f16",  "memory of cpu",
                                        "collectives: the first is",   "sheaf: info: "};
    outcome plain = sheaf("run -m " TINY " --temp 0 -n 2 -p Once --devices cpu/2"),
            loud = sheaf("run -m " TINY " --temp 0 -n 2 -p Once --devices cpu/2 -v");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) expect_says(loud, parts[i]);
    expect_has_not(plain, plain.err, "info:");
    expect_text(loud.out, plain.out);
    outcome_free(&plain);
    outcome_free(&loud);
}

Test(run, counts_of_tokens_are_kept, .timeout = 60) {
    static const int counts[] = {0, 1, 7};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf(GREEDY "-n %d -p Once --json --ignore-eos", counts[i]);
        cJSON *j = expect_json(&o);
        expect_int(cJSON_GetArraySize(expect_key(&o, j, "tokens", cJSON_Array)), counts[i]);
        expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "length");
        cJSON_Delete(j);
        outcome_free(&o);
    }
    outcome none = sheaf(GREEDY "-n 0 -p Once");
    expect_text(none.out, "\n");
    outcome_free(&none);
}

Test(run, minus_one_goes_on_until_the_context_is_full, .timeout = 60) {
    outcome o = sheaf(GREEDY "-n -1 -c 48 -p Once --json --ignore-eos");
    cJSON *j = expect_json(&o);
    int prompt = cJSON_GetArraySize(expect_key(&o, j, "prompt_tokens", cJSON_Array)),
        reply = cJSON_GetArraySize(expect_key(&o, j, "tokens", cJSON_Array));
    expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "length");
    cr_assert(prompt + reply >= 48, "%d + %d tokens", prompt, reply);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(run, a_full_context_is_named_as_the_end, .timeout = 60) {
    outcome full = sheaf("run -m " TINY " --temp 0 --ignore-eos -n 40 -c 16 -p Once"),
            enough = sheaf("run -m " TINY " --temp 0 --ignore-eos -n 4 -c 16 -p Once"),
            json = sheaf(GREEDY "--ignore-eos -n 40 -c 16 -p Once --json");
    expect_says(full, "ended by length: the context of 16 is full");
    expect_says(enough, "ended by length\n");
    cJSON *j = expect_json(&json);
    cr_assert(cJSON_IsTrue(expect_key(&json, j, "context_full", cJSON_Invalid)), "%s", json.out);
    cJSON_Delete(j);
    outcome_free(&full);
    outcome_free(&enough);
    outcome_free(&json);
}

Test(run, a_context_beyond_training_is_warned_of, .timeout = 60) {
    outcome far = sheaf("run -m " TINY " --temp 0 -n 1 -c 1000 -p Once"),
            near = sheaf("run -m " TINY " --temp 0 -n 1 -c 512 -p Once"), quiet = sheaf(GREEDY "-n 1 -c 1000 -p Once");
    expect_code(far, 0);
    expect_says(far, "sheaf: warning: -c 1000: the model was trained for a context of 512");
    expect_has_not(near, near.err, "warning");
    expect_text(quiet.err, "");
    outcome_free(&far);
    outcome_free(&near);
    outcome_free(&quiet);
}

Test(run, split_mode_none_is_the_first_device_alone, .timeout = 60) {
    outcome o = sheaf(GREEDY "-n 4 -p Once --devices cpu/2 -sm none --json"),
            told = sheaf("run -m " TINY " --temp 0 -n 4 -p Once --devices cpu/2 -sm none");
    cJSON *j = expect_json(&o);
    const cJSON *devices = expect_key(&o, j, "devices", cJSON_Array);
    expect_int(cJSON_GetArraySize(devices), 1);
    char where[64];
    snprintf(where, sizeof where, " on %s\n", cJSON_GetArrayItem(devices, 0)->valuestring);
    expect_says(told, where);
    expect_has_not(told, told.err, "on cpu/2\n");
    cJSON_Delete(j);
    outcome_free(&o);
    outcome_free(&told);
}

Test(run, a_stop_string_ends_before_itself, .timeout = 60) {
    outcome plain = sheaf(GREEDY "-n 24 -p 'Once upon a time'");
    char stop[8] = "", words[64];
    cr_assert(plain.out_n > 16, "\"%s\"", plain.out);
    /* five characters out of the middle, whatever the tokens are */
    memcpy(stop, plain.out + 9, 5);
    const char *first = strstr(plain.out, stop);
    snprintf(words, sizeof words, "--stop '%s'", stop);
    cr_assert(!strchr(stop, '\'') && !strchr(stop, '\n'), "the reply cannot be quoted: \"%s\"", plain.out);
    outcome o = sheaf(GREEDY "-n 24 -p 'Once upon a time' %s --json", words);
    cJSON *j = expect_json(&o);
    const char *text = expect_key(&o, j, "text", cJSON_String)->valuestring;
    expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "stop");
    cr_assert(strlen(text) == (size_t)(first - plain.out) && !strncmp(text, plain.out, strlen(text)),
              "\"%s\" of \"%s\" until \"%s\"", text, plain.out, stop);
    cJSON_Delete(j);
    outcome_free(&o);
    outcome_free(&plain);
}

/* The shipped vocabulary's first tokens are bytes; those from 0xc2 to 0xf4 only begin a character. */
static bool begins_a_character(int id) { return id >= 127 && id <= 177; }

/* What was held back for a character that never came is shown as one bad byte when the reply is over. */
Test(run, half_a_character_at_the_end_is_shown_as_bad, .timeout = 60) {
    static const char wild[] =
        "run -m " TINY " -p Once --temp 50 --top-k 0 --top-p 1 --min-p 0 --seed 5 --ignore-eos --json";
    outcome o = sheaf("%s -n 400", wild);
    cJSON *j = expect_json(&o);
    const cJSON *ids = expect_key(&o, j, "tokens", cJSON_Array);
    int n = 1;
    while (n < 400 && !(begins_a_character(cJSON_GetArrayItem(ids, n)->valueint) &&
                        cJSON_GetArrayItem(ids, n - 1)->valueint > 256))
        n++;
    cr_assert(n < 400, "400 wild tokens and no first byte of a character");
    outcome cut = sheaf("%s -n %d", wild, n + 1);
    cJSON *k = expect_json(&cut);
    const char *text = expect_key(&cut, k, "text", cJSON_String)->valuestring;
    cr_assert(strlen(text) > 3 && !strcmp(text + strlen(text) - 3, "\xef\xbf\xbd"), "it ends otherwise: \"%s\"", text);
    cJSON_Delete(j);
    cJSON_Delete(k);
    outcome_free(&o);
    outcome_free(&cut);
}

/* "abX" might still begin at the a, so that "b" is found only when the reply is over. */
Test(run, a_stop_string_is_found_at_the_very_end, .timeout = 60) {
    outcome plain = sheaf(GREEDY "-n 5 --ignore-eos -p Once");
    expect_code(plain, 0);
    size_t n = plain.out_n - 1; /* the line's end is not the reply's */
    const char *tail = plain.out + n - 4;
    cr_assert(n > 8 && !memchr(tail, '\'', 4) && !memchr(tail, '\n', 4) && strstr(plain.out, tail) == tail,
              "no reply to play this with: \"%s\"", plain.out);
    outcome o = sheaf(GREEDY "-n 5 --ignore-eos -p Once --json --stop '%.4s#' --stop '%.3s'", tail, tail + 1);
    cJSON *j = expect_json(&o);
    const char *text = expect_key(&o, j, "text", cJSON_String)->valuestring;
    expect_text(expect_key(&o, j, "stop", cJSON_String)->valuestring, "stop");
    cr_assert(strlen(text) == n - 3 && !strncmp(text, plain.out, n - 3), "\"%s\" of \"%s\"", text, plain.out);
    cJSON_Delete(j);
    outcome_free(&plain);
    outcome_free(&o);
}

/* --- sampling --- */

Test(run, greedy_and_seeded_replies_repeat, .timeout = 60) {
    static const char *const ways[] = {"--temp 0", "--temp 0 -t 1", "--temp 0.9 -s 42", "--temp 0.9 -s 43"};
    char *text[4];
    for (int i = 0; i < 4; i++) {
        outcome a = sheaf("run -m " TINY " -q -n 32 -p Once %s", ways[i]),
                b = sheaf("run -m " TINY " -q -n 32 -p Once %s", ways[i]);
        expect_code(a, 0);
        expect_text(a.out, b.out);
        text[i] = strdup(a.out);
        outcome_free(&a);
        outcome_free(&b);
    }
    expect_text(text[1], text[0]);
    cr_assert(strcmp(text[2], text[3]), "two seeds gave the same 32 tokens: %s", text[2]);
    for (int i = 0; i < 4; i++) free(text[i]);
}

Test(run, without_a_seed_replies_differ, .timeout = 60) {
    outcome a = sheaf("run -m " TINY " -q -n 64 -p Once --temp 1.5"),
            b = sheaf("run -m " TINY " -q -n 64 -p Once --temp 1.5");
    cr_assert(strcmp(a.out, b.out), "two random replies are the same: %s", a.out);
    outcome_free(&a);
    outcome_free(&b);
}

Test(run, many_devices_give_the_same_tokens_and_hash, .timeout = 120) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3", "cpu/5"};
    char *tokens = NULL, *hash = NULL;
    for (int i = 0; i < 4; i++) {
        outcome o = sheaf(GREEDY "-n 32 -p 'Once upon a time' --json --devices %s", lists[i]);
        cJSON *j = expect_json(&o);
        char *now = cJSON_PrintUnformatted(expect_key(&o, j, "tokens", cJSON_Array));
        const char *h = expect_key(&o, j, "logits_hash", cJSON_String)->valuestring;
        if (!tokens) {
            tokens = strdup(now);
            hash = strdup(h);
        }
        expect_text(now, tokens);
        expect_text(h, hash);
        /* greedy reads the best (value, id) of each device's part of the vocabulary */
        cr_assert(expect_key(&o, j, "logits_bytes_per_token", cJSON_Number)->valuedouble == (i < 3 ? i + 1 : 5) * 8.0);
        cJSON_free(now);
        cJSON_Delete(j);
        outcome_free(&o);
    }
    free(tokens);
    free(hash);
}

/* --- a saved prompt --- */

#define TALE "run -m " TINY " --temp 0 -n 12 -p 'There was once upon a time a king who had'"

/* Saved on two devices, used on three: the same reply, and only the prompt's last token runs again. */
Test(run, a_saved_prompt_is_not_run_again, .timeout = 120) {
    char *folder = make_folder(), *path = join(folder, "king.state");
    struct stat first, second;
    outcome plain = sheaf(TALE " -q"), a = sheaf(TALE " --devices cpu/2 --prompt-cache %s", path);
    cr_assert(stat(path, &first) == 0 && first.st_size > 1000, "no file was saved");
    outcome b = sheaf(TALE " --devices cpu/3 --prompt-cache %s --prompt-cache-ro", path);
    cr_assert(stat(path, &second) == 0 && first.st_ino == second.st_ino, "--prompt-cache-ro wrote the file");
    expect_text(a.out, plain.out);
    expect_text(b.out, plain.out);
    cr_assert(strstr(a.err, "(1 run)") == NULL, "%s", a.err);
    cr_assert(strstr(b.err, "(1 run)") != NULL, "%s", b.err);
    outcome_free(&a);
    outcome_free(&b);
    a = sheaf(TALE " -n 20 --prompt-cache %s --prompt-cache-all", path);
    cr_assert(stat(path, &second) == 0 && second.st_size > first.st_size, "the reply was not saved");
    expect_code(a, 0);
    outcome_free(&a);
    outcome_free(&plain);
    free(path);
    remove_folder(folder);
}

Test(run, a_saved_prompt_that_does_not_fit_is_an_error, .timeout = 120) {
    char *folder = make_folder(), *path = join(folder, "king.state"), *cut = join(folder, "cut.state");
    outcome o = sheaf(TALE " -q --prompt-cache %s", path);
    expect_code(o, 0);
    outcome_free(&o);
    o = sheaf(TALE " -q -ctk q8_0 --prompt-cache %s", path);
    expect_code(o, 3);
    expect_error_line(&o);
    cr_assert(strstr(o.err, "keys of f16") != NULL, "%s", o.err);
    outcome_free(&o);
    write_file(cut, "SHEAF-KV", 8);
    o = sheaf(TALE " -q --prompt-cache %s", cut);
    expect_code(o, 3);
    expect_error_line(&o);
    cr_assert(strstr(o.err, "ends at byte 8") != NULL, "%s", o.err);
    outcome_free(&o);
    o = sheaf(TALE " -q --prompt-cache %s/none/king.state", folder);
    expect_code(o, 3);
    outcome_free(&o);
    free(path);
    free(cut);
    remove_folder(folder);
}

/* What ./quickstart shows must not run in circles: no eight tokens come twice. */
Test(run, the_demo_repeats_no_eight_tokens, .timeout = 60) {
    enum { N = 8 };
    outcome o =
        sheaf("run -m " TINY " --raw -p 'There was once upon a time a king who had' -n 160 --temp 0.7 --seed 11 "
              "--json --devices cpu/2");
    cJSON *j = expect_json(&o);
    const cJSON *tokens = expect_key(&o, j, "tokens", cJSON_Array);
    int n = cJSON_GetArraySize(tokens), id[160];
    cr_assert(n > 100 && n <= 160, "%d tokens", n);
    for (int i = 0; i < n; i++) id[i] = cJSON_GetArrayItem(tokens, i)->valueint;
    for (int a = 0; a + N <= n; a++)
        for (int b = a + 1; b + N <= n; b++)
            cr_assert(memcmp(id + a, id + b, N * sizeof *id) != 0, "the tokens from %d come again at %d", a, b);
    cJSON_Delete(j);
    outcome_free(&o);
}

/* The mode without: plain sums. The text stays; that the bits go shows that the switch switches. */
Test(run, the_same_bits_can_be_given_up, .timeout = 120) {
    static const char *const lists[] = {"cpu", "cpu/3"};
    how plain_sums = {.env = {"SHEAF_SAME_BITS=0"}};
    for (int i = 0; i < 2; i++) {
        outcome exact = sheaf(GREEDY "-n 8 -p 'Once upon a time' --json --devices %s", lists[i]);
        outcome plain = sheaf_how(&plain_sums, GREEDY "-n 8 -p 'Once upon a time' --json --devices %s", lists[i]);
        cJSON *a = expect_json(&exact), *b = expect_json(&plain);
        expect_text(expect_key(&plain, b, "text", cJSON_String)->valuestring,
                    expect_key(&exact, a, "text", cJSON_String)->valuestring);
        cr_expect_str_neq(expect_key(&plain, b, "logits_hash", cJSON_String)->valuestring,
                          expect_key(&exact, a, "logits_hash", cJSON_String)->valuestring,
                          "%s: SHEAF_SAME_BITS=0 changed nothing", lists[i]);
        cJSON_Delete(a);
        cJSON_Delete(b);
        outcome_free(&exact);
        outcome_free(&plain);
    }
}

/* --- looking inside --- */

Test(run, dumped_tensors_go_to_standard_error, .timeout = 60) {
    outcome plain = sheaf(GREEDY "-n 3 -p Once"),
            o = sheaf("run -m " TINY " --temp 0 -n 3 -p Once --dump-tensors '^ffn_out-[02]$'"),
            none = sheaf("run -m " TINY " --temp 0 -n 1 -p Once --dump-tensors nosuchtensor");
    expect_code(o, 0);
    expect_text(o.out, plain.out);
    expect_says(o, "ffn_out-0");
    expect_says(o, "ffn_out-2");
    expect_says(o, "192 x 1");
    expect_has_not(o, o.err, "ffn_out-1 ");
    expect_code(none, 0);
    expect_says(none, "nosuchtensor");
    outcome_free(&plain);
    outcome_free(&o);
    outcome_free(&none);
}

/* Every node, those without a name too: each is then cut off behind, and read by the next piece as a leaf. */
Test(run, every_node_can_be_dumped_on_many_devices, .timeout = 120) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3"};
    outcome plain = sheaf(GREEDY "-n 3 -p Once");
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("run -m " TINY " --temp 0 -n 3 -p Once --dump-tensors '' --devices %s", lists[i]);
        expect_code(o, 0);
        expect_text(o.out, plain.out);
        expect_has(o, o.err, "set_rows");
        outcome_free(&o);
    }
    outcome_free(&plain);
}
