/* Lists that grow: of ids, of characters, of anything. */
#include "file/lists.h"

#include <string.h>

#include "core/memory.h"
#include "core/status.h"

mhla_status mhla_list_grow(void **data, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return MHLA_OK;
    size_t larger = *capacity + *capacity / 2 + 16;
    if (larger < need) larger = need;
    void *block = larger <= SIZE_MAX / size ? mhla_alloc(larger * size) : NULL;
    if (block == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a list of %zu elements", larger);
    if (*capacity) memcpy(block, *data, *capacity * size);
    mhla_free(*data);
    *data = block;
    *capacity = larger;
    return MHLA_OK;
}

mhla_status mhla_ids_reserve(mhla_ids *ids, int64_t more) {
    void *data = ids->data;
    size_t capacity = (size_t)ids->capacity;
    MHLA_TRY(mhla_list_grow(&data, &capacity, (size_t)ids->count + (size_t)more, sizeof *ids->data));
    ids->data = data;
    ids->capacity = (int64_t)capacity;
    return MHLA_OK;
}

mhla_status mhla_chars_reserve(mhla_chars *text, size_t more) {
    void *data = text->data;
    MHLA_TRY(mhla_list_grow(&data, &text->capacity, text->count + more, 1));
    text->data = data;
    return MHLA_OK;
}

mhla_status mhla_ids_append(mhla_ids *ids, const int32_t *data, int64_t count) {
    if (count == 0) return MHLA_OK;
    if (ids->capacity - ids->count < count) MHLA_TRY(mhla_ids_reserve(ids, count));
    memcpy(ids->data + ids->count, data, (size_t)count * sizeof *data);
    ids->count += count;
    return MHLA_OK;
}

mhla_status mhla_chars_append(mhla_chars *text, const char *data, size_t count) {
    if (count == 0) return MHLA_OK;
    if (text->capacity - text->count < count) MHLA_TRY(mhla_chars_reserve(text, count));
    memcpy(text->data + text->count, data, count);
    text->count += count;
    return MHLA_OK;
}

void mhla_ids_free(mhla_ids *ids) {
    if (ids == NULL) return;
    mhla_free(ids->data);
    *ids = (mhla_ids){0};
}

void mhla_chars_free(mhla_chars *text) {
    if (text == NULL) return;
    mhla_free(text->data);
    *text = (mhla_chars){0};
}

uint64_t mhla_bytes_hash(const char *bytes, size_t count) {
    const uint64_t factor = 0x9E3779B97F4A7C15u;
    uint64_t h = count * factor, word;
    for (; count >= 8; bytes += 8, count -= 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * factor;
        h ^= h >> 32;
    }
    if (count) { /* the rest by two reads that may overlap */
        if (count >= 4) {
            uint32_t a, b;
            memcpy(&a, bytes, 4);
            memcpy(&b, bytes + count - 4, 4);
            word = (uint64_t)a << 32 | b;
        } else {
            word = (uint64_t)(unsigned char)bytes[0] << 16 | (uint64_t)(unsigned char)bytes[count / 2] << 8 |
                   (unsigned char)bytes[count - 1];
        }
        h = (h ^ word) * factor;
        h ^= h >> 32;
    }
    h *= factor;
    return h ^ h >> 29;
}
