/* Training on text that is killed -9 at random moments goes on to the same bytes as a run that never stopped.
 * MHLA_TEST_KILLS says how often (4). */
#include "kill_case.h"
#include "text_case.h"

static mhla_status begin(mhla_trainer **t, const char *name) {
    return create_text(t, name, "checkpoint.steps=2", "train.steps=40", NULL);
}

static void killed(void **state) {
    (void)state;
    kill_often(begin, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed)};
    return cmocka_run_group_tests(tests, set_up_text, tear_down);
}
