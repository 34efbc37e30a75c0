/* Tokens to nodes: recursive descent with the precedences of Jinja's own parser, so that "a + b is defined" or "-x|abs"
 * mean what they mean there. What a template may say but is not known here is named with its line. */
#include <string.h>

#include "file/text.h"
#include "text/jinja.h"

typedef struct parser {
    jinja *j;
    const jinja_token *at;
    int depth; /* of nested calls here */
} parser;

static jinja_node *parse_expression(parser *p);
static jinja_node *parse_or(parser *p);
static jinja_node *parse_unary(parser *p, int with_filter);
static jinja_node *parse_tuple(parser *p, int choices);
static jinja_nodes parse_body(parser *p, const char *const *ends);

#define QUOTE(t) (mhla_quote_bytes((t).data, (t).size).text)

/* ---- Nodes and tokens ---- */

static jinja_node *new_node(parser *p, jinja_node_kind kind) {
    jinja_node *n = mhla_jinja_alloc(p->j, sizeof *n);
    *n = (jinja_node){.kind = kind, .line = p->at->line, .depth = 1};
    return n;
}

/* Evaluation recurses as deep as nodes do. */
static jinja_node *above(parser *p, jinja_node *n, const jinja_node *child) {
    if (child && child->depth >= n->depth) n->depth = child->depth + 1;
    if (n->depth > JINJA_NESTING) mhla_jinja_fail(p->j, MHLA_ENOTSUP, "the template is nested too deeply");
    return n;
}

static jinja_node *with_two(parser *p, jinja_node_kind kind, jinja_node *a, jinja_node *b) {
    jinja_node *n = new_node(p, kind);
    n->a = a;
    n->b = b;
    return above(p, above(p, n, a), b);
}

static void add(parser *p, jinja_node *owner, jinja_nodes *list, jinja_node *n) {
    list->item = mhla_jinja_grow(p->j, list->item, list->count, &list->capacity, sizeof(jinja_node *));
    list->item[list->count++] = n;
    if (owner) above(p, owner, n);
}

static void add_body(parser *p, jinja_node *owner, jinja_nodes *list, const char *const *ends) {
    *list = parse_body(p, ends);
    for (size_t i = 0; i < list->count; i++) above(p, owner, list->item[i]);
}

static void add_name(parser *p, jinja_names *list, jinja_text name) {
    list->item = mhla_jinja_grow(p->j, list->item, list->count, &list->capacity, sizeof *list->item);
    list->item[list->count++] = name;
}

static void enter(parser *p) {
    if (++p->depth > JINJA_NESTING) mhla_jinja_fail(p->j, MHLA_ENOTSUP, "the template is nested too deeply");
    p->j->line = p->at->line;
}

static void next(parser *p) {
    if (p->at->kind != TOKEN_END) p->at++;
    p->j->line = p->at->line;
}

static int is_op(const parser *p, const char *op) {
    return p->at->kind == TOKEN_OPERATOR && mhla_jinja_is(p->at->text, op);
}
static int is_word(const parser *p, const char *w) {
    return p->at->kind == TOKEN_NAME && mhla_jinja_is(p->at->text, w);
}

static int take_op(parser *p, const char *op) {
    const int found = is_op(p, op);
    if (found) next(p);
    return found;
}
static int take_word(parser *p, const char *word) {
    const int found = is_word(p, word);
    if (found) next(p);
    return found;
}
static void need_op(parser *p, const char *op) {
    if (!take_op(p, op)) mhla_jinja_fail(p->j, MHLA_EDATA, "expected \"%s\" before %s", op, QUOTE(p->at->text));
}
static void need_kind(parser *p, jinja_token_kind kind, const char *what) {
    if (p->at->kind != kind) mhla_jinja_fail(p->j, MHLA_EDATA, "expected %s before %s", what, QUOTE(p->at->text));
    next(p);
}
static jinja_text need_name(parser *p) {
    const jinja_text name = p->at->text;
    need_kind(p, TOKEN_NAME, "a name");
    return name;
}

/* ---- Expressions ---- */

static jinja_node *constant(parser *p, jinja_value v) {
    jinja_node *n = new_node(p, NODE_CONST);
    n->value = v;
    next(p);
    return n;
}

static jinja_node *parse_list(parser *p) {
    jinja_node *n = new_node(p, NODE_LIST);
    next(p);
    while (!is_op(p, "]")) {
        if (n->list.count > 0) need_op(p, ",");
        if (is_op(p, "]")) break;
        add(p, n, &n->list, parse_expression(p));
    }
    next(p);
    return n;
}

static jinja_node *parse_dict(parser *p) {
    jinja_node *n = new_node(p, NODE_DICT);
    next(p);
    while (!is_op(p, "}")) {
        if (n->list.count > 0) need_op(p, ",");
        if (is_op(p, "}")) break;
        add(p, n, &n->list, parse_expression(p));
        need_op(p, ":");
        add(p, n, &n->list, parse_expression(p));
    }
    next(p);
    return n;
}

static jinja_node *parse_primary(parser *p) {
    const jinja_token *t = p->at;
    if (t->kind == TOKEN_NAME) {
        if (is_word(p, "true") || is_word(p, "True")) return constant(p, mhla_jinja_bool(1));
        if (is_word(p, "false") || is_word(p, "False")) return constant(p, mhla_jinja_bool(0));
        if (is_word(p, "none") || is_word(p, "None")) return constant(p, (jinja_value){.kind = JINJA_NONE});
        jinja_node *n = new_node(p, NODE_NAME);
        n->text = t->text;
        next(p);
        return n;
    }
    if (t->kind == TOKEN_STRING) {
        if (p->at[1].kind != TOKEN_STRING) return constant(p, mhla_jinja_text(t->text));
        jinja_buffer b = {0}; /* neighbours are one */
        jinja_node *n = new_node(p, NODE_CONST);
        for (; p->at->kind == TOKEN_STRING; next(p)) mhla_jinja_add(p->j, &b, p->at->text.data, p->at->text.size);
        n->value = mhla_jinja_text((jinja_text){b.data, b.count});
        return n;
    }
    if (t->kind == TOKEN_INT || t->kind == TOKEN_REAL) return constant(p, t->value);
    if (take_op(p, "(")) {
        jinja_node *n;
        if (is_op(p, ")"))
            n = new_node(p, NODE_TUPLE);
        else
            n = parse_tuple(p, 1);
        need_op(p, ")");
        return n;
    }
    if (is_op(p, "[")) return parse_list(p);
    if (is_op(p, "{")) return parse_dict(p);
    mhla_jinja_fail(p->j, MHLA_EDATA, "unexpected %s", QUOTE(t->text));
}

/* "(a, b, c=d)" into the list and names of a call, filter or test. */
static void parse_arguments(parser *p, jinja_node *n) {
    const size_t before = n->list.count;
    need_op(p, "(");
    while (!is_op(p, ")")) {
        if (n->list.count > before) need_op(p, ",");
        if (is_op(p, ")")) break;
        if (is_op(p, "*") || is_op(p, "**"))
            mhla_jinja_fail(p->j, MHLA_ENOTSUP, "arguments by %.*s are not supported", (int)p->at->text.size,
                            p->at->text.data);
        if (p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_OPERATOR && mhla_jinja_is(p->at[1].text, "=")) {
            add_name(p, &n->names, p->at->text);
            next(p);
            next(p);
        } else if (n->names.count > 0) {
            mhla_jinja_fail(p->j, MHLA_EDATA, "an argument without a name stands after one with a name");
        }
        add(p, n, &n->list, parse_expression(p));
    }
    next(p);
}

/* What stands in [ ]. */
static jinja_node *parse_subscript(parser *p, jinja_node *a) {
    jinja_node *part[3] = {NULL, NULL, NULL};
    int parts = 0, slice = 0;
    for (; parts < 3; parts++) {
        if (!is_op(p, ":") && !is_op(p, "]")) part[parts] = parse_expression(p);
        if (!take_op(p, ":")) break;
        slice = 1;
    }
    if (!slice && is_op(p, ",")) mhla_jinja_fail(p->j, MHLA_ENOTSUP, "several subscripts in one are not supported");
    if (!slice && part[0] == NULL) mhla_jinja_fail(p->j, MHLA_EDATA, "[] lacks what it asks for");
    need_op(p, "]");
    if (!slice) return with_two(p, NODE_ITEM, a, part[0]);
    jinja_node *n = with_two(p, NODE_SLICE, a, NULL);
    for (int i = 0; i < 3; i++) add(p, n, &n->list, part[i]);
    return n;
}

static jinja_node *parse_call(parser *p, jinja_node *a) {
    jinja_node *n = with_two(p, NODE_CALL, a, NULL);
    parse_arguments(p, n);
    return n;
}

static jinja_node *parse_postfix(parser *p, jinja_node *n) {
    for (;;) {
        if (take_op(p, ".")) {
            if (p->at->kind == TOKEN_INT) {
                n = with_two(p, NODE_ITEM, n, constant(p, p->at->value));
                continue;
            }
            n = with_two(p, NODE_ATTRIBUTE, n, NULL);
            n->text = need_name(p);
        } else if (take_op(p, "[")) {
            n = parse_subscript(p, n);
        } else if (is_op(p, "(")) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

static jinja_node *parse_filter(parser *p, jinja_node *a) {
    jinja_node *n = with_two(p, NODE_FILTER, a, NULL);
    n->text = need_name(p);
    if (is_op(p, "(")) parse_arguments(p, n);
    return n;
}

static jinja_node *parse_test(parser *p, jinja_node *a) {
    const int negated = take_word(p, "not");
    jinja_node *n = with_two(p, NODE_TEST, a, NULL);
    n->text = need_name(p);
    const jinja_token_kind k = p->at->kind;
    if (is_op(p, "(")) {
        parse_arguments(p, n);
    } else if (k == TOKEN_STRING || k == TOKEN_INT || k == TOKEN_REAL || is_op(p, "[") || is_op(p, "{") ||
               (k == TOKEN_NAME && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") &&
                !is_word(p, "if") && !is_word(p, "is") && !is_word(p, "not") && !is_word(p, "in"))) {
        add(p, n, &n->list, parse_postfix(p, parse_primary(p)));
    }
    return negated ? with_two(p, NODE_NOT, n, NULL) : n;
}

static jinja_node *parse_unary(parser *p, int with_filter) {
    jinja_node *n;
    enter(p);
    if (take_op(p, "-"))
        n = with_two(p, NODE_NEGATIVE, parse_unary(p, 0), NULL);
    else if (take_op(p, "+"))
        n = with_two(p, NODE_POSITIVE, parse_unary(p, 0), NULL);
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    while (with_filter) {
        if (take_op(p, "|"))
            n = parse_filter(p, n);
        else if (take_word(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

/* Operators of equal rank, from the left. Ranks from the loosest: + -, ~, * / // %, **. */
static jinja_node *parse_binary(parser *p, int rank) {
    static const struct {
        const char *text;
        jinja_op op;
        int rank;
    } table[] = {{"+", OP_ADD, 0}, {"-", OP_SUB, 0},       {"~", OP_CONCAT, 1}, {"*", OP_MUL, 2},
                 {"/", OP_DIV, 2}, {"//", OP_FLOORDIV, 2}, {"%", OP_MOD, 2},    {"**", OP_POW, 3}};
    if (rank == 4) return parse_unary(p, 1);
    jinja_node *n = parse_binary(p, rank + 1);
    for (size_t i = 0; i < sizeof table / sizeof *table;) {
        if (table[i].rank != rank || !take_op(p, table[i].text)) {
            i++;
            continue;
        }
        n = with_two(p, NODE_BINARY, n, parse_binary(p, rank + 1));
        n->op = table[i].op;
        i = 0;
    }
    return n;
}

static jinja_op take_comparison(parser *p) {
    static const struct {
        const char *text;
        jinja_op op;
    } table[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE}, {">=", OP_GE}, {"<", OP_LT}, {">", OP_GT}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (take_op(p, table[i].text)) return table[i].op;
    if (take_word(p, "in")) return OP_IN;
    if (is_word(p, "not") && p->at[1].kind == TOKEN_NAME && mhla_jinja_is(p->at[1].text, "in")) {
        next(p);
        next(p);
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static jinja_node *parse_compare(parser *p) {
    jinja_node *first = parse_binary(p, 0), *n = NULL;
    size_t capacity = 0;
    for (jinja_op op; (op = take_comparison(p)) != OP_NONE;) {
        if (n == NULL) n = with_two(p, NODE_COMPARE, first, NULL);
        n->ops = mhla_jinja_grow(p->j, n->ops, n->list.count, &capacity, sizeof *n->ops);
        n->ops[n->list.count] = op;
        add(p, n, &n->list, parse_binary(p, 0));
    }
    return n ? n : first;
}

static jinja_node *parse_not(parser *p) {
    enter(p);
    jinja_node *n = take_word(p, "not") ? with_two(p, NODE_NOT, parse_not(p), NULL) : parse_compare(p);
    p->depth--;
    return n;
}

static jinja_node *parse_and(parser *p) {
    jinja_node *n = parse_not(p);
    while (take_word(p, "and")) n = with_two(p, NODE_AND, n, parse_not(p));
    return n;
}

static jinja_node *parse_or(parser *p) {
    jinja_node *n = parse_and(p);
    while (take_word(p, "or")) n = with_two(p, NODE_OR, n, parse_and(p));
    return n;
}

static jinja_node *parse_expression(parser *p) {
    enter(p);
    jinja_node *n = parse_or(p);
    while (take_word(p, "if")) {
        n = with_two(p, NODE_CHOICE, n, parse_or(p));
        if (take_word(p, "else")) {
            n->c = parse_expression(p);
            above(p, n, n->c);
        }
    }
    p->depth--;
    return n;
}

/* One expression, or several with commas between. choices: "a if b" is one. */
static jinja_node *parse_tuple(parser *p, int choices) {
    jinja_node *first = choices ? parse_expression(p) : parse_or(p), *n = NULL;
    while (take_op(p, ",")) {
        if (n == NULL) {
            n = new_node(p, NODE_TUPLE);
            add(p, n, &n->list, first);
        }
        if (is_op(p, ")") || p->at->kind == TOKEN_BLOCK_END || p->at->kind == TOKEN_PRINT_END) break;
        add(p, n, &n->list, choices ? parse_expression(p) : parse_or(p));
    }
    return n ? n : first;
}

/* ---- Statements ---- */

static void end_block(parser *p) { need_kind(p, TOKEN_BLOCK_END, "the end of the tag"); }

/* The word of {% word ..., if it is one of `ends`. */
static int is_end(const parser *p, const char *const *ends) {
    if (p->at->kind != TOKEN_BLOCK_BEGIN || p->at[1].kind != TOKEN_NAME) return 0;
    for (int i = 0; ends[i]; i++)
        if (mhla_jinja_is(p->at[1].text, ends[i])) return 1;
    return 0;
}

/* {% end %}, at which parse_body stopped. */
static void close_block(parser *p) {
    next(p);
    next(p);
    end_block(p);
}

static jinja_node *parse_if(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    jinja_node *first = NULL, *n = NULL;
    do {
        jinja_node *branch = new_node(p, NODE_IF);
        branch->a = parse_tuple(p, 0);
        above(p, branch, branch->a);
        end_block(p);
        add_body(p, branch, &branch->body, ends);
        if (n)
            add(p, NULL, &n->other, branch);
        else
            first = branch;
        above(p, first, branch == first ? NULL : branch);
        n = branch;
        next(p);
    } while (take_word(p, "elif"));
    if (take_word(p, "else")) {
        end_block(p);
        add_body(p, first, &n->other, last);
        next(p);
    }
    next(p); /* endif */
    end_block(p);
    return first;
}

static jinja_node *parse_for(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    jinja_node *n = new_node(p, NODE_FOR);
    const int bracket = take_op(p, "(");
    do add_name(p, &n->names, need_name(p));
    while (take_op(p, ",") && !is_word(p, "in"));
    if (bracket) need_op(p, ")");
    if (!take_word(p, "in")) mhla_jinja_fail(p->j, MHLA_EDATA, "expected \"in\" before %s", QUOTE(p->at->text));
    n->a = parse_tuple(p, 0);
    above(p, n, n->a);
    if (take_word(p, "if")) {
        n->b = parse_expression(p);
        above(p, n, n->b);
    }
    if (is_word(p, "recursive")) mhla_jinja_fail(p->j, MHLA_ENOTSUP, "recursive loops are not supported");
    end_block(p);
    add_body(p, n, &n->body, ends);
    if (mhla_jinja_is(p->at[1].text, "else")) {
        close_block(p);
        add_body(p, n, &n->other, last);
    }
    close_block(p);
    return n;
}

/* Filters over what a block has captured: "| trim | upper". */
static jinja_node *parse_captured(parser *p) {
    jinja_node *n = new_node(p, NODE_CAPTURED);
    while (take_op(p, "|")) n = parse_filter(p, n);
    return n;
}

static jinja_node *parse_set(parser *p) {
    static const char *const last[] = {"endset", NULL};
    jinja_node *n = new_node(p, NODE_SET);
    do add_name(p, &n->names, need_name(p));
    while (take_op(p, ","));
    if (n->names.count == 1 && take_op(p, ".")) n->text = need_name(p);
    if (take_op(p, "=")) {
        n->a = parse_tuple(p, 1);
        above(p, n, n->a);
        end_block(p);
        return n;
    }
    if (n->names.count > 1 || n->text.size > 0)
        mhla_jinja_fail(p->j, MHLA_EDATA, "expected \"=\" before %s", QUOTE(p->at->text));
    n->kind = NODE_CAPTURE;
    n->a = parse_captured(p);
    above(p, n, n->a);
    end_block(p);
    add_body(p, n, &n->body, last);
    close_block(p);
    return n;
}

static jinja_node *parse_macro(parser *p) {
    static const char *const last[] = {"endmacro", NULL};
    jinja_node *n = new_node(p, NODE_MACRO);
    n->text = need_name(p);
    need_op(p, "(");
    while (!is_op(p, ")")) {
        if (n->names.count > 0) need_op(p, ",");
        if (is_op(p, ")")) break;
        add_name(p, &n->names, need_name(p));
        if (take_op(p, "="))
            add(p, n, &n->list, parse_expression(p));
        else if (n->list.count > 0)
            mhla_jinja_fail(p->j, MHLA_EDATA, "a parameter without a default stands after one with a default");
    }
    next(p);
    end_block(p);
    add_body(p, n, &n->body, last);
    close_block(p);
    return n;
}

static jinja_node *parse_with(parser *p) {
    static const char *const last[] = {"endwith", NULL};
    jinja_node *n = new_node(p, NODE_WITH);
    while (p->at->kind != TOKEN_BLOCK_END) {
        if (n->names.count > 0) need_op(p, ",");
        add_name(p, &n->names, need_name(p));
        need_op(p, "=");
        add(p, n, &n->list, parse_expression(p));
    }
    end_block(p);
    add_body(p, n, &n->body, last);
    close_block(p);
    return n;
}

static jinja_node *parse_filtered(parser *p) {
    static const char *const last[] = {"endfilter", NULL};
    jinja_node *n = new_node(p, NODE_FILTERED);
    n->a = parse_filter(p, new_node(p, NODE_CAPTURED));
    while (take_op(p, "|")) n->a = parse_filter(p, n->a);
    above(p, n, n->a);
    end_block(p);
    add_body(p, n, &n->body, last);
    close_block(p);
    return n;
}

static jinja_node *parse_generation(parser *p) { /* transformers' mark of what the assistant says: no change of text */
    static const char *const last[] = {"endgeneration", NULL};
    jinja_node *n = new_node(p, NODE_SCOPE);
    end_block(p);
    add_body(p, n, &n->body, last);
    close_block(p);
    return n;
}

static jinja_node *parse_jump(parser *p, jinja_node_kind kind) {
    jinja_node *n = new_node(p, kind);
    end_block(p);
    return n;
}
static jinja_node *parse_break(parser *p) { return parse_jump(p, NODE_BREAK); }
static jinja_node *parse_continue(parser *p) { return parse_jump(p, NODE_CONTINUE); }

static jinja_node *parse_statement(parser *p) {
    static const struct {
        const char *word;
        jinja_node *(*parse)(parser *p);
    } table[] = {{"if", parse_if},       {"for", parse_for},           {"set", parse_set},
                 {"macro", parse_macro}, {"with", parse_with},         {"filter", parse_filtered},
                 {"break", parse_break}, {"continue", parse_continue}, {"generation", parse_generation}};
    static const char *const misplaced[] = {"else",     "elif",    "endif",     "endfor",        "endset",
                                            "endmacro", "endwith", "endfilter", "endgeneration", NULL};
    const jinja_text word = need_name(p);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mhla_jinja_is(word, table[i].word)) return table[i].parse(p);
    for (int i = 0; misplaced[i]; i++)
        if (mhla_jinja_is(word, misplaced[i])) mhla_jinja_fail(p->j, MHLA_EDATA, "unexpected %s", QUOTE(word));
    mhla_jinja_fail(p->j, MHLA_ENOTSUP, "the statement %s is not supported", QUOTE(word));
}

static jinja_nodes parse_body(parser *p, const char *const *ends) {
    jinja_nodes body = {0};
    const int line = ends[0] ? p->at[-1].line : 1;
    enter(p);
    while (!is_end(p, ends)) {
        jinja_node *n = NULL;
        switch (p->at->kind) {
        case TOKEN_DATA:
            n = new_node(p, NODE_DATA);
            n->text = p->at->text;
            next(p);
            break;
        case TOKEN_PRINT_BEGIN:
            next(p);
            n = with_two(p, NODE_PRINT, parse_tuple(p, 1), NULL);
            need_kind(p, TOKEN_PRINT_END, "}}");
            break;
        case TOKEN_BLOCK_BEGIN:
            next(p);
            n = parse_statement(p);
            break;
        default:
            if (ends[0] == NULL && p->at->kind == TOKEN_END) {
                p->depth--;
                return body;
            }
            if (p->at->kind == TOKEN_END)
                for (int i = 0;; i++)
                    if (ends[i + 1] == NULL)
                        mhla_jinja_fail(p->j, MHLA_EDATA, "%s of line %d is missing", ends[i], line);
            mhla_jinja_fail(p->j, MHLA_EDATA, "unexpected %s", QUOTE(p->at->text));
        }
        add(p, NULL, &body, n);
    }
    p->depth--;
    return body;
}

jinja_nodes mhla_jinja_parse(jinja *j, const jinja_tokens *tokens) {
    static const char *const none[] = {NULL};
    parser p = {.j = j, .at = tokens->item};
    return parse_body(&p, none);
}
