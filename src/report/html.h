/* Pieces of an HTML page that stands alone: foreign text made safe, bytes and pictures as data. */
#ifndef MHLA_REPORT_HTML_H
#define MHLA_REPORT_HTML_H

#include <stddef.h>
#include <stdio.h>

#include "image/image.h"

/* Text for an element or a quoted attribute: & < > " ' are escaped, control characters and what is no UTF-8 become U+FFFD. */
void mhla_html_text(FILE *out, const char *text);

/* The same bytes in base64: malloc'ed, NULL without memory. */
char *mhla_base64(const void *bytes, size_t size);
/* Is it nothing but base64? Such a text can stand in a data: address as it is. */
int mhla_base64_valid(const char *text);

/* <img> of a picture as PNG, `width` x `height` pixels large on the page; alt is foreign text. */
mhla_status mhla_html_image(FILE *out, const mhla_image *image, int width, int height, const char *alt);

#endif
