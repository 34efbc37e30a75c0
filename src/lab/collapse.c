/* Parts of the collapse experiment: a trained DeiT, and what its attention matrices are like: rank, effective rank, entropy. */
#include <math.h>
#include <mhla/analysis.h>

#include "core/status.h"
#include "lab/lab.h"

static void tell_done(void *user, int64_t done, int64_t all) { mhla_part_tell(user, done, all); }

/* Means over layers and heads. They see the same pictures, so that the error of the mean is taken as that of one of them. */
static mhla_status put_means(mhla_lab_part *part, const mhla_analysis *a) {
    mhla_analysis_info info = {.size = sizeof info};
    MHLA_TRY(mhla_analysis_query(a, &info));
    double rank = 0.0, rank_error = 0.0, effective = 0.0, effective_error = 0.0, entropy = 0.0, entropy_error = 0.0,
           bound = 0.0, clipped = 0.0;
    const double n = (double)info.layers * info.heads;
    for (int layer = 0; layer < info.layers; layer++)
        for (int head = 0; head < info.heads; head++) {
            mhla_head_analysis h = {.size = sizeof h};
            MHLA_TRY(mhla_analysis_head(a, layer, head, &h));
            rank += h.rank / n;
            rank_error += h.rank_deviation / n;
            effective += h.effective_rank / n;
            effective_error += h.effective_rank_deviation / n;
            entropy += h.entropy / n;
            entropy_error += h.entropy_deviation / n;
            bound += (double)h.bound / n;
            clipped += h.clipped / n;
        }
    const double ranked = sqrt((double)info.rank_samples), seen = sqrt((double)info.samples);
    MHLA_TRY(mhla_part_put(part, "rank", rank, rank_error / ranked));
    MHLA_TRY(mhla_part_put(part, "effective", effective, effective_error / ranked));
    MHLA_TRY(mhla_part_put(part, "entropy", entropy, entropy_error / seen));
    MHLA_TRY(mhla_part_put(part, "clipped", clipped, NAN));
    return mhla_part_put(part, "bound", bound, 0.0);
}

mhla_status mhla_part_collapse(mhla_lab_part *part) {
    char run[MHLA_LAB_PATH], path[MHLA_LAB_PATH + 16];
    mhla_model *model = NULL;
    mhla_analysis *analysis = NULL;
    MHLA_TRY(mhla_part_train(part, run));
    if (*run == '\0') return MHLA_OK;
    MHLA_TRY(mhla_part_accuracy(part, run));
    snprintf(path, sizeof path, "%s/last", run);
    MHLA_TRY(mhla_model_open_weights(&model, path, "raw"));
    if (part->lab->context) mhla_model_set_context(model, part->lab->context);
    const mhla_analysis_desc d = {.size = sizeof d,
                                  .data = part->lab->source,
                                  .split = "test",
                                  .samples = mhla_part_number(part, "lab.samples"),
                                  .rank_samples = mhla_part_number(part, "lab.ranked"),
                                  .maps = -1,
                                  .progress = tell_done,
                                  .user = part};
    mhla_status status = mhla_analysis_create(&analysis, model, &d);
    if (status == MHLA_OK) status = put_means(part, analysis);
    mhla_analysis_free(analysis);
    mhla_model_free(model);
    return status;
}
