/* An experiment from its name to its results: opening, making what is missing, part after part, and stopping. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/status.h"
#include "dist/dist.h"
#include "file/file.h"
#include "lab/lab.h"
#include "train/train.h"

/* ---- What there is ---- */

mhla_status mhla_experiment_find(const mhla_experiment **experiment, const char *name) {
    mhla_nearest nearest = mhla_nearest_begin(name);
    char names[256] = "";
    *experiment = NULL;
    for (int i = 0; i < mhla_experiment_count; i++) {
        if (strcmp(mhla_experiments[i].info.name, name) == 0) *experiment = &mhla_experiments[i];
        mhla_nearest_offer(&nearest, mhla_experiments[i].info.name);
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", mhla_experiments[i].info.name);
    }
    if (*experiment) return MHLA_OK;
    if (nearest.best)
        return mhla_fail(MHLA_EINVAL, "%s is not an experiment: did you mean %s?", MHLA_QUOTE(name), nearest.best);
    return mhla_fail(MHLA_EINVAL, "%s is not an experiment: expected one of %s", MHLA_QUOTE(name), names);
}

mhla_status mhla_lab_query(int i, mhla_lab_info *info) {
    if (i < 0 || i >= mhla_experiment_count) return MHLA_ERANGE;
    const mhla_experiment *e = &mhla_experiments[i];
    mhla_lab_info full = e->info;
    while (full.arms < MHLA_LAB_ARMS && e->arms[full.arms].name) full.arms++;
    full.seeds = mhla_experiment_seeds(e, 0);
    return mhla_struct_out(info, &full, sizeof full, "mhla_lab_info");
}

/* ---- The data ---- */

static mhla_status find_data(mhla_lab *lab, const char *given) {
    const char *name = lab->experiment->info.data;
    char digits[65];
    struct stat info;
    if (name == NULL) return MHLA_OK;
    MHLA_TRY(mhla_data_locate(lab->source, sizeof lab->source, given ? given : name));
    if (stat(lab->source, &info) != 0 || !S_ISDIR(info.st_mode))
        return mhla_fail(MHLA_EIO, "%s: the data of this experiment is missing; mhla data %s downloads it", lab->source,
                         name);
    MHLA_TRY(mhla_data_whole_path(lab->source, sizeof lab->source)); /* runs go on from anywhere */
    snprintf(lab->data_name, sizeof lab->data_name, "%.63s", given ? strrchr(lab->source, '/') + 1 : name);
    MHLA_TRY(mhla_data_sum(digits, lab->source));
    snprintf(lab->data_sum, sizeof lab->data_sum, "%s", digits);
    return MHLA_OK;
}

/* ---- Opening ---- */

static mhla_status describe_machine(mhla_lab *lab) {
    mhla_cpu_info cpu = {.size = sizeof cpu};
    MHLA_TRY(mhla_cpu_query(&cpu));
    const int threads = lab->context ? mhla_context_threads(lab->context) : cpu.threads;
    snprintf(lab->machine, sizeof lab->machine, "%.80s, %d thread%s, %s kernels", cpu.model, threads,
             threads == 1 ? "" : "s", cpu.isa);
    return MHLA_OK;
}

static mhla_status open_lab(mhla_lab *lab, const mhla_lab_desc *d) {
    const mhla_lab_info *info = &lab->experiment->info;
    lab->quick = d->quick != 0;
    lab->shuffle = d->shuffle != 0;
    lab->context = d->context;
    lab->longer = d->longer != 0;
    lab->seeds = d->seeds ? d->seeds : mhla_experiment_seeds(lab->experiment, lab->quick);
    if (lab->seeds < 1 || lab->seeds > MHLA_LAB_SEEDS)
        return mhla_fail(MHLA_EINVAL, "seeds is %d: expected 1 to %d", d->seeds, MHLA_LAB_SEEDS);
    if (lab->shuffle && !info->labels) return mhla_fail(MHLA_EINVAL, "%s has no labels to shuffle", info->name);
    if (lab->longer && lab->quick) return mhla_fail(MHLA_EINVAL, "a run is either quick or long");
    if (lab->longer && lab->experiment->long_settings == NULL)
        return mhla_fail(MHLA_EINVAL, "%s has no long form", info->name);
    snprintf(lab->name, sizeof lab->name, "%s%s%s%s", info->name, lab->quick ? "-quick" : "",
             lab->longer ? "-long" : "", lab->shuffle ? "-shuffled" : "");
    if (snprintf(lab->work, sizeof lab->work, "%s", d->work ? d->work : "runs/reproduce") >=
        (int)sizeof lab->work - 128)
        return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", d->work);
    snprintf(lab->folder, sizeof lab->folder, "%.*s/%s", (int)sizeof lab->work - 128, lab->work, lab->name);
    if (d->program)
        snprintf(lab->program, sizeof lab->program, "%s", d->program);
    else
        snprintf(lab->program, sizeof lab->program, "mhla %s", mhla_version());
    MHLA_TRY(describe_machine(lab));
    MHLA_TRY(find_data(lab, d->data));
    MHLA_TRY(mhla_folder_make(lab->folder));
    return mhla_results_read(lab);
}

mhla_status mhla_lab_open(mhla_lab **lab, const mhla_lab_desc *desc) {
    mhla_lab_desc d = {.size = sizeof d};
    const mhla_experiment *e;
    *lab = NULL;
    MHLA_TRY(mhla_struct_in(&d, sizeof d, desc, "mhla_lab_desc"));
    MHLA_TRY(mhla_experiment_find(&e, d.experiment ? d.experiment : ""));
    return mhla_experiment_open(lab, e, &d);
}

mhla_status mhla_experiment_open(mhla_lab **lab, const mhla_experiment *experiment, const mhla_lab_desc *d) {
    *lab = NULL;
    mhla_lab *l = calloc(1, sizeof *l);
    if (l == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an experiment");
    l->experiment = experiment;
    const mhla_status status = open_lab(l, d);
    if (status != MHLA_OK) {
        mhla_lab_free(l);
        return status;
    }
    *lab = l;
    return MHLA_OK;
}

void mhla_lab_free(mhla_lab *lab) {
    if (lab == NULL) return;
    mhla_results_free(lab);
    free(lab);
}

/* ---- Running ---- */

static int count_parts(const mhla_lab *lab) {
    int n = 0;
    for (int i = 0; i < MHLA_LAB_ARMS && lab->experiment->arms[i].name; i++)
        n += mhla_experiment_has(lab->experiment, i, lab->quick);
    return n * lab->seeds;
}

static void tell(const mhla_lab *lab, mhla_lab_kind kind, int arm, int seed, int64_t done, int64_t all,
                 const char *text) {
    const mhla_lab_event e = {.size = sizeof e,
                              .kind = kind,
                              .part = lab->part,
                              .parts = lab->parts,
                              .arm = lab->experiment->arms[arm].name,
                              .seed = seed,
                              .done = done,
                              .all = all,
                              .text = text};
    if (lab->report) lab->report(lab->user, &e);
}

void mhla_part_tell(const mhla_lab_part *part, int64_t done, int64_t all) {
    tell(part->lab, MHLA_LAB_STEP, part->arm, part->seed, done, all, "");
}

/* "accuracy 85.61, loss 0.397": the columns of the table. */
static void say_measures(const mhla_lab_part *part, char *text, size_t size) {
    const mhla_lab_column *c = part->lab->experiment->columns;
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < MHLA_LAB_COLUMNS && c[i].measure; i++) {
        const json_t *value = json_object_get(part->measures, c[i].measure);
        if (value == NULL || used >= size) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s %.*f", used ? "; " : "", c[i].title, c[i].digits,
                                 (c[i].scale == 0.0 ? 1.0 : c[i].scale) * json_number_value(value));
    }
}

static mhla_status make_part(mhla_lab *lab, int arm, int seed) {
    mhla_lab_part part;
    char text[512];
    const double begin = mhla_seconds();
    mhla_status status = mhla_part_begin(&part, lab, arm, seed);
    if (status == MHLA_OK) tell(lab, MHLA_LAB_PART, arm, seed, 0, 0, "");
    if (status == MHLA_OK && lab->experiment->prepare) status = lab->experiment->prepare(&part);
    if (status == MHLA_OK) status = mhla_part_search(&part);
    if (status == MHLA_OK && !lab->stop) status = lab->experiment->make(&part);
    if (status == MHLA_OK && !lab->stop) status = mhla_results_add(lab, &part, mhla_seconds() - begin);
    if (status == MHLA_OK && !lab->stop) {
        say_measures(&part, text, sizeof text);
        tell(lab, MHLA_LAB_DONE, arm, seed, 0, 0, text);
    }
    mhla_part_end(&part);
    return status;
}

/* Seed after seed, so that a run that was stopped has a whole row of arms as early as possible. Of several ranks each makes its share. */
static mhla_status run_parts(mhla_lab *lab, int rank, int ranks) {
    for (int seed = 1; seed <= lab->seeds; seed++)
        for (int arm = 0; arm < MHLA_LAB_ARMS && lab->experiment->arms[arm].name; arm++) {
            if (!mhla_experiment_has(lab->experiment, arm, lab->quick)) continue;
            if (lab->part++ % ranks != rank || mhla_results_find(lab, arm, seed)) continue;
            MHLA_TRY(make_part(lab, arm, seed));
            if (lab->stop) return MHLA_OK;
        }
    return MHLA_OK;
}

/* What all parts share is made by one rank while the others wait. */
static mhla_status prepare(mhla_lab *lab) {
    mhla_lab_part part;
    if (lab->experiment->prepare == NULL) return MHLA_OK;
    mhla_status status = mhla_part_begin(&part, lab, 0, 1);
    for (int arm = 0; status == MHLA_OK && arm < MHLA_LAB_ARMS && lab->experiment->arms[arm].name; arm++) {
        mhla_part_end(&part);
        status = mhla_part_begin(&part, lab, arm, 1);
        if (status == MHLA_OK) status = lab->experiment->prepare(&part);
    }
    mhla_part_end(&part);
    return status;
}

/* The parts are dealt out to the ranks. Each makes its own as one process would: trainings, with the bytes of one process. */
static mhla_status share_parts(mhla_lab *lab) {
    const int rank = mhla_dist_rank(), ranks = mhla_dist_ranks();
    if (ranks == 1) return run_parts(lab, 0, 1);
    mhla_dist_alone();
    mhla_status status = rank == 0 ? prepare(lab) : MHLA_OK;
    mhla_dist_together();
    MHLA_TRY(mhla_dist_agree(status));
    lab->shared = 1;
    mhla_dist_alone();
    status = run_parts(lab, rank, ranks);
    mhla_dist_together();
    MHLA_TRY(mhla_dist_agree(status));
    return mhla_dist_agree(mhla_results_read(lab)); /* also those of the others */
}

static mhla_status compare_ranks(const mhla_lab *lab) {
    char *text = NULL, *folder = realpath(lab->folder, NULL);
    if (asprintf(&text, "%s, %d seeds, %d parts made, data %.12s, folder %s", lab->name, lab->seeds, lab->count,
                 lab->data_sum, folder ? folder : lab->folder) < 0)
        text = NULL;
    mhla_status status = mhla_dist_agree(text ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for an experiment"));
    if (status == MHLA_OK) status = mhla_dist_same("the experiment", text);
    free(folder);
    free(text);
    return status;
}

static mhla_status take_folder(const mhla_lab *lab, int *lock) {
    char path[4096];
    *lock = -1;
    if (access(lab->folder, W_OK) != 0) return mhla_fail(MHLA_EIO, "%s: %s", lab->folder, strerror(errno));
    if (mhla_dist_rank() > 0) return MHLA_OK;
    snprintf(path, sizeof path, "%s/lock", lab->work);
    *lock = open(path, O_CREAT | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (*lock < 0) return mhla_fail(MHLA_EIO, "%s: %s", path, strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0)
        return MHLA_OK; /* the system lets go of it when a process ends, however that happens */
    close(*lock);
    *lock = -1;
    return mhla_fail(MHLA_EIO, "%s: another experiment is running in this folder", lab->work);
}

mhla_status mhla_lab_run(mhla_lab *lab, mhla_lab_fn report, void *user, int *finished) {
    int lock = -1;
    *finished = 0;
    if (mhla_dist_ranks() > 1 && lab->experiment->timed)
        return mhla_fail(MHLA_EINVAL, "%s measures times: it runs in one process", lab->experiment->info.name);
    MHLA_TRY(compare_ranks(lab));
    *finished = lab->count == count_parts(lab);
    if (*finished) return MHLA_OK; /* also where nothing can be written */
    lab->report = report;
    lab->user = user;
    lab->part = 0;
    lab->parts = count_parts(lab);
    mhla_status status = mhla_dist_agree(take_folder(lab, &lock));
    if (status == MHLA_OK)
        status = mhla_dist_agree(mhla_results_read(lab)); /* of the one that had the folder before us */
    if (status == MHLA_OK) status = share_parts(lab);
    if (lock >= 0) close(lock);
    *finished = status == MHLA_OK && lab->count == lab->parts;
    return status;
}

int mhla_lab_stop(mhla_lab *lab) {
    mhla_trainer *trainer = lab->trainer;
    lab->stop = 1;
    if (trainer) mhla_trainer_stop(trainer);
    return trainer != NULL;
}

mhla_status mhla_lab_result_query(mhla_lab *lab, mhla_lab_result *result) {
    mhla_judgement judgements[MHLA_LAB_CLAIMS];
    mhla_lab_result full = {.parts = count_parts(lab), .made = lab->count, .folder = lab->folder};
    mhla_judge(lab, judgements, &full.verdict);
    return mhla_struct_out(result, &full, sizeof full, "mhla_lab_result");
}
