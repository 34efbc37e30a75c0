/* Any bytes as a GGUF file: refused, or every value and tensor inside them. */
#include <stdlib.h>
#include <string.h>

#include "file/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *begin, *end;

static void inside(const void *at, size_t bytes) {
    const uint8_t *p = at;
    if (bytes && (p < begin || p > end || bytes > (size_t)(end - p))) abort();
}

static void look_at_value(const mhla_gguf *f, const mhla_gguf_value *v) {
    if (mhla_gguf_find_value(f, v->key) != v) abort();
    double sum = 0;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->kind == MHLA_GGUF_STRING)
            inside(v->strings[i].data, v->strings[i].length);
        else
            sum += mhla_gguf_real_at(v, i) + (double)mhla_gguf_int_at(v, i);
    }
    volatile double sink = sum;
    (void)sink;
    int64_t n = 0;
    double x = 0;
    char *text = NULL;
    const mhla_gguf_value *array;
    (void)mhla_gguf_get_int(&n, f, v->key, 0, 1000);
    (void)mhla_gguf_get_real(&x, f, v->key);
    (void)mhla_gguf_get_text(&text, f, v->key);
    (void)mhla_gguf_get_strings(&array, f, v->key);
    (void)mhla_gguf_get_numbers(&array, f, v->key);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_gguf *f;
    begin = data, end = data + size;
    if (mhla_gguf_open_bytes(&f, data, size, "fuzz") != MHLA_OK) return 0;
    for (int64_t i = 0; i < mhla_gguf_value_count(f); i++) look_at_value(f, mhla_gguf_value_at(f, i));
    for (int64_t i = 0; i < mhla_gguf_tensor_count(f); i++) {
        const mhla_gguf_tensor *t = mhla_gguf_tensor_at(f, i);
        const mhla_gguf_tensor *same;
        if (mhla_gguf_find_tensor(f, t->name) != t || t->rows * t->cols != t->count) abort();
        inside(t->data, t->bytes);
        if (mhla_gguf_need_tensor(&same, f, t->name) != MHLA_OK) continue;
        float *x = malloc((size_t)t->cols * sizeof *x);
        for (int64_t r = 0; x && r < t->rows; r++) mhla_gguf_read_rows(x, t, r, 1);
        free(x);
    }
    const mhla_gguf_tensor *t;
    (void)mhla_gguf_need_tensor(&t, f, "token_embd.weight");
    mhla_gguf_close(f);
    return 0;
}
