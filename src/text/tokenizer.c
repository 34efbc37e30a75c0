/* Tokenizers: which reader a file needs, what they share, and what is asked of an open one. */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/file.h"
#include "file/gguf.h"
#include "file/text.h"

/* ---- Life ---- */

mhla_status mhla_tokenizer_new(mhla_tokenizer **tokenizer) {
    mhla_tokenizer *t = mhla_alloc_zero(sizeof *t);
    if (t == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a tokenizer");
    t->bos = t->eos = t->unk = t->pad = -1;
    t->bpe.unk = -1;
    memset(t->bpe.spare, 0xff, sizeof t->bpe.spare);
    pthread_mutex_init(&t->lock, NULL);
    *tokenizer = t;
    return MHLA_OK;
}

void mhla_tokenizer_free(mhla_tokenizer *t) {
    if (t == NULL) return;
    mhla_tokenizer_idle_free(t);
    pthread_mutex_destroy(&t->lock);
    mhla_vocabulary_free(&t->pieces);
    mhla_bpe_free(&t->bpe);
    mhla_unigram_free(&t->unigram);
    for (size_t i = 0; i < t->added_count; i++) mhla_free(t->added[i].content);
    mhla_free(t->added);
    mhla_free(t->raw.nodes);
    mhla_free(t->normal.nodes);
    for (size_t i = 0; i < t->normalizer_count; i++) mhla_normalizer_free(&t->normalizers[i]);
    mhla_free(t->normalizers);
    for (size_t i = 0; i < t->splitter_count; i++) mhla_pattern_free(&t->splitters[i].pattern);
    mhla_free(t->splitters);
    mhla_ids_free(&t->before);
    mhla_ids_free(&t->after);
    mhla_decoding_free(&t->decoding);
    mhla_chars_free(&t->decoded_text);
    mhla_free(t->decoded);
    mhla_free(t->special);
    mhla_free(t->types);
    mhla_free(t->chat_template);
    mhla_free(t);
}

mhla_status mhla_text_copy(char **to, const char *from, size_t bytes) {
    char *copy = mhla_alloc(bytes + 1);
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a text of %zu bytes", bytes);
    if (bytes) memcpy(copy, from, bytes);
    copy[bytes] = '\0';
    mhla_free(*to);
    *to = copy;
    return MHLA_OK;
}

/* One more element, zeroed, of a list. */
static mhla_status list_new(void **list, size_t *count, size_t *capacity, size_t size, void **element) {
    MHLA_TRY(mhla_list_grow(list, capacity, *count + 1, size));
    *element = (char *)*list + *count * size;
    memset(*element, 0, size);
    ++*count;
    return MHLA_OK;
}

mhla_status mhla_tokenizer_new_normalizer(mhla_tokenizer *t, mhla_normalizer **n) {
    void *list = t->normalizers, *element = NULL;
    const mhla_status status = list_new(&list, &t->normalizer_count, &t->normalizer_capacity, sizeof **n, &element);
    t->normalizers = list;
    *n = element;
    return status;
}

mhla_status mhla_tokenizer_new_splitter(mhla_tokenizer *t, mhla_splitter **s) {
    void *list = t->splitters, *element = NULL;
    const mhla_status status = list_new(&list, &t->splitter_count, &t->splitter_capacity, sizeof **s, &element);
    t->splitters = list;
    *s = element;
    return status;
}

/* ---- Added tokens ---- */

enum { ADDED_BYTES = 1024 };

mhla_status mhla_tokenizer_add(mhla_tokenizer *t, const mhla_added *token, const char *file) {
    if (token->bytes > ADDED_BYTES)
        return mhla_fail(MHLA_EDATA, "%s: an added token has %zu bytes, more than %d", file, token->bytes, ADDED_BYTES);
    void *list = t->added, *element = NULL;
    mhla_status status = list_new(&list, &t->added_count, &t->added_capacity, sizeof *t->added, &element);
    t->added = list;
    if (status != MHLA_OK) return status;
    mhla_added *a = element;
    *a = *token;
    a->content = NULL;
    const char *text = token->content;
    mhla_chars buffers[2] = {{0}};
    mhla_matcher matcher = {0};
    size_t first = 1;
    if (token->normalized == 1) status = mhla_normalizers_run(t, &matcher, buffers, &text, &a->bytes, &first);
    if (status == MHLA_OK) status = mhla_text_copy(&a->content, text, a->bytes);
    for (int i = 0; i < 2; i++) mhla_chars_free(&buffers[i]);
    mhla_matcher_free(&matcher);
    if (status != MHLA_OK) return status;
    return mhla_added_tree_add(token->normalized ? &t->normal : &t->raw, a->content, a->bytes,
                               (int32_t)(t->added_count - 1));
}

/* ---- Bytes as characters ---- */

uint32_t mhla_byte_level_char(unsigned char byte) {
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173)) return byte;
    /* the others follow from 256 on, in their order */
    return 256u + (byte <= 32 ? byte : byte <= 160 ? (uint32_t)byte - 127 + 33 : 67);
}

int mhla_byte_level_bytes(const char *piece, size_t bytes, char *out, size_t *count) {
    *count = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        const uint32_t c = mhla_char_read(piece + i, &n);
        uint32_t byte = c;
        if (c >= 256 && c < 256 + 68) {
            const uint32_t k = c - 256;
            byte = k <= 32 ? k : k < 67 ? k - 33 + 127 : 173;
        } else if (c >= 256 || mhla_byte_level_char((unsigned char)c) != c) {
            return 0;
        }
        out[(*count)++] = (char)byte;
    }
    return 1;
}

mhla_status mhla_byte_level_symbols(mhla_tokenizer *t, const char *file) {
    char *raw = mhla_alloc(MHLA_PIECE_BYTES);
    if (raw == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the pieces of %s", file);
    mhla_status status = MHLA_OK;
    for (size_t id = 0; id < t->pieces.count && status == MHLA_OK; id++) {
        size_t n, count;
        const char *piece = mhla_vocabulary_piece(&t->pieces, (int32_t)id, &n);
        if (piece && mhla_byte_level_bytes(piece, n, raw, &count))
            status = mhla_vocabulary_set(&t->bpe.symbols, (int32_t)id, raw, count, file);
    }
    mhla_free(raw);
    return status;
}

/* ---- When all is read ---- */

static int32_t special_named(const mhla_tokenizer *t, const char *const *names) {
    for (; *names; names++) {
        const int32_t id = mhla_vocabulary_find(&t->pieces, *names, strlen(*names));
        if (id >= 0 && t->special[id]) return id;
    }
    return -1;
}

mhla_status mhla_tokenizer_finish(mhla_tokenizer *t, const char *file) {
    if (t->pieces.count == 0) return mhla_fail(MHLA_EDATA, "%s: the vocabulary is empty", file);
    t->special = mhla_alloc_zero(t->pieces.count);
    if (t->special == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the tokenizer %s", file);
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].special) t->special[t->added[i].id] = 1;
    for (int k = 0; k < 2; k++) {
        const mhla_ids *list = k ? &t->after : &t->before;
        for (int64_t i = 0; i < list->count; i++)
            if (list->data[i] >= (int64_t)t->pieces.count)
                return mhla_fail(MHLA_EDATA, "%s: the post_processor adds the id %d, which is not a piece", file,
                                 list->data[i]);
    }
    t->bpe.limit = (int32_t)t->pieces.count;
    mhla_bpe_finish(&t->bpe);
    /* tokenizer_config.json says better, where there is one */
    static const char *const bos_names[] = {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>", NULL};
    static const char *const eos_names[] = {"</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|endoftext|>", NULL};
    static const char *const pad_names[] = {"<pad>", "[PAD]", "<|pad|>", NULL};
    if (t->bos < 0) t->bos = t->before.count ? t->before.data[0] : special_named(t, bos_names);
    if (t->eos < 0) t->eos = t->after.count ? t->after.data[t->after.count - 1] : special_named(t, eos_names);
    if (t->pad < 0) t->pad = special_named(t, pad_names);
    if (t->unk < 0) t->unk = t->bpe.unk;
    return mhla_decoding_prepare(t);
}

/* ---- Opening ---- */

static int is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* folder of `path` + "/" + name; 0 if that is too long. */
static int beside(char *to, size_t size, const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path) + 1 : 0;
    const int n = snprintf(to, size, "%.*s%s", folder, path, name);
    return n > 0 && (size_t)n < size;
}

/* A text of a JSON file beside `path`, malloc'ed; NULL where there is no such file or key. */
static mhla_status text_beside(char **text, const char *path, const char *file, const char *key) {
    char name[4096];
    json_t *tree;
    *text = NULL;
    if (!beside(name, sizeof name, path, file) || !is_file(name)) return MHLA_OK;
    MHLA_TRY(mhla_json_load(&tree, name));
    const char *value = json_string_value(json_object_get(tree, key));
    const mhla_status status = value ? mhla_text_copy(text, value, strlen(value)) : MHLA_OK;
    json_decref(tree);
    return status;
}

static mhla_status read_beside(mhla_tokenizer *t, const char *path, int model) {
    char name[4096];
    if (beside(name, sizeof name, path, "tokenizer_config.json") && is_file(name)) {
        json_t *tree;
        MHLA_TRY(mhla_json_load(&tree, name));
        const mhla_status status = mhla_tokenizer_parse_config(t, tree, model, name);
        json_decref(tree);
        MHLA_TRY(status);
    }
    if (t->chat_template == NULL && beside(name, sizeof name, path, "chat_template.jinja") && is_file(name)) {
        mhla_file file;
        MHLA_TRY(mhla_file_map(&file, name));
        const mhla_status status = mhla_text_copy(&t->chat_template, (const char *)file.data, file.size);
        mhla_file_unmap(&file);
        MHLA_TRY(status);
    }
    return MHLA_OK;
}

/* ---- Kinds of files, by what is in them ---- */

typedef enum file_kind {
    FILE_JSON,
    FILE_VOCAB,
    FILE_MERGES,
    FILE_TIKTOKEN,
    FILE_GGUF,
    FILE_GZIP,
    FILE_MODEL
} file_kind;

/* Does a text of JSON begin with a piece and its id, as a vocab.json does? */
static int is_vocab(const char *text, size_t size) {
    size_t at = 1;
    while (at < size && strchr(" \t\r\n", text[at]) && text[at]) at++;
    if (at == size || text[at] != '"') return 0;
    for (at++; at < size && text[at] != '"'; at++) at += text[at] == '\\';
    for (at++; at < size && strchr(" \t\r\n:", text[at]) && text[at];) at++;
    return at < size && text[at] >= '0' && text[at] <= '9';
}

static file_kind kind_of(const mhla_file *file, const char *path) {
    const char *text = (const char *)file->data, *dot = strrchr(path, '.');
    size_t at = 0;
    if (mhla_gguf_is(file->data, file->size)) return FILE_GGUF;
    if (file->size > 2 && file->data[0] == 0x1f && file->data[1] == 0x8b) return FILE_GZIP;
    while (at < file->size && strchr(" \t\r\n", text[at]) && text[at]) at++;
    /* {"version": "1.0", ..: a tokenizer.json has no number there */
    if (at < file->size && text[at] == '{') return is_vocab(text + at, file->size - at) ? FILE_VOCAB : FILE_JSON;
    if (mhla_tiktoken_is(file->data, file->size) || (dot && strcmp(dot, ".tiktoken") == 0)) return FILE_TIKTOKEN;
    const size_t head = file->size < 64 ? file->size : 64;
    return head > 8 && memmem(text, head, "#version", 8) ? FILE_MERGES : FILE_MODEL;
}

enum { UNPACKED = 64 << 20 };

static mhla_status open_gzip(mhla_tokenizer **tokenizer, const mhla_file *file, const char *path) {
    mhla_chars text = {0};
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)file->data, .avail_in = (unsigned)file->size};
    if (file->size > UNPACKED || inflateInit2(&z, 16 + 15) != Z_OK)
        return mhla_fail(MHLA_EDATA, "%s: %zu bytes of gzip are too many, or there is no memory", path, file->size);
    mhla_status status = MHLA_OK;
    int got = Z_OK;
    while (got == Z_OK && status == MHLA_OK) {
        status = text.count < UNPACKED ? mhla_chars_reserve(&text, 1 << 16)
                                       : mhla_fail(MHLA_EDATA, "%s: more than %d bytes unpacked", path, UNPACKED);
        if (status != MHLA_OK) break;
        z.next_out = (unsigned char *)text.data + text.count;
        z.avail_out = 1 << 16;
        got = inflate(&z, Z_NO_FLUSH);
        text.count += (1 << 16) - z.avail_out;
    }
    inflateEnd(&z);
    if (status == MHLA_OK && got != Z_STREAM_END) status = mhla_fail(MHLA_EDATA, "%s: not a whole gzip file", path);
    const mhla_file inside = {.data = (const unsigned char *)text.data, .size = text.count};
    if (status == MHLA_OK && kind_of(&inside, path) != FILE_MERGES)
        status = mhla_fail(MHLA_ENOTSUP,
                           "%s: what is packed here is not a list of merges (its first line has no #version)", path);
    if (status == MHLA_OK) status = mhla_tokenizer_parse_merges(tokenizer, NULL, 0, text.data, text.count, NULL, path);
    mhla_chars_free(&text);
    return status;
}

/* vocab.json and merges.txt, whichever of them is given; CLIP's own merges need no vocabulary. */
static mhla_status open_merges(mhla_tokenizer **tokenizer, const mhla_file *file, int vocab, const char *path) {
    static const char *const names[2][2] = {{"vocab.json", "encoder.json"}, {"merges.txt", "vocab.bpe"}};
    char other[4096], config[4096];
    json_t *tree = NULL;
    mhla_file second = {0};
    int found = 0;
    for (int i = 0; i < 2 && !found; i++) found = beside(other, sizeof other, path, names[vocab][i]) && is_file(other);
    if (!found && !vocab && memmem(file->data, file->size < 64 ? file->size : 64, "bpe_simple", 10))
        return mhla_tokenizer_parse_merges(tokenizer, NULL, 0, (const char *)file->data, file->size, NULL, path);
    if (!found)
        return mhla_fail(MHLA_EIO, "%s: neither %s nor %s is beside it", path, names[vocab][0], names[vocab][1]);
    MHLA_TRY(mhla_file_map(&second, other));
    const mhla_file *pieces = vocab ? file : &second, *merges = vocab ? &second : file;
    mhla_status status = MHLA_OK;
    if (beside(config, sizeof config, path, "tokenizer_config.json") && is_file(config))
        status = mhla_json_load(&tree, config);
    if (status == MHLA_OK)
        status = mhla_tokenizer_parse_merges(tokenizer, (const char *)pieces->data, pieces->size,
                                             (const char *)merges->data, merges->size, tree, path);
    json_decref(tree);
    mhla_file_unmap(&second);
    return status;
}

static mhla_status open_file(mhla_tokenizer **tokenizer, const char *path) {
    mhla_file file;
    MHLA_TRY(mhla_file_map(&file, path));
    const char *text = (const char *)file.data;
    char *model = NULL;
    mhla_status status = MHLA_OK;
    const file_kind kind = kind_of(&file, path);
    switch (kind) {
    case FILE_GGUF: mhla_file_unmap(&file); return mhla_tokenizer_parse_gguf(tokenizer, path);
    case FILE_JSON: status = mhla_tokenizer_parse_json(tokenizer, text, file.size, path); break;
    case FILE_VOCAB:
    case FILE_MERGES: status = open_merges(tokenizer, &file, kind == FILE_VOCAB, path); break;
    case FILE_GZIP: status = open_gzip(tokenizer, &file, path); break;
    case FILE_MODEL: status = mhla_tokenizer_parse_model(tokenizer, file.data, file.size, path); break;
    case FILE_TIKTOKEN:
        status = text_beside(&model, path, "config.json", "model_type");
        if (status == MHLA_OK) status = mhla_tokenizer_parse_tiktoken(tokenizer, text, file.size, model, path);
        mhla_free(model);
        break;
    }
    mhla_file_unmap(&file);
    if (status != MHLA_OK) return status;
    status = read_beside(*tokenizer, path, kind == FILE_MODEL);
    if (status != MHLA_OK) mhla_tokenizer_free(*tokenizer), *tokenizer = NULL;
    return status;
}

/* ---- Files of a folder ---- */

const char *const mhla_tokenizer_names[] = {"tokenizer.json",
                                            "tokenizer.model",
                                            "tokenizer.gguf",
                                            "vocab.json",
                                            "encoder.json",
                                            "qwen.tiktoken",
                                            "cl100k_base.tiktoken",
                                            "o200k_base.tiktoken",
                                            "r50k_base.tiktoken",
                                            "p50k_base.tiktoken",
                                            "bpe_simple_vocab_16e6.txt.gz",
                                            "bpe_simple_vocab_16e6.txt",
                                            NULL};

int mhla_tokenizer_file(char *file, size_t size, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return 0;
    int n = snprintf(file, size, "%s", path);
    if (!S_ISDIR(info.st_mode)) return n > 0 && (size_t)n < size;
    for (int i = 0; mhla_tokenizer_names[i]; i++) {
        n = snprintf(file, size, "%s/%s", path, mhla_tokenizer_names[i]);
        if (n > 0 && (size_t)n < size && is_file(file)) return 1;
    }
    return 0;
}

mhla_status mhla_tokenizer_open(mhla_tokenizer **tokenizer, const char *path) {
    if (tokenizer == NULL || path == NULL) return mhla_fail(MHLA_EINVAL, "tokenizer or path is NULL");
    *tokenizer = NULL;
    char file[4096];
    struct stat info;
    if (mhla_tokenizer_file(file, sizeof file, path)) return open_file(tokenizer, file);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return open_file(tokenizer, path); /* which says why not */
    return mhla_fail(
        MHLA_EIO,
        "%s: no tokenizer is in this folder: looked for tokenizer.json, tokenizer.model, tokenizer.gguf, "
        "vocab.json with merges.txt, qwen.tiktoken and OpenAI's .tiktoken files, bpe_simple_vocab_16e6.txt.gz",
        path);
}

/* ---- Questions ---- */

mhla_status mhla_tokenizer_query(const mhla_tokenizer *t, mhla_tokenizer_info *info) {
    if (t == NULL) return mhla_fail(MHLA_EINVAL, "tokenizer is NULL");
    const mhla_tokenizer_info all = {
        .size = sizeof all,
        .kind = t->kind,
        .vocabulary = (int)t->pieces.count,
        .bos = t->bos,
        .eos = t->eos,
        .unk = t->unk,
        .pad = t->pad,
        .adds_bos = t->before.count > 0,
        .adds_eos = t->after.count > 0,
        .chat_template = t->chat_template,
    };
    return mhla_struct_out(info, &all, sizeof all, "mhla_tokenizer_info");
}

const char *mhla_tokenizer_piece(const mhla_tokenizer *t, int32_t id) {
    size_t n;
    return t ? mhla_vocabulary_piece(&t->pieces, id, &n) : NULL;
}

int32_t mhla_tokenizer_id(const mhla_tokenizer *t, const char *piece) {
    return t && piece ? mhla_vocabulary_find(&t->pieces, piece, strlen(piece)) : -1;
}
