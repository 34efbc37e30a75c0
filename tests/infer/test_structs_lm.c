/* Every call of lm.h that takes or fills a struct with a size, and what callbacks are told: see structs.h. */
#include "structs.h"

#include <mhla/lm.h>

#include "files.h"

enum { VOCABULARY = 300 };

static mhla_context *context;
static mhla_model *model;
static const mhla_tokenizer *tokenizer;
static mhla_sequence *sequences[2];
static mhla_generation *generation;
static float logits[VOCABULARY];
static const int32_t ids[] = {40, 41, 42, 43};
static const char text[] = "It was the best of times, it was the worst of times, it was the age of wisdom.\n";

static const char *const special[] = {"<|endoftext|>"};
static const mhla_tokenizer_training training = {
    .size = sizeof training, .vocabulary = VOCABULARY, .special = special, .specials = 1};
static const char *text_file(void) { return in_folder("text.txt"); }

/* ---- Tokenizers and shards ---- */

static mhla_status mhla_tokenizer_query__mhla_tokenizer_info(void *given) {
    return mhla_tokenizer_query(tokenizer, given);
}
static mhla_status mhla_tokenizer_train__mhla_tokenizer_training(void *given) {
    const char *files[] = {text_file()};
    return mhla_tokenizer_train(in_folder("tokenizer.json"), files, 1, given, NULL, NULL);
}
static mhla_status mhla_shard_make__mhla_shard_info(void *given) {
    const char *files[] = {text_file()};
    unlink(in_folder("made.shard"));
    const mhla_status status = mhla_shard_make(in_folder("made.shard"), in_folder("model/tokenizer.json"), files, 1,
                                               context, given, NULL, NULL);
    assert_int_equal(exists(in_folder("made.shard")), status == MHLA_OK);
    return status;
}
static mhla_status mhla_shard_query__mhla_shard_info(void *given) {
    return mhla_shard_query(in_folder("text.shard"), given);
}

/* ---- Models ---- */

static mhla_status mhla_model_open_as__mhla_open_desc(void *given) {
    mhla_model *m = NULL;
    const mhla_status status = mhla_model_open_as(&m, in_folder("model"), given);
    mhla_model_free(m);
    return status;
}
static mhla_status mhla_lm_query__mhla_lm_info(void *given) { return mhla_lm_query(model, given); }
static mhla_status convert(const mhla_convert_desc *desc, mhla_convert_result *result) {
    const char *out = in_folder("out.gguf");
    const mhla_status status = mhla_lm_convert(out, in_folder("model"), desc, result);
    assert_int_equal(exists(out), status == MHLA_OK);
    unlink(out);
    return status;
}
static mhla_status mhla_lm_convert__mhla_convert_desc(void *given) { return convert(given, NULL); }
static mhla_status mhla_lm_convert__mhla_convert_result(void *given) { return convert(NULL, given); }

/* ---- Sequences ---- */

static mhla_status mhla_sequence_create__mhla_sequence_desc(void *given) {
    mhla_sequence *s = NULL;
    const mhla_status status = mhla_sequence_create(&s, model, given);
    mhla_sequence_free(s);
    return status;
}
static mhla_status mhla_sequence_query__mhla_sequence_desc(void *given) {
    return mhla_sequence_query(sequences[0], given);
}
static mhla_status mhla_lm_feed__mhla_feed(void *given) {
    const mhla_status status = mhla_lm_feed(model, given, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mhla_sequence_tokens(sequences[i]), status == MHLA_OK ? 4 - i : 0);
        ASSERT_OK(mhla_sequence_rollback(sequences[i], 0));
    }
    return status;
}

/* ---- Sampling and generation ---- */

static mhla_status mhla_sample_candidates__mhla_sampling(void *given) {
    static mhla_candidate candidates[VOCABULARY];
    int count;
    return mhla_sample_candidates(given, logits, VOCABULARY, ids, 4, candidates, &count);
}
static mhla_status mhla_sample__mhla_sampling(void *given) {
    int32_t id;
    return mhla_sample(given, logits, VOCABULARY, ids, 4, 1, &id);
}
static mhla_status mhla_generation_create__mhla_generation_desc(void *given) {
    mhla_generation *g = NULL;
    const mhla_status status = mhla_generation_create(&g, sequences[0], ids, 4, given);
    mhla_generation_free(g);
    return status;
}
/* One that a description points to. */
static mhla_status mhla_generation_create__mhla_sampling(void *given) {
    const mhla_generation_desc desc = {.size = sizeof desc, .sampling = given};
    return mhla_generation_create__mhla_generation_desc((void *)(uintptr_t)&desc);
}
static mhla_status mhla_generation_piece__mhla_piece(void *given) { return mhla_generation_piece(generation, given); }

/* ---- Evaluation ---- */

static mhla_status perplexity(mhla_perplexity *result, const mhla_perplexity_desc *desc) {
    const char *documents[] = {text};
    const size_t bytes[] = {sizeof text - 1};
    return mhla_lm_perplexity(model, result, documents, bytes, 1, desc, NULL, NULL);
}
static mhla_status mhla_lm_perplexity__mhla_perplexity(void *given) { return perplexity(given, NULL); }
static mhla_status mhla_lm_perplexity__mhla_perplexity_desc(void *given) {
    mhla_perplexity result = {.size = sizeof result};
    const mhla_status status = perplexity(&result, given);
    mhla_perplexity_free(&result);
    return status;
}
static mhla_status mhla_perplexity_free__mhla_perplexity(void *given) {
    mhla_perplexity_free(given);
    return MHLA_OK;
}
static void free_perplexity(void *given) { mhla_perplexity_free(given); }

/* ---- Text encoders ---- */

static const char *const prompts[] = {"the age", "It was"};
static mhla_status mhla_text_encode__mhla_text_rows(void *given) {
    return mhla_text_encode(model, given, prompts, 2, NULL);
}
static mhla_status mhla_text_encode__mhla_encoder_desc(void *given) {
    mhla_text_rows rows = {.size = sizeof rows};
    const mhla_status status = mhla_text_encode(model, &rows, prompts, 2, given);
    mhla_text_rows_free(&rows);
    return status;
}
static mhla_status mhla_text_rows_free__mhla_text_rows(void *given) {
    mhla_text_rows_free(given);
    return MHLA_OK;
}
static void free_rows(void *given) { mhla_text_rows_free(given); }
static mhla_status mhla_text_encoder_query__mhla_text_encoder_info(void *given) {
    return mhla_text_encoder_query(model, given);
}

/* ---- Evaluation: questions ---- */

static int questions;
static void answer(void *user, const mhla_choice_event *e) {
    (void)user;
    IS_TOLD(mhla_choice_fn, mhla_choice_event, e);
    questions++;
}
static mhla_status mhla_lm_choices__mhla_choices(void *given) {
    return mhla_lm_choices(model, given, in_folder("questions.jsonl"), 0, answer, NULL);
}

static mhla_status mhla_task_query__mhla_task_info(void *given) { return mhla_task_query("piqa", given); }
static mhla_status mhla_lm_task__mhla_choices(void *given) {
    const char *paths[] = {in_folder("words.jsonl")};
    return mhla_lm_task(model, given, "lambada_openai", paths, 1, 0, answer, NULL);
}
static mhla_status pages(mhla_perplexity *result, const mhla_perplexity_desc *desc) {
    const char *paths[] = {in_folder("pages.jsonl")};
    return mhla_lm_task_pages(model, result, "wikitext", paths, 1, desc, NULL, NULL);
}
static mhla_status mhla_lm_task_pages__mhla_perplexity(void *given) { return pages(given, NULL); }
static mhla_status mhla_lm_task_pages__mhla_perplexity_desc(void *given) {
    mhla_perplexity result = {.size = sizeof result};
    const mhla_status status = pages(&result, given);
    mhla_perplexity_free(&result);
    return status;
}

static int answers;
static void score(void *user, const mhla_longbench_event *e) {
    (void)user;
    IS_TOLD(mhla_longbench_fn, mhla_longbench_event, e);
    answers++;
}
static mhla_status mhla_lm_longbench__mhla_longbench_result(void *given) {
    return mhla_lm_longbench(model, given, in_folder(""), NULL, score, NULL);
}
static mhla_status mhla_lm_longbench__mhla_longbench_desc(void *given) {
    mhla_longbench_result result = {.size = sizeof result};
    return mhla_lm_longbench(model, &result, in_folder(""), given, score, NULL);
}

static const int64_t needle_lengths[] = {250};
static const double needle_depths[] = {50.0};
static const mhla_needle_desc needle_desc = {.size = sizeof needle_desc,
                                             .lengths = needle_lengths,
                                             .length_count = 1,
                                             .depths = needle_depths,
                                             .depth_count = 1,
                                             .samples = 1};
static mhla_status mhla_lm_needle__mhla_needle_result(void *given) {
    return mhla_lm_needle(model, given, &needle_desc, NULL, NULL);
}
static mhla_status mhla_lm_needle__mhla_needle_desc(void *given) {
    mhla_needle_result result = {.size = sizeof result};
    const mhla_status status = given ? mhla_lm_needle(model, &result, given, NULL, NULL) : MHLA_OK;
    mhla_needle_free(&result);
    return status;
}
static mhla_status mhla_needle_free__mhla_needle_result(void *given) {
    mhla_needle_free(given);
    return MHLA_OK;
}
static void free_needle(void *given) { mhla_needle_free(given); }
static mhla_status mhla_needle_page__mhla_needle_result(void *given) {
    return mhla_needle_page(in_folder("page.html"), given, "model");
}

static int steps;
static void recall(void *user, const mhla_mqar_event *e) {
    (void)user;
    IS_TOLD(mhla_mqar_fn, mhla_mqar_event, e);
    steps++;
}
static const mhla_mqar_desc mqar_desc = {.size = sizeof mqar_desc,
                                         .vocabulary = 520,
                                         .width = 8,
                                         .layers = 1,
                                         .heads = 1,
                                         .chunk = 64,
                                         .steps = 1,
                                         .tokens = 64,
                                         .rate = 0.005,
                                         .tests = 1},
                            mqar_wrong = {.size = sizeof mqar_wrong, .attention = "none"};
static mhla_status mhla_mqar_run__mhla_mqar_desc(void *given) {
    mhla_mqar_result result = {.size = sizeof result};
    return given ? mhla_mqar_run(&result, given, recall, NULL) : MHLA_OK; /* NULL: minutes of training */
}
static mhla_status mhla_mqar_run__mhla_mqar_result(void *given) {
    mhla_mqar_desc desc = mqar_desc;
    desc.context = context;
    return mhla_mqar_run(given, &desc, recall, NULL);
}

static void texts(void **state) {
    (void)state;
    static const mhla_open_desc open_desc = {.size = sizeof open_desc, .storage = "bfloat16"};
    static const mhla_convert_desc convert_desc = {.size = sizeof convert_desc, .dtype = "float16"};
    const struct_case rows[] = {
        FILLS(mhla_tokenizer_query, mhla_tokenizer_info),
        TAKES(mhla_tokenizer_train, mhla_tokenizer_training, .value = &training, .optional = 1),
        FILLS(mhla_shard_make, mhla_shard_info, .compared = offsetof(mhla_shard_info, seconds), .optional = 1),
        FILLS(mhla_shard_query, mhla_shard_info),
        TAKES(mhla_model_open_as, mhla_open_desc, .value = &open_desc, .optional = 1),
        FILLS(mhla_lm_query, mhla_lm_info),
        TAKES(mhla_lm_convert, mhla_convert_desc, .value = &convert_desc, .optional = 1),
        FILLS(mhla_lm_convert, mhla_convert_result, .optional = 1),
    };
    STRUCTS_TRY(rows);
}

static void sequences_and_samples(void **state) {
    (void)state;
    static const mhla_sequence_desc sequence_desc = {
        .size = sizeof sequence_desc, .beyond = MHLA_BEYOND_CHUNK, .max_tokens = 64};
    const mhla_feed feeds[] = {
        {.size = sizeof *feeds, .sequence = sequences[0], .ids = ids, .count = 4, .logits = logits},
        {.size = sizeof *feeds, .sequence = sequences[1], .ids = ids, .count = 3}};
    static const mhla_sampling sampling = {.size = sizeof sampling, .temperature = 1.5, .top_k = 20, .seed = 3};
    static const mhla_generation_desc generation_desc = {
        .size = sizeof generation_desc, .sampling = &sampling, .max_tokens = 4, .logprobs = 2};
    const struct_case rows[] = {
        TAKES(mhla_sequence_create, mhla_sequence_desc, .value = &sequence_desc, .optional = 1),
        FILLS(mhla_sequence_query, mhla_sequence_desc),
        TAKES(mhla_lm_feed, mhla_feed, .value = feeds, .count = 2),
        TAKES(mhla_sample_candidates, mhla_sampling, .value = &sampling),
        TAKES(mhla_sample, mhla_sampling, .value = &sampling),
        TAKES(mhla_generation_create, mhla_generation_desc, .value = &generation_desc),
        TAKES(mhla_generation_create, mhla_sampling, .value = &sampling, .optional = 1),
        FILLS(mhla_generation_piece, mhla_piece),
    };
    STRUCTS_TRY(rows);
}

static void encoders(void **state) {
    (void)state;
    static const mhla_encoder_desc desc = {.size = sizeof desc, .longest = 2};
    static const mhla_text_rows none = {.size = sizeof none};
    const size_t owned = MHLA_UP_TO(mhla_text_rows, cut);
    const struct_case rows[] = {
        FILLS(mhla_text_encode, mhla_text_rows, .least = owned, .compared = offsetof(mhla_text_rows, rows),
              .release = free_rows),
        TAKES(mhla_text_encode, mhla_encoder_desc, .value = &desc, .optional = 1),
        FREES(mhla_text_rows_free, mhla_text_rows, .value = &none, .least = owned),
        FILLS(mhla_text_encoder_query, mhla_text_encoder_info),
    };
    STRUCTS_TRY(rows);
}

static void evaluations(void **state) {
    (void)state;
    static const mhla_perplexity empty = {.size = sizeof empty};
    static const mhla_perplexity_desc perplexity_desc = {.size = sizeof perplexity_desc, .window = 8, .bucket = 2};
    static const mhla_longbench_desc longbench_desc = {.size = sizeof longbench_desc, .limit = 1};
    static const mhla_needle_result no_needle = {.size = sizeof no_needle};
    static mhla_needle_cell cell = {.length = 8, .asked = 1};
    const mhla_needle_result needle_result = {
        .size = sizeof needle_result, .cells = &cell, .length_count = 1, .depth_count = 1};
    const size_t owned = MHLA_UP_TO(mhla_perplexity, bucket_tokens), cells = MHLA_UP_TO(mhla_needle_result, cells);
    const struct_case rows[] = {
        FILLS(mhla_lm_perplexity, mhla_perplexity, .least = owned, .compared = offsetof(mhla_perplexity, bucket_bits),
              .release = free_perplexity),
        FREES(mhla_perplexity_free, mhla_perplexity, .value = &empty, .least = owned),
        TAKES(mhla_lm_perplexity, mhla_perplexity_desc, .value = &perplexity_desc, .optional = 1),
        FILLS(mhla_lm_choices, mhla_choices, .compared = offsetof(mhla_choices, seconds)),
        FILLS(mhla_task_query, mhla_task_info),
        FILLS(mhla_lm_task, mhla_choices, .compared = offsetof(mhla_choices, seconds)),
        FILLS(mhla_lm_task_pages, mhla_perplexity, .least = owned, .compared = offsetof(mhla_perplexity, bucket_bits),
              .release = free_perplexity),
        TAKES(mhla_lm_task_pages, mhla_perplexity_desc, .value = &perplexity_desc, .optional = 1),
        FILLS(mhla_lm_longbench, mhla_longbench_result, .compared = offsetof(mhla_longbench_result, seconds)),
        TAKES(mhla_lm_longbench, mhla_longbench_desc, .value = &longbench_desc, .optional = 1),
        FILLS(mhla_lm_needle, mhla_needle_result, .least = cells, .compared = offsetof(mhla_needle_result, cells),
              .release = free_needle),
        TAKES(mhla_lm_needle, mhla_needle_desc, .value = &needle_desc, .optional = 1,
              .fewest = MHLA_UP_TO(mhla_needle_desc, samples)),
        FREES(mhla_needle_free, mhla_needle_result, .value = &no_needle, .least = cells),
        TAKES(mhla_needle_page, mhla_needle_result, .value = &needle_result,
              .fewest = MHLA_UP_TO(mhla_needle_result, depth_count)),
        TAKES(mhla_mqar_run, mhla_mqar_desc, .value = &mqar_desc, .optional = 1,
              .fewest = MHLA_UP_TO(mhla_mqar_desc, tests)),
        TAKES(mhla_mqar_run, mhla_mqar_desc, .value = &mqar_wrong, .optional = 1, .status = MHLA_EINVAL),
        FILLS(mhla_mqar_run, mhla_mqar_result, .compared = offsetof(mhla_mqar_result, seconds)),
    };
    STRUCTS_TRY(rows);
    assert_true(questions > 0 && steps > 0 && answers > 0);
}

static int begin(void **state) {
    if (make_folder(state) != 0) return -1;
    static const char question[] = "{\"context\": \"It was the\", \"choices\": [\"best\", \"age\"], \"gold\": 0}\n";
    const mhla_context_desc one = {.size = sizeof one, .threads = 1};
    const mhla_generation_desc how = {.size = sizeof how, .max_tokens = 2, .ignore_eos = 1};
    const char *settings[] = {"vocab_size=300", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=1"};
    mhla_model *fresh;
    write_file(text_file(), text, sizeof text - 1);
    write_file(in_folder("questions.jsonl"), question, sizeof question - 1);
    static const char word[] = "{\"text\": \"It was the best of\"}\n", page[] = "{\"page\": \" = It = \\n was \"}\n",
                      prompt[] = "{\"qasper\": \"{context}\"}", length[] = "{\"qasper\": 2}",
                      qasper[] = "{\"context\": \"It was\", \"answers\": [\"the\"]}\n";
    write_file(in_folder("words.jsonl"), word, sizeof word - 1);
    write_file(in_folder("pages.jsonl"), page, sizeof page - 1);
    write_file(in_folder("dataset2prompt.json"), prompt, sizeof prompt - 1);
    write_file(in_folder("dataset2maxlen.json"), length, sizeof length - 1);
    write_file(in_folder("qasper.jsonl"), qasper, sizeof qasper - 1);
    ASSERT_OK(mhla_context_create(&context, &one));
    const char *files[] = {text_file()};
    ASSERT_OK(mhla_model_create(&fresh, "lm_micro", settings, 4, 5));
    ASSERT_OK(mhla_model_save(fresh, in_folder("model")));
    mhla_model_free(fresh);
    ASSERT_OK(mhla_tokenizer_train(in_folder("model/tokenizer.json"), files, 1, &training, NULL, NULL));
    ASSERT_OK(mhla_shard_make(in_folder("text.shard"), in_folder("model/tokenizer.json"), files, 1, context, NULL, NULL,
                              NULL));
    ASSERT_OK(mhla_model_open(&model, in_folder("model")));
    mhla_model_set_context(model, context);
    tokenizer = mhla_lm_tokenizer(model);
    assert_non_null(tokenizer);
    for (int i = 0; i < 2; i++) ASSERT_OK(mhla_sequence_create(&sequences[i], model, NULL));
    mhla_sequence *own;
    ASSERT_OK(mhla_sequence_create(&own, model, NULL));
    ASSERT_OK(mhla_generation_create(&generation, own, ids, 4, &how));
    ASSERT_OK(mhla_generation_step(model, &generation, 1));
    *state = own;
    for (int i = 0; i < VOCABULARY; i++) logits[i] = (float)(i % 17);
    return 0;
}

static int end(void **state) {
    mhla_generation_free(generation);
    mhla_sequence_free(*state);
    for (int i = 0; i < 2; i++) mhla_sequence_free(sequences[i]);
    mhla_model_free(model);
    mhla_context_free(context);
    return remove_folder(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(sequences_and_samples),
                                       cmocka_unit_test(encoders), cmocka_unit_test(evaluations)};
    return cmocka_run_group_tests(tests, begin, end);
}
