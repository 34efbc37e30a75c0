/* Parts of tokenizers against their definitions, small files of every kind against what the reference libraries said of them,
 * training, and everything that can be wrong. The small files are the seeds of the fuzzers. */
#include <libgen.h>
#include <utf8proc.h>

#include "core/memory.h"
#include "file/gguf.h"
#include "files.h"
#include "text/tokenizer.h"

/* tests/fuzz/corpus/fuzz_tokenizer_<name> */
static const char *seed(const char *name) {
    static char path[1024];
    char here[] = __FILE__;
    snprintf(path, sizeof path, "%s/../fuzz/corpus/fuzz_tokenizer_%s", dirname(here), name);
    return path;
}

static size_t put_code(char *to, uint32_t code) { return (size_t)mhla_utf8_put((unsigned char *)to, code); }

/* ---- Patterns written by hand ---- */

static uint32_t draw_code(rng *r) {
    static const struct {
        uint32_t first, count;
    } blocks[] = {{32, 95},        {9, 5},         {0x80, 0x180},     {0x300, 0x70}, {0x370, 0x100}, {0x600, 0x100},
                  {0x900, 0x80},   {0x2000, 0x70}, {0x2150, 0x40},    {0x3000, 64},  {0x4e00, 256},  {0xac00, 256},
                  {0xfe00, 0x200}, {0x1f300, 512}, {0x10d00, 0x5300}, {0, 0x110000}};
    static const uint32_t often[] = {' ', ' ', ' ',  10,   13,     9,      '\'',   '\'',  's',   't',
                                     'S', 'r', 'e',  'L',  'l',    'v',    'm',    'd',   0x17f, '1',
                                     '2', '.', 0xa0, 0x85, 0x180e, 0x200b, 0x3000, 0xfeff};
    for (;;) {
        const int which = rng_below(r, 25);
        const uint32_t code = which < 9
                                  ? RNG_PICK(r, often)
                                  : blocks[which - 9].first + (uint32_t)rng_below(r, (int)blocks[which - 9].count);
        if (code < 0xd800 || code >= 0xe000) return code;
    }
}

static void patterns(void **state) {
    (void)state;
    static const char *const expressions[] = {mhla_pattern_gpt2, mhla_pattern_llama3, mhla_pattern_qwen2};
    mhla_pattern hand[3], regex[3];
    mhla_matcher m = {0};
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(mhla_pattern_regex(&hand[i], expressions[i], strlen(expressions[i]), 0, "test"));
        ASSERT_OK(mhla_pattern_regex(&regex[i], expressions[i], strlen(expressions[i]), 1, "test"));
        assert_int_not_equal(hand[i].kind, MHLA_PATTERN_REGEX);
        assert_int_equal(regex[i].kind, MHLA_PATTERN_REGEX);
    }
    rng r = {7};
    for (int n = 0; n < 2000; n++) {
        char text[512];
        size_t bytes = 0;
        for (int length = 1 + rng_below(&r, 100); length > 0; length--) bytes += put_code(text + bytes, draw_code(&r));
        for (int i = 0; i < 3; i++) {
            char *copy;
            ASSERT_OK(mhla_pattern_subject(&regex[i], &copy, text, bytes));
            for (size_t at = 0; at < bytes;) {
                size_t start, end;
                ASSERT_OK(mhla_pattern_next(&regex[i], &m, copy ? copy : text, bytes, at, &start, &end));
                assert_int_equal(start, at);
                if (mhla_pattern_end(&hand[i], text, bytes, at) != end)
                    fail_msg("pattern %d, byte %zu: PCRE2 ends at %zu, we at %zu: \"%.*s\"", i, at, end,
                             mhla_pattern_end(&hand[i], text, bytes, at), (int)bytes, text);
                at = end;
            }
            mhla_free(copy);
        }
    }
    for (int i = 0; i < 3; i++) mhla_pattern_free(&regex[i]);
    mhla_matcher_free(&m);
}

/* ---- Byte pair encoding ---- */

/* The definition: the known pair of the lowest rank, the leftmost of them, until there is none. */
static int64_t merge_by_definition(const mhla_bpe *b, int32_t *ids, int64_t count) {
    for (;;) {
        int64_t best = -1;
        const struct mhla_bpe_pair *pair = NULL;
        for (int64_t i = 0; i + 1 < count; i++)
            for (size_t k = 0; k <= b->mask; k++)
                if (b->pairs[k].key == ((uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1]) &&
                    (pair == NULL || b->pairs[k].rank < pair->rank))
                    pair = &b->pairs[k], best = i;
        if (pair == NULL) return count;
        ids[best] = pair->id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(count - best - 2) * sizeof *ids);
        count--;
    }
}

/* Letters a .. d, a space mark, and merges drawn at random. Without `unk` characters that are not known leave nothing. */
static void draw_bpe(mhla_bpe *b, rng *r, int32_t unk) {
    *b = (mhla_bpe){.unk = unk};
    memset(b->spare, 0xff, sizeof b->spare);
    static const char *const letters[] = {"a", "b", "c", "d", "\xe2\x96\x81"};
    for (int i = 0; i < 5; i++) ASSERT_OK(mhla_vocabulary_set(&b->symbols, i, letters[i], strlen(letters[i]), "test"));
    for (uint32_t rank = 0; rank < 30; rank++) {
        size_t n, k;
        const int32_t left = rng_below(r, (int)b->symbols.count), right = rng_below(r, (int)b->symbols.count);
        char piece[600];
        const char *text = mhla_vocabulary_piece(&b->symbols, left, &n);
        if (n > 200) continue;
        memcpy(piece, text, n);
        text = mhla_vocabulary_piece(&b->symbols, right, &k);
        if (k > 200) continue;
        memcpy(piece + n, text, k);
        int32_t id = mhla_vocabulary_find(&b->symbols, piece, n + k);
        if (id < 0) {
            id = (int32_t)b->symbols.count;
            ASSERT_OK(mhla_vocabulary_set(&b->symbols, id, piece, n + k, "test"));
        }
        ASSERT_OK(mhla_bpe_merge_add(b, left, right, rank, id));
    }
    b->limit = (int32_t)b->symbols.count;
    mhla_bpe_finish(b);
}

static void merging(void **state) {
    (void)state;
    static const uint32_t unknown[] = {'x', 0x2582};
    rng r = {3};
    mhla_bpe_work *work;
    for (int n = 0; n < 40; n++) {
        mhla_bpe b;
        ASSERT_OK(mhla_bpe_work_create(&work)); /* words are cached: one for each vocabulary */
        const int vanish = n % 2;
        draw_bpe(&b, &r, vanish ? -1 : 0);
        assert_int_equal(b.cuts, !vanish);
        for (int k = 0; k < 30; k++) {
            const int64_t length = 1 + rng_below(&r, k % 3 ? 30 : 150);
            int32_t wanted[200];
            char text[1000];
            size_t bytes = 0;
            for (int64_t i = 0; i < length; i++) {
                if (vanish && rng_below(&r, 4) == 0) bytes += put_code(text + bytes, RNG_PICK(&r, unknown));
                wanted[i] = rng_below(&r, k % 3 ? 5 : 4); /* long ones have no place to be cut at */
                bytes += put_code(text + bytes, wanted[i] == 4 ? 0x2581 : 'a' + (uint32_t)wanted[i]);
            }
            mhla_ids ids = {0};
            ASSERT_OK(mhla_bpe_encode(&b, work, &ids, text, bytes));
            ASSERT_OK(mhla_bpe_encode(&b, work, &ids, text, bytes)); /* out of the cache */
            const int64_t count = merge_by_definition(&b, wanted, length);
            assert_int_equal(ids.count, 2 * count);
            assert_memory_equal(ids.data, wanted, (size_t)count * sizeof *wanted);
            assert_memory_equal(ids.data + count, wanted, (size_t)count * sizeof *wanted);
            mhla_ids_free(&ids);
        }
        mhla_bpe_free(&b);
        mhla_bpe_work_free(work);
    }
}

/* ---- Normal forms: utf8proc's own functions are the definition ---- */

static void normal_forms(void **state) {
    (void)state;
    rng r = {5};
    static const uint32_t marks[] = {0x301, 0x327, 0x323, 0x308, 0x316, 0x345};
    for (int n = 0; n < 400; n++) {
        char text[2048];
        size_t bytes = 0;
        for (int length = rng_below(&r, 60); length > 0; length--) {
            uint32_t code = draw_code(&r);
            if (code == 0 || mhla_char_newer(code)) code = 1; /* utf8proc would end there; or knows it */
            bytes += put_code(text + bytes, code);
            for (int k = rng_below(&r, 40) ? rng_below(&r, 3) : 80; k > 0; k--)
                bytes += put_code(text + bytes, RNG_PICK(&r, marks));
            if (bytes > 1600) break;
        }
        for (int form = 0; form < 4; form++) {
            const mhla_normalizer how = {.kind = MHLA_NORMALIZE_FORM, .compose = form & 1, .compatible = form >> 1};
            const utf8proc_option_t options = UTF8PROC_STABLE | (form & 1 ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                              (form >> 1 ? UTF8PROC_COMPAT : 0);
            utf8proc_uint8_t *wanted;
            const utf8proc_ssize_t size =
                utf8proc_map((utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &wanted, options);
            mhla_chars got = {0};
            int same;
            ASSERT_OK(mhla_normalize(&how, NULL, &got, text, bytes, &same));
            assert_int_equal(same ? bytes : got.count, size);
            if (size) assert_memory_equal(same ? text : got.data, wanted, (size_t)size);
            mhla_chars_free(&got);
            free(wanted);
        }
    }
}

/* What the reference library makes of characters about which versions of Unicode differ. */
static void versions_of_unicode(void **state) {
    (void)state;
    static const mhla_normalizer accents = {.kind = MHLA_NORMALIZE_STRIP_ACCENTS},
                                 lower = {.kind = MHLA_NORMALIZE_LOWERCASE},
                                 nfkd = {.kind = MHLA_NORMALIZE_FORM, .compatible = 1};
    static const struct {
        const mhla_normalizer *how;
        uint32_t code, becomes; /* 0: nothing */
    } known[] = {{&accents, 0x301, 0},       {&accents, 0x93e, 0},       {&accents, 0x489, 0},
                 {&accents, 0x1cf2, 0},      {&accents, 0x1abf, 0x1abf}, {&accents, 0x10eab, 0x10eab},
                 {&accents, 0xe9, 0xe9},     {&lower, 0x212a, 'k'},      {&lower, 0x1c89, 0x1c8a},
                 {&lower, 0xa7dc, 0x19b},    {&lower, 0x10d65, 0x10d85}, {&lower, 0x10d66, 0x10d66},
                 {&lower, 0x16eb8, 0x16ed3}, {&nfkd, 0xff21, 'A'},       {&nfkd, 0x32ff, 0x32ff},
                 {&nfkd, 0x1fbf9, 0x1fbf9},  {&nfkd, 0x11938, 0x11938}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char text[8], wanted[8];
        const size_t bytes = put_code(text, known[i].code);
        const size_t left = known[i].becomes ? put_code(wanted, known[i].becomes) : 0;
        mhla_chars got = {0};
        int same;
        ASSERT_OK(mhla_normalize(known[i].how, NULL, &got, text, bytes, &same));
        if (same) ASSERT_OK(mhla_chars_append(&got, text, bytes));
        if (got.count != left || (left && memcmp(got.data, wanted, left) != 0))
            fail_msg("U+%04X: %zu bytes", (unsigned)known[i].code, got.count);
        mhla_chars_free(&got);
    }
}

/* ---- Small files of every kind ---- */

static const struct expected {
    const char *file, *text;
    int32_t ids[32];
    int64_t count;
    const char *decoded;
} expectations[] = {
    {"json/gpt2", "Hello, wo\314\210rld it's", {1, 18, 17, 6, 15, 5, 11, 4, 12, 1}, 10, " Hello, world "},
    {"json/gpt2",
     "  Hello world, world1 12\012",
     {1, 1, 18, 17, 15, 5, 11, 4, 12, 6, 15, 5, 11, 4, 12, 13, 1, 13, 14, 7},
     20,
     "  Hello world, world1 12\012"},
    {"json/gpt2", "<s>w</s> lo <unk>", {1, 10, 1, 4, 5, 1}, 6, " w lo "},
    {"json/gpt2", "\302\240\360\237\230\200 llo<|endoftext|>1234", {1, 1, 17, 3, 12, 5, 3, 13, 14}, 9, "  lloedoe12"},
    {"json/gpt2", "x worldx world ", {1, 15, 5, 11, 4, 12, 15, 5, 11, 4, 12, 1}, 12, "  world world "},
    {"json/llama3", "Hello, wo\314\210rld it's", {0, 18, 17, 6, 15, 5, 11, 4, 12, 1}, 10, "<|endoftext|>Hello, world "},
    {"json/llama3",
     "  Hello world, world1 12\012",
     {0, 1, 1, 18, 17, 15, 5, 11, 4, 12, 6, 15, 5, 11, 4, 12, 13, 1, 13, 14, 7},
     21,
     "<|endoftext|>  Hello world, world1 12\012"},
    {"json/llama3", "<s>w</s> lo <unk>", {0, 10, 1, 4, 5, 1}, 6, "<|endoftext|>w lo "},
    {"json/llama3",
     "\302\240\360\237\230\200 llo<|endoftext|>1234",
     {0, 1, 17, 0, 13, 14},
     6,
     "<|endoftext|> llo<|endoftext|>12"},
    {"json/llama3", "x worldx world ", {0, 15, 5, 11, 4, 12, 15, 5, 11, 4, 12, 1}, 12, "<|endoftext|> world world "},
    {"json/llama_legacy",
     "Hello, wo\314\210rld it's",
     {1, 3, 27, 24, 15, 25, 14, 0, 17, 13, 18, 3, 19, 20, 21, 22, 2},
     17,
     "<s> Hello, wo<unk>rld it's</s>"},
    {"json/llama_legacy",
     "  Hello world, world1 12\012",
     {1, 3, 3, 3, 27, 24, 25, 14, 17, 13, 18, 15, 25, 14, 17, 13, 18, 23, 3, 23, 6, 0, 2},
     23,
     "<s>   Hello world, world1 1\012<unk></s>"},
    {"json/llama_legacy", "<s>w</s> lo <unk>", {1, 1, 25, 2, 3, 3, 24, 3, 0, 2}, 10, "<s><s> w</s>  lo <unk></s>"},
    {"json/llama_legacy",
     "\302\240\360\237\230\200 llo<|endoftext|>1234",
     {1, 3, 7, 8, 9, 10, 0, 3, 13, 24, 0, 12, 0, 18, 14, 0, 20, 12, 0, 20, 0, 23, 0, 2},
     24,
     "<s> \360\237\230\200<unk> llo<unk>e<unk>do<unk>te<unk>t<unk>1<unk></s>"},
    {"json/llama_legacy",
     "x worldx world ",
     {1, 3, 0, 25, 14, 17, 13, 18, 0, 25, 14, 17, 13, 18, 3, 2},
     16,
     "<s> <unk> world<unk> world </s>"},
    {"json/metaspace",
     "Hello, wo\314\210rld it's",
     {3, 0, 12, 13, 24, 15, 25, 0, 17, 13, 18, 3, 19, 20, 21, 22},
     16,
     "<unk>ello, w<unk>rld it's"},
    {"json/metaspace",
     "  Hello world, world1 12\012",
     {0, 12, 13, 24, 28, 15, 25, 14, 17, 13, 18, 23, 3, 23, 0},
     15,
     "<unk>elloworld, world1 1<unk>"},
    {"json/metaspace",
     "<s>w</s> lo <unk>",
     {3, 0, 22, 0, 16, 0, 0, 22, 0, 3, 24, 3, 0, 0, 0, 0, 0},
     17,
     "<unk>s<unk>w<unk><unk>s<unk> lo <unk><unk><unk><unk><unk>"},
    {"json/metaspace",
     "\302\240\360\237\230\200 llo<|endoftext|>1234",
     {0, 3, 13, 24, 0, 0, 12, 0, 18, 14, 0, 20, 12, 0, 20, 0, 0, 23, 0, 0, 0},
     21,
     "<unk> llo<unk><unk>e<unk>do<unk>te<unk>t<unk><unk>1<unk><unk><unk>"},
    {"json/metaspace", "x worldx world ", {3, 0, 25, 14, 17, 13, 18, 0, 28}, 9, "<unk> world<unk>world"},
    {"json/regex",
     "Hello, wo\314\210rld it's",
     {27, 24, 15, 16, 14, 17, 13, 18, 19, 20, 21, 22},
     12,
     "Hel lo , w o r l d i t ' s"},
    {"json/regex",
     "  Hello world, world1 12\012",
     {27, 24, 16, 14, 17, 13, 18, 15, 16, 14, 17, 13, 18, 23, 23},
     15,
     "Hel lo w o r l d , w o r l d 1 1"},
    {"json/regex", "<s>w</s> lo <unk>", {22, 16, 22, 24}, 4, "s w s lo"},
    {"json/regex",
     "\302\240\360\237\230\200 llo<|endoftext|>1234",
     {13, 24, 12, 18, 14, 20, 12, 20, 23},
     9,
     "l lo e d o t e t 1"},
    {"json/regex", "x worldx world ", {16, 14, 17, 13, 18, 16, 14, 17, 13, 18}, 10, "w o r l d w o r l d"},
    {"json/prefixes", "91 a", {9, 0, 5, 4, 8}, 5, "x 91 a"}, /* both parts stand at the beginning */
    {"json/prefixes", "a'z a", {9, 2, 7, 2}, 4, "xa' a"},    /* z leaves nothing: its neighbours meet */
    {"model/bpe",
     "Hello  w\303\266rld <|endoftext|> xyz",
     {1, 31, 3, 0, 24, 41, 0, 47, 0, 46, 20, 54, 47, 0, 54, 0, 41, 0},
     18,
     "Hello w \342\201\207 rld  \342\201\207 e \342\201\207 dofte \342\201\207 t \342\201\207   \342\201\207 "},
    {"model/bpe", "  hello 12", {1, 12, 15}, 3, "hello 12"},
    {"model/bpe", "zz zz", {1, 41, 0, 41, 0}, 5, " \342\201\207   \342\201\207 "},
    {"model/bpe", "hello <s> world ", {1, 12, 41, 0, 53, 0, 10}, 7, "hello  \342\201\207 s \342\201\207  world"},
    {"model/fallback",
     "Hello  w\303\266rld <|endoftext|> xyz",
     {1, 279, 266, 280, 260, 278, 261, 280, 3, 280, 124, 125, 126},
     13,
     "Hello  w\303\266rld <|endoftext|> xyz"},
    {"model/fallback", "  hello 12", {1, 280, 280, 269, 272}, 5, "  hello 12"},
    {"model/fallback", "zz zz", {1, 280, 126, 126, 280, 126, 126}, 7, "zz zz"},
    {"model/fallback", "hello <s> world ", {1, 269, 280, 64, 292, 66, 267, 280}, 8, "hello <s> world "},
};

static void small_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expected *e = &expectations[i];
        mhla_tokenizer *t;
        mhla_ids ids = {0};
        mhla_chars text = {0};
        ASSERT_OK(mhla_tokenizer_open(&t, seed(e->file)));
        ASSERT_OK(mhla_tokenizer_encode(t, &ids, e->text, strlen(e->text), MHLA_ENCODE_SPECIAL));
        if (ids.count != e->count || memcmp(ids.data, e->ids, (size_t)e->count * sizeof *e->ids) != 0)
            fail_msg("%s: \"%s\" has other ids", e->file, e->text);
        ASSERT_OK(mhla_tokenizer_decode(t, &text, ids.data, ids.count, 0));
        if (text.count != strlen(e->decoded) || memcmp(text.data, e->decoded, text.count) != 0)
            fail_msg("%s: \"%s\" is decoded as \"%.*s\"", e->file, e->text, (int)text.count, text.data);
        mhla_ids_free(&ids);
        mhla_chars_free(&text);
        mhla_tokenizer_free(t);
    }
}

/* ---- Vocabularies of GGUF files ---- */

typedef struct vocabulary_case {
    const char *model, *pre;
    const char *tokens[24];
    int32_t types[24];
    float scores[24];
    const char *merges[8];
    int adds_bos;
} vocabulary_case;

static void write_gguf(const char *path, const vocabulary_case *v) {
    mhla_gguf_string tokens[24], merges[8], model = {v->model, strlen(v->model)}, pre = {v->pre, strlen(v->pre)};
    int64_t count = 0, merge_count = 0;
    for (; count < 24 && v->tokens[count]; count++)
        tokens[count] = (mhla_gguf_string){v->tokens[count], strlen(v->tokens[count])};
    for (; merge_count < 8 && v->merges[merge_count]; merge_count++)
        merges[merge_count] = (mhla_gguf_string){v->merges[merge_count], strlen(v->merges[merge_count])};
    const uint32_t bos = 1;
    const unsigned char adds = (unsigned char)v->adds_bos;
    const mhla_gguf_pair pairs[] = {
        {"tokenizer.ggml.model", MHLA_GGUF_STRING, 0, 1, NULL, &model},
        {"tokenizer.ggml.pre", MHLA_GGUF_STRING, 0, 1, NULL, &pre},
        {"tokenizer.ggml.tokens", MHLA_GGUF_STRING, 1, count, NULL, tokens},
        {"tokenizer.ggml.token_type", MHLA_GGUF_INT32, 1, count, v->types, NULL},
        {"tokenizer.ggml.scores", MHLA_GGUF_FLOAT32, 1, count, v->scores, NULL},
        {"tokenizer.ggml.merges", MHLA_GGUF_STRING, 1, merge_count, NULL, merges},
        {"tokenizer.ggml.bos_token_id", MHLA_GGUF_UINT32, 0, 1, &bos, NULL},
        {"tokenizer.ggml.add_bos_token", MHLA_GGUF_BOOL, 0, 1, &adds, NULL},
    };
    ASSERT_OK(mhla_gguf_write(path, pairs, sizeof pairs / sizeof *pairs, NULL, 0));
}

static void of_gguf(const vocabulary_case *v, const char *text, const int32_t *wanted, int64_t count,
                    const char *back) {
    const char *path = in_folder("vocabulary.gguf");
    write_gguf(path, v);
    mhla_tokenizer *t;
    mhla_ids ids = {0};
    mhla_chars decoded = {0};
    ASSERT_OK(mhla_tokenizer_open(&t, path));
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, strlen(text), MHLA_ENCODE_SPECIAL));
    for (int64_t i = 0; i < ids.count && i < count; i++)
        if (ids.data[i] != wanted[i]) fail_msg("%s: id %lld is %d", v->model, (long long)i, ids.data[i]);
    assert_int_equal(ids.count, count);
    ASSERT_OK(mhla_tokenizer_decode(t, &decoded, ids.data, ids.count, MHLA_DECODE_SKIP_SPECIAL));
    assert_int_equal(decoded.count, strlen(back));
    assert_memory_equal(decoded.data, back, decoded.count);
    mhla_ids_free(&ids);
    mhla_chars_free(&decoded);
    mhla_tokenizer_free(t);
}

static void gguf_vocabularies(void **state) {
    (void)state;
    vocabulary_case llama = {
        "llama",
        "default",
        {"<unk>", "<s>", "</s>", "<0xC3>", "<0xB6>", "\xe2\x96\x81", "l", "o", "w", "lo", "low", "\xe2\x96\x81l", "ow"},
        {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1},
        {0, 0, 0, 0, 0, -8, -8, -8, -8, -3, -4, -5, -2},
        {NULL},
        1};
    /* "ow" has the best score, then nothing makes "low" of l and ow but the vocabulary itself */
    of_gguf(&llama, "low lo\xc3\xb6</s>z", (const int32_t[]){1, 5, 10, 5, 9, 3, 4, 2, 5, 0}, 10, "low lo\xc3\xb6 ");
    vocabulary_case gpt2 = {"gpt2",
                            "smollm",
                            {"<|endoftext|>", "<|im_start|>", "l", "o", "w", "\xc4\xa0", "1", "2", "lo", "low", "12",
                             "\xc4\xa0low",
                             "\xc4\xa0"
                             "1"},
                            {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                            {0},
                            {"l o", "lo w", "1 2", "\xc4\xa0 low", "\xc4\xa0 1"},
                            0};
    of_gguf(&gpt2, "low low 12<|im_start|>", (const int32_t[]){9, 11, 5, 6, 7, 1}, 6, "low low 12"); /* single digits */
    gpt2.pre = "gpt-2";
    of_gguf(&gpt2, "low 12", (const int32_t[]){9, 5, 10}, 3, "low 12");
    mhla_tokenizer *t;
    gpt2.pre = "newest";
    write_gguf(in_folder("x.gguf"), &gpt2);
    ASSERT_FAILS(mhla_tokenizer_open(&t, in_folder("x.gguf")), MHLA_ENOTSUP, "tokenizer.ggml.pre is \"newest\"");
    gpt2.pre = "gpt-2";
    gpt2.model = "bert";
    write_gguf(in_folder("x.gguf"), &gpt2);
    ASSERT_FAILS(mhla_tokenizer_open(&t, in_folder("x.gguf")), MHLA_ENOTSUP, "tokenizer.ggml.model is \"bert\"");
    gpt2.model = "gpt2";
    gpt2.merges[0] = "l x";
    write_gguf(in_folder("x.gguf"), &gpt2);
    ASSERT_FAILS(mhla_tokenizer_open(&t, in_folder("x.gguf")), MHLA_EDATA, "merge 0");
}

static void special_tokens(void **state) {
    (void)state;
    mhla_tokenizer *t;
    ASSERT_OK(mhla_tokenizer_open(&t, seed("json/llama_legacy")));
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_query(t, &info));
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_int_equal(info.unk, 0);
    assert_int_equal(info.pad, -1);
    assert_true(info.adds_bos && info.adds_eos);
    assert_string_equal(info.kind, "bpe");
    assert_string_equal(mhla_tokenizer_piece(t, 3), "\xe2\x96\x81");
    assert_int_equal(mhla_tokenizer_id(t, "</s>"), 2);
    assert_int_equal(mhla_tokenizer_id(t, "nothing"), -1);
    assert_null(mhla_tokenizer_piece(t, info.vocabulary));
    mhla_ids ids = {0};
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, "</s>", 4, 0));
    assert_int_equal(ids.count, 1);
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, "</s>", 4, MHLA_ENCODE_PLAIN));
    assert_true(ids.count > 2); /* appended, as text */
    for (int64_t i = 1; i < ids.count; i++) assert_int_not_equal(ids.data[i], 2);
    mhla_ids_free(&ids);
    mhla_tokenizer_free(t);
}

static void configs(void **state) {
    (void)state;
    size_t size;
    char *json = read_file(seed("json/llama_legacy"), &size);
    write_file(in_folder("tokenizer.json"), json, size);
    free(json);
    static const char config[] =
        "{\"bos_token\": {\"content\": \"</s>\"}, \"eos_token\": \"<s>\", \"pad_token\": null, "
        "\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true, \"add_eos_token\": false, "
        "\"model_max_length\": 1000000000000000019884624838656, " /* as transformers writes "none" */
        "\"chat_template\": [{\"name\": \"tool\", \"template\": \"x\"}, {\"name\": "
        "\"default\", \"template\": \"{{ messages }}\"}]}";
    write_file(in_folder("tokenizer_config.json"), config, strlen(config));
    mhla_tokenizer *t;
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_open(&t, folder));
    ASSERT_OK(mhla_tokenizer_query(t, &info));
    assert_int_equal(info.bos, 2);
    assert_int_equal(info.eos, 1);
    assert_true(info.adds_bos && !info.adds_eos);
    assert_string_equal(info.chat_template, "{{ messages }}");
    mhla_tokenizer_free(t);
    write_file(in_folder("tokenizer_config.json"), "[]", 2);
    ASSERT_FAILS(mhla_tokenizer_open(&t, folder), MHLA_EDATA, "tokenizer_config.json: expected an object");
}

/* ---- What is wrong ---- */

static void wrong_calls(void **state) {
    (void)state;
    mhla_tokenizer *t;
    mhla_ids ids = {0};
    mhla_chars text = {0};
    ASSERT_OK(mhla_tokenizer_open(&t, seed("json/gpt2")));
    ASSERT_FAILS(mhla_tokenizer_encode(t, &ids, "abc\xff", 4, 0), MHLA_EDATA, "byte 3 is 0xff");
    ASSERT_FAILS(mhla_tokenizer_encode(t, &ids, "ab\xed\xa0\x80", 5, 0), MHLA_EDATA, "byte 2 is 0xed");
    ASSERT_FAILS(mhla_tokenizer_encode(t, &ids, "\xe2\x96", 2, 0), MHLA_EDATA, "byte 0");
    ASSERT_FAILS(mhla_tokenizer_encode(t, &ids, "a", 1, 8), MHLA_EINVAL, "flags");
    ASSERT_FAILS(mhla_tokenizer_encode(t, NULL, "a", 1, 0), MHLA_EINVAL, "NULL");
    assert_int_equal(ids.count, 0);
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, NULL, 0, 0));
    const int32_t good[] = {2, 3}, high[] = {2, 1000}, low[] = {2, -1};
    ASSERT_OK(mhla_tokenizer_decode(t, &text, good, 2, 0));
    assert_int_equal(text.count, 2);
    ASSERT_FAILS(mhla_tokenizer_decode(t, &text, high, 2, 0), MHLA_EINVAL, "the id 1000 is out of range");
    ASSERT_FAILS(mhla_tokenizer_decode(t, &text, low, 2, 0), MHLA_EINVAL, "the id -1");
    ASSERT_FAILS(mhla_tokenizer_decode(t, &text, good, 2, 16), MHLA_EINVAL, "flags");
    assert_int_equal(text.count, 2); /* what was there */
    mhla_chars_free(&text);
    mhla_ids_free(&ids);
    mhla_tokenizer_free(t);
    mhla_tokenizer_free(NULL);
    mhla_decoder_free(NULL);
    ASSERT_FAILS(mhla_tokenizer_open(&t, "/nowhere/tokenizer.json"), MHLA_EIO, "/nowhere");
    ASSERT_FAILS(mhla_tokenizer_open(&t, folder), MHLA_EIO, "no tokenizer is in this folder");
}

static void wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *json;
        mhla_status status;
        const char *word;
    } cases[] = {
        {"{}", MHLA_EDATA, "\"model\" is missing"},
        {"{\"model\": {\"type\": \"WordPiece\"}}", MHLA_ENOTSUP, "WordPiece"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", MHLA_EDATA, "lacks \"merges\""},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", MHLA_EDATA, "the vocabulary is empty"},
        {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", MHLA_EDATA, "out of range"},
        {"{\"model\": {\"vocab\": {\"a\": 2000000000}, \"merges\": []}}", MHLA_EDATA, "out of range"},
        {"{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", MHLA_EDATA, "id 0 is given to"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}", MHLA_EDATA, "\"b\" is not in the vocabulary"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", MHLA_EDATA, "\"aa\" is not in"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}}", MHLA_EDATA, "expected two pieces"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": \"u\"}}", MHLA_EDATA, "unk_token"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}}", MHLA_ENOTSUP, "dropout"},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"normalizer\": {\"type\": \"BertNormalizer\"}}",
         MHLA_ENOTSUP, "normalizer of type \"BertNormalizer\""},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}",
         MHLA_ENOTSUP, "pre_tokenizer of type \"UnicodeScripts\""},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"decoder\": {\"type\": \"CTC\"}}", MHLA_ENOTSUP,
         "\"CTC\""},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
         "{\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}}",
         MHLA_EDATA, "the pattern \"(a\""},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"added_tokens\": [{\"id\": 0, \"content\": \"x\"}]}",
         MHLA_EDATA, "id 0 is given to \"a\" and to \"x\""},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"post_processor\": {\"type\": \"BertProcessing\", "
         "\"cls\": "
         "[\"a\", 9], \"sep\": [\"a\", 0]}}",
         MHLA_EDATA, "adds the id 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mhla_tokenizer *t = NULL;
        const mhla_status status = mhla_tokenizer_parse_json(&t, cases[i].json, strlen(cases[i].json), "x.json");
        if (status != cases[i].status) fail_msg("%s: status %d, %s", cases[i].json, status, mhla_message());
        message_has(cases[i].json, cases[i].word);
        message_has(cases[i].json, "x.json");
        assert_null(t);
    }
    mhla_tokenizer *t;
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, (const unsigned char *)"\xff\xff", 2, "x.model"), MHLA_EDATA,
                 "x.model: byte 2");
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, (const unsigned char *)"\x0a\x7f", 2, "x.model"), MHLA_EDATA,
                 "x.model: byte");
    ASSERT_FAILS(mhla_tokenizer_parse_model(&t, (const unsigned char *)"", 0, "x.model"), MHLA_EDATA, "empty");
}

/* Cut and flipped: refused or usable, nothing else. */
static void hostile_files(void **state) {
    (void)state;
    static const char *const files[] = {"model/bpe", "model/fallback", "json/llama_legacy", "json/regex"};
    rng r = {11};
    for (int k = 0; k < 4; k++) {
        size_t size;
        char *bytes = read_file(seed(files[k]), &size), *copy = new_bytes(size);
        for (int n = 0; n < 400; n++) {
            memcpy(copy, bytes, size);
            const size_t cut = n < 200 ? (size_t)rng_below(&r, (int)size) : size;
            if (n >= 200) copy[rng_below(&r, (int)size)] ^= (char)(1 << rng_below(&r, 8));
            mhla_tokenizer *t = NULL;
            const mhla_status status = k < 2 ? mhla_tokenizer_parse_model(&t, (unsigned char *)copy, cut, "x")
                                             : mhla_tokenizer_parse_json(&t, copy, cut, "x");
            if (status == MHLA_OK) {
                mhla_ids ids = {0};
                mhla_chars text = {0};
                if (mhla_tokenizer_encode(t, &ids, " Hello, w\xc3\xb6rld", 14, 1) == MHLA_OK)
                    ASSERT_OK(mhla_tokenizer_decode(t, &text, ids.data, ids.count, 0));
                mhla_ids_free(&ids);
                mhla_chars_free(&text);
            }
            mhla_tokenizer_free(t);
        }
        free(bytes);
        free(copy);
    }
}

/* Without memory at any point: an error, and nothing is lost. */
static void no_memory(void **state) {
    (void)state;
    size_t size;
    char *bytes = read_file(seed("model/fallback"), &size);
    mhla_set_allocator(scarce_alloc, scarce_free);
    mhla_status status = MHLA_ENOMEM;
    for (int allowed = 0; status != MHLA_OK && allowed < 2000; allowed++) {
        scarce.allowed = allowed;
        mhla_tokenizer *t = NULL;
        mhla_ids ids = {0};
        status = mhla_tokenizer_parse_model(&t, (unsigned char *)bytes, size, "x");
        if (status == MHLA_OK) status = mhla_tokenizer_encode(t, &ids, "Hello  w\xc3\xb6rld", 13, 1);
        mhla_ids_free(&ids);
        mhla_tokenizer_free(t);
        assert_int_equal(scarce.living, 0);
        if (status != MHLA_OK) assert_int_equal(status, MHLA_ENOMEM);
    }
    mhla_set_allocator(NULL, NULL);
    ASSERT_OK(status);
    free(bytes);
}

/* A long text without a place to cut it: quadratic time would show. */
static void long_words(void **state) {
    (void)state;
    static const char *const files[] = {"json/gpt2", "json/llama3", "json/llama_legacy", "model/fallback"};
    const size_t size = 1 << 20;
    char *text = new_bytes(size);
    for (int k = 0; k < 4; k++)
        for (int kind = 0; kind < 3; kind++) {
            for (size_t i = 0; i < size; i++)
                text[i] = kind == 0 ? 'l' : kind == 1 ? "loHe"[i * i % 4] : " \n"[i % 7 == 3];
            mhla_tokenizer *t;
            mhla_ids ids = {0};
            ASSERT_OK(mhla_tokenizer_open(&t, seed(files[k])));
            ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, size, 0));
            assert_true(ids.count > 0);
            mhla_ids_free(&ids);
            mhla_tokenizer_free(t);
        }
    free(text);
}

/* ---- Training ---- */

static void training(void **state) {
    (void)state;
    static const char text[] =
        "low low low low low lower lower newest newest newest newest newest newest widest widest widest"
        "<|endoftext|>\xc3\xb6 1\n";
    write_file(in_folder("text.txt"), text, strlen(text));
    const char *const files[] = {in_folder("text.txt")};
    mhla_tokenizer_training how = {.size = sizeof how, .vocabulary = 264};
    const char *out = in_folder("new.json");
    ASSERT_OK(mhla_tokenizer_train(out, files, 1, &how, NULL, NULL));
    mhla_tokenizer *t;
    ASSERT_OK(mhla_tokenizer_open(&t, out));
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_query(t, &info));
    assert_int_equal(info.vocabulary, 264);
    assert_int_equal(info.eos, 0);
    /* by hand: (e,s) 9, (es,t) 9, (l,o) 7, (lo,w) 7, (space,low) 6, (space,n) 6, (e,w) 6; of two, that of the lower ids */
    static const char *const pieces[] = {"es", "est", "lo", "low"};
    for (int i = 0; i < 4; i++) assert_string_equal(mhla_tokenizer_piece(t, 257 + i), pieces[i]);
    mhla_ids ids = {0};
    mhla_chars back = {0};
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, strlen(text), 0));
    ASSERT_OK(mhla_tokenizer_decode(t, &back, ids.data, ids.count, 0));
    assert_int_equal(back.count, strlen(text));
    assert_memory_equal(back.data, text, back.count);
    mhla_ids_free(&ids);
    mhla_chars_free(&back);
    mhla_tokenizer_free(t);
    how.vocabulary = 100;
    ASSERT_FAILS(mhla_tokenizer_train(out, files, 1, &how, NULL, NULL), MHLA_EINVAL, "a vocabulary of 100 pieces");
    how.vocabulary = 300;
    const char *const twice[] = {"<a>", "<a>"};
    how.special = twice;
    how.specials = 2;
    ASSERT_FAILS(mhla_tokenizer_train(out, files, 1, &how, NULL, NULL), MHLA_EINVAL, "given twice");
    const char *const missing[] = {in_folder("missing.txt")};
    ASSERT_FAILS(mhla_tokenizer_train(out, missing, 1, NULL, NULL, NULL), MHLA_EIO, "missing.txt");
    write_file(in_folder("text.txt"), "a\xff", 2);
    ASSERT_FAILS(mhla_tokenizer_train(in_folder("none.json"), files, 1, NULL, NULL, NULL), MHLA_EDATA, "text.txt");
    assert_false(exists(in_folder("none.json")));
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns),
        cmocka_unit_test(merging),
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(versions_of_unicode),
        cmocka_unit_test(small_files),
        cmocka_unit_test(special_tokens),
        IN_FOLDER(configs),
        IN_FOLDER(wrong_calls),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(long_words),
        IN_FOLDER(training),
        IN_FOLDER(gguf_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
