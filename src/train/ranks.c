/* A run on several processes: how the batch is cut, whether all of them train the same, what they tell each other in a step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/hash.h"
#include "core/status.h"
#include "dist/dist.h"
#include "file/file.h"
#include "file/sha256.h"
#include "train/train.h"

enum { PARTS = 8, PATH = 4096 };

mhla_status mhla_ranks_cut(mhla_trainer *t, int old) {
    const int ranks = mhla_dist_ranks();
    char text[24];
    t->parts = mhla_recipe_int(t->recipe, "train.parts");
    if (t->parts == 0) t->parts = !old && mhla_dist_launched() ? PARTS : 1;
    if (ranks > t->parts)
        return mhla_fail(
            MHLA_EINVAL,
            "%d ranks, but train.parts is %lld: the batch of %s is cut into as many parts, and a rank needs "
            "one. Start at most %lld rank%s%s",
            ranks, (long long)t->parts, old ? "this run" : "the recipe", (long long)t->parts, t->parts == 1 ? "" : "s",
            old ? "" : ", or set train.parts");
    const int64_t accumulate = mhla_recipe_int(t->recipe, "train.accumulate");
    t->pieces = (accumulate + t->parts - 1) / t->parts;
    snprintf(text, sizeof text, "%lld", (long long)t->parts);
    return mhla_recipe_set(t->recipe, "train.parts", text);
}

void mhla_ranks_rows(const mhla_trainer *t, int64_t rows, int64_t *first, int64_t *last) {
    *first = 0;
    *last = rows;
    if (mhla_dist_ranks() == 1 || t->parts == 0) return;
    mhla_parts_own(t->parts, mhla_dist_rank(), mhla_dist_ranks(), first, last);
    *first = *first * rows / t->parts;
    *last = *last * rows / t->parts;
}

/* ---- Do all train the same? Rank 0 says what it has, the others compare. ---- */

static mhla_status spread_text(char **text, const char *mine) {
    int64_t size = mhla_dist_rank() == 0 ? (int64_t)strlen(mine) + 1 : 0;
    MHLA_TRY(mhla_dist_spread(&size, sizeof size, 0));
    if ((*text = malloc((size_t)size)) == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to compare ranks");
    if (mhla_dist_rank() == 0) memcpy(*text, mine, (size_t)size);
    return mhla_dist_spread(*text, (size_t)size, 0);
}

/* What does not show in the result: how data is read, and where it lies. */
static int may_differ(const char *section, const char *key) {
    return strcmp(section, "data") == 0 && (strcmp(key, "workers") == 0 || strcmp(key, "source") == 0);
}

static mhla_status differ(const char *section, const char *key, const json_t *mine, const json_t *first) {
    char *a = mine ? json_dumps(mine, JSON_ENCODE_ANY | JSON_COMPACT) : NULL,
         *b = first ? json_dumps(first, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const mhla_status status =
        mhla_fail(MHLA_EINVAL, "%s%s%s is %s, at rank 0 it is %s: all ranks need the same recipe", section,
                  *section ? "." : "", key, a ? a : "not set", b ? b : "not set");
    free(a);
    free(b);
    return status;
}

static mhla_status compare_trees(const char *section, json_t *mine, json_t *first) {
    const char *key;
    json_t *value;
    json_object_foreach(first, key, value) {
        json_t *own = json_object_get(mine, key);
        if (json_is_object(value) && json_is_object(own))
            MHLA_TRY(compare_trees(key, own, value));
        else if (!json_equal(own, value) && !may_differ(section, key))
            return differ(section, key, own, value);
    }
    json_object_foreach(mine, key, value) if (json_object_get(first, key) == NULL) return differ(section, key, value,
                                                                                                 NULL);
    return MHLA_OK;
}

static mhla_status compare_recipes(const mhla_trainer *t) {
    json_t *mine = mhla_recipe_tree(t->recipe), *other = NULL;
    char *own = mine ? json_dumps(mine, JSON_COMPACT) : NULL, *first = NULL;
    mhla_status status = mhla_dist_agree(own ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory to compare recipes"));
    if (status == MHLA_OK) status = spread_text(&first, own);
    if (status == MHLA_OK && (other = json_loads(first, 0, NULL)) == NULL)
        status = mhla_fail(MHLA_ENOMEM, "no memory to compare recipes");
    if (status == MHLA_OK) status = compare_trees("", mine, other);
    json_decref(mine);
    json_decref(other);
    free(own);
    free(first);
    return mhla_dist_agree(status);
}

static mhla_status sum_of(char sum[65], const char *path) {
    struct stat info;
    mhla_file file;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return mhla_data_sum(sum, path);
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_sha256_of(file.data, file.size, sum);
    mhla_file_unmap(&file);
    return MHLA_OK;
}

/* One path on one host is one folder; else its contents count. */
static mhla_status compare_data(const mhla_trainer *t) {
    struct place {
        char host[128], path[PATH], sum[65];
    } mine = {0}, first;
    char located[MHLA_RUN_PATH], *real = NULL;
    const char *source = mhla_recipe_text(t->recipe, "data.source");
    mhla_status status = mhla_data_locate(located, sizeof located, source);
    if (status == MHLA_OK) real = realpath(located, NULL);
    snprintf(mine.host, sizeof mine.host, "%s", mhla_dist_host());
    snprintf(mine.path, sizeof mine.path, "%s", real ? real : source);
    free(real);
    MHLA_TRY(mhla_dist_agree(status));
    first = mine;
    MHLA_TRY(mhla_dist_spread(&first, sizeof first, 0));
    unsigned char elsewhere = strcmp(first.host, mine.host) != 0 || strcmp(first.path, mine.path) != 0, any = 0;
    unsigned char *all = malloc((size_t)mhla_dist_ranks());
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory to compare ranks");
    status = mhla_dist_gather_all(all, &elsewhere, 1);
    for (int r = 0; r < mhla_dist_ranks(); r++) any |= all[r];
    free(all);
    MHLA_TRY(status);
    if (!any) return MHLA_OK;
    if (elsewhere || mhla_dist_rank() == 0) status = sum_of(mine.sum, mine.path);
    MHLA_TRY(mhla_dist_agree(status));
    memcpy(first.sum, mine.sum, sizeof first.sum);
    MHLA_TRY(mhla_dist_spread(&first, sizeof first, 0));
    if (elsewhere && strcmp(first.sum, mine.sum) != 0)
        status = mhla_fail(MHLA_EDATA,
                           "the data in %s on %s (SHA-256 %.12s..) are not those of rank 0 in %s on %s (%.12s..)",
                           mine.path, mine.host, mine.sum, first.path, first.host, first.sum);
    return mhla_dist_agree(status);
}

/* FNV-1a over words: for equality, not against malice. */
static uint64_t hash_floats(uint64_t h, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

static mhla_status compare_weights(const mhla_trainer *t) {
    const mhla_params *ps = t->model->params;
    uint64_t mine[3] = {0xcbf29ce484222325u, (uint64_t)t->step, (uint64_t)t->steps}, first[3];
    for (int i = 0; i < mhla_params_count(ps); i++) {
        const mhla_param *p = mhla_params_at(ps, i);
        mine[0] = hash_floats(mine[0], p->data, p->count);
        if (t->ema) mine[0] = hash_floats(mine[0], mhla_ema_data(t->ema, i), p->count);
    }
    memcpy(first, mine, sizeof first);
    MHLA_TRY(mhla_dist_spread(first, sizeof first, 0));
    mhla_status status = MHLA_OK;
    if (first[1] != mine[1] || first[2] != mine[2])
        status = mhla_fail(MHLA_EDATA,
                           "it is at step %lld of %lld, rank 0 at %lld of %lld: do they see the same run and data?",
                           (long long)mine[1], (long long)mine[2], (long long)first[1], (long long)first[2]);
    else if (first[0] != mine[0])
        status = mhla_fail(MHLA_EDATA,
                           "its weights at the start are not those of rank 0: train.init, the checkpoint or the "
                           "C library of %s differ",
                           mhla_dist_host());
    return mhla_dist_agree(status);
}

mhla_status mhla_ranks_compare(const mhla_trainer *t) {
    if (mhla_dist_ranks() == 1) return MHLA_OK;
    MHLA_TRY(compare_recipes(t));
    MHLA_TRY(compare_data(t));
    MHLA_TRY(compare_weights(t));
    char text[2 * MHLA_RUN_PATH];
    snprintf(text, sizeof text, "Resume from the last checkpoint, with any number of ranks: mhla train --resume %s",
             t->run);
    mhla_dist_advise(text);
    return MHLA_OK;
}

/* ---- In a step ---- */

typedef struct found {
    int64_t right;
    int32_t stop, save_due;
} found;

mhla_status mhla_ranks_meet(mhla_trainer *t, mhla_status mine, const double *losses, double *loss) {
    const int ranks = mhla_dist_ranks();
    int64_t first, last;
    MHLA_TRY(mhla_dist_agree(mine));
    const size_t most = (size_t)((t->parts + ranks - 1) / ranks) + 1, each = sizeof(found) + most * sizeof(double);
    char *own = calloc(1, each), *all = malloc((size_t)ranks * each);
    double *list = malloc((size_t)t->parts * sizeof *list);
    mhla_status status = own && all && list ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the losses of a batch");
    if (status == MHLA_OK) {
        const found f = {t->right, t->stop != 0, t->save_due};
        mhla_parts_own(t->parts, mhla_dist_rank(), ranks, &first, &last);
        memcpy(own, &f, sizeof f);
        memcpy(own + sizeof f, losses, (size_t)(last - first) * sizeof *losses);
        status = mhla_dist_gather_all(all, own, each);
    }
    t->right = 0;
    for (int r = 0; status == MHLA_OK && r < ranks; r++) {
        found f;
        memcpy(&f, all + (size_t)r * each, sizeof f);
        mhla_parts_own(t->parts, r, ranks, &first, &last);
        memcpy(list + first, all + (size_t)r * each + sizeof f, (size_t)(last - first) * sizeof *list);
        t->right += f.right;
        t->stopping |= f.stop;
        if (r == 0) t->save_due = f.save_due;
    }
    if (status == MHLA_OK) *loss = mhla_parts_sum(list, t->parts);
    free(own);
    free(all);
    free(list);
    return status;
}

mhla_status mhla_ranks_stop(mhla_trainer *t) {
    const int ranks = mhla_dist_ranks();
    const unsigned char mine = t->stop != 0;
    unsigned char *all = malloc((size_t)ranks);
    if (all == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the state of %d ranks", ranks);
    const mhla_status status = mhla_dist_gather_all(all, &mine, 1);
    for (int r = 0; status == MHLA_OK && r < ranks; r++) t->stopping |= all[r];
    free(all);
    return status;
}

void mhla_ranks_describe(const mhla_trainer *t, char *text, size_t size) {
    const int ranks = mhla_dist_ranks(), local = mhla_dist_local(), threads = mhla_context_threads(t->context);
    const double bytes = 4.0 * (double)mhla_params_elements(t->model->params) * (ranks - 1) / ranks;
    char hosts[160];
    if (local == ranks)
        snprintf(hosts, sizeof hosts, "on %s", mhla_dist_host());
    else
        snprintf(hosts, sizeof hosts, "%d of them on %s", local, mhla_dist_host());
    snprintf(
        text, size,
        "%d ranks %s, %d thread%s each, %s; %lld parts; the optimiser's state is divided; %.1f MiB of gradients and "
        "as much of weights sent per rank and step",
        ranks, hosts, threads, threads == 1 ? "" : "s", mhla_dist_name(), (long long)t->parts, bytes / 0x1p20);
}
