/* Writing safetensors: one file, or a folder of several with their index. What is written depends on the tensors and the
 * metadata only: the same order, the same JSON, the same padding as the Python library's. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/safetensors.h"
#include "file/text.h"

enum { ALIGN = 8, CHUNK = 16384 /* numbers converted at a time */ };

static int64_t count_of(const mhla_storable *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->shape[i];
    return count;
}
static int64_t bytes_of(const mhla_storable *t) { return count_of(t) * (int64_t)mhla_io_dtype_size(t->dtype); }

static int is_utf8(const char *text) {
    const size_t size = strlen(text);
    return mhla_utf8_broken((const unsigned char *)text, size) == size;
}

static mhla_status check_tensor(const mhla_storable *t, const char *path) {
    if (t->name == NULL || strcmp(t->name, "__metadata__") == 0 || !is_utf8(t->name))
        return mhla_fail(MHLA_EINVAL, "%s: %s is not a name for a tensor", path,
                         t->name ? MHLA_QUOTE(t->name) : "NULL");
    if (t->rank < 0 || t->rank > MHLA_SAFETENSORS_RANK)
        return mhla_fail(MHLA_EINVAL, "%s: tensor %s has %d axes, expected 0 to %d", path, MHLA_QUOTE(t->name), t->rank,
                         MHLA_SAFETENSORS_RANK);
    int64_t count = (int64_t)mhla_io_dtype_size(MHLA_IO_U64);
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(count, t->shape[i], &count)) {
            char shape[128];
            return mhla_fail(MHLA_EINVAL, "%s: tensor %s has the shape %s, which cannot be", path, MHLA_QUOTE(t->name),
                             mhla_io_shape_text(shape, sizeof shape, t->rank, t->shape));
        }
    if (t->from != t->dtype && (!mhla_io_dtype_is_float(t->from) || !mhla_io_dtype_is_float(t->dtype)))
        return mhla_fail(MHLA_EINVAL, "%s: tensor %s is %s, which is not converted to %s", path, MHLA_QUOTE(t->name),
                         mhla_io_dtype_text(t->from), mhla_io_dtype_text(t->dtype));
    return MHLA_OK;
}

/* The order of the Rust library: the wider type first, so that all are aligned, then by name. */
static int stored_order(const void *a, const void *b) {
    const mhla_storable *x = *(const mhla_storable *const *)a, *y = *(const mhla_storable *const *)b;
    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}
static int name_order(const void *a, const void *b) {
    return strcmp((*(const mhla_storable *const *)a)->name, (*(const mhla_storable *const *)b)->name);
}
static int key_order(const void *a, const void *b) {
    return strcmp((*(const mhla_pair *const *)a)->key, (*(const mhla_pair *const *)b)->key);
}

/* ---- The header ---- */

static void put_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *found = strchr(from, *c);
        if (found)
            fprintf(out, "\\%c", to[found - from]);
        else if ((unsigned char)*c < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

/* The JSON, padded by spaces so that the data begin at a multiple of 8; free() releases. */
static mhla_status make_header(char **header, size_t *length, const mhla_storable *const *tensors, int64_t count,
                               const mhla_pair *const *pairs, int64_t pair_count, const char *path) {
    *header = NULL;
    FILE *out = open_memstream(header, length);
    if (out == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the header", path);
    fputc('{', out);
    for (int64_t i = 0; i < pair_count; i++) {
        fputs(i ? "," : "\"__metadata__\":{", out);
        put_string(out, pairs[i]->key);
        fputc(':', out);
        put_string(out, pairs[i]->value);
    }
    if (pair_count) fputs(count ? "}," : "}", out);
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const mhla_storable *t = tensors[i];
        if (i) fputc(',', out);
        put_string(out, t->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", mhla_io_dtype_text(t->dtype));
        for (int a = 0; a < t->rank; a++) fprintf(out, "%s%lld", a ? "," : "", (long long)t->shape[a]);
        fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)(at + bytes_of(t)));
        at += bytes_of(t);
    }
    fputc('}', out);
    for (long n = ftell(out); n % ALIGN; n++) fputc(' ', out);
    const int bad = ferror(out);
    if (fclose(out) == 0 && !bad) return MHLA_OK;
    free(*header);
    *header = NULL;
    return mhla_fail(MHLA_ENOMEM, "%s: no memory for the header", path);
}

/* ---- The data ---- */

static mhla_status put(mhla_writer *w, const void *bytes, size_t size) {
    if (size == 0 || fwrite(bytes, 1, size, w->stream) == size) return MHLA_OK;
    return mhla_fail(MHLA_EIO, "%s: not written: %s", w->path, mhla_write_problem(errno));
}

/* Finite, but not as it would be stored: element `first` + its place. */
static mhla_status check_fits(const mhla_storable *t, const float *x, size_t n, size_t first) {
    const float most = t->dtype == MHLA_IO_F16 ? 65520.0f : t->dtype == MHLA_IO_BF16 ? 0x1.ffp127f : INFINITY;
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) >= most && isfinite(x[i]))
            return mhla_fail(MHLA_EDATA, "element %zu of tensor %s is %.9g, too large for %s", first + i,
                             MHLA_QUOTE(t->name), (double)x[i], mhla_io_dtype_text(t->dtype));
    return MHLA_OK;
}

static mhla_status put_tensor(mhla_writer *w, const mhla_storable *t, float *wide, void *narrow) {
    const size_t count = (size_t)count_of(t), from = mhla_io_dtype_size(t->from), to = mhla_io_dtype_size(t->dtype);
    if (t->from == t->dtype) return put(w, t->data, count * to);
    for (size_t i = 0; i < count; i += CHUNK) {
        const size_t n = count - i < CHUNK ? count - i : CHUNK;
        const char *source = (const char *)t->data + i * from;
        mhla_io_to_f32(wide, source, t->from, n);
        if (t->from == MHLA_IO_F64) /* a float64 may be too large already here */
            for (size_t j = 0; j < n; j++) {
                double x;
                memcpy(&x, source + j * sizeof x, sizeof x);
                if (isinf(wide[j]) && isfinite(x))
                    return mhla_fail(MHLA_EDATA, "element %zu of tensor %s is %.9g, too large for %s", i + j,
                                     MHLA_QUOTE(t->name), x, mhla_io_dtype_text(t->dtype));
            }
        MHLA_TRY(check_fits(t, wide, n, i));
        mhla_io_from_f32(narrow, wide, t->dtype, n);
        MHLA_TRY(put(w, narrow, n * to));
    }
    return MHLA_OK;
}

typedef struct fetching {
    mhla_storable_fetch fetch;
    void *user;
} fetching;

static mhla_status put_fetched(mhla_writer *w, const mhla_storable *t, const fetching *f, float *wide, void *narrow) {
    mhla_storable there = *t;
    float *data = malloc((size_t)(count_of(t) + 1) * sizeof *data);
    there.data = data;
    mhla_status status =
        data ? f->fetch(f->user, t, data) : mhla_fail(MHLA_ENOMEM, "no memory for tensor %s", MHLA_QUOTE(t->name));
    if (status == MHLA_OK) status = put_tensor(w, &there, wide, narrow);
    free(data);
    return status;
}

/* tensors and pairs are sorted here, in place. f: NULL where all data are there. */
static mhla_status write_sorted(const char *path, const mhla_storable **tensors, int64_t count, const mhla_pair **pairs,
                                int64_t pair_count, const fetching *f) {
    char *header = NULL;
    size_t length = 0;
    mhla_writer w = {0};
    float *wide = malloc(CHUNK * sizeof *wide);
    double *narrow = malloc(CHUNK * sizeof *narrow); /* the widest of the narrow ones */
    mhla_status status = wide && narrow ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    if (count) qsort(tensors, (size_t)count, sizeof *tensors, stored_order);
    if (pair_count) qsort(pairs, (size_t)pair_count, sizeof *pairs, key_order);
    if (status == MHLA_OK) status = make_header(&header, &length, tensors, count, pairs, pair_count, path);
    if (status == MHLA_OK) status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        unsigned char prefix[8];
        for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
        status = put(&w, prefix, sizeof prefix);
    }
    if (status == MHLA_OK) status = put(&w, header, length);
    for (int64_t i = 0; i < count && status == MHLA_OK; i++)
        status = f && tensors[i]->data == NULL ? put_fetched(&w, tensors[i], f, wide, narrow)
                                               : put_tensor(&w, tensors[i], wide, narrow);
    if (status == MHLA_OK)
        status = mhla_writer_commit(&w);
    else
        mhla_writer_discard(&w);
    free(header);
    free(wide);
    free(narrow);
    return status;
}

/* Checks everything and makes lists that may be sorted; free() both. */
static mhla_status make_lists(const mhla_storable ***list, const mhla_pair ***pair_list, const mhla_storable *tensors,
                              int64_t count, const mhla_pair *metadata, int64_t pairs, const char *path) {
    const mhla_storable **t = malloc((size_t)(count + 1) * sizeof *t);
    const mhla_pair **p = malloc((size_t)(pairs + 1) * sizeof *p);
    *list = t, *pair_list = p;
    if (t == NULL || p == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory to write it", path);
    for (int64_t i = 0; i < count; i++) {
        MHLA_TRY(check_tensor(&tensors[i], path));
        t[i] = &tensors[i];
    }
    if (count) qsort(t, (size_t)count, sizeof *t, name_order);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(t[i - 1]->name, t[i]->name) == 0)
            return mhla_fail(MHLA_EINVAL, "%s: tensor %s is given twice", path, MHLA_QUOTE(t[i]->name));
    for (int64_t i = 0; i < pairs; i++) {
        p[i] = &metadata[i];
        if (!is_utf8(p[i]->key) || !is_utf8(p[i]->value))
            return mhla_fail(MHLA_EINVAL, "%s: the metadata of key %s are not UTF-8", path, MHLA_QUOTE(p[i]->key));
    }
    if (pairs) qsort(p, (size_t)pairs, sizeof *p, key_order);
    for (int64_t i = 1; i < pairs; i++)
        if (strcmp(p[i - 1]->key, p[i]->key) == 0)
            return mhla_fail(MHLA_EINVAL, "%s: key %s of the metadata is given twice", path, MHLA_QUOTE(p[i]->key));
    for (int64_t i = 0; i < count; i++) t[i] = &tensors[i]; /* as given, for dealing out */
    return MHLA_OK;
}

mhla_status mhla_safetensors_write(const char *path, const mhla_storable *tensors, int64_t count,
                                   const mhla_pair *metadata, int64_t pairs) {
    const mhla_storable **list;
    const mhla_pair **pair_list;
    mhla_status status = make_lists(&list, &pair_list, tensors, count, metadata, pairs, path);
    if (status == MHLA_OK) status = write_sorted(path, list, count, pair_list, pairs, NULL);
    free(list);
    free(pair_list);
    return status;
}

mhla_status mhla_safetensors_write_fetched(const char *path, const mhla_storable *tensors, int64_t count,
                                           mhla_storable_fetch fetch, void *user) {
    const mhla_storable **list;
    const mhla_pair **pair_list;
    mhla_status status = make_lists(&list, &pair_list, tensors, count, NULL, 0, path);
    if (status == MHLA_OK) status = write_sorted(path, list, count, pair_list, 0, &(fetching){fetch, user});
    free(list);
    free(pair_list);
    return status;
}

/* ---- A folder ---- */

/* Nothing is there, or an empty folder, which a rename replaces. */
static int is_free(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) return 1;
    DIR *list = S_ISDIR(info.st_mode) ? opendir(path) : NULL;
    if (list == NULL) return 0;
    int entries = 0;
    while (entries < 3 && readdir(list)) entries++;
    closedir(list);
    return entries < 3;
}

static mhla_status copy_file(const char *folder, const char *from) {
    char path[4096];
    const char *slash = strrchr(from, '/');
    snprintf(path, sizeof path, "%s/%s", folder, slash ? slash + 1 : from);
    mhla_file file;
    mhla_writer w;
    MHLA_TRY(mhla_file_map(&file, from));
    mhla_status status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        status = put(&w, file.data, file.size);
        if (status == MHLA_OK)
            status = mhla_writer_commit(&w);
        else
            mhla_writer_discard(&w);
    }
    mhla_file_unmap(&file);
    return status;
}

/* How many of tensors [count] go into the next file. */
static int64_t shard_count(const mhla_storable *tensors, int64_t count, int64_t shard_bytes) {
    int64_t n = 0, sum = 0;
    for (; n < count; n++) {
        const int64_t bytes = bytes_of(&tensors[n]);
        if (shard_bytes && n && bytes > shard_bytes - sum) break;
        sum += bytes;
    }
    return n;
}

static void shard_name(char *name, size_t size, int64_t i, int64_t shards) {
    if (shards == 1)
        snprintf(name, size, "model.safetensors");
    else
        snprintf(name, size, "model-%05lld-of-%05lld.safetensors", (long long)i + 1, (long long)shards);
}

/* The files, and in `map` which tensor is where. */
static mhla_status write_shards(const char *folder, const mhla_storable *tensors, int64_t count,
                                const mhla_storable **list, const mhla_pair **pairs, int64_t pair_count,
                                int64_t shard_bytes, int64_t shards, json_t *map) {
    char path[4096], name[64];
    for (int64_t s = 0, begin = 0; s < shards; s++) {
        const int64_t n = shard_count(tensors + begin, count - begin, shard_bytes);
        shard_name(name, sizeof name, s, shards);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        MHLA_TRY(write_sorted(path, list + begin, n, pairs, pair_count, NULL));
        for (int64_t i = begin; i < begin + n; i++)
            if (json_object_set_new(map, tensors[i].name, json_string(name)) != 0)
                return mhla_fail(MHLA_ENOMEM, "%s: no memory for the index", folder);
        begin += n;
    }
    return MHLA_OK;
}

/* As the Python libraries write it: sorted, indented by two. */
static mhla_status write_index(const char *folder, json_t *map, int64_t total) {
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    json_t *tree = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = tree ? mhla_json_text(tree, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(tree);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "%s: no memory for the index", folder);
    mhla_writer w;
    mhla_status status = mhla_writer_open(&w, path);
    if (status == MHLA_OK) {
        fprintf(w.stream, "%s\n", text);
        status = mhla_writer_commit(&w);
    }
    free(text);
    return status;
}

mhla_status mhla_safetensors_write_folder(const char *folder, const mhla_storable *tensors, int64_t count,
                                          const mhla_pair *metadata, int64_t pairs, int64_t shard_bytes,
                                          const char *const *also, int64_t *files) {
    mhla_new_folder made = {.fd = -1};
    if (!is_free(folder)) return mhla_fail(MHLA_EIO, "%s: exists already; the files go into a new folder", folder);
    const mhla_storable **list;
    const mhla_pair **pair_list;
    json_t *map = NULL;
    mhla_status status = make_lists(&list, &pair_list, tensors, count, metadata, pairs, folder);
    if (status != MHLA_OK) goto done;
    int64_t shards = 0, total = 0;
    for (int64_t i = 0; i < count; shards++) i += shard_count(tensors + i, count - i, shard_bytes);
    for (int64_t i = 0; i < count; i++) total += bytes_of(&tensors[i]);
    if (shards == 0) shards = 1;
    if (files) *files = shards;
    map = json_object();
    status = map ? mhla_new_folder_open(&made, folder) : mhla_fail(MHLA_ENOMEM, "%s: no memory for the index", folder);
    if (status == MHLA_OK)
        status = write_shards(made.temporary, tensors, count, list, pair_list, pairs, shard_bytes, shards, map);
    if (status == MHLA_OK && shards > 1) status = write_index(made.temporary, map, total);
    for (; also && *also && status == MHLA_OK; also++) status = copy_file(made.temporary, *also);
    if (status == MHLA_OK) status = mhla_new_folder_commit(&made);
done:
    mhla_new_folder_discard(&made);
    json_decref(map);
    free(list);
    free(pair_list);
    return status;
}
