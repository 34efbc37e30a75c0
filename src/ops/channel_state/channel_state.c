/* States: what a sequence has left behind in a selective scan or a short convolution, a block of numbers. */
#include "ops/bytes.h"
#include "ops/scan/scan.h"
#include "ops/short_conv/short_conv.h"
#include "ops/tensors.h"

enum { SCAN = 1, CONVOLUTION = 2 };

struct mhla_channel_state {
    int kind;                /* SCAN or CONVOLUTION */
    int64_t channels, depth; /* depth: N, or W */
    int64_t tokens;
    int64_t floats; /* I*N, or (W-1)*D */
    int marked;     /* during the check of a step */
    float data[];
};

static mhla_status make(mhla_channel_state **state, int kind, int64_t channels, int64_t depth, int64_t floats) {
    mhla_channel_state *s = mhla_alloc_zero(sizeof *s + sizeof *s->data * (size_t)floats);
    if (s == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a state of %lld numbers", (long long)floats);
    s->kind = kind;
    s->channels = channels;
    s->depth = depth;
    s->floats = floats;
    *state = s;
    return MHLA_OK;
}

mhla_status mhla_scan_state_create(mhla_channel_state **state, int64_t channels, int64_t states) {
    CHECK(state != NULL, "state is NULL");
    *state = NULL;
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check(
        &run, &(mhla_scan_call){
                  .size = sizeof(mhla_scan_call), .batch = 1, .tokens = 1, .channels = channels, .states = states}));
    return make(state, SCAN, channels, states, channels * states);
}

mhla_status mhla_short_conv_state_create(mhla_channel_state **state, int64_t channels, int width) {
    CHECK(state != NULL, "state is NULL");
    *state = NULL;
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check(
        &run,
        &(mhla_short_conv_call){
            .size = sizeof(mhla_short_conv_call), .batch = 1, .tokens = 1, .channels = channels, .width = width}));
    return make(state, CONVOLUTION, channels, width, channels * (width - 1));
}

void mhla_channel_state_free(mhla_channel_state *state) { mhla_free(state); }
int64_t mhla_channel_state_tokens(const mhla_channel_state *s) { return s ? s->tokens : 0; }
size_t mhla_channel_state_bytes(const mhla_channel_state *s) {
    return s ? sizeof *s + sizeof *s->data * (size_t)s->floats : 0;
}

mhla_status mhla_channel_state_fork(mhla_channel_state **copy, const mhla_channel_state *s) {
    CHECK(copy != NULL, "copy is NULL");
    *copy = NULL;
    CHECK(s != NULL, "state is NULL");
    MHLA_TRY(make(copy, s->kind, s->channels, s->depth, s->floats));
    memcpy(*copy, s, mhla_channel_state_bytes(s));
    return MHLA_OK;
}

mhla_status mhla_channel_state_rollback(mhla_channel_state *s, int64_t tokens) {
    CHECK(s != NULL, "state is NULL");
    if (tokens == s->tokens) return MHLA_OK;
    if (tokens != 0)
        return mhla_fail(MHLA_ERANGE, "tokens is %lld: a state of %lld tokens goes back to 0 only", (long long)tokens,
                         (long long)s->tokens);
    memset(s->data, 0, sizeof *s->data * (size_t)s->floats);
    s->tokens = 0;
    return MHLA_OK;
}

/* ---- Feeding ---- */

/* Are these n states different ones of this kind and these sizes? blocks [n] gets their numbers. */
static mhla_status check_states(mhla_channel_state *const *states, int64_t n, int64_t sequences, int kind,
                                int64_t channels, int64_t depth, float **blocks) {
    CHECK(n == sequences, "n is %lld: the call has %lld sequences", (long long)n, (long long)sequences);
    mhla_status status = MHLA_OK;
    int64_t i = 0;
    for (; i < n && status == MHLA_OK; i++) {
        mhla_channel_state *s = states[i];
        if (s == NULL) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] is NULL", (long long)i);
        } else if (s->marked) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] occurs twice", (long long)i);
        } else if (s->kind != kind) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] is one of a %s", (long long)i,
                               s->kind == SCAN ? "scan" : "short convolution");
        } else if (s->channels != channels || s->depth != depth) {
            status = mhla_fail(MHLA_EINVAL, "states[%lld] is of %lld x %lld: the call has %lld x %lld", (long long)i,
                               (long long)s->channels, (long long)s->depth, (long long)channels, (long long)depth);
        } else {
            s->marked = 1;
            blocks[i] = s->data;
            continue;
        }
        break;
    }
    while (i-- > 0) states[i]->marked = 0;
    return status;
}

/* Tokens that state i is fed. */
static int64_t fed(const int64_t *cu_seqlens, int64_t tokens, int64_t i) {
    return cu_seqlens ? cu_seqlens[i + 1] - cu_seqlens[i] : tokens;
}

mhla_status mhla_scan_step(const mhla_scan_call *call, mhla_channel_state *const *states, int64_t n, float *y,
                           const float *u, const float *delta, const float *A, const float *B, const float *C) {
    mhla_scan_run run;
    MHLA_TRY(mhla_scan_check(&run, call));
    const mhla_scan_call *c = &run.call;
    CHECK(states != NULL, "states is NULL");
    CHECK(c->initial_state == NULL && c->final_state == NULL, "a state is given: a step has those of its states");
    const int64_t sequences = mhla_scan_sequences(c);
    float **blocks = mhla_alloc(sizeof *blocks * (size_t)sequences);
    if (blocks == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld states", (long long)sequences);
    mhla_status status = check_states(states, n, sequences, SCAN, c->channels, c->states, blocks);
    if (status == MHLA_OK) status = mhla_scan_continue(call, blocks, y, u, delta, A, B, C, NULL);
    for (int64_t i = 0; status == MHLA_OK && i < n; i++) states[i]->tokens += fed(c->cu_seqlens, c->tokens, i);
    mhla_free(blocks);
    return status;
}

mhla_status mhla_short_conv_step(const mhla_short_conv_call *call, mhla_channel_state *const *states, int64_t n,
                                 float *y, const float *x, const float *w) {
    mhla_short_conv_run run;
    MHLA_TRY(mhla_short_conv_check(&run, call));
    const mhla_short_conv_call *c = &run.call;
    CHECK(states != NULL, "states is NULL");
    CHECK(c->initial_cache == NULL && c->final_cache == NULL, "a cache is given: a step has those of its states");
    const int64_t sequences = mhla_short_conv_sequences(c);
    float **blocks = mhla_alloc(sizeof *blocks * (size_t)sequences);
    if (blocks == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld states", (long long)sequences);
    mhla_status status = check_states(states, n, sequences, CONVOLUTION, c->channels, c->width, blocks);
    if (status == MHLA_OK) status = mhla_short_conv_continue(call, blocks, y, x, w, NULL);
    for (int64_t i = 0; status == MHLA_OK && i < n; i++) states[i]->tokens += fed(c->cu_seqlens, c->tokens, i);
    mhla_free(blocks);
    return status;
}

/* ---- Bytes ---- */

enum { VERSION = 1, HEADER = 56, SUM = 8 };
static const char magic[8] = {'M', 'H', 'L', 'A', 'c', 'h', 'a', 'n'};

size_t mhla_channel_state_save_size(const mhla_channel_state *s) {
    return s ? HEADER + 4 * (size_t)s->floats + SUM : 0;
}

mhla_status mhla_channel_state_save(const mhla_channel_state *s, void *bytes, size_t capacity) {
    CHECK(s != NULL, "state is NULL");
    CHECK(bytes != NULL, "bytes is NULL");
    const size_t size = mhla_channel_state_save_size(s);
    CHECK(capacity >= size, "capacity is %zu: the state takes %zu bytes", capacity, size);
    unsigned char *to = bytes;
    memcpy(to, magic, sizeof magic);
    const uint64_t fields[] = {
        VERSION, (uint64_t)s->kind, (uint64_t)s->channels, (uint64_t)s->depth, (uint64_t)s->tokens, size};
    for (int i = 0; i < 6; i++) put64(to + 8 + 8 * i, fields[i]);
    put_floats(to + HEADER, s->data, s->floats);
    put64(to + size - SUM, checksum_of(bytes, size - SUM));
    return MHLA_OK;
}

mhla_status mhla_channel_state_load(mhla_channel_state *s, const void *bytes, size_t size) {
    CHECK(s != NULL, "state is NULL");
    CHECK(bytes != NULL, "bytes is NULL");
    const unsigned char *from = bytes;
    if (size < HEADER + SUM)
        return mhla_fail(MHLA_EDATA, "size is %zu: a saved state has at least %d bytes", size, HEADER + SUM);
    if (memcmp(from, magic, sizeof magic) != 0)
        return mhla_fail(MHLA_EDATA, "bytes 0 to 7 are not those of a saved state");
    if (get64(from + 8) != VERSION)
        return mhla_fail(MHLA_EDATA, "version (byte 8) is %llu: expected %d", (unsigned long long)get64(from + 8),
                         VERSION);
    if (get64(from + 48) != size)
        return mhla_fail(MHLA_EDATA, "size (byte 48) is %llu: there are %zu bytes",
                         (unsigned long long)get64(from + 48), size);
    if (get64(from + size - SUM) != checksum_of(from, size - SUM))
        return mhla_fail(MHLA_EDATA, "checksum (byte %zu) does not fit: the bytes were altered", size - SUM);
    if (get64(from + 16) != (uint64_t)s->kind)
        return mhla_fail(MHLA_EDATA, "operator (byte 16) is %llu: expected %d", (unsigned long long)get64(from + 16),
                         s->kind);
    if (get64(from + 24) != (uint64_t)s->channels || get64(from + 32) != (uint64_t)s->depth)
        return mhla_fail(MHLA_EDATA, "sizes (byte 24) are %llu x %llu: expected %lld x %lld",
                         (unsigned long long)get64(from + 24), (unsigned long long)get64(from + 32),
                         (long long)s->channels, (long long)s->depth);
    if (get64(from + 40) > (uint64_t)INT64_MAX / 4)
        return mhla_fail(MHLA_EDATA, "tokens (byte 40) is %llu: too many", (unsigned long long)get64(from + 40));
    if (size != mhla_channel_state_save_size(s))
        return mhla_fail(MHLA_EDATA, "size is %zu: expected %zu", size, mhla_channel_state_save_size(s));
    get_floats(s->data, from + HEADER, s->floats);
    s->tokens = (int64_t)get64(from + 40);
    return MHLA_OK;
}
