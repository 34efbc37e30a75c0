#include "report/html.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/text.h"

/* C1 controls, and marks that turn the direction of what follows: a name could rearrange the text around it. */
static int hidden(const unsigned char *at, int n) {
    return (n == 2 && at[0] == 0xc2 && at[1] < 0xa0) ||
           (n == 3 && at[0] == 0xe2 &&
            ((at[1] == 0x80 && at[2] >= 0xaa && at[2] <= 0xae) || (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9)));
}

void mhla_html_text(FILE *out, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    size_t left = strlen(text);
    while (left > 0) {
        const int n = mhla_utf8_length(at, left);
        switch (*at) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default:
            if (n == 0 || *at == 0x7f || (*at < 0x20 && *at != '\n' && *at != '\t') || hidden(at, n))
                fputs("\xEF\xBF\xBD", out);
            else
                fwrite(at, 1, (size_t)n, out);
        }
        at += n ? n : 1;
        left -= (size_t)(n ? n : 1);
    }
}

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *mhla_base64(const void *bytes, size_t size) {
    const unsigned char *from = bytes;
    char *text = malloc((size + 2) / 3 * 4 + 1), *to = text;
    if (text == NULL) return NULL;
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t v = (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                           (left > 2 ? (uint32_t)from[i + 2] : 0);
        *to++ = digits[v >> 18];
        *to++ = digits[v >> 12 & 63];
        *to++ = left > 1 ? digits[v >> 6 & 63] : '=';
        *to++ = left > 2 ? digits[v & 63] : '=';
    }
    *to = '\0';
    return text;
}

int mhla_base64_valid(const char *text) {
    const size_t n = strlen(text), body = strspn(text, digits);
    return n > 0 && n % 4 == 0 && n - body <= 2 && strspn(text + body, "=") == n - body;
}

mhla_status mhla_html_image(FILE *out, const mhla_image *image, int width, int height, const char *alt) {
    uint8_t *bytes = NULL;
    size_t size = 0;
    MHLA_TRY(mhla_image_encode_png(&bytes, &size, image, NULL, 0));
    char *text = mhla_base64(bytes, size);
    free(bytes);
    if (text == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for an image of %zu bytes", size);
    fprintf(out, "<img width=\"%d\" height=\"%d\" alt=\"", width, height);
    mhla_html_text(out, alt);
    fprintf(out, "\" src=\"data:image/png;base64,%s\">", text);
    free(text);
    return MHLA_OK;
}
