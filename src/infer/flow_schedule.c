/* A scheduler_config.json as diffusers writes it: which of our samplers it means. Every key that would change a picture is checked, because
 * a scheduler that is nearly the right one makes pictures that are nearly right. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "infer/pipeline.h"

/* A key, and the only value of it that is known here. */
typedef struct rule {
    const char *key;
    const char *text; /* strings; numbers and booleans by `number` */
    double number;
    json_type type;
    int needed; /* a file without the key means another value */
} rule;

#define TEXT(key, value, needed)                                                                                       \
    { key, value, 0.0, JSON_STRING, needed }
#define NUMBER(key, value)                                                                                             \
    { key, NULL, value, JSON_INTEGER, 0 }
#define NO(key)                                                                                                        \
    { key, NULL, 0.0, JSON_FALSE, 0 }
#define YES(key, needed)                                                                                               \
    { key, NULL, 1.0, JSON_TRUE, needed }

static const rule dpm[] = {TEXT("prediction_type", "flow_prediction", 1),
                           YES("use_flow_sigmas", 1),
                           TEXT("algorithm_type", "dpmsolver++", 0),
                           TEXT("solver_type", "midpoint", 0),
                           TEXT("final_sigmas_type", "zero", 0),
                           NUMBER("solver_order", 2),
                           NUMBER("num_train_timesteps", 1000),
                           NO("thresholding"),
                           NO("use_karras_sigmas"),
                           NO("use_exponential_sigmas"),
                           NO("use_beta_sigmas"),
                           NO("use_lu_lambdas"),
                           NO("use_dynamic_shifting"),
                           {0}};
static const rule unipc[] = {TEXT("prediction_type", "flow_prediction", 1),
                             YES("use_flow_sigmas", 1),
                             YES("predict_x0", 0),
                             TEXT("solver_type", "bh2", 0),
                             TEXT("final_sigmas_type", "zero", 0),
                             NUMBER("solver_order", 2),
                             NUMBER("num_train_timesteps", 1000),
                             NO("thresholding"),
                             NO("use_karras_sigmas"),
                             NO("use_exponential_sigmas"),
                             NO("use_beta_sigmas"),
                             NO("rescale_betas_zero_snr"),
                             NO("use_dynamic_shifting"),
                             {0}};
static const rule euler[] = {NUMBER("num_train_timesteps", 1000),
                             NO("use_dynamic_shifting"),
                             NO("use_karras_sigmas"),
                             NO("use_exponential_sigmas"),
                             NO("use_beta_sigmas"),
                             NO("invert_sigmas"),
                             NO("stochastic_sampling"),
                             {0}};

static const struct {
    const char *name, *method, *shift;
    const rule *rules;
} classes[] = {{"DPMSolverMultistepScheduler", "dpm++", "flow_shift", dpm},
               {"UniPCMultistepScheduler", "unipc", "flow_shift", unipc},
               {"FlowMatchEulerDiscreteScheduler", "euler", "shift", euler}};
enum { CLASSES = sizeof classes / sizeof *classes };

static mhla_status check(const rule *r, const json_t *tree, const char *path) {
    char wanted[64], found[104] = "absent";
    const json_t *value = json_object_get(tree, r->key);
    if (value == NULL || json_is_null(value)) {
        if (!r->needed) return MHLA_OK;
    } else if (r->type == JSON_STRING) {
        if (json_is_string(value) && strcmp(json_string_value(value), r->text) == 0) return MHLA_OK;
    } else if (r->type == JSON_INTEGER ? json_is_number(value) && json_number_value(value) == r->number
                                       : json_typeof(value) == r->type) {
        return MHLA_OK;
    }
    if (r->type == JSON_STRING)
        snprintf(wanted, sizeof wanted, "\"%s\"", r->text);
    else if (r->type == JSON_INTEGER)
        snprintf(wanted, sizeof wanted, "%g", r->number);
    else
        snprintf(wanted, sizeof wanted, "%s", r->type == JSON_TRUE ? "true" : "false");
    if (json_is_string(value)) snprintf(found, sizeof found, "%s", MHLA_QUOTE(json_string_value(value)));
    if (json_is_number(value)) snprintf(found, sizeof found, "%g", json_number_value(value));
    if (json_is_boolean(value)) snprintf(found, sizeof found, "%s", json_is_true(value) ? "true" : "false");
    return mhla_fail(MHLA_ENOTSUP, "%s: \"%s\" is %s: only %s is supported", path, r->key, found, wanted);
}

mhla_status mhla_flow_schedule_read(mhla_flow_schedule *schedule, const char *path) {
    json_t *tree = NULL;
    int k = 0;
    double shift = 1.0;
    MHLA_TRY(mhla_json_load(&tree, path));
    const char *name = json_string_value(json_object_get(tree, "_class_name"));
    while (k < CLASSES && !(name && strcmp(name, classes[k].name) == 0)) k++;
    mhla_status status = MHLA_OK;
    if (k == CLASSES)
        status = mhla_fail(MHLA_ENOTSUP,
                           "%s: scheduler %s is not known: %s, %s and %s are; --sampler and --shift choose one "
                           "without this file",
                           path, name ? MHLA_QUOTE(name) : "without _class_name", classes[0].name, classes[1].name,
                           classes[2].name);
    for (const rule *r = k < CLASSES ? classes[k].rules : NULL; r && r->key && status == MHLA_OK; r++)
        status = check(r, tree, path);
    if (status == MHLA_OK) status = mhla_json_get_real(&shift, tree, classes[k].shift, path);
    if (status == MHLA_OK && !(shift >= 0.01 && shift <= 100.0))
        status = mhla_fail(MHLA_EDATA, "%s: %s is %g: expected 0.01 to 100", path, classes[k].shift, shift);
    if (status == MHLA_OK) {
        snprintf(schedule->method, sizeof schedule->method, "%s", classes[k].method);
        schedule->shift = shift;
    }
    json_decref(tree);
    return status;
}
