/* The lab with a tiny experiment: killed at every kind of moment it goes on and ends with the same numbers; what is there is not
 * computed again; damaged results, shuffled labels, folders that cannot be written. */
#include <sys/wait.h>

#include "lab/lab.h"
#include "train_case.h"

static int made; /* parts, in this process */

static mhla_status make(mhla_lab_part *part) {
    made++;
    return mhla_part_images(part);
}

static mhla_experiment tiny = {
    .info = {.name = "tiny",
             .title = "Tiny",
             .claim = "none.",
             .paper = "none",
             .known = "none",
             .data = "fashion-mnist",
             .labels = 1},
    .settings = "model.image=8 model.padding=0 model.patch=2 model.dim=16 model.depth=1 model.crop=1 model.mean=0.4 "
                "model.deviation=0.25 train.steps=6 train.batch=32 train.rate=0.003 eval.epochs=0 checkpoint.steps=2 "
                "log.steps=1 data.workers=0",
    .quick_settings = "train.steps=2",
    .arms = {{"mhla", "MHLA", "model.attention=mhla", {0}}, {"linear", "linear", "model.attention=linear", {0}}},
    .columns = {{"accuracy", "accuracy, %", 100.0, 2}, {"loss", "loss", 1.0, 4}},
    .claims = {{"mhla more than linear", "accuracy", "mhla", "linear", 0, 0}},
    .gate = "accuracy",
    .gate_least = 0.3,
    .dots = 1,
    .make = make,
};

static mhla_context *single; /* threads would only wait for each other here */

static int begin(void **state) {
    ASSERT_OK(mhla_context_create(&single, &(mhla_context_desc){.size = sizeof(mhla_context_desc), .threads = 1}));
    return set_up(state);
}

static int end(void **state) {
    mhla_context_free(single);
    return tear_down(state);
}

static const char *data = "data";

static mhla_status open_tiny(mhla_lab **lab, const char *work, int quick, int shuffle) {
    return mhla_experiment_open(lab, &tiny,
                                &(mhla_lab_desc){.size = sizeof(mhla_lab_desc),
                                                 .work = in_root(work),
                                                 .data = in_root(data),
                                                 .seeds = 2,
                                                 .quick = quick,
                                                 .shuffle = shuffle,
                                                 .program = "test",
                                                 .context = single});
}

static char *text_of(const char *work) {
    mhla_lab *lab = NULL;
    char *text = NULL;
    ASSERT_OK(open_tiny(&lab, work, 0, 0));
    ASSERT_OK(mhla_lab_text(lab, &text));
    mhla_lab_free(lab);
    return text;
}

/* In a child, as a parent that had threads could not fork: ends itself, without any goodbye, at the `last`-th event. */
static int events, last;
static void die(void *user, const mhla_lab_event *e) {
    (void)user, (void)e;
    if (++events == last) _exit(9);
}

static int run_child(const char *work, int die_at) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mhla_lab *lab = NULL;
        int finished = 0;
        events = made = 0;
        last = die_at;
        if (open_tiny(&lab, work, 0, 0) != MHLA_OK || mhla_lab_run(lab, die, NULL, &finished) != MHLA_OK) {
            fprintf(stderr, "%s\n", mhla_message());
            _exit(100);
        }
        mhla_lab_free(lab);
        _exit(finished ? 20 + made : 101);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void goes_on(void **state) {
    (void)state;
    assert_int_equal(run_child("straight", 0), 20 + 4);
    assert_int_equal(run_child("straight", 0), 20); /* all is there */
    /* killed after 1, 2, 5, .. events, which are notes, steps, evaluations and checkpoints of the parts */
    static const int moments[] = {1, 2, 5, 11, 3, 18};
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const int code = run_child("killed", moments[i]);
        if (code != 9 && (code < 20 || code > 24)) fail_msg("code %d after %d events", code, moments[i]);
    }
    assert_true(run_child("killed", 0) <= 24);
    char *a = text_of("straight"), *b = text_of("killed");
    assert_string_equal(a, b);
    free(a);
    free(b);
    /* what was made with other settings does not count */
    tiny.arms[1].settings = "model.attention=linear train.rate=0.002";
    assert_int_equal(run_child("straight", 0), 20 + 2);
    tiny.arms[1].settings = "model.attention=linear";
    assert_int_equal(run_child("straight", 0), 20);
}

/* The learning rate is searched once for each arm, is in the results, the page and the settings, and is the better one. */
static void search(void **state) {
    (void)state;
    static const char *const plain = "model.image=8 model.padding=0 model.patch=2 model.dim=16 model.depth=1 "
                                     "model.crop=1 model.mean=0.4 model.deviation=0.25 train.steps=6 train.batch=32 "
                                     "eval.epochs=0 log.steps=1 data.workers=0";
    char settings[600];
    const char *before = tiny.settings;
    snprintf(settings, sizeof settings, "%s lab.rates=1e-7,0.003 search.train.steps=24", plain);
    tiny.settings = settings;
    assert_int_equal(run_child("search", 2), 9); /* killed in it, too */
    assert_in_range(run_child("search", 0), 21, 24);
    mhla_lab *lab = NULL;
    char path[400], *text = calloc(1, 1 << 16);
    ASSERT_OK(open_tiny(&lab, "search", 0, 0));
    assert_int_equal(lab->count, 4);
    for (int i = 0; i < 4; i++) { /* 1e-7 learns nothing in so few updates */
        assert_true(json_number_value(json_object_get(lab->rows[i].measures, "rate")) == 0.003);
        assert_true(json_number_value(json_object_get(lab->rows[i].measures, "search_runs")) == 2.0);
        assert_true(json_number_value(json_object_get(lab->rows[i].measures, "search_end")) == 1.0);
        assert_true(json_number_value(json_object_get(lab->rows[i].measures, "parameters")) > 1000.0);
    }
    ASSERT_OK(mhla_lab_write(lab, in_root("search-pages")));
    mhla_lab_free(lab);
    snprintf(path, sizeof path, "%s/tiny.md", in_root("search-pages"));
    FILE *page = fopen(path, "r");
    assert_true(text && page && fread(text, 1, (1 << 16) - 1, page) > 0);
    fclose(page);
    assert_non_null(
        strstr(text, "MHLA 0.003 (the end of the list), linear 0.003 (the end of the list). The search took 4 "));
    assert_non_null(strstr(text, "* parameters: MHLA "));
    free(text);
    /* a rate that breaks the training is no rate; without any other there is none */
    snprintf(settings, sizeof settings, "%s train.clip=0 train.optimizer=sgd lab.rates=1e30 search.train.steps=12",
             plain);
    assert_int_equal(run_child("broken", 0), 100);
    tiny.settings = before;
}

/* The data lies elsewhere when a run goes on, which kept the whole path of it. */
static void moved(void **state) {
    (void)state;
    char from[400], to[400];
    snprintf(from, sizeof from, "%s", in_root("data"));
    snprintf(to, sizeof to, "%s", in_root("elsewhere"));
    assert_int_equal(run_child("moved", 11), 9);
    assert_int_equal(rename(from, to), 0);
    data = "elsewhere";
    const int code = run_child("moved", 0);
    data = "data";
    assert_int_equal(rename(to, from), 0);
    assert_in_range(code, 21, 24);
    char *a = text_of("straight"), *b = text_of("moved");
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* Half of the results, alone, copied to another machine, where the data has another path and a tokenizer in it: only the rest is made
 * there, and what comes out is the same. */
static void copied(void **state) {
    (void)state;
    char path[600], from[400], to[400], line[4096];
    int lines = 0;
    snprintf(path, sizeof path, "%s/tiny/results.jsonl", in_root("straight"));
    FILE *in = fopen(path, "r");
    snprintf(path, sizeof path, "%s/tiny", in_root("copied"));
    assert_int_equal(mhla_folder_make(path), MHLA_OK);
    snprintf(path, sizeof path, "%s/tiny/results.jsonl", in_root("copied"));
    FILE *out = fopen(path, "w");
    assert_true(in && out);
    for (; lines < 2 && fgets(line, sizeof line, in); lines++) fputs(line, out);
    assert_int_equal(lines, 2);
    fclose(in);
    fclose(out);
    snprintf(from, sizeof from, "%s", in_root("data"));
    snprintf(to, sizeof to, "%s", in_root("elsewhere"));
    assert_int_equal(rename(from, to), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", to);
    out = fopen(path, "w");
    assert_non_null(out);
    fclose(out);
    data = "elsewhere";
    const int code = run_child("copied", 0);
    char *b = text_of("copied");
    data = "data";
    assert_int_equal(remove(path), 0);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(code, 20 + 2);
    char *a = text_of("straight");
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* A run that was killed before its first checkpoint, and a results file whose last line is torn. */
static void torn(void **state) {
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/tiny/results.jsonl", in_root("straight"));
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fprintf(file, "{\"arm\":\"mh");
    fclose(file);
    assert_int_equal(run_child("straight", 0), 20);
    mhla_lab *lab = NULL;
    file = fopen(path, "a"); /* on a line of its own it is damage, not a tear */
    fprintf(file, "\n{\"arm\":\"mhla\",\"key\":\"k\",\"seed\":1,\"measures\":{\"accuracy\":\"high\"}}\n");
    fclose(file);
    assert_int_equal(open_tiny(&lab, "straight", 0, 0), MHLA_EDATA);
    assert_non_null(strstr(mhla_message(), "results.jsonl"));
    assert_null(lab);
}

static void refusals(void **state) {
    (void)state;
    mhla_lab *lab = NULL;
    mhla_lab_desc d = {.size = sizeof d, .experiment = "scalling"};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EINVAL);
    assert_string_equal(mhla_message(), "\"scalling\" is not an experiment: did you mean scaling?");
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "scaling", .shuffle = 1};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EINVAL);
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "scaling", .seeds = 1000};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EINVAL);
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "scaling", .longer = 1};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EINVAL);
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "deit", .longer = 1, .quick = 1};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EINVAL);
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "heads", .data = in_root("nowhere")};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EIO);
    assert_non_null(strstr(mhla_message(), "nowhere"));
    d = (mhla_lab_desc){.size = sizeof d, .experiment = "scaling", .work = "/proc/nowhere"};
    assert_int_equal(mhla_lab_open(&lab, &d), MHLA_EIO);
    assert_null(lab);
}

/* The other forms are kept apart; nothing is learned of labels that have changed places. */
static void control(void **state) {
    (void)state;
    mhla_lab *lab = NULL;
    int finished = 0;
    mhla_lab_result r = {.size = sizeof r};
    char path[400];
    made = 0;
    ASSERT_OK(open_tiny(&lab, "control", 1, 1));
    ASSERT_OK(mhla_lab_run(lab, NULL, NULL, &finished));
    ASSERT_OK(mhla_lab_result_query(lab, &r));
    assert_true(finished && made == 4 && r.parts == 4 && r.made == 4);
    assert_int_equal(r.verdict, MHLA_VERDICT_UNDECIDED);
    assert_non_null(strstr(r.folder, "tiny-quick-shuffled"));
    ASSERT_OK(mhla_lab_write(lab, in_root("pages")));
    char *text = NULL;
    ASSERT_OK(mhla_lab_text(lab, &text)); /* who reads the verdict reads what it is worth */
    assert_non_null(strstr(text, "This is the control") ? strstr(text, "This is the quick form") : NULL);
    free(text);
    mhla_lab_free(lab);
    snprintf(path, sizeof path, "%s/tiny-quick-shuffled.md", in_root("pages"));
    text = calloc(1, 1 << 16);
    FILE *page = fopen(path, "r");
    assert_true(text && page && fread(text, 1, (1 << 16) - 1, page) > 0);
    fclose(page);
    assert_non_null(strstr(text, " --data data --out")); /* the folder that was given, not what is usually taken */
    assert_non_null(strstr(text, "* data: data, SHA-256"));
    free(text);
    snprintf(path, sizeof path, "%s/tiny-quick-shuffled-1.svg", in_root("pages"));
    assert_int_equal(access(path, R_OK), 0);
}

/* Labels change places, and none gets lost. */
static void labels(void **state) {
    (void)state;
    mhla_dataset *a = NULL, *b = NULL;
    int before[4] = {0}, after[4] = {0}, moved = 0;
    ASSERT_OK(mhla_dataset_open(&a, in_root("data"), MHLA_SPLIT_TRAIN));
    ASSERT_OK(mhla_dataset_open(&b, in_root("data"), MHLA_SPLIT_TRAIN));
    ASSERT_OK(mhla_dataset_shuffle(b, 5));
    for (int64_t i = 0; i < mhla_dataset_count(a); i++) {
        before[mhla_dataset_label(a, i)]++;
        after[mhla_dataset_label(b, i)]++;
        moved += mhla_dataset_label(a, i) != mhla_dataset_label(b, i);
    }
    assert_memory_equal(before, after, sizeof before);
    assert_true(moved > 200); /* of 320, three quarters are expected to */
    mhla_dataset_free(a);
    mhla_dataset_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on), cmocka_unit_test(moved),
        cmocka_unit_test(copied),  cmocka_unit_test(search), /* first: they fork */
        cmocka_unit_test(torn),    cmocka_unit_test(refusals),
        cmocka_unit_test(control), cmocka_unit_test(labels),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
