/* The rows of the experiments: the trainer takes the settings of every arm in every form, of its search, too; claims speak of
 * arms and measures that there are. */
#include <stdlib.h>
#include <string.h>

#include "lab/lab.h"
#include "support.h"
#include "train/train.h"

/* As the lab hands them over: without its own, those of the search without their prefix where `search` is set. */
static int split(char *text, int search, const char *settings[128]) {
    int n = 0;
    char *rest = NULL, *own[128];
    int owns = 0;
    for (char *at = strtok_r(text, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
        if (strncmp(at, "lab.", 4) == 0 || strncmp(at, "recall.", 7) == 0) continue;
        if (strncmp(at, "search.", 7) == 0)
            own[owns++] = at + 7;
        else
            settings[n++] = at;
    }
    for (int i = 0; i < owns && search; i++) settings[n++] = own[i];
    return n;
}

static void try_settings(const mhla_lab_part *part, int search) {
    const char *settings[128];
    char *text = strdup(part->settings);
    mhla_trainer *trainer = NULL;
    assert_non_null(text);
    const int n = split(text, search, settings);
    const mhla_status status = mhla_trainer_start(&trainer, "/nonexistent", NULL, settings, n);
    if (status != MHLA_OK)
        fail_msg("%s, %s: %s", part->lab->experiment->info.name, part->lab->experiment->arms[part->arm].name,
                 mhla_message());
    mhla_trainer_free(trainer);
    free(text);
}

static void settings(void **state) {
    (void)state;
    int tried = 0;
    for (int i = 0; i < mhla_experiment_count; i++)
        for (int form = 0; form < 3; form++) {
            const mhla_experiment *e = &mhla_experiments[i];
            mhla_lab lab = {.experiment = e, .seeds = 1, .quick = form == 1, .longer = form == 2};
            if (form == 2 && e->long_settings == NULL) continue;
            for (int arm = 0; e->arms[arm].name; arm++) {
                mhla_lab_part part;
                char value[160];
                ASSERT_OK(mhla_part_begin(&part, &lab, arm, 1));
                if (mhla_part_setting(&part, "model.model", value, sizeof value) &&
                    !mhla_part_setting(&part, "lab.recall", value, sizeof value)) {
                    try_settings(&part, 0);
                    try_settings(&part, 1);
                    tried++;
                }
                mhla_part_end(&part);
            }
        }
    assert_true(tried > 80);
}

static void claims(void **state) {
    (void)state;
    for (int i = 0; i < mhla_experiment_count; i++) {
        const mhla_experiment *e = &mhla_experiments[i];
        assert_true((e->info.hours > 0.0) == (e->long_settings != NULL));
        for (int k = 0; k < MHLA_LAB_CLAIMS && e->claims[k].text; k++) {
            const mhla_lab_claim *c = &e->claims[k];
            int shown = 0;
            for (int n = 0; n < MHLA_LAB_COLUMNS && e->columns[n].measure; n++)
                shown |= strcmp(e->columns[n].measure, c->measure) == 0;
            if (mhla_experiment_arm(e, c->a) < 0 || (c->b && mhla_experiment_arm(e, c->b) < 0) || !shown)
                fail_msg("%s: the claim \"%s\" is of no arm or no column", e->info.name, c->text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(settings), cmocka_unit_test(claims)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
