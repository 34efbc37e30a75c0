/* Evaluation through a real model, beside what lm-evaluation-harness got with it: perplexities, choices, echoed
 * log-probabilities. Log-likelihoods are those of float64, ours of float32 layers. */
#include <mhla/lm.h>

#include <unistd.h>

#include "file/json.h"
#include "goldens.h"
#include "measure/evaluate_lm.h"

static const char MODEL[] = "lm/models/llama-hf";

static mhla_model *open_model(void) {
    char path[512];
    mhla_model *model;
    ASSERT_OK(mhla_model_open(&model, golden_path(path, MODEL)));
    return model;
}

static json_t *load(const char *name) {
    char path[512];
    json_t *tree = NULL;
    golden_path(path, MODEL); /* what may skip goes before what must be freed */
    ASSERT_OK(mhla_json_load(&tree, golden_path(path, name)));
    assert_true(json_array_size(tree) > 0);
    return tree;
}

static double real(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }
static int64_t integer(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static void assert_near(double got, double wanted, double relative) {
    if (!(fabs(got - wanted) <= relative * fabs(wanted))) fail_msg("got %.9g, wanted %.9g", got, wanted);
}

/* Every case alone, then the same windows however many are read at once. */
static void perplexity(void **state) {
    (void)state;
    json_t *cases = load("lm/eval/rolling.json");
    mhla_model *model = open_model();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *text = json_string_value(json_object_get(c, "text"));
        const size_t bytes = strlen(text);
        for (int batch = 0; batch < 4; batch += 3) {
            mhla_perplexity p = {.size = sizeof p};
            const mhla_perplexity_desc d = {.size = sizeof d, .window = integer(c, "max_length"), .batch = batch};
            if (bytes == 0 || json_array_size(json_object_get(c, "tokens")) == 0) {
                ASSERT_FAILS(mhla_lm_perplexity(model, &p, &text, &bytes, 1, &d, NULL, NULL), MHLA_EDATA, "no tokens");
                continue;
            }
            ASSERT_OK(mhla_lm_perplexity(model, &p, &text, &bytes, 1, &d, NULL, NULL));
            assert_int_equal(p.documents, 1);
            assert_int_equal(p.tokens, json_array_size(json_object_get(c, "tokens")));
            assert_int_equal(p.words, integer(c, "words"));
            assert_int_equal(p.bytes, integer(c, "bytes"));
            assert_near(p.loglikelihood, real(c, "loglikelihood"), 1e-5);
            assert_near(p.bits_per_byte, real(c, "bits_per_byte"), 1e-5);
            assert_near(p.byte_perplexity, real(c, "byte_perplexity"), 1e-4);
            assert_near(p.token_perplexity, real(c, "token_perplexity"), 1e-4);
            assert_near(p.word_perplexity, real(c, "word_perplexity"), 1e-3);
            double bits = 0.0;
            int64_t tokens = 0;
            for (int b = 0; b < p.buckets; b++) {
                tokens += p.bucket_tokens[b];
                if (p.bucket_tokens[b]) bits += p.bucket_bits[b] * (double)p.bucket_tokens[b];
            }
            assert_int_equal(tokens, p.tokens);
            assert_near(bits, -p.loglikelihood / log(2.0), 1e-9);
            mhla_perplexity_free(&p);
        }
    }
    mhla_model_free(model);
    json_decref(cases);
}

/* The window that most texts have been cut into. */
static int64_t common_window(const json_t *cases) {
    int64_t best = 0;
    int most = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const int64_t window = integer(json_array_get(cases, i), "max_length");
        int count = 0;
        for (size_t k = 0; k < json_array_size(cases); k++) {
            const json_t *c = json_array_get(cases, k);
            count += integer(c, "max_length") == window && json_string_length(json_object_get(c, "text")) > 0;
        }
        if (count > most || (count == most && window < best)) most = count, best = window;
    }
    return best;
}

/* Over a corpus sums are summed, not means of documents; a limit counts tokens. */
static void corpus(void **state) {
    (void)state;
    json_t *cases = load("lm/eval/rolling.json");
    mhla_model *model = open_model();
    const size_t most = json_array_size(cases);
    const char **texts = new_bytes(sizeof *texts * most);
    size_t *bytes = new_bytes(sizeof *bytes * most);
    const int64_t window = common_window(cases);
    int64_t n = 0, tokens = 0, words = 0, all = 0, first_tokens = 0;
    double sum = 0.0;
    for (size_t i = 0; i < most; i++) {
        const json_t *c = json_array_get(cases, i);
        const char *text = json_string_value(json_object_get(c, "text"));
        if (integer(c, "max_length") != window || *text == '\0') continue;
        if (n == 0) first_tokens = (int64_t)json_array_size(json_object_get(c, "tokens"));
        texts[n] = text;
        bytes[n++] = strlen(text);
        sum += real(c, "loglikelihood");
        tokens += (int64_t)json_array_size(json_object_get(c, "tokens"));
        words += integer(c, "words");
        all += integer(c, "bytes");
    }
    assert_true(n > 1);
    mhla_perplexity p = {.size = sizeof p};
    mhla_perplexity_desc d = {.size = sizeof d, .window = window, .bucket = (window + 3) / 4};
    ASSERT_OK(mhla_lm_perplexity(model, &p, texts, bytes, n, &d, NULL, NULL));
    assert_int_equal(p.documents, n);
    assert_int_equal(p.tokens, tokens);
    assert_int_equal(p.words, words);
    assert_int_equal(p.bytes, all);
    assert_near(p.loglikelihood, sum, 1e-5);
    assert_near(p.word_perplexity, exp(-sum / (double)words), 1e-3);
    assert_int_equal(p.bucket, d.bucket);
    assert_int_equal(p.buckets, (window + d.bucket - 1) / d.bucket);
    mhla_perplexity_free(&p);
    d.limit = first_tokens > 10 ? 10 : (first_tokens + 1) / 2;
    ASSERT_OK(mhla_lm_perplexity(model, &p, texts, bytes, n, &d, NULL, NULL));
    assert_int_equal(p.tokens, d.limit);
    assert_int_equal(p.documents, 1);
    assert_true(p.bytes > 0 && p.bytes <= (int64_t)bytes[0]);
    mhla_perplexity_free(&p);
    /* not all of a long text is looked at for a few tokens of it, but never a part of a character */
    char wide[600];
    for (int i = 0; i < 200; i++) memcpy(wide + 3 * i, "\xe4\xb8\xad", 3);
    const char *one = wide;
    const size_t long_one = sizeof wide;
    d = (mhla_perplexity_desc){.size = sizeof d, .window = 32, .limit = 4};
    ASSERT_OK(mhla_lm_perplexity(model, &p, &one, &long_one, 1, &d, NULL, NULL));
    assert_int_equal(p.tokens, 4);
    assert_int_equal(p.bucket, 2); /* a sixteenth of the window */
    mhla_perplexity_free(&p);
    mhla_model_free(model);
    free(texts);
    free(bytes);
    json_decref(cases);
}

static void bad_calls(void **state) {
    (void)state;
    mhla_model *model = open_model();
    const char *text = "a\xff", *good = "some text";
    const size_t two = 2, nine = 9;
    mhla_perplexity p = {.size = sizeof p};
    mhla_choices c = {.size = sizeof c};
    ASSERT_FAILS(mhla_lm_perplexity(model, &p, &text, &two, 1, NULL, NULL, NULL), MHLA_EDATA, "document 1");
    ASSERT_FAILS(mhla_lm_perplexity(model, &p, &good, &nine, 0, NULL, NULL, NULL), MHLA_EINVAL, "count");
    ASSERT_FAILS(mhla_lm_perplexity(NULL, &p, &good, &nine, 1, NULL, NULL, NULL), MHLA_EINVAL, "model is NULL");
    ASSERT_FAILS(mhla_lm_perplexity(model, &p, &good, &nine, 1,
                                    &(mhla_perplexity_desc){.size = sizeof(mhla_perplexity_desc), .window = 1}, NULL,
                                    NULL),
                 MHLA_EINVAL, "window is 1");
    ASSERT_FAILS(mhla_lm_choices(model, &c, "/nowhere/questions.jsonl", 0, NULL, NULL), MHLA_EIO, "/nowhere");
    p.size = 3;
    ASSERT_FAILS(mhla_lm_perplexity(model, &p, &good, &nine, 1, NULL, NULL, NULL), MHLA_EINVAL, "mhla_perplexity.size");
    mhla_model_free(model);
}

/* ---- Multiple choice ---- */

static void same_ids(const json_t *wanted, const mhla_ids *ids) {
    assert_int_equal(json_array_size(wanted), ids->count);
    for (int64_t i = 0; i < ids->count; i++)
        assert_int_equal(json_integer_value(json_array_get(wanted, (size_t)i)), ids->data[i]);
}

static void pairs(void **state) {
    (void)state;
    char path[512];
    mhla_tokenizer *tokenizer;
    json_t *cases = load("lm/eval/multiple_choice.json");
    ASSERT_OK(mhla_tokenizer_open(&tokenizer, golden_path(path, MODEL)));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *choices = json_object_get(c, "choices");
        for (size_t j = 0; j < json_array_size(choices); j++) {
            const json_t *x = json_array_get(choices, j);
            const char *before = json_string_value(json_object_get(c, "context"));
            char after[4096], spaced[4096];
            snprintf(after, sizeof after, "%s%s", json_string_value(json_object_get(c, "target_delimiter")),
                     json_string_value(json_object_get(x, "choice")));
            mhla_ids context = {0}, continuation = {0};
            ASSERT_OK(mhla_pair_encode(tokenizer, 1, &context, &continuation, before, after));
            same_ids(json_object_get(x, "context_ids"), &context);
            same_ids(json_object_get(x, "continuation_ids"), &continuation);
            /* white space at the end of the context belongs to what follows */
            snprintf(spaced, sizeof spaced, "%s ", before);
            context.count = continuation.count = 0;
            ASSERT_OK(mhla_pair_encode(tokenizer, 1, &context, &continuation, spaced, after + 1));
            same_ids(json_object_get(x, "context_ids"), &context);
            same_ids(json_object_get(x, "continuation_ids"), &continuation);
            mhla_ids_free(&context);
            mhla_ids_free(&continuation);
        }
    }
    mhla_ids context = {0}, continuation = {0};
    ASSERT_OK(mhla_pair_encode(tokenizer, 1, &context, &continuation, "", "a word"));
    assert_int_equal(context.count, 1);
    assert_int_equal(context.data[0], 1);
    assert_true(continuation.count >= 1);
    mhla_ids_free(&context);
    mhla_ids_free(&continuation);
    ASSERT_FAILS(mhla_pair_encode(tokenizer, 1, &context, &continuation, "a word", ""), MHLA_EDATA, "adds no token");
    mhla_ids_free(&context);
    mhla_ids_free(&continuation);
    mhla_tokenizer_free(tokenizer);
    json_decref(cases);
}

typedef struct expected {
    const json_t *cases;
    int64_t seen;
} expected;

static int most(const double *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void compare(void *user, const mhla_choice_event *e) {
    expected *x = user;
    const json_t *c = json_array_get(x->cases, (size_t)e->question % json_array_size(x->cases));
    const json_t *choices = json_object_get(c, "choices");
    assert_int_equal(e->question, x->seen++);
    assert_int_equal(e->choices, json_array_size(choices));
    for (int j = 0; j < e->choices; j++) {
        const json_t *choice = json_array_get(choices, (size_t)j);
        assert_near(e->loglikelihood[j], real(choice, "loglikelihood"), 1e-5);
        assert_near(e->normalised[j], real(choice, "norm_loglikelihood"), 1e-5);
        assert_int_equal(e->greedy[j], json_is_true(json_object_get(choice, "is_greedy")));
    }
    assert_int_equal(most(e->loglikelihood, e->choices), integer(c, "pred"));
    assert_int_equal(most(e->normalised, e->choices), integer(c, "pred_norm"));
}

/* Contexts that an ending follows: each is the only choice of a question of its own. */
typedef struct likelihoods {
    double sum[64], normalised[64];
    int count;
} likelihoods;

static void gather(void *user, const mhla_choice_event *e) {
    likelihoods *x = user;
    for (int i = 0; i < e->choices; i++, x->count++) {
        x->sum[x->count] = e->loglikelihood[i];
        x->normalised[x->count] = e->normalised[i];
    }
}

static void contexts(void **state) {
    (void)state;
    static const char *const one_by_one[] = {
        "{\"context\": \"The trophy did not fit because the trophy\", \"choices\": [\"was too large.\"]}",
        "{\"context\": \"The trophy did not fit because the box\", \"choices\": [\"was too large.\"]}",
        "{\"context\": \"A \", \"choices\": [\"word\"]}",
        "{\"context\": \"Some other beginning, much longer,\", \"choices\": [\"word\"]}",
        "{\"context\": \"B\", \"choices\": [\"word\"]}"};
    static const char *const together[] = {
        "{\"sentence\": \"The trophy did not fit because _ was too large.\", \"option1\": \"the trophy\", "
        "\"option2\": \"the box\", \"answer\": \"1\"}",
        "{\"contexts\": [\"A \", \"Some other beginning, much longer,\", \"B\"], \"ending\": \"word\", \"gold\": 2}"};
    mhla_model *model = open_model();
    char path[] = "/tmp/mhla-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    likelihoods x[2] = {{.count = 0}};
    mhla_choices result[2] = {{.size = sizeof *result}, {.size = sizeof *result}};
    for (int k = 0; k < 2; k++) {
        FILE *file = fopen(path, "w");
        for (int i = 0; i < (k ? 2 : 5); i++) fprintf(file, "%s\n", k ? together[i] : one_by_one[i]);
        fclose(file);
        ASSERT_OK(mhla_lm_choices(model, &result[k], path, 0, gather, &x[k]));
        assert_int_equal(x[k].count, 5);
    }
    for (int i = 0; i < 5; i++) assert_near(x[1].sum[i], x[0].sum[i], 1e-5);
    /* the harness divides by what the choices are: here the contexts */
    assert_near(x[1].normalised[0], x[0].sum[0] / 41.0, 1e-5);
    assert_near(x[1].normalised[4], x[0].sum[4] / 1.0, 1e-5);
    assert_int_equal(result[1].questions, 2);
    assert_int_equal(result[1].right, (most(x[1].sum, 2) == 0) + (most(x[1].sum + 2, 3) == 2));
    unlink(path);
    mhla_model_free(model);
}

/* The golden's questions as a data file, so many times that they do not fit into one group, each with the answer that the
 * harness takes for right by its sum. */
static void choices(void **state) {
    (void)state;
    enum { TIMES = 11 };
    json_t *cases = load("lm/eval/multiple_choice.json");
    mhla_model *model = open_model();
    char path[] = "/tmp/mhla-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    int64_t questions = 0, norm = 0;
    for (int times = 0; times < TIMES; times++)
        for (size_t i = 0; i < json_array_size(cases); i++, questions++) {
            const json_t *c = json_array_get(cases, i), *list = json_object_get(c, "choices");
            json_t *row = json_object(), *texts = json_array();
            json_object_set(row, "context", json_object_get(c, "context"));
            json_object_set(row, "target_delimiter", json_object_get(c, "target_delimiter"));
            for (size_t j = 0; j < json_array_size(list); j++)
                json_array_append(texts, json_object_get(json_array_get(list, j), "choice"));
            json_object_set_new(row, "choices", texts);
            json_object_set(row, "gold", json_object_get(c, "pred"));
            norm += integer(c, "pred") == integer(c, "pred_norm");
            json_dumpf(row, file, JSON_COMPACT);
            fputs(questions == 3 ? "\n\n" : "\n", file); /* an empty line is none */
            json_decref(row);
        }
    fclose(file);
    expected x = {cases, 0};
    mhla_choices result = {.size = sizeof result};
    ASSERT_OK(mhla_lm_choices(model, &result, path, 0, compare, &x));
    assert_int_equal(result.questions, questions);
    assert_int_equal(x.seen, questions);
    assert_int_equal(result.right, questions);
    assert_int_equal(result.right_norm, norm);
    x.seen = 0;
    ASSERT_OK(mhla_lm_choices(model, &result, path, 3, compare, &x));
    assert_int_equal(result.questions, 3);
    file = fopen(path, "a");
    fputs("{\"context\": \"x\", \"choices\": [\"y\"]", file);
    fclose(file);
    ASSERT_FAILS(mhla_lm_choices(model, &result, path, 0, NULL, NULL), MHLA_EDATA, path);
    unlink(path);
    mhla_model_free(model);
    json_decref(cases);
}

/* What the harness does with a question, written out: context and answer but its last token are read, of more than the model
 * reads the end. */
typedef struct question_case {
    mhla_model *model;
    const mhla_tokenizer *tokenizer;
    int64_t longest;
    const char *context;
    const char *choices[4];
    int64_t seen;
} question_case;

static void by_definition(void *user, const mhla_choice_event *e) {
    question_case *x = user;
    x->seen++;
    for (int j = 0; j < e->choices; j++) {
        char after[256];
        mhla_ids before = {0}, answer = {0};
        snprintf(after, sizeof after, " %s", x->choices[j]);
        ASSERT_OK(mhla_pair_encode(x->tokenizer, 1, &before, &answer, x->context, after));
        ASSERT_OK(mhla_ids_append(&before, answer.data, answer.count));
        const int64_t all = before.count - 1, n = all < x->longest ? all : x->longest;
        float *logprobs = new_poisoned(n);
        int32_t *best = new_bytes(sizeof *best * (size_t)n);
        mhla_sequence *sequence;
        ASSERT_OK(mhla_sequence_create(&sequence, x->model, NULL));
        const mhla_feed feed = {.size = sizeof feed,
                                .sequence = sequence,
                                .ids = before.data + all - n,
                                .count = n,
                                .targets = before.data + all - n + 1,
                                .logprobs = logprobs,
                                .best = best};
        ASSERT_OK(mhla_lm_feed(x->model, &feed, 1));
        double sum = 0.0;
        int greedy = 1;
        for (int64_t i = n - answer.count; i < n; i++) {
            sum += (double)logprobs[i];
            greedy &= best[i] == before.data[all - n + 1 + i];
        }
        assert_near(e->loglikelihood[j], sum, 1e-5);
        assert_near(e->normalised[j], sum / (double)mhla_text_characters(x->choices[j], strlen(x->choices[j])), 1e-5);
        assert_int_equal(e->greedy[j], greedy);
        mhla_sequence_free(sequence);
        mhla_ids_free(&before);
        mhla_ids_free(&answer);
        free(logprobs);
        free(best);
    }
}

static void ask(question_case *x, mhla_choices *result, int count, mhla_status wanted) {
    char path[] = "/tmp/mhla-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    json_t *row = json_pack("{s:s, s:[], s:i}", "context", x->context, "choices", "gold", 0);
    for (int j = 0; j < count; j++) json_array_append_new(json_object_get(row, "choices"), json_string(x->choices[j]));
    json_dumpf(row, file, JSON_COMPACT);
    fclose(file);
    json_decref(row);
    *result = (mhla_choices){.size = sizeof *result};
    assert_int_equal(mhla_lm_choices(x->model, result, path, 0, by_definition, x), wanted);
    unlink(path);
}

/* Contexts of about as many tokens as the model reads; answers of several tokens, with letters of several bytes. */
static void long_questions(void **state) {
    (void)state;
    mhla_lm_info info = {.size = sizeof info};
    question_case x = {.model = open_model(), .choices = {"a", "b c d", "\xc3\xa9\xc3\xa9 \xe4\xb8\xad", "a b"}};
    mhla_choices result;
    ASSERT_OK(mhla_lm_query(x.model, &info));
    x.tokenizer = mhla_lm_tokenizer(x.model);
    x.longest = info.context;
    char *text = new_bytes((size_t)(2 * x.longest + 40));
    for (int64_t words = x.longest - 16; words < x.longest + 6; words++) {
        for (int64_t i = 0; i < words; i++) memcpy(text + 2 * i, i % 3 ? "a " : "b ", 2);
        text[2 * words - 1] = '\0';
        x.context = text;
        ask(&x, &result, 4, MHLA_OK);
    }
    assert_int_equal(x.seen, 22);
    x.context = "a b";
    x.choices[1] = "a"; /* equal ones: the first counts */
    ask(&x, &result, 2, MHLA_OK);
    assert_int_equal(result.right, 1);
    for (int64_t words = x.longest; words < x.longest + 2;
         words++) { /* an answer that fits alone, and one that does not */
        mhla_ids before = {0}, answer = {0};
        for (int64_t i = 0; i < words; i++) memcpy(text + 2 * i, "a ", 2);
        text[2 * words - 1] = '\0';
        x.choices[0] = text;
        char *after = new_bytes(strlen(text) + 2);
        sprintf(after, " %s", text);
        ASSERT_OK(mhla_pair_encode(x.tokenizer, 1, &before, &answer, x.context, after));
        if (answer.count > x.longest) ask(&x, &result, 1, MHLA_ERANGE);
        free(after);
        mhla_ids_free(&before);
        mhla_ids_free(&answer);
    }
    free(text);
    mhla_model_free(x.model);
}

/* ---- What a server answers to "echo" with "logprobs" ---- */

static void echo(void **state) {
    (void)state;
    json_t *cases = load("lm/eval/completions_echo.json");
    mhla_model *model = open_model();
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *ids = json_object_get(c, "ids");
        const json_t *wanted = json_object_get(c, "token_logprobs"), *top = json_object_get(c, "top_logprobs_ids");
        const int64_t n = (int64_t)json_array_size(ids) - 1; /* the last is the one that was generated */
        assert_true(n > 0);
        int32_t *in = new_bytes(sizeof *in * (size_t)n), *targets = new_bytes(sizeof *targets * (size_t)n),
                *best = new_bytes(sizeof *best * (size_t)n);
        float *logprobs = new_poisoned(n), *logits = new_poisoned(n * info.vocabulary);
        for (int64_t t = 0; t < n; t++) {
            in[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
            targets[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t + 1));
        }
        mhla_sequence *sequence;
        ASSERT_OK(mhla_sequence_create(&sequence, model, &(mhla_sequence_desc){.size = sizeof(mhla_sequence_desc)}));
        const mhla_feed feed = {.size = sizeof feed,
                                .sequence = sequence,
                                .ids = in,
                                .count = n,
                                .all_logits = logits,
                                .targets = targets,
                                .logprobs = logprobs,
                                .best = best};
        ASSERT_OK(mhla_lm_feed(model, &feed, 1));
        for (int64_t t = 0; t < n; t++) {
            const json_t *first = json_array_get(json_array_get(top, (size_t)t + 1), 0);
            assert_near((double)logprobs[t], json_number_value(json_array_get(wanted, (size_t)t + 1)), 2e-5);
            assert_int_equal(best[t], json_integer_value(json_array_get(first, 0)));
            /* the harness calls a token greedy where its number equals the best one exactly */
            const float *row = logits + t * info.vocabulary;
            double sum = 0.0;
            for (int v = 0; v < info.vocabulary; v++) sum += exp((double)row[v] - (double)row[best[t]]);
            assert_near(-log(sum), json_number_value(json_array_get(first, 1)), 2e-5);
        }
        assert_int_equal(best[n - 1], targets[n - 1]);
        mhla_sequence_free(sequence);
        free(in), free(targets), free(best), free(logprobs), free(logits);
    }
    mhla_model_free(model);
    json_decref(cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity), cmocka_unit_test(corpus),         cmocka_unit_test(bad_calls),
        cmocka_unit_test(pairs),      cmocka_unit_test(choices),        cmocka_unit_test(echo),
        cmocka_unit_test(contexts),   cmocka_unit_test(long_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
