/* `sheaf run -i` and chat templates: through a pipe, and at a terminal as a person meets it. */
#include "fixture.h"
#include "golden.h"
#include "tests/launch/spawn.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static char folder_path[512];
static char model[600];

static void setup(void) {
    char *f = make_folder();
    snprintf(folder_path, sizeof folder_path, "%s", f);
    free(f);
    snprintf(model, sizeof model, "%s/chat.gguf", folder_path);
    write_chat_model(model);
}

static void teardown(void) { remove_folder(strdup(folder_path)); }

TestSuite(chat, .init = setup, .fini = teardown);

Test(chat, a_template_wraps_the_prompt_unless_it_is_raw, .timeout = 60) {
    outcome wrapped = sheaf("run -m %s -p Hello -n 0 --json", model),
            raw = sheaf("run -m %s -p Hello -n 0 --json --raw", model),
            no_cnv = sheaf("run -m %s -p Hello -n 0 --json -no-cnv", model),
            ids = sheaf("tokenize -m %s --json -p Hello", model);
    cJSON *a = expect_json(&wrapped), *b = expect_json(&raw), *c = expect_json(&no_cnv), *d = expect_json(&ids);
    cr_assert(cJSON_Compare(expect_key(&raw, b, "prompt_tokens", cJSON_Array), d, true), "%s, not %s", raw.out,
              ids.out);
    cr_assert(cJSON_Compare(expect_key(&no_cnv, c, "prompt_tokens", cJSON_Array), d, true), "%s, not %s", no_cnv.out,
              ids.out);
    cr_assert(cJSON_GetArraySize(expect_key(&wrapped, a, "prompt_tokens", cJSON_Array)) > cJSON_GetArraySize(d), "%s",
              wrapped.out);
    cJSON_Delete(a);
    cJSON_Delete(b);
    cJSON_Delete(c);
    cJSON_Delete(d);
    outcome_free(&wrapped);
    outcome_free(&raw);
    outcome_free(&no_cnv);
    outcome_free(&ids);
}

static int prompt_tokens(const char *words) {
    outcome o = sheaf("run -m %s -n 0 --json %s", model, words);
    cJSON *j = expect_json(&o);
    int n = cJSON_GetArraySize(expect_key(&o, j, "prompt_tokens", cJSON_Array));
    cJSON_Delete(j);
    outcome_free(&o);
    return n;
}

Test(chat, a_system_message_is_part_of_the_prompt, .timeout = 60) {
    int without = prompt_tokens("-p Hello"), with = prompt_tokens("-p Hello -sys 'Be brief.'");
    cr_assert(with > without, "%d tokens with a system message, %d without", with, without);
    outcome o = sheaf("run -m %s -p Hello -sys x --raw", model);
    expect_refusal(&o, 2);
    outcome_free(&o);
}

Test(chat, without_a_template_there_is_no_chat, .timeout = 60) {
    how h = {.in = "hello\n", .in_n = 6};
    outcome o = sheaf_how(&h, "run -m %s -i", TINY);
    expect_refusal(&o, 3);
    expect_says(o, "template");
    outcome_free(&o);
}

Test(chat, lines_through_a_pipe_are_turns, .timeout = 60) {
    static const char lines[] = "Tell a tale\n\nAnd another\n/exit\nnever read\n";
    how h = {.in = lines, .in_n = sizeof lines - 1};
    outcome o = sheaf_how(&h, "run -m %s -i --temp 0 -n 6 -q", model);
    expect_code(o, 0);
    expect_text(o.err, "");
    int turns = 0;
    for (const char *p = o.out; (p = strchr(p, '\n')); p++) turns++;
    cr_assert(turns >= 2 && o.out_n > 8, "two replies were expected: \"%s\"", o.out);
    outcome_free(&o);
    how last = {.in = "no newline at the end", .in_n = 21};
    o = sheaf_how(&last, "run -m %s -i --temp 0 -n 6 -q", model);
    expect_code(o, 0);
    cr_assert(o.out_n > 4, "the last line without a newline is a turn too: \"%s\"", o.out);
    outcome_free(&o);
    how none = {0};
    o = sheaf_how(&none, "run -m %s -i -q", model);
    expect_code(o, 0);
    outcome_free(&o);
}

Test(chat, the_first_turn_is_what_run_says, .timeout = 60) {
    how h = {.in = "Tell a tale\n", .in_n = 12};
    outcome chat = sheaf_how(&h, "run -m %s -i --temp 0 -n 12 -q", model),
            once = sheaf("run -m %s --temp 0 -n 12 -q -p 'Tell a tale'", model);
    expect_text(chat.out, once.out);
    outcome_free(&chat);
    outcome_free(&once);
}

Test(chat, a_full_context_is_said_and_the_chat_goes_on, .timeout = 60) {
    char lines[4000] = "";
    for (int i = 0; i < 60; i++) strcat(lines, "so many words in one single line ");
    strcat(lines, "\nhello\n");
    how h = {.in = lines, .in_n = strlen(lines)};
    outcome o = sheaf_how(&h, "run -m %s -i --temp 0 -n 4 -c 64", model);
    expect_code(o, 0);
    expect_says(o, "sheaf: ");
    cr_assert(o.out_n > 4, "the second line got no reply: \"%s\", %s", o.out, o.err);
    outcome_free(&o);
}

/* Two turns, of which the second does not fit; /clear makes room. */
Test(chat, clear_makes_room_in_a_full_context, .timeout = 60) {
    static const char lines[] = "Tell a tale\nAnd another\n/clear\nTell a tale\n/help\n";
    how h = {.in = lines, .in_n = sizeof lines - 1};
    outcome once = sheaf("run -m %s -p 'Tell a tale' -sys Short. --temp 0 --ignore-eos -n 30 -c 48 -q", model);
    outcome o = sheaf_how(&h, "run -m %s -i -sys Short. --temp 0 --ignore-eos -n 30 -c 48", model);
    expect_code(o, 0);
    expect_says(o, "do not fit the context of 48");
    expect_says(o, "\nhint: /clear");
    expect_says(o, "-c N");
    expect_says(o, "/exit   end");
    expect_says(o, "\nreply ");
    const char *again = strstr(o.out + 1, once.out);
    cr_assert(!strncmp(o.out, once.out, once.out_n) && again, "\"%s\" twice in \"%s\"", once.out, o.out);
    outcome_free(&once);
    outcome_free(&o);
}

/* The reply that a random model writes is other tokens when its text is read again, so the second turn begins far back:
 * where windows hold that no longer, all is run again. */
Test(chat, a_turn_that_begins_before_the_windows_is_run_as_a_whole, .timeout = 60) {
    fixture_case c;
    char plain[600], path[600];
    snprintf(plain, sizeof plain, "%s/plain.gguf", folder_path);
    snprintf(path, sizeof path, "%s/windowed.gguf", folder_path);
    cr_assert(!fixture_find(GOLDEN_DIR "/cases.txt", "gemma3-f32", &c) && !fixture_write(&c, plain));
    add_chat_template(plain, path);
    static const char lines[] = "one two\nand then?\n";
    how h = {.in = lines, .in_n = sizeof lines - 1};
    outcome kept = sheaf_how(&h, "run -m %s -i --temp 0 --ignore-eos -n 40 -c 256 -ub 8", path);
    outcome full = sheaf_how(&h, "run -m %s -i --temp 0 --ignore-eos -n 40 -c 256 -ub 8 --swa-full", path);
    expect_code(kept, 0);
    expect_code(full, 0);
    expect_text(kept.out, full.out);
    outcome_free(&kept);
    outcome_free(&full);
}

Test(chat, the_report_ends_a_chat_whose_last_turn_did_not_fit, .timeout = 60) {
    static const char lines[] = "Tell a tale\nAnd another\n";
    how h = {.in = lines, .in_n = sizeof lines - 1};
    outcome o = sheaf_how(&h, "run -m %s -i --temp 0 --ignore-eos -n 40 -c 48", model);
    expect_code(o, 0);
    expect_says(o, "do not fit");
    const char *error = strstr(o.err, "do not fit");
    expect_has(o, error, "\nreply ");
    outcome_free(&o);
}

Test(chat, bytes_that_are_no_text_are_refused_and_the_chat_goes_on, .timeout = 60) {
    static const char lines[] = "\xff\xfe\nhello\n";
    how h = {.in = lines, .in_n = sizeof lines - 1};
    outcome o = sheaf_how(&h, "run -m %s -i --temp 0 -n 4 -q", model);
    expect_code(o, 0);
    cr_assert(o.out_n > 2, "\"%s\" %s", o.out, o.err);
    outcome_free(&o);
}

/* --- at a terminal --- */

Test(chat, ctrl_d_ends, .timeout = 60) {
    terminal t = terminal_open("run -m %s -i --temp 0 -n 4", model);
    cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
    size_t at = t.n;
    terminal_type(&t, "hello\r");
    cr_assert(terminal_wait(&t, at + 6, "> ", 20), "no second prompt: \"%s\"", t.shown);
    terminal_settle(&t, 100);
    terminal_type(&t, "\x04");
    int code = terminal_close(&t, 20);
    cr_assert(code == 0, "Ctrl-D: %d, \"%s\"", code, t.shown);
    free(t.shown);
}

Test(chat, ctrl_c_at_the_prompt_clears_the_line, .timeout = 60) {
    terminal t = terminal_open("run -m %s -i --temp 0 -n 4", model);
    cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
    for (int i = 0; i < 12; i++) {
        terminal_settle(&t, 100); /* the line editor has taken the terminal over */
        size_t at = t.n;
        terminal_type(&t, "never sent");
        cr_assert(terminal_wait(&t, at, "sent", 10), "no echo: \"%s\"", t.shown);
        terminal_type(&t, "\x03");
        cr_assert(terminal_wait(&t, t.n, "> ", 20), "no prompt after Ctrl-C: \"%s\"", t.shown);
        terminal_settle(&t, 50);
    }
    terminal_type(&t, "/exit\r");
    int code = terminal_close(&t, 20);
    cr_assert(code == 0, "after Ctrl-C and /exit: %d, \"%s\"", code, t.shown);
    free(t.shown);
}

Test(chat, ctrl_c_in_a_reply_stops_the_reply_not_the_program, .timeout = 120) {
    terminal t = terminal_open("run -m %s -i --temp 0.9 -s 3 --ignore-eos -n -1 -c 100000 -t 1", model);
    cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
    terminal_settle(&t, 300);
    size_t at = t.n;
    terminal_type(&t, "go\r");
    /* the reply is running once there is more than the echo */
    cr_assert(terminal_grow(&t, at + 60, 60), "no reply: \"%s\"", t.shown);
    terminal_type(&t, "\x03");
    cr_assert(terminal_wait(&t, t.n, "\n> ", 20) || terminal_wait(&t, at + 60, "> ", 1),
              "no prompt after the reply: \"%s\"", t.shown);
    terminal_settle(&t, 200);
    at = t.n;
    terminal_type(&t, "/exit\r");
    int code = terminal_close(&t, 20);
    cr_assert(code == 0, "after a stopped reply and /exit: %d, \"%s\"", code, t.shown + at);
    free(t.shown);
}

Test(chat, what_is_typed_may_be_any_text, .timeout = 120) {
    static const char *const locales[] = {"LC_ALL=C.UTF-8", "LC_ALL=C", "LC_ALL=POSIX"};
    for (int i = 0; i < 3; i++) {
        how h = {.env = {locales[i]}};
        terminal t = terminal_open_how(&h, "run -m %s -i --temp 0 -n 4", model);
        cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
        terminal_settle(&t, 300);
        size_t at = t.n;
        terminal_type(&t, "caf\xc3\xa9 \xe2\x82\xac");
        cr_assert(terminal_wait(&t, at, "caf\xc3\xa9 \xe2\x82\xac", 10), "%s: shown is \"%s\"", locales[i],
                  t.shown + at);
        terminal_type(&t, "\r");
        cr_assert(terminal_wait(&t, t.n, "> ", 20), "no second prompt: \"%s\"", t.shown);
        terminal_settle(&t, 100);
        terminal_type(&t, "/exit\r");
        expect_int(terminal_close(&t, 20), 0);
        free(t.shown);
    }
}

Test(chat, ctrl_d_in_a_reply_ends_the_chat_behind_it, .timeout = 120) {
    terminal t = terminal_open("run -m %s -i --temp 0.9 -s 3 --ignore-eos -n 400 -c 1000 -t 1", model);
    cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
    terminal_settle(&t, 300);
    size_t at = t.n;
    terminal_type(&t, "go\r");
    cr_assert(terminal_grow(&t, at + 40, 60), "no reply: \"%s\"", t.shown);
    terminal_type(&t, "\x04");
    int code = terminal_close(&t, 60);
    cr_assert(code == 0, "Ctrl-D in a reply: %d, \"%s\"", code, t.shown);
    free(t.shown);
}

/* A prompt of thousands of tokens is one batch that no signal stops: the second Ctrl-C comes before the first is seen.
 */
Test(chat, ctrl_c_twice_keeps_the_conversation, .timeout = 120) {
    static char words[30000];
    for (int i = 0; i < (SANITIZED ? 500 : 2500); i++) strcat(words, "so many ");
    terminal t = terminal_open("run -m %s -i --temp 0 -n 4 -c 8192 -b 8192 -ub 8192 -t 1 -p '%s'", model, words);
    terminal_settle(&t, 400); /* loaded, and in the prompt */
    for (int i = 0; i < 2; i++) {
        terminal_type(&t, "\x03");
        terminal_settle(&t, 200);
    }
    cr_assert(terminal_wait(&t, 0, "> ", 60), "no prompt behind two Ctrl-C: \"%s\"", t.shown);
    terminal_settle(&t, 300);
    terminal_type(&t, "/exit\r");
    int code = terminal_close(&t, 30);
    cr_assert(code == 0, "after two Ctrl-C and /exit: %d, \"%s\"", code, t.shown);
    free(t.shown);
}

Test(chat, closing_the_terminal_ends_the_program, .timeout = 60) {
    terminal t = terminal_open("run -m %s -i --temp 0 -n 4", model);
    cr_assert(terminal_wait(&t, 0, "> ", 20), "no prompt was shown: \"%s\"", t.shown);
    kill(t.pid, SIGTERM);
    int code = terminal_close(&t, 10);
    cr_assert(code == 143, "SIGTERM at the prompt: %d", code);
    free(t.shown);
}
