/* Every call of lab.h that takes or fills a struct with a size, and what its callback is told: see structs.h. */
#include "structs.h"

#include "lab/lab.h"
#include "train_case.h"

static mhla_lab *lab;

static mhla_status make(mhla_lab_part *part) {
    mhla_part_tell(part, 1, 2);
    return mhla_part_images(part);
}
static const mhla_experiment tiny = {
    .info =
        {.name = "tiny", .title = "Tiny", .claim = "none.", .paper = "none", .known = "none", .data = "fashion-mnist"},
    .settings = "model.image=8 model.padding=0 model.patch=2 model.dim=16 model.depth=1 model.crop=1 train.steps=2 "
                "train.batch=32 data.workers=0",
    .arms = {{"one", "One", "", {0}}},
    .columns = {{"accuracy", "accuracy, %", 100.0, 2}},
    .make = make,
};

static mhla_status mhla_lab_query__mhla_lab_info(void *given) { return mhla_lab_query(0, given); }
static mhla_status mhla_lab_open__mhla_lab_desc(void *given) {
    mhla_lab *l = NULL;
    const mhla_status status = mhla_lab_open(&l, given);
    mhla_lab_free(l);
    return status;
}
static mhla_status mhla_lab_result_query__mhla_lab_result(void *given) { return mhla_lab_result_query(lab, given); }

static void every_size(void **state) {
    (void)state;
    static mhla_lab_desc desc = {.size = sizeof desc, .experiment = "scaling", .quick = 1};
    desc.work = in_root("work");
    const struct_case rows[] = {
        FILLS(mhla_lab_query, mhla_lab_info),
        TAKES(mhla_lab_open, mhla_lab_desc, .value = &desc, .fewest = MHLA_UP_TO(mhla_lab_desc, work)),
        FILLS(mhla_lab_result_query, mhla_lab_result),
    };
    STRUCTS_TRY(rows);
}

static int told[MHLA_LAB_DONE + 1], trained;
static void hear(void *user, const mhla_lab_event *e) {
    (void)user;
    IS_TOLD(mhla_lab_fn, mhla_lab_event, e);
    told[e->kind]++;
    if (e->train == NULL) return;
    IS_TOLD(mhla_lab_fn, mhla_train_event, e->train);
    trained++;
}

static void callback(void **state) {
    (void)state;
    int finished;
    ASSERT_OK(mhla_lab_run(lab, hear, NULL, &finished));
    for (int i = 0; i <= MHLA_LAB_DONE; i++) assert_true(told[i] > 0);
    assert_true(trained > 0);
}

static int begin(void **state) {
    set_up(state);
    const mhla_lab_desc desc = {.size = sizeof desc, .work = in_root("work"), .data = in_root("data"), .seeds = 1};
    ASSERT_OK(mhla_experiment_open(&lab, &tiny, &desc));
    return 0;
}

static int end(void **state) {
    mhla_lab_free(lab);
    return tear_down(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size), cmocka_unit_test(callback)};
    return cmocka_run_group_tests(tests, begin, end);
}
