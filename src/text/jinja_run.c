/* Nodes to text. A scope is a dictionary and the scope around it; {% set %} writes to the innermost, so that what a loop
 * sets is gone with its turn, as in Jinja; only namespaces carry values out. */
#include <string.h>

#include "core/status.h"
#include "file/lists.h"
#include "file/text.h"
#include "text/jinja.h"

typedef struct jinja_scope {
    jinja_dict *names;
    struct jinja_scope *around;
} scope;

typedef enum jump { JUMP_NONE, JUMP_BREAK, JUMP_CONTINUE } jump;

typedef struct run {
    jinja *j;
    jinja_buffer *capture; /* where text goes; NULL: to the result */
    jinja_text captured;   /* of the filter block at hand */
    int loops;
} run;

static jinja_value evaluate(run *r, scope *s, const jinja_node *n);
static jump execute(run *r, scope *s, const jinja_nodes *nodes);

#define QUOTE(t) (mhla_quote_bytes((t).data, (t).size).text)

static void enter(jinja *j, int line) {
    j->line = line;
    mhla_jinja_work(j, 64);
    if (++j->depth > 2 * JINJA_NESTING) mhla_jinja_fail(j, MHLA_ERANGE, "calls are nested too deeply");
}

static void emit(run *r, jinja_text t) {
    if (r->capture) {
        mhla_jinja_add(r->j, r->capture, t.data, t.size);
        return;
    }
    mhla_chars *out = r->j->out;
    mhla_jinja_work(r->j, t.size);
    if (t.size > JINJA_OUTPUT || out->count > JINJA_OUTPUT - t.size)
        mhla_jinja_fail(r->j, MHLA_ERANGE, "the template writes more than %d MiB", JINJA_OUTPUT >> 20);
    if (mhla_chars_append(out, t.data, t.size) != MHLA_OK)
        mhla_jinja_fail(r->j, MHLA_ENOMEM, "no memory for the text of a chat template");
}

/* ---- Scopes ---- */

static scope new_scope(jinja *j, scope *around) { return (scope){mhla_jinja_dict(j).dict, around}; }

static void define(run *r, scope *s, jinja_text name, jinja_value v) {
    mhla_jinja_put(r->j, s->names, mhla_jinja_text(name), v);
}

static jinja_value callee(jinja *j, jinja_function function, jinja_value self) {
    jinja_callee *c = mhla_jinja_alloc(j, sizeof *c);
    *c = (jinja_callee){.function = function, .self = self};
    return (jinja_value){.kind = JINJA_CALL, .callee = c};
}

static jinja_value look_up(run *r, const scope *s, jinja_text name) {
    for (; s; s = s->around) {
        const jinja_value *found = mhla_jinja_find(r->j, s->names, mhla_jinja_text(name));
        if (found) return *found;
    }
    const jinja_function global = mhla_jinja_global(name);
    return global ? callee(r->j, global, (jinja_value){.kind = JINJA_NONE}) : mhla_jinja_undefined(name);
}

/* One name for one value, or several for the items of one. */
static void unpack(run *r, scope *s, const jinja_names *names, jinja_value v) {
    if (names->count == 1) {
        define(r, s, names->item[0], v);
        return;
    }
    const jinja_list *items = mhla_jinja_items(r->j, v);
    if (items->count != names->count)
        mhla_jinja_fail(r->j, MHLA_EDATA, "%zu values for %zu names", items->count, names->count);
    for (size_t i = 0; i < names->count; i++) define(r, s, names->item[i], items->item[i]);
}

/* ---- Expressions ---- */

jinja_value mhla_jinja_attribute(jinja *j, jinja_value v, jinja_text name) {
    if (v.kind == JINJA_UNDEFINED)
        mhla_jinja_fail(j, MHLA_EDATA, "%s is undefined and has no %s", QUOTE(v.text), QUOTE(name));
    const jinja_function method = mhla_jinja_method(v.kind, name);
    if (method) return callee(j, method, v);
    if (v.kind == JINJA_DICT || v.kind == JINJA_SPACE) {
        const jinja_value *found = mhla_jinja_find(j, v.dict, mhla_jinja_text(name));
        if (found) return *found;
    }
    if (v.kind == JINJA_LOOP) {
        const jinja_loop *l = v.loop;
        const size_t count = l->items->count;
        if (mhla_jinja_is(name, "index")) return mhla_jinja_int((int64_t)l->index + 1);
        if (mhla_jinja_is(name, "index0")) return mhla_jinja_int((int64_t)l->index);
        if (mhla_jinja_is(name, "revindex")) return mhla_jinja_int((int64_t)(count - l->index));
        if (mhla_jinja_is(name, "revindex0")) return mhla_jinja_int((int64_t)(count - l->index) - 1);
        if (mhla_jinja_is(name, "first")) return mhla_jinja_bool(l->index == 0);
        if (mhla_jinja_is(name, "last")) return mhla_jinja_bool(l->index + 1 == count);
        if (mhla_jinja_is(name, "length")) return mhla_jinja_int((int64_t)count);
        if (mhla_jinja_is(name, "depth")) return mhla_jinja_int(l->depth);
        if (mhla_jinja_is(name, "depth0")) return mhla_jinja_int(l->depth - 1);
        if (mhla_jinja_is(name, "previtem") && l->index > 0) return l->items->item[l->index - 1];
        if (mhla_jinja_is(name, "nextitem") && l->index + 1 < count) return l->items->item[l->index + 1];
    }
    return mhla_jinja_undefined(name);
}

static jinja_arguments arguments(run *r, scope *s, const jinja_node *n) {
    jinja_arguments a = {.count = n->list.count - n->names.count, .named = n->names.count, .name = n->names.item};
    a.item = mhla_jinja_alloc(r->j, (n->list.count + 1) * sizeof *a.item);
    for (size_t i = 0; i < n->list.count; i++) a.item[i] = evaluate(r, s, n->list.item[i]);
    r->j->line = n->line;
    return a;
}

static jinja_value call_macro(run *r, const jinja_callee *c, const jinja_arguments *a) {
    const jinja_node *m = c->macro;
    const size_t count = m->names.count, without = count - m->list.count;
    if (a->count > count)
        mhla_jinja_fail(r->j, MHLA_EDATA, "the macro %s takes %zu arguments, not %zu", QUOTE(m->text), count, a->count);
    for (size_t k = 0; k < a->named; k++) {
        size_t i = 0;
        while (i < count && !mhla_jinja_same_text(m->names.item[i], a->name[k])) i++;
        if (i == count)
            mhla_jinja_fail(r->j, MHLA_EDATA, "the macro %s has no argument %s", QUOTE(m->text), QUOTE(a->name[k]));
    }
    scope inner = new_scope(r->j, c->scope);
    for (size_t i = 0; i < count; i++) {
        jinja_value v = mhla_jinja_undefined(m->names.item[i]);
        int given = i < a->count;
        if (given) v = a->item[i];
        for (size_t k = 0; k < a->named; k++)
            if (mhla_jinja_same_text(m->names.item[i], a->name[k])) {
                v = a->item[a->count + k];
                given = 1;
            }
        if (!given && i >= without) v = evaluate(r, &inner, m->list.item[i - without]);
        define(r, &inner, m->names.item[i], v);
    }
    jinja_buffer text = {0}, *outer = r->capture;
    const int loops = r->loops;
    r->capture = &text;
    r->loops = 0;
    execute(r, &inner, &m->body);
    r->capture = outer;
    r->loops = loops;
    return mhla_jinja_text((jinja_text){text.data, text.count});
}

static jinja_value call(run *r, scope *s, const jinja_node *n) {
    const jinja_value f = evaluate(r, s, n->a);
    const jinja_arguments a = arguments(r, s, n);
    if (f.kind == JINJA_UNDEFINED) {
        if (n->a->kind == NODE_ATTRIBUTE)
            mhla_jinja_fail(r->j, MHLA_ENOTSUP, "there is no method %s", QUOTE(n->a->text));
        mhla_jinja_fail(r->j, MHLA_ENOTSUP, "there is no function %s", QUOTE(f.text));
    }
    if (f.kind != JINJA_CALL) mhla_jinja_fail(r->j, MHLA_EDATA, "%s is called", mhla_jinja_kind_text(f));
    return f.callee->function ? f.callee->function(r->j, f.callee->self, &a) : call_macro(r, f.callee, &a);
}

static int compares(run *r, jinja_op op, jinja_value a, jinja_value b) {
    switch (op) {
    case OP_EQ: return mhla_jinja_equal(r->j, a, b);
    case OP_NE: return !mhla_jinja_equal(r->j, a, b);
    case OP_IN: return mhla_jinja_in(r->j, a, b);
    case OP_NOT_IN: return !mhla_jinja_in(r->j, a, b);
    case OP_LT: return mhla_jinja_compare(r->j, a, b) < 0;
    case OP_LE: return mhla_jinja_compare(r->j, a, b) <= 0;
    case OP_GT: return mhla_jinja_compare(r->j, a, b) > 0;
    default: return mhla_jinja_compare(r->j, a, b) >= 0;
    }
}

static jinja_value sequence(run *r, scope *s, const jinja_node *n) {
    jinja_value v = mhla_jinja_list(r->j);
    for (size_t i = 0; i < n->list.count; i++) mhla_jinja_append(r->j, v.list, evaluate(r, s, n->list.item[i]));
    if (n->kind == NODE_TUPLE) v.kind = JINJA_TUPLE;
    return v;
}

static jinja_value mapping(run *r, scope *s, const jinja_node *n) {
    jinja_value v = mhla_jinja_dict(r->j);
    for (size_t i = 0; i + 1 < n->list.count; i += 2) {
        const jinja_value key = evaluate(r, s, n->list.item[i]);
        mhla_jinja_put(r->j, v.dict, key, evaluate(r, s, n->list.item[i + 1]));
    }
    return v;
}

static jinja_value slice(run *r, scope *s, const jinja_node *n) {
    const jinja_value v = evaluate(r, s, n->a);
    jinja_value range[3];
    for (size_t i = 0; i < 3; i++)
        range[i] = n->list.item[i] ? evaluate(r, s, n->list.item[i]) : (jinja_value){.kind = JINJA_NONE};
    return mhla_jinja_slice(r->j, v, range);
}

static jinja_value compare(run *r, scope *s, const jinja_node *n) {
    jinja_value left = evaluate(r, s, n->a);
    for (size_t i = 0; i < n->list.count; i++) {
        const jinja_value right = evaluate(r, s, n->list.item[i]);
        if (!compares(r, n->ops[i], left, right)) return mhla_jinja_bool(0);
        left = right;
    }
    return mhla_jinja_bool(1);
}

/* What is not known fails only when it is reached: most templates have parts for tools that a conversation never meets. */
static jinja_value apply(run *r, scope *s, const jinja_node *n, jinja_function function) {
    if (function == NULL)
        mhla_jinja_fail(r->j, MHLA_ENOTSUP, "the %s %s is not supported", n->kind == NODE_TEST ? "test" : "filter",
                        QUOTE(n->text));
    const jinja_value v = evaluate(r, s, n->a);
    const jinja_arguments a = arguments(r, s, n);
    return function(r->j, v, &a);
}

static jinja_value evaluate_one(run *r, scope *s, const jinja_node *n) {
    jinja_value v;
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return look_up(r, s, n->text);
    case NODE_CAPTURED: return mhla_jinja_text(r->captured);
    case NODE_LIST:
    case NODE_TUPLE: return sequence(r, s, n);
    case NODE_DICT: return mapping(r, s, n);
    case NODE_ATTRIBUTE: return mhla_jinja_attribute(r->j, evaluate(r, s, n->a), n->text);
    case NODE_ITEM: v = evaluate(r, s, n->a); return mhla_jinja_index(r->j, v, evaluate(r, s, n->b));
    case NODE_SLICE: return slice(r, s, n);
    case NODE_CALL: return call(r, s, n);
    case NODE_FILTER: return apply(r, s, n, mhla_jinja_filter(n->text));
    case NODE_TEST: return apply(r, s, n, mhla_jinja_test(n->text));
    case NODE_NOT: return mhla_jinja_bool(!mhla_jinja_true(evaluate(r, s, n->a)));
    case NODE_NEGATIVE: return mhla_jinja_binary(r->j, OP_SUB, mhla_jinja_int(0), evaluate(r, s, n->a));
    case NODE_POSITIVE: return mhla_jinja_binary(r->j, OP_ADD, mhla_jinja_int(0), evaluate(r, s, n->a));
    case NODE_AND: v = evaluate(r, s, n->a); return mhla_jinja_true(v) ? evaluate(r, s, n->b) : v;
    case NODE_OR: v = evaluate(r, s, n->a); return mhla_jinja_true(v) ? v : evaluate(r, s, n->b);
    case NODE_CHOICE:
        if (mhla_jinja_true(evaluate(r, s, n->b))) return evaluate(r, s, n->a);
        return n->c ? evaluate(r, s, n->c) : mhla_jinja_undefined(JINJA_LITERAL("the missing else"));
    case NODE_COMPARE: return compare(r, s, n);
    default: v = evaluate(r, s, n->a); return mhla_jinja_binary(r->j, n->op, v, evaluate(r, s, n->b));
    }
}

static jinja_value evaluate(run *r, scope *s, const jinja_node *n) {
    enter(r->j, n->line);
    const jinja_value v = evaluate_one(r, s, n);
    r->j->line = n->line;
    r->j->depth--;
    return v;
}

/* ---- Statements ---- */

static jump run_if(run *r, scope *s, const jinja_node *n) {
    while (!mhla_jinja_true(evaluate(r, s, n->a))) {
        if (n->other.count != 1 || n->other.item[0]->kind != NODE_IF) return execute(r, s, &n->other);
        n = n->other.item[0]; /* elif */
    }
    return execute(r, s, &n->body);
}

static jump run_for(run *r, scope *s, const jinja_node *n) {
    jinja *j = r->j;
    const jinja_list *items = mhla_jinja_items(j, evaluate(r, s, n->a));
    if (n->b) { /* the condition sees the item, not the loop */
        jinja_list *kept = mhla_jinja_list(j).list;
        for (size_t i = 0; i < items->count; i++) {
            scope inner = new_scope(j, s);
            unpack(r, &inner, &n->names, items->item[i]);
            if (mhla_jinja_true(evaluate(r, &inner, n->b))) mhla_jinja_append(j, kept, items->item[i]);
        }
        items = kept;
    }
    if (items->count == 0) return execute(r, s, &n->other);
    jinja_loop *loop = mhla_jinja_alloc(j, sizeof *loop);
    *loop = (jinja_loop){.items = items, .depth = ++r->loops};
    loop->changed = mhla_jinja_undefined(JINJA_LITERAL("loop"));
    for (size_t i = 0; i < items->count; i++) {
        scope inner = new_scope(j, s);
        loop->index = i;
        define(r, &inner, JINJA_LITERAL("loop"), (jinja_value){.kind = JINJA_LOOP, .loop = loop});
        unpack(r, &inner, &n->names, items->item[i]);
        if (execute(r, &inner, &n->body) == JUMP_BREAK) break;
    }
    r->loops--;
    return JUMP_NONE;
}

static void run_set(run *r, scope *s, const jinja_node *n) {
    const jinja_value v = evaluate(r, s, n->a);
    if (n->text.size == 0) {
        unpack(r, s, &n->names, v);
        return;
    }
    const jinja_value space = look_up(r, s, n->names.item[0]);
    if (space.kind != JINJA_SPACE)
        mhla_jinja_fail(r->j, MHLA_EDATA, "%s is not a namespace: its attributes cannot be set",
                        QUOTE(n->names.item[0]));
    mhla_jinja_put(r->j, space.dict, mhla_jinja_text(n->text), v);
}

/* The text of a block, filtered by n->a. */
static jinja_value capture(run *r, scope *s, const jinja_node *n) {
    jinja_buffer text = {0}, *outer = r->capture;
    r->capture = &text;
    scope inner = new_scope(r->j, s);
    execute(r, &inner, &n->body);
    r->capture = outer;
    const jinja_text before = r->captured;
    r->captured = (jinja_text){text.data, text.count};
    const jinja_value v = evaluate(r, s, n->a);
    r->captured = before;
    return v;
}

static void run_macro(run *r, scope *s, const jinja_node *n) {
    jinja_callee *c = mhla_jinja_alloc(r->j, sizeof *c);
    scope *keep = mhla_jinja_alloc(r->j, sizeof *keep); /* scopes of loops live on the stack; their names do not */
    *keep = *s;
    for (scope *at = keep; at->around; at = at->around) {
        scope *copy = mhla_jinja_alloc(r->j, sizeof *copy);
        *copy = *at->around;
        at->around = copy;
    }
    *c = (jinja_callee){.macro = n, .scope = keep};
    define(r, s, n->text, (jinja_value){.kind = JINJA_CALL, .callee = c});
}

static jump execute_one(run *r, scope *s, const jinja_node *n) {
    scope inner;
    switch (n->kind) {
    case NODE_DATA: emit(r, n->text); return JUMP_NONE;
    case NODE_PRINT: emit(r, mhla_jinja_string(r->j, evaluate(r, s, n->a))); return JUMP_NONE;
    case NODE_IF: return run_if(r, s, n);
    case NODE_FOR: return run_for(r, s, n);
    case NODE_SET: run_set(r, s, n); return JUMP_NONE;
    case NODE_CAPTURE: define(r, s, n->names.item[0], capture(r, s, n)); return JUMP_NONE;
    case NODE_FILTERED: emit(r, mhla_jinja_string(r->j, capture(r, s, n))); return JUMP_NONE;
    case NODE_MACRO: run_macro(r, s, n); return JUMP_NONE;
    case NODE_WITH:
        inner = new_scope(r->j, s);
        for (size_t i = 0; i < n->names.count; i++)
            define(r, &inner, n->names.item[i], evaluate(r, s, n->list.item[i]));
        return execute(r, &inner, &n->body);
    case NODE_SCOPE: return execute(r, s, &n->body);
    default:
        if (r->loops == 0) mhla_jinja_fail(r->j, MHLA_EDATA, "break or continue outside of a loop");
        return n->kind == NODE_BREAK ? JUMP_BREAK : JUMP_CONTINUE;
    }
}

static jump execute(run *r, scope *s, const jinja_nodes *nodes) {
    for (size_t i = 0; i < nodes->count; i++) {
        enter(r->j, nodes->item[i]->line);
        const jump way = execute_one(r, s, nodes->item[i]);
        r->j->depth--;
        if (way != JUMP_NONE) return way;
    }
    return JUMP_NONE;
}

void mhla_jinja_run(jinja *j, const jinja_nodes *nodes, const jinja_dict *variables) {
    run r = {.j = j};
    scope outer = new_scope(j, NULL);
    for (size_t i = 0; i < variables->count; i++) mhla_jinja_put(j, outer.names, variables->key[i], variables->item[i]);
    execute(&r, &outer, nodes);
}
