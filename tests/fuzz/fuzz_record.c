/* Fuzzes the reader of the text in a picture: whatever it is, it is refused, or becomes a record that is written and read again as
 * the same. */
#include <mhla/diffusion.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mhla_sample_record first = {.size = sizeof first}, second = {.size = sizeof second};
    char *text = malloc(size + 1), *again = NULL;
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (mhla_sample_record_read(&first, text, "fuzz") == MHLA_OK) {
        if (mhla_sample_record_write(&again, &first) != MHLA_OK ||
            mhla_sample_record_read(&second, again, "fuzz") != MHLA_OK)
            abort();
        if (first.images < 1 || first.images != second.images || first.steps != second.steps ||
            memcmp(first.seeds, second.seeds, sizeof *first.seeds * (size_t)first.images) != 0 ||
            first.guidance != second.guidance || strcmp(first.weights, second.weights) != 0)
            abort();
    }
    mhla_sample_record_free(&first);
    mhla_sample_record_free(&second);
    free(text);
    free(again);
    return 0;
}
