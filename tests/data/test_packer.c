/* Batches of tokens: every token of the text is a label once, none crosses a border of documents, and a batch is a function
 * of (seed, epoch, batch). */
#include "data/packer.h"
#include "files.h"

enum { BOS = 1, EOS = 2, DOCUMENTS = 40, T = 16, B = 3 };

static mhla_corpus *corpus;
static int64_t text; /* tokens */

/* Token k of document d is 100 + 64 d + k: who sees one knows where it belongs. */
static int set_up(void **state) {
    if (make_folder(state) != 0) return -1;
    rng r = {3};
    mhla_shard_writer *w;
    ASSERT_OK(mhla_shard_writer_open(&w, in_folder("a.shard"), &(mhla_shard_head){5000, BOS, EOS, {0}, 0, 0, 0}));
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t ids[64];
        const int n = d == 7 ? 0 : d == 8 ? 60 : rng_below(&r, 40); /* empty ones, and longer than a window */
        for (int k = 0; k < n; k++) ids[k] = 100 + 64 * d + k;
        ASSERT_OK(mhla_shard_writer_add(w, ids, n, (size_t)(3 * n)));
        text += n;
    }
    ASSERT_OK(mhla_shard_writer_commit(w, NULL));
    ASSERT_OK(mhla_corpus_open(&corpus, in_folder("a.shard"), NULL, NULL));
    return 0;
}

static int tear_down(void **state) {
    mhla_corpus_free(corpus);
    return remove_folder(state);
}

static mhla_packer *pack(int documents, int train, int64_t limit, int32_t bos, int32_t eos) {
    mhla_packer *p;
    ASSERT_OK(mhla_packer_create(&p, &(mhla_packer_desc){.corpus = corpus,
                                                         .window = T,
                                                         .rows = B,
                                                         .documents = documents,
                                                         .train = train,
                                                         .limit = limit,
                                                         .bos = bos,
                                                         .eos = eos,
                                                         .seed = 5}));
    return p;
}

static int document_of(int32_t id) { return id < 100 ? -1 : (id - 100) / 64; }

/* Sequences cover the batch; inside of one, each label is the next id, and no two documents meet. */
static void check_batch(const mhla_token_batch *b) {
    assert_int_equal(b->cu_seqlens[0], 0);
    assert_int_equal(b->cu_seqlens[b->sequences], b->tokens);
    int64_t counted = 0;
    for (int64_t i = 0; i < b->tokens; i++) counted += b->labels[i] >= 0;
    assert_int_equal(counted, b->counted);
    for (int64_t s = 0; s < b->sequences; s++) {
        const int64_t first = b->cu_seqlens[s], end = b->cu_seqlens[s + 1];
        int known = -1;
        assert_true(end > first && end - first <= T);
        for (int64_t i = first; i < end; i++) {
            if (i > first) assert_int_not_equal(b->ids[i], BOS);
            if (i + 1 < end) assert_int_equal(b->labels[i], b->ids[i + 1]);
            assert_true((b->labels[i] == MHLA_NO_LABEL) == (b->ids[i] == EOS));
            const int d = document_of(b->ids[i]);
            if (d >= 0 && known >= 0) assert_int_equal(d, known);
            if (d >= 0) known = d;
        }
    }
}

static void evaluation(void **state) {
    (void)state;
    mhla_packer *p = pack(1, 0, 0, BOS, EOS);
    for (int round = 0; round < 2; round++) {
        char *seen = calloc(5000, 1);
        int64_t ends = 0, labels = 0;
        const mhla_token_batch *b;
        for (;;) {
            ASSERT_OK(mhla_packer_next(p, &b));
            if (b->tokens == 0) break;
            check_batch(b);
            for (int64_t i = 0; i < b->tokens; i++) {
                if (b->labels[i] >= 100) assert_int_equal(seen[b->labels[i]]++, 0), labels++;
                ends += b->labels[i] == EOS;
            }
        }
        assert_int_equal(labels, text);
        assert_int_equal(ends, DOCUMENTS);
        free(seen);
    }
    assert_int_equal(mhla_packer_bytes(p), 3 * text);
    mhla_packer_free(p);
    p = pack(1, 0, text / 3, BOS, EOS); /* a part, by documents: bytes are those of its text */
    const mhla_token_batch *b;
    int64_t labels = 0;
    do {
        ASSERT_OK(mhla_packer_next(p, &b));
        for (int64_t i = 0; i < b->tokens; i++) labels += b->labels[i] >= 100;
    } while (b->tokens > 0);
    assert_true(labels > 0 && labels < text);
    assert_int_equal(mhla_packer_bytes(p), 3 * labels);
    mhla_packer_free(p);
}

static uint64_t digest(const mhla_token_batch *b) {
    uint64_t h = 1469598103934665603u;
    for (int64_t i = 0; i < b->tokens; i++)
        h = (h ^ (uint64_t)b->ids[i] ^ (uint64_t)b->labels[i] << 32) * 1099511628211u;
    for (int64_t i = 0; i <= b->sequences; i++) h = (h ^ (uint64_t)b->cu_seqlens[i]) * 1099511628211u;
    return h;
}

static void training(void **state) {
    (void)state;
    mhla_packer *p = pack(1, 1, 0, BOS, EOS), *other = pack(1, 1, 0, BOS, EOS);
    const int64_t n = mhla_packer_batches(p);
    uint64_t seen[2][64];
    const mhla_token_batch *b;
    assert_true(n > 3 && n < 64);
    for (int epoch = 0; epoch < 2; epoch++) {
        char *once = calloc(5000, 1);
        for (int64_t i = 0; i < n; i++) {
            ASSERT_OK(mhla_packer_next(p, &b));
            assert_int_equal(b->epoch, epoch);
            assert_int_equal(b->batch, i);
            assert_int_equal(b->tokens, B * T);
            check_batch(b);
            for (int64_t k = 0; k < b->tokens; k++)
                if (b->labels[k] >= 100) assert_int_equal(once[b->labels[k]]++, 0);
            seen[epoch][i] = digest(b);
        }
        free(once);
    }
    assert_true(seen[0][0] != seen[1][0] && seen[0][1] != seen[1][1]);
    for (int epoch = 1; epoch >= 0; epoch--) /* from anywhere */
        for (int64_t i = n - 1; i >= 0; i -= 2) {
            ASSERT_OK(mhla_packer_seek(other, epoch, i));
            ASSERT_OK(mhla_packer_next(other, &b));
            assert_true(digest(b) == seen[epoch][i]);
        }
    ASSERT_OK(mhla_packer_seek(other, 0, n));
    ASSERT_OK(mhla_packer_next(other, &b));
    assert_true(digest(b) == seen[1][0]);
    ASSERT_FAILS(mhla_packer_seek(other, 0, n + 1), MHLA_EINVAL, "an epoch has");
    mhla_packer_free(p);
    mhla_packer_free(other);
}

/* One stream: labels go over the borders, a token that is BOS and EOS stands once between two documents. */
static void concatenation(void **state) {
    (void)state;
    for (int one = 0; one < 2; one++) {
        mhla_packer *p = pack(0, 1, 0, BOS, one ? BOS : EOS);
        const mhla_token_batch *b;
        int64_t marks = 0, texts = 0;
        for (int64_t i = 0; i < mhla_packer_batches(p); i++) {
            ASSERT_OK(mhla_packer_next(p, &b));
            assert_int_equal(b->sequences, B);
            assert_int_equal(b->counted, B * T);
            for (int64_t k = 0; k < b->tokens; k++) {
                if ((k + 1) % T) assert_int_equal(b->labels[k], b->ids[k + 1]);
                marks += b->ids[k] < 100;
                texts += b->ids[k] >= 100;
            }
        }
        assert_true(texts > text * 8 / 10 && marks > 0 && marks <= (one ? 1 : 2) * DOCUMENTS);
        mhla_packer_free(p);
    }
}

static void failures(void **state) {
    (void)state;
    mhla_packer *p;
    mhla_packer_desc d = {
        .corpus = corpus, .window = 4096, .rows = 1, .documents = 1, .train = 1, .bos = -1, .eos = -1};
    ASSERT_FAILS(mhla_packer_create(&p, &d), MHLA_EINVAL, "neither BOS nor EOS");
    d.bos = BOS;
    ASSERT_FAILS(mhla_packer_create(&p, &d), MHLA_EINVAL, "less than one batch of 1 x 4096");
    d.window = 0;
    ASSERT_FAILS(mhla_packer_create(&p, &d), MHLA_EINVAL, "a batch of 1 x 0 tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(evaluation), cmocka_unit_test(training),
                                       cmocka_unit_test(concatenation), cmocka_unit_test(failures)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
