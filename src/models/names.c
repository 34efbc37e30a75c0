/* What models of images share: the names of their classes, config.json as text. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "models/model.h"

void mhla_names_free(char **names, int count) {
    for (int i = 0; names && i < count; i++) free(names[i]);
    free(names);
}

char **mhla_names_copy(char *const *names, int count) {
    char **copy = names ? calloc((size_t)count, sizeof *copy) : NULL;
    for (int i = 0; copy && i < count; i++)
        if ((copy[i] = strdup(names[i])) == NULL) {
            mhla_names_free(copy, count);
            return NULL;
        }
    return copy;
}

mhla_status mhla_names_read(char ***names, const json_t *list, int classes, const char *path) {
    *names = NULL;
    if (list == NULL) return MHLA_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)classes)
        return mhla_fail(MHLA_EDATA, "%s: class_names is no list of %d texts", path, classes);
    char **copy = calloc((size_t)classes + 1, sizeof *copy);
    for (int i = 0; copy && i < classes; i++) {
        const char *text = json_string_value(json_array_get(list, (size_t)i));
        copy[i] = text ? strdup(text) : NULL;
        if (copy[i] == NULL) {
            mhla_names_free(copy, classes);
            return mhla_fail(MHLA_EDATA, "%s: class_names[%d] is no text", path, i);
        }
    }
    if (copy == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for %d names", classes);
    *names = copy;
    return MHLA_OK;
}

char *mhla_config_text(json_t *tree, char *const *names, int classes) {
    if (tree && names) {
        json_t *list = json_array();
        for (int i = 0; i < classes; i++) json_array_append_new(list, json_string(names[i]));
        json_object_set_new(tree, "class_names", list);
    }
    char *text = tree ? json_dumps(tree, JSON_INDENT(2)) : NULL;
    json_decref(tree);
    return text;
}

mhla_status mhla_config_fits(const mhla_safetensors *file, double least) {
    double held = 0.0;
    for (int64_t i = 0; i < mhla_safetensors_count(file); i++) held += (double)mhla_safetensors_at(file, i)->count;
    if (least <= held || least < 0x1p28) return MHLA_OK;
    return mhla_fail(MHLA_EDATA, "%s: %.0f numbers in all; the model that config.json describes has %.0f or more",
                     mhla_safetensors_path(file), held, least);
}

const char *mhla_model_class_name(const mhla_model *m, int i) {
    int classes = 0;
    if (m->deit) classes = mhla_deit_config_of(m->deit)->classes;
    if (m->dit) classes = mhla_dit_config_of(m->dit)->classes;
    return m->class_names && i >= 0 && i < classes ? m->class_names[i] : NULL;
}
