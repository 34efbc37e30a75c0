/* Settings of a layer's mixer by the names of their keys: tests need no mixer's structure. */
#ifndef MHLA_TESTS_MIXER_SETTINGS_H
#define MHLA_TESTS_MIXER_SETTINGS_H

#include "models/language/lm.h"
#include "support.h"

static inline void *setting_of(mhla_lm_group *g, const char *name) {
    const mhla_setting *f = mhla_settings_find(&g->mixer->keys, name);
    assert_non_null(f);
    return (char *)&g->settings + f->at;
}
static inline void set_int(mhla_lm_group *g, const char *name, int x) { *(int *)setting_of(g, name) = x; }
static inline void set_real(mhla_lm_group *g, const char *name, double x) { *(double *)setting_of(g, name) = x; }

static inline const char *mixer_name(const mhla_lm_config *c, int layer) {
    return mhla_lm_group_of(c, layer)->mixer->name;
}
static inline int int_of(const mhla_lm_config *c, int layer, const char *name) {
    return *(const int *)setting_of((mhla_lm_group *)(uintptr_t)mhla_lm_group_of(c, layer), name);
}
static inline double real_of(const mhla_lm_config *c, int layer, const char *name) {
    return *(const double *)setting_of((mhla_lm_group *)(uintptr_t)mhla_lm_group_of(c, layer), name);
}

#endif
