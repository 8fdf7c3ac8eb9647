/* See options_theirs.h. What is ignored without harm is noted; what would give another result than the user asked for
 * is refused, with what to do instead. A value that asks for what is done anyway ("--mirostat 0") is never refused. */
#include "launch/options_theirs.h"

#include <stdlib.h>
#include <string.h>

#define GEN  CMD_RUN
#define TEXT (CMD_RUN | CMD_TOKENIZE)
#define RUNS (CMD_MODEL & ~CMD_BENCH) /* bench gives some flags a value that elsewhere have none */

static const their_flag flags[] = {
    /* devices and memory */
    {"-ngl --gpu-layers --n-gpu-layers", THEIRS_NOTE_VALUE, CMD_MODEL, NULL,
     "there is no GPU among the devices: all layers run on the CPU devices"},
    {"-mg --main-gpu", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "there is no GPU among the devices"},
    {"-nkvo --no-kv-offload -kvo --kv-offload --op-offload --no-op-offload", THEIRS_NOTE, RUNS, NULL,
     "there is no GPU among the devices"},
    {"-nkvo --no-kv-offload -nopo --no-op-offload", THEIRS_NOTE_VALUE, CMD_BENCH, NULL,
     "there is no GPU among the devices"},
    {"-cmoe --cpu-moe", THEIRS_NOTE, CMD_MODEL, NULL, "all weights are on the CPU devices"},
    {"-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "all weights are on the CPU devices"},
    {"-ot --override-tensor", THEIRS_REFUSE, CMD_MODEL, NULL,
     "placement overrides are not supported yet; --split-table FILE changes how tensors are cut"},
    {"--rpc -rpc", THEIRS_REFUSE, CMD_MODEL, NULL,
     "one model over several processes: mpirun -n 2 --bind-to none sheaf run -m FILE ..."},
    {"--list-devices", THEIRS_REFUSE, CMD_ALL, NULL, "use: sheaf devices"},
    {"-fit --fit -fitt --fit-target -fitc --fit-ctx", THEIRS_NOTE_VALUE, CMD_MODEL, NULL,
     "nothing is made to fit; sheaf split --memory tells what each device needs"},
    {"--mlock", THEIRS_NOTE, CMD_MODEL, NULL, "pages are not locked"},
    {"--mmap", THEIRS_NOTE, RUNS, NULL, "the file is mapped unless --no-mmap is given"},
    {"-mmp --mmap", THEIRS_REFUSE_UNLESS, CMD_BENCH, "1", "--no-mmap reads the weights instead of mapping the file"},
    {"-lm --load-mode", THEIRS_REFUSE_UNLESS, CMD_MODEL, "auto mmap",
     "--no-mmap reads the weights instead of mapping the file"},
    {"-lzm --lazy-mode", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "a mapped file is read page by page as it is used"},
    {"-dio --direct-io -ndio --no-direct-io", THEIRS_NOTE, RUNS, NULL, "the file is mapped, or read with --no-mmap"},
    {"-dio --direct-io", THEIRS_NOTE_VALUE, CMD_BENCH, NULL, "the file is mapped, or read with --no-mmap"},
    {"--no-host --repack -nr --no-repack", THEIRS_NOTE, RUNS, NULL,
     "buffers and the form of the weights are the device's own choice"},
    {"--no-host --repack", THEIRS_NOTE_VALUE, CMD_BENCH, NULL,
     "buffers and the form of the weights are the device's own choice"},
    /* threads */
    {"-tb --threads-batch", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "prompt and reply run on the same threads (-t)"},
    {"--numa", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "devices are bound to their nodes already; cpu:N names one"},
    {"-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch", THEIRS_REFUSE, CMD_MODEL, NULL,
     "the mask of the process is kept to: taskset MASK sheaf ...; --devices cpu:N takes one NUMA node"},
    {"--cpu-strict --cpu-strict-batch", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "threads are always bound to their cores"},
    {"--prio --prio-batch", THEIRS_REFUSE_UNLESS, CMD_MODEL, "0 -1",
     "the priority of the process is kept to: nice -n N sheaf ..."},
    {"--poll --poll-batch", THEIRS_NOTE_VALUE, CMD_MODEL, NULL,
     "threads spin as long as the setting SHEAF_SPIN_US says, then sleep"},
    /* model */
    {"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --hf-*", THEIRS_REFUSE,
     CMD_ALL, NULL, "nothing is downloaded: fetch the file and give it with -m FILE"},
    {"--offline", THEIRS_NOTE, CMD_ALL, NULL, "nothing is ever downloaded"},
    {"-cl --cache-list", THEIRS_REFUSE, CMD_ALL, NULL, "nothing is downloaded, so no models are kept; -m FILE"},
    {"--check-tensors", THEIRS_REFUSE, CMD_MODEL, NULL, "use: sheaf inspect FILE --check"},
    {"--override-kv", THEIRS_REFUSE, CMD_MODEL | CMD_QUANTIZE, NULL,
     "the metadata of the file are taken as they are; sheaf inspect FILE shows them"},
    {"--lora --lora-scaled --control-vector --control-vector-scaled --control-vector-layer-range", THEIRS_REFUSE,
     CMD_MODEL, NULL, "adapters are not supported yet"},
    {"-md --model-draft -td --threads-draft -devd --device-draft -ngld --gpu-layers-draft --n-gpu-layers-draft "
     "-ctkd -ctvd --draft* --spec-*",
     THEIRS_REFUSE, CMD_MODEL, NULL, "draft models are not supported yet"},
    {"-mm --mmproj -mmu --mmproj-url --image --audio --video", THEIRS_REFUSE, CMD_MODEL, NULL,
     "only text goes in: pictures and sound are not supported yet"},
    {"--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload", THEIRS_NOTE, CMD_MODEL, NULL,
     "only text goes in"},
    {"--rope-scaling", THEIRS_REFUSE_UNLESS, CMD_MODEL, "none", "the file says how positions are scaled"},
    {"--rope-scale --rope-freq-scale --yarn-attn-factor", THEIRS_REFUSE_UNLESS, CMD_MODEL, "1",
     "the file says how positions are scaled"},
    {"--rope-freq-base --yarn-orig-ctx", THEIRS_REFUSE_UNLESS, CMD_MODEL, "0",
     "the file says how positions are scaled"},
    {"--yarn-ext-factor --yarn-beta-slow --yarn-beta-fast", THEIRS_REFUSE_UNLESS, CMD_MODEL, "-1",
     "the file says how positions are scaled"},
    {"-gan --grp-attn-n", THEIRS_REFUSE_UNLESS, CMD_MODEL, "1", "grouped self-extension is not supported; -c N"},
    {"-gaw --grp-attn-w", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "self-extension is off"},
    /* context and cache */
    {"--context-shift", THEIRS_REFUSE, CMD_MODEL, NULL,
     "a reply ends where the context is full: -c N gives a longer one, in a chat /clear empties it"},
    {"--no-context-shift", THEIRS_NOTE, CMD_MODEL, NULL, "a reply ends where the context is full"},
    {"--keep", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "nothing leaves the context before it is full"},
    {"-dt --defrag-thold", THEIRS_NOTE_VALUE, CMD_MODEL, NULL, "the cache has no holes"},
    {"-kvu --kv-unified -no-kvu --no-kv-unified", THEIRS_NOTE, CMD_MODEL, NULL, "one cache holds all sequences"},
    {"-np --parallel -ns --sequences", THEIRS_REFUSE_UNLESS, CMD_MODEL, "1 -1", "one text runs at a time"},
    {"-cb --cont-batching -nocb --no-cont-batching", THEIRS_NOTE, CMD_MODEL, NULL, "one text runs at a time"},
    {"-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram", THEIRS_NOTE_VALUE, GEN, NULL,
     "a chat keeps its own cache and no other"},
    {"--prompt-cache --prompt-cache-all --prompt-cache-ro", THEIRS_REFUSE, CMD_MODEL & ~CMD_RUN, NULL,
     "only sheaf run saves a prompt"},
    {"--warmup --no-warmup", THEIRS_NOTE, CMD_MODEL, NULL, "there is no warm-up run to skip"},
    {"--embedding --embeddings --pooling --attention --embd-*", THEIRS_REFUSE, RUNS, NULL,
     "embeddings are not supported yet: run gives text"},
    {"-embd --embeddings", THEIRS_REFUSE_UNLESS, CMD_BENCH, "0", "embeddings are not supported yet"},
    {"--host --port --path --api-key --api-key-file --alias -a --threads-http --metrics --slots", THEIRS_REFUSE, GEN,
     NULL, "there is no server yet; sheaf run -i chats on this terminal"},
    /* prompt and chat */
    {"--jinja", THEIRS_NOTE, GEN, NULL, "the model's own template is always rendered"},
    {"--no-jinja --skip-chat-parsing --no-skip-chat-parsing", THEIRS_NOTE, GEN, NULL,
     "the model's own template is rendered; --raw leaves it out"},
    {"--chat-template --chat-template-file --chat-template-kwargs", THEIRS_REFUSE, GEN, NULL,
     "the template is the file's own; --raw gives the prompt as it is, so any template may be written out in it"},
    {"--reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget --reasoning-budget-message",
     THEIRS_NOTE_VALUE, GEN, NULL, "thoughts are shown as the model writes them"},
    {"--reasoning-preserve --no-reasoning-preserve", THEIRS_NOTE, GEN, NULL,
     "thoughts stay in a chat as the model wrote them"},
    {"--in-prefix --in-suffix --in-prefix-bos", THEIRS_REFUSE, GEN, NULL,
     "the model's template writes what stands around a message; with --raw the prompt is all there is"},
    {"-mli --multiline-input", THEIRS_REFUSE, GEN, NULL, "a message of several lines: -e -p 'one\\ntwo', or -f FILE"},
    {"-bf --binary-file", THEIRS_REFUSE, GEN | CMD_PERPLEXITY, NULL, "-f FILE reads text (UTF-8)"},
    {"--no-escape", THEIRS_NOTE, TEXT, NULL, "escapes are undone only with -e"},
    {"--verbose-prompt", THEIRS_REFUSE, GEN, NULL, "use: sheaf tokenize -m FILE -p TEXT --show"},
    {"-ptc --print-token-count", THEIRS_NOTE_VALUE, GEN, NULL, "the report at the end counts tokens"},
    {"--color -co", THEIRS_NOTE_MAYBE, GEN, NULL, "nothing is coloured"},
    {"--simple-io --display-prompt --no-display-prompt", THEIRS_NOTE, GEN, NULL, "only the reply is printed"},
    {"--show-timings --no-show-timings --perf --no-perf", THEIRS_NOTE, CMD_MODEL, NULL,
     "a report ends every run; -q leaves it out"},
    /* sampling */
    {"--mirostat", THEIRS_REFUSE_UNLESS, GEN, "0", "mirostat is not supported; --temp, --top-p and --min-p are"},
    {"--mirostat-lr --mirostat-ent", THEIRS_NOTE_VALUE, GEN, NULL, "mirostat is off"},
    {"--samplers --sampling-seq --sampler-seq", THEIRS_REFUSE, GEN, NULL,
     "the order is fixed: penalties, top-k, typical, top-p, min-p, temperature; each can be turned off"},
    {"--xtc-probability", THEIRS_REFUSE_UNLESS, GEN, "0", "XTC is not supported; --temp, --top-p and --min-p are"},
    {"--xtc-threshold", THEIRS_NOTE_VALUE, GEN, NULL, "XTC is off"},
    {"--dry-multiplier", THEIRS_REFUSE_UNLESS, GEN, "0", "DRY is not supported; --repeat-penalty is"},
    {"--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker", THEIRS_NOTE_VALUE, GEN, NULL,
     "DRY is off"},
    {"--dynatemp-range", THEIRS_REFUSE_UNLESS, GEN, "0", "the temperature is fixed: --temp T"},
    {"--dynatemp-exp", THEIRS_NOTE_VALUE, GEN, NULL, "the temperature is fixed"},
    {"--top-nsigma --top-n-sigma --adaptive-target", THEIRS_REFUSE_UNLESS, GEN, "-1",
     "it is not supported; --top-k, --top-p, --min-p and --typical are"},
    {"--adaptive-decay", THEIRS_NOTE_VALUE, GEN, NULL, "adaptive sampling is off"},
    {"-l --logit-bias", THEIRS_REFUSE, GEN, NULL,
     "biases are not supported yet; --ignore-eos forbids end tokens, --stop TEXT ends a reply"},
    {"-bs --backend-sampling", THEIRS_NOTE, GEN, NULL, "the first process draws, on the host"},
    {"--grammar --grammar-file -j --json-schema -jf --json-schema-file", THEIRS_REFUSE, CMD_MODEL, NULL,
     "grammars are not supported yet; --stop TEXT ends a reply"},
    /* output */
    {"--log-disable", THEIRS_NOTE, CMD_ALL, NULL, "-q leaves all but errors out"},
    {"--log-file", THEIRS_REFUSE, CMD_ALL, NULL, "the log goes to standard error: 2> FILE"},
    {"--log-jsonl --no-log-jsonl", THEIRS_REFUSE, CMD_ALL, NULL, "log lines are text; results are JSON with --json"},
    {"--log-colors", THEIRS_NOTE_MAYBE, CMD_ALL, NULL, "nothing is coloured"},
    {"--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps", THEIRS_NOTE, CMD_ALL, NULL,
     "log lines have one form"},
    {"-lv --verbosity --log-verbosity", THEIRS_NOTE_VALUE, CMD_ALL, NULL, "-q, -v and -vv say how much is told"},
    {"--trace", THEIRS_REFUSE, GEN, NULL,
     "timelines are not supported yet; sheaf bench shows compute, wait and reduce time"},
    /* bench */
    {"-pg", THEIRS_REFUSE, CMD_BENCH, NULL, "-p N and -n N are measured each on its own; -d N fills the cache before"},
    {"--progress", THEIRS_NOTE, CMD_BENCH, NULL, "rows are printed as they are measured"},
    {"--delay", THEIRS_NOTE_VALUE, CMD_BENCH, NULL, "tests follow on each other"},
    {"-oe --output-err", THEIRS_REFUSE, CMD_BENCH, NULL, "one table is printed, to standard output: -o md|csv|json"},
    /* perplexity */
    {"--ppl-stride", THEIRS_REFUSE_UNLESS, CMD_PERPLEXITY, "0", "chunks follow on each other: -c N"},
    {"--ppl-output-type", THEIRS_REFUSE_UNLESS, CMD_PERPLEXITY, "0", "use: --json"},
    {"--hellaswag* --winogrande* --multiple-choice*", THEIRS_REFUSE, CMD_PERPLEXITY, NULL,
     "only perplexity and divergence are measured"},
    /* tokenize */
    {"--ids", THEIRS_REFUSE, CMD_TOKENIZE, NULL, "--json prints the ids as one list"},
    {"--stdin", THEIRS_NOTE, CMD_TOKENIZE, NULL, "without -p and -f the text comes from standard input"},
    {"--no-parse-special", THEIRS_NOTE, CMD_TOKENIZE, NULL, "control tokens are parsed only with --parse-special"},
    {"--show-count", THEIRS_REFUSE, CMD_TOKENIZE, NULL, "one id is printed a line: | wc -l"},
    /* graph: an option of ours that this command does not have yet */
    {"--memory", THEIRS_REFUSE, CMD_GRAPH, NULL, "sheaf split --memory prints the bytes of each device"},
    /* quantize */
    {"--max-buffer-size", THEIRS_NOTE_VALUE, CMD_QUANTIZE, NULL, "memory is a few MiB a thread whatever the file"},
    {"--keep-split", THEIRS_REFUSE, CMD_QUANTIZE, NULL, "one file is written, from one or from all shards"},
    {"--prune-layers", THEIRS_REFUSE, CMD_QUANTIZE, NULL, "every layer is kept"},
    {"--include-weights --exclude-weights", THEIRS_REFUSE, CMD_QUANTIZE, NULL,
     "every entry of the importance matrix is used"},
    {"--tensor-type-file", THEIRS_REFUSE, CMD_QUANTIZE, NULL, "repeat --tensor-type REGEX=TYPE"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

bool word_named(const char *names, const char *word) {
    for (const char *p = names; p && *p; p = strchr(p, ' ')) {
        p += *p == ' ';
        size_t n = strcspn(p, " ");
        bool family = p[n - 1] == '*';
        if (!strncmp(p, word, n - family) && (family || !word[n])) return true;
    }
    return false;
}

const their_flag *their_flag_at(int i) { return i >= 0 && i < N_FLAGS ? &flags[i] : NULL; }

const their_flag *their_flag_find(const char *word, command_bit bit) {
    for (int i = 0; i < N_FLAGS; i++)
        if ((flags[i].commands & bit) && word_named(flags[i].names, word)) return &flags[i];
    return NULL;
}

bool their_flag_harmless(const their_flag *f, const char *value) {
    char *end, *end_own;
    double x = strtod(value, &end);
    for (const char *p = f->harmless; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t n = strcspn(p, " ");
        if (strlen(value) == n && !strncmp(p, value, n)) return true;
        double own = strtod(p, &end_own);
        if (end != value && !*end && end_own == p + n && own == x) return true;
    }
    return false;
}
