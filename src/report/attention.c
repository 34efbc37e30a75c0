#include "report/attention.h"

#include <stddef.h>
#include <string.h>

#include "report/chart.h"

static const struct {
    const char *name, *title;
    int colour;
} known[] = {{"mhla", "MHLA", 0},      {"softmax", "softmax", 1},
             {"mala", "MALA", 2},      {"focused", "Focused LA", 3},
             {"inline", "InLine", 4},  {"linear", "linear", 5},
             {"gla", "GLA", 6},        {"rala", "RALA", 7},
             {"retnet", "RetNet", 8},  {"mamba", "Mamba", 9},
             {"mamba2", "Mamba2", 10}, {"gated_deltanet", "Gated DeltaNet", 11}};
enum { KNOWN = sizeof known / sizeof *known };

static int find(const char *name, size_t length) {
    for (int i = 0; i < KNOWN; i++)
        if (strlen(known[i].name) == length && strncmp(known[i].name, name, length) == 0) return i;
    return -1;
}

const char *mhla_attention_title(const char *name) {
    const int i = find(name, strlen(name));
    return i < 0 ? name : known[i].title;
}

int mhla_attention_colour(const char *name) {
    const int i = find(name, strcspn(name, "-"));
    return i < 0 ? -1 : known[i].colour;
}

/* What follows the attention: "-bare" of "linear-bare", "" of "linear". */
static const char *variant(const char *name) { return name + strcspn(name, "-"); }

/* The dash of names[i], by what stands before it: one that nothing of its colour has; rather one that stands for its variant already,
 * rather not one that stands for another. */
static int choose_dash(const int *colours, const char *const *names, int i, int base) {
    enum { ITS_OWN, FREE, ANOTHERS, TAKEN };
    int best = 0, best_state = TAKEN;
    for (int dash = 0; dash <= i; dash++) {
        int taken = 0, own = 0, another = 0;
        for (int k = 0; k < i; k++) {
            if (colours[k] < 0 || colours[k] / MHLA_CHART_COLOURS != dash) continue;
            const int same = strcmp(variant(names[k]), variant(names[i])) == 0;
            taken |= colours[k] % MHLA_CHART_COLOURS == base;
            own |= same;
            another |= !same && *variant(names[k]);
        }
        const int state = taken ? TAKEN : own ? ITS_OWN : another ? ANOTHERS : FREE;
        if (state < best_state) best = dash, best_state = state;
    }
    return best;
}

void mhla_attention_colours(int *colours, const char *const *names, int count) {
    int used[MHLA_CHART_COLOURS] = {0}, different = 0;
    for (int i = 0; i < count; i++) {
        colours[i] = names[i] ? mhla_attention_colour(names[i]) : -1;
        if (colours[i] >= 0) different += used[colours[i]]++ == 0;
    }
    memset(used, 0, sizeof used);
    for (int i = 0; i < count; i++) {
        if (colours[i] < 0) continue;
        const int base = colours[i];
        if (different < 2 && used[base])
            colours[i] = -1; /* all are of one attention: colours tell them apart better than dashes */
        else {
            const int dash = choose_dash(colours, names, i, base);
            colours[i] = base + MHLA_CHART_COLOURS * dash;
            if (used[base] <= dash) used[base] = dash + 1;
        }
    }
    for (int i = 0; i < count; i++) {
        int least = 0;
        if (colours[i] >= 0) continue;
        for (int k = 1; k < MHLA_CHART_COLOURS; k++)
            if (used[k] < used[least]) least = k;
        colours[i] = least + MHLA_CHART_COLOURS * used[least]++;
    }
}
