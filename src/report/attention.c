#include "report/attention.h"

#include <stddef.h>
#include <string.h>

#include "report/chart.h"

static const struct {
    const char *name, *title;
    int colour;
} known[] = {{"mhla", "MHLA", 0},     {"softmax", "softmax", 1}, {"mala", "MALA", 2}, {"focused", "Focused LA", 3},
             {"inline", "InLine", 4}, {"linear", "linear", 5},   {"gla", "GLA", 6},   {"rala", "RALA", 7}};
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

void mhla_attention_colours(int *colours, const char *const *names, int count) {
    int used[MHLA_CHART_COLOURS] = {0}, different = 0;
    for (int i = 0; i < count; i++) {
        colours[i] = names[i] ? mhla_attention_colour(names[i]) : -1;
        if (colours[i] >= 0) different += used[colours[i]]++ == 0;
    }
    memset(used, 0, sizeof used);
    for (int i = 0; i < count; i++) {
        if (colours[i] < 0) continue;
        if (different < 2 && used[colours[i]])
            colours[i] = -1; /* all are of one attention: colours tell them apart better than dashes */
        else
            colours[i] += MHLA_CHART_COLOURS * used[colours[i]]++;
    }
    for (int i = 0; i < count; i++) {
        int least = 0;
        if (colours[i] >= 0) continue;
        for (int k = 1; k < MHLA_CHART_COLOURS; k++)
            if (used[k] < used[least]) least = k;
        colours[i] = least + MHLA_CHART_COLOURS * used[least]++;
    }
}
