/* Fuzzes saved sequences: whatever the bytes are, they load or are refused, and a loaded sequence can be rolled back, fed and
 * freed. The first byte chooses the model, and whether size, fingerprint and checksum are put right, so that the fuzzer
 * gets past them. */
#include <mhla/lm.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "models/language/sequence.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MODELS = 2, VOCABULARY = 32 };
static mhla_model *models[MODELS];

/* MHLA with convolutions beside windowed softmax; linear with a denominator. */
static void make_models(void) {
    static const char *const hybrid[] = {
        "vocab_size=32",       "hidden_size=8", "num_hidden_layers=2", "chunk_size=4",       "num_blocks=3",
        "use_short_conv=true", "attn_layers=1", "attn_num_heads=2",    "attn_window_size=5", "intermediate_size=8"};
    static const char *const linear[] = {"vocab_size=32",    "hidden_size=8",         "num_hidden_layers=1",
                                         "attention=linear", "norm_feature_map=true", "intermediate_size=8",
                                         "feature_map=elu"};
    if (mhla_model_create(&models[0], "lm_micro", hybrid, sizeof hybrid / sizeof *hybrid, 1) ||
        mhla_model_create(&models[1], "lm_micro", linear, sizeof linear / sizeof *linear, 1))
        abort();
}

static void put_right(unsigned char *bytes, size_t size, mhla_reader *r) {
    if (size < 80) return;
    uint64_t print;
    if (mhla_reader_print(&print, r)) abort();
    const uint64_t length = size, version = 1;
    memcpy(bytes, "MHLAsequ", 8);
    memcpy(bytes + 8, &version, 8);
    memcpy(bytes + 16, &length, 8);
    memcpy(bytes + 24, &print, 8);
    const uint64_t sum = mhla_hash_fold(0, bytes, size - 8);
    memcpy(bytes + size - 8, &sum, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (models[0] == NULL) make_models();
    if (size < 1) return 0;
    mhla_model *model = models[data[0] % MODELS];
    mhla_reader *r;
    if (mhla_model_reader(&r, model)) abort();
    unsigned char *bytes = malloc(size); /* of its own, so that a byte too far shows */
    if (bytes == NULL) return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 0x80) put_right(bytes, size - 1, r);
    mhla_sequence *s;
    if (mhla_sequence_load_bytes(&s, model, bytes, size - 1, "fuzz") == MHLA_OK) {
        const int32_t ids[] = {1, 2, 3};
        float logits[VOCABULARY];
        const mhla_feed f = {.size = sizeof f, .sequence = s, .ids = ids, .count = 3, .logits = logits};
        if (mhla_sequence_rollback(s, mhla_sequence_tokens(s) / 2)) abort();
        if (mhla_sequence_tokens(s) < 4096) { /* all of them may have to be read */
            const mhla_status status = mhla_lm_feed(model, &f, 1);
            if (status != MHLA_OK && status != MHLA_ERANGE) abort();
        }
        mhla_sequence_free(s);
    }
    free(bytes);
    return 0;
}
