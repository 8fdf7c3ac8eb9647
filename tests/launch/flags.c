/* llama.cpp's flags: each works, is accepted with one note, or is refused with a hint that names what does it here. */
#include "tests/launch/spawn.h"

#include <string.h>

#define SHORT "run -m " TINY " -p Once -n 1 --temp 0"

static int notes_in(const char *err) {
    int n = 0;
    for (const char *p = err; (p = strstr(p, "sheaf: note: ")); p++) n++;
    return n;
}

/* Every flag of the line is noted once, and the result is that of the line without them. */
static void expect_noted(const char *line, const char *const *flags, size_t n, const char *wanted) {
    char words[2048] = "", note[128];
    for (size_t i = 0; i < n; i++) {
        strcat(words, " ");
        strcat(words, flags[i]);
    }
    outcome o = sheaf("%s%s", line, words);
    expect_code(o, 0);
    if (wanted) expect_text(o.out, wanted);
    for (size_t i = 0; i < n; i++) {
        snprintf(note, sizeof note, "sheaf: note: %.*s is accepted", (int)strcspn(flags[i], " "), flags[i]);
        expect_says(o, note);
    }
    cr_assert(notes_in(o.err) == (int)n, "%d notes for %zu flags: %s", notes_in(o.err), n, o.err);
    outcome_free(&o);
}

Test(flags, what_changes_nothing_is_noted, .timeout = 200) {
    static const char *const of_run[][20] = {
        {"--keep 4",
         "--log-disable",
         "--log-prefix",
         "--log-timestamps",
         "--log-colors off",
         "--no-escape",
         "--mmap",
         "--poll 50",
         "--cpu-strict 1",
         "--no-context-shift",
         "--no-kv-offload",
         "-nkvo",
         "-cmoe",
         "-ncmoe 3",
         "--n-cpu-ffn 2",
         "-lv 3",
         "--verbosity 2",
         "-dt 0.1",
         "-cb",
         "--no-host"},
        {"--repack",
         "--no-repack",
         "-kvu",
         "--kv-unified",
         "--offline",
         "--color on",
         "--color=auto",
         "--mirostat 0",
         "--mirostat-lr 0.1",
         "--xtc-probability 0.0",
         "--dry-multiplier 0",
         "--dry-base 1.75",
         "--dynatemp-range 0",
         "--rope-scaling none",
         "--rope-scale 1",
         "--rope-freq-base 0",
         "--yarn-ext-factor -1.0",
         "-np 1",
         "--prio 0",
         "--no-mmproj"},
    };
    static const char *const of_bench[] = {"-mmp 1", "-nkvo 1", "-ncmoe 2", "--progress", "-embd 0", "-dio 1"};
    outcome plain = sheaf(SHORT " -q");
    expect_code(plain, 0);
    for (int i = 0; i < 2; i++) expect_noted(SHORT, of_run[i], 20, plain.out);
    expect_noted("bench -m " TINY " -p 4 -n 0 -r 1 -fa 0,1 -v", of_bench, 6, NULL);
    outcome_free(&plain);
}

Test(flags, what_would_change_the_result_names_our_way, .timeout = 200) {
    static const struct {
        const char *line, *hint;
    } cases[] = {
        {"run --chat-template chatml -p x", "--raw"},
        {"run --chat-template-file x -p x", "--raw"},
        {"run --mirostat 2 -p x", "--top-p"},
        {"run --mirostat", "--top-p"},
        {"run --override-kv a=b:c -p x", "inspect"},
        {"run --rope-scaling yarn -p x", "file"},
        {"run --rope-freq-base 10000 -p x", "file"},
        {"run --yarn-orig-ctx 4096 -p x", "file"},
        {"run -C 0x3 -p x", "taskset"},
        {"run --cpu-mask 3 -p x", "taskset"},
        {"run --cpu-range 0-1 -p x", "taskset"},
        {"run --prio 2 -p x", "nice"},
        {"run --context-shift -p x", "-c N"},
        {"run --verbose-prompt -p x", "sheaf tokenize"},
        {"run --samplers top_k -p x", "order is fixed"},
        {"run --sampling-seq k -p x", "order is fixed"},
        {"run -hft token -p x", "-m FILE"},
        {"run --hf-token token -p x", "-m FILE"},
        {"run --dry-multiplier 0.8 -p x", "--repeat-penalty"},
        {"run --xtc-probability 0.5 -p x", "--min-p"},
        {"run --dynatemp-range 0.5 -p x", "--temp"},
        {"run --logit-bias 5-1 -p x", "--stop"},
        {"run -l 5-1 -p x", "--stop"},
        {"run --log-file x -p x", "2> FILE"},
        {"run --check-tensors -p x", "sheaf inspect"},
        {"run -np 4 -p x", "one text"},
        {"run --parallel 4 -p x", "one text"},
        {"run --embedding -p x", "not supported"},
        {"run --in-prefix x -p x", "template"},
        {"run --in-suffix x -p x", "template"},
        {"run -bf x", "-f FILE"},
        {"run --mmproj x -p x", "text"},
        {"run --rpc host:1 -p x", "mpirun"},
        {"run --draft-max 4 -p x", "not supported"},
        {"run --spec-type x -p x", "not supported"},
        {"run --port 80 -p x", "run -i"},
        {"bench -pg 4,4", "-d N"},
        {"bench -mmp 0", "--no-mmap"},
        {"bench -embd 1", "not supported"},
        {"perplexity --ppl-stride 4", "-c N"},
        {"perplexity --hellaswag", "only perplexity"},
        {"tokenize --ids", "--json"},
        {"serve -m x", "run -m FILE -i"},
        {"plan -m x", "sheaf split"},
        {"bench collectives", "bench_collectives"},
        {"bench kernels", "bench_kernels"},
        {"bench scale", "--devices"},
        {"graph -m x --memory", "sheaf split --memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("%s", cases[i].line);
        expect_refusal(&o, 2);
        expect_says(o, "\nhint: ");
        expect_has(o, strstr(o.err, "\nhint: "), cases[i].hint);
        expect_has_not(o, o.err, "unknown");
        outcome_free(&o);
    }
}

Test(flags, other_names_of_ours_work, .timeout = 100) {
    char *folder = make_folder(), path[600], model[600];
    snprintf(path, sizeof path, "%s/system.txt", folder);
    snprintf(model, sizeof model, "%s/chat.gguf", folder);
    write_file(path, "Be brief.\n", 10);
    write_chat_model(model);
    outcome a = sheaf("run -m " TINY " -p Once -n 2 --temp 0 -q --typical 1"),
            b = sheaf("run -m " TINY " -p Once -n 2 --temperature 0 -q --typical-p 1"),
            file = sheaf("run -m %s -p Hello -sysf %s -n 4 --temp 0 -q", model, path),
            word = sheaf("run -m %s -p Hello -sys 'Be brief.' -n 4 --temp 0 -q", model),
            none = sheaf("run -m %s -p Hello -sysf %s/nosuch -n 4", model, folder);
    expect_code(b, 0);
    expect_text(b.out, a.out);
    expect_code(file, 0);
    expect_text(file.out, word.out);
    expect_refusal(&none, 3);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&file);
    outcome_free(&word);
    outcome_free(&none);
    remove_folder(folder);
}

Test(flags, a_single_turn_is_one_reply, .timeout = 60) {
    char *folder = make_folder(), model[600];
    snprintf(model, sizeof model, "%s/chat.gguf", folder);
    write_chat_model(model);
    how h = {.in = "Hello\nAgain\n", .in_n = 12};
    outcome once = sheaf("run -m %s -p Hello -n 4 --temp 0 -q", model),
            line = sheaf_how(&h, "run -m %s -i -st -n 4 --temp 0 -q", model),
            given = sheaf_how(&h, "run -m %s -i -st -p Hello -n 4 --temp 0 -q", model);
    expect_code(line, 0);
    expect_text(line.out, once.out);
    expect_code(given, 0);
    expect_text(given.out, once.out);
    outcome_free(&once);
    outcome_free(&line);
    outcome_free(&given);
    remove_folder(folder);
}
