/* Rows of a dataset's captions, made once (data/captions.h). Each file is a function of the texts and the encoder, and has its name once
 * it is complete: a run that was killed leaves out what is there, and ends with the same bytes. */
#include "data/captions.h"

#include <dirent.h>
#include <mhla/diffusion.h>
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/status.h"
#include "diffusion/steps.h"
#include "file/file.h"
#include "file/safetensors.h"
#include "models/model.h"

enum { GROUP = 16 }; /* texts that are encoded between two reports */

typedef struct making {
    mhla_model *encoder;
    mhla_captions_desc d;
    mhla_captions_about about;
    mhla_captions_made made;
    mhla_caption_list list;
    const char *texts[MHLA_CAPTIONS_SHARD];
    int32_t lengths[MHLA_CAPTIONS_SHARD];
    mhla_chars rows; /* of a file: bytes of floats */
} making;

/* ---- What is to be made ---- */

static mhla_status read_data(making *m) {
    mhla_captions_about *a = &m->about;
    struct stat info;
    if (stat(m->d.source, &info) == 0 && S_ISREG(info.st_mode)) {
        snprintf(a->source, sizeof a->source, "%s", m->d.source);
        MHLA_TRY(mhla_captions_of_lines(&m->list, a->source));
        a->train = m->list.count;
        return mhla_data_whole_path(a->source, sizeof a->source);
    }
    MHLA_TRY(mhla_data_locate(a->source, sizeof a->source, m->d.source));
    for (int i = 0; i < 2; i++) {
        mhla_dataset *data = NULL;
        MHLA_TRY(mhla_dataset_open(&data, a->source, i ? MHLA_SPLIT_TEST : MHLA_SPLIT_TRAIN));
        const mhla_status status = mhla_captions_of(&m->list, data, a->source);
        *(i ? &a->test : &a->train) = mhla_dataset_count(data);
        mhla_dataset_free(data);
        MHLA_TRY(status);
    }
    return mhla_data_whole_path(a->source, sizeof a->source);
}

static mhla_status describe(making *m) {
    mhla_captions_about *a = &m->about;
    mhla_encoder_info e;
    MHLA_TRY(mhla_encoder_query(m->encoder, &e));
    MHLA_TRY(read_data(m));
    a->width = e.width;
    a->limit = m->d.longest;
    a->dtype = m->d.rows && strcmp(m->d.rows, "bfloat16") == 0 ? MHLA_IO_BF16 : MHLA_IO_F32;
    a->instruction = strdup(m->d.instruction ? m->d.instruction : "");
    if (a->instruction == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the instruction");
    snprintf(a->encoder, sizeof a->encoder, "%s", m->encoder->origin ? m->encoder->origin : "");
    if (*a->encoder) MHLA_TRY(mhla_data_whole_path(a->encoder, sizeof a->encoder));
    return mhla_model_hash(m->encoder, a->encoder_hash);
}

static mhla_status write_about(const making *m) {
    const mhla_captions_about *a = &m->about;
    char path[4096];
    const unsigned lost = mhla_json_lost();
    json_t *tree = json_object(), *files = json_array(), *texts = json_array();
    for (int64_t i = 0; i < m->list.count; i++) {
        mhla_json_add(files, json_string(m->list.files[i]));
        mhla_json_add(texts, json_string(m->list.texts[i]));
    }
    mhla_json_put(tree, "encoder", json_string(a->encoder));
    mhla_json_put(tree, "encoder_sha256", json_string(a->encoder_hash));
    mhla_json_put(tree, "instruction", json_string(a->instruction));
    mhla_json_put(tree, "longest", json_integer(a->limit));
    mhla_json_put(tree, "width", json_integer(a->width));
    mhla_json_put(tree, "dtype", json_string(a->dtype == MHLA_IO_BF16 ? "bfloat16" : "float32"));
    mhla_json_put(tree, "source", json_string(a->source));
    mhla_json_put(tree, "train", json_integer(a->train));
    mhla_json_put(tree, "test", json_integer(a->test));
    mhla_json_put(tree, "texts", texts);
    mhla_json_put(tree, "files", files);
    mhla_status status = MHLA_OK;
    if (tree == NULL || mhla_json_lost() != lost)
        status = mhla_fail(MHLA_EDATA, "%s: a path, a caption or the instruction is not UTF-8", a->source);
    if (status == MHLA_OK) status = mhla_folder_make(m->d.out);
    if (status == MHLA_OK && snprintf(path, sizeof path, "%s/captions.json", m->d.out) >= (int)sizeof path)
        status = mhla_fail(MHLA_EIO, "%.60s...: the path is too long", m->d.out);
    if (status == MHLA_OK) status = mhla_json_save(tree, path);
    json_decref(tree);
    return status;
}

static mhla_status check_same(const making *m, const mhla_captions *was) {
    const mhla_captions_about *a = &m->about, *b = &was->about;
    if (strcmp(b->encoder_hash, a->encoder_hash) != 0 || b->width != a->width)
        return mhla_fail(MHLA_EINVAL, "%s was encoded by another encoder: SHA-256 %.12s, this one has %.12s", m->d.out,
                         b->encoder_hash, a->encoder_hash);
    if (strcmp(b->instruction, a->instruction) != 0 || b->limit != a->limit)
        return mhla_fail(MHLA_EINVAL, "%s was encoded with another instruction or limit: %s and %lld, not %s and %lld",
                         m->d.out, MHLA_QUOTE(b->instruction), (long long)b->limit, MHLA_QUOTE(a->instruction),
                         (long long)a->limit);
    if (b->dtype != a->dtype)
        return mhla_fail(MHLA_EINVAL, "%s has rows as %s, not as %s", m->d.out, mhla_io_dtype_text(b->dtype),
                         mhla_io_dtype_text(a->dtype));
    if (b->train != a->train || b->test != a->test)
        return mhla_fail(MHLA_EDATA, "%s has %lld and %lld encoded captions, and the data has %lld and %lld now",
                         m->d.out, (long long)b->train, (long long)b->test, (long long)a->train, (long long)a->test);
    return mhla_captions_check(was, &m->list, m->d.out);
}

/* A folder that has been begun must have been begun with the same texts and encoder. */
static mhla_status begin_or_resume(const making *m) {
    if (mhla_captions_there(m->d.out)) {
        mhla_captions was;
        mhla_status status = mhla_captions_read(&was, m->d.out);
        if (status == MHLA_OK) status = check_same(m, &was);
        mhla_captions_free(&was);
        return status;
    }
    DIR *folder = opendir(m->d.out);
    const struct dirent *entry;
    int other = 0;
    while (folder && (entry = readdir(folder)) != NULL) other |= entry->d_name[0] != '.';
    if (folder) closedir(folder);
    if (other) return mhla_fail(MHLA_EINVAL, "%s is not empty, and its files are not encoded captions", m->d.out);
    return write_about(m);
}

/* ---- Making ---- */

/* Texts first .. first+n-1 of the file, their rows behind those that are there. */
static mhla_status encode(making *m, int64_t first, int64_t n) {
    mhla_text_rows rows = {.size = sizeof rows};
    const mhla_encoder_desc how = {.size = sizeof how,
                                   .longest = m->d.longest,
                                   .instruction = *m->about.instruction ? m->about.instruction : NULL};
    MHLA_TRY(mhla_text_encode(m->encoder, &rows, m->texts + first, n, &how));
    mhla_status status = MHLA_OK;
    for (int64_t i = 0; i < n && status == MHLA_OK; i++) {
        const float *from = rows.rows + i * rows.longest * rows.width;
        const int64_t numbers = rows.lengths[i] * rows.width;
        m->lengths[first + i] = rows.lengths[i];
        m->made.cut += rows.cut[i] > 0;
        if (!mhla_all_finite(from, numbers))
            status = mhla_fail(MHLA_EDATA, "the encoding of %s is not finite", MHLA_QUOTE(m->texts[first + i]));
        if (status == MHLA_OK && numbers)
            status = mhla_chars_append(&m->rows, (const char *)from, (size_t)numbers * sizeof *from);
    }
    mhla_text_rows_free(&rows);
    return status;
}

static mhla_status make_file(making *m, int64_t number, int64_t first, int64_t n) {
    char path[4096];
    const int64_t all = 1 + m->list.count;
    mhla_captions_path(path, m->d.out, number);
    if (access(path, F_OK) == 0) {
        m->made.kept += n;
        return MHLA_OK;
    }
    m->rows.count = 0;
    for (int64_t i = 0; i < n; i++) m->texts[i] = first + i ? m->list.texts[first + i - 1] : "";
    for (int64_t i = 0; i < n; i += GROUP) {
        const int64_t few = n - i < GROUP ? n - i : GROUP;
        MHLA_TRY(encode(m, i, few));
        if (m->d.progress) m->d.progress(m->d.user, first + i + few, all);
    }
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++) rows += m->lengths[i];
    const mhla_storable tensors[] = {
        {"rows", 2, (const int64_t[]){rows, m->about.width}, m->rows.data, MHLA_IO_F32, m->about.dtype},
        {"lengths", 1, &n, m->lengths, MHLA_IO_I32, MHLA_IO_I32}};
    return mhla_safetensors_write(path, tensors, 2, NULL, 0);
}

static mhla_status make(making *m) {
    const int64_t all = 1 + m->list.count;
    mhla_captions made;
    for (int64_t first = 0; first < all; first += MHLA_CAPTIONS_SHARD)
        MHLA_TRY(make_file(m, first / MHLA_CAPTIONS_SHARD, first,
                           all - first < MHLA_CAPTIONS_SHARD ? all - first : MHLA_CAPTIONS_SHARD));
    const mhla_status status = mhla_captions_open(&made, m->d.out); /* as a training will see it */
    m->made.train = m->about.train;
    m->made.test = m->about.test;
    m->made.width = m->about.width;
    m->made.longest = made.longest;
    mhla_captions_free(&made);
    return status;
}

mhla_status mhla_captions_make(mhla_model *encoder, const mhla_captions_desc *desc, mhla_captions_made *made) {
    making m = {.encoder = encoder, .made = {.size = sizeof m.made}};
    MHLA_TRY(mhla_struct_in(&m.d, sizeof m.d, desc, "mhla_captions_desc"));
    if (made) MHLA_TRY(mhla_struct_check(made, 0, "mhla_captions_made"));
    if (m.d.source == NULL || m.d.out == NULL)
        return mhla_fail(MHLA_EINVAL, "%s is NULL", m.d.source ? "out" : "source");
    if (m.d.rows && strcmp(m.d.rows, "float32") != 0 && strcmp(m.d.rows, "bfloat16") != 0)
        return mhla_fail(MHLA_EINVAL, "rows is %s: expected float32 or bfloat16", MHLA_QUOTE(m.d.rows));
    if (m.d.longest < 0) return mhla_fail(MHLA_EINVAL, "longest is %lld", (long long)m.d.longest);
    mhla_status status = describe(&m);
    if (status == MHLA_OK) status = begin_or_resume(&m);
    if (status == MHLA_OK) status = make(&m);
    mhla_caption_list_free(&m.list);
    mhla_chars_free(&m.rows);
    free(m.about.instruction);
    return status == MHLA_OK && made ? mhla_struct_out(made, &m.made, sizeof m.made, "mhla_captions_made") : status;
}
