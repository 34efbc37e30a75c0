/* mhla._mhla.Model: a whole model of libmhla-nn. Where that is not part of the build there is no such type, and the
 * module's MODELS_MISSING names the packages that it would have needed. */
#include "binding.h"

#ifdef MHLA_NN
#include <mhla/diffusion.h>
#include <mhla/lm.h>

#define MISSING Py_NewRef(Py_None)

#define model_type binding_model_type

static PyObject *wrap(mhla_model *made) {
    model_object *self = (model_object *)model_type.tp_alloc(&model_type, 0);
    if (self == NULL)
        mhla_model_free(made);
    else
        self->model = made;
    return (PyObject *)self;
}

int binding_model_idle(const model_object *m) {
    if (!m->busy) return 0;
    PyErr_SetString(PyExc_RuntimeError, "the model is in use by another thread");
    return -1;
}

int binding_model_enter(model_object *m) {
    if (binding_model_idle(m) < 0) return -1;
    const mhla_context *context = binding_context();
    if (context != m->context) mhla_model_set_context(m->model, context);
    m->context = context;
    m->busy = 1;
    return 0;
}

void binding_model_leave(model_object *m) {
    m->busy = 0;
    while (m->first) {
        binding_grave *grave = m->first;
        m->first = grave->next;
        grave->release(grave->what);
        PyMem_Free(grave);
    }
    m->last = NULL;
}

void binding_model_bury(model_object *m, void (*release)(void *what), void *what) {
    if (!m->busy) {
        release(what);
        return;
    }
    binding_grave *grave = PyMem_Malloc(sizeof *grave);
    if (grave == NULL) return; /* a leak is better than a crash of the thread inside */
    *grave = (binding_grave){NULL, release, what};
    if (m->last)
        m->last->next = grave;
    else
        m->first = grave;
    m->last = grave;
}

static int enter(model_object *m) { return binding_model_enter(m); }

static PyObject *leave(model_object *m, mhla_status status) {
    binding_model_leave(m);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

mhla_status binding_files_read(int64_t guard, mhla_status status) {
    const mhla_status lost = mhla_files_release(guard);
    return lost != MHLA_OK ? lost : status;
}

static mhla_status open_model(mhla_model **made, const char *path, const char *weights, const char *storage) {
    return mhla_model_open_as(
        made, path, &(mhla_open_desc){.size = sizeof(mhla_open_desc), .storage = storage, .weights = weights});
}

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { /* (path, weights, storage) */
    (void)type, (void)kwargs;
    PyObject *path;
    const char *weights = NULL, *storage = NULL;
    mhla_model *made = NULL;
    if (!PyArg_ParseTuple(args, "O&|zz", PyUnicode_FSConverter, &path, &weights, &storage)) return NULL;
    mhla_status status;
    const int64_t guard = mhla_files_guard();
    Py_BEGIN_ALLOW_THREADS status = open_model(&made, PyBytes_AS_STRING(path), weights, storage);
    if (status != MHLA_OK) made = NULL;
    status = binding_files_read(guard, status);
    if (status != MHLA_OK) mhla_model_free(made);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    return status == MHLA_OK ? wrap(made) : binding_raise(status);
}

static PyObject *model_create(PyObject *unused, PyObject *args) { /* (preset, ["key=value"], seed) */
    (void)unused;
    const char *preset;
    PyObject *list;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "sO!K", &preset, &PyList_Type, &list, &seed)) return NULL;
    const Py_ssize_t n = PyList_GET_SIZE(list);
    const char **settings = PyMem_Calloc((size_t)n + 1, sizeof *settings);
    if (settings == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        if ((settings[i] = binding_text(PyList_GET_ITEM(list, i))) == NULL) {
            PyMem_Free((void *)settings);
            return NULL;
        }
    mhla_model *made = NULL;
    const mhla_status status = mhla_model_create(&made, preset, settings, (int)n, seed);
    PyMem_Free((void *)settings);
    return status == MHLA_OK ? wrap(made) : binding_raise(status);
}

static void model_dealloc(PyObject *self) {
    mhla_model_free(((model_object *)self)->model);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *model_forward(PyObject *self, PyObject *args) { /* (logits, images, n) */
    model_object *m = (model_object *)self;
    unsigned long long logits, images;
    long long n;
    if (!PyArg_ParseTuple(args, "KKL", &logits, &images, &n) || enter(m) < 0) return NULL;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_model_forward(m->model, at((int64_t)logits), at((int64_t)images), n);
    Py_END_ALLOW_THREADS return leave(m, status);
}

static PyObject *model_denoise(PyObject *self, PyObject *args) { /* (output, x, times, labels, n, height, width) */
    model_object *m = (model_object *)self;
    unsigned long long output, x, times, labels;
    mhla_denoise d = {.size = sizeof d};
    long long n;
    if (!PyArg_ParseTuple(args, "KKKKLii", &output, &x, &times, &labels, &n, &d.height, &d.width) || enter(m) < 0)
        return NULL;
    d.count = n;
    d.x = at((int64_t)x);
    d.times = at((int64_t)times);
    d.labels = at((int64_t)labels);
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_model_denoise(m->model, at((int64_t)output), &d);
    Py_END_ALLOW_THREADS return leave(m, status);
}

static PyObject *model_encode(PyObject *self,
                              PyObject *args) { /* (mean, deviation, images, n, frames, height, width, memory) */
    model_object *m = (model_object *)self;
    unsigned long long mean, deviation, images, memory;
    mhla_coding c = {.size = sizeof c};
    long long n;
    if (!PyArg_ParseTuple(args, "KKKLiiiK", &mean, &deviation, &images, &n, &c.frames, &c.height, &c.width, &memory) ||
        enter(m) < 0)
        return NULL;
    c.memory = (size_t)memory;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status =
        mhla_model_encode(m->model, at((int64_t)mean), at((int64_t)deviation), at((int64_t)images), n, &c);
    Py_END_ALLOW_THREADS return leave(m, status);
}

static PyObject *model_decode(PyObject *self,
                              PyObject *args) { /* (images, latents, n, frames, height, width, memory) */
    model_object *m = (model_object *)self;
    unsigned long long images, latents, memory;
    mhla_coding c = {.size = sizeof c};
    long long n;
    if (!PyArg_ParseTuple(args, "KKLiiiK", &images, &latents, &n, &c.frames, &c.height, &c.width, &memory) ||
        enter(m) < 0)
        return NULL;
    c.memory = (size_t)memory;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_model_decode(m->model, at((int64_t)images), at((int64_t)latents), n, &c);
    Py_END_ALLOW_THREADS return leave(m, status);
}

static PyObject *model_codec_info(PyObject *self, PyObject *unused) {
    (void)unused;
    mhla_codec_info i = {.size = sizeof i};
    const mhla_status status = mhla_codec_query(((model_object *)self)->model, &i);
    if (status != MHLA_OK) return binding_raise(status);
    PyObject *tables[2] = {NULL};
    for (int k = 0; k < 2; k++) {
        const float *table = k ? i.deviation : i.mean;
        tables[k] = PyTuple_New(table ? i.latents : 0);
        for (int c = 0; tables[k] && table && c < i.latents; c++)
            PyTuple_SET_ITEM(tables[k], c, PyFloat_FromDouble((double)table[c]));
    }
    return Py_BuildValue("{s:i,s:i,s:i,s:d,s:d,s:O,s:O,s:i,s:N,s:N}", "outputs", i.outputs, "latents", i.latents,
                         "factor", i.factor, "scale", i.scale, "shift", i.shift, "encodes",
                         i.encodes ? Py_True : Py_False, "decodes", i.decodes ? Py_True : Py_False, "frames", i.frames,
                         "mean", tables[0], "deviation", tables[1]);
}

static PyObject *model_classify(PyObject *self, PyObject *args) { /* (probabilities, path) */
    model_object *m = (model_object *)self;
    unsigned long long out;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "KO&", &out, PyUnicode_FSConverter, &path)) return NULL;
    PyObject *result = NULL;
    if (enter(m) == 0) {
        mhla_status status;
        const int64_t guard = mhla_files_guard();
        Py_BEGIN_ALLOW_THREADS status = mhla_model_classify(m->model, at((int64_t)out), PyBytes_AS_STRING(path));
        status = binding_files_read(guard, status);
        Py_END_ALLOW_THREADS result = leave(m, status);
    }
    Py_DECREF(path);
    return result;
}

static PyObject *model_classify_bytes(PyObject *self, PyObject *args) { /* (probabilities, bytes, name) */
    model_object *m = (model_object *)self;
    unsigned long long out;
    Py_buffer bytes;
    const char *name;
    if (!PyArg_ParseTuple(args, "Ky*s", &out, &bytes, &name)) return NULL;
    PyObject *result = NULL;
    if (enter(m) == 0) {
        mhla_status status;
        Py_BEGIN_ALLOW_THREADS status =
            mhla_model_classify_bytes(m->model, at((int64_t)out), bytes.buf, (size_t)bytes.len, name);
        Py_END_ALLOW_THREADS result = leave(m, status);
    }
    PyBuffer_Release(&bytes);
    return result;
}

static PyObject *model_save(PyObject *self, PyObject *args) { /* (folder) */
    model_object *m = (model_object *)self;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    PyObject *result = NULL;
    if (enter(m) == 0) {
        mhla_status status;
        Py_BEGIN_ALLOW_THREADS status = mhla_model_save(m->model, PyBytes_AS_STRING(path));
        Py_END_ALLOW_THREADS result = leave(m, status);
    }
    Py_DECREF(path);
    return result;
}

static PyObject *model_tensor(PyObject *self, PyObject *args) { /* i -> (name, shape, address) */
    int i;
    mhla_tensor_info info = {.size = sizeof info};
    if (!PyArg_ParseTuple(args, "i", &i)) return NULL;
    const mhla_status status = mhla_model_tensor(((model_object *)self)->model, i, &info);
    if (status != MHLA_OK) return binding_raise(status);
    PyObject *shape = PyTuple_New(info.axes);
    for (int a = 0; shape && a < info.axes; a++) {
        PyObject *size = PyLong_FromLongLong(info.shape[a]);
        if (size == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, a, size);
    }
    return shape ? Py_BuildValue("sNK", info.name, shape, (unsigned long long)(uintptr_t)info.data) : NULL;
}

static PyObject *model_class_name(PyObject *self, PyObject *args) {
    int i;
    if (!PyArg_ParseTuple(args, "i", &i)) return NULL;
    return Py_BuildValue("z", mhla_model_class_name(((model_object *)self)->model, i));
}

static PyObject *model_info(PyObject *self, PyObject *unused) {
    (void)unused;
    mhla_model_info i = {.size = sizeof i};
    const mhla_status status = mhla_model_query(((model_object *)self)->model, &i);
    if (status != MHLA_OK) return binding_raise(status);
    return Py_BuildValue("{s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:L,s:L,s:L,s:i,s:L,s:L,s:z}", "name", i.name, "kind", i.kind,
                         "config", i.config, "classes", i.classes, "channels", i.channels, "height", i.height, "width",
                         i.width, "tokens", (long long)i.tokens, "parameters", (long long)i.parameters, "trainable",
                         (long long)i.trainable, "tensors", i.tensors, "multiply_adds", (long long)i.multiply_adds,
                         "multiply_adds_paper", (long long)i.multiply_adds_paper, "weights", i.weights);
}

static PyMethodDef methods[] = {
    {"create", model_create, METH_VARARGS | METH_STATIC, "mhla_model_create(preset, settings, seed)"},
    {"forward", model_forward, METH_VARARGS, "mhla_model_forward(logits, images, n)"},
    {"denoise", model_denoise, METH_VARARGS, "mhla_model_denoise(output, x, times, labels, n, height, width)"},
    {"encode", model_encode, METH_VARARGS,
     "mhla_model_encode(mean, deviation, images, n, frames, height, width, memory)"},
    {"decode", model_decode, METH_VARARGS, "mhla_model_decode(images, latents, n, frames, height, width, memory)"},
    {"codec_info", model_codec_info, METH_NOARGS, "mhla_codec_query"},
    {"classify", model_classify, METH_VARARGS, "mhla_model_classify(probabilities, path)"},
    {"classify_bytes", model_classify_bytes, METH_VARARGS, "mhla_model_classify_bytes(probabilities, bytes, name)"},
    {"save", model_save, METH_VARARGS, "mhla_model_save(folder)"},
    {"tensor", model_tensor, METH_VARARGS, "mhla_model_tensor(i): (name, shape, address)"},
    {"class_name", model_class_name, METH_VARARGS, "mhla_model_class_name(i)"},
    {"info", model_info, METH_NOARGS, "mhla_model_query"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject model_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Model",
    .tp_doc = "A whole model (mhla_model).",
    .tp_basicsize = sizeof(model_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = model_new,
    .tp_dealloc = model_dealloc,
    .tp_methods = methods,
};

static int add_type(PyObject *module) {
    if (PyType_Ready(&model_type) < 0 || PyModule_AddObjectRef(module, "Model", (PyObject *)&model_type) < 0) return -1;
    if (binding_add_lm(module) < 0 || binding_add_samplers(module) < 0) return -1;
    return binding_add_pipelines(module);
}
#else
#define MISSING PyUnicode_FromString(MHLA_NN_MISSING)
static int add_type(PyObject *module) {
    (void)module;
    return 0;
}
#endif

int binding_add_models(PyObject *module) {
    PyObject *missing = MISSING;
    const int status = missing ? PyModule_AddObjectRef(module, "MODELS_MISSING", missing) : -1;
    Py_XDECREF(missing);
    return status < 0 ? -1 : add_type(module);
}
