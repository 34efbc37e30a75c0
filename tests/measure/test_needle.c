/* Needle in a haystack: what a text is made of, and that what is counted is what the model's log-likelihoods say. */
#include <unistd.h>

#include "files.h"
#include "goldens.h"
#include "measure/needle.h"

static mhla_model *open_model(mhla_haystack *h, mhla_lm_info *info) {
    char path[512];
    mhla_model *model;
    ASSERT_OK(mhla_model_open(&model, golden_path(path, "lm/models/llama-hf")));
    *info = (mhla_lm_info){.size = sizeof *info};
    ASSERT_OK(mhla_lm_query(model, info));
    *h = (mhla_haystack){.tokenizer = mhla_lm_tokenizer(model),
                         .prefix = info->bos >= 0 ? info->bos : info->eos,
                         .vocabulary = info->vocabulary,
                         .bos = info->bos,
                         .eos = info->eos,
                         .seed = 7};
    return model;
}

static char *text_of(const mhla_haystack *h, const mhla_ids *ids, int64_t skip) {
    mhla_chars text = {0};
    ASSERT_OK(mhla_tokenizer_decode(h->tokenizer, &text, ids->data + skip, ids->count - skip, 0));
    ASSERT_OK(mhla_chars_append(&text, "", 1));
    char *copy = strdup(text.data);
    mhla_chars_free(&text);
    return copy;
}

static int64_t longest(const mhla_scoring *s) {
    int64_t most = 0;
    for (int i = 0; i < s->count; i++)
        if (s->continuations[i].ids.count > most) most = s->continuations[i].ids.count;
    return most;
}

/* As long as it may be, never longer; the needle where it should be; the right number in it once, the others nowhere. */
static void texts(void **state) {
    (void)state;
    mhla_haystack h;
    mhla_lm_info info;
    mhla_model *model = open_model(&h, &info);
    static const double depths[] = {0.0, 30.0, 100.0};
    int golds[3], before = -1;
    for (int64_t length = 120; length < 2200; length = 2 * length + 17)
        for (int i = 0; i < 3; i++) {
            mhla_scoring s;
            ASSERT_OK(mhla_needle_make(&s, &golds[i], &h, length, depths[i], 5));
            const int64_t all = s.context.count + longest(&s) - 1;
            assert_true(all <= length &&
                        all > length - 80); /* a sentence of this small vocabulary takes up to 70 tokens */
            char *text = text_of(&h, &s.context, 1), *needle = strstr(text, "The magic number");
            assert_non_null(needle);
            char *question = strstr(needle + 1, "The magic number");
            assert_non_null(question);
            assert_null(strstr(question + 1, "The magic number"));
            const size_t n = strlen(question);
            assert_memory_equal(needle, question, n); /* the question is the needle's beginning, and the text's end */
            const double at = (double)(needle - text) / (double)strlen(text);
            if (i == 0) assert_true(at < 0.01);
            if (i == 1 && length > 900) assert_true(at > 0.2 && at < 0.4);
            if (i == 2) assert_true(question - needle < 100);
            for (int v = 0; v < s.count; v++) {
                char *value = text_of(&h, &s.continuations[v].ids, 0), *digits = value + strspn(value, " ");
                assert_int_equal(strspn(digits, "0123456789"), 7);
                assert_int_equal(strstr(text, digits) != NULL, v == golds[i]);
                free(value);
            }
            if (i) assert_int_equal(golds[i], before); /* the same at every depth */
            before = golds[i];
            free(text);
            mhla_scoring_release(&s);
        }
    mhla_scoring s;
    ASSERT_FAILS(mhla_needle_make(&s, &golds[0], &h, 20, 0.0, 0), MHLA_ERANGE,
                 "length 20: the needle and its question alone");
    mhla_model_free(model);
}

static void ids(void **state) {
    (void)state;
    const mhla_haystack h = {.prefix = 1, .vocabulary = 64, .bos = 1, .eos = 2, .seed = 3};
    for (int64_t length = 6; length < 40; length += 11)
        for (int half = 0; half <= 2; half++) {
            const double depth = 50.0 * half;
            mhla_scoring s;
            int gold, found = 0;
            ASSERT_OK(mhla_needle_make(&s, &gold, &h, length, depth, 0));
            const int32_t *x = s.context.data;
            const int64_t n = s.context.count, at = 1 + llround((double)(length - 6) * depth / 100.0);
            assert_int_equal(n, length);
            assert_int_equal(x[0], 1);
            assert_memory_equal(x + at, x + n - 2, 2 * sizeof *x);
            assert_int_equal(x[at + 2], s.continuations[gold].ids.data[0]);
            for (int64_t i = 1; i < n; i++)
                for (int v = 0; v < s.count; v++) found += x[i] == s.continuations[v].ids.data[0];
            assert_int_equal(found, 1);
            for (int64_t i = 1; i < n; i++) assert_true(x[i] != 1 && x[i] != 2 && x[i] >= 0 && x[i] < 64);
            mhla_scoring_release(&s);
        }
    mhla_scoring s;
    int gold;
    ASSERT_FAILS(mhla_needle_make(&s, &gold, &h, 5, 0.0, 0), MHLA_ERANGE, "length 5");
    const mhla_haystack few = {.prefix = -1, .vocabulary = 20, .bos = -1, .eos = -1};
    ASSERT_FAILS(mhla_needle_make(&s, &gold, &few, 50, 0.0, 0), MHLA_ERANGE, "a vocabulary of 20 ids");
}

/* Log-likelihood of a continuation, token by token. */
static double by_definition(mhla_model *model, const mhla_scoring *s, int v) {
    mhla_ids all = {0};
    mhla_sequence *sequence;
    const mhla_ids *own = &s->continuations[v].ids;
    ASSERT_OK(mhla_ids_append(&all, s->context.data, s->context.count));
    ASSERT_OK(mhla_ids_append(&all, own->data, own->count));
    const int64_t n = all.count - 1;
    float *logprobs = new_poisoned(n);
    ASSERT_OK(mhla_sequence_create(&sequence, model, NULL));
    ASSERT_OK(mhla_lm_feed(model,
                           &(mhla_feed){.size = sizeof(mhla_feed),
                                        .sequence = sequence,
                                        .ids = all.data,
                                        .count = n,
                                        .targets = all.data + 1,
                                        .logprobs = logprobs},
                           1));
    double sum = 0.0;
    for (int64_t i = n - own->count; i < n; i++) sum += (double)logprobs[i];
    mhla_sequence_free(sequence);
    mhla_ids_free(&all);
    free(logprobs);
    return sum;
}

static void figures(void **state) {
    (void)state;
    enum { SAMPLES = 12 };
    mhla_haystack h;
    mhla_lm_info info;
    mhla_model *model = open_model(&h, &info);
    const int64_t lengths[] = {130, 200};
    const double depths[] = {0.0, 60.0};
    mhla_needle_desc d = {.size = sizeof d,
                          .lengths = lengths,
                          .length_count = 2,
                          .depths = depths,
                          .depth_count = 2,
                          .samples = SAMPLES,
                          .seed = 7,
                          .beyond = MHLA_BEYOND_CLAMP};
    mhla_needle_result r = {.size = sizeof r};
    ASSERT_OK(mhla_lm_needle(model, &r, &d, NULL, NULL));
    assert_int_equal(r.ids, 0);
    int64_t found = 0;
    for (int i = 0; i < 4; i++) {
        const mhla_needle_cell *c = &r.cells[i];
        int64_t right = 0;
        double share = 0.0;
        assert_int_equal(c->length, lengths[i / 2]);
        assert_true(c->depth == depths[i % 2]);
        for (int k = 0; k < SAMPLES; k++) {
            mhla_scoring s;
            int gold, best = 0;
            double x[MHLA_NEEDLE_VALUES], sum = 0.0;
            ASSERT_OK(mhla_needle_make(&s, &gold, &h, c->length, c->depth, k));
            for (int v = 0; v < MHLA_NEEDLE_VALUES; v++) {
                x[v] = by_definition(model, &s, v);
                if (x[v] > x[best]) best = v;
            }
            for (int v = 0; v < MHLA_NEEDLE_VALUES; v++) sum += exp(x[v] - x[gold]);
            right += best == gold;
            share += 1.0 / sum;
            mhla_scoring_release(&s);
        }
        assert_int_equal(c->asked, SAMPLES);
        assert_int_equal(c->right, right);
        found += right;
        assert_true(fabs(c->probability - share / SAMPLES) < 1e-4);
    }
    assert_true(found > 0); /* by chance alone: else nothing has been tested */
    /* the page has every cell, and foreign text cannot leave its place */
    ASSERT_OK(mhla_needle_page(in_folder("page.html"), &r, "a <b> model"));
    size_t size;
    char *page = read_file(in_folder("page.html"), &size);
    assert_non_null(strstr(page, "a &lt;b&gt; model"));
    int cells = 0;
    for (const char *at = page; (at = strstr(at, "<rect ")) != NULL; at++) cells++;
    assert_int_equal(cells, 4);
    assert_non_null(strstr(page, "200 tokens, depth 60 %"));
    free(page);
    mhla_needle_free(&r);
    mhla_needle_free(&r);
    d.depths = (const double[]){0.0, 101.0};
    ASSERT_FAILS(mhla_lm_needle(model, &r, &d, NULL, NULL), MHLA_EINVAL, "a depth of 101 percent");
    d.depths = depths;
    d.lengths = (const int64_t[]){10, 1 << 20};
    d.beyond = MHLA_BEYOND_ERROR;
    if (info.context)
        ASSERT_FAILS(mhla_lm_needle(model, &r, &d, NULL, NULL), MHLA_ERANGE, "a length of 1048576 tokens");
    mhla_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(ids),
        cmocka_unit_test_setup_teardown(figures, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
