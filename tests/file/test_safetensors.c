/* safetensors: what is written is read back and is the same bytes again; files of others; every way to lie in a header;
 * every truncation and every flipped bit of a small file. */
#include "file/file.h"
#include "file/safetensors.h"
#include "files.h"

/* ---- Files by hand ---- */

/* The length, the header as it is, `data` bytes 0, 1, 2, ...; malloc'd exactly, so that a sanitizer sees the end. */
static unsigned char *file_of(const char *header, size_t header_size, size_t data, size_t *size) {
    *size = 8 + header_size + data;
    unsigned char *bytes = new_bytes(*size);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)header_size >> (8 * i));
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < data; i++) bytes[8 + header_size + i] = (unsigned char)i;
    return bytes;
}

static mhla_status open_header(mhla_safetensors **f, const char *header, size_t data) {
    static unsigned char *bytes;
    free(bytes);
    size_t size;
    bytes = file_of(header, strlen(header), data, &size);
    const mhla_status status = mhla_safetensors_open_bytes(f, bytes, size, "x.safetensors");
    if (status != MHLA_OK) assert_null(*f);
    if (status != MHLA_OK) free(bytes), bytes = NULL;
    return status;
}

static void good(const char *header, size_t data, int64_t count) {
    mhla_safetensors *f;
    if (open_header(&f, header, data) != MHLA_OK) fail_msg("%s: %s", header, mhla_message());
    assert_int_equal(mhla_safetensors_count(f), count);
    mhla_safetensors_close(f);
}
/* Refused, and the sentence holds each of these words. */
static void bad(const char *header, size_t data, const char *word) {
    mhla_safetensors *f;
    if (open_header(&f, header, data) == MHLA_OK) fail_msg("accepted: %s", header);
    if (strstr(mhla_message(), "x.safetensors: byte ") == NULL) fail_msg("%s: no byte in: %s", header, mhla_message());
    if (strstr(mhla_message(), word) == NULL) fail_msg("%s: \"%s\" is not in: %s", header, word, mhla_message());
}

static void headers(void **state) {
    (void)state;
    good("{}", 0, 0);
    good("{}      ", 0, 0);
    good("{ \n\t}\r ", 0, 0);
    good("{\"__metadata__\":{}}", 0, 0);
    good("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1);
    good("{\"a\":{\"data_offsets\":[0,12],\"shape\":[1,3],\"dtype\":\"F32\"}}", 12, 1);
    good("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}}", 0, 1);
    good("{\"\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 1);
    good("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],"
         "\"data_offsets\":[0,3]}}",
         5, 2);
    good(&" {}"[1], 0, 0);

    bad("  ", 0, "'{'");
    bad(" {}", 0, "'{'");
    bad("[]", 0, "'{'");
    bad("{} x", 0, "characters after");
    bad("{}{}", 0, "characters after");
    bad("{\"a", 0, "inside a string");
    bad("{\"a\"", 0, "ends where ':'");
    bad("{\"a\":", 0, "ends where '{'");
    bad("{\"a\":1}", 0, "expected '{'");
    bad("{\"a\":{}}", 0, "expected '\"'");
    bad("{a:1}", 0, "expected '\"'");
    bad("{,}", 0, "expected '\"'");
    bad("{\"\xff\":{}}", 0, "UTF-8");
    bad("{\"\xc0\x80\":{}}", 0, "UTF-8");
    bad("{\"\xed\xa0\x80\":{}}", 0, "UTF-8");
    bad("{\"\n\":{}}", 0, "control character");
    bad("{\"\\u0000\":{}}", 0, "NUL");
    bad("{\"\\ud800\":{}}", 0, "surrogate");
    bad("{\"\\ud800\\u0041\":{}}", 0, "surrogate");
    bad("{\"\\udc00\":{}}", 0, "surrogate");
    bad("{\"\\x\":{}}", 0, "escape");
    bad("{\"\\u12", 0, "escape");
    bad("{\"\\", 0, "escape");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" is missing");
    bad("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" is missing");
    bad("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing");
    bad("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "twice");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "\"more\"");
    bad("{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"F33\"");
    bad("{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"f32\"");
    bad("{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "for the dtype");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "for the shape");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "zero");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "8 axes");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "between data_offsets");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "after data_offsets");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "whole number");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "backwards");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", 4, "2^63");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,4]}}", 4, "bytes than can");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "elements than can");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[0,0]}}", 0, "elements than");
    bad("{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, "bytes than can");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "takes 8 bytes, data_offsets give it 4");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "takes 4 bytes, data_offsets give it 8");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "cut short");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,9223372036854775807]}}", 4,
        "cut short");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 bytes follow");
    bad("{}", 1, "1 bytes follow");
    bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "gap");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[2,5]}}",
        5, "tensor \"b\": its data begin at 2, inside those of \"a\"");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[0,3]}}",
        3, "inside those of");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"a\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[3,6]}}",
        6, "tensor \"a\": the name occurs twice");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[3,6]}}",
        6, "twice");
    bad("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
    bad("{\"__metadata__\":{\"a\":1}}", 0, "texts only");
    bad("{\"__metadata__\":{\"a\":{}}}", 0, "texts only");
    bad("{\"__metadata__\":[]}", 0, "for __metadata__");
    bad("{\"a\\u001b[31m\":{\"dtype\":\"X\"}}", 0, "tensor \"a?[31m\""); /* nothing for the terminal to obey */

    mhla_safetensors *f;
    assert_int_equal(open_header(&f, "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), MHLA_EDATA);
}

/* Lengths that are not those of the header. */
static void lengths(void **state) {
    (void)state;
    static const uint64_t wrong[] = {0, 1, 3, 100000000, 100000001, 1u << 31, UINT64_MAX, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int b = 0; b < 8; b++) bytes[b] = (unsigned char)(wrong[i] >> (8 * b));
        mhla_safetensors *f;
        assert_int_equal(mhla_safetensors_open_bytes(&f, bytes, sizeof bytes, "x"), MHLA_EDATA);
        assert_non_null(strstr(mhla_message(), "length"));
    }
    mhla_safetensors *f;
    for (size_t n = 0; n < 10; n++)
        assert_int_equal(mhla_safetensors_open_bytes(&f, "\2\0\0\0\0\0\0\0{}", n, "x"), MHLA_EDATA);
    assert_int_equal(mhla_safetensors_open_bytes(&f, "\2\0\0\0\0\0\0\0{}", 10, "x"), MHLA_OK);
    mhla_safetensors_close(f);
}

/* A megabyte of brackets, of names, of digits: refused or read, without depth and without much memory. */
static void bombs(void **state) {
    (void)state;
    enum { SIZE = 1 << 20 };
    char *header = new_bytes(SIZE + 1);
    mhla_safetensors *f;
    static const char fill[] = "{[\"1,:\\";
    for (const char *c = fill; *c; c++) {
        memset(header, *c, SIZE);
        header[0] = '{', header[SIZE] = '\0';
        assert_int_equal(open_header(&f, header, 0), MHLA_EDATA);
    }
    size_t n = 0;
    int64_t count = 0;
    header[n++] = '{';
    for (; n + 100 < SIZE; count++)
        n += (size_t)sprintf(header + n, "%s\"%lld\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                             count ? "," : "", (long long)count * 7919 % 1000003);
    header[n++] = '}', header[n] = '\0';
    good(header, 0, count);
    free(header);
}

/* ---- Reading ---- */

static void reading(void **state) {
    (void)state;
    const char *header = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\\u00e9\\n\\ud83d\\ude00\"},"
                         "\"z\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[1,17]},"
                         "\"blocks.0.attn.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}} ";
    mhla_safetensors *f;
    assert_int_equal(open_header(&f, header, 17), MHLA_OK);
    assert_string_equal(mhla_safetensors_path(f), "x.safetensors");
    assert_string_equal(mhla_safetensors_metadata(f, "format"), "pt");
    assert_string_equal(mhla_safetensors_metadata(f, "a"), "\xc3\xa9\n\xf0\x9f\x98\x80");
    assert_null(mhla_safetensors_metadata(f, "b"));
    assert_int_equal(mhla_safetensors_metadata_count(f), 2);
    const char *key, *value;
    mhla_safetensors_metadata_at(f, 1, &key, &value);
    assert_string_equal(key, "format");
    assert_string_equal(mhla_safetensors_at(f, 0)->name, "blocks.0.attn.weight");
    const mhla_stored *t = mhla_safetensors_find(f, "z");
    assert_non_null(t);
    assert_int_equal(t->count, 4);
    assert_int_equal(t->bytes, 16);
    assert_int_equal(t->data[0], 1); /* the second of 0, 1, 2, ..., at an odd address */
    float x[4], expected[4];
    memcpy(expected, t->data, 16);
    assert_int_equal(mhla_safetensors_load(x, f, "z", 2, (const int64_t[]){2, 2}), MHLA_OK);
    assert_memory_equal(x, expected, 16);
    assert_int_equal(mhla_safetensors_load(x, f, "z", 1, (const int64_t[]){4}), MHLA_EDATA);
    assert_string_equal(mhla_message(), "x.safetensors: tensor \"z\" has the shape [2, 2], expected [4]");
    assert_int_equal(mhla_safetensors_load(x, f, "blocks.0.attn.weigth", 1, (const int64_t[]){1}), MHLA_EDATA);
    assert_string_equal(mhla_message(),
                        "x.safetensors: no tensor \"blocks.0.attn.weigth\"; the nearest is \"blocks.0.attn.weight\"");
    assert_int_equal(mhla_safetensors_load(x, f, "blocks.0.attn.weight", 1, (const int64_t[]){1}), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "dtype U8"));
    assert_null(mhla_safetensors_find(f, "y"));
    mhla_safetensors_close(f);
    mhla_safetensors_close(NULL);
}

/* Every truncation and every single flipped bit: refused, or consistent in itself; a sanitizer watches. */
static void damage(void **state) {
    (void)state;
    const char *header =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[24,34]}}  ";
    size_t size;
    unsigned char *whole = file_of(header, strlen(header), 34, &size);
    mhla_safetensors *f;
    for (size_t n = 0; n < size; n++) {
        unsigned char *cut = new_bytes(n);
        memcpy(cut, whole, n);
        assert_int_equal(mhla_safetensors_open_bytes(&f, cut, n, "x"), MHLA_EDATA);
        free(cut);
    }
    int accepted = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        unsigned char *copy = new_bytes(size);
        memcpy(copy, whole, size);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (mhla_safetensors_open_bytes(&f, copy, size, "x") == MHLA_OK) {
            accepted++;
            for (int64_t i = 0; i < mhla_safetensors_count(f); i++) {
                const mhla_stored *t = mhla_safetensors_at(f, i);
                assert_true(t->data >= copy && t->data + t->bytes <= copy + size);
                float *x = new_poisoned(t->count);
                if (mhla_io_dtype_is_float(t->dtype)) assert_int_equal(mhla_stored_read(x, t), MHLA_OK);
                free(x);
            }
            mhla_safetensors_close(f);
        }
        free(copy);
    }
    assert_true(accepted >= 8 * 34 && accepted < 8 * 34 + 100); /* the data, and letters of names */
    free(whole);
}

/* ---- Numbers ---- */

static float from_half_slowly(uint16_t h) {
    const int e = h >> 10 & 31, m = h & 1023;
    const double x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return (float)(h & 0x8000 ? -x : x);
}

static void conversions(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) { /* all of them there and back */
        const uint16_t half = (uint16_t)h;
        uint16_t back;
        float x;
        mhla_io_to_f32(&x, &half, MHLA_IO_F16, 1);
        const float y = from_half_slowly(half);
        if (isnan(y) ? !isnan(x) : memcmp(&x, &y, 4) != 0) fail_msg("half %04x is %a, expected %a", h, x, y);
        mhla_io_from_f32(&back, &x, MHLA_IO_F16, 1);
        if (!isnan(y) && back != half) fail_msg("half %04x came back as %04x", h, back);
        mhla_io_to_f32(&x, &half, MHLA_IO_BF16, 1);
        mhla_io_from_f32(&back, &x, MHLA_IO_BF16, 1);
        if (!isnan(x) && back != half) fail_msg("bfloat16 %04x came back as %04x", h, back);
        if (isnan(x)) assert_true((back & 0x7f80) == 0x7f80 && (back & 0x7f));
    }
    /* between two neighbours: the nearer, in the middle the even one */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const uint16_t low = (uint16_t)h;
        const float a = from_half_slowly(low), b = h == 0x7bff ? 65536.0f : from_half_slowly((uint16_t)(h + 1));
        const float middle = (float)((double)a / 2 + (double)b / 2);
        const float tries[3] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, INFINITY)};
        const uint16_t expected[3] = {low, (uint16_t)(low + (low & 1)), (uint16_t)(low + 1)};
        for (int i = 0; i < 6; i++) {
            const float x = i < 3 ? tries[i] : -tries[i - 3];
            uint16_t got;
            mhla_io_from_f32(&got, &x, MHLA_IO_F16, 1);
            if (got != (expected[i % 3] | (i < 3 ? 0 : 0x8000))) fail_msg("%a became %04x", (double)x, got);
        }
    }
    rng r = {7};
    for (int i = 0; i < 100000; i++) {
        const uint32_t u = (uint32_t)rng_next(&r);
        float x;
        memcpy(&x, &u, 4);
        uint16_t got;
        mhla_io_from_f32(&got, &x, MHLA_IO_BF16, 1);
        assert_int_equal(got, to_bf16(x));
    }
}

/* ---- Writing ---- */

typedef struct set {
    mhla_storable tensors[6];
    float f[4][24];
    int64_t ids[3];
} set;
static const int64_t shape_w[] = {2, 3, 4}, shape_b[] = {5}, shape_e[] = {0, 7}, shape_i[] = {3};

static void fill_set(set *s, rng *r) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 24; j++) s->f[i][j] = rng_signed(r);
    for (int i = 0; i < 3; i++) s->ids[i] = (int64_t)rng_next(r);
    const mhla_storable t[6] = {
        {"w", 3, shape_w, s->f[0], MHLA_IO_F32, MHLA_IO_F32},
        {"blocks.0.bias", 1, shape_b, s->f[1], MHLA_IO_F32, MHLA_IO_BF16},
        {"half \"quoted\" \xc3\xa9\n", 1, shape_b, s->f[2], MHLA_IO_F32, MHLA_IO_F16},
        {"scalar", 0, NULL, s->f[3], MHLA_IO_F32, MHLA_IO_F32},
        {"empty", 2, shape_e, NULL, MHLA_IO_F32, MHLA_IO_F32},
        {"ids", 1, shape_i, s->ids, MHLA_IO_I64, MHLA_IO_I64},
    };
    memcpy(s->tensors, t, sizeof t);
}

static void check_set(const mhla_safetensors *f, const set *s) {
    assert_int_equal(mhla_safetensors_count(f), 6);
    for (int i = 0; i < 6; i++) {
        const mhla_storable *in = &s->tensors[i];
        const mhla_stored *t = mhla_safetensors_find(f, in->name);
        assert_non_null(t);
        assert_int_equal(t->dtype, in->dtype);
        assert_int_equal(mhla_stored_check(t, in->rank, in->shape), MHLA_OK);
        assert_true((uintptr_t)t->data % mhla_io_dtype_size(t->dtype) == 0);
        if (i == 5) {
            assert_memory_equal(t->data, s->ids, sizeof s->ids);
            continue;
        }
        float x[24];
        assert_int_equal(mhla_stored_read(x, t), MHLA_OK);
        const float tolerance = in->dtype == MHLA_IO_F32 ? 0.0f : in->dtype == MHLA_IO_BF16 ? 0x1p-8f : 0x1p-11f;
        for (int64_t j = 0; j < t->count; j++) assert_true(fabsf(x[j] - ((const float *)in->data)[j]) <= tolerance);
    }
}

static void same_bytes(const char *a, const char *b) {
    mhla_file x, y;
    assert_int_equal(mhla_file_map(&x, a), MHLA_OK);
    assert_int_equal(mhla_file_map(&y, b), MHLA_OK);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    mhla_file_unmap(&x);
    mhla_file_unmap(&y);
}

static void writing(void **state) {
    (void)state;
    rng r = {11};
    set s;
    fill_set(&s, &r);
    const mhla_pair pairs[] = {{"format", "pt"}, {"a", "line\n\"quoted\" \x01"}};
    const char *one = in_folder("one.safetensors"), *two = in_folder("two.safetensors");
    assert_int_equal(mhla_safetensors_write(one, s.tensors, 6, pairs, 2), MHLA_OK);
    mhla_safetensors *f;
    if (mhla_safetensors_open(&f, one) != MHLA_OK) fail_msg("%s", mhla_message());
    check_set(f, &s);
    assert_string_equal(mhla_safetensors_metadata(f, "format"), "pt");
    assert_string_equal(mhla_safetensors_metadata(f, "a"), "line\n\"quoted\" \x01");
    mhla_safetensors_close(f);

    /* another order of the same things: the same bytes */
    mhla_storable shuffled[6];
    for (int i = 0; i < 6; i++) shuffled[i] = s.tensors[(i * 5 + 2) % 6];
    const mhla_pair swapped[] = {pairs[1], pairs[0]};
    assert_int_equal(mhla_safetensors_write(two, shuffled, 6, swapped, 2), MHLA_OK);
    same_bytes(one, two);

    /* the first bytes as the Rust library writes them */
    mhla_file map;
    const float x = 1.0f;
    const mhla_storable least = {"x", 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32};
    assert_int_equal(mhla_safetensors_write(two, &least, 1, NULL, 0), MHLA_OK);
    assert_int_equal(mhla_file_map(&map, two), MHLA_OK);
    static const char expected[] =
        "\x38\0\0\0\0\0\0\0{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   "
        "\0\0\x80\x3f";
    assert_int_equal(map.size, sizeof expected - 1);
    assert_memory_equal(map.data, expected, map.size);
    mhla_file_unmap(&map);
    assert_int_equal(mhla_safetensors_write(two, NULL, 0, NULL, 0), MHLA_OK);
    assert_int_equal(mhla_safetensors_open(&f, two), MHLA_OK);
    assert_int_equal(mhla_safetensors_count(f), 0);
    mhla_safetensors_close(f);
}

/* What cannot be written leaves the old file as it was and nothing beside it. */
static void refused(void **state) {
    (void)state;
    const char *path = in_folder("kept/x.safetensors");
    assert_int_equal(mkdir(in_folder("kept"), 0777), 0);
    write_file(path, "old", 3);
    const float big[2] = {1.0f, 65520.0f};
    const int64_t two[] = {2}, minus[] = {-1}, huge[] = {(int64_t)1 << 40, (int64_t)1 << 40};
    const mhla_storable wrong[] = {
        {NULL, 1, two, big, MHLA_IO_F32, MHLA_IO_F32},   {"__metadata__", 1, two, big, MHLA_IO_F32, MHLA_IO_F32},
        {"\xff", 1, two, big, MHLA_IO_F32, MHLA_IO_F32}, {"a", 9, huge, big, MHLA_IO_F32, MHLA_IO_F32},
        {"a", 1, minus, big, MHLA_IO_F32, MHLA_IO_F32},  {"a", 2, huge, big, MHLA_IO_F32, MHLA_IO_F32},
        {"a", 1, two, big, MHLA_IO_F32, MHLA_IO_I32},    {"a", 1, two, big, MHLA_IO_I32, MHLA_IO_F32},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(mhla_safetensors_write(path, &wrong[i], 1, NULL, 0), MHLA_EINVAL);
    const mhla_storable large = {"a", 1, two, big, MHLA_IO_F32, MHLA_IO_F16};
    const mhla_storable twice[] = {large, large};
    const mhla_pair pairs[] = {{"a", "b"}, {"a", "c"}}, foreign[] = {{"a", "\xff"}, {"\xc3", "b"}};
    assert_int_equal(mhla_safetensors_write(path, twice, 2, NULL, 0), MHLA_EINVAL);
    assert_int_equal(mhla_safetensors_write(path, NULL, 0, pairs, 2), MHLA_EINVAL);
    assert_int_equal(mhla_safetensors_write(path, NULL, 0, &foreign[0], 1), MHLA_EINVAL);
    assert_int_equal(mhla_safetensors_write(path, NULL, 0, &foreign[1], 1), MHLA_EINVAL);
    assert_int_equal(mhla_safetensors_write(path, &large, 1, NULL, 0), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "element 1 of tensor \"a\" is 65520, too large for F16"));
    assert_int_equal(mhla_safetensors_write(in_folder("nowhere/x.safetensors"), NULL, 0, NULL, 0), MHLA_EIO);
    mhla_file map;
    assert_int_equal(mhla_file_map(&map, path), MHLA_OK);
    assert_int_equal(map.size, 3);
    mhla_file_unmap(&map);
    assert_int_equal(entries(in_folder("kept")), 1);
}

/* ---- Several files ---- */

static void sharded(void **state) {
    (void)state;
    rng r = {13};
    set s;
    fill_set(&s, &r);
    char out[256], config[256];
    snprintf(out, sizeof out, "%s/model", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    const char *also[] = {config, NULL};
    write_file(config, "{}\n", 3);
    for (int64_t bytes = 1; bytes < 200; bytes += 33) {
        if (mhla_safetensors_write_folder(out, s.tensors, 6, NULL, 0, bytes, also, NULL) != MHLA_OK)
            fail_msg("%s", mhla_message());
        assert_true(exists(in_folder("model/config.json")));
        const int single = exists(in_folder("model/model.safetensors"));
        assert_int_equal(single, bytes >= 144);
        mhla_safetensors *f;
        const char *names[] = {out,
                               in_folder(single ? "model/model.safetensors" : "model/model.safetensors.index.json")};
        for (int i = 0; i < 2; i++) {
            if (mhla_safetensors_open(&f, names[i]) != MHLA_OK) fail_msg("%s", mhla_message());
            check_set(f, &s);
            mhla_safetensors_close(f);
        }
        assert_int_equal(mhla_safetensors_write_folder(out, s.tensors, 6, NULL, 0, bytes, NULL, NULL), MHLA_EIO);
        assert_non_null(strstr(mhla_message(), "exists already"));
        char command[300];
        snprintf(command, sizeof command, "rm -r %s", out);
        assert_int_equal(system(command), 0); /* NOLINT */
    }
    const char *missing[] = {in_folder("none"), NULL};
    assert_int_equal(mhla_safetensors_write_folder(out, s.tensors, 6, NULL, 0, 50, missing, NULL), MHLA_EIO);
    assert_false(exists(out));
    for (int i = 0; i < 2; i++) { /* a name with slashes at its end; an empty folder */
        assert_int_equal(mkdir(in_folder("e"), 0777), 0);
        assert_int_equal(
            mhla_safetensors_write_folder(in_folder(i ? "e" : "e//"), s.tensors, 6, NULL, 0, 0, NULL, NULL), MHLA_OK);
        assert_int_equal(unlink(in_folder("e/model.safetensors")), 0);
        assert_int_equal(rmdir(in_folder("e")), 0);
    }
}

static void bad_index(const char *text, const char *word) {
    write_file(in_folder("i/model.safetensors.index.json"), text, strlen(text));
    mhla_safetensors *f;
    if (mhla_safetensors_open(&f, in_folder("i")) == MHLA_OK) fail_msg("accepted: %s", text);
    if (strstr(mhla_message(), word) == NULL) fail_msg("%s: \"%s\" is not in: %s", text, word, mhla_message());
}

static void indexes(void **state) {
    (void)state;
    assert_int_equal(mkdir(in_folder("i"), 0777), 0);
    mhla_safetensors *f;
    assert_int_equal(mhla_safetensors_open(&f, in_folder("i")), MHLA_EIO);
    assert_non_null(strstr(mhla_message(), "no safetensors file"));
    const float x = 3.0f;
    const mhla_storable two[] = {{"x", 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32},
                                 {"y", 0, NULL, &x, MHLA_IO_F32, MHLA_IO_F32}};
    assert_int_equal(mhla_safetensors_write(in_folder("i/a.safetensors"), two, 2, NULL, 0), MHLA_OK);
    assert_int_equal(mhla_safetensors_open(&f, in_folder("i")), MHLA_OK); /* the only one */
    mhla_safetensors_close(f);
    assert_int_equal(mhla_safetensors_write(in_folder("i/b.safetensors"), two, 1, NULL, 0), MHLA_OK);
    assert_int_equal(mhla_safetensors_open(&f, in_folder("i")), MHLA_EIO);
    assert_non_null(strstr(mhla_message(), "2 safetensors files"));

    bad_index("", "empty");
    bad_index("[]", "weight_map");
    bad_index("{}", "weight_map");
    bad_index("{\"weight_map\":[]}", "\"weight_map\" is an array: expected an object");
    bad_index("{\"weight_map\":{\"x\":1}}", "tensor \"x\" is an integer");
    bad_index("{\"weight_map\":{\"x\":\"../b.safetensors\"}}", "plain name");
    bad_index("{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "plain name");
    bad_index("{\"weight_map\":{\"x\":\"..\"}}", "plain name");
    bad_index("{\"weight_map\":{\"x\":\"\"}}", "plain name");
    bad_index("{\"weight_map\":{\"x\":\"c.safetensors\"}}", "c.safetensors: No such file");
    bad_index("{\"weight_map\":{\"y\":\"b.safetensors\"}}", "tensor \"y\" should be in \"b.safetensors\"");
    bad_index("{\"weight_map\":{\"x\":\"b.safetensors\",\"x\":\"b.safetensors\"}}", "1:");
    bad_index("{\"weight_map\":{\"x\":\"model.safetensors.index.json\"}}", "safetensors file");

    const char *fine = "{\"weight_map\":{\"y\":\"a.safetensors\",\"x\":\"b.safetensors\"}}"; /* x of a is not listed */
    write_file(in_folder("i/model.safetensors.index.json"), fine, strlen(fine));
    assert_int_equal(mhla_safetensors_open(&f, in_folder("i")), MHLA_OK);
    assert_int_equal(mhla_safetensors_count(f), 2);
    assert_non_null(strstr(mhla_safetensors_find(f, "x")->path, "b.safetensors"));
    mhla_safetensors_close(f);
    assert_int_equal(mhla_safetensors_open(&f, in_folder("nothing")), MHLA_EIO);

    /* a run: its best, else its last */
    static const char *const parts[] = {"run", "run/last", "run/best"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s/model.safetensors", parts[i]);
        assert_int_equal(mkdir(in_folder(parts[i]), 0777), 0);
        if (i == 0) continue;
        assert_int_equal(mhla_safetensors_write(in_folder(name), two, i, NULL, 0), MHLA_OK);
        assert_int_equal(mhla_safetensors_open(&f, in_folder("run")), MHLA_OK);
        assert_int_equal(mhla_safetensors_count(f), i);
        mhla_safetensors_close(f);
    }
    assert_int_equal(mkfifo(in_folder("pipe"), 0666), 0);
    assert_int_equal(mhla_safetensors_open(&f, in_folder("pipe")), MHLA_EIO);
    assert_int_equal(mhla_safetensors_open(&f, "/dev/null"), MHLA_EIO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers), cmocka_unit_test(lengths),     cmocka_unit_test(bombs),   cmocka_unit_test(reading),
        cmocka_unit_test(damage),  cmocka_unit_test(conversions), cmocka_unit_test(writing), cmocka_unit_test(refused),
        cmocka_unit_test(sharded), cmocka_unit_test(indexes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
