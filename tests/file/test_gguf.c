/* GGUF files: what is written is read again, each type of number by its definition, Q8_0 byte by byte as llama.cpp's
 * reference writes it, hostile files refused with a sentence, and a published model's tensors. */
#include "core/numbers.h"
#include "file/gguf.h"
#include "file/json.h"
#include "file/sha256.h"
#include "files.h"
#include "goldens.h"

/* ---- A small file with everything in it ---- */

typedef struct source {
    int64_t cols;
    float scale;
} source;

static float number(int64_t i, float scale) { return scale * (float)((i * 7919 + 13) % 2001 - 1000) / 1000.0f; }

static mhla_status fill(float *rows, int64_t first, int64_t count, void *arg) {
    const source *s = arg;
    for (int64_t i = 0; i < count * s->cols; i++) rows[i] = number(first * s->cols + i, s->scale);
    return MHLA_OK;
}
static mhla_status fill_fails(float *rows, int64_t first, int64_t count, void *arg) {
    (void)rows, (void)first, (void)count, (void)arg;
    return MHLA_EIO;
}

static const uint8_t u8 = 200, truth = 1;
static const int8_t i8 = -3;
static const uint16_t u16 = 60000;
static const int16_t i16 = -30000;
static const uint32_t u32 = 4000000000u;
static const int32_t i32[3] = {-1, 0, 2000000000};
static const uint64_t u64 = UINT64_MAX;
static const int64_t i64 = INT64_MIN;
static const float f32 = 1e-5f;
static const double f64 = 0.1;
static const mhla_gguf_string words[3] = {{"llama", 5}, {"", 0}, {"a\0b", 3}};

static const mhla_gguf_pair pairs[] = {
    {"general.architecture", MHLA_GGUF_STRING, 0, 1, NULL, words},
    {"u8", MHLA_GGUF_UINT8, 0, 1, &u8, NULL},
    {"i8", MHLA_GGUF_INT8, 0, 1, &i8, NULL},
    {"u16", MHLA_GGUF_UINT16, 0, 1, &u16, NULL},
    {"i16", MHLA_GGUF_INT16, 0, 1, &i16, NULL},
    {"u32", MHLA_GGUF_UINT32, 0, 1, &u32, NULL},
    {"i32s", MHLA_GGUF_INT32, 1, 3, i32, NULL},
    {"u64", MHLA_GGUF_UINT64, 0, 1, &u64, NULL},
    {"i64", MHLA_GGUF_INT64, 0, 1, &i64, NULL},
    {"f32", MHLA_GGUF_FLOAT32, 0, 1, &f32, NULL},
    {"f64", MHLA_GGUF_FLOAT64, 0, 1, &f64, NULL},
    {"truth", MHLA_GGUF_BOOL, 0, 1, &truth, NULL},
    {"words", MHLA_GGUF_STRING, 1, 3, NULL, words},
    {"none", MHLA_GGUF_STRING, 1, 0, NULL, NULL},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static source sources[4] = {{5, 1.0f}, {64, 3.0f}, {32, 2.0f}, {3, 1.0f}};
static const mhla_gguf_storable tensors[] = {
    {"plain", MHLA_GGUF_F32, 2, {7, 5}, fill, &sources[0]},
    {"blocks.q8", MHLA_GGUF_Q8_0, 2, {9, 64}, fill, &sources[1]},
    {"bf", MHLA_GGUF_BF16, 3, {2, 3, 32}, fill, &sources[2]},
    {"half", MHLA_GGUF_F16, 1, {3}, fill, &sources[3]},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static char *make_bytes(size_t *size) {
    ASSERT_OK(mhla_gguf_write(in_folder("a.gguf"), pairs, PAIRS, tensors, TENSORS));
    return read_file(in_folder("a.gguf"), size);
}

static void test_round_trip(void **state) {
    (void)state;
    size_t size, again;
    char *bytes = make_bytes(&size);
    mhla_gguf *f;
    ASSERT_OK(mhla_gguf_open(&f, in_folder("a.gguf")));
    assert_int_equal(mhla_gguf_value_count(f), PAIRS);
    int64_t n = 5;
    ASSERT_OK(mhla_gguf_get_int(&n, f, "absent", 0, 1));
    assert_int_equal(n, 5);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "u8", 0, 255));
    assert_int_equal(n, 200);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "i8", -3, 0));
    assert_int_equal(n, -3);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "u16", 0, 65535));
    assert_int_equal(n, 60000);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "i16", -30000, 0));
    assert_int_equal(n, -30000);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "u32", 0, INT64_MAX));
    assert_int_equal(n, 4000000000);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "u64", 0, INT64_MAX));
    assert_int_equal(n, INT64_MAX);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "i64", INT64_MIN, 0));
    assert_true(n == INT64_MIN);
    ASSERT_OK(mhla_gguf_get_int(&n, f, "truth", 0, 1));
    assert_int_equal(n, 1);
    ASSERT_FAILS(mhla_gguf_get_int(&n, f, "u8", 0, 199), MHLA_EDATA, "\"u8\" is 200, expected 0 to 199");
    ASSERT_FAILS(mhla_gguf_get_int(&n, f, "f32", 0, 1), MHLA_EDATA, "\"f32\" is float32, expected a whole number");
    ASSERT_FAILS(mhla_gguf_get_int(&n, f, "i32s", 0, 1), MHLA_EDATA, "an array of int32");
    double x = 0;
    ASSERT_OK(mhla_gguf_get_real(&x, f, "f32"));
    assert_true(x == (double)1e-5f);
    ASSERT_OK(mhla_gguf_get_real(&x, f, "f64"));
    assert_true(x == 0.1);
    ASSERT_OK(mhla_gguf_get_real(&x, f, "u8"));
    assert_true(x == 200.0);
    char *text = NULL;
    ASSERT_OK(mhla_gguf_get_text(&text, f, "general.architecture"));
    assert_string_equal(text, "llama");
    free(text);
    ASSERT_FAILS(mhla_gguf_get_text(&text, f, "words"), MHLA_EDATA, "expected text");
    const mhla_gguf_value *v;
    ASSERT_OK(mhla_gguf_get_strings(&v, f, "words"));
    assert_int_equal(v->count, 3);
    assert_int_equal(v->strings[2].length, 3);
    assert_memory_equal(v->strings[2].data, "a\0b", 3);
    ASSERT_OK(mhla_gguf_get_strings(&v, f, "none"));
    assert_int_equal(v->count, 0);
    ASSERT_OK(mhla_gguf_get_numbers(&v, f, "i32s"));
    for (int i = 0; i < 3; i++) assert_int_equal(mhla_gguf_int_at(v, i), i32[i]);
    ASSERT_FAILS(mhla_gguf_get_numbers(&v, f, "words"), MHLA_EDATA, "expected an array of numbers");

    assert_int_equal(mhla_gguf_tensor_count(f), TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        const mhla_gguf_tensor *t;
        ASSERT_OK(mhla_gguf_need_tensor(&t, f, tensors[i].name));
        assert_ptr_equal(t, mhla_gguf_tensor_at(f, i));
        ASSERT_OK(mhla_gguf_check_shape(t, tensors[i].rank, tensors[i].shape));
        float *got = new_poisoned(t->count);
        for (int64_t r = 0; r < t->rows; r++) mhla_gguf_read_rows(got + r * t->cols, t, r, 1);
        const float scale = sources[i].scale, error = t->type == MHLA_GGUF_F32    ? 0.0f
                                                      : t->type == MHLA_GGUF_F16  ? scale / 2048
                                                      : t->type == MHLA_GGUF_BF16 ? scale / 256
                                                                                  : scale / 127 * 0.57f;
        for (int64_t j = 0; j < t->count; j++)
            if (!(fabsf(got[j] - number(j, scale)) <= error)) fail_msg("%s: element %d", t->name, (int)j);
        free(got);
    }
    const mhla_gguf_tensor *t;
    ASSERT_FAILS(mhla_gguf_need_tensor(&t, f, "blocks.q9"), MHLA_EDATA, "the nearest is \"blocks.q8\"");
    ASSERT_OK(mhla_gguf_need_tensor(&t, f, "bf"));
    ASSERT_FAILS(mhla_gguf_check_shape(t, 2, (int64_t[]){6, 32}), MHLA_EDATA, "[2, 3, 32], expected [6, 32]");
    mhla_gguf_close(f);
    char *second = make_bytes(&again); /* the same bytes again, nothing beside them */
    assert_int_equal(size, again);
    assert_memory_equal(bytes, second, size);
    assert_int_equal(entries(folder), 1);
    free(bytes);
    free(second);
}

/* ---- Types of numbers ---- */

static void test_types(void **state) {
    (void)state;
    float x[32];
    /* d = 0.5, m = -1.25; nibbles i and 15 - i */
    unsigned char q4[20] = {0x00, 0x38, 0x00, 0xbd};
    for (int i = 0; i < 16; i++) q4[4 + i] = (unsigned char)(i | (15 - i) << 4);
    mhla_gguf_to_f32(x, q4, MHLA_GGUF_Q4_1, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(x[i] == 0.5f * (float)i - 1.25f);
        assert_true(x[16 + i] == 0.5f * (float)(15 - i) - 1.25f);
    }
    memmove(q4 + 2, q4 + 4, 16);
    mhla_gguf_to_f32(x, q4, MHLA_GGUF_Q4_0, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(x[i] == 0.5f * (float)(i - 8));
        assert_true(x[16 + i] == 0.5f * (float)(7 - i));
    }
    assert_int_equal(mhla_gguf_row_bytes(MHLA_GGUF_Q8_0, 96), 102);
    assert_string_equal(mhla_gguf_type_text(MHLA_GGUF_Q4_1), "Q4_1");
    for (uint32_t h = 0; h < 65536; h++) { /* every float16 comes back */
        const float f = mhla_half_to_float((uint16_t)h);
        if (!isnan(f)) assert_int_equal(mhla_float_to_half(f), h);
    }
}

/* ---- Blocks with more bits or of 256 numbers: packed here, widened there ---- */

static uint64_t drawn = 7;
static int draw(int least, int most) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return least + (int)((drawn >> 33) % (uint64_t)(most - least + 1));
}

static void put_half(unsigned char *at, float x) {
    const uint16_t h = mhla_float_to_half(x);
    memcpy(at, &h, sizeof h);
}

enum { D = -3, LEAST = 5 }; /* d = -3/8, m = 5/8: products and sums of small whole numbers are exact */

static void same_block(const char *what, mhla_gguf_type type, const unsigned char *block, int count,
                       const float *want) {
    float *x = new_poisoned(count);
    mhla_gguf_to_f32(x, block, type, count);
    for (int i = 0; i < count; i++)
        if (!(x[i] == want[i])) fail_msg("%s: number %d is %g, expected %g", what, i, (double)x[i], (double)want[i]);
    free(x);
}

static void test_five_bits(void **state) {
    (void)state;
    unsigned char b[24] = {0};
    float want[32];
    put_half(b, (float)D / 8);
    put_half(b + 2, (float)LEAST / 8);
    for (int i = 0; i < 32; i++) {
        const int q = draw(0, 31);
        b[8 + i % 16] |= (unsigned char)((q & 15) << (i < 16 ? 0 : 4));
        b[4 + i / 8] |= (unsigned char)(q >> 4 << i % 8);
        want[i] = (float)(D * q + LEAST) / 8;
    }
    same_block("Q5_1", MHLA_GGUF_Q5_1, b, 32, want);
    for (int i = 0; i < 32; i++) want[i] -= (float)(LEAST + 16 * D) / 8;
    memmove(b + 2, b + 4, 20);
    same_block("Q5_0", MHLA_GGUF_Q5_0, b, 32, want);
}

/* Eight groups with a scale and a minimum of six bits each. */
static void test_q4_k_q5_k(void **state) {
    (void)state;
    for (int bits = 4; bits <= 5; bits++) {
        unsigned char b[176] = {0}, *scales = b + 4, *high = b + 16, *qs = bits == 4 ? b + 16 : b + 48;
        float want[256];
        put_half(b, (float)D / 8);
        put_half(b + 2, (float)LEAST / 8);
        for (int k = 0; k < 8; k++) {
            const int scale = draw(0, 63), least = draw(0, 63);
            if (k < 4) {
                scales[k] |= (unsigned char)scale, scales[k + 4] |= (unsigned char)least;
            } else {
                scales[k + 4] |= (unsigned char)((scale & 15) | (least & 15) << 4);
                scales[k - 4] |= (unsigned char)(scale >> 4 << 6), scales[k] |= (unsigned char)(least >> 4 << 6);
            }
            for (int l = 0; l < 32; l++) {
                const int q = draw(0, (1 << bits) - 1);
                qs[k / 2 * 32 + l] |= (unsigned char)((q & 15) << k % 2 * 4);
                if (bits == 5) high[l] |= (unsigned char)(q >> 4 << k);
                want[32 * k + l] = (float)(D * scale * q - LEAST * least) / 8;
            }
        }
        same_block(bits == 4 ? "Q4_K" : "Q5_K", bits == 4 ? MHLA_GGUF_Q4_K : MHLA_GGUF_Q5_K, b, 256, want);
    }
}

/* Sixteen groups; number i of a half has its low bits at 2 (i / 32) of byte i mod 32. */
static void test_q2_k_q3_k_q6_k(void **state) {
    (void)state;
    unsigned char two[84] = {0}, three[110] = {0}, six[210] = {0};
    float want[3][256];
    put_half(two + 80, (float)D / 8);
    put_half(two + 82, (float)LEAST / 8);
    put_half(three + 108, (float)D / 8);
    put_half(six + 208, (float)D / 8);
    for (int k = 0; k < 16; k++) {
        const int scale2 = draw(0, 15), least2 = draw(0, 15), scale3 = draw(-32, 31), scale6 = draw(-128, 127);
        two[k] = (unsigned char)(scale2 | least2 << 4);
        three[96 + k % 8] |= (unsigned char)(((scale3 + 32) & 15) << k / 8 * 4);
        three[104 + k % 4] |= (unsigned char)((scale3 + 32) >> 4 << k / 4 * 2);
        six[192 + k] = (unsigned char)(int8_t)scale6;
        for (int i = 16 * k; i < 16 * k + 16; i++) {
            const int half = i / 128, l = i % 32, shift = i % 128 / 32 * 2;
            const int q2 = draw(0, 3), q3 = draw(-4, 3), q6 = draw(-32, 31);
            two[16 + 32 * half + l] |= (unsigned char)(q2 << shift);
            three[32 + 32 * half + l] |= (unsigned char)((q3 & 3) << shift);
            if (q3 >= 0) three[l] |= (unsigned char)(1 << i / 32);
            six[64 * half + i % 64] |= (unsigned char)(((q6 + 32) & 15) << (i % 128 < 64 ? 0 : 4));
            six[128 + 32 * half + l] |= (unsigned char)((q6 + 32) >> 4 << shift);
            want[0][i] = (float)(D * scale2 * q2 - LEAST * least2) / 8;
            want[1][i] = (float)(D * scale3 * q3) / 8;
            want[2][i] = (float)(D * scale6 * q6) / 8;
        }
    }
    same_block("Q2_K", MHLA_GGUF_Q2_K, two, 256, want[0]);
    same_block("Q3_K", MHLA_GGUF_Q3_K, three, 256, want[1]);
    same_block("Q6_K", MHLA_GGUF_Q6_K, six, 256, want[2]);
    assert_int_equal(mhla_gguf_row_bytes(MHLA_GGUF_Q6_K, 512), 420);
}

/* The bytes of llama.cpp's reference (by its Python package) for numbers of many sizes, ties and zeros among them. */
static void test_q8_0(void **state) {
    (void)state;
    enum { COUNT = 32 * 512 };
    float *x = new_bytes(COUNT * sizeof *x), back[32];
    uint64_t seed = 1;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int block = i / 32;
        const float u = (float)(int32_t)(seed >> 32) / 2147483648.0f;
        x[i] = block == 0   ? 0.0f
               : block == 1 ? (float)(i % 32) - 15.5f                      /* halves, largest 15.5 */
               : block == 2 ? (i == 64 ? 127.0f : (float)(i % 32) - 16.5f) /* ties */
                            : ldexpf(u, block % 40 - 20) * (i % 32 == 5 ? 3.0f : 1.0f);
    }
    mhla_q8_block *blocks = new_bytes(COUNT / 32 * sizeof *blocks);
    mhla_gguf_from_f32(blocks, x, MHLA_GGUF_Q8_0, COUNT);
    char digits[65];
    mhla_sha256_of(blocks, COUNT / 32 * sizeof *blocks, digits);
    assert_string_equal(digits, "999ed0e83e188664c678654d5a427bf4c65859ba616a15dc94916dbd641a7d09");
    /* Quantising what was quantised changes nothing, unless the scale was too small for float16. */
    for (int b = 0; b < COUNT / 32; b++) {
        if (blocks[b].d == 0) continue;
        mhla_q8_block again;
        mhla_q8_widen(back, &blocks[b]);
        mhla_q8_quantise(&again, back);
        assert_memory_equal(&again, &blocks[b], sizeof again);
    }
    /* What is no number, or too large, does no harm. */
    x[0] = NAN, x[1] = INFINITY, x[2] = -INFINITY, x[3] = 3e38f, x[4] = 1e-45f;
    mhla_gguf_from_f32(blocks, x, MHLA_GGUF_Q8_0, 32);
    free(x);
    free(blocks);
}

/* ---- Bad files ---- */

static void expect_refused(const char *bytes, size_t size, mhla_status status, const char *word) {
    mhla_gguf *f;
    const mhla_status got = mhla_gguf_open_bytes(&f, bytes, size, "file");
    if (got != status) fail_msg("%s: %s, \"%s\"", word, mhla_status_text(got), mhla_message());
    message_has("bytes", word);
    message_has("bytes", "file: ");
}

static void test_truncated(void **state) {
    (void)state;
    size_t size;
    char *bytes = make_bytes(&size);
    for (size_t n = 0; n < size - 32; n++) { /* the last bytes are padding */
        char *part = new_bytes(n ? n : 1);
        memcpy(part, bytes, n);
        mhla_gguf *f;
        if (mhla_gguf_open_bytes(&f, part, n, "part") != MHLA_EDATA) fail_msg("%d bytes were accepted", (int)n);
        free(part);
    }
    free(bytes);
}

static void test_flipped(void **state) {
    (void)state;
    size_t size;
    char *bytes = make_bytes(&size);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit += 1 + (i > 400)) {
            bytes[i] ^= (char)(1 << bit);
            mhla_gguf *f;
            if (mhla_gguf_open_bytes(&f, bytes, size, "flipped") == MHLA_OK) mhla_gguf_close(f);
            bytes[i] ^= (char)(1 << bit);
        }
    free(bytes);
}

static size_t find(const char *bytes, size_t size, const char *text) {
    const char *at = memmem(bytes, size, text, strlen(text));
    assert_non_null(at);
    return (size_t)(at - bytes);
}

static void test_refused(void **state) {
    (void)state;
    size_t size;
    char *bytes = make_bytes(&size), *b = new_bytes(size);
#define FRESH memcpy(b, bytes, size)
    FRESH, b[0] = 'g';
    expect_refused(b, size, MHLA_EDATA, "does not begin with \"GGUF\"");
    FRESH, b[4] = 1;
    expect_refused(b, size, MHLA_ENOTSUP, "version 1");
    FRESH, b[4] = 0, b[7] = 3;
    expect_refused(b, size, MHLA_ENOTSUP, "big-endian");
    FRESH, b[4] = 2;
    mhla_gguf *f;
    ASSERT_OK(mhla_gguf_open_bytes(&f, b, size, "two"));
    mhla_gguf_close(f);
    FRESH, memset(b + 8, 0xff, 8);
    expect_refused(b, size, MHLA_EDATA, "tensors, but");
    FRESH, memset(b + 16, 0xff, 8);
    expect_refused(b, size, MHLA_EDATA, "keys, but");
    const size_t u8_at = find(b, size, "u8") + 2, words_at = find(b, size, "words") + 5;
    FRESH, b[u8_at] = 13;
    expect_refused(b, size, MHLA_EDATA, "key \"u8\": 13 is not a kind");
    FRESH, b[u8_at - 2] = 'i';
    expect_refused(b, size, MHLA_EDATA, "the key \"i8\" occurs twice");
    FRESH, b[u8_at - 1] = 0;
    expect_refused(b, size, MHLA_EDATA, "a NUL inside a key");
    FRESH, b[words_at + 4] = MHLA_GGUF_ARRAY;
    expect_refused(b, size, MHLA_EDATA, "key \"words\": an array of arrays");
    FRESH, memset(b + words_at + 8, 0x7f, 8);
    expect_refused(b, size, MHLA_EDATA, "key \"words\": an array of 9187");
    FRESH, memset(b + words_at + 16, 0xff, 8);
    expect_refused(b, size, MHLA_EDATA, "a text of 18446744073709551615 bytes");
    const size_t q8 = find(b, size, "blocks.q8") + 9; /* rank u32, cols u64, rows u64, type u32, offset u64 */
    FRESH, b[q8] = 5;
    expect_refused(b, size, MHLA_EDATA, "tensor \"blocks.q8\": 5 axes");
    FRESH, b[q8] = 0;
    expect_refused(b, size, MHLA_EDATA, "0 axes");
    FRESH, memset(b + q8 + 4, 0xff, 7);
    expect_refused(b, size, MHLA_EDATA, "more than a file can hold");
    FRESH, memset(b + q8 + 4, 0, 8);
    expect_refused(b, size, MHLA_EDATA, "an axis of 0");
    FRESH, b[q8 + 4] = 33;
    expect_refused(b, size, MHLA_EDATA, "rows of 33 cannot be Q8_0");
    FRESH, b[q8 + 20] = 99;
    expect_refused(b, size, MHLA_ENOTSUP, "no type number 99");
    FRESH, b[q8 + 24] = 33;
    expect_refused(b, size, MHLA_EDATA, "not a multiple of 32");
    FRESH, memset(b + q8 + 24, 0xe0, 8);
    expect_refused(b, size, MHLA_EDATA, "after the file's end");
    FRESH, memset(b + q8 + 24, 0, 8);
    expect_refused(b, size, MHLA_EDATA, "overlap");
    /* A type that is known by its size only: the file opens, the tensor does not. */
    FRESH, b[q8 + 20] = 20;
    ASSERT_OK(mhla_gguf_open_bytes(&f, b, size, "file"));
    const mhla_gguf_tensor *t;
    ASSERT_FAILS(mhla_gguf_need_tensor(&t, f, "blocks.q8"), MHLA_ENOTSUP, "is of type IQ4_NL");
    mhla_gguf_close(f);
    free(bytes);
    free(b);
}

static void test_write_refuses(void **state) {
    (void)state;
    const char *path = in_folder("bad.gguf");
    const mhla_gguf_pair twice[2] = {pairs[1], pairs[1]};
    ASSERT_FAILS(mhla_gguf_write(path, twice, 2, NULL, 0), MHLA_EINVAL, "\"u8\" would occur twice");
    mhla_gguf_storable t = tensors[0];
    t.type = MHLA_GGUF_Q8_0;
    ASSERT_FAILS(mhla_gguf_write(path, NULL, 0, &t, 1), MHLA_EINVAL, "rows of 5 cannot be Q8_0");
    t.type = MHLA_GGUF_Q4_0;
    ASSERT_FAILS(mhla_gguf_write(path, NULL, 0, &t, 1), MHLA_EINVAL, "type Q4_0 is not written");
    source large = {5, 1e6f};
    t.type = MHLA_GGUF_F16, t.arg = &large;
    ASSERT_FAILS(mhla_gguf_write(path, NULL, 0, &t, 1), MHLA_EDATA, "too large for F16");
    t.fill = fill_fails;
    assert_int_equal(mhla_gguf_write(path, NULL, 0, &t, 1), MHLA_EIO);
    assert_int_equal(exists(path), 0);
    assert_int_equal(entries(folder), 1); /* a.gguf of the tests before */
}

/* ---- SmolLM2: every tensor's shape, type, sums and first numbers ---- */

static const char *smollm2_path(void) {
    const char *given = getenv("MHLA_SMOLLM2");
    const char *places[] = {given, "data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            "../data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"};
    for (int i = 0; i < 3; i++)
        if (places[i] && access(places[i], R_OK) == 0) return places[i];
    print_message("[   SKIP   ] no SmolLM2: set MHLA_SMOLLM2 to its .gguf file\n");
    skip();
    return NULL;
}

static void test_smollm2(void **state) {
    (void)state;
    char path[512];
    json_t *list;
    mhla_gguf *f;
    const char *model = smollm2_path();
    ASSERT_OK(mhla_json_load(&list, golden_path(path, "lm/real/smollm2-135m-tensors.json")));
    ASSERT_OK(mhla_gguf_open(&f, model));
    assert_int_equal(mhla_gguf_tensor_count(f), json_array_size(list));
    size_t i;
    const json_t *row;
    json_array_foreach(list, i, row) {
        const mhla_gguf_tensor *t;
        ASSERT_OK(mhla_gguf_need_tensor(&t, f, json_string_value(json_object_get(row, "name"))));
        const json_t *shape = json_object_get(row, "shape"), *first = json_object_get(row, "first");
        assert_int_equal(t->rank, json_array_size(shape));
        for (int a = 0; a < t->rank; a++)
            assert_int_equal(t->shape[a], json_integer_value(json_array_get(shape, (size_t)a)));
        assert_string_equal(mhla_gguf_type_text(t->type), json_string_value(json_object_get(row, "type")));
        float *x = new_bytes((size_t)t->cols * sizeof *x);
        double sum = 0, squares = 0;
        for (int64_t r = 0; r < t->rows; r++) {
            mhla_gguf_read_rows(x, t, r, 1);
            for (int64_t c = 0; c < t->cols; c++) sum += (double)x[c], squares += (double)x[c] * (double)x[c];
            for (int c = 0; c < 4 && r == 0; c++)
                assert_true((double)x[c] == json_number_value(json_array_get(first, (size_t)c)));
        }
        const double want = json_number_value(json_object_get(row, "sum")),
                     want_squares = json_number_value(json_object_get(row, "sumsq"));
        if (fabs(sum - want) > 1e-6 * sqrt(want_squares * (double)t->count) + 1e-9 * fabs(want) ||
            fabs(squares - want_squares) > 1e-9 * want_squares)
            fail_msg("%s: sums %.17g, %.17g, not %.17g, %.17g", t->name, sum, squares, want, want_squares);
        free(x);
    }
    json_decref(list);
    mhla_gguf_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_types),          cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_flipped),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_write_refuses), cmocka_unit_test(test_smollm2),        cmocka_unit_test(test_five_bits),
        cmocka_unit_test(test_q4_k_q5_k),     cmocka_unit_test(test_q2_k_q3_k_q6_k),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
