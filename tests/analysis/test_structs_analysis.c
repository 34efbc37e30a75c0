/* Every call of analysis.h that takes or fills a struct with a size: see structs.h. */
#include "structs.h"

#include <mhla/analysis.h>

#include "file/npy.h"
#include "folders.h"

enum { PICTURES = 3, SIDE = 8 };

static char folder[40], data[64];
static mhla_context *context;
static mhla_model *model;
static mhla_analysis *analysis;

static mhla_status mhla_analysis_create__mhla_analysis_desc(void *given) {
    mhla_analysis *a = NULL;
    const mhla_status status = mhla_analysis_create(&a, model, given);
    mhla_analysis_free(a);
    return status;
}
static mhla_status mhla_analysis_query__mhla_analysis_info(void *given) { return mhla_analysis_query(analysis, given); }
static mhla_status mhla_analysis_head__mhla_head_analysis(void *given) {
    return mhla_analysis_head(analysis, 0, 0, given);
}
static mhla_status mhla_analysis_mix__mhla_mix_analysis(void *given) { return mhla_analysis_mix(analysis, 0, given); }

static void every_size(void **state) {
    (void)state;
    static const mhla_analysis_desc desc = {.size = sizeof desc, .data = data, .samples = 2, .maps = -1};
    ASSERT_OK(mhla_analysis_create(&analysis, model, &desc));
    const struct_case rows[] = {
        TAKES(mhla_analysis_create, mhla_analysis_desc, .value = &desc),
        FILLS(mhla_analysis_query, mhla_analysis_info),
        FILLS(mhla_analysis_head, mhla_head_analysis),
        FILLS(mhla_analysis_mix, mhla_mix_analysis),
    };
    STRUCTS_TRY(rows);
    mhla_analysis_free(analysis);
}

static int begin(void **state) {
    (void)state;
    static unsigned char pixels[PICTURES * SIDE * SIDE];
    const int64_t shape[] = {PICTURES, SIDE, SIDE};
    const char *settings[] = {"image=8,8", "channels=1", "padding=0,0", "patch=2", "dim=16", "depth=1", "classes=4"};
    rng r = {9};
    new_folder(folder);
    snprintf(data, sizeof data, "%s/pictures.npy", folder);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)rng_below(&r, 256);
    ASSERT_OK(mhla_npy_write(data, MHLA_IO_U8, 3, shape, pixels));
    ASSERT_OK(mhla_model_create(&model, "deit_nano", settings, 7, 1));
    context = new_context(1);
    mhla_model_set_context(model, context);
    return 0;
}

static int end(void **state) {
    (void)state;
    mhla_model_free(model);
    mhla_context_free(context);
    remove_folder(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size)};
    return cmocka_run_group_tests(tests, begin, end);
}
