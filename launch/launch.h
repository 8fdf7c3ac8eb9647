/* The `sheaf` command: what its files share.
 *
 * main.c picks a command; options.c turns words into `options` by one table; session.c opens devices,
 * model and context as the options say; one file per command does the rest; report.c prints what a run
 * cost. CLI.md is the promise that all of it keeps. Nothing here is part of the library.
 *
 * Errors: every function returns a sheaf_status; main.c alone prints the text ("sheaf: ...", then
 * "hint: ...") and turns the status into an exit code. stdout carries results and nothing else. */
#ifndef SHEAF_LAUNCH_LAUNCH_H
#define SHEAF_LAUNCH_LAUNCH_H

#include <signal.h>
#include <stdio.h>

#include "models/model.h"

enum { MAX_DEVICE_LISTS = 16, MAX_STOPS = 32, MAX_NOTES = 32, MAX_OVERRIDES = 64, MAX_SHARES = SHEAF_MAX_DEVICES };

typedef enum command_bit {
    CMD_RUN = 1 << 0,
    CMD_DEVICES = 1 << 1,
    CMD_SPLIT = 1 << 2,
    CMD_GRAPH = 1 << 3,
    CMD_BENCH = 1 << 4,
    CMD_PERPLEXITY = 1 << 5,
    CMD_TOKENIZE = 1 << 6,
    CMD_INSPECT = 1 << 7,
    CMD_QUANTIZE = 1 << 8,
    CMD_MODEL = CMD_RUN | CMD_SPLIT | CMD_GRAPH | CMD_BENCH | CMD_PERPLEXITY, /* loads a model on devices */
    CMD_ALL = (1 << 9) - 1,
} command_bit;

typedef enum on_off_auto { OPT_AUTO, OPT_ON, OPT_OFF } on_off_auto;

typedef struct options {
    const char *command;
    command_bit bit;
    /* model and devices */
    const char *model;
    const char *devices[MAX_DEVICE_LISTS]; /* bench may be given several */
    int n_devices;
    const char *split_mode;
    float share[MAX_SHARES];
    int n_share;
    const char *split_table;
    int threads;              /* 0: by default */
    const char *threads_list; /* bench: "1,2" */
    const char *cpu_level;
    bool no_mmap, force_pretokenizer;
    int comm_timeout; /* seconds; 0: setting's */
    /* context */
    int n_ctx, n_batch, n_ubatch;
    const char *type_k, *type_v;
    bool swa_full;
    on_off_auto flash_attention;
    /* prompt and reply */
    const char *prompt, *file, *system, *system_file;
    bool interactive, single_turn, raw, escape, no_conversation, parse_special;
    int n_predict;
    const char *stop[MAX_STOPS];
    int n_stop;
    bool ignore_eos;
    sheaf_sampler_options sampler;
    bool seed_given;
    const char *prompt_cache; /* file of a context's state */
    bool prompt_cache_all, prompt_cache_ro;
    const char *dump_tensors, *trace;
    /* output */
    bool json, jsonl, quiet, help, version, help_env;
    int verbose;
    /* split, graph */
    bool memory, print_table, summary, explain, strict, dot;
    const char *arch, *expect, *tensors;
    int tokens;
    /* bench */
    const char *bench_kind;                 /* machine, collectives, kernels, scale; NULL: the model */
    const char *n_prompt, *n_gen, *n_depth; /* lists */
    int repetitions;
    const char *output_format; /* md, csv, json */
    /* perplexity */
    int chunks;
    const char *against, *kl_base;
    double max_kl;
    bool max_kl_given, kl_divergence;
    /* tokenize */
    bool no_bos, show;
    const char *decode;
    /* inspect */
    bool check;
    const char *positional[4];
    int n_positional;
    /* quantize */
    const char *imatrix, *output_type, *embedding_type;
    const char *tensor_type[MAX_OVERRIDES];
    int n_tensor_type;
    bool allow_requantize, leave_output, pure, dry_run;
    /* flags that were accepted and do nothing, each once */
    const char *note[MAX_NOTES][2]; /* word, why */
    int n_notes;
} options;

/* Fills *o from argv[1..]: defaults, then words. SHEAF_E_ARGUMENT with text (and hint) for what CLI.md calls usage. */
sheaf_status options_parse(int argc, char **argv, options *o);
void options_help(const options *o, FILE *out); /* of o->command, or of all */
void options_help_env(FILE *out);
void options_notes(const options *o, FILE *out); /* one line for each flag that does nothing here */
const char *options_commands(void);              /* "run, devices, ..." */
/* "512" or "0,4096" -> ints; SHEAF_E_ARGUMENT naming `what`. */
sheaf_status parse_int_list(const char *text, const char *what, int lo, int *out, int max, int *n);

/* --- session: what most commands open ------------------------------------------------------------------ */

/* A device of the world: of this process, or of another rank. */
typedef struct world_device {
    char name[48]; /* "cpu.0"; of several ranks "rank1.cpu.0" */
    int n_threads, numa;
    char description[96];
} world_device;

typedef struct session {
    sheaf_world *world;
    sheaf_registry *registry;
    sheaf_device *devices[SHEAF_MAX_DEVICES];
    int n_devices;    /* of this process */
    const char *list; /* as the user wrote it, or the default */
    /* The devices of all ranks, in rank order; alone: this process's. */
    world_device all[SHEAF_MAX_DEVICES];
    int n_all, first; /* this process's first among them */
    char where[256];  /* all lists, for printing: "cpu/2", "cpu,cpu on 2 ranks" */
    sheaf_model *model;
    sheaf_context *context;
    double load_ms;
} session;

enum session_part { SESSION_MODEL = 1, SESSION_CONTEXT = 2, SESSION_NO_DATA = 4 };
/* Opens world, devices and, as `parts` say, model and context. On error nothing is left but what session_close frees.
 */
sheaf_status session_open(session *s, const options *o, const char *device_list, unsigned parts);
sheaf_status session_open_context(session *s, const options *o); /* for a session opened without one */
void session_close(session *s);
bool session_leads(const session *s); /* rank 0, or alone */
/* What the other ranks do: obey rank 0 until it ends, or a signal comes; a failure here is told to all. */
sheaf_status session_follow(session *s);
int session_ranks(const session *s);
/* Threads that read weights on this host. */
int session_threads(const session *s);
/* Every rank's n bytes, in rank order: *all is malloc'd. Collective over ranks. */
sheaf_status session_gather(const session *s, const void *mine, size_t n, void **all);
/* Fills `all`, `n_all`, `first` and `where`. Collective over ranks. */
sheaf_status session_list_devices(session *s);
/* -v: what was chosen, and why. */
void session_tell(const session *s, const options *o);

/* --- commands ------------------------------------------------------------------------------------------- */

sheaf_status cmd_run(const options *o);
sheaf_status cmd_devices(const options *o);
sheaf_status cmd_split(const options *o);
sheaf_status cmd_graph(const options *o);
sheaf_status cmd_bench(const options *o);
sheaf_status cmd_perplexity(const options *o);
sheaf_status cmd_tokenize(const options *o);
sheaf_status cmd_inspect(const options *o);
sheaf_status cmd_quantize(const options *o);

/* --- small things shared --------------------------------------------------------------------------------- */

/* A whole file, or stdin for "-" or NULL; *text is malloc'd with a NUL behind n bytes. SHEAF_E_FORMAT where there is
 * more than a text of 1 GiB, a table or list of 64 MiB. */
sheaf_status read_text(const char *path, char **text, size_t *n);
sheaf_status read_table(const char *path, char **text, size_t *n);
/* Undoes the escapes of -e (\n, \t, \r, \", \' and \\) in place, the rest stays as it is; the new length. */
size_t unescape(char *s, size_t n);
/* SHEAF_E_FORMAT naming `what` and the first byte that is no UTF-8. */
sheaf_status check_utf8(const char *what, const char *text, size_t n);
sheaf_status errno_status(int code); /* SHEAF_E_NO_MEMORY, _NO_SPACE or _IO */
/* The status of a failed write to standard output, by errno: a full disk is a resource that is missing. */
sheaf_status stdout_failed(void);
double now_ms(void);
/* The one line (and hint) of a failure, from this thread's error text, in one write: lines of several ranks do not mix.
 * `command`: what was being done, where the text does not say it; may be NULL. */
void say_error(const char *command, sheaf_status status);
/* Read bandwidth in GB/s over a buffer of `bytes` with `threads` threads, best of several patterns; ~60 ms. */
sheaf_status machine_read_gbs(size_t bytes, int threads, double *gbs);
/* The same, measured again where `seen` was faster: the machine was busy, and the largest counts. */
sheaf_status machine_limit(size_t bytes, int threads, double seen, double *limit);
/* "64.3 %", or words where the limit is still below what was seen. */
const char *share_text(double seen, double limit, char out[64]);
/* malloc-family calls of this process so far; -1 under sanitizers. */
int64_t heap_calls(void);

extern volatile sig_atomic_t interrupted; /* SIGINT came (run: stop; chat: end the reply) */
extern volatile sig_atomic_t chatting;    /* Ctrl-C is for the reply: it ends the program only if that hangs */
extern volatile sig_atomic_t at_prompt;   /* the chat waits for a line: Ctrl-C, however often, only clears it */
void prompt_begins(
    void); /* around the wait for a line: SIGTERM then ends the program at once, the terminal as it was */
void prompt_ends(void);
extern volatile sig_atomic_t terminated; /* SIGTERM, SIGHUP or SIGQUIT came: its number */

#endif
