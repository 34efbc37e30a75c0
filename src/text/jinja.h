/* The part of Jinja that chat templates are written in: source -> tokens -> nodes -> text, with Python's rules for values.
 *
 * Everything a rendering makes lies in one arena and is given back at its end; a failure anywhere leaves through
 * mhla_jinja_fail, which jumps to the entry, so that nothing in between has to look for it. Templates come with models
 * from strangers: memory, nesting, output and work are bounded, and nothing outside the conversation can be reached. */
#ifndef MHLA_TEXT_JINJA_H
#define MHLA_TEXT_JINJA_H

#include <mhla/lm.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    JINJA_MEMORY = 64 << 20, /* bytes of the arena */
    JINJA_OUTPUT = 16 << 20, /* bytes of text */
    JINJA_NESTING = 200,     /* of nodes, of values, of calls */
    JINJA_WORK = 64 << 20    /* bytes looked at, a node counting as 64 */
};

/* ---- Values ---- */

typedef enum jinja_kind {
    JINJA_UNDEFINED, /* text: what is not defined */
    JINJA_NONE,
    JINJA_BOOL, /* i */
    JINJA_INT,
    JINJA_REAL,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_TUPLE, /* list */
    JINJA_DICT,
    JINJA_SPACE, /* dict: a namespace, the only thing that templates may change */
    JINJA_LOOP,
    JINJA_CALL
} jinja_kind;

typedef struct jinja_text {
    const char *data;
    size_t size;
} jinja_text;

typedef struct jinja_value {
    jinja_kind kind;
    union {
        int64_t i;
        double real;
        jinja_text text;
        struct jinja_list *list;
        struct jinja_dict *dict;
        struct jinja_loop *loop;
        struct jinja_callee *callee;
    };
} jinja_value;

typedef struct jinja_list {
    jinja_value *item;
    size_t count, capacity;
} jinja_list;

typedef struct jinja_dict {
    jinja_value *key, *item;
    size_t count, capacity;
} jinja_dict;

typedef struct jinja_loop {
    const jinja_list *items;
    size_t index; /* from 0 */
    int depth;
    jinja_value changed; /* the last argument of loop.changed() */
} jinja_loop;

/* ---- Nodes ---- */

typedef enum jinja_node_kind {
    /* statements */
    NODE_DATA,
    NODE_PRINT,    /* a */
    NODE_IF,       /* a, body, other: the else branch, an elif being one NODE_IF in it */
    NODE_FOR,      /* names, a: items, b: condition or NULL, body, other */
    NODE_SET,      /* names, a; or names[0].attribute by `text` */
    NODE_CAPTURE,  /* {% set x %}..{% endset %}: names[0], body, a: filters over the captured text or NULL */
    NODE_FILTERED, /* {% filter f %}..: body, a */
    NODE_MACRO,    /* text: its name, names, list: defaults of the last of them, body */
    NODE_WITH,     /* names, list: values, body */
    NODE_SCOPE,    /* body alone ({% generation %}) */
    NODE_BREAK,
    NODE_CONTINUE,
    /* expressions */
    NODE_CONST,     /* value */
    NODE_NAME,      /* text */
    NODE_CAPTURED,  /* the text that a filter block has captured */
    NODE_LIST,      /* list */
    NODE_TUPLE,     /* list */
    NODE_DICT,      /* list: key, value, key, value .. */
    NODE_ATTRIBUTE, /* a . text */
    NODE_ITEM,      /* a [ b ] */
    NODE_SLICE,     /* a [ list[0] : list[1] : list[2] ], NULL for what is left out */
    NODE_CALL,      /* a ( list, names = list ) */
    NODE_FILTER,    /* a | text ( .. ) */
    NODE_TEST,      /* a is text .. */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_POSITIVE,
    NODE_AND,
    NODE_OR,
    NODE_CHOICE,  /* a if b else c, c may be NULL */
    NODE_COMPARE, /* a, then list with operators in `ops` */
    NODE_BINARY   /* a op b */
} jinja_node_kind;

typedef enum jinja_op {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} jinja_op;

typedef struct jinja_node jinja_node;
typedef struct jinja_nodes {
    jinja_node **item;
    size_t count, capacity;
} jinja_nodes;
typedef struct jinja_names {
    jinja_text *item;
    size_t count, capacity;
} jinja_names;

struct jinja_node {
    jinja_node_kind kind;
    int line, depth; /* depth: levels of nodes below and with this one */
    jinja_op op;
    jinja_text text;
    jinja_value value;
    jinja_node *a, *b, *c;
    jinja_nodes list, body, other;
    jinja_names names; /* of a call: the last names.count of list are keyword arguments */
    jinja_op *ops;
};

/* ---- Tokens ---- */

typedef enum jinja_token_kind {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_REAL,
    TOKEN_OPERATOR
} jinja_token_kind;

typedef struct jinja_token {
    jinja_token_kind kind;
    int line;
    jinja_text text; /* unescaped for strings */
    jinja_value value;
} jinja_token;

typedef struct jinja_tokens {
    jinja_token *item;
    size_t count, capacity;
} jinja_tokens;

/* ---- One rendering ---- */

typedef struct jinja {
    jmp_buf entry;
    mhla_status status;
    struct jinja_chunk *chunks;
    size_t used, work;
    int line;  /* of what is being read or evaluated, for messages */
    int depth; /* of evaluation */
    mhla_chars *out;
} jinja;

typedef struct jinja_arguments {
    jinja_value *item; /* [count] by position, then [named] by name */
    size_t count, named;
    const jinja_text *name;
} jinja_arguments;

typedef jinja_value (*jinja_function)(jinja *j, jinja_value self, const jinja_arguments *a);

typedef struct jinja_callee {
    jinja_function function; /* NULL: a macro */
    jinja_value self;
    const jinja_node *macro;
    struct jinja_scope *scope; /* where the macro was defined */
} jinja_callee;

/* Keeps "line N: ..." as the message and leaves. */
void mhla_jinja_fail(jinja *j, mhla_status status, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void *mhla_jinja_alloc(jinja *j, size_t bytes);
/* Room for one more in a list of `size`-byte items. */
void *mhla_jinja_grow(jinja *j, void *items, size_t count, size_t *capacity, size_t size);
void mhla_jinja_work(jinja *j, size_t bytes);
void mhla_jinja_release(jinja *j);

/* jinja_lex.c, jinja_parse.c, jinja_run.c */
jinja_tokens mhla_jinja_lex(jinja *j, const char *source, size_t size);
jinja_nodes mhla_jinja_parse(jinja *j, const jinja_tokens *tokens);
void mhla_jinja_run(jinja *j, const jinja_nodes *nodes, const jinja_dict *variables);

/* jinja_value.c */
#define JINJA_LITERAL(s) ((jinja_text){(s), sizeof(s) - 1})
jinja_value mhla_jinja_undefined(jinja_text what);
jinja_value mhla_jinja_bool(int truth);
jinja_value mhla_jinja_int(int64_t i);
jinja_value mhla_jinja_text(jinja_text text);
jinja_value mhla_jinja_copy(jinja *j, const char *data, size_t size);
jinja_value mhla_jinja_list(jinja *j);
jinja_value mhla_jinja_dict(jinja *j);
void mhla_jinja_append(jinja *j, jinja_list *list, jinja_value item);
void mhla_jinja_put(jinja *j, jinja_dict *dict, jinja_value key, jinja_value item);
const jinja_value *mhla_jinja_find(jinja *j, const jinja_dict *dict, jinja_value key);
int mhla_jinja_same_text(jinja_text a, jinja_text b);
int mhla_jinja_is(jinja_text a, const char *b);
int mhla_jinja_true(jinja_value v);
int mhla_jinja_equal(jinja *j, jinja_value a, jinja_value b);
int mhla_jinja_compare(jinja *j, jinja_value a, jinja_value b); /* fails where there is no order */
int mhla_jinja_in(jinja *j, jinja_value item, jinja_value container);
const char *mhla_jinja_kind_text(jinja_value v);
/* What a loop goes over: items, keys, characters. */
const jinja_list *mhla_jinja_items(jinja *j, jinja_value v);
/* str(v), and JSON; indent < 0: one line. */
jinja_text mhla_jinja_string(jinja *j, jinja_value v);
jinja_text mhla_jinja_json(jinja *j, jinja_value v, int indent, int sort);
/* Characters of UTF-8: how many, where number n begins, white space at an end. */
size_t mhla_jinja_length(jinja_text t);
size_t mhla_jinja_offset(jinja_text t, size_t n);
jinja_text mhla_jinja_strip(jinja_text t, const jinja_text *chars, int left, int right);
jinja_value mhla_jinja_index(jinja *j, jinja_value v, jinja_value at);
jinja_value mhla_jinja_slice(jinja *j, jinja_value v, const jinja_value range[3]);
jinja_value mhla_jinja_binary(jinja *j, jinja_op op, jinja_value a, jinja_value b);

/* A buffer of text under construction. */
typedef struct jinja_buffer {
    char *data;
    size_t count, capacity;
} jinja_buffer;
void mhla_jinja_add(jinja *j, jinja_buffer *b, const char *data, size_t size);

/* jinja_filters.c, jinja_methods.c: NULL where there is none of that name. */
jinja_function mhla_jinja_filter(jinja_text name);
jinja_function mhla_jinja_test(jinja_text name);
jinja_function mhla_jinja_method(jinja_kind kind, jinja_text name);
jinja_function mhla_jinja_global(jinja_text name);
/* Argument `at` by position or by name; `otherwise` where it is not given. Fails if it is given and of another kind,
 * unless kind is JINJA_UNDEFINED. */
jinja_value mhla_jinja_argument(jinja *j, const jinja_arguments *a, size_t at, const char *name, jinja_kind kind,
                                jinja_value otherwise);
/* v.name as templates see it; undefined where there is none. */
jinja_value mhla_jinja_attribute(jinja *j, jinja_value v, jinja_text name);
/* "a.b" or a number: what map(attribute=..) and the like take. */
jinja_value mhla_jinja_path(jinja *j, jinja_value v, jinja_value path);

#endif
