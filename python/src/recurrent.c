/* The recurrences with decay as flat lists of ints: recur() and recur_backward(). They have arguments that attention lacks, and
 * lack most of its own, so their lists are separate from CALL_FIELDS. */
#include "binding.h"

/* One int each, in this order (the module's RECUR_FIELDS). In a backward call o is dO. */
/* clang-format off */
#define RECUR_FIELDS(X)                                                                                              \
    X(batch) X(tokens)                                                                                               \
    X(q) X(q_batch) X(q_token) X(q_head)                                                                             \
    X(k) X(k_batch) X(k_token) X(k_head)                                                                             \
    X(v) X(v_batch) X(v_token) X(v_head)                                                                             \
    X(o) X(o_batch) X(o_token) X(o_head)                                                                             \
    X(decay) X(decay_batch) X(decay_token) X(decay_head)                                                             \
    X(beta) X(beta_batch) X(beta_token) X(beta_head)                                                                 \
    X(cu_seqlens) X(sequences) X(initial_state) X(final_state)
/* clang-format on */

/* After them, in a backward call: where the gradients go (contiguous), and the one that arrives at the final state. */
#define RECUR_GRADS(X) X(dq) X(dk) X(dv) X(ddecay) X(dbeta) X(dinitial_state) X(dfinal_state)

typedef struct recurrence {
#define X(name) int64_t name;
    RECUR_FIELDS(X)
    RECUR_GRADS(X)
#undef X
} recurrence;

enum {
#define X(name) +1
    N_FIELDS = 0 RECUR_FIELDS(X),
    N_GRADS = 0 RECUR_GRADS(X)
#undef X
};

/* (plan, ints): reads them, NULL with an exception set if they are not what is expected. */
static const plan_object *read_call(recurrence *r, mhla_call *call, PyObject *const *args, Py_ssize_t n, int expected) {
    if (n < 1 || !PyObject_TypeCheck(args[0], &binding_plan_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Plan");
        return NULL;
    }
    memset(r, 0, sizeof *r);
    if (binding_ints((int64_t *)r, args + 1, n - 1, expected) < 0) return NULL;
    const plan_object *p = (const plan_object *)args[0];
    *call = (mhla_call){
        .size = sizeof *call,
        .context = binding_context(),
        .batch = r->batch,
        .tokens = r->tokens,
        .q = {r->q_batch, r->q_token, r->q_head},
        .k = {r->k_batch, r->k_token, r->k_head},
        .v = {r->v_batch, r->v_token, r->v_head},
        .o = {r->o_batch, r->o_token, r->o_head},
        .decay = at(r->decay),
        .decay_strides = {r->decay_batch, r->decay_token, r->decay_head},
        .beta = at(r->beta),
        .beta_strides = {r->beta_batch, r->beta_token, r->beta_head},
        .cu_seqlens = at(r->cu_seqlens),
        .sequences = r->sequences,
        .initial_state = at(r->initial_state),
        .final_state = at(r->final_state),
        .precision = p->precision,
    };
    return p;
}

static PyObject *recur(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    recurrence r;
    mhla_call call;
    const plan_object *p = read_call(&r, &call, args, n, N_FIELDS);
    if (p == NULL) return NULL;
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_forward(p->plan, &call, at(r.o), at(r.q), at(r.k), at(r.v), NULL, NULL);
    Py_END_ALLOW_THREADS if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

static PyObject *recur_backward(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    recurrence r;
    mhla_call call;
    const plan_object *p = read_call(&r, &call, args, n, N_FIELDS + N_GRADS);
    if (p == NULL) return NULL;
    const mhla_grads grads = {
        .size = sizeof grads,
        .dq = at(r.dq),
        .dk = at(r.dk),
        .dv = at(r.dv),
        .ddecay = at(r.ddecay),
        .dbeta = at(r.dbeta),
        .dinitial_state = at(r.dinitial_state),
        .dfinal_state = at(r.dfinal_state),
    };
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status =
        mhla_backward(p->plan, &call, &grads, at(r.o), at(r.q), at(r.k), at(r.v), NULL, NULL);
    Py_END_ALLOW_THREADS if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

PyMethodDef binding_recurrent[] = {
    {"recur", FAST(recur), METH_FASTCALL, "mhla_forward of a recurrence; a Plan and the ints of RECUR_FIELDS."},
    {"recur_backward", FAST(recur_backward), METH_FASTCALL, "mhla_backward; the same, then RECUR_GRADS."},
    {NULL, NULL, 0, NULL},
};
