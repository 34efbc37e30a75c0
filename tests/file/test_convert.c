/* mhla_convert: arguments that make no sense, types, numbers that do not fit, what it tells; the rest is in tests/cli. */
#include <mhla/nn.h>

#include "file/file.h"
#include "file/safetensors.h"
#include "files.h"

static char in[256], out[256];

static void write_input(const void *data, mhla_io_dtype dtype, int64_t count) {
    const int64_t ids[] = {1, 2}, two = 2;
    const mhla_storable tensors[] = {{"x", 1, &count, data, dtype, dtype},
                                     {"ids", 1, &two, ids, MHLA_IO_I64, MHLA_IO_I64}};
    snprintf(in, sizeof in, "%s/in.safetensors", folder);
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    if (exists(out)) unlink(out);
    assert_int_equal(mhla_safetensors_write(in, tensors, 2, &(mhla_pair){"format", "pt"}, 1), MHLA_OK);
}

static mhla_status convert(const char *dtype, int64_t shard_bytes) {
    const mhla_convert_desc desc = {.size = sizeof desc, .dtype = dtype, .shard_bytes = shard_bytes};
    return mhla_convert(out, in, &desc, NULL);
}

static void arguments(void **state) {
    (void)state;
    const float x[] = {1, 2, 3};
    write_input(x, MHLA_IO_F32, 3);
    assert_int_equal(mhla_convert(NULL, in, NULL, NULL), MHLA_EINVAL);
    assert_int_equal(mhla_convert(out, NULL, NULL, NULL), MHLA_EINVAL);
    assert_int_equal(convert("int8", 0), MHLA_EINVAL);
    message_has("int8", "dtype is \"int8\": expected float32");
    assert_int_equal(convert("float64", 0), MHLA_EINVAL);
    assert_int_equal(convert(NULL, -1), MHLA_EINVAL);
    assert_int_equal(convert(NULL, 100), MHLA_EINVAL);
    message_has("one file", "out is one file");
    assert_int_equal(mhla_convert(out, in, &(mhla_convert_desc){0}, NULL), MHLA_EINVAL);
    mhla_convert_result none = {0};
    assert_int_equal(mhla_convert(out, in, NULL, &none), MHLA_EINVAL);
    assert_false(exists(out));
}

static void results(void **state) {
    (void)state;
    const float x[] = {1, 2, 3};
    write_input(x, MHLA_IO_F32, 3);
    mhla_convert_result r = {.size = sizeof r};
    const mhla_convert_desc desc = {.size = sizeof desc, .dtype = "bfloat16"};
    assert_int_equal(mhla_convert(out, in, &desc, &r), MHLA_OK);
    assert_int_equal(r.tensors, 2);
    assert_int_equal(r.numbers, 5);
    assert_int_equal(r.bytes, 3 * 2 + 2 * 8);
    assert_int_equal(r.files, 1);
    /* in place: the file that is read is replaced only when the new one is complete */
    assert_int_equal(mhla_convert(out, out, &(mhla_convert_desc){.size = sizeof desc, .dtype = "float16"}, NULL),
                     MHLA_OK);
    mhla_safetensors *f;
    float y[3];
    assert_int_equal(mhla_safetensors_open(&f, out), MHLA_OK);
    assert_int_equal(mhla_safetensors_find(f, "x")->dtype, MHLA_IO_F16);
    assert_int_equal(mhla_safetensors_find(f, "ids")->dtype, MHLA_IO_I64);
    assert_string_equal(mhla_safetensors_metadata(f, "format"), "pt");
    assert_int_equal(mhla_safetensors_load(y, f, "x", 1, (const int64_t[]){3}), MHLA_OK);
    assert_memory_equal(x, y, sizeof x);
    mhla_safetensors_close(f);
}

static void too_large(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *dtype;
        int fits;
    } cases[] = {
        {65504, "float16", 1},      {65519.99, "float16", 1},    {65520, "float16", 0},       {-65520, "float16", 0},
        {3.38e38, "bfloat16", 1},   {0x1.fep127, "bfloat16", 1}, {0x1.ffp127, "bfloat16", 0}, {1e39, "float32", 0},
        {-1e300, "bfloat16", 0},    {1e300, "float16", 0},       {3.4e38, "float32", 1},      {INFINITY, "float16", 1},
        {-INFINITY, "bfloat16", 1}, {NAN, "float16", 1},         {1e-300, "float16", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double x[] = {1, cases[i].x};
        write_input(x, MHLA_IO_F64, 2);
        const mhla_status status = convert(cases[i].dtype, 0);
        if ((status == MHLA_OK) != cases[i].fits) fail_msg("%g to %s: %d", cases[i].x, cases[i].dtype, status);
        assert_int_equal(exists(out), cases[i].fits);
        if (!cases[i].fits) message_has(cases[i].dtype, "element 1 of tensor \"x\" is");
    }
    /* past the first chunk of what is converted at a time */
    enum { N = 40000 };
    float *many = new_poisoned(N);
    for (int i = 0; i < N; i++) many[i] = (float)i;
    many[N - 3] = 1e6f;
    write_input(many, MHLA_IO_F32, N);
    assert_int_equal(convert("float16", 0), MHLA_EDATA);
    message_has("many", "element 39997 of tensor \"x\" is 1000000");
    many[N - 3] = 5.0f;
    write_input(many, MHLA_IO_F32, N);
    assert_int_equal(convert("float16", 0), MHLA_OK);
    mhla_safetensors *f;
    assert_int_equal(mhla_safetensors_open(&f, out), MHLA_OK);
    float *back = new_poisoned(N);
    assert_int_equal(mhla_safetensors_load(back, f, "x", 1, (const int64_t[]){N}), MHLA_OK);
    for (int i = 0; i < N; i++)
        if (fabsf(back[i] - many[i]) > many[i] * 0x1p-11f)
            fail_msg("%d: %g is not %g", i, (double)back[i], (double)many[i]);
    mhla_safetensors_close(f);
    free(many);
    free(back);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(arguments), cmocka_unit_test(results),
                                       cmocka_unit_test(too_large)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
