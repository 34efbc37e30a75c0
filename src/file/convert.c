/* Conversion of checkpoints: other types, other numbers of files. Names stay: ours are the published ones. */
#include <mhla/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/safetensors.h"
#include "file/text.h"

static int is_file_name(const char *path) {
    const size_t n = strlen(path), m = strlen(".safetensors");
    return n > m && strcmp(path + n - m, ".safetensors") == 0;
}

/* What makes a folder of tensors a model that can be used: all of these that lie beside them go along. */
static const char *const companions[] = {"config.json",       "generation_config.json", "tokenizer.json",
                                         "tokenizer.model",   "tokenizer.gguf",         "vocab.json",
                                         "merges.txt",        "tokenizer_config.json",  "special_tokens_map.json",
                                         "added_tokens.json", "chat_template.jinja",    "text.json"};
enum { COMPANIONS = sizeof companions / sizeof *companions, PATH = 4096 };

/* A file beside the tensors, into path; 0 if there is none. */
static int find_beside(char *path, size_t size, const char *tensors, const char *name) {
    const char *slash = strrchr(tensors, '/');
    const int n = snprintf(path, size, "%.*s%s", slash ? (int)(slash - tensors) + 1 : 0, tensors, name);
    struct stat info;
    return n > 0 && (size_t)n < size && stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* As `f` holds them, with the wanted type (-1: their own); the arrays are free()d by the caller. */
static mhla_status list_tensors(mhla_storable **tensors, mhla_pair **pairs, const mhla_safetensors *f, int dtype) {
    const int64_t count = mhla_safetensors_count(f), pair_count = mhla_safetensors_metadata_count(f);
    *tensors = calloc((size_t)count + 1, sizeof **tensors);
    *pairs = calloc((size_t)pair_count + 1, sizeof **pairs);
    if (*tensors == NULL || *pairs == NULL)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory to convert it", mhla_safetensors_path(f));
    for (int64_t i = 0; i < count; i++) {
        const mhla_stored *t = mhla_safetensors_at(f, i);
        const mhla_io_dtype to = dtype >= 0 && mhla_io_dtype_is_float(t->dtype) ? (mhla_io_dtype)dtype : t->dtype;
        (*tensors)[i] = (mhla_storable){t->name, t->rank, t->shape, t->data, t->dtype, to};
    }
    for (int64_t i = 0; i < pair_count; i++) mhla_safetensors_metadata_at(f, i, &(*pairs)[i].key, &(*pairs)[i].value);
    return MHLA_OK;
}

mhla_status mhla_convert(const char *out, const char *in, const mhla_convert_desc *desc, mhla_convert_result *result) {
    if (out == NULL || in == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", out ? "in" : "out");
    mhla_convert_desc d = {.size = sizeof d};
    if (desc) MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_convert_desc"));
    if (result) MHLA_TRY(mhla_struct_check(result, 0, "mhla_convert_result"));
    const int dtype = d.dtype ? mhla_io_dtype_named(d.dtype) : -1;
    if (d.dtype && (dtype < 0 || dtype == MHLA_IO_F64))
        return mhla_fail(MHLA_EINVAL, "dtype is %s: expected float32, bfloat16 or float16", MHLA_QUOTE(d.dtype));
    const int single = is_file_name(out);
    if (d.shard_bytes < 0 || (d.shard_bytes && single))
        return mhla_fail(MHLA_EINVAL, "shard_bytes is %lld: %s", (long long)d.shard_bytes,
                         single ? "out is one file" : "expected 0 or more");
    mhla_safetensors *f = NULL;
    mhla_storable *tensors = NULL;
    mhla_pair *pairs = NULL;
    MHLA_TRY(mhla_safetensors_open(&f, in));
    const int64_t count = mhla_safetensors_count(f), pair_count = mhla_safetensors_metadata_count(f);
    mhla_convert_result r = {.size = sizeof r, .tensors = count, .files = 1};
    mhla_status status = list_tensors(&tensors, &pairs, f, dtype);
    if (status == MHLA_OK && single) {
        status = mhla_safetensors_write(out, tensors, count, pairs, pair_count);
    } else if (status == MHLA_OK) {
        const char *also[COMPANIONS + 1] = {0};
        char paths[COMPANIONS][PATH];
        int n = 0;
        for (int i = 0; i < COMPANIONS; i++)
            if (find_beside(paths[n], PATH, mhla_safetensors_path(f), companions[i])) also[n] = paths[n], n++;
        status = mhla_safetensors_write_folder(out, tensors, count, pairs, pair_count, d.shard_bytes, also, &r.files);
    }
    for (int64_t i = 0; status == MHLA_OK && i < count; i++) {
        r.numbers += mhla_safetensors_at(f, i)->count;
        r.bytes += mhla_safetensors_at(f, i)->count * (int64_t)mhla_io_dtype_size(tensors[i].dtype);
    }
    if (status == MHLA_OK && result) status = mhla_struct_out(result, &r, sizeof r, "mhla_convert_result");
    free(tensors);
    free(pairs);
    mhla_safetensors_close(f);
    return status;
}
