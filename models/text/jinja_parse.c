/* Tokens to tree: a recursive-descent parser with precedence climbing. Depth is bounded twice: by
 * brackets and blocks inside each other (the parser's own stack) and by the height of the tree (the
 * evaluator's). Statements of Jinja that no chat template needs are refused by name. */
#include "models/text/jinja.h"

#include <string.h>

typedef struct parser {
    sheaf_arena *arena;
    const jj_token *t; /* the token being looked at; the last is JJ_T_END */
    int nest;
    int loops; /* {% for %} around: break and continue need one */
} parser;

static sheaf_status parse_expression(parser *p, jj_node **out);
static sheaf_status parse_unary(parser *p, jj_node **out);
static sheaf_status parse_block(parser *p, const char *const *ends, jj_node **out);

/* --- small helpers --------------------------------------------------------------------------------- */

static sheaf_status refuse(const parser *p, sheaf_status s, const char *what, jj_str name) {
    return sheaf_fail(s, "chat template line %u: %s%s%.*s%s", p->t->line, what, name.n ? " \"" : "",
                      (int)(name.n < 40 ? name.n : 40), name.s ? name.s : "", name.n ? "\"" : "");
}

static sheaf_status expected(const parser *p, const char *what) {
    jj_str found = p->t->str;
    return sheaf_fail(SHEAF_E_FORMAT, "chat template line %u: expected %s, found \"%.*s\"", p->t->line, what,
                      (int)(found.n < 40 ? found.n : 40), found.s ? found.s : "");
}

static bool is_op(const parser *p, const char *op) { return p->t->kind == JJ_T_OP && jj_is(p->t->str, op); }
static bool is_name(const parser *p, const char *name) { return p->t->kind == JJ_T_NAME && jj_is(p->t->str, name); }

static bool take_op(parser *p, const char *op) {
    if (!is_op(p, op)) return false;
    p->t++;
    return true;
}

static bool take_name(parser *p, const char *name) {
    if (!is_name(p, name)) return false;
    p->t++;
    return true;
}

static sheaf_status need_op(parser *p, const char *op) {
    char what[8] = "\"";
    if (take_op(p, op)) return SHEAF_OK;
    strcat(strcat(what, op), "\"");
    return expected(p, what);
}

static sheaf_status need_block_end(parser *p) {
    if (p->t->kind != JJ_T_BLOCK_END) return expected(p, "the end of the tag");
    p->t++;
    return SHEAF_OK;
}

static sheaf_status enter(parser *p) {
    if (++p->nest <= JJ_MAX_NEST) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_RANGE, "chat template line %u: nested deeper than %d", p->t->line, JJ_MAX_NEST);
}

static sheaf_status make(parser *p, jj_node_kind kind, jj_node **out) {
    jj_node *n = sheaf_arena_alloc(p->arena, sizeof(*n));
    *out = n;
    if (!n) return sheaf_error_context(sheaf_arena_status(p->arena), "chat template");
    n->kind = kind;
    n->line = p->t->line;
    return SHEAF_OK;
}

/* Sets a node's height from its children; trees that would be too deep to walk are refused. */
static sheaf_status close_node(const parser *p, jj_node *n) {
    const jj_node *children[] = {n->a, n->b, n->c, n->d};
    for (size_t i = 0; i < 4; i++)
        if (children[i] && children[i]->height + 1 > n->height) n->height = children[i]->height + 1;
    for (size_t i = 0; i < n->n; i++)
        if (n->list[i] && n->list[i]->height + 1 > n->height) n->height = n->list[i]->height + 1;
    if (n->height <= JJ_MAX_TREE) return SHEAF_OK;
    return sheaf_fail(SHEAF_E_RANGE, "chat template line %u: an expression of more than %d levels", p->t->line,
                      JJ_MAX_TREE);
}

/* Lists double whenever their length is a power of two, so no capacity needs keeping. */
static sheaf_status append(parser *p, jj_node *to, jj_node *child) {
    if ((to->n & (to->n - 1)) == 0) {
        jj_node **grown = sheaf_arena_alloc(p->arena, (to->n ? 2 * to->n : 1) * sizeof(*grown));
        if (!grown) return sheaf_error_context(sheaf_arena_status(p->arena), "chat template");
        if (to->n) memcpy(grown, to->list, to->n * sizeof(*grown));
        to->list = grown;
    }
    to->list[to->n++] = child;
    return SHEAF_OK;
}

/* --- atoms -------------------------------------------------------------------------------------------- */

static sheaf_status parse_string(parser *p, jj_node **out) {
    sheaf_status s = make(p, JJ_N_CONST, out);
    if (s) return s;
    jj_str all = p->t++->str;
    while (p->t->kind == JJ_T_STRING) { /* "a" "b" is "ab" */
        jj_str more = p->t++->str;
        char *joined = sheaf_arena_alloc(p->arena, all.n + more.n + 1);
        if (!joined) return sheaf_error_context(sheaf_arena_status(p->arena), "chat template");
        memcpy(joined, all.s, all.n);
        memcpy(joined + all.n, more.s, more.n);
        all = (jj_str){joined, NULL, all.n + more.n};
    }
    (*out)->value = jj_string(all);
    return SHEAF_OK;
}

static sheaf_status parse_number(parser *p, jj_node **out) {
    sheaf_status s = make(p, JJ_N_CONST, out);
    if (s) return s;
    (*out)->value = jj_int(p->t->i);
    if (p->t->kind == JJ_T_FLOAT) (*out)->value = (jj_value){.kind = JJ_FLOAT, .u.f = p->t->f};
    p->t++;
    return SHEAF_OK;
}

static sheaf_status parse_name(parser *p, jj_node **out) {
    static const struct {
        const char *name;
        jj_kind kind;
        bool b;
    } constants[] = {
        {"true", JJ_BOOL, true},   {"True", JJ_BOOL, true},  {"false", JJ_BOOL, false},
        {"False", JJ_BOOL, false}, {"none", JJ_NONE, false}, {"None", JJ_NONE, false},
    };
    sheaf_status s = make(p, JJ_N_NAME, out);
    if (s) return s;
    (*out)->name = p->t->str;
    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++) {
        if (!jj_is(p->t->str, constants[i].name)) continue;
        (*out)->kind = JJ_N_CONST;
        (*out)->value = constants[i].kind == JJ_NONE ? jj_none() : jj_bool(constants[i].b);
    }
    p->t++;
    return SHEAF_OK;
}

/* Expressions up to `close` (already open); `pairs`: key : value each. */
static sheaf_status parse_items(parser *p, const char *close, bool pairs, jj_node *to) {
    sheaf_status s = SHEAF_OK;
    while (!s && !take_op(p, close)) {
        jj_node *item;
        if ((s = parse_expression(p, &item)) || (s = append(p, to, item))) return s;
        if (pairs) {
            if ((s = need_op(p, ":")) || (s = parse_expression(p, &item)) || (s = append(p, to, item))) return s;
        }
        if (!is_op(p, close)) s = need_op(p, ",");
    }
    return s;
}

/* "(" has been taken: an expression in brackets, or a tuple (a list to us). */
static sheaf_status parse_brackets(parser *p, jj_node **out) {
    sheaf_status s;
    jj_node *first, *list;
    if (take_op(p, ")")) {
        s = make(p, JJ_N_LIST, out);
        if (!s) (*out)->tuple = true;
        return s;
    }
    if ((s = parse_expression(p, &first))) return s;
    *out = first;
    if (take_op(p, ")")) return SHEAF_OK;
    if ((s = need_op(p, ",")) || (s = make(p, JJ_N_LIST, &list)) || (s = append(p, list, first))) return s;
    list->tuple = true;
    *out = list;
    s = parse_items(p, ")", false, list);
    return s ? s : close_node(p, list);
}

static sheaf_status parse_primary(parser *p, jj_node **out) {
    sheaf_status s;
    if (p->t->kind == JJ_T_STRING) return parse_string(p, out);
    if (p->t->kind == JJ_T_INT || p->t->kind == JJ_T_FLOAT) return parse_number(p, out);
    if (p->t->kind == JJ_T_NAME) return parse_name(p, out);
    if (take_op(p, "(")) return parse_brackets(p, out);
    bool dict = is_op(p, "{");
    if (!dict && !is_op(p, "[")) return expected(p, "an expression");
    if ((s = make(p, dict ? JJ_N_DICT : JJ_N_LIST, out))) return s;
    p->t++;
    s = parse_items(p, dict ? "}" : "]", dict, *out);
    return s ? s : close_node(p, *out);
}

/* --- what follows an atom -------------------------------------------------------------------------- */

/* "(" has been taken: arguments, each maybe "name = value". */
static sheaf_status parse_arguments(parser *p, jj_node *call) {
    sheaf_status s = SHEAF_OK;
    while (!s && !take_op(p, ")")) {
        jj_node *arg, *value;
        bool keyword = p->t->kind == JJ_T_NAME && p->t[1].kind == JJ_T_OP && jj_is(p->t[1].str, "=");
        if (is_op(p, "*") || is_op(p, "**"))
            return refuse(p, SHEAF_E_UNSUPPORTED, "unpacked arguments are not supported", (jj_str){0});
        if (keyword) {
            if ((s = make(p, JJ_N_KEYWORD, &arg))) return s;
            arg->name = p->t->str;
            p->t += 2;
            if ((s = parse_expression(p, &value))) return s;
            arg->a = value;
            s = close_node(p, arg);
        } else {
            s = parse_expression(p, &arg);
        }
        if (!s) s = append(p, call, arg);
        if (!s && !is_op(p, ")")) s = need_op(p, ",");
    }
    return s;
}

static sheaf_status parse_call(parser *p, jj_node *callee, jj_node **out) {
    sheaf_status s = make(p, JJ_N_CALL, out);
    if (s) return s;
    (*out)->a = callee;
    if ((s = enter(p)) || (s = parse_arguments(p, *out))) return s;
    p->nest--;
    return close_node(p, *out);
}

/* "[" has been taken: an index, or a slice begin:end:step with any part left out. */
static sheaf_status parse_subscript(parser *p, jj_node *of, jj_node **out) {
    jj_node *part[3] = {NULL, NULL, NULL};
    int at = 0;
    sheaf_status s = make(p, JJ_N_INDEX, out);
    if (s) return s;
    while (!take_op(p, "]")) {
        if (take_op(p, ":")) {
            if (++at > 2) return expected(p, "\"]\"");
            (*out)->kind = JJ_N_SLICE;
        } else if (part[at]) {
            return expected(p, "\"]\"");
        } else if ((s = parse_expression(p, &part[at]))) {
            return s;
        }
    }
    if ((*out)->kind == JJ_N_INDEX && !part[0]) return expected(p, "an index");
    (*out)->a = of;
    (*out)->b = part[0];
    (*out)->c = part[1];
    (*out)->d = part[2];
    return close_node(p, *out);
}

static sheaf_status parse_attribute(parser *p, jj_node *of, jj_node **out) {
    sheaf_status s = make(p, JJ_N_ATTR, out);
    if (s) return s;
    (*out)->a = of;
    if (p->t->kind == JJ_T_INT) { /* x.0 is x[0] */
        (*out)->kind = JJ_N_INDEX;
        s = parse_number(p, &(*out)->b);
        return s ? s : close_node(p, *out);
    }
    if (p->t->kind != JJ_T_NAME) return expected(p, "a name after \".\"");
    (*out)->name = p->t++->str;
    return close_node(p, *out);
}

static sheaf_status parse_filter(parser *p, jj_node *of, jj_node **out) {
    sheaf_status s = make(p, JJ_N_FILTER, out);
    if (s) return s;
    if (p->t->kind != JJ_T_NAME) return expected(p, "the name of a filter");
    (*out)->a = of;
    (*out)->name = p->t++->str;
    if (take_op(p, "(") && (s = parse_arguments(p, *out))) return s;
    return close_node(p, *out);
}

/* Can a test's argument without brackets begin here ("divisibleby 3")? */
static bool argument_begins(const parser *p) {
    if (p->t->kind == JJ_T_STRING || p->t->kind == JJ_T_INT || p->t->kind == JJ_T_FLOAT) return true;
    if (is_op(p, "[") || is_op(p, "{")) return true;
    return p->t->kind == JJ_T_NAME && !is_name(p, "and") && !is_name(p, "or") && !is_name(p, "else") &&
           !is_name(p, "if") && !is_name(p, "is") && !is_name(p, "in") && !is_name(p, "not");
}

/* "is" has been taken. */
static sheaf_status parse_test(parser *p, jj_node *of, jj_node **out) {
    jj_node *test = NULL, *arg = NULL;
    bool negated = take_name(p, "not");
    sheaf_status s = make(p, JJ_N_TEST, &test);
    if (s) return s;
    if (p->t->kind != JJ_T_NAME) return expected(p, "the name of a test");
    test->a = of;
    test->name = p->t++->str;
    if (take_op(p, "("))
        s = parse_arguments(p, test);
    else if (argument_begins(p) && !(s = parse_primary(p, &arg)))
        s = append(p, test, arg);
    if (!s) s = close_node(p, test);
    *out = test;
    if (s || !negated) return s;
    if ((s = make(p, JJ_N_NOT, out))) return s;
    (*out)->a = test;
    return close_node(p, *out);
}

/* Attributes, subscripts and calls; then, unless `bare`, filters and tests as well. */
static sheaf_status parse_postfix(parser *p, bool bare, jj_node **out) {
    sheaf_status s = SHEAF_OK;
    while (!s) {
        jj_node *of = *out;
        if (take_op(p, "."))
            s = parse_attribute(p, of, out);
        else if (take_op(p, "["))
            s = parse_subscript(p, of, out);
        else if (take_op(p, "("))
            s = parse_call(p, of, out);
        else if (!bare && take_op(p, "|"))
            s = parse_filter(p, of, out);
        else if (!bare && take_name(p, "is"))
            s = parse_test(p, of, out);
        else
            break;
    }
    return s;
}

static sheaf_status parse_signed(parser *p, bool bare, jj_node **out) {
    sheaf_status s;
    bool minus = is_op(p, "-");
    if (!minus && !is_op(p, "+")) {
        s = parse_primary(p, out);
        return s ? s : parse_postfix(p, bare, out);
    }
    if ((s = enter(p))) return s;
    if ((s = make(p, minus ? JJ_N_NEG : JJ_N_POS, out))) return s;
    p->t++;
    if ((s = parse_signed(p, true, &(*out)->a))) return s;
    p->nest--;
    s = close_node(p, *out);
    return s ? s : parse_postfix(p, bare, out);
}

static sheaf_status parse_unary(parser *p, jj_node **out) { return parse_signed(p, false, out); }

/* --- operators by precedence -------------------------------------------------------------------------- */

enum { P_OR = 1, P_AND, P_NOT, P_COMPARE, P_SUM, P_CONCAT, P_PRODUCT, P_POWER };

typedef struct operator_row {
    const char *text;
    int precedence;
    jj_node_kind kind;
    jj_op op;
    bool word;
} operator_row;

static const operator_row OPERATORS[] = {
    {"or", P_OR, JJ_N_OR, JJ_OP_ADD, true},
    {"and", P_AND, JJ_N_AND, JJ_OP_ADD, true},
    {"==", P_COMPARE, JJ_N_BINARY, JJ_OP_EQ, false},
    {"!=", P_COMPARE, JJ_N_BINARY, JJ_OP_NE, false},
    {"<", P_COMPARE, JJ_N_BINARY, JJ_OP_LT, false},
    {"<=", P_COMPARE, JJ_N_BINARY, JJ_OP_LE, false},
    {">", P_COMPARE, JJ_N_BINARY, JJ_OP_GT, false},
    {">=", P_COMPARE, JJ_N_BINARY, JJ_OP_GE, false},
    {"in", P_COMPARE, JJ_N_BINARY, JJ_OP_IN, true},
    {"not", P_COMPARE, JJ_N_BINARY, JJ_OP_NOT_IN, true},
    {"+", P_SUM, JJ_N_BINARY, JJ_OP_ADD, false},
    {"-", P_SUM, JJ_N_BINARY, JJ_OP_SUB, false},
    {"~", P_CONCAT, JJ_N_BINARY, JJ_OP_CONCAT, false},
    {"*", P_PRODUCT, JJ_N_BINARY, JJ_OP_MUL, false},
    {"/", P_PRODUCT, JJ_N_BINARY, JJ_OP_DIV, false},
    {"//", P_PRODUCT, JJ_N_BINARY, JJ_OP_FLOORDIV, false},
    {"%", P_PRODUCT, JJ_N_BINARY, JJ_OP_MOD, false},
    {"**", P_POWER, JJ_N_BINARY, JJ_OP_POW, false},
};

static const operator_row *operator_here(const parser *p) {
    for (size_t i = 0; i < sizeof(OPERATORS) / sizeof(*OPERATORS); i++) {
        const operator_row *o = &OPERATORS[i];
        if (!(o->word ? is_name(p, o->text) : is_op(p, o->text))) continue;
        bool not_in = o->op == JJ_OP_NOT_IN && p->t[1].kind == JJ_T_NAME && jj_is(p->t[1].str, "in");
        return o->op != JJ_OP_NOT_IN || not_in ? o : NULL;
    }
    return NULL;
}

static sheaf_status parse_binary(parser *p, int lowest, jj_node **out) {
    sheaf_status s;
    if (lowest <= P_NOT && is_name(p, "not")) {
        if ((s = enter(p)) || (s = make(p, JJ_N_NOT, out))) return s;
        p->t++;
        if ((s = parse_binary(p, P_NOT, &(*out)->a)) || (s = close_node(p, *out))) return s;
        p->nest--;
    } else if ((s = parse_unary(p, out))) {
        return s;
    }
    bool compared = false;
    for (const operator_row *o; (o = operator_here(p)) && o->precedence >= lowest;) {
        jj_node *left = *out;
        if (compared && o->precedence == P_COMPARE)
            return refuse(p, SHEAF_E_UNSUPPORTED, "chained comparisons are not supported", (jj_str){0});
        compared = o->precedence == P_COMPARE;
        if ((s = make(p, o->kind, out))) return s;
        p->t += o->op == JJ_OP_NOT_IN ? 2 : 1;
        (*out)->op = o->op;
        (*out)->a = left;
        if ((s = parse_binary(p, o->precedence + 1, &(*out)->b)) || (s = close_node(p, *out))) return s;
    }
    return SHEAF_OK;
}

/* value [if condition [else other]], any number of them */
static sheaf_status parse_expression(parser *p, jj_node **out) {
    sheaf_status s = enter(p);
    if (!s) s = parse_binary(p, P_OR, out);
    while (!s && is_name(p, "if")) {
        jj_node *value = *out;
        if ((s = make(p, JJ_N_COND, out))) return s;
        p->t++;
        (*out)->a = value;
        if ((s = parse_binary(p, P_OR, &(*out)->b))) return s;
        if (take_name(p, "else") && (s = parse_expression(p, &(*out)->c))) return s;
        s = close_node(p, *out);
    }
    p->nest--;
    return s;
}

/* An expression, or several with commas: a tuple. */
static sheaf_status parse_tuple(parser *p, jj_node **out) {
    jj_node *first, *list;
    sheaf_status s = parse_expression(p, &first);
    *out = first;
    if (s || !is_op(p, ",")) return s;
    if ((s = make(p, JJ_N_LIST, &list)) || (s = append(p, list, first))) return s;
    list->tuple = true;
    *out = list;
    while (!s && take_op(p, ",")) {
        jj_node *item;
        if (p->t->kind == JJ_T_BLOCK_END || p->t->kind == JJ_T_PRINT_END) break;
        s = parse_expression(p, &item);
        if (!s) s = append(p, list, item);
    }
    return s ? s : close_node(p, list);
}

/* --- statements ----------------------------------------------------------------------------------------- */

static const char *const IF_ENDS[] = {"elif", "else", "endif", NULL};
static const char *const FOR_ENDS[] = {"else", "endfor", NULL};

static sheaf_status parse_if(parser *p, jj_node **out) {
    jj_node *part;
    sheaf_status s = make(p, JJ_N_IF, out);
    do { /* at "if" or "elif" */
        p->t++;
        if (s || (s = parse_expression(p, &part)) || (s = append(p, *out, part)) || (s = need_block_end(p))) return s;
        if ((s = parse_block(p, IF_ENDS, &part)) || (s = append(p, *out, part))) return s;
    } while (is_name(p, "elif"));
    if (take_name(p, "else")) {
        static const char *const ends[] = {"endif", NULL};
        if ((s = need_block_end(p)) || (s = parse_block(p, ends, &(*out)->c))) return s;
    }
    p->t++; /* endif */
    s = need_block_end(p);
    return s ? s : close_node(p, *out);
}

/* Names before "in", or before "=": a, (a, b) or a.b (`attributes`). */
static sheaf_status parse_targets(parser *p, bool attributes, jj_node *to) {
    sheaf_status s = SHEAF_OK;
    bool brackets = take_op(p, "(");
    do {
        jj_node *name;
        if (p->t->kind != JJ_T_NAME) return expected(p, "a name");
        if ((s = parse_name(p, &name))) return s;
        if (name->kind != JJ_N_NAME) return expected(p, "a name that is no constant");
        if (attributes && is_op(p, ".")) {
            jj_node *of = name;
            p->t++;
            if ((s = parse_attribute(p, of, &name))) return s;
            if (name->kind != JJ_N_ATTR) return expected(p, "a name after \".\"");
        }
        if ((s = append(p, to, name))) return s;
    } while (take_op(p, ","));
    return brackets ? need_op(p, ")") : s;
}

static sheaf_status parse_for(parser *p, jj_node **out) {
    sheaf_status s = make(p, JJ_N_FOR, out);
    p->t++;
    if (s || (s = parse_targets(p, false, *out))) return s;
    if (!take_name(p, "in")) return expected(p, "\"in\"");
    /* Not a whole expression: "if" begins the loop's filter here. */
    if ((s = parse_binary(p, P_OR, &(*out)->a))) return s;
    if (take_name(p, "if") && (s = parse_expression(p, &(*out)->b))) return s;
    if (is_name(p, "recursive"))
        return refuse(p, SHEAF_E_UNSUPPORTED, "recursive loops are not supported", (jj_str){0});
    if ((s = need_block_end(p))) return s;
    p->loops++;
    s = parse_block(p, FOR_ENDS, &(*out)->c);
    p->loops--;
    if (s) return s;
    if (take_name(p, "else")) {
        static const char *const ends[] = {"endfor", NULL};
        if ((s = need_block_end(p)) || (s = parse_block(p, ends, &(*out)->d))) return s;
    }
    p->t++; /* endfor */
    s = need_block_end(p);
    return s ? s : close_node(p, *out);
}

static sheaf_status parse_set(parser *p, jj_node **out) {
    static const char *const ends[] = {"endset", NULL};
    sheaf_status s = make(p, JJ_N_SET, out);
    p->t++;
    if (s || (s = parse_targets(p, true, *out))) return s;
    if (take_op(p, "=")) {
        if ((s = parse_tuple(p, &(*out)->a)) || (s = need_block_end(p))) return s;
        return close_node(p, *out);
    }
    if (is_op(p, "|") || (*out)->n != 1)
        return refuse(p, SHEAF_E_UNSUPPORTED, "this form of set is not supported", (jj_str){0});
    (*out)->kind = JJ_N_SET_BLOCK;
    if ((s = need_block_end(p)) || (s = parse_block(p, ends, &(*out)->c))) return s;
    p->t++; /* endset */
    s = need_block_end(p);
    return s ? s : close_node(p, *out);
}

static sheaf_status parse_macro(parser *p, jj_node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    sheaf_status s = make(p, JJ_N_MACRO, out);
    p->t++;
    if (s) return s;
    if (p->t->kind != JJ_T_NAME) return expected(p, "the name of a macro");
    (*out)->name = p->t++->str;
    if ((s = need_op(p, "("))) return s;
    while (!take_op(p, ")")) {
        jj_node *parameter;
        if (p->t->kind != JJ_T_NAME) return expected(p, "a parameter");
        if ((s = make(p, JJ_N_KEYWORD, &parameter))) return s;
        parameter->name = p->t++->str;
        if (take_op(p, "=") && (s = parse_expression(p, &parameter->a))) return s;
        if ((s = close_node(p, parameter)) || (s = append(p, *out, parameter))) return s;
        if (!is_op(p, ")") && (s = need_op(p, ","))) return s;
    }
    if ((s = need_block_end(p))) return s;
    int loops = p->loops;
    p->loops = 0; /* a break inside would leave the macro */
    s = parse_block(p, ends, &(*out)->c);
    p->loops = loops;
    if (s) return s;
    p->t++; /* endmacro */
    s = need_block_end(p);
    return s ? s : close_node(p, *out);
}

/* {% generation %}: training marks a reply with it; to us it is its body. */
static sheaf_status parse_generation(parser *p, jj_node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    sheaf_status s;
    p->t++;
    if ((s = need_block_end(p)) || (s = parse_block(p, ends, out))) return s;
    p->t++;
    return need_block_end(p);
}

static sheaf_status parse_jump(parser *p, jj_node_kind kind, jj_node **out) {
    if (!p->loops) return expected(p, "a loop around it");
    sheaf_status s = make(p, kind, out);
    p->t++;
    return s ? s : need_block_end(p);
}

/* JJ_T_BLOCK has been taken; p is at the statement's name. */
static sheaf_status parse_statement(parser *p, jj_node **out) {
    if (is_name(p, "if")) return parse_if(p, out);
    if (is_name(p, "for")) return parse_for(p, out);
    if (is_name(p, "set")) return parse_set(p, out);
    if (is_name(p, "macro")) return parse_macro(p, out);
    if (is_name(p, "generation")) return parse_generation(p, out);
    if (is_name(p, "break")) return parse_jump(p, JJ_N_BREAK, out);
    if (is_name(p, "continue")) return parse_jump(p, JJ_N_CONTINUE, out);
    if (p->t->kind != JJ_T_NAME) return expected(p, "a statement");
    return refuse(p, SHEAF_E_UNSUPPORTED, "statement not supported:", p->t->str);
}

static bool at_end(const parser *p, const char *const *ends) {
    if (p->t->kind != JJ_T_BLOCK || !ends) return false;
    for (; *ends; ends++)
        if (p->t[1].kind == JJ_T_NAME && jj_is(p->t[1].str, *ends)) return true;
    return false;
}

static sheaf_status parse_piece(parser *p, jj_node **out) {
    sheaf_status s;
    if (p->t->kind == JJ_T_DATA) {
        if ((s = make(p, JJ_N_TEXT, out))) return s;
        (*out)->name = p->t++->str;
        return SHEAF_OK;
    }
    if (p->t->kind == JJ_T_BLOCK) {
        p->t++;
        return parse_statement(p, out);
    }
    if ((s = make(p, JJ_N_PRINT, out))) return s;
    p->t++;
    if ((s = parse_tuple(p, &(*out)->a))) return s;
    if (p->t->kind != JJ_T_PRINT_END) return expected(p, "the end of the tag");
    p->t++;
    return close_node(p, *out);
}

/* Statements until one of `ends` (p is then at its name), or the end of the source where NULL. */
static sheaf_status parse_block(parser *p, const char *const *ends, jj_node **out) {
    sheaf_status s = enter(p);
    if (!s) s = make(p, JJ_N_BLOCK, out);
    while (!s && !at_end(p, ends)) {
        jj_node *child;
        if (p->t->kind == JJ_T_END) {
            if (!ends) break;
            return sheaf_fail(SHEAF_E_FORMAT, "chat template line %u: \"%s\" is missing for line %u", p->t->line,
                              ends[0], (*out)->line);
        }
        s = parse_piece(p, &child);
        if (!s) s = append(p, *out, child);
    }
    if (s) return s;
    if (ends) p->t++;
    p->nest--;
    return close_node(p, *out);
}

sheaf_status jj_parse(sheaf_arena *arena, const jj_token *tokens, size_t n, jj_node **out) {
    parser p = {.arena = arena, .t = tokens};
    (void)n; /* the last token is JJ_T_END, which nothing steps over */
    return parse_block(&p, NULL, out);
}
