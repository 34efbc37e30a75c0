/* Any bytes as a chat template. */
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const mhla_message_desc messages[] = {
        {"system", "You are ü."}, {"user", "Hello \"x\""}, {"assistant", " <think>a</think> b "}, {"user", "?"}};
    char *source = malloc(size + 1);
    if (source == NULL) return 0;
    if (size > 0) memcpy(source, data, size);
    source[size] = '\0';
    mhla_chars text = {0};
    (void)mhla_template_render(source, &text, messages, 4, 1, "<s>", "</s>");
    mhla_chars_free(&text);
    free(source);
    return 0;
}
