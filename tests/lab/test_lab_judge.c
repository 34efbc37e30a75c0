/* Judging: Student's distribution, means, verdicts of made-up results, the table and the figures that are made of them. */
#include <math.h>

#include "lab/lab.h"
#include "support.h"

static const mhla_experiment toy = {
    .info =
        {.name = "toy", .title = "A toy", .claim = "b is more than a.", .paper = "Tab. 0", .known = "all", .labels = 1},
    .settings = "k=1 l=2",
    .quick_settings = "k=3",
    .paper_titles = {"paper, %"},
    .paper_digits = 1,
    .arms = {{"a", "arm a", "x=1", {70.5}}, {"b", "arm b", "x=2", {0}}, {"c", "arm c", "x=3", {0}}},
    .columns = {{"accuracy", "accuracy, %", 100.0, 2}, {"nobody", "what nobody has", 1.0, 2}},
    .claims = {{"b more than a", "accuracy", "b", "a", 0, 0},
               {"c more than a", "accuracy", "c", "a", 0, 0},
               {"c above 0.3", "accuracy", "c", NULL, 0, 0.3}},
    .gate = "accuracy",
    .gate_least = 0.15,
    .lines = {{"line", "tokens", "ms", "ms_", {256, 1024}, {0}, 1, 1, 0}},
    .dots = 1,
};

static mhla_lab_row rows[16];

static void add(mhla_lab *lab, int arm, double accuracy, double error) {
    mhla_lab_row *row = &rows[lab->count];
    int seed = 1;
    for (int i = 0; i < lab->count; i++) seed += rows[i].arm == arm;
    *row = (mhla_lab_row){.arm = arm,
                          .seed = seed,
                          .measures = json_object(),
                          .program = "p<1>",
                          .machine = "m",
                          .data = "d",
                          .made = "today",
                          .seconds = 60.0};
    json_object_set_new(row->measures, "accuracy", json_real(accuracy));
    if (!isnan(error)) json_object_set_new(row->measures, "accuracy_error", json_real(error));
    json_object_set_new(row->measures, "ms_256", json_real(1.0 + arm));
    json_object_set_new(row->measures, "ms_1024", json_real(5.0 + arm));
    lab->count++;
    if (seed > lab->seeds) lab->seeds = seed;
}

static mhla_lab begin(void) { return (mhla_lab){.experiment = &toy, .rows = rows, .name = "toy"}; }
static void end(mhla_lab *lab) {
    for (int i = 0; i < lab->count; i++) json_decref(rows[i].measures);
}

static void student(void **state) {
    (void)state;
    /* scipy.stats.t.sf(t, df) * 2 */
    const struct {
        double t, freedom, p;
    } known[] = {{0.0, 3.0, 1.0}, {4.302652729911275, 2.0, 0.05}, {2.7764451051977987, 4.0, 0.05},
                 {1.0, 1.0, 0.5}, {-3.0, 7.5, 0.018390938608},    {10.0, 30.0, 4.575251408e-11}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const double p = mhla_student_p(known[i].t, known[i].freedom);
        if (fabs(p - known[i].p) > 1e-4 * known[i].p) fail_msg("t %g at %g: p %g", known[i].t, known[i].freedom, p);
    }
    assert_true(mhla_student_p(INFINITY, 4.0) == 0.0);
    assert_true(isnan(mhla_student_p(NAN, 4.0)));
}

static void samples(void **state) {
    (void)state;
    const mhla_seeds s = mhla_seeds_of((double[]){1.0, 2.0, 4.0}, (double[]){0.1, 0.3, 0.2}, 3);
    assert_true(fabs(s.mean - 7.0 / 3.0) < 1e-15 && fabs(s.deviation - 1.5275252316519468) < 1e-14 && s.error == 0.3);
    const mhla_seeds one = mhla_seeds_of((double[]){5.0}, (double[]){NAN}, 1);
    assert_true(one.mean == 5.0 && isnan(one.deviation) && isnan(one.error));
    assert_true(isnan(mhla_seeds_of((double[]){5.0, 6.0}, (double[]){NAN, 0.1}, 2).error));
    /* scipy.stats.ttest_ind([1, 2, 4], [5, 7, 9], equal_var=False): t -3.21182, p 0.0357875 */
    const mhla_seeds b = mhla_seeds_of((double[]){5.0, 7.0, 9.0}, (double[]){NAN, NAN, NAN}, 3);
    const mhla_difference d = mhla_difference_of(&s, &b, 0.0);
    assert_true(fabs(d.t + 3.2118202741878648) < 1e-12 && fabs(d.p - 0.03578748850673164) < 1e-9);
}

/* By scipy: d * sqrt((var(a) + var(b)) / 2 * 2 / 3) with nct.sf(t.ppf(1 - level / 2, 4), 4, d) = 0.8, and likewise for unequal numbers. */
static void power(void **state) {
    (void)state;
    const double unknown[3] = {NAN, NAN, NAN};
    const mhla_seeds a = mhla_seeds_of((double[]){0.70, 0.71, 0.705}, unknown, 3);
    const mhla_seeds b = mhla_seeds_of((double[]){0.80, 0.81, 0.805}, unknown, 3);
    const mhla_seeds two = mhla_seeds_of((double[]){0.80, 0.83}, unknown, 2);
    assert_true(fabs(mhla_student_t(0.025, 4.0) - 2.7764451051977934) < 1e-9);
    assert_true(fabs(mhla_student_t(0.2, 4.0) - 0.9409645772351816) < 1e-9);
    assert_true(fabs(mhla_student_t(0.01, 2.5) - 5.353111173030872) < 1e-9);
    assert_true(mhla_student_t(0.5, 3.0) < 1e-9 && isnan(mhla_student_t(0.0, 3.0)) && isnan(mhla_student_t(0.6, 3.0)));
    assert_true(fabs(mhla_power_of(&a, &b, 0.05) - 0.015354464218865781) < 1e-9);
    assert_true(fabs(mhla_power_of(&a, &b, 0.025) - 0.018713920686743626) < 1e-9);
    assert_true(fabs(mhla_power_of(&a, &two, 0.05) - 0.05015624860315142) < 1e-9);
    assert_true(fabs(mhla_power_of(&a, NULL, 0.05) - 0.016320217749099572) < 1e-9);
    const mhla_seeds one = mhla_seeds_of((double[]){0.8}, unknown, 1);
    assert_true(isnan(mhla_power_of(&a, &one, 0.05)) && isnan(mhla_power_of(&a, &b, NAN)));
    /* the error of the test set, where it is larger than what lies between the seeds */
    const mhla_seeds coarse = mhla_seeds_of((double[]){0.70, 0.71, 0.705}, (double[]){0.02, 0.02, 0.02}, 3);
    assert_true(fabs(mhla_power_of(&coarse, &coarse, 0.05) - 4.0 * mhla_power_of(&a, &b, 0.05)) < 1e-9);
}

static void clear_differences(void **state) {
    (void)state;
    mhla_lab lab = begin();
    mhla_judgement j[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    const double accuracy[3][3] = {{0.70, 0.71, 0.705}, {0.80, 0.81, 0.805}, {0.75, 0.752, 0.751}};
    for (int seed = 0; seed < 3; seed++)
        for (int arm = 0; arm < 3; arm++) add(&lab, arm, accuracy[arm][seed], 0.003);
    assert_int_equal(mhla_judge(&lab, j, &all), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(j[i].verdict, MHLA_VERDICT_HOLDS);
    assert_int_equal(all, MHLA_VERDICT_HOLDS);
    end(&lab);
    /* the other way round: says so */
    lab = begin();
    for (int seed = 0; seed < 3; seed++)
        for (int arm = 0; arm < 3; arm++) add(&lab, arm, accuracy[arm == 2 ? 2 : 1 - arm][seed], 0.003);
    mhla_judge(&lab, j, &all);
    assert_int_equal(j[0].verdict, MHLA_VERDICT_FAILS);
    assert_int_equal(j[1].verdict, MHLA_VERDICT_FAILS);
    assert_int_equal(all, MHLA_VERDICT_FAILS);
    end(&lab);
}

static void tied(void **state) {
    (void)state;
    mhla_lab lab = begin();
    mhla_judgement j[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    /* less between the arms than between the seeds; the last pair differs, but by less than the test set's error */
    const double accuracy[3][3] = {{0.70, 0.72, 0.71}, {0.71, 0.725, 0.70}, {0.7101, 0.7102, 0.7103}};
    for (int seed = 0; seed < 3; seed++)
        for (int arm = 0; arm < 3; arm++) add(&lab, arm, accuracy[arm][seed], 0.02);
    mhla_judge(&lab, j, &all);
    assert_int_equal(j[0].verdict, MHLA_VERDICT_UNDECIDED);
    assert_int_equal(j[1].verdict, MHLA_VERDICT_UNDECIDED);
    assert_int_equal(j[2].verdict, MHLA_VERDICT_HOLDS);
    assert_int_equal(all, MHLA_VERDICT_UNDECIDED);
    end(&lab);
}

/* Three claims share the level: what would do alone does not do here. */
static void several_claims(void **state) {
    (void)state;
    mhla_lab lab = begin();
    mhla_judgement j[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    const double accuracy[3][3] = {{0.70, 0.71, 0.72}, {0.728, 0.738, 0.748}, {0.70, 0.71, 0.72}};
    for (int seed = 0; seed < 3; seed++)
        for (int arm = 0; arm < 3; arm++) add(&lab, arm, accuracy[arm][seed], 0.0);
    mhla_judge(&lab, j, &all);
    assert_true(j[0].difference.p > 0.025 && j[0].difference.p < 0.05);
    assert_true(j[0].level == 0.025);
    assert_int_equal(j[0].verdict, MHLA_VERDICT_UNDECIDED);
    assert_int_equal(j[2].verdict, MHLA_VERDICT_HOLDS); /* the smallest p comes first, and has level 0.05 / 3 */
    end(&lab);
}

/* What guesses is not compared, however its guesses fall out. */
static void shuffled(void **state) {
    (void)state;
    mhla_lab lab = begin();
    mhla_judgement j[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    const double accuracy[3][3] = {{0.0970, 0.0971, 0.0972}, {0.1041, 0.1040, 0.1042}, {0.1, 0.1, 0.1}};
    for (int seed = 0; seed < 3; seed++)
        for (int arm = 0; arm < 3; arm++) add(&lab, arm, accuracy[arm][seed], 0.0001);
    mhla_judge(&lab, j, &all);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(j[i].verdict, MHLA_VERDICT_UNDECIDED);
        assert_string_equal(j[i].why, "nothing was learned");
    }
    assert_int_equal(all, MHLA_VERDICT_UNDECIDED);
    end(&lab);
}

static void one_seed(void **state) {
    (void)state;
    mhla_lab lab = begin();
    mhla_judgement j[MHLA_LAB_CLAIMS];
    mhla_verdict all;
    add(&lab, 0, 0.70, 0.005);
    add(&lab, 1, 0.80, 0.004);
    add(&lab, 2, 0.71, 0.005);
    mhla_judge(&lab, j, &all);
    assert_int_equal(j[0].verdict, MHLA_VERDICT_HOLDS);
    assert_int_equal(j[1].verdict, MHLA_VERDICT_UNDECIDED); /* 1.4 errors */
    assert_int_equal(all, MHLA_VERDICT_UNDECIDED);
    end(&lab);
    lab = begin(); /* no error is known: no verdict */
    add(&lab, 0, 0.70, NAN);
    add(&lab, 1, 0.90, NAN);
    mhla_judge(&lab, j, &all);
    assert_int_equal(j[0].verdict, MHLA_VERDICT_UNDECIDED);
    assert_string_equal(j[1].why, "not measured");
    end(&lab);
}

static void page(void **state) {
    (void)state;
    mhla_lab lab = begin();
    char *text = NULL, *figure = NULL;
    size_t size = 0;
    add(&lab, 0, 0.70, 0.003);
    add(&lab, 1, 0.80, 0.003);
    add(&lab, 0, 0.71, 0.003);
    add(&lab, 1, 0.8101, 0.003);
    assert_int_equal(mhla_lab_text(&lab, &text), MHLA_OK);
    assert_string_equal(text, "A toy (mean ± deviation over 2 seeds)\n\n"
                              "        accuracy, %  paper, %\n"
                              "arm a  70.50 ± 0.71      70.5\n"
                              "arm b  80.51 ± 0.71         -\n"
                              "arm c             -         -\n\n"
                              "Paper: Tab. 0.\n\n"
                              "b more than a: +10.01, t 14.08 at 2.0 degrees of freedom, p 0.005 (needs 0.05); "
                              "detectable 4.02: holds\n"
                              "c more than a: not measured; detectable unknown: undecided at this size\n"
                              "c above 0.3: not measured; detectable unknown: undecided at this size\n\n"
                              "Verdict: undecided at this size.\n");
    free(text);
    FILE *out = open_memstream(&figure, &size);
    mhla_figure_dots(out, &lab, &toy.columns[0]);
    fclose(out);
    assert_int_equal(strncmp(figure, "<svg ", 5), 0);
    int dots = 0;
    for (const char *at = figure; (at = strstr(at, "<circle")) != NULL; at++) dots++;
    assert_int_equal(dots, 4);
    assert_null(strstr(figure, "nan"));
    free(figure);
    out = open_memstream(&figure, &size);
    assert_true(mhla_figure_lines(out, &lab, &toy.lines[0]));
    fclose(out);
    dots = 0;
    for (const char *at = figure; (at = strstr(at, "<circle")) != NULL; at++) dots++;
    assert_int_equal(dots, 4);
    free(figure);
    end(&lab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(student),           cmocka_unit_test(power),    cmocka_unit_test(samples),
        cmocka_unit_test(clear_differences), cmocka_unit_test(tied),     cmocka_unit_test(several_claims),
        cmocka_unit_test(shuffled),          cmocka_unit_test(one_seed), cmocka_unit_test(page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
