/* The list of language mixers. To add one: its file, and a line here (docs/adding-a-model.md). */
#include "models/language/mixer.h"

#define MIXERS(X)                                                                                                      \
    X(mhla)                                                                                                            \
    X(linear)                                                                                                          \
    X(softmax)                                                                                                         \
    X(gla)                                                                                                             \
    X(retnet)                                                                                                          \
    X(mamba)                                                                                                           \
    X(mamba2)                                                                                                          \
    X(gated_deltanet)

#define DECLARE(name) extern const mhla_mixer mhla_mixer_##name;
MIXERS(DECLARE)
#define ROW(name) &mhla_mixer_##name,
static const mhla_mixer *const list[] = {MIXERS(ROW)};
#define NAME(name) "|" #name
const char mhla_mixer_names[] = "" MIXERS(NAME);
enum { COUNT = sizeof list / sizeof *list };

const mhla_mixer *mhla_mixer_at(int i) { return i >= 0 && i < COUNT ? list[i] : NULL; }
