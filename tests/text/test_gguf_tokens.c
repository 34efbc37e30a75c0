/* Vocabularies on their way from tokenizer.json into a GGUF: what is read out of it again makes the same ids. */
#include "file/gguf.h"
#include "file/gguf_types.h"
#include "files.h"
#include "goldens.h"
#include "text/gguf_tokens.h"
#include "text/tokenizer.h"

static const char *const texts[] = {
    "Hello world, it's 2024: 12345 things!",
    "  two  spaces,\n\nlines\tand tabs ",
    "It'S l\xc3\xa9ger, na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80\xc2\xa0.",
    "a <s>b</s> <|endoftext|> <unk><0x41>",
    "int main(void) { return x[3] != 0x1f; } // done",
    "",
};

static void written(const char *path, const char *from, int64_t vocabulary) {
    mhla_gguf_tokens t;
    ASSERT_OK(mhla_gguf_tokens_make(&t, from, vocabulary));
    assert_true(t.count > 3);
    ASSERT_OK(mhla_gguf_write(path, t.pairs, t.count, NULL, 0));
    mhla_gguf_tokens_free(&t);
}

static void same_ids(const char *name, const mhla_tokenizer *a, const mhla_tokenizer *b) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mhla_ids x = {0}, y = {0};
        mhla_chars back = {0}, back_again = {0};
        ASSERT_OK(mhla_tokenizer_encode(a, &x, texts[i], strlen(texts[i]), MHLA_ENCODE_SPECIAL));
        ASSERT_OK(mhla_tokenizer_encode(b, &y, texts[i], strlen(texts[i]), MHLA_ENCODE_SPECIAL));
        if (x.count != y.count || (x.count && memcmp(x.data, y.data, (size_t)x.count * sizeof *x.data) != 0))
            fail_msg("%s: \"%s\" has other ids", name, texts[i]);
        ASSERT_OK(mhla_tokenizer_decode(a, &back, x.data, x.count, MHLA_DECODE_SKIP_SPECIAL));
        ASSERT_OK(mhla_tokenizer_decode(b, &back_again, x.data, x.count, MHLA_DECODE_SKIP_SPECIAL));
        assert_int_equal(back.count, back_again.count);
        if (back.count) assert_memory_equal(back.data, back_again.data, back.count);
        mhla_ids_free(&x);
        mhla_ids_free(&y);
        mhla_chars_free(&back);
        mhla_chars_free(&back_again);
    }
}

/* Not among them: a Metaspace that adds no space where one stands already, which a GGUF has no word for. */
static void goldens(void **state) {
    (void)state;
    static const char *const names[] = {"lm/tokenizers/bytelevel-gpt2", "lm/tokenizers/bytelevel-llama3",
                                        "lm/tokenizers/llama-legacy", "lm/models/llama-hf"};
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[512];
        if (!golden_there(from, names[i])) continue;
        found++;
        mhla_tokenizer *a, *b;
        mhla_tokenizer_info x = {.size = sizeof x}, y = {.size = sizeof y};
        ASSERT_OK(mhla_tokenizer_open(&a, from));
        ASSERT_OK(mhla_tokenizer_query(a, &x));
        const char *path = in_folder("tokens.gguf");
        written(path, from, x.vocabulary + 5); /* a matrix may have rows that no token needs */
        ASSERT_OK(mhla_tokenizer_open(&b, path));
        ASSERT_OK(mhla_tokenizer_query(b, &y));
        same_ids(names[i], a, b);
        assert_int_equal(x.bos, y.bos);
        assert_int_equal(x.eos, y.eos);
        mhla_tokenizer_free(a);
        mhla_tokenizer_free(b);
    }
    if (found) return;
    print_message("[   SKIP   ] no tokenizers: set MHLA_GOLDENS\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(goldens, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
