/* One name and one colour for each attention, on every page, chart and table. */
#ifndef MHLA_REPORT_ATTENTION_H
#define MHLA_REPORT_ATTENTION_H

/* "MHLA" of "mhla"; a name that is not known stays as it is. */
const char *mhla_attention_title(const char *name);

/* Its colour in palette.css, or -1: not known. What follows a "-" does not count: "linear-bare" is linear attention. */
int mhla_attention_colour(const char *name);

/* Colours for mhla_chart_class of things named so that stand side by side: those of one attention share its colour and differ in
 * their dashes, unless all are of one attention. Variants with one ending ("mhla-bare", "linear-bare") have the same dash where
 * possible. A name that is not known (or NULL) gets a colour that no other has, as long as there are any. */
void mhla_attention_colours(int *colours, const char *const *names, int count);

#endif
