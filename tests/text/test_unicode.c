/* One version of Unicode on every path, 16.0, whatever PCRE2 and utf8proc know: what the reference libraries say of characters
 * that are newer than Debian's libraries, and of those that are newer than the reference libraries. */
#include <utf8proc.h>

#include "core/memory.h"
#include "files.h"
#include "text/tokenizer.h"

static size_t put_code(char *to, uint32_t code) { return (size_t)mhla_utf8_put((unsigned char *)to, code); }

/* ---- Through a tokenizer that keeps what its pattern matches ---- */

static const char tokenizer_json[] =
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Removed\",\"invert\":true},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\u0120\":0},\"merges\":[]}}";

static void in_tokenizers(void **state) {
    (void)state;
    static const char letters[] = " ?\\\\p{L}+", symbols[] = " ?[\\\\p{P}\\\\p{S}]+", numbers[] = " ?\\\\p{N}+",
                      marks[] = " ?[\\\\p{Mn}\\\\p{Mc}]+", others[] = " ?[^\\\\s\\\\p{L}\\\\p{N}]+",
                      upper[] = " ?[\\\\p{Lu}\\\\p{Lt}]+", gpt2[] = " ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]",
                      here[] = " ?[\\\\x{1c90}-\\\\x{1cba}]|\\\\p{Ll}",
                      here_too[] = " ?[\\\\u1c89-\\\\u1cba]|\\\\p{Ll}";
    static const struct {
        const char *expression;
        uint32_t code;
        int matches;
    } rows[] = {
        {symbols, 0x1fae0, 1}, {symbols, 0x1fae8, 1}, {symbols, 0x1fae9, 1}, {symbols, 0x1faea, 0},
        {symbols, 0x2427, 1},  {symbols, 0x2e5d, 1},  {symbols, 0x2e60, 0},  {letters, 0x2ebf0, 1},
        {letters, 0x31350, 1}, {letters, 0x323b0, 0}, {letters, 0x105c0, 1}, {letters, 0x1c89, 1},
        {letters, 0x11db0, 0}, {numbers, 0x116d0, 1}, {numbers, 0x11de0, 0}, {numbers, 0x1d2c0, 1},
        {marks, 0x113ce, 1},   {marks, 0x1171e, 1},   {marks, 0x1acf, 0},    {others, 0x105c0, 0},
        {others, 0x11de0, 1},  {upper, 0x1c89, 1},    {upper, 0x1c8a, 0},    {upper, 0x10d50, 1},
        {upper, 0x10d70, 0},   {gpt2, 0x11de0, 1},    {here, 0x1c89, 0},     {here, 0x1c90, 1},
        {here_too, 0x1c89, 1}, {here_too, 0x1c88, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[1024], text[8] = " ";
        snprintf(json, sizeof json, tokenizer_json, rows[i].expression);
        mhla_tokenizer *t;
        mhla_ids ids = {0};
        ASSERT_OK(mhla_tokenizer_parse_json(&t, json, strlen(json), "test"));
        ASSERT_OK(mhla_tokenizer_encode(t, &ids, text, 1 + put_code(text + 1, rows[i].code), 0));
        if ((ids.count > 0) != rows[i].matches)
            fail_msg("%s %s U+%04X", rows[i].expression, rows[i].matches ? "misses" : "takes", (unsigned)rows[i].code);
        mhla_ids_free(&ids);
        mhla_tokenizer_free(t);
    }
}

/* ---- PCRE2, given what stands in, and we say the same of every character ---- */

static void categories(void **state) {
    (void)state;
    static const struct {
        const char *expression;
        const char *categories; /* of utf8proc_category_string, by their beginnings */
    } rows[] = {{"\\p{L}", "L"},   {"\\p{M}", "M"},   {"\\p{N}", "N"},   {"\\p{P}", "P"},   {"\\p{S}", "S"},
                {"\\p{Z}", "Z"},   {"\\p{Cn}", "Cn"}, {"\\p{Lu}", "Lu"}, {"\\p{Ll}", "Ll"}, {"\\p{Lm}", "Lm"},
                {"\\p{Lo}", "Lo"}, {"\\p{Nd}", "Nd"}, {"\\d", "Nd"},     {"\\p{Mn}", "Mn"}, {"\\p{Cf}", "Cf"}};
    enum { RUN = 0x1000 };
    char *text = new_bytes(4 * RUN);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mhla_pattern p;
        mhla_matcher m = {0};
        ASSERT_OK(mhla_pattern_regex(&p, rows[i].expression, strlen(rows[i].expression), 0, "test"));
        for (uint32_t from = 0; from < 0x110000; from += RUN) {
            if (from >= 0xd000 && from < 0xf000) continue; /* surrogates, private use */
            size_t bytes = 0, start, end, at = 0;
            for (uint32_t c = from; c < from + RUN; c++) bytes += put_code(text + bytes, c);
            char *copy;
            ASSERT_OK(mhla_pattern_subject(&p, &copy, text, bytes));
            const char *subject = copy ? copy : text;
            ASSERT_OK(mhla_pattern_next(&p, &m, subject, bytes, 0, &start, &end));
            for (uint32_t c = from; c < from + RUN; c++) {
                const char *name = utf8proc_category_string((utf8proc_int32_t)c);
                const mhla_char_range *change = mhla_char_find(mhla_char_changes, mhla_char_change_count, c);
                static const char *const names[] = {
                    [UTF8PROC_CATEGORY_CN] = "Cn", [UTF8PROC_CATEGORY_LU] = "Lu", [UTF8PROC_CATEGORY_LL] = "Ll",
                    [UTF8PROC_CATEGORY_LM] = "Lm", [UTF8PROC_CATEGORY_LO] = "Lo", [UTF8PROC_CATEGORY_MN] = "Mn",
                    [UTF8PROC_CATEGORY_MC] = "Mc", [UTF8PROC_CATEGORY_ND] = "Nd", [UTF8PROC_CATEGORY_NO] = "No",
                    [UTF8PROC_CATEGORY_PD] = "Pd", [UTF8PROC_CATEGORY_PO] = "Po", [UTF8PROC_CATEGORY_SM] = "Sm",
                    [UTF8PROC_CATEGORY_SO] = "So", [UTF8PROC_CATEGORY_CF] = "Cf"};
                if (change) name = names[change->value];
                const int wanted = strncmp(name, rows[i].categories, strlen(rows[i].categories)) == 0;
                const int found = end > 0 && start == at;
                if (wanted != found) fail_msg("%s, U+%04X is %s", rows[i].expression, (unsigned)c, name);
                size_t n;
                mhla_char_read(text + at, &n);
                at += n;
                if (found) ASSERT_OK(mhla_pattern_next(&p, &m, subject, bytes, at, &start, &end));
            }
            mhla_free(copy);
        }
        mhla_pattern_free(&p);
        mhla_matcher_free(&m);
    }
    free(text);
}

static void tables(void **state) {
    (void)state;
    for (size_t i = 1; i < mhla_char_change_count; i++) {
        const mhla_char_range *a = &mhla_char_changes[i - 1], *b = &mhla_char_changes[i];
        if (a->last >= b->first || b->last < b->first) fail_msg("U+%04X is out of order", (unsigned)b->first);
    }
    /* letters, numbers and words of the reference's regular expressions */
    static const struct {
        uint32_t code;
        unsigned classes;
    } rows[] = {{0x105c0, MHLA_CHAR_LETTER | MHLA_CHAR_WORD},
                {0x116d0, MHLA_CHAR_NUMBER | MHLA_CHAR_WORD},
                {0x11de0, 0},
                {0x16ff4, 0},
                {0x1acf, 0},
                {0x113ce, MHLA_CHAR_WORD},
                {0x113d4, 0}, /* punctuation, but not of Unicode 8 */
                {0x10d6e, 0},
                {0x2e43, 0},
                {0x2e42, MHLA_CHAR_PUNCTUATION},
                {0x166d, MHLA_CHAR_PUNCTUATION}, /* was punctuation then */
                {0x111c9, MHLA_CHAR_WORD | MHLA_CHAR_PUNCTUATION},
                {0x1fae8, 0},
                {0x558, 0},
                {0x295, MHLA_CHAR_LETTER | MHLA_CHAR_WORD}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (mhla_char_class(rows[i].code) != rows[i].classes)
            fail_msg("U+%04X is of the classes %#x", (unsigned)rows[i].code, mhla_char_class(rows[i].code));
}

/* ---- Normal forms: those of Unicode 9, which the reference library has ---- */

static void normal_forms(void **state) {
    (void)state;
    static const struct {
        int compose, compatible;
        uint32_t text[6], wanted[6];
    } rows[] = {
        {1, 0, {'a', 0x301}, {0xe1}},
        {1, 0, {'a', 0x7fd, 0x301}, {'a', 0x7fd, 0x301}}, /* nothing is joined across what was no mark */
        {1, 0, {'a', 0x1acf, 0x323, 0x301}, {'a', 0x1acf, 0x323, 0x301}},
        {1, 0, {'a', 0x323, 0x1abf, 0x301, 'e', 0x301}, {0x1ea1, 0x1abf, 0x301, 0xe9}},
        {0, 0, {'a', 0x301, 0x7fd, 0x323}, {'a', 0x301, 0x7fd, 0x323}},
        {1, 0, {0x105d2, 0x307}, {0x105d2, 0x307}}, /* one character since Unicode 16 */
        {0, 0, {0x105c9}, {0x105c9}},
        {1, 0, {0x1611e, 0x1611e}, {0x1611e, 0x1611e}},
        {0, 1, {0x1ccd6, 0x1ccf0}, {0x1ccd6, 0x1ccf0}},
        {1, 1, {0xa7f1, 0xff21}, {0xa7f1, 'A'}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mhla_normalizer how = {
            .kind = MHLA_NORMALIZE_FORM, .compose = rows[i].compose, .compatible = rows[i].compatible};
        char text[32], wanted[32];
        size_t bytes = 0, size = 0;
        for (int k = 0; k < 6 && rows[i].text[k]; k++) bytes += put_code(text + bytes, rows[i].text[k]);
        for (int k = 0; k < 6 && rows[i].wanted[k]; k++) size += put_code(wanted + size, rows[i].wanted[k]);
        mhla_chars got = {0};
        int same;
        ASSERT_OK(mhla_normalize(&how, NULL, &got, text, bytes, &same));
        if (same) ASSERT_OK(mhla_chars_append(&got, text, bytes));
        if (got.count != size || memcmp(got.data, wanted, size) != 0) fail_msg("row %zu: %zu bytes", i, got.count);
        mhla_chars_free(&got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_tokenizers), cmocka_unit_test(categories),
                                       cmocka_unit_test(tables), cmocka_unit_test(normal_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
