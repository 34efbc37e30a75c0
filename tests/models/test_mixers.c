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

static void memory(void **state) {
    (void)state;
    const mhla_mixer *m;
    for (int k = 0; (m = mhla_mixer_at(k)) != NULL; k++) {
        enum { T = 256 }; /* the context of lm_micro */
        mhla_model *model = model_of(m, 4, 5);
        rng r = {(uint64_t)k + 1};
        int32_t *ids = new_ids(&r, T);
        float *wanted = parallel_logits(model, MHLA_BEYOND_ERROR, 0, ids, T), *got = new_poisoned(T * VOCABULARY);
        mhla_sequence *s = new_sequence(model, MHLA_BEYOND_ERROR, 0);
        for (int step = 0; step < 120; step++) {
            const int64_t at = mhla_sequence_tokens(s);
            int64_t n = 1 + rng_below(&r, step % 3 ? 5 : 70);
            if (n > T - at) n = T - at;
            if (n > 0) {
                ASSERT_OK(feed_one(model, s, ids + at, n, got));
                ASSERT_CLOSE(got, wanted + at * VOCABULARY, n * VOCABULARY, 3e-5, "%s, step %d, token %d", m->name,
                             step, (int)at);
            }
            assert_true(mhla_sequence_bytes(s) > 0);
            if (step % 5 == 2) ASSERT_OK(mhla_sequence_rollback(s, rng_below(&r, (int)mhla_sequence_tokens(s) + 1)));
            if (step % 7 == 3) s = copied(model, s, step % 2);
        }
        mhla_sequence_free(s);
        free(wanted);
        free(got);
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
        cmocka_unit_test(memory),
        cmocka_unit_test(gradients),
        cmocka_unit_test(keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
