/* What the tests share: a seeded generator, tensors poisoned with NaN, comparison relative to the largest magnitude, and
 * a loop over the instruction sets of this machine. */
#ifndef MHLA_TESTS_SUPPORT_H
#define MHLA_TESTS_SUPPORT_H

#include <math.h>
#include <mhla/mhla.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "simd/kernels.h"

/* ---- Random numbers: splitmix64 ---- */

typedef struct rng {
    uint64_t s;
} rng;

static inline uint64_t rng_next(rng *r) {
    uint64_t z = (r->s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline int rng_below(rng *r, int n) { return (int)(rng_next(r) % (uint64_t)n); }
static inline float rng_signed(rng *r) { return (float)(rng_next(r) >> 40) / (float)(1 << 23) - 1.0f; }
#define RNG_PICK(r, list) ((list)[rng_below((r), (int)(sizeof(list) / sizeof *(list)))])

/* ---- Tensors ---- */

static inline uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float from_bf16(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline void *new_bytes(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}
/* NaN everywhere: what is read before it is written shows. */
static inline float *new_poisoned(int64_t n) {
    float *p = new_bytes((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = NAN;
    return p;
}
static inline float *new_random(rng *r, int64_t n) {
    float *p = new_bytes((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = rng_signed(r);
    return p;
}
static inline uint16_t *new_bf16(const float *x, int64_t n) {
    uint16_t *p = new_bytes((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = to_bf16(x[i]);
    return p;
}

/* A [B,T,H,D] tensor somewhere inside a larger, poisoned buffer. */
typedef struct placed {
    float *memory;
    float *data;
    int64_t count; /* floats in memory */
    mhla_strides s;
} placed;

/* layout 0: [B,T,H,D]; 1: [B,H,T,D]; 2: a slice of a fused row of 3 H D + 5 */
static inline placed place(int layout, int64_t B, int64_t T, int64_t H, int64_t D) {
    placed p = {0};
    const int64_t row = layout == 2 ? 3 * H * D + 5 : H * D;
    p.count = B * T * row + 8;
    p.memory = new_poisoned(p.count);
    p.data = p.memory + (layout == 2 ? H * D : 0);
    p.s = layout == 1 ? (mhla_strides){H * T * D, D, T * D} : (mhla_strides){T * row, row, D};
    return p;
}
static inline float *placed_at(const placed *p, int64_t b, int64_t t, int64_t h) {
    return p->data + b * p->s.batch + t * p->s.token + h * p->s.head;
}

/* ---- Comparison ---- */

/* Largest |a-b| over the largest |b| (1e-30 at least); NaN where either is NaN and the other is not. */
static inline double relative_error(const float *a, const float *b, int64_t n) {
    double worst = 0.0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        const double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(d)) return NAN;
        if (d > worst) worst = d;
        if (fabs((double)b[i]) > size) size = fabs((double)b[i]);
    }
    return worst / size;
}

#define ASSERT_CLOSE(a, b, n, tolerance, ...)                                                                          \
    do {                                                                                                               \
        const double close_error_ = relative_error((a), (b), (n));                                                     \
        if (!(close_error_ <= (tolerance))) {                                                                          \
            print_error("%s: relative error %.3g above %.3g: ", #a, close_error_, (double)(tolerance));                \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        const mhla_status ok_status_ = (call);                                                                         \
        if (ok_status_ != MHLA_OK) {                                                                                   \
            print_error("%s: %s: %s\n", #call, mhla_status_text(ok_status_), mhla_message());                          \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* The call must fail with this status and a message that contains this text. */
#define ASSERT_FAILS(call, wanted, text)                                                                               \
    do {                                                                                                               \
        const mhla_status fails_status_ = (call);                                                                      \
        if (fails_status_ != (wanted) || strstr(mhla_message(), (text)) == NULL) {                                     \
            print_error("%s: got %s, \"%s\"; wanted %s, \"..%s..\"\n", #call, mhla_status_text(fails_status_),         \
                        mhla_message(), mhla_status_text(wanted), (text));                                             \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- Instruction sets and contexts ---- */

static inline int isa_names(const char *names[], int capacity) {
    const mhla_kernels *tables[8];
    const int n = mhla_kernels_available(tables, 8);
    for (int i = 0; i < n && i < capacity; i++) names[i] = tables[i]->name;
    return n;
}

/* MHLA_TEST_BACKEND=pthreads runs the tests on our own threads (OpenMP confuses thread sanitizers). */
static inline mhla_context *new_context(int threads) {
    const char *backend = getenv("MHLA_TEST_BACKEND");
    mhla_context *c;
    const mhla_context_desc d = {.size = sizeof d,
                                 .threads = threads,
                                 .backend = backend && strcmp(backend, "pthreads") == 0 ? MHLA_BACKEND_PTHREADS
                                                                                        : MHLA_BACKEND_OPENMP};
    ASSERT_OK(mhla_context_create(&c, &d));
    return c;
}

/* An allocator that gives out `scarce.allowed` blocks, then none, and counts those that live. */
static struct { int allowed, living; } scarce;
static inline void *scarce_alloc(size_t bytes) {
    if (scarce.allowed == 0) return NULL;
    scarce.allowed--;
    scarce.living++;
    return malloc(bytes);
}
static inline void scarce_free(void *p) {
    if (p) scarce.living--;
    free(p);
}

#endif
