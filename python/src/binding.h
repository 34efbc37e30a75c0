/* What the parts of the extension module share: the Plan object and the flat argument list of a call. */
#ifndef MHLA_PYTHON_BINDING_H
#define MHLA_PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <mhla/mhla.h>

typedef struct plan_object {
    PyObject_HEAD mhla_plan *plan;
    int focused;          /* Focused LA: the learned parameter, mix in the lists below, is its focus */
    mhla_dtype precision; /* of products */
} plan_object;

/* A call as Python passes it: one int for each of these, in this order (the module's CALL_FIELDS). An address is an
 * int, a missing tensor 0; strides count elements. In a backward call o is dO. */
/* clang-format off */
#define CALL_FIELDS(X)                                                                                               \
    X(batch) X(tokens) X(kv_tokens)                                                                                  \
    X(q) X(q_batch) X(q_token) X(q_head)                                                                             \
    X(k) X(k_batch) X(k_token) X(k_head)                                                                             \
    X(v) X(v_batch) X(v_token) X(v_head)                                                                             \
    X(o) X(o_batch) X(o_token) X(o_head)                                                                             \
    X(mix)                                                                                                           \
    X(q2) X(q2_batch) X(q2_token) X(q2_head)                                                                         \
    X(k2) X(k2_batch) X(k2_token) X(k2_head)                                                                         \
    X(rope_cos) X(rope_sin) X(rope_rows)                                                                             \
    X(cu_seqlens) X(sequences)                                                                                       \
    X(past) X(initial_state) X(initial_z) X(final_state) X(final_z)
/* clang-format on */

/* After them, in a backward call: where the gradients go (contiguous), and those that arrive at the final state. */
#define GRAD_FIELDS(X)                                                                                                 \
    X(dq) X(dk) X(dv) X(dmix) X(dq2) X(dk2) X(dinitial_state) X(dinitial_z) X(dfinal_state) X(dfinal_z)

/* At the end of either, where keys have a rotary table of their own. */
#define KEY_FIELDS(X) X(key_rope_cos) X(key_rope_sin) X(key_rope_rows)

typedef struct flat_call {
#define X(name) int64_t name;
    CALL_FIELDS(X)
    GRAD_FIELDS(X)
    KEY_FIELDS(X)
#undef X
} flat_call;

enum {
#define X(name) +1
    N_CALL = 0 CALL_FIELDS(X),
    N_GRAD = 0 GRAD_FIELDS(X),
    N_KEY = 0 KEY_FIELDS(X)
#undef X
};

/* Address 0 is NULL. */
static inline void *at(int64_t address) { return (void *)(uintptr_t)address; }

/* Reads exactly `n` ints from args; -1 with an exception set. */
int binding_ints(int64_t *out, PyObject *const *args, Py_ssize_t given, Py_ssize_t n);

/* The same into f, the rest of which becomes 0. */
int binding_read(flat_call *f, PyObject *const *args, Py_ssize_t given, Py_ssize_t n);

/* Where calls run from now on: what set_threads chose, or the OpenMP runtime that others use, or NULL, the default. */
const mhla_context *binding_context(void);

/* The mhla_call that f describes, in the module's context. */
mhla_call binding_call(const flat_call *f);

/* NULL with an exception of the library's sentence: MemoryError for ENOMEM, mhla.FileError for EIO, which is an OSError
 * too, else mhla.Error, which is a ValueError. */
PyObject *binding_raise(mhla_status status);

/* UTF-8 of a str, which owns it; NULL with an exception set if it is none, or has a NUL, at which C would cut it. */
const char *binding_text(PyObject *text);

/* use_openmp(path): hands our loops to the OpenMP runtime that was loaded from there; False if it has not what it
 * takes. After that binding_foreign_context is its context of so many threads (0 = as many as it would use now); before,
 * or without memory, NULL. */
PyObject *binding_use_openmp(PyObject *module, PyObject *args);
mhla_context *binding_foreign_context(int threads);

extern PyTypeObject binding_plan_type, binding_state_type;
int binding_add_models(PyObject *module);   /* Model, where libmhla-nn is part of the build; -1 with an exception set */
int binding_add_lm(PyObject *module);       /* likewise Tokenizer, Sequence, Generation */
int binding_add_samplers(PyObject *module); /* likewise Sampler */
int binding_add_pipelines(PyObject *module); /* likewise Pipeline */
extern PyMethodDef binding_step[];           /* step(), and the end of the list */
extern PyMethodDef binding_recurrent[];      /* recur(), recur_backward() */
extern PyMethodDef binding_mamba[];          /* scan(), short_conv() and their backward */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

#ifdef MHLA_NN
#include <mhla/nn.h>

/* Something of a model that could not be freed at once, because another thread was inside the model. */
typedef struct binding_grave {
    struct binding_grave *next;
    void (*release)(void *what);
    void *what;
} binding_grave;

typedef struct model_object {
    PyObject_HEAD mhla_model *model;
    const mhla_context *context; /* the model's */
    int busy;                    /* a call that let go of the GIL is using it */
    binding_grave *first, *last; /* in the order in which they are to be freed */
} model_object;

extern PyTypeObject binding_model_type;

/* After a call that read files, begun by mhla_files_guard: its status, unless a file became shorter meanwhile. */
mhla_status binding_files_read(int64_t guard, mhla_status status);

/* -1 with an exception set if another thread is inside the model. */
int binding_model_idle(const model_object *model);
/* Before a call that lets go of the GIL, and after it: -1 with an exception set if another thread is inside one. */
int binding_model_enter(model_object *model);
void binding_model_leave(model_object *model);
/* Frees what belongs to the model, now or when no thread is inside the model any more. */
void binding_model_bury(model_object *model, void (*release)(void *what), void *what);
#endif

#endif
