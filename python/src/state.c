/* mhla._mhla.State: a streaming state, and step() for many of them. The object keeps no reference to the mixing matrix:
 * each call gets its address, as in C. */
#include "binding.h"

typedef struct state_object {
    PyObject_HEAD mhla_state *state;
    plan_object *plan;
    int busy; /* a call that let go of the GIL is using it */
} state_object;

static PyObject *wrap(plan_object *plan, mhla_state *made) {
    state_object *self = (state_object *)binding_state_type.tp_alloc(&binding_state_type, 0);
    if (self == NULL) {
        mhla_state_free(made);
        return NULL;
    }
    self->state = made;
    self->plan = (plan_object *)Py_NewRef((PyObject *)plan);
    return (PyObject *)self;
}

static int refuse_busy(const state_object *s) {
    if (!s->busy) return 0;
    PyErr_SetString(PyExc_RuntimeError, "the state is in use by another thread");
    return -1;
}

static PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) { /* (plan, mix[, saved bytes]) */
    (void)type, (void)kwargs;
    plan_object *plan;
    unsigned long long mix;
    Py_buffer bytes = {0};
    if (!PyArg_ParseTuple(args, "O!K|y*", &binding_plan_type, &plan, &mix, &bytes)) return NULL;
    mhla_state *made = NULL;
    const mhla_status status = bytes.buf
                                   ? mhla_state_load(&made, bytes.buf, (size_t)bytes.len, plan->plan, at((int64_t)mix))
                                   : mhla_state_create(&made, plan->plan, at((int64_t)mix));
    PyBuffer_Release(&bytes);
    return status == MHLA_OK ? wrap(plan, made) : binding_raise(status);
}

static void state_dealloc(PyObject *self) {
    mhla_state_free(((state_object *)self)->state);
    Py_XDECREF(((state_object *)self)->plan);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *state_fork(PyObject *self, PyObject *unused) {
    (void)unused;
    state_object *s = (state_object *)self;
    if (refuse_busy(s) < 0) return NULL;
    mhla_state *copy = NULL;
    const mhla_status status = mhla_state_fork(&copy, s->state);
    return status == MHLA_OK ? wrap(s->plan, copy) : binding_raise(status);
}

static PyObject *state_rollback(PyObject *self, PyObject *args) { /* (tokens, mix) */
    state_object *s = (state_object *)self;
    long long tokens;
    unsigned long long mix;
    if (!PyArg_ParseTuple(args, "LK", &tokens, &mix) || refuse_busy(s) < 0) return NULL;
    const mhla_status status = mhla_state_rollback(s->state, tokens, s->plan->plan, at((int64_t)mix));
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *state_save(PyObject *self, PyObject *unused) {
    (void)unused;
    state_object *s = (state_object *)self;
    if (refuse_busy(s) < 0) return NULL;
    const size_t size = mhla_state_save_size(s->state);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) return NULL;
    const mhla_status status = mhla_state_save(s->state, PyBytes_AS_STRING(bytes), size);
    if (status == MHLA_OK) return bytes;
    Py_DECREF(bytes);
    return binding_raise(status);
}

static PyObject *state_tokens(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLongLong(mhla_state_tokens(((state_object *)self)->state));
}

static PyObject *state_nbytes(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSize_t(mhla_state_bytes(((state_object *)self)->state));
}

static PyMethodDef methods[] = {
    {"fork", state_fork, METH_NOARGS, "mhla_state_fork"},
    {"rollback", state_rollback, METH_VARARGS, "mhla_state_rollback(tokens, mix)"},
    {"save", state_save, METH_NOARGS, "mhla_state_save"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"tokens", state_tokens, NULL, "Tokens seen so far.", NULL},
    {"nbytes", state_nbytes, NULL, "Bytes of memory, shared summaries included.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject binding_state_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.State",
    .tp_doc = "A streaming state (mhla_state).",
    .tp_basicsize = sizeof(state_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = state_new,
    .tp_dealloc = state_dealloc,
    .tp_methods = methods,
    .tp_getset = getset,
};

static int in_use(state_object *const *objects, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        if (refuse_busy(objects[i]) < 0) return -1;
    return 0;
}

/* step(plan, states, *CALL_FIELDS). The states are marked busy while the GIL is free, so that a second Python thread
 * gets an exception instead of a torn state. */
static PyObject *step(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given < 2 || !PyObject_TypeCheck(args[0], &binding_plan_type) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "step takes a Plan, a list of States and the ints of CALL_FIELDS");
        return NULL;
    }
    const mhla_plan *plan = ((plan_object *)args[0])->plan;
    flat_call f;
    if (binding_read(&f, args + 2, given - 2, N_CALL) < 0) return NULL;
    const mhla_call call = binding_call(&f);
    const Py_ssize_t n = PyList_GET_SIZE(args[1]);
    state_object **objects = PyMem_Calloc((size_t)n + 1, sizeof *objects);
    mhla_state **states = PyMem_Calloc((size_t)n + 1, sizeof *states);
    PyObject *result = NULL;
    if (objects == NULL || states == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyList_GET_ITEM(args[1], i);
        if (!PyObject_TypeCheck(item, &binding_state_type)) {
            PyErr_SetString(PyExc_TypeError, "step takes a list of States");
            goto done;
        }
        objects[i] = (state_object *)item;
        states[i] = objects[i]->state;
    }
    if (in_use(objects, n) < 0) goto done;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_INCREF((PyObject *)objects[i]);
        objects[i]->busy = 1;
    }
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_step(plan, &call, states, n, at(f.o), at(f.q), at(f.k), at(f.v), at(f.mix));
    Py_END_ALLOW_THREADS for (Py_ssize_t i = 0; i < n; i++) {
        objects[i]->busy = 0;
        Py_DECREF((PyObject *)objects[i]);
    }
    result = status == MHLA_OK ? Py_NewRef(Py_None) : binding_raise(status);
done:
    PyMem_Free(objects);
    PyMem_Free(states);
    return result;
}

PyMethodDef binding_step[] = {
    {"step", FAST(step), METH_FASTCALL, "mhla_step(plan, states, *ints)"},
    {NULL, NULL, 0, NULL},
};
