/* Prompts as the text encoders of pipelines were given them in training: cleaned by the rules of each. */
#ifndef MHLA_TEXT_CLEAN_H
#define MHLA_TEXT_CLEAN_H

#include <mhla/mhla.h>

/* SANA's: lower case, no whitespace at the ends. *to is malloc'ed. MHLA_EDATA: no UTF-8. */
mhla_status mhla_clean_lower(char **to, const char *from);
/* No whitespace at the ends. */
mhla_status mhla_clean_ends(char **to, const char *from);
/* Wan's: line ends, control characters, curly quotes, ligatures, full width, HTML's entities twice, and every run of whitespace one blank.
 * Text that was decoded wrongly ("Ã©") stays as it is. */
mhla_status mhla_clean_repair(char **to, const char *from);

#endif
