/* Rows of texts in files; see caption_rows.h. The files come from elsewhere: what is in them is checked once, here. */
#include "text/caption_rows.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/safetensors.h"

static void about_path(char path[4096], const char *folder) { snprintf(path, 4096, "%.4000s/captions.json", folder); }

int mhla_captions_there(const char *folder) {
    char path[4096];
    struct stat info;
    about_path(path, folder);
    return stat(path, &info) == 0;
}

void mhla_captions_path(char path[4096], const char *folder, int64_t number) {
    snprintf(path, 4096, "%.4000s/rows-%05lld.safetensors", folder, (long long)number);
}

/* ---- captions.json ---- */

static mhla_status read_text(char *to, size_t size, const json_t *tree, const char *key, const char *path) {
    const char *text = NULL;
    MHLA_TRY(mhla_json_get_text(&text, tree, key, path));
    if (text == NULL || strlen(text) >= size) return mhla_fail(MHLA_EDATA, "%s: %s is missing or too long", path, key);
    snprintf(to, size, "%s", text);
    return MHLA_OK;
}

static mhla_status check_texts(const json_t *list, int64_t count, const char *key, const char *path) {
    if ((int64_t)json_array_size(list) != count)
        return mhla_fail(MHLA_EDATA, "%s: %s has %zu entries, expected %lld", path, key, json_array_size(list),
                         (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!json_is_string(json_array_get(list, (size_t)i)))
            return mhla_fail(MHLA_EDATA, "%s: %s[%lld] is not a string", path, key, (long long)i);
    return MHLA_OK;
}

static mhla_status read_about(mhla_captions *c, const char *path) {
    mhla_captions_about *a = &c->about;
    const char *instruction = "";
    int64_t width = 0;
    MHLA_TRY(read_text(a->encoder, sizeof a->encoder, c->tree, "encoder", path));
    MHLA_TRY(read_text(a->encoder_hash, sizeof a->encoder_hash, c->tree, "encoder_sha256", path));
    MHLA_TRY(read_text(a->source, sizeof a->source, c->tree, "source", path));
    MHLA_TRY(mhla_json_get_text(&instruction, c->tree, "instruction", path));
    MHLA_TRY(mhla_json_get_int(&a->limit, c->tree, "longest", 0, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_int(&width, c->tree, "width", 1, 65536, path));
    MHLA_TRY(mhla_json_get_int(&a->train, c->tree, "train", 1, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_int(&a->test, c->tree, "test", 0, INT32_MAX, path));
    MHLA_TRY(mhla_json_get_array(&c->files, c->tree, "files", path));
    MHLA_TRY(mhla_json_get_array(&c->lines, c->tree, "texts", path));
    if (strlen(a->encoder_hash) != 64) return mhla_fail(MHLA_EDATA, "%s: encoder_sha256 is not a SHA-256", path);
    if (width < 1 || a->train < 1) return mhla_fail(MHLA_EDATA, "%s: width or train is missing", path);
    a->width = (int)width;
    MHLA_TRY(check_texts(c->lines, a->train + a->test, "texts", path));
    MHLA_TRY(check_texts(c->files, a->train + a->test, "files", path));
    a->instruction = strdup(instruction);
    c->texts = 1 + a->train + a->test;
    return a->instruction ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory to read it", path);
}

mhla_status mhla_captions_read(mhla_captions *c, const char *folder) {
    char path[4096];
    *c = (mhla_captions){0};
    about_path(path, folder);
    MHLA_TRY(mhla_json_load(&c->tree, path));
    return read_about(c, path);
}

const char *mhla_captions_text(const mhla_captions *c, int64_t i) {
    return i > 0 ? json_string_value(json_array_get(c->lines, (size_t)i - 1)) : "";
}

/* ---- Rows ---- */

static mhla_status open_shard(mhla_captions *c, const char *path, int64_t first, int64_t count) {
    struct stat info;
    const mhla_stored *rows, *lengths;
    if (stat(path, &info) != 0)
        return mhla_fail(MHLA_EDATA, "%s is missing: run the same mhla captions again to complete them", path);
    mhla_safetensors **to = &c->shards[c->shard_count];
    MHLA_TRY(mhla_safetensors_open(to, path));
    c->shard_count++;
    MHLA_TRY(mhla_safetensors_need(&rows, *to, "rows"));
    MHLA_TRY(mhla_safetensors_need(&lengths, *to, "lengths"));
    MHLA_TRY(mhla_stored_check(lengths, 1, &count));
    if (rows->dtype != MHLA_IO_F32 || lengths->dtype != MHLA_IO_I32)
        return mhla_fail(MHLA_EDATA, "%s: expected rows as F32, lengths as I32", path);
    int64_t all = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t n;
        memcpy(&n, lengths->data + 4 * i, 4);
        if (n < 0 || n > INT32_MAX - all)
            return mhla_fail(MHLA_EDATA, "%s: lengths[%lld] is %d", path, (long long)i, n);
        c->lengths[first + i] = n;
        all += n;
    }
    MHLA_TRY(mhla_stored_check(rows, 2, (const int64_t[]){all, c->about.width}));
    all = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t n = c->lengths[first + i];
        c->rows[first + i] = n ? rows->data + (size_t)all * (size_t)c->about.width * sizeof(float) : NULL;
        all += n;
        if (n > c->longest) c->longest = n;
    }
    return MHLA_OK;
}

mhla_status mhla_captions_open(mhla_captions *c, const char *folder) {
    char path[4096];
    MHLA_TRY(mhla_captions_read(c, folder));
    const int64_t shards = (c->texts + MHLA_CAPTIONS_SHARD - 1) / MHLA_CAPTIONS_SHARD;
    c->longest = 1;
    c->shards = calloc((size_t)shards, sizeof *c->shards);
    c->lengths = calloc((size_t)c->texts, sizeof *c->lengths);
    c->rows = calloc((size_t)c->texts, sizeof *c->rows);
    if (c->shards == NULL || c->lengths == NULL || c->rows == NULL)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for %lld texts", folder, (long long)c->texts);
    for (int64_t i = 0; i < shards; i++) {
        const int64_t left = c->texts - i * MHLA_CAPTIONS_SHARD;
        mhla_captions_path(path, folder, i);
        MHLA_TRY(open_shard(c, path, i * MHLA_CAPTIONS_SHARD, left < MHLA_CAPTIONS_SHARD ? left : MHLA_CAPTIONS_SHARD));
    }
    return MHLA_OK;
}

void mhla_captions_free(mhla_captions *c) {
    for (int64_t i = 0; i < c->shard_count; i++) mhla_safetensors_close(c->shards[i]);
    free(c->shards);
    free(c->lengths);
    free(c->rows);
    free(c->about.instruction);
    json_decref(c->tree);
    *c = (mhla_captions){0};
}

int32_t mhla_captions_get(const mhla_captions *c, float *to, int64_t longest, int64_t i) {
    const size_t width = (size_t)c->about.width;
    const int64_t n = c->lengths[i] < longest ? c->lengths[i] : longest;
    if (n) memcpy(to, c->rows[i], (size_t)n * width * sizeof *to);
    memset(to + (size_t)n * width, 0, (size_t)(longest - n) * width * sizeof *to);
    return (int32_t)n;
}
