/* mhla._mhla.Pipeline: from sentences to images or clips (mhla_pipeline). */
#include "binding.h"

#ifdef MHLA_NN
#include <mhla/diffusion.h>

typedef struct pipeline_object {
    PyObject_HEAD mhla_pipeline *pipeline;
    int busy; /* a call that let go of the GIL is using it */
} pipeline_object;

/* (folder, transformer, vae, text_encoder, tokenizer, scheduler, storage, texts), each a text or None */
static PyObject *pipeline_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    mhla_pipeline_desc d = {.size = sizeof d, .context = binding_context()};
    mhla_pipeline *made = NULL;
    mhla_status status;
    if (!PyArg_ParseTuple(args, "zzzzzzzz", &d.folder, &d.transformer, &d.vae, &d.text_encoder, &d.tokenizer,
                          &d.scheduler, &d.storage, &d.texts))
        return NULL;
    const int64_t guard = mhla_files_guard();
    Py_BEGIN_ALLOW_THREADS status = binding_files_read(guard, mhla_pipeline_open(&made, &d));
    Py_END_ALLOW_THREADS if (status != MHLA_OK) {
        mhla_pipeline_free(made);
        return binding_raise(status);
    }
    pipeline_object *self = (pipeline_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        mhla_pipeline_free(made);
    else
        self->pipeline = made;
    return (PyObject *)self;
}

static void pipeline_dealloc(PyObject *self) {
    mhla_pipeline_free(((pipeline_object *)self)->pipeline);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *pipeline_info(PyObject *self, PyObject *unused) {
    (void)unused;
    mhla_pipeline_info i = {.size = sizeof i};
    const mhla_status status = mhla_pipeline_query(((pipeline_object *)self)->pipeline, &i);
    if (status != MHLA_OK) return binding_raise(status);
    return Py_BuildValue("{s:s,s:s,s:s,s:s,s:z,s:s,s:s,s:O,s:i,s:i,s:i,s:d}", "name", i.name, "transformer",
                         i.transformer, "vae", i.vae, "text_encoder", i.text_encoder, "tokenizer", i.tokenizer,
                         "negative", i.negative, "weights", i.weights, "clips", i.clips ? Py_True : Py_False, "outputs",
                         i.outputs, "factor", i.factor, "frames", i.frames, "seconds", i.seconds);
}

/* ---- A call ---- */

typedef struct call {
    mhla_make_desc d;
    const char **prompts;
    uint64_t *seeds;
    PyObject *report; /* called with (component, done, all, note), or None */
    int failed;       /* it raised */
} call;

static void call_free(call *c) {
    PyMem_Free((void *)c->prompts);
    PyMem_Free(c->seeds);
}

/* (prompts, seeds, negative, instruction, rows, guidance, method, steps, shift, height, width, frames, exact, batch, memory, report) */
static int call_read(call *c, PyObject *args) {
    PyObject *prompts, *seeds;
    long long rows;
    unsigned long long memory;
    *c = (call){.d = {.size = sizeof c->d}};
    if (!PyArg_ParseTuple(args, "O!O!zzLdzidiiipiKO", &PyList_Type, &prompts, &PyList_Type, &seeds, &c->d.negative,
                          &c->d.instruction, &rows, &c->d.guidance, &c->d.method, &c->d.steps, &c->d.shift,
                          &c->d.height, &c->d.width, &c->d.frames, &c->d.exact, &c->d.batch, &memory, &c->report))
        return -1;
    const Py_ssize_t n = PyList_GET_SIZE(prompts);
    if (PyList_GET_SIZE(seeds) != n) {
        PyErr_SetString(PyExc_ValueError, "as many seeds as prompts are needed");
        return -1;
    }
    c->prompts = PyMem_Calloc((size_t)n + 1, sizeof *c->prompts);
    c->seeds = PyMem_Calloc((size_t)n + 1, sizeof *c->seeds);
    if (c->prompts == NULL || c->seeds == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        c->prompts[i] = binding_text(PyList_GET_ITEM(prompts, i));
        c->seeds[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(seeds, i));
        if (c->prompts[i] == NULL || PyErr_Occurred()) return -1;
    }
    c->d.images = n;
    c->d.prompts = c->prompts;
    c->d.seeds = c->seeds;
    c->d.rows = rows;
    c->d.memory = (size_t)memory;
    return 0;
}

static int on_report(void *user, const mhla_make_state *s) {
    static const char *const names[] = {"text encoder", "transformer", "autoencoder"};
    call *c = user;
    if (s->pixels) return 0;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *result = c->report == Py_None ? Py_NewRef(Py_None)
                                            : PyObject_CallFunction(c->report, "sLLz", names[s->component],
                                                                    (long long)s->done, (long long)s->all, s->note);
    c->failed = result == NULL || PyErr_CheckSignals() < 0;
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return c->failed;
}

static PyObject *pipeline_settle(PyObject *self, PyObject *args) {
    call c;
    PyObject *result = NULL;
    if (call_read(&c, args) == 0) {
        const mhla_status status = mhla_pipeline_settle(((pipeline_object *)self)->pipeline, &c.d);
        result = status != MHLA_OK
                     ? binding_raise(status)
                     : Py_BuildValue("{s:d,s:s,s:i,s:d,s:i,s:i,s:i,s:s}", "guidance", c.d.guidance, "sampler",
                                     c.d.method, "steps", c.d.steps, "shift", c.d.shift, "height", c.d.height, "width",
                                     c.d.width, "frames", c.d.frames, "negative", c.d.negative);
    }
    call_free(&c);
    return result;
}

static PyObject *pipeline_make(PyObject *self, PyObject *args) { /* (pixels, *those) */
    pipeline_object *p = (pipeline_object *)self;
    call c = {.prompts = NULL};
    mhla_status status = MHLA_OK;
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)), *result = NULL;
    const unsigned long long pixels = PyTuple_GET_SIZE(args) ? PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args, 0)) : 0;
    if (p->busy) PyErr_SetString(PyExc_RuntimeError, "the pipeline is in use by another thread");
    if (rest && !PyErr_Occurred() && call_read(&c, rest) == 0) {
        c.d.report = on_report;
        c.d.user = &c;
        p->busy = 1;
        const int64_t guard = mhla_files_guard();
        Py_BEGIN_ALLOW_THREADS status =
            binding_files_read(guard, mhla_pipeline_make(p->pipeline, at((int64_t)pixels), &c.d, NULL));
        Py_END_ALLOW_THREADS p->busy = 0;
        if (!c.failed) result = status == MHLA_OK ? Py_NewRef(Py_None) : binding_raise(status);
    }
    Py_XDECREF(rest);
    call_free(&c);
    return result;
}

static PyMethodDef methods[] = {
    {"info", pipeline_info, METH_NOARGS, "mhla_pipeline_query"},
    {"settle", pipeline_settle, METH_VARARGS, "mhla_pipeline_settle"},
    {"make", pipeline_make, METH_VARARGS, "mhla_pipeline_make"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject pipeline_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Pipeline",
    .tp_doc = "From sentences to images or clips (mhla_pipeline).",
    .tp_basicsize = sizeof(pipeline_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = pipeline_new,
    .tp_dealloc = pipeline_dealloc,
    .tp_methods = methods,
};

static PyObject *is_pipeline(PyObject *module, PyObject *args) { /* (path) */
    PyObject *path;
    (void)module;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    const int is = mhla_pipeline_is(PyBytes_AS_STRING(path));
    Py_DECREF(path);
    return PyBool_FromLong(is);
}

static PyMethodDef functions[] = {
    {"is_pipeline", is_pipeline, METH_VARARGS, "mhla_pipeline_is(path)"},
    {NULL, NULL, 0, NULL},
};

int binding_add_pipelines(PyObject *module) {
    if (PyType_Ready(&pipeline_type) < 0 || PyModule_AddObjectRef(module, "Pipeline", (PyObject *)&pipeline_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
#endif
