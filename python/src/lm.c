/* mhla._mhla.Tokenizer, Sequence and Generation: language models of libmhla-nn. Each object holds a reference to what it is
 * made of (a generation its sequence, a sequence its model), so that nothing is freed under it. Everything that changes a
 * sequence goes through its model's door (binding_model_enter), which one thread at a time passes. */
#include "binding.h"

#ifdef MHLA_NN
#include <mhla/lm.h>

static PyTypeObject tokenizer_type, sequence_type, generation_type;

/* ---- Tokenizers ---- */

typedef struct tokenizer_object {
    PyObject_HEAD const mhla_tokenizer *tokenizer;
    mhla_tokenizer *own; /* the same, if it is to be freed here */
    PyObject *model;     /* whose tokenizer it is, or NULL */
} tokenizer_object;

static PyObject *tokenizer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { /* (path or model) */
    (void)kwargs;
    PyObject *from, *path = NULL;
    if (!PyArg_ParseTuple(args, "O", &from)) return NULL;
    const int borrowed = PyObject_TypeCheck(from, &binding_model_type);
    const mhla_tokenizer *tokenizer = NULL;
    mhla_tokenizer *own = NULL;
    mhla_status status = MHLA_OK;
    if (borrowed) {
        const model_object *m = (const model_object *)from;
        if (binding_model_idle(m) < 0) return NULL;
        const int64_t guard = mhla_files_guard();
        tokenizer = mhla_lm_tokenizer(m->model);
        status = binding_files_read(guard, tokenizer ? MHLA_OK : MHLA_EDATA);
        if (status != MHLA_OK) return binding_raise(status);
    } else {
        if (!PyUnicode_FSConverter(from, &path)) return NULL;
        const int64_t guard = mhla_files_guard();
        Py_BEGIN_ALLOW_THREADS status = mhla_tokenizer_open(&own, PyBytes_AS_STRING(path));
        if (status != MHLA_OK) own = NULL;
        status = binding_files_read(guard, status);
        if (status != MHLA_OK) mhla_tokenizer_free(own);
        Py_END_ALLOW_THREADS Py_DECREF(path);
        if (status != MHLA_OK) return binding_raise(status);
        tokenizer = own;
    }
    tokenizer_object *self = (tokenizer_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        mhla_tokenizer_free(own);
        return NULL;
    }
    self->tokenizer = tokenizer;
    self->own = own;
    self->model = borrowed ? Py_NewRef(from) : NULL;
    return (PyObject *)self;
}

static void tokenizer_dealloc(PyObject *self) {
    tokenizer_object *t = (tokenizer_object *)self;
    mhla_tokenizer_free(t->own);
    Py_XDECREF(t->model);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *tokenizer_info(PyObject *self, PyObject *unused) {
    (void)unused;
    mhla_tokenizer_info i = {.size = sizeof i};
    const mhla_status status = mhla_tokenizer_query(((tokenizer_object *)self)->tokenizer, &i);
    if (status != MHLA_OK) return binding_raise(status);
    return Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:z}", "kind", i.kind, "vocabulary", i.vocabulary, "bos",
                         (int)i.bos, "eos", (int)i.eos, "unk", (int)i.unk, "pad", (int)i.pad, "adds_bos", i.adds_bos,
                         "adds_eos", i.adds_eos, "chat_template", i.chat_template);
}

static PyObject *ids_list(const int32_t *ids, int64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (id == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, id);
    }
    return list;
}

static PyObject *tokenizer_encode(PyObject *self, PyObject *args) { /* (text, flags) */
    const char *text;
    Py_ssize_t bytes;
    unsigned flags;
    mhla_ids ids = {0};
    if (!PyArg_ParseTuple(args, "s#I", &text, &bytes, &flags)) return NULL;
    const mhla_tokenizer *tokenizer = ((tokenizer_object *)self)->tokenizer;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_tokenizer_encode(tokenizer, &ids, text, (size_t)bytes, flags);
    Py_END_ALLOW_THREADS PyObject *result = status == MHLA_OK ? ids_list(ids.data, ids.count) : binding_raise(status);
    mhla_ids_free(&ids);
    return result;
}

static PyObject *text_of(const char *text, size_t bytes) {
    return PyUnicode_DecodeUTF8(bytes ? text : "", (Py_ssize_t)bytes, "replace");
}

static PyObject *tokenizer_decode(PyObject *self, PyObject *args) { /* (ids, count, flags) */
    unsigned long long ids;
    long long count;
    unsigned flags;
    mhla_chars text = {0};
    if (!PyArg_ParseTuple(args, "KLI", &ids, &count, &flags)) return NULL;
    const mhla_tokenizer *tokenizer = ((tokenizer_object *)self)->tokenizer;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_tokenizer_decode(tokenizer, &text, at((int64_t)ids), count, flags);
    Py_END_ALLOW_THREADS PyObject *result = status == MHLA_OK ? text_of(text.data, text.count) : binding_raise(status);
    mhla_chars_free(&text);
    return result;
}

static PyObject *tokenizer_piece(PyObject *self, PyObject *args) {
    int id;
    if (!PyArg_ParseTuple(args, "i", &id)) return NULL;
    const char *piece = mhla_tokenizer_piece(((tokenizer_object *)self)->tokenizer, id);
    if (piece == NULL) Py_RETURN_NONE;
    return text_of(piece, strlen(piece));
}

static PyObject *tokenizer_id(PyObject *self, PyObject *args) {
    const char *piece;
    if (!PyArg_ParseTuple(args, "s", &piece)) return NULL;
    return PyLong_FromLong(mhla_tokenizer_id(((tokenizer_object *)self)->tokenizer, piece));
}

static PyObject *tokenizer_chat(PyObject *self, PyObject *args) { /* ([(role, content)], prompt) */
    PyObject *list, *result = NULL;
    int prompt;
    if (!PyArg_ParseTuple(args, "O!p", &PyList_Type, &list, &prompt)) return NULL;
    const Py_ssize_t n = PyList_GET_SIZE(list);
    mhla_chars text = {0};
    mhla_message_desc *messages = PyMem_Calloc((size_t)n + 1, sizeof *messages);
    if (messages == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ss", &messages[i].role, &messages[i].content)) goto done;
    const mhla_status status = mhla_chat_render(((tokenizer_object *)self)->tokenizer, &text, messages, (int)n, prompt);
    result = status == MHLA_OK ? text_of(text.data, text.count) : binding_raise(status);
done:
    mhla_chars_free(&text);
    PyMem_Free(messages);
    return result;
}

static PyMethodDef tokenizer_methods[] = {
    {"info", tokenizer_info, METH_NOARGS, "mhla_tokenizer_query"},
    {"encode", tokenizer_encode, METH_VARARGS, "mhla_tokenizer_encode(text, flags): list of ids"},
    {"decode", tokenizer_decode, METH_VARARGS, "mhla_tokenizer_decode(ids, count, flags): text"},
    {"piece", tokenizer_piece, METH_VARARGS, "mhla_tokenizer_piece(id)"},
    {"id", tokenizer_id, METH_VARARGS, "mhla_tokenizer_id(piece)"},
    {"chat", tokenizer_chat, METH_VARARGS, "mhla_chat_render([(role, content)], prompt): text"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject tokenizer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Tokenizer",
    .tp_doc = "A tokenizer (mhla_tokenizer), opened here or a model's.",
    .tp_basicsize = sizeof(tokenizer_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = tokenizer_new,
    .tp_dealloc = tokenizer_dealloc,
    .tp_methods = tokenizer_methods,
};

/* ---- Sequences ---- */

typedef struct sequence_object {
    PyObject_HEAD mhla_sequence *sequence;
    model_object *model;
    int held; /* a generation continues it */
} sequence_object;

static void release_sequence(void *sequence) { mhla_sequence_free(sequence); }

static PyObject *wrap(model_object *model, mhla_sequence *made) {
    sequence_object *self = (sequence_object *)sequence_type.tp_alloc(&sequence_type, 0);
    if (self == NULL) {
        mhla_sequence_free(made);
        return NULL;
    }
    self->sequence = made;
    self->model = (model_object *)Py_NewRef((PyObject *)model);
    return (PyObject *)self;
}

static int refuse_held(const sequence_object *s) {
    if (!s->held) return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "the sequence is being continued by a generation: exhaust or close its iterator first");
    return -1;
}

static PyObject *sequence_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { /* (model, beyond, max_tokens) */
    (void)type, (void)kwargs;
    model_object *model;
    int beyond;
    long long most;
    mhla_sequence *made = NULL;
    if (!PyArg_ParseTuple(args, "O!iL", &binding_model_type, &model, &beyond, &most) || binding_model_idle(model) < 0)
        return NULL;
    const mhla_sequence_desc desc = {.size = sizeof desc, .beyond = (mhla_beyond)beyond, .max_tokens = most};
    const mhla_status status = mhla_sequence_create(&made, model->model, &desc);
    return status == MHLA_OK ? wrap(model, made) : binding_raise(status);
}

static PyObject *sequence_load(PyObject *unused, PyObject *args) { /* (model, path) */
    (void)unused;
    model_object *model;
    PyObject *path;
    mhla_sequence *made = NULL;
    if (!PyArg_ParseTuple(args, "O!O&", &binding_model_type, &model, PyUnicode_FSConverter, &path)) return NULL;
    PyObject *result = NULL;
    if (binding_model_enter(model) == 0) {
        mhla_status status;
        const int64_t guard = mhla_files_guard();
        Py_BEGIN_ALLOW_THREADS status = mhla_sequence_load(&made, model->model, PyBytes_AS_STRING(path));
        if (status != MHLA_OK) made = NULL;
        status = binding_files_read(guard, status);
        if (status != MHLA_OK) mhla_sequence_free(made);
        Py_END_ALLOW_THREADS binding_model_leave(model);
        result = status == MHLA_OK ? wrap(model, made) : binding_raise(status);
    }
    Py_DECREF(path);
    return result;
}

static void sequence_dealloc(PyObject *self) {
    sequence_object *s = (sequence_object *)self;
    if (s->model) binding_model_bury(s->model, release_sequence, s->sequence);
    Py_XDECREF((PyObject *)s->model);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *sequence_fork(PyObject *self, PyObject *unused) {
    (void)unused;
    sequence_object *s = (sequence_object *)self;
    mhla_sequence *copy = NULL;
    if (binding_model_idle(s->model) < 0) return NULL;
    const mhla_status status = mhla_sequence_fork(&copy, s->sequence);
    return status == MHLA_OK ? wrap(s->model, copy) : binding_raise(status);
}

static PyObject *sequence_rollback(PyObject *self, PyObject *args) { /* (tokens) */
    sequence_object *s = (sequence_object *)self;
    long long tokens;
    if (!PyArg_ParseTuple(args, "L", &tokens) || binding_model_idle(s->model) < 0 || refuse_held(s) < 0) return NULL;
    const mhla_status status = mhla_sequence_rollback(s->sequence, tokens);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *sequence_save(PyObject *self, PyObject *args) { /* (path) */
    sequence_object *s = (sequence_object *)self;
    PyObject *path, *result = NULL;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    if (binding_model_enter(s->model) == 0) {
        mhla_status status;
        Py_BEGIN_ALLOW_THREADS status = mhla_sequence_save(s->sequence, PyBytes_AS_STRING(path));
        Py_END_ALLOW_THREADS binding_model_leave(s->model);
        result = status == MHLA_OK ? Py_NewRef(Py_None) : binding_raise(status);
    }
    Py_DECREF(path);
    return result;
}

static PyObject *sequence_ids(PyObject *self, PyObject *unused) { /* bytes: int32 */
    (void)unused;
    const sequence_object *s = (const sequence_object *)self;
    if (binding_model_idle(s->model) < 0) return NULL;
    const int64_t n = mhla_sequence_tokens(s->sequence);
    return PyBytes_FromStringAndSize((const char *)mhla_sequence_ids(s->sequence), (Py_ssize_t)(n * 4));
}

static PyObject *sequence_query(PyObject *self, PyObject *unused) {
    (void)unused;
    mhla_sequence_desc d = {.size = sizeof d};
    const mhla_status status = mhla_sequence_query(((sequence_object *)self)->sequence, &d);
    if (status != MHLA_OK) return binding_raise(status);
    return Py_BuildValue("iL", (int)d.beyond, (long long)d.max_tokens);
}

static PyObject *sequence_tokens(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLongLong(mhla_sequence_tokens(((sequence_object *)self)->sequence));
}

static PyObject *sequence_nbytes(PyObject *self, void *closure) {
    (void)closure;
    const sequence_object *s = (const sequence_object *)self;
    return binding_model_idle(s->model) < 0 ? NULL : PyLong_FromSize_t(mhla_sequence_bytes(s->sequence));
}

static PyObject *sequence_note(PyObject *self, void *closure) {
    (void)closure;
    const sequence_object *s = (const sequence_object *)self;
    return binding_model_idle(s->model) < 0 ? NULL : PyUnicode_FromString(mhla_sequence_note(s->sequence));
}

static int sequence_set_note(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    const sequence_object *s = (const sequence_object *)self;
    if (value == NULL || !PyUnicode_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "note is a str");
        return -1;
    }
    const char *note = binding_text(value);
    if (note == NULL || binding_model_idle(s->model) < 0) return -1;
    const mhla_status status = mhla_sequence_set_note(s->sequence, note);
    if (status == MHLA_OK) return 0;
    binding_raise(status);
    return -1;
}

static PyObject *sequence_held(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((sequence_object *)self)->held);
}

static PyMethodDef sequence_methods[] = {
    {"load", sequence_load, METH_VARARGS | METH_STATIC, "mhla_sequence_load(model, path)"},
    {"fork", sequence_fork, METH_NOARGS, "mhla_sequence_fork"},
    {"rollback", sequence_rollback, METH_VARARGS, "mhla_sequence_rollback(tokens)"},
    {"save", sequence_save, METH_VARARGS, "mhla_sequence_save(path)"},
    {"ids", sequence_ids, METH_NOARGS, "mhla_sequence_ids: bytes of int32"},
    {"query", sequence_query, METH_NOARGS, "mhla_sequence_query: (beyond, max_tokens)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef sequence_getset[] = {
    {"tokens", sequence_tokens, NULL, "Tokens read so far.", NULL},
    {"nbytes", sequence_nbytes, NULL, "Bytes of memory, shared parts included.", NULL},
    {"note", sequence_note, sequence_set_note, "A text that goes along with it.", NULL},
    {"held", sequence_held, NULL, "A generation continues it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject sequence_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Sequence",
    .tp_doc = "What a language model remembers of some tokens (mhla_sequence).",
    .tp_basicsize = sizeof(sequence_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = sequence_new,
    .tp_dealloc = sequence_dealloc,
    .tp_methods = sequence_methods,
    .tp_getset = sequence_getset,
};

/* ---- Feeding ---- */

/* One of feed's tuples: (sequence, ids, count, logits, all_logits, targets, logprobs), addresses as ints. */
static int read_feed(mhla_feed *feed, PyObject *item, const model_object *model) {
    sequence_object *s;
    unsigned long long ids, logits, all, targets, logprobs;
    long long count;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "O!KLKKKK", &sequence_type, &s, &ids, &count, &logits, &all, &targets, &logprobs)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "feeds are tuples");
        return -1;
    }
    if (s->model != model) {
        PyErr_SetString(PyExc_ValueError, "the sequence is of another model");
        return -1;
    }
    *feed = (mhla_feed){.size = sizeof *feed,
                        .sequence = s->sequence,
                        .ids = at((int64_t)ids),
                        .count = count,
                        .logits = at((int64_t)logits),
                        .all_logits = at((int64_t)all),
                        .targets = at((int64_t)targets),
                        .logprobs = at((int64_t)logprobs)};
    return refuse_held(s);
}

static PyObject *lm_feed(PyObject *module, PyObject *args) { /* (model, [feed]); the list keeps the sequences alive */
    (void)module;
    model_object *model;
    PyObject *list, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!", &binding_model_type, &model, &PyList_Type, &list)) return NULL;
    const Py_ssize_t n = PyList_GET_SIZE(list);
    mhla_feed *feeds = PyMem_Calloc((size_t)n + 1, sizeof *feeds);
    if (feeds == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_feed(&feeds[i], PyList_GET_ITEM(list, i), model) < 0) goto done;
    if (binding_model_enter(model) < 0) goto done;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_lm_feed(model->model, feeds, n);
    Py_END_ALLOW_THREADS binding_model_leave(model);
    result = status == MHLA_OK ? Py_NewRef(Py_None) : binding_raise(status);
done:
    PyMem_Free(feeds);
    return result;
}

/* ---- Generations ---- */

typedef struct generation_object {
    PyObject_HEAD mhla_generation *generation;
    sequence_object *sequence;
} generation_object;

static void release_generation(void *generation) { mhla_generation_free(generation); }

/* texts [n] of a list of str; they live as long as the list does. NULL with an exception set. */
static const char **read_texts(PyObject *list) {
    const Py_ssize_t n = PyList_GET_SIZE(list);
    const char **texts = PyMem_Calloc((size_t)n + 1, sizeof *texts);
    if (texts == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; texts && i < n; i++) {
        texts[i] = binding_text(PyList_GET_ITEM(list, i));
        if (texts[i] == NULL) {
            PyMem_Free((void *)texts);
            return NULL;
        }
    }
    return texts;
}

/* (sequence, (prompt, count), (temperature, top_k, top_p, min_p), (repeat_penalty, repeat_last, presence, frequency),
 *  (bias, biases), order, seed, max_tokens, [stop], (stop_ids, count), ignore_eos, logprobs) */
static PyObject *generation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    sequence_object *s;
    PyObject *stop;
    unsigned long long prompt, bias, stop_ids, seed;
    long long count, most;
    int order;
    mhla_sampling sampling = {.size = sizeof sampling}, *const p = &sampling;
    mhla_generation_desc d = {.size = sizeof d, .sampling = p};
    if (!PyArg_ParseTuple(args, "O!(KL)(didd)(didd)(Ki)iKLO!(Ki)pi", &sequence_type, &s, &prompt, &count,
                          &p->temperature, &p->top_k, &p->top_p, &p->min_p, &p->repeat_penalty, &p->repeat_last,
                          &p->presence_penalty, &p->frequency_penalty, &bias, &p->biases, &order, &seed, &most,
                          &PyList_Type, &stop, &stop_ids, &d.stop_id_count, &d.ignore_eos, &d.logprobs) ||
        binding_model_idle(s->model) < 0 || refuse_held(s) < 0)
        return NULL;
    const char **texts = read_texts(stop);
    if (texts == NULL) return NULL;
    p->bias = at((int64_t)bias);
    p->order = (mhla_sampling_order)order;
    p->seed = seed;
    d.max_tokens = most;
    d.stop = texts;
    d.stops = (int)PyList_GET_SIZE(stop);
    d.stop_ids = at((int64_t)stop_ids);
    mhla_generation *made = NULL;
    const mhla_status status = mhla_generation_create(&made, s->sequence, at((int64_t)prompt), count, &d);
    PyMem_Free((void *)texts);
    if (status != MHLA_OK) return binding_raise(status);
    generation_object *self = (generation_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        mhla_generation_free(made);
        return NULL;
    }
    self->generation = made;
    self->sequence = (sequence_object *)Py_NewRef((PyObject *)s);
    s->held = 1;
    return (PyObject *)self;
}

/* Lets go of the sequence; harmless when repeated. */
static PyObject *generation_close(PyObject *self, PyObject *unused) {
    (void)unused;
    generation_object *g = (generation_object *)self;
    sequence_object *s = g->sequence;
    if (s == NULL) Py_RETURN_NONE;
    binding_model_bury(s->model, release_generation, g->generation);
    g->generation = NULL;
    g->sequence = NULL;
    s->held = 0;
    Py_DECREF((PyObject *)s);
    Py_RETURN_NONE;
}

static void generation_dealloc(PyObject *self) {
    Py_XDECREF(generation_close(self, NULL));
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef generation_methods[] = {
    {"close", generation_close, METH_NOARGS, "mhla_generation_free"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject generation_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Generation",
    .tp_doc = "A sequence that goes on by itself (mhla_generation).",
    .tp_basicsize = sizeof(generation_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = generation_new,
    .tp_dealloc = generation_dealloc,
    .tp_methods = generation_methods,
};

/* (text, id, logprob, [(id, logprob)], finish, stopped by) of the last step. */
static PyObject *piece_of(const mhla_generation *generation) {
    mhla_piece p = {.size = sizeof p};
    mhla_generation_piece(generation, &p);
    PyObject *top = PyList_New(p.tops), *text = text_of(p.text, p.bytes);
    for (int i = 0; top && i < p.tops; i++) {
        PyObject *one = Py_BuildValue("id", (int)p.top[i].id, (double)p.top[i].probability);
        if (one == NULL)
            Py_CLEAR(top);
        else
            PyList_SET_ITEM(top, i, one);
    }
    if (top == NULL || text == NULL) {
        Py_XDECREF(top);
        Py_XDECREF(text);
        return NULL;
    }
    return Py_BuildValue("NidNiz", text, (int)p.id, (double)p.logprob, top, (int)p.finish, p.stopped_by);
}

static PyObject *pieces_of(mhla_generation *const *all, Py_ssize_t n) {
    PyObject *pieces = PyList_New(n);
    for (Py_ssize_t i = 0; pieces && i < n; i++) {
        PyObject *piece = piece_of(all[i]);
        if (piece == NULL)
            Py_CLEAR(pieces);
        else
            PyList_SET_ITEM(pieces, i, piece);
    }
    return pieces;
}

/* (model, [generation]): a list of pieces. A generation that another thread closes meanwhile is buried, and freed by leave. */
static PyObject *lm_step(PyObject *module, PyObject *args) {
    (void)module;
    model_object *model;
    PyObject *list, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!", &binding_model_type, &model, &PyList_Type, &list)) return NULL;
    const Py_ssize_t n = PyList_GET_SIZE(list);
    mhla_generation **all = PyMem_Calloc((size_t)n + 1, sizeof *all);
    if (all == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        const generation_object *g = (const generation_object *)item;
        if (!PyObject_TypeCheck(item, &generation_type) || g->sequence == NULL || g->sequence->model != model) {
            PyErr_SetString(PyExc_ValueError, "step takes open generations of one model");
            goto done;
        }
        all[i] = g->generation;
    }
    if (binding_model_enter(model) < 0) goto done;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_generation_step(model->model, all, n);
    Py_END_ALLOW_THREADS
        /* before whoever closed one meanwhile has it freed */
        result = status == MHLA_OK ? pieces_of(all, n) : binding_raise(status);
    binding_model_leave(model);
done:
    PyMem_Free(all);
    return result;
}

/* ---- What it is ---- */

static PyObject *lm_info(PyObject *module, PyObject *args) {
    (void)module;
    model_object *model;
    if (!PyArg_ParseTuple(args, "O!", &binding_model_type, &model) || binding_model_idle(model) < 0) return NULL;
    mhla_lm_info i = {.size = sizeof i};
    const mhla_status status = mhla_lm_query(model->model, &i);
    if (status != MHLA_OK) return binding_raise(status);
    PyObject *ends = ids_list(i.ends, i.end_count);
    if (ends == NULL) return NULL;
    return Py_BuildValue("{s:i,s:i,s:i,s:L,s:i,s:i,s:s,s:s,s:n,s:n,s:i,s:N}", "vocabulary", i.vocabulary, "width",
                         i.width, "layers", i.layers, "context", (long long)i.context, "bos", (int)i.bos, "eos",
                         (int)i.eos, "attention", i.attention, "storage", i.storage, "weight_bytes",
                         (Py_ssize_t)i.weight_bytes, "state_bytes", (Py_ssize_t)i.state_bytes, "chunk", i.chunk, "ends",
                         ends);
}

static PyMethodDef functions[] = {
    {"lm_info", lm_info, METH_VARARGS, "mhla_lm_query(model)"},
    {"lm_feed", lm_feed, METH_VARARGS,
     "mhla_lm_feed(model, [(sequence, ids, count, logits, all_logits, targets, logprobs)])"},
    {"lm_step", lm_step, METH_VARARGS, "mhla_generation_step(model, [generation]): pieces"},
    {NULL, NULL, 0, NULL},
};

int binding_add_lm(PyObject *module) {
    PyTypeObject *const types[] = {&tokenizer_type, &sequence_type, &generation_type};
    const char *const names[] = {"Tokenizer", "Sequence", "Generation"};
    for (int i = 0; i < 3; i++)
        if (PyType_Ready(types[i]) < 0 || PyModule_AddObjectRef(module, names[i], (PyObject *)types[i]) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}
#endif
