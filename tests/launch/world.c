/* The command under mpirun: one list of devices, one result, whole lines. */
#include "tests/launch/spawn.h"

#include <string.h>

static const how two = {.ranks = 2, .seconds = 100};

#define GREEDY "run -m " TINY " -p 'Once upon a time' -n 8 --temp 0"

Test(world, the_world_s_devices_are_listed, .timeout = 300) {
    outcome one = sheaf(GREEDY " --json"), o = sheaf_how(&two, GREEDY " --json"),
            told = sheaf_how(&two, GREEDY " --devices cpu/2");
    cJSON *a = expect_json(&one), *b = expect_json(&o);
    const cJSON *devices = expect_key(&o, b, "devices", cJSON_Array);
    expect_int(cJSON_GetArraySize(devices), 2);
    expect_text(cJSON_GetArrayItem(devices, 0)->valuestring, "rank0.cpu");
    expect_text(cJSON_GetArrayItem(devices, 1)->valuestring, "rank1.cpu");
    expect_text(expect_key(&o, b, "logits_hash", cJSON_String)->valuestring,
                expect_key(&one, a, "logits_hash", cJSON_String)->valuestring);
    expect_says(told, " on cpu/2,cpu/2 on 2 ranks");
    cJSON_Delete(a);
    cJSON_Delete(b);
    outcome_free(&one);
    outcome_free(&o);
    outcome_free(&told);
}

Test(world, split_shows_every_rank_s_share, .timeout = 300) {
    outcome o = sheaf_how(&two, "split -m " TINY " --json"), text = sheaf_how(&two, "split -m " TINY " --summary");
    cJSON *j = expect_json(&o);
    const cJSON *row, *run, *devices = expect_key(&o, j, "devices", cJSON_Array);
    expect_int(cJSON_GetArraySize(devices), 2);
    cJSON_ArrayForEach(row, devices) {
        cr_assert(expect_key(&o, row, "weight_bytes", cJSON_Number)->valuedouble > 0, "no weights: %s", o.out);
        cr_assert(expect_key(&o, row, "compute_bytes", cJSON_Number)->valuedouble > 0, "no compute: %s", o.out);
    }
    cJSON_ArrayForEach(row, expect_key(&o, j, "tensors", cJSON_Array)) {
        cJSON_ArrayForEach(run, expect_key(&o, row, "runs", cJSON_Array))
            cr_assert(cJSON_GetArraySize(cJSON_GetArrayItem(run, 1)) > 0, "a run on no device: %s",
                      expect_key(&o, row, "name", cJSON_String)->valuestring);
    }
    expect_has(text, text.out, "rank0.cpu");
    expect_has(text, text.out, "rank1.cpu");
    expect_has_not(text, text.out, "100.0 %");
    cJSON_Delete(j);
    outcome_free(&o);
    outcome_free(&text);
}

Test(world, against_is_refused_and_does_not_hang, .timeout = 300) {
    outcome o = sheaf_how(&two, "perplexity -m " TINY " -f " TALES " -c 128 --chunks 1 --against cpu/3");
    expect_code(o, 3);
    expect_says(o, "--against cpu/3");
    expect_says(o, "--kl-divergence-base");
    outcome_free(&o);
}

Test(world, what_one_process_does_is_done_once, .timeout = 300) {
    static const char *const lines[] = {"tokenize -m " TINY " -p 'Once upon a time'",
                                        "inspect " TINY,
                                        "split --print-table --arch llama",
                                        "--help",
                                        "run --help",
                                        "--version"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        outcome one = sheaf("%s", lines[i]), o = sheaf_how(&two, "%s", lines[i]);
        expect_code(o, 0);
        expect_text(o.out, one.out);
        outcome_free(&one);
        outcome_free(&o);
    }
    outcome found = sheaf_how(&two, "devices");
    const char *first = strstr(found.out, "chosen (cpu,cpu on 2 ranks):");
    cr_assert(first && !strstr(first + 1, "chosen"), "once: %s", found.out);
    expect_has(found, found.out, "rank1.cpu");
    outcome_free(&found);
}

Test(world, a_note_is_given_once_and_error_lines_are_whole, .timeout = 300) {
    static const char line[] = "sheaf: options: --nosuch: unknown option of run";
    outcome noted = sheaf_how(&two, GREEDY " -n 1 --mlock");
    const char *note = strstr(noted.err, "sheaf: note: --mlock");
    cr_assert(note && !strstr(note + 1, "sheaf: note: --mlock"), "one note: %s", noted.err);
    outcome_free(&noted);
    for (int i = 0; i < 4; i++) {
        outcome o = sheaf_how(&two, "run --nosuch");
        expect_code(o, 2);
        for (const char *p = o.err; (p = strstr(p, "sheaf: ")); p += 7) {
            cr_assert((p == o.err || p[-1] == '\n') && !strncmp(p, line, sizeof line - 1) && p[sizeof line - 1] == '\n',
                      "not whole: %s", o.err);
        }
        outcome_free(&o);
    }
}

/* mpirun has the terminal, so lines come through a pipe; the user sees where they are all the same. */
Test(world, a_chat_shows_its_prompt, .timeout = 300) {
    char *folder = make_folder(), model[600];
    snprintf(model, sizeof model, "%s/chat.gguf", folder);
    write_chat_model(model);
    how h = two;
    h.in = "Tell a tale\n/exit\n";
    h.in_n = strlen(h.in);
    outcome o = sheaf_how(&h, "run -m %s -i --temp 0 -n 4", model),
            once = sheaf("run -m %s -p 'Tell a tale' --temp 0 -n 4 -q", model);
    expect_code(o, 0);
    expect_text(o.out, once.out);
    expect_says(o, "/clear");
    expect_says(o, "> ");
    outcome_free(&o);
    outcome_free(&once);
    remove_folder(folder);
}
