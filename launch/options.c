/* Words to options, by one table. A row says which commands take it, what kind of value follows, and what
 * --help prints. A word that is no row here may be one of llama.cpp's that do nothing in sheaf: options_theirs.c
 * has those. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launch/options_theirs.h"
#include "models/quantize.h"
#include "tensor/settings.h"

typedef enum option_kind {
    K_FLAG,  /* sets a bool */
    K_COUNT, /* adds one to an int */
    K_INT,
    K_SEED,
    K_FLOAT,
    K_DOUBLE,
    K_STR,
    K_TOGGLE,      /* on|off|auto|0|1 */
    K_DEVICES,     /* appends to devices[] */
    K_STOP,        /* appends to stop[] */
    K_TENSOR_TYPE, /* appends to tensor_type[] */
    K_SHARES,
} option_kind;

typedef struct option_row {
    const char *names; /* "-m --model" */
    option_kind kind;
    unsigned commands;
    size_t offset;
    double lo, hi;
    const char *value, *help;
} option_row;

#define AT(field)           offsetof(options, field)
#define CACHE_TYPES_BUT_F16 "f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
#define GEN                 (CMD_RUN)

static const option_row rows[] = {
    /* model and devices */
    {"-m --model", K_STR, CMD_MODEL | CMD_TOKENIZE, AT(model), 0, 0, "FILE",
     "the GGUF file (any shard of a split set)"},
    {"--devices -dev --device", K_DEVICES, (CMD_MODEL | CMD_DEVICES) & ~CMD_BENCH, 0, 0, 0, "LIST",
     "KIND[:INDEX|:FIRST-LAST][/PARTS], comma separated: cpu, cpu/2, cpu:1"},
    {"--devices -dev --device", K_DEVICES, CMD_BENCH, 0, 0, 0, "LIST",
     "KIND[:INDEX|:FIRST-LAST][/PARTS], comma separated: cpu, cpu/2, cpu:1; may be repeated, rows for each"},
    {"-sm --split-mode", K_STR, CMD_MODEL, AT(split_mode), 0, 0, "MODE",
     "over several devices: tensor (default), or none (the first one alone); layer: not yet"},
    {"-ts --tensor-split", K_SHARES, CMD_MODEL, 0, 0, 0, "A,B,...", "shares of the devices; default: equal"},
    {"--split-table", K_STR, CMD_MODEL, AT(split_table), 0, 0, "FILE",
     "use this split table instead of the built-in one"},
    {"-t --threads", K_STR, (CMD_MODEL | CMD_DEVICES | CMD_QUANTIZE) & ~CMD_BENCH, AT(threads_list), 0, 0, "N",
     "threads over all CPU devices of this process; default: the physical cores that mask and quota allow"},
    {"-t --threads", K_STR, CMD_BENCH, AT(threads_list), 0, 0, "N,...",
     "threads over all CPU devices of this process, rows for each; default: the physical cores"},
    {"--cpu-level", K_STR, CMD_MODEL | CMD_DEVICES, AT(cpu_level), 0, 0, "LEVEL",
     "force a kernel level: portable, avx2, avx512"},
    {"--no-mmap", K_FLAG, CMD_MODEL, AT(no_mmap), 0, 0, NULL, "read the weights instead of mapping the file"},
    {"--comm-timeout", K_INT, CMD_MODEL, AT(comm_timeout), 1, 86400, "SECONDS",
     "a collective that takes longer fails and names the peer (30)"},
    {"--force-pretokenizer", K_FLAG, CMD_MODEL | CMD_TOKENIZE, AT(force_pretokenizer), 0, 0, NULL,
     "take an unknown pre-tokenizer for the default one"},
    /* context */
    {"-c --ctx-size", K_INT, CMD_MODEL, AT(n_ctx), 0, INT_MAX, "N", "tokens of context; 0: the model's"},
    {"-b --batch-size", K_INT, CMD_MODEL, AT(n_batch), 1, 1 << 20, "N", "tokens handed over at once (2048)"},
    {"-ub --ubatch-size", K_INT, CMD_MODEL, AT(n_ubatch), 1, 1 << 16, "N", "tokens that run at once (512)"},
    {"--swa-full", K_FLAG, CMD_MODEL, AT(swa_full), 0, 0, NULL,
     "layers with a sliding window keep the whole context too, not only their window"},
    {"-ctk --cache-type-k", K_STR, CMD_MODEL, AT(type_k), 0, 0, "TYPE",
     "type of the K cache: f16 (default), " CACHE_TYPES_BUT_F16},
    {"-ctv --cache-type-v", K_STR, CMD_MODEL, AT(type_v), 0, 0, "TYPE",
     "type of the V cache: f16 (default), " CACHE_TYPES_BUT_F16},
    {"-fa --flash-attn", K_TOGGLE, CMD_MODEL, AT(flash_attention), 0, 0, "on|off|auto",
     "accepted: attention is always the online-softmax kernel"},
    /* prompt and reply */
    {"-p --prompt", K_STR, GEN, AT(prompt), 0, 0, "TEXT",
     "the prompt; with a chat template in the file it is one user message"},
    {"-p --prompt", K_STR, CMD_TOKENIZE, AT(prompt), 0, 0, "TEXT", "the text, as it is (no chat template)"},
    {"-f --file", K_STR, GEN | CMD_TOKENIZE | CMD_PERPLEXITY, AT(file), 0, 0, "FILE",
     "read the text from a file (\"-\": stdin)"},
    {"-i --interactive -if --interactive-first -cnv --conversation", K_FLAG, GEN, AT(interactive), 0, 0, NULL,
     "chat: line editing; Ctrl-C stops the reply, /clear forgets the conversation, /help, Ctrl-D or /exit ends"},
    {"-st --single-turn", K_FLAG, GEN, AT(single_turn), 0, 0, NULL, "with -i: one message, one reply, the end"},
    {"-no-cnv --no-conversation", K_FLAG, GEN, AT(no_conversation), 0, 0, NULL, "no chat, no template: as --raw"},
    {"-sys --system-prompt", K_STR, GEN, AT(system), 0, 0, "TEXT", "system message of the chat"},
    {"-sysf --system-prompt-file", K_STR, GEN, AT(system_file), 0, 0, "FILE", "read the system message from a file"},
    {"--raw", K_FLAG, GEN, AT(raw), 0, 0, NULL, "the prompt as it is, no template"},
    {"-e --escape", K_FLAG, GEN | CMD_TOKENIZE, AT(escape), 0, 0, NULL,
     "\\n, \\t, \\\" and \\\\ in the prompt are escapes"},
    {"-sp --special", K_FLAG, GEN, AT(parse_special), 0, 0, NULL, "control tokens in a raw prompt are parsed"},
    {"-n --predict --n-predict", K_INT, GEN, AT(n_predict), -1, INT_MAX, "N",
     "tokens to generate; -1 (default): until the end"},
    {"--stop -r --reverse-prompt", K_STOP, GEN, 0, 0, 0, "TEXT", "end the reply before this text (may be repeated)"},
    {"--ignore-eos", K_FLAG, GEN, AT(ignore_eos), 0, 0, NULL, "end tokens are never drawn"},
    {"--temp --temperature", K_FLOAT, GEN, AT(sampler.temp), 0, 100, "T", "temperature (0.8); 0: greedy"},
    {"--top-k", K_INT, GEN, AT(sampler.top_k), 0, INT_MAX, "K", "keep the K best (40); 0: off"},
    {"--top-p", K_FLOAT, GEN, AT(sampler.top_p), 0, 1, "P", "keep the best that sum to P (0.95); 1: off"},
    {"--min-p", K_FLOAT, GEN, AT(sampler.min_p), 0, 1, "P", "keep what is at least P times the best (0.05); 0: off"},
    {"--typical --typical-p", K_FLOAT, GEN, AT(sampler.typical), 0, 1, "P",
     "locally typical sampling; 1 (default): off"},
    {"--repeat-penalty", K_FLOAT, GEN, AT(sampler.repeat_penalty), 0, 100, "X",
     "divide the logits of recent tokens; 1 (default): off"},
    {"--repeat-last-n", K_INT, GEN, AT(sampler.repeat_last_n), -1, INT_MAX, "N",
     "how many recent tokens penalties look at (64); -1: the context"},
    {"--presence-penalty", K_FLOAT, GEN, AT(sampler.presence_penalty), -100, 100, "X",
     "subtract from tokens seen; 0: off"},
    {"--frequency-penalty", K_FLOAT, GEN, AT(sampler.frequency_penalty), -100, 100, "X",
     "subtract for each time seen; 0: off"},
    {"--prompt-cache", K_STR, CMD_RUN, AT(prompt_cache), 0, 0, "FILE",
     "start from the tokens in FILE that the prompt begins with; save the prompt there, once it has run"},
    {"--prompt-cache-all", K_FLAG, CMD_RUN, AT(prompt_cache_all), 0, 0, NULL, "save the reply there too"},
    {"--prompt-cache-ro", K_FLAG, CMD_RUN, AT(prompt_cache_ro), 0, 0, NULL, "never write the file of --prompt-cache"},
    {"-s --seed", K_SEED, CMD_RUN, AT(sampler.seed), 0, 0, "N", "seed of the sampler; -1: random"},
    {"--dump-tensors", K_STR, GEN, AT(dump_tensors), 0, 0, "REGEX",
     "print every node whose name matches, while it is computed"},
    /* split and graph */
    {"--memory", K_FLAG, CMD_SPLIT, AT(memory), 0, 0, NULL,
     "devices only: weights, KV, compute and staging bytes of each, and what they come to"},
    {"--print-table", K_FLAG, CMD_SPLIT, AT(print_table), 0, 0, NULL, "print the split table in use"},
    {"--arch", K_STR, CMD_SPLIT, AT(arch), 0, 0, "NAME", "with --print-table or --tensors: of this architecture"},
    {"--summary", K_FLAG, CMD_SPLIT, AT(summary), 0, 0, NULL, "devices only, not every tensor"},
    {"--expect", K_STR, CMD_SPLIT, AT(expect), 0, 0, "FILE",
     "compare with a saved --json; exit 1 with the differences"},
    {"--tensors", K_STR, CMD_SPLIT, AT(tensors), 0, 0, "LIST",
     "no model: a text file, a line a tensor (name, ne0 [ne1 ...], type) and `key = value` lines"},
    {"--explain", K_FLAG, CMD_GRAPH, AT(explain), 0, 0, NULL, "why each step is there"},
    {"--strict", K_FLAG, CMD_GRAPH, AT(strict), 0, 0, NULL, "exit 1 on any reshard"},
    {"--dot", K_FLAG, CMD_GRAPH, AT(dot), 0, 0, NULL, "the plan as a Graphviz graph"},
    {"--tokens", K_INT, CMD_GRAPH, AT(tokens), 1, 1 << 16, "N", "tokens of the graph (1)"},
    /* bench */
    {"-p --n-prompt", K_STR, CMD_BENCH, AT(n_prompt), 0, 0, "N,...", "prompt lengths (512)"},
    {"-n --n-gen", K_STR, CMD_BENCH, AT(n_gen), 0, 0, "N,...", "tokens to generate (128)"},
    {"-d --n-depth", K_STR, CMD_BENCH, AT(n_depth), 0, 0, "N,...", "tokens in the cache before (0)"},
    {"-r --repetitions", K_INT, CMD_BENCH, AT(repetitions), 1, 1000, "N", "repetitions (5)"},
    {"-o --output", K_STR, CMD_BENCH, AT(output_format), 0, 0, "md|csv|json", "form of the table (md)"},
    /* perplexity */
    {"--chunks", K_INT, CMD_PERPLEXITY, AT(chunks), -1, INT_MAX, "N",
     "at most N chunks of the text; -1 (default): all"},
    {"--against", K_STR, CMD_PERPLEXITY, AT(against), 0, 0, "DEVICES",
     "run on these devices too and compare the logits"},
    {"--max-kl", K_DOUBLE, CMD_PERPLEXITY, AT(max_kl), 0, 1e9, "X",
     "with --against: exit 1 if the mean divergence is larger"},
    {"--kl-divergence-base --save-all-logits", K_STR, CMD_PERPLEXITY, AT(kl_base), 0, 0, "FILE",
     "logits file, llama-perplexity's form: written, or read with --kl-divergence"},
    {"--kl-divergence", K_FLAG, CMD_PERPLEXITY, AT(kl_divergence), 0, 0, NULL, "compare with the logits file"},
    /* tokenize, inspect */
    {"--parse-special", K_FLAG, CMD_TOKENIZE, AT(parse_special), 0, 0, NULL, "control tokens in the text are parsed"},
    {"--no-bos", K_FLAG, CMD_TOKENIZE, AT(no_bos), 0, 0, NULL, "no BOS, whatever the file says"},
    {"--show", K_FLAG, CMD_TOKENIZE, AT(show), 0, 0, NULL, "pieces beside the ids"},
    {"--decode", K_STR, CMD_TOKENIZE, AT(decode), 0, 0, "1,2,3", "ids to text instead"},
    {"--check", K_FLAG, CMD_INSPECT, AT(check), 0, 0, NULL, "check everything; exit 1 if there are problems"},
    /* quantize */
    {"--allow-requantize", K_FLAG, CMD_QUANTIZE, AT(allow_requantize), 0, 0, NULL,
     "from a file that is quantized already; what it lost stays lost"},
    {"--imatrix", K_STR, CMD_QUANTIZE, AT(imatrix), 0, 0, "FILE",
     "an importance matrix (GGUF, or the older .dat): errors where they matter less"},
    {"--tensor-type --tt", K_TENSOR_TYPE, CMD_QUANTIZE, 0, 0, 0, "REGEX=TYPE",
     "matrices whose name has the pattern in it; may be repeated, the first that matches counts"},
    {"--output-tensor-type", K_STR, CMD_QUANTIZE, AT(output_type), 0, 0, "TYPE", "type of output.weight"},
    {"--token-embedding-type", K_STR, CMD_QUANTIZE, AT(embedding_type), 0, 0, "TYPE", "type of token_embd.weight"},
    {"--leave-output-tensor", K_FLAG, CMD_QUANTIZE, AT(leave_output), 0, 0, NULL, "output.weight stays as it is"},
    {"--pure", K_FLAG, CMD_QUANTIZE, AT(pure), 0, 0, NULL, "one type for all matrices, none gets more bits"},
    {"--dry-run", K_FLAG, CMD_QUANTIZE, AT(dry_run), 0, 0, NULL, "print every tensor's type and size, write nothing"},
    /* everywhere */
    {"--json", K_FLAG, CMD_ALL, AT(json), 0, 0, NULL, "one JSON document on stdout"},
    {"--jsonl", K_FLAG, CMD_RUN | CMD_BENCH, AT(jsonl), 0, 0, NULL, "one JSON object a line"},
    {"-q --quiet", K_FLAG, CMD_ALL, AT(quiet), 0, 0, NULL, "only errors on stderr"},
    {"-v --verbose --log-verbose", K_COUNT, CMD_ALL, AT(verbose), 0, 0, NULL,
     "say what was chosen and why; -vv: what happens inside, too"},
    {"-h --help", K_FLAG, CMD_ALL, AT(help), 0, 0, NULL, "this text"},
    {"--version", K_FLAG, CMD_ALL, AT(version), 0, 0, NULL, "the version"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const struct {
    const char *name;
    command_bit bit;
    const char *help;
} commands[] = {
    {"run", CMD_RUN, "generate text, or chat (-i)"},
    {"devices", CMD_DEVICES, "what was found, and what would be chosen"},
    {"split", CMD_SPLIT, "how every tensor is cut over the devices"},
    {"graph", CMD_GRAPH, "the compiled plan: pieces and collectives"},
    {"bench", CMD_BENCH, "tokens per second, and how far from the machine's limit (also: bench machine)"},
    {"perplexity", CMD_PERPLEXITY, "perplexity of a text, and how far two runs' logits are apart"},
    {"tokenize", CMD_TOKENIZE, "text to token ids and back"},
    {"inspect", CMD_INSPECT, "metadata and tensors of a GGUF file"},
    {"quantize", CMD_QUANTIZE, "a GGUF file in other element types"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

const char *options_commands(void) {
    return "run, devices, split, graph, bench, perplexity, tokenize, inspect, quantize";
}

/* Promised, and not there yet: what does it instead. */
static const struct {
    const char *name, *hint;
} not_yet[] = {
    {"serve", "there is no server yet; sheaf run -m FILE -i chats on this terminal"},
    {"plan", "nothing is planned for you yet; sheaf split and sheaf graph show what --devices and -ts come to"},
};

static const option_row *find_row(const char *word, command_bit bit) {
    for (int i = 0; i < N_ROWS; i++)
        if ((rows[i].commands & bit) && word_named(rows[i].names, word)) return &rows[i];
    return NULL;
}

static sheaf_status bad_value(const char *word, const char *value, const char *want) {
    return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s %s: %s", word, value, want);
}

static sheaf_status parse_number(const option_row *r, const char *word, const char *value, double *out) {
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    if (end == value || *end || errno || !isfinite(x)) return bad_value(word, value, "not a number");
    if (r->kind == K_INT && x != floor(x)) return bad_value(word, value, "not a whole number");
    *out = x;
    if (x >= r->lo && x <= r->hi) return SHEAF_OK;
    if (r->hi >= INT_MAX)
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s %s: %.0f is the least, %.0f the most", word, value, r->lo,
                          r->hi);
    return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s %s: outside %g to %.10g", word, value, r->lo, r->hi);
}

static sheaf_status parse_shares(options *o, const char *word, const char *value) {
    float sum = 0;
    o->n_share = 0;
    for (const char *p = value;;) {
        char *end;
        float x = strtof(p, &end);
        if (end == p || !isfinite(x) || x < 0)
            return bad_value(word, value, "shares are numbers of at least 0, comma separated");
        if (o->n_share == MAX_SHARES) return bad_value(word, value, "more than 64 shares");
        o->share[o->n_share++] = x;
        sum += x;
        if (!*end) break;
        if (*end != ',' && *end != '/')
            return bad_value(word, value, "shares are numbers of at least 0, comma separated");
        p = end + 1;
    }
    return sum > 0 ? SHEAF_OK : bad_value(word, value, "all shares are 0");
}

static sheaf_status parse_seed(options *o, const char *word, const char *value) {
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (end == value || *end || errno) return bad_value(word, value, "not a whole number");
    o->seed_given = x >= 0;
    o->sampler.seed = (uint64_t)x;
    return SHEAF_OK;
}

static sheaf_status parse_toggle(on_off_auto *out, const char *word, const char *value) {
    static const struct {
        const char *name;
        on_off_auto value;
    } ways[] = {{"on", OPT_ON}, {"1", OPT_ON}, {"off", OPT_OFF}, {"0", OPT_OFF}, {"auto", OPT_AUTO}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(value, ways[i].name)) continue;
        *out = ways[i].value;
        return SHEAF_OK;
    }
    return bad_value(word, value, "on, off or auto");
}

/* bench takes "0,1" where llama-bench does: every value must be one that parse_toggle takes. */
static sheaf_status parse_toggles(on_off_auto *out, const char *word, const char *value) {
    char one[8];
    for (const char *p = value;; p++) {
        size_t n = strcspn(p, ",");
        if (n >= sizeof one) return bad_value(word, value, "a list of on, off or auto");
        memcpy(one, p, n);
        one[n] = 0;
        sheaf_status s = parse_toggle(out, word, one);
        if (s) return s;
        p += n;
        if (!*p) return SHEAF_OK;
    }
}

/* Kept until it is known whether -q is among the words. */
static void note(options *o, const char *word, const char *why) {
    for (int i = 0; i < o->n_notes; i++)
        if (!strcmp(o->note[i][0], word)) return;
    if (o->n_notes == MAX_NOTES) return;
    o->note[o->n_notes][0] = word;
    o->note[o->n_notes++][1] = why;
}

static bool takes_value(option_kind k) { return k != K_FLAG && k != K_COUNT; }

/* "-n --predict N: what it is", for a value that was refused. */
static sheaf_status hint_of_row(sheaf_status s, const option_row *r) {
    if (!s || *sheaf_error_hint_text()) return s;
    return sheaf_error_hint(s, "%.*s %s: %s", (int)strcspn(r->names, " "), r->names, r->value ? r->value : "", r->help);
}

/* Sets what row `r` says. `value` is NULL for kinds that take none. */
static sheaf_status apply(options *o, const option_row *r, const char *word, const char *value) {
    char *field = (char *)o + r->offset;
    double x = 0;
    sheaf_status s = SHEAF_OK;
    switch (r->kind) {
    case K_FLAG: *(bool *)(void *)field = true; break;
    case K_COUNT: ++*(int *)(void *)field; break;
    case K_INT:
        s = parse_number(r, word, value, &x);
        if (!s) *(int *)(void *)field = (int)x;
        break;
    case K_FLOAT:
        s = parse_number(r, word, value, &x);
        if (!s) *(float *)(void *)field = (float)x;
        break;
    case K_DOUBLE:
        s = parse_number(r, word, value, &x);
        if (!s) *(double *)(void *)field = x;
        break;
    case K_STR: *(const char **)(void *)field = value; break;
    case K_SEED: s = parse_seed(o, word, value); break;
    case K_TOGGLE:
        s = (o->bit == CMD_BENCH ? parse_toggles : parse_toggle)((on_off_auto *)(void *)field, word, value);
        break;
    case K_SHARES: s = parse_shares(o, word, value); break;
    case K_DEVICES:
        if (o->n_devices == MAX_DEVICE_LISTS) return bad_value(word, value, "more than 16 device lists");
        o->devices[o->n_devices++] = value;
        break;
    case K_STOP:
        if (!*value) return bad_value(word, value, "an empty stop string");
        if (o->n_stop == MAX_STOPS) return bad_value(word, value, "more than 32 stop strings");
        o->stop[o->n_stop++] = value;
        break;
    case K_TENSOR_TYPE:
        if (o->n_tensor_type == MAX_OVERRIDES) return bad_value(word, value, "more than 64 patterns");
        o->tensor_type[o->n_tensor_type++] = value;
        break;
    }
    return hint_of_row(s, r);
}

static void defaults(options *o) {
    memset(o, 0, sizeof *o);
    o->n_predict = -1;
    o->n_batch = 2048;
    o->n_ubatch = 512;
    o->chunks = -1;
    o->tokens = 1;
    o->repetitions = 5;
    o->max_kl = -1;
    o->sampler = sheaf_sampler_defaults();
}

static sheaf_status unknown_option(const options *o, const char *word) {
    sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: unknown option of %s", word, o->command);
    return sheaf_error_hint(s, "sheaf %s --help lists them", o->command);
}

/* The words that are left: the next one is `argv[i]`. */
typedef struct words {
    char **argv;
    int n, i;
} words;

static sheaf_status refuse_theirs(const char *word, const their_flag *f) {
    return sheaf_error_hint(sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: not supported", word), "%s", f->why);
}

static sheaf_status no_value(const char *word) {
    return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: a value must follow", word);
}

/* A flag of llama.cpp's. `value` is what stood behind '=', or NULL; a note keeps `shown`, the word as it was given. */
static sheaf_status apply_theirs(options *o, const their_flag *f, const char *shown, const char *value, words *w) {
    const char *next = w->i < w->n ? w->argv[w->i] : NULL;
    bool follows = f->kind == THEIRS_NOTE_VALUE || f->kind == THEIRS_REFUSE_UNLESS;
    if (f->kind == THEIRS_REFUSE) return refuse_theirs(shown, f);
    if (f->kind == THEIRS_NOTE && value) return bad_value(shown, value, "takes no value");
    if (f->kind == THEIRS_NOTE_MAYBE && next && !value) follows = word_named("on off auto", next);
    if (follows && !value) {
        if (!next) return f->kind == THEIRS_REFUSE_UNLESS ? refuse_theirs(shown, f) : no_value(shown);
        value = next;
        w->i++;
    }
    if (f->kind == THEIRS_REFUSE_UNLESS && !their_flag_harmless(f, value)) return refuse_theirs(shown, f);
    note(o, shown, f->why);
    return SHEAF_OK;
}

/* An option of ours, and its value. */
static sheaf_status apply_ours(options *o, const option_row *r, const char *word, const char *value, words *w) {
    const char *next = w->i < w->n ? w->argv[w->i] : NULL;
    if (value && !takes_value(r->kind)) return bad_value(word, value, "takes no value");
    if (value || !takes_value(r->kind)) return apply(o, r, word, value);
    if (r->kind == K_TOGGLE && (!next || next[0] == '-')) return apply(o, r, word, "on"); /* -fa alone means on */
    if (!next) return no_value(word);
    w->i++;
    return apply(o, r, word, next);
}

static sheaf_status parse_word(options *o, words *w) {
    const char *given = w->argv[w->i++], *word = given, *value = NULL, *equals = strchr(word, '=');
    char name[64];
    if (word[0] != '-' || !word[1]) {
        if (o->n_positional == 4) return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: one argument too many", word);
        o->positional[o->n_positional++] = word;
        return SHEAF_OK;
    }
    if (!strcmp(word, "-vv")) {
        o->verbose += 2;
        return SHEAF_OK;
    }
    if (equals && word[1] == '-' && (size_t)(equals - word) < sizeof name) {
        memcpy(name, word, (size_t)(equals - word));
        name[equals - word] = 0;
        word = name;
        value = equals + 1;
    }
    const option_row *r = find_row(word, o->bit);
    if (r) return apply_ours(o, r, word, value, w);
    const their_flag *f = their_flag_find(word, o->bit);
    return f ? apply_theirs(o, f, given, value, w) : unknown_option(o, word);
}

static sheaf_status exclude(bool a, bool b, const char *what) {
    return a && b ? sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: exclude each other", what) : SHEAF_OK;
}

/* -t is one number but for bench, which takes a list of them. */
static sheaf_status check_threads(options *o) {
    int n = 0;
    if (!o->threads_list || o->bit == CMD_BENCH) return SHEAF_OK;
    sheaf_status s = parse_int_list(o->threads_list, "-t", 1, &o->threads, 1, &n);
    if (!s && o->threads > 4096) s = bad_value("-t", o->threads_list, "more than 4096 threads");
    return hint_of_row(s, find_row("-t", o->bit));
}

static sheaf_status check_split_mode(const options *o) {
    const char *mode = o->split_mode ? o->split_mode : "tensor";
    if (!strcmp(mode, "layer")) {
        sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: -sm layer: not supported yet");
        return sheaf_error_hint(s, "-sm tensor cuts every layer over all devices; -sm none takes the first device");
    }
    if (strcmp(mode, "tensor") && strcmp(mode, "none")) {
        sheaf_status s = bad_value("-sm", mode, "not tensor, layer or none");
        return sheaf_error_hint(s, "rows and columns are cut by -sm tensor (the default); how, --split-table says");
    }
    return exclude(!strcmp(mode, "none"), o->n_share > 0, "-sm none (the first device alone) and -ts");
}

/* What no single row can say. */
static sheaf_status check_together(options *o) {
    sheaf_status s = exclude(o->prompt && o->file, true, "-p and -f");
    if (!s) s = exclude(o->system && o->system_file, true, "-sys and -sysf");
    if (!s) s = exclude(o->json, o->jsonl, "--json and --jsonl");
    if (!s) s = exclude(o->interactive, o->raw || o->no_conversation, "-i and --raw");
    if (!s) s = exclude(o->interactive, o->json || o->jsonl, "-i and --json");
    if (!s && o->interactive && o->file) {
        s = exclude(true, true, "-i and -f");
        s = sheaf_error_hint(s, "-p TEXT is the first message of a chat");
    }
    if (!s) s = exclude(o->decode, o->prompt || o->file, "--decode and a text");
    if (!s) s = exclude(o->quiet, o->verbose > 0, "-q and -v");
    if (!s) s = exclude(o->dot, o->json, "--dot and --json");
    if (s) return s;
    if (o->no_conversation) o->raw = true;
    o->max_kl_given = o->max_kl >= 0;
    if (o->n_devices > 1 && o->bit != CMD_BENCH)
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: --devices: given %d times", o->n_devices);
    s = check_threads(o);
    if (s) return s;
    if (o->n_positional && !(o->bit & (CMD_INSPECT | CMD_QUANTIZE)))
        return sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: %s takes no argument without a flag", o->positional[0],
                          o->command);
    return check_split_mode(o);
}

sheaf_status parse_int_list(const char *text, const char *what, int lo, int *out, int max, int *n) {
    *n = 0;
    for (const char *p = text;;) {
        char *end;
        errno = 0;
        long x = strtol(p, &end, 10);
        if (end == p || errno || x < lo || x > INT_MAX || (*end && *end != ','))
            return bad_value(what, text, lo ? "whole numbers of at least 1" : "whole numbers of at least 0");
        if (*n == max) return bad_value(what, text, max == 1 ? "one number is expected" : "too many numbers");
        out[(*n)++] = (int)x;
        if (!*end) return SHEAF_OK;
        p = end + 1;
    }
}

static sheaf_status find_command(options *o, const char *word) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, word)) continue;
        o->command = commands[i].name;
        o->bit = commands[i].bit;
        return SHEAF_OK;
    }
    for (size_t i = 0; i < sizeof not_yet / sizeof *not_yet; i++) {
        if (strcmp(not_yet[i].name, word)) continue;
        sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: this command is not there yet", word);
        return sheaf_error_hint(s, "%s", not_yet[i].hint);
    }
    sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: unknown command", word);
    return sheaf_error_hint(s, "commands: %s", options_commands());
}

/* The first word where it is no command: help, version, or an option that came too early. */
static sheaf_status parse_first(options *o, int argc, char **argv) {
    const char *word = argv[1];
    if (word_named("-h --help help", word)) {
        o->help = true;
        return argc > 2 && argv[2][0] != '-' ? find_command(o, argv[2]) : SHEAF_OK;
    }
    if (word_named("--version -V", word)) {
        o->version = true;
        return SHEAF_OK;
    }
    if (!strcmp(word, "--help-env")) {
        o->help_env = true;
        return SHEAF_OK;
    }
    const their_flag *f = their_flag_find(word, CMD_RUN);
    if (f && f->kind == THEIRS_REFUSE) return refuse_theirs(word, f);
    sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: %s: a command must come first", word);
    return sheaf_error_hint(s, "for example: sheaf run %s ...", word);
}

sheaf_status options_parse(int argc, char **argv, options *o) {
    words w = {.argv = argv, .n = argc, .i = 2};
    defaults(o);
    if (argc < 2) {
        sheaf_status s = sheaf_fail(SHEAF_E_ARGUMENT, "options: command: none is given");
        return sheaf_error_hint(s, "commands: %s; sheaf --help explains them", options_commands());
    }
    if (argv[1][0] == '-' || !strcmp(argv[1], "help")) return parse_first(o, argc, argv);
    sheaf_status s = find_command(o, argv[1]);
    if (!s && o->bit == CMD_BENCH && w.i < argc && argv[w.i][0] != '-') o->bench_kind = argv[w.i++];
    while (!s && w.i < argc) s = parse_word(o, &w);
    return s || o->help || o->version ? s : check_together(o);
}

/* --- help ------------------------------------------------------------------------------------------------------- */

static void quantize_help(FILE *out) {
    const sheaf_mix *m;
    fprintf(out, "usage: sheaf quantize IN.gguf OUT.gguf TYPE [options]\n\nTYPE:\n");
    for (int i = 0; (m = sheaf_mix_at(i)); i++) fprintf(out, "  %-10s %s\n", m->name, m->help);
    fprintf(out, "  %-10s %s\n\n", "COPY", "no type changes: shards become one file");
}

static void help_row(const option_row *r, FILE *out) {
    char left[80];
    snprintf(left, sizeof left, "%s%s%s", r->names, r->value ? " " : "", r->value ? r->value : "");
    for (char *p = left; *p; p++)
        if (p[0] == ' ' && p[1] == '-') *p = ',';
    fprintf(out, strlen(left) < 30 ? "  %-30s %s\n" : "  %s\n                                 %s\n", left, r->help);
}

/* The names of llama.cpp's flags that are noted, in lines of at most 100 characters. */
static void help_theirs(command_bit bit, FILE *out) {
    const their_flag *f;
    size_t column = 0;
    for (int i = 0; (f = their_flag_at(i)); i++) {
        if (!(f->commands & bit) || f->kind == THEIRS_REFUSE || f->kind == THEIRS_REFUSE_UNLESS) continue;
        if (!column) fputs("\naccepted for llama.cpp's sake, without effect:", out);
        if (!column || column + strlen(f->names) > 98) {
            fputs("\n ", out);
            column = 1;
        }
        fprintf(out, " %s", f->names);
        column += strlen(f->names) + 1;
    }
    if (column) fputc('\n', out);
}

void options_help(const options *o, FILE *out) {
    if (!o->command) {
        fprintf(
            out,
            "sheaf runs GGUF language models on N devices as if they were one.\n\nusage: sheaf COMMAND [options]\n\n");
        for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].help);
        fprintf(out, "\n  sheaf COMMAND --help   options of a command\n  sheaf --help-env       settings that the "
                     "environment may give\n"
                     "  sheaf --version\n\nexit codes: 0 done, 1 a comparison does not hold, 2 usage, 3 bad input, 4 a "
                     "resource is missing,\n"
                     "5 a peer or collective failed, 6 an internal check failed, 130 interrupted, 143 terminated\n");
        return;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].bit == o->bit) fprintf(out, "sheaf %s: %s\n\n", o->command, commands[i].help);
    if (o->bit == CMD_INSPECT) fprintf(out, "usage: sheaf inspect FILE [options]\n\n");
    if (o->bit == CMD_QUANTIZE) quantize_help(out);
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].commands & o->bit) help_row(&rows[i], out);
    help_theirs(o->bit, out);
}

void options_notes(const options *o, FILE *out) {
    for (int i = 0; i < o->n_notes; i++)
        fprintf(out, "sheaf: note: %s is accepted and ignored: %s\n", o->note[i][0], o->note[i][1]);
}

void options_help_env(FILE *out) {
    const char *name, *value, *def, *help;
    for (int i = 0; sheaf_settings_row(i, &name, &value, &def, &help); i++) {
        int64_t lo, hi;
        fprintf(out, "%-26s %s (", name, help);
        if (sheaf_settings_range(i, &lo, &hi)) fprintf(out, "%lld to %lld; ", (long long)lo, (long long)hi);
        fprintf(out, "default: %s", *def ? def : "none");
        if (strcmp(value, def)) fprintf(out, ", now: %s", value);
        fputs(")\n", out);
    }
}
