/* Every command but `run`: the keys of its JSON, its exit codes, and what its results must satisfy. */
#include "tensor/gguf.h"
#include "tests/golden/fixture.h"
#include "tests/launch/spawn.h"
#include "tests/support/gguf_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double number(const outcome *o, const cJSON *j, const char *key) {
    return expect_key(o, j, key, cJSON_Number)->valuedouble;
}
static const char *text_of(const outcome *o, const cJSON *j, const char *key) {
    return expect_key(o, j, key, cJSON_String)->valuestring;
}

/* --- devices --- */

Test(devices, json_has_the_promised_keys, .timeout = 60) {
    outcome o = sheaf("devices --json --devices cpu/2 -q");
    cJSON *j = expect_json(&o);
    const cJSON *found = expect_key(&o, j, "found", cJSON_Array), *first = cJSON_GetArrayItem(found, 0);
    cr_assert(first != NULL, "nothing was found: %s", o.out);
    expect_text(text_of(&o, first, "kind"), "cpu");
    text_of(&o, first, "name");
    cr_assert(number(&o, first, "cores") >= 1, "cores");
    /* a machine of one node is wholly on it, found or chosen */
    const cJSON *numa = expect_key(&o, first, "numa", cJSON_Number | cJSON_NULL),
                *chosen = cJSON_GetArrayItem(expect_key(&o, j, "chosen", cJSON_Array), 0);
    cr_assert(cJSON_IsNull(numa) || numa->valuedouble == number(&o, chosen, "numa"), "numa: %s", o.out);
    cr_assert(number(&o, first, "memory_total") >= number(&o, first, "memory_free"), "memory: %s", o.out);
    cr_assert(number(&o, first, "memory_free") > 0, "memory: %s", o.out);
    expect_key(&o, first, "notes", cJSON_Array);
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "chosen", cJSON_Array)), 2);
    expect_key(&o, j, "links", cJSON_Array);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(devices, a_person_reads_what_was_chosen, .timeout = 60) {
    outcome o = sheaf("devices --devices cpu/2 -t 2");
    expect_code(o, 0);
    expect_has(o, o.out, "found:");
    expect_has(o, o.out, "chosen (cpu/2):");
    expect_has_not(o, o.out, "NUMA node -1");
    outcome_free(&o);
}

/* --- split --- */

static void check_split(const outcome *o, int devices) {
    cJSON *j = expect_json(o);
    const cJSON *list = expect_key(o, j, "devices", cJSON_Array), *row;
    static const char *const bytes[] = {"weight_bytes", "kv_bytes", "compute_bytes", "staging_bytes", "mirrored_bytes"};
    expect_int(cJSON_GetArraySize(list), devices);
    cJSON_ArrayForEach(row, list) {
        text_of(o, row, "name");
        for (int i = 0; i < 5; i++) cr_assert(number(o, row, bytes[i]) >= 0, "%s", bytes[i]);
    }
    const cJSON *tensors = expect_key(o, j, "tensors", cJSON_Array);
    cr_assert(cJSON_GetArraySize(tensors) > 10, "%d tensors", cJSON_GetArraySize(tensors));
    cJSON_ArrayForEach(row, tensors) {
        text_of(o, row, "name");
        text_of(o, row, "type");
        text_of(o, row, "layout");
        expect_key(o, row, "ne", cJSON_Array);
        expect_key(o, row, "rule", cJSON_String | cJSON_NULL);
        double total = 0;
        const cJSON *run, *runs = expect_key(o, row, "runs", cJSON_Array);
        cJSON_ArrayForEach(run, runs) {
            expect_int(cJSON_GetArraySize(run), 2);
            total += cJSON_GetArrayItem(run, 0)->valuedouble;
        }
        const char *layout = text_of(o, row, "layout");
        if (!strncmp(layout, "axis", 4)) {
            double ne = cJSON_GetArrayItem(expect_key(o, row, "ne", cJSON_Array), layout[4] - '0')->valuedouble;
            cr_assert(total == ne, "%s: runs cover %g of %g", text_of(o, row, "name"), total, ne);
        }
    }
    expect_key(o, j, "collectives_per_layer", cJSON_Number | cJSON_NULL);
    expect_key(o, j, "reshards", cJSON_Number | cJSON_NULL);
    double most = number(o, j, "share_error_max"), least = number(o, j, "share_error_min");
    cr_assert(least >= 0 && least <= most && most < 0.01, "share error %g to %g", least, most);
    double mirrored = number(o, cJSON_GetArrayItem(list, 0), "mirrored_bytes");
    cr_assert((mirrored > 0) == (devices > 1), "%g bytes are mirrored on %d devices", mirrored, devices);
    cJSON_Delete(j);
}

Test(split, json_has_the_promised_keys, .timeout = 60) {
    static const struct {
        const char *list;
        int n;
    } cases[] = {{"cpu", 1}, {"cpu/2", 2}, {"cpu/3", 3}};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("split -m %s --json --devices %s", TINY, cases[i].list);
        check_split(&o, cases[i].n);
        outcome_free(&o);
    }
}

Test(split, every_form_tells_all_memory, .timeout = 60) {
    outcome plain = sheaf("split -m %s --devices cpu/2", TINY),
            sum = sheaf("split -m %s --devices cpu/2 --memory", TINY);
    expect_has(plain, plain.out, "compute ");
    expect_has(plain, plain.out, "staging ");
    expect_has(plain, plain.out, "blk.0.attn_q.weight");
    expect_has(sum, sum.out, "in all ");
    expect_has_not(sum, sum.out, "blk.0.attn_q.weight");
    outcome one = sheaf("split -m %s --summary", TINY); /* holds everything once, and shares with nobody */
    expect_has(one, one.out, "MiB; KV");
    expect_has_not(one, one.out, "mirrored");
    expect_has_not(one, one.out, "off the shares");
    expect_has(plain, plain.out, "of these mirrored ");
    expect_has(plain, plain.out, "off the shares asked for");
    outcome_free(&plain);
    outcome_free(&sum);
    outcome_free(&one);
}

Test(split, two_devices_meet_twice_a_layer_and_never_reshard, .timeout = 60) {
    outcome o = sheaf("split -m %s --json --devices cpu/2", TINY);
    cJSON *j = expect_json(&o);
    expect_int(number(&o, j, "collectives_per_layer"), 2);
    expect_int(number(&o, j, "reshards"), 0);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(split, expectation_holds_or_is_exit_1_with_the_differences, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/expected.json", folder);
    outcome saved = sheaf("split -m %s --json --devices cpu/2", TINY);
    write_file(path, saved.out, saved.out_n);
    outcome same = sheaf("split -m %s --devices cpu/2 --expect %s", TINY, path),
            other = sheaf("split -m %s --devices cpu/3 --expect %s", TINY, path),
            uneven = sheaf("split -m %s --devices cpu/2 -ts 2,1 --expect %s", TINY, path);
    expect_code(same, 0);
    expect_text(same.out, "");
    expect_code(other, 1);
    expect_error_line(&other);
    expect_has(other, other.out, "blk.0.attn_q.weight");
    expect_code(uneven, 1);
    expect_has(uneven, uneven.out, "expected");
#define ROW_A "{\"name\": \"a\", \"type\": \"\", \"ne\": [], \"layout\": \"\", \"runs\": []}"
    static const char *const says_nothing[] = {
        "{\"tensors\": 5}",
        "{\"tensors\": [{\"name\": \"token_embd.weight\"}]}",
        "{\"tensors\": [" ROW_A ", " ROW_A "]}",
    };
    for (size_t i = 0; i < sizeof says_nothing / sizeof *says_nothing; i++) {
        write_file(path, says_nothing[i], strlen(says_nothing[i]));
        outcome odd = sheaf("split -m %s --devices cpu/2 --expect %s", TINY, path);
        expect_refusal(&odd, 3);
        outcome_free(&odd);
    }
    outcome endless = sheaf("split -m %s --split-table /dev/zero", TINY);
    expect_refusal(&endless, 3);
    expect_says(endless, "64 MiB");
    outcome_free(&endless);
    write_file(path, "{nonsense", 9);
    outcome bad = sheaf("split -m %s --devices cpu/2 --expect %s", TINY, path),
            none = sheaf("split -m %s --expect %s/nosuch", TINY, folder);
    expect_refusal(&bad, 3);
    expect_refusal(&none, 3);
    outcome_free(&saved);
    outcome_free(&same);
    outcome_free(&other);
    outcome_free(&uneven);
    outcome_free(&bad);
    outcome_free(&none);
    remove_folder(folder);
}

Test(split, a_printed_table_may_be_passed_back, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/table.txt", folder);
    outcome table = sheaf("split --print-table --arch llama"), of_model = sheaf("split --print-table -m %s", TINY);
    expect_code(table, 0);
    expect_text(of_model.out, table.out);
    write_file(path, table.out, table.out_n);
    outcome with = sheaf("split -m %s --devices cpu/3 --json --split-table %s", TINY, path),
            without = sheaf("split -m %s --devices cpu/3 --json", TINY);
    expect_code(with, 0);
    expect_text(with.out, without.out);
    outcome unknown = sheaf("split --print-table --arch nosuch");
    expect_refusal(&unknown, 3);
    expect_says(unknown, "llama");
    write_file(path, "what is this\n", 13);
    outcome bad = sheaf("split -m %s --devices cpu/2 --split-table %s", TINY, path),
            bad_run = sheaf("run -m %s -p x --devices cpu/2 --split-table %s", TINY, path);
    expect_refusal(&bad, 3);
    expect_refusal(&bad_run, 3);
    expect_says(bad, "1");
    outcome_free(&table);
    outcome_free(&of_model);
    outcome_free(&with);
    outcome_free(&without);
    outcome_free(&unknown);
    outcome_free(&bad);
    outcome_free(&bad_run);
    remove_folder(folder);
}

static outcome split_text(const char *folder, const char *text, const char *words) {
    char path[600];
    snprintf(path, sizeof path, "%s/list.txt", folder);
    write_file(path, text, strlen(text));
    return sheaf("split --tensors %s %s", path, words);
}

Test(split, a_list_of_names_needs_no_model, .timeout = 60) {
    static const char list[] =
        "general.architecture = llama\nllama.block_count = 1\nllama.attention.head_count = 4\n"
        "llama.attention.head_count_kv = 2\nllama.embedding_length = 256\nllama.feed_forward_length = 512\n# a remark\n"
        "blk.0.attn_q.weight, 256 256, q8_0\nblk.0.attn_k.weight, 256 128, q8_0\nblk.0.attn_v.weight, 256 128, q8_0\n"
        "blk.0.attn_output.weight, 256 256, q8_0\nblk.0.ffn_up.weight, 256 512, q8_0\nblk.0.ffn_gate.weight, 256 512, "
        "q8_0\n"
        "blk.0.ffn_down.weight, 512 256, q8_0\nblk.0.ffn_norm.weight, 256, f32\n";
    static const char *const bad[] = {
        "",
        "# nothing\n",
        "blk.0.attn_q.weight\n",
        "blk.0.attn_q.weight, 256\n",
        "blk.0.attn_q.weight, 0, f32\n",
        "blk.0.attn_q.weight, -5, f32\n",
        "blk.0.attn_q.weight, 99999999999999999999, f32\n",
        "blk.0.attn_q.weight, 1 2 3 4 5, f32\n",
        "blk.0.attn_q.weight, 256 256, nosuch\n",
        "blk.0.attn_q.weight, 33, q8_0\n",
        "blk.0.attn_q.weight, 9223372036854775807 9223372036854775807, f32\n",
        "llama.block_count = x\n",
        "blk.0.attn_q.weight, 256 256, f32 and more\n",
        "blk.0.attn_q.weight, 256 256, f32\n", /* head counts are missing */
    };
    char *folder = make_folder();
    outcome o = split_text(folder, "blk.{0-1}.x 64 64 f32\ny 64 f32\nx 3 f32", "--devices cpu/2");
    expect_refusal(&o, 3);
    expect_has(o, o.err, "built-in table: split table lines ");
    expect_has(o, o.err, "no row matches blk.0.x");
    outcome_free(&o);
    o = split_text(folder, list, "--devices cpu/2 -ts 1,1,1");
    cr_assert(o.code != 0, "three shares for two devices");
    outcome_free(&o);
    o = split_text(folder, list, "--devices cpu/2 --json");
    cJSON *j = expect_json(&o);
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "tensors", cJSON_Array)), 8);
    cJSON_Delete(j);
    outcome_free(&o);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o = split_text(folder, bad[i], "--devices cpu/2");
        expect_refusal(&o, 3);
        outcome_free(&o);
    }
    remove_folder(folder);
}

/* --- graph --- */

Test(graph, json_has_the_promised_keys, .timeout = 60) {
    static const char *const lists[] = {"cpu", "cpu/2", "cpu/3"};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("graph -m %s --json --devices %s", TINY, lists[i]);
        cJSON *j = expect_json(&o);
        const cJSON *row;
        cr_assert(number(&o, j, "nodes") > 10, "nodes");
        cr_assert(number(&o, j, "subgraphs") >= 1, "subgraphs");
        cr_assert(number(&o, j, "plan_us") >= 0, "plan_us");
        const cJSON *collectives = expect_key(&o, j, "collectives", cJSON_Array);
        cr_assert((cJSON_GetArraySize(collectives) > 0) == (i > 0), "%s", o.out);
        cJSON_ArrayForEach(row, collectives) {
            cr_assert(text_of(&o, row, "tensor")[0], "a collective without a name: %s", o.out);
            text_of(&o, row, "op");
            cr_assert(number(&o, row, "bytes") > 0, "bytes");
            expect_key(&o, row, "delayed_over", cJSON_Array);
        }
        cJSON_ArrayForEach(row, expect_key(&o, j, "reshards", cJSON_Array)) {
            text_of(&o, row, "tensor");
            text_of(&o, row, "from");
            text_of(&o, row, "to");
            text_of(&o, row, "rule");
            number(&o, row, "bytes");
        }
        cJSON_Delete(j);
        outcome_free(&o);
    }
}

/* Also where what is summed is a step of a layer that has no name: experts, and sums with a bias. */
Test(graph, sums_are_counted_by_layer_in_every_family, .timeout = 60) {
    static const struct {
        const char *name;
        int a_layer;
    } cases[] = {{"dense-f32", 2}, {"gpt2-f32", 2},    {"olmo2-f32", 3},    {"mixtral-f32", 2},
                 {"olmoe-f32", 3}, {"gpt-oss-f32", 2}, {"deepseek2-f32", 2}};
    char *folder = make_folder(), path[600], line[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture_case c;
        snprintf(path, sizeof path, "%s/%s.gguf", folder, cases[i].name);
        expect_int(fixture_find(GOLDEN_DIR "/cases.txt", cases[i].name, &c), 0);
        expect_int(fixture_write(&c, path), 0);
        outcome o = sheaf("graph -m %s --devices cpu/3 --strict", path),
                split = sheaf("split -m %s --devices cpu/3 --json", path);
        snprintf(line, sizeof line, "%d collectives (%d a layer)", cases[i].a_layer * c.layers + 1, cases[i].a_layer);
        expect_has(o, o.out, line);
        cJSON *j = expect_json(&split);
        expect_int(number(&split, j, "collectives_per_layer"), cases[i].a_layer);
        cJSON_Delete(j);
        outcome_free(&o);
        outcome_free(&split);
    }
    remove_folder(folder);
}

Test(graph, plans_are_drawn_and_explained, .timeout = 60) {
    outcome plain = sheaf("graph -m %s --devices cpu/2 --strict", TINY),
            why = sheaf("graph -m %s --devices cpu/2 --explain", TINY),
            dot = sheaf("graph -m %s --devices cpu/2 --dot", TINY),
            many = sheaf("graph -m %s --devices cpu/2 --tokens 64", TINY), single = sheaf("graph -m %s", TINY);
    expect_code(plain, 0);
    expect_has(plain, plain.out, "collectives");
    expect_code(why, 0);
    cr_assert(why.out_n > plain.out_n, "--explain says no more");
    expect_code(dot, 0);
    cr_assert(!strncmp(dot.out, "digraph", 7), "%.100s", dot.out);
    expect_code(many, 0);
    expect_code(single, 0);
    expect_has(single, single.out, "one device");
    outcome_free(&plain);
    outcome_free(&why);
    outcome_free(&dot);
    outcome_free(&many);
    outcome_free(&single);
}

/* --- bench --- */

static void check_bench_row(const outcome *o, const cJSON *row) {
    static const char *const texts[] = {"model", "type", "devices", "split_mode", "version"},
                             *const numbers[] = {"params", "bytes",   "threads",       "n_prompt",
                                                 "n_gen",  "n_depth", "limit_gb_per_s"};
    const cJSON *device;
    for (int i = 0; i < 5; i++) text_of(o, row, texts[i]);
    for (int i = 0; i < 7; i++) number(o, row, numbers[i]);
    const cJSON *rate = expect_key(o, row, "tokens_per_s", cJSON_Object);
    double median = number(o, rate, "median"), min = number(o, rate, "min"), max = number(o, rate, "max");
    cr_assert(min > 0 && min <= median && median <= max, "min %g, median %g, max %g", min, median, max);
    expect_key(o, row, "gb_per_s", cJSON_Number | cJSON_NULL);
    const cJSON *list = expect_key(o, row, "device_us", cJSON_Array);
    cr_assert(cJSON_GetArraySize(list) >= 1, "device_us");
    cJSON_ArrayForEach(device, list) {
        text_of(o, device, "name");
        number(o, device, "compute");
        number(o, device, "wait");
        number(o, device, "reduce");
    }
}

Test(bench, json_has_the_promised_keys_for_every_row, .timeout = 120) {
    static const char *const forms[] = {"--json", "-o json"};
    for (int f = 0; f < 2; f++) {
        outcome o = sheaf("bench -m %s -p 16,32 -n 4 -d 0,8 -r 2 --devices cpu --devices cpu/2 -q %s", TINY, forms[f]);
        cJSON *j = expect_json(&o);
        const cJSON *row;
        expect_int(cJSON_GetArraySize(j), 12); /* (2 prompts + 1 length) x 2 depths x 2 device lists */
        cJSON_ArrayForEach(row, j) check_bench_row(&o, row);
        cJSON_Delete(j);
        outcome_free(&o);
    }
}

static int lines_in(const char *s) {
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

Test(bench, tables_come_as_md_csv_or_jsonl, .timeout = 120) {
    outcome md = sheaf("bench -m %s -p 8 -n 2 -r 1 -o md", TINY),
            csv = sheaf("bench -m %s -p 8 -n 2 -r 1 -o csv", TINY),
            jsonl = sheaf("bench -m %s -p 8 -n 2 -r 1 --jsonl", TINY),
            threads = sheaf("bench -m %s -p 8 -n 0 -r 1 -t 1,2 -o csv", TINY),
            fa = sheaf("bench -m %s -p 8 -n 0 -r 1 -fa 1 -ngl 99 -q", TINY);
    expect_code(md, 0);
    expect_int(lines_in(md.out), 4);
    cr_assert(md.out[0] == '|', "%s", md.out);
    expect_code(csv, 0);
    expect_int(lines_in(csv.out), 3);
    const char *second = strchr(csv.out, '\n') + 1, *third = strchr(second, '\n') + 1;
    int columns[3] = {0};
    const char *starts[3] = {csv.out, second, third};
    for (int i = 0; i < 3; i++)
        for (const char *p = starts[i]; *p && *p != '\n'; p++) columns[i] += *p == ',';
    cr_assert(columns[0] == columns[1] && columns[1] == columns[2], "csv columns: %s", csv.out);
    expect_code(jsonl, 0);
    expect_int(lines_in(jsonl.out), 2);
    for (const char *p = jsonl.out; *p; p = strchr(p, '\n') + 1) {
        cJSON *row = cJSON_ParseWithLength(p, strcspn(p, "\n"));
        cr_assert(row != NULL, "%s", p);
        check_bench_row(&jsonl, row);
        cJSON_Delete(row);
    }
    expect_code(threads, 0);
    expect_int(lines_in(threads.out), 3);
    expect_code(fa, 0);
    expect_text(fa.err, "");
    outcome_free(&md);
    outcome_free(&csv);
    outcome_free(&jsonl);
    outcome_free(&threads);
    outcome_free(&fa);
}

Test(bench, the_machine_itself_is_measured, .timeout = 60) {
    outcome o = sheaf("bench machine --json -t 1");
    cJSON *j = expect_json(&o);
    const cJSON *row;
    cr_assert(cJSON_GetArraySize(j) >= 3, "%s", o.out);
    cJSON_ArrayForEach(row, j) cr_assert(number(&o, row, "read_gb_per_s") > 0.1, "%s", o.out);
    cJSON_Delete(j);
    outcome_free(&o);
}

/* --- perplexity --- */

#define PPL "perplexity -m " TINY " -f " TALES " -c 64 --chunks 4 "

Test(perplexity, json_has_the_promised_keys, .timeout = 60) {
    outcome plain = sheaf(PPL "--json -q"), against = sheaf(PPL "--json -q --against cpu/2 --max-kl 1e-6");
    cJSON *j = expect_json(&plain), *k = expect_json(&against);
    cr_assert(number(&plain, j, "ppl") > 1 && number(&plain, j, "ppl") < 2048, "%s", plain.out);
    cr_assert(number(&plain, j, "ppl_err") > 0, "%s", plain.out);
    expect_int(number(&plain, j, "tokens"), 4 * 31);
    static const char *const keys[] = {"kl_mean", "kl_max", "kl_p99", "top1"};
    for (int i = 0; i < 4; i++) {
        expect_key(&plain, j, keys[i], cJSON_NULL);
        number(&against, k, keys[i]);
    }
    /* two devices give one device's bits */
    cr_assert(fabs(number(&against, k, "kl_max")) < 1e-9 && number(&against, k, "top1") == 1, "%s", against.out);
    cr_assert(number(&against, k, "ppl") == number(&plain, j, "ppl"), "%s, %s", plain.out, against.out);
    cJSON_Delete(j);
    cJSON_Delete(k);
    outcome_free(&plain);
    outcome_free(&against);
}

Test(perplexity, does_not_depend_on_how_tokens_are_batched, .timeout = 60) {
    outcome a = sheaf(PPL "--json -q"), b = sheaf(PPL "--json -q -ub 7"), c = sheaf(PPL "--json -q -b 16 -ub 16");
    cJSON *x = expect_json(&a), *y = expect_json(&b), *z = expect_json(&c);
    double ppl = number(&a, x, "ppl");
    /* kernels for few and for many columns may add in another order */
    cr_assert(fabs(number(&b, y, "ppl") / ppl - 1) < 1e-4, "%g, %g", number(&b, y, "ppl"), ppl);
    cr_assert(fabs(number(&c, z, "ppl") / ppl - 1) < 1e-4, "%g, %g", number(&c, z, "ppl"), ppl);
    cJSON_Delete(x);
    cJSON_Delete(y);
    cJSON_Delete(z);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
}

Test(perplexity, logits_are_not_written_over_what_is_read, .timeout = 60) {
    char *folder = make_folder(), model[600], text[600];
    size_t n, m;
    snprintf(model, sizeof model, "%s/m.gguf", folder);
    snprintf(text, sizeof text, "%s/t.txt", folder);
    char *bytes = read_file(TINY, &n);
    write_file(model, bytes, n);
    write_file(text, "Once upon a time there was a king.", 34);
    outcome a = sheaf("perplexity -m %s -f %s -c 4 --kl-divergence-base %s", model, text, model),
            b = sheaf("perplexity -m %s -f %s -c 4 --kl-divergence-base %s", model, text, text);
    expect_refusal(&a, 2);
    expect_refusal(&b, 2);
    char *after = read_file(model, &m);
    cr_assert(n == m && !memcmp(bytes, after, n), "the model changed");
    free(after);
    after = read_file(text, &m);
    cr_assert(m == 34, "the text changed");
    free(after);
    free(bytes);
    outcome_free(&a);
    outcome_free(&b);
}

Test(perplexity, a_logits_file_is_written_and_compared_with, .timeout = 100) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/base.kld", folder);
    outcome wrote = sheaf(PPL "--json -q --kl-divergence-base %s", path);
    cJSON *w = expect_json(&wrote);
    outcome read = sheaf("perplexity -m " TINY " --json -q --kl-divergence --kl-divergence-base %s", path);
    cJSON *r = expect_json(&read);
    cr_assert(fabs(number(&read, r, "kl_mean")) < 1e-4 && number(&read, r, "kl_max") < 1e-3, "%s", read.out);
    cr_assert(number(&read, r, "top1") > 0.99, "%s", read.out);
    cr_assert(number(&read, r, "ppl") == number(&wrote, w, "ppl"), "%s, %s", wrote.out, read.out);
    outcome over = sheaf("perplexity -m " TINY
                         " --json -q -ctk q8_0 -ctv q8_0 --kl-divergence --kl-divergence-base %s --max-kl 1e-7",
                         path),
            under =
                sheaf("perplexity -m " TINY " --json -q --kl-divergence --kl-divergence-base %s --max-kl 0.01", path);
    expect_code(over, 1);
    expect_error_line(&over);
    expect_code(under, 0);
    size_t n;
    char *bytes = read_file(path, &n);
    cr_assert(!memcmp(bytes, "_logits_", 8), "the file begins with %.8s", bytes);
    expect_int(n, 8 + 12 + 4 * 4 * 64 + 4ull * 31 * (2048 + 4) * 2);
    expect_int(count_entries(folder), 1);
    static const size_t cuts[] = {0, 4, 8, 15, 20, 500, 5000};
    for (size_t i = 0; i <= sizeof cuts / sizeof *cuts; i++) {
        write_file(path, bytes, i < sizeof cuts / sizeof *cuts ? cuts[i] : n - 1);
        outcome cut = sheaf("perplexity -m " TINY " -q --kl-divergence --kl-divergence-base %s", path);
        expect_refusal(&cut, 3);
        outcome_free(&cut);
    }
    for (int at = 8; at < 24; at += 4) { /* every number of the head, made huge */
        char *lie = malloc(n);
        memcpy(lie, bytes, n);
        memset(lie + at, 0x7f, 4);
        write_file(path, lie, n);
        outcome o = sheaf("perplexity -m " TINY " -q --kl-divergence --kl-divergence-base %s", path);
        expect_refusal(&o, 3);
        outcome_free(&o);
        free(lie);
    }
    free(bytes);
    cJSON_Delete(w);
    cJSON_Delete(r);
    outcome_free(&wrote);
    outcome_free(&read);
    outcome_free(&over);
    outcome_free(&under);
    remove_folder(folder);
}

/* A head that another length belongs to, and rows that hold no numbers: neither may pass as a comparison. */
Test(perplexity, a_logits_file_that_lies_is_refused, .timeout = 100) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/base.kld", folder);
    outcome wrote = sheaf(PPL "-q --kl-divergence-base %s", path);
    expect_code(wrote, 0);
    size_t n;
    char *bytes = read_file(path, &n), *lie = malloc(n + 1000);
    static const struct {
        size_t at;
        int32_t word;
        ptrdiff_t more;
    } lies[] = {
        {8, 63, 0},
        {8, 5, 0},
        {16, 3, 0},
        {8, 64, 1000},                             /* context, chunks, and a longer file */
        {20 + 4 * 4 * 64, 0x7fc00000, 0},          /* a step of NaN */
        {24 + 4 * 4 * 64, 0x7fc00000, 0},          /* a floor of NaN */
        {20 + 4 * 4 * 64, (int32_t)0xf1490000, 0}, /* a step of -1e30 */
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(lie, bytes, n);
        memset(lie + n, 0, 1000);
        memcpy(lie + lies[i].at, &lies[i].word, 4);
        write_file(path, lie, n + (size_t)lies[i].more);
        outcome o = sheaf("perplexity -m " TINY " -q --kl-divergence --kl-divergence-base %s", path);
        expect_refusal(&o, 3);
        outcome_free(&o);
    }
    free(lie);
    free(bytes);
    outcome_free(&wrote);
    remove_folder(folder);
}

/* A weight that is NaN: no perplexity, and no divergence of 0. */
Test(perplexity, a_model_without_numbers_is_refused, .timeout = 100) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/nan.gguf", folder);
    size_t n;
    char *bytes = read_file(TINY, &n);
    sheaf_gguf *g;
    expect_ok(sheaf_gguf_open(TINY, &g));
    const sheaf_gguf_tensor *t = sheaf_gguf_find_tensor(g, "output_norm.weight");
    cr_assert(t != NULL);
    size_t at = (size_t)t->offset;
    sheaf_gguf_close(g);
    memset(bytes + at, 0xff, 64);
    write_file(path, bytes, n);
    static const char *const more[] = {"", "--against cpu/2 --max-kl 1e-6"};
    for (int i = 0; i < 2; i++) {
        outcome o = sheaf("perplexity -m %s -f %s -c 64 --chunks 1 -q %s", path, TALES, more[i]);
        expect_refusal(&o, 3);
        outcome_free(&o);
    }
    free(bytes);
    remove_folder(folder);
}

/* Two at once, and a neighbour's file: each writes under a name of its own. */
Test(perplexity, writers_do_not_share_a_file, .timeout = 100) {
    char *folder = make_folder(), path[600], beside[620], link[620];
    snprintf(path, sizeof path, "%s/base.kld", folder);
    snprintf(beside, sizeof beside, "%s.partial", path);
    snprintf(link, sizeof link, "%s/link", folder);
    write_file(beside, "mine", 4);
    cr_assert_eq(symlink(path, link), 0);
    write_file(path, "old", 3);
    outcome o = sheaf(PPL "-q --kl-divergence-base %s", link);
    expect_code(o, 0);
    size_t n;
    char *bytes = read_file(beside, &n);
    cr_assert(n == 4 && !memcmp(bytes, "mine", 4), "a file that is not ours was written");
    free(bytes);
    bytes = read_file(path, &n);
    cr_assert(n > 100 && !memcmp(bytes, "_logits_", 8), "a link was replaced, not followed");
    free(bytes);
    expect_int(count_entries(folder), 3);
    outcome_free(&o);
    remove_folder(folder);
}

Test(perplexity, what_cannot_be_written_leaves_no_half_file, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/base.kld", folder);
    how small = {.n_limits = 1, .limits = {{RLIMIT_FSIZE, 100000}}};
    outcome o = sheaf_how(&small, PPL "-q --kl-divergence-base %s", path);
    expect_refusal(&o, 4);
    expect_int(count_entries(folder), 0);
    outcome_free(&o);
    o = sheaf(PPL "-q --kl-divergence-base /dev/full");
    expect_refusal(&o, 4);
    outcome_free(&o);
    o = sheaf(PPL "-q --kl-divergence-base %s/nosuch/x", folder);
    expect_refusal(&o, 3);
    outcome_free(&o);
    remove_folder(folder);
}

Test(perplexity, texts_that_are_too_short_say_how_short, .timeout = 60) {
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/short.txt", folder);
    write_file(path, "only a few words", 16);
    outcome o = sheaf("perplexity -m " TINY " -f %s -c 64", path);
    expect_refusal(&o, 3);
    expect_says(o, "128");
    outcome_free(&o);
    remove_folder(folder);
}

/* --- tokenize --- */

Test(tokenize, ids_go_back_to_the_text, .timeout = 60) {
    static const char *const texts[] = {"Once upon a time", "  two  blanks ",
                                        "a\tb\nc",          "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xbe",
                                        "12345 don't",      "x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        how h = {.in = texts[i], .in_n = strlen(texts[i])};
        outcome ids = sheaf_how(&h, "tokenize -m %s --json --no-bos", TINY);
        cJSON *j = expect_json(&ids);
        char list[4096] = "";
        const cJSON *id;
        cJSON_ArrayForEach(id, j)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", *list ? "," : "", id->valueint);
        outcome back = sheaf("tokenize -m %s --decode %s", TINY, list);
        expect_code(back, 0);
        cr_assert(back.out_n == strlen(texts[i]) + 1 && !memcmp(back.out, texts[i], back.out_n - 1),
                  "\"%s\" came back as \"%s\"", texts[i], back.out);
        cJSON_Delete(j);
        outcome_free(&ids);
        outcome_free(&back);
    }
}

Test(tokenize, shows_pieces_and_control_tokens_when_asked, .timeout = 60) {
    outcome show = sheaf("tokenize -m %s --json --show -p 'Once upon'", TINY),
            plain = sheaf("tokenize -m %s --json -p '<|endoftext|>'", TINY),
            parsed = sheaf("tokenize -m %s --json --parse-special -p '<|endoftext|>'", TINY),
            lines = sheaf("tokenize -m %s -p 'Once upon'", TINY);
    cJSON *j = expect_json(&show), *a = expect_json(&plain), *b = expect_json(&parsed);
    const cJSON *row;
    char text[64] = "";
    cJSON_ArrayForEach(row, j) {
        number(&show, row, "id");
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s", text_of(&show, row, "piece"));
    }
    expect_text(text, "Once upon");
    cr_assert(cJSON_GetArraySize(a) > 1, "a text was taken for a control token: %s", plain.out);
    cr_assert(cJSON_GetArraySize(b) == 1 && cJSON_GetArrayItem(b, 0)->valueint == 0, "%s", parsed.out);
    expect_int(lines_in(lines.out), cJSON_GetArraySize(j));
    cJSON_Delete(j);
    cJSON_Delete(a);
    cJSON_Delete(b);
    outcome_free(&show);
    outcome_free(&plain);
    outcome_free(&parsed);
    outcome_free(&lines);
}

Test(tokenize, ids_outside_the_vocabulary_are_bad_input, .timeout = 60) {
    static const char *const ids[] = {"2048", "1,2,2147483647", "0,99999"};
    for (int i = 0; i < 3; i++) {
        outcome o = sheaf("tokenize -m %s --decode %s", TINY, ids[i]);
        expect_refusal(&o, 3);
        outcome_free(&o);
    }
}

/* --- inspect --- */

Test(inspect, json_has_the_promised_keys, .timeout = 60) {
    outcome o = sheaf("inspect %s --json --check", TINY);
    cJSON *j = expect_json(&o);
    const cJSON *row;
    expect_int(number(&o, j, "version"), 3);
    expect_int(number(&o, j, "alignment"), 32);
    const cJSON *meta = expect_key(&o, j, "metadata", cJSON_Object);
    expect_text(text_of(&o, meta, "general.architecture"), "llama");
    expect_int(number(&o, meta, "llama.block_count"), 6);
    const cJSON *tensors = expect_key(&o, j, "tensors", cJSON_Array);
    cr_assert(cJSON_GetArraySize(tensors) > 50, "%d tensors", cJSON_GetArraySize(tensors));
    cJSON_ArrayForEach(row, tensors) {
        text_of(&o, row, "name");
        text_of(&o, row, "type");
        expect_key(&o, row, "ne", cJSON_Array);
        number(&o, row, "offset");
        number(&o, row, "bytes");
    }
    expect_int(cJSON_GetArraySize(expect_key(&o, j, "problems", cJSON_Array)), 0);
    cJSON_Delete(j);
    outcome_free(&o);
}

Test(inspect, a_nan_is_a_problem_and_exit_1, .timeout = 60) {
    static const struct {
        const char *name;
        unsigned char bytes[4];
    } cases[] = {{"output_norm.weight", {0, 0, 0xc0, 0x7f}}, {"token_embd.weight", {0, 0x7e, 0, 0}}};
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/nan.gguf", folder);
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *bytes = read_file(TINY, &n);
        outcome plain = sheaf("inspect %s --json", TINY);
        cJSON *j = expect_json(&plain);
        const cJSON *row;
        cJSON_ArrayForEach(row, expect_key(&plain, j, "tensors", cJSON_Array)) if (!strcmp(text_of(&plain, row, "name"),
                                                                                           cases[i].name))
            memcpy(bytes + (size_t)number(&plain, row, "offset"), cases[i].bytes, i ? 2 : 4);
        write_file(path, bytes, n);
        outcome o = sheaf("inspect %s --check", path), json = sheaf("inspect %s --check --json", path),
                unchecked = sheaf("inspect %s", path);
        expect_code(o, 1);
        expect_error_line(&o);
        expect_has(o, o.out, cases[i].name);
        expect_code(json, 1);
        cJSON *k = cJSON_Parse(json.out);
        cr_assert(k != NULL, "%.200s", json.out);
        expect_int(cJSON_GetArraySize(expect_key(&json, k, "problems", cJSON_Array)), 1);
        expect_code(unchecked, 0);
        cJSON_Delete(j);
        cJSON_Delete(k);
        outcome_free(&plain);
        outcome_free(&o);
        outcome_free(&json);
        outcome_free(&unchecked);
        free(bytes);
    }
    remove_folder(folder);
}

/* A file of another family, with an element type that nothing here computes with, odd keys and shared bytes. */
Test(inspect, any_file_can_be_looked_at, .timeout = 60) {
    static const uint8_t nested[] = {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5};
    char *folder = make_folder(), path[600];
    snprintf(path, sizeof path, "%s/odd.gguf", folder);
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.architecture", "nosuch");
    gguf_build_str(b, "bell", "a\ab");
    gguf_build_u64(b, "large", UINT64_MAX);
    gguf_build_raw_key(b, "nested", 6, SHEAF_GGUF_ARRAY, nested, sizeof nested);
    gguf_build_raw_tensor(b, "a", 1, 1, (uint64_t[]){256}, 16, 0); /* iq2_xxs: 66 bytes */
    gguf_build_raw_tensor(b, "b", 1, 1, (uint64_t[]){8}, SHEAF_F32, 96);
    gguf_build_raw_tensor(b, "c", 1, 1, (uint64_t[]){8}, SHEAF_F32, 64);  /* 64..96, inside nothing */
    gguf_build_raw_tensor(b, "d", 1, 1, (uint64_t[]){16}, SHEAF_F32, 32); /* 32..96: a and c */
    uint8_t zeros[160] = {0};
    gguf_build_trailing(b, zeros, sizeof zeros);
    gguf_build_file(b, path);
    gguf_build_free(b);
    outcome text = sheaf("inspect %s", path), check = sheaf("inspect --check %s", path),
            json = sheaf("inspect --json %s", path), run = sheaf("run -m %s -p x", path);
    expect_code(text, 0);
    expect_has(text, text.out, "iq2_xxs");
    expect_has(text, text.out, "18446744073709551615");
    expect_has(text, text.out, "a\\x07b");
    expect_has(text, text.out, "[1] [...]");
    expect_has(text, text.out, "f32          3 tensors");
    expect_code(check, 1);
    expect_has(check, check.out, "a and d share bytes");
    expect_has(check, check.out, "d and c share bytes");
    expect_says(check, "2 problems");
    cJSON *j = expect_json(&json);
    const cJSON *types = expect_key(&json, j, "types", cJSON_Array);
    expect_int(cJSON_GetArraySize(types), 2);
    expect_int(expect_key(&json, cJSON_GetArrayItem(types, 1), "bytes", cJSON_Number)->valueint, 66);
    cJSON_Delete(j);
    expect_refusal(&run, 3);
    outcome_free(&text), outcome_free(&check), outcome_free(&json), outcome_free(&run);
    remove_folder(folder);
}
