/* Sequences as files. What is loaded is hostile until all of it is checked: sizes first, then the checksum, then what model
 * it is of; every number is compared with what the model and the bytes at hand allow.
 *
 * Little-endian, every part padded to 8 bytes:
 *   magic "MHLAsequ", then 64-bit numbers: version, bytes of the file, fingerprint of config and weights, policy, max_tokens,
 *   tokens, tokens that the layers have read, layers
 *   int32 ids [tokens]
 *   for each layer: bytes of its part, and the part: a stream as mhla_state_save makes it, or the first token that a cache
 *   has, how many, keys and values; then what convolutions of q, k, v remember
 *   if there is a note: its bytes, and the note
 *   checksum of everything before */
#include <errno.h>
#include <string.h>

#include "core/hash.h"
#include "core/memory.h"
#include "core/status.h"
#include "file/file.h"
#include "models/language/sequence.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "saved sequences are little-endian, as they lie in memory");

enum { VERSION = 1, FIELDS = 9, HEADER = 8 * FIELDS, SUM = 8 };
enum { AT_VERSION = 1, AT_SIZE, AT_PRINT, AT_BEYOND, AT_MAX, AT_TOKENS, AT_READY, AT_LAYERS };
static const char magic[8] = {'M', 'H', 'L', 'A', 's', 'e', 'q', 'u'};

static size_t round8(size_t n) { return (n + 7) / 8 * 8; }

/* ---- Writing ---- */

typedef struct output {
    mhla_writer w;
    uint64_t sum;
    int error; /* errno of the first failure */
} output;

static void put(output *o, const void *bytes, size_t size) {
    static const char zeros[8];
    if (size == 0 || o->error) return;
    const size_t pad = round8(size) - size;
    if (fwrite(bytes, 1, size, o->w.stream) != size || (pad > 0 && fwrite(zeros, 1, pad, o->w.stream) != pad))
        o->error = errno ? errno : EIO;
    /* a word is never cut: the last one is folded with its zeros */
    const size_t whole = size / 8 * 8;
    o->sum = mhla_hash_fold(o->sum, bytes, whole);
    if (pad > 0) {
        char last[8] = {0};
        memcpy(last, (const char *)bytes + whole, size - whole);
        o->sum = mhla_hash_fold(o->sum, last, sizeof last);
    }
}
static void put_number(output *o, uint64_t x) { put(o, &x, sizeof x); }

static size_t part_size(const mhla_sequence *s, int i) {
    const mhla_lm_mixer *m = &s->reader->config->mixer[s->reader->config->kind[i]];
    const mhla_layer_memory *l = &s->layers[i];
    size_t size = l->stream ? round8(mhla_state_save_size(l->stream))
                            : 16 + round8(sizeof(float) * (size_t)(l->cache.count * m->kv_heads * m->key_dim)) +
                                  round8(sizeof(float) * (size_t)(l->cache.count * m->kv_heads * m->value_dim));
    for (int w = 0; w < 3; w++) size += round8(sizeof(float) * (size_t)mhla_conv_floats(m, w));
    return size;
}

static mhla_status put_layer(output *o, const mhla_sequence *s, int i) {
    const mhla_lm_mixer *m = &s->reader->config->mixer[s->reader->config->kind[i]];
    const mhla_layer_memory *l = &s->layers[i];
    put_number(o, part_size(s, i));
    if (l->stream) {
        const size_t size = mhla_state_save_size(l->stream);
        void *bytes = mhla_alloc(size);
        if (bytes == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes of a layer", size);
        const mhla_status status = mhla_state_save(l->stream, bytes, size);
        if (status == MHLA_OK) put(o, bytes, size);
        mhla_free(bytes);
        MHLA_TRY(status);
    } else {
        put_number(o, (uint64_t)l->cache.first);
        put_number(o, (uint64_t)l->cache.count);
        put(o, l->cache.k, sizeof(float) * (size_t)(l->cache.count * m->kv_heads * m->key_dim));
        put(o, l->cache.v, sizeof(float) * (size_t)(l->cache.count * m->kv_heads * m->value_dim));
    }
    for (int w = 0; w < 3; w++) put(o, l->conv[w], sizeof(float) * (size_t)mhla_conv_floats(m, w));
    return MHLA_OK;
}

mhla_status mhla_sequence_save(const mhla_sequence *s, const char *path) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    if (path == NULL) return mhla_fail(MHLA_EINVAL, "path is NULL");
    const int layers = s->reader->config->layers;
    uint64_t print;
    MHLA_TRY(mhla_reader_print(&print, s->reader));
    const size_t note = strlen(mhla_sequence_note(s));
    uint64_t size = HEADER + round8(sizeof *s->ids * (size_t)s->tokens) + (note ? 8 + round8(note) : 0) + SUM;
    for (int i = 0; i < layers; i++) size += 8 + part_size(s, i);
    output o = {.sum = 0};
    MHLA_TRY(mhla_writer_open(&o.w, path));
    const uint64_t fields[] = {VERSION,
                               size,
                               print,
                               (uint64_t)s->rules->beyond,
                               (uint64_t)s->max_tokens,
                               (uint64_t)s->tokens,
                               (uint64_t)s->ready,
                               (uint64_t)layers};
    put(&o, magic, sizeof magic);
    put(&o, fields, sizeof fields);
    put(&o, s->ids, sizeof *s->ids * (size_t)s->tokens);
    mhla_status status = MHLA_OK;
    for (int i = 0; i < layers && status == MHLA_OK; i++) status = put_layer(&o, s, i);
    if (note) put_number(&o, note);
    put(&o, mhla_sequence_note(s), note);
    put_number(&o, o.sum);
    if (status == MHLA_OK && o.error) status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(o.error));
    if (status == MHLA_OK) return mhla_writer_commit(&o.w);
    mhla_writer_discard(&o.w);
    return status;
}

/* ---- Reading ---- */

typedef struct input {
    const char *name;
    const unsigned char *data;
    size_t at, end; /* of what is left */
} input;

static uint64_t number_at(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* `size` bytes, padded to 8; NULL if there are not so many. */
static const unsigned char *take(input *in, uint64_t size) {
    if (size > in->end - in->at || round8((size_t)size) > in->end - in->at) return NULL;
    const unsigned char *p = in->data + in->at;
    in->at += round8((size_t)size);
    return p;
}

static mhla_status check_header(const input *in, size_t size, mhla_reader *r) {
    const unsigned char *p = in->data;
    if (size < HEADER + SUM || size % 8 != 0)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes are not those of a saved sequence", in->name, size);
    if (memcmp(p, magic, sizeof magic) != 0)
        return mhla_fail(MHLA_EDATA, "%s: no saved sequence: bytes 0 to 7 are not \"MHLAsequ\"", in->name);
    if (number_at(p + 8 * AT_VERSION) != VERSION)
        return mhla_fail(MHLA_EDATA, "%s: version (byte 8) is %llu: expected %d", in->name,
                         (unsigned long long)number_at(p + 8 * AT_VERSION), VERSION);
    if (number_at(p + 8 * AT_SIZE) != size)
        return mhla_fail(MHLA_EDATA, "%s: the file has %zu bytes, and says (byte 16) that it has %llu: truncated?",
                         in->name, size, (unsigned long long)number_at(p + 8 * AT_SIZE));
    if (number_at(p + size - SUM) != mhla_hash_fold(0, p, size - SUM))
        return mhla_fail(MHLA_EDATA, "%s: the checksum (byte %zu) does not fit: the file was altered", in->name,
                         size - SUM);
    uint64_t print;
    MHLA_TRY(mhla_reader_print(&print, r));
    if (number_at(p + 8 * AT_PRINT) != print)
        return mhla_fail(MHLA_EDATA, "%s: the sequence is of another model, or of other weights (byte 24)", in->name);
    if (number_at(p + 8 * AT_LAYERS) != (uint64_t)r->config->layers)
        return mhla_fail(MHLA_EDATA, "%s: layers (byte 64) is %llu: the model has %d", in->name,
                         (unsigned long long)number_at(p + 8 * AT_LAYERS), r->config->layers);
    if (number_at(p + 8 * AT_BEYOND) > MHLA_BEYOND_CHUNK)
        return mhla_fail(MHLA_EDATA, "%s: policy (byte 32) is %llu: there is no such", in->name,
                         (unsigned long long)number_at(p + 8 * AT_BEYOND));
    const uint64_t most = number_at(p + 8 * AT_MAX), tokens = number_at(p + 8 * AT_TOKENS);
    if (most > INT32_MAX || tokens > INT32_MAX || number_at(p + 8 * AT_READY) > tokens)
        return mhla_fail(MHLA_EDATA, "%s: max_tokens, tokens, tokens read (byte 40) are %llu, %llu, %llu", in->name,
                         (unsigned long long)most, (unsigned long long)tokens,
                         (unsigned long long)number_at(p + 8 * AT_READY));
    return MHLA_OK;
}

static mhla_status read_ids(mhla_sequence *s, input *in, int64_t tokens) {
    const unsigned char *p = take(in, sizeof *s->ids * (uint64_t)tokens);
    if (p == NULL)
        return mhla_fail(MHLA_EDATA, "%s: %lld tokens do not fit into the file", in->name, (long long)tokens);
    const int64_t limit = s->max_tokens && s->max_tokens < s->rules->limit ? s->max_tokens : s->rules->limit;
    if (tokens > limit)
        return mhla_fail(MHLA_EDATA, "%s: %lld tokens are more than its policy permits", in->name, (long long)tokens);
    MHLA_TRY(mhla_sequence_reserve(s, tokens));
    if (tokens > 0) memcpy(s->ids, p, sizeof *s->ids * (size_t)tokens);
    for (int64_t i = 0; i < tokens; i++)
        if (s->ids[i] < 0 || s->ids[i] >= s->reader->config->vocabulary)
            return mhla_fail(MHLA_EDATA, "%s: token %lld is %d: the vocabulary has %d", in->name, (long long)i,
                             s->ids[i], s->reader->config->vocabulary);
    s->tokens = tokens;
    return MHLA_OK;
}

static mhla_status read_stream(mhla_sequence *s, input *in, int i, size_t convs) {
    const int kind = s->reader->config->kind[i];
    const mhla_param *mix = mhla_lm_mix(s->reader->lm, i);
    /* the stream has its own size, which is not padded */
    const size_t padded = in->end - in->at - convs;
    size_t size = padded >= 72 ? (size_t)number_at(in->data + in->at + 56) : 0;
    if (size == 0 || size > padded || round8(size) != padded)
        return mhla_fail(MHLA_EDATA, "%s: layer %d (byte %zu) is no stream of %zu bytes", in->name, i, in->at, padded);
    const unsigned char *p = take(in, size);
    const mhla_status status =
        mhla_state_load(&s->layers[i].stream, p, size, s->rules->plans[kind], mix ? mix->data : NULL);
    if (status == MHLA_ENOMEM) return status;
    if (status != MHLA_OK) {
        char why[256];
        snprintf(why, sizeof why, "%s", mhla_message());
        return mhla_fail(MHLA_EDATA, "%s: layer %d: %s", in->name, i, why);
    }
    if (mhla_state_tokens(s->layers[i].stream) != s->ready)
        return mhla_fail(MHLA_EDATA, "%s: layer %d has read %lld tokens: expected %lld", in->name, i,
                         (long long)mhla_state_tokens(s->layers[i].stream), (long long)s->ready);
    return MHLA_OK;
}

static mhla_status read_cache(mhla_sequence *s, input *in, int i) {
    const mhla_lm_mixer *m = &s->reader->config->mixer[s->reader->config->kind[i]];
    mhla_cache *c = &s->layers[i].cache;
    const unsigned char *p = take(in, 16);
    const uint64_t first = p ? number_at(p) : 1, count = p ? number_at(p + 8) : 0;
    const uint64_t row_k = sizeof(float) * (uint64_t)m->kv_heads * (uint64_t)m->key_dim,
                   row_v = sizeof(float) * (uint64_t)m->kv_heads * (uint64_t)m->value_dim;
    if (p == NULL || count > (uint64_t)s->ready || first != (uint64_t)s->ready - count ||
        (first > 0 && (m->window == 0 || count + 1 < (uint64_t)m->window)))
        return mhla_fail(MHLA_EDATA, "%s: layer %d has keys of %llu tokens from %llu on: not possible after %lld",
                         in->name, i, (unsigned long long)count, (unsigned long long)first, (long long)s->ready);
    const unsigned char *k = take(in, count * row_k), *v = k ? take(in, count * row_v) : NULL;
    if (v == NULL)
        return mhla_fail(MHLA_EDATA, "%s: keys and values of %llu tokens do not fit into layer %d", in->name,
                         (unsigned long long)count, i);
    MHLA_TRY(mhla_cache_reserve(c, m, (int64_t)count));
    if (count > 0) memcpy(c->k, k, count * row_k);
    if (count > 0) memcpy(c->v, v, count * row_v);
    c->first = (int64_t)first;
    c->count = (int64_t)count;
    return MHLA_OK;
}

static mhla_status read_layer(mhla_sequence *s, input *file, int i) {
    const mhla_lm_mixer *m = &s->reader->config->mixer[s->reader->config->kind[i]];
    const unsigned char *p = take(file, 8);
    const uint64_t size = p ? number_at(p) : 0;
    input in = {file->name, file->data, file->at, file->at};
    if (p == NULL || size % 8 != 0 || take(file, size) == NULL)
        return mhla_fail(MHLA_EDATA, "%s: layer %d does not fit into the file", file->name, i);
    in.end = file->at;
    size_t convs = 0;
    for (int w = 0; w < 3; w++) convs += round8(sizeof(float) * (size_t)mhla_conv_floats(m, w));
    if (convs > size) return mhla_fail(MHLA_EDATA, "%s: layer %d lacks its convolutions", file->name, i);
    MHLA_TRY(s->reader->config->kind[i] == MHLA_ATTENTION_SOFTMAX ? read_cache(s, &in, i)
                                                                  : read_stream(s, &in, i, convs));
    for (int w = 0; w < 3; w++) {
        const size_t bytes = sizeof(float) * (size_t)mhla_conv_floats(m, w);
        if (bytes == 0) continue;
        const unsigned char *x = take(&in, bytes);
        if (x == NULL) return mhla_fail(MHLA_EDATA, "%s: layer %d lacks its convolutions", file->name, i);
        if ((s->layers[i].conv[w] = mhla_alloc(bytes)) == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
        memcpy(s->layers[i].conv[w], x, bytes);
        s->layers[i].conv_at[w] = s->ready;
    }
    if (in.at != in.end)
        return mhla_fail(MHLA_EDATA, "%s: layer %d has %zu bytes too many", file->name, i, in.end - in.at);
    return MHLA_OK;
}

static mhla_status read_note(mhla_sequence *s, input *in) {
    const unsigned char *p = take(in, 8);
    const uint64_t size = p ? number_at(p) : 0;
    const unsigned char *text = p ? take(in, size) : NULL;
    if (text == NULL || size == 0 || in->at != in->end || memchr(text, 0, (size_t)size))
        return mhla_fail(MHLA_EDATA, "%s: what stands behind the layers is no note", in->name);
    if ((s->note = mhla_alloc((size_t)size + 1)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a sequence");
    memcpy(s->note, text, (size_t)size);
    s->note[size] = '\0';
    return MHLA_OK;
}

mhla_status mhla_sequence_load_bytes(mhla_sequence **sequence, mhla_model *model, const void *bytes, size_t size,
                                     const char *name) {
    *sequence = NULL;
    mhla_reader *r;
    MHLA_TRY(mhla_model_reader(&r, model));
    input in = {name, bytes, HEADER, size - SUM};
    MHLA_TRY(check_header(&in, size, r));
    const int64_t max_tokens = (int64_t)number_at(in.data + 8 * AT_MAX);
    const mhla_beyond beyond = (mhla_beyond)number_at(in.data + 8 * AT_BEYOND);
    if (beyond == MHLA_BEYOND_CHUNK && max_tokens == 0)
        return mhla_fail(MHLA_EDATA, "%s: max_tokens (byte 40) is 0, and the policy needs it", name);
    mhla_sequence *s;
    MHLA_TRY(mhla_sequence_make(&s, r, beyond, max_tokens));
    mhla_status status = read_ids(s, &in, (int64_t)number_at(in.data + 8 * AT_TOKENS));
    s->ready = (int64_t)number_at(in.data + 8 * AT_READY);
    for (int i = 0; i < r->config->layers && status == MHLA_OK; i++) status = read_layer(s, &in, i);
    if (status == MHLA_OK && in.at != in.end) status = read_note(s, &in);
    if (status != MHLA_OK) {
        mhla_sequence_free(s);
        return status;
    }
    *sequence = s;
    return MHLA_OK;
}

mhla_status mhla_sequence_load(mhla_sequence **sequence, mhla_model *model, const char *path) {
    if (sequence == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    *sequence = NULL;
    if (path == NULL) return mhla_fail(MHLA_EINVAL, "path is NULL");
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_sequence_load_bytes(sequence, model, file.data, file.size, path);
    mhla_file_unmap(&file);
    return status;
}
