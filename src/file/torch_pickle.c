#include "file/torch_pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"

enum { PICKLE_MOST = 8 << 20 };
static const uint32_t MARK = UINT32_MAX; /* on the stack, in place of a value */

/* ---- What a pickle may name ---- */

typedef enum role { STORAGE_CLASS, REBUILD, PARAMETER, ORDERED_DICT, HARMLESS, MODULE } role;

static const struct {
    const char *module, *name;
    role role;
    mhla_io_dtype dtype;
} globals[] = {
    {"torch", "FloatStorage", STORAGE_CLASS, MHLA_IO_F32},
    {"torch", "HalfStorage", STORAGE_CLASS, MHLA_IO_F16},
    {"torch", "BFloat16Storage", STORAGE_CLASS, MHLA_IO_BF16},
    {"torch", "DoubleStorage", STORAGE_CLASS, MHLA_IO_F64},
    {"torch", "LongStorage", STORAGE_CLASS, MHLA_IO_I64},
    {"torch", "IntStorage", STORAGE_CLASS, MHLA_IO_I32},
    {"torch", "ShortStorage", STORAGE_CLASS, MHLA_IO_I16},
    {"torch", "CharStorage", STORAGE_CLASS, MHLA_IO_I8},
    {"torch", "ByteStorage", STORAGE_CLASS, MHLA_IO_U8},
    {"torch", "BoolStorage", STORAGE_CLASS, MHLA_IO_BOOL},
    {"torch._utils", "_rebuild_tensor_v2", REBUILD, 0},
    {"torch._utils", "_rebuild_tensor", REBUILD, 0},
    {"torch._utils", "_rebuild_parameter", PARAMETER, 0},
    {"collections", "OrderedDict", ORDERED_DICT, 0},
    /* settings and figures that training scripts save beside the weights: nothing is made of them */
    {"argparse", "Namespace", HARMLESS, 0},
    {"collections", "defaultdict", HARMLESS, 0},
    {"collections", "Counter", HARMLESS, 0},
    {"torch", "Size", HARMLESS, 0},
    {"torch", "device", HARMLESS, 0},
    {"torch", "float32", HARMLESS, 0},
    {"torch", "float16", HARMLESS, 0},
    {"torch", "bfloat16", HARMLESS, 0},
    {"pathlib", "PosixPath", HARMLESS, 0},
    {"numpy", "dtype", HARMLESS, 0},
    {"numpy.core.multiarray", "scalar", HARMLESS, 0},
    {"numpy._core.multiarray", "scalar", HARMLESS, 0},
    {"_codecs", "encode", HARMLESS, 0},
    {"torch.jit._pickle", "build_intlist", HARMLESS, 0},
    {"torch.jit._pickle", "build_doublelist", HARMLESS, 0},
    {"torch.jit._pickle", "build_boollist", HARMLESS, 0},
    {"torch.jit._pickle", "restore_type_tag", HARMLESS, 0},
    {"__torch__", "", MODULE, 0}, /* any class below it: TorchScript's modules */
};
enum { GLOBALS = sizeof globals / sizeof *globals, MODULES = GLOBALS - 1 };

int mhla_pickle_storage_dtype(const mhla_pickle_value *value) {
    if (value == NULL || value->kind != MHLA_PICKLE_GLOBAL || globals[value->number].role != STORAGE_CLASS) return -1;
    return (int)globals[value->number].dtype;
}

/* ---- The machine ---- */

typedef struct machine {
    const char *what;
    const unsigned char *bytes;
    size_t at, size, opcode; /* opcode: where the present one began, for messages */
    mhla_pickle *p;
    uint32_t value_room, cell_room;
    uint32_t *stack;
    size_t depth, stack_room;
    uint32_t *memo; /* value + 1; 0: none */
    size_t memo_room;
    size_t memo_count; /* of MEMOIZE */
} machine;

static mhla_status wrong(const machine *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static mhla_status wrong(const machine *m, const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return mhla_fail(MHLA_EDATA, "%s: byte %zu: %s", m->what, m->opcode, text);
}
static mhla_status no_memory(const machine *m) { return mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", m->what); }

/* Room for one more of `size` bytes in *array. */
static int grow(void **array, size_t *room, size_t used, size_t size) {
    if (used < *room) return 1;
    const size_t more = *room ? 2 * *room : 256;
    void *grown = realloc(*array, more * size);
    if (grown == NULL) return 0;
    *array = grown, *room = more;
    return 1;
}

static mhla_status push(machine *m, uint32_t value) {
    void *stack = m->stack;
    if (!grow(&stack, &m->stack_room, m->depth, sizeof *m->stack)) return no_memory(m);
    m->stack = stack;
    m->stack[m->depth++] = value;
    return MHLA_OK;
}

static mhla_status add_value(machine *m, mhla_pickle_value value, uint32_t *number) {
    void *values = m->p->values;
    size_t room = m->value_room;
    if (!grow(&values, &room, m->p->count, sizeof value)) return no_memory(m);
    m->p->values = values, m->value_room = (uint32_t)room;
    *number = m->p->count++;
    m->p->values[*number] = value;
    return MHLA_OK;
}
static mhla_status push_new(machine *m, mhla_pickle_value value) {
    uint32_t number = 0;
    MHLA_TRY(add_value(m, value, &number));
    return push(m, number);
}
static mhla_status push_kind(machine *m, mhla_pickle_kind kind) {
    return push_new(m, (mhla_pickle_value){.kind = kind});
}

static mhla_status append(machine *m, uint32_t container, uint32_t value) {
    void *cells = m->p->cells;
    size_t room = m->cell_room;
    if (m->p->cell_count == 0) m->p->cell_count = 1; /* 0 means none */
    if (!grow(&cells, &room, m->p->cell_count, sizeof *m->p->cells)) return no_memory(m);
    m->p->cells = cells, m->cell_room = (uint32_t)room;
    const uint32_t cell = m->p->cell_count++;
    m->p->cells[cell] = (mhla_pickle_cell){value, 0};
    mhla_pickle_value *c = &m->p->values[container];
    if (c->size++)
        m->p->cells[c->last].next = cell;
    else
        c->first = cell;
    c->last = cell;
    return MHLA_OK;
}

static mhla_status pop(machine *m, uint32_t *value) {
    if (m->depth == 0 || m->stack[m->depth - 1] == MARK) return wrong(m, "it takes more than there is");
    *value = m->stack[--m->depth];
    return MHLA_OK;
}
/* The value below what was popped, which stays. */
static mhla_status top(const machine *m, uint32_t *value) {
    if (m->depth == 0 || m->stack[m->depth - 1] == MARK) return wrong(m, "it takes more than there is");
    *value = m->stack[m->depth - 1];
    return MHLA_OK;
}
/* Position of the last mark. */
static mhla_status find_mark(const machine *m, size_t *mark) {
    for (*mark = m->depth; *mark > 0; --*mark)
        if (m->stack[*mark - 1] == MARK) {
            --*mark;
            return MHLA_OK;
        }
    return wrong(m, "it goes back to a mark that does not exist");
}

/* The bytes behind the opcode. */
static mhla_status take(machine *m, size_t n, const unsigned char **bytes) {
    if (m->size - m->at < n) return wrong(m, "the pickle is cut short");
    *bytes = m->bytes + m->at;
    m->at += n;
    return MHLA_OK;
}
static mhla_status take_int(machine *m, int bytes, uint64_t *x) {
    const unsigned char *b = NULL;
    *x = 0;
    MHLA_TRY(take(m, (size_t)bytes, &b));
    for (int i = 0; i < bytes; i++) *x |= (uint64_t)b[i] << (8 * i);
    return MHLA_OK;
}
static mhla_status take_text(machine *m, int length_bytes) {
    uint64_t n = 0;
    const unsigned char *text = NULL;
    MHLA_TRY(take_int(m, length_bytes, &n));
    if (n > m->size) return wrong(m, "the pickle is cut short");
    MHLA_TRY(take(m, (size_t)n, &text));
    return push_new(m, (mhla_pickle_value){.kind = MHLA_PICKLE_TEXT, .number = (int64_t)n, .text = text});
}

/* ---- Opcodes that take several lines ---- */

/* All above the last mark, as a container or appended to one. */
static mhla_status gather(machine *m, size_t begin, uint32_t container) {
    for (size_t i = begin; i < m->depth; i++) MHLA_TRY(append(m, container, m->stack[i]));
    m->depth = begin;
    return MHLA_OK;
}
static mhla_status collect(machine *m, mhla_pickle_kind kind, int marked, size_t n) {
    size_t mark = 0;
    if (marked) {
        MHLA_TRY(find_mark(m, &mark));
        n = m->depth - mark - 1;
    } else {
        if (m->depth < n) return wrong(m, "it takes more than there is");
        for (size_t i = 1; i <= n; i++)
            if (m->stack[m->depth - i] == MARK) return wrong(m, "it takes more than there is");
    }
    if (kind == MHLA_PICKLE_DICT && n % 2) return wrong(m, "a key without a value");
    uint32_t container = 0;
    MHLA_TRY(add_value(m, (mhla_pickle_value){.kind = kind}, &container));
    MHLA_TRY(gather(m, m->depth - n, container));
    if (marked) m->depth = mark;
    return push(m, container);
}

/* APPEND(S), SETITEM(S), ADDITEMS: to the container below. What lies in a harmless object is dropped. */
static mhla_status extend(machine *m, mhla_pickle_kind kind, int marked, size_t n) {
    size_t begin = m->depth - n;
    if (marked) {
        MHLA_TRY(find_mark(m, &begin));
        begin++;
        n = m->depth - begin;
    } else if (m->depth < n) {
        return wrong(m, "it takes more than there is");
    }
    const size_t below = begin - (marked ? 1 : 0);
    if (below == 0 || m->stack[below - 1] == MARK) return wrong(m, "it takes more than there is");
    for (size_t i = begin; i < m->depth; i++)
        if (m->stack[i] == MARK) return wrong(m, "it takes more than there is");
    const uint32_t container = m->stack[below - 1];
    const mhla_pickle_kind is = m->p->values[container].kind;
    if (kind == MHLA_PICKLE_DICT && n % 2) return wrong(m, "a key without a value");
    if (is == kind)
        MHLA_TRY(gather(m, begin, container));
    else if (is != MHLA_PICKLE_OTHER)
        return wrong(m, "it adds to something that is no %s", kind == MHLA_PICKLE_DICT ? "dictionary" : "list");
    m->depth = below;
    return MHLA_OK;
}

static mhla_status push_global(machine *m, const unsigned char *module, size_t module_size, const unsigned char *name,
                               size_t name_size) {
    for (int i = 0; i < GLOBALS; i++)
        if (strlen(globals[i].module) == module_size && memcmp(globals[i].module, module, module_size) == 0 &&
            strlen(globals[i].name) == name_size && memcmp(globals[i].name, name, name_size) == 0)
            return push_new(m, (mhla_pickle_value){.kind = MHLA_PICKLE_GLOBAL, .number = i});
    static const char scripted[] = "__torch__";
    const size_t n = sizeof scripted - 1;
    if (module_size >= n && memcmp(module, scripted, n) == 0 && (module_size == n || module[n] == '.'))
        return push_new(m, (mhla_pickle_value){.kind = MHLA_PICKLE_GLOBAL, .number = MODULES});
    const mhla_quoted a = mhla_quote_bytes((const char *)module, module_size),
                      b = mhla_quote_bytes((const char *)name, name_size);
    return wrong(m, "it names %s of %s; only tensors, texts and numbers are read, no Python objects", b.text, a.text);
}

/* 'module\nname\n' */
static mhla_status read_global(machine *m) {
    const unsigned char *lines[2] = {NULL, NULL};
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        lines[i] = m->bytes + m->at;
        const unsigned char *end = memchr(lines[i], '\n', m->size - m->at);
        if (end == NULL) return wrong(m, "the pickle is cut short");
        sizes[i] = (size_t)(end - lines[i]);
        m->at += sizes[i] + 1;
    }
    return push_global(m, lines[0], sizes[0], lines[1], sizes[1]);
}

static mhla_status stack_global(machine *m) {
    uint32_t name = 0, module = 0;
    MHLA_TRY(pop(m, &name));
    MHLA_TRY(pop(m, &module));
    const mhla_pickle_value *a = &m->p->values[module], *b = &m->p->values[name];
    if (a->kind != MHLA_PICKLE_TEXT || b->kind != MHLA_PICKLE_TEXT)
        return wrong(m, "it names something without a name");
    return push_global(m, a->text, (size_t)a->number, b->text, (size_t)b->number);
}

/* The cells of `from` again, as another kind of value. */
static mhla_status push_as(machine *m, mhla_pickle_kind kind, uint32_t from) {
    mhla_pickle_value v = m->p->values[from];
    v.kind = kind;
    return push_new(m, v);
}

/* REDUCE, NEWOBJ: a call that is never made. */
static mhla_status reduce(machine *m) {
    uint32_t args = 0, function = 0;
    MHLA_TRY(pop(m, &args));
    MHLA_TRY(pop(m, &function));
    const mhla_pickle_value *f = &m->p->values[function], *a = &m->p->values[args];
    if (f->kind != MHLA_PICKLE_GLOBAL || a->kind != MHLA_PICKLE_TUPLE)
        return wrong(m, "it calls something that is not a function");
    switch (globals[f->number].role) {
    case REBUILD: {
        const mhla_pickle_value *storage = mhla_pickle_at(m->p, a, 0), *offset = mhla_pickle_at(m->p, a, 1),
                                *shape = mhla_pickle_at(m->p, a, 2), *strides = mhla_pickle_at(m->p, a, 3);
        if (a->size < 4 || storage->kind != MHLA_PICKLE_STORAGE || offset->kind != MHLA_PICKLE_INT ||
            shape->kind != MHLA_PICKLE_TUPLE || strides->kind != MHLA_PICKLE_TUPLE)
            return wrong(m, "a tensor of something else than storage, offset, shape, strides");
        return push_as(m, MHLA_PICKLE_TENSOR, args);
    }
    case PARAMETER: {
        if (a->size == 0 || mhla_pickle_at(m->p, a, 0)->kind != MHLA_PICKLE_TENSOR)
            return wrong(m, "a parameter that is not a tensor");
        return push(m, m->p->cells[a->first].value);
    }
    case ORDERED_DICT:
        if (a->size) return wrong(m, "an OrderedDict made from something");
        return push_kind(m, MHLA_PICKLE_DICT);
    case HARMLESS: return push_kind(m, MHLA_PICKLE_OTHER);
    case MODULE: return push_kind(m, MHLA_PICKLE_MODULE);
    case STORAGE_CLASS: break;
    }
    return wrong(m, "it calls a type of storage");
}

/* BUILD: what an object has besides. A module of TorchScript has nothing else; of other objects it is of no use. */
static mhla_status build(machine *m) {
    uint32_t state = 0, object = 0;
    MHLA_TRY(pop(m, &state));
    MHLA_TRY(top(m, &object));
    mhla_pickle_value *o = &m->p->values[object];
    const mhla_pickle_value *s = &m->p->values[state];
    if (o->kind != MHLA_PICKLE_MODULE) return MHLA_OK;
    if (s->kind != MHLA_PICKLE_DICT || o->size) return wrong(m, "a module made of something else than a dictionary");
    o->first = s->first, o->last = s->last, o->size = s->size;
    return MHLA_OK;
}

/* ('storage', class, key, location, number of elements, ...) */
static mhla_status persistent(machine *m) {
    uint32_t id = 0;
    MHLA_TRY(pop(m, &id));
    const mhla_pickle_value *v = &m->p->values[id];
    const mhla_pickle_value *a[5];
    if (v->kind != MHLA_PICKLE_TUPLE) return wrong(m, "it refers to something that is not a storage");
    for (uint32_t i = 0; i < 5; i++) a[i] = mhla_pickle_at(m->p, v, i);
    if (v->size < 5 || !mhla_pickle_is_text(a[0], "storage") || mhla_pickle_storage_dtype(a[1]) < 0 ||
        a[2]->kind != MHLA_PICKLE_TEXT || a[4]->kind != MHLA_PICKLE_INT)
        return wrong(m, "it refers to something that is not a storage");
    if (v->size > 5 && mhla_pickle_at(m->p, v, 5)->kind != MHLA_PICKLE_NONE)
        return wrong(m, "a storage that is part of another");
    return push_as(m, MHLA_PICKLE_STORAGE, id);
}

static mhla_status put(machine *m, uint64_t place) {
    uint32_t value = 0;
    MHLA_TRY(top(m, &value));
    if (place >= m->size) return wrong(m, "it remembers more than the pickle has bytes");
    while (place >= m->memo_room) {
        void *memo = m->memo;
        const size_t before = m->memo_room;
        if (!grow(&memo, &m->memo_room, before, sizeof *m->memo)) return no_memory(m);
        m->memo = memo;
        memset(m->memo + before, 0, (m->memo_room - before) * sizeof *m->memo);
    }
    m->memo[place] = value + 1;
    return MHLA_OK;
}
static mhla_status fetch(machine *m, uint64_t place) {
    if (place >= m->memo_room || m->memo[place] == 0) return wrong(m, "it wants something that it did not remember");
    return push(m, m->memo[place] - 1);
}

static mhla_status push_int(machine *m, int64_t number, mhla_pickle_kind kind) {
    return push_new(m, (mhla_pickle_value){.kind = kind, .number = number});
}

/* LONG1: two's complement of up to 255 bytes; what does not fit is of no use. */
static mhla_status read_long(machine *m) {
    uint64_t n = 0, x = 0;
    const unsigned char *b = NULL;
    MHLA_TRY(take_int(m, 1, &n));
    MHLA_TRY(take(m, (size_t)n, &b));
    if (n > 8) return push_kind(m, MHLA_PICKLE_OTHER);
    for (uint64_t i = 0; i < n; i++) x |= (uint64_t)b[i] << (8 * i);
    if (n && n < 8 && b[n - 1] & 0x80) x |= ~(uint64_t)0 << (8 * n);
    return push_int(m, (int64_t)x, MHLA_PICKLE_INT);
}

/* ---- The loop ---- */

static mhla_status step(machine *m, int opcode) {
    uint64_t x = 0;

    size_t mark = 0;
    const unsigned char *bytes;
    switch (opcode) {
    case 0x80: /* PROTO */
        MHLA_TRY(take_int(m, 1, &x));
        return x <= 5 ? MHLA_OK : wrong(m, "pickle protocol %d", (int)x);
    case 0x95: return take(m, 8, &bytes); /* FRAME */
    case '(': return push(m, MARK);
    case '0': return m->depth ? (m->depth--, MHLA_OK) : wrong(m, "it takes more than there is"); /* POP */
    case '1':                                                                                    /* POP_MARK */
        MHLA_TRY(find_mark(m, &mark));
        m->depth = mark;
        return MHLA_OK;
    case 'N': return push_kind(m, MHLA_PICKLE_NONE);
    case 0x88: return push_int(m, 1, MHLA_PICKLE_BOOL);
    case 0x89: return push_int(m, 0, MHLA_PICKLE_BOOL);
    case 'K': MHLA_TRY(take_int(m, 1, &x)); return push_int(m, (int64_t)x, MHLA_PICKLE_INT);
    case 'M': MHLA_TRY(take_int(m, 2, &x)); return push_int(m, (int64_t)x, MHLA_PICKLE_INT);
    case 'J': MHLA_TRY(take_int(m, 4, &x)); return push_int(m, (int32_t)(uint32_t)x, MHLA_PICKLE_INT);
    case 0x8a: return read_long(m);
    case 'G': MHLA_TRY(take(m, 8, &bytes)); return push_kind(m, MHLA_PICKLE_OTHER); /* BINFLOAT */
    case 'X':
    case 'T':
    case 'B': return take_text(m, 4);
    case 0x8c:
    case 'U':
    case 'C': return take_text(m, 1);
    case 0x8d:
    case 0x8e: return take_text(m, 8);
    case '}': return push_kind(m, MHLA_PICKLE_DICT);
    case ']':
    case 0x8f: return push_kind(m, MHLA_PICKLE_LIST); /* also EMPTY_SET */
    case ')': return push_kind(m, MHLA_PICKLE_TUPLE);
    case 't': return collect(m, MHLA_PICKLE_TUPLE, 1, 0);
    case 0x85:
    case 0x86:
    case 0x87: return collect(m, MHLA_PICKLE_TUPLE, 0, (size_t)opcode - 0x84);
    case 'l': return collect(m, MHLA_PICKLE_LIST, 1, 0);
    case 'd': return collect(m, MHLA_PICKLE_DICT, 1, 0);
    case 'a': return extend(m, MHLA_PICKLE_LIST, 0, 1);
    case 'e':
    case 0x90: return extend(m, MHLA_PICKLE_LIST, 1, 0);
    case 's': return extend(m, MHLA_PICKLE_DICT, 0, 2);
    case 'u': return extend(m, MHLA_PICKLE_DICT, 1, 0);
    case 'q': MHLA_TRY(take_int(m, 1, &x)); return put(m, x);
    case 'r': MHLA_TRY(take_int(m, 4, &x)); return put(m, x);
    case 0x94: return put(m, m->memo_count++); /* MEMOIZE */
    case 'h': MHLA_TRY(take_int(m, 1, &x)); return fetch(m, x);
    case 'j': MHLA_TRY(take_int(m, 4, &x)); return fetch(m, x);
    case 'c': return read_global(m);
    case 0x93: return stack_global(m);
    case 'R':
    case 0x81: return reduce(m);
    case 'b': return build(m);
    case 'Q': return persistent(m);
    default: break;
    }
    return wrong(m, "opcode 0x%02x is none that a checkpoint needs", (unsigned)opcode);
}

mhla_status mhla_pickle_read(mhla_pickle *p, const unsigned char *bytes, size_t size, const char *what) {
    *p = (mhla_pickle){0};
    machine m = {.what = what, .bytes = bytes, .size = size < PICKLE_MOST ? size : PICKLE_MOST, .p = p};
    mhla_status status = MHLA_OK;
    while (status == MHLA_OK) {
        m.opcode = m.at;
        if (m.at >= m.size) {
            status = wrong(&m, m.size < size ? "the pickle does not end" : "the pickle is cut short");
            break;
        }
        const int opcode = bytes[m.at++];
        if (opcode == '.') {
            status = pop(&m, &p->root);
            break;
        }
        status = step(&m, opcode);
    }
    free(m.stack);
    free(m.memo);
    p->bytes = m.at;
    if (status != MHLA_OK) mhla_pickle_free(p);
    return status;
}

void mhla_pickle_free(mhla_pickle *p) {
    free(p->values);
    free(p->cells);
    *p = (mhla_pickle){0};
}

const mhla_pickle_value *mhla_pickle_at(const mhla_pickle *p, const mhla_pickle_value *container, uint32_t i) {
    if (i >= container->size) return NULL;
    uint32_t cell = container->first;
    while (i--) cell = p->cells[cell].next;
    return &p->values[p->cells[cell].value];
}

int mhla_pickle_is_text(const mhla_pickle_value *value, const char *text) {
    const size_t n = strlen(text);
    return value && value->kind == MHLA_PICKLE_TEXT && (size_t)value->number == n && memcmp(value->text, text, n) == 0;
}

const mhla_pickle_value *mhla_pickle_get(const mhla_pickle *p, const mhla_pickle_value *dict, const char *key) {
    uint32_t cell = dict->first;
    for (uint32_t i = 0; i < dict->size; i += 2, cell = p->cells[p->cells[cell].next].next)
        if (mhla_pickle_is_text(&p->values[p->cells[cell].value], key))
            return &p->values[p->cells[p->cells[cell].next].value];
    return NULL;
}
