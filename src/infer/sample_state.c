#include "infer/sample_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "diffusion/diffusion.h"
#include "file/safetensors.h"

static const char *const memories[] = {"memory.0", "memory.1", "memory.2", "memory.3"};

mhla_status mhla_sample_state_write(const mhla_sample_place *p, const char *path, const char *work,
                                    const mhla_sampler *sampler, const float *images, const float *x) {
    char first[24], step[16];
    float *memory[4];
    const int kept = mhla_sampler_memory(sampler, memory);
    const int64_t batch[] = {p->count, p->each}, done[] = {p->first, p->each};
    mhla_storable list[6] = {{"x", 2, batch, x, MHLA_IO_F32, MHLA_IO_F32}};
    int n = 1;
    for (int i = 0; i < kept; i++)
        list[n++] = (mhla_storable){memories[i], 2, batch, memory[i], MHLA_IO_F32, MHLA_IO_F32};
    if (p->first > 0) list[n++] = (mhla_storable){"images", 2, done, images, MHLA_IO_F32, MHLA_IO_F32};
    snprintf(first, sizeof first, "%lld", (long long)p->first);
    snprintf(step, sizeof step, "%d", p->step);
    const mhla_pair pairs[] = {{"work", work}, {"first", first}, {"step", step}};
    const mhla_status status = mhla_safetensors_write(path, list, n, pairs, 3);
    if (status == MHLA_OK) return status;
    return mhla_fail(status, "after step %d: %s", p->step, mhla_message());
}

static mhla_status place_of(mhla_sample_place *p, const mhla_safetensors *file, const char *work) {
    const char *path = mhla_safetensors_path(file), *first = mhla_safetensors_metadata(file, "first"),
               *step = mhla_safetensors_metadata(file, "step"), *of = mhla_safetensors_metadata(file, "work");
    const mhla_stored *x = mhla_safetensors_find(file, "x");
    if (first == NULL || step == NULL || of == NULL || x == NULL || x->rank != 2 || x->dtype != MHLA_IO_F32)
        return mhla_fail(MHLA_EDATA, "%s: not a state of sampling", path);
    if (strcmp(of, work) != 0)
        return mhla_fail(MHLA_EINVAL,
                         "%s: a state of other images: other weights, prompts, seeds or settings; remove it to begin "
                         "anew",
                         path);
    p->first = strtoll(first, NULL, 10);
    p->count = x->shape[0];
    p->step = (int)strtol(step, NULL, 10);
    if (p->first < 0 || p->count < 1 || p->step < 1 || x->shape[1] != p->each)
        return mhla_fail(MHLA_EDATA, "%s: a state of sampling that cannot be", path);
    return MHLA_OK;
}

mhla_status mhla_sample_state_find(int *found, mhla_sample_place *p, const char *path, const char *work,
                                   int64_t images) {
    struct stat info;
    mhla_safetensors *file;
    *found = 0;
    if (stat(path, &info) != 0) return errno == ENOENT ? MHLA_OK : mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    MHLA_TRY(mhla_safetensors_open(&file, path));
    mhla_status status = place_of(p, file, work);
    if (status == MHLA_OK && p->first + p->count > images)
        status = mhla_fail(MHLA_EDATA, "%s: a state of sampling that cannot be", path);
    mhla_safetensors_close(file);
    *found = status == MHLA_OK;
    return status;
}

static mhla_status read_array(float *to, const mhla_safetensors *file, const char *name, int64_t rows, int64_t each) {
    const mhla_stored *s;
    MHLA_TRY(mhla_safetensors_need(&s, file, name));
    MHLA_TRY(mhla_stored_check(s, 2, (const int64_t[]){rows, each}));
    return mhla_stored_read(to, s);
}

mhla_status mhla_sample_state_read(mhla_sample_place *p, const char *path, const char *work, mhla_sampler *sampler,
                                   float *images, float *x) {
    mhla_safetensors *file;
    float *memory[4];
    MHLA_TRY(mhla_safetensors_open(&file, path));
    mhla_status status = place_of(p, file, work);
    if (status == MHLA_OK && x) status = read_array(x, file, "x", p->count, p->each);
    if (status == MHLA_OK && images && p->first > 0) status = read_array(images, file, "images", p->first, p->each);
    const int kept = sampler ? mhla_sampler_memory(sampler, memory) : 0;
    for (int i = 0; i < kept && status == MHLA_OK; i++)
        status = read_array(memory[i], file, memories[i], p->count, p->each);
    if (status == MHLA_OK && sampler) mhla_sampler_continue(sampler, p->step);
    mhla_safetensors_close(file);
    return status;
}
