/* .npy: written and read back, headers as NumPy writes them, every way to lie, truncations and flipped bits. */
#include "file/npy.h"
#include "files.h"

/* Version 1 (or 2) with this dictionary and `data` bytes; exactly allocated. */
static unsigned char *file_of(const char *header, int version, size_t data, size_t *size) {
    const size_t n = strlen(header), prefix = version == 1 ? 10 : 12;
    *size = prefix + n + data;
    unsigned char *bytes = new_bytes(*size);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version, bytes[7] = 0;
    for (size_t i = 8; i < prefix; i++) bytes[i] = (unsigned char)(n >> (8 * (i - 8)));
    memcpy(bytes + prefix, header, n);
    for (size_t i = 0; i < data; i++) bytes[prefix + n + i] = (unsigned char)i;
    return bytes;
}

static mhla_status open_header(mhla_npy *a, const char *header, int version, size_t data) {
    static unsigned char *bytes;
    free(bytes);
    size_t size;
    bytes = file_of(header, version, data, &size);
    const mhla_status status = mhla_npy_open_bytes(a, bytes, size, "x.npy");
    if (status != MHLA_OK) free(bytes), bytes = NULL;
    return status;
}

static void good(const char *header, int version, size_t data, mhla_io_dtype dtype, int rank, int64_t count) {
    mhla_npy a;
    if (open_header(&a, header, version, data) != MHLA_OK) fail_msg("%s: %s", header, mhla_message());
    assert_int_equal(a.dtype, dtype);
    assert_int_equal(a.rank, rank);
    assert_int_equal(a.count, count);
    assert_int_equal(a.bytes, data);
    if (data) assert_int_equal(a.data[data - 1], (unsigned char)(data - 1));
    mhla_npy_close(&a);
    mhla_npy_close(&a);
}
static void bad(const char *header, size_t data, mhla_status status, const char *word) {
    mhla_npy a;
    const mhla_status got = open_header(&a, header, 1, data);
    if (got != status) fail_msg("%s: status %d, %s", header, got, mhla_message());
    message_has(header, word);
    message_has(header, "x.npy: ");
}

static void headers(void **state) {
    (void)state;
    good("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n", 1, 48, MHLA_IO_F32, 2, 12);
    good("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n", 2, 48, MHLA_IO_F32, 2, 12);
    good("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", 3, 24, MHLA_IO_F64, 1, 3);
    good("{\"shape\":(),\"descr\":\"<i8\",\"fortran_order\":False}", 1, 8, MHLA_IO_I64, 0, 1);
    good("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 0), }", 1, 0, MHLA_IO_U8, 2, 0);
    good("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 1, 8, MHLA_IO_I32, 1, 2);
    good("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", 1, 2, MHLA_IO_BOOL, 1, 2);
    good("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", 1, 4, MHLA_IO_F16, 1, 2);

    bad("{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }", 12, MHLA_ENOTSUP, "Fortran (column-major) order");
    bad("{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }", 12, MHLA_ENOTSUP, "little-endian");
    bad("{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", 24, MHLA_ENOTSUP, "\"<c8\"");
    bad("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", 24, MHLA_ENOTSUP, "\"|O\"");
    bad("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", 12, MHLA_EDATA, "plain type");
    bad("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,), }", 12, MHLA_EDATA, "neither");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': 3, }", 12, MHLA_EDATA, "'('");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }", 12, MHLA_EDATA, "expected a size");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3.0,), }", 12, MHLA_EDATA, "',' or ')'");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3", 12, MHLA_EDATA, "',' or ')'");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (", 12, MHLA_EDATA, "expected a size");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, MHLA_EDATA, "more axes");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }", 4, MHLA_EDATA, "2^63");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,), }", 4, MHLA_EDATA, "does not fill");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296), }", 0, MHLA_EDATA, "does not fill");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 11, MHLA_EDATA, "does not fill the 11 bytes");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 13, MHLA_EDATA, "does not fill the 13 bytes");
    bad("{'descr': '<f4', 'fortran_order': False, }", 12, MHLA_EDATA, "lacks 'shape'");
    bad("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 12, MHLA_EDATA, "twice");
    bad("{'descr': '<f4', 'more': '<f4', 'fortran_order': False, 'shape': (3,), }", 12, MHLA_EDATA, "unknown");
    bad("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } x", 12, MHLA_EDATA, "after the header");
    bad("{'descr': '<f4' 'fortran_order': False, 'shape': (3,), }", 12, MHLA_EDATA, "',' or '}'");
    bad("['descr']", 12, MHLA_EDATA, "'{'");
    bad("{", 12, MHLA_EDATA, "a key");
    bad("", 12, MHLA_EDATA, "'{'");

    mhla_npy a;
    assert_int_equal(open_header(&a, "{}", 4, 0), MHLA_ENOTSUP);
    assert_int_equal(mhla_npy_open_bytes(&a, "\x93NUMPY\2\0\xff\xff\xff\xff{}", 14, "x.npy"), MHLA_EDATA);
    assert_int_equal(mhla_npy_open_bytes(&a, "\x93NUMPY\2\0\0\0", 10, "x.npy"), MHLA_EDATA);
    assert_int_equal(mhla_npy_open_bytes(&a, "PK\3\4aaaaaaaaaaa", 15, "x.npy"), MHLA_EDATA);
    message_has("PK", "not an .npy file");
}

static void writing(void **state) {
    (void)state;
    static const mhla_io_dtype dtypes[] = {MHLA_IO_F32, MHLA_IO_F64, MHLA_IO_F16, MHLA_IO_U8,
                                           MHLA_IO_I64, MHLA_IO_I32, MHLA_IO_BOOL};
    static const int64_t shape[] = {2, 3, 1, 1, 1, 1, 1, 1};
    unsigned char data[64];
    for (int i = 0; i < 64; i++) data[i] = (unsigned char)i;
    char path[256];
    snprintf(path, sizeof path, "%s/x.npy", folder);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int rank = 0; rank <= 8; rank++) {
            assert_int_equal(mhla_npy_write(path, dtypes[d], rank, shape, data), MHLA_OK);
            mhla_npy a;
            if (mhla_npy_open(&a, path) != MHLA_OK) fail_msg("%s", mhla_message());
            assert_int_equal(a.dtype, dtypes[d]);
            assert_int_equal(a.rank, rank);
            assert_memory_equal(a.shape, shape, (size_t)rank * sizeof *shape);
            assert_int_equal(a.count, rank == 0 ? 1 : rank == 1 ? 2 : 6);
            assert_memory_equal(a.data, data, a.bytes);
            assert_int_equal((a.data - a.file.data) % 64, 0);
            mhla_npy_close(&a);
        }
    size_t size;
    const float x = 1.0f;
    assert_int_equal(mhla_npy_write(path, MHLA_IO_F32, 0, NULL, &x), MHLA_OK);
    char *bytes = read_file(path, &size);
    assert_int_equal(size, 132);
    assert_memory_equal(bytes, "\x93NUMPY\1\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 65);
    free(bytes);
    static const int64_t wrong[] = {-1}, large[] = {(int64_t)1 << 40, (int64_t)1 << 40};
    assert_int_equal(mhla_npy_write(path, MHLA_IO_F32, 1, wrong, data), MHLA_EINVAL);
    assert_int_equal(mhla_npy_write(path, MHLA_IO_F32, 2, large, data), MHLA_EINVAL);
    assert_int_equal(mhla_npy_write(path, MHLA_IO_F32, 9, shape, data), MHLA_EINVAL);
    assert_int_equal(mhla_npy_write(path, MHLA_IO_BF16, 1, shape, data), MHLA_EINVAL);
    assert_int_equal(mhla_npy_write(in_folder("nowhere/x.npy"), MHLA_IO_F32, 0, NULL, &x), MHLA_EIO);
    mhla_npy a;
    assert_int_equal(mhla_npy_open(&a, in_folder("none.npy")), MHLA_EIO);
}

static void damage(void **state) {
    (void)state;
    size_t size;
    unsigned char *whole = file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }  \n", 1, 24, &size);
    mhla_npy a;
    for (size_t n = 0; n < size; n++) {
        unsigned char *cut = new_bytes(n);
        memcpy(cut, whole, n);
        assert_int_equal(mhla_npy_open_bytes(&a, cut, n, "x"), MHLA_EDATA);
        free(cut);
    }
    int accepted = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        unsigned char *copy = new_bytes(size);
        memcpy(copy, whole, size);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (mhla_npy_open_bytes(&a, copy, size, "x") == MHLA_OK) {
            accepted++;
            assert_true(a.data >= copy && a.data + a.bytes <= copy + size);
        }
        free(copy);
    }
    assert_true(accepted >= 8 * 24 && accepted < 8 * 24 + 30);
    free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers), cmocka_unit_test(writing), cmocka_unit_test(damage)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
