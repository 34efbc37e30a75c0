/* Documents out of files and folders; shards written, read back, joined to a corpus, and refused when they are broken. */
#include "data/corpus.h"
#include "files.h"

/* ---- Documents ---- */

static void expect_documents(const char *path, const char *const *texts, int count) {
    mhla_documents *d;
    ASSERT_OK(mhla_documents_open(&d, &path, 1));
    assert_int_equal(mhla_documents_count(d), count);
    for (int i = 0; i < count; i++) {
        size_t bytes;
        const char *text = mhla_documents_text(d, i, &bytes);
        assert_int_equal(bytes, strlen(texts[i]));
        assert_memory_equal(text, texts[i], bytes);
    }
    mhla_documents_free(d);
}

static void documents(void **state) {
    (void)state;
    static const char text[] = "first\nline\n\f\nsecond \f is text\n\f\n\f\n\f\r\nlast\n\f";
    write_file(in_folder("a.txt"), text, sizeof text - 1);
    expect_documents(in_folder("a.txt"), (const char *[]){"first\nline\n", "second \f is text\n", "last\n"}, 3);
    static const char lines[] = "{\"text\": \"one\\n\\u00e4\", \"x\": 1}\n\n  \n{\"text\": \"\"}\n{\"text\": \"two\"}";
    write_file(in_folder("b.jsonl"), lines, sizeof lines - 1);
    expect_documents(in_folder("b.jsonl"), (const char *[]){"one\n\303\244", "two"}, 2);
    write_file(in_folder("empty"), "", 0);
    expect_documents(in_folder("empty"), NULL, 0);
    /* a folder: by name, hidden ones left out, folders inside included */
    assert_int_equal(mkdir(in_folder("all"), 0777), 0);
    assert_int_equal(mkdir(in_folder("all/b"), 0777), 0);
    write_file(in_folder("all/c"), "3", 1);
    write_file(in_folder("all/b/x"), "2", 1);
    write_file(in_folder("all/a"), "1", 1);
    write_file(in_folder("all/.hidden"), "0", 1);
    expect_documents(in_folder("all"), (const char *[]){"1", "2", "3"}, 3);
}

static void broken_documents(void **state) {
    (void)state;
    mhla_documents *d;
    const char *path = in_folder("bad.txt");
    write_file(path, "good\xff", 5);
    ASSERT_FAILS(mhla_documents_open(&d, &path, 1), MHLA_EDATA, "byte 4 is not UTF-8");
    path = in_folder("bad.jsonl");
    write_file(path, "{\"text\": \"a\"}\n{\"txt\": 1}\n", 25);
    ASSERT_FAILS(mhla_documents_open(&d, &path, 1), MHLA_EDATA, "line 2: expected an object with the key \"text\"");
    write_file(path, "{\"text\": \"a\"}\n{\"text\": ", 23);
    ASSERT_FAILS(mhla_documents_open(&d, &path, 1), MHLA_EDATA, "line 2");
    path = in_folder("nowhere");
    ASSERT_FAILS(mhla_documents_open(&d, &path, 1), MHLA_EIO, "nowhere");
}

/* ---- Shards ---- */

static const int32_t tokens[] = {5, 0, 69999, 3, 4, 1, 2, 7};
static const int64_t lengths[] = {3, 0, 4, 1};
static const size_t sizes[] = {10, 2, 13, 1};

static void write_shard(const char *path, int vocabulary, unsigned char mark) {
    mhla_shard_writer *w;
    mhla_shard_head h = {.vocabulary = vocabulary, .bos = 1, .eos = -1, .fingerprint = {mark}};
    ASSERT_OK(mhla_shard_writer_open(&w, path, &h));
    int64_t at = 0;
    for (int i = 0; i < 4; i++) {
        int32_t ids[4];
        for (int64_t k = 0; k < lengths[i]; k++) ids[k] = tokens[at + k] % vocabulary;
        ASSERT_OK(mhla_shard_writer_add(w, ids, lengths[i], sizes[i]));
        at += lengths[i];
    }
    ASSERT_OK(mhla_shard_writer_commit(w, &h));
    assert_int_equal(h.tokens, 8);
    assert_int_equal(h.documents, 4);
    assert_int_equal(h.bytes, 26);
}

static void round_trip(void **state) {
    (void)state;
    static const int vocabularies[] = {100, 65536, 65537, 100000};
    for (int v = 0; v < 4; v++) {
        mhla_shard *s;
        int32_t ids[8];
        struct stat info;
        write_shard(in_folder("a.shard"), vocabularies[v], 9);
        ASSERT_OK(mhla_shard_open(&s, in_folder("a.shard")));
        const mhla_shard_head *h = mhla_shard_head_of(s);
        assert_int_equal(h->vocabulary, vocabularies[v]);
        assert_int_equal(h->bos, 1);
        assert_int_equal(h->eos, -1);
        assert_int_equal(h->fingerprint[0], 9);
        ASSERT_OK(mhla_shard_read(s, ids, 0, 8));
        for (int i = 0; i < 8; i++) assert_int_equal(ids[i], tokens[i] % vocabularies[v]);
        ASSERT_OK(mhla_shard_read(s, ids, 3, 2));
        assert_int_equal(ids[1], 4);
        assert_int_equal(mhla_shard_start(s, 2), 3);
        assert_int_equal(mhla_shard_start(s, 4), 8);
        assert_int_equal(mhla_shard_byte(s, 3), 25);
        assert_int_equal(stat(in_folder("a.shard"), &info), 0);
        assert_int_equal(info.st_size, 128 + 8 * (vocabularies[v] > 65536 ? 4 : 2) + 5 * 16);
        mhla_shard_free(s);
    }
    mhla_shard_writer *w;
    ASSERT_OK(mhla_shard_writer_open(&w, in_folder("none.shard"), &(mhla_shard_head){.vocabulary = 3}));
    ASSERT_FAILS(mhla_shard_writer_add(w, (const int32_t[]){0, 3}, 2, 1), MHLA_EINVAL, "ids[1] is 3");
    mhla_shard_writer_discard(w);
    assert_false(exists(in_folder("none.shard")));
}

/* Every length, and every bit: refused, or still a shard whose documents follow one another inside of it. */
static void broken(void **state) {
    (void)state;
    size_t size;
    write_shard(in_folder("a.shard"), 100, 0);
    char *bytes = read_file(in_folder("a.shard"), &size);
    for (size_t n = 0; n < size; n++) {
        mhla_shard *s;
        char *copy = new_bytes(n);
        memcpy(copy, bytes, n);
        assert_int_equal(mhla_shard_parse(&s, copy, n, "cut"), MHLA_EDATA);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        mhla_shard *s;
        int32_t ids[8];
        char *copy = new_bytes(size);
        memcpy(copy, bytes, size);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        const mhla_status status = mhla_shard_parse(&s, copy, size, "flipped");
        if (status == MHLA_OK) {
            const mhla_shard_head *h = mhla_shard_head_of(s);
            assert_int_equal(h->tokens, 8);
            for (int64_t i = 0; i < h->documents; i++)
                assert_true(mhla_shard_start(s, i) <= mhla_shard_start(s, i + 1));
            const mhla_status read = mhla_shard_read(s, ids, 0, 8);
            for (int i = 0; i < 8 && read == MHLA_OK; i++) assert_true(ids[i] >= 0 && ids[i] < h->vocabulary);
            if (read != MHLA_OK) message_has("an id", "but the vocabulary has");
            mhla_shard_free(s);
        } else {
            assert_int_equal(status, MHLA_EDATA);
        }
        free(copy);
    }
    free(bytes);
}

/* ---- Corpus ---- */

static void corpus(void **state) {
    (void)state;
    mhla_corpus *c;
    int32_t ids[16];
    assert_int_equal(mkdir(in_folder("shards"), 0777), 0);
    write_shard(in_folder("shards/0.shard"), 100, 0);
    write_shard(in_folder("shards/1.shard"), 100, 0);
    ASSERT_OK(mhla_corpus_open(&c, in_folder("shards"), NULL, NULL));
    assert_int_equal(mhla_corpus_head(c)->tokens, 16);
    assert_int_equal(mhla_corpus_head(c)->documents, 8);
    assert_int_equal(mhla_corpus_head(c)->bytes, 52);
    for (int i = 0; i <= 8; i++) {
        static const int64_t starts[] = {0, 3, 3, 7, 8, 11, 11, 15, 16}, ends[] = {0, 10, 12, 25, 26, 36, 38, 51, 52};
        assert_int_equal(mhla_corpus_start(c, i), starts[i]);
        assert_int_equal(mhla_corpus_byte(c, i), ends[i]);
    }
    ASSERT_OK(mhla_corpus_read(c, ids, 6, 6)); /* over the border */
    for (int i = 0; i < 6; i++) assert_int_equal(ids[i], tokens[(6 + i) % 8] % 100);
    mhla_corpus_free(c);
    write_shard(in_folder("shards/2.shard"), 100, 1);
    ASSERT_FAILS(mhla_corpus_open(&c, in_folder("shards"), NULL, NULL), MHLA_EDATA, "another tokenizer");
    write_file(in_folder("t.txt"), "text", 4);
    ASSERT_FAILS(mhla_corpus_open(&c, in_folder("t.txt"), NULL, NULL), MHLA_EINVAL, "which tokenizer");
    write_file(in_folder("tokenizer.json"), "{}", 2);
    ASSERT_FAILS(mhla_corpus_open(&c, in_folder("shards/0.shard"), folder, NULL), MHLA_EDATA,
                 "made with another tokenizer than");
}

static void parts(void **state) {
    (void)state;
    char path[256];
    assert_false(mhla_corpus_part(path, sizeof path, in_folder("."), "validation"));
    write_file(in_folder("test.txt"), "x", 1);
    assert_true(mhla_corpus_part(path, sizeof path, in_folder("."), "validation"));
    assert_non_null(strstr(path, "/test.txt"));
    write_file(in_folder("validation.shard"), "x", 1);
    assert_true(mhla_corpus_part(path, sizeof path, in_folder("."), "validation"));
    assert_non_null(strstr(path, "/validation.shard"));
    assert_false(mhla_corpus_part(path, sizeof path, in_folder("."), "train"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents), cmocka_unit_test(broken_documents), cmocka_unit_test(round_trip),
        cmocka_unit_test(broken),    cmocka_unit_test(corpus),           cmocka_unit_test(parts),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
