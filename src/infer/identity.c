/* What tells one model from another: a hash of all its weights, or, where that would take minutes, of some of each tensor of its files. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "file/file.h"
#include "file/sha256.h"
#include "infer/identity.h"
#include "models/model.h"

enum { PLACES = 16, BYTES = 256 }; /* of a tensor; a GGUF file, which is not divided here, has more */

static void add_places(mhla_sha256 *h, const unsigned char *data, size_t bytes, size_t places) {
    mhla_sha256_add(h, &bytes, sizeof bytes);
    if (bytes <= places * BYTES) {
        mhla_sha256_add(h, data, bytes);
        return;
    }
    for (size_t i = 0; i < places; i++) mhla_sha256_add(h, data + i * ((bytes - BYTES) / (places - 1)), BYTES);
}

static mhla_status add_tensors(mhla_sha256 *h, const char *path) {
    mhla_safetensors *file;
    MHLA_TRY(mhla_safetensors_open(&file, path));
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) {
        const mhla_stored *s = mhla_safetensors_at(file, i);
        const int64_t kind[] = {s->dtype, s->rank};
        mhla_sha256_add(h, s->name, strlen(s->name) + 1);
        mhla_sha256_add(h, kind, sizeof kind);
        mhla_sha256_add(h, s->shape, (size_t)s->rank * sizeof *s->shape);
        add_places(h, s->data, s->bytes, PLACES);
    }
    mhla_safetensors_close(file);
    return MHLA_OK;
}

mhla_status mhla_model_fingerprint(const mhla_model *m, char text[65]) {
    mhla_sha256 h;
    mhla_sha256_begin(&h);
    if (m->config) mhla_sha256_add(&h, m->config, strlen(m->config) + 1);
    if (m->weights) {
        MHLA_TRY(add_tensors(&h, m->weights));
    } else if (m->origin) {
        mhla_file file;
        MHLA_TRY(mhla_file_map(&file, m->origin));
        add_places(&h, file.data, file.size, (size_t)PLACES * PLACES * 4);
        mhla_file_unmap(&file);
    } else {
        return mhla_model_hash(m, text); /* of no file: there is nothing else */
    }
    mhla_sha256_end(&h, text);
    return MHLA_OK;
}

mhla_status mhla_model_hash(const mhla_model *model, char text[65]) {
    if (model == NULL) return mhla_fail(MHLA_EINVAL, "model is NULL");
    mhla_sha256 h;
    mhla_sha256_begin(&h);
    for (int i = 0; i < mhla_params_count(model->params); i++) {
        mhla_param *p = mhla_params_at(model->params, i);
        mhla_sha256_add(&h, p->name, strlen(p->name) + 1);
        mhla_sha256_add(&h, p->shape, (size_t)p->dims * sizeof *p->shape);
        if (p->data) {
            mhla_sha256_add(&h, p->data, (size_t)p->count * sizeof *p->data);
            continue;
        }
        const size_t bytes = (size_t)(p->count / p->shape[0]) * sizeof *p->data; /* other storage: row by row */
        float *row = mhla_alloc(bytes);
        if (row == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a row of %s", p->name);
        for (int64_t r = 0; r < p->shape[0]; r++) {
            (void)mhla_param_get_rows(row, p, r, 1); /* the row is there */
            mhla_sha256_add(&h, row, bytes);
        }
        mhla_free(row);
        mhla_param_return(p); /* a file may be larger than memory */
    }
    mhla_sha256_end(&h, text);
    return MHLA_OK;
}
