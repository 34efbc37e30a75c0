/* Tokenizers in the files of their authors: GPT-2's and CLIP's vocab.json and merges.txt, CLIP's list of merges, files of
 * tiktoken. Small ones by hand, whose ids the reference libraries gave; which file of a folder is taken; what is wrong. */
#include <zlib.h>

#include "files.h"
#include "goldens.h"
#include "report/html.h"
#include "text/tokenizer.h"
#include "text/tokenizer_copy.h"

static void put(const char *name, const char *text) { write_file(in_folder(name), text, strlen(text)); }

/* The text has these ids, which end with -1, and they are decoded as `back`, if that is not NULL. */
static void check(const char *path, const char *text, unsigned flags, const int32_t *wanted, const char *back) {
    mhla_tokenizer *t;
    mhla_ids ids = {0};
    mhla_chars decoded = {0};
    if (mhla_tokenizer_open(&t, path) != MHLA_OK) fail_msg("%s: %s", path, mhla_message());
    ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, strlen(text), flags));
    int64_t count = 0;
    while (wanted[count] >= 0) count++;
    for (int64_t i = 0; i < ids.count && i < count; i++)
        if (ids.data[i] != wanted[i]) fail_msg("%s: \"%s\": id %lld is %d", path, text, (long long)i, ids.data[i]);
    assert_int_equal(ids.count, count);
    ASSERT_OK(mhla_tokenizer_decode(t, &decoded, ids.data, ids.count, MHLA_DECODE_SKIP_SPECIAL));
    if (back && (decoded.count != strlen(back) || (decoded.count && memcmp(decoded.data, back, decoded.count) != 0)))
        fail_msg("%s: \"%s\" is decoded as \"%.*s\"", path, text, (int)decoded.count, decoded.data);
    mhla_ids_free(&ids);
    mhla_chars_free(&decoded);
    mhla_tokenizer_free(t);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

static void fails(const char *path, mhla_status status, const char *word) {
    mhla_tokenizer *t;
    assert_int_equal(mhla_tokenizer_open(&t, path), status);
    assert_null(t);
    message_has(path, word);
}

/* ---- GPT-2 ---- */

static const char gpt2_vocab[] =
    "{\"\\u0120\": 0, \"H\": 1, \"e\": 2, \"l\": 3, \"o\": 4, \"w\": 5, \"r\": 6, \"d\": 7, \"\\u010a\": 8, \"1\": 9, "
    "\"\\u0120w\": 10, \"lo\": 11, \"He\": 12, \"llo\": 13, \"<|endoftext|>\": 14}";
static const char gpt2_merges[] = "#version: 0.2\n\xc4\xa0 w\nl o\nH e\r\nl lo\n";

static void gpt2(void **state) {
    (void)state;
    const int32_t *ids = IDS(12, 13, 10, 4, 6, 3, 7, 8, 0, 9, 9);
    put("vocab.json", gpt2_vocab);
    fails(in_folder("vocab.json"), MHLA_EIO, "merges.txt");
    put("merges.txt", gpt2_merges);
    const char *const paths[] = {"", "vocab.json", "merges.txt"};
    for (int i = 0; i < 3; i++) check(in_folder(paths[i]), "Hello world\n 11", 0, ids, "Hello world\n 11");
    check(folder, "llo<|endoftext|>", MHLA_ENCODE_SPECIAL, IDS(13, 14), "llo");
    check(folder, "o<|endoftext|>", MHLA_ENCODE_PLAIN, IDS(4, 2, 7, 4, 2), NULL);

    put("tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"eos_token\": \"<|endoftext|>\", "
                                 "\"model_max_length\": 1000000000000000019884624838656}");
    check(folder, "Hello\n 11", MHLA_ENCODE_TRUNCATE, IDS(12, 13, 8, 0, 9, 9), NULL); /* another pattern, same words */
    put("tokenizer_config.json",
        "{\"add_prefix_space\": true, \"added_tokens_decoder\": {\"20\": {\"content\": \"<x>\", "
        "\"special\": true}, \"14\": {\"content\": \"<|endoftext|>\"}, \"y\": 1}}");
    check(folder, "world<x>", 0, IDS(10, 4, 6, 3, 7, 20), " world");
    put("tokenizer_config.json", "{\"added_tokens_decoder\": {\"3\": {\"content\": \"<x>\"}}}");
    fails(folder, MHLA_EDATA, "the id 3 is given to");
    put("tokenizer_config.json", "{\"model_max_length\": 3}");
    check(folder, "Hello world", MHLA_ENCODE_TRUNCATE, IDS(12, 13, 10), "Hello w");

    /* a tokenizer.json is preferred; what is copied is found again */
    char copy[300];
    snprintf(copy, sizeof copy, "%s", in_folder("copy"));
    mkdir(copy, 0777);
    ASSERT_OK(mhla_tokenizer_copy(copy, folder));
    assert_true(exists(in_folder("copy/vocab.json")) && exists(in_folder("copy/merges.txt")));
    check(copy, "Hello world", 0, IDS(12, 13, 10, 4, 6, 3, 7), NULL);
    put("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"l\":0},\"merges\":[]}}");
    check(folder, "ll", 0, IDS(0, 0), NULL);

    remove(in_folder("tokenizer.json"));
    put("merges.txt", "#version: 0.2\nl o x\n");
    fails(folder, MHLA_EDATA, ":2: \"l o x\": expected two pieces");
    put("merges.txt", "#version: 0.2\nl z\n");
    fails(folder, MHLA_EDATA, "not in the vocabulary");
    put("merges.txt", "#version: 0.2\n");
    fails(folder, MHLA_EDATA, "no merges");
    put("merges.txt", "l o\n");
    check(folder, "lo", 0, IDS(11), NULL);
    put("vocab.json", "{\"a\": 1");
    fails(folder, MHLA_EDATA, "vocab.json:1");
}

/* ---- CLIP ---- */

static const char clip_list[] =
    "\"bpe_simple_vocab_16e6.txt#version: 0.2\nc a\nca t</w>\nt h\nth e</w>\n' s</w>\na t</w>\n";

static void check_clip(const char *path, int32_t sigma) {
    check(path, " The  CAT's\n at 12 \xc3\xa9 ", 0, IDS(515, 513, 516, 517, 272, 273, 127, 358),
          "the cat 's at 1 2 \xc3\xa9");
    check(path, "e\xcc\x81", MHLA_ENCODE_SPECIAL, IDS(518, 127, 358, 519), "\xc3\xa9");
    check(path, "", MHLA_ENCODE_SPECIAL, IDS(518, 519), "");
    check(path, "\xce\x9f\xce\x94\xce\x9f\xce\xa3 \xce\xa3", 0, IDS(138, 123, 138, 112, 138, 123, 139, sigma, 139, 481),
          NULL);
    char text[400] = "";
    int32_t ids[] = {[0] = 518, [76] = 519, [77] = -1};
    for (int i = 0; i < 90; i++) strcat(text, "a ");
    for (int i = 1; i < 76; i++) ids[i] = 320;
    check(path, text, MHLA_ENCODE_SPECIAL | MHLA_ENCODE_TRUNCATE, ids, NULL);
}

static void clip(void **state) {
    (void)state;
    put("bpe_simple_vocab_16e6.txt", clip_list);
    check_clip(folder, 480); /* Python's small letters know the end of a word */
    remove(in_folder("bpe_simple_vocab_16e6.txt"));
    gzFile packed = gzopen(in_folder("bpe_simple_vocab_16e6.txt.gz"), "wb");
    gzwrite(packed, clip_list, (unsigned)strlen(clip_list));
    gzclose(packed);
    check_clip(folder, 480);
    check_clip(in_folder("bpe_simple_vocab_16e6.txt.gz"), 480);
    size_t size;
    char *bytes = read_file(in_folder("bpe_simple_vocab_16e6.txt.gz"), &size);
    for (size_t n = 3; n < size; n++) {
        write_file(in_folder("cut.gz"), bytes, n);
        fails(in_folder("cut.gz"), MHLA_EDATA, "cut.gz");
    }
    free(bytes);

    /* the same as vocab.json and merges.txt, and as tokenizer.json with what that library makes of a word's end */
    mhla_tokenizer *t;
    ASSERT_OK(mhla_tokenizer_open(&t, folder));
    FILE *out = fopen(in_folder("vocab.json"), "w");
    for (int32_t id = 0; id < 520; id++) {
        json_t *text = json_string(mhla_tokenizer_piece(t, id));
        char *piece = json_dumps(text, JSON_ENCODE_ANY);
        json_decref(text);
        fprintf(out, "%s%s: %d", id ? ", " : "{", piece, (int)id);
        free(piece);
    }
    fprintf(out, "}\n");
    fclose(out);
    mhla_tokenizer_free(t);
    put("merges.txt", strchr(clip_list, '#'));
    check_clip(folder, 481);
}

/* ---- tiktoken ---- */

static void write_ranks(const char *name) {
    static const char *const pieces[] = {"lo",   "He",    "ll", "llo", " w",   "or", "ld",
                                         "orld", "Hello", "12", "123", "\n\n", "'s", "\xc3\xa9"};
    FILE *out = fopen(in_folder(name), "w");
    assert_non_null(out);
    for (int i = 0; i < 256 + 14; i++) {
        const char byte = (char)i;
        char *line = i < 256 ? mhla_base64(&byte, 1) : mhla_base64(pieces[i - 256], strlen(pieces[i - 256]));
        fprintf(out, "%s %d\n", line, i);
        free(line);
    }
    fclose(out);
}

static void tiktoken(void **state) {
    (void)state;
    static const char text[] = "Hello world's 12345\n\n", accents[] = "e\xcc\x81 \xc3\xa9";
    write_ranks("tokenizer.model");
    fails(folder, MHLA_ENOTSUP, "270 ranks of tiktoken");
    message_has("tiktoken", "llama3 (128000)");
    put("config.json", "{\"model_type\": \"llama\"}");
    check(folder, text, 0, IDS(264, 260, 263, 268, 32, 266, 52, 53, 267), text);
    check(folder, "He llo<|eot_id|>", MHLA_ENCODE_SPECIAL, IDS(270, 257, 32, 259, 279), "He llo");
    check(folder, accents, 0, IDS(101, 204, 129, 32, 269), accents);
    remove(in_folder("tokenizer.model"));
    write_ranks("qwen.tiktoken");
    put("config.json", "{}");
    check(folder, text, MHLA_ENCODE_SPECIAL, IDS(264, 260, 263, 268, 32, 49, 50, 51, 52, 53, 267), text);
    check(folder, accents, 0, IDS(269, 32, 269), "\xc3\xa9 \xc3\xa9"); /* NFC */
    check(folder, "<|im_end|>", 0, IDS(272), "");
    write_ranks("cl100k_base.tiktoken");
    check(in_folder("cl100k_base.tiktoken"), text, 0, IDS(264, 260, 263, 268, 32, 266, 52, 53, 267), text);
    check(in_folder("cl100k_base.tiktoken"), "12 \n ", 0, IDS(265, 32, 10, 32), NULL);

    static const struct {
        const char *text, *word;
    } wrong[] = {
        {"IQ== 0\nIg= 1\n", ":2: \"Ig= 1\""},    {"IQ== 0\nIg== x\n", ":2:"}, {"IQ== 0\nIg== 0\n", "the id 0 is given"},
        {"IQ== 0\nIQ== 1\n", "has two ids"},     {"IQ== 0\n\x01\n", ":2:"},   {"IQ== 0\nIg== 99999999\n", ":2:"},
        {"IQ== 0\nIg== 9999999999999\n", ":2:"}, {"IQ== 0\n==== 1\n", ":2:"}, {"I*== 0\n", ":1: \"I*== 0\""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put("qwen.tiktoken", wrong[i].text);
        fails(folder, MHLA_EDATA, wrong[i].word);
    }
}

/* ---- Folders, damage ---- */

static void folders(void **state) {
    (void)state;
    fails(folder, MHLA_EIO, "vocab.json with merges.txt");
    message_has("folder", "bpe_simple_vocab_16e6.txt.gz");
    fails(in_folder("none"), MHLA_EIO, "none");
}

static void damage(void **state) {
    (void)state;
    write_ranks("qwen.tiktoken");
    size_t size;
    char *ranks = read_file(in_folder("qwen.tiktoken"), &size);
    if (size > 400) size = 400;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        char *copy = new_bytes(size);
        mhla_tokenizer *t;
        memcpy(copy, ranks, size);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        if (mhla_tokenizer_parse_tiktoken(&t, copy, size, "qwen", "x") == MHLA_OK) mhla_tokenizer_free(t);
        if (mhla_tokenizer_parse_tiktoken(&t, copy, bit / 8, "llama", "x") == MHLA_OK) mhla_tokenizer_free(t);
        mhla_tiktoken_is((unsigned char *)copy, bit / 8);
        free(copy);
    }
    free(ranks);
    const size_t vocab = strlen(gpt2_vocab), list = strlen(clip_list);
    for (size_t bit = 0; bit < 8 * (vocab + list); bit++) {
        const int first = bit / 8 < vocab;
        char *pieces = new_bytes(vocab), *merges = new_bytes(list);
        mhla_tokenizer *t;
        memcpy(pieces, gpt2_vocab, vocab);
        memcpy(merges, clip_list, list);
        char *at = first ? pieces + bit / 8 : merges + bit / 8 - vocab;
        *at = (char)(*at ^ 1 << bit % 8);
        if (mhla_tokenizer_parse_merges(&t, pieces, vocab, gpt2_merges, strlen(gpt2_merges), NULL, "x") == MHLA_OK)
            mhla_tokenizer_free(t);
        if (bit % 8 == 3 && mhla_tokenizer_parse_merges(&t, NULL, 0, merges, list, NULL, "x") == MHLA_OK)
            mhla_tokenizer_free(t);
        free(pieces);
        free(merges);
    }
}

/* ---- The published list, of the wheel open-clip-torch ---- */

static void published_clip(void **state) {
    (void)state;
    char path[600];
    const char *files = getenv("MHLA_TOKENIZERS");
    golden_path(path, "generation/tokenizers/clip_bpe_cases.json");
    json_t *tree = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, "%s/bpe_simple_vocab_16e6.txt.gz", files ? files : "");
    if (tree == NULL || files == NULL || !exists(path)) {
        print_message("[   SKIP   ] no bpe_simple_vocab_16e6.txt.gz, or no goldens: set MHLA_TOKENIZERS\n");
        json_decref(tree);
        skip();
    }
    size_t i;
    const json_t *row;
    int checked = 0;
    json_array_foreach(json_object_get(tree, "cases"), i, row) {
        const json_t *list = json_object_get(row, "ids");
        int32_t ids[100] = {0};
        if (json_is_true(json_object_get(row, "ftfy_changes"))) continue; /* text that is repaired is not ours */
        for (size_t k = 0; k < json_array_size(list); k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
        ids[json_array_size(list)] = -1;
        check(path, json_string_value(json_object_get(row, "text")), MHLA_ENCODE_SPECIAL | MHLA_ENCODE_TRUNCATE, ids,
              NULL);
        checked++;
    }
    assert_true(checked > 20);
    json_decref(tree);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {IN_FOLDER(gpt2),    IN_FOLDER(clip),   IN_FOLDER(tiktoken),
                                       IN_FOLDER(folders), IN_FOLDER(damage), cmocka_unit_test(published_clip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
