/* The types of numbers in GGUF files, and their way to float32 and back. */
#include "file/gguf_types.h"

#include <string.h>

#include "core/numbers.h"
#include "file/dtype.h"

static const mhla_gguf_layout layouts[] = {
    [0] = {"F32", 1, 4, 1, NULL},
    [1] = {"F16", 1, 2, 1, NULL},
    [2] = {"Q4_0", 32, 18, 1, mhla_gguf_widen_q4_0},
    [3] = {"Q4_1", 32, 20, 1, mhla_gguf_widen_q4_1},
    [6] = {"Q5_0", 32, 22, 1, mhla_gguf_widen_q5_0},
    [7] = {"Q5_1", 32, 24, 1, mhla_gguf_widen_q5_1},
    [8] = {"Q8_0", 32, 34, 1, mhla_gguf_widen_q8_0},
    [9] = {"Q8_1", 32, 40, 0, NULL},
    [10] = {"Q2_K", 256, 84, 1, mhla_gguf_widen_q2_k},
    [11] = {"Q3_K", 256, 110, 1, mhla_gguf_widen_q3_k},
    [12] = {"Q4_K", 256, 144, 1, mhla_gguf_widen_q4_k},
    [13] = {"Q5_K", 256, 176, 1, mhla_gguf_widen_q5_k},
    [14] = {"Q6_K", 256, 210, 1, mhla_gguf_widen_q6_k},
    [15] = {"Q8_K", 256, 292, 0, NULL},
    [16] = {"IQ2_XXS", 256, 66, 0, NULL},
    [17] = {"IQ2_XS", 256, 74, 0, NULL},
    [18] = {"IQ3_XXS", 256, 98, 0, NULL},
    [19] = {"IQ1_S", 256, 50, 0, NULL},
    [20] = {"IQ4_NL", 32, 18, 0, NULL},
    [21] = {"IQ3_S", 256, 110, 0, NULL},
    [22] = {"IQ2_S", 256, 82, 0, NULL},
    [23] = {"IQ4_XS", 256, 136, 0, NULL},
    [24] = {"I8", 1, 1, 0, NULL},
    [25] = {"I16", 1, 2, 0, NULL},
    [26] = {"I32", 1, 4, 0, NULL},
    [27] = {"I64", 1, 8, 0, NULL},
    [28] = {"F64", 1, 8, 0, NULL},
    [29] = {"IQ1_M", 256, 56, 0, NULL},
    [30] = {"BF16", 1, 2, 1, NULL},
    [34] = {"TQ1_0", 256, 54, 0, NULL},
    [35] = {"TQ2_0", 256, 66, 0, NULL},
    [39] = {"MXFP4", 32, 17, 0, NULL},
    [40] = {"NVFP4", 64, 36, 0, NULL},
};

const mhla_gguf_layout *mhla_gguf_layout_of(uint32_t type) {
    return type < sizeof layouts / sizeof *layouts && layouts[type].text ? &layouts[type] : NULL;
}

const char *mhla_gguf_type_text(mhla_gguf_type type) {
    const mhla_gguf_layout *l = mhla_gguf_layout_of((uint32_t)type);
    return l ? l->text : "unknown";
}

size_t mhla_gguf_row_bytes(mhla_gguf_type type, int64_t cols) {
    const mhla_gguf_layout *l = mhla_gguf_layout_of((uint32_t)type);
    return (size_t)(cols / l->block) * (size_t)l->bytes;
}

void mhla_gguf_to_f32(float *to, const void *from, mhla_gguf_type type, int64_t count) {
    const unsigned char *at = from;
    const mhla_gguf_layout *l = mhla_gguf_layout_of((uint32_t)type);
    switch (type) {
    case MHLA_GGUF_F32: mhla_io_to_f32(to, from, MHLA_IO_F32, (size_t)count); return;
    case MHLA_GGUF_F16: mhla_io_to_f32(to, from, MHLA_IO_F16, (size_t)count); return;
    case MHLA_GGUF_BF16: mhla_io_to_f32(to, from, MHLA_IO_BF16, (size_t)count); return;
    default: break;
    }
    if (l->widen)
        for (int64_t i = 0; i < count; i += l->block, at += l->bytes) l->widen(to + i, at);
}

void mhla_gguf_from_f32(void *to, const float *from, mhla_gguf_type type, int64_t count) {
    switch (type) {
    case MHLA_GGUF_F32: mhla_io_from_f32(to, from, MHLA_IO_F32, (size_t)count); return;
    case MHLA_GGUF_F16: mhla_io_from_f32(to, from, MHLA_IO_F16, (size_t)count); return;
    case MHLA_GGUF_BF16: mhla_io_from_f32(to, from, MHLA_IO_BF16, (size_t)count); return;
    case MHLA_GGUF_Q8_0: break;
    default: return;
    }
    for (int64_t i = 0; i < count; i += 32) {
        mhla_q8_block b;
        mhla_q8_quantise(&b, from + i);
        memcpy((char *)to + i / 32 * (int64_t)sizeof b, &b, sizeof b);
    }
}
