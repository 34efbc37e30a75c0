/* mhla._mhla: the C library for Python. It knows addresses, strides and sizes as plain ints; who owns the memory (NumPy
 * arrays, torch tensors) is decided above, so that it needs neither. Every call that computes lets go of the GIL. */
#include "binding.h"

static PyObject *error_type, *file_error_type;
static mhla_context *context; /* NULL until set_threads */

PyObject *binding_raise(mhla_status status) {
    const char *message = mhla_message();
    if (message[0] == '\0') message = mhla_status_text(status);
    PyErr_SetString(status == MHLA_ENOMEM ? PyExc_MemoryError
                    : status == MHLA_EIO  ? file_error_type
                                          : error_type,
                    message);
    return NULL;
}

const char *binding_text(PyObject *text) {
    Py_ssize_t bytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (utf8 == NULL || strlen(utf8) == (size_t)bytes) return utf8;
    PyErr_SetString(PyExc_ValueError, "embedded null character");
    return NULL;
}

/* ---- Calls ---- */

int binding_ints(int64_t *out, PyObject *const *args, Py_ssize_t given, Py_ssize_t n) {
    if (given != n) {
        PyErr_Format(PyExc_TypeError, "expected %zd ints, got %zd", n, given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(args[i]);
        if (out[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

int binding_read(flat_call *f, PyObject *const *args, Py_ssize_t given, Py_ssize_t n) {
    memset(f, 0, sizeof *f);
    return binding_ints((int64_t *)f, args, given, n);
}

/* The same, perhaps with KEY_FIELDS. */
static int read_with_keys(flat_call *f, PyObject *const *args, Py_ssize_t given, Py_ssize_t n) {
    const int keys = given == n + N_KEY;
    if (binding_read(f, args, keys ? n : given, n) < 0) return -1;
    return keys ? binding_ints(&f->key_rope_cos, args + n, N_KEY, N_KEY) : 0;
}

const mhla_context *binding_context(void) { return context ? context : binding_foreign_context(0); }

mhla_call binding_call(const flat_call *f) {
    return (mhla_call){
        .size = sizeof(mhla_call),
        .context = binding_context(),
        .batch = f->batch,
        .tokens = f->tokens,
        .kv_tokens = f->kv_tokens,
        .q = {f->q_batch, f->q_token, f->q_head},
        .k = {f->k_batch, f->k_token, f->k_head},
        .v = {f->v_batch, f->v_token, f->v_head},
        .o = {f->o_batch, f->o_token, f->o_head},
        .cu_seqlens = at(f->cu_seqlens),
        .sequences = f->sequences,
        .rope_cos = at(f->rope_cos),
        .rope_sin = at(f->rope_sin),
        .rope_rows = f->rope_rows,
        .key_rope_cos = at(f->key_rope_cos),
        .key_rope_sin = at(f->key_rope_sin),
        .key_rope_rows = f->key_rope_rows,
        .q2 = at(f->q2),
        .k2 = at(f->k2),
        .q2_strides = {f->q2_batch, f->q2_token, f->q2_head},
        .k2_strides = {f->k2_batch, f->k2_token, f->k2_head},
        .past = f->past,
        .initial_state = at(f->initial_state),
        .initial_z = at(f->initial_z),
        .final_state = at(f->final_state),
        .final_z = at(f->final_z),
    };
}

/* The call of a plan, and the mixing matrix that goes with it. */
static mhla_call call_of(const plan_object *p, const flat_call *f, const float **mix) {
    mhla_call call = binding_call(f);
    *mix = p->focused ? NULL : at(f->mix);
    if (p->focused) call.focus = at(f->mix);
    call.precision = p->precision;
    return call;
}

static PyObject *run_forward(PyObject *self, PyObject *const *args, Py_ssize_t n, int reference) {
    const plan_object *p = (const plan_object *)self;
    flat_call f;
    if (read_with_keys(&f, args, n, N_CALL) < 0) return NULL;
    const float *mix;
    const mhla_call call = call_of(p, &f, &mix);
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS if (reference) status =
        mhla_forward_reference(p->plan, &call, at(f.o), at(f.q), at(f.k), at(f.v), mix);
    else status = mhla_forward(p->plan, &call, at(f.o), at(f.q), at(f.k), at(f.v), mix, NULL);
    Py_END_ALLOW_THREADS if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *run_backward(PyObject *self, PyObject *const *args, Py_ssize_t n, int reference) {
    const plan_object *p = (const plan_object *)self;
    flat_call f;
    if (read_with_keys(&f, args, n, N_CALL + N_GRAD) < 0) return NULL;
    const float *mix;
    const mhla_call call = call_of(p, &f, &mix);
    const mhla_grads grads = {
        .size = sizeof grads,
        .dq = at(f.dq),
        .dk = at(f.dk),
        .dv = at(f.dv),
        .dmix = p->focused ? NULL : at(f.dmix),
        .dfocus = p->focused ? at(f.dmix) : NULL,
        .dq2 = at(f.dq2),
        .dk2 = at(f.dk2),
        .dinitial_state = at(f.dinitial_state),
        .dinitial_z = at(f.dinitial_z),
        .dfinal_state = at(f.dfinal_state),
        .dfinal_z = at(f.dfinal_z),
    };
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS if (reference) status =
        mhla_backward_reference(p->plan, &call, &grads, at(f.o), at(f.q), at(f.k), at(f.v), mix);
    else status = mhla_backward(p->plan, &call, &grads, at(f.o), at(f.q), at(f.k), at(f.v), mix, NULL);
    Py_END_ALLOW_THREADS if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *plan_forward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    return run_forward(self, args, n, 0);
}
static PyObject *plan_forward_reference(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    return run_forward(self, args, n, 1);
}
static PyObject *plan_backward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    return run_backward(self, args, n, 0);
}
static PyObject *plan_backward_reference(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    return run_backward(self, args, n, 1);
}

static PyObject *plan_workspace(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    const plan_object *p = (const plan_object *)self;
    flat_call f;
    if (binding_read(&f, args, n, N_CALL) < 0) return NULL;
    const float *mix;
    const mhla_call call = call_of(p, &f, &mix);
    const size_t forward = mhla_forward_workspace(p->plan, &call), backward = mhla_backward_workspace(p->plan, &call);
    return Py_BuildValue("nn", (Py_ssize_t)forward, (Py_ssize_t)backward);
}

/* ---- Plans ---- */

static int read_axes(int *out, PyObject *axes, const char *name) {
    const Py_ssize_t n = PySequence_Size(axes);
    if (n < 0) return -1;
    if (n > 3) {
        PyErr_Format(error_type, "%s has %zd axes: expected 1, 2 or 3", name, n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(axes, i);
        if (item == NULL) return -1;
        const long value = PyLong_AsLong(item);
        Py_DECREF(item);
        if (value == -1 && PyErr_Occurred()) return -1;
        if (value < 1 || value > INT32_MAX) {
            PyErr_Format(error_type, "%s[%zd] is %ld: expected 1 or more", name, i, value);
            return -1;
        }
        out[i] = (int)value;
    }
    return (int)n;
}

/* One of the two layouts of a plan, as Python describes it. */
typedef struct layout {
    PyObject *grid, *blocks;        /* sequences */
    Py_buffer offsets, permutation; /* int64 [M+1] and int32 [T], or nothing */
} layout;

static int read_layout(const layout *l, const char *key, int *axes, int *grid, int *blocks, int64_t *n_blocks,
                       int64_t *n_tokens, const int64_t **offsets, const int32_t **permutation) {
    char name[2][16];
    snprintf(name[0], sizeof name[0], "%sgrid", key);
    snprintf(name[1], sizeof name[1], "%sblocks", key);
    *axes = l->grid ? read_axes(grid, l->grid, name[0]) : 0;
    const int cuts = *axes < 0 || l->blocks == NULL ? *axes : read_axes(blocks, l->blocks, name[1]);
    if (*axes < 0 || cuts < 0) return -1;
    if (cuts != *axes) {
        PyErr_Format(error_type, "%s has %d axes, %s has %d", name[1], cuts, name[0], *axes);
        return -1;
    }
    if (l->offsets.buf == NULL) return 0;
    *n_blocks = l->offsets.len / 8 - 1;
    *n_tokens = l->offsets.len >= 8 ? ((const int64_t *)l->offsets.buf)[l->offsets.len / 8 - 1] : 0;
    *offsets = l->offsets.buf;
    *permutation = l->permutation.buf;
    if (l->permutation.buf == NULL || l->permutation.len / 4 == *n_tokens) return 0;
    PyErr_Format(error_type, "%spermutation has %zd tokens, %sblock_offsets ends with %lld", key,
                 l->permutation.len / 4, key, (long long)*n_tokens);
    return -1;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind",
                            "dtype",
                            "heads",
                            "kv_heads",
                            "key_dim",
                            "value_dim",
                            "feature",
                            "feature_eps",
                            "denominator",
                            "den_eps",
                            "scale",
                            "rope",
                            "rope_dim",
                            "grid",
                            "blocks",
                            "order",
                            "block_offsets",
                            "permutation",
                            "mix_per_head",
                            "chunk",
                            "chunks",
                            "beyond",
                            "max_tokens",
                            "causal",
                            "window",
                            "focus_power",
                            "key_heads",
                            "qk_l2norm",
                            "key_grid",
                            "key_blocks",
                            "key_block_offsets",
                            "key_permutation",
                            "precision",
                            NULL};
    mhla_plan_desc d = {.size = sizeof d};
    int kind, dtype, feature, denominator, rope, order, beyond, precision = -1;
    long long chunks, max_tokens, window;
    layout queries = {0}, keys = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iiiiiiififfiiOOiz*z*iiLiLiLiip|OOz*z*i", names, &kind, &dtype, &d.heads, &d.kv_heads,
            &d.key_dim, &d.value_dim, &feature, &d.feature_eps, &denominator, &d.den_eps, &d.scale, &rope, &d.rope_dim,
            &queries.grid, &queries.blocks, &order, &queries.offsets, &queries.permutation, &d.mix_per_head, &d.chunk,
            &chunks, &beyond, &max_tokens, &d.causal, &window, &d.focus_power, &d.key_heads, &d.qk_l2norm, &keys.grid,
            &keys.blocks, &keys.offsets, &keys.permutation, &precision))
        return NULL;
    plan_object *self = NULL;
    d.kind = (mhla_kind)kind;
    d.dtype = (mhla_dtype)dtype;
    d.feature = (mhla_feature)feature;
    d.denominator = (mhla_denominator)denominator;
    d.rope = (mhla_rope)rope;
    d.order = (mhla_order)order;
    d.beyond = (mhla_beyond)beyond;
    d.chunks = chunks;
    d.max_tokens = max_tokens;
    d.window = window;
    if (read_layout(&queries, "", &d.axes, d.grid, d.blocks, &d.n_blocks, &d.n_tokens, &d.block_offsets,
                    &d.permutation) < 0 ||
        read_layout(&keys, "key_", &d.key_axes, d.key_grid, d.key_blocks, &d.key_n_blocks, &d.key_n_tokens,
                    &d.key_block_offsets, &d.key_permutation) < 0)
        goto done;
    self = (plan_object *)type->tp_alloc(type, 0);
    if (self == NULL) goto done;
    self->focused = d.kind == MHLA_KIND_FOCUSED;
    self->precision = precision < 0 ? d.dtype : (mhla_dtype)precision;
    const mhla_status status = mhla_plan_create(&self->plan, &d);
    if (status != MHLA_OK) {
        binding_raise(status);
        Py_CLEAR(self);
    }
done:
    PyBuffer_Release(&queries.offsets);
    PyBuffer_Release(&queries.permutation);
    PyBuffer_Release(&keys.offsets);
    PyBuffer_Release(&keys.permutation);
    return (PyObject *)self;
}

static void plan_dealloc(PyObject *self) {
    mhla_plan_free(((plan_object *)self)->plan);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *plan_blocks(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLongLong(mhla_plan_blocks(((plan_object *)self)->plan));
}
static PyObject *plan_key_blocks(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLongLong(mhla_plan_key_blocks(((plan_object *)self)->plan));
}
static PyObject *plan_tokens(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLongLong(mhla_plan_tokens(((plan_object *)self)->plan));
}
static PyObject *plan_chunk(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(mhla_plan_chunk(((plan_object *)self)->plan));
}

static PyGetSetDef plan_getset[] = {
    {"blocks", plan_blocks, NULL, "M, of queries", NULL},
    {"key_blocks", plan_key_blocks, NULL, "Mk", NULL},
    {"tokens", plan_tokens, NULL, "T of a bidirectional plan, else 0", NULL},
    {"chunk", plan_chunk, NULL, "C as chosen, else 0", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef plan_methods[] = {
    {"forward", FAST(plan_forward), METH_FASTCALL, "mhla_forward; takes the ints of CALL_FIELDS."},
    {"backward", FAST(plan_backward), METH_FASTCALL, "mhla_backward; the ints of CALL_FIELDS, then GRAD_FIELDS."},
    {"forward_reference", FAST(plan_forward_reference), METH_FASTCALL, "mhla_forward_reference."},
    {"backward_reference", FAST(plan_backward_reference), METH_FASTCALL, "mhla_backward_reference."},
    {"workspace", FAST(plan_workspace), METH_FASTCALL, "Bytes of scratch memory: (forward, backward)."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject binding_plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Plan",
    .tp_doc = "An immutable plan (mhla_plan).",
    .tp_basicsize = sizeof(plan_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
    .tp_methods = plan_methods,
    .tp_getset = plan_getset,
};

/* ---- The mixing matrix, rotary tables ---- */

static PyObject *mix_fill(PyObject *module, PyObject *args) { /* (address [Mq,Mk], name, blocks, key_blocks, param) */
    (void)module;
    unsigned long long mix;
    const char *name;
    PyObject *blocks, *key_blocks;
    double param;
    int cuts[3], key_cuts[3];
    mhla_mix_init init;
    if (!PyArg_ParseTuple(args, "KsOOd", &mix, &name, &blocks, &key_blocks, &param)) return NULL;
    const int axes = read_axes(cuts, blocks, "blocks");
    const int key_axes = axes < 0 ? -1 : read_axes(key_cuts, key_blocks, "key_blocks");
    if (key_axes < 0) return NULL;
    if (key_axes != axes) {
        PyErr_Format(error_type, "key_blocks has %d axes, blocks has %d", key_axes, axes);
        return NULL;
    }
    mhla_status status = mhla_mix_from_name(&init, name);
    if (status == MHLA_OK) status = mhla_mix_fill_cross(at((int64_t)mix), init, axes, cuts, key_cuts, param);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *mix_clip(PyObject *module,
                          PyObject *args) { /* (address, rows, cols, low, high, renormalise, causal) */
    (void)module;
    unsigned long long mix;
    long long rows, cols;
    float low, high;
    int renormalise, causal;
    if (!PyArg_ParseTuple(args, "KLLffpp", &mix, &rows, &cols, &low, &high, &renormalise, &causal)) return NULL;
    const mhla_status status = mhla_mix_clip(at((int64_t)mix), rows, cols, low, high, renormalise, causal);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *mix_names(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *names = PyList_New(0);
    for (int i = 0; names && mhla_mix_name((mhla_mix_init)i); i++) {
        PyObject *name = PyUnicode_FromString(mhla_mix_name((mhla_mix_init)i));
        if (name == NULL || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *rope_table(PyObject *module, PyObject *args) { /* (cos, sin, grid, dims, base) */
    (void)module;
    unsigned long long cosines, sines;
    PyObject *grid, *dims;
    double base;
    int g[3], d[3];
    if (!PyArg_ParseTuple(args, "KKOOd", &cosines, &sines, &grid, &dims, &base)) return NULL;
    const int axes = read_axes(g, grid, "grid");
    if (axes < 0) return NULL;
    const int parts = read_axes(d, dims, "dims");
    if (parts < 0) return NULL;
    if (parts != axes) return PyErr_Format(error_type, "dims has %d axes, grid has %d", parts, axes);
    const mhla_status status = mhla_rope_table(at((int64_t)cosines), at((int64_t)sines), axes, g, d, base);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

/* ---- The machine ---- */

static PyObject *cpu_info(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    mhla_cpu_info i = {.size = sizeof i};
    const mhla_status status = mhla_cpu_query(&i);
    if (status != MHLA_OK) return binding_raise(status);
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:n,s:n,s:n}", "version", mhla_version(), "isa", i.isa, "why",
                         i.why, "available", i.available, "model", i.model, "cpus", i.cpus, "threads",
                         mhla_context_threads(binding_context()), "l1d", (Py_ssize_t)i.l1d, "l2", (Py_ssize_t)i.l2,
                         "l3", (Py_ssize_t)i.l3);
}

static PyObject *set_isa(PyObject *module, PyObject *args) {
    (void)module;
    const char *name;
    if (!PyArg_ParseTuple(args, "z", &name)) return NULL;
    const mhla_status status = mhla_set_isa(name);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

/* A new context for every later call, with threads of the library's own choice; the old one is kept, because another
 * thread may be using it. */
static PyObject *set_threads(PyObject *module, PyObject *args) {
    (void)module;
    int threads;
    if (!PyArg_ParseTuple(args, "i", &threads)) return NULL;
    mhla_context *made = threads > 0 ? binding_foreign_context(threads) : NULL;
    if (threads != 0 && made == NULL) {
        const mhla_context_desc d = {.size = sizeof d, .threads = threads};
        const mhla_status status = mhla_context_create(&made, &d);
        if (status != MHLA_OK) return binding_raise(status);
    }
    context = made;
    Py_RETURN_NONE;
}

static PyObject *measure_peak(PyObject *module, PyObject *args) {
    (void)module;
    int dtype;
    double seconds, rate;
    if (!PyArg_ParseTuple(args, "id", &dtype, &seconds)) return NULL;
    Py_BEGIN_ALLOW_THREADS rate = mhla_measure_peak((mhla_dtype)dtype, context, seconds);
    Py_END_ALLOW_THREADS return PyFloat_FromDouble(rate);
}

static PyMethodDef methods[] = {
    {"mix_fill", mix_fill, METH_VARARGS, "mhla_mix_fill_cross"},
    {"mix_clip", mix_clip, METH_VARARGS, "mhla_mix_clip"},
    {"mix_names", mix_names, METH_NOARGS, "Every name that mix_fill knows."},
    {"rope_table", rope_table, METH_VARARGS, "mhla_rope_table"},
    {"cpu_info", cpu_info, METH_NOARGS, "mhla_cpu_query"},
    {"set_isa", set_isa, METH_VARARGS, "mhla_set_isa"},
    {"set_threads", set_threads, METH_VARARGS, "Threads of every later call; 0 = what OpenMP would use."},
    {"use_openmp", binding_use_openmp, METH_VARARGS, "Hands our loops to the OpenMP runtime loaded from this path."},
    {"measure_peak", measure_peak, METH_VARARGS, "mhla_measure_peak"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_mhla",
                                        "libmhla by address; use the functions of mhla instead.",
                                        -1,
                                        methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

static int add_names(PyObject *module) {
#define X(name) #name,
    static const char *const call[] = {CALL_FIELDS(X)}, *const grad[] = {GRAD_FIELDS(X)};
#undef X
    PyObject *fields = PyTuple_New(N_CALL + N_GRAD);
    if (fields == NULL) return -1;
    for (int i = 0; i < N_CALL + N_GRAD; i++) {
        PyObject *name = PyUnicode_FromString(i < N_CALL ? call[i] : grad[i - N_CALL]);
        if (name == NULL) return -1;
        PyTuple_SET_ITEM(fields, i, name);
    }
    return PyModule_AddObject(module, "FIELDS", fields);
}

/* Error, and FileError, which is an Error and an OSError. */
static int add_errors(PyObject *module) {
    error_type = PyErr_NewExceptionWithDoc("mhla.Error", "An argument that libmhla refuses; says which, and its value.",
                                           PyExc_ValueError, NULL);
    PyObject *bases = error_type ? PyTuple_Pack(2, error_type, PyExc_OSError) : NULL;
    if (bases == NULL) return -1;
    file_error_type = PyErr_NewExceptionWithDoc(
        "mhla.FileError", "A file that cannot be read or written; an Error and an OSError.", bases, NULL);
    Py_DECREF(bases);
    if (file_error_type == NULL || PyModule_AddObjectRef(module, "Error", error_type) < 0) return -1;
    return PyModule_AddObjectRef(module, "FileError", file_error_type);
}

PyMODINIT_FUNC PyInit__mhla(void);
PyMODINIT_FUNC PyInit__mhla(void) {
    if (PyType_Ready(&binding_plan_type) < 0 || PyType_Ready(&binding_state_type) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (add_errors(module) < 0 || PyModule_AddObjectRef(module, "Plan", (PyObject *)&binding_plan_type) < 0 ||
        PyModule_AddObjectRef(module, "State", (PyObject *)&binding_state_type) < 0 || add_names(module) < 0 ||
        PyModule_AddFunctions(module, binding_step) < 0 || PyModule_AddFunctions(module, binding_recurrent) < 0 ||
        PyModule_AddFunctions(module, binding_mamba) < 0 || binding_add_models(module) < 0)
        return NULL;
    return module;
}
