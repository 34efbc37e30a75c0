/* Training a tokenizer beside its definition: all pairs are counted anew for each merge. */
#include "file/json.h"
#include "files.h"
#include "text/tokenizer.h"

enum { WORDS = 4000, LENGTH = 40, VOCABULARY = 340, SPECIALS = 2, FIRST = SPECIALS + 256 };

static const char *const specials[SPECIALS] = {"<a>", "<a>b"};

typedef struct corpus {
    int32_t words[WORDS][LENGTH];
    int length[WORDS], count;
    char pieces[VOCABULARY][160]; /* as the file spells them */
    int piece_count;
} corpus;

/* Few letters, so that many pairs are equally frequent, runs of one letter, special tokens that begin alike. */
static char *draw_text(rng *r, size_t *bytes) {
    static const char *const parts[] = {"a", "b", "c", "aa", "ab", " ", " ", " ab", "\xc3\xa9", "<a>", "<a>b", "aaaa"};
    char *text = new_bytes(5000);
    *bytes = 0;
    for (int i = 0; i < 1200; i++) {
        const char *part = RNG_PICK(r, parts);
        memcpy(text + *bytes, part, strlen(part));
        *bytes += strlen(part);
        if (i % 20 == 19) text[(*bytes)++] = '\n';
    }
    return text;
}

static void read_words(corpus *c, const char *text, size_t bytes, const int32_t *byte_id) {
    const mhla_pattern pattern = {.kind = MHLA_PATTERN_GPT2};
    c->count = 0;
    for (size_t at = 0; at < bytes;) { /* the earliest special token, the longest of those */
        size_t part = at, skip = 0;
        for (; part < bytes && skip == 0; part += skip == 0)
            for (int i = 0; i < SPECIALS; i++) {
                const size_t n = strlen(specials[i]);
                if (n > skip && bytes - part >= n && memcmp(text + part, specials[i], n) == 0) skip = n;
            }
        for (size_t end; at < part; at = end) {
            end = at + mhla_pattern_end(&pattern, text + at, part - at, 0);
            assert_true(end - at <= LENGTH && c->count < WORDS);
            c->length[c->count] = (int)(end - at);
            for (size_t i = at; i < end; i++) c->words[c->count][i - at] = byte_id[(unsigned char)text[i]];
            c->count++;
        }
        at = part + skip;
    }
}

/* The most frequent pair, of equals that with the lower ids. */
static int64_t best_pair(const corpus *c, int *left, int *right) {
    static int64_t counts[VOCABULARY][VOCABULARY];
    memset(counts, 0, sizeof counts);
    for (int w = 0; w < c->count; w++)
        for (int i = 0; i + 1 < c->length[w]; i++) counts[c->words[w][i]][c->words[w][i + 1]]++;
    int64_t best = 0;
    for (int a = 0; a < VOCABULARY; a++)
        for (int b = 0; b < VOCABULARY; b++)
            if (counts[a][b] > best) best = counts[a][b], *left = a, *right = b;
    return best;
}

static int piece_of(corpus *c, int left, int right) {
    char piece[320];
    snprintf(piece, sizeof piece, "%s%s", c->pieces[left], c->pieces[right]);
    for (int i = 0; i < c->piece_count; i++)
        if (strcmp(c->pieces[i], piece) == 0) return i;
    assert_true(strlen(piece) < sizeof *c->pieces);
    memcpy(c->pieces[c->piece_count], piece, strlen(piece) + 1);
    return c->piece_count++;
}

static void merge_everywhere(corpus *c, int left, int right, int id) {
    for (int w = 0; w < c->count; w++) {
        int n = 0;
        for (int i = 0; i < c->length[w]; n++) {
            const int both = i + 1 < c->length[w] && c->words[w][i] == left && c->words[w][i + 1] == right;
            c->words[w][n] = both ? id : c->words[w][i];
            i += 1 + both;
        }
        c->length[w] = n;
    }
}

static void by_definition(void **state) {
    (void)state;
    corpus *c = new_bytes(sizeof *c);
    for (int seed = 1; seed <= 6; seed++) {
        rng r = {(uint64_t)seed};
        size_t bytes;
        char *text = draw_text(&r, &bytes);
        const char *const files[] = {in_folder("text.txt")};
        char out[1024];
        snprintf(out, sizeof out, "%s", in_folder("tokenizer.json"));
        write_file(files[0], text, bytes);
        const int vocabulary = seed % 2 ? VOCABULARY : FIRST + 20, min_count = seed % 3 ? 5 * seed : 1;
        const mhla_tokenizer_training how = {.size = sizeof how,
                                             .vocabulary = vocabulary,
                                             .min_count = min_count,
                                             .special = specials,
                                             .specials = SPECIALS};
        ASSERT_OK(mhla_tokenizer_train(out, files, 1, &how, NULL, NULL));
        json_t *tree;
        ASSERT_OK(mhla_json_load(&tree, out));
        const json_t *model = json_object_get(tree, "model"), *merges = json_object_get(model, "merges"), *id;
        const char *piece;
        int32_t byte_id[256] = {0};
        int first = 0;
        json_object_foreach(json_object_get(model, "vocab"), piece, id) { /* bytes: what training begins with */
            char byte;
            size_t n;
            const int at = (int)json_integer_value(id);
            if (at >= FIRST) continue;
            snprintf(c->pieces[at], sizeof *c->pieces, "%s", piece);
            first++;
            if (at < SPECIALS)
                assert_string_equal(piece, specials[at]);
            else if (mhla_byte_level_bytes(piece, strlen(piece), &byte, &n))
                byte_id[(unsigned char)byte] = at;
        }
        assert_int_equal(first, FIRST);
        c->piece_count = FIRST;
        read_words(c, text, bytes, byte_id);
        size_t made = 0;
        for (int left, right; c->piece_count < vocabulary; made++) {
            if (best_pair(c, &left, &right) < min_count) break;
            const json_t *pair = json_array_get(merges, made);
            if (pair == NULL) fail_msg("seed %d: %zu merges, more were wanted", seed, made);
            assert_string_equal(json_string_value(json_array_get(pair, 0)), c->pieces[left]);
            assert_string_equal(json_string_value(json_array_get(pair, 1)), c->pieces[right]);
            merge_everywhere(c, left, right, piece_of(c, left, right));
        }
        assert_int_equal(json_array_size(merges), made);
        assert_true(made >= 5);
        json_decref(tree);
        free(text);
    }
    free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(by_definition, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
