/* mhla._mhla.Sampler: from noise to data with the caller's network (mhla_sampler), and the noise that the program draws. */
#include "binding.h"

#ifdef MHLA_NN
#include <mhla/diffusion.h>

typedef struct sampler_object {
    PyObject_HEAD mhla_sampler *sampler;
    int64_t elements; /* of x */
    int busy;         /* a call that let go of the GIL is using it */
} sampler_object;

/* (process, method, table, steps, eta, shift, clip, learned_sigma, batch, channels, pixels) */
static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    mhla_sampler_desc d = {.size = sizeof d};
    long long batch, channels, pixels;
    mhla_sampler *made = NULL;
    if (!PyArg_ParseTuple(args, "zzziddppLLL", &d.process, &d.method, &d.table, &d.steps, &d.eta, &d.shift, &d.clip,
                          &d.learned_sigma, &batch, &channels, &pixels))
        return NULL;
    d.batch = batch;
    d.channels = channels;
    d.pixels = pixels;
    const mhla_status status = mhla_sampler_create(&made, &d);
    if (status != MHLA_OK) return binding_raise(status);
    sampler_object *self = (sampler_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        mhla_sampler_free(made);
        return NULL;
    }
    self->sampler = made;
    self->elements = batch * channels * pixels;
    return (PyObject *)self;
}

static void sampler_dealloc(PyObject *self) {
    mhla_sampler_free(((sampler_object *)self)->sampler);
    Py_TYPE(self)->tp_free(self);
}

static int refuse_busy(const sampler_object *s) {
    if (!s->busy) return 0;
    PyErr_SetString(PyExc_RuntimeError, "the sampler is in use by another thread");
    return -1;
}

static PyObject *sampler_step(PyObject *self, PyObject *args) { /* (i, x, output, noise) */
    sampler_object *s = (sampler_object *)self;
    int i;
    unsigned long long x, output, noise;
    if (!PyArg_ParseTuple(args, "iKKK", &i, &x, &output, &noise) || refuse_busy(s) < 0) return NULL;
    s->busy = 1;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status =
        mhla_sampler_step(s->sampler, i, at((int64_t)x), at((int64_t)output), at((int64_t)noise));
    Py_END_ALLOW_THREADS s->busy = 0;
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *sampler_predicted(PyObject *self, PyObject *unused) { /* bytes: float32 */
    (void)unused;
    const sampler_object *s = (const sampler_object *)self;
    if (refuse_busy(s) < 0) return NULL;
    const float *x = mhla_sampler_predicted(s->sampler);
    if (x == NULL) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)x, (Py_ssize_t)(s->elements * (int64_t)sizeof *x));
}

/* (method, [time of each step], [whether it wants noise]) */
static PyObject *sampler_info(PyObject *self, PyObject *unused) {
    (void)unused;
    const mhla_sampler *s = ((sampler_object *)self)->sampler;
    const int n = mhla_sampler_steps(s);
    PyObject *times = PyList_New(n), *noisy = PyList_New(n);
    for (int i = 0; times && noisy && i < n; i++) {
        PyObject *time = PyFloat_FromDouble(mhla_sampler_time(s, i));
        if (time == NULL) {
            Py_CLEAR(times);
            break;
        }
        PyList_SET_ITEM(times, i, time);
        PyList_SET_ITEM(noisy, i, PyBool_FromLong(mhla_sampler_wants_noise(s, i)));
    }
    if (times == NULL || noisy == NULL) {
        Py_XDECREF(times);
        Py_XDECREF(noisy);
        return NULL;
    }
    return Py_BuildValue("sNN", mhla_sampler_method(s), times, noisy);
}

static PyMethodDef methods[] = {
    {"step", sampler_step, METH_VARARGS, "mhla_sampler_step(i, x, output, noise)"},
    {"predicted", sampler_predicted, METH_NOARGS, "mhla_sampler_predicted: bytes of float32"},
    {"info", sampler_info, METH_NOARGS, "(method, times, wants noise)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject sampler_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mhla._mhla.Sampler",
    .tp_doc = "From noise to data with the caller's network (mhla_sampler).",
    .tp_basicsize = sizeof(sampler_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = sampler_new,
    .tp_dealloc = sampler_dealloc,
    .tp_methods = methods,
};

static PyObject *sample_noise(PyObject *module, PyObject *args) { /* (noise, count, seed, step) */
    (void)module;
    unsigned long long noise, seed;
    long long count;
    int step;
    if (!PyArg_ParseTuple(args, "KLKi", &noise, &count, &seed, &step)) return NULL;
    const mhla_status status = mhla_sample_noise(at((int64_t)noise), count, seed, step);
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"sample_noise", sample_noise, METH_VARARGS, "mhla_sample_noise(noise, count, seed, step)"},
    {NULL, NULL, 0, NULL},
};

int binding_add_samplers(PyObject *module) {
    if (PyType_Ready(&sampler_type) < 0 || PyModule_AddObjectRef(module, "Sampler", (PyObject *)&sampler_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
#endif
