/* Every mixer of the list, whatever it is: its memory, fed in any pieces, forked, rolled back, saved and loaded, gives what its forward pass
 * gives for the whole text; its gradients are those of differences; its keys are keys of a model. A new mixer is tested by being in the list. */
#include "lm_case.h"

/* Of few heads all features are rarely 0 at once, where norms have no gradient. */
static mhla_model *model_of(const mhla_mixer *m, int heads, uint64_t seed) {
    char attention[64], count[32];
    snprintf(attention, sizeof attention, "attention=%s", m->name);
    snprintf(count, sizeof count, "num_heads=%d", heads);
    const char *const settings[] = {attention,
                                    "vocab_size=61",
                                    "hidden_size=32",
                                    "num_hidden_layers=2",
                                    "intermediate_size=48",
                                    "initializer_range=0.2",
                                    count};
    mhla_model *model;
    ASSERT_OK(mhla_model_create(&model, "lm_micro", settings, 7, seed));
    return filled(model, seed);
}

/* A sequence of its own copies: to a file and back, or a fork. */
static mhla_sequence *copied(mhla_model *model, mhla_sequence *s, int by_file) {
    char path[] = "/tmp/mhla-test-XXXXXX";
    mhla_sequence *copy;
    if (by_file) {
        close(mkstemp(path));
        ASSERT_OK(mhla_sequence_save(s, path));
        ASSERT_OK(mhla_sequence_load(&copy, model, path));
        unlink(path);
    } else {
        ASSERT_OK(mhla_sequence_fork(&copy, s));
    }
    mhla_sequence_free(s);
    return copy;
}

/* A token reads and writes a recurrence's whole state; of all others it reads a part, and no more than there is. */
static void check_step_bytes(const mhla_model *model, const mhla_sequence *s, int64_t tokens) {
    mhla_lm_info info = {.size = sizeof info};
    ASSERT_OK(mhla_lm_query(model, &info));
    const size_t step = mhla_sequence_step_bytes(s);
    const mhla_lm_config *c = mhla_lm_config_of(model->net);
    const char *name = c->group[0].mixer->name;
    if (c->groups == 1 && strcmp(name, "softmax") == 0)
        assert_int_equal(step, (size_t)(tokens + 1) * (info.state_bytes / (size_t)info.context));
    else if (c->groups == 1 && strcmp(name, "mhla") != 0 && strcmp(name, "linear") != 0)
        assert_int_equal(step, 2 * info.state_bytes);
    assert_true(step > 0 && step <= 2 * mhla_sequence_bytes(s));
}

/* Pieces, forks, rollbacks and files of a sequence give what the whole text gives. The model is freed. */
static void check_memory(mhla_model *model, const char *name, uint64_t seed) {
    enum { T = 256 }; /* the context of lm_micro */
    rng r = {seed};
    int32_t *ids = new_ids(&r, T);
    float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids, T), *got = new_poisoned(T * VOCABULARY);
    mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
    for (int step = 0; step < 120; step++) {
        const int64_t at = mhla_sequence_tokens(s);
        int64_t n = 1 + rng_below(&r, step % 3 ? 5 : 70);
        if (n > T - at) n = T - at;
        if (n > 0) {
            ASSERT_OK(feed_one(model, s, ids + at, n, got));
            ASSERT_CLOSE(got, wanted + at * VOCABULARY, n * VOCABULARY, 3e-5, "%s, step %d, token %d", name, step,
                         (int)at);
        }
        assert_true(mhla_sequence_bytes(s) > 0);
        check_step_bytes(model, s, at + n);
        if (step % 5 == 2) ASSERT_OK(mhla_sequence_rollback(s, rng_below(&r, (int)mhla_sequence_tokens(s) + 1)));
        if (step % 7 == 3) s = copied(model, s, step % 2);
    }
    mhla_sequence_free(s);
    free(wanted);
    free(got);
    free(ids);
    mhla_model_free(model);
}

static void memory(void **state) {
    (void)state;
    const mhla_mixer *m;
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++) check_memory(model_of(m, 4, 5), m->name, (uint64_t)k + 1);
}

/* Layers of many kinds in one model, options of each, with MLPs and without. */
static void hybrids(void **state) {
    (void)state;
    static const char *const models[][16] = {
        {"num_hidden_layers=5", "attention=gla", "attn_layers=1", "mamba2_layers=2", "mhla_layers=3",
         "gated_deltanet_layers=4", "use_short_conv=true", "num_kv_heads=2", "clamp_min=-0.05", "feature_map=swish"},
        {"num_hidden_layers=4", "attention=mamba2", "attn_layers=1", "retnet_layers=2", "linear_layers=3",
         "n_groups=2"},
        {"num_hidden_layers=3", "attention=gated_deltanet", "num_v_heads=8", "use_gate=false", "allow_neg_eigval=true",
         "retnet_layers=1", "retnet_use_output_gate=false", "retnet_num_kv_heads=1", "gla_layers=2",
         "parameter_names=mamba"},
        {"num_hidden_layers=2", "attention=gated_deltanet", "use_short_conv=false", "output_gate_activation=sigmoid",
         "gla_layers=1", "gla_use_output_gate=false", "gla_gate_low_rank_dim=3"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *all[24] = {"vocab_size=61", "hidden_size=32", "intermediate_size=48", "initializer_range=0.2",
                               "num_heads=4"};
        char name[32];
        int n = 5;
        mhla_model *model;
        for (int k = 0; models[i][k]; k++) all[n++] = models[i][k];
        ASSERT_OK(mhla_model_create(&model, "lm_micro", all, n, 3));
        snprintf(name, sizeof name, "hybrid %zu", i);
        check_memory(filled(model, 3), name, i + 40);
    }
}

/* Texts that are packed see nothing of each other: gradients and losses are those of one after the other. */
static void packed(void **state) {
    (void)state;
    const mhla_mixer *m;
    static const int64_t cu[] = {0, 5, 6, 40};
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++) {
        mhla_model *model = model_of(m, 2, 4);
        const int32_t V = VOCABULARY;
        rng r = {(uint64_t)k + 7};
        int32_t *ids = new_ids(&r, 40);
        mhla_tape *t;
        ASSERT_OK(mhla_tape_create(&t, single_thread()));
        mhla_tape_begin(t, MHLA_TAPE_INFER);
        const mhla_lm_run run = {.mixer = {.cu_seqlens = cu, .sequences = 3}};
        mhla_tensor *y = mhla_lm_logits(t, model->net, mhla_lm_forward(t, model->net, &run, ids, 1, 40));
        ASSERT_OK(mhla_tape_status(t));
        for (int s = 0; s < 3; s++) {
            const int64_t n = cu[s + 1] - cu[s];
            float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids + cu[s], n);
            ASSERT_CLOSE(y->data + cu[s] * V, wanted, n * V, 3e-5, "%s, text %d", m->name, s);
            free(wanted);
        }
        free(ids);
        mhla_tape_free(t);
        mhla_model_free(model);
    }
}

/* The sizes that the paper compares, tied and untied. */
static void presets(void **state) {
    (void)state;
    static const struct {
        const char *preset, *attention;
        int64_t tied, untied;
    } rows[] = {
        {"lm_340m", "mhla", 341130240, 373898240},           {"lm_340m", "gla", 341707776, 374475776},
        {"lm_340m", "softmax", 341099520, 373867520},        {"lm_340m", "linear", 347421696, 380189696},
        {"lm_340m", "gated_deltanet", 347120124, 379888124}, {"lm_480m", "gated_deltanet", 479504124, 512272124},
        {"lm_340m", "mamba2", 349619712, 382387712},         {"lm_340m", "retnet", 441775104, 474543104},
        {"lm_340m", "mamba", 365380608, 398148608}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int tied = 0; tied < 2; tied++) {
            mhla_lm_config c;
            mhla_lm *lm;
            ASSERT_OK(mhla_lm_preset(&c, rows[i].preset, rows[i].attention));
            c.tied = tied;
            ASSERT_OK(mhla_lm_create_as(&lm, &c, MHLA_Q8_0)); /* so that it takes less memory */
            if (mhla_params_elements(mhla_lm_params(lm)) != (tied ? rows[i].tied : rows[i].untied))
                fail_msg("%s of %s has %lld parameters", rows[i].preset, rows[i].attention,
                         (long long)mhla_params_elements(mhla_lm_params(lm)));
            mhla_lm_free(lm);
        }
    mhla_lm_config c;
    ASSERT_FAILS(mhla_lm_preset(&c, "lm_480m", "mhla"), MHLA_EINVAL, "lm_480m is a preset of gated_deltanet");
}

/* Every mixer in files: a folder gives back the same logits, and its config.json the same network without any tensors; a GGUF, too; weights
 * of 16 and of 8 bits run. */
static void files(void **state) {
    (void)state;
    const mhla_mixer *m;
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++) {
        enum { T = 20 };
        static const char *const storages[] = {"float32", "bfloat16", "q8_0"};
        char folder[] = "/tmp/mhla-test-XXXXXX", file[64], command[96];
        assert_non_null(mkdtemp(folder));
        snprintf(file, sizeof file, "%s/a.gguf", folder);
        mhla_model *model = model_of(m, 4, 5), *back;
        rng r = {(uint64_t)k + 11};
        int32_t *ids = new_ids(&r, T);
        float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids, T);
        ASSERT_OK(mhla_model_save(model, folder));
        ASSERT_OK(mhla_lm_convert(file, folder, NULL, NULL));
        for (int i = 0; i < 4; i++) {
            const mhla_open_desc desc = {.size = sizeof desc, .storage = i < 3 ? storages[i] : NULL};
            ASSERT_OK(mhla_model_open_as(&back, i < 3 ? folder : file, &desc));
            mhla_model_set_context(back, single_thread());
            float *got = parallel_logits(back, MHLA_BEYOND_ERROR, 0, ids, T);
            const double tolerance = i == 0 ? 1e-7 : i < 3 ? 0.3 : 1e-5; /* rounded weights */
            ASSERT_CLOSE(got, wanted, T * VOCABULARY, tolerance, "%s, %s", m->name, i < 3 ? storages[i] : "GGUF");
            free(got);
            mhla_model_free(back);
        }
        snprintf(command, sizeof command, "rm -r %s", folder);
        assert_int_equal(system(command), 0);
        free(wanted);
        free(ids);
        mhla_model_free(model);
    }
}

static double loss_of(mhla_tape *t, mhla_model *model, const int32_t *ids, int64_t T, unsigned mode) {
    mhla_tape_begin(t, mode);
    mhla_tensor *h = mhla_lm_forward(t, model->net, &(mhla_lm_run){0}, ids, 1, T);
    mhla_tensor *loss = mhla_nn_cross_entropy(t, mhla_lm_logits(t, model->net, h), ids + 1, NULL, 0.0f, NULL);
    ASSERT_OK(mhla_tape_status(t));
    if (mode != MHLA_TAPE_INFER) ASSERT_OK(mhla_tape_backward(t, loss, 1.0f));
    return (double)loss->data[0];
}

/* Along the gradient of each parameter the loss grows as fast as the gradient is long. */
static void gradients(void **state) {
    (void)state;
    const mhla_mixer *m;
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++) {
        enum { T = 40 };
        mhla_model *model = model_of(m, 1, 9);
        mhla_tape *t;
        rng r = {(uint64_t)k + 3};
        int32_t *ids = new_ids(&r, T + 1);
        ASSERT_OK(mhla_tape_create(&t, single_thread()));
        loss_of(t, model, ids, T, MHLA_TAPE_RECORD);
        for (int i = 0; i < mhla_params_count(model->params); i++) {
            mhla_param *p = mhla_params_at(model->params, i);
            double square = 0.0, moved[2];
            for (int64_t j = 0; j < p->count; j++) square += (double)p->grad[j] * (double)p->grad[j];
            const double length = sqrt(square), h = 2e-3 / (length > 1.0 ? length : 1.0);
            if (length < 0.02) continue; /* lost in the rounding of the loss */
            float *kept = new_bytes(sizeof *kept * (size_t)p->count);
            memcpy(kept, p->data, sizeof *kept * (size_t)p->count);
            for (int side = 0; side < 2; side++) {
                for (int64_t j = 0; j < p->count; j++)
                    p->data[j] = (float)((double)kept[j] + (side ? h : -h) * (double)p->grad[j] / length);
                mhla_param_touch(p);
                moved[side] = loss_of(t, model, ids, T, MHLA_TAPE_INFER);
            }
            memcpy(p->data, kept, sizeof *kept * (size_t)p->count);
            mhla_param_touch(p);
            free(kept);
            const double slope = (moved[1] - moved[0]) / (2.0 * h);
            if (fabs(slope - length) > 0.02 * length + 1e-3)
                fail_msg("%s, %s: the gradient is %g long, by differences %g", m->name, p->name, length, slope);
        }
        free(ids);
        mhla_tape_free(t);
        mhla_model_free(model);
    }
}

/* Keys of all mixers fit together; each is there alone and with its group. */
static void keys(void **state) {
    (void)state;
    const mhla_recipe_row *rows = mhla_lm_rows();
    const mhla_mixer *m;
    assert_non_null(rows);
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++)
        for (int i = 0; i < m->keys.count; i++) {
            char name[96];
            int found = 0;
            snprintf(name, sizeof name, "%s_%s", m->group, m->keys.fields[i].row.name);
            for (const mhla_recipe_row *row = rows; row->name; row++)
                found += strcmp(row->name, name) == 0 || strcmp(row->name, m->keys.fields[i].row.name) == 0;
            assert_int_equal(found, 2);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory), cmocka_unit_test(hybrids),   cmocka_unit_test(packed), cmocka_unit_test(presets),
        cmocka_unit_test(files),  cmocka_unit_test(gradients), cmocka_unit_test(keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
