/* Sequences as files. What is loaded is hostile until all of it is checked: sizes first, then the checksum, then what model
 * it is of; every number is compared with what the model and the bytes at hand allow.
 *
 * Little-endian, every part padded to 8 bytes:
 *   magic "MHLAsequ", then 64-bit numbers: version, bytes of the file, fingerprint of config and weights, policy (and the bit CACHE), max_tokens,
 *   tokens, tokens that the layers have read, layers
 *   int32 ids [tokens]
 *   for each layer: bytes of its part, and the part, which its mixer writes and reads
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
enum { CACHE = 8 }; /* the bit of the policy that says that caches are bfloat16 */
enum { AT_VERSION = 1, AT_SIZE, AT_PRINT, AT_BEYOND, AT_MAX, AT_TOKENS, AT_READY, AT_LAYERS };
static const char magic[8] = {'M', 'H', 'L', 'A', 's', 'e', 'q', 'u'};

/* ---- Writing ---- */

struct mhla_sink {
    mhla_writer w;
    uint64_t sum;
    int error; /* errno of the first failure */
};

void mhla_sink_put(mhla_sink *o, const void *bytes, size_t size) {
    static const char zeros[8];
    if (size == 0 || o->error) return;
    const size_t pad = mhla_saved_size(size) - size;
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
static void put_number(mhla_sink *o, uint64_t x) { mhla_sink_put(o, &x, sizeof x); }

static const mhla_mixer *mixer_of(const mhla_sequence *s, int layer) {
    return mhla_lm_group_of(s->reader->config, layer)->mixer;
}

mhla_status mhla_sequence_save(const mhla_sequence *s, const char *path) {
    if (s == NULL) return mhla_fail(MHLA_EINVAL, "sequence is NULL");
    if (path == NULL) return mhla_fail(MHLA_EINVAL, "path is NULL");
    const int layers = s->reader->config->layers;
    uint64_t print;
    MHLA_TRY(mhla_reader_print(&print, s->reader));
    const size_t note = strlen(mhla_sequence_note(s));
    uint64_t size =
        HEADER + mhla_saved_size(sizeof *s->ids * (size_t)s->tokens) + (note ? 8 + mhla_saved_size(note) : 0) + SUM;
    for (int i = 0; i < layers; i++) size += 8 + mixer_of(s, i)->saved_bytes(s->memory[i]);
    mhla_sink o = {.sum = 0};
    MHLA_TRY(mhla_writer_open(&o.w, path));
    const uint64_t fields[] = {VERSION,
                               size,
                               print,
                               (uint64_t)s->rules->terms.beyond | (uint64_t)(s->rules->terms.cache == MHLA_BF16)
                                                                      << CACHE,
                               (uint64_t)s->max_tokens,
                               (uint64_t)s->tokens,
                               (uint64_t)s->ready,
                               (uint64_t)layers};
    mhla_sink_put(&o, magic, sizeof magic);
    mhla_sink_put(&o, fields, sizeof fields);
    mhla_sink_put(&o, s->ids, sizeof *s->ids * (size_t)s->tokens);
    mhla_status status = MHLA_OK;
    for (int i = 0; i < layers && status == MHLA_OK; i++) {
        put_number(&o, mixer_of(s, i)->saved_bytes(s->memory[i]));
        status = mixer_of(s, i)->save(s->memory[i], &o);
    }
    if (note) put_number(&o, note);
    mhla_sink_put(&o, mhla_sequence_note(s), note);
    put_number(&o, o.sum);
    if (status == MHLA_OK && o.error) status = mhla_fail(MHLA_EIO, "%s: %s", path, strerror(o.error));
    if (status == MHLA_OK) return mhla_writer_commit(&o.w);
    mhla_writer_discard(&o.w);
    return status;
}

/* ---- Reading ---- */

typedef struct input {
    const char *name;
    mhla_saved left;
} input;

static uint64_t number_at(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

const unsigned char *mhla_saved_take(mhla_saved *in, uint64_t size) {
    if (size > in->end - in->at || mhla_saved_size((size_t)size) > in->end - in->at) return NULL;
    const unsigned char *p = in->data + in->at;
    in->at += mhla_saved_size((size_t)size);
    return p;
}

static mhla_status check_header(const input *in, size_t size, mhla_reader *r) {
    const unsigned char *p = in->left.data;
    if (size < HEADER + SUM || size % 8 != 0)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes are not those of a saved sequence", in->name, size);
    if (memcmp(p, magic, sizeof magic) != 0)
        return mhla_fail(MHLA_EDATA, "%s: no saved sequence: bytes 0 to 7 are not \"MHLAsequ\"", in->name);
    if (number_at(p + 8 * AT_VERSION) != VERSION)
        return mhla_fail(MHLA_EDATA, "%s: it has version %llu (byte 8): this library reads version %d", in->name,
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
    if ((number_at(p + 8 * AT_BEYOND) & ~(1ull << CACHE)) > MHLA_BEYOND_CHUNK)
        return mhla_fail(MHLA_EDATA, "%s: policy (byte 32) is %llu, which is unknown", in->name,
                         (unsigned long long)number_at(p + 8 * AT_BEYOND));
    const uint64_t most = number_at(p + 8 * AT_MAX), tokens = number_at(p + 8 * AT_TOKENS);
    if (most > INT32_MAX || tokens > INT32_MAX || number_at(p + 8 * AT_READY) > tokens)
        return mhla_fail(MHLA_EDATA, "%s: max_tokens, tokens, tokens read (byte 40) are %llu, %llu, %llu", in->name,
                         (unsigned long long)most, (unsigned long long)tokens,
                         (unsigned long long)number_at(p + 8 * AT_READY));
    return MHLA_OK;
}

static mhla_status read_ids(mhla_sequence *s, input *in, int64_t tokens) {
    const unsigned char *p = mhla_saved_take(&in->left, sizeof *s->ids * (uint64_t)tokens);
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

static mhla_status read_layer(mhla_sequence *s, input *in, int i) {
    mhla_saved *file = &in->left;
    const unsigned char *p = mhla_saved_take(file, 8);
    const uint64_t size = p ? number_at(p) : 0;
    mhla_saved part = {file->data, file->at, file->at};
    if (p == NULL || size % 8 != 0 || mhla_saved_take(file, size) == NULL)
        return mhla_fail(MHLA_EDATA, "%s: layer %d does not fit into the file", in->name, i);
    part.end = file->at;
    const mhla_status status = mixer_of(s, i)->load(s->memory[i], &part, s->ready);
    if (status == MHLA_EDATA) return mhla_fail(MHLA_EDATA, "%s: layer %d: %s", in->name, i, mhla_message());
    MHLA_TRY(status);
    if (part.at != part.end)
        return mhla_fail(MHLA_EDATA, "%s: layer %d has %zu bytes too many", in->name, i, part.end - part.at);
    return MHLA_OK;
}

static mhla_status read_note(mhla_sequence *s, input *in) {
    const unsigned char *p = mhla_saved_take(&in->left, 8);
    const uint64_t size = p ? number_at(p) : 0;
    const unsigned char *text = p ? mhla_saved_take(&in->left, size) : NULL;
    if (text == NULL || size == 0 || in->left.at != in->left.end || memchr(text, 0, (size_t)size))
        return mhla_fail(MHLA_EDATA, "%s: the bytes after the layers are not a note", in->name);
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
    input in = {name, {bytes, HEADER, size - SUM}};
    MHLA_TRY(check_header(&in, size, r));
    const int64_t max_tokens = (int64_t)number_at(in.left.data + 8 * AT_MAX);
    const uint64_t policy = number_at(in.left.data + 8 * AT_BEYOND);
    mhla_beyond beyond = (mhla_beyond)(policy & ~(1ull << CACHE));
    /* version 0.1 knew no limit of models whose parameters know none */
    const int64_t context = mhla_lm_context(r->config);
    if (beyond == MHLA_BEYOND_ERROR && mhla_lm_facts(r->config).longest == 0 && context > 0 &&
        number_at(in.left.data + 8 * AT_TOKENS) > (uint64_t)context)
        beyond = MHLA_BEYOND_CLAMP;
    if (beyond == MHLA_BEYOND_CHUNK && max_tokens == 0)
        return mhla_fail(MHLA_EDATA, "%s: max_tokens (byte 40) is 0, and the policy needs it", name);
    mhla_sequence *s;
    const mhla_terms terms = {beyond, max_tokens, policy >> CACHE ? MHLA_BF16 : MHLA_F32};
    MHLA_TRY(mhla_sequence_make(&s, r, &terms));
    mhla_status status = read_ids(s, &in, (int64_t)number_at(in.left.data + 8 * AT_TOKENS));
    s->ready = (int64_t)number_at(in.left.data + 8 * AT_READY);
    for (int i = 0; i < r->config->layers && status == MHLA_OK; i++) status = read_layer(s, &in, i);
    if (status == MHLA_OK && in.left.at != in.left.end) status = read_note(s, &in);
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
