/* Streaming states: forking, rolling back, and the way to bytes and back. The bytes are the same on every machine:
 * little-endian, float32 in the caller's layout. What is loaded is trusted in nothing but its checksum, and every size
 * follows from the plan and three numbers that are checked first. */
#include "ops/bytes.h"
#include "ops/causal/state.h"

/* ---- Fork and rollback ---- */

mhla_status mhla_state_fork(mhla_state **copy, const mhla_state *s) {
    if (copy == NULL) return mhla_fail(MHLA_EINVAL, "copy is NULL");
    *copy = NULL;
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "state is NULL");
    const int64_t kept = s->n - s->lo, prints = s->row_print ? s->M * (s->per_head ? s->H : 1) : 0;
    mhla_state *t = mhla_alloc(sizeof *t);
    if (t == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a state");
    *t = *s;
    t->list = t->spare = NULL;
    t->spares = t->spare_capacity = 0;
    t->capacity = kept;
    t->row_print = NULL;
    t->memory = mhla_alloc(s->bytes);
    if (kept) t->list = mhla_alloc((size_t)kept * sizeof *t->list);
    if (prints) t->row_print = mhla_alloc((size_t)prints * sizeof *t->row_print);
    if (t->memory == NULL || (kept && t->list == NULL) || (prints && t->row_print == NULL)) {
        t->n = t->lo; /* the list is not ours yet */
        mhla_state_free(t);
        return mhla_fail(MHLA_ENOMEM, "no memory for a state of %zu bytes", s->bytes);
    }
    memcpy(t->memory, s->memory, s->bytes);
    if (prints) memcpy(t->row_print, s->row_print, (size_t)prints * sizeof *t->row_print);
    float **const parts[] = {&t->S,     &t->tail,  &t->ring_k, &t->ring_v, &t->z,
                             &t->grown, &t->ahead, &t->P,      &t->P_own,  &t->scratch};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (*parts[i]) *parts[i] = (float *)((char *)t->memory + ((char *)*parts[i] - (char *)s->memory));
    for (int64_t i = 0; i < kept; i++) {
        t->list[i] = s->list[i];
        atomic_fetch_add_explicit(&t->list[i]->refs, 1, memory_order_relaxed);
    }
    *copy = t;
    return MHLA_OK;
}

static void forget_open(mhla_state *s) {
    s->fill = 0;
    if (s->z) memset(s->z, 0, (size_t)(s->G * s->Kp) * sizeof *s->z);
    if (s->grown) memset(s->grown, 0, (size_t)(s->G * s->shape.E) * sizeof *s->grown);
}

/* The first chunk whose beginning can be gone back to, besides that of the first: chunk i reads those from i - M + 2 on
 * one by one. */
static int64_t first_place(const mhla_state *s) { return s->lo == 0 ? 0 : s->M > 1 ? s->lo + s->M - 2 : s->lo; }

int64_t mhla_state_nearest(const mhla_state *s, int64_t tokens) {
    if (s == NULL || tokens <= 0) return 0;
    if (tokens >= s->tokens) return s->tokens;
    const int64_t chunk = tokens / s->C;
    return s->kind != MHLA_KIND_CAUSAL || chunk < first_place(s) ? 0 : chunk * s->C;
}

mhla_status mhla_state_rollback(mhla_state *s, int64_t tokens, const mhla_plan *plan, const float *mix) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "state is NULL");
    if (plan == NULL) return mhla_fail(MHLA_EINVAL, "plan is NULL");
    MHLA_TRY(mhla_state_check(s, plan, mix, 0, s->M - 1));
    if (tokens == s->tokens) return MHLA_OK;
    const int64_t chunk = tokens >= 0 ? tokens / s->C : -1;
    const int linear = s->kind != MHLA_KIND_CAUSAL;
    if (tokens < 0 || tokens > s->tokens || (tokens > 0 && (linear || tokens % s->C != 0)))
        return mhla_fail(MHLA_ERANGE, "tokens is %lld: a state of %lld tokens goes back to %s", (long long)tokens,
                         (long long)s->tokens, linear ? "0 only" : "the beginning of a chunk");
    if (chunk > 0 && chunk < first_place(s))
        return mhla_fail(MHLA_ERANGE, "tokens is %lld: the %lld chunks kept reach back to token %lld only",
                         (long long)tokens, (long long)(s->n - s->lo), (long long)(first_place(s) * s->C));
    s->tokens = tokens;
    if (s->S) {
        memset(s->S, 0, s->bytes);
        return MHLA_OK;
    }
    for (int64_t b = chunk > s->lo ? chunk : s->lo; b < s->n; b++) mhla_summary_drop(s->list[b - s->lo]);
    s->n = chunk;
    if (chunk == 0) {
        s->lo = 0;
        if (s->tail) memset(s->tail, 0, (size_t)(s->G * s->shape.E) * sizeof *s->tail);
    }
    forget_open(s);
    mhla_state_remix(s, mix, NULL);
    return MHLA_OK;
}

/* ---- Bytes ---- */

enum { VERSION = 1, HEADER = 64, SUM = 8 };
static const char magic[8] = {'M', 'H', 'L', 'A', 's', 't', 'a', 't'};

uint64_t mhla_state_checksum(const unsigned char *p, size_t size) { return checksum_of(p, size); }

/* Floats of one summary, and of everything after the header. */
static int64_t summary_floats(const mhla_state *s) { return (int64_t)s->G * s->K * (s->V + (s->normed ? 1 : 0)); }
static int64_t payload_floats(const mhla_state *s, int64_t kept, int fill) {
    if (s->S) return summary_floats(s);
    const int64_t summaries = kept + (s->tail != NULL) + (s->grown != NULL);
    return summaries * summary_floats(s) + (int64_t)s->G * fill * (s->K + s->V) +
           (s->normed ? (int64_t)s->G * s->K : 0);
}

size_t mhla_state_save_size(const mhla_state *s) {
    if (s == NULL) return 0;
    return HEADER + (size_t)payload_floats(s, s->n - s->lo, s->fill) * sizeof(float) + SUM;
}

/* A summary [G][E] of ours as [G][K,V], [G][K]. */
static unsigned char *put_summary(const mhla_state *s, unsigned char *to, const float *x) {
    for (int64_t g = 0; g < s->G; g++, x += s->shape.E) {
        for (int k = 0; k < s->K; k++)
            for (int p = 0; p < s->shape.n.count; p++) {
                const int begin = mhla_panel_begin(&s->shape.n, p),
                          width = mhla_panel_begin(&s->shape.n, p + 1) - begin;
                to = put_floats(to, x + (int64_t)s->K * begin + (int64_t)k * width,
                                s->V - begin < width ? s->V - begin : width);
            }
        if (s->normed) to = put_floats(to, x + s->shape.F, s->K);
    }
    return to;
}
static const unsigned char *get_summary(const mhla_state *s, float *x, const unsigned char *from) {
    memset(x, 0, (size_t)(s->G * s->shape.E) * sizeof *x);
    for (int64_t g = 0; g < s->G; g++, x += s->shape.E) {
        for (int k = 0; k < s->K; k++)
            for (int p = 0; p < s->shape.n.count; p++) {
                const int begin = mhla_panel_begin(&s->shape.n, p),
                          width = mhla_panel_begin(&s->shape.n, p + 1) - begin;
                from = get_floats(x + (int64_t)s->K * begin + (int64_t)k * width, from,
                                  s->V - begin < width ? s->V - begin : width);
            }
        if (s->normed) from = get_floats(x + s->shape.F, from, s->K);
    }
    return from;
}

/* Row t of head g's ring of v lies in panels. */
static float *ring_v_at(const mhla_state *s, int64_t g, int t, int panel, int *cols) {
    const int begin = mhla_panel_begin(&s->shape.n, panel), width = mhla_panel_begin(&s->shape.n, panel + 1) - begin;
    *cols = s->V - begin < width ? s->V - begin : width;
    return s->ring_v + g * s->block * s->Vw + (int64_t)s->block * begin + (int64_t)t * width;
}

mhla_status mhla_state_save(const mhla_state *s, void *bytes, size_t capacity) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "state is NULL");
    if (bytes == NULL) return mhla_fail(MHLA_EINVAL, "bytes is NULL");
    const size_t size = mhla_state_save_size(s);
    if (capacity < size) return mhla_fail(MHLA_EINVAL, "capacity is %zu: the state takes %zu bytes", capacity, size);
    unsigned char *to = bytes;
    memcpy(to, magic, sizeof magic);
    const uint64_t fields[] = {VERSION,         s->plan_print,     s->mix_print, (uint64_t)s->tokens,
                               (uint64_t)s->lo, (uint64_t)s->fill, size};
    for (int i = 0; i < 7; i++) put64(to + 8 + 8 * i, fields[i]);
    to += HEADER;
    if (s->S) to = put_floats(to, s->S, summary_floats(s));
    if (s->tail) to = put_summary(s, to, s->tail);
    for (int64_t i = 0; i < s->n - s->lo; i++) to = put_summary(s, to, s->list[i]->data);
    if (s->grown) to = put_summary(s, to, s->grown);
    for (int64_t g = 0; s->S == NULL && g < s->G; g++) {
        for (int t = 0; t < s->fill; t++) {
            to = put_floats(to, s->ring_k + (g * s->block + t) * s->Kp, s->K);
            for (int p = 0; p < s->shape.n.count; p++) {
                int cols;
                const float *v = ring_v_at(s, g, t, p, &cols);
                to = put_floats(to, v, cols);
            }
        }
        if (s->normed) to = put_floats(to, s->z + g * s->Kp, s->K);
    }
    put64(to, mhla_state_checksum(bytes, size - SUM));
    return MHLA_OK;
}

/* The numbers of the header against the plan; nothing is believed before. */
static mhla_status check_header(const mhla_state *s, const unsigned char *from, size_t size) {
    if (size < HEADER + SUM)
        return mhla_fail(MHLA_EDATA, "size is %zu: a saved state has at least %d bytes", size, HEADER + SUM);
    if (memcmp(from, magic, sizeof magic) != 0)
        return mhla_fail(MHLA_EDATA, "bytes 0 to 7 are not those of a saved state");
    if (get64(from + 8) != VERSION)
        return mhla_fail(MHLA_EDATA, "version (byte 8) is %llu: expected %d", (unsigned long long)get64(from + 8),
                         VERSION);
    if (get64(from + 56) != size)
        return mhla_fail(MHLA_EDATA, "size (byte 56) is %llu: there are %zu bytes",
                         (unsigned long long)get64(from + 56), size);
    if (get64(from + size - SUM) != mhla_state_checksum(from, size - SUM))
        return mhla_fail(MHLA_EDATA, "checksum (byte %zu) does not fit: the bytes were altered", size - SUM);
    if (get64(from + 16) != s->plan_print) return mhla_fail(MHLA_EDATA, "plan (byte 16) is another one");
    if (get64(from + 24) != s->mix_print) return mhla_fail(MHLA_EDATA, "mixing matrix (byte 24) is another one");
    const uint64_t tokens = get64(from + 32), lo = get64(from + 40), fill = get64(from + 48);
    if (tokens > (uint64_t)INT64_MAX / 4 || (!s->clamp && tokens > (uint64_t)(s->M * s->C)))
        return mhla_fail(MHLA_EDATA, "tokens (byte 32) is %llu: beyond the plan", (unsigned long long)tokens);
    const int64_t n = s->S ? 0 : (int64_t)tokens / s->C, open = (int64_t)tokens % s->C;
    const int64_t needed = n - s->M + 2 < 0 ? 0 : n - s->M + 2 < n ? n - s->M + 2 : n;
    if (lo > (uint64_t)n || (s->clamp ? (int64_t)lo > needed || n - (int64_t)lo > mhla_state_keep(s) : lo != 0))
        return mhla_fail(MHLA_EDATA, "first chunk (byte 40) is %llu: not possible after %llu tokens",
                         (unsigned long long)lo, (unsigned long long)tokens);
    if (fill != (uint64_t)(open % s->block))
        return mhla_fail(MHLA_EDATA, "open tokens (byte 48) is %llu: not possible after %llu tokens",
                         (unsigned long long)fill, (unsigned long long)tokens);
    int64_t floats;
    const int64_t most = INT64_MAX / 64;
    if (__builtin_mul_overflow(n - (int64_t)lo + 3, summary_floats(s), &floats) || floats > most ||
        HEADER + (uint64_t)payload_floats(s, n - (int64_t)lo, (int)fill) * sizeof(float) + SUM != size)
        return mhla_fail(MHLA_EDATA, "size is %zu: not that of a state of %llu tokens", size,
                         (unsigned long long)tokens);
    return MHLA_OK;
}

static void read_payload(mhla_state *s, const unsigned char *from) {
    const int64_t kept = s->n - s->lo;
    if (s->tail) from = get_summary(s, s->tail, from);
    for (int64_t i = 0; i < kept; i++) from = get_summary(s, s->list[i]->data, from);
    if (s->grown) from = get_summary(s, s->grown, from);
    for (int64_t g = 0; g < s->G; g++) {
        for (int t = 0; t < s->fill; t++) {
            from = get_floats(s->ring_k + (g * s->block + t) * s->Kp, from, s->K);
            for (int p = 0; p < s->shape.n.count; p++) {
                int cols;
                float *v = ring_v_at(s, g, t, p, &cols);
                from = get_floats(v, from, cols);
            }
        }
        if (s->normed) from = get_floats(s->z + g * s->Kp, from, s->K);
    }
}

mhla_status mhla_state_load(mhla_state **state, const void *bytes, size_t size, const mhla_plan *plan,
                            const float *mix) {
    if (state == NULL) return mhla_fail(MHLA_EINVAL, "state is NULL");
    *state = NULL;
    if (bytes == NULL) return mhla_fail(MHLA_EINVAL, "bytes is NULL");
    mhla_state *s;
    MHLA_TRY(mhla_state_create(&s, plan, mix));
    const unsigned char *from = bytes;
    mhla_status status = check_header(s, from, size);
    if (status != MHLA_OK) goto fail;
    const int64_t tokens = (int64_t)get64(from + 32), lo = (int64_t)get64(from + 40), n = tokens / s->C;
    if (s->S) {
        s->tokens = tokens;
        get_floats(s->S, from + HEADER, summary_floats(s));
        *state = s;
        return MHLA_OK;
    }
    if (n > lo) {
        s->list = mhla_alloc((size_t)(n - lo) * sizeof *s->list);
        status =
            s->list ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of %lld summaries", (long long)(n - lo));
        if (status != MHLA_OK) goto fail;
        s->capacity = n - lo;
    }
    for (s->lo = s->n = lo; s->n < n; s->n++)
        if ((s->list[s->n - lo] = mhla_summary_new(s)) == NULL) {
            status = mhla_fail(MHLA_ENOMEM, "no memory for a summary of %lld floats", (long long)(s->G * s->shape.E));
            goto fail;
        }
    s->tokens = tokens;
    s->fill = (int)get64(from + 48);
    read_payload(s, from + HEADER);
    mhla_state_remix(s, mix, NULL);
    *state = s;
    return MHLA_OK;
fail:
    mhla_state_free(s);
    return status;
}
