/* Words on the command line: commands, options, llama.cpp's flags, device lists, settings, help. */
#include "tests/launch/spawn.h"

#include <stdlib.h>
#include <string.h>

static const char *const commands[] = {"run",        "devices",  "split",   "graph",   "bench",
                                       "perplexity", "tokenize", "inspect", "quantize"};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* --- help --- */

Test(usage, help_lists_every_command, .timeout = 60) {
    static const char *const ways[] = {"--help", "-h", "help"};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("%s", ways[i]);
        expect_code(o, 0);
        expect_text(o.err, "");
        for (int c = 0; c < N_COMMANDS; c++) expect_has(o, o.out, commands[c]);
        expect_has(o, o.out, "--help-env");
        outcome_free(&o);
    }
}

Test(usage, every_command_explains_itself, .timeout = 60) {
    static const char *const options[] = {
        "--temp", "--json", "--memory", "--strict", "--n-depth", "--against", "--decode", "--check", "--imatrix",
    };
    for (int c = 0; c < N_COMMANDS; c++) {
        outcome o = sheaf("%s --help", commands[c]);
        expect_code(o, 0);
        expect_text(o.err, "");
        expect_has(o, o.out, commands[c]);
        expect_has(o, o.out, options[c]);
        outcome_free(&o);
        o = sheaf("%s --no-such-option --help", commands[c]);
        expect_refusal(&o, 2);
        outcome_free(&o);
    }
}

Test(usage, version_is_one_line, .timeout = 60) {
    outcome o = sheaf("--version");
    expect_code(o, 0);
    expect_has(o, o.out, "sheaf ");
    expect_int(strcspn(o.out, "\n") + 1, o.out_n);
    outcome_free(&o);
}

Test(usage, settings_are_listed_with_value_and_default, .timeout = 60) {
    how h = {.env = {"SHEAF_SPIN_US=77"}};
    outcome o = sheaf_how(&h, "--help-env");
    expect_code(o, 0);
    expect_has(o, o.out, "SHEAF_CPU_LEVEL");
    expect_has(o, o.out, "SHEAF_COMM_TIMEOUT_MS");
    expect_has(o, o.out, "(0 to 1000000; default: 2000, now: 77)");
    outcome_free(&o);
}

Test(usage, help_of_a_command_is_had_three_ways, .timeout = 60) {
    outcome a = sheaf("run --help"), b = sheaf("help run"), c = sheaf("--help run"), none = sheaf("help nosuch");
    expect_code(a, 0);
    expect_text(b.out, a.out);
    expect_text(c.out, a.out);
    expect_refusal(&none, 2);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
    outcome_free(&none);
    for (int i = 0; i < N_COMMANDS; i++) {
        outcome o = sheaf("%s --version", commands[i]);
        expect_code(o, 0);
        expect_has(o, o.out, "sheaf ");
        outcome_free(&o);
    }
}

Test(usage, help_says_only_what_is_true_of_the_command, .timeout = 60) {
    static const struct {
        const char *command, *has, *has_not;
    } cases[] = {
        {"run", "layer: not yet", "bench"},
        {"run", "q8_0", "(bench"},
        {"run", "/clear", "e+09"},
        {"split", "--memory", "(bench"},
        {"graph", "--explain", "  --memory"},
        {"tokenize", "(no chat template)", "one user message"},
        {"inspect", "--check", "effect:\n\n"},
        {"bench", "N,...", "(bench"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("%s --help", cases[i].command);
        expect_has(o, o.out, cases[i].has);
        expect_has_not(o, o.out, cases[i].has_not);
        cr_assert(strcmp(o.out + o.out_n - 2, ":\n"), "%s: an empty list ends the help", cases[i].command);
        for (const char *p = o.out; *p; p += strcspn(p, "\n"), p += *p == '\n')
            cr_assert(strcspn(p, "\n") < 170, "%s: a long line: %.200s", cases[i].command, p);
        outcome_free(&o);
    }
}

/* --- what is no usage --- */

Test(usage, words_that_cannot_be_meant_are_refused, .timeout = 300) {
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "command"},
        {"nosuch", "nosuch"},
        {"-m " TINY, "command"},
        {"run -m " TINY " -p x --nosuch", "--nosuch"},
        {"run -m " TINY " -p", "-p"},
        {"run -m " TINY " -p x -n", "-n"},
        {"run -m " TINY " -p x -n two", "two"},
        {"run -m " TINY " -p x -n 1.5", "1.5"},
        {"run -m " TINY " -p x -n -2", "-2"},
        {"run -m " TINY " -p x -n 99999999999", "99999999999"},
        {"run -m " TINY " -p x -n nan", "nan"},
        {"run -m " TINY " -p x --temp -1", "--temp"},
        {"run -m " TINY " -p x --temp nan", "--temp"},
        {"run -m " TINY " -p x --temp inf", "--temp"},
        {"run -m " TINY " -p x --top-p 1.5", "--top-p"},
        {"run -m " TINY " -p x --min-p -0.1", "--min-p"},
        {"run -m " TINY " -p x --top-k x", "--top-k"},
        {"run -m " TINY " -p x -c -1", "-c"},
        {"run -m " TINY " -p x -b 0", "-b"},
        {"run -m " TINY " -p x -ub 0", "-ub"},
        {"run -m " TINY " -p x -t 0", "-t"},
        {"run -m " TINY " -p x -t 1,2", "-t"},
        {"run -m " TINY " -p x -t 99999", "-t"},
        {"run -m " TINY " -p x -s 12x", "12x"},
        {"run -m " TINY " -p x -ctk nosuch", "nosuch"},
        {"run -m " TINY " -p x -ctv nosuch", "nosuch"},
        {"run -m " TINY " -p x -fa perhaps", "perhaps"},
        {"run -m " TINY " -p x --stop ''", "stop"},
        {"run -m " TINY " -p x -f " TALES, "-p"},
        {"run -m " TINY " -p x --json --jsonl", "--json"},
        {"run -m " TINY " -i --raw", "-i"},
        {"run -m " TINY " -i --json", "-i"},
        {"run -m " TINY " -i -f " TALES, "-p TEXT"},
        {"graph -m " TINY " --dot", "--dot"},
        {"run -m " TINY " -p x -q -v", "-q"},
        {"run -m " TINY " -p x stray", "stray"},
        {"run -m " TINY " -p x --json=yes", "--json"},
        {"run -p x", "-m"},
        {"run -m " TINY " -p x --comm-timeout 0", "--comm-timeout"},
        {"run -m " TINY " -p x --dump-tensors '('", "--dump-tensors"},
        {"run -m " TINY " -p x -sys system", "-sys"},
        {"run -m " TINY " -p x --devices cpu --devices cpu/2", "--devices"},
        {"run -m " TINY " -p x -sm row", "row"},
        {"run -m " TINY " -p x -ts ''", "-ts"},
        {"run -m " TINY " -p x -ts 0,0", "-ts"},
        {"run -m " TINY " -p x -ts 1,-1", "-ts"},
        {"run -m " TINY " -p x -ts 1,nan", "-ts"},
        {"run -m " TINY " -p x -ts 1,,2", "-ts"},
        {"devices stray", "stray"},
        {"split", "-m"},
        {"split -m " TINY " --tensors " TALES, "--tensors"},
        {"graph -m " TINY " --tokens 0", "--tokens"},
        {"graph -m " TINY " --json --dot", "--dot"},
        {"graph", "-m"},
        {"bench nosuch", "nosuch"},
        {"bench", "-m"},
        {"bench -m " TINY " -o xml", "xml"},
        {"bench -m " TINY " -r 0", "-r"},
        {"bench -m " TINY " -p 5,x", "5,x"},
        {"bench -m " TINY " -t 0", "-t"},
        {"perplexity -m " TINY, "-f"},
        {"perplexity -f " TALES, "-m"},
        {"perplexity -m " TINY " -f " TALES " --kl-divergence", "--kl-divergence"},
        {"perplexity -m " TINY " -f " TALES " --max-kl 1", "--max-kl"},
        {"perplexity -m " TINY " -f " TALES " -c 3", "-c"},
        {"perplexity -m " TINY " -f " TALES " --against cpu/2 --kl-divergence-base x", "--against"},
        {"tokenize -p x", "-m"},
        {"tokenize -m " TINY " -p x --decode 1", "--decode"},
        {"tokenize -m " TINY " --decode 1,x", "--decode"},
        {"tokenize -m " TINY " --decode ''", "--decode"},
        {"tokenize -m " TINY " -p x stray", "stray"},
        {"bench -m " TINY " -p 0 -n 0", "nothing"},
        {"run -m " TINY " -p x -sm none -ts 1,0 --devices cpu/2", "-ts"},
        {"run -m " TINY " -p x -sys a -sysf b", "-sysf"},
        {"inspect", "inspect"},
        {"inspect " TINY " " TINY, "inspect"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("%s", cases[i].line);
        expect_refusal(&o, 2);
        expect_says(o, cases[i].says);
        outcome_free(&o);
    }
}

/* What is refused by an option's own range or list is told with what the option is. */
Test(usage, a_refused_value_comes_with_what_may_stand_there, .timeout = 100) {
    static const struct {
        const char *line, *says, *hint;
    } cases[] = {
        {"run -m " TINY " -p x -n -2", "-1 is the least", "until the end"},
        {"run -m " TINY " -p x -t -1", "-t -1", "default"},
        {"run -m " TINY " -p x -c -5", "2147483647", "the model's"},
        {"run -m " TINY " -p x -sm layer", "-sm layer", "-sm tensor"},
        {"run -m " TINY " -p x -sm layer --devices cpu/2", "-sm layer", "-sm tensor"},
        {"run -m " TINY " -p x -ctk f64", "-ctk f64", "f16, f32, bf16, q8_0"},
        {"run -m " TINY " -p x -ctk foo", "-ctk foo", "f16, f32, bf16, q8_0"},
        {"run -m " TINY " -p x -ctv q4_k", "-ctv q4_k", "f16, f32, bf16, q8_0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("%s", cases[i].line);
        expect_refusal(&o, 2);
        expect_says(o, cases[i].says);
        expect_says(o, "\nhint: ");
        expect_has(o, strstr(o.err, "\nhint: "), cases[i].hint);
        outcome_free(&o);
    }
}

/* Every type that the hint offers works, and is as near to f32 as its bits allow. */
Test(usage, offered_cache_types_are_true, .timeout = 300) {
    static const struct {
        const char *name;
        double kl;
    } types[] = {{"f32", 1e-4}, {"f16", 1e-3}, {"bf16", 1e-2}, {"q8_0", 1e-2},
                 {"q5_1", 0.1}, {"q5_0", 0.1}, {"q4_1", 0.3},  {"q4_0", 0.3}};
    char *folder = make_folder(), base[600];
    snprintf(base, sizeof base, "%s/base.kld", folder);
    outcome o = sheaf("perplexity -m " TINY " -f " TALES " -c 128 --chunks 2 -q -ctk f32 -ctv f32 "
                      "--kl-divergence-base %s",
                      base);
    expect_code(o, 0);
    outcome_free(&o);
    outcome help = sheaf("run --help");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        expect_has(help, help.out, types[i].name);
        o = sheaf("perplexity -m " TINY " -f " TALES " --chunks 2 -q -ctk %s -ctv %s --kl-divergence-base %s "
                  "--kl-divergence --json",
                  types[i].name, types[i].name, base);
        cJSON *j = expect_json(&o);
        double kl = expect_key(&o, j, "kl_mean", cJSON_Number)->valuedouble;
        cr_assert(kl < types[i].kl, "%s: divergence %g", types[i].name, kl);
        cJSON_Delete(j);
        outcome_free(&o);
    }
    outcome_free(&help);
    remove_folder(folder);
}

/* --- llama.cpp's flags --- */

#define SHORT "run -m " TINY " -p Once -n 1 --temp 0"

static int notes_in(const char *err) {
    int n = 0;
    for (const char *p = err; (p = strstr(p, "sheaf: note: ")); p++) n++;
    return n;
}

Test(usage, flags_of_llama_that_change_nothing_give_one_note, .timeout = 200) {
    static const char *const flags[] = {
        "-ngl 99", "--n-gpu-layers 99",   "--gpu-layers 99", "--no-warmup",       "--warmup", "--jinja",
        "-mg 0",   "--main-gpu 0",        "-tb 2",           "--threads-batch 2", "--mlock",  "--numa distribute",
        "--perf",  "--no-display-prompt", "--color",
    };
    outcome plain = sheaf(SHORT " -q");
    expect_code(plain, 0);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char word[64];
        snprintf(word, sizeof word, "note: %.*s", (int)strcspn(flags[i], " "), flags[i]);
        outcome o = sheaf(SHORT " %s", flags[i]);
        expect_code(o, 0);
        expect_text(o.out, plain.out);
        cr_assert(notes_in(o.err) == 1, "%s: %d notes: %s", flags[i], notes_in(o.err), o.err);
        expect_says(o, word);
        outcome_free(&o);
        o = sheaf(SHORT " %s -q", flags[i]);
        expect_code(o, 0);
        expect_text(o.err, "");
        outcome_free(&o);
    }
    outcome twice = sheaf(SHORT " -ngl 99 -ngl 98 --mlock");
    expect_code(twice, 0);
    cr_assert(notes_in(twice.err) == 2, "the same flag twice: one note; got %s", twice.err);
    outcome_free(&twice);
    outcome_free(&plain);
}

Test(usage, flags_of_llama_that_work_just_work, .timeout = 200) {
    static const char *const flags[] = {
        "-fa 1",
        "-fa 0",
        "-fa on",
        "-fa auto",
        "--swa-full",
        "-fa",
        "-no-cnv",
        "-no-cnv --no-mmap",
        "-dev cpu",
        "-sm none",
        "-sm tensor",
        "-t 2",
        "--threads 1",
        "-c 64",
        "--ctx-size=64",
        "-b 32 -ub 8",
        "-e",
        "-ctk f16 -ctv f16",
        "--repeat-penalty 1.0",
        "-s 7",
        "--seed -1",
        "--top-k 40 --top-p 0.95 --min-p 0.05",
    };
    outcome plain = sheaf(SHORT " -q");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        outcome o = sheaf(SHORT " -q %s", flags[i]);
        expect_code(o, 0);
        expect_text(o.out, plain.out);
        expect_text(o.err, "");
        outcome_free(&o);
    }
    outcome_free(&plain);
}

Test(usage, flags_of_llama_that_cannot_work_name_ours, .timeout = 200) {
    static const struct {
        const char *line, *hint;
    } cases[] = {
        {"-hf some/model", "-m FILE"},
        {"run -hf some/model", "-m FILE"},
        {"run --hf-repo some/model -p x", "-m FILE"},
        {"run -mu http://x -p x", "-m FILE"},
        {"--list-devices", "sheaf devices"},
        {"run --list-devices", "sheaf devices"},
        {"bench --list-devices", "sheaf devices"},
        {"bench -m " TINY " --prompt-cache x", "sheaf run"},
        {"run -m " TINY " --grammar-file x -p x", "--stop"},
        {"run -m " TINY " --grammar 'root ::= x' -p x", "--stop"},
        {"run -m " TINY " -sm row -p x", "-sm tensor"},
        {"run -m " TINY " --lora x -p x", "not supported"},
        {"run -m " TINY " -ot x=CPU -p x", "--split-table"},
        {"run -m " TINY " --trace x -p x", "sheaf bench"},
        {"run -m " TINY " -sm layer --devices cpu/2 -p x", "-sm tensor"},
        {"graph -m " TINY " --memory", "sheaf split"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("%s", cases[i].line);
        expect_refusal(&o, 2);
        expect_says(o, "\nhint: ");
        expect_has(o, strstr(o.err, "\nhint: "), cases[i].hint);
        outcome_free(&o);
    }
}

/* --- devices --- */

Test(usage, device_lists_of_the_grammar_are_taken, .timeout = 200) {
    static const struct {
        const char *list;
        int n;
    } cases[] = {{"cpu", 1},     {"cpu/2", 2},   {"cpu/3", 3},   {"cpu:0", 1},
                 {"cpu:0/2", 2}, {"cpu:0-0", 1}, {"cpu,cpu", 2}, {"cpu/2,cpu", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("devices --devices %s --json -q", cases[i].list);
        cJSON *j = expect_json(&o);
        cr_assert(cJSON_GetArraySize(expect_key(&o, j, "chosen", cJSON_Array)) == cases[i].n, "%s: %s", cases[i].list,
                  o.out);
        cJSON_Delete(j);
        outcome_free(&o);
        o = sheaf("run -m %s -p Once -n 1 --temp 0 -q --devices %s", TINY, cases[i].list);
        expect_code(o, 0);
        outcome_free(&o);
    }
}

Test(usage, device_lists_are_refused_by_kind_of_fault, .timeout = 200) {
    static const struct {
        const char *list;
        int code;
    } cases[] = {
        {"foo", 2},
        {"cpu/0", 2},
        {"cpu/-1", 2},
        {"cpu/x", 2},
        {"''", 2},
        {"cpu,", 2},
        {",cpu", 2},
        {"cpu:", 2},
        {"cpu/", 2},
        {"cpu:1-", 2},
        {"cpu:2-1", 2},
        {"cpu/65", 2},
        {"cpu/99999999999", 2},
        {"cpu 2", 2},
        {"cpu/40,cpu/40", 2},
        {"cuda/0", 2},
        {"cuda", 4},
        {"cuda:0", 4},
        {"cuda:0-3", 4},
        {"cuda:0/4", 4},
        {"cpu:9", 4},
        {"cpu:0-9", 4},
        {"cpu,cuda", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool blank = strchr(cases[i].list, ' ') != NULL;
        outcome o = sheaf(blank ? "run -m %s -p x --devices '%s'" : "run -m %s -p x --devices %s", TINY, cases[i].list);
        expect_refusal(&o, cases[i].code);
        outcome_free(&o);
    }
}

Test(usage, shares_must_fit_the_devices, .timeout = 200) {
    static const struct {
        const char *words;
        int code;
    } cases[] = {{"--devices cpu/2 -ts 3,1", 0},   {"--devices cpu/2 -ts 1/0", 0}, {"--devices cpu/2 -ts 0,1", 0},
                 {"--devices cpu/2 -ts 1,2,3", 2}, {"--devices cpu -ts 1,1", 2},   {"--devices cpu/3 -ts 1,1", 2}};
    outcome one = sheaf("run -m %s -p Once -n 8 --temp 0 -q", TINY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("run -m %s -p Once -n 8 --temp 0 -q %s", TINY, cases[i].words);
        if (cases[i].code)
            expect_refusal(&o, cases[i].code);
        else
            expect_code(o, 0);
        if (!cases[i].code) expect_text(o.out, one.out);
        outcome_free(&o);
    }
    outcome_free(&one);
}

/* What the machine has is asked from the command itself: notes of `sheaf devices` name the level. */
Test(usage, a_kernel_level_that_is_lacking_is_usage, .timeout = 100) {
    outcome found = sheaf("devices --json");
    bool has_avx512 = strstr(found.out, "avx512 kernels") != NULL,
         has_avx2 = has_avx512 || strstr(found.out, "avx2 kernels");
    struct {
        const char *level;
        bool there;
    } cases[] = {{"portable", true}, {"avx2", has_avx2}, {"avx512", has_avx512}, {"neon", false}, {"AVX2", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = sheaf("run -m %s -p Once -n 1 --temp 0 -q --cpu-level %s", TINY, cases[i].level);
        if (cases[i].there)
            expect_code(o, 0);
        else
            expect_refusal(&o, 2);
        outcome_free(&o);
    }
    outcome_free(&found);
}

Test(usage, settings_out_of_range_are_usage_and_options_win, .timeout = 100) {
    static const char *const bad[] = {"SHEAF_SPIN_US=-1",       "SHEAF_SPIN_US=x",         "SHEAF_SPIN_US=1000001",
                                      "SHEAF_SCHED_DEBUG=3",    "SHEAF_COMM_TIMEOUT_MS=0", "SHEAF_CHECK=maybe",
                                      "SHEAF_CPU_LEVEL=nosuch", "SHEAF_ALLREDUCE=nosuch"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        how h = {.env = {bad[i]}};
        outcome o = sheaf_how(&h, "run -m %s -p Once -n 1 --temp 0 --devices cpu/2", TINY);
        expect_refusal(&o, 2);
        outcome_free(&o);
    }
    how h = {.env = {"SHEAF_CPU_LEVEL=nosuch", "SHEAF_COMM_TIMEOUT_MS=86400000"}};
    outcome o = sheaf_how(
        &h, "run -m %s -p Once -n 1 --temp 0 -q --devices cpu/2 --cpu-level portable --comm-timeout 20", TINY);
    expect_code(o, 0);
    outcome_free(&o);
}
