#include "file/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"
#include "file/torch_pickle.h"
#include "file/torch_zip.h"

/* The older format: pickles of a magic number, the protocol, the system, the dictionary, the storages' keys; then for
 * each key its number of elements (8 bytes) and its elements. This is the first of them. */
static const unsigned char legacy_magic[] = {0x80, 2,    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                             0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

typedef struct piece { /* a storage of the older format */
    const unsigned char *key;
    size_t key_size;
    int dtype;
    const unsigned char *data;
    size_t size;
} piece;

typedef struct source {
    const char *path;
    const unsigned char *bytes;
    size_t size;
    mhla_pickle pickle; /* the dictionary */
    mhla_zip zip;
    char prefix[256];   /* of the zip's entries: "archive/data/"; a NUL may be in it */
    size_t prefix_size; /* 0: the older format */
    piece *pieces;      /* [piece_count], sorted by key: the older format's */
    size_t piece_count;
    size_t copied; /* bytes: tensors that did not lie in order */
} source;

int mhla_torch_file_is(const unsigned char *bytes, size_t size) {
    if (size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0) return 1;
    return size >= sizeof legacy_magic && bytes[0] == legacy_magic[0] && (bytes[1] == 2 || bytes[1] == 3) &&
           memcmp(bytes + 2, legacy_magic + 2, sizeof legacy_magic - 2) == 0;
}

/* ---- Zip archives ---- */

static mhla_status open_zip(source *s) {
    static const char end[] = "/data.pkl", order[] = "byteorder", inner[] = "/data/";
    MHLA_TRY(mhla_zip_open(&s->zip, s->bytes, s->size, s->path));
    const mhla_zip_entry *pickle = NULL, *endian = NULL;
    size_t n = 0;
    for (size_t i = 0; i < s->zip.count; i++) {
        const mhla_zip_entry *e = &s->zip.entries[i];
        const size_t m = sizeof end - 1;
        if (e->name_size < m || memcmp(e->name + e->name_size - m, end, m) != 0) continue;
        if (pickle) return mhla_fail(MHLA_EDATA, "%s: several data.pkl: not a PyTorch checkpoint", s->path);
        pickle = e, n = e->name_size - m;
    }
    if (pickle == NULL)
        return mhla_fail(MHLA_EDATA, "%s: a zip archive without data.pkl: not a PyTorch checkpoint", s->path);
    MHLA_TRY(mhla_zip_find(&pickle, &s->zip, pickle->name, n, end, sizeof end - 1));
    char name[sizeof s->prefix];
    if (n + sizeof inner > sizeof name) return mhla_fail(MHLA_EDATA, "%s: its entries have too long names", s->path);
    memcpy(name, pickle->name, n);
    name[n] = '/';
    if (mhla_zip_find(&endian, &s->zip, name, n + 1, order, sizeof order - 1) == MHLA_OK &&
        (endian->size < 6 || memcmp(endian->data, "little", 6) != 0))
        return mhla_fail(MHLA_ENOTSUP, "%s: written by a big-endian machine", s->path);
    memcpy(name + n, inner, sizeof inner);
    memcpy(s->prefix, name, n + sizeof inner);
    s->prefix_size = n + sizeof inner - 1;
    char what[512];
    snprintf(what, sizeof what, "%s: data.pkl", s->path);
    return mhla_pickle_read(&s->pickle, pickle->data, pickle->size, what);
}

/* ---- The older format ---- */

static int by_key(const void *a, const void *b) {
    const piece *x = a, *y = b;
    const int c = memcmp(x->key, y->key, x->key_size < y->key_size ? x->key_size : y->key_size);
    return c ? c : (x->key_size > y->key_size) - (x->key_size < y->key_size);
}

/* A piece for each storage that the dictionary speaks of. */
static mhla_status list_pieces(source *s) {
    const mhla_pickle *p = &s->pickle;
    size_t n = 0;
    for (uint32_t i = 0; i < p->count; i++) n += p->values[i].kind == MHLA_PICKLE_STORAGE;
    s->pieces = calloc(n + 1, sizeof *s->pieces);
    if (s->pieces == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to open it", s->path);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->values[i].kind != MHLA_PICKLE_STORAGE) continue;
        const mhla_pickle_value *key = mhla_pickle_at(p, &p->values[i], 2);
        s->pieces[s->piece_count++] = (piece){.key = key->text,
                                              .key_size = (size_t)key->number,
                                              .dtype = mhla_pickle_storage_dtype(mhla_pickle_at(p, &p->values[i], 1))};
    }
    if (n) qsort(s->pieces, n, sizeof *s->pieces, by_key);
    size_t unique = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || by_key(&s->pieces[i], &s->pieces[unique - 1]) != 0) s->pieces[unique++] = s->pieces[i];
    s->piece_count = unique;
    return MHLA_OK;
}

static piece *find_piece(const source *s, const mhla_pickle_value *key) {
    const piece wanted = {.key = key->text, .key_size = (size_t)key->number};
    return s->piece_count ? bsearch(&wanted, s->pieces, s->piece_count, sizeof wanted, by_key) : NULL;
}

/* Where each key's elements lie. */
static mhla_status place_pieces(source *s, const mhla_pickle *keys, size_t at) {
    const mhla_pickle_value *list = &keys->values[keys->root];
    if (list->kind != MHLA_PICKLE_LIST) return mhla_fail(MHLA_EDATA, "%s: its list of storages is none", s->path);
    uint32_t cell = list->first;
    for (uint32_t i = 0; i < list->size; i++, cell = keys->cells[cell].next) {
        const mhla_pickle_value *key = &keys->values[keys->cells[cell].value];
        piece *found = key->kind == MHLA_PICKLE_TEXT ? find_piece(s, key) : NULL;
        if (found == NULL || found->data)
            return mhla_fail(MHLA_EDATA, "%s: storage number %u is not one of the dictionary's", s->path, i);
        uint64_t count = 0;
        if (s->size - at < 8) return mhla_fail(MHLA_EDATA, "%s: byte %zu: the file is cut short", s->path, at);
        for (int b = 0; b < 8; b++) count |= (uint64_t)s->bytes[at + (size_t)b] << (8 * b);
        at += 8;
        const size_t each = mhla_io_dtype_size((mhla_io_dtype)found->dtype);
        if (count > (s->size - at) / each)
            return mhla_fail(MHLA_EDATA, "%s: byte %zu: a storage of %llu elements goes beyond the end of the file",
                             s->path, at - 8, (unsigned long long)count);
        found->data = s->bytes + at;
        found->size = (size_t)count * each;
        at += found->size;
    }
    if (at != s->size)
        return mhla_fail(MHLA_EDATA, "%s: byte %zu: %zu bytes follow the last storage", s->path, at, s->size - at);
    return MHLA_OK;
}

static mhla_status open_legacy(source *s) {
    char what[512];
    size_t at = sizeof legacy_magic;
    mhla_pickle p = {0};
    mhla_status status = MHLA_OK;
    for (int i = 0; i < 4 && status == MHLA_OK; i++) { /* protocol, system, dictionary, keys */
        snprintf(what, sizeof what, "%s: pickle at byte %zu", s->path, at);
        status = mhla_pickle_read(&p, s->bytes + at, s->size - at, what);
        if (status != MHLA_OK) return status;
        at += p.bytes;
        const mhla_pickle_value *root = &p.values[p.root];
        if (i == 0 && (root->kind != MHLA_PICKLE_INT || root->number != 1001))
            status = mhla_fail(MHLA_EDATA, "%s: not the protocol of torch.save", s->path);
        if (i == 1) {
            const mhla_pickle_value *little =
                root->kind == MHLA_PICKLE_DICT ? mhla_pickle_get(&p, root, "little_endian") : NULL;
            if (little && little->kind == MHLA_PICKLE_BOOL && !little->number)
                status = mhla_fail(MHLA_ENOTSUP, "%s: written by a big-endian machine", s->path);
        }
        if (i == 2) {
            s->pickle = p;
            p = (mhla_pickle){0};
            status = list_pieces(s);
        }
        if (i == 3) status = place_pieces(s, &p, at);
        mhla_pickle_free(&p);
    }
    return status;
}

/* ---- Tensors ---- */

static mhla_status find_data(source *s, const mhla_pickle_value *key, const unsigned char **data, size_t *size) {
    if (s->prefix_size) {
        const mhla_zip_entry *e = NULL;
        MHLA_TRY(mhla_zip_find(&e, &s->zip, s->prefix, s->prefix_size, (const char *)key->text, (size_t)key->number));
        *data = e->data, *size = e->size;
        return MHLA_OK;
    }
    const piece *found = find_piece(s, key);
    if (found == NULL || found->data == NULL) {
        const mhla_quoted name = mhla_quote_bytes((const char *)key->text, (size_t)key->number);
        return mhla_fail(MHLA_EDATA, "%s: storage %s is missing", s->path, name.text);
    }
    *data = found->data, *size = found->size;
    return MHLA_OK;
}

/* Numbers of a tuple; -1 if there are too many or one is no number, 0 or more. */
static int read_sizes(const mhla_pickle *p, const mhla_pickle_value *tuple, int64_t sizes[MHLA_SAFETENSORS_RANK]) {
    if (tuple->size > MHLA_SAFETENSORS_RANK) return -1;
    uint32_t cell = tuple->first;
    for (uint32_t i = 0; i < tuple->size; i++, cell = p->cells[cell].next) {
        const mhla_pickle_value *v = &p->values[p->cells[cell].value];
        if (v->kind != MHLA_PICKLE_INT || v->number < 0) return -1;
        sizes[i] = v->number;
    }
    return (int)tuple->size;
}

/* Elements in row-major order, from wherever strides put them. */
static void copy_strided(unsigned char *to, const unsigned char *from, size_t each, int rank, const int64_t *shape,
                         const int64_t *strides) {
    int64_t index[MHLA_SAFETENSORS_RANK] = {0}, at = 0;
    for (;;) {
        memcpy(to, from + (size_t)at * each, each);
        to += each;
        int axis = rank - 1;
        for (; axis >= 0; axis--) {
            at += strides[axis];
            if (++index[axis] < shape[axis]) break;
            at -= index[axis] * strides[axis];
            index[axis] = 0;
        }
        if (axis < 0) return;
    }
}

/* `t` has its name; `name` is that for messages. */
static mhla_status read_tensor(source *s, mhla_stored *t, const mhla_pickle_value *v, void **copy) {
    const mhla_pickle *p = &s->pickle;
    const mhla_pickle_value *storage = mhla_pickle_at(p, v, 0);
    const int64_t offset = mhla_pickle_at(p, v, 1)->number;
    int64_t strides[MHLA_SAFETENSORS_RANK], bytes, last = offset, expected = 1;
    const unsigned char *data = NULL;
    size_t size = 0;
    t->rank = read_sizes(p, mhla_pickle_at(p, v, 2), t->shape);
    if (t->rank < 0 || read_sizes(p, mhla_pickle_at(p, v, 3), strides) != t->rank || offset < 0)
        return mhla_fail(MHLA_EDATA, "%s: tensor %s: its shape, strides and offset make no sense", s->path,
                         MHLA_QUOTE(t->name));
    t->dtype = (mhla_io_dtype)mhla_pickle_storage_dtype(mhla_pickle_at(p, storage, 1));
    const int64_t each = (int64_t)mhla_io_dtype_size(t->dtype);
    t->count = 1;
    int overflow = 0, in_order = 1;
    for (int i = 0; i < t->rank; i++) overflow |= __builtin_mul_overflow(t->count, t->shape[i], &t->count);
    overflow |= __builtin_mul_overflow(t->count, each, &bytes);
    if (overflow) {
        char shape[128];
        return mhla_fail(MHLA_EDATA, "%s: tensor %s: shape %s is beyond counting", s->path, MHLA_QUOTE(t->name),
                         mhla_io_shape_text(shape, sizeof shape, t->rank, t->shape));
    }
    t->path = s->path;
    t->bytes = (size_t)bytes;
    if (bytes == 0) return MHLA_OK;
    MHLA_TRY(find_data(s, mhla_pickle_at(p, storage, 2), &data, &size));
    for (int i = t->rank - 1; i >= 0; i--) {
        int64_t reach;
        if (t->shape[i] > 1 && strides[i] != expected) in_order = 0;
        expected *= t->shape[i];
        overflow |= __builtin_mul_overflow(t->shape[i] - 1, strides[i], &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
    }
    const int64_t room = (int64_t)size / each;
    if (overflow || last >= room || t->count > room)
        return mhla_fail(MHLA_EDATA, "%s: tensor %s reaches beyond the %lld elements of its storage", s->path,
                         MHLA_QUOTE(t->name), (long long)room);
    t->data = data + (size_t)(offset * each);
    if (in_order) return MHLA_OK;
    s->copied += t->bytes;
    if (s->copied > s->size)
        return mhla_fail(MHLA_EDATA, "%s: tensor %s: the tensors take more than the whole file", s->path,
                         MHLA_QUOTE(t->name));
    unsigned char *memory = malloc(t->bytes);
    if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for tensor %s", s->path, MHLA_QUOTE(t->name));
    copy_strided(memory, t->data, (size_t)each, t->rank, t->shape, strides);
    t->data = *copy = memory;
    return MHLA_OK;
}

static int holds_tensor(const mhla_pickle *p, const mhla_pickle_value *value) {
    if (value == NULL || value->kind != MHLA_PICKLE_DICT) return 0;
    uint32_t cell = value->first;
    for (uint32_t i = 0; i < value->size; i++, cell = p->cells[cell].next)
        if (i % 2 && p->values[p->cells[cell].value].kind == MHLA_PICKLE_TENSOR) return 1;
    return 0;
}

/* The dictionary that holds the tensors. */
static const mhla_pickle_value *find_state(const mhla_pickle *p) {
    /* "ema" first: the average is what DiT's own code samples with where its training left both */
    static const char *const names[] = {"ema", "model", "state_dict", "model_state_dict", "module"};
    const mhla_pickle_value *root = &p->values[p->root];
    if (root->kind != MHLA_PICKLE_DICT) return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !holds_tensor(p, root); i++) {
        const mhla_pickle_value *inner = mhla_pickle_get(p, root, names[i]);
        if (holds_tensor(p, inner)) return inner;
    }
    return root;
}

/* Without "module.", a NUL behind it. */
static mhla_status copy_name(char **to, const char **name, const mhla_pickle_value *key, size_t skip,
                             const char *path) {
    const size_t n = (size_t)key->number - skip;
    const unsigned char *text = key->text + skip;
    if (mhla_utf8_broken(text, n) < n || memchr(text, 0, n))
        return mhla_fail(MHLA_EDATA, "%s: %s is not a name for a tensor", path,
                         mhla_quote_bytes((const char *)text, n).text);
    memcpy(*to, text, n);
    (*to)[n] = '\0';
    *name = *to;
    *to += n + 1;
    return MHLA_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const mhla_stored *const *)a)->name, (*(const mhla_stored *const *)b)->name);
}

static mhla_status check_unique(const mhla_st_header *h, const char *path) {
    const mhla_stored **sorted = malloc((size_t)(h->count + 1) * sizeof *sorted);
    if (sorted == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for its names", path);
    for (int64_t i = 0; i < h->count; i++) sorted[i] = &h->tensors[i];
    if (h->count) qsort(sorted, (size_t)h->count, sizeof *sorted, by_name);
    mhla_status status = MHLA_OK;
    for (int64_t i = 1; i < h->count && status == MHLA_OK; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = mhla_fail(MHLA_EDATA, "%s: tensor %s occurs twice", path, MHLA_QUOTE(sorted[i]->name));
    free(sorted);
    return status;
}

/* ---- TorchScript: modules in modules; a tensor's name is that of its attribute behind those of the modules ---- */

enum { MODULE_DEPTH = 32, MODULE_STEPS = 1 << 20, MODULE_NAME = 512 };

typedef struct walk {
    source *s;
    mhla_st_header *h; /* NULL: only counts */
    char name[MODULE_NAME];
    size_t count, letters, steps;
    char *to;
} walk;

static mhla_status walk_module(walk *w, const mhla_pickle_value *module, size_t length, int depth) {
    const mhla_pickle *p = &w->s->pickle;
    uint32_t cell = module->first;
    for (uint32_t i = 0; i < module->size; i += 2, cell = p->cells[p->cells[cell].next].next) {
        const mhla_pickle_value *key = &p->values[p->cells[cell].value];
        const mhla_pickle_value *value = &p->values[p->cells[p->cells[cell].next].value];
        /* objects may be shared, or hold themselves: names would be without end */
        if (++w->steps > MODULE_STEPS || depth == MODULE_DEPTH)
            return mhla_fail(MHLA_EDATA, "%s: modules within modules without end", w->s->path);
        if (value->kind != MHLA_PICKLE_TENSOR && value->kind != MHLA_PICKLE_MODULE) continue;
        if (key->kind != MHLA_PICKLE_TEXT || (size_t)key->number + 2 > MODULE_NAME - length)
            return mhla_fail(MHLA_EDATA, "%s: a module or tensor without a name, or with a very long one", w->s->path);
        memcpy(w->name + length, key->text, (size_t)key->number);
        size_t n = length + (size_t)key->number;
        if (value->kind == MHLA_PICKLE_MODULE) {
            w->name[n++] = '.';
            MHLA_TRY(walk_module(w, value, n, depth + 1));
            continue;
        }
        if (w->h) {
            const mhla_pickle_value name = {.text = (const unsigned char *)w->name, .number = (int64_t)n};
            mhla_stored *t = &w->h->tensors[w->h->count];
            MHLA_TRY(copy_name(&w->to, &t->name, &name, 0, w->s->path));
            MHLA_TRY(read_tensor(w->s, t, value, &w->h->copies[w->h->count]));
            w->h->count++;
        }
        w->count++, w->letters += n + 1;
    }
    return MHLA_OK;
}

static mhla_status make_room(mhla_st_header *h, size_t count, size_t letters, const char *path) {
    if (count == 0) return mhla_fail(MHLA_EDATA, "%s: no tensors in it", path);
    h->tensors = calloc(count, sizeof *h->tensors);
    h->copies = calloc(count, sizeof *h->copies);
    h->strings = malloc(letters);
    if (h->tensors == NULL || h->copies == NULL || h->strings == NULL)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for its tensors", path);
    return MHLA_OK;
}

static mhla_status collect_module(source *s, mhla_st_header *h) {
    const mhla_pickle_value *root = &s->pickle.values[s->pickle.root];
    walk counted = {.s = s};
    MHLA_TRY(walk_module(&counted, root, 0, 0));
    MHLA_TRY(make_room(h, counted.count, counted.letters, s->path));
    walk taken = {.s = s, .h = h, .to = h->strings};
    MHLA_TRY(walk_module(&taken, root, 0, 0));
    return check_unique(h, s->path);
}

/* ---- A dictionary of tensors ---- */

static mhla_status collect(source *s, mhla_st_header *h) {
    static const char wrapper[] = "module.";
    const mhla_pickle *p = &s->pickle;
    if (p->values[p->root].kind == MHLA_PICKLE_MODULE) return collect_module(s, h);
    const mhla_pickle_value *state = find_state(p);
    if (state == NULL) return mhla_fail(MHLA_EDATA, "%s: not a dictionary of tensors", s->path);
    size_t count = 0, letters = 0, skip = sizeof wrapper - 1;
    uint32_t cell = state->first;
    for (uint32_t i = 0; i < state->size; i += 2, cell = p->cells[p->cells[cell].next].next) {
        const mhla_pickle_value *key = &p->values[p->cells[cell].value];
        if (p->values[p->cells[p->cells[cell].next].value].kind != MHLA_PICKLE_TENSOR) continue;
        if (key->kind != MHLA_PICKLE_TEXT) return mhla_fail(MHLA_EDATA, "%s: a tensor without a name", s->path);
        count++, letters += (size_t)key->number + 1;
        if ((size_t)key->number < sizeof wrapper - 1 || memcmp(key->text, wrapper, sizeof wrapper - 1) != 0) skip = 0;
    }
    MHLA_TRY(make_room(h, count, letters, s->path));
    char *to = h->strings;
    cell = state->first;
    for (uint32_t i = 0; i < state->size; i += 2, cell = p->cells[p->cells[cell].next].next) {
        const mhla_pickle_value *value = &p->values[p->cells[p->cells[cell].next].value];
        if (value->kind != MHLA_PICKLE_TENSOR) continue;
        mhla_stored *t = &h->tensors[h->count];
        MHLA_TRY(copy_name(&to, &t->name, &p->values[p->cells[cell].value], skip, s->path));
        MHLA_TRY(read_tensor(s, t, value, &h->copies[h->count]));
        h->count++;
    }
    return check_unique(h, s->path);
}

mhla_status mhla_torch_file_read(mhla_st_header *h, const unsigned char *bytes, size_t size, const char *path) {
    *h = (mhla_st_header){0};
    source s = {.path = path, .bytes = bytes, .size = size};
    mhla_status status = memcmp(bytes, "PK", 2) == 0 ? open_zip(&s) : open_legacy(&s);
    if (status == MHLA_OK) status = collect(&s, h);
    if (status != MHLA_OK) mhla_st_header_free(h);
    mhla_pickle_free(&s.pickle);
    mhla_zip_close(&s.zip);
    free(s.pieces);
    return status;
}
