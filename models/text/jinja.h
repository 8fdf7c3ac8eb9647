/* The chat-template renderer's inside: a subset of Jinja2 as model files use it.
 *
 *     source --jinja_lex.c--> tokens --jinja_parse.c--> tree --jinja_run.c--> text and marks
 *                                                       (expressions: jinja_eval.c, jinja_call.c,
 *                                                        jinja_filter.c; values: jinja_value.c)
 *
 * Nouns: a *node* of the tree (immutable, in the template's arena), a *value* (in the arena of one
 * rendering) and a *mark*: for every byte of every string, did the template write it or the input?
 * Marks follow each byte through every operation, so that the final prompt knows its origins.
 *
 * Invariants:
 *  1. Nesting is bounded while parsing (JJ_MAX_NEST) and while running (JJ_MAX_DEPTH), so the stack is.
 *  2. Steps, memory and output of one rendering are bounded; every loop pays by jj_step.
 *  3. A construct that is not understood is an error that names it and its line, never a guess.
 */
#ifndef SHEAF_MODELS_JINJA_H
#define SHEAF_MODELS_JINJA_H

#include "models/text/text.h"
#include "tensor/tensor.h"

enum {
    JJ_MAX_SOURCE = 1 << 20, /* bytes of a template */
    JJ_MAX_NEST = 64,        /* brackets and blocks inside each other */
    JJ_MAX_TREE = 200,       /* nodes above each other: long chains of operators */
    JJ_MAX_DEPTH = 300,      /* evaluations inside each other, macros included */
    JJ_MAX_STEPS = 10000000,
    JJ_MAX_JSON_DEPTH = 64,
};
#define JJ_MAX_MEMORY ((size_t)128 << 20)

/* --- values ------------------------------------------------------------------------------------------ */

typedef enum jj_kind {
    JJ_UNDEFINED,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STRING,
    JJ_LIST,
    JJ_DICT,
    JJ_LOOP,
    JJ_MACRO,
    JJ_FUNCTION,
} jj_kind;

/* Bytes and their marks (NULL: all the template's; else one byte each, 1 for input). */
typedef struct jj_str {
    const char *s;
    const uint8_t *mark;
    size_t n;
} jj_str;

typedef struct jj_value jj_value;
typedef struct jj_node jj_node;

typedef struct jj_list {
    jj_value *v;
    size_t n, capacity;
    bool tuple; /* printed in round brackets; else a list as any other */
} jj_list;

/* Insertion order; keys are any simple values. A namespace is a dict that may be assigned to. */
typedef struct jj_dict {
    jj_list keys, values;
    bool is_namespace;
} jj_dict;

typedef struct jj_loop {
    const jj_list *items;
    size_t index;
    int depth;
} jj_loop;

struct jj_value {
    jj_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        jj_str str; /* STRING; UNDEFINED and FUNCTION: the name */
        jj_list *list;
        jj_dict *dict;
        jj_loop *loop;
        const jj_node *macro;
    } u;
};

/* --- the tree ------------------------------------------------------------------------------------------ */

typedef enum jj_node_kind {
    /* expressions */
    JJ_N_CONST,
    JJ_N_NAME,
    JJ_N_LIST,
    JJ_N_DICT,
    JJ_N_NOT,
    JJ_N_NEG,
    JJ_N_POS,
    JJ_N_BINARY,
    JJ_N_AND,
    JJ_N_OR,
    JJ_N_COND,
    JJ_N_ATTR,
    JJ_N_INDEX,
    JJ_N_SLICE,
    JJ_N_CALL,
    JJ_N_FILTER,
    JJ_N_TEST,
    JJ_N_KEYWORD,
    /* statements */
    JJ_N_TEXT,
    JJ_N_PRINT,
    JJ_N_BLOCK,
    JJ_N_IF,
    JJ_N_FOR,
    JJ_N_SET,
    JJ_N_SET_BLOCK,
    JJ_N_MACRO,
    JJ_N_BREAK,
    JJ_N_CONTINUE,
} jj_node_kind;

typedef enum jj_op {
    JJ_OP_ADD,
    JJ_OP_SUB,
    JJ_OP_MUL,
    JJ_OP_DIV,
    JJ_OP_FLOORDIV,
    JJ_OP_MOD,
    JJ_OP_POW,
    JJ_OP_CONCAT,
    JJ_OP_EQ,
    JJ_OP_NE,
    JJ_OP_LT,
    JJ_OP_LE,
    JJ_OP_GT,
    JJ_OP_GE,
    JJ_OP_IN,
    JJ_OP_NOT_IN,
} jj_op;

/* What a, b, c and list hold, by kind:
 *   NOT NEG POS          a
 *   BINARY AND OR        a op b
 *   COND                 a if b else c (c may be NULL)
 *   LIST                 list; DICT: list of key, value, key, value ...
 *   ATTR                 a.name;  INDEX a[b];  SLICE a[b:c:d] (each may be NULL; d in list[0])
 *   CALL FILTER TEST     a called with list (KEYWORD nodes: name = a); name of filter or test
 *   PRINT                a
 *   BLOCK                list of statements
 *   IF                   list of condition, block, ...; c: else block or NULL
 *   FOR                  list: target names; a: iterated; b: filter or NULL; body: c; d: else
 *   SET                  list: targets (NAME or ATTR of NAME); a: value.  SET_BLOCK: c: body
 *   MACRO                name; list: parameters (KEYWORD: a is the default or NULL); c: body */
struct jj_node {
    jj_node_kind kind;
    jj_op op;
    bool tuple; /* LIST: written with round brackets, or with none */
    uint32_t line;
    uint32_t height; /* of the tree under it */
    jj_str name;     /* also TEXT */
    jj_value value;  /* CONST */
    jj_node *a, *b, *c, *d;
    jj_node **list;
    size_t n;
};

/* --- tokens -------------------------------------------------------------------------------------------- */

typedef enum jj_token_kind {
    JJ_T_END,
    JJ_T_DATA,
    JJ_T_PRINT,
    JJ_T_PRINT_END,
    JJ_T_BLOCK,
    JJ_T_BLOCK_END,
    JJ_T_NAME,
    JJ_T_STRING,
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OP,
} jj_token_kind;

typedef struct jj_token {
    jj_token_kind kind;
    uint32_t line;
    jj_str str; /* text of data, name, string, operator */
    int64_t i;
    double f;
} jj_token;

sheaf_status jj_lex(sheaf_arena *arena, const char *source, size_t n, jj_token **tokens, size_t *n_tokens);
sheaf_status jj_parse(sheaf_arena *arena, const jj_token *tokens, size_t n, jj_node **out);

/* --- running ------------------------------------------------------------------------------------------- */

typedef struct jj_scope {
    jj_dict vars;
    struct jj_scope *outer;
} jj_scope;

/* Bytes and marks being put together. */
typedef struct jj_buf {
    char *s;
    uint8_t *mark;
    size_t n, capacity;
} jj_buf;

/* One rendering. */
typedef struct jj_run {
    sheaf_arena *arena;
    jj_scope *scope;
    jj_scope *globals;
    jj_buf *out;
    uint64_t steps;
    int depth, loop_depth;
    uint32_t line; /* of what is being run, for error texts */
    int64_t now;
} jj_run;

typedef enum jj_flow { JJ_NEXT, JJ_BROKE, JJ_CONTINUED } jj_flow;

sheaf_status jj_fail(const jj_run *r, sheaf_status s, const char *format, ...) SHEAF_PRINTF(3, 4);
/* Pays for n units of work; SHEAF_E_RANGE when a bound is passed. */
sheaf_status jj_step(jj_run *r, uint64_t n);

sheaf_status jj_block(jj_run *r, const jj_node *n, jj_flow *flow);
sheaf_status jj_eval(jj_run *r, const jj_node *n, jj_value *out);
sheaf_status jj_call(jj_run *r, const jj_node *n, jj_value *out);
sheaf_status jj_call_macro(jj_run *r, const jj_node *macro, const jj_node *call, jj_value *out);
/* v.name; undefined where there is none. Methods are not attributes: only calls find them. */
sheaf_status jj_attribute(jj_run *r, const jj_value *v, jj_str name, jj_value *out);
sheaf_status jj_lookup(jj_run *r, jj_str name, jj_value *out);
sheaf_status jj_assign(jj_run *r, jj_str name, const jj_value *v);

/* Arguments of a call, evaluated: by position, then by name. */
typedef struct jj_args {
    jj_value *v;
    size_t n;
    jj_str *names;
    jj_value *named;
    size_t n_named;
} jj_args;
sheaf_status jj_eval_args(jj_run *r, const jj_node *call, jj_args *out);
/* Argument `i` or `name`; false: not given. name may be NULL. */
bool jj_arg(const jj_args *a, size_t i, const char *name, jj_value *out);
/* The same, which must be a string. */
sheaf_status jj_string_arg(jj_run *r, const jj_args *a, size_t i, const char *name, const char *what, jj_str *out);

sheaf_status jj_method(jj_run *r, const jj_value *self, jj_str name, const jj_args *a, jj_value *out);
sheaf_status jj_filter(jj_run *r, jj_str name, const jj_value *in, const jj_args *a, jj_value *out);
sheaf_status jj_test(jj_run *r, jj_str name, const jj_value *in, const jj_args *a, bool *out);
sheaf_status jj_string_method(jj_run *r, jj_str self, jj_str name, const jj_args *a, jj_value *out, bool *known);

/* --- values: jinja_value.c ------------------------------------------------------------------------------ */

bool jj_is(jj_str s, const char *text);
bool jj_equal_str(jj_str x, jj_str y);
jj_str jj_text(const char *literal);
jj_str jj_slice(jj_str s, size_t begin, size_t end);
jj_value jj_none(void);
jj_value jj_bool(bool b);
jj_value jj_int(int64_t i);
jj_value jj_string(jj_str s);
jj_value jj_undefined(jj_str name);
const char *jj_kind_name(const jj_value *v);

void *jj_alloc(jj_run *r, size_t n);
sheaf_status jj_new_list(jj_run *r, jj_value *out);
sheaf_status jj_new_dict(jj_run *r, jj_value *out);
sheaf_status jj_push(jj_run *r, jj_list *l, const jj_value *v);
sheaf_status jj_dict_set(jj_run *r, jj_dict *d, const jj_value *key, const jj_value *v);
bool jj_dict_get(const jj_dict *d, const jj_value *key, jj_value *out);
bool jj_dict_get_name(const jj_dict *d, const char *key, jj_value *out);

bool jj_truth(const jj_value *v);
sheaf_status jj_equal(jj_run *r, const jj_value *x, const jj_value *y, bool *out);
sheaf_status jj_compare(jj_run *r, const jj_value *x, const jj_value *y, int *out); /* -1, 0, 1 */
sheaf_status jj_contains(jj_run *r, const jj_value *in, const jj_value *what, bool *out);
sheaf_status jj_length(jj_run *r, const jj_value *v, size_t *out);
/* The items of a list, the keys of a dict, the characters of a string; undefined: none. */
sheaf_status jj_items(jj_run *r, const jj_value *v, jj_list **out);

sheaf_status jj_put(jj_run *r, jj_buf *b, jj_str s);
sheaf_status jj_put_text(jj_run *r, jj_buf *b, const char *s, size_t n);
jj_str jj_built(const jj_buf *b);
/* As Python's str() prints it; repr: strings in quotes. */
sheaf_status jj_print(jj_run *r, jj_buf *b, const jj_value *v, bool repr);
sheaf_status jj_to_string(jj_run *r, const jj_value *v, jj_str *out);

size_t jj_char_count(jj_str s);
/* Byte offset of character `i` (or n). */
size_t jj_char_at(jj_str s, size_t i);

/* --- JSON: jinja_json.c ------------------------------------------------------------------------------- */

/* Reads one JSON text; its strings are marked as input. SHEAF_E_FORMAT with the byte. */
sheaf_status jj_json_read(jj_run *r, const char *s, size_t n, jj_value *out);
/* Writes as Python's json.dumps(ensure_ascii=False): indent < 0: one line. */
sheaf_status jj_json_write(jj_run *r, jj_buf *b, const jj_value *v, int indent);

#endif
