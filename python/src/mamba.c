/* Mamba's operators as flat lists of ints: scan(), short_conv() and their backward. An address is an int, a missing tensor 0. */
#include "binding.h"

/* clang-format off */
/* In a backward call y is dy. */
#define SCAN_FIELDS(X)                                                                                               \
    X(batch) X(tokens) X(channels) X(states) X(groups) X(softplus)                                                   \
    X(u) X(u_batch) X(u_token) X(u_head) X(delta) X(delta_batch) X(delta_token) X(delta_head) X(A)                   \
    X(B) X(B_batch) X(B_token) X(B_head) X(C) X(C_batch) X(C_token) X(C_head) X(D)                                   \
    X(z) X(z_batch) X(z_token) X(z_head) X(delta_bias) X(y) X(y_batch) X(y_token) X(y_head)                          \
    X(cu_seqlens) X(sequences) X(initial_state) X(final_state)
#define SCAN_GRADS(X) X(du) X(ddelta) X(dA) X(dB) X(dC) X(dD) X(dz) X(ddelta_bias) X(dinitial_state) X(dfinal_state)

#define CONV_FIELDS(X)                                                                                               \
    X(batch) X(tokens) X(channels) X(width) X(silu)                                                                  \
    X(x) X(x_batch) X(x_token) X(x_head) X(w) X(bias) X(y) X(y_batch) X(y_token) X(y_head)                           \
    X(cu_seqlens) X(sequences) X(initial_cache) X(final_cache)
#define CONV_GRADS(X) X(dx) X(dw) X(dbias) X(dinitial_cache) X(dfinal_cache)
/* clang-format on */

#define X(name) int64_t name;
typedef struct scan_list {
    SCAN_FIELDS(X)
    SCAN_GRADS(X)
} scan_list;

typedef struct conv_list {
    CONV_FIELDS(X)
    CONV_GRADS(X)
} conv_list;
#undef X

enum {
#define X(name) +1
    N_SCAN = 0 SCAN_FIELDS(X),
    N_SCAN_GRADS = 0 SCAN_GRADS(X),
    N_CONV = 0 CONV_FIELDS(X),
    N_CONV_GRADS = 0 CONV_GRADS(X)
#undef X
};

static PyObject *done(mhla_status status) {
    if (status != MHLA_OK) return binding_raise(status);
    Py_RETURN_NONE;
}

/* ---- Selective scan ---- */

static mhla_scan_call scan_call(const scan_list *s) {
    return (mhla_scan_call){
        .size = sizeof(mhla_scan_call),
        .context = binding_context(),
        .batch = s->batch,
        .tokens = s->tokens,
        .channels = s->channels,
        .states = s->states,
        .groups = s->groups,
        .delta_softplus = s->softplus != 0,
        .u = {s->u_batch, s->u_token, s->u_head},
        .delta = {s->delta_batch, s->delta_token, s->delta_head},
        .B = {s->B_batch, s->B_token, s->B_head},
        .C = {s->C_batch, s->C_token, s->C_head},
        .y = {s->y_batch, s->y_token, s->y_head},
        .D = at(s->D),
        .delta_bias = at(s->delta_bias),
        .z = at(s->z),
        .z_strides = {s->z_batch, s->z_token, s->z_head},
        .cu_seqlens = at(s->cu_seqlens),
        .sequences = s->sequences,
        .initial_state = at(s->initial_state),
        .final_state = at(s->final_state),
    };
}

static PyObject *scan(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    scan_list s = {0};
    if (binding_ints((int64_t *)&s, args, n, N_SCAN) < 0) return NULL;
    const mhla_scan_call call = scan_call(&s);
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status =
        mhla_scan_forward(&call, at(s.y), at(s.u), at(s.delta), at(s.A), at(s.B), at(s.C), NULL);
    Py_END_ALLOW_THREADS return done(status);
}

static PyObject *scan_backward(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    scan_list s;
    if (binding_ints((int64_t *)&s, args, n, N_SCAN + N_SCAN_GRADS) < 0) return NULL;
    const mhla_scan_call call = scan_call(&s);
    const mhla_scan_grads grads = {
        .size = sizeof grads,
        .du = at(s.du),
        .ddelta = at(s.ddelta),
        .dz = at(s.dz),
        .dB = at(s.dB),
        .dC = at(s.dC),
        .dA = at(s.dA),
        .dD = at(s.dD),
        .ddelta_bias = at(s.ddelta_bias),
        .dinitial_state = at(s.dinitial_state),
        .dfinal_state = at(s.dfinal_state),
    };
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status =
        mhla_scan_backward(&call, &grads, at(s.y), at(s.u), at(s.delta), at(s.A), at(s.B), at(s.C), NULL);
    Py_END_ALLOW_THREADS return done(status);
}

/* ---- Short convolution ---- */

static mhla_short_conv_call conv_call(const conv_list *c) {
    return (mhla_short_conv_call){
        .size = sizeof(mhla_short_conv_call),
        .context = binding_context(),
        .batch = c->batch,
        .tokens = c->tokens,
        .channels = c->channels,
        .width = (int)c->width,
        .activation = c->silu ? MHLA_ACT_SILU : MHLA_ACT_NONE,
        .x = {c->x_batch, c->x_token, c->x_head},
        .y = {c->y_batch, c->y_token, c->y_head},
        .bias = at(c->bias),
        .cu_seqlens = at(c->cu_seqlens),
        .sequences = c->sequences,
        .initial_cache = at(c->initial_cache),
        .final_cache = at(c->final_cache),
    };
}

static PyObject *short_conv(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    conv_list c = {0};
    if (binding_ints((int64_t *)&c, args, n, N_CONV) < 0) return NULL;
    const mhla_short_conv_call call = conv_call(&c);
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_short_conv_forward(&call, at(c.y), at(c.x), at(c.w), NULL);
    Py_END_ALLOW_THREADS return done(status);
}

static PyObject *short_conv_backward(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    conv_list c;
    if (binding_ints((int64_t *)&c, args, n, N_CONV + N_CONV_GRADS) < 0) return NULL;
    const mhla_short_conv_call call = conv_call(&c);
    const mhla_short_conv_grads grads = {
        .size = sizeof grads,
        .dx = at(c.dx),
        .dw = at(c.dw),
        .dbias = at(c.dbias),
        .dinitial_cache = at(c.dinitial_cache),
        .dfinal_cache = at(c.dfinal_cache),
    };
    mhla_status status;
    Py_BEGIN_ALLOW_THREADS status = mhla_short_conv_backward(&call, &grads, at(c.y), at(c.x), at(c.w), NULL);
    Py_END_ALLOW_THREADS return done(status);
}

PyMethodDef binding_mamba[] = {
    {"scan", FAST(scan), METH_FASTCALL, "mhla_scan_forward; takes the ints of SCAN_FIELDS."},
    {"scan_backward", FAST(scan_backward), METH_FASTCALL, "mhla_scan_backward; the same, then SCAN_GRADS."},
    {"short_conv", FAST(short_conv), METH_FASTCALL, "mhla_short_conv_forward; takes the ints of CONV_FIELDS."},
    {"short_conv_backward", FAST(short_conv_backward), METH_FASTCALL, "mhla_short_conv_backward; and CONV_GRADS."},
    {NULL, NULL, 0, NULL},
};
