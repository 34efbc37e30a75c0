/* Published models read and continued through sequences: logits, and greedy continuations in every split, against the
 * goldens. */
#include "goldens.h"
#include "lm_case.h"

static int32_t *golden_ids(const mhla_safetensors *f, const char *name, int64_t *count) {
    const mhla_stored *s;
    ASSERT_OK(mhla_safetensors_need(&s, f, name));
    assert_int_equal(s->dtype, MHLA_IO_I64);
    int32_t *ids = new_bytes(sizeof *ids * (size_t)s->count);
    for (int64_t i = 0; i < s->count; i++) {
        int64_t id;
        memcpy(&id, s->data + 8 * i, sizeof id);
        ids[i] = (int32_t)id;
    }
    *count = s->count;
    return ids;
}

/* All rows of the golden at once. */
static void check_logits(mhla_model *model, const mhla_safetensors *f, int vocabulary, double tolerance,
                         const char *name) {
    int64_t count;
    const mhla_stored *stored;
    ASSERT_OK(mhla_safetensors_need(&stored, f, "in.input_ids"));
    int32_t *ids = golden_ids(f, "in.input_ids", &count);
    float *wanted = golden(f, "", "out.logits"), *got = new_poisoned(count * vocabulary);
    const int64_t B = stored->shape[0], T = stored->shape[1];
    int64_t cuts[] = {0, 1, 3, T / 2, T};
    mhla_feed *feeds = new_bytes(sizeof *feeds * (size_t)B);
    mhla_sequence **s = new_bytes(sizeof(mhla_sequence *) * (size_t)B);
    for (int64_t i = 0; i < B; i++) s[i] = new_sequence(model, MHLA_BEYOND_ERROR, 0);
    for (int c = 0; c < 4; c++) {
        if (cuts[c + 1] > T || c == 3) cuts[c + 1] = T;
        if (cuts[c + 1] <= cuts[c]) cuts[c + 1] = cuts[c]; /* a short text has fewer parts */
        if (cuts[c + 1] == cuts[c]) continue;
        for (int64_t i = 0; i < B; i++)
            feeds[i] = (mhla_feed){.size = sizeof *feeds,
                                   .sequence = s[i],
                                   .ids = ids + i * T + cuts[c],
                                   .count = cuts[c + 1] - cuts[c],
                                   .all_logits = got + (i * T + cuts[c]) * vocabulary};
        ASSERT_OK(mhla_lm_feed(model, feeds, B));
    }
    ASSERT_CLOSE(got, wanted, count * vocabulary, tolerance, "%s", name);
    for (int64_t i = 0; i < B; i++) mhla_sequence_free(s[i]);
    free(s);
    free(feeds);
    free(ids);
    free(wanted);
    free(got);
}

static void check_greedy(mhla_model *model, const mhla_safetensors *f, const char *name) {
    int64_t prompt, all;
    int32_t *ids = golden_ids(f, "in.prompt_ids", &prompt), *wanted = golden_ids(f, "out.greedy_ids", &all);
    int32_t *best = new_bytes(sizeof *best * (size_t)prompt);
    for (int whole = 0; whole < 2; whole++) { /* the prompt one by one, and at once */
        const int64_t step = whole ? prompt : 1;
        mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
        for (int64_t t = 0; t < prompt; t += step) {
            const mhla_feed feed = {.size = sizeof feed, .sequence = s, .ids = ids + t, .count = step, .best = best};
            ASSERT_OK(mhla_lm_feed(model, &feed, 1));
        }
        int32_t next = best[step - 1];
        for (int64_t t = prompt; t < all; t++) {
            if (next != wanted[t]) fail_msg("%s: token %lld is %d: wanted %d", name, (long long)t, next, wanted[t]);
            const mhla_feed feed = {.size = sizeof feed, .sequence = s, .ids = &next, .count = 1, .best = best};
            ASSERT_OK(mhla_lm_feed(model, &feed, 1));
            next = best[0];
        }
        mhla_sequence_free(s);
    }
    free(best);
    free(ids);
    free(wanted);
}

/* A file of ids beside a model that is known here: with matrices in float32, then as they are in the file. A CPU that
 * multiplies bfloat16 rounds activations to it as well. */
static void check_model(const char *path, const mhla_safetensors *f) {
    char folder[1024];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    for (int stored = 0; stored < 2; stored++) {
        mhla_model *model;
        const mhla_open_desc desc = {.size = sizeof desc, .storage = stored ? NULL : "float32"};
        const mhla_status status = mhla_model_open_as(&model, folder, &desc);
        if (status == MHLA_ENOTSUP) return;
        ASSERT_OK(status);
        mhla_lm_info info = {.size = sizeof info};
        ASSERT_OK(mhla_lm_query(model, &info));
        const int exact = strcmp(info.storage, "float32") == 0;
        print_message("%s in %s\n", folder, info.storage);
        check_logits(model, f, info.vocabulary, exact ? 1e-5 : 1e-2, folder);
        if (exact && mhla_safetensors_find(f, "out.greedy_ids")) check_greedy(model, f, folder);
        mhla_model_free(model);
    }
}

static void test_models(void **state) {
    (void)state;
    char root[512];
    golden_list list = {0};
    golden_path(root, "lm/models");
    golden_collect(&list, root, "golden.safetensors");
    for (int i = 0; i < list.count; i++) {
        mhla_safetensors *f;
        ASSERT_OK(mhla_safetensors_open(&f, list.paths[i]));
        check_model(list.paths[i], f);
        mhla_safetensors_close(f);
    }
    golden_list_free(&list);
}

/* SmolLM2-135M-Instruct, if it is here (`mhla data smollm2`, or MHLA_SMOLLM2): all prompts at once, their log-probabilities,
 * then each continued until the model would end. */
enum { CASES = 8, GREEDY = 20, LONGEST = 512 };

static mhla_model *open_smollm2(void) {
    const char *given = getenv("MHLA_SMOLLM2");
    const char *places[] = {given ? given : "../data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            "data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"};
    for (int i = 0; i < (given ? 1 : 2); i++) {
        mhla_model *model;
        if (access(places[i], R_OK) != 0) continue;
        ASSERT_OK(mhla_model_open(&model, places[i]));
        return model;
    }
    print_message("[   SKIP   ] no SmolLM2: `mhla data smollm2`, or set MHLA_SMOLLM2\n");
    skip();
    return NULL;
}

static int32_t likeliest(const float *logits, int vocabulary) {
    int32_t best = 0;
    for (int32_t i = 0; i < vocabulary; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void test_smollm2(void **state) {
    (void)state;
    char path[512];
    json_t *tree;
    golden_path(path, "lm/real/smollm2-135m.json"); /* what may skip goes before what must be freed */
    mhla_model *model = open_smollm2();
    ASSERT_OK(mhla_json_load(&tree, path));
    const json_t *cases = json_object_get(tree, "cases");
    const int n = (int)json_array_size(cases) < CASES ? (int)json_array_size(cases) : CASES;
    static int32_t ids[CASES][LONGEST], targets[CASES][LONGEST];
    static float logprobs[CASES][LONGEST];
    mhla_feed feeds[CASES];
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    float *logits = new_poisoned((int64_t)CASES * info.vocabulary);
    for (int i = 0; i < n; i++) {
        const json_t *list = json_object_get(json_array_get(cases, (size_t)i), "ids");
        const int count = (int)json_array_size(list);
        assert_true(count <= LONGEST);
        for (int t = 0; t < count; t++) ids[i][t] = (int32_t)json_integer_value(json_array_get(list, (size_t)t));
        for (int t = 0; t < count; t++) targets[i][t] = t + 1 < count ? ids[i][t + 1] : -1;
        feeds[i] = (mhla_feed){.size = sizeof *feeds,
                               .sequence = new_sequence(model, MHLA_BEYOND_ERROR, 0),
                               .ids = ids[i],
                               .count = count,
                               .targets = targets[i],
                               .logprobs = logprobs[i],
                               .logits = logits + (int64_t)i * info.vocabulary};
    }
    ASSERT_OK(mhla_lm_feed(model, feeds, n));
    for (int i = 0; i < n; i++) {
        const json_t *list = json_object_get(json_array_get(cases, (size_t)i), "token_logprobs");
        for (int64_t t = 0; t + 1 < feeds[i].count; t++) {
            const double wanted = json_number_value(json_array_get(list, (size_t)t + 1));
            if (fabs((double)logprobs[i][t] - wanted) > 2e-3)
                fail_msg("case %d, token %lld: %g, wanted %g", i, (long long)t, (double)logprobs[i][t], wanted);
        }
        ids[i][0] = likeliest(feeds[i].logits, info.vocabulary);
        feeds[i].count = 1;
        feeds[i].targets = NULL;
    }
    int ended[CASES] = {0}, compared = 0;
    for (int t = 0; t < GREEDY; t++) {
        for (int i = 0; i < n; i++) {
            const json_t *list = json_object_get(json_array_get(cases, (size_t)i), "greedy_ids");
            ended[i] |= ids[i][0] == info.eos;
            if (ended[i]) continue;
            compared++;
            const int32_t wanted = (int32_t)json_integer_value(json_array_get(list, (size_t)t));
            if (ids[i][0] != wanted) fail_msg("case %d, token %d is %d: wanted %d", i, t, ids[i][0], wanted);
        }
        ASSERT_OK(mhla_lm_feed(model, feeds, n));
        for (int i = 0; i < n; i++) ids[i][0] = likeliest(feeds[i].logits, info.vocabulary);
    }
    assert_true(compared > n * GREEDY / 2);
    for (int i = 0; i < n; i++) mhla_sequence_free(feeds[i].sequence);
    free(logits);
    mhla_model_free(model);
    json_decref(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_smollm2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
